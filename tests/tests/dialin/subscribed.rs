//! Facts that an agent has subscribed to: sent while the agent has a run, at the owner node and at another
//! one.
use crate::remote_node::Fleet;
use crate::{connect_agent, connect_user, next_order, node, run_end, send, start_turn, until_message};
use serde_json::{Value, json};
use turnway_tests::real::http;
use turnway_tests::real::wire::WebSocketClient;

/// Subscription to all facts of users and runs.
const EVENTS: &str = ",events=user.*|run.>";

/// Returns the fact of the next event, which must be of this type.
async fn event(agent: &mut WebSocketClient, invoke: &Value, name: &str) -> Value {
    let event = next_order(agent, "event").await;
    assert_eq!((&event["name"], &event["event"]["type"]), (&json!(name), &json!(name)), "{event}");
    assert_eq!((&event["run_id"], &event["attempt"]), (&invoke["run_id"], &invoke["attempt"]), "{event}");
    assert_eq!(event["seq"], event["event"]["seq"], "{event}");
    event["event"].clone()
}

/// Runs a turn with a second input during it, and returns the facts that the agent received.
async fn facts_of_a_turn(agent: &mut WebSocketClient, ann: &mut WebSocketClient) -> Vec<Value> {
    let run = start_turn(ann, "s1", "go").await;
    let invoke = next_order(agent, "invoke").await;
    send(agent, &invoke, "delta", json!({"text": "well"})).await;
    until_message(ann, &run, |message| message["type"] == "delta").await;
    let next = start_turn(ann, "s1", "and this").await;
    let said = event(agent, &invoke, "user.message").await;
    assert_eq!(said["run_id"], json!(next), "{said}");
    assert_eq!(said["data"]["message"]["content"], "and this", "{said}");
    ann.say(json!({"type": "cancel_run", "run_id": next})).await.expect("said");
    let cancelled = event(agent, &invoke, "run.cancelled").await;
    assert_eq!(cancelled["run_id"], json!(next), "{cancelled}");
    // The agent gets no event for the end of its own run: the next order is the next turn.
    send(agent, &invoke, "done", json!({})).await;
    until_message(ann, &run, |message| message["type"] == "done").await;
    let run = start_turn(ann, "s1", "once more").await;
    let invoke = next_order(agent, "invoke").await;
    send(agent, &invoke, "done", json!({})).await;
    assert_eq!(run_end(ann, &run).await.1["status"], "completed");
    vec![said, cancelled]
}

/// Covers: EV-G1, LN-EV3.
#[tokio::test]
async fn configured_subscription_delivers_facts_to_the_agent() {
    let (node, _dir) = node(EVENTS).await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    for told in facts_of_a_turn(&mut agent, &mut ann).await {
        // Each fact equals the one in the log.
        let path = format!("/v1/sessions/s1/events?types={}&limit=100", told["type"].as_str().expect("a type"));
        let (status, page) = http::get(node.http, &path).await.expect("it answers");
        let page: Value = serde_json::from_str(&page).expect("JSON");
        assert_eq!(status, 200, "{page}");
        let known = page["events"].as_array().expect("facts").contains(&told);
        assert!(known, "{told} in {page}");
    }
}

/// Covers: EV-G1, MP-F1.
#[tokio::test]
async fn subscription_delivers_facts_at_another_node() {
    let fleet = Fleet::start(2, EVENTS).await;
    let mut agent = connect_agent(&fleet.nodes[1], json!({})).await;
    let mut ann = connect_user(&fleet.nodes[0]).await;
    facts_of_a_turn(&mut agent, &mut ann).await;
    fleet.until_remote_attempts(0, 0, 0).await;
}

/// Subscribes by a message of the agent, for the life of the connection: in the current run and in the next.
///
/// Covers: EV-G1, LN-EV3.
#[tokio::test]
async fn agent_subscribes_and_unsubscribes_by_message() {
    let (node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({"subscribe": true})).await;
    let mut ann = connect_user(&node).await;
    agent.say(json!({"type": "subscribe", "request_id": "q", "types": ["user.*", "run.>"]})).await.expect("said");
    let told = next_order(&mut agent, "subscribed").await;
    assert_eq!((&told["request_id"], &told["types"]), (&json!("q"), &json!(["user.*", "run.>"])), "{told}");
    facts_of_a_turn(&mut agent, &mut ann).await;
    // The agent unsubscribes in the middle of a run.
    let run = start_turn(&mut ann, "s1", "go on").await;
    let invoke = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoke, "input_ack", json!({})).await;
    until_message(&mut ann, &run, |message| message["name"] == "AGENT_STARTED").await;
    agent.say(json!({"type": "subscribe", "types": []})).await.expect("said");
    next_order(&mut agent, "subscribed").await;
    // The owner has the change once the text sent after it has arrived.
    send(&mut agent, &invoke, "delta", json!({"text": "well"})).await;
    until_message(&mut ann, &run, |message| message["type"] == "delta").await;
    let next = start_turn(&mut ann, "s1", "and that").await;
    ann.say(json!({"type": "cancel_run", "run_id": next})).await.expect("said");
    until_message(&mut ann, &next, |message| message["type"] == "done").await;
    agent.say(json!({"type": "ping"})).await.expect("said");
    next_order(&mut agent, "pong").await;
    send(&mut agent, &invoke, "done", json!({})).await;
    run_end(&mut ann, &run).await;
    for bad in [json!({"type": "subscribe"}), json!({"type": "subscribe", "types": ["a b"]})] {
        agent.say(bad).await.expect("said");
        assert_eq!(next_order(&mut agent, "error").await["code"], "invalid_message");
    }
}
