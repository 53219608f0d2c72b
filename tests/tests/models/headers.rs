//! Header fields that pass, and keys that never do.
use crate::caller::{Caller, Received};
use crate::route::Route;
use crate::world::{flag, node_with_environment, until_metric, until_quiet, with_gpt};
use std::collections::BTreeSet;
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::http::get;
use turnway_tests::real::node::Node;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream};

const PROVIDER_KEY: &str = "sk-canary-of-the-provider";
const CALLER_KEY: &str = "sk-canary-of-the-caller";

/// Header fields of the caller that pass.
const PASSED_ON: [(&str, &str); 5] = [
    ("content-type", "application/json; charset=utf-8"),
    ("accept", "text/event-stream, application/json"),
    ("anthropic-version", "2023-06-01"),
    ("anthropic-beta", "a-2025-01-01,b-2025-01-01"),
    ("openai-beta", "assistants=v2"),
];

/// Header fields that the gateway writes itself.
const OWN: [&str; 8] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "accept-encoding",
    "user-agent",
    "authorization",
    "x-api-key",
];

/// Header fields of the upstream that pass.
const PASSED_BACK: [(&str, &str); 12] = [
    ("content-type", "application/json"),
    ("retry-after", "77"),
    ("retry-after-ms", "77000"),
    ("x-should-retry", "false"),
    ("request-id", "req_1"),
    ("x-request-id", "req_2"),
    ("openai-processing-ms", "5"),
    ("openai-version", "2020-10-01"),
    ("x-ratelimit-limit-requests", "100"),
    ("x-ratelimit-remaining-tokens", "99"),
    ("anthropic-ratelimit-requests-limit", "50"),
    ("anthropic-ratelimit-tokens-reset", "2026-01-01T00:00:00Z"),
];

/// Covers: PR-9.
#[tokio::test]
async fn only_listed_request_headers_reach_the_upstream() {
    let upstream = ScriptedUpstream::start(|request| Route::of(&request.path).script(false)).await;
    let dir = tempdir().expect("a directory");
    let (_node, mut caller) = with_gpt(&dir, &upstream, "").await;
    for (name, value) in PASSED_ON {
        caller = caller.with(name, value);
    }
    let kept_back = [
        "cookie",
        "traceparent",
        "tracestate",
        "x-user-id",
        "x-session-id",
        "idempotency-key",
        "openai-organization",
        "openai-project",
        "x-stainless-lang",
        "x-forwarded-for",
        "forwarded",
        "referer",
        "x-anything",
        "authorization",
        "api-key",
    ];
    for name in kept_back {
        caller = caller.with(name, "canary-value");
    }
    caller = caller.with("user-agent", "canary-agent/1").with("accept-encoding", "gzip");
    caller = caller.bearer(CALLER_KEY);
    for route in Route::ALL {
        let answer = caller.post(route.path(), route.request("gpt", false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let request = upstream.next().await.request.clone();
        for (name, value) in PASSED_ON {
            assert_eq!(request.header(name), Some(value), "{route:?} {name}");
        }
        assert_eq!(request.header("accept-encoding"), Some("identity"));
        let names: BTreeSet<&str> = request.headers.iter().map(|(name, _)| name.as_str()).collect();
        let known: BTreeSet<&str> = PASSED_ON.iter().map(|(name, _)| *name).chain(OWN).collect();
        assert!(names.is_subset(&known), "{route:?}: {:?}", names.difference(&known));
        assert!(!format!("{:?}", request.headers).contains("canary"), "{:?}", request.headers);
        // Without a key of its own the gateway sends none.
        assert!(request.header("authorization").is_none() && request.header("x-api-key").is_none());
    }
}

/// Covers: PR-9.
#[tokio::test]
async fn only_listed_answer_headers_reach_the_caller() {
    let hidden = ["set-cookie", "server", "openai-organization", "cf-ray", "x-canary", "www-authenticate", "alt-svc"];
    let hidden: Vec<(&str, &str)> = hidden.iter().map(|name| (*name, "canary")).collect();
    let upstream = ScriptedUpstream::start(move |request| {
        let fields = [&PASSED_BACK[..], &hidden].concat();
        if request.json()["stream"] == true {
            let fields: Vec<_> = fields.into_iter().filter(|(name, _)| *name != "content-type").collect();
            let answer = Answer::new().head(200, &[&fields[..], &[("content-type", "text/event-stream")]].concat());
            answer.piece(&Route::of(&request.path).stream_bytes()).end()
        } else {
            Answer::whole(200, &fields, Route::of(&request.path).answer())
        }
    })
    .await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    for (route, stream) in Route::modes() {
        let answer = caller.post(route.path(), route.request("gpt", stream)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        for (name, value) in PASSED_BACK.into_iter().filter(|(name, _)| *name != "content-type") {
            assert_eq!(answer.header(name), value, "{route:?} {stream} {name}");
        }
        let kind = if stream { "text/event-stream" } else { "application/json" };
        assert_eq!((answer.header("content-type"), answer.header("cache-control")), (kind, "no-store"));
        assert!(!format!("{:?}", answer.headers).contains("canary"), "{:?}", answer.headers);
    }
}

/// Asserts that no key is in these answers, the log or the metrics.
async fn must_be_hidden(node: &Node, answers: &[Received], keys: &[&str]) {
    let (_, metrics) = get(node.admin, "/metrics").await.expect("metrics");
    let log = node.log();
    for key in keys {
        for answer in answers {
            assert!(!answer.text().contains(key), "{}", answer.text());
            assert!(!format!("{:?}", answer.headers).contains(key), "{:?}", answer.headers);
        }
        assert!(!log.contains(key), "{log}");
        assert!(!metrics.contains(key));
    }
}

/// Covers: PR-1, PR-2, PR-9: providers write the key into the body of a 401, in part or as a whole.
#[tokio::test]
async fn refusal_of_the_providers_key_is_replaced() {
    let upstream = ScriptedUpstream::start(|request| {
        let key = request.header("authorization").or_else(|| request.header("x-api-key")).unwrap_or("none");
        let status = if request.path.ends_with("messages") { 403 } else { 401 };
        let body = format!("{{\"error\":{{\"message\":\"Incorrect API key provided: {key}\"}}}}");
        Answer::whole(status, &[("content-type", "application/json"), ("x-request-id", key)], body)
    })
    .await;
    let dir = tempdir().expect("a directory");
    let model = flag("gpt", &upstream, "api_key_env=PROVIDER_KEY");
    let node = node_with_environment(&dir, &[("PROVIDER_KEY", PROVIDER_KEY)], &["--model", &model]).await;
    let caller = Caller::new(&node).bearer(CALLER_KEY);
    let mut answers = Vec::new();
    for (route, stream) in Route::modes() {
        let answer = caller.post(route.path(), route.request("gpt", stream)).await;
        route.must_be(&answer, 502, "upstream_unauthorized");
        assert_eq!(answer.header("x-should-retry"), "false");
        answers.push(answer);
    }
    assert_eq!(upstream.calls(), Route::modes().len(), "none is retried");
    until_metric(&node, "turnway_model_attempts_total", "outcome=\"unauthorized\"", 7.0).await;
    until_quiet(&node).await;
    must_be_hidden(&node, &answers, &[PROVIDER_KEY, CALLER_KEY]).await;
}

/// Covers: PR-1, PR-9.
#[tokio::test]
async fn providers_key_is_sent_in_the_header_of_the_route() {
    let upstream = ScriptedUpstream::start(|request| Route::of(&request.path).script(false)).await;
    let dir = tempdir().expect("a directory");
    let with = |header: &str| {
        let settings = format!("api_key_env=PROVIDER_KEY,key_header={header}");
        flag(header, &upstream, &settings)
    };
    let models = [with("auto"), with("authorization"), with("x-api-key"), with("api-key")];
    let args = crate::world::model_args(&models);
    let node = node_with_environment(&dir, &[("PROVIDER_KEY", PROVIDER_KEY)], &args).await;
    let caller = Caller::new(&node).bearer(CALLER_KEY).with("x-api-key", CALLER_KEY).with("api-key", CALLER_KEY);
    let mut answers = Vec::new();
    for route in Route::ALL {
        for header in ["auto", "authorization", "x-api-key", "api-key"] {
            answers.push(caller.post(route.path(), route.request(header, false)).await);
            let request = upstream.next().await.request.clone();
            let sent = match header {
                "auto" if route == Route::Messages => "x-api-key",
                "auto" => "authorization",
                other => other,
            };
            for name in ["authorization", "x-api-key", "api-key"] {
                let value =
                    if name == "authorization" { format!("Bearer {PROVIDER_KEY}") } else { PROVIDER_KEY.into() };
                let expected = (name == sent).then_some(value.as_str());
                assert_eq!(request.header(name), expected, "{route:?} {header} {name}");
            }
        }
    }
    assert!(answers.iter().all(|answer| answer.status == 200));
    must_be_hidden(&node, &answers, &[PROVIDER_KEY, CALLER_KEY]).await;
}

/// Covers: PR-1, PR-9.
#[tokio::test]
async fn changed_key_file_is_read_again() {
    let upstream = ScriptedUpstream::always(Answer::json(200, Route::Chat.answer())).await;
    let dir = tempdir().expect("a directory");
    let file = dir.path().join("provider.key");
    std::fs::write(&file, "sk-canary-first\n").expect("a file");
    let (node, caller) = with_gpt(&dir, &upstream, &format!("api_key_file={}", file.display())).await;
    let body = Route::Chat.request("gpt", false);
    let mut answers = vec![caller.post(Route::Chat.path(), body.clone()).await];
    assert_eq!(upstream.next().await.request.header("authorization"), Some("Bearer sk-canary-first"));
    std::fs::write(&file, "  sk-canary-the-second \r\n").expect("a file");
    // The file is looked at once a second at most.
    let mut looks = interval(Duration::from_millis(100));
    let changed = timeout(PATIENCE, async {
        loop {
            looks.tick().await;
            answers.push(caller.post(Route::Chat.path(), body.clone()).await);
            let exchange = upstream.next().await;
            let key = exchange.request.header("authorization").expect("a key").to_owned();
            if key != "Bearer sk-canary-first" {
                return key;
            }
        }
    });
    assert_eq!(changed.await.expect("it is read again"), "Bearer sk-canary-the-second");
    must_be_hidden(&node, &answers, &["sk-canary"]).await;
}
