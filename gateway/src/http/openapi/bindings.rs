//! Describes bindings and requests about them, for the OpenAPI document. These types are never instantiated; a test
//! against the running server checks that they match.
#![expect(dead_code, reason = "shapes are only told, never made")]
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A conversation of one account on one channel
#[derive(Serialize, ToSchema)]
#[schema(as = Conversation)]
pub(in crate::http) struct ConversationSchema {
    /// The platform
    #[schema(pattern = "^[a-z0-9_.-]{1,64}$", example = "rooms")]
    channel: String,
    /// The gateway's account there
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,64}$", example = "main")]
    account_id: String,
    /// As the platform names it
    #[schema(pattern = "^[!-9;-~]{1,256}$", example = "7")]
    conversation_id: String,
    /// The conversation that contains it, if any
    #[schema(pattern = "^[!-9;-~]{1,256}$")]
    parent_conversation_id: Option<String>,
}

/// A binding of a conversation to a session
#[derive(Serialize, ToSchema)]
#[schema(as = Binding)]
pub(in crate::http) struct BindingSchema {
    /// The generation and the conversation's id; unique within the account
    binding_id: String,
    /// Version of the conversation's binding; never repeats
    generation: u64,
    session_id: String,
    conversation: ConversationSchema,
    target_kind: TargetKindSchema,
    status: BindingStatusSchema,
    /// Milliseconds since 1970
    bound_at: u64,
    /// The last routed message, a minute late at most
    last_activity_at: u64,
    /// Absent: never
    idle_timeout_ms: Option<u64>,
    /// Absent: never
    max_age_ms: Option<u64>,
    /// Absent: never
    expires_at: Option<u64>,
    /// Texts of whoever bound it
    metadata: Option<BTreeMap<String, String>>,
    /// The reason of the end, if it has ended
    reason: Option<String>,
    ended_at: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = TargetKind)]
enum TargetKindSchema {
    Session,
    Subagent,
    Acp,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = BindingStatus)]
enum BindingStatusSchema {
    Active,
    Ended,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Bindings)]
pub(in crate::http) struct BindingListSchema {
    bindings: Vec<BindingSchema>,
}

/// The binding of a conversation, and the rows that were looked at
#[derive(Serialize, ToSchema)]
#[schema(as = Resolution)]
pub(in crate::http) struct ResolutionSchema {
    #[schema(required)]
    binding: Option<BindingSchema>,
    /// Only with `explain`
    candidates: Option<Vec<CandidateSchema>>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Candidate)]
struct CandidateSchema {
    conversation: ConversationSchema,
    verdict: VerdictSchema,
    binding: Option<BindingSchema>,
    /// The last binding that ended
    last_ended: Option<BindingSchema>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Verdict)]
enum VerdictSchema {
    Bound,
    Unbound,
    Moved,
    Parent,
}

#[derive(Serialize, ToSchema)]
#[schema(as = BindRequest)]
pub(in crate::http) struct BindRequestSchema {
    conversation: ConversationSchema,
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1")]
    session_id: String,
    target_kind: Option<TargetKindSchema>,
    /// The generation to replace, 0: none; absent: the conversation is free or bound to the same session
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    expected_generation: Option<u64>,
    /// Time without a routed message; 0: never; absent: a day
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    idle_timeout_ms: Option<u64>,
    /// Time since the bind; 0 or absent: never
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    max_age_ms: Option<u64>,
    /// Milliseconds since 1970; 0 or absent: never
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    expires_at: Option<u64>,
    /// Texts by name, 2 KiB at most
    metadata: Option<BTreeMap<String, String>>,
}

/// The account of a binding id
#[derive(Serialize, ToSchema)]
#[schema(as = BindingScope)]
struct BindingScopeSchema {
    #[schema(pattern = "^[a-z0-9_.-]{1,64}$", example = "rooms")]
    channel: String,
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,64}$", example = "main")]
    account_id: String,
}

/// One binding by `binding_id` and `scope`, or all bindings of `session_id`
#[derive(Serialize, ToSchema)]
#[schema(as = UnbindRequest)]
pub(in crate::http) struct UnbindRequestSchema {
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1")]
    session_id: Option<String>,
    #[schema(example = "1764000000000.7")]
    binding_id: Option<String>,
    scope: Option<BindingScopeSchema>,
    reason: Option<UnbindReasonSchema>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = UnbindReason)]
enum UnbindReasonSchema {
    Manual,
    ConversationArchived,
    ConversationDeleted,
}

#[derive(Serialize, ToSchema)]
#[schema(as = TouchRequest)]
pub(in crate::http) struct TouchRequestSchema {
    #[schema(example = "1764000000000.7")]
    binding_id: String,
    scope: BindingScopeSchema,
}

/// One binding by `binding_id` and `scope`, or all bindings of `session_id`; at least one of the times
#[derive(Serialize, ToSchema)]
#[schema(as = ExpiryRequest)]
pub(in crate::http) struct ExpiryRequestSchema {
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1")]
    session_id: Option<String>,
    #[schema(example = "1764000000000.7")]
    binding_id: Option<String>,
    scope: Option<BindingScopeSchema>,
    /// 0: never; absent: not changed
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    idle_timeout_ms: Option<u64>,
    /// 0: never; absent: not changed
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    max_age_ms: Option<u64>,
    /// 0: never; absent: not changed
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    expires_at: Option<u64>,
}
