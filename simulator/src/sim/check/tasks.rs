//! Checks what is promised of tasks: a task has one run, in a session and a place of its own; its end goes to that place by
//! the router, or nowhere, and to the conversation of its requester only if its giver wants that; its giver is told once.
use super::deliveries::DeliveryHistory;
use super::turn::End;
use crate::sim::world::World;
use std::collections::BTreeMap;
use turnway_core::id::{EventId, RunId, SessionId, SessionKey};
use turnway_core::protocol::action::{ActionSpec, ToolResult};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{DeliveryKind, InputOrigin};
use turnway_core::protocol::entry::{ActionFact, Fact};
use turnway_core::protocol::input::Input;
use turnway_core::protocol::task::{SPAWN_AGENT_TOOL, TaskArgs, TaskOrigin, TaskShow};

/// A task, as the log of the session that has given it has it.
#[derive(Debug)]
struct TaskRecord {
    /// The session that has given it.
    key: SessionKey,
    /// The turn in which it was given.
    run_id: Option<RunId>,
    args: TaskArgs,
    /// The place that the platform has made; `None`: the task has not begun.
    place: Option<ConversationRef>,
    result: Option<ToolResult>,
}

/// A run of a task in its own session.
struct TaskRun<'a> {
    key: &'a SessionKey,
    run_id: &'a RunId,
    origin: &'a InputOrigin,
    task: TaskOrigin,
    end: Option<&'a End>,
    history: &'a DeliveryHistory,
}

impl World {
    /// Checks the input of a task, which the store has accepted: the fact that the task begins is durable.
    pub(super) fn check_task_input(&self, key: &SessionKey, input: &Input, task: &TaskOrigin) {
        let begun = self.ledger.chronicles.iter().any(|(parent, chronicle)| {
            SessionId::for_task(parent, task.action_id) == key.session
                && chronicle.log.iter().any(|(_, entry)| {
                    matches!(&entry.fact, Fact::Action(ActionFact::Invoked(told)) if told.action_id == task.action_id)
                })
        });
        assert!(begun, "G4: no task begins before its fact is durable: {key} {}", input.run_id);
    }

    /// Checks all tasks, their runs, the places of their ends, and what their givers are told.
    pub(super) fn check_tasks(&self) {
        if !self.tasks {
            return;
        }
        let tasks = self.task_records();
        let mut runs: BTreeMap<EventId, RunId> = BTreeMap::new();
        for (key, chronicle) in &self.ledger.chronicles {
            let history = self.history_of(key);
            for (run_id, origin) in &history.origins {
                let Some(task) = origin.task else { continue };
                let end = chronicle.stories.get(run_id).and_then(|turn| turn.ended.as_ref());
                let run = TaskRun { key, run_id, origin, task, end, history: &history };
                let record = tasks.get(&task.action_id).expect("its action is in a log");
                self.check_requester(record);
                let other = runs.insert(task.action_id, run_id.clone());
                assert_eq!(other, None, "a task has one run: {key} {run_id}");
                run.check(record, self);
                self.check_told(&run, record);
            }
        }
        for (action_id, record) in &tasks {
            let is_begun = record.result.as_ref().is_some_and(|result| result.ok);
            assert!(!is_begun || runs.contains_key(action_id), "a task that is said to have begun has: {record:?}");
        }
    }

    /// Checks that a task has the requester of the turn in which it was given, which the agent cannot choose.
    fn check_requester(&self, record: &TaskRecord) {
        let history = self.history_of(&record.key);
        let origin = record.run_id.as_ref().and_then(|run_id| history.origins.get(run_id));
        let of_turn = origin.map(|origin| (&origin.conversation, &origin.message_id));
        let requester = record.args.requester.as_deref().map(|it| (&it.conversation, &it.message_id));
        assert_eq!(requester, of_turn, "BR-27: a task has the requester of its turn: {record:?}");
    }

    fn task_records(&self) -> BTreeMap<EventId, TaskRecord> {
        let mut tasks = BTreeMap::new();
        for (key, chronicle) in &self.ledger.chronicles {
            for (_, entry) in &chronicle.log {
                let Fact::Action(fact) = &entry.fact else { continue };
                match fact {
                    ActionFact::Requested(asked) => {
                        let ActionSpec::ToolCall { tool, args } = &asked.what else { continue };
                        if tool.as_str() == SPAWN_AGENT_TOOL {
                            let args = serde_json::from_value(args.0.clone()).expect("arguments of a task");
                            let run_id = entry.run_id.clone();
                            let record = TaskRecord { key: key.clone(), run_id, args, place: None, result: None };
                            tasks.insert(asked.action_id, record);
                        }
                    }
                    ActionFact::Invoked(told) => {
                        if let Some(record) = tasks.get_mut(&told.action_id) {
                            let args: TaskArgs =
                                serde_json::from_value(told.args.0.clone()).expect("arguments of a task");
                            record.place = args.conversation;
                        }
                    }
                    ActionFact::Ended(result) => {
                        if let Some(record) = tasks.get_mut(&result.action_id) {
                            record.result = Some(result.clone());
                        }
                    }
                    ActionFact::ProcessSpawned(_)
                    | ActionFact::ProcessProgress(_)
                    | ActionFact::ProcessExited(_)
                    | ActionFact::ProcessCanceled(_)
                    | ActionFact::SystemEvent(_) => {}
                }
            }
        }
        tasks
    }

    /// Checks what the giver of a task is told of its end.
    fn check_told(&self, run: &TaskRun<'_>, record: &TaskRecord) {
        let Some(result) = record.result.as_ref().filter(|result| result.ok && record.args.wake_parent) else { return };
        let end = run.end.filter(|end| end.done);
        let end = end.unwrap_or_else(|| panic!("a giver is told of the end of its task: {record:?}"));
        let n = self.ledger.chronicles[run.key].stories[run.run_id].n;
        let answer = self.ledger.known_answer(n, end.attempt).map_or("", |answer| answer);
        let told = result.result.as_ref().map(|told| &told.0).expect("a result");
        let text = told["text"].as_str().unwrap_or_default();
        let is_whole = told["truncated"] == true || text.len() == answer.len();
        assert!(answer.starts_with(text) && is_whole, "a giver is told the answer to its task: {record:?}");
        assert_eq!(told["status"], "completed", "a giver is told how its task has ended: {record:?}");
    }
}

impl TaskRun<'_> {
    fn check(&self, record: &TaskRecord, world: &World) {
        let own = SessionId::for_task(&record.key, self.task.action_id);
        assert_eq!(self.key.session, own, "a task runs in a session of its own: {record:?}");
        let place = record.place.as_ref().unwrap_or_else(|| panic!("G4: a task begins after its place: {record:?}"));
        let requester = record.args.requester.as_deref().expect("a requester");
        let place_of_run = &self.origin.conversation;
        assert_eq!(&requester.conversation, place_of_run, "BR-27: a task keeps the place of its requester: {record:?}");
        let depth = requester.task.map_or(0, |task| task.depth) + 1;
        assert_eq!(self.task.depth, depth, "BR-27: tasks in tasks are counted: {record:?}");
        let requested = self.history.deliveries.values().map(|it| &it.requested);
        let of_run = requested.filter(|it| it.about_run.as_ref() == Some(self.run_id));
        let mut routed = 0;
        let mut shown = 0;
        for requested in of_run.filter(|it| it.kind != DeliveryKind::Conversation) {
            if requested.route.is_some() {
                routed += 1;
                let is_there = world.platform.has_become(place, &requested.conversation);
                assert!(is_there, "G7: the end of a task goes to its own place: {requested:?} of {record:?}");
            } else {
                shown += 1;
            }
        }
        let refused = usize::from(self.history.refused.contains(self.run_id));
        let is_answered = self.end.is_some_and(|end| end.done && end.text_bytes > 0);
        let is_bound = matches!(self.task.show, TaskShow::Bound | TaskShow::Both);
        let is_parent = matches!(self.task.show, TaskShow::Parent | TaskShow::Both);
        assert!(routed + refused <= usize::from(is_bound) && shown <= usize::from(is_parent), "{record:?}");
        if is_answered {
            let all = (routed + refused, shown);
            let expected = (usize::from(is_bound), usize::from(is_parent));
            assert_eq!(all, expected, "the end of a task is shown where its giver wants it, or refused: {record:?}");
        }
    }
}
