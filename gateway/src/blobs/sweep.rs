//! Removes stored bytes that no session names: of sessions that were deleted, and of uploads that a lost node left. Asks the
//! store for each session that has bytes, one after the other.
use super::{BodyError, BodyStore};
use crate::links::{CommandSender, LinkRegistry, MailboxHandle, MailboxItem};
use crate::supervise;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use turnway_core::id::{Principal, SessionKey, UserId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::Code;
use turnway_core::store::blob::{BlobAction, BlobTable};
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::notification::{CommandReply, Notification};

/// Time for an answer of the store; a session without one is asked about again at the next sweep.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks for sweeps of single sessions, before the next sweep of all.
#[derive(Clone, Debug)]
pub struct SweepRequests(mpsc::Sender<SessionKey>);

/// The sweeper's parts of a node.
pub struct BodySweeper {
    pub bodies: BodyStore,
    pub links: Arc<LinkRegistry>,
    pub commands: CommandSender,
    /// Pause between two sweeps of all sessions, without the random addition.
    pub interval: Duration,
}

impl SweepRequests {
    /// Has a session swept soon. If too many wait already, the next sweep of all sessions does it.
    pub fn request(&self, session: SessionKey) {
        if !planted(Planted::BlobBytesLeft) {
            let _ = self.0.try_send(session);
        }
    }
}

impl BodySweeper {
    /// Starts to sweep: all sessions after each interval, and single ones on request.
    pub fn start(self, runtime: &Handle) -> SweepRequests {
        let (sender, requests) = mpsc::channel(limits::BLOB_SWEEPS_MAX);
        supervise::spawn_required(runtime, "sweep of blobs", self.run(requests));
        SweepRequests(sender)
    }

    async fn run(self, mut requests: mpsc::Receiver<SessionKey>) {
        loop {
            let next = sleep(self.interval + self.interval.mul_f64(limits::BLOB_SWEEP_JITTER * random_share()));
            tokio::pin!(next);
            loop {
                tokio::select! {
                    () = &mut next => break,
                    Some(session) = requests.recv() => self.sweep_or_log(&session).await,
                }
            }
            match self.bodies.sessions().await {
                Ok(sessions) => {
                    for session in sessions {
                        self.sweep_or_log(&session).await;
                    }
                }
                Err(error) => tracing::warn!(%error, "the bytes of blobs could not be listed"),
            }
        }
    }

    async fn sweep_or_log(&self, session: &SessionKey) {
        if let Err(error) = self.sweep(session).await {
            tracing::warn!(%error, session = session.session.as_str(), "the bytes of a session's blobs could not be swept");
        }
    }

    /// Deletes the bytes that a session does not name. They are listed first: a name that is not in the table after that
    /// never will be, because an upload is in the table before its bytes are stored.
    async fn sweep(&self, session: &SessionKey) -> Result<(), BodyError> {
        let there = self.bodies.bodies(session).await?;
        if there.is_empty() {
            return Ok(());
        }
        let Some(table) = self.table(session).await else { return Ok(()) };
        let unnamed: Vec<_> = there.into_iter().filter(|body| !table.names(*body)).collect();
        self.bodies.delete(session, &unnamed).await;
        Ok(())
    }

    /// Returns the table of a session without late uploads: an empty one if the session is deleted, none if it is unknown.
    async fn table(&self, session: &SessionKey) -> Option<BlobTable> {
        let mut mailbox = self.links.open();
        let user = UserId::parse("turnway:sweep").ok()?;
        let principal = Principal { tenant: session.tenant.clone(), user, operator: true, writes: true };
        self.commands.connect(mailbox.id(), principal).await.ok()?;
        let command = LinkCommand::Blob { session: session.session.clone(), action: BlobAction::Tend };
        let table = match self.commands.send_command(mailbox.id(), command).await {
            Ok(()) => timeout(ANSWER_TIMEOUT, answer(&mut mailbox)).await.ok().flatten(),
            Err(_) => None,
        };
        self.commands.disconnect_detached(mailbox.id(), None);
        table
    }
}

/// Returns a random number up to 1. Nodes that sweep at the same time do no harm, but ask the store about the same sessions.
fn random_share() -> f64 {
    let mut random = [0; 4];
    // Without randomness the nodes of a fleet sweep at times that differ by their starts.
    let _ = getrandom::fill(&mut random);
    f64::from(u32::from_be_bytes(random)) / f64::from(u32::MAX)
}

/// Waits for the answer about a table.
async fn answer(mailbox: &mut MailboxHandle) -> Option<BlobTable> {
    loop {
        let MailboxItem::Notes(notes) = mailbox.recv().await else { return None };
        for note in notes {
            match note {
                Notification::Reply(CommandReply::Blobs(reply)) => return Some(reply.table),
                Notification::Reply(CommandReply::Refused { refusal, .. }) => {
                    return (refusal.code == Code::NotFound).then(BlobTable::default);
                }
                Notification::Reply(_)
                | Notification::Fact { .. }
                | Notification::Chunk { .. }
                | Notification::ProcessOutput { .. }
                | Notification::Deliver(_)
                | Notification::Signal(_)
                | Notification::AdapterState(_)
                | Notification::LimitReached(_)
                | Notification::GoAway { .. } => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
