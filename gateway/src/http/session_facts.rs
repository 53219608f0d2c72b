//! Reads the facts of a session over a request's link: from a position on, in order, without gaps.
use crate::http::problem::HttpProblem;
use crate::http::request_link::{ANSWER_WAIT, RequestFailure, RequestLink};
use crate::links::PoolPermit;
use std::sync::Arc;
use turnway_core::id::{Cursor, Epoch, RequestId, RunId, Seq, SessionId};
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::pattern::Pattern;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_wire::channel::command::{LinkCommand, SubscribeCommand};
use turnway_wire::channel::notification::{CommandReply, Notification, ResetReason, SessionStateSnapshot};

/// Approximate maximum of a JSON answer, as the sum of its facts: the answer is built in memory before it is sent.
pub const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// Number of times that a read starts again because its facts were trimmed meanwhile.
const TRIMMED_MAX: u32 = 3;

/// A reader of one session.
#[derive(Debug)]
pub struct SessionFactReader {
    link: RequestLink,
    session: SessionId,
    /// Number of subscriptions so far; the request id, so that an answer is not taken for that of an earlier one.
    subscriptions: u32,
}

/// The start of a read, with the session's state.
#[derive(Debug)]
pub struct ReadStart {
    /// Facts after this position follow: the requested position, or the floor if that is later.
    pub after: Seq,
    /// Set if requested facts are trimmed: those up to this position.
    pub floor: Option<Seq>,
    /// True if the log lacks the fact that the client has seen; no facts follow.
    pub regressed: bool,
    /// State of the session; all facts up to its position can be read.
    pub snapshot: Box<SessionStateSnapshot>,
}

/// Limits the time of a request that is answered once everything is read.
pub async fn with_deadline<T>(work: impl Future<Output = Result<T, HttpProblem>>) -> Result<T, HttpProblem> {
    tokio::time::timeout(ANSWER_WAIT, work).await.unwrap_or_else(|_| Err(RequestFailure::TimedOut.into()))
}

// === impl ReadStart ===

impl ReadStart {
    /// Returns the note that a stream begins with if not all requested facts are available.
    pub fn reset(&self) -> Option<Notification> {
        let reset = match self.floor {
            _ if self.regressed => Some(ResetReason::Regressed),
            Some(floor) => Some(ResetReason::Trimmed { floor }),
            None => None,
        };
        let snapshot = self.snapshot.clone();
        reset.map(|reset| {
            Notification::Reply(CommandReply::Subscribed { request_id: None, snapshot, reset: Some(reset) })
        })
    }
}

// === impl SessionFactReader ===

impl SessionFactReader {
    /// Creates a reader of a session with the rights of this link.
    pub fn new(link: RequestLink, session: SessionId) -> Self {
        Self { link, session, subscriptions: 0 }
    }

    /// Takes a slot among the requests that scan sessions or their logs; see [`RequestLink::acquire_read_slot`].
    pub fn acquire_read_slot(&self) -> Result<PoolPermit, RequestFailure> {
        Ok(self.link.acquire_read_slot()?)
    }

    /// Returns the link, which stays subscribed to the session from the start of the last read.
    pub fn into_link(self) -> RequestLink {
        self.link
    }

    /// Returns the present state of the session.
    pub async fn snapshot(&mut self) -> Result<Box<SessionStateSnapshot>, RequestFailure> {
        let request_id = None;
        let session = self.session.clone();
        self.link.send(LinkCommand::GetSnapshot { request_id, session }).await?;
        let opened = |note| {
            if let Notification::Reply(CommandReply::Opened { snapshot, .. }) = note { Some(snapshot) } else { None }
        };
        self.link.wait_for(opened).await
    }

    /// Returns the position before a run's first fact, and that of its end if it has ended.
    pub async fn find_run(&mut self, run_id: &RunId) -> Result<(Cursor, Option<Seq>), RequestFailure> {
        self.link.send(LinkCommand::FindRun { run_id: run_id.clone() }).await?;
        let found = |note| {
            if let Notification::Reply(CommandReply::RunLocation { after, ended, .. }) = note {
                Some((after, ended))
            } else {
                None
            }
        };
        self.link.wait_for(found).await
    }

    /// Starts to read after a position, or from the first fact that is kept.
    pub async fn start(&mut self, after: Seq, epoch: Option<Epoch>) -> Result<ReadStart, RequestFailure> {
        let mut after = after;
        let mut epoch = epoch;
        let mut floor = None;
        for _ in 0..TRIMMED_MAX {
            let (snapshot, reset) = self.subscribe(after, epoch).await?;
            match reset {
                Some(ResetReason::Trimmed { floor: first }) => {
                    (after, epoch, floor) = (first, None, Some(first));
                }
                Some(ResetReason::Regressed) => {
                    return Ok(ReadStart { after: snapshot.seq, floor, regressed: true, snapshot });
                }
                None => return Ok(ReadStart { after, floor, regressed: false, snapshot }),
            }
        }
        Err(history_changed())
    }

    async fn subscribe(
        &mut self,
        after: Seq,
        after_epoch: Option<Epoch>,
    ) -> Result<(Box<SessionStateSnapshot>, Option<ResetReason>), RequestFailure> {
        self.subscriptions += 1;
        let request = RequestId::parse(&self.subscriptions.to_string()).ok();
        let all = Pattern::parse(">").unwrap_or_else(|_| unreachable!("a pattern"));
        let session = self.session.clone();
        let runs = Vec::new();
        let types = vec![all];
        let request_id = request.clone();
        let after_seq = Some(after);
        let ask = SubscribeCommand { request_id, session, after_seq, after_epoch, runs, types };
        self.link.send(LinkCommand::Subscribe(ask)).await?;
        let subscribed = |note| {
            let Notification::Reply(CommandReply::Subscribed { request_id, snapshot, reset }) = note else {
                return None;
            };
            (request_id == request).then_some((snapshot, reset))
        };
        self.link.wait_for(subscribed).await
    }

    /// Returns the next fact. At the end of the log, waits for a new one.
    pub async fn next(&mut self) -> Result<(Cursor, Arc<Entry>), RequestFailure> {
        loop {
            #[expect(clippy::wildcard_enum_match_arm, reason = "text comes in the facts too")]
            match self.link.next_note().await? {
                Notification::Fact { seq, epoch, entry, .. } => return Ok((Cursor { seq, epoch }, entry)),
                Notification::Reply(CommandReply::Refused { refusal, .. }) => {
                    return Err(RequestFailure::Refused(refusal));
                }
                Notification::Reply(CommandReply::Subscribed { reset: Some(_), .. }) => return Err(history_changed()),
                _ => {}
            }
        }
    }
}

/// Returns the error for a history that was trimmed or lost during the read.
fn history_changed() -> RequestFailure {
    let why = "the session's history changed while it was read; retry";
    RequestFailure::Refused(Refusal::new(Code::StoreUnavailable, why))
}
