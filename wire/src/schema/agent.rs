//! Messages between an agent that dials in and a node.
use super::connection::{self, answer, received as framed_request, sent as framed};
use super::shape::{
    FieldSpec, JsonShape, MessageSpec, constant, integer, list, names, optional, required, small_integer, text,
    text_up_to, words,
};
use JsonShape::{Any, Defined, Flag};
use turnway_core::limits;
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::steer::SteerOutcome;

/// Returns the messages from an agent.
pub(super) fn received() -> Vec<MessageSpec> {
    let capabilities = vec![
        optional("steer", Flag, "Accepts further inputs while it answers; absent: no."),
        optional("resume", Flag, "Can send the events after a given event; absent: no."),
        optional("cancel", Flag, "Answers `cancel` with `cancel_ack`; absent: yes."),
    ];
    let hello = connection::hello(
        "The first message: the agent's identity.",
        vec![
            required("role", constant("agent"), ""),
            required("agent_id", Defined("agent_id"), ""),
            optional("capabilities", JsonShape::Object(capabilities), ""),
        ],
    );
    let subscribe = vec![required("types", connection::types(), "Replaces the types of an earlier `subscribe`.")];
    let subscribe = MessageSpec::new(
        "subscribe",
        "Requests facts of these types in every run of this connection.",
        framed_request(subscribe),
    );
    [vec![hello], events(), acknowledgements(), vec![subscribe], connection::requests()].concat()
}

/// Returns the messages to an agent.
pub(super) fn sent() -> Vec<MessageSpec> {
    let subscribed = MessageSpec::new(
        "subscribed",
        "Answers `subscribe`.",
        answer(vec![required("types", connection::types(), "")]),
    );
    let error = MessageSpec::new("error", "A refused message or connection.", answer(connection::error()));
    [orders(), vec![subscribed, error], connection::answers()].concat()
}

/// Returns the fields of a message about a run.
fn about_run(fields: Vec<FieldSpec>) -> Vec<FieldSpec> {
    let run = vec![
        required("run_id", Defined("qualified_run_id"), ""),
        optional("attempt", small_integer(), "A message of another attempt than the running one is ignored."),
    ];
    framed_request([run, fields].concat())
}

fn id() -> FieldSpec {
    optional("id", Defined("agent_event_id"), "The event's id; required from an agent with `resume`.")
}

fn events() -> Vec<MessageSpec> {
    let delta = vec![
        required("text", text(), ""),
        optional("kind", names(&[TextKind::Text, TextKind::Reasoning]), "Absent: `text`."),
        id(),
    ];
    let state = vec![
        required("state", super::definition::label(), "The agent's own name of the state."),
        optional("detail", Any, "").json_bytes(limits::AGENT_DETAIL_BYTES_MAX),
        id(),
    ];
    let action = vec![
        optional("action_id", Defined("agent_event_id"), "The agent's own name for the action."),
        optional("action_type", words(&["tool_call", "say"]), "Absent: follows from the other fields."),
        optional("tool", Defined("tool_name"), "With `tool_call`."),
        optional("args", Any, "With `tool_call`.").json_bytes(limits::AGENT_DETAIL_BYTES_MAX),
        optional("timeout_ms", integer(), "The time until the action has ended at the latest."),
        optional("text", text_up_to(limits::ACTION_DATA_BYTES_MAX), "With `say`."),
        id(),
    ];
    let tool_call =
        vec![required("tool", Defined("tool_name"), ""), optional("action_type", constant("tool_call"), "")];
    let say = vec![
        required("text", text_up_to(limits::ACTION_DATA_BYTES_MAX), ""),
        optional("action_type", constant("say"), ""),
    ];
    let handover = vec![
        required("to", Defined("agent_id"), "The agent that is to take over."),
        optional("reason", text_up_to(limits::REASON_BYTES_MAX), ""),
        optional("summary", text_up_to(limits::HANDOVER_SUMMARY_BYTES_MAX), "Information for the other agent."),
        id(),
    ];
    let done = vec![
        optional("usage", Any, "Passed on to clients.").json_bytes(limits::AGENT_DETAIL_BYTES_MAX),
        optional("stop_reason", text(), "A `stop_reason`; any other text counts as `end_turn`."),
    ];
    let error = vec![
        optional("code", text(), "The agent's own code; `unknown_run`: it does not know a run to resume."),
        optional("message", text(), "For operators."),
    ];
    vec![
        MessageSpec::new("delta", "A piece of the answer's text.", about_run(delta)),
        MessageSpec::new("state", "A state of the agent.", about_run(state)),
        MessageSpec::new("action", "Requests an action.", about_run(action)).with_alternatives(vec![tool_call, say]),
        MessageSpec::new("handover_request", "Requests a handover to another agent.", about_run(handover)),
        MessageSpec::new("done", "The end of the answer.", about_run(done)),
        MessageSpec::new("error", "The end of the answer, with a failure.", about_run(error)),
    ]
}

fn acknowledgements() -> Vec<MessageSpec> {
    let outcome = names(&[SteerOutcome::Accepted, SteerOutcome::Pending, SteerOutcome::Refused]);
    let steer_ack = vec![
        optional("run_id", Defined("qualified_run_id"), "Optional if only one run got a message of that id."),
        optional("attempt", small_integer(), ""),
        required("message_id", Defined("message_id"), "The input that the agent was handed."),
        optional("outcome", outcome, "Absent: `refused`."),
    ];
    vec![
        MessageSpec::new(
            "input_ack",
            "The agent has the input; any other first message implies it.",
            about_run(Vec::new()),
        ),
        MessageSpec::new("cancel_ack", "The agent has stopped.", about_run(Vec::new())),
        MessageSpec::new("steer_ack", "The outcome of a steered input.", framed_request(steer_ack)),
    ]
}

/// Returns the fields of an order.
fn order(fields: Vec<FieldSpec>) -> Vec<FieldSpec> {
    let run = vec![
        required("session_id", Defined("qualified_session_id"), ""),
        required("run_id", Defined("qualified_run_id"), ""),
        required("attempt", small_integer(), ""),
    ];
    framed([run, fields].concat())
}

fn orders() -> Vec<MessageSpec> {
    let resume = vec![optional("last_event_id", Defined("agent_event_id"), "Absent: send all events.")];
    let invoke = vec![
        required("epoch", Defined("epoch"), ""),
        required("agent_id", Defined("agent_id"), ""),
        required("input_message", Defined("message"), ""),
        optional("messages", list(Any), "Earlier messages of the conversation."),
        optional("messages_url", text(), "Instead of `messages`: URL of a file with them, read with `run_token`."),
        required("context", Defined("input_context"), ""),
        optional("traceparent", text(), "W3C trace context."),
        optional("run_token", text(), "Credential of the run for HTTP requests, as `Authorization: Bearer`."),
        optional("resume", JsonShape::Object(resume), "Send the events after this event again."),
    ];
    let steer = vec![
        required("message_id", Defined("message_id"), ""),
        required("message", Defined("message"), ""),
        required("turn_id", Defined("qualified_run_id"), "The input's own turn."),
        required("context", Defined("input_context"), ""),
    ];
    let event = vec![
        required("name", text(), "The type of the fact."),
        required("seq", Defined("seq"), ""),
        required("epoch", Defined("epoch"), ""),
        required("event", Defined("fact"), ""),
    ];
    vec![
        MessageSpec::new("invoke", "Answer this input.", order(invoke)),
        MessageSpec::new("cancel", "Stop: the run was cancelled, or nothing follows it any more.", order(Vec::new())),
        MessageSpec::new("steer", "Take this input into the running answer.", order(steer)),
        MessageSpec::new("event", "A fact about an action of this agent, or of a subscribed type.", order(event)),
    ]
}
