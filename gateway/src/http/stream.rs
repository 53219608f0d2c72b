//! Notes as server-sent events: a body that takes from its guest only as fast as its client reads.
use crate::answer::Body;
use crate::http::guest::{Guest, Parted};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, stream};
use http::{HeaderName, HeaderValue, Response, header};
use std::convert::Infallible;
use std::time::Duration;
use turnway_bindings::channel::note::Note;
use turnway_bindings::channel::sse::{HEARTBEAT, Log, Turn};
use turnway_core::time::Millis;

/// After so much silence something is said, so that nobody in between takes the answer for dead.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(15);
/// After a client has sent all that it will, it may have hung up: what is written tells, for a client that is gone answers it
/// with a reset. Waits before each comment.
const PROBES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(250), Duration::from_secs(1)];
/// Notes that are there together leave together, up to about this much.
const CHUNK_BYTES: usize = 16 * 1024;

/// What becomes of notes on one stream.
pub trait Story: Send + 'static {
    /// Appends the events that a note is shown as; none, if it does not belong here.
    fn show(&mut self, ts: Millis, note: &Note, to: &mut String);
    /// Whether nothing will follow.
    fn is_over(&self) -> bool;
    /// Appends what is said where the guest's link is over before the story; none, if the end of the stream
    /// says enough.
    fn part(&mut self, _: Parted, _: &mut String) {}
}

impl Story for Turn {
    fn show(&mut self, ts: Millis, note: &Note, to: &mut String) {
        Turn::show(self, ts, note, to);
    }
    fn is_over(&self) -> bool {
        Turn::is_over(self)
    }
}

impl Story for Log {
    fn show(&mut self, ts: Millis, note: &Note, to: &mut String) {
        Log::show(self, ts, note, to);
    }
    fn is_over(&self) -> bool {
        Log::is_over(self)
    }
}

/// An event stream that begins with `first` and tells what its guest is shown. It ends with its story;
/// where the node leaves it ends before, and whoever reads comes back with the last `id`.
pub fn answer<S: Story>(guest: Guest, story: S, first: String) -> Response<Body> {
    let probe = Probe::of(&guest);
    let chunks = stream::unfold(Some((guest, story, first, probe)), |state| async {
        let (mut guest, mut story, mut chunk, mut probe) = state?;
        while chunk.is_empty() && !story.is_over() {
            let heard = tokio::select! {
                biased;
                heard = tokio::time::timeout(HEARTBEAT_EVERY, guest.hear()) => heard.ok(),
                () = probe.due() => None,
            };
            match heard {
                Some(Ok(note)) => tell(&mut guest, &mut story, note, &mut chunk),
                Some(Err(parted)) => {
                    story.part(parted, &mut chunk);
                    return (!chunk.is_empty()).then(|| (Ok::<_, Infallible>(Bytes::from(chunk)), None));
                }
                None => chunk.push_str(HEARTBEAT),
            }
        }
        if story.is_over() {
            guest.settle();
        }
        let bytes = Bytes::from(std::mem::take(&mut chunk));
        let rest = (!story.is_over()).then_some((guest, story, chunk, probe));
        (!bytes.is_empty()).then_some((Ok::<_, Infallible>(bytes), rest))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx gathers an answer before it passes it on, unless told not to.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// Comments for a client that has sent all that it will.
struct Probe {
    /// Waits for the end of what the client sends; none once that has come.
    finished: Option<BoxFuture<'static, ()>>,
    left: std::slice::Iter<'static, Duration>,
}

impl Probe {
    fn of(guest: &Guest) -> Self {
        let watch = guest.watch();
        let finished = async move {
            match watch {
                Some(watch) => watch.finished().await,
                None => std::future::pending().await,
            }
        };
        Self { finished: Some(finished.boxed()), left: PROBES.iter() }
    }

    /// Waits until the next comment is due; for ever after the last one. Safe to drop and to ask again.
    async fn due(&mut self) {
        if let Some(finished) = &mut self.finished {
            finished.await;
            self.finished = None;
        }
        match self.left.as_slice().first() {
            Some(wait) => tokio::time::sleep(*wait).await,
            None => std::future::pending().await,
        }
        self.left.next();
    }
}

/// A note, and those behind it that are here already.
fn tell(guest: &mut Guest, story: &mut impl Story, note: Note, chunk: &mut String) {
    let ts = guest.desk().clock.now().store;
    story.show(ts, &note, chunk);
    while chunk.len() < CHUNK_BYTES && !story.is_over() {
        let Some(note) = guest.at_hand() else { return };
        story.show(ts, &note, chunk);
    }
}
