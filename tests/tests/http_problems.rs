//! Errors over HTTP have one form, and foreign sessions look like unknown ones.
use serde_json::{Value, json};
use tempfile::TempDir;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::{Reply, Web};

const JSON: (&str, &str) = ("content-type", "application/json");

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Sends every request about a session or a run, and returns the answers.
async fn everything(web: &Web, session: &str, run_id: &str, streams: bool) -> Vec<(String, Reply)> {
    let stream = [("accept", "text/event-stream")];
    let mut replies = Vec::new();
    for path in [
        format!("/v1/sessions/{session}"),
        format!("/v1/sessions/{session}/messages"),
        format!("/v1/sessions/{session}/events"),
        format!("/v1/runs/{run_id}"),
        format!("/v1/runs/{run_id}/events"),
    ] {
        replies.push((path.clone(), web.get(&path).await));
        // A stream of the user's own session would not end.
        if streams && path.ends_with("/events") {
            replies.push((path.clone(), web.ask("GET", &path, &stream, "").await));
        }
    }
    let cancel = format!("/v1/runs/{run_id}:cancel");
    replies.push((cancel.clone(), web.ask("POST", &cancel, &[], "").await));
    replies
}

/// Covers: S-06, RX-23, S-56.
#[tokio::test]
async fn foreign_session_is_answered_as_not_found() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    let bob = Web::new(node.http, Some("bob"));
    let events = ann.turn("s1", "echo", "m1", "hi", None).await.rest().await;
    let run_id = events[0].data["run_id"].as_str().expect("a run").to_owned();
    let nobody = format!("nobody.{}", &run_id["s1.".len()..]);
    let foreign = everything(&bob, "s1", &run_id, true).await;
    let unknown = everything(&bob, "nobody", &nobody, true).await;
    for ((path, foreign), (_, unknown)) in foreign.iter().zip(&unknown) {
        foreign.must_be(404, "not_found");
        assert_eq!((foreign.status, &foreign.text), (unknown.status, &unknown.text), "{path}");
        let names = |reply: &Reply| reply.headers.keys().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(foreign), names(unknown), "{path}");
    }
    // An input does not reveal the session either, whether or not its message id is known.
    for key in ["m1", "m2"] {
        let reply = bob.turn("s1", "echo", key, "hi", None).await.reply().await;
        assert_eq!(reply.text, unknown[0].1.text, "{key}");
    }
    assert!(everything(&ann, "s1", &run_id, false).await.iter().all(|(_, reply)| reply.status < 300));
    let operator = Web::new(node.http, None);
    assert!(everything(&operator, "s1", &run_id, false).await.iter().all(|(_, reply)| reply.status < 300));
}

/// Covers: LN-MP7, S-11, S-13.
#[tokio::test]
async fn every_invalid_request_gets_a_problem_with_a_code() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    let turns = "/v1/sessions/s1/turns";
    for (method, path, status) in [
        ("GET", "/nothing", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/sessions/", 404),
        ("GET", "/v1/sessions/s1/nothing", 404),
        ("POST", "/v1/sessions", 405),
        ("DELETE", "/v1/sessions/s1", 404),
        ("PUT", "/v1/sessions/s1", 405),
        ("GET", turns, 405),
        ("OPTIONS", "/v1/agents", 405),
        ("POST", "/v1/runs/s1.abcdefghijklmnopqrstuvwxyz", 405),
        ("GET", "/v1/runs/s1.abcdefghijklmnopqrstuvwxyz:cancel", 405),
        ("GET", "/v1/sessions/a%20b", 400),
        ("GET", "/v1/sessions/%ff", 400),
        ("GET", "/v1/runs/s1", 400),
        ("POST", "/v1/runs/s1:cancel", 400),
        ("GET", "/v1/sessions?limit=0", 400),
        ("GET", "/v1/sessions?before=x", 400),
        ("GET", "/v1/sessions/s1/events?types=..", 400),
        ("GET", "/v1/sessions/s1/events?after_seq=-1", 400),
        ("GET", "/v1/sessions/s1/messages?before=1&before=2", 400),
    ] {
        let reply = ann.ask(method, path, &[], "").await;
        reply.must_be(status, if status == 404 { "not_found" } else { "invalid_message" });
        assert_eq!(reply.headers.contains_key("allow"), status == 405, "{method} {path}");
    }
    let good = r#"{"message":{"content":"hi"}}"#;
    let long = format!(r#"{{"message":{{"content":"{}"}}}}"#, "x".repeat(65_536));
    let deep = "[".repeat(5000);
    for (headers, body, status, code) in [
        (&[][..], good, 415, "invalid_message"),
        (&[("content-type", "text/plain")], good, 415, "invalid_message"),
        (&[JSON], "", 400, "invalid_message"),
        (&[JSON], "{", 400, "invalid_message"),
        (&[JSON], "[]", 400, "invalid_message"),
        (&[JSON], "{}", 400, "invalid_message"),
        (&[JSON], &deep, 400, "invalid_message"),
        (&[JSON], r#"{"message":{"content":""}}"#, 400, "invalid_message"),
        (&[JSON], r#"{"message":{"content":"hi","role":"system"}}"#, 400, "invalid_message"),
        (&[JSON], r#"{"message":{"content":"hi"},"session_id":"other"}"#, 400, "invalid_message"),
        (&[JSON], r#"{"message":{"content":"hi"},"type":"subscribe"}"#, 400, "invalid_message"),
        (&[JSON], r#"{"message":{"content":"hi"},"agent_id":"nobody"}"#, 404, "not_found"),
        (&[JSON], &long, 413, "too_large"),
        (&[JSON, ("idempotency-key", "")], good, 400, "invalid_message"),
        (&[JSON, ("idempotency-key", "a"), ("idempotency-key", "b")], good, 400, "invalid_message"),
        (&[JSON, ("last-event-id", "1"), ("last-event-id", "2")], good, 400, "invalid_message"),
        (&[JSON, ("x-user-id", "bob")], good, 400, "invalid_message"),
    ] {
        ann.ask("POST", turns, headers, body).await.must_be(status, code);
    }
    // None of these requests created a session.
    assert_eq!(ann.json("/v1/sessions").await["sessions"], json!([]));
    // The error names the field and does not repeat its value.
    let secret = ann.ask("POST", turns, &[JSON], r#"{"message":{"content":7},"agent_id":"hunter2 "}"#).await;
    assert!(!secret.text.contains("hunter2"), "{}", secret.text);
    let path = "/v1/sessions/s1/events";
    let stream = [("accept", "text/event-stream"), ("last-event-id", "1"), ("last-event-id", "2")];
    ann.ask("GET", path, &stream, "").await.must_be(400, "invalid_message");
    assert!(!node.log().contains("\"level\":\"ERROR\""), "{}", node.log());
}

/// Covers: S-09.
#[tokio::test]
async fn page_of_another_origin_is_refused() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    for path in ["/v1/sessions", "/v1/agents", "/openapi.json", "/asyncapi.json"] {
        let reply = ann.ask("GET", path, &[("origin", "https://elsewhere.example")], "").await;
        reply.must_be(403, "forbidden");
    }
}

/// Answers `HEAD` with the headers of `GET` and no body.
#[tokio::test]
async fn head_request_has_no_body() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    let head = ann.ask("HEAD", "/v1/agents", &[], "").await;
    let get = ann.get("/v1/agents").await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    assert_eq!(head.headers["content-length"], get.text.len().to_string());
    let document: Value = ann.json("/openapi.json").await;
    assert_eq!(document["openapi"], "3.1.0");
}

/// The content type and the caching are those of the OpenAPI document.
#[tokio::test]
async fn checked_in_asyncapi_document_is_served() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let nobody = Web::new(node.http, None);
    let reply = nobody.get("/asyncapi.json").await;
    let other = nobody.get("/openapi.json").await;
    assert_eq!((reply.status, &reply.headers["content-type"]), (200, &other.headers["content-type"]));
    assert_eq!(reply.headers["cache-control"], other.headers["cache-control"]);
    let kept: Value = serde_json::from_str(include_str!("../../docs/asyncapi.json")).expect("JSON");
    assert!(reply.json() == kept, "docs/asyncapi.json is not what the node serves");
    let head = nobody.ask("HEAD", "/asyncapi.json", &[], "").await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
}
