//! Actions of agents: execution, results, and exactly-once effects. Script steps: `act TOOL [NAME]` and `act
//! say` request an action; `tool begun|ok|bad|told|unknown|nobody|lost [N]` reports on the N-th requested
//! action, or the last.
use crate::script::{Script, check, check_with, said};
use serde_json::json;
use turnway_core::id::{EventId, RunnerId, SystemName, ToolName};
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::protocol::action::{
    ActionRequest, ActionSpec, OutputEncoding, OutputStream, ProcessOutput, ToolError, ToolOrder, ToolReport,
    ToolResult,
};
use turnway_core::protocol::agent::{AgentEvent, OnOwnerLoss};
use turnway_core::protocol::entry::{ActionFact, Fact};
use turnway_core::protocol::json::Json;
use turnway_core::session::Input;

const BEGUN: &str = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started";
const ASKED: &str = "agent.action NEWS(agent.action) EXECUTE(t)";
const INVOKED: &str = "tool.invoke NEWS(tool.invoke)";
const SPAWNED: &str = "agent.action NEWS(agent.action) EXECUTE(process.spawn) tool.invoke process.spawned \
    NEWS(tool.invoke) NEWS(process.spawned)";
const RESULT: &str = "result(ok) NEWS(tool.result)";

impl Script {
    pub(crate) fn act(&mut self, words: &[&str]) {
        match words {
            ["act", "say"] => self.request_action(None, ActionSpec::Say { text: Private("hm".to_owned()) }),
            ["act", "process.kill"] => {
                let about = self.action(1).to_string();
                self.request_action(None, call("process.kill", json!({"process_id": about})));
            }
            ["act", tool] => self.request_action(None, call(tool, json!({"x": 1}))),
            ["act", tool, name] => self.request_action(Some(name), call(tool, json!({"x": 1}))),
            ["tool", word, n @ ..] => {
                let n = n.first().map_or(0, |n| n.parse().expect("a number"));
                let action_id = self.action(n);
                self.give(Input::Tool { action_id, report: report(word) });
            }
            other => panic!("no such step: {other:?}"),
        }
    }

    pub(crate) fn request_action(&mut self, name: Option<&str>, what: ActionSpec) {
        let request = Box::new(ActionRequest { name: name.map(said), what, timeout: None });
        self.report(AgentEvent::Action { request, id: None });
    }

    /// Returns the id of the n-th requested action; 0 is the last.
    fn action(&self, n: usize) -> EventId {
        let ids = self.log.iter().filter_map(|(_, entry)| {
            let Fact::Action(ActionFact::Requested(asked)) = &entry.fact else { return None };
            assert_eq!(asked.action_id, entry.id, "EV-C3");
            Some(asked.action_id)
        });
        let ids: Vec<_> = ids.collect();
        ids[if n == 0 { ids.len() - 1 } else { n - 1 }]
    }
}

pub(crate) fn call(tool: &str, args: serde_json::Value) -> ActionSpec {
    ActionSpec::ToolCall { tool: ToolName::parse(tool).expect("a name"), args: Json(args) }
}

fn report(word: &str) -> ToolReport {
    match word {
        "begun" => ToolReport::Invoked { runner: RunnerId::parse("r1").expect("a name"), pid: Some(7) },
        "told" => ToolReport::Progress(Json(json!({"n": 1}))),
        "system" => ToolReport::System {
            runner: RunnerId::parse("r1").expect("a name"),
            name: SystemName::parse("battery.low").expect("a name"),
            data: Some(Json(json!({"percent": 4}))),
        },
        "ok" => ToolReport::Ended { ok: true, result: Some(Json(json!([1]))), error: None },
        "bad" => ToolReport::Ended { ok: false, result: None, error: Some(ToolError::of("boom", "why")) },
        "unknown" => ToolReport::Unknown,
        "nobody" => ToolReport::NoRunner,
        "lost" => ToolReport::Lost,
        "prints" => {
            let stream = OutputStream::Stdout;
            let encoding = OutputEncoding::Utf8;
            let data = Private("out".into());
            let action_id = EventId::default();
            let printed = ProcessOutput { action_id, stream, offset: 0, data, encoding, truncated: false };
            ToolReport::Output(Box::new(printed))
        }
        other => panic!("no such word: {other}"),
    }
}

pub(crate) fn shown(ended: &ToolResult) -> String {
    let code = ended.error.as_ref().map_or("", |error| error.code.as_str());
    format!("result({})", if ended.ok { "ok" } else { code })
}

pub(crate) fn order(order: &ToolOrder) -> String {
    match order {
        ToolOrder::Execute(execute) => match &execute.runner {
            Some(runner) => format!("EXECUTE({},{runner})", execute.tool),
            None => format!("EXECUTE({})", execute.tool),
        },
        ToolOrder::Signal { signal, .. } => format!("SIGNAL({signal})"),
        ToolOrder::Query { tool, runner: Some(runner), .. } => format!("QUERY({tool},{runner})"),
        ToolOrder::Query { tool, runner: None, .. } => format!("QUERY({tool})"),
    }
}

fn runs(script: &str, expected: &str) {
    check(&format!("say m1; ack; {script}"), &format!("{BEGUN} {expected}"));
}

/// Delivers the output of a process while its action is open, and records none of it.
///
/// Covers: EV-G3, EV-L4.
#[test]
fn process_output_is_delivered_but_not_recorded() {
    runs("act process.spawn; tool begun; tool prints", &format!("{SPAWNED} PRINTED(out)"));
    runs("hold; act process.spawn; tool begun; tool prints", "agent.action tool.invoke process.spawned");
    runs("act t; tool begun; tool ok; tool prints", &format!("{ASKED} {INVOKED} {RESULT}"));
}

/// Covers: EV-R2, EV-R3, EV-R6, EV-E3, EV-E4, EV-E5, EV-C3, EV-T2, EV-T4, EV-L3, LN-EV15.
#[test]
fn action_is_recorded_executed_and_reported() {
    runs("act t; tool begun; tool ok; done", &format!("{ASKED} {INVOKED} {RESULT} agent.invoke.done done(0)"));
    runs("act t; tool begun; tool bad", &format!("{ASKED} {INVOKED} result(boom) NEWS(tool.result)"));
    runs("act say; done", "agent.action NEWS(agent.action) agent.invoke.done done(0)");
    // No runner receives an action before its fact is durable.
    runs("hold; act t", "agent.action");
    runs("hold; act t; settle", ASKED);
}

/// Covers: EV-N5, EV-N6.
#[test]
fn repeated_action_is_deduplicated_by_name() {
    runs("act t x; act t x; tool begun; act t x", &format!("{ASKED} {INVOKED}"));
    runs("act t x; tool ok; act t x; tool ok", &format!("{ASKED} {RESULT}"));
    // An action without a name, or with another one, is a new action.
    runs("act t x; act t y; act t", &format!("{ASKED} {ASKED} {ASKED}"));
    // The next attempt of the run requests the same action.
    let again = "| QUERY(t) run.restarted INVOKE(a,2,1+0)";
    runs("act t x; crash; act t x", &format!("{ASKED} {again}"));
}

/// Covers: EV-E7.
#[test]
fn system_events_are_recorded_while_the_action_runs() {
    let heard = "system.event NEWS(system.event)";
    runs("act t; tool begun; tool system; tool ok; tool system", &format!("{ASKED} {INVOKED} {heard} {RESULT}"));
    // Before the action has begun its machine is unknown; and the number of recorded events is bounded.
    runs("act t; tool system; tool begun", &format!("{ASKED} {INVOKED}"));
    let many = "tool system; ".repeat(limits::ACTION_PROGRESS_MAX as usize + 9);
    let heard = format!("{heard} ").repeat(limits::ACTION_PROGRESS_MAX as usize);
    runs(&format!("act t; tool begun; {many}"), &format!("{ASKED} {INVOKED} {heard}"));
}

/// Covers: EV-E6, EV-E8, EV-T5, EV-T8, EV-C6.
#[test]
fn process_action_stays_open_until_its_process_ends() {
    let told = "process.progress NEWS(process.progress)";
    runs(
        "act process.spawn; tool begun; tool told; tool ok",
        &format!("{SPAWNED} {told} process.exited result(ok) NEWS(process.exited) NEWS(tool.result)"),
    );
    // The process outlives its run; the next run is told of the process, and of its end: as it happens
    // (EV-T8), and with the invocation.
    runs(
        "act process.spawn; tool begun; done; say m2; ack; tool ok; done; say m3; ack; done; say m4",
        &format!(
            "{SPAWNED} agent.invoke.done done(0) user.message admitted(a,Run) run.started INVOKE(a,1,1+0) \
             agent.invoke.started process.exited result(ok) NEWS(process.exited) NEWS(tool.result) agent.invoke.done done(0) \
             user.message admitted(a,Run) run.started INVOKE(a,1,0+1) agent.invoke.started agent.invoke.done done(0) user.message admitted(a,Run) \
             run.started INVOKE(a,1)"
        ),
    );
}

/// Covers: EV-T11, EV-T14, EV-N2, EV-N3.
#[test]
fn agent_can_kill_its_process() {
    let kill = "agent.action NEWS(agent.action) EXECUTE(process.kill,r1)";
    let ended = "process.canceled result(boom) NEWS(process.canceled) NEWS(tool.result)";
    runs(
        "act process.spawn; tool begun; act process.kill; tool begun; tool ok; tool bad 1",
        &format!("{SPAWNED} {kill} {INVOKED} {RESULT} {ended}"),
    );
}

/// Covers: EV-A2, RX-3.
#[test]
fn new_owner_queries_actions_without_repeating_them() {
    let again = "run.restarted INVOKE(a,2,1+0)";
    runs(
        "act t; tool begun; crash; ack; tool begun; tool ok",
        &format!("{ASKED} {INVOKED} | QUERY(t,r1) {again} agent.invoke.started result(ok) NEWS(tool.result)"),
    );
    runs("act t; crash; tool unknown", &format!("{ASKED} | QUERY(t) {again} result(UNKNOWN) NEWS(tool.result)"));
    runs(
        "act process.spawn; tool begun; crash; tool lost",
        &format!(
            "{SPAWNED} | QUERY(process.spawn,r1) {again} process.exited result(abnormal_exit) NEWS(process.exited) \
             NEWS(tool.result)"
        ),
    );
    // The result is reported again to the next attempt.
    runs("act t; tool ok; crash", &format!("{ASKED} {RESULT} | run.restarted INVOKE(a,2,0+1)"));
    check_with(
        OnOwnerLoss::Fail,
        "say m1; ack; act t; tool begun; crash",
        &format!("{BEGUN} {ASKED} {INVOKED} | QUERY(t,r1) failed(owner_lost) result(canceled) SIGNAL(KILL)"),
    );
}

/// Covers: EV-N5, LN-EV13, LN-EV16: the first end is the only one.
#[test]
fn action_ends_once() {
    runs("act t; tool ok; tool bad; tool lost; tool begun", &format!("{ASKED} {RESULT}"));
    runs("act t; tool nobody; tool ok", &format!("{ASKED} result(no_runner) NEWS(tool.result)"));
    let late = "result(tool_timeout) NEWS(tool.result) SIGNAL(KILL)";
    runs("act t; wait 59999", ASKED);
    runs("act t; wait 60000; tool ok", &format!("{ASKED} {late}"));
    runs(
        "act t; tool begun; cancel; cancel-ack; tool ok",
        &format!("{ASKED} {INVOKED} run.cancelling CANCEL answered cancelled(user) DROP result(canceled) SIGNAL(KILL)"),
    );
    runs(
        "act t; close; cancel-ack",
        &format!(
            "{ASKED} session.closing run.cancelling result(canceled) CANCEL SIGNAL(KILL) cancelled(session_close) \
             DROP session.closed answered"
        ),
    );
}

/// Stops the silence clock while the gateway performs an action for the agent, across a change of owners too.
#[test]
fn open_action_stops_the_silence_clock() {
    let result = "process.exited result(ok) NEWS(process.exited) NEWS(tool.result)";
    runs("act process.spawn; tool begun; wait 600000; tool ok; wait 119999", &format!("{SPAWNED} {result}"));
    runs(
        "act process.spawn; tool begun; wait 600000; tool ok; wait 120000",
        &format!("{SPAWNED} {result} failed(agent_timeout) DROP"),
    );
    let again = "| QUERY(process.spawn,r1) run.restarted INVOKE(a,2,1+0)";
    runs("act process.spawn; tool begun; crash; ack; wait 600000", &format!("{SPAWNED} {again} agent.invoke.started"));
    // A new attempt must still acknowledge its input.
    let routed = "failed(ROUTE_TIMEOUT) DROP process.canceled result(canceled) SIGNAL(KILL)";
    runs("act process.spawn; tool begun; crash; wait 15000", &format!("{SPAWNED} {again} {routed}"));
    // The action's own deadline ends the action, and with it the wait.
    let late = "result(tool_timeout) NEWS(tool.result) SIGNAL(KILL)";
    runs("act t; wait 179999", &format!("{ASKED} {late}"));
    runs("act t; wait 180000", &format!("{ASKED} {late} failed(agent_timeout) DROP"));
}

/// Covers: LN-EV11.
#[test]
fn cancelled_run_starts_no_more_actions() {
    let stops = "run.cancelling CANCEL answered cancelled(user) DROP";
    runs("cancel; act t; cancel-ack; act t", stops);
    // Actions that began before the cancel are stopped with the run.
    runs(
        "act t; tool begun; cancel; act t; cancel-ack; act t",
        &format!("{ASKED} {INVOKED} {stops} result(canceled) SIGNAL(KILL)"),
    );
}

/// Covers: LN-EV14.
#[test]
fn input_during_an_action_is_steered_at_once() {
    runs(
        "act t; tool begun; steer m2; takes m2; tool ok; done",
        &format!(
            "{ASKED} {INVOKED} user.message admitted(a,Steered) STEER(m2) steer(accepted) {RESULT} \
             agent.invoke.done done(0) done(steered)"
        ),
    );
}

/// Covers: S-48, EV-T12, LN-EV17.
#[test]
fn actions_are_bounded() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    for step in ["say m1", "ack"] {
        world.step(step);
    }
    for _ in 0..20 {
        world.step("act t");
    }
    assert_eq!(world.runtime.state().actions.open.len(), 16);
    assert!(world.record.iter().any(|word| word == "result(too_many_actions)"));
    for _ in 0..300 {
        world.step("act t");
    }
    let asked = world.log.iter().filter(|(_, entry)| matches!(entry.fact, Fact::Action(ActionFact::Requested(_))));
    assert_eq!(asked.count(), 256);
    world.step("crash");
}

/// Covers: EV-C1, EV-C4, EV-C5, EV-L2, EV-G4, EV-N8, S-38.
#[test]
fn facts_of_an_action_name_their_cause_and_source() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    for step in ["say m1", "ack", "act process.spawn canary", "tool begun", "tool told", "tool ok"] {
        world.step(step);
    }
    let find = |name: &str| world.log.iter().map(|(_, entry)| entry).find(|entry| entry.fact.name() == name);
    let [asked, invoked, told, exited, ended] =
        ["agent.action", "tool.invoke", "process.progress", "process.exited", "tool.result"]
            .map(|name| find(name).expect("it is recorded"));
    assert_eq!((&*asked.source, &*invoked.source, &*ended.source), ("agent:a", "runner:r1", "runner:r1"));
    assert_eq!(invoked.causation_id, Some(asked.id));
    for later in [told, exited, ended] {
        assert_eq!(later.causation_id, Some(invoked.id));
        assert_eq!(later.correlation_id, asked.correlation_id);
    }
    assert!(!format!("{:?}", world.runtime).contains("\"x\""), "what it is given is not printed");
}

/// A draining node leaves a session to another owner when nothing but an open action is pending.
///
/// Covers: EV-C6.
#[test]
fn draining_session_only_awaits_its_action_after_the_attempt() {
    let mut script = Script::new(OnOwnerLoss::Retry);
    let awaits_only = |script: &mut Script, step: &str| {
        script.step(step);
        script.runtime.only_awaits_others()
    };
    for step in ["say m1", "ack", "act t", "tool begun", "drain"] {
        assert!(!awaits_only(&mut script, step), "{step}: the attempt is running");
    }
    assert!(awaits_only(&mut script, "done"), "the action is left");
    assert!(!awaits_only(&mut script, "tool ok"), "nothing is left");
    let mut script = Script::new(OnOwnerLoss::Retry);
    for step in ["say m1", "ack", "act t", "tool begun", "done"] {
        assert!(!awaits_only(&mut script, step), "{step}: the node stays");
    }
}
