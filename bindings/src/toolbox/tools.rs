//! The built-in tools: `process.spawn`, `process.status`, `process.signal`, `process.kill`.
//! A process belongs to the tenant's session that started it and does not exist for other sessions (LN-EV9).
//! Processes are named by their plain or qualified ids; answers contain qualified ids.
use super::allowed::Command;
use super::io::Output;
use super::machine::{Known, State, Toolbox};
use super::process::{Process, Signal, Why};
use super::record::{Outcome, Record};
use super::words::Asked;
use serde_json::{Map, Value, json};
use turnway_core::id::{EventId, QualifiedAction, QualifiedSession};
use turnway_core::limits;
use turnway_core::protocol::action::{SPAWN, ToolError};
use turnway_core::protocol::json::literal;
use turnway_core::time::Now;

const STATUS: &str = "process.status";
/// The tools that the executor offers in its `hello`.
pub const TOOLS: [&str; 4] = [SPAWN, STATUS, "process.signal", "process.kill"];

// === impl Toolbox ===

impl Toolbox {
    /// Performs an action that was not requested before.
    pub(super) fn begin(&mut self, now: Now, asked: &Asked) {
        let done = match asked.tool.as_str() {
            _ if self.is_leaving() => Err(ToolError::of("runner_stopped", "this runner is shutting down")),
            SPAWN => match self.spawn(asked) {
                Ok(command) => return self.started(now, asked, command),
                Err(why) => Err(why),
            },
            STATUS => self.status(now, asked),
            "process.signal" => self.signal(asked),
            "process.kill" => self.kill(now, asked),
            _ => Err(ToolError::of("unknown_tool", "unknown tool")),
        };
        let outcome = match done {
            Ok(result) => Outcome::fine(result),
            Err(error) => Outcome { ok: false, result: None, error: Some(error) },
        };
        let (id, session) = (asked.action_id, asked.session.clone());
        if asked.tool == STATUS {
            // A status query is harmless to repeat, so it needs no record.
            self.know(id, Known { session, program: None, state: State::Ended(outcome) });
        } else {
            self.keep(id, session, None, outcome);
            self.effects();
        }
        self.say(now);
    }

    fn spawn(&self, asked: &Asked) -> Result<Command, ToolError> {
        let args = object(&asked.args.0)?;
        if let Some(stranger) = args.keys().find(|key| !["program", "args"].contains(&key.as_str())) {
            return Err(bad(&format!("unknown argument {stranger:?}; known arguments: program, args")));
        }
        let name =
            args.get("program").and_then(Value::as_str).ok_or_else(|| bad("\"program\" is missing"))?;
        let none = Map::new();
        let given = args.get("args").map_or(Ok(&none), object)?;
        let Some(program) = self.allowed.get(name) else {
            let all: Vec<&str> = self.allowed.keys().map(String::as_str).collect();
            return Err(ToolError::of(
                "forbidden",
                &format!("unknown program; allowed programs: {}", all.join(", ")),
            ));
        };
        let command = program.command(name, given)?;
        let running = self.processes().filter(|process| process.program == name).count();
        if running >= program.parallel || self.processes().count() >= limits::TOOLBOX_PROCESSES_MAX {
            return Err(ToolError::of("busy", "the limit of concurrent processes is reached"));
        }
        Ok(command)
    }

    fn started(&mut self, now: Now, asked: &Asked, command: Command) {
        let (id, session, program) = (asked.action_id, asked.session.clone(), command.program.clone());
        let limit = self.allowed.get(&program).map_or(limits::PROCESS_TIMEOUT, |program| program.time_limit);
        // The gateway's clock may differ from ours; the duration that it allows is the same on both.
        let given = std::time::Duration::from_millis(asked.deadline.0.saturating_sub(asked.ts.0));
        let why = if given <= limit { Why::Deadline } else { Why::TimeLimit };
        self.record(Record::Begun { id, session: session.clone(), program: program.clone() });
        let process = Process::new(now.mono, session.clone(), program.clone());
        let state = State::Running(Box::new(process));
        self.known.insert(id, Known { session, program: Some(program), state });
        self.stop_at(id, now.mono + given.min(limit), why);
        self.output(Output::Spawn { action_id: id, command: Box::new(command) });
    }

    fn status(&self, now: Now, asked: &Asked) -> Result<Value, ToolError> {
        let args = object(&asked.args.0)?;
        if !args.contains_key("process_id") {
            let own = self.known.iter().filter(|(_, known)| known.session == asked.session);
            let running = own.filter(|(_, known)| matches!(known.state, State::Running(_)));
            let name = |id| QualifiedAction::of(asked.session.key(), id);
            let running: Vec<Value> = running
                .map(|(id, known)| json!({"process_id": name(*id), "program": known.program}))
                .collect();
            let programs: Vec<&str> = self.allowed.keys().map(String::as_str).collect();
            return Ok(json!({"programs": programs, "running": running}));
        }
        let (id, known) = self.process(&asked.session, args)?;
        let mut told = match &known.state {
            State::Running(process) => process.status(now.mono),
            State::Ended(Outcome { result: Some(result), .. }) => result.0.clone(),
            State::Ended(Outcome { error, .. }) => {
                json!({"state": "exited", "program": known.program, "error": error.as_ref().map(|error| &error.code)})
            }
        };
        told["process_id"] = self.name(id).to_string().into();
        Ok(told)
    }

    /// Sends a signal. A signal to a process that has ended is not an error, because the sender cannot know of the
    /// end in time.
    fn signal(&mut self, asked: &Asked) -> Result<Value, ToolError> {
        let args = object(&asked.args.0)?;
        let signal = args.get("signal").and_then(Value::as_str).and_then(Signal::named);
        let signal = signal.ok_or_else(|| bad("\"signal\" must be one of TERM, KILL, INT, HUP, USR1, USR2"))?;
        let (action_id, known) = self.process(&asked.session, args)?;
        let name = self.name(action_id);
        let runs = matches!(known.state, State::Running(_));
        if runs {
            self.effect(Output::Signal { action_id, signal });
            if signal == Signal::Kill {
                self.reason(action_id, Why::Killed);
            }
        }
        Ok(json!({"process_id": name, "state": if runs { "signaled" } else { "exited" }}))
    }

    fn kill(&mut self, now: Now, asked: &Asked) -> Result<Value, ToolError> {
        let (id, known) = self.process(&asked.session, object(&asked.args.0)?)?;
        let name = self.name(id);
        let runs = matches!(known.state, State::Running(_));
        if runs {
            self.stop(now, id, Why::Killed);
        }
        Ok(json!({"process_id": name, "state": if runs { "stopping" } else { "exited" }}))
    }

    /// Returns a process of the session.
    fn process(
        &self,
        session: &QualifiedSession,
        args: &Map<String, Value>,
    ) -> Result<(EventId, &Known), ToolError> {
        let id =
            args.get("process_id").and_then(Value::as_str).ok_or_else(|| bad("\"process_id\" is missing"))?;
        let named = QualifiedAction::parse(id).ok().filter(|named| named.is_of(session.key()));
        let known = named.and_then(|named| Some((named.id, self.known.get(&named.id)?)));
        let own = known.filter(|(_, known)| known.session == *session && known.program.is_some());
        own.ok_or_else(|| ToolError::of("unknown_process", "this session has no such process at this runner"))
    }
}

fn object(value: &Value) -> Result<&Map<String, Value>, ToolError> {
    static NONE: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    match value {
        number if literal(number).is_some() => Err(bad("arguments must be an object")),
        Value::Null => Ok(&NONE),
        Value::Object(map) => Ok(map),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(bad("arguments must be an object"))
        }
    }
}

fn bad(message: &str) -> ToolError {
    ToolError::of("bad_args", message)
}
