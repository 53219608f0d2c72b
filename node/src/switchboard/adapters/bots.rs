//! The claims of platform bot ids: within a tenant and channel one account at a time acts as one login of the platform. A
//! claim is a named value of the store, and lasts as long as its connection and the lease of its node.
use super::lease::lease_name;
use super::served_account::ServedAccount;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use turnway_core::id::{AccountId, ChannelName, LeaseId, LinkId, NodeId, RequestId, TenantId};
use turnway_core::protocol::delivery::AccountKey;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::Op;
use turnway_core::time::{Millis, Now};

/// The prefix of the names of claims in the store.
const PREFIX: &str = "adapter-bot/";

/// A login of a platform, within a tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BotKey {
    pub(super) tenant: TenantId,
    pub(super) channel: ChannelName,
    /// The platform's id of the login.
    pub(super) bot: RequestId,
}

/// The claim of a bot id as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BotClaim {
    account: AccountId,
    /// The node, as 32 hexadecimal digits.
    node: String,
    link: LinkId,
    /// The lease of the node under which the claim was made.
    life: String,
    since: Millis,
}

/// The claims of other nodes that are being examined.
#[derive(Debug, Default)]
pub(super) struct BotClaims {
    /// At most one for each bot id with a connection here.
    examined: BTreeMap<BotKey, (u64, BotClaim)>,
}

/// An effect of a claim.
#[derive(Debug, PartialEq)]
pub(super) enum BotEffect {
    Store(Op),
    /// A connection must not stay: another account acts as its bot id.
    Refuse {
        account: AccountKey,
        link: LinkId,
        refusal: Refusal,
    },
}

/// The accounts with adapters at this node.
type ServedAccounts = BTreeMap<AccountKey, ServedAccount>;

/// The node that uses a claim, and the time by the clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimingNode {
    pub(super) me: NodeId,
    pub(super) life: LeaseId,
    pub(super) now: Now,
}

/// The store's reply to an op on a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimReply<'a> {
    pub(super) version: u64,
    pub(super) value: Option<&'a [u8]>,
    /// The reply to a write, which may have changed the claim.
    pub(super) is_put: bool,
}

/// Returns whether a named value of the store is the claim of a bot id.
pub(super) fn is_claim(name: &str) -> bool {
    name.starts_with(PREFIX)
}

// === impl BotKey ===

impl BotKey {
    /// Returns the name of the claim in the store.
    pub(super) fn name(&self) -> String {
        format!("{PREFIX}{}/{}/{}", self.tenant, self.channel, self.bot)
    }

    /// Returns the bot id whose claim has a name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.splitn(3, '/');
        let tenant = TenantId::parse(parts.next()?).ok()?;
        let channel = ChannelName::parse(parts.next()?).ok()?;
        Some(Self { tenant, channel, bot: RequestId::parse(parts.next()?).ok()? })
    }

    fn account(&self, account: &AccountId) -> AccountKey {
        AccountKey { tenant: self.tenant.clone(), channel: self.channel.clone(), account: account.clone() }
    }

    fn is_of(&self, account: &AccountKey) -> bool {
        account.tenant == self.tenant && account.channel == self.channel
    }
}

// === impl BotClaim ===

impl BotClaim {
    /// Reads the stored value; an unreadable one counts as none.
    fn read(value: Option<&[u8]>) -> Option<Self> {
        value.and_then(|bytes| serde_json::from_slice(bytes).ok())
    }

    fn node_id(&self) -> Option<NodeId> {
        u128::from_str_radix(&self.node, 16).ok().map(NodeId)
    }

    /// Returns the refusal of another account's connection.
    fn refusal(&self, now: Now) -> Refusal {
        let seconds = now.store.0.saturating_sub(self.since.0) / 1000;
        let why = format!(
            "the account {} acts as this platform_bot_id, at node {} for {seconds} s; one account at a time may",
            self.account, self.node
        );
        Refusal::new(Code::BotIdInUse, why)
    }
}

// === impl BotClaims ===

impl BotClaims {
    /// Uses the store's reply to an op on a claim.
    pub(super) fn use_value(
        &mut self,
        node: ClaimingNode,
        key: &BotKey,
        reply: ClaimReply<'_>,
        accounts: &mut ServedAccounts,
        effects: &mut Vec<BotEffect>,
    ) {
        let ClaimReply { version, value, is_put } = reply;
        self.examined.remove(key);
        let Some(claim) = BotClaim::read(value) else {
            claim_for_waiting(node, key, (version, None), accounts, effects);
            return;
        };
        let holder = key.account(&claim.account);
        if claim.node_id() != Some(node.me) {
            let is_taken_over = claim_for_waiting(node, key, (version, Some(&holder)), accounts, effects);
            let has_others = accounts.iter().any(|(account, served)| {
                key.is_of(account) && *account != holder && served.lease.links_of_bot(&key.bot).next().is_some()
            });
            if has_others && !is_taken_over {
                effects.extend(
                    claim.node_id().map(|node_id| BotEffect::Store(Op::Lease { node: node_id, sent: node.now.mono })),
                );
                self.examined.insert(key.clone(), (version, claim));
            }
            return;
        }
        let served = accounts.get_mut(&holder).filter(|served| served.lease.has_link(claim.link));
        let Some(served) = served else {
            // The connection is gone.
            if !claim_for_waiting(node, key, (version, None), accounts, effects) {
                effects.push(BotEffect::Store(Op::Put { name: key.name(), expect: version, value: None }));
            }
            return;
        };
        let is_confirmed = is_put && claim.life == life_text(node.life);
        if is_confirmed && served.lease.confirm_bot(claim.link, &key.bot, (node.life, version)) {
            effects.push(BotEffect::Store(Op::Get { name: lease_name(&holder) }));
        }
        refuse_others(node.now, key, &claim, accounts, effects);
        claim_for_waiting(node, key, (version, Some(&holder)), accounts, effects);
    }

    /// Handles the answer whether a node has a lease: the claims of a dead one are free.
    pub(super) fn handle_lease_check(
        &mut self,
        node: ClaimingNode,
        (checked, is_alive): (NodeId, bool),
        accounts: &mut ServedAccounts,
        effects: &mut Vec<BotEffect>,
    ) {
        let decided = self.examined.extract_if(.., |_, (_, claim)| claim.node_id() == Some(checked));
        for (key, (version, claim)) in decided {
            if is_alive {
                refuse_others(node.now, &key, &claim, accounts, effects);
            } else {
                claim_for_waiting(node, &key, (version, None), accounts, effects);
            }
        }
    }
}

/// Claims a bot id for a connection that has its account's lease and waits for the claim, if there is one. Whoever changes
/// the claim meanwhile is noticed: the version is another one then. Returns whether a connection waits.
fn claim_for_waiting(
    node: ClaimingNode,
    key: &BotKey,
    (version, only): (u64, Option<&AccountKey>),
    accounts: &ServedAccounts,
    effects: &mut Vec<BotEffect>,
) -> bool {
    let of_platform = accounts.iter().filter(|(account, _)| key.is_of(account) && only.is_none_or(|it| it == *account));
    let mut waiting = of_platform.filter_map(|(account, served)| Some((account, served.lease.unclaimed(&key.bot)?)));
    let Some((account, link)) = waiting.next() else { return false };
    let claim = BotClaim {
        account: account.account.clone(),
        node: node.me.to_string(),
        link,
        life: life_text(node.life),
        since: node.now.store,
    };
    let value = serde_json::to_vec(&claim).ok();
    effects.push(BotEffect::Store(Op::Put { name: key.name(), expect: version, value }));
    true
}

/// Refuses the connections of all other accounts with a bot id that is claimed.
fn refuse_others(now: Now, key: &BotKey, claim: &BotClaim, accounts: &ServedAccounts, effects: &mut Vec<BotEffect>) {
    for (account, served) in accounts.iter().filter(|(account, _)| key.is_of(account)) {
        if account.account != claim.account {
            let refuse = |link| BotEffect::Refuse { account: account.clone(), link, refusal: claim.refusal(now) };
            effects.extend(served.lease.links_of_bot(&key.bot).map(refuse));
        }
    }
}

fn life_text(life: LeaseId) -> String {
    format!("{:032x}", life.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_wire::channel::adapter::{AdapterCapabilities, AdapterHello};

    const ME: NodeId = NodeId(1);
    const OTHER: NodeId = NodeId(2);
    const LIFE: LeaseId = LeaseId(7);

    fn key() -> BotKey {
        BotKey::parse("adapter-bot/default/rooms/bot/9").expect("a bot id may have a slash")
    }

    fn node() -> ClaimingNode {
        ClaimingNode { me: ME, life: LIFE, now: Now::default() }
    }

    /// Adds an account with a connection that has the account's lease and waits for the claim.
    fn serve(accounts: &mut ServedAccounts, name: &str, link: u64) {
        let account = key().account(&AccountId::parse(name).expect("an account"));
        let served = accounts.entry(account.clone()).or_insert_with(|| ServedAccount::new(&account));
        let hello = AdapterHello {
            channel: account.channel.clone(),
            account: account.account.clone(),
            platform_bot_id: Some(key().bot),
            instance_id: None,
            capabilities: AdapterCapabilities::default(),
        };
        served.lease.add(Now::default(), LinkId(link), &hello);
        let mut ops = Vec::new();
        served.lease.use_value(Now::default(), (ME, LIFE), (0, Default::default()), &mut ops);
        let Some(Op::Put { value, .. }) = ops.pop() else { panic!("the lease is free") };
        let stored = super::super::lease::StoredAccount::read(value.as_deref());
        served.lease.use_value(Now::default(), (ME, LIFE), (1, stored), &mut ops);
        assert_eq!(ops, [Op::Get { name: key().name() }], "the claim is read before the connection sends");
        assert!(served.lease.active(LIFE).is_none());
    }

    fn claim_of(account: &str, node: NodeId, link: u64) -> Vec<u8> {
        let claim = BotClaim {
            account: AccountId::parse(account).expect("an account"),
            node: node.to_string(),
            link: LinkId(link),
            life: life_text(LIFE),
            since: Millis(0),
        };
        serde_json::to_vec(&claim).expect("JSON")
    }

    /// Hands a reply over; returns the effects.
    fn reply(
        claims: &mut BotClaims,
        accounts: &mut ServedAccounts,
        (version, value, is_put): (u64, Option<&[u8]>, bool),
    ) -> Vec<BotEffect> {
        let mut effects = Vec::new();
        claims.use_value(node(), &key(), ClaimReply { version, value, is_put }, accounts, &mut effects);
        effects
    }

    fn put(version: u64, value: Option<Vec<u8>>) -> BotEffect {
        BotEffect::Store(Op::Put { name: key().name(), expect: version, value })
    }

    fn refused(effects: &[BotEffect]) -> Vec<LinkId> {
        let refused = |effect: &BotEffect| if let BotEffect::Refuse { link, .. } = effect { Some(*link) } else { None };
        effects.iter().filter_map(refused).collect()
    }

    /// Covers: BR-37.
    #[test]
    fn claim_is_confirmed_by_its_own_write_in_the_same_life() {
        let mut accounts = ServedAccounts::new();
        let mut claims = BotClaims::default();
        serve(&mut accounts, "a", 1);
        let own = claim_of("a", ME, 1);
        assert_eq!(reply(&mut claims, &mut accounts, (0, None, false)), [put(0, Some(own.clone()))]);
        // A read proves nothing: another node may be about to take the claim of an earlier life.
        assert_eq!(reply(&mut claims, &mut accounts, (1, Some(&own), false)), [put(1, Some(own.clone()))]);
        let lease = Op::Get { name: lease_name(&key().account(&AccountId::parse("a").expect("an account"))) };
        let confirmed = reply(&mut claims, &mut accounts, (2, Some(&own), true));
        assert_eq!(confirmed.first(), Some(&BotEffect::Store(lease)), "{confirmed:?}");
    }

    /// Covers: BR-37.
    #[test]
    fn second_account_is_refused_while_the_holder_lives() {
        let mut accounts = ServedAccounts::new();
        let mut claims = BotClaims::default();
        serve(&mut accounts, "b", 5);
        let foreign = claim_of("a", OTHER, 1);
        let asked = reply(&mut claims, &mut accounts, (3, Some(&foreign), false));
        let [BotEffect::Store(Op::Lease { node: OTHER, .. })] = asked.as_slice() else { panic!("{asked:?}") };
        let mut effects = Vec::new();
        claims.handle_lease_check(node(), (OTHER, true), &mut accounts, &mut effects);
        assert_eq!(refused(&effects), [LinkId(5)]);
        let [BotEffect::Refuse { refusal, .. }] = effects.as_slice() else { panic!("{effects:?}") };
        assert_eq!(refusal.code, Code::BotIdInUse);
        let names_holder = refusal.message.contains("account a ") && refusal.message.contains(&OTHER.to_string());
        assert!(names_holder, "{}", refusal.message);
        // The node of the holder dies.
        reply(&mut claims, &mut accounts, (3, Some(&foreign), false));
        effects.clear();
        claims.handle_lease_check(node(), (OTHER, false), &mut accounts, &mut effects);
        assert_eq!(effects, [put(3, Some(claim_of("b", ME, 5)))]);
    }

    /// Covers: BR-37.
    #[test]
    fn own_account_and_gone_connections_never_block() {
        let mut accounts = ServedAccounts::new();
        let mut claims = BotClaims::default();
        serve(&mut accounts, "b", 5);
        for earlier in [claim_of("b", OTHER, 1), claim_of("b", ME, 4), claim_of("a", ME, 1)] {
            let effects = reply(&mut claims, &mut accounts, (3, Some(&earlier), false));
            assert_eq!(effects, [put(3, Some(claim_of("b", ME, 5)))]);
        }
        // Nobody waits for the claim of a connection that is gone: it is removed.
        accounts.clear();
        assert_eq!(reply(&mut claims, &mut accounts, (3, Some(&claim_of("a", ME, 1)), false)), [put(3, None)]);
    }

    #[test]
    fn refused_account_leaves_the_holder_of_its_node_alone() {
        let mut accounts = ServedAccounts::new();
        let mut claims = BotClaims::default();
        serve(&mut accounts, "a", 1);
        let own = claim_of("a", ME, 1);
        reply(&mut claims, &mut accounts, (1, Some(&own), true));
        serve(&mut accounts, "b", 5);
        let effects = reply(&mut claims, &mut accounts, (1, Some(&own), false));
        assert_eq!(refused(&effects), [LinkId(5)], "{effects:?}");
    }
}
