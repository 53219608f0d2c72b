//! The sink of the parts' effects, with the values that every part uses: timers, random numbers, statistics, and the
//! links. Decides nothing; the parts get it as a parameter.
use super::effect::{PartEffect, TasksCommand};
use super::io::Output;
use super::links::LinkTable;
use super::router::requests::RequestKey;
use super::stats::SwitchboardStats;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use turnway_core::id::{LinkId, NodeId, RequestId, RunId, SessionId, SessionKey};
use turnway_core::limits;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::rng::Rng;
use turnway_core::store::Op;
use turnway_core::time::Now;
use turnway_core::timers::Timers;
use turnway_wire::channel::notification::{CommandReply, Notification};
use turnway_wire::peer::PeerMessage;

/// Every timer of the switchboard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Renew,
    Sweep,
    Idle,
    Bindings,
    Adapters,
    Tasks,
    TailDigest,
    Probe,
    Drain,
    Suspect(NodeId),
    Offer(RequestKey),
    Read(SessionKey),
    FetchText(SessionKey),
    Runtime(SessionKey),
    Write(SessionKey),
    Linger(SessionKey),
    Reserve(SessionKey),
    Repeat(u64),
}

/// The sink that a part's methods push their effects to.
#[derive(Debug)]
pub(super) struct EffectSink {
    pub(super) links: LinkTable,
    pub(super) timers: Timers<Timer>,
    pub(super) rng: Rng,
    pub(super) stats: SwitchboardStats,
    /// Store ops that are repeated later, by the number of their timer.
    repeats: BTreeMap<u64, Op>,
    last_repeat: u64,
    /// This node, whose messages to itself are effects.
    me: NodeId,
    /// Effects of the running handler, in order, from the first one that is no output.
    effects: Vec<PartEffect>,
    /// Outputs for the shell, in order.
    pub(super) outbox: VecDeque<Output>,
}

impl EffectSink {
    pub(super) fn new(me: NodeId, links: LinkTable, rng: Rng) -> Self {
        Self {
            me,
            effects: Vec::new(),
            links,
            timers: Timers::default(),
            rng,
            stats: SwitchboardStats::default(),
            repeats: BTreeMap::new(),
            last_repeat: 0,
            outbox: VecDeque::new(),
        }
    }

    /// Adds an effect for another part. Its turn comes after the running handler has returned.
    pub(super) fn push(&mut self, effect: impl Into<PartEffect>) {
        self.effects.push(effect.into());
    }

    /// Adds an output of the node. An output keeps its place among the effects: it waits for the effects that were
    /// added before it.
    pub(super) fn output(&mut self, output: Output) {
        if self.effects.is_empty() {
            self.outbox.push_back(output);
        } else {
            self.effects.push(PartEffect::Output(output));
        }
    }

    /// Sends a message to a node, which may be this one.
    pub(super) fn send_peer(&mut self, to: NodeId, message: PeerMessage) {
        if to == self.me {
            self.push(PartEffect::Peer(message));
        } else {
            self.output(Output::Publish { to, message });
        }
    }

    /// Moves the effects of the handler that has returned onto a stack, the first one on top.
    pub(super) fn unload(&mut self, stack: &mut Vec<PartEffect>) {
        stack.extend(self.effects.drain(..).rev());
        self.effects.shrink_to(limits::EFFECTS_KEPT);
    }

    /// Ends the handling of effects that a panic interrupted. Outputs among them are kept, in their order: an append
    /// among them is in flight for its owner, and an order to an agent must precede the order that ends it. Commands are
    /// dropped, as a panic drops the rest of a function.
    pub(super) fn abandon(&mut self, stack: &mut Vec<PartEffect>) {
        self.unload(stack);
        for effect in stack.drain(..).rev() {
            if let PartEffect::Output(output) = effect {
                self.outbox.push_back(output);
            }
        }
    }

    pub(super) fn store(&mut self, op: Op) {
        self.output(Output::Store(op));
    }

    /// Repeats an op later; every op is idempotent, so an unknown outcome is harmless.
    pub(super) fn retry(&mut self, now: Now, op: Op) {
        self.stats.store_retries += 1;
        self.last_repeat += 1;
        let wait = self.jitter(limits::STORE_RETRY);
        self.repeats.insert(self.last_repeat, op);
        self.timers.set(Timer::Repeat(self.last_repeat), now.mono + wait);
    }

    /// Requests an op again whose wait is over.
    pub(super) fn repeat(&mut self, number: u64) {
        if let Some(op) = self.repeats.remove(&number) {
            self.store(op);
        }
    }

    /// Sends a notification, if the link still exists.
    pub(super) fn notify(&mut self, link: LinkId, note: Notification) {
        if link.is_of_node() {
            return self.push(TasksCommand::Notice { link, notification: Box::new(note) });
        }
        if self.links.count_unwritten(link, note.weight()) {
            self.output(Output::Notify { link, notification: note });
        }
    }

    /// Answers a request with a refusal.
    pub(super) fn refuse(
        &mut self,
        link: LinkId,
        request_id: Option<RequestId>,
        session: Option<SessionId>,
        run_id: Option<RunId>,
        refusal: Refusal,
    ) {
        self.stats.refused.add(refusal.code as usize);
        self.notify(link, Notification::Reply(CommandReply::Refused { request_id, session, run_id, refusal }));
    }

    /// Refuses a request because too many requests of the link wait.
    pub(super) fn refuse_busy(&mut self, link: LinkId, request_id: Option<RequestId>) {
        let refusal = Refusal::new(Code::RateLimited, "too many requests are waiting on this connection");
        self.refuse(link, request_id, None, None, refusal.retry_after(limits::STORE_RETRY_AFTER));
    }

    /// Returns `base` plus a random extension of up to `base`.
    pub(super) fn jitter(&mut self, base: Duration) -> Duration {
        let millis = u64::try_from(base.as_millis()).unwrap_or(u64::MAX);
        base + Duration::from_millis(self.rng.below(millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switchboard::Capacity;

    fn sink() -> EffectSink {
        EffectSink::new(NodeId(1), LinkTable::new(Capacity::default()), Rng::from_seed([7; 32]))
    }

    #[test]
    fn output_waits_for_effects_that_were_added_before_it() {
        let mut sink = sink();
        sink.output(Output::Exit);
        assert!(matches!(sink.outbox.pop_front(), Some(Output::Exit)));
        sink.push(PartEffect::ExitIfDrained);
        sink.output(Output::Exit);
        assert!(sink.outbox.pop_front().is_none());
        let mut stack = Vec::new();
        sink.unload(&mut stack);
        assert!(matches!(stack[..], [PartEffect::Output(Output::Exit), PartEffect::ExitIfDrained]));
    }

    #[test]
    fn effects_of_an_effect_come_before_later_ones() {
        let mut sink = sink();
        let mut stack = vec![PartEffect::Exit];
        sink.push(PartEffect::NodeDied(NodeId(2)));
        sink.push(PartEffect::ExitIfDrained);
        sink.unload(&mut stack);
        assert!(matches!(stack[..], [PartEffect::Exit, PartEffect::ExitIfDrained, PartEffect::NodeDied(_)]));
    }

    #[test]
    fn outputs_outlive_an_interrupted_handler_and_commands_do_not() {
        let mut sink = sink();
        // The effects of the handler that panicked come before those that were waiting.
        let mut stack = vec![PartEffect::Output(Output::Exit), PartEffect::ExitIfDrained];
        sink.push(PartEffect::Exit);
        sink.send_peer(NodeId(2), PeerMessage::Probe);
        assert!(sink.outbox.pop_front().is_none());
        sink.abandon(&mut stack);
        assert!(stack.is_empty());
        assert!(matches!(sink.outbox.pop_front(), Some(Output::Publish { to: NodeId(2), .. })));
        assert!(matches!(sink.outbox.pop_front(), Some(Output::Exit)));
        assert!(sink.outbox.pop_front().is_none());
        sink.unload(&mut stack);
        assert!(stack.is_empty());
    }

    #[test]
    fn message_to_this_node_is_an_effect_and_no_output() {
        let mut sink = sink();
        sink.send_peer(NodeId(2), PeerMessage::Probe);
        assert!(matches!(sink.outbox.pop_front(), Some(Output::Publish { to: NodeId(2), .. })));
        sink.send_peer(NodeId(1), PeerMessage::Probe);
        let mut stack = Vec::new();
        sink.unload(&mut stack);
        assert!(matches!(stack[..], [PartEffect::Peer(PeerMessage::Probe)]) && sink.outbox.pop_front().is_none());
    }
}
