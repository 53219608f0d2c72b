//! The registry of accepted connections (links): notes of the switchboard go to a link's mailbox, and commands of a
//! link go to the switchboard through the [`CommandSender`]. Enforces the shares of users in connections and reads.
//! Used by `listen`, `http` and the driver.
use dashmap::DashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use turnway_core::id::{LinkId, Principal, SessionId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::Refusal;
use turnway_core::share::{Account, Ledger, Shares};
use turnway_node::switchboard::{Input, over_share_refusal};
use turnway_wire::channel::adapter::AdapterHello;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::notification::Notification;

/// Maximum bytes in a mailbox. The switchboard stops much earlier, by the link's credit; this limit only catches a bug
/// in it.
const MAILBOX_BYTES_MAX: usize = 4 * limits::LINK_UNWRITTEN_BYTES_MAX;

/// The open links of this process.
#[derive(Debug)]
pub struct LinkRegistry {
    /// The shares of the users that hold permits, by pool.
    ledgers: [Mutex<Ledger>; Pool::ALL.len()],
    mailboxes: DashMap<LinkId, Arc<Mailbox>>,
    last_id: AtomicU64,
}

/// The registration of a link in [`LinkRegistry`], held by the link's task. Dropping it closes the mailbox.
#[derive(Debug)]
pub struct MailboxHandle {
    id: LinkId,
    mailbox: Arc<Mailbox>,
    links: Arc<LinkRegistry>,
    /// The link's connection permit; set once the link is admitted.
    permit: OnceLock<PoolPermit>,
}

/// A part of a pool that a user holds, returned when dropped.
#[derive(Debug)]
pub struct PoolPermit {
    links: Arc<LinkRegistry>,
    pool: Pool,
    account: Account,
    amount: u64,
}

/// A resource of the node that tenants and users share; each pool is counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Links over TCP, whose connections are files.
    Tcp,
    /// Links over QUIC, whose connections share one file.
    Quic,
    /// HTTP requests that read through sessions or their logs.
    Reads,
    /// HTTP requests that transfer a blob.
    Blobs,
    /// Bytes of long calls of OpenAI clients that are in memory.
    Calls,
    /// Open calls of models, each of which holds a connection to an upstream.
    Models,
}

/// An item that a link takes from its mailbox.
#[derive(Debug)]
pub enum MailboxItem {
    /// Notes, in order.
    Notes(VecDeque<Notification>),
    /// The link must close.
    Close(CloseReason),
}

/// A reason why the process closes a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The mailbox is full.
    SlowConsumer,
    /// The credential was revoked, or has expired.
    Revoked,
    /// The process shuts down.
    Shutdown,
}

#[derive(Debug, Default)]
struct Mailbox {
    content: Mutex<MailboxContent>,
    wake: Notify,
}

/// The content of a mailbox. An empty queue allocates no memory, and most links are idle most of the time.
#[derive(Debug, Default)]
struct MailboxContent {
    notes: VecDeque<Notification>,
    weight: usize,
    close_reason: Option<CloseReason>,
    /// Id of the credential with which the link was opened.
    credential: Option<Arc<str>>,
}

// === impl LinkRegistry ===

impl LinkRegistry {
    /// Creates the registry, for these numbers of connections over TCP and QUIC, and of open calls of models, which tenants
    /// and users share.
    pub fn new(shares: Option<Shares>, by_tcp: usize, by_quic: usize, model_calls: usize) -> Self {
        let ledger = |capacity: usize| Mutex::new(Ledger::new(capacity as u64, shares));
        Self {
            ledgers: [
                by_tcp,
                by_quic,
                limits::SCAN_REQUESTS_MAX,
                limits::BLOB_TRANSFERS_MAX,
                limits::CHAT_CALLS_BYTES_MAX,
                model_calls,
            ]
            .map(ledger),
            mailboxes: DashMap::new(),
            last_id: AtomicU64::new(0),
        }
    }

    /// Returns what is held of a pool, its capacity, and the number of refusals.
    pub fn held(&self, pool: Pool) -> (u64, u64, u64) {
        let ledger = self.ledger(pool);
        (ledger.held(), ledger.capacity(), ledger.refused())
    }

    /// Takes a permit for a user, unless the pool or the user's share of it is exhausted.
    pub fn acquire(self: &Arc<Self>, pool: Pool, principal: &Principal) -> Result<PoolPermit, Refusal> {
        self.acquire_amount(pool, principal, 1)
    }

    /// Takes a part of a pool for a user, unless the pool or the user's share of it is exhausted.
    pub fn acquire_amount(
        self: &Arc<Self>,
        pool: Pool,
        principal: &Principal,
        amount: u64,
    ) -> Result<PoolPermit, Refusal> {
        let account = Account::from(principal);
        let is_uncounted = match pool {
            Pool::Reads => planted(Planted::ReadsUncounted),
            Pool::Calls => planted(Planted::LongCallsUncounted),
            Pool::Models => planted(Planted::ModelCallsUncounted),
            Pool::Tcp | Pool::Quic | Pool::Blobs => false,
        };
        let amount = if is_uncounted { 0 } else { amount };
        let charged = self.ledger(pool).take(&account, amount);
        charged.map_err(|over| over_share_refusal(over, pool.resource_name()))?;
        Ok(PoolPermit { links: Arc::clone(self), pool, account, amount })
    }

    /// Locks the shares of a pool; no code panics while it holds this lock.
    fn ledger(&self, pool: Pool) -> MutexGuard<'_, Ledger> {
        self.ledgers[pool as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a link under an id that was never used before.
    pub fn open(self: &Arc<Self>) -> MailboxHandle {
        let id = LinkId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        let mailbox = Arc::new(Mailbox::default());
        self.mailboxes.insert(id, Arc::clone(&mailbox));
        MailboxHandle { id, mailbox, links: Arc::clone(self), permit: OnceLock::new() }
    }

    /// Puts a note into a link's mailbox. Never blocks; a note for a link that is gone is dropped.
    pub fn send(&self, link: LinkId, note: Notification) {
        if let Some(mailbox) = self.mailboxes.get(&link) {
            mailbox.push(note);
        }
    }

    /// Makes every link close, after it has sent the notes in its mailbox.
    pub fn close_all(&self) {
        for mailbox in &self.mailboxes {
            mailbox.close_when_empty(CloseReason::Shutdown);
        }
    }

    /// Makes every link with one of these credentials close at once, without sending any more notes. Returns the number
    /// of links closed.
    pub fn close_revoked(&self, is_one: impl Fn(&str) -> bool) -> usize {
        let gone = |mailbox: &Arc<Mailbox>| mailbox.lock().credential.as_deref().is_some_and(&is_one);
        // Collected first, so that mailboxes are notified without holding locks of the map.
        let gone: Vec<_> = self.mailboxes.iter().filter(|entry| gone(entry)).map(|it| Arc::clone(&it)).collect();
        gone.iter().filter(|mailbox| mailbox.close_now(CloseReason::Revoked)).count()
    }

    /// Returns the number of open links.
    pub fn count(&self) -> usize {
        self.mailboxes.len()
    }
}

// === impl MailboxHandle ===

impl MailboxHandle {
    /// Returns the link's id.
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// Takes the permit for the link's principal. A link that is refused must close.
    pub fn admit(&self, pool: Pool, principal: &Principal) -> Result<(), Refusal> {
        // If the link already had a permit, the new one is returned at once.
        drop(self.permit.set(self.links.acquire(pool, principal)?));
        Ok(())
    }

    /// Marks the link with the id of its credential, by which [`LinkRegistry::close_revoked`] finds it.
    pub fn set_credential(&self, name: &str) {
        self.mailbox.lock().credential = Some(name.into());
    }

    /// Waits for the next item. Cancel-safe.
    pub async fn recv(&self) -> MailboxItem {
        loop {
            // `Notify` stores a notification that arrives between the check and the wait.
            if let Some(item) = self.mailbox.take() {
                return item;
            }
            self.mailbox.wake.notified().await;
        }
    }

    /// Returns whether the link must close at once.
    pub fn must_close(&self) -> bool {
        self.mailbox.lock().close_reason.is_some_and(CloseReason::is_immediate)
    }

    /// Waits until the link must close at once, whatever it is doing; items stay in the mailbox. Cancel-safe.
    pub async fn wait_close(&self) -> CloseReason {
        loop {
            if let Some(fate) = self.mailbox.lock().close_reason.filter(|fate| fate.is_immediate()) {
                // The notification may have been meant for [`Self::recv`], so it is passed on.
                self.mailbox.wake.notify_one();
                return fate;
            }
            self.mailbox.wake.notified().await;
        }
    }
}

impl Drop for MailboxHandle {
    fn drop(&mut self) {
        self.links.mailboxes.remove(&self.id);
    }
}

// === impl PoolPermit ===

impl PoolPermit {
    /// Returns all but this amount.
    pub fn shrink(&mut self, amount: u64) {
        let surplus = self.amount.saturating_sub(amount);
        self.links.ledger(self.pool).release(&self.account, surplus);
        self.amount -= surplus;
    }
}

impl Drop for PoolPermit {
    fn drop(&mut self) {
        let is_kept = match self.pool {
            Pool::Tcp | Pool::Quic => planted(Planted::ConnectionShareKept),
            Pool::Reads => planted(Planted::ReadsKept),
            Pool::Blobs | Pool::Models => false,
            Pool::Calls => planted(Planted::LongCallPlaceLost),
        };
        if !is_kept {
            self.shrink(0);
        }
    }
}

// === impl Pool ===

impl Pool {
    /// Every pool, in the order of the metrics.
    pub const ALL: [Self; 6] = [Self::Tcp, Self::Quic, Self::Reads, Self::Blobs, Self::Calls, Self::Models];

    /// Returns the name of the resource for refusals.
    fn resource_name(self) -> &'static str {
        match self {
            Self::Tcp | Self::Quic => "connections",
            Self::Reads => "concurrent reads",
            Self::Blobs => "concurrent transfers of files",
            Self::Calls => "bytes of long calls; try again once others are answered",
            Self::Models => "open calls of models",
        }
    }
}

// === impl CloseReason ===

impl CloseReason {
    /// Returns whether the link closes without sending the notes in its mailbox.
    fn is_immediate(self) -> bool {
        match self {
            Self::SlowConsumer | Self::Revoked => true,
            Self::Shutdown => false,
        }
    }
}

// === impl Mailbox ===

impl Mailbox {
    fn push(&self, note: Notification) {
        let mut post = self.lock();
        if post.close_reason.is_some_and(CloseReason::is_immediate) {
            return;
        }
        post.weight += note.weight();
        if post.weight > MAILBOX_BYTES_MAX {
            drop(post);
            self.close_now(CloseReason::SlowConsumer);
            return;
        }
        post.notes.push_back(note);
        drop(post);
        self.wake.notify_one();
    }

    /// Makes the link close at once; returns whether it was not already closing at once.
    fn close_now(&self, fate: CloseReason) -> bool {
        let mut post = self.lock();
        let is_news = !post.close_reason.is_some_and(CloseReason::is_immediate);
        if is_news {
            *post = MailboxContent {
                close_reason: Some(fate),
                credential: post.credential.take(),
                ..MailboxContent::default()
            };
        }
        drop(post);
        self.wake.notify_one();
        is_news
    }

    fn take(&self) -> Option<MailboxItem> {
        let mut post = self.lock();
        if post.notes.is_empty() {
            return post.close_reason.map(MailboxItem::Close);
        }
        if !planted(Planted::MailboxWeightKept) {
            post.weight = 0;
        }
        Some(MailboxItem::Notes(std::mem::take(&mut post.notes)))
    }

    fn close_when_empty(&self, fate: CloseReason) {
        self.lock().close_reason.get_or_insert(fate);
        self.wake.notify_one();
    }

    /// Locks the mailbox. No code panics while it holds this lock, so a poisoned mailbox is still consistent.
    fn lock(&self) -> std::sync::MutexGuard<'_, MailboxContent> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending end of the links' commands to the switchboard. Waiting for space in its queue is the back-pressure: a
/// link that waits does not read its socket.
#[derive(Clone, Debug)]
pub struct CommandSender(mpsc::Sender<Input>);

/// A reserved slot for one command.
#[derive(Debug)]
pub struct CommandPermit<'a>(mpsc::Permit<'a, Input>);

/// The driver's receiving end of the links' commands.
#[derive(Debug)]
pub struct CommandReceiver {
    inputs: mpsc::Receiver<Input>,
    /// A sender kept open, so that a node without links waits for commands instead of finding the channel closed.
    _sender: CommandSender,
}

/// The error that the switchboard has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchboardGone;

/// Creates both ends of the command queue, with space for [`limits::DRIVER_QUEUE_MAX`] inputs.
pub fn command_channel() -> (CommandSender, CommandReceiver) {
    let (sender, inputs) = mpsc::channel(limits::DRIVER_QUEUE_MAX);
    let commands = CommandSender(sender);
    (commands.clone(), CommandReceiver { inputs, _sender: commands })
}

// === impl CommandSender ===

impl CommandSender {
    /// Reports that a link was admitted. The caller must call [`CommandSender::disconnect`] at the link's end.
    pub async fn connect(&self, link: LinkId, principal: Principal) -> Result<(), SwitchboardGone> {
        self.send(Input::Connect { link, principal }).await
    }

    /// Reports that an admitted link serves an account of a platform.
    pub async fn serve_account(&self, link: LinkId, adapter: Box<AdapterHello>) -> Result<(), SwitchboardGone> {
        self.send(Input::ServeAccount { link, adapter }).await
    }

    /// Reports that a link is gone.
    pub async fn disconnect(&self, link: LinkId) -> Result<(), SwitchboardGone> {
        self.send(Input::Disconnect { link }).await
    }

    /// Sends a command of a link.
    pub async fn send_command(&self, link: LinkId, command: LinkCommand) -> Result<(), SwitchboardGone> {
        self.send(Input::Command { link, command }).await
    }

    /// Reports that a link has written notes of this weight, which returns its credit.
    pub async fn written(&self, link: LinkId, weight: usize) -> Result<(), SwitchboardGone> {
        self.send(Input::Written { link, weight }).await
    }

    /// Reports that a link is gone, after an optional last command, from a caller that cannot wait. If the queue is
    /// full, a spawned task waits.
    pub fn disconnect_detached(&self, link: LinkId, last_word: Option<LinkCommand>) {
        let last_command = last_word.map(|command| Input::Command { link, command });
        let mut rest = last_command.into_iter().chain([Input::Disconnect { link }]);
        while let Some(input) = rest.next() {
            let Err(TrySendError::Full(input)) = self.0.try_send(input) else { continue };
            let (commands, Ok(runtime)) = (self.clone(), Handle::try_current()) else { return };
            runtime.spawn(async move {
                for input in [input].into_iter().chain(rest) {
                    // Without a switchboard no report is needed.
                    _ = commands.send(input).await;
                }
            });
            return;
        }
    }

    /// Waits for a slot for one command. Only the slot is waited for, not the command: every step of a link can hold a
    /// slot, whatever the size of the command.
    pub async fn reserve(&self) -> Result<CommandPermit<'_>, SwitchboardGone> {
        self.0.reserve().await.map(CommandPermit).map_err(|_| SwitchboardGone)
    }

    async fn send(&self, input: Input) -> Result<(), SwitchboardGone> {
        self.0.send(input).await.map_err(|_| SwitchboardGone)
    }
}

// === impl CommandPermit ===

impl CommandPermit<'_> {
    /// Sends a command of a link, as [`CommandSender::send_command`] does.
    pub fn send_command(self, link: LinkId, command: LinkCommand) {
        self.0.send(Input::Command { link, command });
    }

    /// Pauses or resumes the notes of one session for a link.
    pub fn set_held(self, link: LinkId, session: SessionId, is_held: bool) {
        self.0.send(Input::PauseSession { link, session, is_paused: is_held });
    }

    /// Reports that a link has written notes of this weight, as [`CommandSender::written`] does.
    pub fn written(self, link: LinkId, weight: usize) {
        self.0.send(Input::Written { link, weight });
    }
}

// === impl CommandReceiver ===

impl CommandReceiver {
    /// Waits for up to `most` inputs. Cancel-safe.
    pub async fn take(&mut self, into: &mut Vec<Input>, most: usize) -> usize {
        self.inputs.recv_many(into, most).await
    }

    /// Returns an input that is already queued.
    pub fn try_take(&mut self) -> Option<Input> {
        self.inputs.try_recv().ok()
    }

    /// Returns the number of queued inputs.
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

    fn note() -> Notification {
        Notification::GoAway { reason: "drain", within: Duration::ZERO, jitter: Duration::ZERO }
    }

    /// Covers: S-16.
    #[test]
    fn links_over_the_user_share_are_refused_until_one_closes() {
        let links = Arc::new(LinkRegistry::new(Some(Shares::default()), 16, 16, 16));
        let principal = |tenant: &str, user: &str| Principal {
            tenant: TenantId::parse(tenant).expect("a name"),
            user: UserId::parse(user).expect("a name"),
            operator: false,
            writes: true,
        };
        let eve = principal("evil", "eve");
        let ann = principal("acme", "ann");
        let enter = |who: &Principal| {
            let mailbox = links.open();
            mailbox.admit(Pool::Tcp, who).map(|()| mailbox)
        };
        let mut inside: Vec<MailboxHandle> = std::iter::from_fn(|| enter(&eve).ok()).collect();
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
    fn reads_over_the_user_share_are_refused_until_one_ends() {
        let links = Arc::new(LinkRegistry::new(Some(Shares::default()), 16, 16, 16));
        let principal = |tenant: &str| Principal {
            tenant: TenantId::parse(tenant).expect("a name"),
            user: UserId::parse("eve").expect("a name"),
            operator: false,
            writes: true,
        };
        let eve = principal("evil");
        let ann = principal("acme");
        let all = 0..=limits::SCAN_REQUESTS_MAX;
        let mut readings: Vec<PoolPermit> = all.map_while(|_| links.acquire(Pool::Reads, &eve).ok()).collect();
        assert_eq!(readings.len(), limits::SCAN_REQUESTS_MAX * 9 / 16, "nine sixteenths");
        let refusal = links.acquire(Pool::Reads, &eve).expect_err("full");
        assert_eq!(refusal.code, Code::OverShare);
        assert!(refusal.retry_after_ms.is_some(), "it says when to come again");
        let other = links.acquire(Pool::Reads, &ann).expect("room for others");
        readings.pop();
        readings.push(links.acquire(Pool::Reads, &eve).expect("room again"));
        drop((readings, other));
        assert_eq!(
            links.held(Pool::Reads),
            (0, limits::SCAN_REQUESTS_MAX as u64, 2),
            "all that was held is given back"
        );
    }

    #[tokio::test]
    async fn mailbox_keeps_order_and_delivers_the_end_last() {
        let links = Arc::new(LinkRegistry::new(None, 100, 100, 100));
        let mailbox = links.open();
        links.send(mailbox.id(), note());
        links.send(LinkId(99), note());
        links.close_all();
        assert!(matches!(mailbox.recv().await, MailboxItem::Notes(notes) if notes.len() == 1));
        assert!(matches!(mailbox.recv().await, MailboxItem::Close(CloseReason::Shutdown)));
        drop(mailbox);
        assert_eq!(links.count(), 0);
    }

    /// Covers: G8.
    #[tokio::test]
    async fn reading_mail_frees_its_bytes() {
        let links = Arc::new(LinkRegistry::new(None, 100, 100, 100));
        let mailbox = links.open();
        for n in 0..=2 * MAILBOX_BYTES_MAX / note().weight() {
            links.send(mailbox.id(), note());
            assert!(matches!(mailbox.recv().await, MailboxItem::Notes(_)), "{n}");
        }
    }

    /// Covers: G8.
    #[tokio::test]
    async fn full_mailbox_is_cleared_and_closed() {
        let links = Arc::new(LinkRegistry::new(None, 100, 100, 100));
        let mailbox = links.open();
        for _ in 0..=MAILBOX_BYTES_MAX / note().weight() {
            links.send(mailbox.id(), note());
        }
        links.send(mailbox.id(), note());
        assert!(matches!(mailbox.recv().await, MailboxItem::Close(CloseReason::SlowConsumer)));
        assert_eq!(mailbox.wait_close().await, CloseReason::SlowConsumer);
    }

    /// Covers: PR-8, S-17.
    #[tokio::test]
    async fn open_model_calls_count_in_the_share_of_their_user() {
        let links = Arc::new(LinkRegistry::new(Some(Shares::default()), 16, 16, 16));
        let user = |tenant: &str, user: &str| Principal {
            tenant: TenantId::parse(tenant).expect("a name"),
            user: UserId::parse(user).expect("a name"),
            operator: false,
            writes: true,
        };
        let calls_of =
            |who: &Principal| std::iter::from_fn(|| links.acquire(Pool::Models, who).ok()).collect::<Vec<_>>();
        let anns = calls_of(&user("a", "ann"));
        let bobs = calls_of(&user("a", "bob"));
        let others = calls_of(&user("b", "ann"));
        assert!((1..=9).contains(&anns.len()) && !bobs.is_empty() && !others.is_empty(), "{}", anns.len());
        assert!(anns.len() + bobs.len() <= 12, "a tenant has at most three quarters");
        drop((anns, bobs, others));
        assert_eq!(links.held(Pool::Models).0, 0);
    }

    /// Covers: S-01.
    #[tokio::test]
    async fn link_with_a_revoked_credential_gets_no_more_messages() {
        let links = Arc::new(LinkRegistry::new(None, 100, 100, 100));
        let ann = links.open();
        let bob = links.open();
        let nobody = links.open();
        ann.set_credential("a");
        bob.set_credential("b");
        for mailbox in [&ann, &bob, &nobody] {
            links.send(mailbox.id(), note());
        }
        assert_eq!(links.close_revoked(|name| name == "a"), 1);
        links.send(ann.id(), note());
        assert_eq!(ann.wait_close().await, CloseReason::Revoked);
        assert!(matches!(ann.recv().await, MailboxItem::Close(CloseReason::Revoked)));
        assert_eq!(links.close_revoked(|name| name == "a"), 0);
        assert!(
            matches!(bob.recv().await, MailboxItem::Notes(_)) && matches!(nobody.recv().await, MailboxItem::Notes(_))
        );
    }
}
