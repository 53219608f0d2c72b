//! Further inputs for a running attempt: `POST {endpoint}/steer`, and the agent's answer to it.
use crate::world::{World, done, order};
use serde_json::json;
use turnway_core::id::{MessageId, RunId};
use turnway_core::protocol::agent::{AgentEvent, Invoke, Order};
use turnway_core::protocol::input::{Content, Message, Role};
use turnway_core::protocol::steer::{Steer, SteerOutcome};

fn message_id(name: &str) -> MessageId {
    MessageId::parse(name).expect("a name")
}

/// Sends an input to a running attempt and returns the id of the turn that the input would open.
pub(crate) fn steer(world: &World, to: &Invoke, name: &str) -> RunId {
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

pub(crate) fn steered_event(name: &str, outcome: SteerOutcome) -> AgentEvent {
    AgentEvent::Steered { message_id: message_id(name), outcome }
}

/// Covers: ST-7, ST-8.
#[tokio::test]
async fn steer_is_posted_and_its_receipt_reported() {
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
            "message": message, "context": {"tenant": "default", "user_id": "ann"}})
    );
    call.reply(202, "application/json", "");
    world.expect(&ask, steered_event("m2", SteerOutcome::Pending)).await;
    // The final outcome arrives in the stream, in order with all other events.
    stream.send("event: steer_ack\ndata: {\"message_id\":\"m2\",\"outcome\":\"accepted\"}\n\n").await;
    world.expect(&ask, steered_event("m2", SteerOutcome::Accepted)).await;

    // A 503 is retried, then accepted.
    steer(&world, &ask, "m3");
    world.call().await.reply(503, "text/plain", "");
    world.call().await.reply(200, "application/json", "{\"outcome\":\"accepted\"}");
    world.expect(&ask, steered_event("m3", SteerOutcome::Accepted)).await;

    // A 404 is a refusal.
    steer(&world, &ask, "m4");
    world.call().await.reply(404, "text/plain", "");
    world.expect(&ask, steered_event("m4", SteerOutcome::Refused)).await;
    stream.done().await;
    world.expect(&ask, done()).await;
}

/// Treats an answer that is not understood as a refusal: the input becomes a turn of its own, and the run
/// goes on.
///
/// Covers: ST-8, ST-9.
#[tokio::test]
async fn invalid_steer_receipt_counts_as_refused() {
    let mut world = World::new(",steer=true").await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    let page = format!("<html>{}</html>", "please log in ".repeat(1000));
    for (number, (status, kind, body)) in [
        (200, "application/json", "{\"outcome\":\"rejected\"}"),
        (200, "application/json", "{\"outcome\":\"REFUSED\"}"),
        (200, "application/json", "{}"),
        (200, "text/html", "<html>please log in</html>"),
        (200, "text/html", page.as_str()),
        (206, "application/json", "{\"outcome\":\"accepted\"}"),
        (302, "text/html", ""),
        (500, "text/plain", "oops"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("s{number}");
        steer(&world, &ask, &name);
        world.call().await.reply(status, kind, body);
        world.expect(&ask, steered_event(&name, SteerOutcome::Refused)).await;
    }
    for (name, outcome) in [("t1", ",\"outcome\":\"rejected\""), ("t2", ",\"outcome\":null"), ("t3", "")] {
        stream.send(format!("event: steer_ack\ndata: {{\"message_id\":\"{name}\"{outcome}}}\n\n")).await;
        world.expect(&ask, steered_event(name, SteerOutcome::Refused)).await;
    }
    stream.done().await;
    world.expect(&ask, done()).await;
}

/// Waits for `Retry-After` where the time allows it, and does not repeat the request where it does not.
#[tokio::test]
async fn retry_after_of_a_steer_is_honoured() {
    let mut world = World::new(",steer=true").await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    let later = |status: u16, wait: &str| hyper::Response::builder().status(status).header("retry-after", wait);
    steer(&world, &ask, "m2");
    drop(world.call().await.stream_with(later(429, "1")));
    let since = tokio::time::Instant::now();
    let again = world.call().await;
    assert!(since.elapsed() >= std::time::Duration::from_millis(900), "{:?}", since.elapsed());
    again.reply(200, "application/json", "{\"outcome\":\"accepted\"}");
    world.expect(&ask, steered_event("m2", SteerOutcome::Accepted)).await;

    steer(&world, &ask, "m3");
    drop(world.call().await.stream_with(later(503, "60")));
    world.expect(&ask, steered_event("m3", SteerOutcome::Refused)).await;
    stream.done().await;
    world.expect(&ask, done()).await;
    assert!(world.calls.try_recv().is_err(), "it was asked again");
}

/// Covers: ST-9.
#[tokio::test]
async fn steer_of_an_ended_attempt_is_refused() {
    let mut world = World::new(",steer=true").await;
    let ask = order("a", "m1", "hi");
    steer(&world, &ask, "m2");
    world.expect(&ask, steered_event("m2", SteerOutcome::Refused)).await;
    assert!(world.calls.try_recv().is_err(), "nobody was asked");
}
