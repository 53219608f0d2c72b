//! Limits on agents that send too much, or faster than their text can be stored.
use crate::world::{AnswerStream, World, accept, delta, done, order, within_patience};
use bytes::Bytes;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use turnway_core::limits::{
    AGENT_BODY_BYTES_MAX, AGENT_ERROR_BYTES_MAX, AGENT_EVENT_BYTES_MAX, AGENT_HEADERS_MAX, UNSAVED_TEXT_BYTES_MAX,
};
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, TextKind};

const MIB: usize = 1024 * 1024;
const GIB: usize = 1024 * MIB;
/// Bytes that the sockets and buffers of both sides may hold besides those that the gateway reads.
const SLACK: usize = 6 * MIB;

/// Sends a piece repeatedly until it is no longer accepted, at most a GiB, and returns the number of accepted
/// bytes.
async fn send_until_blocked(stream: &AnswerStream, piece: Bytes) -> usize {
    let mut taken = 0;
    while taken < GIB && stream.try_send(piece.clone()).await {
        taken += piece.len();
    }
    taken
}

/// Covers: S-48, S-27.
#[tokio::test]
async fn endless_event_fails_as_too_large() {
    let mut world = World::new("").await;
    for start in ["event: delta\ndata: {\"text\":\"", "id: ", "nonsense", ": comment", "data: x\n"] {
        let ask = order("a", start, "hi");
        let (stream, _) = world.begin(&ask).await;
        stream.delta("good").await;
        stream.send(start).await;
        let taken = send_until_blocked(&stream, Bytes::from(vec![b'x'; 16 * 1024])).await;
        assert!(taken <= AGENT_EVENT_BYTES_MAX + SLACK, "{start:?}: {taken} bytes were read");
        let end = world.text(&ask).await;
        assert_eq!(end, ("good".to_owned(), AgentEvent::Failed(AgentFailure::TooLarge)), "{start:?}");
        world.until_idle().await;
    }
}

/// Covers: S-48, S-27.
#[tokio::test]
async fn endless_body_fails_as_too_large() {
    let mut world = World::new("").await;
    let reasoning = format!("event: delta\ndata: {{\"kind\":\"reasoning\",\"text\":\"{}\"}}\n\n", "x".repeat(16_000));
    for (name, piece) in
        [("pings", ": ping\n\n".repeat(2048)), ("events", "event: x\n\n".repeat(2048)), ("thinking", reasoning)]
    {
        let ask = order("a", name, "hi");
        let (stream, _) = world.begin(&ask).await;
        let poured = tokio::spawn(async move { send_until_blocked(&stream, Bytes::from(piece)).await });
        let end = loop {
            let event = world.event(&ask).await;
            let AgentEvent::Delta { kind: TextKind::Reasoning, .. } = event else { break event };
        };
        assert_eq!(end, AgentEvent::Failed(AgentFailure::TooLarge), "{name}");
        let taken = within_patience("it is cut off", poured).await.expect("a count");
        assert!(taken > AGENT_BODY_BYTES_MAX / 2, "{name}: only {taken} bytes were read");
        assert!(taken <= AGENT_BODY_BYTES_MAX + SLACK, "{name}: {taken} bytes were read");
    }
}

/// Covers: S-27, S-48.
#[tokio::test]
async fn body_that_is_no_event_stream_is_not_read() {
    let mut world = World::new("").await;
    for (status, kind) in [(200, "application/octet-stream"), (500, "text/event-stream")] {
        let ask = order("a", kind, "hi");
        world.invoke(ask.clone());
        let response = hyper::Response::builder().status(status).header("content-type", kind);
        let stream = world.call().await.stream_with(response);
        let taken = send_until_blocked(&stream, Bytes::from(vec![b'x'; 64 * 1024])).await;
        assert!(taken <= SLACK, "{taken} bytes were read");
        let end = world.event(&ask).await;
        let AgentEvent::Failed(AgentFailure::Answered(answer)) = &end else { panic!("{end:?}") };
        assert!(answer.body.as_ref().is_some_and(|body| body.reveal().len() <= AGENT_ERROR_BYTES_MAX));
    }
}

/// Covers: S-27, S-48.
#[tokio::test]
async fn oversized_length_or_head_fails_at_once() {
    let (mut world, listener) = World::raw().await;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    for (message, bytes, failure) in [
        ("length", format!("{head}content-length: 1099511627776\r\n\r\n"), AgentFailure::TooLarge),
        ("one header", format!("{head}x: {}", "x".repeat(MIB)), AgentFailure::HeadTooLarge),
        ("many headers", format!("{head}{}", "x: y\r\n".repeat(1000)), AgentFailure::HeadTooLarge),
        ("one too many", format!("{head}{}\r\n", "x: y\r\n".repeat(AGENT_HEADERS_MAX)), AgentFailure::HeadTooLarge),
    ] {
        let ask = order("a", message, "hi");
        world.invoke(ask.clone());
        let mut socket = accept(&listener).await;
        // The gateway may close the connection before it has read all bytes.
        let _ = socket.write_all(bytes.as_bytes()).await;
        assert_eq!(world.event(&ask).await, AgentEvent::Failed(failure), "{message}");
    }
}

/// Accepts the documented number of header fields: proxies add their own.
#[tokio::test]
async fn head_of_256_fields_is_read() {
    let (mut world, listener) = World::raw().await;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    let fields: String = (1..AGENT_HEADERS_MAX).map(|number| format!("x-{number}: y\r\n")).collect();
    let ask = order("a", "m1", "hi");
    world.invoke(ask.clone());
    let mut socket = accept(&listener).await;
    let bytes = format!("{head}{fields}\r\nevent: done\ndata: {{}}\n\n");
    socket.write_all(bytes.as_bytes()).await.expect("a connection");
    drop(socket);
    world.expect(&ask, AgentEvent::Acked).await;
    world.expect(&ask, done()).await;
}

/// Sends text without end and returns a watch of the number of accepted bytes.
fn send_text_forever(stream: AnswerStream, text: &str) -> watch::Receiver<usize> {
    let (said, taken) = watch::channel(0);
    let piece = Bytes::from(delta(text));
    tokio::spawn(async move {
        while stream.sender().send(piece.clone()).await.is_ok() {
            said.send_modify(|bytes| *bytes += piece.len());
        }
    });
    taken
}

/// Waits until the sender is blocked and returns the number of accepted bytes.
async fn bytes_when_blocked(taken: &mut watch::Receiver<usize>) -> usize {
    while tokio::time::timeout(Duration::from_millis(250), taken.changed()).await.is_ok() {}
    *taken.borrow()
}

/// Reads reported text up to a number of bytes, as far as the credit allows.
async fn read_text(world: &mut World, ask: &turnway_core::protocol::agent::Invoke, upto: usize) -> usize {
    let mut heard = 0;
    while heard < upto {
        let AgentEvent::Delta { text, .. } = world.event(ask).await else { panic!("text was to come") };
        heard += text.reveal().len();
    }
    heard
}

/// Covers: S-48, G8: past a MiB of text that is not checkpointed the agent is not read.
#[tokio::test]
async fn agent_is_read_only_as_far_as_text_is_checkpointed() {
    let mut world = World::new("").await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    let text = "x".repeat(1000);
    let mut taken = send_text_forever(stream, &text);
    // Only whole pieces are reported: as many as fit.
    let fits = UNSAVED_TEXT_BYTES_MAX / 1000 * 1000;
    assert_eq!(read_text(&mut world, &ask, fits).await, fits);
    let bytes = within_patience("the agent is stuck", bytes_when_blocked(&mut taken)).await;
    assert!(bytes < UNSAVED_TEXT_BYTES_MAX * 2 + SLACK, "{bytes} bytes were read");
    assert!(world.reports.try_recv().is_err(), "more was reported than may be");

    // Late and repeated credit does not reduce the credit given before.
    for upto in [500_000, 100, 500_000, 0] {
        world.credit(&ask, upto);
    }
    let more = (UNSAVED_TEXT_BYTES_MAX + 500_000) / 1000 * 1000 - fits;
    assert_eq!(read_text(&mut world, &ask, more).await, more);
    within_patience("the agent is stuck", bytes_when_blocked(&mut taken)).await;
    assert!(world.reports.try_recv().is_err(), "more was reported than may be");

    world.drop_attempt(&ask);
    let closed = async { while taken.changed().await.is_ok() {} };
    within_patience("the stream is closed", closed).await;
    world.until_idle().await;
}

/// Stops an attempt that waits for credit, with and without the agent's `cancel` option.
#[tokio::test]
async fn attempt_waiting_for_credit_can_be_cancelled() {
    for keys in ["", ",cancel=true"] {
        let mut world = World::new(keys).await;
        let ask = order("a", "m1", "hi");
        let (stream, _) = world.begin(&ask).await;
        let sender = stream.sender();
        let mut taken = send_text_forever(stream, &"x".repeat(10_000));
        read_text(&mut world, &ask, UNSAVED_TEXT_BYTES_MAX / 10_000 * 10_000).await;
        within_patience("the agent is stuck", bytes_when_blocked(&mut taken)).await;
        world.cancel(&ask);
        if !keys.is_empty() {
            let call = world.call().await;
            assert_eq!(call.head.uri.path(), "/base/cancel");
            within_patience("room", sender.send(Bytes::from("event: done\ndata: {}\n\n")))
                .await
                .expect("an open stream");
            call.reply(200, "application/json", "{}");
        }
        drop(sender);
        world.expect(&ask, AgentEvent::CancelAcked).await;
        world.until_idle().await;
    }
}
