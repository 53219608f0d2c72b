//! Rendering of facts about actions, tools and processes.
use super::*;
use turnway_core::id::{AgentEventId, RunnerId, SystemName, ToolName};
use turnway_core::protocol::action::{
    ActionRequested, ActionSpec, ProcessReported, SystemReported, ToolError, ToolInvoked, ToolResult,
};

const ID: &str = "0190f4a0-0000-7000-8000-000000000001";

pub(super) fn samples() -> Vec<(Fact, Vec<Value>)> {
    let action_id = EventId(ID.parse().expect("a UUID"));
    let tool = ToolName::parse("t").expect("a name");
    let name = Some(AgentEventId::parse("n1").expect("a name"));
    let args = Json(json!({"x": 1}));
    let asked = ActionRequested {
        action_id,
        name: name.clone(),
        agent_id: agent("a"),
        attempt: 1,
        what: ActionSpec::ToolCall { tool: tool.clone(), args: args.clone() },
        deadline_ms: Some(Millis(9)),
        mark: None,
    };
    let runner_id = RunnerId::parse("r1").expect("a name");
    let invoked = ToolInvoked { action_id, tool: tool.clone(), args, runner_id };
    let error = Some(ToolError::of("boom", "why"));
    let ended = ToolResult { action_id, name, tool, ok: false, result: None, error };
    let reported = ProcessReported { action_id, process_id: action_id, pid: Some(7), abnormal_exit: false, data: None };
    let runner_id = RunnerId::parse("r1").expect("a name");
    let name = SystemName::parse("battery").expect("a name");
    let system = SystemReported { action_id, runner_id, name, data: None };
    let event = |name: &str, data: Value| vec![placed("tool_event", json!({"name": name, "data": data}))];
    vec![
        (Fact::Action(ActionFact::Requested(asked)), vec![]),
        (
            Fact::Action(ActionFact::Invoked(invoked)),
            event("tool.invoke", json!({"action_id": ID, "tool": "t", "args": {"x": 1}, "runner_id": "r1"})),
        ),
        (
            Fact::Action(ActionFact::Ended(ended)),
            event(
                "tool.result",
                json!({"action_id": ID, "name": "n1", "tool": "t", "ok": false,
                    "error": {"code": "boom", "message": "why"}}),
            ),
        ),
        (Fact::Action(ActionFact::ProcessSpawned(reported.clone())), vec![]),
        (Fact::Action(ActionFact::ProcessProgress(reported.clone())), vec![]),
        (Fact::Action(ActionFact::ProcessExited(reported.clone())), vec![]),
        (Fact::Action(ActionFact::ProcessCanceled(reported)), vec![]),
        (Fact::Action(ActionFact::SystemEvent(system)), vec![]),
    ]
}
