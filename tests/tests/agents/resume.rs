//! Agents with `on_owner_loss=resume`: their events have ids, and a new owner requests the events after a
//! given id.
use crate::world::{World, done, order, token_run};
use bytes::Bytes;
use serde_json::json;
use turnway_core::id::{AgentEventId, Epoch};
use turnway_core::limits::{CHECKPOINT_BYTES, UNSAVED_TEXT_BYTES_MAX};
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, EventMark, Invoke, Order, Resume, TextKind};

fn said(id: &str) -> AgentEventId {
    AgentEventId::parse(id).expect("a name")
}

fn text(text: &str, id: Option<&str>) -> AgentEvent {
    AgentEvent::Delta { kind: TextKind::Text, text: Private(text.to_owned()), id: id.map(said) }
}

fn delta(id: &str, text: &str) -> String {
    format!("id: {id}\nevent: delta\ndata: {}\n\n", json!({ "text": text }))
}

async fn resumable_world() -> World {
    World::new(",on_owner_loss=resume").await
}

/// Returns the same order from a new owner that has recorded the answer up to `after` and `saved`.
fn again(ask: &Invoke, after: Option<(&str, u64)>, saved: u64) -> Invoke {
    let after = after.map(|(id, text_bytes)| EventMark { event_id: said(id), text_bytes });
    Invoke { epoch: Epoch(8), resume: Some(Resume { after, saved }), ..ask.clone() }
}

/// Covers: MP-G4, MP-G6, SR-S8.
#[tokio::test]
async fn event_id_is_reported_with_the_last_piece_of_its_text() {
    let mut world = resumable_world().await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    stream.send(delta("e1", "he")).await;
    world.expect(&ask, text("he", Some("e1"))).await;
    let long = "x".repeat(CHECKPOINT_BYTES + 1);
    stream.send(delta("e2", &long)).await;
    world.expect(&ask, text(&long[..CHECKPOINT_BYTES], None)).await;
    world.expect(&ask, text("x", Some("e2"))).await;
    stream.send("id: run-1:03\nevent: state\ndata: {\"state\":\"busy\"}\n\n").await;
    let busy = AgentEvent::State { state: "busy".to_owned(), detail: None, id: Some(said("run-1:03")) };
    world.expect(&ask, busy).await;
    // The end needs no id: no event follows it.
    stream.done().await;
    world.expect(&ask, done()).await;
    world.until_idle().await;
}

#[tokio::test]
async fn event_without_valid_id_fails_a_resumable_run() {
    for (n, id) in ["", "id: \n", "id: a b\n", "id: ß\n", &format!("id: {}\n", "x".repeat(129))].iter().enumerate() {
        let mut world = resumable_world().await;
        let ask = order("a", &format!("m{n}"), "hi");
        let (stream, _) = world.begin(&ask).await;
        stream.send(format!("{id}event: delta\ndata: {{\"text\":\"a\"}}\n\n")).await;
        let end = world.event(&ask).await;
        assert!(matches!(end, AgentEvent::Failed(AgentFailure::Broken(_))), "{id:?}: {end:?}");
    }
    // An agent without resume needs no event ids, and its ids are not checked.
    let mut world = World::new("").await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    stream.send(delta("a b", "he")).await;
    world.expect(&ask, text("he", None)).await;
}

/// Covers: SR-S10, MP-G1.
#[tokio::test]
async fn resume_requests_the_events_after_the_last_id() {
    let mut world = resumable_world().await;
    let ask = again(&order("a", "m1", "hi"), Some(("e2", 5)), 7);
    world.invoke(ask.clone());
    let call = world.call().await;
    let path = format!("/base/runs/{}/events", ask.run_id);
    assert_eq!((call.head.method.as_str(), call.head.uri.path()), ("GET", path.as_str()));
    for (name, value) in [
        ("last-event-id", "e2"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("x-session-id", "s1"),
        ("x-run-id", ask.run_id.as_str()),
        ("x-run-attempt", "2"),
        ("x-owner-epoch", "8"),
        ("accept", "text/event-stream"),
    ] {
        assert_eq!(call.header(name), value, "{name}");
    }
    assert!(call.body.is_empty());
    let whose = world.agents.tokens().verify(&call.token());
    assert_eq!(whose, Some(token_run(&ask)), "the agent may speak for its run again");
    let stream = call.stream();
    world.expect(&ask, AgentEvent::Acked).await;
    stream.send(delta("e3", "more")).await;
    // The session decides which part of this text is new.
    world.expect(&ask, text("more", Some("e3"))).await;
    stream.done().await;
    world.expect(&ask, done()).await;

    // A run without a recorded event is requested from its start.
    let ask = again(&order("a", "m2", "hi"), None, 0);
    world.invoke(ask.clone());
    let call = world.call().await;
    assert!(call.head.method == "GET" && !call.head.headers.contains_key("last-event-id"));
    call.reply(200, "text/event-stream", "event: done\ndata: {}\n\n");
    world.expect(&ask, AgentEvent::Acked).await;
    world.expect(&ask, done()).await;
    world.until_idle().await;
}

/// Takes only 404 and 410 for an unknown run; every other status is an agent failure.
#[tokio::test]
async fn resume_of_an_unknown_run_is_reported_as_not_known() {
    let mut world = resumable_world().await;
    for (status, known) in [(404, false), (410, false), (400, true), (409, true), (503, true)] {
        let first = order("a", &format!("m{status}"), "hi");
        let ask = again(&first, None, 0);
        world.invoke(ask.clone());
        world.call().await.reply(status, "text/plain", "no");
        let end = world.event(&ask).await;
        let AgentEvent::Failed(failure) = end else { panic!("{status}: {end:?}") };
        assert_eq!(failure == AgentFailure::NotKnown, !known, "{status}: {failure:?}");
        // The same status to the first request of a run does not mean an unknown run: the endpoint is no
        // agent.
        let first = Invoke { attempt: 9, ..first };
        world.invoke(first.clone());
        world.call().await.reply(status, "text/plain", "no");
        let end = world.event(&first).await;
        assert!(!matches!(end, AgentEvent::Failed(AgentFailure::NotKnown)), "{status}: {end:?}");
    }
}

/// Counts the text that the last owner recorded: a resumed answer may be as far ahead of that text as any
/// other.
///
/// Covers: S-48.
#[tokio::test]
async fn resumed_answer_is_read_as_far_as_credit_allows() {
    let mut world = resumable_world().await;
    let saved = 3 * UNSAVED_TEXT_BYTES_MAX as u64;
    let ask = again(&order("a", "m1", "hi"), Some(("e0", saved - 10)), saved);
    world.invoke(ask.clone());
    let stream = world.call().await.stream();
    world.expect(&ask, AgentEvent::Acked).await;
    let sender = stream.sender();
    let piece = "y".repeat(CHECKPOINT_BYTES);
    let event = Bytes::from(delta("e1", &piece));
    let writer = tokio::spawn(async move { while sender.send(event.clone()).await.is_ok() {} });
    let pieces = (UNSAVED_TEXT_BYTES_MAX + 10) / CHECKPOINT_BYTES;
    for _ in 0..pieces {
        world.expect(&ask, text(&piece, Some("e1"))).await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(world.reports.try_recv().is_err(), "no more until it is recorded");
    world.credit(&ask, saved + CHECKPOINT_BYTES as u64);
    world.expect(&ask, text(&piece, Some("e1"))).await;
    world.drop_attempt(&ask);
    writer.await.expect("it is closed");
}

/// Covers: SR-S10, SR-K2: the end of a connection cancels nothing there.
#[tokio::test]
async fn cancel_of_a_resumable_run_posts_cancel() {
    let mut world = resumable_world().await;
    let first = order("a", "m1", "hi");
    // The cancel is also sent before the agent has answered this owner: the run has been running since an
    // earlier owner's request.
    let ask = again(&first, None, 0);
    world.invoke(ask.clone());
    let asked = world.call().await;
    world.cancel(&ask);
    let cancelled = world.call().await;
    assert_eq!((cancelled.head.method.as_str(), cancelled.head.uri.path()), ("POST", "/base/cancel"));
    assert_eq!(cancelled.header("x-owner-epoch"), "8");
    cancelled.reply(202, "text/plain", "");
    drop(asked.stream());
    world.expect(&ask, AgentEvent::Acked).await;
    world.expect(&ask, AgentEvent::CancelAcked).await;

    // A stop order for a run that has no attempt on this node is sent too.
    let agent_id = ask.agent_id.clone();
    let run_id = ask.run_id.clone();
    let attempt = 2;
    let epoch = Epoch(9);
    let tenant = ask.key.tenant.clone();
    world.agents.perform(Order::Stop { tenant, agent_id, run_id, attempt, epoch });
    let stopped = world.call().await;
    assert_eq!((stopped.head.method.as_str(), stopped.head.uri.path()), ("POST", "/base/cancel"));
    assert_eq!((stopped.header("x-owner-epoch"), stopped.header("x-run-attempt")), ("9", "2"));
    let body: serde_json::Value = serde_json::from_slice(&stopped.body).expect("JSON");
    assert_eq!(body, json!({ "run_id": ask.run_id.as_str(), "session_id": "s1", "attempt": 2 }));
    stopped.reply(404, "text/plain", "no");
    world.until_idle().await;
    assert!(world.reports.try_recv().is_err(), "nobody waits for what comes of it");
}

/// Sends the cancel to a run that an earlier owner started, also where this owner has sent the agent nothing
/// yet.
///
/// Covers: SR-S10, LN-SR2.
#[tokio::test]
async fn run_of_an_earlier_owner_is_cancelled_at_once() {
    let mut world = resumable_world().await;
    let ask = again(&order("a", "m1", "hi"), None, 0);
    world.invoke(ask.clone());
    world.cancel(&ask);
    let mut call = world.call().await;
    while call.head.uri.path() != "/base/cancel" {
        call = world.call().await;
    }
    assert_eq!(call.header("x-owner-epoch"), "8");
}
