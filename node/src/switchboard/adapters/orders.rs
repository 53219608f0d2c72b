//! The orders of sessions owned by this node on their way to the nodes of adapters. An order is repeated until it has an
//! answer, because messages between nodes may be lost; orders that an adapter could not take up anyway wait here.
use super::lease::{LeaseRecord, StoredAccount, lease_name};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{DeliveryId, LinkId, NodeId, SessionKey};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::planted::{self, Planted};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{AccountKey, DeliveryOrder, DeliveryOutcome, DeliveryReport};
use turnway_core::store::Op;
use turnway_core::time::{Mono, Now};

#[cfg(test)]
mod tests;

/// The first wait before another look for the adapter of an account.
const LOOKUP_WAIT: Duration = Duration::from_millis(500);

/// A connection that holds a lease.
pub(super) type LeaseHolder = (NodeId, LinkId);

/// A delivery of a session; at most one of its parts is on its way.
pub(super) type OrderKey = (SessionKey, DeliveryId);

/// The orders of this node's sessions.
#[derive(Debug, Default)]
pub(super) struct OutgoingOrders {
    orders: BTreeMap<OrderKey, OutgoingOrder>,
    by_account: BTreeMap<AccountKey, AccountOrders>,
    /// The orders that were sent, by the time at which they are repeated.
    repeats: BTreeSet<(Mono, OrderKey)>,
    /// Orders so far.
    count: u64,
    /// The known places of adapters. Bounded by [`limits::ADAPTER_LOCATIONS_MAX`] and by the accounts with orders.
    locations: BTreeMap<AccountKey, AdapterLocation>,
}

#[derive(Debug)]
struct OutgoingOrder {
    order: Arc<DeliveryOrder>,
    /// The order was sent to some node.
    was_sent: bool,
    turn: OrderTurn,
}

#[derive(Clone, Copy, Debug)]
enum OrderTurn {
    /// The order waits until earlier ones of its account have an answer; it has this number.
    Waiting(u64),
    /// The order was sent, or could have been, and is due again at this time.
    Repeated(Mono),
}

/// The orders of one account.
#[derive(Debug, Default)]
struct AccountOrders {
    /// In the order of their arrival.
    waiting: BTreeMap<u64, OrderKey>,
    /// At most [`limits::ACCOUNT_ORDERS_SENT_MAX`].
    repeated: BTreeSet<OrderKey>,
}

/// The connection of an account's adapter, as the store had it.
#[derive(Debug, Default)]
struct AdapterLocation {
    /// The node, and its connection that sends.
    holder: Option<LeaseHolder>,
    is_asking: bool,
    /// The last wait before a lookup; zero once the adapter has answered.
    wait: Duration,
    next_lookup: Mono,
}

/// An effect on the order's way.
#[derive(Debug)]
pub(super) enum OrderEffect {
    Send { to: NodeId, order: Arc<DeliveryOrder> },
    LookUp(Op),
}

impl OutgoingOrders {
    pub(super) fn len(&self) -> usize {
        self.orders.len()
    }

    /// Returns the next time at which an order is repeated, or an adapter looked for.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        let repeat = self.repeats.first().map(|(at, _)| *at);
        repeat.into_iter().chain(self.waiting_locations().map(|(_, location)| location.next_lookup)).min()
    }

    fn waiting_locations(&self) -> impl Iterator<Item = (&AccountKey, &AdapterLocation)> {
        self.locations.iter().filter(|(account, location)| {
            location.holder.is_none() && !location.is_asking && self.by_account.contains_key(*account)
        })
    }

    /// Adds an order, in place of an earlier one of the delivery.
    pub(super) fn add(&mut self, now: Now, order: Arc<DeliveryOrder>, effects: &mut Vec<OrderEffect>) {
        let key = (order.key.clone(), order.delivery_id.clone());
        let account = order.account();
        self.remove_order(&key);
        self.count += 1;
        self.by_account.entry(account.clone()).or_default().waiting.insert(self.count, key.clone());
        self.orders.insert(key, OutgoingOrder { order, was_sent: false, turn: OrderTurn::Waiting(self.count) });
        self.send_waiting(now, &account, effects);
    }

    /// Sends the orders whose turn it is to the adapter's node, or looks for the adapter.
    fn send_waiting(&mut self, now: Now, account: &AccountKey, effects: &mut Vec<OrderEffect>) {
        let most =
            if planted::planted(Planted::OrdersUnlimited) { usize::MAX } else { limits::ACCOUNT_ORDERS_SENT_MAX };
        loop {
            let Some(of_account) = self.by_account.get_mut(account) else { return };
            if of_account.repeated.len() >= most {
                return;
            }
            let Some(next) = of_account.waiting.first_entry() else { return };
            let location = self.locations.entry(account.clone()).or_default();
            if location.holder.is_none() {
                return location.look_up(now, account, effects);
            }
            let key = next.remove();
            of_account.repeated.insert(key.clone());
            self.send(now, account, &key, effects);
        }
    }

    /// Sends an order to the adapter's node, or looks for the adapter, and notes when to repeat that.
    fn send(&mut self, now: Now, account: &AccountKey, key: &OrderKey, effects: &mut Vec<OrderEffect>) {
        let Some(out) = self.orders.get_mut(key) else { return };
        let wait =
            if planted(Mutant::OrderNotRepeated) { limits::DELIVERY_AGE_MAX } else { limits::DELIVERY_ORDER_REPEAT };
        let next = now.mono + wait;
        if let OrderTurn::Repeated(at) = std::mem::replace(&mut out.turn, OrderTurn::Repeated(next)) {
            self.repeats.remove(&(at, key.clone()));
        }
        self.repeats.insert((next, key.clone()));
        let location = self.locations.entry(account.clone()).or_default();
        let Some((node, _)) = location.holder else { return location.look_up(now, account, effects) };
        let is_again = std::mem::replace(&mut out.was_sent, true) && !planted(Mutant::OrderRepeatedBlindly);
        if is_again && !out.order.may_be_sent {
            // The adapter may have sent the part, and may have gone since: a desk that does not know the part must not
            // take that for a proof.
            out.order = Arc::new(DeliveryOrder { may_be_sent: true, ..DeliveryOrder::clone(&out.order) });
        }
        let is_repeated = out.order.may_be_sent;
        effects.push(OrderEffect::Send { to: node, order: Arc::clone(&out.order) });
        if is_repeated {
            // The adapter may have gone to another node.
            location.look_up(now, account, effects);
        }
    }

    /// Removes the order that a report answers; a receipt answers every attempt. The next order of the account has its
    /// turn. Returns whether the order was here.
    pub(super) fn finish(
        &mut self,
        now: Now,
        key: &SessionKey,
        report: &DeliveryReport,
        effects: &mut Vec<OrderEffect>,
    ) -> bool {
        let key = (key.clone(), report.delivery_id.clone());
        let is_receipt = matches!(report.outcome, DeliveryOutcome::Sent { .. });
        let is_its =
            |out: &OutgoingOrder| out.order.part == report.part && (out.order.attempt == report.attempt || is_receipt);
        if let Some(location) = self.orders.get(&key).and_then(|out| self.locations.get_mut(&out.order.account())) {
            location.wait = Duration::ZERO;
        }
        if !self.orders.get(&key).is_some_and(is_its) {
            return false;
        }
        if let Some(account) = self.remove(&key) {
            self.send_waiting(now, &account, effects);
        }
        true
    }

    /// Withdraws the order of a delivery that has ended without it.
    pub(super) fn withdraw(&mut self, key: SessionKey, delivery_id: DeliveryId) {
        self.remove(&(key, delivery_id));
    }

    /// Removes an order, and returns its account.
    fn remove(&mut self, key: &OrderKey) -> Option<AccountKey> {
        let account = self.remove_order(key)?;
        if self.by_account.get(&account).is_some_and(AccountOrders::is_empty) {
            self.by_account.remove(&account);
            self.forget_location(&account);
        }
        Some(account)
    }

    fn remove_order(&mut self, key: &OrderKey) -> Option<AccountKey> {
        let out = self.orders.remove(key)?;
        let account = out.order.account();
        if let Some(of_account) = self.by_account.get_mut(&account) {
            match out.turn {
                OrderTurn::Waiting(number) => drop(of_account.waiting.remove(&number)),
                OrderTurn::Repeated(at) => {
                    of_account.repeated.remove(key);
                    self.repeats.remove(&(at, key.clone()));
                }
            }
        }
        Some(account)
    }

    /// Returns the node of an account's adapter, or has it looked for if it is unknown.
    pub(super) fn locate(&mut self, now: Now, account: &AccountKey, effects: &mut Vec<OrderEffect>) -> Option<NodeId> {
        if !self.locations.contains_key(account) && self.locations.len() >= limits::ADAPTER_LOCATIONS_MAX {
            return None;
        }
        let location = self.locations.entry(account.clone()).or_default();
        if location.holder.is_none() {
            location.look_up(now, account, effects);
        }
        location.holder.map(|(node, _)| node)
    }

    /// Returns the node of an account's adapter, if it is known.
    pub(super) fn node_of(&self, account: &AccountKey) -> Option<NodeId> {
        self.locations.get(account).and_then(|location| location.holder).map(|(node, _)| node)
    }

    /// Forgets where an account's adapter is, unless the account has orders or the place is worth remembering.
    pub(super) fn release(&mut self, account: &AccountKey) {
        if !self.by_account.contains_key(account) {
            self.forget_location(account);
        }
    }

    /// Returns whether a session has the order to send a message to a conversation on its way. Changes of messages do not
    /// concern the answer that is being written.
    pub(super) fn has_message_to(&self, session: &SessionKey, conversation: &ConversationRef) -> bool {
        let first = (session.clone(), DeliveryId::first());
        let mut of_session = self.orders.range(first..).take_while(|(key, _)| key.0 == *session);
        let counts = |order: &DeliveryOrder| !order.kind.is_change() || planted::planted(Planted::ChangeHoldsPreviews);
        of_session.any(|(_, out)| counts(&out.order) && out.order.conversation.is_same_place(conversation))
    }

    fn forget_location(&mut self, account: &AccountKey) {
        let is_useless = self.locations.get(account).is_some_and(|location| location.holder.is_none());
        if is_useless || self.locations.len() > limits::ADAPTER_LOCATIONS_MAX {
            self.locations.remove(account);
        }
    }

    /// Forgets the orders of a session that this node does not own any more.
    pub(super) fn forget_session(&mut self, session: &SessionKey) {
        let first = (session.clone(), DeliveryId::first());
        let of_session = self.orders.range(first..).map(|(key, _)| key).take_while(|key| key.0 == *session);
        let keys: Vec<OrderKey> = of_session.cloned().collect();
        keys.iter().for_each(|key| _ = self.remove(key));
    }

    /// Uses the stored lease of an account. A paused account has nobody who sends: an order that is not given to anybody
    /// stays one that was certainly not sent.
    pub(super) fn use_lease(
        &mut self,
        now: Now,
        account: &AccountKey,
        stored: &StoredAccount,
        effects: &mut Vec<OrderEffect>,
    ) {
        let Some(location) = self.locations.get_mut(account) else { return };
        location.is_asking = false;
        let may_send = stored.pause.is_none() || planted::planted(Planted::PauseIgnored);
        let lease = stored.lease.as_ref().filter(|_| may_send);
        let holder = lease.and_then(LeaseRecord::holder);
        let is_new = std::mem::replace(&mut location.holder, holder) != holder;
        if holder.is_none() {
            location.wait_longer(now);
        } else if is_new {
            self.send_all(now, account, effects);
        }
    }

    /// Looks for the adapter of an account at once, because one has arrived.
    pub(super) fn adapter_arrived(&mut self, now: Now, account: &AccountKey, effects: &mut Vec<OrderEffect>) {
        if !self.by_account.contains_key(account) {
            self.locations.remove(account);
        } else if let Some(location) = self.locations.get_mut(account) {
            // A lookup under way may have read the lease before the adapter had it.
            *location = AdapterLocation::default();
            location.look_up(now, account, effects);
        }
    }

    /// Looks for the adapter of an account again after a while: the known one does not send.
    pub(super) fn adapter_failed(&mut self, now: Now, account: &AccountKey, node: NodeId) {
        if let Some(location) = self.locations.get_mut(account).filter(|it| it.holder.is_some_and(|(at, _)| at == node))
        {
            location.holder = None;
            location.wait_longer(now);
        }
    }

    /// Asks a new place of the adapter for what was asked of the former one, and sends what waits.
    fn send_all(&mut self, now: Now, account: &AccountKey, effects: &mut Vec<OrderEffect>) {
        let again = self.by_account.get(account).map(|of_account| of_account.repeated.clone()).unwrap_or_default();
        for key in again {
            self.send(now, account, &key, effects);
        }
        self.send_waiting(now, account, effects);
    }

    /// Repeats the orders that are due, looks for adapters, and drops orders that are too old. Sends what has its turn
    /// since others were withdrawn.
    pub(super) fn handle_timeout(&mut self, now: Now, effects: &mut Vec<OrderEffect>) {
        let due: Vec<OrderKey> =
            self.repeats.iter().take_while(|(at, _)| *at <= now.mono).map(|(_, key)| key.clone()).collect();
        for key in due {
            let Some(order) = self.orders.get(&key).map(|out| Arc::clone(&out.order)) else { continue };
            if order.deadline <= now.store {
                self.remove(&key);
            } else {
                self.send(now, &order.account(), &key, effects);
            }
        }
        let waits = |of_account: &AccountOrders| !of_account.waiting.is_empty();
        let waiting = self.by_account.iter().filter(|(_, of_account)| waits(of_account));
        for account in waiting.map(|(account, _)| account.clone()).collect::<Vec<_>>() {
            self.send_waiting(now, &account, effects);
        }
        let waiting = self.waiting_locations().filter(|(_, location)| location.next_lookup <= now.mono);
        for account in waiting.map(|(account, _)| account.clone()).collect::<Vec<_>>() {
            if let Some(location) = self.locations.get_mut(&account) {
                location.look_up(now, &account, effects);
            }
        }
    }

    /// Forgets what is known of a node that was not reached.
    pub(super) fn handle_unreachable(&mut self, now: Now, node: NodeId) {
        let is_there = |location: &AdapterLocation| location.holder.is_some_and(|(at, _)| at == node);
        for location in self.locations.values_mut().filter(|location| is_there(location)) {
            location.holder = None;
            location.wait_longer(now);
        }
    }

    /// Repeats a lookup later that the store did not answer.
    pub(super) fn handle_lookup_failed(&mut self, now: Now, account: &AccountKey) {
        if let Some(location) = self.locations.get_mut(account) {
            location.is_asking = false;
            location.wait_longer(now);
        }
    }
}

impl AccountOrders {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.repeated.is_empty()
    }
}

impl AdapterLocation {
    fn wait_longer(&mut self, now: Now) {
        self.wait = (self.wait * 2).clamp(LOOKUP_WAIT, limits::ADAPTER_LOOKUP_WAIT_MAX);
        self.next_lookup = now.mono + self.wait;
    }

    fn look_up(&mut self, now: Now, account: &AccountKey, effects: &mut Vec<OrderEffect>) {
        if !self.is_asking && self.next_lookup <= now.mono {
            self.is_asking = true;
            effects.push(OrderEffect::LookUp(Op::Get { name: lease_name(account) }));
        }
    }
}
