//! Messages between a client and a node, except for `event` and `tool_event`.
mod account;
mod binding;

use super::connection::{self, answer, sent as framed};
use super::definition::{handover_prompt, subscription};
use super::shape::{
    FieldSpec, JsonShape, MessageSpec, constant, integer, list, list_up_to, names, optional, pattern, required,
    small_integer, text, text_up_to, words,
};
use JsonShape::Defined;
use turnway_core::limits;
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::delivery::{DeliveryFailure, DeliveryKind};
use turnway_core::protocol::entry::Scope;
use turnway_core::protocol::handover::HandoverRejection;
use turnway_core::protocol::input::Strategy;

/// Returns the messages from a client.
pub(super) fn received() -> Vec<MessageSpec> {
    let item = [vec![optional("request_id", Defined("request_id"), "")], subscription()].concat();
    let resume = list_up_to(JsonShape::Object(item), limits::LINK_SUBSCRIPTIONS_MAX);
    let hello = connection::hello(
        "The first message: the client's identity.",
        vec![
            optional("role", constant("user"), "Absent: `user`."),
            optional("resume", resume, "Subscriptions, answered right after `welcome`."),
            optional("streams", JsonShape::Flag, "QUIC and WebTransport: `false` if the client accepts no streams."),
        ],
    );
    [vec![hello], sessions(), turns(), members(), binding::requests(), account::requests(), connection::requests()]
        .concat()
}

/// Returns the messages to a client.
pub(super) fn sent() -> Vec<MessageSpec> {
    [
        connection::answers(),
        answers(),
        binding::answers(),
        account::answers(),
        facts(),
        vec![error(), delta(), stream()],
    ]
    .concat()
}

/// Returns a request with a required session.
fn of_session(kind: &'static str, summary: &str, fields: Vec<FieldSpec>) -> MessageSpec {
    let session = vec![required("session_id", Defined("session_id"), "")];
    MessageSpec::new(kind, summary, connection::received([session, fields].concat()))
}

fn sessions() -> Vec<MessageSpec> {
    let agents = list_up_to(Defined("agent_id"), limits::SESSION_AGENTS_MAX);
    vec![
        MessageSpec::new(
            "session_open",
            "Creates, loads or reopens a session.",
            connection::received(vec![
                optional("session_id", Defined("session_id"), "Absent: the node generates one."),
                optional("agents", agents, "The members of a new session."),
                optional(
                    "active_agent",
                    Defined("agent_id"),
                    "The member that answers inputs without an addressed agent.",
                ),
            ]),
        ),
        of_session("session_close", "Cancels the running turn and closes the session.", Vec::new()),
        of_session(
            "session_label",
            "Gives the session a label, which lists show.",
            vec![required("label", pattern(r"^\P{Cc}{0,64}$", &["blue", "", "日本 语"]), "Empty: none.")],
        ),
        MessageSpec::new(
            "subscribe",
            "Subscribes to a session, or moves the cursor.",
            connection::received(subscription()),
        ),
        of_session("unsubscribe", "Ends a subscription.", Vec::new()),
    ]
}

fn turns() -> Vec<MessageSpec> {
    let message = vec![
        optional("role", constant("user"), ""),
        required("content", Defined("content"), ""),
        optional("message_id", Defined("message_id"), "The unit of de-duplication; absent: the request id."),
    ];
    let metadata = vec![
        optional("subtype", JsonShape::Any, "`MENTION`: `mentioned_agent_id` addresses an agent."),
        optional("mentioned_agent_id", JsonShape::Any, "An agent id, with the subtype `MENTION`."),
    ];
    let target = || {
        connection::received(vec![
            optional("run_id", Defined("run_id"), "The run; counts before `session_id`."),
            optional("session_id", Defined("session_id"), "The session whose run in progress is cancelled."),
        ])
    };
    let either = || {
        vec![vec![required("run_id", Defined("run_id"), "")], vec![required("session_id", Defined("session_id"), "")]]
    };
    let invoke = vec![
        optional("session_id", Defined("session_id"), "Absent: the node generates one."),
        optional("agent_id", Defined("agent_id"), "The addressed agent; absent: a mention, else the active agent."),
        required("message", JsonShape::Object(message), ""),
        optional("strategy", names(&Strategy::ALL), "The effect while a run is open."),
        optional("replaces", Defined("run_id"), "The run of one's own waiting message that this message replaces."),
        optional("metadata", JsonShape::Object(metadata), "Any object; passed on unchanged."),
        optional("mentioned_agent_id", Defined("agent_id"), "A mention."),
        optional("traceparent", text(), "W3C trace context; one that cannot be parsed is ignored."),
    ];
    vec![
        MessageSpec::new("agent_invoke", "One input.", connection::received(invoke)),
        MessageSpec::new("cancel_run", "Cancels a run.", target()).with_alternatives(either()),
        MessageSpec::new("INTERRUPT", "The same as `cancel_run`.", target()).with_alternatives(either()),
    ]
}

fn members() -> Vec<MessageSpec> {
    let reason = || optional("reason", text_up_to(limits::REASON_BYTES_MAX), "In the user's words.");
    let named = || vec![required("agent_id", Defined("agent_id"), ""), reason()];
    let spec = JsonShape::OneOf(vec![
        Defined("agent_id"),
        JsonShape::Object(vec![required("agent_id", Defined("agent_id"), "")]),
    ]);
    let invited = vec![
        optional("agent_id", Defined("agent_id"), "Counts before `agent_spec`."),
        optional("agent_spec", spec.clone(), "An agent id, or an object with one."),
        reason(),
        optional("active", JsonShape::Flag, "The agent is active from then on."),
    ];
    vec![
        of_session("switch_agent", "Another member answers inputs without an addressed agent.", named()),
        of_session("invite_agent", "An agent becomes a member.", invited).with_alternatives(vec![
            vec![required("agent_id", Defined("agent_id"), "")],
            vec![required("agent_spec", spec, "")],
        ]),
        of_session("remove_agent", "A member leaves; its running turn is cancelled first.", named()),
        of_session(
            "handover_decision",
            "Decides a handover that an agent has requested.",
            vec![
                required("handover_id", Defined("event_id"), ""),
                required("decision", words(&["confirm", "reject"]), ""),
            ],
        ),
        of_session(
            "settle_delivery",
            "Decides on a delivery that is held or has failed.",
            vec![
                required("delivery_id", Defined("delivery_id"), ""),
                required("decision", words(&["retry", "drop"]), "`retry`: it may appear twice."),
            ],
        ),
        of_session(
            "send_message",
            "Sends a text to a conversation of the session, without a turn.",
            vec![
                optional(
                    "message_id",
                    Defined("message_id"),
                    "The same id again is the same message; absent: `request_id`.",
                ),
                optional("conversation", Defined("conversation"), "Absent: the only one that is bound to the session."),
                required("text", text(), "At most 24 KiB; not blank."),
            ],
        ),
        of_session("list_deliveries", "Lists the deliveries that are not sent.", Vec::new()),
    ]
}

/// Returns the fields of a fact's only or last message, which has a log position.
pub(super) fn placed(fields: Vec<FieldSpec>) -> Vec<FieldSpec> {
    let position = vec![
        required("session_id", Defined("session_id"), ""),
        required("seq", Defined("seq"), ""),
        required("epoch", Defined("epoch"), ""),
    ];
    answer([position, fields].concat())
}

/// Returns the fields of such a message about a run.
pub(super) fn placed_in_run(fields: Vec<FieldSpec>) -> Vec<FieldSpec> {
    placed([vec![required("run_id", Defined("run_id"), "")], fields].concat())
}

fn answers() -> Vec<MessageSpec> {
    let session = || required("session_id", Defined("session_id"), "");
    let accepted = vec![
        session(),
        required("run_id", Defined("run_id"), ""),
        required("turn_id", Defined("run_id"), "The same as `run_id`."),
        required("message_id", Defined("message_id"), ""),
        required("duplicate", JsonShape::Flag, "The message had been accepted before."),
        required("durability", words(&["mem", "os", "fsync"]), "The level at which the input is durable."),
    ];
    let subscribed = vec![
        required("snapshot", Defined("snapshot"), ""),
        optional("reset", JsonShape::Flag, "The cursor is invalid."),
        optional("reason", words(&["trimmed", "regressed"]), "The reason of `reset`."),
        optional("floor", Defined("seq"), "Facts up to this position are forgotten."),
    ];
    let members = vec![
        session(),
        required("agents", list(Defined("agent_id")), "In order of joining."),
        optional("active_agent", Defined("agent_id"), ""),
    ];
    let handover = vec![
        session(),
        required("handover_id", Defined("event_id"), ""),
        required("state", words(&["pending", "confirmed", "rejected"]), ""),
        optional("reason", rejection(), "The reason of `rejected`."),
    ];
    vec![
        MessageSpec::new(
            "turn_accepted",
            "The input is durable, and its turn will end exactly once.",
            answer(accepted),
        ),
        MessageSpec::new("subscribed", "Answers `subscribe`.", placed(subscribed)),
        MessageSpec::new(
            "members",
            "Answers a request about members, once the change is done or undone.",
            answer(members),
        ),
        MessageSpec::new("handover", "Answers `handover_decision`.", answer(handover)),
        MessageSpec::new(
            "message_accepted",
            "Answers `send_message`: the delivery is durably requested.",
            answer(vec![
                session(),
                required("message_id", Defined("message_id"), ""),
                required("delivery_id", Defined("delivery_id"), ""),
            ]),
        ),
        MessageSpec::new("delivery_settled", "Answers `settle_delivery`.", answer(vec![session()])),
        MessageSpec::new(
            "deliveries",
            "Answers `list_deliveries`, in the order of the requests.",
            answer(vec![session(), required("deliveries", list(JsonShape::Object(delivery())), "")]),
        ),
        MessageSpec::new("session_labelled", "Answers `session_label`: the label is durable.", answer(vec![session()])),
    ]
}

/// Returns the fields of a delivery in a list.
fn delivery() -> Vec<FieldSpec> {
    vec![
        required("delivery_id", Defined("delivery_id"), ""),
        required("kind", names(&DeliveryKind::ALL), ""),
        required("conversation", Defined("conversation"), "The place."),
        optional("reply_to", Defined("message_id"), "The platform's message that it answers."),
        required("state", words(&["pending", "held", "failed"]), "`held`: an operator or the session's user decides."),
        optional("reason", names(&DeliveryFailure::ALL), "The reason of `failed`."),
        required("part", small_integer(), "The part that is sent next, from 1."),
        required("parts", small_integer(), ""),
        required("attempts", small_integer(), "Recorded attempts at this part, the first one included."),
        required("requested_ts", Defined("timestamp"), ""),
        required("text", text(), "The text of this part."),
    ]
}

/// Returns the shape of the reason for a rejected handover.
pub(super) fn rejection() -> JsonShape {
    names(&[
        HandoverRejection::Refused,
        HandoverRejection::Expired,
        HandoverRejection::Unavailable,
        HandoverRejection::AgentLeft,
        HandoverRejection::SessionClosed,
    ])
}

fn facts() -> Vec<MessageSpec> {
    [session_facts(), run_facts()].concat()
}

fn session_facts() -> Vec<MessageSpec> {
    let place = || {
        vec![
            required("session_id", Defined("session_id"), ""),
            optional("seq", Defined("seq"), "Absent in an answer."),
            optional("epoch", Defined("epoch"), "Absent in an answer."),
        ]
    };
    let opened = vec![
        required("agents", list(Defined("agent_id")), "The members, in order of joining."),
        required("active_agent", JsonShape::Nullable(Box::new(Defined("agent_id"))), ""),
        optional("snapshot", Defined("snapshot"), "Only in the answer to `session_open`."),
    ];
    vec![
        MessageSpec::new("session_opened", "The session is open.", answer([place(), opened].concat())),
        MessageSpec::new("session_closed", "The session is closed.", answer(place())),
        MessageSpec::new("handover_prompt", "An agent requests a handover.", placed_in_run(handover_prompt())),
    ]
}

fn run_facts() -> Vec<MessageSpec> {
    let message = vec![
        required("role", constant("user"), ""),
        required("message", Defined("message"), ""),
        required("content", Defined("content"), "The same as `message.content`."),
        required("message_id", Defined("message_id"), ""),
        required("user_id", Defined("user_id"), ""),
        optional("agent_id", Defined("agent_id"), "The addressed agent."),
    ];
    let started = vec![required("agent_id", Defined("agent_id"), ""), required("attempt", small_integer(), "")];
    let state = vec![
        required("scope", names(&[Scope::Run, Scope::Agent]), "`agent`: the agent chose the state's name."),
        required("state", text(), ""),
        optional("detail", JsonShape::Any, ""),
    ];
    let done = vec![
        required("status", words(&["completed", "failed", "cancelled"]), ""),
        required("stop_reason", Defined("stop_reason"), ""),
        required("text_bytes", integer(), "The length of the answer's text, which counts."),
        required("attempt", small_integer(), "The attempt whose text counts; 0: none."),
        optional("usage", JsonShape::Any, "Usage as counted by the agent."),
        optional("host_run_id", Defined("run_id"), "The run that has taken the input."),
    ];
    vec![
        MessageSpec::new("message", "A user's message.", placed_in_run(message)),
        MessageSpec::new("run_started", "The first attempt begins.", placed_in_run(started)),
        MessageSpec::new("state", "An intermediate state.", placed_in_run(state)),
        MessageSpec::new("done", "The end of a turn; exactly one.", placed_in_run(done)),
    ]
}

fn error() -> MessageSpec {
    let detail = vec![
        optional("agent_code", text(), "The error code of the agent or of a plugin."),
        optional("agent_body", text(), "The start of the agent's error; to operators only."),
        optional("agent_id", Defined("agent_id"), "The agent that could not be added or removed."),
        optional("tx_id", Defined("event_id"), "The change of members."),
    ];
    let fields = vec![
        optional("session_id", Defined("session_id"), ""),
        optional("run_id", Defined("run_id"), ""),
        optional("seq", Defined("seq"), ""),
        optional("epoch", Defined("epoch"), ""),
        optional("detail", JsonShape::Object(detail), ""),
        optional(
            "current",
            JsonShape::Nullable(Box::new(Defined("binding"))),
            "With `not_applied`: the binding that the conversation has.",
        ),
        optional("terminal", JsonShape::Flag, "`true`: the reason that a turn failed."),
    ];
    MessageSpec::new(
        "error",
        "A refused request, a failed turn or a failed change of members.",
        answer([connection::error(), fields].concat()),
    )
}

fn delta() -> MessageSpec {
    let fields = vec![
        required("session_id", Defined("session_id"), ""),
        required("run_id", Defined("run_id"), ""),
        required("attempt", small_integer(), ""),
        required("offset", integer(), "UTF-8 bytes of the attempt's text of this kind before the piece."),
        required("text", text(), ""),
        optional("kind", names(&[TextKind::Reasoning]), "Absent: the answer."),
    ];
    MessageSpec::new("delta", "A piece of text; provisional until `done`.", framed(fields))
}

fn stream() -> MessageSpec {
    let fields = vec![
        required("session_id", Defined("session_id"), ""),
        required("run_id", Defined("run_id"), ""),
        required("attempt", small_integer(), ""),
        required("after", integer(), "The number of messages of the control stream before this stream's first."),
    ];
    MessageSpec::new("stream", "QUIC and WebTransport: the first message of a stream of text.", fields)
}
