//! The origin of a conversation's message, as agents receive it: who writes, and where.
use super::TestAdapter;
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, Invocation, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

/// Refuses the first attempt of each turn, is silent in the second, and answers in the third.
fn answer_third(invocation: &Invocation) -> Reply {
    match invocation.attempt {
        1 => Reply::Error { status: 503, retry_after: "0", body: "busy" },
        2 => Reply::Silence,
        _ => answer(invocation),
    }
}

fn answer(_invocation: &Invocation) -> Reply {
    Reply::speak(|stream| async move {
        stream.delta("answer").await?;
        stream.done().await
    })
}

/// Waits until the agents have had so many requests; returns them.
pub(crate) async fn await_invocations(agents: &Agents, count: usize) -> Vec<Invocation> {
    let mut looks = interval(Duration::from_millis(20));
    let found = timeout(4 * PATIENCE, async {
        while agents.journal().len() < count {
            looks.tick().await;
        }
        agents.journal()
    });
    found.await.expect("requests in time")
}

/// Covers: BD-I3, BD-I4.
#[tokio::test]
async fn agent_learns_the_origin_in_every_attempt() {
    let dir = tempdir().expect("a directory");
    let agents = Agents::start(|invocation| answer_third(&invocation)).await;
    let flag = format!("{},on_owner_loss=retry", agents.flag("a"));
    let mut node = Node::start(dir.path(), &["--agent", &flag, "--default-agent", "a"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut message = adapter.message("thread", "m1", "hello");
    message["conversation"]["parent_conversation_id"] = json!("lobby");
    message["platform_time"] = json!(1_764_000_000_000_u64);
    let accepted = adapter.bring(message.clone()).await;
    assert_eq!(accepted["disposition"], "run", "{accepted}");
    await_invocations(&agents, 2).await;
    node.kill_and_restart().await;
    let attempts = await_invocations(&agents, 3).await;
    assert_eq!(attempts.iter().map(|it| it.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    let expected = json!({
        "conversation": message["conversation"], "message_id": "m1", "platform_time": 1_764_000_000_000_u64,
        "sender": {"id": "ann", "name": "Ann"},
    });
    for attempt in attempts {
        assert_eq!(attempt.context["origin"], expected, "attempt {}", attempt.attempt);
        assert_eq!(attempt.context["user_id"], "channel:rooms/main", "{}", attempt.context);
    }
}

/// Covers: BD-I4.
#[tokio::test]
async fn agent_that_dials_in_learns_the_origin() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", "a=dial-in:", "--default-agent", "a"]).await;
    let agent = WebSocketClient::open(node.http).await.expect("a connection");
    let hello = json!({"type": "hello", "role": "agent", "agent_id": "a", "capabilities": {"steer": true}});
    let mut agent = agent.greet_with(hello).await.expect("welcome");
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut message = adapter.message("lobby", "m1", "beep");
    message["sender"] = json!({"id": "b7", "is_bot": true});
    let accepted = adapter.bring(message).await;
    let order = agent.until(|order| order["type"] == "invoke").await.expect("an order");
    let expected = json!({
        "conversation": adapter.place("lobby"), "message_id": "m1", "sender": {"id": "b7", "is_bot": true},
    });
    assert_eq!(order["context"]["origin"], expected, "{order}");
    assert_eq!(order["run_id"], accepted["run_id"], "{order}");
}

/// Covers: BD-I4, RX-10.
#[tokio::test]
async fn client_cannot_write_an_origin() {
    let dir = tempdir().expect("a directory");
    let agents = Agents::start(|invocation| answer(&invocation)).await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    let origin = json!({
        "conversation": {"channel": "rooms", "account_id": "main", "conversation_id": "lobby"},
        "message_id": "m1", "sender": {"id": "ann", "name": "Ann"},
    });
    let mut forged = origin.clone();
    forged["origin"] = origin.clone();
    let forged = |message_id: &str| -> Value {
        json!({
            "type": "agent_invoke", "session_id": "s1", "message": {"content": "hi", "origin": origin},
            "message_id": message_id, "metadata": forged, "origin": origin, "context": {"origin": origin},
        })
    };
    let mut bob = WebSocketClient::hello(node.http, "bob", vec![]).await.expect("bob connects");
    let accepted = bob.ask("r1", forged("w1")).await.expect("an answer");
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    bob.until(|message| message["type"] == "done").await.expect("it ends");
    let headers = [("content-type", "application/json")];
    let web = Web::new(node.http, None);
    let mut turn = forged("h1");
    for field in ["type", "session_id"] {
        turn.as_object_mut().expect("an object").remove(field);
    }
    let reply = web.ask("POST", "/v1/sessions/s2/turns", &headers, &turn.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let mut call = json!({"model": "agent/a", "messages": [{"role": "user", "content": "hi", "origin": origin}]});
    (call["metadata"], call["origin"]) = (json!({"origin": origin.to_string()}), origin.clone());
    let reply = web.ask("POST", "/v1/chat/completions", &headers, &call.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let journal = await_invocations(&agents, 3).await;
    for invocation in journal {
        assert_eq!(invocation.context.get("origin"), None, "{}", invocation.context);
    }
}
