//! Performs the outputs of owned sessions: facts first, every other output once the facts are durable.
use super::Switchboard;
use super::effect::{DeliveryCommand, DurableFacts, PartEffect, RouterCommand};
use super::io::Output;
use super::owned_session::{OwnedSession, SessionOwnership, SubscriberNode};
use super::sink::Timer;
use std::sync::Arc;
use turnway_core::id::{Epoch, FenceToken, NodeId, OwnershipSnapshot, Seq, SessionKey};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::planted::{self, Planted};
use turnway_core::protocol::entry::Entry;
use turnway_core::session::{Input as RuntimeInput, Output as RuntimeOutput};
use turnway_core::store::{Append, Op, Reply, SnapshotWrite};
use turnway_core::time::Now;
use turnway_wire::peer::PeerMessage;

impl Switchboard {
    /// Drains one session's runtime; at most one append is in flight per session.
    pub(super) fn drive_runtime(&mut self, now: Now, key: &SessionKey) {
        let leased = self.may_own(now);
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            return;
        };
        let lawful = leased && owned.reclaim_nonce.is_none();
        let mut outputs = Vec::new();
        add_counts(&mut self.sink.stats, owned);
        let mut held_outputs = std::mem::take(&mut owned.held_outputs).into_iter();
        loop {
            while let Some(output) = held_outputs.next().or_else(|| owned.runtime.poll_output()) {
                match output {
                    RuntimeOutput::Record(record) => owned.backlog.push_back(record),
                    RuntimeOutput::RemoveControl { place } => owned.consumed.push(place),
                    RuntimeOutput::Order(order) if lawful => self.sink.output(Output::Order(order)),
                    RuntimeOutput::Tool(order) if lawful => self.sink.output(Output::Tool(order)),
                    other @ (RuntimeOutput::Order(_)
                    | RuntimeOutput::Tool(_)
                    | RuntimeOutput::Chunk(_)
                    | RuntimeOutput::ProcessOutput { .. }
                    | RuntimeOutput::ControlAnswered { .. }
                    | RuntimeOutput::SessionTask(_)
                    | RuntimeOutput::ReadInbox
                    | RuntimeOutput::ReadContent) => outputs.push(other),
                }
            }
            // A session that receives the permit it waits for has further outputs.
            if !self.holdings.update_permit(now, key, owned) {
                break;
            }
        }
        let deadline = owned.runtime.poll_timeout().map(|deadline| deadline.at);
        self.sink.timers.set_or_clear(Timer::Runtime(key.clone()), deadline);
        if !lawful {
            return self.show_text_only(key, outputs);
        }
        self.append_backlog(now, key);
        for output in outputs {
            self.perform_output(now, key, output);
        }
        self.release_if_quiet(now, key);
    }

    /// Handles outputs without a lease: nothing is recorded, started or ended; text of running attempts is still
    /// shown to this node's links, as provisional as always.
    fn show_text_only(&mut self, key: &SessionKey, outputs: Vec<RuntimeOutput>) {
        for output in outputs {
            let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
                return;
            };
            if let RuntimeOutput::Chunk(chunk) = output {
                let epoch = owned.epoch();
                self.sink.push(DeliveryCommand::ShowChunk { key: key.clone(), epoch, chunk });
            } else if let RuntimeOutput::ProcessOutput { run_id, printed } = output {
                let epoch = owned.epoch();
                self.sink.push(DeliveryCommand::ShowProcessOutput { key: key.clone(), epoch, run_id, printed });
            } else {
                owned.held_outputs.push(output);
            }
        }
    }

    fn perform_output(&mut self, now: Now, key: &SessionKey, output: RuntimeOutput) {
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            return;
        };
        match output {
            RuntimeOutput::Chunk(chunk) => {
                let first = (chunk.offset == 0).then(|| owned.runtime.mark_shown(&chunk.run_id)).flatten();
                if let Some(since) = first {
                    self.sink.stats.first_delta_durations.record(now.mono - since);
                }
                let epoch = owned.epoch();
                let subscribers: Vec<NodeId> =
                    owned.subscribers.keys().copied().filter(|node| *node != self.me).collect();
                for node in subscribers {
                    self.sink.send_peer(node, PeerMessage::Chunk { key: key.clone(), epoch, chunk: chunk.clone() });
                }
                self.sink.push(DeliveryCommand::ShowChunk { key: key.clone(), epoch, chunk });
            }
            RuntimeOutput::ProcessOutput { run_id, printed } => {
                let epoch = owned.epoch();
                let subscribers: Vec<NodeId> =
                    owned.subscribers.keys().copied().filter(|node| *node != self.me).collect();
                for node in subscribers {
                    let key = key.clone();
                    let run_id = run_id.clone();
                    let printed = printed.clone();
                    self.sink.send_peer(node, PeerMessage::ProcessOutput { key, epoch, run_id, printed });
                }
                self.sink.push(DeliveryCommand::ShowProcessOutput { key: key.clone(), epoch, run_id, printed });
            }
            RuntimeOutput::ControlAnswered { control, shown } => {
                let offerer = owned.control_offerers.remove(&control).unwrap_or(self.me);
                self.sink.send_peer(offerer, PeerMessage::ControlAnswered { key: key.clone(), control, shown });
            }
            RuntimeOutput::SessionTask(task) => self.start_task(now, key, task),
            RuntimeOutput::ReadInbox => {
                owned.catching_up = true;
                self.read_inbox(key);
            }
            RuntimeOutput::ReadContent => self.read_inbox(key),
            RuntimeOutput::Record(_)
            | RuntimeOutput::RemoveControl { .. }
            | RuntimeOutput::Order(_)
            | RuntimeOutput::Tool(_) => {}
        }
    }

    fn append_backlog(&mut self, now: Now, key: &SessionKey) {
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            return;
        };
        if owned.in_flight.is_some() || (owned.backlog.is_empty() && owned.consumed.is_empty()) {
            return;
        }
        if owned.may_delay_write() && self.drain.is_none() {
            let is_awaited = owned.has_live_subscriber() || self.delivery.has_feed(key) || owned.runtime.is_gated();
            let wait = if is_awaited { limits::FACT_WAIT } else { limits::FACT_WAIT_UNSUBSCRIBED };
            let at = owned.write_at.map_or(now.mono + wait, |at| at.min(now.mono + wait));
            owned.write_at = Some(at);
            if at > now.mono {
                return self.sink.timers.set(Timer::Write(key.clone()), at);
            }
        }
        if owned.write_at.take().is_some() {
            self.sink.timers.clear(&Timer::Write(key.clone()));
        }
        let mut append = Append {
            key: key.clone(),
            token: owned.token,
            after: owned.tail().seq,
            facts: Vec::new(),
            ends: Vec::new(),
            answers: Vec::new(),
            closed: None,
            known_listeners: owned.version,
        };
        let count = owned.backlog.len().min(limits::APPEND_FACTS_MAX);
        if count == owned.backlog.len() {
            // An entry that needed no fact of its own depends on the facts before it.
            append.answers = std::mem::take(&mut owned.consumed);
        }
        for record in owned.backlog.drain(..count) {
            append.facts.push(record.entry);
            if let Some(ended) = record.ends {
                owned.ending.push((ended.taken, ended.strategy));
                append.ends.push((ended.place, ended.run_id));
            }
            append.answers.extend(record.answers);
            append.closed = record.closed.or(append.closed);
        }
        owned.heads = (owned.head, owned.control_head);
        owned.in_flight = Some(append.clone());
        owned.append_sent_at = now.mono;
        self.sink.store(Op::Append(Box::new(append)));
    }

    pub(super) fn handle_appended(&mut self, now: Now, key: &SessionKey, token: FenceToken, reply: Reply) {
        let me = self.me;
        let owner = OwnershipSnapshot { holder: Some(self.lease.holder), epoch: token.epoch };
        let owned = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut);
        let Some(owned) = owned.filter(|owned| owned.token == token) else { return };
        let Reply::Appended { tail, inbox_tail, control_tail, version, listeners } = reply else {
            return self.handle_append_failure(now, key, token, &reply);
        };
        let Some(append) = owned.in_flight.take() else { return };
        let after = owned.tail();
        let forgot = inbox_tail < owned.heads.0 || control_tail < owned.heads.1;
        if forgot || append.after != after.seq || tail.0 != after.seq.0 + append.facts.len() as u64 {
            return self.reload_from_store(now, key, token);
        }
        let facts: Vec<(Epoch, Arc<Entry>)> = append.facts.into_iter().map(|entry| (token.epoch, entry)).collect();
        for (epoch, entry) in &facts {
            owned.durable.apply(*epoch, entry);
            owned.bytes_since_snapshot += entry.weight();
        }
        let ended = facts.iter().filter(|(_, entry)| entry.fact.is_terminal());
        for ((_, entry), (taken, strategy)) in ended.zip(owned.ending.drain(..)) {
            self.sink.stats.turn_ended(&entry.fact, strategy, now.mono - taken);
        }
        self.sink.stats.append_durations.record(now.mono - owned.append_sent_at);
        if let Some(listeners) = listeners.filter(|_| !planted(Mutant::AppendIgnoresListeners)) {
            owned.version = version;
            owned.subscribers.retain(|node, _| listeners.contains_key(node));
            for (node, stamp) in listeners {
                owned.subscribers.entry(node).or_insert(SubscriberNode::new(stamp)).stamp = stamp;
            }
        }
        owned.runtime.handle_input(now, RuntimeInput::Durable(tail));
        let unread = inbox_tail > owned.head || control_tail > owned.control_head;
        let subscribers: Vec<NodeId> = owned.subscribers.keys().copied().filter(|node| *node != me).collect();
        self.sink.stats.facts += facts.len() as u64;
        if unread {
            self.read_inbox(key);
        }
        if !facts.is_empty() {
            for node in subscribers {
                let facts = facts.clone();
                self.sink.send_peer(node, PeerMessage::Facts { key: key.clone(), owner, after, facts });
            }
            self.sink.push(PartEffect::Facts(DurableFacts { key: key.clone(), after, facts, owner: Some(owner) }));
        }
        self.store_snapshot(key);
        self.verify_log(key);
        self.drive_runtime(now, key);
    }

    fn handle_append_failure(&mut self, now: Now, key: &SessionKey, token: FenceToken, reply: &Reply) {
        if self.owned_session_mut(key, token).is_some_and(|owned| owned.reclaim_nonce.is_some()) {
            // The claim in flight will decide about the session.
            return;
        }
        match reply {
            Reply::OutOfOrder | Reply::InputMissing { .. } => self.reload_from_store(now, key, token),
            Reply::Fenced => {
                self.sink.stats.fenced += 1;
                // The reply to this node's claim will name the new owner.
                self.reload_from_store(now, key, token);
                // A store that lost this claim may still name this node by an earlier one, which would never end.
                self.sink.push(DeliveryCommand::ReadState(key.clone()));
            }
            other @ (Reply::Renewed { .. }
            | Reply::LeaseLost
            | Reply::Done
            | Reply::Leased { .. }
            | Reply::Accepted(_)
            | Reply::Refused(_)
            | Reply::Claimed(_)
            | Reply::OwnershipConflict { .. }
            | Reply::Appended { .. }
            | Reply::Released
            | Reply::NotReleased
            | Reply::Transferred { .. }
            | Reply::Listening { .. }
            | Reply::View(_)
            | Reply::Facts(_)
            | Reply::Inbox(_)
            | Reply::Found(_)
            | Reply::Sessions { .. }
            | Reply::Idle { .. }
            | Reply::Unowned { .. }
            | Reply::Value { .. }) => {
                turnway_core::invariant!(false, "unexpected reply to an append: {other:?}")
            }
        }
    }

    /// Stores a snapshot, so that the cost of a takeover does not grow with the history.
    fn store_snapshot(&mut self, key: &SessionKey) {
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            return;
        };
        let tail = owned.tail();
        let every =
            self.keep_facts.map_or(limits::SNAPSHOT_FACTS / 2, |keep| keep.clamp(1, limits::SNAPSHOT_FACTS / 2));
        let many = tail.seq.0 - owned.snapshot_seq.0 >= every;
        if (!many && owned.bytes_since_snapshot < limits::SNAPSHOT_BYTES) || owned.durable.has_unknown_facts {
            return;
        }
        let Ok(state) = owned.durable.to_snapshot() else { return };
        (owned.snapshot_seq, owned.bytes_since_snapshot) = (tail.seq, 0);
        let token = owned.token;
        let state = Arc::from(state);
        self.sink.store(Op::WriteSnapshot(Box::new(SnapshotWrite { key: key.clone(), token, at: tail, state })));
    }

    /// Trims facts older than the operator's limit once a snapshot is stored, but no facts of an open turn.
    pub(super) fn handle_snapshot_stored(&mut self, now: Now, key: &SessionKey, token: FenceToken, at: Seq) {
        let Some(keep) = self.keep_facts else { return };
        let Some(owned) = self.owned_session_mut(key, token) else { return };
        let open = owned
            .durable
            .runs
            .values()
            .map(|run| run.first.0.saturating_sub(u64::from(!planted::planted(Planted::TrimsFirstFact))));
        let open = open.min();
        let upto = at.0.min(owned.tail().seq.0.saturating_sub(keep)).min(open.unwrap_or(u64::MAX));
        if upto > owned.trimmed.0 {
            owned.trimmed = Seq(upto);
            let due = owned.expire_at.is_none_or(|at| at <= now.mono);
            if due {
                // Expiry reads every message id of the session, so it runs rarely.
                owned.expire_at = Some(now.mono + limits::EXPIRE_INTERVAL);
            }
            self.sink.store(Op::Trim { key: key.clone(), token, upto: Seq(upto) });
            if due {
                let before_ms = now.store.0.saturating_sub(limits::MESSAGE_ID_KEPT_MS);
                self.sink.store(Op::Expire { key: key.clone(), before_ms });
            }
        }
    }

    /// Releases a quiet session after a while, and schedules a tail digest for unacknowledged facts.
    fn release_if_quiet(&mut self, now: Now, key: &SessionKey) {
        let me = self.me;
        let draining = self.drain.is_some();
        let kept = planted(Mutant::IdleKept);
        let silent = planted(Mutant::NoBeacon);
        let (digest_wait, _) = self.digest_waits();
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            return;
        };
        let tail = owned.tail().seq;
        if !silent
            && owned.subscribers.iter().any(|(node, subscriber)| *node != me && (kept || subscriber.acked < tail))
        {
            self.sink.timers.set_earlier(Timer::TailDigest, now.mono + digest_wait);
        }
        let unheard = silent && owned.runtime.is_idle() && owned.is_written() && !owned.releasing;
        let linger = Timer::Linger(key.clone());
        if kept || !(owned.is_quiet(me) || unheard) {
            owned.lingering = false;
            self.sink.timers.clear(&linger);
            return;
        }
        let over = owned.lingering && self.sink.timers.due_at(&linger).is_none();
        if draining || over {
            self.sink.timers.clear(&linger);
            self.give_up_ownership(now, key);
        } else if !owned.lingering {
            owned.lingering = true;
            self.sink.timers.set(linger, now.mono + limits::OWNED_SESSION_LINGER);
        }
    }

    pub(super) fn record_runtime_counts(&mut self, owned: &mut OwnedSession) {
        add_counts(&mut self.sink.stats, owned);
    }

    pub(super) fn handle_released(
        &mut self,
        now: Now,
        key: &SessionKey,
        token: FenceToken,
        drain: bool,
        reply: &Reply,
    ) {
        let Some(owned) = self.owned_session_mut(key, token) else { return };
        // If the store has lost the release, this node is still the owner and no other node would claim the
        // session.
        if *reply == Reply::NotReleased || owned.needs_check {
            return self.reload_from_store(now, key, token);
        }
        self.sink.stats.released += 1;
        self.drop_owned_session(key);
        let owner = OwnershipSnapshot { holder: None, epoch: token.epoch };
        self.sink.push(DeliveryCommand::SetOwner { key: key.clone(), owner });
        if drain {
            self.offer_hand_off(key, owner);
        } else {
            self.sink.push(RouterCommand::OfferAll { key: key.clone(), owner });
        }
    }
}

fn add_counts(stats: &mut super::SwitchboardStats, owned: &mut OwnedSession) {
    let counts = owned.runtime.take_counts();
    stats.restarts += counts.restarts;
    stats.resumed += counts.resumed;
    stats.late_reports += counts.late_reports;
}
