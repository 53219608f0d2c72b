//! Operations of a store. The gateway's stores and the model in this crate execute them.
use crate::id::{
    ControlId, Cursor, Epoch, FenceToken, Holder, InboxPosition, LinkId, ListenStamp, ListenersVersion, NodeId, Nonce,
    OwnershipSnapshot, Principal, RunId, Seq, SessionKey, TenantId, UserId,
};
use crate::protocol::annotation::Annotation;
use crate::protocol::conversation::ConversationKey;
use crate::protocol::entry::Entry;
use crate::protocol::input::{BodyHash, ControlEntry, Input};
use crate::store::binding::BindingAction;
use crate::store::blob::BlobAction;
use crate::store::{CreationKey, IdleCursor};
use crate::time::{Millis, Mono};
use std::sync::Arc;
use std::time::Duration;

/// An operation of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Renew a node's lease; with `fresh`, take out a new lease under a lease id that was never used. `sent` is
    /// repeated in the answer. Answers `Renewed` or `LeaseLost`.
    Renew { holder: Holder, ttl: Duration, fresh: bool, sent: Mono },
    /// Give up a node's lease. Answers `Done`.
    Retire { holder: Holder },
    /// Read how long a node is still leased. `sent` is repeated in the answer. Answers `Leased`.
    Lease { node: NodeId, sent: Mono },
    /// Put an input into the inbox; any node may do so. `route` is the version of its conversation's binding that led
    /// here. Answers `Accepted` or `Refused`: `Busy` if a later version of that binding has led elsewhere.
    Accept { key: SessionKey, principal: Principal, input: Arc<Input>, hash: BodyHash, route: Option<RouteVersion> },
    /// Put an entry into the control lane; any node may do so. `create` creates the session if its id is free.
    /// Answers `Accepted` or `Refused`.
    Control { key: SessionKey, principal: Principal, control: Arc<ControlEntry>, create: bool },
    /// Become the owner, if the ownership is still as the claimer saw it. The same nonce repeats the same claim.
    /// `floor` is the highest epoch that the claimer knows. Answers `Claimed` or `OwnershipConflict`.
    Claim { key: SessionKey, holder: Holder, nonce: Nonce, expect: OwnershipSnapshot, floor: Epoch },
    /// Append facts to the log; the only way to write to the log. Answers `Appended`, `Fenced`, `OutOfOrder` or
    /// `InputMissing`.
    Append(Box<Append>),
    /// Give up ownership; with `drain` inputs may be left to the next owner. Answers `Released`, `Fenced` or
    /// `NotReleased`.
    Release { key: SessionKey, token: FenceToken, tail: Seq, drain: bool },
    /// Hand ownership to a chosen node. Answers `Transferred`, `Fenced` or `OutOfOrder`.
    Transfer { key: SessionKey, token: FenceToken, tail: Seq, to: Holder, nonce: Nonce },
    /// Register this node as a listener because it has links of the session; the greater stamp is kept. Answers
    /// `Listening`, or `StoreRefusal::TooMany` if [`crate::limits::LISTENERS_MAX`] other nodes listen.
    Listen { key: SessionKey, node: NodeId, stamp: ListenStamp },
    /// Remove this node from the listeners, if the stored stamp is ≤ `stamp`. Answers `Done`.
    Unlisten { key: SessionKey, node: NodeId, stamp: ListenStamp },
    /// Read the latest snapshot and every fact after it, which make the session's present state. Answers `View`.
    ReadView { key: SessionKey },
    /// Read facts after a position, at most `limit` of them and [`crate::limits::READ_BYTES_MAX`] bytes (but at least
    /// one). Answers `Facts`.
    Read { key: SessionKey, after: Seq, limit: u32 },
    /// Read inputs and control entries after the given positions. Answers `Inbox`.
    Inbox { key: SessionKey, token: FenceToken, after: InboxPosition, control_after: InboxPosition },
    /// Store the state at a position of the log; a state older than the stored one changes nothing. Answers `Done` or
    /// `Fenced`.
    WriteSnapshot(Box<SnapshotWrite>),
    /// Delete facts up to a position (never past the snapshot's). Answers `Done` or `Fenced`.
    Trim { key: SessionKey, token: FenceToken, upto: Seq },
    /// Find the position of a run's facts, for a principal that may see its session. `link` is repeated in the
    /// answer. Answers `Found` or `Refused`. If the session has not accepted the run, then with `fence` it accepts no
    /// input any more that an older version of the same binding has led there.
    Find { key: SessionKey, principal: Principal, run_id: RunId, link: LinkId, fence: Option<RouteVersion> },
    /// Find an entry of the control lane by its id, also after its end, for a principal that may see its session. `ticket`
    /// is repeated in the answer. Answers `ControlFound` or `Refused`.
    FindControl { key: SessionKey, principal: Principal, id: ControlId, ticket: OpTicket },
    /// Delete a closed session with everything in it, for good: its id stays used, and no late op brings it back.
    /// `link` is repeated in the answer. Answers `Done`, also the second time, or `Refused`: `Busy` while the session
    /// is open.
    Delete { key: SessionKey, principal: Principal, link: LinkId },
    /// List sessions of a tenant, or of one of its users, latest creation first: at most `limit` of those created
    /// before a given one. `link` is repeated in the answer. Answers `Sessions`.
    ListSessions { tenant: TenantId, user: Option<UserId>, before: Option<CreationKey>, limit: u32, link: LinkId },
    /// Examine at most `limit` sessions from a position on, in the order of tenants and of creation. Answers `Idle`:
    /// those that have been idle since before a time.
    ScanIdle { from: Option<IdleCursor>, before: Millis, limit: u32 },
    /// Delete a session with everything in it, as `Delete` does, if the session is idle and its last fact is from
    /// before a time, in whole seconds. Answers `Done` to one caller only, or `Refused`: `Busy`, or `NotFound`.
    DeleteIdle { key: SessionKey, before: Millis },
    /// Find sessions whose holder has no lease, and sessions without an owner that have entries in inbox or control
    /// lane; at most `limit`. Answers `Unowned`.
    Sweep { limit: u32 },
    /// Read a small named value that belongs to no session. Answers `Value`.
    Get { name: String },
    /// Set a named value if its version is as expected (0: it does not exist). Answers `Value` with the value that is
    /// now stored, whether or not it was set.
    Put { name: String, expect: u64, value: Option<Vec<u8>> },
    /// Read or change the bindings of conversations. `ticket` is repeated in the answer.
    Conversation { op: ConversationOp, ticket: Option<OpTicket> },
    /// Read or change the table of a session's blobs. `link` is repeated in the answer. Answers `Blobs` or `Refused`:
    /// `NotFound`; `Closed` to an action that adds; `Quota` or `Full` to one after which the session has more bytes.
    Blob { key: SessionKey, principal: Principal, action: BlobAction, link: LinkId },
    /// Delete the ids of messages accepted before a time whose terminal facts are deleted: an explicit step, so that
    /// stores can be compared. Answers `Done`.
    Expire { key: SessionKey, before_ms: u64 },
}

/// The number of a request of a node, by which the node finds the request again when an op is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpTicket(pub u64);

/// The version of a conversation's binding that leads a message to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteVersion {
    /// The conversation, as the session calls it among the runs that it has accepted; no message has this run.
    pub place: RunId,
    /// Grows with every bind and every end of the conversation's binding.
    pub version: u64,
}

/// An operation on the bindings of conversations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConversationOp {
    /// Perform an action on one conversation's row. Answers `ConversationReply::Row`. A bind is refused if its session
    /// is not there or not the caller's (`NotFound`), is closed (`Closed`), or has too many bindings (`TooMany`).
    Change { key: ConversationKey, action: BindingAction },
    /// List the active bindings of a session, in the order of their conversations. Answers `ConversationReply::Bindings`,
    /// or `NotFound` if the session is not there or not the principal's; without a principal, nothing is checked.
    List { session: SessionKey, principal: Option<Principal> },
    /// Read the rows of conversations of one tenant, all as they are at one moment; nothing is changed. Answers
    /// `ConversationReply::Rows`, with a row or none for each key, in the order of the keys.
    Read { keys: Vec<ConversationKey> },
    /// Find at most `limit` rows that want to be tended now, those first that have waited longest. Answers
    /// `ConversationReply::Due`.
    FindDue { limit: u32 },
}

impl From<ConversationOp> for Op {
    /// Makes an op that no request waits for.
    fn from(op: ConversationOp) -> Self {
        Self::Conversation { op, ticket: None }
    }
}

/// Facts to append at an exact position of a log, and the inputs that they end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    pub key: SessionKey,
    pub token: FenceToken,
    /// Position of the last fact before these; must be the end of the log.
    pub after: Seq,
    /// The facts; empty: only check that the store is as the owner remembers it.
    pub facts: Vec<Arc<Entry>>,
    /// Inputs that end with these facts: removed in the same step; each must be in the inbox.
    pub ends: Vec<(InboxPosition, RunId)>,
    /// Control entries that these facts answer; missing ones are ignored.
    pub answers: Vec<InboxPosition>,
    /// True if the session is closed from now on, false if it is open; `None`: unchanged.
    pub closed: Option<bool>,
    /// Annotations of the session that these facts set or remove.
    pub annotations: Vec<Annotation>,
    /// The version of the set of listeners that the owner knows.
    pub known_listeners: ListenersVersion,
}

/// A state to store as the session's snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotWrite {
    pub key: SessionKey,
    pub token: FenceToken,
    /// The last fact that the state includes.
    pub at: Cursor,
    /// The state, encoded by [`crate::protocol::codec`].
    pub state: Arc<[u8]>,
}

impl Op {
    /// Returns the op's name, for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Renew { .. } => "renew",
            Self::Retire { .. } => "retire",
            Self::Lease { .. } => "lease",
            Self::Accept { .. } => "accept",
            Self::Control { .. } => "control",
            Self::Claim { .. } => "claim",
            Self::Append(_) => "append",
            Self::Release { .. } => "release",
            Self::Transfer { .. } => "transfer",
            Self::Listen { .. } => "listen",
            Self::Unlisten { .. } => "unlisten",
            Self::ReadView { .. } => "open",
            Self::Read { .. } => "read",
            Self::Inbox { .. } => "inbox",
            Self::WriteSnapshot(_) => "keep",
            Self::Find { .. } => "find",
            Self::FindControl { .. } => "find_control",
            Self::Delete { .. } => "delete",
            Self::ListSessions { .. } => "sessions",
            Self::Trim { .. } => "trim",
            Self::ScanIdle { .. } => "idle",
            Self::DeleteIdle { .. } => "forget",
            Self::Sweep { .. } => "sweep",
            Self::Get { .. } => "get",
            Self::Put { .. } => "put",
            Self::Conversation { op: ConversationOp::Change { .. }, .. } => "conversation",
            Self::Conversation { op: ConversationOp::List { .. }, .. } => "bindings",
            Self::Conversation { op: ConversationOp::Read { .. }, .. } => "conversations",
            Self::Conversation { op: ConversationOp::FindDue { .. }, .. } => "due_bindings",
            Self::Blob { .. } => "blob",
            Self::Expire { .. } => "expire",
        }
    }
    /// Returns the session that the op concerns, if any.
    pub fn key(&self) -> Option<&SessionKey> {
        match self {
            Self::Accept { key, .. }
            | Self::Control { key, .. }
            | Self::Claim { key, .. }
            | Self::Release { key, .. }
            | Self::Transfer { key, .. }
            | Self::Listen { key, .. }
            | Self::Unlisten { key, .. }
            | Self::ReadView { key, .. }
            | Self::Read { key, .. }
            | Self::Inbox { key, .. }
            | Self::Trim { key, .. }
            | Self::Find { key, .. }
            | Self::FindControl { key, .. }
            | Self::Delete { key, .. }
            | Self::DeleteIdle { key, .. }
            | Self::Blob { key, .. }
            | Self::Expire { key, .. } => Some(key),
            Self::Append(append) => Some(&append.key),
            Self::WriteSnapshot(keep) => Some(&keep.key),
            Self::Renew { .. }
            | Self::Retire { .. }
            | Self::Lease { .. }
            | Self::Sweep { .. }
            | Self::ScanIdle { .. }
            | Self::ListSessions { .. }
            | Self::Get { .. }
            | Self::Put { .. }
            | Self::Conversation { .. } => None,
        }
    }
}
