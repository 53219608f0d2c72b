//! Conversations on the command line: `CHANNEL/ACCOUNT/CONVERSATION`. Used by the commands about bindings, deliveries and
//! accounts.
use serde_json::{Value, json};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_wire::channel::account::NamedAccount;

/// A conversation, or every conversation of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceFilter {
    /// The channel, the account and perhaps the conversation, as [`format_place`] writes them.
    text: String,
}

/// Formats the conversation of an answer.
pub(super) fn format_place(conversation: &Value) -> String {
    let part = |name: &str| conversation.get(name).and_then(Value::as_str).unwrap_or_default();
    format!("{}/{}/{}", part("channel"), part("account_id"), part("conversation_id"))
}

/// Returns a conversation in the form of a request.
pub(super) fn place_body(place: &ConversationRef) -> Value {
    json!({
        "channel": place.channel.as_str(),
        "account_id": place.account_id.as_str(),
        "conversation_id": place.conversation_id.as_str(),
    })
}

/// Parses `CHANNEL/ACCOUNT/CONVERSATION`; only the last part may contain a slash.
pub(super) fn parse_place(text: &str) -> Result<ConversationRef, String> {
    let mut parts = text.splitn(3, '/');
    let (Some(channel), Some(account), Some(conversation)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("expected CHANNEL/ACCOUNT/CONVERSATION".to_owned());
    };
    ConversationRef::without_parent(channel, account, conversation).map_err(|error| error.to_string())
}

/// Parses the name of an account, `CHANNEL/ACCOUNT`.
pub(super) fn parse_account(text: &str) -> Result<NamedAccount, String> {
    let place = parse_place(&format!("{text}/any")).ok().filter(|_| text.matches('/').count() == 1);
    let place = place.ok_or("expected CHANNEL/ACCOUNT")?;
    Ok(NamedAccount { channel: place.channel, account: place.account_id })
}

/// Parses `CHANNEL/ACCOUNT` or `CHANNEL/ACCOUNT/CONVERSATION`.
pub(super) fn parse_filter(text: &str) -> Result<PlaceFilter, String> {
    let of_account = text.matches('/').count() == 1;
    let whole = if of_account { format!("{text}/any") } else { text.to_owned() };
    let place = parse_place(&whole).map_err(|_| "expected CHANNEL/ACCOUNT or CHANNEL/ACCOUNT/CONVERSATION")?;
    let account = format!("{}/{}/", place.channel, place.account_id);
    Ok(PlaceFilter { text: if of_account { account } else { account + place.conversation_id.as_str() } })
}

// === impl PlaceFilter ===

impl PlaceFilter {
    /// Returns whether a conversation is the one, or one of the account.
    pub(super) fn matches(&self, conversation: &Value) -> bool {
        let place = format_place(conversation);
        if self.text.ends_with('/') { place.starts_with(&self.text) } else { place == self.text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn place_is_parsed_and_only_its_last_part_may_have_slashes() {
        let place = parse_place("Rooms/main/7/8").expect("a place");
        assert_eq!((place.channel.as_str(), place.conversation_id.as_str()), ("rooms", "7/8"));
        for bad in ["", "rooms", "rooms/main", "rooms/main/", "rooms//7", "rooms/main/rooms:7"] {
            assert!(parse_place(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn account_is_a_channel_and_a_name() {
        let account = parse_account("Rooms/main").expect("an account");
        assert_eq!((account.channel.as_str(), account.account.as_str()), ("rooms", "main"));
        for bad in ["", "rooms", "rooms/", "/main", "rooms/main/7"] {
            assert!(parse_account(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn filter_names_a_conversation_or_an_account() {
        let place =
            |account: &str, id: &str| json!({ "channel": "rooms", "account_id": account, "conversation_id": id });
        let account = parse_filter("Rooms/main").expect("a filter");
        assert!(account.matches(&place("main", "7")) && !account.matches(&place("main2", "7")));
        let one = parse_filter("rooms/main/7").expect("a filter");
        assert!(one.matches(&place("main", "7")) && !one.matches(&place("main", "71")));
        for bad in ["", "rooms", "rooms/", "/main", "rooms/main/"] {
            assert!(parse_filter(bad).is_err(), "{bad}");
        }
    }
}
