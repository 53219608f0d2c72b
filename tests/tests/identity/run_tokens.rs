//! The tokens with which agents read the session of their run, at any node, until the run ends.
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::tempdir;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::identity::{Key, guarded, pepper};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Time after the end of a run at which its token must be dead.
const DEAD_WITHIN: Duration = Duration::from_secs(2);

/// Starts agents that answer at the test's word; returns the tokens of their runs.
async fn agents_with_tokens() -> (Agents, mpsc::UnboundedReceiver<String>) {
    let (told, tokens) = mpsc::unbounded_channel();
    let agents = Agents::start(move |invocation| {
        let _ = told.send(invocation.token.clone());
        Reply::speak(|stream| async move { stream.hung_up().await })
    });
    (agents.await, tokens)
}

/// Waits until a token is refused; returns how long that took.
async fn await_dead(reader: &Web, path: &str) -> Duration {
    let ended = Instant::now();
    let mut looks = interval(Duration::from_millis(20));
    let dead = timeout(PATIENCE, async {
        loop {
            looks.tick().await;
            let status = reader.get(path).await.status;
            if status == 401 {
                return ended.elapsed();
            }
            assert_eq!(status, 200, "{path}");
        }
    });
    dead.await.expect("the token is dead")
}

/// Covers: PR-27, S-06, S-56.
#[tokio::test]
async fn run_token_reads_its_session_and_nothing_else() {
    let (agents, mut tokens) = agents_with_tokens().await;
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--agent", &agents.flag("held")]).await;
    let ann = Key::make(&node, &["--tenant", "acme", "--user", "ann"]).await;
    let mut wire = ann.hello(node.http, None).await.expect("let in");
    let own = wire.ask("a1", invoke("s1", "held", "for this agent")).await.expect("an answer");
    let token = tokens.recv().await.expect("a token");
    let other = wire.ask("a2", invoke("s2", "held", "for another one")).await.expect("an answer");
    let [own, other] = [own, other].map(|accepted| accepted["run_id"].as_str().expect("a run").to_owned());
    let reader = Web::new(node.http, None).bearer(&token);
    let page = reader.json("/v1/sessions/s1/messages").await;
    assert_eq!(page["messages"][0]["content"], "for this agent", "{page}");
    for path in [format!("/v1/runs/{own}"), "/v1/sessions/s1/events".into(), "/v1/sessions/s1".into()] {
        assert_eq!(reader.get(&path).await.status, 200, "{path}");
    }
    let foreign = [format!("/v1/runs/{other}"), format!("/v1/runs/{other}/events")];
    let lists = [
        "/v1/sessions/s2/messages",
        "/v1/sessions/nobodys",
        "/v1/sessions",
        "/v1/agents",
        "/v1/bindings?session_id=s2",
        "/",
    ];
    for path in foreign.iter().map(String::as_str).chain(lists).chain(["/v1/accounts/paused"]) {
        let refused = reader.get(path).await;
        assert_eq!(refused.status, 403, "{path}: {}", refused.text);
        assert!(!refused.text.contains("another one"), "{path}");
    }
    let json = [("content-type", "application/json"), ("idempotency-key", "q")];
    let turn = r#"{"agent_id": "held", "message": {"content": "mine"}}"#;
    let chat = r#"{"model": "agent/held", "messages": [{"role": "user", "content": "mine"}]}"#;
    for (method, path, body) in [
        ("POST", "/v1/sessions/s1/turns".to_owned(), turn),
        ("POST", "/v1/sessions/s1/messages".into(), r#"{"text": "mine"}"#),
        ("POST", format!("/v1/runs/{own}:cancel"), ""),
        ("DELETE", "/v1/sessions/s1".into(), ""),
        ("POST", "/v1/chat/completions".into(), chat),
    ] {
        let refused = reader.ask(method, &path, &json, body).await;
        assert_eq!(refused.status, 403, "{method} {path}: {}", refused.text);
    }
    let forged = format!("{}A", &token[..token.len() - 1]);
    for bad in [forged.as_str(), "twrun_", "twrun_x.y"] {
        assert_eq!(Web::new(node.http, None).bearer(bad).get("/v1/sessions/s1").await.status, 401, "{bad}");
    }
    let connected = WebSocketClient::open(node.http).await.expect("a connection");
    let hello = connected.greet_with(json!({"type": "hello", "api_key": token})).await;
    assert!(hello.is_err(), "an agent is no client");
    assert_eq!(agents.journal().len(), 2, "no turn was opened with the token");
}

/// Covers: PR-27.
#[tokio::test]
async fn run_token_is_dead_at_every_node_after_its_run() {
    let (agents, mut tokens) = agents_with_tokens().await;
    let dirs: Vec<_> = (0..3).map(|_| tempdir().expect("a directory")).collect();
    let redis = Redis::start(&dirs[0].path().join("redis"), &[]);
    let pepper = pepper(dirs[0].path()).display().to_string();
    let flag = agents.flag("held");
    let flags = ["--durability", "mem", "--auth-pepper", &pepper, "--agent", &flag];
    let owner = Node::start_on(&redis.url(), dirs[1].path(), &flags).await;
    let other = Node::start_on(&redis.url(), dirs[2].path(), &flags).await;
    let mut wire = WebSocketClient::hello(owner.http, "ann", vec![]).await.expect("a client");
    let accepted = wire.ask("a1", invoke("s1", "held", "hi")).await.expect("an answer");
    let token = tokens.recv().await.expect("a token");
    let readers = [&owner, &other].map(|node| Web::new(node.http, None).bearer(&token));
    let path = "/v1/sessions/s1/messages";
    for reader in &readers {
        assert_eq!(reader.json(path).await["messages"][0]["content"], "hi");
    }
    // A stream lasts no longer than its look at the run.
    let streamed = Instant::now();
    let stream = [("accept", "text/event-stream")];
    readers[1].open("GET", "/v1/sessions/s1/events", &stream, "").await.until_broken().await;
    assert!(streamed.elapsed() < DEAD_WITHIN + Duration::from_secs(1), "{:?}", streamed.elapsed());
    let cancelled = wire.ask("c", json!({"type": "cancel_run", "run_id": accepted["run_id"]})).await;
    drop(cancelled);
    wire.until(|message| message["type"] == "done").await.expect("an end");
    for reader in &readers {
        let took = await_dead(reader, path).await;
        assert!(took < DEAD_WITHIN, "{took:?}");
    }
    // The next run of the session has a token of its own, and the old one stays dead.
    wire.ask("a2", invoke("s1", "held", "again")).await.expect("an answer");
    let next = tokens.recv().await.expect("a token");
    assert_ne!(next, token);
    assert_eq!(readers[0].get(path).await.status, 401);
    assert_eq!(Web::new(other.http, None).bearer(&next).get(path).await.status, 200);
}

/// Covers: PR-27.
#[tokio::test]
async fn dial_in_agent_gets_a_run_token_with_its_input() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", "helper=dial-in:"]).await;
    let connection = WebSocketClient::open(node.http).await.expect("a connection");
    let hello = json!({"type": "hello", "role": "agent", "agent_id": "helper", "capabilities": {}});
    let mut agent = connection.greet_with(hello).await.expect("an agent");
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    ann.ask("a1", invoke("s1", "helper", "hi")).await.expect("an answer");
    let order: Value = agent.until(|message| message["type"] == "invoke").await.expect("an input");
    let token = order["run_token"].as_str().expect("a token").to_owned();
    let reader = Web::new(node.http, None).bearer(&token);
    assert_eq!(reader.json("/v1/sessions/s1/messages").await["messages"][0]["content"], "hi");
    agent.say(json!({"type": "done", "run_id": order["run_id"]})).await.expect("it is sent");
    ann.until(|message| message["type"] == "done").await.expect("an end");
    assert!(await_dead(&reader, "/v1/sessions/s1/messages").await < DEAD_WITHIN);
    assert!(!node.log().contains(&token), "no log has the token");
}
