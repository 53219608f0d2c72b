//! Further inputs for an attempt that runs: `POST {endpoint}/steer`, and what the agent makes of it.
use crate::world::{World, done, order};
use serde_json::json;
use turnway_core::id::{MessageId, RunId};
use turnway_core::protocol::agent::{AgentEvent, Invoke, Order};
use turnway_core::protocol::input::{Content, Message, Role};
use turnway_core::protocol::steer::{Steer, SteerOutcome};

fn message_id(name: &str) -> MessageId {
    MessageId::parse(name).expect("a name")
}

/// Hands an input to an attempt; the turn it would open.
fn steer(world: &World, to: &Invoke, name: &str) -> RunId {
    let turn_id = RunId::derive(&to.key, &to.user, &message_id(name));
    let steer = Steer {
        key: to.key.clone(),
        run_id: to.run_id.clone(),
        attempt: to.attempt,
        epoch: to.epoch,
        agent_id: to.agent_id.clone(),
        turn_id: turn_id.clone(),
        user: to.user.clone(),
        message_id: message_id(name),
        message: Message { role: Role::User, content: Content::Text("make it blue".to_owned()) },
        actions: None,
        traceparent: None,
    };
    world.agents.perform(Order::Steer(Box::new(steer)));
    turn_id
}

fn says(name: &str, outcome: SteerOutcome) -> AgentEvent {
    AgentEvent::Steered { message_id: message_id(name), outcome }
}

/// Covers: ST-7, ST-8.
#[tokio::test]
async fn an_agent_is_told_more_and_answers_with_a_receipt() {
    let mut world = World::new(",steer=true").await;
    let ask = order("a", "m1", "hi");
    let (stream, token) = world.begin(&ask).await;
    let turn = steer(&world, &ask, "m2");
    let call = world.call().await;
    assert_eq!((call.head.method.as_str(), call.head.uri.path()), ("POST", "/base/steer"));
    assert_eq!((call.header("x-run-id"), call.header("x-run-attempt")), (ask.run_id.as_str(), "2"));
    assert_eq!((call.header("idempotency-key"), call.token()), (turn.as_str(), token));
    let body: serde_json::Value = serde_json::from_slice(&call.body).expect("JSON");
    let message = json!({"role": "user", "content": "make it blue"});
    assert_eq!(
        body,
        json!({"run_id": ask.run_id.as_str(), "session_id": "s1", "attempt": 2, "message_id": "m2",
            "message": message, "context": {"user_id": "ann"}})
    );
    call.reply(202, "application/json", "");
    world.expect(&ask, says("m2", SteerOutcome::Pending)).await;
    // The rest comes in the stream, in order with everything else.
    stream.send("event: steer_ack\ndata: {\"message_id\":\"m2\",\"outcome\":\"accepted\"}\n\n").await;
    world.expect(&ask, says("m2", SteerOutcome::Accepted)).await;

    // Not now, and then it is.
    steer(&world, &ask, "m3");
    world.call().await.reply(503, "text/plain", "");
    world.call().await.reply(200, "application/json", "{\"outcome\":\"accepted\"}");
    world.expect(&ask, says("m3", SteerOutcome::Accepted)).await;

    // What it does not know it does not take.
    steer(&world, &ask, "m4");
    world.call().await.reply(404, "text/plain", "");
    world.expect(&ask, says("m4", SteerOutcome::Refused)).await;
    stream.done().await;
    world.expect(&ask, done()).await;
}

/// Covers: ST-9.
#[tokio::test]
async fn what_does_not_run_takes_nothing() {
    let mut world = World::new(",steer=true").await;
    let ask = order("a", "m1", "hi");
    steer(&world, &ask, "m2");
    world.expect(&ask, says("m2", SteerOutcome::Refused)).await;
    assert!(world.calls.try_recv().is_err(), "nobody was asked");
}
