//! Reads the facts of a session over a request's link: from a position on, in order, without gaps.
use crate::http::guest::{ANSWER_WAIT, Guest, Unanswered};
use crate::http::problem::Problem;
use crate::links::Place;
use std::sync::Arc;
use turnway_bindings::channel::command::{Command, Subscribe};
use turnway_bindings::channel::note::{Note, Reset, SnapshotNote};
use turnway_core::id::{Cursor, Epoch, RequestId, RunId, Seq, SessionId};
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::pattern::Pattern;
use turnway_core::protocol::refusal::{Code, Refusal};

/// Approximate maximum of a JSON answer, as the sum of its facts: the answer is built in memory before it is sent.
pub const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// Number of times that a read starts again because its facts were trimmed meanwhile.
const TRIMMED_MAX: u32 = 3;

/// A reader of one session.
#[derive(Debug)]
pub struct Reader {
    guest: Guest,
    session: SessionId,
    /// Number of subscriptions so far; the request id, so that an answer is not taken for that of an earlier one.
    asked: u32,
}

/// The start of a read, with the session's state.
#[derive(Debug)]
pub struct Span {
    /// Facts after this position follow: the requested position, or the floor if that is later.
    pub after: Seq,
    /// Set if requested facts are trimmed: those up to this position.
    pub floor: Option<Seq>,
    /// True if the log lacks the fact that the client has seen; no facts follow.
    pub regressed: bool,
    /// State of the session; all facts up to its position can be read.
    pub snapshot: Box<SnapshotNote>,
}

/// Limits the time of a request that is answered once everything is read.
pub async fn in_time<T>(work: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    tokio::time::timeout(ANSWER_WAIT, work).await.unwrap_or_else(|_| Err(Unanswered::Late.into()))
}

// === impl Span ===

impl Span {
    /// Returns the note that a stream begins with if not all requested facts are available.
    pub fn reset(&self) -> Option<Note> {
        let reset = match self.floor {
            _ if self.regressed => Some(Reset::Regressed),
            Some(floor) => Some(Reset::Trimmed { floor }),
            None => None,
        };
        let snapshot = self.snapshot.clone();
        reset.map(|reset| Note::Subscribed { request_id: None, snapshot, reset: Some(reset) })
    }
}

// === impl Reader ===

impl Reader {
    /// Creates a reader of a session with the rights of this link.
    pub fn new(guest: Guest, session: SessionId) -> Self {
        Self { guest, session, asked: 0 }
    }

    /// Takes a slot among the requests that scan sessions or their logs; see [`Guest::begin_reading`].
    pub fn begin_reading(&self) -> Result<Place, Unanswered> {
        Ok(self.guest.begin_reading()?)
    }

    /// Returns the link, which stays subscribed to the session from the start of the last read.
    pub fn into_guest(self) -> Guest {
        self.guest
    }

    /// Returns the present state of the session.
    pub async fn look(&mut self) -> Result<Box<SnapshotNote>, Unanswered> {
        let (request_id, session) = (None, self.session.clone());
        self.guest.say(Command::Look { request_id, session }).await?;
        let opened = |note| if let Note::Opened { snapshot, .. } = note { Some(snapshot) } else { None };
        self.guest.answer(opened).await
    }

    /// Returns the position before a run's first fact, and that of its end if it has ended.
    pub async fn find(&mut self, run_id: &RunId) -> Result<(Cursor, Option<Seq>), Unanswered> {
        self.guest.say(Command::Find { run_id: run_id.clone() }).await?;
        let found =
            |note| if let Note::Found { after, ended, .. } = note { Some((after, ended)) } else { None };
        self.guest.answer(found).await
    }

    /// Starts to read after a position, or from the first fact that is kept.
    pub async fn begin(&mut self, after: Seq, epoch: Option<Epoch>) -> Result<Span, Unanswered> {
        let (mut after, mut epoch, mut floor) = (after, epoch, None);
        for _ in 0..TRIMMED_MAX {
            let (snapshot, reset) = self.subscribe(after, epoch).await?;
            match reset {
                Some(Reset::Trimmed { floor: first }) => {
                    (after, epoch, floor) = (first, None, Some(first));
                }
                Some(Reset::Regressed) => {
                    return Ok(Span { after: snapshot.seq, floor, regressed: true, snapshot });
                }
                None => return Ok(Span { after, floor, regressed: false, snapshot }),
            }
        }
        Err(changed())
    }

    async fn subscribe(
        &mut self,
        after: Seq,
        after_epoch: Option<Epoch>,
    ) -> Result<(Box<SnapshotNote>, Option<Reset>), Unanswered> {
        self.asked += 1;
        let request = RequestId::parse(&self.asked.to_string()).ok();
        let all = Pattern::parse(">").unwrap_or_else(|_| unreachable!("a pattern"));
        let (session, runs, types) = (self.session.clone(), Vec::new(), vec![all]);
        let (request_id, after_seq) = (request.clone(), Some(after));
        let ask = Subscribe { request_id, session, after_seq, after_epoch, runs, types };
        self.guest.say(Command::Subscribe(ask)).await?;
        let subscribed = |note| {
            let Note::Subscribed { request_id, snapshot, reset } = note else { return None };
            (request_id == request).then_some((snapshot, reset))
        };
        self.guest.answer(subscribed).await
    }

    /// Returns the next fact. At the end of the log, waits for a new one.
    pub async fn next(&mut self) -> Result<(Cursor, Arc<Entry>), Unanswered> {
        loop {
            #[expect(clippy::wildcard_enum_match_arm, reason = "text comes in the facts too")]
            match self.guest.hear().await? {
                Note::Fact { seq, epoch, entry, .. } => return Ok((Cursor { seq, epoch }, entry)),
                Note::Refused { refusal, .. } => return Err(Unanswered::Refused(refusal)),
                Note::Subscribed { reset: Some(_), .. } => return Err(changed()),
                _ => {}
            }
        }
    }
}

/// Returns the error for a history that was trimmed or lost during the read.
fn changed() -> Unanswered {
    let why = "the session's history changed while it was read; retry";
    Unanswered::Refused(Refusal::new(Code::StoreUnavailable, why))
}
