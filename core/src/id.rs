//! Typed ids and names, so that two kinds cannot be mixed up.
mod blob;
mod qualified;

pub use blob::{BlobHash, BodyId};
pub use qualified::{QualifiedAction, QualifiedRun, QualifiedSession};

use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};
use std::cmp::Ordering;
use std::fmt;
use std::sync::{Arc, LazyLock};

macro_rules! define_number {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);
    };
}
define_number!(/// A process, from its start to its end, and the address of its mailbox. 128 random bits.
    NodeId, u128);
define_number!(/// A lease of a node, from grant to loss; 128 random bits, never reused ("incarnation").
    LeaseId, u128);
define_number!(/// An accepted connection, counted per process; a client that reconnects gets a new link.
    LinkId, u64);
define_number!(/// Position of a fact in its session's log: 1, 2, 3, … without gaps; 0 is before the first.
    Seq, u64);
define_number!(/// A position in a session's inbox or control lane: `max(previous + 1, store clock in ms)`.
    InboxPosition, u64);
define_number!(/// A generation of ownership; a hybrid of a counter and the store's clock; below 2^53.
    Epoch, u64);
define_number!(/// 128 random bits chosen by the claimer, so that no two claims are the same.
    Nonce, u128);
define_number!(/// Number of a change in one process's listening (listen or unlisten).
    ListenStamp, u64);
define_number!(/// Number of changes to a session's set of listeners.
    ListenersVersion, u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The error for a name that does not have the form of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadName {
    /// The kind of name, for the error message.
    pub kind: &'static str,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a valid {}", self.kind)
    }
}

impl std::error::Error for BadName {}

/// Returns whether the text matches `[A-Za-z0-9_-]{1,64}`, which is safe in keys and channel names (S-44).
fn is_key_safe(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Returns whether the text is 1 to 256 bytes without control characters: names that users choose.
fn is_printable_label(text: &str) -> bool {
    (1..=256).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// Returns whether the text is 1 to 128 visible ASCII characters, which may be put into a header unchanged.
fn is_header_safe(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

/// Returns whether the text matches `[A-Za-z0-9_.-]{1,64}`: plain, with dots between its parts.
fn is_dotted_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-' || b == b'.')
}

/// Returns whether the text matches `[a-z0-9_.-]{1,64}`.
fn is_lower_case_name(text: &str) -> bool {
    is_dotted_name(text) && !text.bytes().any(|b| b.is_ascii_uppercase())
}

/// Returns whether the text is a label of at most 256 bytes without space at its ends.
fn is_trimmed_label(text: &str) -> bool {
    is_printable_label(text) && text.trim() == text
}

/// Returns whether the text is 26 letters of base32.
fn is_digest(text: &str) -> bool {
    text.len() == 26 && text.bytes().all(|b| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b))
}

fn is_run_id(text: &str) -> bool {
    text.split_once('.').is_some_and(|(session, rest)| is_key_safe(session) && is_digest(rest))
}

macro_rules! define_name {
    ($(#[$doc:meta])* $name:ident, $check:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl Ord for $name {
            /// Compares by bytes. Most compared names are clones of one `Arc`, whose bytes need not be read.
            fn cmp(&self, other: &Self) -> Ordering {
                if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
            }
        }
        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl $name {
            /// Checks the form and creates the name.
            pub fn parse(text: &str) -> Result<Self, BadName> {
                if $check(text) { Ok(Self(text.into())) } else { Err(BadName { kind: $kind }) }
            }
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}
define_name!(/// A tenant, which owns sessions; `default` unless identity is configured.
    TenantId, is_key_safe, "tenant id");
define_name!(/// A conversation's session: `[A-Za-z0-9_-]{1,64}`, unique within its tenant.
    SessionId, is_key_safe, "session_id");
define_name!(/// An agent: `[A-Za-z0-9_-]{1,64}`.
    AgentId, is_key_safe, "agent_id");
define_name!(/// A user within a tenant: up to 256 bytes of printable text.
    UserId, is_printable_label, "user_id");
define_name!(/// A message, named by the client; the unit of de-duplication: up to 256 bytes of printable text.
    MessageId, is_printable_label, "message_id");
define_name!(/// A request, named by the client and echoed in answers: up to 256 bytes of printable text.
    RequestId, is_printable_label, "request_id");
define_name!(/// An entry of the control lane, for de-duplication.
    ControlId, is_printable_label, "control id");
define_name!(/// An event of an agent, as named by the agent (`id:`): 1 to 128 visible ASCII characters.
    AgentEventId, is_header_safe, "event id");
define_name!(/// A tool runner, as named by itself: `[A-Za-z0-9_-]{1,64}`. The same after a reconnect.
    RunnerId, is_key_safe, "runner_id");
define_name!(/// A tool, such as `process.spawn`: `[A-Za-z0-9_.-]{1,64}`.
    ToolName, is_dotted_name, "tool name");
define_name!(/// A property of a tool runner's machine, named by the runner, e.g. `battery.low`: `[A-Za-z0-9_.-]{1,64}`.
    SystemName, is_dotted_name, "name");
define_name!(/// A platform on which people talk, such as `discord`: `[a-z0-9_.-]{1,64}`.
    ChannelName, is_lower_case_name, "channel");
define_name!(/// An account of the gateway on a channel, as an operator names it: `[A-Za-z0-9_.-]{1,64}`.
    AccountId, is_dotted_name, "account_id");
define_name!(/// A place on a platform where people talk, as the platform names it: up to 256 bytes of printable text. Made by
    /// [`ConversationRef`](crate::protocol::conversation::ConversationRef) from what others write.
    ConversationId, is_trimmed_label, "conversation_id");
define_name!(/// A turn: `<session_id>.<26 letters base32>`, derived from the message and never from a position.
    RunId, is_run_id, "run_id");
define_name!(/// A delivery to a conversation: 26 letters of base32, derived from what is delivered and where.
    DeliveryId, is_digest, "delivery_id");

impl TenantId {
    /// Returns the only tenant that exists unless identity is configured.
    pub fn default_tenant() -> Self {
        // One shared `Arc`, so that comparing two default tenants reads no bytes.
        static DEFAULT: LazyLock<TenantId> = LazyLock::new(|| TenantId("default".into()));
        DEFAULT.clone()
    }

    /// Returns whether this is the tenant `default`.
    pub fn is_default(&self) -> bool {
        self.as_str() == "default"
    }
}

impl UserId {
    /// Returns the operator on a gateway without authentication (`--auth none`).
    pub fn local() -> Self {
        Self("local".into())
    }

    /// Returns the author of the control entries that nodes make by themselves. An author grants nothing.
    pub fn gateway() -> Self {
        Self("turnway".into())
    }
}

/// A session with its tenant: the key of every store operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionKey {
    pub tenant: TenantId,
    pub session: SessionId,
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.session)
    }
}

/// The user that makes a request: always taken from the connection's credential, never from a message (S-07).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Principal {
    /// The tenant the credential belongs to.
    pub tenant: TenantId,
    pub user: UserId,
    /// Permission to see and do everything within the tenant.
    pub operator: bool,
    /// Permission to do more than read.
    pub writes: bool,
}

impl Principal {
    /// Returns the principal that sorts before every other, for the start of a range.
    pub fn first() -> Self {
        Self { tenant: TenantId("".into()), user: UserId("".into()), operator: false, writes: false }
    }
}

const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Encodes 130 bits as 26 letters.
fn base32_26(digest: &[u8]) -> String {
    let mut text = String::with_capacity(26);
    let mut bits = 0u32;
    let mut held = 0u32;
    let mut bytes = digest.iter();
    for _ in 0..26 {
        if held < 5 {
            bits = (bits << 8) | u32::from(*bytes.next().unwrap_or(&0));
            held += 8;
        }
        held -= 5;
        text.push(char::from(BASE32[(bits >> held) as usize & 31]));
    }
    text
}

/// Hashes parts of a name, each preceded by its length, so that no two lists of parts have the same hash.
fn hash_parts(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    base32_26(&hash.finalize())
}

/// The beginning of the ids of sessions that belong to conversations nobody has bound.
const CONVERSATION_SESSION: &str = "conv-";

/// The beginning of the ids of sessions that belong to tasks of agents.
const TASK_SESSION: &str = "task-";

impl SessionId {
    /// Returns the session of a conversation that nobody has bound. Its form is reserved: see
    /// [`Self::is_of_conversation`].
    pub fn for_conversation(
        tenant: &TenantId,
        channel: &ChannelName,
        account: &AccountId,
        conversation: &ConversationId,
    ) -> Self {
        let parts = [tenant.as_str(), channel.as_str(), account.as_str(), conversation.as_str()];
        Self(format!("{CONVERSATION_SESSION}{}", hash_parts(&parts)).into())
    }

    /// Returns whether the id has the form of a conversation's own session, which no user may create: whoever made it
    /// first would read what people write there.
    pub fn is_of_conversation(&self) -> bool {
        self.as_str().strip_prefix(CONVERSATION_SESSION).is_some_and(is_digest)
    }

    /// Returns the session of a task that an agent has given by an action.
    pub fn for_task(key: &SessionKey, action: EventId) -> Self {
        let parts = [key.tenant.as_str(), key.session.as_str(), &action.to_string()];
        Self(format!("{TASK_SESSION}{}", hash_parts(&parts)).into())
    }

    /// Returns whether the id has the form of a conversation's own session or of a task's, which no user may create:
    /// whoever made it first would read what people write there.
    pub fn is_reserved(&self) -> bool {
        self.is_of_conversation() || self.as_str().strip_prefix(TASK_SESSION).is_some_and(is_digest)
    }

    /// Returns the session of a call that names itself but no session. `tag` identifies the call and its user, and is
    /// made with a secret, so that the session's name cannot be guessed before the call is made.
    pub fn for_call(tag: &[u8]) -> Self {
        Self(format!("call-{}", base32_26(tag)).into())
    }
}

impl LinkId {
    /// Returns a link of a node itself: the upper half of the numbers, which no connection gets.
    pub fn of_node(number: u64) -> Self {
        Self(number | 1 << 63)
    }

    /// Returns whether the link is one of the node itself.
    pub fn is_of_node(self) -> bool {
        self.0 >> 63 == 1
    }
}

impl ControlId {
    /// Derives the id of an entry that a node makes by itself, from the change that it reports and the object that has
    /// changed: the same change has the same id at every node.
    pub fn for_change(change: &str, object: &str) -> Self {
        Self(format!("{change}:{}", base32_26(&Sha256::digest(object.as_bytes()))).into())
    }
}

impl MessageId {
    /// Returns the name of a platform's message in the inbox of its session: platforms number messages within an account
    /// or within a conversation only.
    pub fn of_platform(
        channel: &ChannelName,
        account: &AccountId,
        conversation: &ConversationId,
        message: &Self,
    ) -> Self {
        let parts = [channel.as_str(), account.as_str(), conversation.as_str(), message.as_str()];
        Self(format!("{channel}:{}", hash_parts(&parts)).into())
    }

    /// Returns the name of a conversation beside its messages in the inbox of a session.
    pub fn of_place(channel: &ChannelName, account: &AccountId, conversation: &ConversationId) -> Self {
        let parts = [channel.as_str(), account.as_str(), conversation.as_str()];
        Self(format!("{channel}:{}", hash_parts(&parts)).into())
    }

    /// Returns the name of an edit of a platform's message in the inbox of its session; `edit` tells the edits of the
    /// message apart.
    pub fn of_edit(
        channel: &ChannelName,
        account: &AccountId,
        conversation: &ConversationId,
        message: &Self,
        edit: &str,
    ) -> Self {
        let parts = [channel.as_str(), account.as_str(), conversation.as_str(), message.as_str(), "edit", edit];
        Self(format!("{channel}:{}", hash_parts(&parts)).into())
    }

    /// Returns the name of the press of a button in the inbox of its session: that of all presses below one delivery, or
    /// with `press` that of a single one.
    pub fn of_press(
        channel: &ChannelName,
        account: &AccountId,
        conversation: &ConversationId,
        delivery: &DeliveryId,
        press: Option<&RequestId>,
    ) -> Self {
        let press = press.map_or("", RequestId::as_str);
        let parts = [channel.as_str(), account.as_str(), conversation.as_str(), delivery.as_str(), "press", press];
        Self(format!("{channel}:{}", hash_parts(&parts)).into())
    }
}

/// The beginning of the names of users that are accounts of platforms.
const ACCOUNT_USER: &str = "channel:";

impl UserId {
    /// Returns the user that an adapter acts as: the account, whoever wrote there.
    pub fn of_account(channel: &ChannelName, account: &AccountId) -> Self {
        Self(format!("{ACCOUNT_USER}{channel}/{account}").into())
    }

    /// Returns whether the name is reserved for accounts of platforms.
    pub fn is_account(&self) -> bool {
        self.as_str().starts_with(ACCOUNT_USER)
    }

    /// Parses the name of a user as a person, a program, a token or a configuration writes it. Names of accounts are
    /// refused: only an adapter acts as an account.
    pub fn parse_person(text: &str) -> Result<Self, BadName> {
        let user = Self::parse(text)?;
        if user.is_account() {
            return Err(BadName { kind: "user_id: names that begin with `channel:` are accounts of platforms" });
        }
        Ok(user)
    }
}

impl DeliveryId {
    /// Returns the id that sorts before every other, for the start of a range.
    pub fn first() -> Self {
        Self("".into())
    }

    /// Derives the id of the delivery of a run's end to a place: its channel, account and conversation. The same end has
    /// the same delivery at every owner.
    pub fn derive(tenant: &TenantId, run: &RunId, kind: &str, place: &[&str; 3]) -> Self {
        let [channel, account, conversation] = place;
        let parts = [tenant.as_str(), run.as_str(), kind, channel, account, conversation];
        Self(hash_parts(&parts).into())
    }

    /// Derives the id of a delivery to a place that no run leads to: its cause has a name that is unique in the session.
    pub(crate) fn derive_without_run(key: &SessionKey, cause: &str, kind: &str, place: &[&str; 3]) -> Self {
        let [channel, account, conversation] = place;
        let session = key.session.as_str();
        Self(hash_parts(&[key.tenant.as_str(), session, kind, channel, account, conversation, cause]).into())
    }

    /// Derives the id of a message that a user sends to a conversation of a session. The place is no part of it: the router
    /// chooses the place once, with the first of all repetitions.
    pub fn of_message(key: &SessionKey, user: &UserId, message: &MessageId) -> Self {
        let parts = [key.tenant.as_str(), key.session.as_str(), "message", user.as_str(), message.as_str()];
        Self(hash_parts(&parts).into())
    }

    /// Derives the id of a conversation that a user has made for a binding of a session. Its parent is no part of it: a
    /// repeated request is the same, whatever else it says.
    pub fn of_creation(key: &SessionKey, user: &UserId, creation: &MessageId) -> Self {
        let parts = [key.tenant.as_str(), key.session.as_str(), "creation", user.as_str(), creation.as_str()];
        Self(hash_parts(&parts).into())
    }

    /// Returns the nonce of the bind of the conversation that the delivery makes.
    pub fn nonce(&self) -> Nonce {
        let digest = Sha256::digest(self.as_str().as_bytes());
        Nonce(digest.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }

    /// Derives the id of the preview of the answer to a message at a place.
    pub(crate) fn derive_preview(key: &SessionKey, message: &MessageId, place: &[&str; 3]) -> Self {
        let [channel, account, conversation] = place;
        let session = key.session.as_str();
        let parts = [key.tenant.as_str(), session, "preview", channel, account, conversation, message.as_str()];
        Self(hash_parts(&parts).into())
    }

    /// Returns the key of a part for platforms that recognise a repeated message.
    pub(crate) fn dedupe_key(&self, kind: &str, part: u32) -> String {
        let mut key = hash_parts(&[self.as_str(), kind, &part.to_string()]);
        key.truncate(25);
        key
    }
}

impl RunId {
    /// Derives the id of a run. The same input gets the same id on any node, in any try (requirement RX-1, EV-N4):
    /// SHA-256 over tenant, session, user and message id, each preceded by its length.
    pub fn derive(key: &SessionKey, user: &UserId, message: &MessageId) -> Self {
        let parts = [key.tenant.as_str(), key.session.as_str(), user.as_str(), message.as_str()];
        Self(format!("{}.{}", key.session, hash_parts(&parts)).into())
    }
    /// Returns the session that the run belongs to; any node can route by it without an index.
    pub fn session(&self) -> SessionId {
        SessionId(self.0.split('.').next().unwrap_or_default().into())
    }
}

/// The id of a fact: a UUIDv7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(pub uuid::Uuid);

impl EventId {
    /// Creates an id from the time and 128 random bits (RFC 9562 §5.7).
    pub fn new(at: crate::time::Millis, chance: u128) -> Self {
        let mut random = [0u8; 10];
        random.copy_from_slice(&chance.to_be_bytes()[..10]);
        Self(uuid::Builder::from_unix_timestamp_millis(at.0, &random).into_uuid())
    }

    /// Returns the time that the id was created with: the first 48 bits, in milliseconds.
    pub fn time(&self) -> crate::time::Millis {
        crate::time::Millis(u64::try_from(self.0.as_u128() >> 80).unwrap_or_default())
    }

    /// Parses an id as printed; only the form is checked, no part is interpreted.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        uuid::Uuid::parse_str(text).map(Self).map_err(|_| BadName { kind: "event id" })
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A node that may own sessions, for the time of one lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// The node, to which doorbells are sent.
    pub node: NodeId,
    /// The lease of that node.
    pub life: LeaseId,
}

/// The fence: both fields are compared for equality inside every write to the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FenceToken {
    /// The generation of ownership.
    pub epoch: Epoch,
    /// The nonce of the claim.
    pub nonce: Nonce,
}

/// An ownership as a node last saw it; a claim names the ownership that it replaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OwnershipSnapshot {
    /// The owner, if any.
    pub holder: Option<Holder>,
    /// The generation of ownership.
    pub epoch: Epoch,
}

/// A reader's position in a log: every fact up to `seq`, which is of `epoch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cursor {
    /// The last fact that was read; 0 before the first.
    pub seq: Seq,
    /// The epoch of that fact; a mismatch shows that the store lost facts.
    pub epoch: Epoch,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SessionKey {
        SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") }
    }

    /// Covers: SR-A4, RX-1, EV-N4, EV-E2, EV-T3, MP-C1.
    #[test]
    fn run_id_is_derived_from_its_message() {
        let ann = UserId::parse("ann").expect("a name");
        let bob = UserId::parse("bob").expect("a name");
        let message = MessageId::parse("m1").expect("a name");
        let run = RunId::derive(&key(), &ann, &message);
        assert_eq!(run, RunId::derive(&key(), &ann, &message));
        assert_ne!(run, RunId::derive(&key(), &bob, &message));
        assert_eq!(run.session(), key().session);
        assert_eq!(RunId::parse(run.as_str()), Ok(run));
    }

    /// Covers: S-07.
    #[test]
    fn sessions_of_conversations_and_tasks_are_reserved() {
        let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s").expect("a name") };
        let task = SessionId::for_task(&key, EventId::default());
        assert!(task.is_reserved() && !task.is_of_conversation(), "{task}");
        for free in ["task-", "task-1", "tasks", &task.as_str()[5..], &format!("{task}a")] {
            assert!(!SessionId::parse(free).expect("a name").is_reserved(), "{free}");
        }
    }

    #[test]
    fn names_of_accounts_are_reserved() {
        let channel = ChannelName::parse("rooms").expect("a name");
        let account = AccountId::parse("main").expect("a name");
        let user = UserId::of_account(&channel, &account);
        assert!(user.is_account() && UserId::parse(user.as_str()) == Ok(user.clone()));
        for reserved in [user.as_str(), "channel:", "channel:x"] {
            assert!(UserId::parse_person(reserved).is_err(), "{reserved}");
        }
        for free in ["channel", "channels", "Channel:rooms/main", "key:channel:", "ann"] {
            assert_eq!(UserId::parse_person(free), UserId::parse(free), "{free}");
        }
        assert!(UserId::parse_person("").is_err());
    }

    /// Covers: S-44.
    #[test]
    fn names_with_key_separators_are_refused() {
        for bad in ["", "a:b", "{x}", "a b", "a\n", "é", &"x".repeat(65)] {
            assert!(SessionId::parse(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "a\u{7}", "s1.abc", "s1", "s1.ABCDEFGHIJKLMNOPQRSTUVWXYZ", &format!("a:b.{}", "a".repeat(26))] {
            assert!(RunId::parse(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "a b", "a\r\nb", "ß", &"x".repeat(129)] {
            assert!(AgentEventId::parse(bad).is_err(), "{bad:?}");
        }
        assert!(AgentEventId::parse("run-1:0017").is_ok());
        assert!(MessageId::parse("日本 语").is_ok() && MessageId::parse(&"x".repeat(257)).is_err());
    }
}
