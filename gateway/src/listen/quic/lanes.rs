//! Text on streams of its own: one for each attempt, opened by us. Each waits for its own reader and for nobody
//! else; a session whose text waits in too long a queue is held at its source.
//!
//! What waits counts as unwritten, as what waits on a WebSocket does, so that a slow reader slows down all that is shown
//! to it. What a held session has left behind counts as written instead: nobody else waits for its reader.
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

/// Streams of one connection. A session has one speaking run; what is over it is a run's last words.
const LANES_MAX: usize = 2 * limits::LINK_SUBSCRIPTIONS_MAX;

/// A link that was full is not any more when so much is unwritten.
const FULL_LEAVES: usize = limits::LINK_UNWRITTEN_BYTES_MAX / 2;

/// A stream on its way.
type Opening = Pin<Box<dyn Future<Output = Result<SendStream, ConnectionError>> + Send>>;

/// The lanes of one connection, none while nobody speaks.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    /// A stream is asked for; the client may let us wait.
    opening: Option<Opening>,
    /// Sessions that are held, and how little may wait of each when it is let go.
    held: Vec<(SessionId, usize)>,
    /// What is to be told of that.
    news: VecDeque<(SessionId, bool)>,
    /// Weight that counts as written and was not told.
    written: usize,
    /// A stream has taken something that was not told.
    has_moved: bool,
    /// What was told last of how much waits.
    told: Load,
}

/// Too much waits, all in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overfull;

/// How much waits that counts as unwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Load {
    #[default]
    Little,
    /// With what is written and not reported it may be as much as a full link has to get rid of.
    Much,
    /// So much that a client that takes nothing of it is gone for us.
    TooMuch,
}

/// The text of one attempt.
struct Lane {
    session: SessionId,
    run_id: RunId,
    attempt: u32,
    /// None: not opened yet.
    stream: Option<Kept<SendStream>>,
    waiting: BytesMut,
    /// Weight of what waits, as far as it counts as unwritten.
    owed: usize,
    /// Nothing more comes.
    is_ended: bool,
    /// The client does not want it.
    is_stopped: bool,
}

/// What a lane begins with.
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
    /// Takes a piece of text. `after`: so many messages of the control stream come before it; `prelude`: what a
    /// stream begins with.
    pub(super) fn put(&mut self, aside: Aside, after: u64, prelude: &[u8]) -> Result<(), Overfull> {
        let Aside { session, run_id, attempt, text, weight } = aside;
        // A later attempt of a run ends the one before.
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

    /// Of a run, or of all runs of a session, nothing more comes.
    pub(super) fn end(&mut self, session: &SessionId, run_id: Option<&RunId>) {
        for lane in &mut self.lanes {
            lane.is_ended |= lane.session == *session && run_id.is_none_or(|run_id| lane.run_id == *run_id);
        }
    }

    /// The next session that is to be held, or is not any more.
    pub(super) fn news(&mut self) -> Option<(SessionId, bool)> {
        self.news.pop_front()
    }

    /// What is to be told of the streams, if it is worth it.
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
        // A link that counts as full must owe too much, or be told of what it does not owe any more: who is full for
        // others and not slow here would wait for ever, and nobody would let it go.
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

    /// Writes what can be written. Ready if there is news.
    pub(super) fn poll(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Poll<()> {
        if !self.lanes.is_empty() {
            self.open(connection, cx);
            for lane in &mut self.lanes {
                let before = lane.waiting.len();
                // One that cannot go on waits alone.
                let _ = lane.poll(cx);
                self.has_moved |= lane.waiting.len() < before;
                self.written += lane.paid();
            }
            self.lanes.retain_mut(|lane| !lane.is_done());
            self.settle();
        }
        if self.news.is_empty() && !self.has_beside() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// One stream at a time, for those who wait in their order.
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
                // The connection is gone, which its reader finds out.
                Err(_) => return,
            }
        }
        self.opening = None;
    }

    /// Lets go of the sessions that need not be held any more, holds those that must be, and forgives them what counts as
    /// unwritten, as long as that is not too much altogether.
    fn settle(&mut self) {
        let mut open = self.waiting(|session| !self.is_held(session));
        let mut n = 0;
        while n < self.held.len() {
            let (session, least) = &self.held[n];
            let left = self.waiting(|of| of == session);
            // One that has been read to the end need not wait for those that nobody reads.
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

    /// Bytes that wait of these sessions.
    fn waiting(&self, of: impl Fn(&SessionId) -> bool) -> usize {
        self.lanes.iter().filter(|lane| of(&lane.session)).map(|lane| lane.waiting.len()).sum()
    }

    /// Of the sessions that are not held the one of which most waits, and how much.
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

    /// Somebody who comes and goes does not gather streams.
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
        // Strings and numbers cannot fail to be written.
        frames::put(&serde_json::to_string(&head).unwrap_or_default(), &mut waiting);
        Self { session, run_id, attempt, stream: None, waiting, owed: 0, is_ended: false, is_stopped: false }
    }

    /// What was owed for text that does not wait any more. The rest is never more than what waits, and nothing in the end.
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
            // One that the client does not want any more has no end to be told.
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
        // A buffer that has grown is not kept for the next word.
        self.waiting = BytesMut::new();
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests;
