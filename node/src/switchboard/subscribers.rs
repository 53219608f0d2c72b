//! The nodes that subscribe to owned sessions, and the positions that they have acknowledged.
use super::Switchboard;
use super::effect::DeliveryCommand;
use super::owned_session::{SessionOwnership, SubscriberNode};
use super::sink::Timer;
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{Cursor, ListenStamp, NodeId, SessionKey};
use turnway_core::mutant::{Mutant, planted};
use turnway_core::store::{Append, Op};
use turnway_core::time::{Mono, Now};
use turnway_wire::peer::PeerMessage;

impl Switchboard {
    pub(super) fn handle_subscribed(&mut self, now: Now, key: &SessionKey, from: NodeId, stamp: ListenStamp) {
        if let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) {
            owned.subscribers.entry(from).or_insert(SubscriberNode::new(stamp));
            // The subscription proves that the previous owner is alive.
            owned.previous_owner = owned.previous_owner.filter(|before| *before != from);
            if owned.write_at.is_some() {
                // A delayed write is now due soon, because a subscriber waits for it.
                self.drive_runtime(now, key);
            }
        } else if !self.owned_sessions.contains_key(key) {
            // The other node takes this node for the owner, so the store does or did until recently.
            self.sink.push(DeliveryCommand::ReadState(key.clone()));
        }
    }

    pub(super) fn handle_ack(&mut self, now: Now, from: NodeId, logs: &[(SessionKey, Cursor)]) {
        for (key, at) in logs {
            self.handle_newer_epoch(now, key, at.epoch);
            let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
                continue;
            };
            let end = owned.tail();
            if let Some(subscriber) = owned.subscribers.get_mut(&from)
                && (*at == end || at.seq < end.seq)
            {
                subscriber.acked = subscriber.acked.max(at.seq);
                subscriber.unanswered_digests = 0;
            }
            self.drive_runtime(now, key);
        }
    }

    /// Checks whether a node is alive: reads its lease, and remembers when the doubt about its subscriptions began.
    pub(super) fn check_lease(&mut self, now: Now, node: NodeId) {
        for owned in self.owned_sessions.values_mut().filter_map(SessionOwnership::owned_mut) {
            if let Some(subscriber) = owned.subscribers.get_mut(&node)
                && subscriber.checked.is_none_or(|(stamp, _)| stamp != subscriber.stamp)
            {
                subscriber.checked = Some((subscriber.stamp, now.mono));
            }
        }
        self.sink.store(Op::Lease { node, sent: now.mono });
    }

    /// Removes a node from the subscribers: the node had no lease when checked after this node knew of the
    /// subscription. An earlier check says nothing about a node that has since returned.
    pub(super) fn remove_subscriber(&mut self, now: Now, node: NodeId, sent: Mono) {
        let mut struck = Vec::new();
        for (key, ownership) in &mut self.owned_sessions {
            let Some(owned) = ownership.owned_mut() else { continue };
            let gone = owned.subscribers.get(&node).filter(|subscriber| {
                let doubted = subscriber.checked.filter(|(stamp, _)| *stamp == subscriber.stamp);
                doubted.is_some_and(|(_, since)| since <= sent) || planted(Mutant::PruneUnheard)
            });
            if let Some(stamp) = gone.map(|subscriber| subscriber.stamp) {
                owned.subscribers.remove(&node);
                struck.push((key.clone(), stamp));
            }
        }
        for (key, stamp) in struck {
            self.sink.store(Op::Unlisten { key: key.clone(), node, stamp });
            self.drive_runtime(now, &key);
        }
    }

    /// Makes every owner compare its state with the store once its operation in flight is complete, because the
    /// store may have lost writes.
    pub(super) fn verify_owned_sessions(&mut self) {
        for owned in self.owned_sessions.values_mut().filter_map(SessionOwnership::owned_mut) {
            owned.needs_check = true;
        }
        for key in self.owned_sessions.keys().cloned().collect::<Vec<_>>() {
            self.verify_log(&key);
        }
    }

    /// Appends nothing at the owner's end of the log; the reply shows whether the store has the same log.
    pub(super) fn verify_log(&mut self, key: &SessionKey) {
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            return;
        };
        if !owned.needs_check || owned.in_flight.is_some() || owned.releasing {
            return;
        }
        owned.needs_check = false;
        let token = owned.token;
        let after = owned.tail().seq;
        let known = owned.version;
        let facts = Vec::new();
        let ends = Vec::new();
        let answers = Vec::new();
        let append =
            Append { key: key.clone(), token, after, facts, ends, answers, closed: None, known_listeners: known };
        owned.heads = (owned.head, owned.control_head);
        owned.in_flight = Some(append.clone());
        self.sink.store(Op::Append(Box::new(append)));
    }

    /// Sends one message to each subscriber node that has not acknowledged everything.
    pub(super) fn send_tail_digests(&mut self, now: Now) {
        let me = self.me;
        let kept = planted(Mutant::IdleKept);
        let mut digests: BTreeMap<NodeId, Vec<(SessionKey, Cursor)>> = BTreeMap::new();
        let mut silent = BTreeSet::new();
        for (key, ownership) in &mut self.owned_sessions {
            let Some(owned) = ownership.owned_mut() else { continue };
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
            self.sink.timers.set(Timer::TailDigest, now.mono + self.digest_waits().1);
        }
        for node in silent {
            self.check_lease(now, node);
        }
        for (node, logs) in digests {
            self.sink.send_peer(node, PeerMessage::TailDigest { logs });
        }
    }
}
