//! One account with adapters at this node: its lease, its desk and its previews. The part for adapters owns it.
use super::AdapterContext;
use super::desk::{AdapterDesk, DeskEffect, SendingLink};
use super::lease::{AccountLease, LeaseChange, StoredAccount};
use super::sealed::SealedPreviews;
use crate::switchboard::sink::EffectSink;
use turnway_core::id::LinkId;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::delivery::{AccountKey, AccountPause, PauseReason};
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
