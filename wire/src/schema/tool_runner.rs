//! Messages between a tool runner and a node.
use super::connection::{self, answer, received as framed_request, sent as framed};
use super::shape::{
    FieldSpec, JsonShape, MessageSpec, TextShape, constant, integer, list_up_to, names, optional, required, text,
    text_up_to,
};
use JsonShape::{Any, Defined, Flag};
use turnway_core::limits::{ACTION_DATA_BYTES_MAX, OUTPUT_CHUNK_BYTES_MAX, RUNNER_TOOLS_MAX};
use turnway_core::protocol::action::{OutputEncoding, OutputStream};

/// Returns the messages from a tool runner.
pub(super) fn received() -> Vec<MessageSpec> {
    let tool = JsonShape::OneOf(vec![
        Defined("tool_name"),
        JsonShape::Object(vec![required("name", Defined("tool_name"), "")]),
    ]);
    let hello = connection::hello(
        "The first message: the tool runner's identity.",
        vec![
            required("role", constant("tool_runner"), ""),
            required("runner_id", Defined("runner_id"), ""),
            optional("tools", list_up_to(tool, RUNNER_TOOLS_MAX), "The offered tools."),
        ],
    );
    [vec![hello], reports(), connection::requests()].concat()
}

/// Returns the messages to a tool runner.
pub(super) fn sent() -> Vec<MessageSpec> {
    let execute = vec![
        required("tenant", Defined("tenant_id"), ""),
        action_id(),
        required("run_id", Defined("qualified_run_id"), ""),
        required("session_id", Defined("qualified_session_id"), ""),
        required("tool", Defined("tool_name"), ""),
        required("args", Any, ""),
        required("deadline_ts", Defined("timestamp"), "The action has ended by then."),
    ];
    let signal = vec![action_id(), required("signal", constant("KILL"), "")];
    let rows = vec![
        MessageSpec::new("execute", "Execute this action; for a known action: report its state.", framed(execute)),
        MessageSpec::new("signal", "The action has ended for the gateway: stop it.", framed(signal)),
        MessageSpec::new("query", "Report the action's state.", framed(vec![action_id()])),
        MessageSpec::new("error", "A refused message or connection.", answer(connection::error())),
    ];
    [rows, connection::answers()].concat()
}

fn action_id() -> FieldSpec {
    required("action_id", Defined("qualified_action_id"), "")
}

fn reports() -> Vec<MessageSpec> {
    let error = vec![
        optional("code", text(), "`unknown_action`: the runner does not know the action."),
        optional("message", text(), "For a person; a long one is cut."),
    ];
    let result = vec![
        action_id(),
        required("ok", Flag, ""),
        optional("result", Any, "").json_bytes(ACTION_DATA_BYTES_MAX),
        optional("error", JsonShape::Object(error), ""),
    ];
    let base64 = JsonShape::Text(TextShape {
        bytes_max: Some(OUTPUT_CHUNK_BYTES_MAX.div_ceil(3) * 4),
        pattern: Some("^[A-Za-z0-9+/=]*$".to_owned()),
        examples: vec!["aGk=", ""],
        ..TextShape::default()
    });
    let encodings = vec![
        vec![
            required("data", text_up_to(OUTPUT_CHUNK_BYTES_MAX), ""),
            optional("encoding", names(&[OutputEncoding::Utf8]), ""),
        ],
        vec![required("data", base64, ""), required("encoding", names(&[OutputEncoding::Base64]), "")],
    ];
    let data = format!("At most {OUTPUT_CHUNK_BYTES_MAX} bytes before the encoding.");
    let chunk = vec![
        action_id(),
        required("stream", names(&[OutputStream::Stdout, OutputStream::Stderr]), ""),
        required("offset", integer(), "The position of the first byte in the stream."),
        required("data", text(), data),
        optional("encoding", names(&[OutputEncoding::Utf8, OutputEncoding::Base64]), "Absent: `utf8`."),
        optional("truncated", Flag, "Output before it was left out."),
    ];
    let system = vec![
        required("name", Defined("system_name"), "The runner's name for the event."),
        optional("data", Any, "").json_bytes(ACTION_DATA_BYTES_MAX),
        optional("action_id", Defined("qualified_action_id"), "Absent: every session with an action at the runner."),
    ];
    let progress = vec![action_id(), required("data", JsonShape::NotNull, "").json_bytes(ACTION_DATA_BYTES_MAX)];
    let invoked = vec![action_id(), optional("pid", integer(), "The operating system's process id.")];
    vec![
        MessageSpec::new("invoked", "The action has started.", framed_request(invoked)),
        MessageSpec::new("progress", "The action is in progress.", framed_request(progress)),
        MessageSpec::new("result", "The action has ended; only the first result counts.", framed_request(result)),
        MessageSpec::new("chunk", "A piece of a process's output.", framed_request(chunk)).with_alternatives(encodings),
        MessageSpec::new("system", "An event of the runner's machine.", framed_request(system)),
    ]
}
