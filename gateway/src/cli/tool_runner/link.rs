//! The connection of a tool runner to a gateway: reconnects whenever the connection is lost, until the gateway
//! refuses it.
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;
use turnway_bindings::toolbox::Gate;
use turnway_bindings::toolbox::words::Told;
use turnway_client::{Backoff, Lost, Options, Raw};

/// Capacity of the send queue: results and process output. A gateway that lets this many messages wait takes
/// nothing.
pub(super) const OUTGOING: usize = 1024;
/// A node waits 5 s for a runner that has work of that node, so a reconnect within that time loses nothing.
const BACKOFF: Backoff = Backoff { base: Duration::from_millis(100), max: Duration::from_secs(4) };

/// An event of a connection.
#[derive(Debug)]
pub(super) enum Event {
    /// Connected; messages are sent through this channel, and dropping it closes the connection.
    Opened(mpsc::Sender<String>),
    /// A message from the gateway.
    Told(Told),
    /// The connection has ended.
    Closed,
    /// The gateway refuses this runner for good; there will be no further attempt.
    Refused(String),
}

/// The sender of a connection's events.
#[derive(Clone, Debug)]
struct Events {
    gate: Gate,
    to: mpsc::Sender<(Gate, Event)>,
}

/// The receiver of events has been dropped.
struct Unheard;

/// Keeps a connection open until the receiver of events is dropped. `hello` is the body of the first message.
pub(super) async fn keep(
    gate: Gate,
    options: Options,
    hello: Map<String, Value>,
    to: mpsc::Sender<(Gate, Event)>,
) {
    let events = Events { gate, to };
    let mut failures = 0;
    loop {
        let ended = visit(&options, hello.clone(), &events, &mut failures).await;
        let Some(lost) = ended else { return };
        if is_final(&lost) {
            let _ = events.send(Event::Refused(lost.reason)).await;
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
async fn visit(
    options: &Options,
    hello: Map<String, Value>,
    events: &Events,
    failures: &mut u32,
) -> Option<Lost> {
    let mut raw = tokio::select! {
        raw = Raw::connect(options, hello) => match raw {
            Ok(raw) => raw,
            Err(lost) => return Some(lost),
        },
        () = events.closed() => return None,
    };
    let mut why = None;
    loop {
        let heard = tokio::select! {
            heard = raw.hear() => heard,
            () = events.closed() => return None,
        };
        match heard.map(|text| text.map(|text| Told::read(&text))) {
            Ok(Some(Ok(Told::Welcome))) => break,
            Ok(Some(Ok(Told::Error { message, .. }))) => why = Some(message),
            Ok(Some(_) | None) => {}
            Err(lost) => return Some(Lost { reason: why.unwrap_or(lost.reason), ..lost }),
        }
    }
    *failures = 0;
    let (sender, outgoing) = mpsc::channel(OUTGOING);
    events.send(Event::Opened(sender)).await.ok()?;
    let ended = carry(raw, outgoing, events).await;
    events.send(Event::Closed).await.ok()?;
    ended
}

/// Relays messages both ways, until the connection is lost or the send channel is dropped.
async fn carry(mut raw: Raw, mut outgoing: mpsc::Receiver<String>, events: &Events) -> Option<Lost> {
    loop {
        tokio::select! {
            text = outgoing.recv() => match text {
                Some(text) => if let Err(lost) = raw.say(text).await { return Some(lost) },
                None => {
                    raw.close().await;
                    let reason = "the gateway stopped reading".to_owned();
                    return Some(Lost { code: None, reason, refused: false });
                }
            },
            heard = raw.hear() => match heard.map(|text| text.map(|text| Told::read(&text))) {
                Ok(Some(Ok(told))) => events.send(Event::Told(told)).await.ok()?,
                Ok(Some(Err(why))) => tracing::warn!(why = why.0, "ignored an invalid message of the gateway"),
                Ok(None) => {}
                Err(lost) => return Some(lost),
            },
        }
    }
}

/// Returns whether another attempt would fail in the same way (protocol.md §1.3).
fn is_final(lost: &Lost) -> bool {
    lost.refused
        || lost.code.is_some_and(|code| (4400..4500).contains(&code) && ![4408, 4429].contains(&code))
}

// === impl Events ===

impl Events {
    async fn send(&self, event: Event) -> Result<(), Unheard> {
        self.to.send((self.gate, event)).await.map_err(|_| Unheard)
    }

    async fn closed(&self) {
        self.to.closed().await;
    }
}
