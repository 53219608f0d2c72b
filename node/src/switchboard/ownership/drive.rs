//! Drives the runtimes of owned sessions: hands them inputs, and performs their outputs, facts first and every other
//! output once the facts are durable.
use super::append::{AppendOutcome, Appended};
use super::inbox::OfferOutcome;
use super::owned_session::OwnedSession;
use super::session_task::TaskReceipt;
use super::{OwnerContext, Ownership};
use crate::switchboard::effect::{AdaptersCommand, DeliveryCommand, OwnershipCommand, TasksCommand};
use crate::switchboard::io::Output;
use crate::switchboard::sink::{EffectSink, Timer};
use crate::switchboard::stats::SwitchboardStats;
use turnway_core::id::{FenceToken, InboxPosition, NodeId, OwnershipSnapshot, Seq, SessionKey};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::session::{Input as RuntimeInput, Output as RuntimeOutput};
use turnway_core::store::{InboxContents, Reply};
use turnway_wire::peer::{OfferedEntry, PeerMessage};

impl Ownership {
    // === inputs ===

    /// Handles reports of agents and tool runners.
    pub(in crate::switchboard) fn handle_reports(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        reports: impl ExactSizeIterator<Item = RuntimeInput>,
        sink: &mut EffectSink,
    ) {
        let Some(owned) = self.sessions.owned_mut(key) else {
            sink.stats.late_reports += reports.len() as u64;
            return;
        };
        // The facts of all reports go into one append.
        for report in reports {
            owned.runtime.handle_input(context.now, report);
        }
        self.drive(context, key, sink);
    }

    /// Wakes a runtime at its deadline.
    pub(super) fn handle_runtime_timeout(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        sink: &mut EffectSink,
    ) {
        if let Some(owned) = self.sessions.owned_mut(key) {
            owned.runtime.handle_timeout(context.now);
        }
        self.drive(context, key, sink);
    }

    /// Hands an input to every runtime.
    pub(super) fn broadcast(&mut self, context: OwnerContext<'_>, input: &RuntimeInput, sink: &mut EffectSink) {
        for key in self.sessions.keys() {
            if let Some(owned) = self.sessions.owned_mut(&key) {
                owned.runtime.handle_input(context.now, input.clone());
            }
            self.drive(context, &key, sink);
        }
    }

    /// Drives every runtime, because the lease is valid again.
    pub(super) fn drive_all(&mut self, context: OwnerContext<'_>, sink: &mut EffectSink) {
        for key in self.sessions.keys() {
            self.drive(context, &key, sink);
        }
    }

    /// Starts the next turn that waits for a permit, as far as the capacity allows. Returns false if there is none.
    pub(in crate::switchboard) fn start_next_permitted(
        &mut self,
        context: OwnerContext<'_>,
        sink: &mut EffectSink,
    ) -> bool {
        let Some((key, mut permit)) = self.holdings.next_permitted() else { return false };
        if let Some(owned) = self.sessions.owned_mut(&key) {
            owned.permit = permit;
            owned.runtime.handle_input(context.now, RuntimeInput::PermitGranted);
            self.drive(context, &key, sink);
        } else {
            self.holdings.end_permit(&key, &mut permit);
        }
        true
    }

    /// Handles an entry that was offered to this owner.
    pub(super) fn accept_offer(
        &mut self,
        context: OwnerContext<'_>,
        from: NodeId,
        key: &SessionKey,
        item: OfferedEntry,
        sink: &mut EffectSink,
    ) {
        let now = context.now;
        let Some(owned) = self.sessions.owned_mut(key) else { return };
        match item {
            OfferedEntry::Input { position, prev, input } => {
                let run_id = input.run_id.clone();
                match owned.take_input(now, key, (position, prev), input, sink) {
                    OfferOutcome::Taken => self.drive(context, key, sink),
                    OfferOutcome::Known => {}
                    OfferOutcome::Reading => return,
                }
                if !self.sessions.owned(key).is_some_and(|owned| owned.is_start_announced_to(&run_id, from)) {
                    sink.send_peer(from, PeerMessage::InputAccepted { key: key.clone(), run_id });
                }
            }
            OfferedEntry::Control { position, prev, control } => {
                let outcome = owned.take_control(now, from, key, (position, prev), control, sink);
                if outcome != OfferOutcome::Reading {
                    self.drive(context, key, sink);
                }
            }
        }
    }

    /// Handles a read of inbox and control lane.
    pub(super) fn handle_inbox(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        token: FenceToken,
        had: (InboxPosition, InboxPosition),
        inputs: InboxContents,
        sink: &mut EffectSink,
    ) {
        let Some(owned) = self.sessions.owned_by(key, token) else { return };
        if owned.is_complete(had, &inputs) {
            self.apply_inbox(context, key, token, inputs, sink);
        } else if owned.reclaim_nonce.is_none() {
            sink.push(OwnershipCommand::Reload { key: key.clone(), token });
        }
    }

    /// Handles the entries of inbox and control lane.
    pub(super) fn apply_inbox(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        token: FenceToken,
        inputs: InboxContents,
        sink: &mut EffectSink,
    ) {
        let Some(owned) = self.sessions.owned_by(key, token) else { return };
        owned.apply_inbox(context.now, key, inputs, sink);
        self.drive(context, key, sink);
    }

    /// Handles the result of a session's task.
    pub(super) fn deliver_receipt(&mut self, context: OwnerContext<'_>, receipt: TaskReceipt, sink: &mut EffectSink) {
        let TaskReceipt { key, task, result } = receipt;
        if let Some(owned) = self.sessions.owned_mut(&key) {
            let input = RuntimeInput::TaskResult { tx_id: task.tx_id, receipt: result };
            owned.runtime.handle_input(context.now, input);
        }
        self.drive(context, &key, sink);
    }

    // === writes ===

    /// Handles the store's reply to an append.
    pub(in crate::switchboard) fn handle_appended(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        token: FenceToken,
        reply: Reply,
        sink: &mut EffectSink,
    ) {
        let Some(owned) = self.sessions.owned_by(key, token) else { return };
        let Reply::Appended { tail, inbox_tail, control_tail, version, listeners } = reply else {
            // With a claim in flight, the claim decides about the session.
            if owned.reclaim_nonce.is_none() {
                handle_append_failure(key, token, &reply, sink);
            }
            return;
        };
        let holder = Some(context.membership.lease.holder());
        let owner = OwnershipSnapshot { holder, epoch: token.epoch };
        let appended = Appended { owner, tail, inbox_tail, control_tail, version, listeners };
        match owned.finish_append(context.now, self.me, key, appended, sink) {
            AppendOutcome::Unexpected => {}
            AppendOutcome::Contradicted => sink.push(OwnershipCommand::Reload { key: key.clone(), token }),
            AppendOutcome::Stored => {
                owned.store_snapshot(key, self.keep_facts, sink);
                owned.verify_log(key, sink);
                self.drive(context, key, sink);
            }
        }
    }

    /// Trims facts beyond the operator's limit once a snapshot is stored.
    pub(super) fn handle_snapshot_stored(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        token: FenceToken,
        at: Seq,
        sink: &mut EffectSink,
    ) {
        let Some(keep) = self.keep_facts else { return };
        if let Some(owned) = self.sessions.owned_by(key, token) {
            owned.trim(context.now, key, keep, at, sink);
        }
    }

    // === outputs ===

    /// Drains one session's runtime; at most one append is in flight per session.
    pub(super) fn drive(&mut self, context: OwnerContext<'_>, key: &SessionKey, sink: &mut EffectSink) {
        let now = context.now;
        let leased = context.membership.lease.may_own(now);
        let Some(owned) = self.sessions.owned_mut(key) else { return };
        let lawful = leased && owned.reclaim_nonce.is_none();
        let mut outputs = Vec::new();
        add_counts(&mut sink.stats, owned);
        let mut held_outputs = std::mem::take(&mut owned.held_outputs).into_iter();
        loop {
            while let Some(output) = held_outputs.next().or_else(|| owned.runtime.poll_output()) {
                match output {
                    RuntimeOutput::Record(record) => owned.backlog.push_back(record),
                    RuntimeOutput::RemoveControl { position } => owned.consumed.push(position),
                    RuntimeOutput::Order(order) if lawful => sink.output(Output::Order(order)),
                    RuntimeOutput::Tool(order) if lawful => sink.output(Output::Tool(order)),
                    RuntimeOutput::WithdrawDelivery(delivery_id) => {
                        sink.push(AdaptersCommand::Withdraw { key: key.clone(), delivery_id });
                    }
                    RuntimeOutput::Deliver(order) if lawful => sink.push(AdaptersCommand::Send(order)),
                    RuntimeOutput::Task(order) if lawful => sink.push(TasksCommand::Order(order)),
                    RuntimeOutput::Route(question) if lawful => {
                        sink.push(TasksCommand::Ask { key: key.clone(), question });
                    }
                    other @ (RuntimeOutput::Order(_)
                    | RuntimeOutput::Deliver(_)
                    | RuntimeOutput::Task(_)
                    | RuntimeOutput::Route(_)
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
        sink.timers.set_or_clear(Timer::Runtime(key.clone()), deadline);
        if !lawful {
            return owned.show_text_only(key, outputs, sink);
        }
        let is_leaving = context.membership.drain.is_started();
        owned.append_backlog(now, key, is_leaving, context.delivery, sink);
        for output in outputs {
            self.perform_output(context, key, output, sink);
        }
        self.release_if_quiet(context, key, sink);
    }

    fn perform_output(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        output: RuntimeOutput,
        sink: &mut EffectSink,
    ) {
        let Some(owned) = self.sessions.owned_mut(key) else { return };
        let epoch = owned.epoch();
        match output {
            RuntimeOutput::Chunk(chunk) => {
                let first = (chunk.offset == 0).then(|| owned.runtime.mark_shown(&chunk.run_id)).flatten();
                if let Some(since) = first {
                    sink.stats.first_delta_durations.record(context.now.mono - since);
                }
                owned.show_to_conversation(key, &chunk, sink);
                for node in owned.other_subscribers(self.me) {
                    sink.send_peer(node, PeerMessage::Chunk { key: key.clone(), epoch, chunk: chunk.clone() });
                }
                sink.push(DeliveryCommand::ShowChunk { key: key.clone(), epoch, chunk });
            }
            RuntimeOutput::ProcessOutput { run_id, printed } => {
                for node in owned.other_subscribers(self.me) {
                    let key = key.clone();
                    let run_id = run_id.clone();
                    let printed = printed.clone();
                    sink.send_peer(node, PeerMessage::ProcessOutput { key, epoch, run_id, printed });
                }
                sink.push(DeliveryCommand::ShowProcessOutput { key: key.clone(), epoch, run_id, printed });
            }
            RuntimeOutput::ControlAnswered { control, shown } => {
                let offerer = owned.control_offerers.remove(&control).unwrap_or(self.me);
                sink.send_peer(offerer, PeerMessage::ControlAnswered { key: key.clone(), control, shown });
            }
            RuntimeOutput::SessionTask(task) => {
                if let Some(receipt) = self.tasks.start(key, task, sink) {
                    self.deliver_receipt(context, receipt, sink);
                }
            }
            RuntimeOutput::ReadInbox => {
                owned.catching_up = true;
                owned.read_inbox(key, sink);
            }
            RuntimeOutput::ReadContent => owned.read_inbox(key, sink),
            RuntimeOutput::Record(_)
            | RuntimeOutput::RemoveControl { .. }
            | RuntimeOutput::Order(_)
            | RuntimeOutput::Deliver(_)
            | RuntimeOutput::Task(_)
            | RuntimeOutput::Route(_)
            | RuntimeOutput::WithdrawDelivery(_)
            | RuntimeOutput::Tool(_) => {}
        }
    }

    /// Releases a quiet session after a while, and schedules a tail digest for unacknowledged facts.
    fn release_if_quiet(&mut self, context: OwnerContext<'_>, key: &SessionKey, sink: &mut EffectSink) {
        let now = context.now;
        let me = self.me;
        let kept = planted(Mutant::IdleKept);
        let silent = planted(Mutant::NoBeacon);
        let (digest_wait, _) = context.membership.drain.digest_waits();
        let Some(owned) = self.sessions.owned_mut(key) else { return };
        let tail = owned.tail().seq;
        if !silent
            && owned.subscribers.iter().any(|(node, subscriber)| *node != me && (kept || subscriber.acked < tail))
        {
            sink.timers.set_earlier(Timer::TailDigest, now.mono + digest_wait);
        }
        let unheard = silent && owned.runtime.is_idle() && owned.is_written() && !owned.releasing;
        let linger = Timer::Linger(key.clone());
        if kept || !(owned.is_quiet(me) || unheard) {
            owned.lingering = false;
            sink.timers.clear(&linger);
            return;
        }
        let over = owned.lingering && sink.timers.due_at(&linger).is_none();
        if context.membership.drain.is_started() || over {
            sink.timers.clear(&linger);
            self.give_up(context, key, sink);
        } else if !owned.lingering {
            owned.lingering = true;
            sink.timers.set(linger, now.mono + limits::OWNED_SESSION_LINGER);
        }
    }
}

impl OwnedSession {
    /// Handles outputs without a lease: nothing is recorded, started or ended; text of running attempts is still
    /// shown to this node's links, as provisional as always.
    fn show_text_only(&mut self, key: &SessionKey, outputs: Vec<RuntimeOutput>, sink: &mut EffectSink) {
        let epoch = self.epoch();
        for output in outputs {
            let key = key.clone();
            if let RuntimeOutput::Chunk(chunk) = output {
                sink.push(DeliveryCommand::ShowChunk { key, epoch, chunk });
            } else if let RuntimeOutput::ProcessOutput { run_id, printed } = output {
                sink.push(DeliveryCommand::ShowProcessOutput { key, epoch, run_id, printed });
            } else {
                self.held_outputs.push(output);
            }
        }
    }
}

/// Handles an append that the store did not perform.
fn handle_append_failure(key: &SessionKey, token: FenceToken, reply: &Reply, sink: &mut EffectSink) {
    match reply {
        Reply::OutOfOrder | Reply::InputMissing { .. } => {
            sink.push(OwnershipCommand::Reload { key: key.clone(), token });
        }
        Reply::Fenced => {
            sink.stats.fenced += 1;
            // The reply to this node's claim will name the new owner.
            sink.push(OwnershipCommand::Reload { key: key.clone(), token });
            // A store that lost this claim may still name this node by an earlier one, which would never end.
            sink.push(DeliveryCommand::ReadState(key.clone()));
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
        | Reply::ControlFound { .. }
        | Reply::Sessions { .. }
        | Reply::Idle { .. }
        | Reply::Unowned { .. }
        | Reply::Value { .. }
        | Reply::Conversation(_)
        | Reply::Blobs(_)) => {
            turnway_core::invariant!(false, "unexpected reply to an append: {other:?}")
        }
    }
}

/// Adds a runtime's counts to the statistics.
pub(super) fn add_counts(stats: &mut SwitchboardStats, owned: &mut OwnedSession) {
    let counts = owned.runtime.take_counts();
    stats.restarts += counts.restarts;
    stats.resumed += counts.resumed;
    stats.late_reports += counts.late_reports;
}
