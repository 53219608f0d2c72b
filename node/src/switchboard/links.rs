//! The links of this node, and the weight in flight to each.
use super::Capacity;
use super::router::requests::RequestKey;
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{LinkId, Principal, SessionId, SessionKey};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::planted::{self, Planted};
use turnway_core::protocol::delivery::AccountKey;
use turnway_core::share::{Account, Ledger, ShareBound};
use turnway_wire::channel::command::LinkCommand;

/// All links of the node.
#[derive(Debug)]
pub(super) struct LinkTable {
    links: BTreeMap<LinkId, AttachedLink>,
    subscriptions: Ledger,
}

/// One admitted connection.
#[derive(Debug)]
pub(super) struct AttachedLink {
    pub(super) principal: Principal,
    /// The account that the link serves as an adapter. Boxed, because most links are no adapters.
    pub(super) adapter: Option<Box<AccountKey>>,
    /// The subscribed sessions, sorted; most links have one.
    sessions: Vec<SessionKey>,
    /// Requests in progress.
    pub(super) requests: BTreeSet<RequestKey>,
    unwritten: usize,
    full: bool,
    /// Sessions whose notifications are paused.
    paused: Vec<SessionKey>,
}

impl AttachedLink {
    /// Returns whether the link is subscribed to a session.
    pub(super) fn is_subscribed(&self, key: &SessionKey) -> bool {
        self.sessions.binary_search(key).is_ok()
    }
    /// Returns the number of subscribed sessions.
    pub(super) fn subscription_count(&self) -> usize {
        self.sessions.len()
    }
    /// Returns whether the limit of requests is reached. A link at its limit can still cancel what it has started
    /// (S-17).
    pub(super) fn is_busy(&self, command: &LinkCommand) -> bool {
        let more = if matches!(command, LinkCommand::Cancel { .. }) { limits::LINK_CANCELS_MAX } else { 0 };
        self.requests.len() >= limits::LINK_REQUESTS_MAX + more
    }
    /// Returns the link's requests in progress and its subscribed sessions.
    pub(super) fn into_holdings(self) -> (BTreeSet<RequestKey>, Vec<SessionKey>) {
        (self.requests, self.sessions)
    }
    fn subscribe(&mut self, key: &SessionKey) {
        if let Err(index) = self.sessions.binary_search(key) {
            self.sessions.reserve_exact(1);
            self.sessions.insert(index, key.clone());
        }
    }
    fn unsubscribe(&mut self, key: &SessionKey) -> bool {
        let found = self.sessions.binary_search(key);
        if let Ok(index) = self.sessions.binary_search(key) {
            self.sessions.remove(index);
            self.sessions.shrink_to_fit();
            self.paused.retain(|held| held != key);
        }
        found.is_ok()
    }
}

impl LinkTable {
    pub(super) fn new(capacity: Capacity) -> Self {
        let subscriptions = Ledger::new(capacity.subscriptions, capacity.shares);
        Self { links: BTreeMap::new(), subscriptions }
    }
    /// Returns the ledger of all subscriptions.
    pub(super) fn subscriptions(&self) -> &Ledger {
        &self.subscriptions
    }
    /// Subscribes a link to a session, unless its user has too many subscriptions.
    pub(super) fn subscribe(&mut self, link: LinkId, key: &SessionKey) -> Result<(), ShareBound> {
        let Some(there) = self.links.get_mut(&link).filter(|there| !there.is_subscribed(key)) else {
            return Ok(());
        };
        self.subscriptions.take(&Account::from(&there.principal), 1)?;
        there.subscribe(key);
        Ok(())
    }
    /// Returns the bound that a further subscription of the link would exceed, if any.
    pub(super) fn exceeded_bound(&self, link: LinkId, key: &SessionKey) -> Option<ShareBound> {
        let there = self.links.get(&link).filter(|there| !there.is_subscribed(key))?;
        self.subscriptions.exceeded_bound(&Account::from(&there.principal), 1)
    }
    /// Unsubscribes a link from a session.
    pub(super) fn unsubscribe(&mut self, link: LinkId, key: &SessionKey) {
        let Some(there) = self.links.get_mut(&link) else { return };
        if there.unsubscribe(key) {
            self.subscriptions.release(&Account::from(&there.principal), 1);
        }
    }
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }
    pub(super) fn get(&self, link: LinkId) -> Option<&AttachedLink> {
        self.links.get(&link)
    }
    pub(super) fn get_mut(&mut self, link: LinkId) -> Option<&mut AttachedLink> {
        self.links.get_mut(&link)
    }
    pub(super) fn ids(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }
    /// Returns whether the link's cursor in this session is paused, because too much is in flight or the client
    /// paused it.
    pub(super) fn is_full(&self, link: LinkId, key: &SessionKey) -> bool {
        let full = |link: &AttachedLink| link.full || link.paused.contains(key);
        self.links.get(&link).is_none_or(full) && !planted(Mutant::CreditIgnored)
    }
    /// Counts a notification's weight as in flight to a link. Returns whether the link exists.
    pub(super) fn count_unwritten(&mut self, link: LinkId, weight: usize) -> bool {
        let Some(there) = self.links.get_mut(&link) else { return false };
        there.unwritten += weight;
        there.full |= there.unwritten >= limits::LINK_UNWRITTEN_BYTES_MAX;
        true
    }

    /// Adds an admitted connection.
    pub(super) fn connect(&mut self, link: LinkId, principal: Principal) {
        let fresh = AttachedLink {
            principal,
            adapter: None,
            sessions: Vec::new(),
            requests: BTreeSet::new(),
            unwritten: 0,
            full: false,
            paused: Vec::new(),
        };
        self.links.insert(link, fresh);
    }

    /// Removes a link and gives back its subscriptions.
    pub(super) fn disconnect(&mut self, link: LinkId) -> Option<AttachedLink> {
        let gone = self.links.remove(&link)?;
        let account = Account::from(&gone.principal);
        if !planted::planted(Planted::SubscriptionsKept) {
            self.subscriptions.release(&account, gone.sessions.len() as u64);
        }
        Some(gone)
    }

    /// Pauses or resumes a session's cursor. Returns the session whose cursor continues, if any.
    pub(super) fn pause(&mut self, link: LinkId, session: SessionId, is_paused: bool) -> Option<SessionKey> {
        let there = self.links.get_mut(&link)?;
        let key = SessionKey { tenant: there.principal.tenant.clone(), session };
        there.paused.retain(|held| *held != key);
        if is_paused && there.is_subscribed(&key) {
            there.paused.push(key);
            return None;
        }
        there.paused.shrink_to_fit();
        (!there.full).then_some(key)
    }

    /// Handles written weight. Returns the sessions whose cursors continue: those of a full link, once enough was
    /// written.
    pub(super) fn count_written(&mut self, link: LinkId, weight: usize) -> Vec<SessionKey> {
        let Some(there) = self.links.get_mut(&link) else { return Vec::new() };
        there.unwritten = there.unwritten.saturating_sub(weight);
        if !there.full || there.unwritten > limits::LINK_UNWRITTEN_BYTES_MAX / 2 {
            return Vec::new();
        }
        there.full = false;
        there.sessions.clone()
    }
}
