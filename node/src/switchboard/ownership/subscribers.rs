//! The nodes that subscribe to owned sessions, and the positions that they have acknowledged.
use super::owned_session::{OwnedSession, SubscriberNode};
use super::{OwnerContext, Ownership};
use crate::switchboard::effect::{DeliveryCommand, OwnershipCommand};
use crate::switchboard::sink::{EffectSink, Timer};
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{Cursor, ListenStamp, NodeId, SessionKey};
use turnway_core::mutant::{Mutant, planted};
use turnway_core::store::Op;
use turnway_core::time::{Mono, Now};
use turnway_wire::peer::PeerMessage;

impl OwnedSession {
    /// Replaces the subscriber nodes by those of the store; the positions of known ones stay.
    pub(super) fn replace_subscribers(&mut self, listeners: &BTreeMap<NodeId, ListenStamp>) {
        self.subscribers.retain(|node, _| listeners.contains_key(node));
        for (node, stamp) in listeners {
            self.subscribers.entry(*node).or_insert(SubscriberNode::new(*stamp)).stamp = *stamp;
        }
    }

    /// Returns the subscriber nodes other than this node.
    pub(super) fn other_subscribers(&self, me: NodeId) -> Vec<NodeId> {
        self.subscribers.keys().copied().filter(|node| *node != me).collect()
    }

    /// Records the position that a node has.
    fn acknowledge(&mut self, from: NodeId, at: Cursor) {
        let end = self.tail();
        if let Some(subscriber) = self.subscribers.get_mut(&from)
            && (at == end || at.seq < end.seq)
        {
            subscriber.acked = subscriber.acked.max(at.seq);
            subscriber.unanswered_digests = 0;
        }
    }
}

impl Ownership {
    /// Handles a node's message that it has subscribed.
    pub(in crate::switchboard) fn handle_subscribed(
        &mut self,
        key: SessionKey,
        from: NodeId,
        stamp: ListenStamp,
        sink: &mut EffectSink,
    ) {
        if let Some(owned) = self.sessions.owned_mut(&key) {
            owned.subscribers.entry(from).or_insert(SubscriberNode::new(stamp));
            // The subscription proves that the previous owner is alive.
            owned.previous_owner = owned.previous_owner.filter(|before| *before != from);
            if owned.write_at.is_some() {
                // A delayed write is now due soon, because a subscriber waits for it.
                sink.push(OwnershipCommand::Drive(key));
            }
        } else if !self.sessions.contains(&key) {
            // The other node takes this node for the owner, so the store does or did until recently.
            sink.push(DeliveryCommand::ReadState(key));
        }
    }

    /// Handles the positions of a subscriber node. A newer epoch among them ends the ownership first.
    pub(in crate::switchboard) fn handle_acks(from: NodeId, logs: Vec<(SessionKey, Cursor)>, sink: &mut EffectSink) {
        for (key, at) in logs {
            sink.push(OwnershipCommand::CompareEpoch { key: key.clone(), epoch: at.epoch });
            sink.push(OwnershipCommand::Acknowledge { key, from, at });
        }
    }

    /// Records the position of a subscriber node.
    pub(super) fn acknowledge(&mut self, key: SessionKey, from: NodeId, at: Cursor, sink: &mut EffectSink) {
        if let Some(owned) = self.sessions.owned_mut(&key) {
            owned.acknowledge(from, at);
            sink.push(OwnershipCommand::Drive(key));
        }
    }

    /// Checks whether a node is alive: reads its lease, and remembers when the doubt about its subscriptions began.
    pub(super) fn check_lease(&mut self, now: Now, node: NodeId, sink: &mut EffectSink) {
        for (_, owned) in self.sessions.iter_owned_mut() {
            if let Some(subscriber) = owned.subscribers.get_mut(&node)
                && subscriber.checked.is_none_or(|(stamp, _)| stamp != subscriber.stamp)
            {
                subscriber.checked = Some((subscriber.stamp, now.mono));
            }
        }
        sink.store(Op::Lease { node, sent: now.mono });
    }

    /// Removes a node from the subscribers: the node had no lease when checked after this node knew of the
    /// subscription. An earlier check says nothing about a node that has since returned.
    pub(super) fn remove_subscriber(&mut self, node: NodeId, sent: Mono, sink: &mut EffectSink) {
        for (key, owned) in self.sessions.iter_owned_mut() {
            let gone = owned.subscribers.get(&node).filter(|subscriber| {
                let doubted = subscriber.checked.filter(|(stamp, _)| *stamp == subscriber.stamp);
                doubted.is_some_and(|(_, since)| since <= sent) || planted(Mutant::PruneUnheard)
            });
            if let Some(stamp) = gone.map(|subscriber| subscriber.stamp) {
                owned.subscribers.remove(&node);
                sink.store(Op::Unlisten { key: key.clone(), node, stamp });
                sink.push(OwnershipCommand::Drive(key.clone()));
            }
        }
    }

    /// Makes every owner compare its state with the store once its operation in flight is complete, because the
    /// store may have lost writes.
    pub(super) fn verify_all(&mut self, sink: &mut EffectSink) {
        for (key, owned) in self.sessions.iter_owned_mut() {
            owned.needs_check = true;
            owned.verify_log(key, sink);
        }
    }

    /// Sends one message to each subscriber node that has not acknowledged everything.
    pub(super) fn send_tail_digests(&mut self, context: OwnerContext<'_>, sink: &mut EffectSink) {
        let now = context.now;
        let me = self.me;
        let kept = planted(Mutant::IdleKept);
        let mut digests: BTreeMap<NodeId, Vec<(SessionKey, Cursor)>> = BTreeMap::new();
        let mut silent = BTreeSet::new();
        for (key, owned) in self.sessions.iter_owned_mut() {
            let end = owned.tail();
            for (node, subscriber) in owned
                .subscribers
                .iter_mut()
                .filter(|(node, subscriber)| **node != me && (kept || subscriber.acked < end.seq))
            {
                digests.entry(*node).or_default().push((key.clone(), end));
                subscriber.unanswered_digests += 1;
                if subscriber.unanswered_digests.is_multiple_of(5) {
                    silent.insert(*node);
                }
            }
        }
        if !digests.is_empty() {
            sink.timers.set(Timer::TailDigest, now.mono + context.membership.drain.digest_waits().1);
        }
        for node in silent {
            self.check_lease(now, node, sink);
        }
        for (node, logs) in digests {
            sink.send_peer(node, PeerMessage::TailDigest { logs });
        }
    }
}
