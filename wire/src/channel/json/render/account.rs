//! Rendering of answers to requests about accounts.
use super::reply_frame;
use crate::channel::account::AccountReply;
use crate::channel::json::frame::to_json;
use serde::Serialize;
use turnway_core::id::{AccountId, ChannelName, RequestId};
use turnway_core::protocol::delivery::PausedAccount;
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

/// An answer without its frame.
#[derive(Serialize)]
#[serde(untagged)]
enum AccountPayload<'a> {
    Paused(AccountPausedPayload<'a>),
    Resumed(AccountResumedPayload<'a>),
    Listed(PausedAccountsPayload<'a>),
}

/// Renders an answer as a message.
pub(super) fn render_account_reply(ts: Millis, request_id: &Option<RequestId>, reply: &AccountReply) -> String {
    let kind = match reply {
        AccountReply::Paused { .. } => "account_paused",
        AccountReply::Resumed { .. } => "account_resumed",
        AccountReply::Listed { .. } => "paused_accounts",
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
        }
    }
}
