//! Sends the text of each attempt on a stream of its own, so that a slow reader of one does not block the others. A
//! session with too much queued text is held at its source. Queued text counts as unwritten, so that a slow reader
//! slows its link down; the rest of a held session counts as written: no other session waits for it.
use super::frames;
use super::panic_isolation::CatchDropPanic;
use bytes::{Buf, BytesMut};
use quinn::{Connection, ConnectionError, SendStream, WriteError};
use serde::Serialize;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use turnway_core::id::{RunId, SessionId};
use turnway_core::limits;
use turnway_node::link::{SideStreamPace, SideStreamProgress, SideStreamText};

/// Maximum streams of one connection. A session has one speaking run; further streams finish the text of earlier runs.
const STREAMS_MAX: usize = 2 * limits::LINK_SUBSCRIPTIONS_MAX;

/// A full link is no longer full once its unwritten bytes fall to this.
const RESUME_BYTES: usize = limits::LINK_UNWRITTEN_BYTES_MAX / 2;

/// A stream that is being opened.
type OpeningAttemptStream = Pin<Box<dyn Future<Output = Result<SendStream, ConnectionError>> + Send>>;

/// The text streams of one connection; empty while no run speaks.
#[derive(Default)]
pub(super) struct AttemptStreams {
    streams: Vec<AttemptStream>,
    /// A requested stream; the client's stream limit may delay it.
    opening: Option<OpeningAttemptStream>,
    /// Held sessions, each with the number of queued bytes at which it may resume.
    held: Vec<(SessionId, usize)>,
    /// Hold changes that were not reported yet.
    hold_changes: VecDeque<(SessionId, bool)>,
    /// Weight that counts as written and was not reported yet.
    written: usize,
    /// A stream has accepted bytes that were not reported yet.
    made_progress: bool,
    /// The backlog that was last reported.
    reported: TextBacklog,
}

/// The queued text exceeds its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextBacklogExceeded;

/// The amount of queued text that counts as unwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum TextBacklog {
    #[default]
    Low,
    /// Together with what is written but unreported, it may keep a full link full.
    High,
    /// A client that accepts none of this much is considered gone.
    Excessive,
}

/// The stream of one attempt's text.
struct AttemptStream {
    session: SessionId,
    run_id: RunId,
    attempt: u32,
    /// `None` until the stream is opened.
    stream: Option<CatchDropPanic<SendStream>>,
    queued: BytesMut,
    /// Weight of the queued text, as far as it counts as unwritten.
    unwritten: usize,
    /// No more text comes.
    is_ended: bool,
    /// The client refused the stream.
    is_stopped: bool,
}

/// The first message of a text stream.
#[derive(Serialize)]
struct AttemptStreamHeader<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    session_id: &'a SessionId,
    run_id: &'a RunId,
    attempt: u32,
    after: u64,
}

// === impl AttemptStreams ===

impl AttemptStreams {
    /// Queues a piece of text. `after` is the number of control-stream messages before it; `prelude` is what each new
    /// stream begins with.
    pub(super) fn write(
        &mut self,
        side_text: SideStreamText,
        after: u64,
        prelude: &[u8],
    ) -> Result<(), TextBacklogExceeded> {
        let SideStreamText { session, run_id, attempt, text, weight } = side_text;
        // A later attempt of a run ends the earlier one.
        for lane in &mut self.streams {
            lane.is_ended |= lane.run_id == run_id && lane.attempt != attempt;
        }
        let open = self.streams.iter().position(|lane| lane.run_id == run_id && !lane.is_ended);
        let at = match open {
            Some(at) => at,
            None => {
                self.evict_oldest();
                self.streams.push(AttemptStream::new(session, run_id, attempt, (after, prelude)));
                self.streams.len() - 1
            }
        };
        let lane = &mut self.streams[at];
        if lane.is_stopped {
            self.written += weight;
        } else {
            frames::encode(&text, &mut lane.queued);
            lane.unwritten += weight;
        }
        self.update_holds();
        let waiting: usize = self.streams.iter().map(|lane| lane.queued.len()).sum();
        if waiting > limits::LANES_BYTES_MAX { Err(TextBacklogExceeded) } else { Ok(()) }
    }

    /// Ends the streams of a run, or of all runs of a session.
    pub(super) fn end(&mut self, session: &SessionId, run_id: Option<&RunId>) {
        for lane in &mut self.streams {
            lane.is_ended |= lane.session == *session && run_id.is_none_or(|run_id| lane.run_id == *run_id);
        }
    }

    /// Returns the next session that must be held (`true`) or may resume (`false`).
    pub(super) fn next_hold_change(&mut self) -> Option<(SessionId, bool)> {
        self.hold_changes.pop_front()
    }

    /// Returns the progress of the streams, if it is worth a report.
    pub(super) fn take_report(&mut self) -> Option<SideStreamProgress> {
        if !self.has_report() {
            return None;
        }
        self.reported = self.backlog();
        let has_moved = std::mem::take(&mut self.made_progress);
        let pace = match (self.reported, has_moved) {
            (TextBacklog::Low, _) => SideStreamPace::Draining,
            (TextBacklog::High, _) => SideStreamPace::Filling,
            (TextBacklog::Excessive, true) => SideStreamPace::Slow,
            (TextBacklog::Excessive, false) => SideStreamPace::Stalled,
        };
        Some(SideStreamProgress { written: std::mem::take(&mut self.written), pace })
    }

    fn has_report(&self) -> bool {
        let load = self.backlog();
        let owed = self.unwritten();
        // A full link must either keep too much unwritten here, or be told of what no longer is: a link that is full
        // for other reasons and not slow here would wait for ever.
        let is_due = self.written > 0 && owed + self.written > RESUME_BYTES;
        self.written >= limits::LANES_REPORT_BYTES
            || is_due
            || load != self.reported
            || (load == TextBacklog::Excessive && self.made_progress)
    }

    fn backlog(&self) -> TextBacklog {
        let owed = self.unwritten();
        if self.held.len() >= limits::LANES_HELD_MAX || owed >= RESUME_BYTES {
            TextBacklog::Excessive
        } else if owed + limits::LINK_REPORT_BYTES + limits::LANES_REPORT_BYTES > RESUME_BYTES {
            TextBacklog::High
        } else {
            TextBacklog::Low
        }
    }

    fn unwritten(&self) -> usize {
        self.streams.iter().map(|lane| lane.unwritten).sum()
    }

    /// Writes as much as possible. Ready if there is something to report.
    pub(super) fn poll(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Poll<()> {
        if !self.streams.is_empty() {
            self.poll_open(connection, cx);
            for lane in &mut self.streams {
                let before = lane.queued.len();
                // A blocked stream must not block the others.
                let _ = lane.poll(cx);
                self.made_progress |= lane.queued.len() < before;
                self.written += lane.take_written();
            }
            self.streams.retain_mut(|lane| !lane.is_done());
            self.update_holds();
        }
        if self.hold_changes.is_empty() && !self.has_report() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Opens one stream at a time, for the waiting texts in their order.
    fn poll_open(&mut self, connection: &Connection, cx: &mut Context<'_>) {
        while let Some(lane) = self.streams.iter_mut().find(|lane| lane.wants_stream()) {
            let opening = self.opening.get_or_insert_with(|| {
                let connection = connection.clone();
                Box::pin(async move { connection.open_uni().await })
            });
            let Poll::Ready(opened) = opening.as_mut().poll(cx) else { return };
            self.opening = None;
            match opened {
                Ok(stream) => lane.stream = Some(CatchDropPanic::new(stream)),
                // The connection is gone; its reader will find out.
                Err(_) => return,
            }
        }
        self.opening = None;
    }

    /// Resumes sessions that need not be held any more, holds those that must be, and stops counting held text as
    /// unwritten, up to a limit for all sessions.
    fn update_holds(&mut self) {
        let mut open = self.queued_bytes(|session| !self.is_held(session));
        let mut n = 0;
        while n < self.held.len() {
            let (session, least) = &self.held[n];
            let left = self.queued_bytes(|of| of == session);
            // A session that was read to its end need not wait for others that are not read.
            let is_room = left <= *least && open + left <= limits::LANE_BYTES_MAX / 2;
            if left == 0 || is_room {
                open += left;
                self.hold_changes.push_back((self.held.remove(n).0, false));
            } else {
                n += 1;
            }
        }
        while open >= limits::LANE_BYTES_MAX {
            let Some((session, most)) = self.largest_session() else { break };
            open -= most;
            self.held.push((session.clone(), most / 2));
            self.hold_changes.push_back((session, true));
        }
        self.write_off_held();
        if self.streams.is_empty() {
            self.streams.shrink_to_fit();
            self.held.shrink_to_fit();
        }
    }

    fn is_held(&self, session: &SessionId) -> bool {
        self.held.iter().any(|(held, _)| held == session)
    }

    /// Returns the queued bytes of the sessions that match.
    fn queued_bytes(&self, of: impl Fn(&SessionId) -> bool) -> usize {
        self.streams.iter().filter(|lane| of(&lane.session)).map(|lane| lane.queued.len()).sum()
    }

    /// Returns the unheld session with the most queued bytes, and their number.
    fn largest_session(&self) -> Option<(SessionId, usize)> {
        let open = self.streams.iter().filter(|lane| !self.is_held(&lane.session));
        let each = open.map(|lane| (&lane.session, self.queued_bytes(|session| *session == lane.session)));
        each.max_by_key(|(_, waiting)| *waiting).map(|(session, waiting)| (session.clone(), waiting))
    }

    fn write_off_held(&mut self) {
        let forgiven: usize = self.streams.iter().map(|lane| lane.queued.len().saturating_sub(lane.unwritten)).sum();
        let mut budget = limits::LANES_HELD_BYTES_MAX.saturating_sub(forgiven);
        let held = &self.held;
        for lane in &mut self.streams {
            if held.iter().any(|(session, _)| *session == lane.session) {
                let now = lane.unwritten.min(budget);
                lane.unwritten -= now;
                self.written += now;
                budget -= now;
            }
        }
    }

    /// Drops the oldest stream at the limit, so that a client that subscribes and unsubscribes cannot accumulate
    /// streams.
    fn evict_oldest(&mut self) {
        if self.streams.len() >= STREAMS_MAX {
            self.written += self.streams.remove(0).unwritten;
        }
    }
}

// === impl AttemptStream ===

impl AttemptStream {
    fn new(session: SessionId, run_id: RunId, attempt: u32, (after, prelude): (u64, &[u8])) -> Self {
        let head = AttemptStreamHeader { kind: "stream", session_id: &session, run_id: &run_id, attempt, after };
        let mut queued = BytesMut::from(prelude);
        // Serialising strings and numbers cannot fail.
        frames::encode(&serde_json::to_string(&head).unwrap_or_default(), &mut queued);
        Self { session, run_id, attempt, stream: None, queued, unwritten: 0, is_ended: false, is_stopped: false }
    }

    /// Returns the weight of text that is no longer queued. What remains unwritten is never more than what is queued,
    /// and zero in the end.
    fn take_written(&mut self) -> usize {
        let left = self.unwritten.min(self.queued.len());
        std::mem::replace(&mut self.unwritten, left) - left
    }

    fn wants_stream(&self) -> bool {
        self.stream.is_none() && !self.queued.is_empty()
    }

    fn is_done(&mut self) -> bool {
        let is_done = self.is_ended && self.queued.is_empty();
        if let (true, Some(stream)) = (is_done, &mut self.stream) {
            // A stream that the client refused cannot be finished.
            let _ = stream.finish();
        }
        is_done
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(stream) = &mut self.stream else { return Poll::Pending };
        while !self.queued.is_empty() {
            match ready!(Pin::new(&mut **stream).poll_write(cx, &self.queued)) {
                Ok(written) => self.queued.advance(written),
                Err(WriteError::Stopped(_)) => {
                    self.is_stopped = true;
                    self.queued.clear();
                }
                Err(WriteError::ConnectionLost(_) | WriteError::ClosedStream | WriteError::ZeroRttRejected) => {
                    self.queued.clear();
                }
            }
        }
        // A grown buffer is not kept for the next text.
        self.queued = BytesMut::new();
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests;
