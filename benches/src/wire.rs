//! The subset of the `turnway.v1` messages that loads need: parsing a node's messages, and building a client's.
use serde::Deserialize;
use std::borrow::Cow;
use std::fmt::Write;

/// A node's message with every field that any load reads. Absent fields are `None`; other fields are skipped.
#[derive(Debug, Default, Deserialize)]
pub struct ServerMessage<'a> {
    /// Message type.
    #[serde(rename = "type", borrow)]
    pub kind: Cow<'a, str>,
    /// Request that the message answers.
    #[serde(borrow)]
    pub request_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub run_id: Option<Cow<'a, str>>,
    /// Position in the session's log.
    pub seq: Option<u64>,
    /// Epoch of the owner that wrote the fact.
    pub epoch: Option<u64>,
    /// Attempt of the run.
    pub attempt: Option<u32>,
    /// Bytes of text before this piece.
    pub offset: Option<u64>,
    /// Piece of text.
    #[serde(borrow)]
    pub text: Option<Cow<'a, str>>,
    /// `reasoning`, or absent for the answer itself.
    #[serde(borrow, rename = "kind")]
    pub delta_kind: Option<Cow<'a, str>>,
    /// Final status of a turn.
    #[serde(borrow)]
    pub status: Option<Cow<'a, str>>,
    /// Bytes of text that count.
    pub text_bytes: Option<u64>,
    /// Error code.
    #[serde(borrow)]
    pub code: Option<Cow<'a, str>>,
    /// Explanation of an error, or the message of a fact.
    #[serde(borrow)]
    pub message: Option<Message<'a>>,
    /// Name of an event.
    #[serde(borrow)]
    pub name: Option<Cow<'a, str>>,
    /// The cursor could not be used.
    #[serde(default)]
    pub reset: bool,
    /// Limits that `welcome` announces.
    pub limits: Option<Limits>,
}

/// The `message` field: an error's explanation is text, a fact's message an object.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Message<'a> {
    /// Explanation of an error.
    Text(#[serde(borrow)] Cow<'a, str>),
    /// Message of a fact, which is not read.
    Fact(serde::de::IgnoredAny),
}

/// Limits that a node announces.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Limits {
    /// Maximum bytes of one message.
    pub max_message_bytes: usize,
}

/// The unique last part of a run id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey([u8; 26]);

// === impl ServerMessage ===

impl<'a> ServerMessage<'a> {
    /// Parses a whole message; `None` if it is not JSON or has no type.
    pub fn parse(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns the key of the message's run.
    pub fn run(&self) -> Option<RunKey> {
        RunKey::of(self.run_id.as_deref()?)
    }

    /// Returns whether the message is a piece of the answer itself.
    pub fn is_text(&self) -> bool {
        self.kind == "delta" && self.delta_kind.as_deref().is_none_or(|of| of == "text")
    }

    /// Returns error code and explanation, as far as present.
    pub fn error_text(&self) -> String {
        let code = self.code.as_deref().unwrap_or("no code");
        match &self.message {
            Some(Message::Text(text)) => format!("{code}: {text}"),
            Some(Message::Fact(_)) | None => code.to_owned(),
        }
    }
}

/// Returns the type of a message without parsing all of it, because nodes write the type first; empty if not.
pub fn message_type(text: &str) -> &str {
    let rest = text.strip_prefix("{\"type\":\"");
    rest.and_then(|rest| rest.split_once('"')).map_or("", |(kind, _)| kind)
}

// === impl RunKey ===

impl RunKey {
    /// Returns the part after the session id; `None` if its length is not the protocol's.
    pub fn of(run_id: &str) -> Option<Self> {
        let (_, key) = run_id.rsplit_once('.')?;
        key.as_bytes().try_into().ok().map(Self)
    }

    /// Returns the key as it stands in run ids.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Builds `hello` with `subscribe` bodies to resume.
pub fn hello(user: &str, api_key: Option<&str>, resume: &str) -> String {
    let who = match api_key {
        Some(key) => format!("\"api_key\":{}", json_string(key)),
        None => format!("\"user_id\":{}", json_string(user)),
    };
    format!("{{\"type\":\"hello\",{who},\"resume\":[{resume}]}}")
}

/// An `agent_invoke` message in which all but the request id is prepared.
#[derive(Clone, Debug)]
pub struct Invoke {
    /// Text before the number.
    begin: String,
    /// Text behind the number.
    rest: String,
}

impl Invoke {
    /// Creates a message with this text for this agent and session. Request ids begin with the tag, because a
    /// node treats a message with a known id as a repeat.
    pub fn new(tag: &str, session: &str, agent: &str, text: &str) -> Self {
        Self {
            begin: format!("{{\"type\":\"agent_invoke\",\"request_id\":\"{tag}."),
            rest: format!(
                "\",\"session_id\":{},\"agent_id\":{},\"message\":{{\"role\":\"user\",\"content\":{}}}}}",
                json_string(session),
                json_string(agent),
                json_string(text)
            ),
        }
    }

    /// Returns the message with the number `n` in its request id.
    pub fn render(&self, n: u64) -> String {
        let mut text = String::with_capacity(self.begin.len() + 20 + self.rest.len());
        text.push_str(&self.begin);
        // Writing to a string cannot fail.
        let _ = write!(text, "{n}");
        text.push_str(&self.rest);
        text
    }

    /// Returns the number in a request id.
    pub fn number(request_id: &str) -> Option<u64> {
        request_id.rsplit_once('.')?.1.parse().ok()
    }
}

/// Encodes a JSON string.
pub fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns text of short words with this many bytes.
pub fn filler_text(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    for n in 0_usize.. {
        if text.len() >= bytes {
            break;
        }
        let _ = write!(text, "word{n} ");
    }
    text.truncate(bytes);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_far_as_it_matters() {
        let text = r#"{"type":"delta","ts":1,"run_id":"s.abcdefghijklmnopqrstuvwxyz","attempt":1,"offset":3,
            "text":"a\"b","more":{"x":[1,2]}}"#;
        let message = ServerMessage::parse(text).expect("a message");
        assert!(message.is_text() && message.run().is_some());
        assert_eq!((message.offset, message.text.as_deref()), (Some(3), Some("a\"b")));
        let error = ServerMessage::parse(r#"{"type":"error","code":"busy","message":"wait"}"#).expect("a message");
        assert_eq!(error.error_text(), "busy: wait");
        let fact = r#"{"type":"message","message":{"role":"user","content":"x"},"seq":2}"#;
        assert_eq!(ServerMessage::parse(fact).expect("a fact").seq, Some(2));
        assert!(ServerMessage::parse("{}").is_none() && ServerMessage::parse("nonsense").is_none());
    }

    #[test]
    fn the_kind_is_found_without_reading_on() {
        assert_eq!(message_type(r#"{"type":"done","x":1}"#), "done");
        assert_eq!(message_type(r#"{"ts":1,"type":"done"}"#), "");
    }

    #[test]
    fn what_is_said_is_json_whatever_it_holds() {
        let said = Invoke::new("tag", "s\"1", "echo", "a \"quoted\"\nline").render(7);
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!((&said["request_id"], &said["session_id"]), (&"tag.7".into(), &"s\"1".into()));
        assert_eq!(said["message"]["content"], "a \"quoted\"\nline");
        assert_eq!(Invoke::number("tag.7"), Some(7));
        let hello: serde_json::Value = serde_json::from_str(&hello("ann", None, "{}")).expect("JSON");
        assert_eq!((&hello["user_id"], hello["resume"].as_array().map(Vec::len)), (&"ann".into(), Some(1)));
        assert_eq!(filler_text(64).len(), 64);
    }
}
