//! Describes bindings and requests about them, for the OpenAPI document. These types are never instantiated; a test
//! against the running server checks that they match.
#![expect(dead_code, reason = "shapes are only told, never made")]
use super::words::{TargetKindSchema, UnbindReasonSchema, VerdictSchema};
use serde::Serialize;
use std::borrow::Cow;
use turnway_core::id::{DeliveryId, MessageId, SessionId};
use turnway_core::limits;
use utoipa::openapi::schema::{AnyOfBuilder, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

/// A conversation of one account on one channel
#[derive(Serialize, ToSchema)]
#[schema(as = Conversation)]
pub(in crate::http) struct ConversationSchema {
    /// Name of the platform
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
    /// Absent if it never ends by being idle
    idle_timeout_ms: Option<u64>,
    /// Absent if it never ends by age
    max_age_ms: Option<u64>,
    /// Absent if no end is set
    expires_at: Option<u64>,
    /// The conversation also gets the answers of turns that clients begin in the session; absent: no
    mirror: Option<bool>,
    /// Texts of whoever bound it
    metadata: Option<MetadataSchema>,
    /// The reason of the end, if it has ended
    reason: Option<String>,
    ended_at: Option<u64>,
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

/// Conversations to look up
#[derive(Serialize, ToSchema)]
#[schema(as = LookupRequest)]
pub(in crate::http) struct LookupRequestSchema {
    #[schema(min_items = 1, max_items = 64)]
    conversations: Vec<ConversationSchema>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Resolutions)]
pub(in crate::http) struct ResolutionListSchema {
    /// In the order of the request
    resolutions: Vec<FoundBindingSchema>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = FoundBinding)]
struct FoundBindingSchema {
    /// As the request names it
    conversation: ConversationSchema,
    #[schema(required)]
    binding: Option<BindingSchema>,
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
    /// The conversation also gets the answers of turns that clients begin in the session
    mirror: Option<bool>,
    metadata: Option<MetadataSchema>,
}

/// A conversation that the platform is to make and that is then bound
#[derive(Serialize, ToSchema)]
#[schema(as = BindChildRequest)]
pub(in crate::http) struct BindChildRequestSchema {
    /// The conversation that is to contain the new one
    parent: ConversationSchema,
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1")]
    session_id: String,
    /// Its first line names the new conversation: at most 100 characters
    #[schema(min_length = 1, max_length = 1024, pattern = r"\S", example = "Release 1.4")]
    title: String,
    /// The same id again is the same conversation; absent: an id of its own
    #[schema(pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "c1")]
    creation_id: Option<String>,
    target_kind: Option<TargetKindSchema>,
    /// Time without a routed message; 0: never; absent: a day
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    idle_timeout_ms: Option<u64>,
    /// Time since the bind; 0 or absent: never
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    max_age_ms: Option<u64>,
    /// Milliseconds since 1970; 0 or absent: never
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    expires_at: Option<u64>,
    /// The conversation also gets the answers of turns that clients begin in the session
    mirror: Option<bool>,
    metadata: Option<MetadataSchema>,
}

/// A conversation that is being made for a binding
#[derive(Serialize, ToSchema)]
#[schema(as = RequestedChild)]
pub(in crate::http) struct RequestedChildSchema {
    #[schema(value_type = String)]
    pub(in crate::http) session_id: SessionId,
    #[schema(value_type = String)]
    pub(in crate::http) creation_id: MessageId,
    /// As in `GET /v1/deliveries`, until the conversation is bound
    #[schema(value_type = String)]
    pub(in crate::http) delivery_id: DeliveryId,
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

/// The end of one binding
#[derive(Serialize, ToSchema)]
#[schema(as = UnbindOne)]
pub(in crate::http) struct UnbindOneSchema {
    #[schema(pattern = r"^[1-9][0-9]{0,14}\.[!-9;-~]{1,200}$", example = "1764000000000.7")]
    binding_id: String,
    scope: BindingScopeSchema,
    reason: Option<UnbindReasonSchema>,
    /// The conversation gets the farewell of its channel; with the reason `manual` only
    farewell: Option<bool>,
}

/// The end of all bindings of a session
#[derive(Serialize, ToSchema)]
#[schema(as = UnbindAll)]
pub(in crate::http) struct UnbindAllSchema {
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1")]
    session_id: String,
    reason: Option<UnbindReasonSchema>,
    /// The conversation gets the farewell of its channel; with the reason `manual` only
    farewell: Option<bool>,
}

/// A request about one binding, or about all bindings of a session
#[derive(Serialize)]
pub(in crate::http) struct UnbindRequestSchema;

impl PartialSchema for UnbindRequestSchema {
    fn schema() -> RefOr<Schema> {
        one_or_all(&UnbindOneSchema::name(), &UnbindAllSchema::name())
    }
}

impl ToSchema for UnbindRequestSchema {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("UnbindRequest")
    }
}

fn one_or_all(one: &str, all: &str) -> RefOr<Schema> {
    let [one, all] = [one, all].map(Ref::from_schema_name);
    AnyOfBuilder::new().item(one).item(all).into()
}

#[derive(Serialize, ToSchema)]
#[schema(as = TouchRequest)]
pub(in crate::http) struct TouchRequestSchema {
    #[schema(pattern = r"^[1-9][0-9]{0,14}\.[!-9;-~]{1,200}$", example = "1764000000000.7")]
    binding_id: String,
    scope: BindingScopeSchema,
}

/// New times of one binding; an absent one is not changed
#[derive(Serialize, ToSchema)]
#[schema(as = ExpiryOne)]
pub(in crate::http) struct ExpiryOneSchema {
    #[schema(pattern = r"^[1-9][0-9]{0,14}\.[!-9;-~]{1,200}$", example = "1764000000000.7")]
    binding_id: String,
    scope: BindingScopeSchema,
    #[serde(flatten)]
    times: ExpiryTimesSchema,
}

/// New times of all bindings of a session; an absent one is not changed
#[derive(Serialize, ToSchema)]
#[schema(as = ExpiryAll)]
pub(in crate::http) struct ExpiryAllSchema {
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1")]
    session_id: String,
    #[serde(flatten)]
    times: ExpiryTimesSchema,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ExpiryTimes)]
struct ExpiryTimesSchema {
    /// Time without a routed message; 0: never
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    idle_timeout_ms: Option<u64>,
    /// Time since the bind; 0: never
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    max_age_ms: Option<u64>,
    /// Milliseconds since 1970; 0: never
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    expires_at: Option<u64>,
}

/// A request about one binding, or about all bindings of a session
#[derive(Serialize)]
pub(in crate::http) struct ExpiryRequestSchema;

impl PartialSchema for ExpiryRequestSchema {
    fn schema() -> RefOr<Schema> {
        one_or_all(&ExpiryOneSchema::name(), &ExpiryAllSchema::name())
    }
}

impl ToSchema for ExpiryRequestSchema {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("ExpiryRequest")
    }
}

/// Texts of one line by name
#[derive(Serialize)]
struct MetadataSchema;

impl PartialSchema for MetadataSchema {
    fn schema() -> RefOr<Schema> {
        let text =
            |pattern: &str| ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).pattern(Some(pattern));
        let kind = SchemaType::Type(Type::Object);
        ObjectBuilder::new()
            .schema_type(kind)
            .property_names(Some(text("^[!-~]{1,64}$")))
            .additional_properties(Some(text("^[ -~]{0,256}$")))
            .max_properties(Some(limits::BINDING_METADATA_MAX))
            .into()
    }
}

impl ToSchema for MetadataSchema {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Metadata")
    }
}
