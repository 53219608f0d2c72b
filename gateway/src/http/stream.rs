//! Sends notes as server-sent events: a response body that takes notes from its link only as fast as the client reads.
use crate::http::request_link::{LinkClosed, RequestLink};
use crate::response::Body;
use crate::socket::ClientWatch;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, stream};
use http::{HeaderName, HeaderValue, Response, header};
use std::convert::Infallible;
use std::time::Duration;
use turnway_core::time::Millis;
use turnway_wire::channel::notification::Notification;
use turnway_wire::channel::sse::{HEARTBEAT, LogStream, TurnStream};

/// Interval of comments on a silent stream, so that proxies do not consider it dead.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(15);
/// Waits before each of the comments that are sent after a client has closed its sending side. The client may have
/// disconnected, and only a write can tell: a disconnected client answers it with a reset.
const PROBES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(250), Duration::from_secs(1)];
/// Notes that have already arrived are sent together, up to about this size.
const CHUNK_BYTES: usize = 16 * 1024;

/// A renderer of notes as events.
pub trait NoteRenderer: Send + 'static {
    /// Appends the events of a note; nothing, if the note does not belong to the stream.
    fn show(&mut self, ts: Millis, note: &Notification, to: &mut String);
    /// Returns true if no events will follow.
    fn is_over(&self) -> bool;
    /// Appends the events for a link that ends before the stream is complete; nothing, if the end of the stream is
    /// enough.
    fn render_close(&mut self, _: LinkClosed, _: &mut String) {}
}

impl NoteRenderer for TurnStream {
    fn show(&mut self, ts: Millis, note: &Notification, to: &mut String) {
        TurnStream::push(self, ts, note, to);
    }
    fn is_over(&self) -> bool {
        TurnStream::is_finished(self)
    }
}

impl NoteRenderer for LogStream {
    fn show(&mut self, ts: Millis, note: &Notification, to: &mut String) {
        LogStream::push(self, ts, note, to);
    }
    fn is_over(&self) -> bool {
        LogStream::is_finished(self)
    }
}

/// Returns an event stream that begins with `first` and renders the notes of its link. The stream ends when its
/// renderer is finished. If the node drains it ends earlier, and the client reconnects with the last `id`.
pub fn event_stream<S: NoteRenderer>(link: RequestLink, renderer: S, first: String) -> Response<Body> {
    let probe = DisconnectProbe::new(link.watch());
    let chunks = stream::unfold(Some((link, renderer, first, probe)), |state| async {
        let (mut link, mut renderer, mut chunk, mut probe) = state?;
        while chunk.is_empty() && !renderer.is_over() {
            let received = tokio::select! {
                biased;
                received = tokio::time::timeout(HEARTBEAT_EVERY, link.next_note()) => received.ok(),
                () = probe.due() => None,
            };
            match received {
                Some(Ok(note)) => render_ready(&mut link, &mut renderer, note, &mut chunk),
                Some(Err(parted)) => {
                    renderer.render_close(parted, &mut chunk);
                    return (!chunk.is_empty()).then(|| (Ok::<_, Infallible>(Bytes::from(chunk)), None));
                }
                None => chunk.push_str(HEARTBEAT),
            }
        }
        if renderer.is_over() {
            link.complete();
        }
        let bytes = Bytes::from(std::mem::take(&mut chunk));
        let rest = (!renderer.is_over()).then_some((link, renderer, chunk, probe));
        (!bytes.is_empty()).then_some((Ok::<_, Infallible>(bytes), rest))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Without this header nginx buffers an answer.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// The schedule of comments for a client that has closed its sending side.
pub struct DisconnectProbe {
    /// Completes when the client closes its sending side; `None` after that.
    finished: Option<BoxFuture<'static, ()>>,
    waits: std::slice::Iter<'static, Duration>,
}

impl DisconnectProbe {
    /// Creates the schedule for a client; without a watch no comment is ever due.
    pub fn new(watch: Option<ClientWatch>) -> Self {
        let finished = async move {
            match watch {
                Some(watch) => watch.wait_read_closed().await,
                None => std::future::pending().await,
            }
        };
        Self { finished: Some(finished.boxed()), waits: PROBES.iter() }
    }

    /// Waits until the next comment is due; for ever after the last one. Cancel-safe.
    pub async fn due(&mut self) {
        if let Some(finished) = &mut self.finished {
            finished.await;
            self.finished = None;
        }
        match self.waits.as_slice().first() {
            Some(wait) => tokio::time::sleep(*wait).await,
            None => std::future::pending().await,
        }
        self.waits.next();
    }
}

/// Renders a note and those behind it that have already arrived.
fn render_ready(link: &mut RequestLink, renderer: &mut impl NoteRenderer, note: Notification, chunk: &mut String) {
    let ts = link.context().clock.now().store;
    renderer.show(ts, &note, chunk);
    while chunk.len() < CHUNK_BYTES && !renderer.is_over() {
        let Some(note) = link.try_next_note() else { return };
        renderer.show(ts, &note, chunk);
    }
}
