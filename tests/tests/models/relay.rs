//! Bytes of requests and answers, which must pass unchanged in both directions.
use crate::caller::{Caller, sha256};
use crate::route::Route;
use crate::world::{flag, open_node, until_quiet, with_gpt};
use futures_util::future::join_all;
use serde_json::json;
use tempfile::tempdir;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream, UpstreamRequest};

/// Largest body of a request.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// `{"id":"c1","object":"chat.completion",…}` as gzip.
const GZIP_BODY: &str = "1f8b0800000000000203158c410a02310c45eff2d74574dbab8848ec441be924c3240ba1f4eeb6abc7e7f15f876cc8283724d8eb\
    cb25d6aa149762fbd138c474aa524d0a3bf2bd4374e31ff235616777fa3072c7696d12e42e1ea4b13ea6c1ba7a955b338c84b7a8787d9e4c\
    3eb3191e76603cc61fd0833f9a86000000";

/// A complete event stream of one choice and `[DONE]` as gzip.
const GZIP_STREAM: &str = "1f8b08000000000002031dcc310a80300c05d0bda7903f7770ceacab1e40448a8db45012b11904e9dd15e7072f060bd43dd893e\
    69d2b68799025f20dea3d22170ba08f558cc540485c8aa2791c59724ddbc5a1aa7c504d4fb4b53917ff7319e6695c9d7b01c295f66562000000";

/// Returns the bytes of hexadecimal digits.
pub(crate) fn from_hex(digits: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Returns a gzip body, and a gzip event stream.
pub(crate) fn gzip_samples() -> [Vec<u8>; 2] {
    [GZIP_BODY, GZIP_STREAM].map(from_hex)
}

/// Answers each request with the scripted answer of its route.
fn by_route(request: &UpstreamRequest) -> Answer {
    let stream = request.json()["stream"] == true;
    Route::of(&request.path).script(stream)
}

/// Covers: PR-2, PR-14.
#[tokio::test]
async fn bodies_of_every_route_pass_unchanged() {
    let upstream = ScriptedUpstream::start(by_route).await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    for (route, stream) in Route::modes() {
        let body = route.request("gpt", stream);
        let answer = caller.post(route.path(), body.clone()).await;
        let expected = route.script_bytes(stream);
        assert_eq!((answer.status, answer.intact), (200, true), "{route:?} {stream}: {}", answer.text());
        assert_eq!(sha256(&answer.body), sha256(&expected), "{route:?} {stream}: {}", answer.text());
        let request = upstream.next().await.request.clone();
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", route.path()));
        assert_eq!(request.query, None);
        assert_eq!(sha256(&request.body), sha256(body.as_bytes()), "{:?}", String::from_utf8_lossy(&request.body));
    }
    until_quiet(&node).await;
}

/// Covers: PR-14.
#[tokio::test]
async fn path_of_the_base_url_stands_before_the_route() {
    let upstream = ScriptedUpstream::always(Answer::json(200, Route::Chat.answer())).await;
    let dir = tempdir().expect("a directory");
    let base = upstream.url().replace("/v1", "/deep/v1");
    let node = open_node(&dir, &[format!("gpt={base}")]).await;
    let answer = Caller::new(&node).post(Route::Chat.path(), Route::Chat.request("gpt", false)).await;
    assert_eq!(answer.status, 200, "{base}: {}", answer.text());
    assert_eq!(upstream.next().await.request.path, "/deep/v1/chat/completions");
}

/// Covers: PR-2.
#[tokio::test]
async fn simultaneous_calls_get_their_own_bytes() {
    let upstream = ScriptedUpstream::start(|request| {
        let echo = request.json()["echo"].as_str().expect("a text").repeat(500);
        Answer::json(200, json!({"choices": [{"finish_reason": "stop"}], "echo": echo}).to_string())
    })
    .await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    let caller = &caller;
    let calls = (0..60).map(|n| async move {
        let body = json!({"model": "gpt", "messages": [], "echo": format!("<{n}>")}).to_string();
        let answer = caller.post(Route::Chat.path(), body).await;
        assert_eq!(answer.json()["echo"], format!("<{n}>").repeat(500), "{}", answer.text());
    });
    join_all(calls).await;
    assert_eq!(upstream.calls(), 60);
    until_quiet(&node).await;
}

/// Covers: PR-14.
#[tokio::test]
async fn largest_body_passes_and_a_larger_one_is_refused() {
    let upstream = ScriptedUpstream::start(|_| Answer::json(200, Route::Embeddings.answer())).await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    let with = |count: usize| format!("{{\"model\":\"gpt\",\"input\":\"{}\"}}", "x".repeat(count));
    let frame = with(0).len();
    let largest = with(BODY_BYTES_MAX - frame);
    let answer = caller.post(Route::Embeddings.path(), largest.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(sha256(&upstream.only_request().body), sha256(largest.as_bytes()));
    // A chat call of this size may as well be one to an agent, which is refused otherwise.
    for route in [Route::Responses, Route::Messages, Route::Embeddings] {
        let answer = caller.post(route.path(), with(BODY_BYTES_MAX - frame + 1)).await;
        route.must_be(&answer, 413, "too_large");
    }
    assert_eq!(upstream.calls(), 1);
    until_quiet(&node).await;
}

/// Covers: PR-2, PR-14.
#[tokio::test]
async fn large_answer_passes_unchanged() {
    let large = format!("{{\"data\":[\"{}\"]}}", "0123456789abcdef".repeat(2 * 1024 * 1024));
    let upstream = ScriptedUpstream::always(Answer::json(200, large.clone())).await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    let answer = caller.post(Route::Embeddings.path(), Route::Embeddings.request("gpt", false)).await;
    assert_eq!((answer.status, answer.intact), (200, true));
    assert_eq!(sha256(&answer.body), sha256(large.as_bytes()));
}

/// Covers: PR-2, PR-3.
#[tokio::test]
async fn compressed_answer_passes_unchanged() {
    let [body, stream] = gzip_samples();
    let gzip = ("content-encoding", "gzip");
    let answers = vec![
        Answer::whole(200, &[("content-type", "application/json"), gzip], body.clone()),
        Answer::new().head(200, &[("content-type", "text/event-stream"), gzip]).piece(&stream).end(),
    ];
    let upstream = ScriptedUpstream::in_order(answers).await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    let caller = caller.with("accept-encoding", "gzip, br");
    for (streamed, expected) in [(false, body), (true, stream)] {
        let answer = caller.post(Route::Chat.path(), Route::Chat.request("gpt", streamed)).await;
        assert_eq!((answer.status, answer.intact), (200, true));
        assert_eq!(answer.header("content-encoding"), "gzip");
        assert_eq!(sha256(&answer.body), sha256(&expected));
    }
    for request in upstream.requests() {
        assert_eq!(request.header("accept-encoding"), Some("identity"));
    }
}

/// Covers: PR-2.
#[tokio::test]
async fn error_answer_of_the_upstream_passes_unchanged() {
    let odd = "{ \"error\" : {\"message\":\"no\\u0021\", \"code\": null , \"type\":\"x\"} }\n";
    let upstream = ScriptedUpstream::start(move |request| {
        let status = request.json()["status"].as_u64().and_then(|status| u16::try_from(status).ok());
        Answer::json(status.expect("a status"), odd)
    })
    .await;
    let dir = tempdir().expect("a directory");
    // Five failures in a row would open the breaker: each upstream gets one of them.
    let statuses = [302, 400, 404, 409, 413, 422, 451, 500, 501, 504];
    let models: Vec<String> = statuses.iter().map(|status| flag(&format!("gpt-{status}"), &upstream, "")).collect();
    let node = open_node(&dir, &models).await;
    let caller = Caller::new(&node);
    for status in statuses {
        let body =
            json!({"model": format!("gpt-{status}"), "messages": [], "status": status, "stream": status % 2 == 0});
        let answer = caller.post(Route::Responses.path(), body.to_string()).await;
        assert_eq!((answer.status, answer.text().as_str()), (status, odd));
        assert!(answer.header("content-type").starts_with("application/json"), "{answer:?}");
    }
    assert_eq!(upstream.calls(), statuses.len(), "none of them is retried");
    until_quiet(&node).await;
}
