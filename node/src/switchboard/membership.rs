//! This node among the others: its lease, the nodes that may be dead, takeovers, the expiry of idle
//! sessions, and the shutdown. Says what the node
//! may do; the ownership of single sessions is not its subject.
pub(super) mod drain;
mod idle_expiry;
pub(super) mod lease;
mod suspicion;
mod takeover;

use super::effect::MembershipCommand;
use super::ownership::Ownership;
use super::sink::EffectSink;
use drain::Drain;
use idle_expiry::IdleWalk;
use lease::Lease;
use std::time::Duration;
use suspicion::Suspicions;
use takeover::{Standing, TakeoverState};
use turnway_core::id::NodeId;
use turnway_core::rng::Rng;
use turnway_core::store::{Reply, StoreError};
use turnway_core::time::{Mono, Now};

/// The node's own state, apart from sessions and links.
#[derive(Debug)]
pub(super) struct Membership {
    me: NodeId,
    single_node: bool,
    pub(super) lease: Lease,
    pub(super) suspicions: Suspicions,
    pub(super) takeover: TakeoverState,
    pub(super) drain: Drain,
    pub(super) expiry: IdleWalk,
}

impl Membership {
    pub(super) fn new(me: NodeId, single_node: bool, max_age: Option<Duration>, rng: &mut Rng) -> Self {
        Self {
            me,
            single_node,
            lease: Lease::new(me, rng),
            suspicions: Suspicions::default(),
            takeover: TakeoverState::default(),
            drain: Drain::default(),
            expiry: IdleWalk::new(max_age),
        }
    }

    /// Returns whether this node may claim sessions.
    pub(super) fn may_claim(&self, now: Now) -> bool {
        self.lease.may_own(now) && !self.drain.is_started()
    }

    /// Handles an effect of another part.
    pub(super) fn handle_effect(&mut self, now: Now, command: MembershipCommand, sink: &mut EffectSink) {
        match command {
            MembershipCommand::SuspectNode(node) => self.suspicions.suspect(now, node, sink),
            MembershipCommand::AddFasterNode(node) => self.takeover.add_node(node),
            MembershipCommand::ScheduleSweep(left) => self.takeover.schedule_sweep(now, left, sink),
            MembershipCommand::OfferHandOff { key, free } => self.drain.offer_hand_off(key, free, sink),
        }
    }

    /// Takes the next step of the walk through idle sessions, unless the node is leaving.
    pub(super) fn expire_idle_sessions(&mut self, now: Now, sink: &mut EffectSink) {
        if !self.drain.is_started() {
            self.expiry.start_step(now, sink);
        }
    }

    /// Handles the reply to a lease check of another node.
    pub(super) fn handle_lease_check(
        &mut self,
        now: Now,
        node: NodeId,
        sent: Mono,
        left: Option<Duration>,
        sink: &mut EffectSink,
    ) {
        self.suspicions.handle_lease_check(now, node, sent, left, &self.lease, sink);
    }

    /// Handles a page of sessions without an owner.
    pub(super) fn handle_sweep(
        &mut self,
        now: Now,
        result: Result<Reply, StoreError>,
        ownership: &Ownership,
        sink: &mut EffectSink,
    ) {
        let standing = Standing {
            me: self.me,
            single_node: self.single_node,
            has_stable_contact: self.lease.has_stable_contact(now),
            may_claim: self.may_claim(now),
        };
        self.takeover.handle_sweep(now, result, standing, ownership, sink);
    }
}
