//! Event streams: each piece passed on at once, in any spelling that the format allows, and kept alive in silence.
use crate::caller::sha256;
use crate::route::Route;
use crate::world::{until_quiet, with_gpt};
use futures_util::future::join_all;
use serde_json::json;
use tempfile::tempdir;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream, UpstreamRequest};

const KEEPALIVE: &str = ": keepalive\n";

/// Complete chat streams in unusual spellings. WHATWG HTML, section 9.2 "Server-sent events", allows all of them.
pub(crate) fn odd_streams() -> Vec<(&'static str, String)> {
    let text = "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a é 𝄞\"},\"finish_reason\":null}]}";
    let last = "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}";
    let usual = format!("data: {text}\n\ndata: {last}\n\ndata: [DONE]\n\n");
    let long = "x".repeat(3000);
    let named = [
        ("usual", usual.clone()),
        ("CRLF", usual.replace('\n', "\r\n")),
        ("comment first", format!(": OPENROUTER PROCESSING\n\n{usual}")),
        ("comment between", format!("data: {text}\n\n: ping\n\n:\n\ndata: {last}\n\ndata: [DONE]\n\n")),
        ("comment within", format!("data: {text}\n: within\n\ndata: {last}\n\n:end\ndata: [DONE]\n\n")),
        ("no space", format!("data:{text}\n\ndata:{last}\n\ndata:[DONE]\n\n")),
        ("ids", format!("id: 1\ndata: {text}\n\nid: 2\ndata: {last}\n\nid\ndata: [DONE]\n\n")),
        ("retry", format!("retry: 3000\n\ndata: {text}\n\ndata: {last}\n\ndata: [DONE]\n\n")),
        ("names", format!("event: chunk\ndata: {text}\n\nevent: chunk\ndata: {last}\n\ndata: [DONE]\n\n")),
        ("data before its name", format!("data: {text}\nevent: message\n\ndata: {last}\n\ndata: [DONE]\n\n")),
        ("unknown fields", format!("data: {text}\nx-y: z\nplain\n\ndata: {last}\n\ndata: [DONE]\n\n")),
        ("lines of data", format!("data: {}\n\ndata: {last}\n\ndata: [DONE]\n\n", text.replace(":[{", ":[\ndata: {"))),
        ("empty lines", format!("\n\ndata: {text}\n\n\n\ndata: {last}\n\n\ndata: [DONE]\n\n\n")),
        ("byte order mark", format!("\u{feff}{usual}")),
        ("no last empty line", format!("data: {text}\n\ndata: {last}\n\ndata: [DONE]\n")),
        ("no last line end", format!("data: {text}\n\ndata: {last}\n\ndata: [DONE]")),
        ("no [DONE]", format!("data: {text}\n\ndata: {last}\n\n")),
        ("mixed line ends", format!("data: {text}\r\n\ndata: {last}\n\r\ndata: [DONE]\r\n\r\n")),
        ("text that is no JSON", format!("data: {text}\n\ndata: hello\n\ndata: {last}\n\ndata: [DONE]\n\n")),
        ("empty data", format!("data: {text}\n\ndata:\n\ndata: {last}\n\ndata: [DONE]\n\n")),
        ("tool calls", {
            let call = "{\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":\
                {\"arguments\":\"{\\\"a\\\":\\\"[DONE]\\\"}\"}}]}}]}";
            let last = last.replace("stop", "tool_calls");
            format!("data: {call}\n\ndata: {last}\n\ndata: [DONE]\n\n")
        }),
        ("escaped ends in text", {
            let text = text.replace("a é", "data: [DONE]\\n\\n");
            format!("data: {text}\n\ndata: {last}\n\ndata: [DONE]\n\n")
        }),
        ("long event", format!("data: {}\n\ndata: {last}\n\ndata: [DONE]\n\n", text.replace("a é", &long))),
    ];
    named.into()
}

/// Answers with the odd stream of the index `odd` of the request, in pieces of `piece` bytes.
fn odd_answer(request: &UpstreamRequest) -> Answer {
    let request = request.json();
    let number = |name: &str| request[name].as_u64().and_then(|n| usize::try_from(n).ok()).expect("a number");
    let (_, stream) = odd_streams().swap_remove(number("odd"));
    Answer::events(stream.as_bytes().chunks(number("piece")))
}

/// Covers: PR-2, PR-4.
#[tokio::test]
async fn odd_event_streams_pass_unchanged() {
    let upstream = ScriptedUpstream::start(odd_answer).await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    let streams = odd_streams();
    assert!(streams.len() >= 20);
    for piece in [1, 7, 1 << 20] {
        let calls = streams.iter().enumerate().map(|(odd, (name, stream))| {
            let caller = &caller;
            async move {
                let options = json!({"include_usage": true});
                let body =
                    json!({"model": "gpt", "stream": true, "stream_options": options, "odd": odd, "piece": piece});
                let answer = caller.post(Route::Chat.path(), body.to_string()).await;
                assert_eq!((answer.status, answer.intact), (200, true), "{name}");
                assert_eq!(sha256(&answer.body), sha256(stream.as_bytes()), "{name} by {piece}: {}", answer.text());
            }
        });
        join_all(calls).await;
    }
    until_quiet(&node).await;
}

/// Covers: PR-4.
#[tokio::test]
async fn each_piece_is_passed_on_before_the_next_comes() {
    let dir = tempdir().expect("a directory");
    for route in Route::STREAMED {
        // The first event comes at once: an answer may be held until then.
        let steps = route.events().iter().enumerate();
        let answer = steps.fold(Answer::stream(), |answer, (n, event)| {
            let answer = if n == 0 { answer } else { answer.gate() };
            answer.piece(event.as_bytes())
        });
        let upstream = ScriptedUpstream::always(answer.gate().end()).await;
        let home = dir.path().join(format!("{route:?}"));
        std::fs::create_dir(&home).expect("a directory");
        let flag = crate::world::flag("gpt", &upstream, "");
        let node = turnway_tests::real::node::Node::start(&home, &["--model", &flag]).await;
        let caller = crate::caller::Caller::new(&node);
        let mut open = caller.open("POST", route.path(), route.request("gpt", true)).await;
        let exchange = upstream.next().await;
        let mut so_far = Vec::new();
        for event in route.events() {
            so_far.extend_from_slice(event.as_bytes());
            open.until_exactly(&so_far).await;
            exchange.release();
        }
        assert_eq!(open.rest().await.body, route.stream_bytes());
        until_quiet(&node).await;
    }
}

/// Covers: PR-4.
#[tokio::test]
async fn half_an_event_is_passed_on_at_once() {
    let [first, rest @ ..] = Route::Chat.events() else { panic!("there are events") };
    let rest = rest.concat();
    let at = rest.find("grüß").expect("the text") + "grü".len() - 1;
    let answer = Answer::stream().piece(first.as_bytes()).gate().piece(&rest.as_bytes()[..at]);
    let upstream = ScriptedUpstream::always(answer.gate().piece(&rest.as_bytes()[at..]).end()).await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    let mut open = caller.open("POST", Route::Chat.path(), Route::Chat.request("gpt", true)).await;
    let exchange = upstream.next().await;
    open.until_exactly(first.as_bytes()).await;
    exchange.release();
    open.until(|read| read.len() == first.len() + at).await;
    exchange.release();
    assert_eq!(open.rest().await.body, Route::Chat.stream_bytes());
}

/// Covers: PR-9.
#[tokio::test]
async fn streams_are_not_buffered_or_cached_on_their_way() {
    let upstream = ScriptedUpstream::start(|request| Route::of(&request.path).script(true)).await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    for route in Route::STREAMED {
        let answer = caller.post(route.path(), route.request("gpt", true)).await;
        assert_eq!(answer.header("content-type"), "text/event-stream; charset=utf-8");
        assert_eq!((answer.header("cache-control"), answer.header("x-accel-buffering")), ("no-store", "no"));
    }
}

/// Waits for the real keepalive, 15 s after the last byte: one line between events, and none within an event.
///
/// Covers: PR-4.
#[tokio::test]
async fn silent_stream_is_kept_alive_between_events_only() {
    let [first, second, rest @ ..] = Route::Chat.events() else { panic!("there are events") };
    let half = &second.as_bytes()[..20];
    let other_half = &second.as_bytes()[20..];
    let rest = rest.concat();
    let rest = rest.as_bytes();
    let within = Answer::stream().piece(first.as_bytes()).piece(half).gate().piece(other_half).piece(rest).end();
    let between = Answer::stream().piece(first.as_bytes()).gate().piece(second.as_bytes()).piece(rest).end();
    let upstream = ScriptedUpstream::in_order(vec![within, between]).await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    let body = Route::Chat.request("gpt", true);
    let mut earlier = caller.open("POST", Route::Chat.path(), body.clone()).await;
    let waits_within = upstream.next().await;
    let halved = [first.as_bytes(), half].concat();
    earlier.until_exactly(&halved).await;
    let mut later = caller.open("POST", Route::Chat.path(), body).await;
    let waits_between = upstream.next().await;
    later.until_exactly(first.as_bytes()).await;
    let kept = [first.as_bytes(), KEEPALIVE.as_bytes()].concat();
    later.until_exactly(&kept).await;
    // The earlier call has been silent for longer.
    waits_within.release();
    assert_eq!(earlier.rest().await.body, Route::Chat.stream_bytes());
    waits_between.release();
    let whole = later.rest().await;
    assert_eq!(whole.text().replacen(KEEPALIVE, "", 1), Route::Chat.events().concat());
    assert_eq!(whole.text().matches(KEEPALIVE).count(), 1, "{}", whole.text());
}
