//! Reads over HTTP: sessions, messages, facts, runs and agents.
use serde_json::{Value, json};
use tempfile::TempDir;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Runs a turn to its end and returns its run id.
async fn turn(web: &Web, session: &str, key: &str, text: &str) -> String {
    let events = web.turn(session, "echo", key, text, None).await.rest().await;
    assert_eq!(events.last().map(|event| &event.data["type"]), Some(&json!("done")));
    events[0].data["run_id"].as_str().expect("a run").to_owned()
}

fn list<'a>(page: &'a Value, name: &str, field: &str) -> Vec<&'a str> {
    let items = page[name].as_array().expect("a list");
    items.iter().map(|item| item[field].as_str().unwrap_or_default()).collect()
}

/// Covers: S-06, RX-23.
#[tokio::test]
async fn users_list_own_sessions_and_operators_all() {
    let dir = directory();
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    let bob = Web::new(node.http, Some("bob"));
    let operator = Web::new(node.http, None);
    assert_eq!(ann.json("/v1/sessions").await, json!({"sessions": [], "next": null}));
    for n in 0..5 {
        turn(&ann, &format!("a{n}"), "m1", "hi").await;
    }
    turn(&bob, "b0", "m1", "hi").await;
    for restarted in [false, true] {
        if restarted {
            node.kill_and_restart().await;
        }
        assert_eq!(list(&ann.json("/v1/sessions").await, "sessions", "session_id"), ["a4", "a3", "a2", "a1", "a0"]);
        assert_eq!(list(&bob.json("/v1/sessions").await, "sessions", "session_id"), ["b0"]);
        let all = operator.json("/v1/sessions").await;
        assert_eq!(list(&all, "sessions", "session_id"), ["b0", "a4", "a3", "a2", "a1", "a0"]);
        let one = &all["sessions"][0];
        assert_eq!((&one["user_id"], &one["state"], &one["pending"]), (&json!("bob"), &json!("open"), &json!(0)));
        assert!(one["created_ts"].as_u64().is_some_and(|ts| ts > 1_700_000_000_000) && one["seq"] == 8, "{one}");
    }
    // Pages of two sessions.
    let mut path = "/v1/sessions?limit=2".to_owned();
    let mut seen = Vec::new();
    loop {
        let page = ann.json(&path).await;
        seen.push(list(&page, "sessions", "session_id").join(" "));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/sessions?limit=2&before={next}");
    }
    assert_eq!(seen, ["a4 a3", "a2 a1", "a0"]);
    let snapshot = ann.json("/v1/sessions/a0").await;
    assert_eq!(
        (&snapshot["session_id"], &snapshot["state"], &snapshot["seq"]),
        (&json!("a0"), &json!("open"), &json!(8))
    );
    assert_eq!((&snapshot["active_agent"], &snapshot["runs"]), (&json!("echo"), &json!([])));
}

/// Covers: MP-H13.
#[tokio::test]
async fn messages_are_paged_backwards() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    let long = "Zeichen für Zeichen, 語 ".repeat(1500);
    for n in 0..12 {
        let text = if n == 6 { long.clone() } else { format!("say {n}") };
        turn(&ann, "s1", &format!("m{n}"), &text).await;
    }
    let mut path = "/v1/sessions/s1/messages?limit=5".to_owned();
    let mut seen = Vec::<Value>::new();
    loop {
        let page = ann.json(&path).await;
        seen.splice(0..0, page["messages"].as_array().expect("a list").iter().cloned());
        let Some(next) = page["next"].as_u64() else { break };
        path = format!("/v1/sessions/s1/messages?limit=5&before={next}");
    }
    assert_eq!(seen.len(), 24);
    for (n, pair) in seen.chunks(2).enumerate() {
        let text = if n == 6 { long.clone() } else { format!("say {n}") };
        assert_eq!((&pair[0]["role"], &pair[0]["content"]), (&json!("user"), &json!(text)));
        assert_eq!((&pair[1]["role"], &pair[1]["content"]), (&json!("assistant"), &json!(text)), "{n}");
        assert_eq!((&pair[1]["agent_id"], &pair[1]["status"]), (&json!("echo"), &json!("completed")));
        assert_eq!(pair[0]["run_id"], pair[1]["run_id"]);
    }
    let whole = ann.json("/v1/sessions/s1/messages").await;
    assert_eq!((whole["messages"].as_array(), &whole["next"]), (Some(&seen), &Value::Null));
}

/// Covers: MP-T9, LN-EV1, LN-EV3, LN-EV5, LN-EV18, MP-T10.
#[tokio::test]
async fn facts_are_paged_and_streamed() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    let run_id = turn(&ann, "s1", "m1", "hi").await;
    let all = ann.json("/v1/sessions/s1/events").await;
    let types = [
        "session.opened",
        "user.message",
        "turn.admitted",
        "run.started",
        "agent.invoke.started",
        "agent.stream.delta",
        "agent.invoke.done",
        "run.done",
    ];
    assert_eq!(list(&all, "events", "type"), types);
    assert_eq!((&all["next"], &all["seq"]), (&Value::Null, &json!(8)));
    let mut path = "/v1/sessions/s1/events?limit=3".to_owned();
    let mut seen = Vec::new();
    loop {
        let page = ann.json(&path).await;
        seen.extend(page["events"].as_array().expect("a list").iter().cloned());
        let Some(next) = page["next"].as_u64() else { break };
        path = format!("/v1/sessions/s1/events?limit=3&after_seq={next}");
    }
    assert_eq!(Some(&seen), all["events"].as_array());
    for (types, expected) in [("run.*", 2), ("agent.%3E", 3), ("user.message,run.done", 2), ("tool.%3E", 0)] {
        let page = ann.json(&format!("/v1/sessions/s1/events?types={types}")).await;
        assert_eq!(page["events"].as_array().map(Vec::len), Some(expected), "{types}");
    }
    // The same facts as a stream, which continues with new ones.
    let accept = [("accept", "text/event-stream")];
    let mut stream = ann.open("GET", "/v1/sessions/s1/events?types=run.*", &accept, "").await;
    let first = stream.next().await.expect("an event");
    assert_eq!(first.data, seen[3]);
    assert_eq!(stream.next().await.map(|event| event.data), Some(seen[7].clone()));
    turn(&ann, "s1", "m2", "ho").await;
    let live = stream.next().await.expect("an event");
    assert_eq!((&live.data["type"], &live.data["seq"]), (&json!("run.started"), &json!(11)));
    drop(stream);
    let back = [accept[0], ("last-event-id", first.id.as_deref().expect("an id"))];
    let mut stream = ann.open("GET", "/v1/sessions/s1/events?types=run.*", &back, "").await;
    assert_eq!(stream.next().await.map(|event| event.data), Some(seen[7].clone()));
    // A cursor that the log does not contain: the store lost facts, and the reader gets a reset.
    let gone = [accept[0], ("last-event-id", "900-1")];
    let mut stream = ann.open("GET", "/v1/sessions/s1/events", &gone, "").await;
    let reset = stream.next().await.expect("an event");
    assert_eq!((reset.name.as_deref(), &reset.data["reason"]), (Some("subscribed"), &json!("regressed")));
    // The facts of one turn, to its end.
    let page = ann.json(&format!("/v1/runs/{run_id}/events")).await;
    assert_eq!(list(&page, "events", "type"), types[1..]);
    let path = format!("/v1/runs/{run_id}/events");
    let events = ann.open("GET", &path, &accept, "").await.rest().await;
    assert_eq!(events.iter().map(|event| event.data.clone()).collect::<Vec<_>>(), seen[1..]);
    let last = [accept[0], ("last-event-id", events[6].id.as_deref().expect("an id"))];
    assert_eq!(ann.ask("GET", &path, &last, "").await.status, 204, "nothing more will come");
}

/// Covers: RX-6, ST-11, ST-14, ST-12.
#[tokio::test]
async fn run_is_read_and_cancelled() {
    let dir = directory();
    let agents = Agents::start(|_| {
        Reply::speak(async |stream| {
            stream.delta("begun").await?;
            stream.hung_up().await
        })
    })
    .await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("endless")]).await;
    let ann = Web::new(node.http, Some("ann"));
    let mut first = ann.turn("s1", "endless", "m1", "hi", None).await;
    let run_id = first.next().await.expect("accepted").data["run_id"].as_str().expect("a run").to_owned();
    // The delta and the fact take different paths, so either may arrive first.
    let mut heard = false;
    let mut acked = false;
    while !(heard && acked) {
        let event = first.next().await.expect("more");
        heard |= event.data["type"] == "delta";
        acked |= event.data["name"] == "AGENT_STARTED";
    }
    let run = ann.json(&format!("/v1/runs/{run_id}")).await;
    assert_eq!((&run["status"], &run["agent_id"]), (&json!("RUNNING"), &json!("endless")));
    assert_eq!((&run["message_id"], &run["user_id"], &run["attempt"]), (&json!("m1"), &json!("ann"), &json!(1)));
    assert_eq!(ann.json("/v1/sessions").await["sessions"][0]["pending"], 1);
    let mut second = ann.turn("s1", "endless", "m2", "hi", None).await;
    let waiting = second.next().await.expect("accepted").data["run_id"].as_str().expect("a run").to_owned();
    second.until(|event| event.data["name"] == "TURN_ADMITTED").await;
    assert_eq!(ann.json(&format!("/v1/runs/{waiting}")).await["status"], "QUEUED");
    // A queued run ends at once; a running one when its agent has stopped.
    let cancel = |run_id: &str| format!("/v1/runs/{run_id}:cancel");
    let reply = ann.ask("POST", &cancel(&waiting), &[], "").await;
    assert_eq!((reply.status, reply.json()), (200, json!({"run_id": waiting, "status": "cancelled"})));
    let reply = ann.ask("POST", &cancel(&run_id), &[], "").await;
    assert!(matches!(reply.status, 200 | 202), "{}", reply.text);
    let done = first.rest().await;
    assert_eq!(done.last().map(|event| &event.data["status"]), Some(&json!("cancelled")));
    for _ in 0..2 {
        let reply = ann.ask("POST", &cancel(&run_id), &[], "").await;
        assert_eq!((reply.status, reply.json()), (200, json!({"run_id": run_id, "status": "cancelled"})));
    }
    let run = ann.json(&format!("/v1/runs/{run_id}")).await;
    assert!(run["ended_ts"].is_u64() && run["text_bytes"] == 5, "{run}");
    let messages = ann.json("/v1/sessions/s1/messages").await;
    let last = &messages["messages"][3];
    assert_eq!((&last["status"], &last["content"]), (&json!("cancelled"), &json!("begun")), "{messages}");
}

/// Covers: ST-6, LN-TP23.
#[tokio::test]
async fn rolled_back_turns_are_not_listed_as_messages() {
    let dir = directory();
    let agents = Agents::start(|invoke| {
        let waits = invoke.text == "wrong";
        Reply::speak(async move |stream| {
            stream.delta("an answer").await?;
            if waits { stream.hung_up().await } else { stream.done().await }
        })
    })
    .await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a")]).await;
    let ann = Web::new(node.http, Some("ann"));
    let said = async |key: &str, text: &str, strategy: &str| {
        let message = json!({"role": "user", "content": text});
        let body = json!({"agent_id": "a", "strategy": strategy, "message": message});
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        ann.open("POST", "/v1/sessions/s1/turns", &headers, &body.to_string()).await
    };
    let mut wrong = said("m1", "wrong", "enqueue").await;
    wrong.until(|event| event.data["type"] == "delta").await;
    let mut late = said("m2", "late", "enqueue").await;
    late.until(|event| event.data["name"] == "TURN_ADMITTED").await;
    let mut right = said("m3", "right", "rollback").await;
    let ended = wrong.rest().await;
    assert_eq!(ended.last().map(|event| &event.data["status"]), Some(&json!("cancelled")), "{ended:?}");
    right.rest().await;
    late.rest().await;
    let whole = ann.json("/v1/sessions/s1/messages").await;
    assert_eq!(list(&whole, "messages", "content"), ["late", "right", "an answer", "an answer"]);
    // A page that ends before the rollback omits the turn too; the facts stay in the log.
    let second = &whole["messages"][0]["seq"];
    let page = ann.json(&format!("/v1/sessions/s1/messages?before={second}")).await;
    assert_eq!((&page["messages"], &page["next"]), (&json!([]), &Value::Null));
    let facts = ann.json("/v1/sessions/s1/events?types=run.cancelled,user.message").await;
    assert_eq!(list(&facts, "events", "type").len(), 4);
    assert_eq!(facts["events"][3]["data"]["reason"], "rollback", "{facts}");
}

/// Covers: MP-H11.
#[tokio::test]
async fn agent_endpoints_are_listed_only_for_operators() {
    let dir = directory();
    let agents = Agents::start(|_| Reply::Status(200)).await;
    let flag = format!("{},cancel=true", agents.flag("a"));
    let node = Node::start(dir.path(), &["--demo", "--agent", &flag, "--default-agent", "echo"]).await;
    let seen = Web::new(node.http, Some("ann")).json("/v1/agents").await;
    let capabilities = |steer: bool| json!({"cancel": true, "steer": steer, "resume": false});
    assert_eq!(
        seen,
        json!({"agents": [
            {"agent_id": "a", "kind": "http", "default": false, "healthy": true, "capabilities": capabilities(false)},
            {"agent_id": "echo", "kind": "builtin", "default": true, "healthy": true, "capabilities": capabilities(false)},
            {"agent_id": "counter", "kind": "builtin", "default": false, "healthy": true, "capabilities": capabilities(true)},
            {"agent_id": "assistant", "kind": "model", "default": false, "healthy": true, "capabilities": capabilities(false)},
        ]})
    );
    let operator = Web::new(node.http, None).json("/v1/agents").await;
    assert!(operator["agents"][0]["endpoint"].as_str().is_some_and(|url| url.ends_with("/a")), "{operator}");
    assert_eq!(operator["agents"][1].get("endpoint"), None);
}

/// Covers: ST-3.
#[tokio::test]
async fn trimmed_history_is_reported() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo", "--retention", "facts=8"]).await;
    let ann = Web::new(node.http, Some("ann"));
    let first = turn(&ann, "s1", "m0", "say 0").await;
    for n in 1..30 {
        turn(&ann, "s1", &format!("m{n}"), &format!("say {n}")).await;
    }
    let page = ann.json("/v1/sessions/s1/events?limit=500").await;
    let floor = page["floor"].as_u64().expect("a floor");
    assert_eq!((&page["trimmed"], &page["events"][0]["seq"]), (&json!(true), &json!(floor + 1)));
    let after = ann.json(&format!("/v1/sessions/s1/events?after_seq={floor}")).await;
    assert_eq!((after.get("trimmed"), &after["events"][0]), (None, &page["events"][0]));
    let messages = ann.json("/v1/sessions/s1/messages?limit=500").await;
    assert_eq!((&messages["trimmed"], &messages["next"]), (&json!(true), &Value::Null));
    assert!(messages["floor"].as_u64().is_some_and(|seq| seq >= floor), "{messages}");
    let last = messages["messages"].as_array().and_then(|all| all.last()).expect("a message");
    assert_eq!(last["content"], "say 29");
    // The message of a trimmed turn is still known, but not the result of the turn.
    let run = ann.json(&format!("/v1/runs/{first}")).await;
    assert_eq!((&run["trimmed"], &run["status"]), (&json!(true), &json!("ended")), "{run}");
    let again = ann.turn("s1", "echo", "m0", "say 0", None).await.rest().await;
    let said: Vec<&str> = again.iter().filter_map(|event| event.data["type"].as_str()).collect();
    assert_eq!(said, ["turn_accepted", "subscribed"]);
    assert_eq!((&again[0].data["duplicate"], &again[1].data["reason"]), (&json!(true), &json!("trimmed")));
}

/// Shows the body of an agent's error to operators in every view, and to no user, because its content may be
/// internal.
///
/// Covers: S-06.
#[tokio::test]
async fn agent_error_body_is_visible_only_to_operators() {
    const BODY: &str = "Traceback: no route to db-7.internal";
    let agents = Agents::start(|_| Reply::Error { status: 503, retry_after: "7", body: BODY }).await;
    let dir = directory();
    let node = Node::start(dir.path(), &["--agent", &agents.flag("down")]).await;
    let ann = Web::new(node.http, Some("ann"));
    let operator = Web::new(node.http, None);
    let mut runs = Vec::new();
    for (who, session) in [(&ann, "s1"), (&operator, "s2")] {
        let events = who.turn(session, "down", "m1", "hi", None).await.rest().await;
        let error = events.iter().find(|event| event.data["type"] == "error").expect("an error");
        assert_eq!(
            (&error.data["code"], &error.data["retry_after_ms"], &error.data["retryable"]),
            (&json!("agent_unavailable"), &json!(7_000), &json!(true)),
        );
        let expected = if session == "s2" { json!({"agent_body": BODY}) } else { Value::Null };
        assert_eq!(error.data["detail"], expected, "{session}");
        runs.push(error.data["run_id"].as_str().expect("a run").to_owned());
    }
    // The operator sees the body in a user's run; the user does not.
    let run = &runs[0];
    for path in [format!("/v1/runs/{run}"), format!("/v1/runs/{run}/events"), "/v1/sessions/s1/events".to_owned()] {
        assert!(!ann.json(&path).await.to_string().contains("db-7"), "{path}");
        assert!(operator.json(&path).await.to_string().contains("db-7"), "{path}");
    }
    let error = operator.json(&format!("/v1/runs/{run}")).await["error"].clone();
    assert_eq!((&error["retry_after_ms"], &error["detail"]["agent_body"]), (&json!(7_000), &json!(BODY)));
    let error = ann.json(&format!("/v1/runs/{run}")).await["error"].clone();
    assert_eq!((&error["retry_after_ms"], &error["detail"]), (&json!(7_000), &Value::Null));
    assert!(!node.log().contains("db-7"), "what an agent says is not logged");
}

/// Bounds a page of facts by bytes as well as by number.
///
/// Covers: MP-H13, G8.
#[tokio::test]
async fn page_of_facts_is_bounded_in_bytes() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    let long = "x".repeat(50_000);
    for n in 0..15 {
        turn(&ann, "s1", &format!("m{n}"), &long).await;
    }
    let mut after = 0;
    let mut seen = 0;
    loop {
        let reply = ann.get(&format!("/v1/sessions/s1/events?limit=500&after_seq={after}")).await;
        assert!(reply.text.len() < 1_100_000, "{} bytes after {after}", reply.text.len());
        let page = reply.json();
        seen += page["events"].as_array().expect("a list").len() as u64;
        let Some(next) = page["next"].as_u64() else {
            assert_eq!(page["seq"], seen, "all of them, in pages");
            break;
        };
        after = next;
    }
}

/// Answers a cursor of another log with a reset, even where this log is longer.
///
/// Covers: ST-3, I7.
#[tokio::test]
async fn cursor_of_another_log_gets_a_reset() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    turn(&ann, "s1", "m1", "hi").await;
    let stream = [("accept", "text/event-stream"), ("last-event-id", "3-1")];
    let mut stream = ann.open("GET", "/v1/sessions/s1/events", &stream, "").await;
    let reset = stream.next().await.expect("an event");
    assert_eq!((reset.name.as_deref(), &reset.data["reason"]), (Some("subscribed"), &json!("regressed")));
}
