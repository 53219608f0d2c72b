//! Parses an HTTP agent's SSE response into agent events, within the limits of `budget` (hardening S-27, S-48). Used by
//! `http` and the fuzzers.
use crate::agent::budget::{BodyBudget, BodyFault};
use futures_util::StreamExt;
use http_body_util::BodyDataStream;
use hyper::body::Incoming;
use sse_stream::{Sse, SseByteStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use turnway_core::id::QualifiedRun;
use turnway_core::protocol::agent::AgentFailure;
use turnway_wire::agent::surrogates::SurrogateJoiner;

pub use turnway_wire::agent::message::AgentMessage;

/// Events accepted after the last one before the connection is dropped instead of reused.
const REST_EVENTS_MAX: usize = 16;
/// Time to wait for the end of the body after the last event, before the connection is dropped.
const REST_WAIT: Duration = Duration::from_secs(1);

/// The agent events of one response.
pub struct SseEvents {
    stream: SseByteStream<BodyBudget<BodyDataStream<Incoming>>>,
    /// Bytes have arrived since the last event or liveness report.
    bytes_arrived: Arc<AtomicBool>,
    /// True if every event has an id.
    requires_ids: bool,
    joiner: SurrogateJoiner,
    /// The event after a piece of text, if the text was returned first.
    pending: Option<AgentMessage>,
}

// === impl SseEvents ===

impl SseEvents {
    /// Reads the events of this body. `requires_ids` requires an id of every event, so that the agent can be asked for
    /// the rest.
    pub fn new(body: Incoming, requires_ids: bool) -> Self {
        let budget = BodyBudget::new(BodyDataStream::new(body));
        let bytes_arrived = budget.bytes_arrived();
        let stream = SseByteStream::new(budget);
        Self { bytes_arrived, stream, requires_ids, joiner: SurrogateJoiner::default(), pending: None }
    }

    /// Returns the next event, or a liveness event if bytes arrived that complete no event. A body that ends without a
    /// final event is a failure. Cancel-safe.
    pub async fn next(&mut self, run: &QualifiedRun) -> AgentMessage {
        if let Some(message) = self.pending.take() {
            return message;
        }
        let next = std::future::poll_fn(|cx| match self.stream.poll_next_unpin(cx) {
            Poll::Ready(event) => {
                self.bytes_arrived.store(false, Ordering::Relaxed);
                Poll::Ready(Some(event))
            }
            Poll::Pending if self.bytes_arrived.swap(false, Ordering::Relaxed) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        let Some(event) = next.await else { return AgentMessage::Alive };
        let (before, message) = match event {
            Some(Ok(event)) => self.read(&event, run),
            Some(Err(error)) => (self.joiner.flush(), AgentMessage::Failed(failure(&error))),
            None => {
                let why = "the stream ended without a done or error event".to_owned();
                (self.joiner.flush(), AgentMessage::Failed(AgentFailure::Broken(why)))
            }
        };
        let Some(before) = before else { return message };
        self.pending = Some(message);
        before
    }

    fn read(&mut self, event: &Sse, run: &QualifiedRun) -> (Option<AgentMessage>, AgentMessage) {
        // Only `done` is valid without data; other events then fail for want of a field.
        let data = event.data.as_deref().unwrap_or("{}");
        let kind = event.event.as_deref().unwrap_or_default();
        self.joiner.read(kind, data, self.requires_ids.then_some(event.id.as_deref()), run)
    }

    /// Reads to the end of the body, within limits: a connection returns to the pool only after its body was read to
    /// the end.
    pub(super) async fn drain(mut self) {
        let rest = async {
            for _ in 0..REST_EVENTS_MAX {
                match self.stream.next().await {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return,
                }
            }
        };
        // Dropping a body that does not end closes its connection.
        let _ = tokio::time::timeout(REST_WAIT, rest).await;
    }
}

fn failure(error: &sse_stream::Error) -> AgentFailure {
    let sse_stream::Error::Body(source) = error else { return broken("not UTF-8") };
    match source.downcast_ref::<BodyFault>() {
        Some(BodyFault::TooLarge) => AgentFailure::TooLarge,
        Some(BodyFault::Lost) | None => broken("the connection to the agent was lost"),
    }
}

fn broken(what: &str) -> AgentFailure {
    AgentFailure::Broken(what.to_owned())
}
