//! Checks EV-C3, EV-E5 and EV-N5: in the log, each action is requested once, then begun, and ends once.
use super::ledger::StoreRecord;
use crate::sim::world::World;
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{AgentEventId, EventId, RunId};
use turnway_core::protocol::action::{ActionSpec, ToolExecution};
use turnway_core::protocol::entry::{ActionFact, Entry, Fact, SessionFact};
use turnway_core::protocol::message_action::MESSAGE_TOOLS;
use turnway_core::protocol::task::SPAWN_AGENT_TOOL;

/// Actions of one session so far.
#[derive(Debug, Default)]
pub(crate) struct ActionHistory {
    open: BTreeMap<EventId, Step>,
    ended: BTreeSet<EventId>,
    /// Actions that runs have requested under their own names.
    names: BTreeSet<(RunId, AgentEventId)>,
}

/// Progress of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Asked,
    Begun,
    Spawned,
    /// The action's process has ended.
    Exited,
}

impl ActionHistory {
    /// Returns an action that has not ended.
    pub(super) fn open(&self) -> Option<EventId> {
        self.open.keys().next().copied()
    }

    fn goes_on(&mut self, id: EventId, from: &[Step], to: Step, what: &str) {
        let step = self.open.get_mut(&id).unwrap_or_else(|| panic!("EV-E5: {what} of what is open: {id}"));
        assert!(from.contains(step), "EV-E5: {what} in its order: {id} is {step:?}");
        *step = to;
    }

    pub(super) fn take(&mut self, entry: &Entry) {
        let name = entry.fact.name();
        #[expect(clippy::wildcard_enum_match_arm, reason = "nothing else is part of an action")]
        match &entry.fact {
            Fact::Action(ActionFact::Requested(asked)) => {
                assert_eq!(asked.action_id, entry.id, "EV-C3: an action has the name of its first fact");
                if let (Some(run_id), Some(name)) = (&entry.run_id, &asked.name) {
                    let first = self.names.insert((run_id.clone(), name.clone()));
                    assert!(first, "EV-N5: what a run asks for again is the same action: {run_id} {name:?}");
                }
                if let ActionSpec::ToolCall { tool, .. } = &asked.what {
                    // An action about a message ends with its request.
                    let is_done = MESSAGE_TOOLS.contains(&tool.as_str());
                    self.open.insert(asked.action_id, if is_done { Step::Begun } else { Step::Asked });
                }
            }
            Fact::Action(ActionFact::Invoked(told)) => self.goes_on(told.action_id, &[Step::Asked], Step::Begun, name),
            Fact::Action(ActionFact::ProcessSpawned(told)) => {
                self.goes_on(told.action_id, &[Step::Begun], Step::Spawned, name)
            }
            Fact::Action(ActionFact::ProcessProgress(told)) => {
                let step = self.open.get(&told.action_id).copied().unwrap_or(Step::Asked);
                self.goes_on(told.action_id, &[Step::Begun, Step::Spawned], step, name);
            }
            Fact::Action(ActionFact::ProcessExited(told) | ActionFact::ProcessCanceled(told)) => {
                self.goes_on(told.action_id, &[Step::Spawned], Step::Exited, name);
            }
            Fact::Action(ActionFact::Ended(told)) => {
                let step = self.open.remove(&told.action_id);
                let step = step.unwrap_or_else(|| panic!("EV-E5: what ends was open: {}", told.action_id));
                assert_ne!(step, Step::Spawned, "EV-E6: its process ends first: {}", told.action_id);
                assert!(self.ended.insert(told.action_id), "EV-E5: an action ends once: {}", told.action_id);
                let begun = step != Step::Asked;
                assert!(begun || !told.ok, "EV-E4: what was done was begun: {}", told.action_id);
            }
            Fact::Session(SessionFact::Closed { .. }) => {
                assert!(self.open.is_empty(), "SR-H2: nothing is under way in a closed session");
            }
            _ => {}
        }
    }
}

impl StoreRecord {
    /// Checks a tool call that leaves the session.
    pub(crate) fn wanted(&self, execute: &ToolExecution) {
        let log = self.chronicles.get(&execute.key).map_or(&[][..], |chronicle| &chronicle.log);
        let asked = log
            .iter()
            .any(|(_, entry)| matches!(&entry.fact, Fact::Action(ActionFact::Requested(asked)) if asked.action_id == execute.action_id));
        assert!(asked || self.rewinds, "G4: no runner hears of what is not durable: {}", execute.action_id);
    }

    /// Checks a tool call that a runner gets.
    pub(crate) fn given(&mut self, execute: &ToolExecution) {
        let first = self.executed.insert(execute.action_id);
        assert!(first || self.rewinds, "EV-N5: an action is given to a runner once: {}", execute.action_id);
    }
}

impl World {
    /// Checks that action results in the log agree with the runner's executions.
    pub(super) fn check_actions(&self) {
        let logs = self.ledger.chronicles.values().flat_map(|chronicle| &chronicle.log);
        for (_, entry) in logs {
            let Fact::Action(ActionFact::Ended(ended)) = &entry.fact else { continue };
            let id = ended.action_id;
            let code = ended.error.as_ref().map(|error| error.code.as_str());
            if ended.tool.as_str() == SPAWN_AGENT_TOOL || MESSAGE_TOOLS.contains(&ended.tool.as_str()) {
                // The gateway carries these out.
                continue;
            }
            let given = self.ledger.executed.contains(&id);
            let done = self.hands.has_begun(id);
            assert!(!ended.ok || done, "EV-E5: what has worked was done: {id}");
            let never = matches!(code, Some("no_runner" | "too_many_actions"));
            assert!(!never || !given, "EV-A2: what is said to have found nobody was given to nobody: {id}");
        }
    }
}
