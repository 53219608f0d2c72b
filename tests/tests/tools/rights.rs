//! Tests the credentials of tool runners: which of them may serve tools, and for which tenants.
use crate::{act, event, next, tells};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};

fn hello(key: &Key, runner_id: &str) -> Value {
    json!({"type": "hello", "role": "tool_runner", "runner_id": runner_id, "tools": ["t"], "api_key": key.text})
}

/// Connects as a runner, and reads `welcome`.
async fn connect(node: &Node, key: &Key, runner_id: &str) -> Result<WebSocketClient, ConnectionEnd> {
    WebSocketClient::open(node.http).await.expect("it connects").greet_with(hello(key, runner_id)).await
}

/// Connects as a runner that is refused; returns the error and the end of the connection.
async fn refused(node: &Node, hello: Value) -> (Value, ConnectionEnd) {
    let mut wire = WebSocketClient::open(node.http).await.expect("it connects");
    wire.say(hello).await.expect("said");
    let error = wire.next().await.expect("an answer");
    (error, wire.until(|_| false).await.expect_err("it is closed"))
}

/// Starts a node with key authentication and the dial-in agent `a`.
async fn keyed(args: &[&str]) -> (Node, TempDir) {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &[&["--demo", "--agent", "a=dial-in:,on_owner_loss=retry"][..], args].concat()).await;
    (node, dir)
}

/// Creates a key of this tenant with this `serves`.
async fn serving(node: &Node, tenant: &str, serves: &str) -> Key {
    Key::make(node, &["--tenant", tenant, "--serves", serves]).await
}

/// Connects an agent and a user of a tenant; the user's session is `s1`.
async fn agent_and_person(node: &Node, tenant: &str) -> (WebSocketClient, WebSocketClient) {
    let key = serving(node, tenant, "agent:a").await;
    let hello = json!({"type": "hello", "role": "agent", "agent_id": "a", "api_key": key.text});
    let agent = WebSocketClient::open(node.http).await.expect("it connects").greet_with(hello).await.expect("welcome");
    let person = Key::make(node, &["--tenant", tenant, "--user", "ann"]).await;
    (agent, person.hello(node.http, None).await.expect("let in"))
}

/// Makes a tenant's agent request the tool `t`.
async fn ask_for_tool(agent: &mut WebSocketClient, person: &mut WebSocketClient, text: &str) -> Value {
    let accepted = person.ask(text, invoke("s1", "a", text)).await.expect("taken");
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    let order = next(agent, "invoke").await;
    act(agent, &order, text, "t").await;
    event(agent, "agent.action").await;
    order
}

/// Asserts that nothing was sent before: the answer to a ping is the next message.
async fn is_told_nothing(wire: &mut WebSocketClient) {
    wire.say(json!({"type": "ping"})).await.expect("said");
    next(wire, "pong").await;
}

/// Covers: S-01, S-06, S-07.
#[tokio::test]
async fn tool_runner_needs_a_serving_credential() {
    let (node, _dir) = keyed(&[]).await;
    for args in [
        &["--user", "ann"][..],
        &["--user", "ann", "--scopes", "read"],
        &["--user", "root", "--scopes", "read,write,operator"],
        &["--user", "root", "--scopes", "read,write,operator", "--tenant", "acme"],
        &["--scopes", "read,write,act_as"],
        &["--serves", "tools:r2"],
        &["--serves", "agent:r1,adapter:r1/t"],
    ] {
        let (error, gone) = refused(&node, hello(&Key::make(&node, args).await, "r1")).await;
        assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("forbidden")), "{args:?}: {error}");
        assert_eq!(gone, ConnectionEnd::Closed(4403), "{args:?}");
    }
    let nobody = json!({"type": "hello", "role": "tool_runner", "runner_id": "r1", "tools": ["t"]});
    assert_eq!(refused(&node, nobody).await.1, ConnectionEnd::Closed(4401));
    // By the runner's id or by each of its tools; no scope is needed in addition.
    for args in [&["--serves", "tools:r1"][..], &["--serves", "tools:t"], &["--serves", "tools:r1", "--scopes", "read"]]
    {
        let key = Key::make(&node, args).await;
        let mut runner = connect(&node, &key, "r1").await.expect("welcome");
        // Revoking the key closes the connection.
        key.revoke(&node).await;
        assert_eq!(runner.until(|_| false).await, Err(ConnectionEnd::Closed(4401)), "{args:?}");
    }
}

/// Covers: S-07.
#[tokio::test]
async fn delegated_user_cannot_serve_tools() {
    let (node, _dir) = keyed(&["--tools-served-by", "runner"]).await;
    // The key itself may serve tools, and its bearer may act as the user that the configuration names.
    let shop = Key::make(&node, &["--scopes", "read,write,act_as,operator", "--serves", "tools:r1"]).await;
    for user in ["runner", "ann"] {
        let mut hello = hello(&shop, "r1");
        hello["user_id"] = user.into();
        let (error, gone) = refused(&node, hello).await;
        assert_eq!((&error["code"], gone), (&json!("forbidden"), ConnectionEnd::Closed(4403)), "{user}: {error}");
    }
    connect(&node, &shop, "r1").await.expect("as itself it may");
}

/// Covers: S-06, S-07.
#[tokio::test]
async fn runner_gets_no_actions_of_another_tenant() {
    let (node, _dir) = keyed(&[]).await;
    let (mut agent, mut ann) = agent_and_person(&node, "acme").await;
    let evil = serving(&node, "evil", "tools:r1,tools:t").await;
    let mut evil = connect(&node, &evil, "r1").await.expect("welcome");
    ask_for_tool(&mut agent, &mut ann, "one").await;
    is_told_nothing(&mut evil).await;
    // The tenant's own runner may have the same id, and gets the action.
    let own = serving(&node, "acme", "tools:r1").await;
    let mut own = connect(&node, &own, "r1").await.expect("another tenant's id takes nothing away");
    let execute = next(&mut own, "execute").await;
    // Reports of other runners are ignored, even after the action's runner is gone.
    tells(&mut evil, &execute, "result", json!({"ok": true, "result": {"made": "up"}})).await;
    is_told_nothing(&mut evil).await;
    drop(own);
    let again = serving(&node, "evil", "tools:r1").await;
    assert_eq!(refused(&node, hello(&again, "r1")).await.1, ConnectionEnd::Closed(4409), "the id is the first one's");
    is_told_nothing(&mut evil).await;
    let lost = ann.until(|message| message["type"] == "tool_event" && message["name"] == "tool.result").await;
    let lost = lost.expect("it ends");
    assert_eq!(lost["data"]["ok"], json!(false), "{lost}");
}

/// Covers: S-07.
#[tokio::test]
async fn configured_user_serves_tools_for_every_tenant() {
    let (node, _dir) = keyed(&["--tools-served-by", "runner|acme/runner"]).await;
    let key = Key::make(&node, &["--user", "runner"]).await;
    let mut runner = connect(&node, &key, "r1").await.expect("welcome");
    for tenant in ["acme", "default"] {
        let (mut agent, mut ann) = agent_and_person(&node, tenant).await;
        ask_for_tool(&mut agent, &mut ann, "one").await;
        let execute = next(&mut runner, "execute").await;
        tells(&mut runner, &execute, "result", json!({"ok": true, "result": {"n": 1}})).await;
        event(&mut agent, "tool.invoke").await;
        assert_eq!(event(&mut agent, "tool.result").await["data"]["ok"], json!(true), "{tenant}");
    }
    for (tenant, user) in [("evil", "runner"), ("default", "ann")] {
        let other = Key::make(&node, &["--tenant", tenant, "--user", user]).await;
        assert_eq!(refused(&node, hello(&other, "r2")).await.1, ConnectionEnd::Closed(4403), "{tenant}/{user}");
    }
}

/// Covers: S-07.
#[tokio::test]
async fn runner_id_in_use_is_bound_to_its_credential() {
    let (node, _dir) = keyed(&[]).await;
    let first = serving(&node, "acme", "tools:r1").await;
    let second = serving(&node, "acme", "tools:r1").await;
    let mut runner = connect(&node, &first, "r1").await.expect("welcome");
    let taken = || refused(&node, hello(&second, "r1"));
    let (error, gone) = taken().await;
    assert_eq!((&error["code"], gone), (&json!("runner_id_in_use"), ConnectionEnd::Closed(4409)), "{error}");
    assert!(error["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0), "{error}");
    // The runner's connection is gone while one of its results is expected.
    let (mut agent, mut ann) = agent_and_person(&node, "acme").await;
    ask_for_tool(&mut agent, &mut ann, "one").await;
    let execute = next(&mut runner, "execute").await;
    drop(runner);
    assert_eq!(taken().await.1, ConnectionEnd::Closed(4409));
    let mut runner = connect(&node, &first, "r1").await.expect("the same credential is the same runner");
    assert_eq!(next(&mut runner, "query").await["action_id"], execute["action_id"]);
    tells(&mut runner, &execute, "result", json!({"ok": true})).await;
    event(&mut agent, "tool.invoke").await;
    event(&mut agent, "tool.result").await;
    drop(runner);
    // Nothing is expected of the runner any more: its id is free once the closed connection is noticed.
    let free = async { while connect(&node, &second, "r1").await.is_err() {} };
    timeout(PATIENCE, free).await.expect("the id is free");
}
