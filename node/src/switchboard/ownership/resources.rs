//! The amounts that users hold on this node: attempts, content of running inputs, sessions, and subscriptions. A
//! session requests a permit before it starts a turn; if its user's share is used up, the turn waits in a fair
//! queue.
use super::owned_session::OwnedSession;
use turnway_core::id::{Principal, SessionKey, UserId};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::session::{AttemptPermit, Input as RuntimeInput};
use turnway_core::share::queue::FairQueue;
use turnway_core::share::{Account, Ledger, ShareBound, Shares};
use turnway_core::time::Now;

/// The capacities of a node, and their division among users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Shares of a tenant and of a user; `None`: no division.
    pub shares: Option<Shares>,
    /// Concurrent attempts at agents outside this process.
    pub attempts: u64,
    /// Bytes of the inputs of running turns.
    pub content_bytes: u64,
    /// Concurrently owned sessions.
    pub sessions: u64,
    /// Subscriptions of all links.
    pub subscriptions: u64,
}

/// The amounts held of each resource, and the turns that wait for a permit.
#[derive(Debug)]
pub(super) struct ResourceLedgers {
    attempts: Ledger,
    content: Ledger,
    sessions: Ledger,
    waiting: FairQueue<(SessionKey, u64)>,
    /// An amount was returned, or a turn has joined the queue.
    is_changed: bool,
}

/// The permit of a session's running turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum PermitState {
    /// No permit is needed.
    #[default]
    None,
    /// Waiting for a permit.
    Waiting(Account),
    /// Permit held, with the bytes of its content.
    Granted(Account, u64),
}

/// Gauges of one resource, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceGauges {
    /// The amount held.
    pub held: u64,
    /// The maximum amount.
    pub capacity: u64,
    /// Number of refusals at a bound.
    pub refused: u64,
}

// === impl Capacity ===

impl Default for Capacity {
    /// Returns the capacities of `limits`, without shares.
    fn default() -> Self {
        Self {
            shares: None,
            attempts: limits::ATTEMPTS_MAX,
            content_bytes: limits::RUNNING_CONTENT_BYTES_MAX,
            sessions: limits::SESSIONS_OWNED_MAX,
            subscriptions: limits::SUBSCRIPTIONS_MAX,
        }
    }
}

// === impl ResourceGauges ===

impl ResourceGauges {
    /// Names of the resources, in the order in which they are reported.
    pub const NAMES: [&str; 4] = ["attempts", "content_bytes", "sessions", "subscriptions"];
}

impl From<&Ledger> for ResourceGauges {
    fn from(ledger: &Ledger) -> Self {
        Self { held: ledger.held(), capacity: ledger.capacity(), refused: ledger.refused() }
    }
}

// === impl ResourceLedgers ===

impl ResourceLedgers {
    /// Creates the ledgers of a node that holds nothing.
    pub(super) fn new(capacity: Capacity) -> Self {
        Self {
            attempts: Ledger::new(capacity.attempts, capacity.shares),
            content: Ledger::new(capacity.content_bytes, capacity.shares),
            sessions: Ledger::new(capacity.sessions, capacity.shares),
            waiting: FairQueue::default(),
            is_changed: false,
        }
    }

    /// Takes an attempt and its content, or neither.
    fn try_take(&mut self, account: &Account, bytes: u64) -> bool {
        if self.content.exceeded_bound(account, bytes).is_some() || self.attempts.take(account, 1).is_err() {
            return false;
        }
        self.content.force(account, bytes);
        true
    }

    /// Ends a session's permit or its wait for one.
    pub(super) fn end_permit(&mut self, key: &SessionKey, booking: &mut PermitState) {
        match std::mem::take(booking) {
            PermitState::None => {}
            PermitState::Waiting(account) => self.waiting.remove(&account, |(waiting, _)| waiting == key),
            PermitState::Granted(account, bytes) => {
                self.attempts.release(&account, 1);
                if !planted(Planted::ContentKept) {
                    self.content.release(&account, bytes);
                }
                self.is_changed = true;
            }
        }
    }

    /// Updates a session's permit to the needs of its runtime, and grants one if possible. Returns whether a permit
    /// was granted, in which case the runtime may have further outputs.
    pub(super) fn update_permit(&mut self, now: Now, key: &SessionKey, owned: &mut OwnedSession) -> bool {
        match owned.runtime.permit() {
            AttemptPermit::Unbounded => return false,
            AttemptPermit::None => {
                self.end_permit(key, &mut owned.permit);
                return false;
            }
            AttemptPermit::Granted => return false,
            AttemptPermit::Wanted => {}
        }
        let Some(applicant) = owned.runtime.permit_request() else { return false };
        let account = Account { tenant: key.tenant.clone(), user: applicant.user };
        if owned.permit == PermitState::Waiting(account.clone()) {
            return false;
        }
        self.end_permit(key, &mut owned.permit);
        if self.waiting.is_empty() && self.try_take(&account, applicant.bytes) {
            owned.permit = PermitState::Granted(account, applicant.bytes);
            owned.runtime.handle_input(now, RuntimeInput::PermitGranted);
            return true;
        }
        self.waiting.push(&account, (key.clone(), applicant.bytes));
        self.is_changed = true;
        owned.permit = PermitState::Waiting(account);
        owned.runtime.unload_waiting_content();
        false
    }

    /// Returns the next session whose user may start a turn, with the permit already taken.
    fn pop_next(&mut self) -> Option<(Account, SessionKey, u64)> {
        let attempts = &self.attempts;
        let content = &self.content;
        let may = |account: &Account, (_, bytes): &(SessionKey, u64)| {
            attempts.exceeded_bound(account, 1).is_none() && content.exceeded_bound(account, *bytes).is_none()
        };
        let (account, (key, bytes)) = self.waiting.pop(may)?;
        self.attempts.force(&account, 1);
        self.content.force(&account, bytes);
        Some((account, key, bytes))
    }

    /// Returns the next session whose user may start a turn and holds a permit for it from now on.
    pub(super) fn next_permitted(&mut self) -> Option<(SessionKey, PermitState)> {
        while std::mem::take(&mut self.is_changed) {
            if let Some((account, key, bytes)) = self.pop_next() {
                self.is_changed = true;
                return Some((key, PermitState::Granted(account, bytes)));
            }
        }
        None
    }

    /// Counts a session that this node owns from now on.
    pub(super) fn count_session(&mut self, key: &SessionKey, user: Option<&UserId>) -> Option<Account> {
        let account = Account { tenant: key.tenant.clone(), user: user?.clone() };
        self.sessions.force(&account, 1);
        Some(account)
    }

    /// Gives back everything that an owned session holds.
    pub(super) fn return_holdings(&mut self, key: &SessionKey, owned: &mut OwnedSession) {
        self.end_permit(key, &mut owned.permit);
        if let Some(account) = owned.account.take()
            && !planted(Planted::SessionShareKept)
        {
            self.sessions.release(&account, 1);
        }
    }

    /// Returns the refusal of a further session of a user who owns too many.
    pub(super) fn session_refusal(&self, principal: &Principal) -> Option<Refusal> {
        let over = self.sessions.exceeded_bound(&Account::from(principal), 1)?;
        Some(over_share_refusal(over, "open sessions"))
    }

    /// Counts a refused session of a user who owns too many.
    pub(super) fn count_refused_session(&mut self, principal: &Principal) {
        // The check counts what it refuses.
        let _: Result<(), ShareBound> = self.sessions.check(&Account::from(principal), 1);
    }

    /// Returns the gauges of attempts, content and sessions.
    pub(super) fn gauges(&self) -> [ResourceGauges; 3] {
        [&self.attempts, &self.content, &self.sessions].map(ResourceGauges::from)
    }

    /// Returns the number of turns that wait for a permit.
    pub(super) fn waiting_turns(&self) -> u64 {
        self.waiting.len() as u64
    }
}

/// Returns the refusal for an amount that exceeds a bound.
pub fn over_share_refusal(over: ShareBound, what: &str) -> Refusal {
    let whose = match over {
        ShareBound::Node => "this node has reached its limit of",
        ShareBound::Tenant => "the tenant has reached its share of this node's",
        ShareBound::User => "the user has reached their share of this node's",
    };
    Refusal::new(Code::OverShare, format!("{whose} {what}")).retry_after(limits::SHARE_RETRY_AFTER)
}
