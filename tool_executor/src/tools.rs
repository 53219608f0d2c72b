//! The built-in tools: `process.spawn`, `process.status`, `process.signal`, `process.kill`.
//! A process belongs to the tenant's session that started it and does not exist for other sessions (LN-EV9).
//! Processes are named by their plain or qualified ids; answers contain qualified ids.
use crate::io::Output;
use crate::journal::{JournalRecord, ToolOutcome};
use crate::machine::{ActionState, KnownAction, ToolExecutor};
use crate::messages::ExecuteMessage;
use crate::process::{Process, ProcessStopCause, Signal};
use crate::programs::ProcessCommand;
use serde_json::{Map, Value, json};
use turnway_core::id::{EventId, QualifiedAction, QualifiedSession};
use turnway_core::limits;
use turnway_core::protocol::action::{SPAWN_TOOL, ToolError};
use turnway_core::protocol::json::number_literal;
use turnway_core::time::Now;

const STATUS: &str = "process.status";
/// The tools that the executor offers in its `hello`.
pub const TOOLS: [&str; 4] = [SPAWN_TOOL, STATUS, "process.signal", "process.kill"];

// === impl ToolExecutor ===

impl ToolExecutor {
    /// Performs an action that was not requested before.
    pub(super) fn begin(&mut self, now: Now, request: &ExecuteMessage) {
        let done = match request.tool.as_str() {
            _ if self.is_shutting_down() => Err(ToolError::of("runner_stopped", "this runner is shutting down")),
            SPAWN_TOOL => match self.spawn(request) {
                Ok(command) => return self.record_and_spawn(now, request, command),
                Err(why) => Err(why),
            },
            STATUS => self.status(now, request),
            "process.signal" => self.signal(request),
            "process.kill" => self.kill(now, request),
            _ => Err(ToolError::of("unknown_tool", "unknown tool")),
        };
        let outcome = match done {
            Ok(result) => ToolOutcome::success(result),
            Err(error) => ToolOutcome { ok: false, result: None, error: Some(error) },
        };
        let id = request.action_id;
        let session = request.session.clone();
        if request.tool == STATUS {
            // A status query is harmless to repeat, so it needs no record.
            self.queue_result(id, KnownAction { session, program: None, state: ActionState::Ended(outcome) });
        } else {
            self.record_outcome(id, session, None, outcome);
            self.flush_effects();
        }
        self.send_results(now);
    }

    fn spawn(&self, request: &ExecuteMessage) -> Result<ProcessCommand, ToolError> {
        let args = parse_object(&request.args.0)?;
        if let Some(stranger) = args.keys().find(|key| !["program", "args"].contains(&key.as_str())) {
            return Err(bad_args(&format!("unknown argument {stranger:?}; known arguments: program, args")));
        }
        let name = args.get("program").and_then(Value::as_str).ok_or_else(|| bad_args("\"program\" is missing"))?;
        let none = Map::new();
        let given = args.get("args").map_or(Ok(&none), parse_object)?;
        let Some(program) = self.programs.get(name) else {
            let all: Vec<&str> = self.programs.keys().map(String::as_str).collect();
            let why = format!("unknown program; allowed programs: {}", all.join(", "));
            return Err(ToolError::of("forbidden", &why));
        };
        let command = program.resolve(name, given)?;
        let running = self.processes().filter(|process| process.program == name).count();
        if running >= program.max_parallel || self.processes().count() >= limits::TOOL_EXECUTOR_PROCESSES_MAX {
            return Err(ToolError::of("busy", "the limit of concurrent processes is reached"));
        }
        Ok(command)
    }

    fn record_and_spawn(&mut self, now: Now, request: &ExecuteMessage, command: ProcessCommand) {
        let id = request.action_id;
        let session = request.session.clone();
        let program = command.program.clone();
        let limit = self.programs.get(&program).map_or(limits::PROCESS_TIMEOUT, |program| program.time_limit);
        // The gateway's clock may differ from ours; the duration that it allows is the same on both.
        let given = std::time::Duration::from_millis(request.deadline.0.saturating_sub(request.ts.0));
        let why = if given <= limit { ProcessStopCause::Deadline } else { ProcessStopCause::TimeLimit };
        self.push_record(JournalRecord::Begun { id, session: session.clone(), program: program.clone() });
        let process = Process::new(now.mono, session.clone(), program.clone());
        let state = ActionState::Running(Box::new(process));
        self.actions.insert(id, KnownAction { session, program: Some(program), state });
        self.stop_at(id, now.mono + given.min(limit), why);
        self.push_output(Output::Spawn { action_id: id, command: Box::new(command) });
    }

    fn status(&self, now: Now, request: &ExecuteMessage) -> Result<Value, ToolError> {
        let args = parse_object(&request.args.0)?;
        if !args.contains_key("process_id") {
            let own = self.actions.iter().filter(|(_, known)| known.session == request.session);
            let running = own.filter(|(_, known)| matches!(known.state, ActionState::Running(_)));
            let name = |id| QualifiedAction::of(request.session.key(), id);
            let running: Vec<Value> =
                running.map(|(id, known)| json!({"process_id": name(*id), "program": known.program})).collect();
            let programs: Vec<&str> = self.programs.keys().map(String::as_str).collect();
            return Ok(json!({"programs": programs, "running": running}));
        }
        let (id, known) = self.process(&request.session, args)?;
        let mut status = match &known.state {
            ActionState::Running(process) => process.status(now.mono),
            ActionState::Ended(ToolOutcome { result: Some(result), .. }) => result.0.clone(),
            ActionState::Ended(ToolOutcome { error, .. }) => {
                json!({"state": "exited", "program": known.program, "error": error.as_ref().map(|error| &error.code)})
            }
        };
        status["process_id"] = self.qualified_id(id).to_string().into();
        Ok(status)
    }

    /// Sends a signal. A signal to a process that has ended is not an error, because the sender cannot know of the
    /// end in time.
    fn signal(&mut self, request: &ExecuteMessage) -> Result<Value, ToolError> {
        let args = parse_object(&request.args.0)?;
        let signal = args.get("signal").and_then(Value::as_str).and_then(Signal::parse);
        let signal = signal.ok_or_else(|| bad_args("\"signal\" must be one of TERM, KILL, INT, HUP, USR1, USR2"))?;
        let (action_id, known) = self.process(&request.session, args)?;
        let name = self.qualified_id(action_id);
        let runs = matches!(known.state, ActionState::Running(_));
        if runs {
            self.push_effect(Output::Signal { action_id, signal });
            if signal == Signal::Kill {
                self.set_stop_cause(action_id, ProcessStopCause::Killed);
            }
        }
        Ok(json!({"process_id": name, "state": if runs { "signaled" } else { "exited" }}))
    }

    fn kill(&mut self, now: Now, request: &ExecuteMessage) -> Result<Value, ToolError> {
        let (id, known) = self.process(&request.session, parse_object(&request.args.0)?)?;
        let name = self.qualified_id(id);
        let runs = matches!(known.state, ActionState::Running(_));
        if runs {
            self.stop(now, id, ProcessStopCause::Killed);
        }
        Ok(json!({"process_id": name, "state": if runs { "stopping" } else { "exited" }}))
    }

    /// Returns a process of the session.
    fn process(
        &self,
        session: &QualifiedSession,
        args: &Map<String, Value>,
    ) -> Result<(EventId, &KnownAction), ToolError> {
        let id = args.get("process_id").and_then(Value::as_str).ok_or_else(|| bad_args("\"process_id\" is missing"))?;
        let named = QualifiedAction::parse(id).ok().filter(|named| named.may_belong_to(session.key()));
        let known = named.and_then(|named| Some((named.id, self.actions.get(&named.id)?)));
        let own = known.filter(|(_, known)| known.session == *session && known.program.is_some());
        own.ok_or_else(|| ToolError::of("unknown_process", "this session has no such process on this runner"))
    }
}

fn parse_object(value: &Value) -> Result<&Map<String, Value>, ToolError> {
    static NONE: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    match value {
        number if number_literal(number).is_some() => Err(bad_args("arguments must be an object")),
        Value::Null => Ok(&NONE),
        Value::Object(map) => Ok(map),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(bad_args("arguments must be an object"))
        }
    }
}

fn bad_args(message: &str) -> ToolError {
    ToolError::of("bad_args", message)
}
