//! Checks what is promised of bindings: a conversation has one at most, its generations rise and never repeat, each end
//! is recorded once, no request changes another generation than it names, and messages go where the binding says.
use super::ledger::StoreRecord;
use crate::sim::platform::THREAD;
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{ConversationId, SessionId, SessionKey};
use turnway_core::protocol::binding::{Binding, BindingId, Generation, TargetKind, UnbindReason};
use turnway_core::protocol::conversation::ConversationKey;
use turnway_core::protocol::entry::{BindingFact, Fact};
use turnway_core::store::ModelStore;
use turnway_core::store::binding::{
    BindingAction, BindingOutcome, BindingRow, ConversationState, NewBinding, listing_changes,
};
use turnway_core::time::{Millis, Mono, Now};

/// The maximum number of aliases that are followed from one id to the next.
const ALIASES_MAX: u32 = 8;
/// The time that a row may be due once the world is quiet: every node searches every few seconds.
const DUE_MS: u64 = 10_000;

/// The rows of all conversations as the store has given them, apart from the store.
#[derive(Debug, Default)]
pub(crate) struct BindingRecord {
    /// Every version of each row, and the time from which it was the present one.
    versions: BTreeMap<ConversationKey, Vec<(Mono, BindingRow)>>,
    /// Every generation that each conversation has had.
    given: BTreeMap<ConversationKey, BTreeSet<Generation>>,
    begun: BTreeMap<(ConversationKey, Generation), SessionId>,
    ended: BTreeMap<(ConversationKey, Generation), (SessionId, UnbindReason)>,
    /// Changes that rows have reported; `true`: ends.
    reported: BTreeSet<(ConversationKey, Generation, bool)>,
    /// The store has lost writes: half of a change of two rows may be gone.
    has_lost: bool,
    /// The index by session, kept up to date as the stores do it.
    listed: BTreeMap<SessionKey, BTreeSet<ConversationKey>>,
}

/// The time since which a request is on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTime {
    pub(crate) since: Mono,
    /// The earliest time that a clock shows which decides about the request: the store's, or that of the node.
    pub(crate) clock: Millis,
}

/// The binding facts of one session's log.
#[derive(Debug, Default)]
pub(crate) struct BindingHistory {
    bound: BTreeSet<BindingId>,
    ended: BTreeMap<BindingId, UnbindReason>,
}

impl BindingHistory {
    /// Checks the next fact. An owner records what a store has lost once more.
    pub(super) fn take(&mut self, fact: &Fact, rewinds: bool) {
        let Fact::Binding(fact) = fact else { return };
        match fact {
            BindingFact::Bound(bound) => {
                let is_first = self.bound.insert(bound.binding_id.clone());
                assert!(is_first || rewinds, "a log has each binding once: {bound:?}");
            }
            BindingFact::Ended(ended) => {
                let known = self.ended.insert(ended.binding_id.clone(), ended.reason);
                assert!(known.is_none() || rewinds, "a log has the end of a binding once: {ended:?}");
            }
        }
    }
}

impl BindingRecord {
    /// Learns the rows of a store that has lost writes, which no longer bind the store.
    pub(crate) fn rewound(&mut self, now: Mono, model: &ModelStore) {
        *self = Self { has_lost: true, ..Self::default() };
        for (key, row) in model.conversations() {
            let given = row.active().map(|binding| binding.generation);
            self.given.entry(key.clone()).or_default().extend(given);
            self.list(key, &BindingRow::default(), row);
            self.versions.insert(key.clone(), vec![(now, row.clone())]);
        }
    }

    /// Returns the present row.
    fn row(&self, key: &ConversationKey) -> BindingRow {
        let last = self.versions.get(key).and_then(|versions| versions.last());
        last.map(|(_, row)| row.clone()).unwrap_or_default()
    }

    /// Returns the active binding of a conversation.
    pub(crate) fn active(&self, key: &ConversationKey) -> Option<Binding> {
        self.row(key).active().cloned()
    }

    /// Returns the generations that a conversation has had, oldest first.
    pub(crate) fn generations(&self, key: &ConversationKey) -> Vec<Generation> {
        self.given.get(key).into_iter().flatten().copied().collect()
    }

    /// Checks a change of a row.
    pub(crate) fn learn(
        &mut self,
        now: Now,
        (key, action): (&ConversationKey, &BindingAction),
        outcome: BindingOutcome,
        after: Option<&BindingRow>,
    ) {
        let before = self.row(key);
        let after = after.cloned().unwrap_or_default();
        if before == after {
            return;
        }
        let is_open = |state: &ConversationState| !matches!(state, ConversationState::Moved { .. });
        assert!(is_open(&before.state) || before.state == after.state, "an id that was left stays an alias: {key}");
        assert!(after.generation >= before.generation, "generations never fall: {key} {action:?}");
        match (before.active(), after.active()) {
            (Some(was), Some(is)) if was.generation == is.generation => check_same(key, action, was, is),
            (was, is) => {
                if let Some(was) = was {
                    self.end(now.store, (key, action), was, &after);
                }
                if let Some(is) = is {
                    self.begin((key, action), &before, is);
                }
            }
        }
        for report in after.reports.iter().filter(|report| !before.reports.contains(report)) {
            let name = (key.clone(), report.binding.generation, report.ended.is_some());
            assert!(self.reported.insert(name), "a change is reported once: {key} {action:?} {report:?}");
        }
        assert!(outcome == BindingOutcome::Applied, "a refused change changes nothing: {key} {action:?}");
        self.list(key, &before, &after);
        let versions = self.versions.entry(key.clone()).or_insert_with(|| vec![(Mono::default(), before)]);
        versions.push((now.mono, after));
    }

    /// Checks a binding that becomes active.
    fn begin(&mut self, (key, action): (&ConversationKey, &BindingAction), before: &BindingRow, is: &Binding) {
        let given = self.given.entry(key.clone()).or_default();
        let is_newer = given.last().is_none_or(|last| *last < is.generation);
        assert!(is_newer, "generations rise and never repeat: {key} {:?} after {given:?}", is.generation);
        given.insert(is.generation);
        let elsewhere = self.versions.iter().find(|(other, versions)| {
            let active = versions.last().and_then(|(_, row)| row.active());
            *other != key && active.is_some_and(|other| other.generation == is.generation && other.nonce == is.nonce)
        });
        assert!(elsewhere.is_none() || self.has_lost, "a binding is active under one id: {key} {elsewhere:?}");
        if let BindingAction::Bind(new) = action {
            check_expected(key, new, before);
            let is_of_task = new.target_kind == TargetKind::Subagent;
            let is_thread = key.conversation.as_str().starts_with(THREAD);
            assert!(is_thread || !is_of_task, "BR-31: a task is bound to a conversation of its own: {key} {new:?}");
            assert_eq!(new.session, is.session, "a conversation is bound to the session that was asked for: {key}");
            self.begun.insert((key.clone(), is.generation), is.session.clone());
        } else {
            assert!(matches!(action, BindingAction::Arrive { .. }), "nothing else binds: {key} {action:?} {is:?}");
        }
    }

    /// Checks a binding that is active no more.
    fn end(
        &mut self,
        now: Millis,
        (key, action): (&ConversationKey, &BindingAction),
        was: &Binding,
        after: &BindingRow,
    ) {
        if let BindingAction::FinishMove { generation, to } = action {
            assert_eq!(*generation, was.generation, "a move names the binding that it moves: {key}");
            let is_alias = matches!(&after.state, ConversationState::Moved { to: target, .. } if target == to);
            assert!(is_alias, "a binding that moves leaves an alias: {key} {action:?} {after:?}");
            return;
        }
        let is_named = if let BindingAction::Unbind { generation, .. } = action {
            *generation == was.generation
        } else if let BindingAction::Tend = action {
            was.expiry().is_some_and(|(at, _)| at <= now)
        } else {
            matches!(action, BindingAction::Bind(_))
        };
        assert!(is_named, "a binding ends by its name, by its time, or by another one: {key} {action:?} {was:?}");
        let last = after.last_ended.as_ref().filter(|last| last.binding.generation == was.generation);
        let last = last.unwrap_or_else(|| panic!("a row names the binding that ended last: {key} {action:?}"));
        let end = (was.session.clone(), last.reason);
        let known = self.ended.insert((key.clone(), was.generation), end);
        assert!(known.is_none(), "a binding ends once: {key} {was:?}");
    }

    /// Keeps the index by session.
    fn list(&mut self, key: &ConversationKey, before: &BindingRow, after: &BindingRow) {
        for (session, is_listed) in listing_changes(Some(before), Some(after)) {
            let session = SessionKey { tenant: key.tenant.clone(), session };
            let listed = self.listed.entry(session).or_default();
            if is_listed {
                listed.insert(key.clone())
            } else {
                listed.remove(key)
            };
        }
    }

    /// Checks a list of a session's bindings against the index.
    pub(crate) fn check_list(&self, session: &SessionKey, bindings: &[Binding]) {
        let keys: BTreeSet<_> = bindings.iter().map(|binding| binding.conversation.key(&session.tenant)).collect();
        let listed = self.listed.get(session).cloned().unwrap_or_default();
        assert_eq!(listed, keys, "the index by session has what the rows have: {session}");
    }

    /// Returns the versions of a row since a time, oldest first; none: nobody has ever bound the conversation.
    fn versions_since(&self, key: &ConversationKey, since: Mono) -> impl Iterator<Item = &BindingRow> {
        let versions = self.versions.get(key).map_or(&[][..], |versions| versions);
        let first = versions.iter().rposition(|(from, _)| *from <= since).unwrap_or(0);
        versions[first..].iter().map(|(_, row)| row)
    }

    /// Returns whether a message of a conversation may go to a session: the conversation was bound to it while the
    /// message was on its way, or to none, and the session is its own.
    pub(crate) fn leads_to(
        &self,
        key: &ConversationKey,
        (own, session): (&SessionId, &SessionId),
        at: RequestTime,
    ) -> bool {
        self.leads_within(key, (own, session), at, ALIASES_MAX)
    }

    fn leads_within(
        &self,
        key: &ConversationKey,
        (own, session): (&SessionId, &SessionId),
        at: RequestTime,
        aliases: u32,
    ) -> bool {
        let lasts = |binding: &Binding| binding.expiry().is_none_or(|(end, _)| end > at.clock);
        let mut rows = self.versions_since(key, at.since).peekable();
        rows.peek().is_none() && session == own
            || rows.any(|row| match &row.state {
                ConversationState::Free => session == own,
                ConversationState::Bound(binding) => binding.session == *session && lasts(binding),
                ConversationState::Moving { binding, .. } => binding.session == *session,
                ConversationState::Arriving { .. } => false,
                ConversationState::Moved { to, .. } => {
                    aliases > 0 && self.leads_within(&key.sibling(to), (own, session), at, aliases - 1)
                }
            })
    }

    /// Returns whether a conversation had this binding, or none, at some time since a request was sent.
    pub(crate) fn was_current(&self, key: &ConversationKey, current: Option<&Binding>, since: Mono) -> bool {
        let wanted = current.map(|binding| (binding.generation, &binding.session));
        let mut rows = self.versions_since(key, since).peekable();
        rows.peek().is_none() && wanted.is_none()
            || rows.any(|row| match &row.state {
                ConversationState::Moved { to, .. } => self.was_current(&key.sibling(to), current, since),
                ConversationState::Free
                | ConversationState::Bound(_)
                | ConversationState::Moving { .. }
                | ConversationState::Arriving { .. } => {
                    row.active().map(|binding| (binding.generation, &binding.session)) == wanted
                }
            })
    }

    /// Returns whether the conversation, by any of its ids, was given a generation, for a session.
    pub(crate) fn was_given(&self, account: &ConversationKey, binding: &Binding) -> bool {
        let key = account.sibling(&binding.conversation.conversation_id);
        self.given.get(&key).is_some_and(|given| given.contains(&binding.generation))
    }

    /// Returns the number of bindings of a conversation, by any of its ids, that have ended since a time.
    pub(crate) fn ends_since(&self, key: &ConversationKey, since: Mono) -> usize {
        let rows: Vec<&BindingRow> = self.versions_since(key, since).collect();
        let ended = |row: &BindingRow| row.last_ended.as_ref().map(|last| last.binding.generation);
        let here = rows.windows(2).filter(|pair| ended(pair[0]) != ended(pair[1])).count();
        let next = rows.iter().find_map(|row| match &row.state {
            ConversationState::Moved { to, .. } => Some(key.sibling(to)),
            ConversationState::Free
            | ConversationState::Bound(_)
            | ConversationState::Moving { .. }
            | ConversationState::Arriving { .. } => None,
        });
        here + next.map_or(0, |next| self.ends_since(&next, since))
    }

    /// Returns the reason why bindings have not settled.
    pub(crate) fn unsettled_reason(&self, clock: Millis) -> Option<String> {
        self.versions.iter().find_map(|(key, versions)| {
            let (_, row) = versions.last()?;
            if let Some(report) = row.reports.front() {
                return Some(format!("G9: a change of a binding is recorded: {key} {report:?}"));
            }
            if row.is_moving() {
                return Some(format!("G9: a move ends: {key} {:?}", row.state));
            }
            let due = row.due().filter(|due| due.0 + DUE_MS <= clock.0)?;
            Some(format!("G9: a binding ends when its time is over: {key} {due:?} at {clock:?}"))
        })
    }

    /// Checks that the log of each session has each binding and its end once, and that the index is complete.
    pub(crate) fn check_settled(&self, ledger: &StoreRecord, model: &ModelStore) {
        let history = |key: &ConversationKey, session: &SessionId| {
            let session = SessionKey { tenant: key.tenant.clone(), session: session.clone() };
            let is_there = model.session(&session).is_some_and(|slot| !slot.deleted);
            ledger.chronicles.get(&session).filter(|_| is_there).map(|chronicle| &chronicle.bound)
        };
        let id = |generation: Generation, conversation: &ConversationId| BindingId {
            generation,
            conversation: conversation.clone(),
        };
        for ((key, generation), session) in &self.begun {
            let Some(history) = history(key, session) else { continue };
            let has = history.bound.contains(&id(*generation, &key.conversation));
            assert!(has, "a log has each binding of its session: {key} {generation:?} of {session}");
        }
        for ((key, generation), (session, reason)) in &self.ended {
            let Some(history) = history(key, session) else { continue };
            let recorded = history.ended.get(&id(*generation, &key.conversation));
            assert_eq!(recorded, Some(reason), "a log has each end once: {key} {generation:?} of {session}");
        }
        let mut rows: BTreeMap<SessionKey, BTreeSet<ConversationKey>> = BTreeMap::new();
        for (key, row) in model.conversations() {
            let listed = row.listed_session().map(|session| (key.tenant.clone(), session.clone()));
            if let Some((tenant, session)) = listed {
                rows.entry(SessionKey { tenant, session }).or_default().insert(key.clone());
            }
        }
        let listed = self.listed.iter().filter(|(_, keys)| !keys.is_empty());
        assert!(listed.eq(rows.iter()), "the index by session has what the rows have: {:?} {rows:?}", self.listed);
    }
}

/// Checks that a change of an active binding was asked for by its generation, and that its last activity never falls.
fn check_same(key: &ConversationKey, action: &BindingAction, was: &Binding, is: &Binding) {
    assert!(is.last_activity_at >= was.last_activity_at, "a touch moves the time on: {key} {action:?}");
    if was == is {
        return;
    }
    let is_named = if let BindingAction::Touch { generation, .. } | BindingAction::SetExpiry { generation, .. } = action
    {
        *generation == was.generation
    } else {
        false
    };
    assert!(is_named, "a binding is changed by its name: {key} {action:?} {was:?}");
}

/// Checks that a bind replaces what its caller expected.
fn check_expected(key: &ConversationKey, new: &NewBinding, before: &BindingRow) {
    let is_expected = match (new.expected, before.active()) {
        (None, None) => true,
        (None, Some(active)) => active.session == new.session,
        (Some(expected), Some(active)) => expected == active.generation,
        (Some(expected), None) => expected == Generation::default() || expected == before.generation,
    };
    assert!(is_expected, "a bind replaces the generation that it names: {key} {new:?} {before:?}");
}
