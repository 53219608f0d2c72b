//! Relays the answer of a model to its caller, byte for byte, in a task of its own: a caller that does not read must not
//! keep the upstream's connection open after its run or its credential has ended.
use super::guard::{CallGuard, CutReason};
use crate::clock::Clock;
use crate::http::stream::DisconnectProbe;
use crate::models::answer::{AnswerOutcome, AnswerStep};
use crate::models::open_call::OpenCall;
use crate::response::Body;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendError;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Mono;
use turnway_wire::model::{CallError, CallErrorKind, CallFormat};

/// A comment of an event stream: one line without a blank one, because that would end an event.
const KEEPALIVE: Bytes = Bytes::from_static(b": keepalive\n");
/// Longest time for which the last bytes wait for a caller that does not read.
const LAST_BYTES_WAIT: Duration = Duration::from_secs(10);

/// Pause before a body is cut off, in which the server writes what it has.
const CUT_PAUSE: Duration = Duration::from_millis(50);

/// A body that ends without its end, so that the caller sees a cut.
#[derive(Debug, thiserror::Error)]
#[error("the answer of the upstream was cut off")]
struct CutOff;

/// The relay of one answer.
struct Relay {
    call: OpenCall,
    guard: CallGuard,
    format: CallFormat,
    /// Finds out whether the caller of a stream has gone.
    probe: DisconnectProbe,
    /// Ends when the caller of another answer closes its sending side.
    read_closed: BoxFuture<'static, ()>,
    clock: Clock,
    /// Time of the last bytes for the caller.
    sent_at: Mono,
    sender: mpsc::Sender<Result<Bytes, CutOff>>,
}

/// The next thing that happens to a relay.
enum RelayStep {
    Bytes(Bytes),
    End(AnswerOutcome),
    Cut(CutReason),
    /// Nothing to send; the relay goes on.
    Nothing,
    /// The connection of the caller has ended.
    Gone,
}

/// Starts the relay, and returns the body for the caller. Dropping the body ends the relay.
pub(super) fn start(format: CallFormat, call: OpenCall, guard: CallGuard, clock: &Clock) -> Body {
    // One piece waits while the one before is written.
    let (sender, pieces) = mpsc::channel(1);
    let takes_events = call.answer.takes_events();
    let probe = if takes_events { guard.probe() } else { DisconnectProbe::new(None) };
    let read_closed = if takes_events { Box::pin(std::future::pending()) } else { guard.wait_read_closed() };
    let relay = Relay { call, guard, format, probe, read_closed, sent_at: clock.mono(), clock: clock.clone(), sender };
    tokio::spawn(relay.run());
    Body::from_stream(stream::unfold(pieces, |mut pieces| async move {
        let piece = pieces.recv().await?;
        Some((piece, pieces))
    }))
}

// === impl Relay ===

impl Relay {
    async fn run(mut self) {
        loop {
            match self.next().await {
                RelayStep::Nothing => {}
                RelayStep::Gone => return,
                RelayStep::End(outcome) => {
                    self.call.record_end(outcome);
                    let last = self.last_error(outcome);
                    return self.finish(Vec::new(), last).await;
                }
                RelayStep::Cut(reason) => {
                    let last = reason.code_and_message();
                    return self.finish(Vec::new(), Some(last)).await;
                }
                RelayStep::Bytes(bytes) => match self.send(bytes).await {
                    Ok(()) => self.sent_at = self.clock.mono(),
                    Err(None) => return,
                    Err(Some((reason, bytes))) => {
                        let last = reason.code_and_message();
                        return self.finish(vec![bytes], Some(last)).await;
                    }
                },
            }
        }
    }

    async fn next(&mut self) -> RelayStep {
        let silence = limits::MODEL_KEEPALIVE_INTERVAL.saturating_sub(self.clock.mono() - self.sent_at);
        tokio::select! {
            biased;
            reason = self.guard.wait_invalid() => RelayStep::Cut(reason),
            () = self.sender.closed(), if !planted(Planted::StoppedCallGoesOn) => RelayStep::Gone,
            step = tokio::time::timeout(silence, self.call.answer.next()) => match step {
                Ok(AnswerStep::Bytes(bytes)) => RelayStep::Bytes(bytes),
                Ok(AnswerStep::End(outcome)) => RelayStep::End(outcome),
                Err(_) => self.comment(),
            },
            () = self.probe.due() => self.comment(),
            () = &mut self.read_closed => RelayStep::Gone,
        }
    }

    /// Returns a comment if one may be sent now. The next one is due after another interval in any case.
    fn comment(&mut self) -> RelayStep {
        self.sent_at = self.clock.mono();
        if self.call.answer.is_between_events() { RelayStep::Bytes(KEEPALIVE) } else { RelayStep::Nothing }
    }

    /// Sends bytes when the caller has room for them. Returns nothing if the caller has gone, or the reason and the bytes if
    /// the call must end first.
    async fn send(&mut self, bytes: Bytes) -> Result<(), Option<(CutReason, Bytes)>> {
        tokio::select! {
            biased;
            permit = self.sender.reserve() => match permit {
                Ok(permit) => {
                    permit.send(Ok(bytes));
                    Ok(())
                }
                Err(SendError(())) => Err(None),
            },
            reason = self.guard.wait_invalid() => Err(Some((reason, bytes))),
        }
    }

    /// Returns code and message of the error with which an answer ends that is not complete.
    fn last_error(&self, outcome: AnswerOutcome) -> Option<(&'static str, &'static str)> {
        match outcome {
            AnswerOutcome::Complete | AnswerOutcome::Error | AnswerOutcome::Refused => None,
            AnswerOutcome::Truncated if planted(Planted::CutAnswerLooksWhole) => None,
            AnswerOutcome::Truncated => {
                Some(("upstream_truncated", "the model's upstream ended the answer before its end"))
            }
            AnswerOutcome::TimedOut => Some(("upstream_timeout", "the model's upstream paused for too long")),
        }
    }

    /// Closes the connection to the upstream, then sends what is left: bytes that have arrived, and the error.
    async fn finish(self, mut rest: Vec<Bytes>, error: Option<(&'static str, &'static str)>) {
        let Self { mut call, guard, format, sender, .. } = self;
        rest.extend(call.answer.take_ready());
        let takes_events = call.answer.takes_events();
        let is_between = call.answer.is_between_events();
        drop(call);
        let kind = if error.is_some_and(|(code, _)| code == "upstream_timeout") {
            CallErrorKind::Timeout
        } else {
            CallErrorKind::Server
        };
        let last = async {
            for bytes in rest {
                sender.send(Ok(bytes)).await?;
            }
            let Some((code, message)) = error else { return Ok(()) };
            if !takes_events {
                // Otherwise the server would discard the head, or what was sent last, together with the end.
                tokio::time::sleep(CUT_PAUSE).await;
                return sender.send(Err(CutOff)).await;
            }
            let event = format.error_event(&CallError { code, message, kind, param: None });
            // Ends the event that was cut off.
            let end = if is_between { Bytes::new() } else { Bytes::from_static(b"\n\n") };
            for bytes in [end, event].into_iter().filter(|bytes| !bytes.is_empty()) {
                sender.send(Ok(bytes)).await?;
            }
            Ok(())
        };
        // A caller that does not read misses the end; the connection shows a cut.
        _ = tokio::time::timeout(LAST_BYTES_WAIT, last).await;
        drop(guard);
    }
}
