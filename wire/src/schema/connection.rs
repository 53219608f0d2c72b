//! Messages and fields of every connection, whatever its role.
use super::shape::{
    FieldSpec, JsonShape, MessageSpec, constant, integer, list_up_to, optional, pattern, required, text,
};
use crate::channel::PROTOCOL;
use JsonShape::Defined;
use turnway_core::limits;

/// Returns the fields of a message to a node, besides `type`.
pub(super) fn received(fields: Vec<FieldSpec>) -> Vec<FieldSpec> {
    let frame = vec![
        optional("ts", Defined("timestamp"), "The time of sending; not used."),
        optional("request_id", Defined("request_id"), "The answer repeats it."),
    ];
    [frame, fields].concat()
}

/// Returns the fields of a message from a node, besides `type`.
pub(super) fn sent(fields: Vec<FieldSpec>) -> Vec<FieldSpec> {
    [vec![required("ts", Defined("timestamp"), "The time of sending; of a fact: the time of the decision.")], fields]
        .concat()
}

/// Returns the fields of an answer, besides `type`.
pub(super) fn answer(fields: Vec<FieldSpec>) -> Vec<FieldSpec> {
    sent([vec![optional("request_id", Defined("request_id"), "The id of the request.")], fields].concat())
}

/// Returns the fields of `hello`, besides `type`.
pub(super) fn hello(summary: &str, fields: Vec<FieldSpec>) -> MessageSpec {
    let common = vec![
        optional(
            "user_id",
            Defined("user_id"),
            "The user, not an account (`channel:…`); absent: the credential's user.",
        ),
        optional("api_key", text(), "An API key or a token; counts before `token`."),
        optional("token", text(), "A token of the identity provider, or an API key."),
        optional("client_meta", JsonShape::Any, "Any value; not stored."),
    ];
    let fields = received([common, fields].concat());
    MessageSpec { bytes_max: Some(limits::HELLO_BYTES_MAX), ..MessageSpec::new("hello", summary, fields) }
}

/// Returns the requests of every connection.
pub(super) fn requests() -> Vec<MessageSpec> {
    vec![
        MessageSpec::new("ping", "Requests a `pong`.", received(Vec::new())),
        MessageSpec::new(
            "refresh",
            "Presents the next token of the same user.",
            received(vec![required("token", text(), "The next token.")]),
        ),
    ]
}

/// Returns the answers of every connection.
pub(super) fn answers() -> Vec<MessageSpec> {
    vec![
        MessageSpec::new("welcome", "Accepts a connection.", sent(welcome())),
        MessageSpec::new("pong", "Answers `ping`.", answer(Vec::new())),
        MessageSpec::new(
            "refreshed",
            "Answers `refresh`: the token is accepted.",
            answer(vec![required("expires_ts", Defined("timestamp"), "The end of the token.")]),
        ),
        MessageSpec::new(
            "go_away",
            "The node drains: reconnect after a random delay.",
            sent(vec![
                required("reason", constant("drain"), ""),
                required("reconnect_within_ms", integer(), "The time within which to reconnect."),
                required("jitter_ms", integer(), "The longest random delay."),
            ]),
        ),
    ]
}

/// Returns the fields that every `error` has.
pub(super) fn error() -> Vec<FieldSpec> {
    vec![
        required("code", Defined("error_code"), ""),
        required("message", text(), "For a person."),
        required("retryable", JsonShape::Flag, "The same request may succeed later."),
        optional("retry_after_ms", integer(), "The time after which to retry."),
    ]
}

/// Returns the shape of a list of patterns for types of facts.
pub(super) fn types() -> JsonShape {
    list_up_to(Defined("type_pattern"), limits::SUBSCRIBE_TYPES_MAX)
}

fn welcome() -> Vec<FieldSpec> {
    let limits = vec![
        required("max_message_bytes", integer(), ""),
        required("max_json_depth", integer(), ""),
        required("max_json_values", integer(), ""),
        required("max_subscriptions", integer(), ""),
        required("max_requests", integer(), "Requests that wait for an answer."),
        required("max_waiting_inputs", integer(), "Inputs of one session beside the running one."),
    ];
    vec![
        required("connection_id", text(), ""),
        required("node_id", pattern("^[0-9a-f]{32}$", &[]), ""),
        required("protocol", constant(PROTOCOL), ""),
        required("heartbeat_ms", integer(), "The time between two pings of the node."),
        required("limits", JsonShape::Object(limits), ""),
        required("resume_window_ms", integer(), "The time for which history is kept; 0: without limit."),
        optional("expires_ts", Defined("timestamp"), "The end of the token, if it has one."),
    ]
}
