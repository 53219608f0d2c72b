//! The upkeep of bindings that every node does: it ends expired bindings, finishes moves, and has the log of each session
//! record the changes. Does no IO; the store decides, and any node may repeat any step.
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{ControlId, ConversationId, Principal, SessionKey, UserId};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::planted::{self, Planted};
use turnway_core::protocol::binding::{Binding, BindingChange, BindingEnd, Generation, UnbindReason};
use turnway_core::protocol::conversation::{ConversationKey, ConversationRef};
use turnway_core::protocol::input::{ControlEntry, ControlRequest};
use turnway_core::rng::Rng;
use turnway_core::store::binding::{BindingAction, BindingOutcome, BindingReport, BindingRow, ConversationState};
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply, StoreError, StoreRefusal};
use turnway_core::time::{Deadline, Mono, Now};

/// The shortest time between two searches for rows that are due, unless the last one found more than it could name; the
/// longest is twice as long. Every node searches, and a binding may end a few seconds late: idle times are hours.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);

/// The time between two searches if there are more rows than one search names.
pub const SEARCH_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// An input of the upkeep.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "an input is handled at once, and never kept")]
pub enum Input {
    /// This node has changed a row: the session's log is to have the change at once.
    Changed { key: ConversationKey, row: Box<BindingRow> },
    /// A reply to an op of the upkeep.
    Stored { op: Op, result: Result<Reply, StoreError> },
}

/// The upkeep of one node.
#[derive(Debug)]
pub struct BindingUpkeep {
    rng: Rng,
    next_search: Mono,
    /// Rows in work, each with the step whose reply is awaited. Bounded by [`limits::DUE_BINDINGS_MAX`]: the next search
    /// finds what is left.
    open: BTreeMap<ConversationKey, UpkeepStep>,
    outputs: VecDeque<Op>,
}

/// The step of a row whose reply is awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
enum UpkeepStep {
    Change,
    /// The log of the session is to record a report.
    Report {
        session: SessionKey,
        control: ControlId,
    },
    /// The row of the conversation's new id is to prepare for the binding.
    Accept {
        to: ConversationKey,
        generation: Generation,
    },
    /// The row of the conversation's old id is to leave an alias, so that this one can take over the binding.
    Arrive {
        from: ConversationKey,
        generation: Generation,
    },
}

impl BindingUpkeep {
    /// Creates the upkeep of a node that has just started.
    pub fn new(rng: Rng) -> Self {
        Self { rng, next_search: Mono::default(), open: BTreeMap::new(), outputs: VecDeque::new() }
    }

    /// Returns the number of rows in work; 0 when all is quiet.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    fn change(&mut self, key: ConversationKey, action: BindingAction) {
        self.open.insert(key.clone(), UpkeepStep::Change);
        self.outputs.push_back(Op::from(ConversationOp::Change { key, action }));
    }

    fn has_room(&self) -> bool {
        self.open.len() < limits::DUE_BINDINGS_MAX as usize
    }

    fn handle_stored(&mut self, now: Now, op: Op, result: Result<Reply, StoreError>) {
        match (op, result) {
            (
                Op::Conversation { op: ConversationOp::FindDue { limit }, .. },
                Ok(Reply::Conversation(ConversationReply::Due(keys))),
            ) => {
                if keys.len() == limit as usize {
                    self.next_search = now.mono + SEARCH_INTERVAL_MIN;
                }
                for key in keys {
                    if self.has_room() && !self.open.contains_key(&key) {
                        self.change(key, BindingAction::Tend);
                    }
                }
            }
            (Op::Conversation { op: ConversationOp::Change { key, action }, .. }, result) => {
                self.use_row(key, &action, result)
            }
            (Op::Control { key, control, .. }, result) => self.use_receipt(&key, &control.id, result),
            // Whatever got no answer is due again.
            _ => {}
        }
    }

    /// Continues with a row that a change of this node has left.
    fn use_row(&mut self, key: ConversationKey, action: &BindingAction, result: Result<Reply, StoreError>) {
        if let BindingAction::AcceptMove { binding, .. } = action {
            return self.use_acceptance(key, binding.generation, result);
        }
        if let BindingAction::FinishMove { generation, to } = action {
            return self.use_alias(key.sibling(to), &key, *generation, result);
        }
        if self.open.get(&key) != Some(&UpkeepStep::Change) {
            return;
        }
        match result {
            Ok(Reply::Conversation(ConversationReply::Row { row: Some(row), .. })) => self.advance(key, &row),
            _ => drop(self.open.remove(&key)),
        }
    }

    /// Takes the next step for a row, if it needs one.
    fn advance(&mut self, key: ConversationKey, row: &BindingRow) {
        if let Some(report) = row.reports.front() {
            return self.report(key, report);
        }
        if let ConversationState::Moving { binding, to, .. } = &row.state {
            return self.prepare_move(key, binding, to);
        }
        if let ConversationState::Arriving { binding, from, .. } = &row.state {
            return self.finish_move(key, binding, from);
        }
        self.open.remove(&key);
    }

    /// Has the session's log record the oldest change that it lacks. The entry has the same id in every try, so that the
    /// log has the change once.
    fn report(&mut self, key: ConversationKey, report: &BindingReport) {
        if report.ended.is_some() && planted(Mutant::BindingEndUnrecorded) {
            return self.change(key, BindingAction::Settle { generation: report.binding.generation, is_end: true });
        }
        let control = control_entry(&key, report);
        let session = SessionKey { tenant: key.tenant.clone(), session: report.binding.session.clone() };
        // The entry is the node's, and the store lets only the session's user or an operator into its control lane.
        let principal =
            Principal { tenant: key.tenant.clone(), user: control.user.clone(), operator: true, writes: true };
        self.open.insert(key, UpkeepStep::Report { session: session.clone(), control: control.id.clone() });
        self.outputs.push_back(Op::Control { key: session, principal, control: Arc::new(control), create: false });
    }

    /// Continues with the row whose report the store has accepted or refused.
    fn use_receipt(&mut self, session: &SessionKey, control: &ControlId, result: Result<Reply, StoreError>) {
        let awaited = UpkeepStep::Report { session: session.clone(), control: control.clone() };
        let Some(key) = self.awaiting(&awaited) else { return };
        let Some((generation, is_end)) = parse_control_id(control) else { return };
        match result {
            Ok(Reply::Accepted(_)) => self.change(key, BindingAction::Settle { generation, is_end }),
            Ok(Reply::Refused(StoreRefusal::NotFound)) if is_end => {
                self.change(key, BindingAction::Settle { generation, is_end });
            }
            // A conversation stays bound to no session that is gone.
            Ok(Reply::Refused(StoreRefusal::NotFound)) => self.end_stale(key, generation, is_end),
            Err(StoreError::Unavailable) if planted::planted(Planted::UncheckedBindingEnds) => {
                self.end_stale(key, generation, is_end);
            }
            Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => drop(self.open.remove(&key)),
        }
    }

    /// Ends a binding to a session that is gone. No log records the end.
    fn end_stale(&mut self, key: ConversationKey, generation: Generation, is_end: bool) {
        let action = BindingAction::Unbind { generation, reason: UnbindReason::StaleSession, farewell: false };
        self.outputs.push_back(Op::from(ConversationOp::Change { key: key.clone(), action }));
        self.change(key, BindingAction::Settle { generation, is_end });
    }

    /// Returns the row in work that awaits this reply.
    fn awaiting(&self, step: &UpkeepStep) -> Option<ConversationKey> {
        self.open.iter().find(|(_, other)| *other == step).map(|(key, _)| key.clone())
    }

    /// Has the row of the conversation's new id prepare for the binding.
    fn prepare_move(&mut self, key: ConversationKey, binding: &Binding, to: &ConversationId) {
        let target = key.sibling(to);
        let conversation = ConversationRef { conversation_id: to.clone(), ..binding.conversation.clone() };
        let moved = Box::new(Binding { conversation, ..binding.clone() });
        let from = key.conversation.clone();
        self.open.insert(key, UpkeepStep::Accept { to: target.clone(), generation: binding.generation });
        let action = BindingAction::AcceptMove { binding: moved, from };
        self.outputs.push_back(Op::from(ConversationOp::Change { key: target, action }));
    }

    /// Continues a move once the new row is prepared; the old one stays bound if the new one has a binding of its own.
    fn use_acceptance(&mut self, to: ConversationKey, generation: Generation, result: Result<Reply, StoreError>) {
        let Some(key) = self.awaiting(&UpkeepStep::Accept { to: to.clone(), generation }) else { return };
        match result {
            Ok(Reply::Conversation(ConversationReply::Row { outcome: BindingOutcome::Applied, row: Some(row) })) => {
                self.open.remove(&key);
                if !self.open.contains_key(&to) {
                    self.advance(to, &row);
                }
            }
            Ok(Reply::Conversation(ConversationReply::Row { .. })) => {
                self.change(key, BindingAction::AbandonMove { generation });
            }
            Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => drop(self.open.remove(&key)),
        }
    }

    /// Has the row of the conversation's old id leave an alias.
    fn finish_move(&mut self, key: ConversationKey, binding: &Binding, from: &ConversationId) {
        let generation = binding.generation;
        let source = key.sibling(from);
        let to = key.conversation.clone();
        self.open.insert(key, UpkeepStep::Arrive { from: source.clone(), generation });
        let action = BindingAction::FinishMove { generation, to };
        self.outputs.push_back(Op::from(ConversationOp::Change { key: source, action }));
    }

    /// Ends a move: the new row takes over the binding, unless the old one has kept it.
    fn use_alias(
        &mut self,
        to: ConversationKey,
        from: &ConversationKey,
        generation: Generation,
        result: Result<Reply, StoreError>,
    ) {
        if self.open.get(&to) != Some(&UpkeepStep::Arrive { from: from.clone(), generation }) {
            return;
        }
        match result {
            Ok(Reply::Conversation(ConversationReply::Row { outcome: BindingOutcome::Applied, .. })) => {
                self.change(to, BindingAction::Arrive { generation });
            }
            Ok(Reply::Conversation(ConversationReply::Row { .. })) => {
                self.change(to, BindingAction::DropArrival { generation });
            }
            Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => drop(self.open.remove(&to)),
        }
    }
}

impl Machine for BindingUpkeep {
    type Input = Input;
    type Output = Op;

    fn handle_input(&mut self, now: Now, input: Input) {
        match input {
            Input::Changed { key, row } => {
                if self.has_room() && !self.open.contains_key(&key) {
                    self.advance(key, &row);
                }
            }
            Input::Stored { op, result } => self.handle_stored(now, op, result),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        if now.mono < self.next_search {
            return;
        }
        let more = u64::try_from(SEARCH_INTERVAL.as_millis()).unwrap_or(u64::MAX);
        self.next_search = now.mono + SEARCH_INTERVAL + Duration::from_millis(1 + self.rng.below(more));
        let limit = limits::DUE_BINDINGS_MAX;
        self.outputs.push_back(Op::from(ConversationOp::FindDue { limit }));
    }

    fn poll_output(&mut self) -> Option<Op> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        Some(Deadline { at: self.next_search, label: "bindings" })
    }
}

const BOUND: &str = "bound";
const ENDED: &str = "ended";

/// Returns the entry that has a session's log record a change. Its id names the change.
fn control_entry(key: &ConversationKey, report: &BindingReport) -> ControlEntry {
    let Binding { generation, conversation, target_kind, bound_at, mirror, .. } = &report.binding;
    let word = if report.ended.is_some() { ENDED } else { BOUND };
    let id = ControlId::for_change(&format!("binding.{word}.{}", generation.0), &key.to_string());
    let conversation = conversation.clone();
    let binding_id = report.binding.id();
    let what = match report.ended {
        None => ControlRequest::RecordBinding {
            bound: Box::new(BindingChange {
                binding_id,
                conversation,
                target_kind: *target_kind,
                bound_at: *bound_at,
                mirror: mirror.then_some(true),
            }),
        },
        Some(reason) => ControlRequest::RecordBindingEnd {
            ended: Box::new(BindingEnd { binding_id, conversation, reason, ended_at: report.at }),
            farewell: report.farewell,
        },
    };
    ControlEntry { id, user: UserId::gateway(), request_id: None, what }
}

/// Returns the generation that a control id names, and whether the entry records an end.
fn parse_control_id(id: &ControlId) -> Option<(Generation, bool)> {
    let mut words = id.as_str().strip_prefix("binding.")?.split(['.', ':']);
    let is_end = words.next()? == ENDED;
    Some((Generation(words.next()?.parse().ok()?), is_end))
}

#[cfg(test)]
mod tests;
