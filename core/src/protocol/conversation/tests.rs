//! References to conversations: what is normalised, and what is refused.
use super::*;

fn raw(channel: &str, account: &str, conversation: &str, parent: Option<&str>) -> UncheckedConversationRef {
    UncheckedConversationRef {
        channel: channel.to_owned(),
        account_id: account.to_owned(),
        conversation_id: conversation.to_owned(),
        parent_conversation_id: parent.map(ToOwned::to_owned),
    }
}

fn parse(channel: &str, account: &str, conversation: &str, parent: Option<&str>) -> Result<ConversationRef, BadName> {
    ConversationRef::parse(&raw(channel, account, conversation, parent))
}

/// Covers: BD-B1, BD-R5, BR-34.
#[test]
fn dirty_reference_is_normalised() {
    let clean = parse("discord", "work", "123", Some("45")).expect("a reference");
    assert_eq!(parse("  DisCord ", " work\t", " 123 ", Some(" 45 ")), Ok(clean.clone()));
    assert_eq!(clean.channel.as_str(), "discord");
    let json = serde_json::to_string(&clean).expect("a reference serialises");
    assert_eq!(
        json,
        r#"{"channel":"discord","account_id":"work","conversation_id":"123","parent_conversation_id":"45"}"#
    );
    assert_eq!(serde_json::from_str::<ConversationRef>(&json).expect("what was written"), clean);
}

/// Covers: BD-B7.
#[test]
fn parent_that_is_the_conversation_itself_is_dropped() {
    let alone = parse("discord", "work", "123", None).expect("a reference");
    for parent in [Some("123"), Some(" 123 "), Some(""), Some("  ")] {
        assert_eq!(parse("discord", "work", "123", parent), Ok(alone.clone()), "{parent:?}");
    }
}

/// Covers: BD-B9, BR-34.
#[test]
fn addresses_and_empty_ids_are_refused() {
    for conversation in
        ["", "  ", "channel:123", "Thread: 5", "user:7", "DISCORD:9", ":4", "a\nb", &"x".repeat(257), "\u{7}"]
    {
        let refused = parse("discord", "work", conversation, None);
        assert_eq!(refused, Err(BadName { kind: "conversation_id" }), "{conversation:?}");
    }
    assert!(parse("discord", "work", "12", Some("channel:1")).is_err());
    for channel in ["", "dis cord", "a/b", &"x".repeat(65)] {
        assert_eq!(parse(channel, "work", "1", None), Err(BadName { kind: "channel" }), "{channel:?}");
    }
    for account in ["", "a/b", "a b", "é"] {
        assert_eq!(parse("discord", account, "1", None), Err(BadName { kind: "account_id" }), "{account:?}");
    }
    // Colons are part of the ids of some platforms, such as Matrix.
    for conversation in ["!room:matrix.example", "-100123:42", "spaces/AAA/threads/BBB"] {
        assert!(parse("matrix", "work", conversation, None).is_ok(), "{conversation:?}");
    }
}

/// Covers: BD-L18, S-44.
#[test]
fn keys_differ_by_tenant_channel_and_account() {
    let tenant = |name: &str| TenantId::parse(name).expect("a tenant");
    let at = |channel: &str, account: &str| parse(channel, account, "1/2", None).expect("a reference");
    let keys = [
        at("discord", "a").key(&tenant("t")),
        at("discord", "a").key(&tenant("u")),
        at("discord", "b").key(&tenant("t")),
        at("telegram", "a").key(&tenant("t")),
    ];
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(ConversationKey::parse(&key.to_string()), Ok(key.clone()));
        assert!(keys[..n].iter().all(|other| other != key && other.to_string() != key.to_string()), "{key}");
    }
    let with_parent = parse("discord", "a", "1/2", Some("9")).expect("a reference");
    assert_eq!(with_parent.key(&tenant("t")), keys[0]);
    assert!(ConversationKey::parse("t/discord/a").is_err() && ConversationKey::parse("t/d/a/").is_err());
}
