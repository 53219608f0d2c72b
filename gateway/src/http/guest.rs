//! A request as a link: it lasts as long as its answer, and asks the switchboard like any other.
//!
//! What it is shown waits at the switchboard by the same credit as every link's, and the credit comes
//! back only as the client takes what it is sent. So a client that does not read costs no more here
//! than one on a WebSocket. When the answer is dropped, for whatever reason, the link is gone.
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

/// How long a request waits for its first answer. The store answers in milliseconds or not at all, and
/// whoever waits longer does better to ask again: what was accepted stays accepted.
pub const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// A link that lasts as long as one request.
#[derive(Debug)]
pub struct Guest {
    desk: Arc<Desk>,
    principal: Principal,
    seat: Seat,
    /// How often it may ask.
    pass: Pass,
    /// The end of its token and what is granted after that: there is no way to show another.
    ends: Option<Millis>,
    /// Mail that is here and has not been handed out.
    post: VecDeque<Note>,
    /// Weight of what was handed out and may not have left yet.
    handed_out: usize,
    /// Weight of what has left and was not reported.
    unreported: usize,
    /// What is said last, if the client is gone before its answer is over.
    last_word: Option<Command>,
    /// A look at the client.
    watch: Option<Watch>,
}

/// The link is over, from our side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parted {
    /// What it was shown did not leave.
    Slow,
    /// Its credential was taken back, or is over.
    Revoked,
    /// The process ends.
    Leaving,
    /// Its user has too many.
    Crowded(Refusal),
}

/// Why there is no answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// It was refused.
    Refused(Refusal),
    /// The link is over.
    Parted(Parted),
    /// Nothing came for [`ANSWER_WAIT`]: it may or may not have been done.
    Late,
}

// === impl Guest ===

impl Guest {
    /// Begins a link.
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

    /// Everything a request needs of its node.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// The same, for another guest.
    pub fn desk_handle(&self) -> Arc<Desk> {
        Arc::clone(&self.desk)
    }

    /// Looks at the client by this while it is answered.
    pub fn set_watch(&mut self, watch: Option<Watch>) {
        self.watch = watch;
    }

    /// Returns a look at the client, if there is one.
    pub fn watch(&self) -> Option<Watch> {
        self.watch.clone()
    }

    /// What to say if the client is gone before its answer is over.
    pub fn on_hang_up(&mut self, command: Command) {
        self.last_word = Some(command);
    }

    /// Tells whether something is done once the client is gone.
    pub fn ends_with_its_client(&self) -> bool {
        self.last_word.is_some()
    }

    /// The answer is over: nothing is left to say.
    pub fn settle(&mut self) {
        self.last_word = None;
    }

    /// Takes a place among the requests that look through sessions or their logs; it is given back when this is dropped.
    pub fn begin_reading(&self) -> Result<Place, Parted> {
        self.desk.links.take(Pool::Reads, &self.principal).map_err(Parted::Crowded)
    }

    /// Who it is.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Asks for something.
    pub async fn say(&self, command: Command) -> Result<(), Parted> {
        if let Some(refused) = self.pass.refusal(&command, self.desk.clock.mono()) {
            self.desk.links.send(self.seat.id(), refused);
            return Ok(());
        }
        Ok(self.desk.board.say(self.seat.id(), command).await?)
    }

    /// Waits for the next note. Whoever asks for it has passed on all that came before: only then does
    /// the switchboard show more. Safe to drop and to ask again.
    pub async fn hear(&mut self) -> Result<Note, Parted> {
        self.unreported += std::mem::take(&mut self.handed_out);
        if self.unreported >= limits::LINK_REPORT_BYTES && !planted(Planted::HttpCreditKept) {
            self.desk.board.written(self.seat.id(), self.unreported).await?;
            self.unreported = 0;
        }
        loop {
            // Also what is here already is not shown to whom nothing is to be shown any more.
            let left = self.left();
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Parted::Revoked);
            }
            if let Some(note) = self.at_hand() {
                return Ok(note);
            }
            let mail = match left {
                None => Ok(self.seat.mail().await),
                // The clock may step meanwhile.
                Some(left) => tokio::time::timeout(left.min(limits::HEARTBEAT), self.seat.mail()).await,
            };
            match mail {
                Ok(Mail::Notes(notes)) => self.post = notes,
                Ok(Mail::Leave(fate)) => return Err(fate.into()),
                // The clock decides, above.
                Err(_) => {}
            }
        }
    }

    /// Returns how long its credential lasts, by the time as it is now.
    fn left(&self) -> Option<Duration> {
        let left = |ends: Millis| ends.0.saturating_sub(self.desk.clock.now().store.0);
        let ends = self.ends.filter(|_| !planted(Planted::StreamOutlivesToken));
        ends.map(|ends| Duration::from_millis(left(ends)))
    }

    /// The next note if it is already here, to be passed on together with the one before.
    pub fn at_hand(&mut self) -> Option<Note> {
        // Its mailbox has nothing but that for it.
        if self.seat.is_doomed() {
            return None;
        }
        let note = self.post.pop_front()?;
        self.handed_out += note.weight();
        Some(note)
    }

    /// Waits for the first note that `fits`, or for the refusal of what was asked; for so long as
    /// [`ANSWER_WAIT`]. Other notes are passed over.
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

    /// Says something and waits until it is accepted. What follows is the turn, from directly before
    /// its first fact, and whatever else happens in the session.
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
