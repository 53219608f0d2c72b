//! The addressee and the content of a user input.
use crate::channel::json::fields::{self, Fields};
use crate::channel::json::malformed::MalformedReason;
use serde_json::Value;
use turnway_core::id::AgentId;
use turnway_core::protocol::input::Content;

/// Returns the addressed agent: the field `agent_id`, else a mention in the metadata, else the field
/// `mentioned_agent_id`, else a leading `@agent_id` (LN-SR10). The text itself stays unchanged.
pub(super) fn parse_addressee(
    fields: &mut Fields,
    metadata: Option<&Value>,
    content: &Content,
) -> Result<Option<AgentId>, MalformedReason> {
    let named = fields::name(fields, "agent_id", AgentId::parse)?;
    let in_metadata = metadata_mention(metadata)?;
    let in_payload = fields::name(fields, "mentioned_agent_id", AgentId::parse)?;
    Ok(named.or(in_metadata).or(in_payload).or_else(|| parse_leading_mention(first_text(content))))
}

/// Returns the mention in the metadata. Metadata belongs to the client; its agent id has a meaning here only if the
/// metadata's subtype is `MENTION`.
fn metadata_mention(metadata: Option<&Value>) -> Result<Option<AgentId>, MalformedReason> {
    const LABEL: &str = "metadata.mentioned_agent_id";
    let Some(metadata) = metadata else { return Ok(None) };
    if metadata.get("subtype").and_then(Value::as_str) != Some("MENTION") {
        return Ok(None);
    }
    match metadata.get("mentioned_agent_id") {
        None | Some(Value::Null) => Ok(None),
        Some(id) => {
            let id = id.as_str().ok_or(MalformedReason::InvalidField(LABEL))?;
            AgentId::parse(id).map(Some).map_err(|_| MalformedReason::InvalidField(LABEL))
        }
    }
}

/// Returns the text that a content begins with: that of its first part, if it has parts.
fn first_text(content: &Content) -> &str {
    match content {
        Content::Text(text) => text,
        Content::Parts(parts) => {
            parts.first().and_then(|part| part.get("text")).and_then(Value::as_str).unwrap_or_default()
        }
    }
}

/// Parses `@id`, followed by white space or the end; anything else is plain text.
fn parse_leading_mention(text: &str) -> Option<AgentId> {
    let rest = text.strip_prefix('@')?;
    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    AgentId::parse(&rest[..end]).ok()
}

/// Parses `message.content`: a text, or OpenAI content parts, each an object with a `type`.
pub(in crate::channel) fn parse_content(value: Value) -> Result<Content, MalformedReason> {
    const LABEL: &str = "message.content";
    match value {
        Value::String(text) if text.is_empty() => Err(MalformedReason::EmptyContent),
        Value::String(text) => Ok(Content::Text(text)),
        Value::Array(parts) => {
            let mut is_nonempty = false;
            for part in &parts {
                is_nonempty |= has_content(part).ok_or(MalformedReason::InvalidField(LABEL))?;
            }
            if is_nonempty { Ok(Content::Parts(parts)) } else { Err(MalformedReason::EmptyContent) }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(MalformedReason::InvalidField(LABEL)),
    }
}

/// Returns whether a part is more than an empty text; `None` if the value is not a content part.
fn has_content(part: &Value) -> Option<bool> {
    match part.get("type")?.as_str()? {
        "text" => Some(!part.get("text")?.as_str()?.is_empty()),
        _ => Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Covers: LN-SR10, SR-B1, SR-B2.
    #[test]
    fn mention_is_recognised_only_at_the_start() {
        let long = format!("@{} hi", "a".repeat(65));
        let cases = [
            ("@bob hi", Some("bob")),
            ("@bob", Some("bob")),
            ("@bob\nhi", Some("bob")),
            ("@a-b_C9 hi", Some("a-b_C9")),
            ("hi @bob", None),
            (" @bob hi", None),
            ("@bob, hi", None),
            ("@bob.com hi", None),
            ("@ hi", None),
            ("@", None),
            ("@@bob hi", None),
            ("@é hi", None),
            (long.as_str(), None),
        ];
        for (text, agent) in cases {
            let found = parse_leading_mention(text);
            assert_eq!(found.as_ref().map(AgentId::as_str), agent, "{text}");
        }
    }

    /// Covers: LN-SR10, SR-B1, SR-B2.
    #[test]
    fn first_of_four_addressing_forms_wins() {
        let metadata = json!({"subtype": "MENTION", "mentioned_agent_id": "meta"});
        let plain = json!({"mentioned_agent_id": "meta"});
        let text = Content::Text("@text hi".to_owned());
        let parts = Content::Parts(vec![json!({"type": "text", "text": "@part hi"})]);
        let cases = [
            (json!({"agent_id": "field", "mentioned_agent_id": "pay"}), Some(&metadata), &text, "field"),
            (json!({"mentioned_agent_id": "pay"}), Some(&metadata), &text, "meta"),
            (json!({"mentioned_agent_id": "pay"}), Some(&plain), &text, "pay"),
            (json!({"agent_id": null}), Some(&plain), &text, "text"),
            (json!({}), None, &parts, "part"),
        ];
        for (fields, metadata, content, expected) in cases {
            let Value::Object(mut fields) = fields else { panic!("an object") };
            let agent = parse_addressee(&mut fields, metadata, content).expect("well-formed");
            assert_eq!(agent.as_ref().map(AgentId::as_str), Some(expected));
        }
        let bad = json!({"subtype": "MENTION", "mentioned_agent_id": "a b"});
        let refused = parse_addressee(&mut Fields::new(), Some(&bad), &text);
        assert_eq!(refused, Err(MalformedReason::InvalidField("metadata.mentioned_agent_id")));
    }

    /// Covers: ST-37.
    #[test]
    fn content_must_be_nonempty_text_or_parts() {
        let good = [json!("hi"), json!(" "), json!([{"type": "image_url", "image_url": {"url": "u"}}])];
        for value in good {
            assert!(parse_content(value.clone()).is_ok(), "{value}");
        }
        let empty = [json!(""), json!([]), json!([{"type": "text", "text": ""}])];
        for value in empty {
            assert_eq!(parse_content(value.clone()), Err(MalformedReason::EmptyContent), "{value}");
        }
        let bad = [json!(5), json!({}), json!(["hi"]), json!([{}]), json!([{"type": "text"}]), json!([{"type": 1}])];
        for value in bad {
            assert_eq!(parse_content(value.clone()), Err(MalformedReason::InvalidField("message.content")), "{value}");
        }
    }
}
