//! Orders that reach a running attempt: drop, cancel, and repeated orders.
use crate::stale::news;
use crate::world::{Call, World, done, order, within_patience};
use serde_json::json;
use tokio::sync::mpsc;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, Invoke, Order, TextKind};

fn text(text: &str) -> AgentEvent {
    AgentEvent::Delta { kind: TextKind::Text, text: Private(text.to_owned()), id: None }
}

/// Covers: LN-SR1 (the shell's half): an agent that never answers is let go.
#[tokio::test]
async fn dropped_attempt_closes_its_request_without_a_report() {
    let mut world = World::new(",cancel=true").await;
    let ask = order("a", "m1", "hi");
    world.invoke(ask.clone());
    let call = world.call().await;
    let token = call.token();
    assert!(world.agents.tokens().verify(&token).is_some());
    world.drop_attempt(&ask);
    assert_eq!(world.agents.running(), 0);
    call.closed().await;

    let ask = order("a", "m2", "hi");
    let (stream, _) = world.begin(&ask).await;
    stream.delta("some").await;
    world.expect(&ask, text("some")).await;
    world.drop_attempt(&ask);
    world.drop_attempt(&ask);
    stream.closed().await;
    assert!(world.reports.try_recv().is_err() && world.calls.try_recv().is_err());
}

/// Covers: SR-S10, SR-K2: without `cancel`, closing the request is CANCEL and CANCEL_ACK in one.
#[tokio::test]
async fn cancel_without_cancel_option_closes_the_request() {
    let mut world = World::new("").await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    world.cancel(&ask);
    world.cancel(&ask);
    world.expect(&ask, AgentEvent::CancelAcked).await;
    stream.closed().await;
    world.until_idle().await;

    // A cancel before the agent has sent its response head.
    let ask = order("a", "m2", "hi");
    world.invoke(ask.clone());
    let call = world.call().await;
    world.cancel(&ask);
    world.expect(&ask, AgentEvent::CancelAcked).await;
    call.closed().await;
    assert!(world.calls.try_recv().is_err());
}

fn is_cancel(call: &Call, ask: &Invoke, token: &str) {
    assert_eq!((call.head.method.as_str(), call.head.uri.path()), ("POST", "/base/cancel"));
    assert_eq!(call.header("x-run-id"), ask.run_id.as_str());
    assert_eq!(call.header("x-session-id"), "s1");
    assert_eq!(call.header("x-owner-epoch"), "7");
    assert_eq!(call.token(), token);
    let body: serde_json::Value = serde_json::from_slice(&call.body).expect("JSON");
    assert_eq!(body, json!({ "run_id": ask.run_id.as_str(), "session_id": "s1", "attempt": 2 }));
}

/// Repeats a cancel or event that was answered with 503 or 429, under the same idempotency key.
#[tokio::test]
async fn cancel_and_event_answered_503_or_429_are_resent() {
    let mut world = World::new(",cancel=true,events=>").await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    world.agents.perform(Order::News(Box::new(news(&ask, 9))));
    let first = world.call().await;
    let name = first.header("idempotency-key").to_owned();
    first.reply(503, "text/plain", "busy");
    let again = world.call().await;
    assert_eq!((again.head.uri.path(), again.header("idempotency-key")), ("/base/event", name.as_str()));
    again.reply(200, "text/plain", "");

    world.cancel(&ask);
    let first = world.call().await;
    assert_eq!(first.head.uri.path(), "/base/cancel");
    first.reply(429, "text/plain", "");
    let again = world.call().await;
    assert_eq!(again.head.uri.path(), "/base/cancel");
    again.reply(200, "text/plain", "");
    stream.done().await;
    world.expect(&ask, AgentEvent::CancelAcked).await;
}

/// Covers: SR-S10, SR-K2: with `cancel`, the end of the stream is CANCEL_ACK, however the stream ends.
#[tokio::test]
async fn end_of_stream_acknowledges_a_cancel() {
    let mut world = World::new(",cancel=true").await;
    for end in [
        "",
        "event: done\ndata: {\"stop_reason\":\"cancelled\"}\n\n",
        "event: error\ndata: {\"code\":\"cancelled\",\"message\":\"\"}\n\n",
        "event: delta\ndata: broken\n\n",
    ] {
        let ask = order("a", &format!("m{}", end.len()), "hi");
        let (stream, token) = world.begin(&ask).await;
        world.cancel(&ask);
        world.cancel(&ask);
        let call = world.call().await;
        is_cancel(&call, &ask, &token);
        // The token stays valid until the run has stopped: the agent may still act for the run.
        assert!(world.agents.tokens().verify(&token).is_some());
        call.reply(202, "application/json", "{}");
        stream.delta("last words").await;
        world.expect(&ask, text("last words")).await;
        stream.send(end).await;
        drop(stream);
        world.expect(&ask, AgentEvent::CancelAcked).await;
        world.until_idle().await;
    }
    assert!(world.reports.try_recv().is_err() && world.calls.try_recv().is_err());
}

/// Covers: SR-K2, SR-K1: cancelled before it has answered.
#[tokio::test]
async fn agent_without_response_head_can_be_cancelled() {
    let mut world = World::new(",cancel=true").await;
    let ask = order("a", "m1", "hi");
    world.invoke(ask.clone());
    let invoked = world.call().await;
    world.cancel(&ask);
    let cancelled = world.call().await;
    is_cancel(&cancelled, &ask, &invoked.token());
    cancelled.reply(200, "text/plain", "");
    drop(invoked.stream());
    world.expect(&ask, AgentEvent::Acked).await;
    world.expect(&ask, AgentEvent::CancelAcked).await;
    world.until_idle().await;
}

/// Covers: LN-SR2 (the shell's half): the runtime's deadline passes, and the request is closed.
#[tokio::test]
async fn agent_that_ignores_a_cancel_is_closed_on_drop() {
    let mut world = World::new(",cancel=true").await;
    for status in [200, 404, 500] {
        let ask = order("a", &status.to_string(), "hi");
        let (stream, _) = world.begin(&ask).await;
        world.cancel(&ask);
        world.call().await.reply(status, "text/plain", "no");
        stream.delta("I go on").await;
        world.expect(&ask, text("I go on")).await;
        assert_eq!(world.agents.running(), 1);
        world.drop_attempt(&ask);
        stream.closed().await;
        world.until_idle().await;
        assert!(world.reports.try_recv().is_err());
    }
}

/// Covers: SR-K2: what does not run has stopped.
#[tokio::test]
async fn cancel_after_the_end_is_acknowledged() {
    let mut world = World::new("").await;
    let ask = order("a", "m1", "hi");
    world.cancel(&ask);
    world.expect(&ask, AgentEvent::CancelAcked).await;
    let (stream, _) = world.begin(&ask).await;
    stream.done().await;
    world.expect(&ask, done()).await;
    world.until_idle().await;
    world.cancel(&ask);
    world.expect(&ask, AgentEvent::CancelAcked).await;
}

/// Covers: SR-K2: a cancel that comes while the end waits to be reported is acknowledged after it.
#[tokio::test]
async fn cancel_during_an_unreported_end_is_acknowledged() {
    let (_, calls) = mpsc::unbounded_channel();
    let mut world = World::with("b=builtin:echo", calls, 1);
    let ask = order("echo", "m1", "word");
    world.invoke(ask.clone());
    world.expect(&ask, AgentEvent::Acked).await;
    // On this single thread nothing else runs: the delta fills the report queue, and the end waits for a free
    // slot.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((world.reports.len(), world.agents.running()), (1, 1));
    world.cancel(&ask);
    world.expect(&ask, text("word")).await;
    world.expect(&ask, done()).await;
    world.expect(&ask, AgentEvent::CancelAcked).await;
    world.until_idle().await;
    assert!(world.reports.try_recv().is_err());
}

/// Performs each order once though it may arrive twice, and keeps attempts of one run apart.
#[tokio::test]
async fn repeated_order_is_performed_once() {
    let mut world = World::new("").await;
    let first = order("a", "m1", "hi");
    world.invoke(first.clone());
    world.invoke(first.clone());
    let second = Invoke { attempt: 3, ..first.clone() };
    world.invoke(second.clone());
    let mut calls = [world.call().await, world.call().await];
    calls.sort_by_key(|call| call.header("x-run-attempt").to_owned());
    let [one, two] = calls;
    assert_eq!((one.header("x-run-attempt"), two.header("x-run-attempt")), ("2", "3"));
    assert_eq!(one.token(), two.token(), "the token is that of the run");
    world.drop_attempt(&first);
    one.closed().await;
    drop(two.stream());
    world.expect(&second, AgentEvent::Acked).await;
    let end = world.event(&second).await;
    assert!(matches!(end, AgentEvent::Failed(_)), "{end:?}");
    world.until_idle().await;
    assert!(world.calls.try_recv().is_err());
}

/// Takes orders without waiting while no report is read, and loses no report.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_do_not_wait_for_reports() {
    let (_, calls) = mpsc::unbounded_channel();
    let mut world = World::with("b=builtin:echo", calls, 1);
    let asks: Vec<Invoke> = (0..100).map(|n| order("echo", &n.to_string(), "one two")).collect();
    for ask in &asks {
        world.invoke(ask.clone());
    }
    let nobody = order("nobody", "m", "");
    for _ in 0..10 {
        world.invoke(nobody.clone());
        world.cancel(&nobody);
    }
    let mut ends = 0;
    let mut failures = 0;
    let mut acks = 0;
    within_patience("all reports", async {
        while (ends, failures, acks) != (100, 10, 10) {
            match world.report().await.event {
                AgentEvent::Done { .. } => ends += 1,
                AgentEvent::Failed(_) => failures += 1,
                AgentEvent::CancelAcked => acks += 1,
                AgentEvent::Acked
                | AgentEvent::Delta { .. }
                | AgentEvent::State { .. }
                | AgentEvent::Steered { .. }
                | AgentEvent::Handover { .. }
                | AgentEvent::Subscribed(_)
                | AgentEvent::Alive
                | AgentEvent::Action { .. } => {}
            }
        }
    })
    .await;
    world.until_idle().await;
}

/// Drops all attempts when the node shuts down.
#[tokio::test]
async fn closing_drops_every_attempt() {
    let mut world = World::new(",cancel=true").await;
    let one = order("a", "m1", "hi");
    let two = order("a", "m2", "hi");
    let (first, _) = world.begin(&one).await;
    let (second, _) = world.begin(&two).await;
    world.agents.abort_all();
    first.closed().await;
    second.closed().await;
    world.until_idle().await;
}
