//! Every accepted connection, by name: what the switchboard shows goes to a mailbox, what a link
//! asks goes to the [`Board`].
use dashmap::DashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use turnway_bindings::channel::command::Command;
use turnway_bindings::channel::note::Note;
use turnway_bindings::switchboard::{Input, refusal_of};
use turnway_core::id::{LinkId, Principal, SessionId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::Refusal;
use turnway_core::share::{Account, Ledger, Shares};

/// A mailbox holds no more than this. The switchboard stops long before, by the link's credit; this
/// net catches what it would do wrong.
const MAILBOX_BYTES_MAX: usize = 4 * limits::LINK_UNWRITTEN_BYTES_MAX;

/// The open links of this process.
#[derive(Debug)]
pub struct Links {
    /// Of each pool, by the users that hold places.
    ledgers: [Mutex<Ledger>; Pool::ALL.len()],
    mailboxes: DashMap<LinkId, Arc<Mailbox>>,
    last: AtomicU64,
}

/// A link's place in [`Links`]: it ends with the link's task.
#[derive(Debug)]
pub struct Seat {
    id: LinkId,
    mailbox: Arc<Mailbox>,
    links: Arc<Links>,
    /// Where it is counted, once it is admitted.
    place: OnceLock<Place>,
}

/// A user's place in a pool; given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    links: Arc<Links>,
    pool: Pool,
    account: Account,
}

/// Places of a node that tenants and users share, each kind for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Links by connections that are files.
    Tcp,
    /// Links by QUIC, whose connections share a file.
    Quic,
    /// Requests over HTTP that look through sessions or their logs.
    Reads,
}

/// What a link finds in its mailbox.
#[derive(Debug)]
pub enum Mail {
    /// Notes, in order.
    Notes(VecDeque<Note>),
    /// The link has to go.
    Leave(Fate),
}

/// Why the process closes a link by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its mailbox is full.
    Slow,
    /// Its credential was taken back, or is over.
    Revoked,
    /// The process ends.
    Leaving,
}

#[derive(Debug, Default)]
struct Mailbox {
    post: Mutex<Post>,
    bell: Notify,
}

/// An empty queue owns no memory, and most links are idle most of the time.
#[derive(Debug, Default)]
struct Post {
    notes: VecDeque<Note>,
    weight: usize,
    fate: Option<Fate>,
    /// The name of the credential it came with.
    mark: Option<Arc<str>>,
}

// === impl Links ===

impl Links {
    /// Creates room for so many connections, by TCP and by QUIC, which tenants and users share.
    pub fn new(shares: Option<Shares>, by_tcp: usize, by_quic: usize) -> Self {
        let ledger = |capacity: usize| Mutex::new(Ledger::new(capacity as u64, shares));
        Self {
            ledgers: [by_tcp, by_quic, limits::READINGS_MAX].map(ledger),
            mailboxes: DashMap::new(),
            last: AtomicU64::new(0),
        }
    }

    /// Returns how many places of a pool are held, how many there are, and how often one was refused.
    pub fn held(&self, pool: Pool) -> (u64, u64, u64) {
        let ledger = self.ledger(pool);
        (ledger.held(), ledger.capacity(), ledger.refused())
    }

    /// Takes a place for a user, unless that exceeds the pool or the user's share of it.
    pub fn take(self: &Arc<Self>, pool: Pool, principal: &Principal) -> Result<Place, Refusal> {
        let account = Account::from(principal);
        let is_uncounted = pool == Pool::Reads && planted(Planted::ReadsUncounted);
        let taken = if is_uncounted { Ok(()) } else { self.ledger(pool).take(&account, 1) };
        taken.map_err(|over| refusal_of(over, pool.what()))?;
        Ok(Place { links: Arc::clone(self), pool, account })
    }

    /// Nothing in here can panic half-way.
    fn ledger(&self, pool: Pool) -> MutexGuard<'_, Ledger> {
        self.ledgers[pool as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more link, under a name that was never used.
    pub fn open(self: &Arc<Self>) -> Seat {
        let id = LinkId(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        let mailbox = Arc::new(Mailbox::default());
        self.mailboxes.insert(id, Arc::clone(&mailbox));
        Seat { id, mailbox, links: Arc::clone(self), place: OnceLock::new() }
    }

    /// Shows a link something. Never waits; for a link that is gone it does nothing.
    pub fn send(&self, link: LinkId, note: Note) {
        if let Some(mailbox) = self.mailboxes.get(&link) {
            mailbox.put(note);
        }
    }

    /// Has every link close, once it has shown what is in its mailbox.
    pub fn close_all(&self) {
        for mailbox in &self.mailboxes {
            mailbox.doom(Fate::Leaving);
        }
    }

    /// Has every link close at once whose credential is one of these, with nothing more shown to it; how many
    /// there were.
    pub fn revoke(&self, is_one: impl Fn(&str) -> bool) -> usize {
        let gone = |mailbox: &Arc<Mailbox>| mailbox.lock().mark.as_deref().is_some_and(&is_one);
        // Waking them up takes their own locks, and nothing of the map's.
        let gone: Vec<_> =
            self.mailboxes.iter().filter(|entry| gone(entry)).map(|it| Arc::clone(&it)).collect();
        gone.iter().filter(|mailbox| mailbox.strike(Fate::Revoked)).count()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.mailboxes.len()
    }
}

// === impl Seat ===

impl Seat {
    /// The link's name.
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// Counts the link for whoever it is, unless that one has too many: then nothing is to be done for it.
    pub fn admit(&self, pool: Pool, principal: &Principal) -> Result<(), Refusal> {
        // The place of one that was counted before is given back at once.
        drop(self.place.set(self.links.take(pool, principal)?));
        Ok(())
    }

    /// It came with the credential of this name.
    pub fn mark(&self, name: &str) {
        self.mailbox.lock().mark = Some(name.into());
    }

    /// Waits for mail. Safe to drop and to ask again.
    pub async fn mail(&self) -> Mail {
        loop {
            // A bell that rings between the look and the wait is kept by `Notify`.
            if let Some(mail) = self.mailbox.take() {
                return mail;
            }
            self.mailbox.bell.notified().await;
        }
    }

    /// Whether the link has to go at once.
    pub fn is_doomed(&self) -> bool {
        self.mailbox.lock().fate.is_some_and(Fate::is_at_once)
    }

    /// Waits until the link has to go at once, whatever it is doing; mail waits where it is. Safe to drop and
    /// to ask again.
    pub async fn struck(&self) -> Fate {
        loop {
            if let Some(fate) = self.mailbox.lock().fate.filter(|fate| fate.is_at_once()) {
                // The bell may have been meant for the next look into the mailbox.
                self.mailbox.bell.notify_one();
                return fate;
            }
            self.mailbox.bell.notified().await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.links.mailboxes.remove(&self.id);
    }
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        let is_kept = match self.pool {
            Pool::Tcp | Pool::Quic => planted(Planted::ConnectionShareKept),
            Pool::Reads => planted(Planted::ReadsKept),
        };
        if !is_kept {
            self.links.ledger(self.pool).give_back(&self.account, 1);
        }
    }
}

// === impl Pool ===

impl Pool {
    /// All of them, in the order of their metrics.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Quic, Self::Reads];

    /// Names its places to whoever is refused one.
    fn what(self) -> &'static str {
        match self {
            Self::Tcp | Self::Quic => "connections",
            Self::Reads => "reads at a time",
        }
    }
}

// === impl Fate ===

impl Fate {
    /// Whether nothing more is to be shown before.
    fn is_at_once(self) -> bool {
        match self {
            Self::Slow | Self::Revoked => true,
            Self::Leaving => false,
        }
    }
}

// === impl Mailbox ===

impl Mailbox {
    fn put(&self, note: Note) {
        let mut post = self.lock();
        if post.fate.is_some_and(Fate::is_at_once) {
            return;
        }
        post.weight += note.weight();
        if post.weight > MAILBOX_BYTES_MAX {
            drop(post);
            self.strike(Fate::Slow);
            return;
        }
        post.notes.push_back(note);
        drop(post);
        self.bell.notify_one();
    }

    /// Ends the link at once; whether it had not been already.
    fn strike(&self, fate: Fate) -> bool {
        let mut post = self.lock();
        let is_news = !post.fate.is_some_and(Fate::is_at_once);
        if is_news {
            *post = Post { fate: Some(fate), mark: post.mark.take(), ..Post::default() };
        }
        drop(post);
        self.bell.notify_one();
        is_news
    }

    fn take(&self) -> Option<Mail> {
        let mut post = self.lock();
        if post.notes.is_empty() {
            return post.fate.map(Mail::Leave);
        }
        if !planted(Planted::MailboxWeightKept) {
            post.weight = 0;
        }
        Some(Mail::Notes(std::mem::take(&mut post.notes)))
    }

    fn doom(&self, fate: Fate) {
        self.lock().fate.get_or_insert(fate);
        self.bell.notify_one();
    }

    /// Nothing in here can panic half-way, so a poisoned mailbox is as good as any.
    fn lock(&self) -> std::sync::MutexGuard<'_, Post> {
        self.post.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The links' way to the switchboard. Waiting here is the back-pressure: a link that waits does not
/// read its socket.
#[derive(Clone, Debug)]
pub struct Board(mpsc::Sender<Input>);

/// Room for one input on a [`Board`].
#[derive(Debug)]
pub struct Room<'a>(mpsc::Permit<'a, Input>);

/// The other end of every [`Board`].
#[derive(Debug)]
pub struct Asked {
    inputs: mpsc::Receiver<Input>,
    /// Kept so that a node without links waits for one instead of finding the channel closed.
    _board: Board,
}

/// There is no switchboard any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// A board and its other end, with room for [`limits::DRIVER_QUEUE_MAX`] inputs.
pub fn board() -> (Board, Asked) {
    let (sender, inputs) = mpsc::channel(limits::DRIVER_QUEUE_MAX);
    let board = Board(sender);
    (board.clone(), Asked { inputs, _board: board })
}

// === impl Board ===

impl Board {
    /// A link was admitted. From now on [`Board::disconnect`] is owed.
    pub async fn connect(&self, link: LinkId, principal: Principal) -> Result<(), Gone> {
        self.put(Input::Connect { link, principal }).await
    }

    /// A link is gone.
    pub async fn disconnect(&self, link: LinkId) -> Result<(), Gone> {
        self.put(Input::Disconnect { link }).await
    }

    /// A link asks for something.
    pub async fn say(&self, link: LinkId, command: Command) -> Result<(), Gone> {
        self.put(Input::Say { link, command }).await
    }

    /// A link has written notes of this weight.
    pub async fn written(&self, link: LinkId, weight: usize) -> Result<(), Gone> {
        self.put(Input::Written { link, weight }).await
    }

    /// A link is gone, with a last word or without, and whoever noticed cannot wait: where the board has
    /// no room, a task does.
    pub fn part(&self, link: LinkId, last_word: Option<Command>) {
        let word = last_word.map(|command| Input::Say { link, command });
        let mut rest = word.into_iter().chain([Input::Disconnect { link }]);
        while let Some(input) = rest.next() {
            let Err(TrySendError::Full(input)) = self.0.try_send(input) else { continue };
            let (board, Ok(runtime)) = (self.clone(), Handle::try_current()) else { return };
            runtime.spawn(async move {
                for input in [input].into_iter().chain(rest) {
                    // Without a switchboard there is nobody left to tell.
                    _ = board.put(input).await;
                }
            });
            return;
        }
    }

    /// Waits for room for one input. What waits is small, whatever the size of what is to be said: each
    /// link's every step has room for it.
    pub async fn room(&self) -> Result<Room<'_>, Gone> {
        self.0.reserve().await.map(Room).map_err(|_| Gone)
    }

    async fn put(&self, input: Input) -> Result<(), Gone> {
        self.0.send(input).await.map_err(|_| Gone)
    }
}

// === impl Room ===

impl Room<'_> {
    /// See [`Board::say`].
    pub fn say(self, link: LinkId, command: Command) {
        self.0.send(Input::Say { link, command });
    }

    /// Of this session a link should be shown nothing for a while, or again.
    pub fn hold(self, link: LinkId, session: SessionId, is_held: bool) {
        self.0.send(Input::Hold { link, session, is_held });
    }

    /// See [`Board::written`].
    pub fn written(self, link: LinkId, weight: usize) {
        self.0.send(Input::Written { link, weight });
    }
}

// === impl Asked ===

impl Asked {
    /// Waits for up to `most` inputs. Safe to drop and to ask again.
    pub async fn take(&mut self, into: &mut Vec<Input>, most: usize) -> usize {
        self.inputs.recv_many(into, most).await
    }

    /// One that is already there.
    pub fn try_take(&mut self) -> Option<Input> {
        self.inputs.try_recv().ok()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.inputs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use turnway_core::id::{TenantId, UserId};
    use turnway_core::protocol::refusal::Code;

    fn note() -> Note {
        Note::GoAway { reason: "drain", within: Duration::ZERO, jitter: Duration::ZERO }
    }

    /// Covers: S-16.
    #[test]
    fn links_over_a_users_share_are_refused_until_one_leaves() {
        let links = Arc::new(Links::new(Some(Shares::default()), 16, 16));
        let principal = |tenant: &str, user: &str| Principal {
            tenant: TenantId::parse(tenant).expect("a name"),
            user: UserId::parse(user).expect("a name"),
            operator: false,
            writes: true,
        };
        let (eve, ann) = (principal("evil", "eve"), principal("acme", "ann"));
        let enter = |who: &Principal| {
            let seat = links.open();
            seat.admit(Pool::Tcp, who).map(|()| seat)
        };
        let mut inside: Vec<Seat> = std::iter::from_fn(|| enter(&eve).ok()).collect();
        assert_eq!(inside.len(), 9, "nine sixteenths");
        assert_eq!(enter(&eve).expect_err("full").code, Code::OverShare);
        let other = enter(&ann).expect("room for others");
        assert!(links.open().admit(Pool::Quic, &eve).is_ok(), "connections by QUIC are counted apart");
        inside.pop();
        inside.push(enter(&eve).expect("room again"));
        drop((inside, other));
        assert_eq!(links.held(Pool::Tcp).0, 0, "all that was held is given back");
    }

    /// Covers: S-16.
    #[test]
    fn reads_over_a_users_share_are_refused_until_one_is_over() {
        let links = Arc::new(Links::new(Some(Shares::default()), 16, 16));
        let principal = |tenant: &str| Principal {
            tenant: TenantId::parse(tenant).expect("a name"),
            user: UserId::parse("eve").expect("a name"),
            operator: false,
            writes: true,
        };
        let (eve, ann) = (principal("evil"), principal("acme"));
        let all = 0..=limits::READINGS_MAX;
        let mut readings: Vec<Place> = all.map_while(|_| links.take(Pool::Reads, &eve).ok()).collect();
        assert_eq!(readings.len(), limits::READINGS_MAX * 9 / 16, "nine sixteenths");
        let refusal = links.take(Pool::Reads, &eve).expect_err("full");
        assert_eq!(refusal.code, Code::OverShare);
        assert!(refusal.retry_after_ms.is_some(), "it says when to come again");
        let other = links.take(Pool::Reads, &ann).expect("room for others");
        readings.pop();
        readings.push(links.take(Pool::Reads, &eve).expect("room again"));
        drop((readings, other));
        assert_eq!(
            links.held(Pool::Reads),
            (0, limits::READINGS_MAX as u64, 2),
            "all that was held is given back"
        );
    }

    #[tokio::test]
    async fn mail_keeps_its_order_and_the_end_comes_last() {
        let links = Arc::new(Links::new(None, 100, 100));
        let seat = links.open();
        links.send(seat.id(), note());
        links.send(LinkId(99), note());
        links.close_all();
        assert!(matches!(seat.mail().await, Mail::Notes(notes) if notes.len() == 1));
        assert!(matches!(seat.mail().await, Mail::Leave(Fate::Leaving)));
        drop(seat);
        assert_eq!(links.count(), 0);
    }

    /// Covers: G8.
    #[tokio::test]
    async fn mail_that_was_read_leaves_room_for_as_much() {
        let links = Arc::new(Links::new(None, 100, 100));
        let seat = links.open();
        for n in 0..=2 * MAILBOX_BYTES_MAX / note().weight() {
            links.send(seat.id(), note());
            assert!(matches!(seat.mail().await, Mail::Notes(_)), "{n}");
        }
    }

    /// Covers: G8.
    #[tokio::test]
    async fn a_full_mailbox_is_emptied_and_closed() {
        let links = Arc::new(Links::new(None, 100, 100));
        let seat = links.open();
        for _ in 0..=MAILBOX_BYTES_MAX / note().weight() {
            links.send(seat.id(), note());
        }
        links.send(seat.id(), note());
        assert!(matches!(seat.mail().await, Mail::Leave(Fate::Slow)));
        assert_eq!(seat.struck().await, Fate::Slow);
    }

    /// Covers: S-01.
    #[tokio::test]
    async fn a_link_whose_credential_is_taken_back_is_shown_nothing_more() {
        let links = Arc::new(Links::new(None, 100, 100));
        let (ann, bob, nobody) = (links.open(), links.open(), links.open());
        ann.mark("a");
        bob.mark("b");
        for seat in [&ann, &bob, &nobody] {
            links.send(seat.id(), note());
        }
        assert_eq!(links.revoke(|name| name == "a"), 1);
        links.send(ann.id(), note());
        assert_eq!(ann.struck().await, Fate::Revoked);
        assert!(matches!(ann.mail().await, Mail::Leave(Fate::Revoked)));
        assert_eq!(links.revoke(|name| name == "a"), 0);
        assert!(matches!(bob.mail().await, Mail::Notes(_)) && matches!(nobody.mail().await, Mail::Notes(_)));
    }
}
