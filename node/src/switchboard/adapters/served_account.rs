//! One account with adapters at this node: its lease, its desk and its previews. The part for adapters owns it.
use super::AdapterContext;
use super::desk::{AdapterDesk, DeskEffect, SendingLink};
use super::lease::{AccountLease, LeaseChange, StoredAccount};
use super::sealed::SealedPreviews;
use crate::switchboard::sink::EffectSink;
use turnway_core::id::LinkId;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::delivery::{AccountKey, AccountPause, DeliveryOrder, PauseReason};
use turnway_core::store::Op;
use turnway_core::time::{Mono, Now};
use turnway_wire::channel::adapter::DeliveredCommand;
use turnway_wire::channel::notification::Notification;

/// An account with adapters at this node.
#[derive(Debug)]
pub(super) struct ServedAccount {
    pub(super) lease: AccountLease,
    /// Present since a connection of this node sends.
    pub(super) desk: Option<AdapterDesk>,
    /// The time since which no connection is left.
    pub(super) empty_since: Option<Mono>,
    pub(super) sealed: SealedPreviews,
    /// Receipts of misplaced parts, which are used once the pause is stored: the session's owner ends the delivery by them,
    /// and nobody would pause the account again. At most [`limits::ADAPTER_IN_FLIGHT_MAX`].
    withheld: Vec<(LinkId, DeliveredCommand)>,
}

impl ServedAccount {
    pub(super) fn new(account: &AccountKey) -> Self {
        let sealed = SealedPreviews::default();
        Self { lease: AccountLease::new(account), desk: None, empty_since: None, sealed, withheld: Vec::new() }
    }

    /// Returns whether nothing may be sent, because a part was misplaced or an operator wants it.
    pub(super) fn is_paused(&self) -> bool {
        (self.lease.pause().is_some() || !self.withheld.is_empty()) && !planted(Planted::PauseIgnored)
    }

    /// Returns the connection that may be given parts now.
    pub(super) fn sending_link(&self, context: AdapterContext) -> Option<SendingLink> {
        self.active_link(context).filter(|_| !self.is_paused())
    }

    /// Returns the connection that has the lease.
    pub(super) fn active_link(&self, context: AdapterContext) -> Option<SendingLink> {
        let active = self.lease.active(context.life).filter(|_| context.may_own)?;
        Some(SendingLink {
            link: active.link,
            recognises_key: active.capabilities.recognises_key(),
            creates_conversations: active.capabilities.creates_conversations(),
        })
    }

    /// Returns the time at which the account needs attention.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        let kept_until = self.empty_since.map(|since| since + limits::ADAPTER_DESK_KEPT);
        let next_check = self.empty_since.is_none().then(|| self.lease.next_check());
        let expiry = self.desk.as_ref().and_then(AdapterDesk::next_expiry);
        [kept_until, next_check, expiry].into_iter().flatten().min()
    }

    /// Returns whether the connection that sends has declared that it carries out an order of this kind.
    pub(super) fn supports(&self, context: AdapterContext, order: &DeliveryOrder) -> bool {
        let active = self.lease.active(context.life);
        let changes = active.is_some_and(|it| it.capabilities.changes_messages(order.kind, &order.conversation));
        !order.kind.is_change() || changes
    }

    pub(super) fn takes_files(&self, context: AdapterContext, order: &DeliveryOrder) -> bool {
        let active = self.lease.active(context.life);
        active.is_some_and(|it| it.capabilities.sends_files(&order.conversation))
    }

    pub(super) fn recognises_key(&self, link: LinkId) -> bool {
        self.lease.capabilities_of(link).is_some_and(|capabilities| capabilities.recognises_key())
    }

    pub(super) fn send_queued(&mut self, context: AdapterContext, effects: &mut Vec<DeskEffect>) {
        if let (Some(link), Some(desk)) = (self.sending_link(context), &mut self.desk) {
            desk.send_queued(context.now, link, effects);
        }
    }

    /// Handles an adapter's report about a part. Returns the pause that it leads to: until the pause is stored, the report
    /// is withheld.
    pub(super) fn handle_delivered(
        &mut self,
        now: Now,
        (link, delivered): (LinkId, DeliveredCommand),
        effects: &mut Vec<DeskEffect>,
    ) -> Option<AccountPause> {
        let recognises = self.recognises_key(link);
        let desk = self.desk.as_mut()?;
        let misplaced = desk.misplaced_part(link, &delivered).filter(|_| self.lease.pause().is_none());
        let Some(misplaced) = misplaced.filter(|_| !planted(Planted::MisplacedSendsOn)) else {
            desk.handle_delivered(link, delivered, recognises, effects);
            return None;
        };
        let is_known = |(_, other): &(LinkId, DeliveredCommand)| *other == delivered;
        if self.withheld.len() < limits::ADAPTER_IN_FLIGHT_MAX && !self.withheld.iter().any(is_known) {
            self.withheld.push((link, delivered));
        }
        let misplaced = Some(Box::new(misplaced));
        Some(AccountPause { reason: PauseReason::Misplaced, since: now.store, misplaced })
    }

    /// Uses the pause of a stored value. Returns whether it has changed; `ops` may be a read that decides.
    pub(super) fn use_pause(
        &mut self,
        (version, stored): (u64, &StoredAccount),
        ops: &mut Vec<Op>,
        effects: &mut Vec<DeskEffect>,
    ) -> bool {
        let before = self.lease.pause().cloned();
        ops.extend(self.lease.use_pause(version, stored));
        if self.lease.pause().is_some() {
            for (link, delivered) in std::mem::take(&mut self.withheld) {
                let recognises = self.recognises_key(link);
                if let Some(desk) = &mut self.desk {
                    desk.handle_delivered(link, delivered, recognises, effects);
                }
            }
        }
        let is_changed = before.as_ref() != self.lease.pause();
        if is_changed {
            // Their owners repeat them once the account sends again.
            self.desk.iter_mut().for_each(AdapterDesk::drop_queue);
        }
        is_changed
    }

    /// Tells the connections the state of the account.
    pub(super) fn notify_links(&self, sink: &mut EffectSink) {
        for link in self.lease.links() {
            sink.notify(link, Notification::AdapterState(self.lease.state_of(link)));
        }
    }

    /// Uses a change of the lease, and tells the connections.
    pub(super) fn use_change(&mut self, now: Now, change: &LeaseChange, sink: &mut EffectSink) {
        match change {
            LeaseChange::None => return,
            // Another connection may have sent meanwhile.
            LeaseChange::Gained => match &mut self.desk {
                Some(desk) => desk.set_known_since(now),
                None => self.desk = Some(AdapterDesk::new(now)),
            },
            LeaseChange::Lost => {}
        }
        self.desk.iter_mut().for_each(AdapterDesk::drop_queue);
        self.notify_links(sink);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switchboard::adapters::desk::ReceivedOrder;
    use std::sync::Arc;
    use turnway_core::id::{
        AccountId, ChannelName, DeliveryId, LeaseId, MessageId, NodeId, SessionId, SessionKey, TenantId,
    };
    use turnway_core::private::Private;
    use turnway_core::protocol::conversation::ConversationRef;
    use turnway_core::protocol::delivery::{DeliveryKind, DeliveryOrder, DeliveryOutcome};
    use turnway_core::time::Millis;
    use turnway_wire::channel::adapter::{AdapterCapabilities, AdapterHello, AdapterOutcome};

    const ME: NodeId = NodeId(1);
    const LIFE: LeaseId = LeaseId(7);
    const LINK: LinkId = LinkId(1);

    fn place(id: &str) -> ConversationRef {
        ConversationRef::without_parent("rooms", "main", id).expect("a place")
    }

    fn delivery() -> DeliveryId {
        DeliveryId::parse("abcdefghijklmnopqrstuvwxyz").expect("an id")
    }

    /// Returns an account whose connection has the lease, and was given a part.
    fn serving() -> ServedAccount {
        let tenant = TenantId::parse("default").expect("a tenant");
        let channel = ChannelName::parse("rooms").expect("a channel");
        let account = AccountId::parse("main").expect("an account");
        let hello = AdapterHello {
            channel: channel.clone(),
            account: account.clone(),
            platform_bot_id: None,
            instance_id: None,
            capabilities: AdapterCapabilities::default(),
        };
        let mut served = ServedAccount::new(&AccountKey { tenant: tenant.clone(), channel, account });
        let now = Now::default();
        served.lease.add(now, LINK, &hello);
        let mut ops = Vec::new();
        served.lease.use_value(now, (ME, LIFE), (0, StoredAccount::default()), &mut ops);
        let Some(Op::Put { value, .. }) = ops.pop() else { panic!("the lease is free") };
        let change = served.lease.use_value(now, (ME, LIFE), (1, StoredAccount::read(value.as_deref())), &mut ops);
        assert_eq!(change, LeaseChange::Gained);
        let mut desk = AdapterDesk::new(now);
        let order = DeliveryOrder {
            key: SessionKey { tenant, session: SessionId::parse("s1").expect("a session") },
            delivery_id: delivery(),
            attempt: 1,
            part: 1,
            parts: 1,
            kind: DeliveryKind::Final,
            conversation: place("lobby"),
            reply_to: None,
            text: Private("hello".to_owned()),
            requested_at: Millis(0),
            buttons: None,
            change: None,
            deadline: Millis(u64::MAX),
            may_be_sent: false,
        };
        let link = SendingLink { link: LINK, recognises_key: false, creates_conversations: false };
        let received = ReceivedOrder { from: ME, order: Arc::new(order), is_supported: true, takes_files: false };
        desk.accept(now, received, link, &mut Vec::new());
        served.desk = Some(desk);
        served
    }

    fn receipt(at: &str) -> DeliveredCommand {
        let external_id = MessageId::parse("x1").expect("an id");
        let outcome = AdapterOutcome::Sent { external_id, place: place(at) };
        DeliveredCommand { delivery_id: delivery(), part: 1, outcome }
    }

    /// Covers: BR-11.
    #[test]
    fn misplaced_receipt_is_reported_once_the_pause_is_stored() {
        let mut served = serving();
        let mut effects = Vec::new();
        let pause = served.handle_delivered(Now::default(), (LINK, receipt("elsewhere")), &mut effects);
        let pause = pause.expect("it is misplaced");
        assert_eq!(pause.misplaced.as_ref().map(|part| &part.place), Some(&place("elsewhere")));
        assert!(served.is_paused() && effects.is_empty(), "{effects:?}");
        let stored = StoredAccount { lease: None, pause: Some(pause) };
        assert!(served.use_pause((2, &stored), &mut Vec::new(), &mut effects));
        let [DeskEffect::Report { report, .. }] = effects.as_slice() else { panic!("{effects:?}") };
        assert!(matches!(report.outcome, DeliveryOutcome::Sent { .. }), "{report:?}");
        assert!(served.is_paused());
    }

    /// Covers: BR-11.
    #[test]
    fn receipt_at_its_place_pauses_nothing() {
        let mut served = serving();
        let mut effects = Vec::new();
        assert_eq!(served.handle_delivered(Now::default(), (LINK, receipt("lobby")), &mut effects), None);
        assert!(!served.is_paused());
        assert_eq!(effects.len(), 1, "{effects:?}");
        // A second receipt of the part does not count, wherever it is said to be.
        assert_eq!(served.handle_delivered(Now::default(), (LINK, receipt("elsewhere")), &mut effects), None);
    }

    /// Replies of the store overtake each other: a read from before the pause must not end it.
    ///
    /// Covers: BR-11.
    #[test]
    fn older_value_does_not_end_a_pause() {
        let mut served = serving();
        let pause = AccountPause { reason: PauseReason::Operator, since: Millis(1), misplaced: None };
        let paused = StoredAccount { lease: None, pause: Some(pause) };
        let mut ops = Vec::new();
        served.use_pause((5, &paused), &mut ops, &mut Vec::new());
        served.lease.use_value(Now::default(), (ME, LIFE), (5, paused), &mut Vec::new());
        assert!(!served.use_pause((4, &StoredAccount::default()), &mut ops, &mut Vec::new()));
        assert!(served.is_paused() && matches!(ops.as_slice(), [Op::Get { .. }]), "another read decides: {ops:?}");
        assert!(served.use_pause((6, &StoredAccount::default()), &mut ops, &mut Vec::new()));
        assert!(!served.is_paused());
    }
}
