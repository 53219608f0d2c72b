//! The inbox and the control lane of an owned session: offered entries, and reads of both.
use super::owned_session::OwnedSession;
use crate::switchboard::effect::RouterCommand;
use crate::switchboard::sink::EffectSink;
use std::sync::Arc;
use turnway_core::id::{ControlId, InboxPosition, NodeId, RunId, SessionKey};
use turnway_core::machine::Machine;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::protocol::entry::{Entry, Fact, RunFact};
use turnway_core::protocol::input::{ControlEntry, Input};
use turnway_core::session::Input as RuntimeInput;
use turnway_core::store::{InboxContents, Op};
use turnway_core::time::Now;

/// The effect of an offered input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferOutcome {
    /// The session has outputs.
    Taken,
    /// The session has the entry already.
    Known,
    /// Entries before the offered one are missing, so the inbox is read.
    Reading,
}

impl OwnedSession {
    /// Takes an offered input if it directly follows the last one.
    pub(super) fn take_input(
        &mut self,
        now: Now,
        key: &SessionKey,
        (position, prev): (InboxPosition, InboxPosition),
        input: Arc<Input>,
        sink: &mut EffectSink,
    ) -> OfferOutcome {
        if self.is_next_input(position, prev) || (position > self.head && planted(Mutant::BellTrusted)) {
            self.head = position;
            self.runtime.handle_input(now, RuntimeInput::Take { position, input });
            OfferOutcome::Taken
        } else if position > self.head {
            self.read_inbox(key, sink);
            OfferOutcome::Reading
        } else {
            OfferOutcome::Known
        }
    }

    /// Takes an offered control entry if it directly follows the last one.
    pub(super) fn take_control(
        &mut self,
        now: Now,
        from: NodeId,
        key: &SessionKey,
        (position, prev): (InboxPosition, InboxPosition),
        control: Arc<ControlEntry>,
        sink: &mut EffectSink,
    ) -> OfferOutcome {
        if position <= self.control_head {
            return OfferOutcome::Known;
        }
        self.control_offerers.insert(ControlId::clone(&control.id), from);
        if prev != self.control_head || !self.runtime.state().has_open_turn() && self.reading {
            self.read_inbox(key, sink);
            return OfferOutcome::Reading;
        }
        self.control_head = position;
        self.runtime.handle_input(now, RuntimeInput::Control { position, control });
        OfferOutcome::Taken
    }

    /// Returns whether the start of a turn is being written and the node subscribes to it, so that it needs no
    /// other confirmation. If the fact is lost, the node repeats its offer.
    pub(super) fn is_start_announced_to(&self, run_id: &RunId, node: NodeId) -> bool {
        let begins = |entry: &Arc<Entry>| {
            matches!(entry.fact, Fact::Run(RunFact::Started { .. })) && entry.run_id.as_ref() == Some(run_id)
        };
        let mut written = self.in_flight.iter().flat_map(|append| &append.facts);
        self.subscribers.contains_key(&node) && written.any(begins)
    }

    /// Reads inbox and control lane; one read at a time.
    pub(super) fn read_inbox(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        if std::mem::replace(&mut self.reading, true) {
            self.read_again = true;
            return;
        }
        let token = self.token;
        let control_after = self.control_head;
        // Starts at an input whose content was left in the store, once its turn has come.
        let wanted = self.runtime.wanted_content().map(|position| InboxPosition(position.0.saturating_sub(1)));
        let after = wanted.map_or(self.head, |before| before.min(self.head));
        sink.store(Op::Inbox { key: key.clone(), token, after, control_after });
    }

    /// Returns whether a read of inbox and control lane reaches the owner's position. If it does not, the store has
    /// lost entries, and missing ones prove nothing about what was accepted.
    pub(super) fn is_complete(&self, had: (InboxPosition, InboxPosition), inputs: &InboxContents) -> bool {
        let lacks =
            |wanted: InboxPosition| had.0 < wanted && !inputs.inputs.iter().any(|(position, _)| *position == wanted);
        let is_gone = self.runtime.wanted_content().is_some_and(lacks);
        inputs.tail >= had.0 && inputs.control_tail >= had.1 && !is_gone
    }

    /// Handles the entries of inbox and control lane: inputs first, because control entries refer to them.
    pub(super) fn apply_inbox(&mut self, now: Now, key: &SessionKey, inputs: InboxContents, sink: &mut EffectSink) {
        self.reading = false;
        let head = self.head;
        let control_head = self.control_head;
        let wanted = self.runtime.wanted_content();
        let content = inputs.inputs.iter().find(|(position, _)| Some(*position) == wanted);
        if let Some((position, input)) = content.map(|(position, input)| (*position, Arc::clone(input))) {
            self.runtime.handle_input(now, RuntimeInput::Content { position, input });
        }
        let mut accepted = Vec::new();
        for (position, input) in inputs_after(&inputs, head) {
            accepted.push(input.run_id.clone());
            self.runtime.handle_input(now, RuntimeInput::Take { position, input });
        }
        let controls = inputs.controls.into_iter().filter(|(position, _)| *position > control_head);
        for (position, control) in controls.filter(|_| !planted(Mutant::ControlUnread)) {
            self.runtime.handle_input(now, RuntimeInput::Control { position, control });
        }
        self.head = self.head.max(inputs.tail);
        self.control_head = self.control_head.max(inputs.control_tail);
        let again = std::mem::take(&mut self.read_again);
        if !again && std::mem::take(&mut self.catching_up) {
            self.runtime.handle_input(now, RuntimeInput::InboxRead);
        }
        for run_id in accepted {
            sink.push(RouterCommand::AcceptInput(run_id));
        }
        if again {
            self.read_inbox(key, sink);
        }
    }
}

/// Returns the inputs after a position, in order.
fn inputs_after(inputs: &InboxContents, head: InboxPosition) -> impl Iterator<Item = (InboxPosition, Arc<Input>)> {
    inputs
        .inputs
        .iter()
        .filter(move |(position, _)| *position > head)
        .map(|(position, input)| (*position, Arc::clone(input)))
}
