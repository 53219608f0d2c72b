//! Sends the text of each attempt on a stream of its own, so that a slow reader of one does not block the others. A
//! session with too much queued text is held at its source. Queued text counts as unwritten, so that a slow reader
//! slows its link down; the rest of a held session counts as written: no other session waits for it.
use super::fence::Kept;
use super::frames;
use bytes::{Buf, BytesMut};
use quinn::{Connection, ConnectionError, SendStream, WriteError};
use serde::Serialize;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use turnway_bindings::link::{Aside, Beside, Pace};
use turnway_core::id::{RunId, SessionId};
use turnway_core::limits;

/// Maximum streams of one connection. A session has one speaking run; further streams finish the text of earlier runs.
const LANES_MAX: usize = 2 * limits::LINK_SUBSCRIPTIONS_MAX;

/// A full link is no longer full once its unwritten bytes fall to this.
const FULL_LEAVES: usize = limits::LINK_UNWRITTEN_BYTES_MAX / 2;

/// A stream that is being opened.
type Opening = Pin<Box<dyn Future<Output = Result<SendStream, ConnectionError>> + Send>>;

/// The text streams of one connection; empty while no run speaks.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    /// A requested stream; the client's stream limit may delay it.
    opening: Option<Opening>,
    /// Held sessions, each with the number of queued bytes at which it may resume.
    held: Vec<(SessionId, usize)>,
    /// Hold changes that were not reported yet.
    news: VecDeque<(SessionId, bool)>,
    /// Weight that counts as written and was not reported yet.
    written: usize,
    /// A stream has accepted bytes that were not reported yet.
    has_moved: bool,
    /// The backlog that was last reported.
    told: Load,
}

/// The queued text exceeds its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overfull;

/// The amount of queued text that counts as unwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Load {
    #[default]
    Little,
    /// Together with what is written but unreported, it may keep a full link full.
    Much,
    /// A client that accepts none of this much is considered gone.
    TooMuch,
}

/// The stream of one attempt's text.
struct Lane {
    session: SessionId,
    run_id: RunId,
    attempt: u32,
    /// `None` until the stream is opened.
    stream: Option<Kept<SendStream>>,
    waiting: BytesMut,
    /// Weight of the queued text, as far as it counts as unwritten.
    owed: usize,
    /// No more text comes.
    is_ended: bool,
    /// The client refused the stream.
    is_stopped: bool,
}

/// The first message of a text stream.
#[derive(Serialize)]
struct Head<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    session_id: &'a SessionId,
    run_id: &'a RunId,
    attempt: u32,
    after: u64,
}

// === impl Lanes ===

impl Lanes {
    /// Queues a piece of text. `after` is the number of control-stream messages before it; `prelude` is what each new
    /// stream begins with.
    pub(super) fn put(&mut self, aside: Aside, after: u64, prelude: &[u8]) -> Result<(), Overfull> {
        let Aside { session, run_id, attempt, text, weight } = aside;
        // A later attempt of a run ends the earlier one.
        for lane in &mut self.lanes {
            lane.is_ended |= lane.run_id == run_id && lane.attempt != attempt;
        }
        let open = self.lanes.iter().position(|lane| lane.run_id == run_id && !lane.is_ended);
        let at = match open {
            Some(at) => at,
            None => {
                self.make_room();
                self.lanes.push(Lane::new(session, run_id, attempt, (after, prelude)));
                self.lanes.len() - 1
            }
        };
        let lane = &mut self.lanes[at];
        if lane.is_stopped {
            self.written += weight;
        } else {
            frames::put(&text, &mut lane.waiting);
            lane.owed += weight;
        }
        self.settle();
        let waiting: usize = self.lanes.iter().map(|lane| lane.waiting.len()).sum();
        if waiting > limits::LANES_BYTES_MAX { Err(Overfull) } else { Ok(()) }
    }

    /// Ends the streams of a run, or of all runs of a session.
    pub(super) fn end(&mut self, session: &SessionId, run_id: Option<&RunId>) {
        for lane in &mut self.lanes {
            lane.is_ended |= lane.session == *session && run_id.is_none_or(|run_id| lane.run_id == *run_id);
        }
    }

    /// Returns the next session that must be held (`true`) or may resume (`false`).
    pub(super) fn news(&mut self) -> Option<(SessionId, bool)> {
        self.news.pop_front()
    }

    /// Returns the progress of the streams, if it is worth a report.
    pub(super) fn beside(&mut self) -> Option<Beside> {
        if !self.has_beside() {
            return None;
        }
        self.told = self.load();
        let has_moved = std::mem::take(&mut self.has_moved);
        let pace = match (self.told, has_moved) {
            (Load::Little, _) => Pace::Flows,
            (Load::Much, _) => Pace::Fills,
            (Load::TooMuch, true) => Pace::Creeps,
            (Load::TooMuch, false) => Pace::Stands,
        };
        Some(Beside { written: std::mem::take(&mut self.written), pace })
    }

    fn has_beside(&self) -> bool {
        let (load, owed) = (self.load(), self.owed());
        // A full link must either keep too much unwritten here, or be told of what no longer is: a link that is full
        // for other reasons and not slow here would wait for ever.
        let is_due = self.written > 0 && owed + self.written > FULL_LEAVES;
        self.written >= limits::LANES_REPORT_BYTES
            || is_due
            || load != self.told
            || (load == Load::TooMuch && self.has_moved)
    }

    fn load(&self) -> Load {
        let owed = self.owed();
        if self.held.len() >= limits::LANES_HELD_MAX || owed >= FULL_LEAVES {
            Load::TooMuch
        } else if owed + limits::LINK_REPORT_BYTES + limits::LANES_REPORT_BYTES > FULL_LEAVES {
            Load::Much
        } else {
            Load::Little
        }
    }

    fn owed(&self) -> usize {
        self.lanes.iter().map(|lane| lane.owed).sum()
    }

    /// Writes as much as possible. Ready if there is something to report.
    pub(super) fn poll(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Poll<()> {
        if !self.lanes.is_empty() {
            self.open(connection, cx);
            for lane in &mut self.lanes {
                let before = lane.waiting.len();
                // A blocked stream must not block the others.
                let _ = lane.poll(cx);
                self.has_moved |= lane.waiting.len() < before;
                self.written += lane.paid();
            }
            self.lanes.retain_mut(|lane| !lane.is_done());
            self.settle();
        }
        if self.news.is_empty() && !self.has_beside() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Opens one stream at a time, for the waiting texts in their order.
    fn open(&mut self, connection: &Connection, cx: &mut Context<'_>) {
        while let Some(lane) = self.lanes.iter_mut().find(|lane| lane.wants_stream()) {
            let opening = self.opening.get_or_insert_with(|| {
                let connection = connection.clone();
                Box::pin(async move { connection.open_uni().await })
            });
            let Poll::Ready(opened) = opening.as_mut().poll(cx) else { return };
            self.opening = None;
            match opened {
                Ok(stream) => lane.stream = Some(Kept::new(stream)),
                // The connection is gone; its reader will find out.
                Err(_) => return,
            }
        }
        self.opening = None;
    }

    /// Resumes sessions that need not be held any more, holds those that must be, and stops counting held text as
    /// unwritten, up to a limit for all sessions.
    fn settle(&mut self) {
        let mut open = self.waiting(|session| !self.is_held(session));
        let mut n = 0;
        while n < self.held.len() {
            let (session, least) = &self.held[n];
            let left = self.waiting(|of| of == session);
            // A session that was read to its end need not wait for others that are not read.
            let is_room = left <= *least && open + left <= limits::LANE_BYTES_MAX / 2;
            if left == 0 || is_room {
                open += left;
                self.news.push_back((self.held.remove(n).0, false));
            } else {
                n += 1;
            }
        }
        while open >= limits::LANE_BYTES_MAX {
            let Some((session, most)) = self.fullest() else { break };
            open -= most;
            self.held.push((session.clone(), most / 2));
            self.news.push_back((session, true));
        }
        self.forgive();
        if self.lanes.is_empty() {
            self.lanes.shrink_to_fit();
            self.held.shrink_to_fit();
        }
    }

    fn is_held(&self, session: &SessionId) -> bool {
        self.held.iter().any(|(held, _)| held == session)
    }

    /// Returns the queued bytes of the sessions that match.
    fn waiting(&self, of: impl Fn(&SessionId) -> bool) -> usize {
        self.lanes.iter().filter(|lane| of(&lane.session)).map(|lane| lane.waiting.len()).sum()
    }

    /// Returns the unheld session with the most queued bytes, and their number.
    fn fullest(&self) -> Option<(SessionId, usize)> {
        let open = self.lanes.iter().filter(|lane| !self.is_held(&lane.session));
        let each = open.map(|lane| (&lane.session, self.waiting(|session| *session == lane.session)));
        each.max_by_key(|(_, waiting)| *waiting).map(|(session, waiting)| (session.clone(), waiting))
    }

    fn forgive(&mut self) {
        let forgiven: usize =
            self.lanes.iter().map(|lane| lane.waiting.len().saturating_sub(lane.owed)).sum();
        let mut room = limits::LANES_HELD_BYTES_MAX.saturating_sub(forgiven);
        let held = &self.held;
        for lane in &mut self.lanes {
            if held.iter().any(|(session, _)| *session == lane.session) {
                let now = lane.owed.min(room);
                lane.owed -= now;
                self.written += now;
                room -= now;
            }
        }
    }

    /// Drops the oldest stream at the limit, so that a client that subscribes and unsubscribes cannot accumulate
    /// streams.
    fn make_room(&mut self) {
        if self.lanes.len() >= LANES_MAX {
            self.written += self.lanes.remove(0).owed;
        }
    }
}

// === impl Lane ===

impl Lane {
    fn new(session: SessionId, run_id: RunId, attempt: u32, (after, prelude): (u64, &[u8])) -> Self {
        let head = Head { kind: "stream", session_id: &session, run_id: &run_id, attempt, after };
        let mut waiting = BytesMut::from(prelude);
        // Serialising strings and numbers cannot fail.
        frames::put(&serde_json::to_string(&head).unwrap_or_default(), &mut waiting);
        Self { session, run_id, attempt, stream: None, waiting, owed: 0, is_ended: false, is_stopped: false }
    }

    /// Returns the weight of text that is no longer queued. What remains unwritten is never more than what is queued,
    /// and zero in the end.
    fn paid(&mut self) -> usize {
        let left = self.owed.min(self.waiting.len());
        std::mem::replace(&mut self.owed, left) - left
    }

    fn wants_stream(&self) -> bool {
        self.stream.is_none() && !self.waiting.is_empty()
    }

    fn is_done(&mut self) -> bool {
        let is_done = self.is_ended && self.waiting.is_empty();
        if let (true, Some(stream)) = (is_done, &mut self.stream) {
            // A stream that the client refused cannot be finished.
            let _ = stream.finish();
        }
        is_done
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(stream) = &mut self.stream else { return Poll::Pending };
        while !self.waiting.is_empty() {
            match ready!(Pin::new(&mut **stream).poll_write(cx, &self.waiting)) {
                Ok(written) => self.waiting.advance(written),
                Err(WriteError::Stopped(_)) => {
                    self.is_stopped = true;
                    self.waiting.clear();
                }
                Err(
                    WriteError::ConnectionLost(_) | WriteError::ClosedStream | WriteError::ZeroRttRejected,
                ) => {
                    self.waiting.clear();
                }
            }
        }
        // A grown buffer is not kept for the next text.
        self.waiting = BytesMut::new();
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests;
