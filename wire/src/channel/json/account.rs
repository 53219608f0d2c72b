//! Requests about accounts as JSON, over any transport.
use crate::channel::account::{AccountCommand, NamedAccount};
use crate::channel::json::conversation::parse_account;
use crate::channel::json::fields::Fields;
use crate::channel::json::malformed::{Malformed, MalformedReason};
use crate::channel::json::strict;

/// Parses the body of an HTTP request, which is a message whose type the path gives.
pub fn parse_account_body(kind: &str, text: &str) -> Result<AccountCommand, Malformed> {
    let command = strict::object(text).and_then(|mut fields| parse_account_command(kind, &mut fields));
    command.map_err(|reason| Malformed { request_id: None, reason })
}

/// Parses the fields of a message of one of the types about accounts.
pub(super) fn parse_account_command(kind: &str, fields: &mut Fields) -> Result<AccountCommand, MalformedReason> {
    Ok(match kind {
        "pause_account" => AccountCommand::Pause(parse_named(fields)?),
        "resume_account" => AccountCommand::Resume(parse_named(fields)?),
        "list_paused_accounts" => AccountCommand::ListPaused,
        "show_account" => AccountCommand::Show(parse_named(fields)?),
        _ => return Err(MalformedReason::UnknownType),
    })
}

/// Parses the name of an account in the query of an HTTP request.
pub fn parse_account_name(channel: &str, account_id: &str) -> Result<NamedAccount, MalformedReason> {
    let named = [("channel", channel), ("account_id", account_id)];
    parse_named(&mut named.into_iter().map(|(name, text)| (name.to_owned(), text.into())).collect())
}

fn parse_named(fields: &mut Fields) -> Result<NamedAccount, MalformedReason> {
    let (channel, account) = parse_account(fields, ["channel", "account_id"])?;
    Ok(NamedAccount { channel, account })
}
