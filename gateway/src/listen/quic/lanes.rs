//! Text on streams of its own: one for each attempt, opened by us. Each waits for its own reader and for nobody
//! else; a session whose text waits too long a queue is held at its source.
use super::fence::Kept;
use super::frames;
use bytes::{Buf, BytesMut};
use quinn::{Connection, ConnectionError, SendStream, WriteError};
use serde::Serialize;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use turnway_bindings::link::Aside;
use turnway_core::id::{RunId, SessionId};
use turnway_core::limits;

/// Streams of one connection. A session has one speaking run; what is over it is a run's last words.
const LANES_MAX: usize = 2 * limits::LINK_SUBSCRIPTIONS_MAX;

/// A stream on its way.
type Opening = Pin<Box<dyn Future<Output = Result<SendStream, ConnectionError>> + Send>>;

/// The lanes of one connection, none while nobody speaks.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    /// A stream is asked for; the client may let us wait.
    opening: Option<Opening>,
    /// Sessions that are held.
    held: Vec<SessionId>,
    /// What is to be told of that.
    news: VecDeque<(SessionId, bool)>,
}

/// Too much waits, all in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overfull;

/// The text of one attempt.
struct Lane {
    session: SessionId,
    run_id: RunId,
    attempt: u32,
    /// None: not opened yet.
    stream: Option<Kept<SendStream>>,
    waiting: BytesMut,
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
        let Aside { session, run_id, attempt, text } = aside;
        // A later attempt of a run ends the one before.
        for lane in &mut self.lanes {
            lane.is_ended |= lane.run_id == run_id && lane.attempt != attempt;
        }
        let open = self.lanes.iter().position(|lane| lane.run_id == run_id && !lane.is_ended);
        let at = match open {
            Some(at) => at,
            None => {
                self.make_room();
                self.lanes.push(Lane::new(session.clone(), run_id, attempt, (after, prelude)));
                self.lanes.len() - 1
            }
        };
        let lane = &mut self.lanes[at];
        if !lane.is_stopped {
            frames::put(&text, &mut lane.waiting);
        }
        self.judge(&session);
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

    /// Writes what can be written. Ready if there is news.
    pub(super) fn poll(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Poll<()> {
        if !self.lanes.is_empty() {
            self.open(connection, cx);
            for lane in &mut self.lanes {
                // One that cannot go on waits alone.
                let _ = lane.poll(cx);
            }
            self.lanes.retain_mut(|lane| !lane.is_done());
            self.settle();
        }
        if self.news.is_empty() { Poll::Pending } else { Poll::Ready(()) }
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

    /// Holds the sessions that must be, and lets go of the others.
    fn settle(&mut self) {
        let sessions: Vec<SessionId> =
            self.lanes.iter().map(|lane| &lane.session).chain(&self.held).cloned().collect();
        for session in sessions {
            self.judge(&session);
        }
        if self.lanes.is_empty() {
            self.lanes.shrink_to_fit();
            self.held.shrink_to_fit();
        }
    }

    fn judge(&mut self, session: &SessionId) {
        let of_session = self.lanes.iter().filter(|lane| lane.session == *session);
        let waiting: usize = of_session.map(|lane| lane.waiting.len()).sum();
        let held = self.held.iter().position(|held| held == session);
        match held {
            None if waiting >= limits::LANE_BYTES_MAX => {
                self.held.push(session.clone());
                self.news.push_back((session.clone(), true));
            }
            Some(at) if waiting <= limits::LANE_BYTES_MAX / 2 => {
                self.held.remove(at);
                self.news.push_back((session.clone(), false));
            }
            None | Some(_) => {}
        }
    }

    /// Somebody who comes and goes does not gather streams.
    fn make_room(&mut self) {
        if self.lanes.len() >= LANES_MAX {
            self.lanes.remove(0);
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
        Self { session, run_id, attempt, stream: None, waiting, is_ended: false, is_stopped: false }
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
