//! What people ask, as it lies in a session's inbox or control lane.
use crate::id::{AgentId, ControlId, EventId, MessageId, RequestId, RunId, UserId};
use crate::protocol::history::History;
use crate::protocol::json::{self, Json, json_bytes, rounded};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt;

/// Who speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A person.
    #[default]
    User,
    /// An agent.
    Assistant,
    /// Instructions.
    System,
}

/// A text, or OpenAI content parts (ST-37). Prints as its size only (S-38).
#[derive(Clone, PartialEq, Eq)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// A list of content parts, passed on as they came.
    Parts(Vec<Value>),
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => to.serialize_str(text),
            Self::Parts(parts) => to.collect_seq(parts.iter().map(json::Exact)),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match json::stored(from)? {
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
    /// The text, or the texts of the parts joined.
    pub fn plain(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        }
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    #[serde(default)]
    pub role: Role,
    /// What.
    pub content: Content,
}

/// What an input does while a run of its session is open (ST-6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Hand it to the running agent; like `enqueue` where that does not take it.
    Steer,
    /// Wait for one's turn.
    #[default]
    Enqueue,
    /// Cancel what runs and start next.
    Interrupt,
    /// `interrupt`, and the cancelled turn is left out of the transcript.
    Rollback,
    /// Be refused with `busy`; decided inside accept.
    Reject,
}

impl Strategy {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Steer, Self::Enqueue, Self::Interrupt, Self::Rollback, Self::Reject];

    /// As on the wire.
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

/// One user input. It is accepted once it lies in the inbox, and leaves it with its terminal fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The turn it opens; derived, never chosen.
    pub run_id: RunId,
    /// The unit of de-duplication.
    pub message_id: MessageId,
    /// Echoed in answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// Who asks.
    pub user: UserId,
    /// The agent it is addressed to, by field or mention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// What is said.
    pub message: Message,
    /// What was said before, where the client keeps the conversation. It is the agent's alone: a fact
    /// has only its hash, and a link nothing. It lies here until the turn has ended, so every attempt
    /// is told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
    /// What it does while a run is open.
    #[serde(default)]
    pub strategy: Strategy,
    /// The input that it stands in for, if that still waits: then `strategy` is not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<RunId>,
    /// Kept as it came (RX-10).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Json>,
    /// W3C trace context of the asker (ST-42).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// Whether two inputs with one message id are the same: SHA-256 over message, history, agent, strategy,
/// metadata and what it replaces.
pub type BodyHash = [u8; 32];

impl Input {
    /// The hash that tells a repeat from a conflict (ST-35). Object keys are sorted, so it does not depend on how the client
    /// wrote them. Numbers count as the floats they are near, as in every release: a message that was accepted by an
    /// earlier one is known. Only a number that no float holds counts as its text.
    pub fn body_hash(&self) -> BodyHash {
        let content = match &self.message.content {
            Content::Text(text) => text.as_str().into(),
            Content::Parts(parts) => Value::Array(parts.iter().map(rounded).collect()),
        };
        let metadata = self.metadata.as_ref().map(|metadata| rounded(&metadata.0));
        let history = self.history.as_ref().map(|history| history.rounded());
        let message = json!({"content": content, "role": self.message.role});
        let body = json!([message, history, self.agent_id, self.strategy, metadata]);
        // What was read as JSON always serialises.
        let bytes = serde_json::to_vec(&body).unwrap_or_default();
        let hash = Sha256::new().chain_update(bytes);
        // As before there was such a thing: what was accepted then is still known.
        match &self.replaces {
            None => hash.finalize().into(),
            Some(run_id) => hash.chain_update(run_id.as_str()).finalize().into(),
        }
    }
    /// Bytes the `data` of its `user.message` takes, as JSON.
    pub fn fact_bytes(&self) -> usize {
        let names = (&self.message_id, &self.request_id, &self.user, &self.agent_id, self.strategy);
        // The names of the fields, and a hash of what was said before.
        256 + json_bytes(&names) + json_bytes(&self.message) + json_bytes(&self.metadata)
    }
    /// Bytes it takes in the inbox, for the limit.
    pub fn weight(&self) -> usize {
        let content = match &self.message.content {
            Content::Text(text) => text.len(),
            Content::Parts(_) => json_bytes(&self.message.content),
        };
        let metadata = self.metadata.as_ref().map_or(0, json_bytes);
        let history = self.history.as_ref().map_or(0, |history| history.reveal().len());
        256 + content + history + metadata
    }
}

/// One entry of the control lane: it reaches the owner past every waiting input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// The unit of de-duplication: `cancel:<run_id>`, or fresh for each request.
    pub id: ControlId,
    /// Who asks.
    pub user: UserId,
    /// Echoed in answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// What.
    pub what: Ask,
}

/// What a control entry asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// Create the session, or open it again (SR-H1).
    Open {
        /// Its members; empty: the default agent.
        agents: Vec<AgentId>,
        /// Which of them is active; none: the first.
        active: Option<AgentId>,
    },
    /// Cancel what speaks, end what waits, close (SR-H2).
    Close,
    /// Let another member answer where nobody is addressed (SR-S5).
    Switch {
        /// Which.
        agent_id: AgentId,
        /// Why, in their words.
        reason: Option<String>,
    },
    /// Make an agent a member (SR-E1).
    Invite {
        /// Which.
        agent_id: AgentId,
        /// Why, in their words.
        reason: Option<String>,
        /// It answers from then on where nobody is addressed (SR-E6).
        activate: bool,
    },
    /// Make a member leave (SR-D1).
    Remove {
        /// Which.
        agent_id: AgentId,
        /// Why, in their words.
        reason: Option<String>,
    },
    /// Cancel a run, or with none whatever is in flight (SR-C1).
    Cancel {
        /// Which.
        run_id: Option<RunId>,
    },
    /// Let another agent answer, as one has asked for, or not (SR-F4).
    Handover {
        /// Which handover.
        handover_id: EventId,
        /// Whether they agree.
        confirm: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{SessionId, SessionKey, TenantId};

    fn input(text: &str, history: Option<&str>) -> Input {
        let session = SessionId::parse("s1").expect("a name");
        let key = SessionKey { tenant: TenantId::default_tenant(), session };
        let (user, message_id) = (UserId::local(), MessageId::parse("m1").expect("a name"));
        Input {
            run_id: RunId::derive(&key, &user, &message_id),
            message_id,
            request_id: None,
            user,
            agent_id: None,
            message: Message { role: Role::User, content: Content::Text(text.to_owned()) },
            history: history.map(|earlier| History::of(&[earlier.into()]).expect("short")),
            strategy: Strategy::Enqueue,
            replaces: None,
            metadata: None,
            traceparent: None,
        }
    }

    /// Covers: ST-35, MP-G3, S-48.
    #[test]
    fn what_was_said_before_is_part_of_the_body() {
        let plain = input("hi", None);
        for other in [input("ho", None), input("hi", Some("a")), input("hi", Some("b"))] {
            assert_ne!(plain.body_hash(), other.body_hash());
        }
        assert_ne!(input("hi", Some("a")).body_hash(), input("hi", Some("b")).body_hash());
        assert_eq!(input("hi", Some("a")).body_hash(), input("hi", Some("a")).body_hash());
        let instead = Input { replaces: Some(plain.run_id.clone()), ..plain.clone() };
        assert_ne!(plain.body_hash(), instead.body_hash());
        // Brackets and quotes.
        assert_eq!(input("hi", Some("abc")).weight(), plain.weight() + 7);
        for kept in [plain, input("hi", Some("a"))] {
            let json = serde_json::to_string(&kept).expect("serialises");
            assert_eq!(serde_json::from_str::<Input>(&json).ok(), Some(kept));
        }
    }

    /// Hashes that the release before this rule has stored: a message of it is known, however its numbers are written now.
    ///
    /// Covers: ST-35, issue 23 A4.
    #[test]
    fn a_hash_of_an_earlier_release_is_kept() {
        let read = |text: &str| crate::protocol::json::read(text).expect("JSON");
        let with = |number: &str| {
            let part = format!(r#"{{"type":"x","n":{number},"a":["\u00e9",null,true]}}"#);
            let earlier = format!(r#"{{"role":"user","content":"hi","n":{number}}}"#);
            let content = Content::Parts(vec![read(&part)]);
            let history = Some(History::of(&[read(&earlier)]).expect("short"));
            let metadata = Some(Json(read(&format!(r#"{{"z":{number},"a":1}}"#))));
            Input { message: Message { role: Role::User, content }, history, metadata, ..input("hi", None) }
        };
        for number in NUMBERS {
            let hash = with(number).body_hash();
            assert_eq!(hash, as_before(number), "{number}");
        }
        assert_eq!(with("1e3").body_hash(), with("1000.0").body_hash());
        // No release before has taken these.
        assert_ne!(with("1e400").body_hash(), with("2e400").body_hash());
    }

    const NUMBERS: [&str; 8] = [
        "7",
        "-0",
        "1.0",
        "1.50",
        "1e3",
        "123456789012345678901234567890",
        "0.12345678901234567890123",
        "-5",
    ];

    /// The hash as releases up to 0.1 made it: of the value that `serde_json` reads and writes.
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
