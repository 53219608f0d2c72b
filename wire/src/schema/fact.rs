//! The data of each fact, as `event`, `GET …/events` and orders to agents carry it, and the envelope around it.
//! Ids may be in their qualified forms, because agents receive facts in those.
use super::definition::{binding_metadata, button_id, buttons, platform_message, reaction};
use super::shape::{
    FieldSpec, JsonShape, constant, integer, list, names, optional, pattern, required, small_integer, text, words,
};
use JsonShape::{Any, Defined, Flag};
use turnway_core::protocol::binding::{TargetKind, UnbindReason};
use turnway_core::protocol::delivery::{DeliveryFailure, DeliveryKind, TextUnit};
use turnway_core::protocol::entry::{Admission, Scope};
use turnway_core::protocol::input::Strategy;
use turnway_core::protocol::model_call::RecordedCallOutcome;
use turnway_core::protocol::route::{RouteMode, RouteReason};
use turnway_core::protocol::steer::SteerOutcome;

/// The data of one type of fact.
pub(super) struct FactRow {
    /// The `type` of the fact.
    pub(super) name: &'static str,
    /// The name of the definition of its data: `fact.` and the type.
    definition: &'static str,
    pub(super) summary: &'static str,
    pub(super) fields: Vec<FieldSpec>,
}

// === impl FactRow ===

impl FactRow {
    /// Returns the name of the definition of the fact's data.
    pub(super) fn definition(&self) -> &'static str {
        self.definition
    }
}

/// Creates a row; the name of its definition follows from the type.
macro_rules! fact {
    ($name:literal, $summary:literal, $fields:expr) => {
        FactRow { name: $name, definition: concat!("fact.", $name), summary: $summary, fields: $fields }
    };
}

/// Returns the rows of all facts, in the order of their tables.
pub(super) fn rows() -> Vec<FactRow> {
    let families = [
        session_facts(),
        member_facts(),
        handover_facts(),
        action_facts(),
        binding_facts(),
        delivery_facts(),
        model_facts(),
        input_facts(),
        run_facts(),
    ];
    families.into_iter().flatten().collect()
}

/// Returns the fields of the envelope, besides `type` and `data`.
pub(super) fn envelope() -> Vec<FieldSpec> {
    let time = pattern(r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?Z$", &["1970-01-01T00:00:00.005Z"]);
    vec![
        required("specversion", constant("1.0"), "The version of CloudEvents."),
        required("id", Defined("qualified_event_id"), ""),
        required("time", time, "The time of the decision."),
        required("source", text(), "The originator: `user:ID`, `agent:ID` or `turnway`."),
        required("session_id", Defined("qualified_session_id"), ""),
        required("seq", Defined("seq"), ""),
        required("epoch", Defined("epoch"), ""),
        required("correlation_id", text(), "The turn that the fact belongs to, or the fact's own id."),
        optional("causation_id", Defined("qualified_event_id"), "The fact that this one follows from."),
        optional("traceparent", text(), "W3C trace context."),
        optional("run_id", Defined("qualified_run_id"), ""),
    ]
}

fn request_id() -> FieldSpec {
    optional("request_id", Defined("request_id"), "The request that caused the fact.")
}

fn agent_id() -> FieldSpec {
    required("agent_id", Defined("agent_id"), "")
}

fn attempt() -> FieldSpec {
    required("attempt", small_integer(), "")
}

fn reason() -> FieldSpec {
    required("reason", text(), "")
}

fn mark() -> FieldSpec {
    optional("mark", Defined("event_mark"), "")
}

fn session_facts() -> Vec<FactRow> {
    let opened = vec![
        required("user", Defined("user_id"), "The user that owns the session."),
        required("agents", list(Defined("agent_id")), ""),
        required("active_agent", Defined("agent_id"), ""),
        request_id(),
    ];
    vec![
        fact!("session.opened", "The session is open.", opened),
        fact!("session.closing", "The session closes.", vec![request_id()]),
        fact!("session.closed", "The session is closed.", vec![request_id()]),
        fact!(
            "session.notice",
            "An announcement that changes nothing.",
            vec![required("name", text(), ""), request_id()]
        ),
        fact!(
            "session.labelled",
            "A user has set or removed the session's label.",
            vec![required("label", text(), "Lists of sessions show the label; empty: none."), request_id()]
        ),
    ]
}

fn delivery_facts() -> Vec<FactRow> {
    let delivery_id = || required("delivery_id", Defined("delivery_id"), "");
    let part = || required("part", small_integer(), "From 1.");
    let undelivered = || {
        let meaning =
            "Deliveries of the session that are held, or failed and kept, from now on; lists of sessions show it.";
        required("undelivered", small_integer(), meaning)
    };
    let change = vec![
        required("targets", list(Defined("message_id")), "The platform's ids of the messages, one for each part."),
        optional("reaction", reaction(), ""),
    ];
    let requested = vec![
        delivery_id(),
        required("kind", names(&DeliveryKind::ALL), ""),
        required("conversation", Defined("conversation"), "The place; no later step changes it."),
        optional("reply_to", Defined("message_id"), "The platform's message that it answers."),
        optional("about_run", Defined("qualified_run_id"), "The run whose end caused it, or that gave the task."),
        optional("route", JsonShape::Object(route()), "The router's answer, if the router chose the place."),
        optional(
            "generation",
            integer(),
            "The version of the binding that mirrors; nothing is sent once it has changed.",
        ),
        optional("buttons", JsonShape::Object(button_set()), "Below the last part."),
        optional("change", JsonShape::Object(change), "The kinds `edit`, `delete` and `reaction`."),
        optional("binding", JsonShape::Object(planned_binding()), "What the new conversation is bound with."),
        optional("text_limit", JsonShape::Object(text_limit()), "The longest message there."),
        required("parts", list(text()), "The messages, as they are sent; empty for `delete` and `reaction`."),
    ];
    let sent = vec![
        delivery_id(),
        part(),
        required("parts", small_integer(), "With the last part the delivery has ended."),
        required("external_id", Defined("message_id"), "The platform's id of the message."),
        optional("undelivered", small_integer(), "As in `delivery.held`; absent: not changed."),
    ];
    vec![
        fact!("delivery.requested", "A message is to be sent to a conversation.", requested),
        fact!(
            "delivery.attempted",
            "A further attempt at a part begins.",
            vec![delivery_id(), part(), required("attempt", small_integer(), "From 2.")]
        ),
        fact!("delivery.sent", "The platform has a part.", sent),
        fact!(
            "delivery.held",
            "Nobody knows whether a part was sent; an operator decides.",
            vec![delivery_id(), part(), undelivered()]
        ),
        fact!(
            "delivery.failed",
            "The delivery has ended, not sent or not whole.",
            vec![delivery_id(), part(), required("reason", names(&DeliveryFailure::ALL), ""), undelivered()]
        ),
        fact!(
            "delivery.refused",
            "The completion of a task is sent nowhere: the router chose no place.",
            vec![
                required("about_run", Defined("qualified_run_id"), "The run that has ended."),
                required("reason", words(&RouteReason::ALL.map(RouteReason::as_str)), ""),
                required("requester", Defined("conversation"), "The conversation that the task came from."),
            ]
        ),
        fact!("delivery.redriven", "A held or failed delivery is sent again.", vec![delivery_id(), undelivered()]),
    ]
}

/// Returns the fields of the buttons below an answer.
fn button_set() -> Vec<FieldSpec> {
    vec![
        required("buttons", buttons(), ""),
        optional("reusable", JsonShape::Flag, "Every press is an input, and not only the first one."),
    ]
}

/// Returns the fields of the binding that a new conversation is to get.
fn planned_binding() -> Vec<FieldSpec> {
    vec![
        required("target_kind", names(&TargetKind::ALL), ""),
        optional("idle_timeout_ms", integer(), "It ends after so long without a routed message; absent: never."),
        optional("max_age_ms", integer(), "It ends so long after the bind; absent: never."),
        optional("expires_at", integer(), "It ends then at the latest; absent: never."),
        optional("mirror", JsonShape::Flag, "The conversation also gets the answers of turns that clients begin."),
        optional("metadata", binding_metadata(), ""),
    ]
}

/// Returns the fields of the router's answer.
fn route() -> Vec<FieldSpec> {
    vec![
        required("mode", words(&RouteMode::ALL.map(RouteMode::as_str)), ""),
        required("reason", words(&RouteReason::ALL.map(RouteReason::as_str)), ""),
        optional("generation", integer(), "The version of the binding; nothing is sent once it has changed."),
    ]
}

fn binding_facts() -> Vec<FactRow> {
    let place = || {
        vec![required("binding_id", Defined("binding_id"), ""), required("conversation", Defined("conversation"), "")]
    };
    vec![
        fact!(
            "binding.bound",
            "A conversation is bound to the session.",
            [
                place(),
                vec![
                    required("target_kind", names(&TargetKind::ALL), "The role of the session."),
                    required("bound_at", integer(), "Unix milliseconds, by the store's clock."),
                    optional("mirror", JsonShape::Flag, "The conversation also gets the answers of clients' turns."),
                ]
            ]
            .concat()
        ),
        fact!(
            "binding.ended",
            "A conversation is not bound to the session any more.",
            [
                place(),
                vec![
                    required("reason", names(&UnbindReason::ALL), ""),
                    required("ended_at", integer(), "Unix milliseconds, by the store's clock."),
                ]
            ]
            .concat()
        ),
    ]
}

fn member_facts() -> Vec<FactRow> {
    let tx_id = || required("tx_id", Defined("event_id"), "");
    let why = || optional("reason", text(), "In the user's words.");
    let switched = vec![
        required("from", Defined("agent_id"), ""),
        required("to", Defined("agent_id"), ""),
        reason(),
        required("trigger", text(), "The cause of the switch."),
        request_id(),
    ];
    let requested = || {
        vec![
            tx_id(),
            agent_id(),
            required("user", Defined("user_id"), ""),
            why(),
            optional("activate", Flag, "The agent is active from then on."),
            required("deadline_ms", Defined("timestamp"), ""),
            request_id(),
            optional("handover_id", Defined("qualified_action_id"), "The handover that the change is part of."),
        ]
    };
    let member = vec![
        required("since_ms", Defined("timestamp"), ""),
        required("turns", integer(), "Turns that the agent has ended."),
        required("last_seq", Defined("seq"), ""),
    ];
    let changed = || {
        vec![
            tx_id(),
            agent_id(),
            required("member", JsonShape::Object(member.clone()), ""),
            why(),
            optional("restored", Flag, "The agent was a member before."),
            request_id(),
        ]
    };
    let failed = || {
        let code = required("code", Defined("error_code"), "");
        vec![tx_id(), agent_id(), code, required("message", text(), ""), request_id()]
    };
    vec![
        fact!("agent.switched", "Another member is active.", switched),
        fact!("agent.adding", "An agent is about to become a member.", requested()),
        fact!("agent.added", "The agent has become a member.", changed()),
        fact!("agent.add_failed", "The agent could not be added.", failed()),
        fact!("agent.removing", "A member is about to leave.", requested()),
        fact!("agent.removed", "The member has left.", changed()),
        fact!("agent.remove_failed", "The member could not be removed.", failed()),
    ]
}

fn handover_facts() -> Vec<FactRow> {
    let parties = || {
        vec![
            required("handover_id", Defined("qualified_action_id"), ""),
            required("from", Defined("agent_id"), ""),
            required("to", Defined("agent_id"), ""),
        ]
    };
    let requested =
        vec![reason(), required("summary", text(), ""), required("deadline_ms", Defined("timestamp"), ""), mark()];
    let why = required("why", super::client::rejection(), "");
    vec![
        fact!("handover.requested", "An agent requests a handover.", [parties(), requested].concat()),
        fact!("handover.confirmed", "The handover is confirmed.", [parties(), vec![request_id()]].concat()),
        fact!("handover.rejected", "The handover is rejected.", [parties(), vec![why, request_id()]].concat()),
    ]
}

fn action_facts() -> Vec<FactRow> {
    let action_id = || required("action_id", Defined("qualified_action_id"), "");
    let name = || optional("name", Defined("agent_event_id"), "The agent's own name for the action.");
    let tool = || required("tool", Defined("tool_name"), "");
    let requested = vec![
        action_id(),
        name(),
        agent_id(),
        attempt(),
        required("type", words(&["say", "tool_call"]), ""),
        optional("text", text(), "With `say`."),
        optional("tool", Defined("tool_name"), "With `tool_call`."),
        optional("args", Any, "With `tool_call`."),
        optional("deadline_ms", Defined("timestamp"), ""),
        mark(),
    ];
    let invoked = vec![action_id(), tool(), required("args", Any, ""), required("runner_id", Defined("runner_id"), "")];
    let ended = vec![
        action_id(),
        name(),
        tool(),
        required("ok", Flag, ""),
        optional("result", Any, ""),
        optional("error", Defined("tool_error"), ""),
    ];
    let process = || {
        vec![
            action_id(),
            required("process_id", Defined("qualified_action_id"), ""),
            optional("pid", integer(), "The operating system's process id."),
            optional("abnormal_exit", Flag, "The exit status is unknown."),
            optional("data", Any, "Data from the runner."),
        ]
    };
    let system = vec![
        action_id(),
        required("runner_id", Defined("runner_id"), ""),
        required("name", Defined("system_name"), "The runner's name for the event."),
        optional("data", Any, "Data from the runner."),
    ];
    vec![
        fact!("agent.action", "An agent requests an action.", requested),
        fact!("tool.invoke", "A tool runner has started the action.", invoked),
        fact!("tool.result", "The action has ended.", ended),
        fact!("process.spawned", "A process was started.", process()),
        fact!("process.progress", "The action is in progress.", process()),
        fact!("process.exited", "The process has ended by itself.", process()),
        fact!("process.canceled", "The process was cancelled.", process()),
        fact!("system.event", "An event of a tool runner's machine.", system),
    ]
}

fn text_limit() -> Vec<FieldSpec> {
    vec![required("max", small_integer(), ""), required("unit", words(&TextUnit::ALL.map(TextUnit::as_str)), "")]
}

/// Returns the fields of the origin of a message.
fn origin() -> Vec<FieldSpec> {
    let meaning = "The longest message that the adapter can send there.";
    let limit = vec![required("text_limit", JsonShape::Object(text_limit()), meaning)];
    let debounce = vec![optional(
        "debounce_ms",
        integer(),
        "The time for which the message waited for further ones of its sender.",
    )];
    let decision = vec![
        required("delivery_id", Defined("delivery_id"), "The delivery of the message with the button."),
        required("button_id", button_id(), ""),
        required("press_id", Defined("request_id"), "The platform's id of the press."),
    ];
    let buttons = vec![
        optional("buttons", JsonShape::Range(-2, 2), "The level of the capability `buttons` there; absent: 0."),
        optional("decision", JsonShape::Object(decision), "The button that was pressed, if the input is a press."),
    ];
    [platform_message(), limit, debounce, buttons].concat()
}

fn model_facts() -> Vec<FactRow> {
    let agent = || optional("agent_id", Defined("agent_id"), "The agent of the run.");
    let call_id = || required("call_id", Defined("qualified_event_id"), "");
    let model = || required("model", text(), "The name by which the caller asked for the model.");
    let started = vec![
        call_id(),
        agent(),
        model(),
        required("format", text(), "The path of the call's format, such as `chat/completions`."),
        required(
            "deadline_ms",
            Defined("timestamp"),
            "The time at which the call counts as lost if no end was reported.",
        ),
    ];
    let tokens = vec![
        optional("input_tokens", integer(), "All tokens of the input."),
        optional("cached_input_tokens", integer(), "The part of the input that came from a cache."),
        optional("output_tokens", integer(), "All tokens of the output."),
        optional("reasoning_tokens", integer(), "The part of the output that is reasoning."),
    ];
    let ended = vec![
        agent(),
        model(),
        call_id(),
        required(
            "outcome",
            names(&RecordedCallOutcome::ALL),
            "`lost`: the node that made the call did not report its end.",
        ),
        optional("upstream", text(), "The id of the upstream that was asked last."),
        required("attempts", small_integer(), "The number of requests to upstreams."),
        optional("status", small_integer(), "The HTTP status of the upstream's answer."),
        required("latency_ms", integer(), "Milliseconds from the beginning to the end."),
        optional("first_byte_ms", integer(), "Milliseconds to the first byte of the answer."),
        optional("first_token_ms", integer(), "Milliseconds to the first token of the answer."),
        required(
            "usage",
            JsonShape::Object(tokens),
            "The tokens that the upstream reported; a count that is not known is absent.",
        ),
        optional(
            "cost",
            integer(),
            "The price, in millionths of the operator's currency; absent if a count or a price is not known.",
        ),
    ];
    vec![
        fact!("llm.call.started", "A call of a model begins.", started),
        fact!("llm.call.ended", "A call of a model has ended. The run may have ended before.", ended),
    ]
}

fn input_facts() -> Vec<FactRow> {
    let admissions = names(&[Admission::Run, Admission::Queued, Admission::Interrupts, Admission::Steered]);
    let outcomes = names(&[SteerOutcome::Accepted, SteerOutcome::Pending, SteerOutcome::Refused]);
    let message = vec![
        required("message_id", Defined("message_id"), ""),
        request_id(),
        required("user", Defined("user_id"), ""),
        required("message", Defined("message"), ""),
        optional("history_sha256", text(), "SHA-256 of the earlier messages, in hexadecimal."),
        optional("agent_id", Defined("agent_id"), "The addressed agent."),
        required("strategy", names(&Strategy::ALL), ""),
        optional("metadata", Any, "Passed on unchanged."),
        optional("origin", JsonShape::Object(origin()), "The conversation that it came from; the answer goes there."),
    ];
    let admitted = vec![
        agent_id(),
        required("strategy", admissions, ""),
        optional("position", small_integer(), "The number of inputs before this one."),
        optional("host_run_id", Defined("qualified_run_id"), "The run that the input is handed to."),
        optional("replaces", Defined("qualified_run_id"), "The run whose place the input takes."),
    ];
    let gathered = vec![required(
        "host_run_id",
        Defined("qualified_run_id"),
        "The turn that the input is part of, and ends with.",
    )];
    let acked = vec![
        agent_id(),
        required("host_run_id", Defined("qualified_run_id"), ""),
        attempt(),
        required("outcome", outcomes, ""),
    ];
    vec![
        fact!("user.message", "A user's message.", message),
        fact!("turn.admitted", "The owner's decision on the input.", admitted),
        fact!("turn.gathered", "The input becomes part of an earlier one's turn, which starts now.", gathered),
        fact!("agent.steer.acked", "The running agent's outcome for an input.", acked),
    ]
}

fn run_facts() -> Vec<FactRow> {
    let resumable = || optional("resumable", Flag, "Another owner may resume the attempt.");
    let started =
        vec![agent_id(), attempt(), request_id(), required("deadline_ms", Defined("timestamp"), ""), resumable()];
    let text_delta = vec![
        attempt(),
        required("offset", integer(), "Bytes of the attempt's text before the part."),
        required("text", text(), ""),
        mark(),
    ];
    let state = vec![
        required("scope", names(&[Scope::Run, Scope::Agent]), ""),
        required("state", text(), ""),
        optional("detail", Any, ""),
        mark(),
    ];
    let cancelling = vec![reason(), required("deadline_ms", Defined("timestamp"), ""), request_id()];
    let mut rows = vec![
        fact!("run.started", "The first attempt begins.", started),
        fact!("run.restarted", "Another attempt begins.", vec![agent_id(), attempt(), reason(), resumable()]),
        fact!("run.resumed", "The same attempt continues under another owner.", vec![agent_id(), attempt(), reason()]),
        fact!("agent.invoke.started", "The agent has the input.", vec![agent_id(), attempt()]),
        fact!("agent.stream.delta", "A recorded part of the answer.", text_delta),
        fact!("agent.invoke.done", "The agent has finished its answer.", vec![agent_id(), attempt()]),
        fact!("run.state", "An intermediate state.", state),
        fact!("run.suspended", "A draining node has released the attempt.", vec![attempt(), reason()]),
        fact!("run.cancelling", "The agent was told to stop.", cancelling),
    ];
    rows.extend(run_ends());
    rows
}

fn run_ends() -> Vec<FactRow> {
    let text_bytes = || required("text_bytes", integer(), "");
    let done = vec![
        attempt(),
        required("stop_reason", Defined("stop_reason"), ""),
        text_bytes(),
        required("text_sha256", text(), "SHA-256 of the text, in hexadecimal."),
        optional("usage", Any, "Usage as counted by the agent."),
        optional("host_run_id", Defined("qualified_run_id"), "The run that has taken the input."),
    ];
    let failed = vec![
        attempt(),
        required("code", Defined("error_code"), ""),
        required("message", text(), "For a person."),
        optional("agent_code", text(), "The agent's own code, or the plugin that refused the turn."),
        optional("retry_after_ms", integer(), ""),
        optional("agent_body", text(), "The start of the agent's error; to operators only."),
        text_bytes(),
    ];
    let cancelled =
        vec![attempt(), reason(), required("forced", Flag, "The agent did not acknowledge in time."), text_bytes()];
    vec![
        fact!("run.done", "The turn is completed.", done),
        fact!("run.failed", "The turn has failed.", failed),
        fact!("run.cancelled", "The turn is cancelled.", cancelled),
    ]
}
