//! Tests the tool runner's state machine by scripts: requests in, recorded and executed once, and the messages and
//! records out.
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use turnway_core::id::{EventId, QualifiedAction, QualifiedSession};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::action::OutputStream;
use turnway_core::protocol::json::Json;
use turnway_core::time::{Millis, Now};
use turnway_simulator::laws::{Step, laws};
use turnway_tool_executor::journal::JournalRecord;
use turnway_tool_executor::messages::{ExecuteMessage, GatewayMessage};
use turnway_tool_executor::process::ExitStatus;
use turnway_tool_executor::programs::{AllowedPrograms, ArgPattern, ArgRule, CommandWord, Program, ProgramArg};
use turnway_tool_executor::{Input, Output, ToolExecutor};

/// Time of all requests, by the gateway's clock, which differs from the runner's.
const TS: u64 = 50_000_000;

fn allowed() -> AllowedPrograms {
    let rule = ArgRule::Pattern(ArgPattern::parse("[a-z]+").expect("a pattern"));
    let what = ProgramArg { rule, default: Some("all".to_owned()), allow_dash: false };
    let program = |parallel| Program {
        path: "/bin/make".to_owned(),
        words: vec![CommandWord::parse("{what}")],
        args: BTreeMap::from([("what".to_owned(), what.clone())]),
        cwd: "/".to_owned(),
        env: BTreeMap::new(),
        time_limit: Duration::from_secs(60),
        max_parallel: parallel,
    };
    AllowedPrograms::from([("make".to_owned(), program(2)), ("one".to_owned(), program(1))])
}

/// Returns the id of the action with this number.
fn id(n: &str) -> EventId {
    EventId::new(Millis(TS), u128::from(n.parse::<u8>().expect("a number")) << 112)
}

fn execute(n: &str, tool: &str, args: Value, session: &str, wait_ms: u64) -> Input {
    let session = QualifiedSession::parse(session).expect("a name");
    let ts = Millis(TS);
    let deadline = Millis(TS + wait_ms);
    let tool = tool.to_owned();
    let asked = ExecuteMessage { action_id: id(n), session, tool, args: Json(args), ts, deadline };
    Input::Received(0, GatewayMessage::Execute(Box::new(asked)))
}

/// Parses one step of a script: messages of the gateway are in lower case, events at the runner in upper case.
fn input(words: &str) -> Input {
    let process = |n| json!({"process_id": id(n)});
    if let Some(words) = words.strip_prefix("1:") {
        // A step of the second connected node.
        return match input(words) {
            Input::Received(_, told) => Input::Received(1, told),
            Input::Opened(_) => Input::Opened(1),
            Input::Closed(_) => Input::Closed(1),
            other @ (Input::Spawned { .. }
            | Input::Failed { .. }
            | Input::Printed { .. }
            | Input::Exited { .. }
            | Input::Shutdown(_)) => other,
        };
    }
    let parts: Vec<&str> = words.split(' ').collect();
    match parts[..] {
        ["spawn", n] => execute(n, "process.spawn", json!({"program": "make"}), "s1", 3_600_000),
        ["spawn", n, "for", ms] => {
            let ms = ms.parse().expect("ms");
            execute(n, "process.spawn", json!({"program": "make"}), "s1", ms)
        }
        ["spawn", n, what] => {
            let args = json!({"program": "make", "args": {"what": what}});
            execute(n, "process.spawn", args, "s1", 9000)
        }
        ["run", n, program] => execute(n, "process.spawn", json!({"program": program}), "s1", 9000),
        ["status", n, of] => execute(n, "process.status", process(of), "s1", 9000),
        ["spy", n, of] => execute(n, "process.status", process(of), "s2", 9000),
        ["spy-on-tenant", n, of] => execute(n, "process.status", process(of), "acme~s1", 9000),
        ["list", n] => execute(n, "process.status", json!({}), "s1", 9000),
        ["kill", n, of] => execute(n, "process.kill", process(of), "s1", 9000),
        ["signal", n, of, signal] => {
            execute(n, "process.signal", json!({"process_id": id(of), "signal": signal}), "s1", 9000)
        }
        ["tool", n, tool] => execute(n, tool, json!({}), "s1", 9000),
        ["old", n] => {
            let Input::Received(_, GatewayMessage::Execute(mut asked)) = input(&format!("spawn {n}")) else {
                panic!("an execute")
            };
            asked.ts = Millis(TS + 61_000);
            Input::Received(0, GatewayMessage::Execute(asked))
        }
        ["cancel", n] => Input::Received(0, GatewayMessage::Signal { action_id: id(n).into() }),
        ["query", n] => Input::Received(0, GatewayMessage::Query { action_id: id(n).into() }),
        ["pong"] => Input::Received(0, GatewayMessage::Pong),
        ["OPEN"] => Input::Opened(0),
        ["CLOSE"] => Input::Closed(0),
        ["UP", n] => Input::Spawned { action_id: id(n), pid: Some(7) },
        ["FAIL", n] => Input::Failed { action_id: id(n), why: "no such file".to_owned() },
        ["PRINT", n, text] => {
            let bytes = text.as_bytes().to_vec();
            Input::Printed { action_id: id(n), stream: OutputStream::Stdout, bytes }
        }
        ["FLOOD", n] => {
            let bytes = vec![b'x'; 600_000];
            Input::Printed { action_id: id(n), stream: OutputStream::Stderr, bytes }
        }
        ["EXIT", n, code] => Input::Exited { action_id: id(n), how: ExitStatus::Code(code.parse().expect("a code")) },
        ["DIE", n] => Input::Exited { action_id: id(n), how: ExitStatus::Signal(9) },
        ["LEAVE", ms] => Input::Shutdown(Duration::from_millis(ms.parse().expect("ms"))),
        _ => panic!("no such words: {words}"),
    }
}

/// Returns the number of an action's id.
fn number(id: EventId) -> u8 {
    let number = (1..=99).find(|n: &u8| self::id(&n.to_string()) == id);
    number.unwrap_or_default()
}

fn named(value: &Value) -> u8 {
    number(QualifiedAction::parse(value.as_str().expect("a name")).expect("an id").id)
}

fn brief(output: &Output) -> String {
    match output {
        Output::KillLeftovers(ids) => format!("SWEEP {}", ids.len()),
        Output::Record(JournalRecord::Begun { id, .. }) => format!("+{}", number(*id)),
        Output::Record(JournalRecord::Ended { id, .. }) => format!("-{}", number(*id)),
        Output::Spawn { action_id, command } => {
            format!("SPAWN {} {}", number(*action_id), command.words.join(" "))
        }
        Output::Signal { action_id, signal } => format!("{signal:?} {}", number(*action_id)).to_uppercase(),
        Output::Send(0, text) | Output::SendIfRoom(0, text) => said(text),
        Output::Send(gate, text) | Output::SendIfRoom(gate, text) => format!("{gate}:{}", said(text)),
        Output::Finished => "LEFT".to_owned(),
    }
}

fn said(text: &str) -> String {
    let message: Value = serde_json::from_str(text).expect("JSON");
    match message["type"].as_str().expect("a type") {
        "result" if message["ok"] == true => {
            let state = message["result"]["state"].as_str().unwrap_or("fine");
            format!("{} {state}", named(&message["action_id"]))
        }
        "result" => {
            format!("{} {}", named(&message["action_id"]), message["error"]["code"].as_str().expect("a code"))
        }
        "chunk" => {
            let cut = if message["truncated"] == true { "…" } else { "" };
            format!("{cut}{}@{}", message["data"].as_str().expect("data").len(), message["offset"])
        }
        "system" => message["name"].as_str().expect("a name").to_owned(),
        kind @ ("invoked" | "ping") => kind.to_owned(),
        kind => panic!("{kind}: {text}"),
    }
}

/// Plays a script; `+N` advances the time by N ms and fires timers when they are due.
fn play_on(machine: &mut ToolExecutor, now: &mut Now, script: &str) -> (String, Vec<JournalRecord>) {
    let mut lines = Vec::new();
    let mut records = Vec::new();
    let mut drain = |machine: &mut ToolExecutor, lines: &mut Vec<String>| {
        while let Some(output) = machine.poll_output() {
            lines.push(brief(&output));
            if let Output::Record(record) = output {
                records.push(record);
            }
        }
    };
    drain(machine, &mut lines);
    for words in script.split("; ") {
        match words.strip_prefix('+') {
            Some(ms) => {
                let end = now.mono + Duration::from_millis(ms.parse().expect("ms"));
                while let Some(deadline) = machine.poll_timeout().filter(|deadline| deadline.at <= end) {
                    now.mono = deadline.at;
                    machine.handle_timeout(*now);
                    drain(machine, &mut lines);
                }
                now.mono = end;
            }
            None => machine.handle_input(*now, input(words)),
        }
        drain(machine, &mut lines);
    }
    (lines.join("; "), records)
}

fn play(script: &str) -> (String, Vec<JournalRecord>) {
    let mut now = Now { mono: Now::default().mono + Duration::from_secs(1000), store: Millis(1_000_000) };
    play_on(&mut ToolExecutor::new(allowed(), Vec::new()), &mut now, script)
}

#[track_caller]
fn check(script: &str, expected: &str) {
    assert_eq!(play(script).0, expected, "{script}");
}

/// Covers: EV-N5, EV-N6, EV-R3, EV-T5.
#[test]
fn action_is_recorded_before_it_runs_once() {
    check(
        "OPEN; spawn 1; UP 1; spawn 1; query 1; EXIT 1 0; spawn 1",
        "+1; SPAWN 1 all; invoked; invoked; invoked; -1; 1 exited; ping; 1 exited",
    );
    check("OPEN; spawn 1 test; FAIL 1; query 1", "+1; SPAWN 1 test; -1; 1 spawn_failed; ping; 1 spawn_failed");
    check("OPEN; spawn 1; UP 1; EXIT 1 3", "+1; SPAWN 1 all; invoked; -1; 1 exit_code; ping");
    check("OPEN; spawn 1; UP 1; DIE 1", "+1; SPAWN 1 all; invoked; -1; 1 signal; ping");
    check("OPEN; query 1; old 2", "1 unknown_action; 2 unknown_action");
    // An event of an action that was never begun has no effect.
    check("OPEN; EXIT 1 0; UP 1; PRINT 1 x; cancel 1", "");
}

/// Covers: EV-N2, EV-T12.
#[test]
fn disallowed_action_is_refused_without_a_process() {
    check("OPEN; spawn 1 A", "-1; 1 forbidden; ping");
    check("OPEN; run 1 rm", "-1; 1 forbidden; ping");
    check("OPEN; tool 1 process.exec", "-1; 1 unknown_tool; ping");
    check("OPEN; tool 1 process.spawn", "-1; 1 bad_args; ping");
    check("OPEN; run 1 one; run 2 one", "+1; SPAWN 1 all; -2; 2 busy; ping");
    check(
        "OPEN; spawn 1; spawn 2; spawn 3; EXIT 1 0; spawn 4",
        "+1; SPAWN 1 all; +2; SPAWN 2 all; -3; 3 busy; ping; -1; 1 exited; +4; SPAWN 4 all",
    );
}

/// Covers: EV-T11, EV-T14, LN-EV9, LN-EV10.
#[test]
fn process_is_controlled_by_its_own_session_only() {
    check(
        "OPEN; spawn 1; UP 1; status 2 1; pong; EXIT 1 0; pong; status 3 1",
        "+1; SPAWN 1 all; invoked; 2 running; ping; -1; 1 exited; ping; 3 exited; ping",
    );
    check("OPEN; spawn 1; spy 2 1; pong; spy 3 9", "+1; SPAWN 1 all; 2 unknown_process; ping; 3 unknown_process; ping");
    // A session of another tenant with an equal id.
    check("OPEN; spawn 1; spy-on-tenant 2 1", "+1; SPAWN 1 all; 2 unknown_process; ping");
    check("OPEN; list 1", "1 fine; ping");
    check(
        "OPEN; spawn 1; UP 1; kill 2 1; pong; status 3 1; pong; DIE 1; pong; +9999; kill 4 1",
        "+1; SPAWN 1 all; invoked; -2; TERM 1; 2 stopping; ping; 3 stopping; ping; -1; 1 killed; ping; -4; 4 exited; ping",
    );
    check("OPEN; spawn 1; kill 2 1; +4999; +1", "+1; SPAWN 1 all; -2; TERM 1; 2 stopping; ping; KILL 1");
    check(
        "OPEN; spawn 1; signal 2 1 USR1; pong; signal 3 1 STOP; pong; signal 4 1 SIGKILL; pong; DIE 1",
        "+1; SPAWN 1 all; -2; USR1 1; 2 signaled; ping; -3; 3 bad_args; ping; -4; KILL 1; 4 signaled; ping; -1; 1 killed; ping",
    );
    // A repeated signal action does not signal again.
    check(
        "OPEN; spawn 1; signal 2 1 USR1; pong; signal 2 1 USR1",
        "+1; SPAWN 1 all; -2; USR1 1; 2 signaled; ping; 2 signaled; ping",
    );
}

/// Covers: LN-EV10, LN-EV16.
#[test]
fn timed_out_or_cancelled_process_is_stopped() {
    check(
        "OPEN; spawn 1 for 2000; UP 1; +1999; +1; +5000; DIE 1",
        "+1; SPAWN 1 all; invoked; TERM 1; KILL 1; -1; 1 tool_timeout; ping",
    );
    check("OPEN; spawn 1; +59999; +1; EXIT 1 0", "+1; SPAWN 1 all; TERM 1; -1; 1 time_limit; ping");
    check("OPEN; spawn 1; cancel 1; cancel 1; EXIT 1 0; +9999", "+1; SPAWN 1 all; TERM 1; -1; 1 canceled; ping");
    check("OPEN; spawn 1 for 0; +0; EXIT 1 1", "+1; SPAWN 1 all; TERM 1; -1; 1 tool_timeout; ping");
}

/// Covers: LN-EV7, LN-EV8.
#[test]
fn output_is_sent_while_a_node_is_connected() {
    check(
        "OPEN; spawn 1; PRINT 1 ab; PRINT 1 c; +50; PRINT 1 d; EXIT 1 0",
        "+1; SPAWN 1 all; 3@0; 1@3; -1; 1 exited; ping",
    );
    check("spawn 1; PRINT 1 ab; +50; OPEN; PRINT 1 c; +50", "+1; SPAWN 1 all; 1@2");
    let (told, _) = play("OPEN; spawn 1; FLOOD 1; FLOOD 1; +2000; FLOOD 1; EXIT 1 0");
    let pieces: Vec<&str> = told.split("; ").filter(|word| word.contains('@')).collect();
    assert_eq!(pieces.len(), 16 + 1 + 16 + 1, "a second's worth at once, what is left when there is room, and so on");
    assert!(pieces[16] == "…3968@1196032" && pieces[33] == "…0@1800000", "{pieces:?}");
    assert_eq!(told.matches("process.output.throttled").count(), 1);
}

/// Covers: EV-E5, G8, LN-EV17.
#[test]
fn result_is_resent_until_acknowledged() {
    check(
        "spawn 1; EXIT 1 0; OPEN; CLOSE; OPEN; pong; CLOSE; OPEN",
        "+1; SPAWN 1 all; -1; 1 exited; ping; 1 exited; ping",
    );
    // Messages behind the ping are acknowledged with the next ping.
    check(
        "OPEN; tool 1 a; tool 2 a; pong; CLOSE; OPEN; pong",
        "-1; 1 unknown_tool; ping; -2; 2 unknown_tool; ping; 2 unknown_tool; ping",
    );
    let many: Vec<String> = (1..=80).map(|n| format!("tool {n} a")).collect();
    let (told, _) = play(&format!("{}; OPEN", many.join("; ")));
    assert_eq!(told.matches("unknown_tool").count(), limits::RESULTS_UNACKED_MAX);
    let (told, _) = play(&format!("{}; OPEN; pong", many.join("; ")));
    assert_eq!(told.matches("unknown_tool").count(), 80);
}

/// A runner may be connected to several nodes. The node that sends or queries an action owns its session.
///
/// Covers: EV-A2, EV-E5, EV-N5.
#[test]
fn reports_go_to_the_node_that_asked_last() {
    check(
        "OPEN; 1:OPEN; spawn 1; UP 1; PRINT 1 ab; +50; 1:query 1; PRINT 1 c; +50; EXIT 1 0; 1:pong",
        "+1; SPAWN 1 all; invoked; 2@0; 1:invoked; 1:1@2; -1; 1:1 exited; 1:ping",
    );
    // The owner is lost while the action runs: no other node gets the result before it queries the action.
    check(
        "OPEN; 1:OPEN; spawn 1; UP 1; CLOSE; EXIT 1 0; 1:query 1; 1:pong; OPEN",
        "+1; SPAWN 1 all; invoked; -1; 1:1 exited; 1:ping",
    );
    check("OPEN; 1:OPEN; spawn 1; EXIT 1 0; CLOSE; OPEN", "+1; SPAWN 1 all; -1; 1 exited; ping; 1 exited; ping");
    check("OPEN; 1:OPEN; tool 1 a; 1:tool 2 a; 1:pong", "-1; 1 unknown_tool; ping; -2; 1:2 unknown_tool; 1:ping");
    // An unacknowledged result for a lost node does not keep the runner from exiting.
    check("OPEN; 1:OPEN; spawn 1; EXIT 1 0; CLOSE; LEAVE 0", "+1; SPAWN 1 all; -1; 1 exited; ping; LEFT");
}

/// Covers: EV-N5, EV-A2, LN-EV12.
#[test]
fn restarted_runner_knows_actions_from_its_journal() {
    let mut now = Now { mono: Now::default().mono + Duration::from_secs(1000), store: Millis(1_000_000) };
    let script = "OPEN; spawn 1; UP 1; spawn 2; EXIT 2 0; tool 3 a; list 4";
    let (_, records) = play(script);
    let mut next = ToolExecutor::new(allowed(), records.clone());
    let (told, more) = play_on(&mut next, &mut now, "OPEN; spawn 1; query 2; spawn 2; query 3; query 4; status 5 1");
    assert_eq!(
        told,
        "SWEEP 1; -1; 1 abnormal_exit; ping; 1 abnormal_exit; 2 exited; 2 exited; 3 unknown_tool; 4 unknown_action; 5 exited"
    );
    // The journal and its compacted form give the same answers, and the compacted form leaves no process to stop.
    let whole: Vec<JournalRecord> = records.into_iter().chain(more).collect();
    let short: Vec<JournalRecord> = ToolExecutor::new(allowed(), whole).records().collect();
    assert_eq!(short.len(), 3);
    let (told, _) = play_on(&mut ToolExecutor::new(allowed(), short), &mut now, "OPEN; spawn 1");
    assert_eq!(told, "1 abnormal_exit; ping");
}

/// Covers: G8: what ended long ago makes room, and nothing that could still be begun does.
#[test]
fn known_actions_are_bounded() {
    let now = Now { mono: Now::default().mono, store: Millis(1) };
    let session = QualifiedSession::parse("s1").expect("a name");
    let mut machine = ToolExecutor::new(allowed(), Vec::new());
    let mut ask = |n: u64, ts: u64| {
        let action_id = EventId::new(Millis(ts), u128::from(n) << 48);
        let tool = "a".to_owned();
        let args = Json(json!({}));
        let deadline = Millis(ts + 1);
        let ts = Millis(ts);
        let asked = ExecuteMessage { action_id, session: session.clone(), tool, args, ts, deadline };
        machine.handle_input(now, Input::Received(0, GatewayMessage::Execute(Box::new(asked))));
        let lines: Vec<String> =
            std::iter::from_fn(|| machine.poll_output()).map(|output| format!("{output:?}")).collect();
        (lines.join(" ").contains("busy"), machine.action_count())
    };
    for n in 0..limits::TOOL_EXECUTOR_ACTIONS_KEPT_MAX as u64 {
        assert!(!ask(n, TS).0);
    }
    assert_eq!(ask(9999, TS + 180_000), (true, limits::TOOL_EXECUTOR_ACTIONS_KEPT_MAX));
    assert_eq!(ask(9999, TS + 180_001), (false, limits::TOOL_EXECUTOR_ACTIONS_KEPT_MAX));
}

#[test]
fn stopping_runner_starts_nothing_and_stops_processes() {
    check("OPEN; LEAVE 0", "LEFT");
    check(
        "OPEN; spawn 1; LEAVE 1000; spawn 2; pong; EXIT 1 0; pong",
        "+1; SPAWN 1 all; -2; 2 runner_stopped; ping; -1; 1 exited; ping; LEFT",
    );
    check(
        "OPEN; spawn 1; LEAVE 1000; +1000; +5000; DIE 1; pong",
        "+1; SPAWN 1 all; TERM 1; KILL 1; -1; 1 runner_stopped; ping; LEFT",
    );
    check("OPEN; spawn 1; LEAVE 1000; EXIT 1 0; CLOSE", "+1; SPAWN 1 all; -1; 1 exited; ping; LEFT");
    check("OPEN; spawn 1; LEAVE 9000; LEAVE 0; +0", "+1; SPAWN 1 all; TERM 1");
}

#[test]
fn tool_runner_machine_satisfies_the_machine_laws() {
    let script = "OPEN; spawn 1; UP 1; PRINT 1 ab; +10; spawn 2 for 700; UP 2; FLOOD 2; +100; status 3 1; pong; +800; \
                  kill 4 1; CLOSE; +2000; DIE 2; OPEN; pong; +4000; DIE 1; LEAVE 500; pong; pong; +9000";
    let mut steps = Vec::new();
    let mut after = Duration::ZERO;
    for words in script.split("; ").map(str::trim) {
        match words.strip_prefix('+') {
            Some(ms) => after += Duration::from_millis(ms.parse().expect("ms")),
            None => steps.push(Step { after: std::mem::take(&mut after), input: Some(input(words)) }),
        }
    }
    steps.push(Step { after, input: None });
    let outputs = laws(|_| ToolExecutor::new(allowed(), Vec::new()), &steps, 100, |output| format!("{output:?}"));
    assert!(outputs.iter().any(|output| output.contains("Finished")), "{outputs:?}");
}
