//! Writes of an owned session: facts of its runtime, snapshots, and trims.
use super::owned_session::OwnedSession;
use crate::switchboard::delivery::Delivery;
use crate::switchboard::effect::{BindingsCommand, DurableFacts, PartEffect};
use crate::switchboard::sink::{EffectSink, Timer};
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{
    Epoch, InboxPosition, ListenStamp, ListenersVersion, NodeId, OwnershipSnapshot, Seq, SessionKey,
};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::planted::{self, Planted};
use turnway_core::protocol::binding::UnbindReason;
use turnway_core::protocol::entry::{Entry, Fact, SessionFact};
use turnway_core::session::Input as RuntimeInput;
use turnway_core::store::{Append, Op, SnapshotWrite};
use turnway_core::time::Now;
use turnway_wire::peer::PeerMessage;

/// The store's confirmation of an append.
#[derive(Debug)]
pub(super) struct Appended {
    pub(super) owner: OwnershipSnapshot,
    pub(super) tail: Seq,
    pub(super) inbox_tail: InboxPosition,
    pub(super) control_tail: InboxPosition,
    pub(super) version: ListenersVersion,
    pub(super) listeners: Option<BTreeMap<NodeId, ListenStamp>>,
}

/// The result of a confirmed append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AppendOutcome {
    Stored,
    /// No append was in flight.
    Unexpected,
    /// The store does not have what this owner remembers.
    Contradicted,
}

impl OwnedSession {
    /// Writes the next facts; at most one append is in flight per session. `is_leaving`: the node shuts down.
    /// `delivery` knows whether links of this node subscribe.
    pub(super) fn append_backlog(
        &mut self,
        now: Now,
        key: &SessionKey,
        is_leaving: bool,
        delivery: &Delivery,
        sink: &mut EffectSink,
    ) {
        if self.in_flight.is_some() || (self.backlog.is_empty() && self.consumed.is_empty()) {
            return;
        }
        if self.may_delay_write() && !is_leaving {
            let is_awaited = self.has_live_subscriber() || delivery.has_feed(key) || self.runtime.is_gated();
            let wait = if is_awaited { limits::FACT_WAIT } else { limits::FACT_WAIT_UNSUBSCRIBED };
            let at = self.write_at.map_or(now.mono + wait, |at| at.min(now.mono + wait));
            self.write_at = Some(at);
            if at > now.mono {
                return sink.timers.set(Timer::Write(key.clone()), at);
            }
        }
        if self.write_at.take().is_some() {
            sink.timers.clear(&Timer::Write(key.clone()));
        }
        let mut append = Append {
            key: key.clone(),
            token: self.token,
            after: self.tail().seq,
            facts: Vec::new(),
            ends: Vec::new(),
            answers: Vec::new(),
            closed: None,
            annotations: Vec::new(),
            known_listeners: self.version,
        };
        let count = self.backlog.len().min(limits::APPEND_FACTS_MAX);
        if count == self.backlog.len() {
            // An entry that needed no fact of its own depends on the facts before it.
            append.answers = std::mem::take(&mut self.consumed);
        }
        for record in self.backlog.drain(..count) {
            append.annotations.extend(record.entry.fact.annotation());
            append.facts.push(record.entry);
            if let Some(ended) = record.ends {
                self.ending.push((ended.taken, ended.strategy));
                append.ends.push((ended.position, ended.run_id));
            }
            append.answers.extend(record.answers);
            append.closed = record.closed.or(append.closed);
        }
        self.heads = (self.head, self.control_head);
        self.in_flight = Some(append.clone());
        self.append_sent_at = now.mono;
        sink.store(Op::Append(Box::new(append)));
    }

    /// Handles the store's confirmation of the append in flight.
    pub(super) fn finish_append(
        &mut self,
        now: Now,
        me: NodeId,
        key: &SessionKey,
        appended: Appended,
        sink: &mut EffectSink,
    ) -> AppendOutcome {
        let Appended { owner, tail, inbox_tail, control_tail, version, listeners } = appended;
        let token = self.token;
        let Some(append) = self.in_flight.take() else { return AppendOutcome::Unexpected };
        let after = self.tail();
        let forgot = inbox_tail < self.heads.0 || control_tail < self.heads.1;
        if forgot || append.after != after.seq || tail.0 != after.seq.0 + append.facts.len() as u64 {
            return AppendOutcome::Contradicted;
        }
        let facts: Vec<(Epoch, Arc<Entry>)> = append.facts.into_iter().map(|entry| (token.epoch, entry)).collect();
        self.apply_durable(now, key, &facts, sink);
        if let Some(listeners) = listeners.filter(|_| !planted(Mutant::AppendIgnoresListeners)) {
            self.version = version;
            self.replace_subscribers(&listeners);
        }
        self.runtime.handle_input(now, RuntimeInput::Durable(tail));
        let unread = inbox_tail > self.head || control_tail > self.control_head;
        let subscribers = self.other_subscribers(me);
        sink.stats.facts += facts.len() as u64;
        if unread {
            self.read_inbox(key, sink);
        }
        if !facts.is_empty() {
            for node in subscribers {
                let facts = facts.clone();
                sink.send_peer(node, PeerMessage::Facts { key: key.clone(), owner, after, facts });
            }
            let is_closed =
                facts.iter().any(|(_, entry)| matches!(entry.fact, Fact::Session(SessionFact::Closed { .. })));
            let owner = Some(owner);
            sink.push(PartEffect::Facts(DurableFacts { key: key.clone(), after, facts, owner }));
            if is_closed {
                sink.push(BindingsCommand::EndAll { session: key.clone(), reason: UnbindReason::SessionClosed });
            }
        }
        AppendOutcome::Stored
    }

    /// Applies facts that became durable, and counts them.
    fn apply_durable(&mut self, now: Now, key: &SessionKey, facts: &[(Epoch, Arc<Entry>)], sink: &mut EffectSink) {
        for (epoch, entry) in facts {
            if let Fact::Delivery(fact) = &entry.fact {
                sink.stats.delivery_changed(fact);
                self.follow_delivery(key, fact, sink);
            }
            self.durable.apply(*epoch, entry);
            self.bytes_since_snapshot += entry.weight();
        }
        self.follow_conversation_turn(key, sink);
        let ended = facts.iter().filter(|(_, entry)| entry.fact.is_terminal());
        for ((_, entry), (taken, strategy)) in ended.zip(self.ending.drain(..)) {
            sink.stats.turn_ended(&entry.fact, strategy, now.mono - taken);
        }
        sink.stats.append_durations.record(now.mono - self.append_sent_at);
    }

    /// Stores a snapshot, so that the cost of a takeover does not grow with the history.
    pub(super) fn store_snapshot(&mut self, key: &SessionKey, keep_facts: Option<u64>, sink: &mut EffectSink) {
        let tail = self.tail();
        let every = keep_facts.map_or(limits::SNAPSHOT_FACTS / 2, |keep| keep.clamp(1, limits::SNAPSHOT_FACTS / 2));
        let many = tail.seq.0 - self.snapshot_seq.0 >= every;
        if (!many && self.bytes_since_snapshot < limits::SNAPSHOT_BYTES) || self.durable.has_unknown_facts {
            return;
        }
        let Ok(state) = self.durable.to_snapshot() else { return };
        (self.snapshot_seq, self.bytes_since_snapshot) = (tail.seq, 0);
        let token = self.token;
        let state = Arc::from(state);
        sink.store(Op::WriteSnapshot(Box::new(SnapshotWrite { key: key.clone(), token, at: tail, state })));
    }

    /// Trims facts older than the operator's limit once a snapshot is stored, but no facts of an open turn.
    pub(super) fn trim(&mut self, now: Now, key: &SessionKey, keep: u64, at: Seq, sink: &mut EffectSink) {
        let open = self
            .durable
            .runs
            .values()
            .map(|run| run.first.0.saturating_sub(u64::from(!planted::planted(Planted::TrimsFirstFact))));
        let open = open.min();
        let upto = at.0.min(self.tail().seq.0.saturating_sub(keep)).min(open.unwrap_or(u64::MAX));
        if upto > self.trimmed.0 {
            self.trimmed = Seq(upto);
            let due = self.expire_at.is_none_or(|at| at <= now.mono);
            if due {
                // Expiry reads every message id of the session, so it runs rarely.
                self.expire_at = Some(now.mono + limits::EXPIRE_INTERVAL);
            }
            sink.store(Op::Trim { key: key.clone(), token: self.token, upto: Seq(upto) });
            if due {
                let before_ms = now.store.0.saturating_sub(limits::MESSAGE_ID_KEPT_MS);
                sink.store(Op::Expire { key: key.clone(), before_ms });
            }
        }
    }

    /// Appends nothing at the owner's end of the log; the reply shows whether the store has the same log.
    pub(super) fn verify_log(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        if !self.needs_check || self.in_flight.is_some() || self.releasing {
            return;
        }
        self.needs_check = false;
        let token = self.token;
        let after = self.tail().seq;
        let known = self.version;
        let facts = Vec::new();
        let ends = Vec::new();
        let answers = Vec::new();
        let append = Append {
            key: key.clone(),
            token,
            after,
            facts,
            ends,
            answers,
            closed: None,
            annotations: Vec::new(),
            known_listeners: known,
        };
        self.heads = (self.head, self.control_head);
        self.in_flight = Some(append.clone());
        sink.store(Op::Append(Box::new(append)));
    }
}
