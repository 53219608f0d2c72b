//! What may be asked of a store.
use crate::id::{
    Cursor, Epoch, Holder, LinkId, NodeId, Nonce, Place, Principal, RunId, Seen, Seq, SessionKey, Stamp,
    TenantId, Token, UserId, Version,
};
use crate::protocol::entry::Entry;
use crate::protocol::input::{BodyHash, Control, Input};
use crate::store::{Birth, IdlePlace};
use crate::time::{Millis, Mono};
use std::sync::Arc;
use std::time::Duration;

/// Everything anyone may ask of the store.
#[expect(missing_docs, reason = "the fields say it themselves")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Keep a node's lease; `fresh` takes out a new one under a life that was never used.
    /// `sent` comes back with the answer. Answers `Renewed` or `Lost`.
    Renew { holder: Holder, ttl: Duration, fresh: bool, sent: Mono },
    /// Give a node's lease up. Answers `Done`.
    Retire { holder: Holder },
    /// How long a node is still leased. `sent` comes back with the answer. Answers `Leased`.
    Lease { node: NodeId, sent: Mono },
    /// Put an input into the inbox; any node may. Answers `Accepted` or `Refused`.
    Accept { key: SessionKey, principal: Principal, input: Arc<Input>, hash: BodyHash },
    /// Put an entry into the control lane; any node may. `create` makes the session if it is free.
    /// Answers `Accepted` or `Refused`.
    Control { key: SessionKey, principal: Principal, control: Arc<Control>, create: bool },
    /// Become the owner, if things are as the claimer saw them. The same nonce asks for the same claim.
    /// `floor` is the highest epoch the claimer knows of. Answers `Claimed` or `Held`.
    Claim { key: SessionKey, holder: Holder, nonce: Nonce, expect: Seen, floor: Epoch },
    /// The only writer of the log. Answers `Appended`, `Fenced`, `Order` or `Gone`.
    Append(Box<Append>),
    /// Give ownership up; with `drain` inputs may be left to the next owner.
    /// Answers `Released`, `Fenced` or `Pending`.
    Release { key: SessionKey, token: Token, tail: Seq, drain: bool },
    /// Hand ownership to a chosen node. Answers `Transferred`, `Fenced` or `Order`.
    Transfer { key: SessionKey, token: Token, tail: Seq, to: Holder, nonce: Nonce },
    /// This node has links of the session; the greater stamp is kept. Answers `Listening`, or
    /// `Refused::TooMany` where [`crate::limits::LISTENERS_MAX`] others listen.
    Listen { key: SessionKey, node: NodeId, stamp: Stamp },
    /// It has none any more: removed only if stored ≤ `stamp`. Answers `Done`.
    Unlisten { key: SessionKey, node: NodeId, stamp: Stamp },
    /// The latest snapshot and every fact after it: what one needs to know a session's present state.
    /// Answers `View`.
    Open { key: SessionKey },
    /// Facts after a place, at most `limit` of them and [`crate::limits::READ_BYTES_MAX`] bytes
    /// (but at least one). Answers `Heard`.
    Read { key: SessionKey, after: Seq, limit: u32 },
    /// Inputs and control entries after places. Answers `Waiting`.
    Inbox { key: SessionKey, token: Token, after: Place, control_after: Place },
    /// Keep the state at a place of the log; an older one than is kept changes nothing.
    /// Answers `Done` or `Fenced`.
    Keep(Box<Keep>),
    /// Forget facts up to a place (never past the snapshot's). Answers `Done` or `Fenced`.
    Trim { key: SessionKey, token: Token, upto: Seq },
    /// Where the facts of a run lie, for whoever may see its session. `link` comes back with the answer.
    /// Answers `Found` or `Refused`.
    Find { key: SessionKey, principal: Principal, run_id: RunId, link: LinkId },
    /// Delete a closed session with everything in it, for good: its name stays used, and nothing late brings it back.
    /// `link` comes back with the answer. Answers `Done`, also the second time, or `Refused`: `Busy` while it is open.
    Delete { key: SessionKey, principal: Principal, link: LinkId },
    /// Sessions of a tenant, or of one of its users, the last made first: at most `limit` of those made
    /// before a certain one. `link` comes back with the answer. Answers `Sessions`.
    Sessions { tenant: TenantId, user: Option<UserId>, before: Option<Birth>, limit: u32, link: LinkId },
    /// Looks at no more than `limit` sessions from a place on, in the order of their tenants and of their making.
    /// Answers `Idle`: those at rest since before a time.
    Idle { from: Option<IdlePlace>, before: Millis, limit: u32 },
    /// Delete a session with everything in it, as `Delete` does, if it is at rest and its last fact is from before a
    /// time, in whole seconds. Answers `Done` to one caller only, or `Refused`: `Busy`, or `NotFound`.
    Forget { key: SessionKey, before: Millis },
    /// Sessions held by holders without a lease, and free ones with something in inbox or control
    /// lane; at most `limit`. Answers `Work`.
    Sweep { limit: u32 },
    /// A small value under a name, outside of sessions. Answers `Value`.
    Get { name: String },
    /// Set it if its version is as expected (0: it does not exist). Answers `Value` with what is now
    /// stored, whether or not it was set.
    Put { name: String, expect: u64, value: Option<Vec<u8>> },
    /// Forget the ids of messages accepted before a time whose terminal facts are forgotten: an
    /// explicit step, so that stores can be compared. Answers `Done`.
    Expire { key: SessionKey, before_ms: u64 },
}

/// Facts at an exact place of a log, and the inputs they end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// Which session.
    pub key: SessionKey,
    /// By whom.
    pub token: Token,
    /// The place of the fact before: must be the tail.
    pub after: Seq,
    /// The facts; none: only see that everything is as the owner remembers it.
    pub facts: Vec<Arc<Entry>>,
    /// Inputs that end with these facts: removed in the same step, and each must be there.
    pub ends: Vec<(Place, RunId)>,
    /// Control entries that are answered by these facts; missing ones are ignored.
    pub answers: Vec<Place>,
    /// Whether the session is closed from now on; `None`: as before.
    pub closed: Option<bool>,
    /// The version of the set of listeners that the owner knows.
    pub known: Version,
}

/// A state to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Which session.
    pub key: SessionKey,
    /// By whom.
    pub token: Token,
    /// The last fact that is in the state.
    pub at: Cursor,
    /// The state, in [`crate::protocol::codec`]'s form.
    pub state: Arc<[u8]>,
}

impl Op {
    /// Its name, for metrics.
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
            Self::Open { .. } => "open",
            Self::Read { .. } => "read",
            Self::Inbox { .. } => "inbox",
            Self::Keep(_) => "keep",
            Self::Find { .. } => "find",
            Self::Delete { .. } => "delete",
            Self::Sessions { .. } => "sessions",
            Self::Trim { .. } => "trim",
            Self::Idle { .. } => "idle",
            Self::Forget { .. } => "forget",
            Self::Sweep { .. } => "sweep",
            Self::Get { .. } => "get",
            Self::Put { .. } => "put",
            Self::Expire { .. } => "expire",
        }
    }
    /// The session it concerns, if it concerns one.
    pub fn key(&self) -> Option<&SessionKey> {
        match self {
            Self::Accept { key, .. }
            | Self::Control { key, .. }
            | Self::Claim { key, .. }
            | Self::Release { key, .. }
            | Self::Transfer { key, .. }
            | Self::Listen { key, .. }
            | Self::Unlisten { key, .. }
            | Self::Open { key, .. }
            | Self::Read { key, .. }
            | Self::Inbox { key, .. }
            | Self::Trim { key, .. }
            | Self::Find { key, .. }
            | Self::Delete { key, .. }
            | Self::Forget { key, .. }
            | Self::Expire { key, .. } => Some(key),
            Self::Append(append) => Some(&append.key),
            Self::Keep(keep) => Some(&keep.key),
            Self::Renew { .. }
            | Self::Retire { .. }
            | Self::Lease { .. }
            | Self::Sweep { .. }
            | Self::Idle { .. }
            | Self::Sessions { .. }
            | Self::Get { .. }
            | Self::Put { .. } => None,
        }
    }
}
