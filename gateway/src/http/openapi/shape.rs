//! Describes values that other modules render, for the OpenAPI document. These types are never instantiated; a test
//! against the running server checks that they match.
#![expect(dead_code, reason = "shapes are only told, never made")]
use crate::http::openapi::refusals::CodeSchema;
use crate::http::openapi::words::StrategySchema;
use serde::Serialize;
use serde_json::{Map, Value};
use std::borrow::Cow;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

/// One input: an `agent_invoke` without type and session
#[derive(Serialize, ToSchema)]
#[schema(as = Turn)]
pub(in crate::http) struct TurnSchema {
    message: MessageSchema,
    /// Agent that answers; default: the active agent of the session
    #[schema(nullable, pattern = "^[A-Za-z0-9_-]{1,64}$", example = "echo")]
    agent_id: Option<String>,
    strategy: Option<StrategySchema>,
    /// Run of the caller's own queued message that this message replaces
    #[schema(nullable, pattern = r"^[A-Za-z0-9_-]{1,64}\.[a-z2-7]{26}$")]
    replaces: Option<String>,
    /// Stored and delivered unchanged
    metadata: Option<Map<String, Value>>,
    /// Echoed in answers; also the message id if none is given
    #[schema(min_length = 1, max_length = 64, pattern = "^[ -~]+$")]
    request_id: Option<String>,
    /// W3C trace context
    traceparent: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Message)]
struct MessageSchema {
    role: Option<RoleSchema>,
    content: ContentSchema,
    /// Message id; the same as the header `Idempotency-Key`
    #[schema(min_length = 1, max_length = 64, pattern = "^[ -~]+$")]
    message_id: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Role)]
enum RoleSchema {
    User,
}

/// A text, or OpenAI content parts
#[derive(Serialize)]
pub(in crate::http) struct ContentSchema;

impl PartialSchema for ContentSchema {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).min_length(Some(1));
        let part = Ref::from_schema_name(PartSchema::name());
        let parts = ArrayBuilder::new().items(part).min_items(Some(1));
        OneOfBuilder::new().item(text).item(parts).description(Some("A text, or OpenAI content parts")).into()
    }
}

impl ToSchema for ContentSchema {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Content")
    }
}

/// An OpenAI content part, passed on unchanged
#[derive(Serialize, ToSchema)]
#[schema(as = Part)]
pub(in crate::http) struct PartSchema {
    r#type: PartKindSchema,
    #[schema(min_length = 1)]
    text: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = PartKind)]
pub(in crate::http) enum PartKindSchema {
    Text,
}

/// A refused request (RFC 9457)
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(in crate::http) struct ProblemSchema {
    title: String,
    status: u16,
    code: CodeSchema,
    /// Explanation for a person
    detail: String,
    /// The same request may succeed later
    retryable: bool,
    retry_after_ms: Option<u64>,
}

/// A server-sent event
#[derive(Serialize, ToSchema)]
#[schema(as = Event)]
pub(in crate::http) struct SseEventSchema {
    /// Position after this event; a client sends it back as `Last-Event-ID`
    id: Option<String>,
    event: Option<String>,
    /// JSON: a message of the turn, or an envelope
    data: String,
}

/// A message of the channel protocol, as `data:` carries it (docs/protocol.md §1.3)
#[derive(Serialize, ToSchema)]
#[schema(as = TurnMessage)]
pub(in crate::http) struct TurnMessageSchema {
    r#type: String,
    ts: u64,
    session_id: String,
    run_id: String,
    seq: Option<u64>,
    epoch: Option<u64>,
}

/// A session's present state
#[derive(Serialize, ToSchema)]
#[schema(as = Snapshot)]
pub(in crate::http) struct SnapshotSchema {
    session_id: String,
    state: SessionStateSchema,
    #[schema(required)]
    active_agent: Option<String>,
    agents: Vec<String>,
    /// Unfinished turns, the running one first
    runs: Vec<OpenRunSchema>,
    pending: PendingSchema,
    /// `seq` of the last fact
    seq: u64,
    epoch: u64,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = SessionState)]
enum SessionStateSchema {
    Open,
    Closing,
    Closed,
}

#[derive(Serialize, ToSchema)]
#[schema(as = OpenRun)]
struct OpenRunSchema {
    run_id: String,
    agent_id: String,
    state: OpenStateSchema,
    attempt: u32,
    text_bytes: u64,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schema(as = OpenState)]
enum OpenStateSchema {
    Queued,
    Routing,
    Running,
    Cancelling,
}

/// Decisions that a person has to make
#[derive(Serialize, ToSchema)]
#[schema(as = Pending)]
struct PendingSchema {
    approvals: Vec<Value>,
    tool_requests: Vec<Value>,
    handover: Option<HandoverSchema>,
}

/// A request of an agent to hand the conversation to another agent
#[derive(Serialize, ToSchema)]
#[schema(as = Handover)]
struct HandoverSchema {
    handover_id: String,
    /// Run in which the handover was requested
    run_id: String,
    from: String,
    to: String,
    reason: String,
    /// Summary that the other agent would receive
    summary: String,
    /// Time at which the handover is rejected without a decision, in milliseconds since 1970
    deadline_ts: u64,
}

/// A fact with its position, in the form of a CloudEvents 1.0 event
#[derive(Serialize, ToSchema)]
#[schema(as = Envelope)]
pub(in crate::http) struct EnvelopeSchema {
    specversion: String,
    /// Id of the fact, a UUIDv7
    id: String,
    #[schema(example = "user.message")]
    r#type: String,
    source: String,
    /// Time of the fact (RFC 3339)
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
#[schema(as = Said)]
pub(in crate::http) enum ConversationMessageSchema {
    /// A message of a user
    User {
        seq: u64,
        run_id: String,
        user_id: String,
        message_id: String,
        agent_id: Option<String>,
        content: ContentSchema,
        ts: u64,
    },
    /// An answer of an agent
    Assistant {
        seq: u64,
        run_id: String,
        agent_id: Option<String>,
        status: TurnOutcomeSchema,
        code: Option<CodeSchema>,
        content: String,
        /// The beginning of the text was trimmed
        trimmed: Option<bool>,
        ts: u64,
    },
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Ended)]
pub(in crate::http) enum TurnOutcomeSchema {
    Completed,
    Failed,
    Cancelled,
}

/// State of a turn
#[derive(Serialize, ToSchema)]
#[schema(as = Run)]
pub(in crate::http) struct RunSchema {
    run_id: String,
    session_id: String,
    /// `QUEUED`, `ROUTING`, `RUNNING`, `CANCELLING`, `completed`, `failed`, `cancelled`, or `ended` if
    /// the outcome was trimmed
    status: String,
    user_id: Option<String>,
    message_id: Option<String>,
    agent_id: Option<String>,
    /// Open run that took over this run's message
    host_run_id: Option<String>,
    attempt: u32,
    text_bytes: u64,
    stop_reason: Option<String>,
    usage: Option<Value>,
    error: Option<RunErrorSchema>,
    created_ts: Option<u64>,
    started_ts: Option<u64>,
    ended_ts: Option<u64>,
    seq: u64,
    /// Some facts of the turn were trimmed
    trimmed: Option<bool>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Trouble)]
struct RunErrorSchema {
    code: CodeSchema,
    message: String,
    retryable: bool,
    /// Delay before a retry, if the agent gave one
    retry_after_ms: Option<u64>,
    detail: Option<RunErrorDetailSchema>,
}

/// Details from the agent
#[derive(Serialize, ToSchema)]
#[schema(as = TroubleDetail)]
struct RunErrorDetailSchema {
    /// Error code of the agent, or of the plugin that refused the turn
    agent_code: Option<String>,
    /// Beginning of the agent's error body; for operators only
    agent_body: Option<String>,
}
