//! The lease of one account: one connection of the fleet sends for it, the others stand by. The lease is a named value of
//! the store, and lasts as long as its connection and the lease of its node.
use super::bots::BotKey;
use super::capabilities::LinkCapabilities;
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;
use turnway_core::id::{AccountId, ChannelName, LeaseId, LinkId, NodeId, RequestId, TenantId};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{AccountKey, AccountPause};
use turnway_core::store::Op;
use turnway_core::time::{Millis, Mono, Now};
use turnway_wire::channel::account::AccountService;
use turnway_wire::channel::adapter::{AdapterCapabilities, AdapterHello, AdapterState};

/// The prefix of the names of leases in the store.
const PREFIX: &str = "adapter/";
/// The time between two looks at a lease: at one's own, because an operator may have removed it, and at another's, whose
/// end nobody tells.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The value of an account in the store: its lease and its pause, which change by one compare and set. Whoever takes the
/// lease has thus seen the pause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredAccount {
    #[serde(flatten)]
    pub(super) lease: Option<LeaseRecord>,
    #[serde(default, rename = "paused", skip_serializing_if = "Option::is_none")]
    pub(super) pause: Option<AccountPause>,
}

/// The lease of an account as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeaseRecord {
    /// The node, as 32 hexadecimal digits.
    node: String,
    link: LinkId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance: Option<RequestId>,
    /// The platform's id of the login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bot: Option<RequestId>,
    pub(super) since: Millis,
    /// The capabilities of the connection, for nodes that are asked about the account. Nodes of earlier releases neither
    /// write nor keep them.
    #[serde(default, deserialize_with = "read_capabilities", skip_serializing_if = "Option::is_none")]
    capabilities: Option<AdapterCapabilities>,
}

/// A connection of this node that serves the account.
#[derive(Debug)]
pub(super) struct ServingLink {
    pub(super) link: LinkId,
    instance: Option<RequestId>,
    bot: Option<RequestId>,
    pub(super) capabilities: LinkCapabilities,
    connected_at: Millis,
}

/// The lease of an account with connections at this node.
#[derive(Debug)]
pub(super) struct AccountLease {
    account: AccountKey,
    name: String,
    links: Vec<ServingLink>,
    /// The version of the stored value, as it was last read.
    version: u64,
    record: Option<LeaseRecord>,
    pause: Option<AccountPause>,
    /// A value without the pause was read that may be older than the pause; the next read decides.
    is_resume_doubtful: bool,
    /// The connection of this node that sends, and the node's lease under which that was confirmed.
    active: Option<(LinkId, LeaseId)>,
    /// The connection of this node that has the lease. It sends once its platform's bot id is claimed, too.
    present: Option<LinkId>,
    claimed: Option<ClaimedBot>,
    /// A write of the present connection's capabilities is under way. Its reply, or the next look at the lease, shows
    /// whether another write is needed.
    is_writing_capabilities: bool,
    /// A write that takes the lease has no answer yet. Its reply shows whether another one is needed.
    is_taking: bool,
    next_check: Mono,
}

/// The claim of the bot id of a connection, as it was confirmed.
#[derive(Debug)]
struct ClaimedBot {
    link: LinkId,
    key: BotKey,
    /// The node's lease under which it was confirmed.
    life: LeaseId,
    version: u64,
}

/// A change that a reply of the store leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LeaseChange {
    None,
    /// A connection of this node sends from now on.
    Gained,
    /// No connection of this node sends any more.
    Lost,
}

/// Returns the name of an account's lease in the store.
pub(super) fn lease_name(account: &AccountKey) -> String {
    format!("{PREFIX}{account}")
}

/// Returns the account whose lease has a name.
pub(super) fn parse_name(name: &str) -> Option<AccountKey> {
    let mut parts = name.strip_prefix(PREFIX)?.splitn(3, '/');
    let tenant = TenantId::parse(parts.next()?).ok()?;
    let channel = ChannelName::parse(parts.next()?).ok()?;
    let account = AccountId::parse(parts.next()?).ok()?;
    Some(AccountKey { tenant, channel, account })
}

/// Reads stored capabilities; unreadable ones count as none, because the lease counts all the same.
fn read_capabilities<'de, D: Deserializer<'de>>(stored: D) -> Result<Option<AdapterCapabilities>, D::Error> {
    let value = serde_json::Value::deserialize(stored)?;
    Ok(serde_json::from_value(value).ok())
}

/// Returns whether a named value of the store is the value of an account.
pub(super) fn is_lease(name: &str) -> bool {
    name.starts_with(PREFIX)
}

// === impl StoredAccount ===

impl StoredAccount {
    /// Reads the stored value; an unreadable one counts as none.
    pub(super) fn read(value: Option<&[u8]>) -> Self {
        value.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default()
    }

    /// Returns the value to store; `None` removes it.
    pub(super) fn to_value(&self) -> Option<Vec<u8>> {
        let is_empty = self.lease.is_none() && self.pause.is_none();
        (!is_empty).then(|| serde_json::to_vec(self).unwrap_or_default())
    }

    /// Returns the connection that serves the account, as it is shown.
    pub(super) fn service(&self) -> Option<AccountService> {
        let record = self.lease.as_ref()?;
        Some(AccountService { node: record.node_id()?, since: record.since, capabilities: record.capabilities.clone() })
    }

    /// Returns the node whose connection has the lease.
    pub(super) fn node_id(&self) -> Option<NodeId> {
        self.lease.as_ref().and_then(LeaseRecord::node_id)
    }
}

// === impl LeaseRecord ===

impl LeaseRecord {
    /// Returns the connection that sends.
    pub(super) fn holder(&self) -> Option<(NodeId, LinkId)> {
        self.node_id().map(|node| (node, self.link))
    }

    /// Returns the node whose connection sends.
    pub(super) fn node_id(&self) -> Option<NodeId> {
        u128::from_str_radix(&self.node, 16).ok().map(NodeId)
    }
}

// === impl AccountLease ===

impl AccountLease {
    /// Creates the lease of an account, of which nothing is known yet.
    pub(super) fn new(account: &AccountKey) -> Self {
        Self {
            account: account.clone(),
            name: lease_name(account),
            links: Vec::new(),
            version: 0,
            record: None,
            pause: None,
            is_resume_doubtful: false,
            active: None,
            present: None,
            claimed: None,
            is_taking: false,
            is_writing_capabilities: false,
            next_check: Mono::default(),
        }
    }

    /// Adds a connection.
    pub(super) fn add(&mut self, now: Now, link: LinkId, hello: &AdapterHello) {
        let AdapterHello { instance_id, platform_bot_id, capabilities, .. } = hello.clone();
        let connected_at = now.store;
        let capabilities = LinkCapabilities::new(capabilities);
        self.links.push(ServingLink { link, instance: instance_id, bot: platform_bot_id, capabilities, connected_at });
        self.next_check = Mono::default();
    }

    /// Removes a connection. Returns the ops that give up the lease and the claim of the bot id, if the connection had them.
    pub(super) fn remove(&mut self, link: LinkId) -> Vec<Op> {
        self.links.retain(|other| other.link != link);
        self.active.take_if(|(active, _)| *active == link);
        self.next_check = Mono::default();
        let lease = self.present.take_if(|present| *present == link).map(|_| self.give_up());
        let claim = self.claimed.take_if(|claimed| claimed.link == link);
        let claim = claim.map(|it| Op::Put { name: it.key.name(), expect: it.version, value: None });
        claim.into_iter().chain(lease).collect()
    }

    /// Returns the op that gives up the lease; the pause stays.
    fn give_up(&self) -> Op {
        let value = StoredAccount { lease: None, pause: self.pause.clone() }.to_value();
        Op::Put { name: self.name.clone(), expect: self.version, value }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    pub(super) fn link_count(&self) -> usize {
        self.links.len()
    }

    /// Returns the links of this account.
    pub(super) fn links(&self) -> impl Iterator<Item = LinkId> {
        self.links.iter().map(|link| link.link)
    }

    /// Returns the connection that sends, as far as that was confirmed under the present lease of the node.
    pub(super) fn active(&self, life: LeaseId) -> Option<&ServingLink> {
        let (link, _) = self.active.filter(|(_, confirmed)| *confirmed == life)?;
        self.links.iter().find(|other| other.link == link)
    }

    /// Returns what a connection can do.
    pub(super) fn capabilities_of(&self, link: LinkId) -> Option<&LinkCapabilities> {
        self.links.iter().find(|other| other.link == link).map(|other| &other.capabilities)
    }

    /// Changes what a connection can do, or what it can do in one conversation. Returns the write that follows, if nodes
    /// that are asked about the account would tell something else.
    pub(super) fn set_capabilities(
        &mut self,
        link: LinkId,
        conversation: Option<ConversationRef>,
        capabilities: AdapterCapabilities,
    ) -> Option<Op> {
        let changed = self.links.iter_mut().find(|other| other.link == link)?;
        changed.capabilities.set(conversation, capabilities);
        if self.is_writing_capabilities { None } else { self.write_capabilities() }
    }

    /// Returns the write of the present connection's capabilities, unless the store has them as last read.
    fn write_capabilities(&mut self) -> Option<Op> {
        let present = self.present?;
        let capabilities = self.capabilities_of(present)?.usual();
        let record = self.record.as_ref().filter(|record| record.link == present)?;
        if record.capabilities.as_ref() == Some(capabilities) || planted(Planted::CapabilitiesNotStored) {
            return None;
        }
        let record = LeaseRecord { capabilities: Some(capabilities.clone()), ..record.clone() };
        let value = StoredAccount { lease: Some(record), pause: self.pause.clone() }.to_value();
        self.is_writing_capabilities = true;
        Some(Op::Put { name: self.name.clone(), expect: self.version, value })
    }

    /// Returns whether a connection is one of this account.
    pub(super) fn has_link(&self, link: LinkId) -> bool {
        self.links.iter().any(|other| other.link == link)
    }

    /// Returns the connections with a bot id.
    pub(super) fn links_of_bot(&self, bot: &RequestId) -> impl Iterator<Item = LinkId> {
        self.links.iter().filter(move |other| other.bot.as_ref() == Some(bot)).map(|other| other.link)
    }

    /// Returns the connection that has the lease and waits for the claim of this bot id.
    pub(super) fn unclaimed(&self, bot: &RequestId) -> Option<LinkId> {
        self.present.filter(|present| self.active.is_none() && self.links_of_bot(bot).any(|link| link == *present))
    }

    /// Records that a bot id is claimed for a connection. Returns whether the connection has waited for that.
    pub(super) fn confirm_bot(&mut self, link: LinkId, bot: &RequestId, (life, version): (LeaseId, u64)) -> bool {
        let is_awaited = self.unclaimed(bot) == Some(link);
        if let Some(key) = self.bot_key(link).filter(|key| key.bot == *bot) {
            self.claimed = Some(ClaimedBot { link, key, life, version });
        }
        is_awaited
    }

    fn bot_key(&self, link: LinkId) -> Option<BotKey> {
        let AccountKey { tenant, channel, .. } = self.account.clone();
        let bot = self.links.iter().find(|other| other.link == link)?.bot.clone()?;
        Some(BotKey { tenant, channel, bot })
    }

    /// Returns the bot id that must be claimed before a connection sends; `None` if it has none, or the claim.
    fn missing_claim(&self, link: LinkId, life: LeaseId) -> Option<BotKey> {
        let is_claimed = self.claimed.as_ref().is_some_and(|claimed| claimed.link == link && claimed.life == life);
        self.bot_key(link).filter(|_| !is_claimed && !planted(Planted::BotIdUnclaimed))
    }

    /// Returns the state that a connection is told.
    pub(super) fn state_of(&self, link: LinkId) -> AdapterState {
        AdapterState {
            is_active: self.active.is_some_and(|(active, _)| active == link),
            holder: self.record.as_ref().and_then(LeaseRecord::node_id),
            since: self.record.as_ref().map(|record| record.since),
            pause: self.pause.clone().map(Box::new),
        }
    }

    /// Returns the pause of the account, as it was last read.
    pub(super) fn pause(&self) -> Option<&AccountPause> {
        self.pause.as_ref()
    }

    /// Uses the pause of a stored value. Replies of the store may overtake each other, so a value that may be older than
    /// the known pause does not end it: the op reads once more.
    pub(super) fn use_pause(&mut self, version: u64, stored: &StoredAccount) -> Option<Op> {
        let may_be_old = self.pause.is_some() && stored.pause.is_none() && version <= self.version;
        self.is_resume_doubtful = may_be_old && !self.is_resume_doubtful;
        if self.is_resume_doubtful {
            return Some(Op::Get { name: self.name.clone() });
        }
        self.pause = stored.pause.clone();
        None
    }

    pub(super) fn next_check(&self) -> Mono {
        self.next_check
    }

    /// Reads the lease, if it is time to.
    pub(super) fn check(&mut self, now: Now) -> Option<Op> {
        if now.mono < self.next_check {
            return None;
        }
        self.next_check = now.mono + CHECK_INTERVAL;
        Some(Op::Get { name: self.name.clone() })
    }

    /// Uses the stored lease: confirms it, takes it if it is free, or waits for its end.
    pub(super) fn use_value(
        &mut self,
        now: Now,
        me: (NodeId, LeaseId),
        (version, stored): (u64, StoredAccount),
        ops: &mut Vec<Op>,
    ) -> LeaseChange {
        let (node, life) = me;
        (self.version, self.record) = (version, stored.lease);
        let holder = self.record.as_ref().and_then(LeaseRecord::node_id);
        let holding = self.record.as_ref().filter(|_| holder == Some(node)).map(|record| record.link);
        let is_here = |holding: &LinkId| self.links.iter().any(|link| link.link == *holding);
        let present = holding.filter(|holding| is_here(holding) && !self.is_replaced());
        let before = self.active;
        self.present = present;
        let missing = present.and_then(|link| self.missing_claim(link, life));
        self.active = present.filter(|_| missing.is_none()).map(|link| (link, life));
        self.is_writing_capabilities = false;
        ops.extend(self.write_capabilities());
        if let Some(bot) = missing {
            ops.push(Op::Get { name: bot.name() });
        } else if present.is_none() && (holder.is_none() || holder == Some(node) || self.is_replaced()) {
            self.take(now, node, ops);
        } else if let Some(other) = holder.filter(|other| *other != node) {
            ops.push(Op::Lease { node: other, sent: now.mono });
        }
        match (before, self.active) {
            (Some(_), None) => LeaseChange::Lost,
            (before, Some(active)) if before != Some(active) => LeaseChange::Gained,
            (_, _) => LeaseChange::None,
        }
    }

    /// Takes the lease of a node that has no lease itself.
    pub(super) fn use_dead_node(&mut self, now: Now, dead: NodeId, me: NodeId, ops: &mut Vec<Op>) {
        if dead != me && self.record.as_ref().and_then(LeaseRecord::node_id) == Some(dead) {
            self.take(now, me, ops);
        }
    }

    /// Returns whether the holder is an earlier connection of an instance that is connected here.
    fn is_replaced(&self) -> bool {
        let Some(record) = self.record.as_ref().filter(|_| !planted(Planted::NewIncarnationWaits)) else {
            return false;
        };
        let is_newer = |link: &ServingLink| {
            link.instance.is_some() && link.instance == record.instance && link.connected_at > record.since
        };
        self.links.iter().any(is_newer)
    }

    fn take(&mut self, now: Now, me: NodeId, ops: &mut Vec<Op>) {
        if self.is_taking && !planted(Planted::LeaseTakenByEveryReply) {
            return;
        }
        let instance = self.record.as_ref().and_then(|record| record.instance.as_ref());
        let same = self.links.iter().rev().find(|link| link.instance.is_some() && link.instance.as_ref() == instance);
        let Some(link) = same.or(self.links.first()) else { return };
        let record = LeaseRecord {
            node: me.to_string(),
            link: link.link,
            instance: link.instance.clone(),
            bot: link.bot.clone(),
            since: now.store,
            capabilities: Some(link.capabilities.usual().clone()),
        };
        let value = StoredAccount { lease: Some(record), pause: self.pause.clone() }.to_value();
        self.is_taking = true;
        ops.push(Op::Put { name: self.name.clone(), expect: self.version, value });
    }

    /// Handles that the store has answered a write of the value: the lease may be taken by another write.
    pub(super) fn handle_written(&mut self) {
        self.is_taking = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use turnway_wire::channel::adapter::Capability;

    const ME: NodeId = NodeId(10);
    const LIFE: LeaseId = LeaseId(7);
    const LINK: LinkId = LinkId(7);

    fn capabilities(level: i8) -> AdapterCapabilities {
        AdapterCapabilities(BTreeMap::from([("key".to_owned(), Capability { level, max: None, unit: None })]))
    }

    /// Returns the lease of an account with one connection, which has these capabilities.
    fn lease(level: i8) -> AccountLease {
        let channel = ChannelName::parse("rooms").expect("a channel");
        let account = AccountId::parse("main").expect("an account");
        let hello = AdapterHello {
            channel: channel.clone(),
            account: account.clone(),
            platform_bot_id: None,
            instance_id: None,
            capabilities: capabilities(level),
        };
        let tenant = TenantId::parse("default").expect("a tenant");
        let mut lease = AccountLease::new(&AccountKey { tenant, channel, account });
        lease.add(Now::default(), LINK, &hello);
        lease
    }

    /// Hands a stored value over; returns the write that follows.
    fn read(lease: &mut AccountLease, version: u64, value: Option<&[u8]>) -> Option<Op> {
        let mut ops = Vec::new();
        lease.use_value(Now::default(), (ME, LIFE), (version, StoredAccount::read(value)), &mut ops);
        assert!(ops.len() <= 1, "{ops:?}");
        ops.pop()
    }

    /// Returns the expected version and the value of a write, and the capabilities in it.
    fn written(op: Option<&Op>) -> (u64, &[u8], Option<AdapterCapabilities>) {
        let Some(Op::Put { expect, value: Some(value), .. }) = op else { panic!("{op:?}") };
        let service = StoredAccount::read(Some(value)).service().expect("a holder");
        (*expect, value, service.capabilities)
    }

    /// Each of many reads that end while the account has no lease could lead to a write.
    ///
    /// Covers: BR-37.
    #[test]
    fn lease_is_taken_by_one_write_at_a_time() {
        let mut lease = lease(0);
        let taken = read(&mut lease, 0, None);
        written(taken.as_ref());
        assert_eq!(read(&mut lease, 0, None), None, "the first write is on its way");
        // Another node was faster, and has given the lease up.
        lease.handle_written();
        let again = read(&mut lease, 0, None);
        assert_eq!(written(again.as_ref()).1, written(taken.as_ref()).1);
    }

    /// Covers: BD-B4.
    #[test]
    fn changed_capabilities_are_written_until_stored() {
        let mut lease = lease(0);
        let taken = read(&mut lease, 0, None);
        let (_, first, known) = written(taken.as_ref());
        assert_eq!(known, Some(capabilities(0)));
        assert_eq!(read(&mut lease, 1, Some(first)), None, "the lease is confirmed");
        assert_eq!(lease.set_capabilities(LINK, None, capabilities(0)), None, "nothing has changed");
        let place = ConversationRef::without_parent("rooms", "main", "c1").expect("a place");
        assert_eq!(lease.set_capabilities(LINK, Some(place), capabilities(2)), None, "of one conversation only");
        let change = lease.set_capabilities(LINK, None, capabilities(1));
        let (expect, second, known) = written(change.as_ref());
        assert_eq!((expect, known), (1, Some(capabilities(1))));
        // The next change waits for the reply.
        assert_eq!(lease.set_capabilities(LINK, None, capabilities(2)), None);
        let next = read(&mut lease, 2, Some(second));
        let (expect, third, known) = written(next.as_ref());
        assert_eq!((expect, known), (2, Some(capabilities(2))));
        assert_eq!(read(&mut lease, 3, Some(third)), None, "nothing is left to write");
    }

    /// Covers: BD-B4.
    #[test]
    fn value_of_an_earlier_release_gets_the_capabilities() {
        for stored in ["", r#","capabilities":{"key":{"level":"unreadable"}}"#] {
            let value =
                format!(r#"{{"node":"0a","link":7,"since":3,"paused":{{"reason":"operator","since":4}}{stored}}}"#);
            let mut lease = lease(1);
            let before = StoredAccount::read(Some(value.as_bytes()));
            assert_eq!(before.service().map(|it| (it.node, it.capabilities)), Some((ME, None)), "the lease counts");
            lease.use_pause(5, &before);
            let write = read(&mut lease, 5, Some(value.as_bytes()));
            let (expect, next, known) = written(write.as_ref());
            assert_eq!((expect, known), (5, Some(capabilities(1))));
            let next = StoredAccount::read(Some(next));
            assert_eq!((next.pause, next.lease.map(|it| it.since)), (before.pause, Some(Millis(3))), "the rest stays");
        }
    }
}
