//! Authorisation of dial-in agents: the users and keys that may serve an agent, and separation of tenants.
use crate::lifecycle::{forbidden, refused};
use crate::remote_node::Fleet;
use crate::{hello, next_order, send};
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_core::limits;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};

/// Covers: S-01, S-04, S-07.
#[tokio::test]
async fn agent_is_served_by_named_users_and_its_own_keys() {
    let dir = tempdir().expect("a directory");
    let agents = ["--agent", "a=dial-in:,served_by=bot|acme/bot", "--agent", "b=dial-in:", "--demo"];
    let node = guarded(&dir, &agents).await;
    let bot = Key::make(&node, &["--user", "bot"]).await;
    let ann = Key::make(&node, &["--user", "ann"]).await;
    let reader = Key::make(&node, &["--user", "bot", "--scopes", "read"]).await;
    let other = Key::make(&node, &["--user", "bot", "--tenant", "other"]).await;
    let operator = Key::make(&node, &["--user", "root", "--scopes", "read,write,operator"]).await;
    let open = || async { WebSocketClient::open(node.http).await.expect("it connects") };
    for (key, agent) in
        [(&ann, "a"), (&reader, "a"), (&other, "a"), (&operator, "a"), (&operator, "b"), (&bot, "b"), (&bot, "echo")]
    {
        let said = json!({"api_key": key.text, "agent_id": agent});
        assert_eq!(forbidden(open().await, said).await, ConnectionEnd::Closed(4403), "{agent}");
    }
    for more in [json!({"agent_id": "nobody"}), json!({"agent_id": null})] {
        let mut said = more;
        said["api_key"] = bot.text.clone().into();
        assert_eq!(forbidden(open().await, said).await, ConnectionEnd::Closed(4403));
    }
    let wrong = json!({"api_key": "twk_aaaaaaaaaa_aaaaaaaaaaaaaaaaaaaaaaaaaa"});
    assert_eq!(open().await.greet_with(hello(&wrong)).await.err(), Some(ConnectionEnd::Closed(4401)));
    assert_eq!(open().await.greet_with(hello(&json!({}))).await.err(), Some(ConnectionEnd::Closed(4401)));

    let mut serving = open().await.greet_with(hello(&json!({"api_key": bot.text}))).await.expect("welcome");
    let made = Key::make(&node, &["--serves", "agent:b"]).await;
    let said = json!({"api_key": made.text, "agent_id": "b"});
    open().await.greet_with(hello(&said)).await.expect("welcome");
    let mut person = ann.hello(node.http, None).await.expect("welcome");
    let accepted = person.ask("r1", invoke("s1", "a", "hello")).await.expect("an answer");
    assert_eq!(next_order(&mut serving, "invoke").await["run_id"], accepted["run_id"]);
    // A revoked key closes the connection and fails its runs.
    bot.revoke(&node).await;
    assert_eq!(serving.until(|_| false).await.expect_err("it is closed"), ConnectionEnd::Closed(4401));
    let error = person.until(|message| message["type"] == "error").await.expect("it comes");
    assert_eq!(error["code"], "agent_unavailable");
}

/// Connects an agent with a key of this tenant that serves agent `a`.
async fn connect_agent_of(node: &Node, tenant: &str) -> WebSocketClient {
    let key = Key::make(node, &["--tenant", tenant, "--serves", "agent:a"]).await;
    let said = hello(&json!({"api_key": key.text, "capabilities": {"steer": false}}));
    WebSocketClient::open(node.http).await.expect("it connects").greet_with(said).await.expect("welcome")
}

/// Sends an input of a user of this tenant to agent `a` in session `s1`. Returns the user's connection and
/// the answer.
async fn start_turn_of(node: &Node, tenant: &str, text: &str) -> (WebSocketClient, Value) {
    let key = Key::make(node, &["--tenant", tenant, "--user", "ann"]).await;
    let mut person = key.hello(node.http, None).await.expect("welcome");
    let accepted = person.ask(text, invoke("s1", "a", text)).await.expect("an answer");
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    (person, accepted)
}

async fn assert_no_message(agent: &mut WebSocketClient) {
    agent.say(json!({"type": "ping"})).await.expect("said");
    next_order(agent, "pong").await;
}

/// Returns the name of a run as agents see it.
fn in_tenant(tenant: &str, run_id: &Value) -> String {
    format!("{tenant}~{}", run_id.as_str().expect("a run"))
}

/// Covers: S-06, S-07.
#[tokio::test]
async fn agent_of_one_tenant_gets_no_run_of_another() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--agent", "a=dial-in:"]).await;
    let mut evil = connect_agent_of(&node, "evil").await;
    let (mut ann, _) = start_turn_of(&node, "acme", "secret").await;
    let error = ann.until(|message| message["type"] == "error").await.expect("it comes");
    assert_eq!(error["code"], "agent_unavailable");
    assert_no_message(&mut evil).await;
    // The tenant's own agent gets its runs, and the other tenant's idle agent gets none.
    let mut own = connect_agent_of(&node, "acme").await;
    let (mut ann, accepted) = start_turn_of(&node, "acme", "another secret").await;
    let invoke = next_order(&mut own, "invoke").await;
    assert_eq!(invoke["run_id"], in_tenant("acme", &accepted["run_id"]));
    send(&mut own, &invoke, "done", json!({})).await;
    ann.until(|message| message["type"] == "done").await.expect("its end");
    assert_no_message(&mut evil).await;
}

/// Covers: S-06, S-07, MP-F1.
#[tokio::test]
async fn agent_at_another_node_gets_no_run_of_another_tenant() {
    let fleet = Fleet::guarded(3).await;
    let nodes = &fleet.nodes;
    let mut evil = connect_agent_of(&nodes[1], "evil").await;
    let mut own = connect_agent_of(&nodes[2], "acme").await;
    let (mut ann, accepted) = start_turn_of(&nodes[0], "acme", "secret").await;
    let invoke = next_order(&mut own, "invoke").await;
    assert_eq!(invoke["run_id"], in_tenant("acme", &accepted["run_id"]));
    send(&mut own, &invoke, "done", json!({})).await;
    ann.until(|message| message["type"] == "done").await.expect("its end");
    assert_no_message(&mut evil).await;
}

/// Covers: S-06, S-07.
#[tokio::test]
async fn cancel_of_a_resumable_run_stays_in_its_tenant() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--agent", "a=dial-in:,on_owner_loss=resume"]).await;
    let resumable = async |tenant: &str| {
        let key = Key::make(&node, &["--tenant", tenant, "--serves", "agent:a"]).await;
        let said = hello(&json!({"api_key": key.text, "capabilities": {"resume": true, "cancel": true}}));
        WebSocketClient::open(node.http).await.expect("it connects").greet_with(said).await.expect("welcome")
    };
    let mut evil = resumable("evil").await;
    let mut own = resumable("acme").await;
    let (mut ann, accepted) = start_turn_of(&node, "acme", "secret").await;
    next_order(&mut own, "invoke").await;
    // The connection of the run is lost, so the node sends the cancel to every process that may know the run.
    let mut second = resumable("acme").await;
    drop(own);
    let next = next_order(&mut second, "invoke").await;
    assert_eq!(next["run_id"], in_tenant("acme", &accepted["run_id"]));
    ann.say(json!({"type": "cancel_run", "run_id": accepted["run_id"]})).await.expect("said");
    next_order(&mut second, "cancel").await;
    send(&mut second, &next, "cancel_ack", json!({})).await;
    ann.until(|message| message["type"] == "done").await.expect("its end");
    assert_no_message(&mut evil).await;
}

/// Covers: S-07.
#[tokio::test]
async fn tenant_operator_sees_no_endpoints_or_nodes() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--agent", "a=dial-in:", "--agent", "h=http://127.0.0.1:9"]).await;
    let _serving = connect_agent_of(&node, "acme").await;
    for tenant in ["default", "acme"] {
        let operator = Key::make(&node, &["--tenant", tenant, "--user", "root", "--scopes", "write,operator"]).await;
        let agents = Web::new(node.http, None).key(&operator).json("/v1/agents").await;
        let agents = agents["agents"].as_array().expect("a list").clone();
        assert!(
            agents.iter().all(|agent| agent.get("endpoint").is_none() && agent.get("nodes").is_none()),
            "{agents:?}"
        );
        assert_eq!(agents[0]["healthy"], json!(tenant == "acme"), "it is served for one tenant only");
    }
}

/// Covers: S-07.
#[tokio::test]
async fn connections_of_one_tenant_are_bounded() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--agent", "a=dial-in:"]).await;
    let key = Key::make(&node, &["--tenant", "evil", "--serves", "agent:a"]).await;
    let open = || async { WebSocketClient::open(node.http).await.expect("it connects") };
    let mut connected = Vec::new();
    for _ in 0..limits::DIALIN_CONNECTIONS_OF_TENANT_MAX {
        connected.push(open().await.greet_with(hello(&json!({"api_key": key.text}))).await.expect("welcome"));
    }
    let more = refused(open().await, json!({"api_key": key.text}), "rate_limited").await;
    assert_eq!(more, ConnectionEnd::Closed(4429));
    connect_agent_of(&node, "acme").await;
}
