//! Describes values that other modules render, for the OpenAPI document. These types are never instantiated; a test
//! against the running server checks that they match.
#![expect(dead_code, reason = "shapes are only told, never made")]
use crate::http::openapi::refusals::CodeName;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

/// One input: an `agent_invoke` without type and session
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Turn {
    message: Message,
    /// Who shall answer; without it, whoever is active
    #[schema(nullable, pattern = "^[A-Za-z0-9_-]{1,64}$", example = "echo")]
    agent_id: Option<String>,
    strategy: Option<Strategy>,
    /// The run of an own message that waits, in whose place this one is put
    #[schema(nullable, pattern = r"^[A-Za-z0-9_-]{1,64}\.[a-z2-7]{26}$")]
    replaces: Option<String>,
    /// Kept as it comes
    metadata: Option<Map<String, Value>>,
    /// Echoed; also the message's id, if it has no other
    #[schema(min_length = 1, max_length = 64, pattern = "^[ -~]+$")]
    request_id: Option<String>,
    /// W3C trace context
    traceparent: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct Message {
    role: Option<Role>,
    content: Content,
    /// As `Idempotency-Key`
    #[schema(min_length = 1, max_length = 64, pattern = "^[ -~]+$")]
    message_id: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
}

/// A text, or OpenAI content parts
#[derive(Serialize)]
pub(in crate::http) struct Content;

impl PartialSchema for Content {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).min_length(Some(1));
        let part = Ref::from_schema_name(Part::name());
        let parts = ArrayBuilder::new().items(part).min_items(Some(1));
        OneOfBuilder::new().item(text).item(parts).description(Some("A text, or OpenAI content parts")).into()
    }
}

impl ToSchema for Content {}

/// An OpenAI content part, passed on as it comes
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Part {
    r#type: PartKind,
    #[schema(min_length = 1)]
    text: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::http) enum PartKind {
    Text,
}

/// What it does while a turn is open
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Strategy {
    Steer,
    Enqueue,
    Interrupt,
    Rollback,
    Reject,
}

/// Why a request is refused (RFC 9457)
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Problem {
    title: String,
    status: u16,
    code: CodeName,
    /// For a person
    detail: String,
    /// The same request may succeed later
    retryable: bool,
    retry_after_ms: Option<u64>,
}

/// A server-sent event
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Event {
    /// Where a reader is that has it: goes back as `Last-Event-ID`
    id: Option<String>,
    event: Option<String>,
    /// JSON: a message of the turn, or an envelope
    data: String,
}

/// A message of the channel protocol, as `data:` carries it (docs/protocol.md §1.3)
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct TurnMessage {
    r#type: String,
    ts: u64,
    session_id: String,
    run_id: String,
    seq: Option<u64>,
    epoch: Option<u64>,
}

/// A session's present state
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Snapshot {
    session_id: String,
    state: SessionState,
    #[schema(required)]
    active_agent: Option<String>,
    agents: Vec<String>,
    /// Turns that have not ended, the running one first
    runs: Vec<OpenRun>,
    pending: Pending,
    /// The last fact
    seq: u64,
    epoch: u64,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum SessionState {
    Open,
    Closing,
    Closed,
}

#[derive(Serialize, ToSchema)]
struct OpenRun {
    run_id: String,
    agent_id: String,
    state: OpenState,
    attempt: u32,
    text_bytes: u64,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
enum OpenState {
    Queued,
    Routing,
    Running,
    Cancelling,
}

/// What waits for a person
#[derive(Serialize, ToSchema)]
struct Pending {
    approvals: Vec<Value>,
    tool_requests: Vec<Value>,
    handover: Option<Handover>,
}

/// An agent asks that another one answer from now on
#[derive(Serialize, ToSchema)]
struct Handover {
    handover_id: String,
    /// In which it was asked for
    run_id: String,
    from: String,
    to: String,
    reason: String,
    /// What the other agent would be told
    summary: String,
    /// When it is rejected if nobody decides
    deadline_ts: u64,
}

/// A fact in its place: a CloudEvents 1.0 shape
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Envelope {
    specversion: String,
    /// A UUIDv7
    id: String,
    #[schema(example = "user.message")]
    r#type: String,
    source: String,
    /// RFC 3339
    time: String,
    session_id: String,
    seq: u64,
    epoch: u64,
    correlation_id: String,
    causation_id: Option<String>,
    traceparent: Option<String>,
    run_id: Option<String>,
    data: Map<String, Value>,
}

/// A message of a conversation
#[derive(Serialize, ToSchema)]
#[serde(tag = "role", rename_all = "lowercase")]
pub(in crate::http) enum Said {
    /// What somebody asked
    User {
        seq: u64,
        run_id: String,
        user_id: String,
        message_id: String,
        agent_id: Option<String>,
        content: Content,
        ts: u64,
    },
    /// What was answered
    Assistant {
        seq: u64,
        run_id: String,
        agent_id: Option<String>,
        status: Ended,
        code: Option<CodeName>,
        content: String,
        /// The beginning of the text is forgotten
        trimmed: Option<bool>,
        ts: u64,
    },
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::http) enum Ended {
    Completed,
    Failed,
    Cancelled,
}

/// A turn
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Run {
    run_id: String,
    session_id: String,
    /// `QUEUED`, `ROUTING`, `RUNNING`, `CANCELLING`, `completed`, `failed`, `cancelled`, or `ended` where
    /// how it did is forgotten
    status: String,
    user_id: Option<String>,
    message_id: Option<String>,
    agent_id: Option<String>,
    /// The run that its message was handed to while that was open
    host_run_id: Option<String>,
    attempt: u32,
    text_bytes: u64,
    stop_reason: Option<String>,
    usage: Option<Value>,
    error: Option<Trouble>,
    created_ts: Option<u64>,
    started_ts: Option<u64>,
    ended_ts: Option<u64>,
    seq: u64,
    /// Some of its facts are forgotten
    trimmed: Option<bool>,
}

#[derive(Serialize, ToSchema)]
struct Trouble {
    code: CodeName,
    message: String,
    retryable: bool,
    /// When to try again, where the agent said so
    retry_after_ms: Option<u64>,
    detail: Option<TroubleDetail>,
}

/// What the agent said of it
#[derive(Serialize, ToSchema)]
struct TroubleDetail {
    /// Its own code, or that of the plugin that refused the turn
    agent_code: Option<String>,
    /// The beginning of its error's body: for operators only
    agent_body: Option<String>,
}
