//! What is read of a node's messages, and what is said to it: no more than a load needs.
use serde::Deserialize;
use std::borrow::Cow;
use std::fmt::Write;

/// Every field any load looks at. What is not there is absent; the rest of a message is skipped.
#[derive(Debug, Default, Deserialize)]
pub struct Heard<'a> {
    /// What kind of message.
    #[serde(rename = "type", borrow)]
    pub kind: Cow<'a, str>,
    /// The request it answers.
    #[serde(borrow)]
    pub request_id: Option<Cow<'a, str>>,
    /// The turn it belongs to.
    #[serde(borrow)]
    pub run_id: Option<Cow<'a, str>>,
    /// Its place in the session's log.
    pub seq: Option<u64>,
    /// The owner that wrote it.
    pub epoch: Option<u64>,
    /// Which try of the turn.
    pub attempt: Option<u32>,
    /// Bytes of text before this one.
    pub offset: Option<u64>,
    /// A piece of text.
    #[serde(borrow)]
    pub text: Option<Cow<'a, str>>,
    /// `reasoning`, or absent.
    #[serde(borrow, rename = "kind")]
    pub of: Option<Cow<'a, str>>,
    /// How a turn ended.
    #[serde(borrow)]
    pub status: Option<Cow<'a, str>>,
    /// Bytes of text that count.
    pub text_bytes: Option<u64>,
    /// What went wrong.
    #[serde(borrow)]
    pub code: Option<Cow<'a, str>>,
    /// The same in words.
    #[serde(borrow)]
    pub message: Option<Message<'a>>,
    /// What an event is called.
    #[serde(borrow)]
    pub name: Option<Cow<'a, str>>,
    /// A cursor was of no use.
    #[serde(default)]
    pub reset: bool,
    /// Of `welcome`.
    pub limits: Option<Limits>,
}

/// An error's explanation is a text, a fact's message an object.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Message<'a> {
    /// An explanation.
    Text(#[serde(borrow)] Cow<'a, str>),
    /// What somebody said.
    Said(serde::de::IgnoredAny),
}

/// What a node takes.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Limits {
    /// Bytes of one message.
    pub max_message_bytes: usize,
}

/// The distinguishing end of a run's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey([u8; 26]);

// === impl Heard ===

impl<'a> Heard<'a> {
    /// Reads a whole message; none if it is not JSON, or lacks a type.
    pub fn parse(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The turn it belongs to.
    pub fn run(&self) -> Option<RunKey> {
        RunKey::of(self.run_id.as_deref()?)
    }

    /// A piece of the answer itself.
    pub fn is_text(&self) -> bool {
        self.kind == "delta" && self.of.as_deref().is_none_or(|of| of == "text")
    }

    /// Why not, as far as it says.
    pub fn why(&self) -> String {
        let code = self.code.as_deref().unwrap_or("no code");
        match &self.message {
            Some(Message::Text(text)) => format!("{code}: {text}"),
            Some(Message::Said(_)) | None => code.to_owned(),
        }
    }
}

/// A message's type without reading all of it; nodes write it first. Empty where they do not.
pub fn kind(text: &str) -> &str {
    let rest = text.strip_prefix("{\"type\":\"");
    rest.and_then(|rest| rest.split_once('"')).map_or("", |(kind, _)| kind)
}

// === impl RunKey ===

impl RunKey {
    /// The part after the session; none if it is not as long as the protocol says.
    pub fn of(run_id: &str) -> Option<Self> {
        let (_, key) = run_id.rsplit_once('.')?;
        key.as_bytes().try_into().ok().map(Self)
    }

    /// As it stands in ids.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// `hello`, with `subscribe` bodies to resume.
pub fn hello(user: &str, api_key: Option<&str>, resume: &str) -> String {
    let who = match api_key {
        Some(key) => format!("\"api_key\":{}", quoted(key)),
        None => format!("\"user_id\":{}", quoted(user)),
    };
    format!("{{\"type\":\"hello\",{who},\"resume\":[{resume}]}}")
}

/// `agent_invoke`, with everything but its request written beforehand.
#[derive(Clone, Debug)]
pub struct Invoke {
    /// Up to the number.
    begin: String,
    /// From behind it.
    rest: String,
}

impl Invoke {
    /// This text for this agent, in this session. Its request ids begin with the tag: a node takes what
    /// has an id it knows for a repeat.
    pub fn new(tag: &str, session: &str, agent: &str, text: &str) -> Self {
        Self {
            begin: format!("{{\"type\":\"agent_invoke\",\"request_id\":\"{tag}."),
            rest: format!(
                "\",\"session_id\":{},\"agent_id\":{},\"message\":{{\"role\":\"user\",\"content\":{}}}}}",
                quoted(session),
                quoted(agent),
                quoted(text)
            ),
        }
    }

    /// The n-th time it is said.
    pub fn say(&self, n: u64) -> String {
        let mut text = String::with_capacity(self.begin.len() + 20 + self.rest.len());
        text.push_str(&self.begin);
        // Writing into memory does not fail.
        let _ = write!(text, "{n}");
        text.push_str(&self.rest);
        text
    }

    /// The number under which something was said, from its request id.
    pub fn number(request_id: &str) -> Option<u64> {
        request_id.rsplit_once('.')?.1.parse().ok()
    }
}

/// A JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// So many bytes of short words.
pub fn words(bytes: usize) -> String {
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
        let heard = Heard::parse(text).expect("a message");
        assert!(heard.is_text() && heard.run().is_some());
        assert_eq!((heard.offset, heard.text.as_deref()), (Some(3), Some("a\"b")));
        let error = Heard::parse(r#"{"type":"error","code":"busy","message":"wait"}"#).expect("a message");
        assert_eq!(error.why(), "busy: wait");
        let fact = r#"{"type":"message","message":{"role":"user","content":"x"},"seq":2}"#;
        assert_eq!(Heard::parse(fact).expect("a fact").seq, Some(2));
        assert!(Heard::parse("{}").is_none() && Heard::parse("nonsense").is_none());
    }

    #[test]
    fn the_kind_is_found_without_reading_on() {
        assert_eq!(kind(r#"{"type":"done","x":1}"#), "done");
        assert_eq!(kind(r#"{"ts":1,"type":"done"}"#), "");
    }

    #[test]
    fn what_is_said_is_json_whatever_it_holds() {
        let said = Invoke::new("tag", "s\"1", "echo", "a \"quoted\"\nline").say(7);
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!((&said["request_id"], &said["session_id"]), (&"tag.7".into(), &"s\"1".into()));
        assert_eq!(said["message"]["content"], "a \"quoted\"\nline");
        assert_eq!(Invoke::number("tag.7"), Some(7));
        let hello: serde_json::Value = serde_json::from_str(&hello("ann", None, "{}")).expect("JSON");
        assert_eq!((&hello["user_id"], hello["resume"].as_array().map(Vec::len)), (&"ann".into(), Some(1)));
        assert_eq!(words(64).len(), 64);
    }
}
