//! One account with adapters at this node: its lease, its desk and its previews. The part for adapters owns it.
use super::AdapterContext;
use super::desk::{AdapterDesk, DeskEffect, SendingLink};
use super::lease::{AccountLease, LeaseChange};
use super::sealed::SealedPreviews;
use crate::switchboard::sink::EffectSink;
use turnway_core::id::LinkId;
use turnway_core::limits;
use turnway_core::protocol::delivery::AccountKey;
use turnway_core::time::{Mono, Now};
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
}

impl ServedAccount {
    pub(super) fn new(account: &AccountKey) -> Self {
        let sealed = SealedPreviews::default();
        Self { lease: AccountLease::new(account), desk: None, empty_since: None, sealed }
    }

    /// Returns the connection that may be given parts now.
    pub(super) fn sending_link(&self, context: AdapterContext) -> Option<SendingLink> {
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
        for link in self.lease.links() {
            sink.notify(link, Notification::AdapterState(self.lease.state_of(link)));
        }
    }
}
