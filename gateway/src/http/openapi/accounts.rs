//! Describes accounts of adapters, for the OpenAPI document. These types are never instantiated; a test against the running
//! server checks that they match.
#![expect(dead_code, reason = "shapes are only told, never made")]
use super::bindings::ConversationSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
#[schema(as = NamedAccount)]
pub(in crate::http) struct NamedAccountSchema {
    /// The platform that the account is on
    #[schema(pattern = "^[a-z0-9_.-]{1,64}$", example = "rooms")]
    channel: String,
    /// The gateway's account there
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,64}$", example = "main")]
    account_id: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = PausedAccounts)]
pub(in crate::http) struct PausedAccountListSchema {
    accounts: Vec<PausedAccountSchema>,
    /// The list is full: others may be paused
    more: bool,
}

/// An account for which nothing is sent
#[derive(Serialize, ToSchema)]
#[schema(as = PausedAccount)]
struct PausedAccountSchema {
    channel: String,
    account_id: String,
    reason: PauseReasonSchema,
    /// Milliseconds since 1970
    since: u64,
    /// The part that caused it
    misplaced: Option<MisplacedPartSchema>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = AccountPaused)]
pub(in crate::http) struct AccountPausedSchema {
    channel: String,
    account_id: String,
    reason: PauseReasonSchema,
    /// Milliseconds since 1970
    since: u64,
    /// The part that caused it
    misplaced: Option<MisplacedPartSchema>,
    /// `false`: it was paused before
    changed: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = AccountResumed)]
pub(in crate::http) struct AccountResumedSchema {
    channel: String,
    account_id: String,
    /// `false`: it was not paused
    changed: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Account)]
pub(in crate::http) struct AccountViewSchema {
    channel: String,
    account_id: String,
    /// A connection of an adapter has the account's lease
    served: bool,
    /// The node of that connection
    #[schema(pattern = "^[0-9a-f]{32}$")]
    holder_node_id: Option<String>,
    /// The time since which it has the lease, in milliseconds since 1970
    since: Option<u64>,
    /// Its capabilities; absent, though `served`: its node is of an earlier release
    capabilities: Option<BTreeMap<String, CapabilitySchema>>,
    /// Nothing is sent for the account
    paused: Option<AccountPauseSchema>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Capability)]
struct CapabilitySchema {
    /// −2 rejected, −1 dropped, 0 fallback, 1 partial, 2 full
    #[schema(minimum = -2, maximum = 2)]
    level: i8,
    /// The limit, such as the length of a text
    max: Option<u32>,
    unit: Option<TextUnitSchema>,
}

/// The unit of a length
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TextUnit)]
enum TextUnitSchema {
    Chars,
    Utf16,
    Bytes,
}

#[derive(Serialize, ToSchema)]
#[schema(as = AccountPause)]
struct AccountPauseSchema {
    reason: PauseReasonSchema,
    /// Milliseconds since 1970
    since: u64,
    /// The part that caused it
    misplaced: Option<MisplacedPartSchema>,
}

/// `misplaced`: the platform has put a part elsewhere
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PauseReason)]
enum PauseReasonSchema {
    Misplaced,
    Operator,
}

#[derive(Serialize, ToSchema)]
#[schema(as = MisplacedPart)]
struct MisplacedPartSchema {
    session_id: String,
    delivery_id: String,
    part: u32,
    /// The conversation that the part was sent to
    conversation: ConversationSchema,
    /// The conversation that has it
    place: ConversationSchema,
}
