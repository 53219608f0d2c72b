//! Messages about the bindings of conversations.
use super::super::connection::{self, answer};
use super::super::definition::{account, binding_metadata};
use super::super::shape::{
    FieldSpec, JsonShape, MessageSpec, integer, list, list_up_to, names, optional, required, text, words,
};
use crate::channel::binding::CandidateVerdict;
use JsonShape::Defined;
use turnway_core::limits;
use turnway_core::protocol::binding::{TargetKind, UnbindReason};

/// Returns the requests about bindings.
pub(super) fn requests() -> Vec<MessageSpec> {
    let received =
        |kind, summary, fields: Vec<FieldSpec>| MessageSpec::new(kind, summary, connection::received(fields));
    let reason = optional("reason", names(&UnbindReason::OF_REQUESTS), "Absent: `manual`.");
    let farewell =
        optional("farewell", JsonShape::Flag, "The conversation gets the farewell of its channel; `manual` only.");
    let touched = vec![required("scope", scope(), ""), required("binding_id", Defined("binding_id"), "")];
    let one = || vec![required("conversation", Defined("conversation"), "")];
    let several = || {
        let places = list_up_to(Defined("conversation"), limits::CONVERSATIONS_RESOLVED_MAX);
        vec![required("conversations", places, "")]
    };
    let resolved = vec![
        optional("conversation", Defined("conversation"), ""),
        optional(
            "conversations",
            list_up_to(Defined("conversation"), limits::CONVERSATIONS_RESOLVED_MAX),
            "Several, read at one moment; counts before `conversation`.",
        ),
        optional(
            "explain",
            JsonShape::Flag,
            "The answer also has the rows that were looked at; of one conversation only.",
        ),
    ];
    let expiry_fields = [target(), expiry("Absent: not changed")].concat();
    vec![
        received("bind", "Binds a conversation to a session. Only operators, and adapters in their account.", bind()),
        received(
            "bind_child",
            "Has the platform make a conversation, and binds it. Only operators, and adapters in their account.",
            bind_child(),
        ),
        received(
            "unbind",
            "Ends a binding, or all of a session. Only operators, and adapters in their account.",
            [target(), vec![reason, farewell]].concat(),
        )
        .with_alternatives(either()),
        received(
            "touch",
            "Records that a message was routed by a binding. Only operators, and adapters in their account.",
            touched,
        ),
        received(
            "set_binding_expiry",
            "Changes when bindings expire. Only operators, and adapters in their account.",
            expiry_fields,
        )
        .with_alternatives(either()),
        received(
            "resolve",
            "Looks up the binding of a conversation, or of several. Only operators, and adapters in their account.",
            resolved,
        )
        .with_alternatives(vec![one(), several()]),
        received(
            "list_bindings",
            "Lists the active bindings of a session.",
            vec![required("session_id", Defined("session_id"), "")],
        ),
    ]
}

/// Returns the answers to requests about bindings.
pub(super) fn answers() -> Vec<MessageSpec> {
    let bindings = || vec![required("bindings", list(Defined("binding")), "")];
    let candidate = vec![
        required("conversation", Defined("conversation"), ""),
        required(
            "verdict",
            words(&CandidateVerdict::ALL.map(CandidateVerdict::as_str)),
            "`moved`: the next candidate is its new id; `parent`: never inherited.",
        ),
        optional("binding", Defined("binding"), "Its active binding."),
        optional("last_ended", Defined("binding"), "Its last binding that ended."),
    ];
    let resolution = vec![
        required("conversation", Defined("conversation"), "As the request names it."),
        required("binding", JsonShape::Nullable(Box::new(Defined("binding"))), "`null`: nobody has bound it."),
    ];
    let resolved = vec![
        required("binding", JsonShape::Nullable(Box::new(Defined("binding"))), "`null`: nobody has bound it."),
        optional("candidates", list(JsonShape::Object(candidate)), "Only with `explain`."),
    ];
    let requested = vec![
        required("session_id", Defined("session_id"), ""),
        required("creation_id", Defined("message_id"), ""),
        required("delivery_id", Defined("delivery_id"), "As in `list_deliveries`, until the conversation is bound."),
    ];
    vec![
        MessageSpec::new("bound", "Answers `bind`.", answer(vec![required("binding", Defined("binding"), "")])),
        MessageSpec::new(
            "child_requested",
            "Answers `bind_child`: the conversation is durably requested.",
            answer(requested),
        ),
        MessageSpec::new("unbound", "Answers `unbind`: the bindings that have ended.", answer(bindings())),
        MessageSpec::new("bindings_updated", "Answers `touch` and `set_binding_expiry`.", answer(bindings())),
        MessageSpec::new("bindings", "Answers `list_bindings`.", answer(bindings())),
        MessageSpec::new("resolved", "Answers `resolve`.", answer(resolved)),
        MessageSpec::new(
            "resolutions",
            "Answers `resolve` with `conversations`.",
            answer(vec![required("resolutions", list(JsonShape::Object(resolution)), "In the order of the request.")]),
        ),
    ]
}

fn bind() -> Vec<FieldSpec> {
    let fields = vec![
        required("conversation", Defined("conversation"), ""),
        required("session_id", Defined("session_id"), ""),
        optional("target_kind", names(&TargetKind::ALL), "The role of the session; absent: `session`."),
        optional(
            "expected_generation",
            integer(),
            "The generation to replace, 0: none; absent: the conversation is free or bound to the same session.",
        ),
        optional(
            "mirror",
            JsonShape::Flag,
            "The conversation also gets the answers of turns that clients begin in the session.",
        ),
        optional("metadata", binding_metadata(), "Texts for whoever sees the binding."),
    ];
    [fields, expiry("Absent: the default")].concat()
}

fn bind_child() -> Vec<FieldSpec> {
    let fields = vec![
        required("parent", Defined("conversation"), "The conversation that is to contain the new one."),
        required("session_id", Defined("session_id"), ""),
        required("title", text(), "Its first line names the new conversation: at most 100 characters."),
        optional(
            "creation_id",
            Defined("message_id"),
            "The same id again is the same conversation; absent: `request_id`, or else an id of its own.",
        ),
        optional("target_kind", names(&TargetKind::ALL), "The role of the session; absent: `session`."),
        optional("mirror", JsonShape::Flag, "As in `bind`."),
        optional("metadata", binding_metadata(), "Texts for whoever sees the binding."),
    ];
    [fields, expiry("Absent: the default")].concat()
}

fn expiry(absent: &str) -> Vec<FieldSpec> {
    vec![
        optional("idle_timeout_ms", integer(), format!("Time without a routed message; 0: never. {absent}.")),
        optional("max_age_ms", integer(), format!("Time since the bind; 0: never. {absent}.")),
        optional("expires_at", integer(), format!("Unix milliseconds; 0: never. {absent}.")),
    ]
}

/// Returns the fields that name one binding, or all of a session.
fn target() -> Vec<FieldSpec> {
    vec![
        optional("session_id", Defined("session_id"), "All bindings of this session; counts before `binding_id`."),
        optional("binding_id", Defined("binding_id"), ""),
        optional("scope", scope(), "The account of `binding_id`."),
    ]
}

fn either() -> Vec<Vec<FieldSpec>> {
    let one = vec![required("binding_id", Defined("binding_id"), ""), required("scope", scope(), "")];
    vec![vec![required("session_id", Defined("session_id"), "")], one]
}

fn scope() -> JsonShape {
    JsonShape::Object(account("", ""))
}
