//! The row of a conversation: who it is bound to, how its last binding ended, and the changes that sessions' logs do not
//! have yet. One pure function changes a row; every store runs it in an atomic step, so all stores decide alike.
use crate::id::{ConversationId, Nonce, Principal, SessionId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::binding::{
    Binding, BindingStatus, EndedBinding, ExpiryRules, Generation, TargetKind, UnbindReason,
};
use crate::protocol::conversation::ConversationRef;
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A change of a conversation's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindingAction {
    /// Return the row as it is.
    Resolve,
    /// Bind the conversation.
    Bind(Box<NewBinding>),
    /// Record that a message was routed at a time. A time that is not later than the recorded one, or hardly later,
    /// changes nothing.
    Touch { generation: Generation, at: Millis },
    /// Change the times by which the binding expires.
    SetExpiry { generation: Generation, expiry: ExpiryRules },
    /// End the binding; with `farewell`, the conversation gets a last word if the reason permits one.
    Unbind { generation: Generation, reason: UnbindReason, farewell: bool },
    /// Do what is due by the store's clock: end an expired binding, or forget one that ended long ago.
    Tend,
    /// The log of the session has the oldest change that waits, which is of this generation.
    Settle { generation: Generation, is_end: bool },
    /// Prepare the move of the binding to another id of the same conversation.
    StartMove { generation: Generation, to: ConversationId },
    /// Prepare to take over a binding from another id, whose conversation got this one.
    AcceptMove { binding: Box<Binding>, from: ConversationId },
    /// Leave an alias behind, now that the other row is ready.
    FinishMove { generation: Generation, to: ConversationId },
    /// Stay bound under the present id, because the other row has a binding of its own.
    AbandonMove { generation: Generation },
    /// Take over the prepared binding: the other id is an alias.
    Arrive { generation: Generation },
    /// Forget the prepared binding: the other id has kept it, or moved elsewhere.
    DropArrival { generation: Generation },
}

/// A binding to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBinding {
    /// The conversation with its parent; its key is the row's.
    pub conversation: ConversationRef,
    pub session: SessionId,
    /// The caller, who must be allowed to use the session.
    pub principal: Principal,
    pub target_kind: TargetKind,
    /// The generation that the caller wants to replace; `None`: the conversation must be free, or bound to the same
    /// session.
    pub expected: Option<Generation>,
    pub expiry: ExpiryRules,
    /// As in [`Binding::mirror`].
    pub mirror: bool,
    pub metadata: BTreeMap<String, String>,
    /// Fields that the caller did not name: they stay as they are in the binding that is replaced.
    pub unnamed: UnnamedFields,
    /// Chosen at random by the caller: the same nonce repeats the same bind.
    pub nonce: Nonce,
}

/// Fields of a binding to make that have their defaults, because the caller did not name them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnnamedFields {
    pub idle_timeout: bool,
    pub max_age: bool,
    /// Metadata is about the session: it stays only if the session does.
    pub metadata: bool,
    /// The same holds for it.
    pub mirror: bool,
}

/// The result of an action on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingOutcome {
    /// The row is as the action wants it, now or since an earlier time.
    Applied,
    /// The row is of another generation, or the conversation is bound to another session.
    NotApplied,
    /// Too many changes wait for logs.
    TooManyReports,
}

/// The row of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingRow {
    /// The generation that was given last.
    pub generation: Generation,
    pub state: ConversationState,
    /// The last binding that ended here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_ended: Option<Box<EndedBinding>>,
    /// Changes that the logs of their sessions do not have yet, oldest first.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub reports: VecDeque<BindingReport>,
}

/// The present state of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConversationState {
    Free,
    Bound(Box<Binding>),
    /// Bound, and about to get another id. Nothing but the move changes the row, because the other row may be ready.
    Moving {
        binding: Box<Binding>,
        to: ConversationId,
        at: Millis,
    },
    /// About to take over the binding of another id. Whether the conversation is bound cannot be known until then.
    Arriving {
        binding: Box<Binding>,
        from: ConversationId,
        at: Millis,
    },
    /// The conversation has another id.
    Moved {
        to: ConversationId,
        at: Millis,
    },
}

/// A change of a binding, for the log of its session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingReport {
    pub binding: Binding,
    /// The reason, if the change is the end of the binding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<UnbindReason>,
    /// The conversation is to get a last word, if its channel has one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub farewell: bool,
    pub at: Millis,
}

impl Default for BindingRow {
    /// Returns the row of a conversation that nobody has bound.
    fn default() -> Self {
        Self {
            generation: Generation::default(),
            state: ConversationState::Free,
            last_ended: None,
            reports: VecDeque::new(),
        }
    }
}

impl BindingRow {
    /// Returns the binding that messages and answers go by.
    pub fn active(&self) -> Option<&Binding> {
        match &self.state {
            ConversationState::Bound(binding) | ConversationState::Moving { binding, .. } => Some(binding),
            ConversationState::Free | ConversationState::Arriving { .. } | ConversationState::Moved { .. } => None,
        }
    }

    /// Returns the state of a binding of this conversation; `None` if nothing is known about it any more.
    pub fn status(&self, generation: Generation) -> Option<BindingStatus> {
        if self.active().is_some_and(|active| active.generation == generation) {
            return Some(BindingStatus::Active);
        }
        let is_pending = |report: &BindingReport| report.ended.is_some() && report.binding.generation == generation;
        if self.reports.iter().any(is_pending) {
            return Some(BindingStatus::Ending);
        }
        let is_last = self.last_ended.as_ref().is_some_and(|last| last.binding.generation == generation);
        is_last.then_some(BindingStatus::Ended)
    }

    /// Returns whether a move of the conversation to another id is in progress.
    pub fn is_moving(&self) -> bool {
        matches!(self.state, ConversationState::Moving { .. } | ConversationState::Arriving { .. })
    }

    /// Returns the session that lists the conversation among its bindings.
    pub fn listed_session(&self) -> Option<&SessionId> {
        self.active().map(|binding| &binding.session)
    }

    /// Returns the time at which the row wants to be tended, by the store's clock.
    pub fn due(&self) -> Option<Millis> {
        if let Some(report) = self.reports.front() {
            return Some(report.at.after(limits::BINDING_REPORT_DUE));
        }
        match &self.state {
            ConversationState::Bound(binding) => binding.expiry().map(|(at, _)| at),
            // The node that began the move may have stopped.
            ConversationState::Moving { at, .. } | ConversationState::Arriving { at, .. } => {
                Some(at.after(limits::BINDING_REPORT_DUE))
            }
            ConversationState::Free => {
                self.last_ended.as_ref().map(|last| last.ended_at.after(limits::BINDING_TOMBSTONE_KEPT))
            }
            ConversationState::Moved { at, .. } => Some(at.after(limits::BINDING_TOMBSTONE_KEPT)),
        }
    }
}

/// Performs an action on a conversation's row. Returns the row that the store has to keep; `None`: no row.
pub fn change_row(
    row: Option<BindingRow>,
    now: Millis,
    action: &BindingAction,
) -> (BindingOutcome, Option<BindingRow>) {
    let was_stored = row.is_some();
    let mut row = row.unwrap_or_default();
    let outcome = match action {
        BindingAction::Resolve => BindingOutcome::Applied,
        BindingAction::Bind(new) => row.bind(now, new),
        BindingAction::Touch { generation, at } => row.touch(*generation, *at),
        BindingAction::SetExpiry { generation, expiry } => row.set_expiry(*generation, *expiry),
        BindingAction::Unbind { generation, reason, farewell } => row.unbind(now, *generation, (*reason, *farewell)),
        BindingAction::Tend => row.tend(now),
        BindingAction::Settle { generation, is_end } => row.settle(*generation, *is_end),
        BindingAction::StartMove { generation, to } => row.start_move(now, *generation, to),
        BindingAction::AcceptMove { binding, from } => row.accept_move(now, binding, from),
        BindingAction::FinishMove { generation, to } => row.finish_move(now, *generation, to),
        BindingAction::AbandonMove { generation } => row.abandon_move(*generation),
        BindingAction::Arrive { generation } => row.arrive(*generation),
        BindingAction::DropArrival { generation } => row.drop_arrival(*generation),
    };
    let is_kept = match row.state {
        ConversationState::Free => row.last_ended.is_some() || !row.reports.is_empty(),
        ConversationState::Bound(_)
        | ConversationState::Moving { .. }
        | ConversationState::Arriving { .. }
        | ConversationState::Moved { .. } => true,
    };
    // A row that was stored goes only when it is tended: until then it keeps its generation.
    let is_forgotten = !is_kept && (!was_stored || matches!(action, BindingAction::Tend));
    (outcome, (!is_forgotten).then_some(row))
}

/// Fields that a new binding may take over from the one it replaces.
struct InheritedFields {
    expiry: ExpiryRules,
    mirror: bool,
    metadata: BTreeMap<String, String>,
}

/// Returns these fields of a new binding.
fn inherited(new: &NewBinding, replaced: Option<&Binding>) -> InheritedFields {
    let mut expiry = new.expiry;
    let mut mirror = new.mirror;
    let mut metadata = &new.metadata;
    if let Some(old) = replaced {
        if new.unnamed.idle_timeout {
            expiry.idle_timeout = old.expiry.idle_timeout;
        }
        if new.unnamed.max_age {
            expiry.max_age = old.expiry.max_age;
        }
        if new.unnamed.metadata && old.session == new.session {
            metadata = &old.metadata;
        }
        if new.unnamed.mirror && old.session == new.session {
            mirror = old.mirror;
        }
    }
    InheritedFields { expiry, mirror, metadata: metadata.clone() }
}

impl BindingRow {
    fn bind(&mut self, now: Millis, new: &NewBinding) -> BindingOutcome {
        let replaced = match &self.state {
            ConversationState::Bound(active) if active.nonce == new.nonce => return BindingOutcome::Applied,
            // An alias is no place of its own.
            ConversationState::Moving { .. } | ConversationState::Arriving { .. } | ConversationState::Moved { .. } => {
                return BindingOutcome::NotApplied;
            }
            ConversationState::Bound(active) => Some(active.clone()),
            ConversationState::Free => None,
        };
        let is_expected = match (new.expected, &replaced) {
            (None, None) => true,
            (None, Some(active)) => active.session == new.session,
            (Some(expected), Some(active)) => active.generation == expected,
            (Some(expected), None) => expected == Generation::default() || expected == self.generation,
        };
        if !is_expected && !planted(Mutant::BindAnyGeneration) {
            return BindingOutcome::NotApplied;
        }
        // Three: the end of the binding that is replaced, the new one, and its end.
        if self.reports.len() + 3 > limits::BINDING_REPORTS_MAX {
            return BindingOutcome::TooManyReports;
        }
        let InheritedFields { expiry, mirror, metadata } = inherited(new, replaced.as_deref());
        if let Some(active) = replaced {
            self.end(now, *active, (UnbindReason::Rebound, false));
        }
        if !planted(Mutant::BindingKeepsGeneration) || self.generation == Generation::default() {
            self.generation = Generation((self.generation.0 + 1).max(now.0));
        }
        let binding = Binding {
            generation: self.generation,
            conversation: new.conversation.clone(),
            session: new.session.clone(),
            target_kind: new.target_kind,
            bound_at: now,
            last_activity_at: now,
            expiry,
            mirror,
            metadata,
            nonce: new.nonce,
        };
        self.reports.push_back(BindingReport { binding: binding.clone(), ended: None, farewell: false, at: now });
        self.state = ConversationState::Bound(Box::new(binding));
        BindingOutcome::Applied
    }

    /// Ends a binding that is active, with a last word or without.
    fn end(&mut self, now: Millis, binding: Binding, (reason, farewell): (UnbindReason, bool)) {
        self.state = ConversationState::Free;
        let farewell = farewell && reason.permits_farewell();
        self.reports.push_back(BindingReport { binding: binding.clone(), ended: Some(reason), farewell, at: now });
        self.last_ended = Some(Box::new(EndedBinding { binding, reason, ended_at: now }));
    }

    /// Returns the binding that may be changed, if it is of a generation.
    fn bound_mut(&mut self, generation: Generation) -> Option<&mut Binding> {
        match &mut self.state {
            ConversationState::Bound(binding) if binding.generation == generation => Some(&mut **binding),
            ConversationState::Bound(_)
            | ConversationState::Moving { .. }
            | ConversationState::Arriving { .. }
            | ConversationState::Free
            | ConversationState::Moved { .. } => None,
        }
    }

    fn touch(&mut self, generation: Generation, at: Millis) -> BindingOutcome {
        if planted(Mutant::TouchRevives)
            && self.state == ConversationState::Free
            && let Some(last) = self.last_ended.as_ref().filter(|last| last.binding.generation == generation)
        {
            self.state = ConversationState::Bound(Box::new(last.binding.clone()));
        }
        let Some(binding) = self.bound_mut(generation) else { return BindingOutcome::NotApplied };
        if at >= binding.last_activity_at.after(binding.touch_interval()) {
            binding.last_activity_at = at;
        }
        BindingOutcome::Applied
    }

    fn set_expiry(&mut self, generation: Generation, expiry: ExpiryRules) -> BindingOutcome {
        let Some(binding) = self.bound_mut(generation) else { return BindingOutcome::NotApplied };
        binding.expiry = expiry;
        BindingOutcome::Applied
    }

    fn unbind(&mut self, now: Millis, generation: Generation, end: (UnbindReason, bool)) -> BindingOutcome {
        let any = self.active().filter(|_| planted(Mutant::UnbindAnyGeneration)).map(|binding| binding.generation);
        let Some(binding) = self.bound_mut(any.unwrap_or(generation)).cloned() else {
            let is_ended = self.last_ended.as_ref().is_some_and(|last| last.binding.generation == generation);
            return if is_ended { BindingOutcome::Applied } else { BindingOutcome::NotApplied };
        };
        // A binding that is to end ends, however many changes wait: `bind` leaves room for one end.
        self.end(now, binding, end);
        BindingOutcome::Applied
    }

    fn tend(&mut self, now: Millis) -> BindingOutcome {
        let is_due = |at: Millis| at <= now;
        match &self.state {
            ConversationState::Bound(binding) => {
                if let Some((_, reason)) = binding.expiry().filter(|(at, _)| is_due(*at)) {
                    let binding = (**binding).clone();
                    self.end(now, binding.clone(), (reason, true));
                    if planted(Mutant::BindingExpiresTwice) {
                        self.state = ConversationState::Bound(Box::new(binding));
                    }
                }
            }
            ConversationState::Free | ConversationState::Moved { .. } => {
                if self.reports.is_empty() && self.due().is_some_and(is_due) {
                    self.state = ConversationState::Free;
                    self.last_ended = None;
                }
            }
            ConversationState::Moving { .. } | ConversationState::Arriving { .. } => {}
        }
        BindingOutcome::Applied
    }

    fn settle(&mut self, generation: Generation, is_end: bool) -> BindingOutcome {
        let is_it =
            |report: &BindingReport| report.binding.generation == generation && report.ended.is_some() == is_end;
        if self.reports.front().is_some_and(is_it) {
            self.reports.pop_front();
        }
        BindingOutcome::Applied
    }

    fn start_move(&mut self, now: Millis, generation: Generation, to: &ConversationId) -> BindingOutcome {
        match &self.state {
            ConversationState::Bound(binding)
                if binding.generation == generation && binding.conversation.conversation_id != *to =>
            {
                let binding = binding.clone();
                self.state = ConversationState::Moving { binding, to: to.clone(), at: now };
                BindingOutcome::Applied
            }
            ConversationState::Moving { binding, to: target, .. }
                if binding.generation == generation && target == to =>
            {
                BindingOutcome::Applied
            }
            ConversationState::Moved { to: target, .. } if target == to => BindingOutcome::Applied,
            ConversationState::Bound(_)
            | ConversationState::Moving { .. }
            | ConversationState::Arriving { .. }
            | ConversationState::Moved { .. }
            | ConversationState::Free => BindingOutcome::NotApplied,
        }
    }

    fn accept_move(&mut self, now: Millis, binding: &Binding, from: &ConversationId) -> BindingOutcome {
        match &self.state {
            ConversationState::Arriving { binding: other, .. } | ConversationState::Bound(other) => {
                let is_it = other.generation == binding.generation && other.nonce == binding.nonce;
                if is_it { BindingOutcome::Applied } else { BindingOutcome::NotApplied }
            }
            // An alias is evidence that a move has happened, and stays one.
            ConversationState::Moving { .. } | ConversationState::Moved { .. } => BindingOutcome::NotApplied,
            // A binding that was here and has ended does not come back with a late repetition of its move.
            ConversationState::Free if self.generation >= binding.generation => BindingOutcome::NotApplied,
            ConversationState::Free => {
                self.generation = binding.generation;
                let binding = Box::new(binding.clone());
                self.state = if planted(Mutant::MoveBindsTwice) {
                    ConversationState::Bound(binding)
                } else {
                    ConversationState::Arriving { binding, from: from.clone(), at: now }
                };
                BindingOutcome::Applied
            }
        }
    }

    fn finish_move(&mut self, now: Millis, generation: Generation, to: &ConversationId) -> BindingOutcome {
        match &self.state {
            ConversationState::Moving { binding, to: target, .. }
                if binding.generation == generation && target == to =>
            {
                self.state = if planted(Mutant::MoveLeavesNoAlias) {
                    ConversationState::Free
                } else {
                    ConversationState::Moved { to: to.clone(), at: now }
                };
                BindingOutcome::Applied
            }
            ConversationState::Moved { to: target, .. } if target == to => BindingOutcome::Applied,
            ConversationState::Moving { .. }
            | ConversationState::Moved { .. }
            | ConversationState::Arriving { .. }
            | ConversationState::Bound(_)
            | ConversationState::Free => BindingOutcome::NotApplied,
        }
    }

    fn abandon_move(&mut self, generation: Generation) -> BindingOutcome {
        self.end_move(generation, |state| match state {
            ConversationState::Moving { binding, .. } => Some(binding),
            ConversationState::Arriving { .. }
            | ConversationState::Bound(_)
            | ConversationState::Moved { .. }
            | ConversationState::Free => None,
        })
    }

    fn arrive(&mut self, generation: Generation) -> BindingOutcome {
        self.end_move(generation, |state| match state {
            ConversationState::Arriving { binding, .. } => Some(binding),
            ConversationState::Moving { .. }
            | ConversationState::Bound(_)
            | ConversationState::Moved { .. }
            | ConversationState::Free => None,
        })
    }

    /// Binds the conversation by the binding that a state of a move holds; again, if it is bound by then.
    fn end_move(
        &mut self,
        generation: Generation,
        held: impl Fn(&ConversationState) -> Option<&Box<Binding>>,
    ) -> BindingOutcome {
        if let Some(binding) = held(&self.state).filter(|binding| binding.generation == generation) {
            self.state = ConversationState::Bound(binding.clone());
        }
        if self.bound_mut(generation).is_some() { BindingOutcome::Applied } else { BindingOutcome::NotApplied }
    }

    fn drop_arrival(&mut self, generation: Generation) -> BindingOutcome {
        match &self.state {
            ConversationState::Arriving { binding, .. } if binding.generation == generation => {
                self.state = ConversationState::Free;
            }
            ConversationState::Arriving { .. }
            | ConversationState::Bound(_)
            | ConversationState::Moving { .. }
            | ConversationState::Moved { .. }
            | ConversationState::Free => {}
        }
        BindingOutcome::Applied
    }
}

/// Returns the sessions whose lists of bindings differ between two states of a row, and whether the session lists the
/// conversation afterwards.
pub fn listing_changes(
    before: Option<&BindingRow>,
    after: Option<&BindingRow>,
) -> impl Iterator<Item = (SessionId, bool)> {
    let listed = |row: Option<&BindingRow>| row.and_then(BindingRow::listed_session).cloned();
    let was = listed(before);
    let is = listed(after);
    let sessions: BTreeSet<SessionId> = [&was, &is].into_iter().flatten().cloned().collect();
    let is_kept = was == is || is.is_none() && planted(Mutant::IndexKeepsEnded);
    let changed = if is_kept { BTreeSet::new() } else { sessions };
    changed.into_iter().map(move |session| {
        let is_forgotten = was.is_some() && planted(Mutant::IndexForgetsRebound);
        let is_listed = is.as_ref() == Some(&session) && !is_forgotten;
        (session, is_listed)
    })
}

#[cfg(test)]
mod tests;
