//! Opens a link for a single HTTP request, and drops it with the answer. Notes for the link wait at the switchboard
//! under the same credit as any link's, and credit returns only as the client reads: a client that does not read costs
//! no more than one on a WebSocket.
use crate::door::token::LEEWAY;
use crate::door::{Admitted, Proof};
use crate::http::Desk;
use crate::links::{Fate, Gone, Mail, Place, Pool, Seat};
use crate::rates::Pass;
use crate::socket::Watch;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use turnway_bindings::channel::command::{Command, Invoke};
use turnway_bindings::channel::note::{Accepted, Note};
use turnway_core::id::Principal;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::Refusal;
use turnway_core::time::Millis;

/// Longest wait of a request for its first answer. The store answers in milliseconds or not at all, and repeating the
/// request is safe: an accepted message stays accepted.
pub const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// A link that lasts as long as one HTTP request.
#[derive(Debug)]
pub struct Guest {
    desk: Arc<Desk>,
    principal: Principal,
    seat: Seat,
    /// Rate limits of the credential.
    pass: Pass,
    /// End of a token, leeway included: a request cannot show another token. `None` for a key.
    ends: Option<Millis>,
    /// Notes that have arrived and were not returned yet.
    post: VecDeque<Note>,
    /// Weight of the notes that were returned and may not have been sent yet.
    handed_out: usize,
    /// Weight of the notes that were sent and not reported yet.
    unreported: usize,
    /// The command to send if the client disconnects before its answer is complete.
    last_word: Option<Command>,
    /// A watch on the client's connection.
    watch: Option<Watch>,
}

/// The reason why the server ended the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parted {
    /// The client did not read the notes in time.
    Slow,
    /// The credential was revoked or has expired.
    Revoked,
    /// The process shuts down.
    Leaving,
    /// The user has too many links or requests.
    Crowded(Refusal),
}

/// The reason why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The request was refused.
    Refused(Refusal),
    /// The link has ended.
    Parted(Parted),
    /// Nothing arrived within [`ANSWER_WAIT`]; the command may or may not have been performed.
    Late,
}

// === impl Guest ===

impl Guest {
    /// Opens a link for an authenticated request.
    pub async fn enter(desk: Arc<Desk>, admitted: Admitted) -> Result<Self, Parted> {
        let (seat, pass) = (desk.links.open(), desk.door.pass(&admitted, desk.clock.mono()));
        let Admitted { principal, proof, service: _ } = admitted;
        if let Proof::Key(key) = &proof {
            seat.mark(key.as_str());
        }
        if !planted(Planted::HttpShareUncounted) {
            seat.admit(Pool::Tcp, &principal).map_err(Parted::Crowded)?;
        }
        let now = desk.clock.now();
        if !desk.door.still_admits(&proof, now.store) {
            return Err(Parted::Revoked);
        }
        let ends = proof.ends().map(|end| end.after(LEEWAY));
        desk.board.connect(seat.id(), principal.clone()).await?;
        Ok(Self {
            desk,
            principal,
            seat,
            pass,
            ends,
            post: VecDeque::new(),
            handed_out: 0,
            unreported: 0,
            last_word: None,
            watch: None,
        })
    }

    /// Returns the dependencies of a request.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Returns a shared handle of the dependencies, to open another link.
    pub fn desk_handle(&self) -> Arc<Desk> {
        Arc::clone(&self.desk)
    }

    /// Sets the watch that detects a disconnected client.
    pub fn set_watch(&mut self, watch: Option<Watch>) {
        self.watch = watch;
    }

    /// Returns the watch on the client, if there is one.
    pub fn watch(&self) -> Option<Watch> {
        self.watch.clone()
    }

    /// Sets the command to send if the client disconnects before its answer is complete.
    pub fn on_hang_up(&mut self, command: Command) {
        self.last_word = Some(command);
    }

    /// Returns true if a command is sent when the client disconnects.
    pub fn ends_with_its_client(&self) -> bool {
        self.last_word.is_some()
    }

    /// Marks the answer as complete: a disconnect sends no command any more.
    pub fn settle(&mut self) {
        self.last_word = None;
    }

    /// Takes a slot among the requests that scan sessions or their logs; dropping the slot releases it.
    pub fn begin_reading(&self) -> Result<Place, Parted> {
        self.desk.links.take(Pool::Reads, &self.principal).map_err(Parted::Crowded)
    }

    /// Returns the authenticated principal.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Sends a command to the switchboard. A command over a rate limit is answered with a refusal instead.
    pub async fn say(&self, command: Command) -> Result<(), Parted> {
        if let Some(refused) = self.pass.refusal(&command, self.desk.clock.mono()) {
            self.desk.links.send(self.seat.id(), refused);
            return Ok(());
        }
        Ok(self.desk.board.say(self.seat.id(), command).await?)
    }

    /// Waits for the next note. The call confirms that all earlier notes were passed on, and only then does the
    /// switchboard send more. Cancel-safe.
    pub async fn hear(&mut self) -> Result<Note, Parted> {
        self.unreported += std::mem::take(&mut self.handed_out);
        if self.unreported >= limits::LINK_REPORT_BYTES && !planted(Planted::HttpCreditKept) {
            self.desk.board.written(self.seat.id(), self.unreported).await?;
            self.unreported = 0;
        }
        loop {
            // A revoked or expired credential also ends the delivery of notes that have already arrived.
            let left = self.left();
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Parted::Revoked);
            }
            if let Some(note) = self.at_hand() {
                return Ok(note);
            }
            let mail = match left {
                None => Ok(self.seat.mail().await),
                // Waits in steps, because the clock may step meanwhile.
                Some(left) => tokio::time::timeout(left.min(limits::HEARTBEAT), self.seat.mail()).await,
            };
            match mail {
                Ok(Mail::Notes(notes)) => self.post = notes,
                Ok(Mail::Leave(fate)) => return Err(fate.into()),
                // The clock is checked again above.
                Err(_) => {}
            }
        }
    }

    /// Returns for how long the credential is still good, by the present time.
    fn left(&self) -> Option<Duration> {
        let left = |ends: Millis| ends.0.saturating_sub(self.desk.clock.now().store.0);
        let ends = self.ends.filter(|_| !planted(Planted::StreamOutlivesToken));
        ends.map(|ends| Duration::from_millis(left(ends)))
    }

    /// Returns the next note if it has already arrived, to be sent together with the one before.
    pub fn at_hand(&mut self) -> Option<Note> {
        // The mailbox holds nothing but the end of the link.
        if self.seat.is_doomed() {
            return None;
        }
        let note = self.post.pop_front()?;
        self.handed_out += note.weight();
        Some(note)
    }

    /// Waits up to [`ANSWER_WAIT`] for the first note that `fits`, or for a refusal of the command. Other notes are
    /// skipped.
    pub async fn answer<T>(&mut self, mut fits: impl FnMut(Note) -> Option<T>) -> Result<T, Unanswered> {
        let answered = async {
            loop {
                match self.hear().await? {
                    Note::Refused { refusal, .. } => return Err(Unanswered::Refused(refusal)),
                    note @ (Note::Fact { .. }
                    | Note::Delta { .. }
                    | Note::Accepted(_)
                    | Note::Subscribed { .. }
                    | Note::Opened { .. }
                    | Note::Closed { .. }
                    | Note::Members(_)
                    | Note::Handover(_)
                    | Note::CancelTaken { .. }
                    | Note::Printed { .. }
                    | Note::Listed { .. }
                    | Note::Deleted { .. }
                    | Note::Found { .. }
                    | Note::GoAway { .. }) => {
                        if let Some(found) = fits(note) {
                            return Ok(found);
                        }
                    }
                }
            }
        };
        tokio::time::timeout(ANSWER_WAIT, answered).await.unwrap_or(Err(Unanswered::Late))
    }

    /// Invokes an agent and waits until the input is accepted. The notes that follow are those of the turn, from
    /// directly before its first fact, and everything else that happens in the session.
    pub async fn invoke(&mut self, invoke: Invoke) -> Result<Accepted, Unanswered> {
        self.say(Command::Invoke(Box::new(invoke))).await?;
        self.answer(|note| if let Note::Accepted(accepted) = note { Some(*accepted) } else { None }).await
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let last_word = self.last_word.take().filter(|_| !planted(Planted::HangUpNotCancelled));
        self.desk.board.part(self.seat.id(), last_word);
    }
}

// === impl Parted ===

impl From<Gone> for Parted {
    fn from(Gone: Gone) -> Self {
        Self::Leaving
    }
}

impl From<Fate> for Parted {
    fn from(fate: Fate) -> Self {
        match fate {
            Fate::Slow => Self::Slow,
            Fate::Revoked => Self::Revoked,
            Fate::Leaving => Self::Leaving,
        }
    }
}

// === impl Unanswered ===

impl From<Parted> for Unanswered {
    fn from(parted: Parted) -> Self {
        Self::Parted(parted)
    }
}
