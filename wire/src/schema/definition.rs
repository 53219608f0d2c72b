//! Shapes that several messages use, each under a name: ids, contents, snapshots.
use super::shape::{
    FieldSpec, JsonShape, TextShape, constant, integer, list, list_up_to, names, optional, pattern, required,
    small_integer, text, text_up_to, words,
};
use JsonShape::Defined;
use turnway_core::limits;
use turnway_core::protocol::action::OpenState;
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::binding::{BindingStatus, TargetKind, UnbindReason};
use turnway_core::protocol::delivery::ButtonStyle;
use turnway_core::protocol::input::Role;
use turnway_core::protocol::refusal::Code;

/// A shape under a name.
#[derive(Clone, Debug)]
pub(super) struct Definition {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) shape: JsonShape,
}

/// A key-safe name: sessions, agents, tenants, tool runners.
const KEY_SAFE: &str = "[A-Za-z0-9_-]{1,64}";
/// The printed form of a UUID.
const UUID: &str = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
/// The part of a run's id after its session.
const RUN_SUFFIX: &str = r"\.[a-z2-7]{26}";
/// No control characters.
const PRINTABLE: &str = r"^[^\u0000-\u001f\u007f-\u009f]+$";

const UUID_EXAMPLES: [&str; 1] = ["019a0000-0000-7000-8000-000000000001"];
const RUN_EXAMPLES: [&str; 1] = ["s1.abcdefghijklmnopqrstuvwxyz"];

/// Returns all definitions, by name.
pub(super) fn all() -> Vec<Definition> {
    [names_of_things(), qualified_names(), contents(), states()].concat()
}

/// Returns the shape of a text of 1 to 256 bytes without control characters.
pub(super) fn label() -> JsonShape {
    JsonShape::Text(TextShape {
        bytes_min: 1,
        bytes_max: Some(256),
        pattern: Some(PRINTABLE.to_owned()),
        examples: vec!["ann", "日本 语", "m-1"],
    })
}

fn define(name: &'static str, summary: &'static str, shape: JsonShape) -> Definition {
    Definition { name, summary, shape }
}

fn names_of_things() -> Vec<Definition> {
    let key_safe = |examples: &[&'static str]| pattern(format!("^{KEY_SAFE}$"), examples);
    let dotted = |examples: &[&'static str]| pattern("^[A-Za-z0-9_.-]{1,64}$", examples);
    let codes = Code::ALL.iter().map(|code| code.as_str().to_owned()).collect();
    let part = "(?:[A-Za-z0-9_-]+|\\*)";
    let types = JsonShape::Text(TextShape {
        bytes_min: 1,
        bytes_max: Some(128),
        pattern: Some(format!(r"^(?:{part}(?:\.{part})*(?:\.>)?|>)$")),
        examples: vec!["run.done", "agent.>", "process.*", ">"],
    });
    vec![
        define("agent_event_id", "An event or an action, named by its agent.", pattern("^[!-~]{1,128}$", &["a1", "7"])),
        define("agent_id", "An agent.", key_safe(&["helper", "A-1_b"])),
        define(
            "binding_id",
            "A binding within its account: its generation and the id of its conversation.",
            pattern(r"^(?:0|[1-9]\d{0,15})\.\S(?:.*\S)?$", &["1764000000000.7"]),
        ),
        define(
            "delivery_id",
            "A delivery to a conversation.",
            pattern("^[a-z2-7]{26}$", &["abcdefghijklmnopqrstuvwxyz"]),
        ),
        define("epoch", "The generation of the owner node that wrote a fact.", integer()),
        define("error_code", "The code of a refusal; a closed set.", JsonShape::Words(codes)),
        define(
            "event_id",
            "A fact, a handover or a change of members: a UUID.",
            pattern(format!("^{UUID}$"), &UUID_EXAMPLES),
        ),
        define("message_id", "A message, named by the client; the unit of de-duplication.", label()),
        define("metadata_name", "The name of a text in the metadata of a binding.", label()),
        define("request_id", "A request, named by the requester; the answer repeats it.", label()),
        define(
            "run_id",
            "A run, which begins with its session's id.",
            pattern(format!("^{KEY_SAFE}{RUN_SUFFIX}$"), &RUN_EXAMPLES),
        ),
        define("runner_id", "A tool runner; the same after a reconnection.", key_safe(&["box-1"])),
        define("seq", "A position in a session's log.", integer()),
        define("session_id", "A session, unique within its tenant.", key_safe(&["s1", "Chat_7-b"])),
        define("system_name", "A property of a tool runner's machine.", dotted(&["battery.low"])),
        define("tenant_id", "A tenant.", key_safe(&["default", "acme"])),
        define("timestamp", "Unix time in milliseconds.", integer()),
        define("tool_name", "A tool.", dotted(&["process.spawn", "search"])),
        define(
            "type_pattern",
            "A pattern for types of facts: dotted names, `*` for one segment, `>` for the rest.",
            types,
        ),
        define("user_id", "A user within a tenant.", label()),
    ]
}

/// Returns the forms that are unique over tenants; in the tenant `default` they are the plain forms.
fn qualified_names() -> Vec<Definition> {
    let tenant = format!("(?:{KEY_SAFE}~)?");
    let action = format!("^(?:{KEY_SAFE}~{KEY_SAFE}\\.)?{UUID}$");
    vec![
        define(
            "qualified_action_id",
            "An action or its process: `ID`, or `TENANT~SESSION.ID` in another tenant than `default`.",
            pattern(&action, &["019a0000-0000-7000-8000-000000000001", "acme~s1.019a0000-0000-7000-8000-000000000001"]),
        ),
        define(
            "qualified_event_id",
            "A fact: `ID`, or `TENANT~SESSION.ID` in another tenant than `default`.",
            pattern(&action, &["019a0000-0000-7000-8000-000000000001", "acme~s1.019a0000-0000-7000-8000-000000000001"]),
        ),
        define(
            "qualified_run_id",
            "A run: `RUN`, or `TENANT~RUN` in another tenant than `default`.",
            pattern(format!("^{tenant}{KEY_SAFE}{RUN_SUFFIX}$"), &RUN_EXAMPLES),
        ),
        define(
            "qualified_session_id",
            "A session: `SESSION`, or `TENANT~SESSION` in another tenant than `default`.",
            pattern(format!("^{tenant}{KEY_SAFE}$"), &["s1", "acme~s1"]),
        ),
    ]
}

fn contents() -> Vec<Definition> {
    let text_part = vec![required("type", constant("text"), ""), required("text", text(), "")];
    let other_part = vec![required("type", JsonShape::OtherText(vec!["text".to_owned()]), "")];
    let part = JsonShape::OneOf(vec![JsonShape::Object(text_part), JsonShape::Object(other_part)]);
    let nonempty = JsonShape::Text(TextShape { bytes_min: 1, ..TextShape::default() });
    let role = names(&[Role::User, Role::Assistant, Role::System]);
    vec![
        define(
            "content",
            "A text, or OpenAI content parts. Not empty: at least one part is more than an empty text.",
            JsonShape::OneOf(vec![nonempty, list(part)]),
        ),
        define(
            "message",
            "One message of a conversation.",
            JsonShape::Object(vec![required("role", role, ""), required("content", Defined("content"), "")]),
        ),
        define("binding", "A binding of a conversation to a session.", JsonShape::Object(binding())),
        define(
            "conversation",
            "A conversation of one account on one channel.",
            JsonShape::Object(
                [
                    account("The platform.", "The gateway's account there."),
                    vec![
                        required(
                            "conversation_id",
                            platform_id(&["7"]),
                            "As the platform names it: at most 256 bytes.",
                        ),
                        optional(
                            "parent_conversation_id",
                            platform_id(&["9"]),
                            "The conversation that contains it, if any.",
                        ),
                    ],
                ]
                .concat(),
            ),
        ),
        define(
            "event_mark",
            "The recorded position of an attempt whose agent's events have ids.",
            JsonShape::Object(vec![
                required("event_id", Defined("agent_event_id"), ""),
                required("text_bytes", integer(), "The end of that event's text."),
            ]),
        ),
        define(
            "tool_error",
            "The reason that an action failed.",
            JsonShape::Object(vec![required("code", text(), ""), required("message", text(), "For a person.")]),
        ),
    ]
}

fn binding() -> Vec<FieldSpec> {
    let metadata = binding_metadata();
    vec![
        required("binding_id", Defined("binding_id"), ""),
        required("generation", integer(), "The version of the conversation's binding; never repeats."),
        required("session_id", Defined("session_id"), ""),
        required("conversation", Defined("conversation"), ""),
        required("target_kind", names(&TargetKind::ALL), "The role of the session."),
        required("status", names(&[BindingStatus::Active, BindingStatus::Ended]), ""),
        required("bound_at", integer(), "Unix milliseconds, by the store's clock."),
        required("last_activity_at", integer(), "The last routed message, a minute late at most."),
        optional("idle_timeout_ms", integer(), "It ends after so long without a routed message; absent: never."),
        optional("max_age_ms", integer(), "It ends so long after the bind; absent: never."),
        optional("expires_at", integer(), "It ends then at the latest; absent: never."),
        optional("mirror", JsonShape::Flag, "The conversation also gets the answers of clients' turns."),
        optional("metadata", metadata, "Texts of whoever bound it."),
        optional("reason", names(&UnbindReason::ALL), "The reason of the end, if it has ended."),
        optional("ended_at", integer(), "The time of the end, if it has ended."),
    ]
}

fn states() -> Vec<Definition> {
    let stop = [
        StopReason::EndTurn,
        StopReason::MaxTokens,
        StopReason::Refusal,
        StopReason::Cancelled,
        StopReason::Error,
        StopReason::Timeout,
        StopReason::Steered,
    ];
    vec![
        define("input_context", "The circumstances of an input, for its agent.", JsonShape::Object(input_context())),
        define("snapshot", "A session's present state.", JsonShape::Object(snapshot())),
        define("stop_reason", "The reason that a run has ended.", names(&stop)),
    ]
}

fn snapshot() -> Vec<FieldSpec> {
    let run = vec![
        required("run_id", Defined("run_id"), ""),
        required("agent_id", Defined("agent_id"), ""),
        required("state", words(&["QUEUED", "ROUTING", "RUNNING", "CANCELLING"]), ""),
        required("attempt", small_integer(), "0 until the run starts."),
        required("text_bytes", integer(), "Recorded bytes of the run's text."),
    ];
    let handover = [vec![required("run_id", Defined("run_id"), "")], handover_prompt()].concat();
    let pending = vec![
        required("approvals", list(JsonShape::Any), "Empty in this release."),
        required("tool_requests", list(JsonShape::Any), "Empty in this release."),
        optional("handover", JsonShape::Object(handover), "The handover that waits for a decision."),
    ];
    vec![
        required("session_id", Defined("session_id"), ""),
        required("state", words(&["open", "closing", "closed"]), ""),
        required("active_agent", JsonShape::Nullable(Box::new(Defined("agent_id"))), ""),
        required("agents", list(Defined("agent_id")), "The members, in order of joining."),
        required("runs", list(JsonShape::Object(run)), "Turns that have not ended, the running one first."),
        required("pending", JsonShape::Object(pending), "Decisions that the session waits for."),
        required("seq", Defined("seq"), "The last fact that the snapshot contains."),
        required("epoch", Defined("epoch"), "The epoch of that fact."),
    ]
}

/// Returns the fields that name an account on a channel, with a description of each.
pub(super) fn account(channel: &str, account_id: &str) -> Vec<FieldSpec> {
    vec![
        required("channel", pattern("^[a-z0-9_.-]{1,64}$", &["rooms"]), channel),
        required("account_id", pattern("^[A-Za-z0-9_.-]{1,64}$", &["main"]), account_id),
    ]
}

/// Returns the shape of a binding's metadata.
pub(super) fn binding_metadata() -> JsonShape {
    let line = pattern(r"^\P{Cc}{0,256}$", &["Ada", "", "日本 语"]);
    JsonShape::Map { key: "metadata_name", value: Box::new(line), entries_max: limits::BINDING_METADATA_MAX }
}

/// Returns the fields of a handover that waits for a decision.
pub(super) fn handover_prompt() -> Vec<FieldSpec> {
    vec![
        required("handover_id", Defined("event_id"), ""),
        required("from", Defined("agent_id"), "The agent that requests the handover."),
        required("to", Defined("agent_id"), "The agent that is to take over."),
        required("reason", text_up_to(limits::REASON_BYTES_MAX), ""),
        required("summary", text_up_to(limits::HANDOVER_SUMMARY_BYTES_MAX), "Information for the other agent."),
        required("deadline_ts", Defined("timestamp"), "The handover is rejected without a decision by then."),
    ]
}

/// Returns the fields of `subscribe` and of the items of `hello.resume`.
pub(super) fn subscription() -> Vec<FieldSpec> {
    let cursor = JsonShape::Object(vec![
        required("attempt", small_integer(), ""),
        required("offset", integer(), "Received bytes of the attempt's text."),
    ]);
    let entries_max = crate::channel::json::parse::SUBSCRIBE_RUNS_MAX;
    let runs = JsonShape::Map { key: "run_id", value: Box::new(cursor), entries_max };
    let types = list_up_to(Defined("type_pattern"), limits::SUBSCRIBE_TYPES_MAX);
    vec![
        required("session_id", Defined("session_id"), ""),
        optional("after_seq", integer(), "The last received fact; absent: only new facts; 0: everything."),
        optional("after_epoch", integer(), "The epoch of that fact."),
        optional("runs", runs, "The received text of each open run."),
        optional("types", types, "Facts to receive beyond those that every connection receives."),
    ]
}

/// Returns the fields that name a message on a platform, and its sender.
pub(super) fn platform_message() -> Vec<FieldSpec> {
    let sender = vec![
        required("id", text(), "The platform's id."),
        optional("name", text(), ""),
        optional("is_bot", JsonShape::Flag, ""),
    ];
    vec![
        required("conversation", Defined("conversation"), ""),
        required("message_id", Defined("message_id"), "As the platform names it."),
        required("sender", JsonShape::Object(sender), "Who wrote it."),
        optional("platform_time", integer(), "Unix milliseconds, by the platform's clock."),
    ]
}

/// Returns the buttons below a message.
pub(super) fn buttons() -> JsonShape {
    list(JsonShape::Object(vec![
        required("id", button_id(), ""),
        required("label", text(), "One line, at most 80 characters."),
        optional("style", words(&ButtonStyle::ALL.map(ButtonStyle::as_str)), "Absent: the platform's usual look."),
    ]))
}

/// Returns the files that a part of a delivery has.
pub(super) fn attachments() -> JsonShape {
    list(JsonShape::Object(vec![
        required("name", text(), "As the agent has named it; may be empty."),
        required("sha256", text(), "Of the bytes, in hexadecimal."),
        required("url", text(), "Path of the file at each node."),
        required("inline", JsonShape::Flag, "To be shown as a picture, rather than offered as a file."),
    ]))
}

/// Returns a reaction to a message.
pub(super) fn reaction() -> JsonShape {
    let emoji = required("emoji", text(), "One word, at most 64 bytes: an emoji, or the platform's name of one.");
    JsonShape::Object(vec![emoji, required("remove", JsonShape::Flag, "The reaction is taken back.")])
}

/// Returns the id of a button.
pub(super) fn button_id() -> JsonShape {
    pattern("^[!-~]{1,32}$", &["yes"])
}

fn input_context() -> Vec<FieldSpec> {
    let decision = vec![
        required("delivery_id", Defined("delivery_id"), "The delivery of the message with the button."),
        required("button_id", button_id(), ""),
    ];
    let decision = optional("decision", JsonShape::Object(decision), "The button that was pressed, if it is a press.");
    let origin = [platform_message(), vec![decision]].concat();
    let handover = vec![
        required("handover_id", Defined("qualified_action_id"), ""),
        required("from", Defined("agent_id"), "The agent that handed the session over."),
        required("run_id", Defined("qualified_run_id"), "The turn in which the handover was requested."),
        required("reason", text(), ""),
        required("summary", text(), "The summary by the previous agent."),
        required("text", text_up_to(limits::HANDOVER_TEXT_BYTES_MAX), "The end of the previous agent's answer."),
        optional("truncated", JsonShape::Flag, "The beginning of the answer was left out."),
    ];
    let open = vec![
        required("action_id", Defined("qualified_action_id"), ""),
        optional("name", Defined("agent_event_id"), "The agent's own name for the action."),
        required("agent_id", Defined("agent_id"), ""),
        required("run_id", Defined("qualified_run_id"), ""),
        required("tool", Defined("tool_name"), ""),
        required("state", names(&[OpenState::Requested, OpenState::Running]), ""),
        optional("process_id", Defined("qualified_action_id"), "Present for a process."),
        required("deadline_ts", Defined("timestamp"), "The action has ended by then."),
    ];
    let ended = vec![
        required("action_id", Defined("qualified_action_id"), ""),
        optional("name", Defined("agent_event_id"), "The agent's own name for the action."),
        required("tool", Defined("tool_name"), ""),
        required("ok", JsonShape::Flag, ""),
        optional("result", JsonShape::Any, ""),
        optional("error", Defined("tool_error"), ""),
    ];
    vec![
        required("tenant", Defined("tenant_id"), ""),
        required("user_id", Defined("user_id"), ""),
        optional("origin", JsonShape::Object(origin), "The message, if it came from a conversation."),
        optional("handover", JsonShape::Object(handover), "Present in the first turn after a handover."),
        optional("open_actions", list(JsonShape::Object(open)), "Open actions of the whole session."),
        optional("ended_actions", list(JsonShape::Object(ended)), "Ended actions that the agent may not know of."),
        optional("system_prompt", text(), "Text that the node's plugins add to the system prompt."),
    ]
}

/// The id of a conversation: some text without space at its ends.
pub(super) fn platform_id(examples: &[&'static str]) -> JsonShape {
    pattern(r"^\S(?:.*\S)?$", examples)
}
