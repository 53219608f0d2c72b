//! Inputs and control requests of users, as stored in a session's inbox and control lane.
use crate::id::{AgentId, ControlId, DeliveryId, EventId, MessageId, RequestId, RunId, UserId};
use crate::planted::{Planted, planted};
use crate::private::Private;
use crate::protocol::binding::{BindingChange, BindingEnd};
use crate::protocol::delivery::InputOrigin;
use crate::protocol::delivery::{ConversationCreation, MessageSend};
use crate::protocol::history::History;
use crate::protocol::json::{self, Json, json_bytes, with_rounded_numbers};
use crate::protocol::model_call::{ModelCallEnd, ModelCallStart};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt;

/// The speaker of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    #[default]
    User,
    Assistant,
    System,
}

/// A text, or OpenAI content parts (ST-37). `Debug` prints the size only (S-38).
#[derive(Clone, PartialEq, Eq)]
pub enum Content {
    Text(String),
    /// A list of content parts, passed on unchanged.
    Parts(Vec<Value>),
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => to.serialize_str(text),
            Self::Parts(parts) => to.collect_seq(parts.iter().map(json::ExactJson)),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match json::deserialize_stored(from)? {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(parts) => Ok(Self::Parts(parts)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                Err(D::Error::custom("neither a text nor content parts"))
            }
        }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "<{} bytes>", text.len()),
            Self::Parts(parts) => write!(f, "<{} parts>", parts.len()),
        }
    }
}

impl Content {
    /// Returns the text, or the joined texts of the parts.
    pub fn plain_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts.iter().filter_map(text_of).collect(),
        }
    }

    /// Returns whether the content has a part that is no text, such as a picture.
    pub fn has_other_than_text(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Parts(parts) => parts.iter().any(|part| text_of(part).is_none()),
        }
    }

    /// Joins the contents of several messages: their texts in lines, and after those the parts from the first on that is no
    /// text.
    pub fn joined<'a>(contents: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut lines: Vec<String> = Vec::new();
        let mut joined: Vec<Value> = Vec::new();
        for content in contents {
            let parts = match content {
                Self::Text(text) => {
                    lines.push(text.clone());
                    continue;
                }
                Self::Parts(parts) => parts,
            };
            let texts = parts.iter().map_while(text_of);
            let text_count = texts.clone().count();
            if text_count > 0 {
                lines.push(texts.collect());
            }
            let rest = &parts[text_count..];
            if !rest.is_empty() {
                joined.extend(text_part(&mut lines));
                joined.extend_from_slice(rest);
            }
        }
        if joined.is_empty() {
            return Self::Text(lines.join("\n"));
        }
        joined.extend(text_part(&mut lines));
        Self::Parts(joined)
    }
}

/// Returns the text of a content part; `None` for a part that is no text.
fn text_of(part: &Value) -> Option<&str> {
    part.get("text")?.as_str()
}

/// Returns a content part with these lines, and empties them; `None` without a line.
fn text_part(lines: &mut Vec<String>) -> Option<Value> {
    let lines = std::mem::take(lines);
    (!lines.is_empty()).then(|| json!({"type": "text", "text": lines.join("\n")}))
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    #[serde(default)]
    pub role: Role,
    pub content: Content,
}

/// The effect of an input while a run of its session is open (ST-6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Hand the input to the running agent; like `enqueue` if that agent does not take it.
    Steer,
    /// Wait for the session's earlier inputs.
    #[default]
    Enqueue,
    /// Cancel the open run and start next.
    Interrupt,
    /// Like `interrupt`, and the cancelled turn is left out of the transcript.
    Rollback,
    /// Refuse the input with `busy`; decided inside accept.
    Reject,
}

impl Strategy {
    /// All strategies, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Steer, Self::Enqueue, Self::Interrupt, Self::Rollback, Self::Reject];

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Steer => "steer",
            Self::Enqueue => "enqueue",
            Self::Interrupt => "interrupt",
            Self::Rollback => "rollback",
            Self::Reject => "reject",
        }
    }
}

/// One user input. It is accepted once it is stored in the inbox, and is removed together with its terminal fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The turn that the input opens; derived, never chosen.
    pub run_id: RunId,
    /// The unit of de-duplication.
    pub message_id: MessageId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    pub user: UserId,
    /// The agent it is addressed to, by field or mention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    pub message: Message,
    /// Earlier messages, if the client keeps the conversation. Only the agent is sent them: a fact has only their hash,
    /// and links get nothing. They stay in the inbox until the turn has ended, so every attempt is sent them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
    #[serde(default)]
    pub strategy: Strategy,
    /// The input that this one replaces, if that input still waits; `strategy` is then ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<RunId>,
    /// Passed on unchanged (RX-10).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Json>,
    /// The conversation that the message came from, if an adapter brought it. The answer goes there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<InputOrigin>>,
    /// W3C trace context of the requester (ST-42).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// A hash that tells whether two inputs with one message id are the same: SHA-256 over message, history, agent,
/// strategy, metadata and the replaced run.
pub type BodyHash = [u8; 32];

impl Input {
    /// Returns the hash that distinguishes a repeat from a conflict (ST-35). Object keys are sorted, so the hash does
    /// not depend on their order in the client's JSON. Numbers are hashed as their nearest floats, as in every
    /// release, so a message accepted by an earlier release is recognised. Only a number that no float can hold is
    /// hashed as text.
    ///
    /// A platform may send a message again with another name of its sender, or after an edit. It is the same message, which
    /// its id alone tells. Presses of buttons that exclude each other have one id; the platform's id of the press tells
    /// them apart.
    pub fn body_hash(&self) -> BodyHash {
        if let Some(origin) = &self.origin {
            let press = origin.decision.as_ref().filter(|_| !planted(Planted::EveryPressCounts));
            let press = press.map_or("", |decision| decision.press_id.as_str());
            return Sha256::new().chain_update(self.message_id.as_str()).chain_update(press).finalize().into();
        }
        let content = match &self.message.content {
            Content::Text(text) => text.as_str().into(),
            Content::Parts(parts) => Value::Array(parts.iter().map(with_rounded_numbers).collect()),
        };
        let metadata = self.metadata.as_ref().map(|metadata| with_rounded_numbers(&metadata.0));
        let history = self.history.as_ref().map(|history| history.with_rounded_numbers());
        let message = json!({"content": content, "role": self.message.role});
        let body = json!([message, history, self.agent_id, self.strategy, metadata]);
        // A value that was read as JSON always serialises.
        let bytes = serde_json::to_vec(&body).unwrap_or_default();
        let hash = Sha256::new().chain_update(bytes);
        // Inputs that replace nothing hash as before `replaces` existed, so inputs accepted then are still
        // recognised.
        match &self.replaces {
            None => hash.finalize().into(),
            Some(run_id) => hash.chain_update(run_id.as_str()).finalize().into(),
        }
    }
    /// Returns whether the input is a person's edit of a message that came from a conversation.
    pub fn is_edit(&self) -> bool {
        self.origin.is_some() && self.replaces.is_some()
    }
    /// Returns whether the input is the press of a button.
    pub fn is_decision(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.decision.is_some())
    }
    /// Returns the bytes that the `data` of the input's `user.message` fact takes, as JSON.
    pub fn fact_bytes(&self) -> usize {
        let names = (&self.message_id, &self.request_id, &self.user, &self.agent_id, self.strategy);
        // 256: the names of the fields, and the hash of the earlier messages.
        256 + json_bytes(&names) + json_bytes(&self.message) + json_bytes(&self.metadata) + json_bytes(&self.origin)
    }
    /// Returns the bytes that the input takes in the inbox, for the limit.
    pub fn weight(&self) -> usize {
        let content = match &self.message.content {
            Content::Text(text) => text.len(),
            Content::Parts(_) => json_bytes(&self.message.content),
        };
        let metadata = self.metadata.as_ref().map_or(0, json_bytes);
        let history = self.history.as_ref().map_or(0, History::weight);
        let origin = self.origin.as_ref().map_or(0, json_bytes);
        256 + content + history + metadata + origin
    }
}

/// One entry of the control lane, which reaches the owner ahead of every waiting input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlEntry {
    /// The unit of de-duplication: `cancel:<run_id>`, or unique for each request.
    pub id: ControlId,
    pub user: UserId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    pub what: ControlRequest,
}

/// The request of a control entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum ControlRequest {
    /// Create the session, or open it again (SR-H1).
    Open {
        /// The members; empty: the default agent.
        agents: Vec<AgentId>,
        /// The active member; `None`: the first.
        active: Option<AgentId>,
    },
    /// Cancel the open run, end waiting inputs, and close the session (SR-H2).
    Close,
    /// Make another member the active agent, which answers inputs that address no agent (SR-S5).
    Switch {
        agent_id: AgentId,
        /// A reason in the user's words.
        reason: Option<String>,
    },
    /// Make an agent a member (SR-E1).
    Invite {
        agent_id: AgentId,
        /// A reason in the user's words.
        reason: Option<String>,
        /// Also make the agent active: it answers inputs that address no agent (SR-E6).
        activate: bool,
    },
    /// Remove a member (SR-D1).
    Remove {
        agent_id: AgentId,
        /// A reason in the user's words.
        reason: Option<String>,
    },
    /// Cancel a run, or with `None` the running turn, or else the first waiting one (SR-C1).
    Cancel { run_id: Option<RunId> },
    /// Confirm or refuse a handover that an agent has requested (SR-F4).
    Handover { handover_id: EventId, confirm: bool },
    /// Give the session a label, at most [`crate::limits::ANNOTATION_CHARACTERS_MAX`] characters; empty: none.
    Label { label: Private<String> },
    /// Record that a conversation was bound to the session. From a node, never from a client.
    RecordBinding { bound: Box<BindingChange> },
    /// Record that a binding of the session has ended. From a node, never from a client.
    RecordBindingEnd {
        ended: Box<BindingEnd>,
        /// The conversation is to get a last word, if its channel has one.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        farewell: bool,
    },
    /// Send a held or failed delivery again, or drop it.
    SettleDelivery { delivery_id: DeliveryId, again: bool },
    /// Send a text to a conversation. The node of the client has asked the router for its place.
    SendMessage { send: Box<MessageSend> },
    /// Record that a call of a model begins. From a node, never from a client.
    StartModelCall { start: Box<ModelCallStart> },
    /// Record that a call of a model has ended. From a node, never from a client.
    EndModelCall { end: Box<ModelCallEnd> },
    /// Have the platform make a conversation, and bind it to the session.
    CreateConversation { creation: Box<ConversationCreation> },
}

impl ControlRequest {
    /// Returns the run that a cancel names.
    pub fn cancelled_run(&self) -> Option<&RunId> {
        if let Self::Cancel { run_id } = self { run_id.as_ref() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{BlobHash, SessionId, SessionKey, TenantId};

    fn input(text: &str, history: Option<&str>) -> Input {
        let session = SessionId::parse("s1").expect("a name");
        let key = SessionKey { tenant: TenantId::default_tenant(), session };
        let user = UserId::local();
        let message_id = MessageId::parse("m1").expect("a name");
        Input {
            run_id: RunId::derive(&key, &user, &message_id),
            message_id,
            request_id: None,
            user,
            agent_id: None,
            message: Message { role: Role::User, content: Content::Text(text.to_owned()) },
            history: history.map(|earlier| History::from_messages(&[earlier.into()]).expect("short")),
            strategy: Strategy::Enqueue,
            replaces: None,
            metadata: None,
            origin: None,
            traceparent: None,
        }
    }

    /// Covers: ST-35, MP-G3, S-48.
    #[test]
    fn body_hash_includes_the_history() {
        let plain = input("hi", None);
        for other in [input("ho", None), input("hi", Some("a")), input("hi", Some("b"))] {
            assert_ne!(plain.body_hash(), other.body_hash());
        }
        assert_ne!(input("hi", Some("a")).body_hash(), input("hi", Some("b")).body_hash());
        assert_eq!(input("hi", Some("a")).body_hash(), input("hi", Some("a")).body_hash());
        let in_file = |content: &str| {
            let history = Some(History::File { sha256: BlobHash::of(content.as_bytes()) });
            Input { history, ..plain.clone() }
        };
        assert_ne!(in_file("a").body_hash(), in_file("b").body_hash());
        assert_ne!(in_file("a").body_hash(), plain.body_hash());
        let instead = Input { replaces: Some(plain.run_id.clone()), ..plain.clone() };
        assert_ne!(plain.body_hash(), instead.body_hash());
        // Brackets and quotes take 7 bytes more.
        assert_eq!(input("hi", Some("abc")).weight(), plain.weight() + 7);
        for kept in [in_file("a"), plain.clone(), input("hi", Some("a"))] {
            let json = serde_json::to_string(&kept).expect("serialises");
            assert_eq!(serde_json::from_str::<Input>(&json).ok(), Some(kept));
        }
    }

    /// A store that has accepted one of two presses refuses the other, and recognises the first one's repetition.
    #[test]
    fn presses_of_one_message_have_different_hashes() {
        let pressed = |press: &str| {
            let decision = json!({"delivery_id": "d".repeat(26), "button_id": "yes", "press_id": press});
            let origin = json!({
                "conversation": {"channel": "rooms", "account_id": "main", "conversation_id": "lobby"},
                "message_id": "x1", "sender": {"id": "ann"}, "text_limit": {"max": 64, "unit": "utf16"},
                "decision": decision,
            });
            Input { origin: serde_json::from_value(origin).expect("an origin"), ..input("Yes", None) }
        };
        assert_eq!(pressed("p1").message_id, pressed("p2").message_id);
        assert_ne!(pressed("p1").body_hash(), pressed("p2").body_hash());
        assert_eq!(pressed("p1").body_hash(), pressed("p1").body_hash());
    }

    /// Hashes stored by the release before this rule: its messages are recognised, however their numbers are written
    /// now.
    ///
    /// Covers: ST-35.
    #[test]
    fn body_hash_matches_the_earlier_release() {
        let read = |text: &str| crate::protocol::json::read(text).expect("JSON");
        let with = |number: &str| {
            let part = format!(r#"{{"type":"x","n":{number},"a":["\u00e9",null,true]}}"#);
            let earlier = format!(r#"{{"role":"user","content":"hi","n":{number}}}"#);
            let content = Content::Parts(vec![read(&part)]);
            let history = Some(History::from_messages(&[read(&earlier)]).expect("short"));
            let metadata = Some(Json(read(&format!(r#"{{"z":{number},"a":1}}"#))));
            Input { message: Message { role: Role::User, content }, history, metadata, ..input("hi", None) }
        };
        for number in NUMBERS {
            let hash = with(number).body_hash();
            assert_eq!(hash, as_before(number), "{number}");
        }
        assert_eq!(with("1e3").body_hash(), with("1000.0").body_hash());
        // No earlier release accepted these numbers.
        assert_ne!(with("1e400").body_hash(), with("2e400").body_hash());
    }

    const NUMBERS: [&str; 8] =
        ["7", "-0", "1.0", "1.50", "1e3", "123456789012345678901234567890", "0.12345678901234567890123", "-5"];

    /// Returns the hash as releases up to 0.1 computed it: over the value that `serde_json` reads and writes.
    fn as_before(number: &str) -> BodyHash {
        let value = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
        let part = value(format!(r#"{{"type":"x","n":{number},"a":["\u00e9",null,true]}}"#));
        let earlier = value(format!(r#"{{"role":"user","content":"hi","n":{number}}}"#));
        let metadata = value(format!(r#"{{"z":{number},"a":1}}"#));
        let message = json!({"role": "user", "content": [part]});
        let history = serde_json::to_string(&[earlier]).expect("JSON");
        let body = serde_json::to_value((message, history, Value::Null, "enqueue", metadata)).expect("JSON");
        Sha256::digest(serde_json::to_vec(&body).expect("JSON")).into()
    }
}
