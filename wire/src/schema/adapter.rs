//! Messages between a node and an adapter.
use super::connection::{self, answer, sent};
use super::definition::{attachments, button_id, buttons, platform_id, reaction};
use super::shape::{
    FieldSpec, JsonShape, MessageSpec, constant, integer, names, optional, pattern, required, small_integer, text,
    words,
};
use crate::channel::adapter::{AdapterOutcome, IgnoreReason, InboundDisposition, InboundEvent, PREVIEW_KIND};
use JsonShape::Defined;
use turnway_core::protocol::delivery::{DeliveryErrorClass, DeliveryKind, PauseReason, TextUnit};

/// Returns the messages from an adapter, besides those that every client may send.
pub(super) fn received() -> Vec<MessageSpec> {
    let hello = connection::hello("The first message: the account that the adapter serves.", hello());
    [vec![hello], requests(), connection::requests()].concat()
}

/// Returns the messages to an adapter, besides those that every client gets.
pub(super) fn sent_messages() -> Vec<MessageSpec> {
    let error = MessageSpec::new("error", "A refused message or connection.", answer(connection::error()));
    [answers(), vec![error], connection::answers()].concat()
}

/// Returns the fields of an adapter's `hello`.
fn hello() -> Vec<FieldSpec> {
    vec![
        required("role", constant("adapter"), ""),
        required("channel", pattern("^[a-z0-9_.-]{1,64}$", &["rooms"]), "The platform."),
        required("account_id", pattern("^[A-Za-z0-9_.-]{1,64}$", &["main"]), "The gateway's account there."),
        optional("platform_bot_id", label(), "The platform's id of the login: one account at a time acts as it."),
        optional("instance_id", label(), "A name that the next start of the same process has too."),
        optional(
            "capabilities",
            capabilities(),
            "What it can do, by name: `text`, `key`, `typing`, `preview`, `buttons`, `edit`, `delete`, `reaction`, \
             `attachments`, `create_conversation`.",
        ),
    ]
}

fn capabilities() -> JsonShape {
    capabilities_of(JsonShape::OneOf(vec![level(), capability()]))
}

/// Returns the capabilities of an adapter in an answer.
pub(super) fn stored_capabilities() -> JsonShape {
    capabilities_of(capability())
}

fn capabilities_of(capability: JsonShape) -> JsonShape {
    JsonShape::Map {
        key: "metadata_name",
        value: Box::new(capability),
        entries_max: turnway_core::limits::ADAPTER_CAPABILITIES_MAX,
    }
}

fn capability() -> JsonShape {
    JsonShape::Object(vec![
        required("level", level(), "−2 rejected, −1 dropped, 0 fallback, 1 partial, 2 full."),
        optional("max", small_integer(), "The limit, such as the length of a text."),
        optional("unit", words(&TextUnit::ALL.map(TextUnit::as_str)), "Absent: UTF-16 code units."),
    ])
}

fn level() -> JsonShape {
    JsonShape::Range(-2, 2)
}

fn label() -> JsonShape {
    Defined("request_id")
}

fn requests() -> Vec<MessageSpec> {
    let sender = JsonShape::Object(vec![
        required("id", pattern(r"^\P{Cc}{1,256}$", &["u1"]), "The platform's id."),
        optional("name", pattern(r"^\P{Cc}{0,256}$", &["Ann"]), ""),
        optional("is_bot", JsonShape::Flag, ""),
    ]);
    let message = JsonShape::Object(vec![
        required("message_id", Defined("message_id"), "The platform's id."),
        optional("content", Defined("content"), "Required for the event `message`; the new one for `edit`."),
        optional("edit_id", label(), "`edit`: the platform's name of this edit; absent: its content tells it apart."),
    ]);
    let decision = vec![
        required("press_id", label(), "The platform's id of the press."),
        required("button_id", button_id(), ""),
        optional(
            "delivery_id",
            Defined("delivery_id"),
            "Of the message with the button; absent: `message_id` tells it.",
        ),
    ];
    let inbound = vec![
        required("conversation", Defined("conversation"), "Of the adapter's account."),
        required("sender", sender, "Who wrote it; grants nothing."),
        required("message", message, ""),
        optional("event", words(&InboundEvent::NAMES), "Absent: `message`."),
        optional("decision", JsonShape::Object(decision), "The button, for the event `decision`."),
        optional("moved_to", platform_id(&["8"]), "The new id, for the event `moved`."),
        optional("platform_time", integer(), "Unix milliseconds, by the platform's clock."),
    ];
    let delivered = vec![
        required("delivery_id", Defined("delivery_id"), ""),
        required("part", small_integer(), ""),
        required("outcome", words(&AdapterOutcome::NAMES), ""),
        optional("external_id", Defined("message_id"), "`sent`: the platform's id; without it the outcome is unknown."),
        optional("place", Defined("conversation"), "`sent`: where the platform has put it."),
        optional("proof", text(), "`not_sent`: for a person."),
        optional("code", names(&DeliveryErrorClass::ALL), "`rejected`: the class of the error; required."),
        optional("retry_after_ms", integer(), "`rejected`: the time that the platform asks for."),
    ];
    let created = vec![
        required("delivery_id", Defined("delivery_id"), "As in `create_conversation`."),
        required("outcome", words(&["created", "not_created", "unknown", "rejected"]), ""),
        optional("conversation", Defined("conversation"), "`created`: the new conversation; required."),
        optional("code", names(&DeliveryErrorClass::ALL), "`rejected`: the class of the error; required."),
        optional("retry_after_ms", integer(), "`rejected`: the time that the platform asks for."),
    ];
    let change = vec![
        optional("conversation", Defined("conversation"), "Of the adapter's account; absent: the whole connection."),
        required("capabilities", capabilities(), "In place of those declared before."),
    ];
    vec![
        MessageSpec::new("capabilities", "The adapter can do something else.", connection::received(change)),
        MessageSpec::new("inbound", "Something happened in a conversation.", connection::received(inbound)),
        MessageSpec::new(
            "prepare_files",
            "Asks for the right to add files to the session of a conversation.",
            connection::received(vec![required("conversation", Defined("conversation"), "Of the adapter's account.")]),
        ),
        MessageSpec::new("delivered", "What became of a part.", connection::received(delivered)),
        MessageSpec::new(
            "conversation_created",
            "What became of a conversation that was to be made.",
            connection::received(created),
        ),
    ]
}

fn deliver_kinds() -> Vec<&'static str> {
    let kinds = DeliveryKind::MESSAGES.iter().chain(&DeliveryKind::CHANGES);
    kinds.map(|kind| kind.as_str()).chain([PREVIEW_KIND]).collect()
}

/// Returns the fields of the order to send a part, or to change a message.
fn deliver() -> Vec<FieldSpec> {
    let target = vec![
        optional(
            "external_id",
            Defined("message_id"),
            "`edit`, `delete`: a message of the gateway, as `delivered` named it.",
        ),
        optional(
            "message_id",
            Defined("message_id"),
            "`reaction`: a message that somebody wrote, as `inbound` named it.",
        ),
    ];
    vec![
        required("delivery_id", Defined("delivery_id"), ""),
        required("attempt", small_integer(), "From 2: the part may have been sent before."),
        required("part", small_integer(), "From 1."),
        required("parts", small_integer(), ""),
        required("conversation", Defined("conversation"), "Where to send it, and nowhere else."),
        required("kind", words(&deliver_kinds()), "`preview`: an answer that is still being written."),
        required(
            "text",
            text(),
            "Markdown, within the declared limit; empty for `delete` and `reaction`, and with `attachments` perhaps.",
        ),
        optional("reply_to", Defined("message_id"), "The message that it answers."),
        optional("buttons", buttons(), "Below the last part; needs the capability `buttons`."),
        optional("attachments", attachments(), "Files to send with the text; needs the capability `attachments`."),
        optional("file_token", text(), "The bearer token with which the files are read; it ends at `deadline_ts`."),
        optional("target", JsonShape::Object(target), "The message that an `edit`, `delete` or `reaction` is about."),
        optional("reaction", reaction(), "`reaction`: which one."),
        required("key", text(), "The same for each attempt at the part: at most 25 characters."),
        required("deadline_ts", Defined("timestamp"), "Not to be sent after this time."),
    ]
}

fn answers() -> Vec<MessageSpec> {
    let accepted = vec![
        required("disposition", words(&InboundDisposition::ALL.map(InboundDisposition::as_str)), ""),
        optional(
            "reason",
            words(&IgnoreReason::ALL.map(IgnoreReason::as_str)),
            "`ignored`: the message is too old, or a button of it was pressed before.",
        ),
        optional("session_id", Defined("session_id"), ""),
        optional("run_id", Defined("run_id"), ""),
        required("duplicate", JsonShape::Flag, "The message had been accepted before."),
    ];
    let prepared = vec![
        required("session_id", Defined("session_id"), "The session that a message of the conversation goes to now."),
        required("file_token", text(), "The bearer token with which files are added to the session."),
        required("expires_ts", Defined("timestamp"), "The end of the token."),
    ];
    let create = vec![
        required("delivery_id", Defined("delivery_id"), "Named in the answer."),
        required("attempt", small_integer(), "From 2: the conversation may have been made before."),
        required("parent", Defined("conversation"), "The conversation that is to contain the new one."),
        required("name", text(), "One line, at most 100 characters."),
        optional("reply_to", Defined("message_id"), "The message that it begins with, if the platform can do that."),
        required("key", text(), "The same for each attempt: at most 25 characters."),
        required("deadline_ts", Defined("timestamp"), "Not to be made after this time."),
    ];
    let paused = vec![
        required("reason", names(&PauseReason::ALL), ""),
        required("since", Defined("timestamp"), ""),
        optional("delivery_id", Defined("delivery_id"), "The delivery whose part the platform has put elsewhere."),
    ];
    let state = vec![
        required("state", words(&["active", "standby"]), "Only an active connection gets `deliver`."),
        optional("holder_node_id", pattern("^[0-9a-f]{32}$", &[]), "The node of the active connection."),
        optional("since", Defined("timestamp"), "The time since which that connection is active."),
        optional("paused", JsonShape::Object(paused), "Nothing is sent until an operator resumes the account."),
    ];
    let typing = vec![
        required("conversation", Defined("conversation"), ""),
        required("state", words(&["on", "off"]), "`on` is repeated while the answer is being written."),
    ];
    let delete = vec![
        required("conversation", Defined("conversation"), ""),
        required("key", text(), "The `key` of a preview, which may be unknown."),
    ];
    vec![
        MessageSpec::new("typing", "An answer is being written, or not any more.", sent(typing)),
        MessageSpec::new("delete_message", "Remove the preview with this key.", sent(delete)),
        MessageSpec::new("inbound_accepted", "Answers `inbound`: what follows is durable.", answer(accepted)),
        MessageSpec::new("files_prepared", "Answers `prepare_files`.", answer(prepared)),
        MessageSpec::new("capabilities_set", "Answers `capabilities`.", answer(Vec::new())),
        MessageSpec::new("deliver", "Send a part; answered by `delivered`.", sent(deliver())),
        MessageSpec::new(
            "create_conversation",
            "Make a conversation within another one; answered by `conversation_created`.",
            sent(create),
        ),
        MessageSpec::new("adapter_state", "The state of an adapter's connection has changed.", sent(state)),
    ]
}
