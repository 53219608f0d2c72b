//! What a store may answer.
use crate::id::{
    Cursor, Epoch, NodeId, Place, Seen, Seq, SessionId, SessionKey, Stamp, TenantId, Token, UserId, Version,
};
use crate::protocol::entry::Entry;
use crate::protocol::input::{Control, Input};
use crate::time::Millis;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What the store may answer.
#[expect(missing_docs, reason = "the fields say it themselves")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The lease is yours. A store that came back from a copy is in a new era. Its clock now.
    Renewed { era: u64, clock: Millis },
    /// The lease ran out.
    Lost,
    /// It is so.
    Done,
    /// How long the node's lease still runs, if it does.
    Leased { left: Option<Duration> },
    /// It is durable, now or since an earlier time; ring its owner.
    Accepted(Accepted),
    /// Nothing was stored.
    Refused(Refused),
    /// You own it.
    Claimed(Box<Claimed>),
    /// Things are not as you saw them.
    Held { owner: Seen },
    /// The facts are durable (now or since an earlier time). Where the log, the inbox and the control
    /// lane end, and who listens, if the caller does not know.
    Appended {
        tail: Seq,
        inbox_tail: Place,
        control_tail: Place,
        version: Version,
        listeners: Option<BTreeMap<NodeId, Stamp>>,
    },
    /// Your ownership is over.
    Fenced,
    /// The token is good, but the log does not end where you think.
    Order,
    /// An input you end is not there.
    Gone { place: Place },
    /// Given up.
    Released,
    /// Not given up: the log or the inbox is not as you think.
    Pending,
    /// Handed over, under this token.
    Transferred { token: Token },
    /// From now on the log is sent to you; its owner can be told at once.
    Listening { owner: Seen, tail: Cursor },
    /// A session's present state.
    View(Box<View>),
    /// Facts.
    Heard(Heard),
    /// Inputs and control entries.
    Waiting(Inputs),
    /// Where a run's facts lie.
    Found(Found),
    /// Sessions in the order asked for, and whether there are more behind them.
    Sessions { sessions: Vec<Summary>, more: bool },
    /// Sessions at rest, and the place where the walk goes on; none: the walk is over.
    Idle { sessions: Vec<SessionKey>, next: Option<IdlePlace> },
    /// Sessions, and what was seen of their ownership.
    Work { sessions: Vec<(SessionKey, Seen)> },
    /// What is stored under the name now; version 0: nothing.
    Value { version: u64, value: Option<Vec<u8>> },
}

/// An input or control entry that is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Where it lies.
    pub place: Place,
    /// The place given before it: an owner that has that one needs to read nothing.
    pub prev: Place,
    /// Whom to ring.
    pub owner: Seen,
    /// The log's end when it was first accepted: before its turn's first fact.
    pub tail: Cursor,
    /// It had been accepted before.
    pub duplicate: bool,
    /// It has left the inbox again.
    pub ended: bool,
    /// How many heard that the store rang its owner in the same step, with all of it in the bell. None: it
    /// did not, and whoever asked rings.
    pub rung: Option<u32>,
}

/// Why nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refused {
    /// No such session, or somebody else's.
    NotFound,
    /// The same message id with another body.
    Conflict,
    /// The session is closed.
    Closed,
    /// A turn is open, and the input asked to be refused then.
    Busy,
    /// Inbox, control lane or set of listeners is full.
    TooMany,
    /// The store has no room.
    Full,
    /// The store takes no writes for now.
    ReadOnly,
    /// The store does not allow this node to write.
    Forbidden,
    /// The quota of stored bytes of the user or the tenant is used up.
    Quota,
    /// A record of the session is not what was written: the session is closed off.
    Damaged,
}

impl Refused {
    /// Whether the store refuses anything for now, whatever it is: that says nothing of an earlier try.
    pub fn is_of_store(self) -> bool {
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

/// An ownership, and what its holder has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The fence.
    pub token: Token,
    /// Its present state, in the same step: nobody else writes from here on.
    pub view: View,
    /// What waits.
    pub inbox: Inputs,
    /// Who listens.
    pub listeners: BTreeMap<NodeId, Stamp>,
    /// Of that set.
    pub version: Version,
}

/// What lies in inbox and control lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Inputs in order, those that are not ended.
    pub inputs: Vec<(Place, Arc<Input>)>,
    /// The last place of the inbox ever given.
    pub tail: Place,
    /// Control entries in order, those that are not answered.
    pub controls: Vec<(Place, Arc<Control>)>,
    /// The last place of the control lane ever given.
    pub control_tail: Place,
}

/// A kept state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last fact that is in it.
    pub at: Cursor,
    /// In [`crate::protocol::codec`]'s form.
    pub state: Arc<[u8]>,
}

/// A session's present state: a snapshot and the facts since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Who owns it.
    pub owner: Seen,
    /// Whose it is; none: there is no such session.
    pub user: Option<UserId>,
    /// Whether it is closed.
    pub closed: bool,
    /// The latest kept state.
    pub snapshot: Option<Snapshot>,
    /// The facts after it, with their epochs.
    pub facts: Vec<(Epoch, Arc<Entry>)>,
    /// Where the log ends: after those facts.
    pub tail: Cursor,
    /// Facts up to this are forgotten.
    pub floor: Seq,
}

/// A page of facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The place before the first of them: as asked, or the floor if that is later.
    pub after: Seq,
    /// With their epochs.
    pub facts: Vec<(Epoch, Arc<Entry>)>,
    /// Where the log ends.
    pub tail: Cursor,
    /// Facts up to this are forgotten.
    pub floor: Seq,
}

/// Where a run's facts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The log's end when its input was accepted: all of them are after it.
    pub after: Cursor,
    /// The end of the append that ended it, if it has ended.
    pub ended: Option<Seq>,
}

/// When a session was made, and which: what a list of sessions is ordered by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Birth {
    /// When, by the store's clock.
    pub at: Millis,
    /// Which.
    pub session: SessionId,
}

/// A place in a walk through all sessions: in a tenant, after a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdlePlace {
    /// Tenant whose sessions are looked at.
    pub tenant: TenantId,
    /// Last session that was looked at; none: the tenant's first is next.
    pub after: Option<Birth>,
}

/// A session in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// When it was made, and which it is.
    pub birth: Birth,
    /// Whose it is.
    pub user: UserId,
    /// Whether it is closed.
    pub closed: bool,
    /// Where its log ends.
    pub tail: Seq,
    /// Inputs in its inbox: the running one and those that wait.
    pub pending: u32,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// It may or may not have happened, or may happen yet: ask again, every op is repeatable.
    Unknown,
    /// It did not happen.
    Unavailable,
}
