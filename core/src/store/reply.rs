//! Replies of a store to its operations.
use crate::id::{
    Cursor, Epoch, FenceToken, InboxPosition, ListenStamp, ListenersVersion, NodeId, OwnershipSnapshot, Seq, SessionId,
    SessionKey, TenantId, UserId,
};
use crate::protocol::annotation::Annotations;
use crate::protocol::binding::Binding;
use crate::protocol::conversation::ConversationKey;
use crate::protocol::entry::Entry;
use crate::protocol::input::{ControlEntry, Input};
use crate::store::binding::{BindingOutcome, BindingRow};
use crate::store::blob::BlobReply;
use crate::time::Millis;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A reply of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The lease is granted. The era is a new one if the store was restored from a copy; `clock` is the store's time
    /// now.
    Renewed {
        era: u64,
        clock: Millis,
    },
    /// The lease ran out.
    LeaseLost,
    /// The op is done.
    Done,
    /// The time that the node's lease still runs, if it does.
    Leased {
        left: Option<Duration>,
    },
    /// The entry is durable, now or since an earlier time; its owner is to be sent an offer.
    Accepted(Acceptance),
    /// Nothing was stored.
    Refused(StoreRefusal),
    /// The caller owns the session.
    Claimed(Box<Claimed>),
    /// The ownership is not as the claimer saw it.
    OwnershipConflict {
        owner: OwnershipSnapshot,
    },
    /// The facts are durable (now or since an earlier time). Includes the ends of log, inbox and control lane, and
    /// the listeners, if the caller does not know the current set.
    Appended {
        tail: Seq,
        inbox_tail: InboxPosition,
        control_tail: InboxPosition,
        version: ListenersVersion,
        listeners: Option<BTreeMap<NodeId, ListenStamp>>,
    },
    /// The caller's ownership is over.
    Fenced,
    /// The token is valid, but the log does not end where the caller assumed.
    OutOfOrder,
    /// An input to be ended is not in the inbox.
    InputMissing {
        position: InboxPosition,
    },
    /// The ownership is given up.
    Released,
    /// The ownership is not given up: the log or the inbox is not as the caller assumed.
    NotReleased,
    /// The ownership is handed over, under this token.
    Transferred {
        token: FenceToken,
    },
    /// From now on the log is sent to the caller, whose presence can be announced to the owner at once.
    Listening {
        owner: OwnershipSnapshot,
        tail: Cursor,
    },
    /// A session's present state.
    View(Box<SessionView>),
    /// A page of facts.
    Facts(FactPage),
    /// Inputs and control entries.
    Inbox(InboxContents),
    /// The position of a run's facts.
    Found(RunLocation),
    /// The control entry was accepted; `ended`: it has left the control lane since.
    ControlFound {
        ended: bool,
    },
    /// Sessions in the requested order, and whether more follow.
    Sessions {
        sessions: Vec<SessionSummary>,
        more: bool,
    },
    /// Idle sessions, and the position at which the scan continues; `None`: the scan is complete.
    Idle {
        sessions: Vec<SessionKey>,
        next: Option<IdleCursor>,
    },
    /// Sessions, with their ownership as the sweep saw it.
    Unowned {
        sessions: Vec<(SessionKey, OwnershipSnapshot)>,
    },
    /// The value that is now stored under the name; version 0: none.
    Value {
        version: u64,
        value: Option<Vec<u8>>,
    },
    Conversation(ConversationReply),
    /// The table of a session's blobs after the action.
    Blobs(Box<BlobReply>),
}

/// A reply to an operation on the bindings of conversations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConversationReply {
    /// The row after the action; `None`: the conversation has none.
    Row {
        outcome: BindingOutcome,
        row: Option<Box<BindingRow>>,
    },
    Bindings(Vec<Binding>),
    Rows(Vec<Option<BindingRow>>),
    /// Rows that want to be tended.
    Due(Vec<ConversationKey>),
}

/// A durable input or control entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceptance {
    pub position: InboxPosition,
    /// The position assigned before this one: an owner that has read up to there needs to read nothing.
    pub prev: InboxPosition,
    /// The owner, which is to be sent an offer.
    pub owner: OwnershipSnapshot,
    /// The end of the log when the entry was first accepted: before its turn's first fact.
    pub tail: Cursor,
    /// True if the entry had been accepted before.
    pub duplicate: bool,
    /// True if the entry has been removed from the inbox since.
    pub ended: bool,
    /// Number of receivers of the offer that the store itself sent to the owner in the same step, with the whole
    /// entry. `None`: the store sent no offer, and the caller has to.
    pub offer_receivers: Option<u32>,
}

impl Acceptance {
    /// Creates the acceptance of a new entry, without an offer of the store.
    pub fn first(position: InboxPosition, prev: InboxPosition, owner: OwnershipSnapshot, tail: Cursor) -> Self {
        Self { position, prev, owner, tail, duplicate: false, ended: false, offer_receivers: None }
    }

    /// Returns the acceptance of an entry that was accepted before.
    #[must_use]
    pub fn again(self, ended: bool) -> Self {
        Self { duplicate: true, ended, ..self }
    }
}

/// The reason why nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreRefusal {
    /// The session does not exist, or belongs to another user.
    NotFound,
    /// The same message id with another body.
    Conflict,
    Closed,
    /// A turn is open, and the input asked to be refused in that case.
    Busy,
    /// Inbox, control lane or set of listeners is full.
    TooMany,
    /// The store has no room.
    Full,
    /// The store accepts no writes for now.
    ReadOnly,
    /// The store does not allow this node to write.
    Forbidden,
    /// The quota of stored bytes of the user or the tenant is used up.
    Quota,
    /// A record of the session differs from what was written: the session is quarantined.
    Damaged,
}

impl StoreRefusal {
    /// Returns whether the store currently refuses every write, which says nothing about the outcome of an earlier
    /// try.
    pub fn is_store_wide(self) -> bool {
        match self {
            Self::Full | Self::ReadOnly | Self::Forbidden => true,
            Self::NotFound
            | Self::Conflict
            | Self::Closed
            | Self::Busy
            | Self::TooMany
            | Self::Quota
            | Self::Damaged => false,
        }
    }
}

/// A new ownership, with everything that the owner needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The fencing token.
    pub token: FenceToken,
    /// The session's state, read in the same step: no other node writes from here on.
    pub view: SessionView,
    /// Open inputs and control entries.
    pub inbox: InboxContents,
    /// Listening nodes, with the stamps of their requests.
    pub listeners: BTreeMap<NodeId, ListenStamp>,
    /// Version of the set of listeners.
    pub version: ListenersVersion,
}

/// Contents of inbox and control lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboxContents {
    /// Inputs in order, without ended ones.
    pub inputs: Vec<(InboxPosition, Arc<Input>)>,
    /// The last position ever assigned in the inbox.
    pub tail: InboxPosition,
    /// Control entries in order, without answered ones.
    pub controls: Vec<(InboxPosition, Arc<ControlEntry>)>,
    /// The last position ever assigned in the control lane.
    pub control_tail: InboxPosition,
}

/// A stored state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last fact that the state includes.
    pub at: Cursor,
    /// The state, encoded by [`crate::protocol::codec`].
    pub state: Arc<[u8]>,
}

/// A session's present state: a snapshot and the facts since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    pub owner: OwnershipSnapshot,
    /// The user that owns the session; `None`: there is no such session.
    pub user: Option<UserId>,
    pub closed: bool,
    /// The latest stored state.
    pub snapshot: Option<Snapshot>,
    /// The facts after the snapshot, with their epochs.
    pub facts: Vec<(Epoch, Arc<Entry>)>,
    /// The end of the log, after those facts.
    pub tail: Cursor,
    /// Facts up to this position are deleted.
    pub floor: Seq,
}

/// A page of facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactPage {
    /// The position before the first fact: as requested, or the floor if that is later.
    pub after: Seq,
    /// The facts, with their epochs.
    pub facts: Vec<(Epoch, Arc<Entry>)>,
    /// The end of the log.
    pub tail: Cursor,
    /// Facts up to this position are deleted.
    pub floor: Seq,
}

/// The position of a run's facts in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLocation {
    /// The end of the log when the run's input was accepted: all of the run's facts are after it.
    pub after: Cursor,
    /// The end of the append that ended the run, if it has ended.
    pub ended: Option<Seq>,
}

/// A session with its time of creation: the sort key of session lists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CreationKey {
    /// Time of creation, by the store's clock.
    pub at: Millis,
    pub session: SessionId,
}

/// A position in a scan through all sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleCursor {
    /// The tenant whose sessions are being examined.
    pub tenant: TenantId,
    /// The last session that was examined; `None`: the tenant's first session is next.
    pub after: Option<CreationKey>,
}

/// A session in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSummary {
    pub birth: CreationKey,
    pub user: UserId,
    pub closed: bool,
    /// The end of the session's log.
    pub tail: Seq,
    /// Inputs in its inbox: the running one and those that wait.
    pub pending: u32,
    pub annotations: Annotations,
}

/// The reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The outcome is unknown, and the op may still happen later: retry, since every op is repeatable.
    Unknown,
    /// The op did not happen.
    Unavailable,
}
