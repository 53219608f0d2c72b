//! Rendering of answers to requests about accounts.
use super::reply_frame;
use crate::channel::account::{AccountReply, AccountView};
use crate::channel::adapter::AdapterCapabilities;
use crate::channel::json::frame::to_json;
use serde::Serialize;
use turnway_core::id::{AccountId, ChannelName, RequestId};
use turnway_core::protocol::delivery::{AccountPause, PausedAccount};
use turnway_core::time::Millis;

#[derive(Serialize)]
struct AccountPausedPayload<'a> {
    #[serde(flatten)]
    account: &'a PausedAccount,
    changed: bool,
}

#[derive(Serialize)]
struct AccountResumedPayload<'a> {
    channel: &'a ChannelName,
    account_id: &'a AccountId,
    changed: bool,
}

#[derive(Serialize)]
struct PausedAccountsPayload<'a> {
    accounts: &'a [PausedAccount],
    more: bool,
}

#[derive(Serialize)]
struct AccountViewPayload<'a> {
    channel: &'a ChannelName,
    account_id: &'a AccountId,
    served: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder_node_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capabilities: Option<&'a AdapterCapabilities>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<&'a AccountPause>,
}

/// An answer without its frame.
#[derive(Serialize)]
#[serde(untagged)]
enum AccountPayload<'a> {
    Paused(AccountPausedPayload<'a>),
    Resumed(AccountResumedPayload<'a>),
    Listed(PausedAccountsPayload<'a>),
    Shown(AccountViewPayload<'a>),
}

/// Renders an answer as a message.
pub(super) fn render_account_reply(ts: Millis, request_id: &Option<RequestId>, reply: &AccountReply) -> String {
    let kind = match reply {
        AccountReply::Paused { .. } => "account_paused",
        AccountReply::Resumed { .. } => "account_resumed",
        AccountReply::Listed { .. } => "paused_accounts",
        AccountReply::Shown(_) => "account",
    };
    reply_frame(ts, kind, request_id, AccountPayload::from(reply)).text(reply.weight())
}

/// Returns the fields of an answer as a JSON object, for HTTP.
pub fn account_reply_object(reply: &AccountReply) -> String {
    to_json(&AccountPayload::from(reply), reply.weight())
}

// === impl AccountPayload ===

impl<'a> From<&'a AccountReply> for AccountPayload<'a> {
    fn from(reply: &'a AccountReply) -> Self {
        match reply {
            AccountReply::Paused { account, changed } => {
                Self::Paused(AccountPausedPayload { account, changed: *changed })
            }
            AccountReply::Resumed { account, changed } => Self::Resumed(AccountResumedPayload {
                channel: &account.channel,
                account_id: &account.account,
                changed: *changed,
            }),
            AccountReply::Listed { accounts, more } => Self::Listed(PausedAccountsPayload { accounts, more: *more }),
            AccountReply::Shown(view) => Self::Shown(AccountViewPayload::from(view.as_ref())),
        }
    }
}

// === impl AccountViewPayload ===

impl<'a> From<&'a AccountView> for AccountViewPayload<'a> {
    fn from(view: &'a AccountView) -> Self {
        let AccountView { account, service, pause } = view;
        let service = service.as_ref();
        Self {
            channel: &account.channel,
            account_id: &account.account,
            served: service.is_some(),
            holder_node_id: service.map(|service| service.node.to_string()),
            since: service.map(|service| service.since),
            capabilities: service.and_then(|service| service.capabilities.as_ref()),
            paused: pause.as_ref(),
        }
    }
}
