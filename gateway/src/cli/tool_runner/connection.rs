//! The connection of a tool runner to a gateway: reconnects whenever the connection is lost, until the gateway
//! refuses it.
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;
use turnway_client::{Backoff, Lost, Options, RawConnection};
use turnway_tool_executor::GatewayIndex;
use turnway_tool_executor::messages::GatewayMessage;

/// Capacity of the send queue: results and process output. A gateway that lets this many messages wait takes
/// nothing.
pub(super) const SEND_QUEUE_CAPACITY: usize = 1024;
/// A node waits 5 s for a runner that has work of that node, so a reconnect within that time loses nothing.
const BACKOFF: Backoff = Backoff { base: Duration::from_millis(100), max: Duration::from_secs(4) };

/// An event of a connection.
#[derive(Debug)]
pub(super) enum GatewayEvent {
    /// Connected; messages are sent through this channel, and dropping it closes the connection.
    Opened(mpsc::Sender<String>),
    /// A message from the gateway.
    Message(GatewayMessage),
    /// The connection has ended.
    Closed,
    /// The gateway refuses this runner for good; there will be no further attempt.
    Refused(String),
}

/// The sender of a connection's events.
#[derive(Clone, Debug)]
struct GatewayEventSender {
    gate: GatewayIndex,
    to: mpsc::Sender<(GatewayIndex, GatewayEvent)>,
}

/// The receiver of events has been dropped.
struct ReceiverClosed;

/// Keeps a connection open until the receiver of events is dropped. `hello` is the body of the first message.
pub(super) async fn maintain(
    gate: GatewayIndex,
    options: Options,
    hello: Map<String, Value>,
    to: mpsc::Sender<(GatewayIndex, GatewayEvent)>,
) {
    let events = GatewayEventSender { gate, to };
    let mut failures = 0;
    loop {
        let ended = connect_once(&options, hello.clone(), &events, &mut failures).await;
        let Some(lost) = ended else { return };
        if is_final(&lost) {
            let _ = events.send(GatewayEvent::Refused(lost.reason)).await;
            return;
        }
        let mut random = [0; 8];
        // Without randomness all runners would reconnect at the same time, which is better than not
        // reconnecting.
        let _ = getrandom::fill(&mut random);
        let wait = BACKOFF.after(failures, u64::from_ne_bytes(random));
        tracing::warn!(
            reason = lost.reason,
            code = lost.code,
            again_ms = wait.as_millis(),
            "no connection to the gateway"
        );
        failures += 1;
        tokio::select! {
            () = sleep(wait) => {}
            () = events.closed() => return,
        }
    }
}

/// Runs one connection; returns how the connection was lost, or `None` if the receiver of events was dropped.
async fn connect_once(
    options: &Options,
    hello: Map<String, Value>,
    events: &GatewayEventSender,
    failures: &mut u32,
) -> Option<Lost> {
    let mut raw = tokio::select! {
        raw = RawConnection::connect(options, hello) => match raw {
            Ok(raw) => raw,
            Err(lost) => return Some(lost),
        },
        () = events.closed() => return None,
    };
    let mut why = None;
    loop {
        let received = tokio::select! {
            received = raw.recv() => received,
            () = events.closed() => return None,
        };
        match received.map(|text| text.map(|text| GatewayMessage::parse(&text))) {
            Ok(Some(Ok(GatewayMessage::Welcome))) => break,
            Ok(Some(Ok(GatewayMessage::Error { message, .. }))) => why = Some(message),
            Ok(Some(_) | None) => {}
            Err(lost) => return Some(Lost { reason: why.unwrap_or(lost.reason), ..lost }),
        }
    }
    *failures = 0;
    let (sender, outgoing) = mpsc::channel(SEND_QUEUE_CAPACITY);
    events.send(GatewayEvent::Opened(sender)).await.ok()?;
    let ended = relay(raw, outgoing, events).await;
    events.send(GatewayEvent::Closed).await.ok()?;
    ended
}

/// Relays messages both ways, until the connection is lost or the send channel is dropped.
async fn relay(
    mut raw: RawConnection,
    mut outgoing: mpsc::Receiver<String>,
    events: &GatewayEventSender,
) -> Option<Lost> {
    loop {
        tokio::select! {
            text = outgoing.recv() => match text {
                Some(text) => if let Err(lost) = raw.send(text).await { return Some(lost) },
                None => {
                    raw.close().await;
                    let reason = "the gateway stopped reading".to_owned();
                    return Some(Lost { code: None, reason, refused: false });
                }
            },
            received = raw.recv() => match received.map(|text| text.map(|text| GatewayMessage::parse(&text))) {
                Ok(Some(Ok(message))) => events.send(GatewayEvent::Message(message)).await.ok()?,
                Ok(Some(Err(why))) => tracing::warn!(why = why.0, "ignored an invalid message of the gateway"),
                Ok(None) => {}
                Err(lost) => return Some(lost),
            },
        }
    }
}

/// Returns whether another attempt would fail in the same way (protocol.md §1.3).
fn is_final(lost: &Lost) -> bool {
    lost.refused || lost.code.is_some_and(|code| (4400..4500).contains(&code) && ![4408, 4429].contains(&code))
}

// === impl GatewayEventSender ===

impl GatewayEventSender {
    async fn send(&self, event: GatewayEvent) -> Result<(), ReceiverClosed> {
        self.to.send((self.gate, event)).await.map_err(|_| ReceiverClosed)
    }

    async fn closed(&self) {
        self.to.closed().await;
    }
}
