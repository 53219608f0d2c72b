//! The state of a session that this node owns, or claims.
use super::holdings::Booking;
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::Arc;
use turnway_core::id::{ControlId, Cursor, Epoch, NodeId, Nonce, Place, Seq, Stamp, Token, Version};
use turnway_core::protocol::input::{Input, Strategy};
use turnway_core::session::{Output as Said, Record, SessionRuntime, State};
use turnway_core::share::Account;
use turnway_core::store::{Append, Claimed, Inputs};
use turnway_core::time::Mono;

/// This node's ownership of one session.
#[derive(Debug)]
pub(super) enum Seat {
    /// Claim in flight.
    Claiming {
        nonce: Nonce,
        /// For metrics.
        since: Mono,
        /// The node that may hand the session over by this claim, if the session is only reserved.
        from: Option<NodeId>,
    },
    /// Claimed; the state is being rebuilt, because the stored snapshot cannot be read.
    Loading {
        claimed: Box<Claimed>,
        /// Start of the claim, for metrics.
        since: Mono,
        /// The previous owner.
        before: Option<NodeId>,
    },
    Owned(Box<Owned>),
}

impl Seat {
    /// Returns whether the session is more than reserved.
    pub(super) fn is_taken(&self) -> bool {
        !matches!(self, Self::Claiming { from: Some(_), .. })
    }
    pub(super) fn owned(&self) -> Option<&Owned> {
        match self {
            Self::Owned(owned) => Some(owned),
            Self::Claiming { .. } | Self::Loading { .. } => None,
        }
    }
    pub(super) fn owned_mut(&mut self) -> Option<&mut Owned> {
        match self {
            Self::Owned(owned) => Some(owned),
            Self::Claiming { .. } | Self::Loading { .. } => None,
        }
    }
}

/// A session that this node owns.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) token: Token,
    pub(super) runtime: SessionRuntime,
    /// The session after every durable fact; snapshots are made from it.
    pub(super) durable: State,
    pub(super) kept: Seq,
    /// Facts up to here were trimmed by this owner.
    pub(super) trimmed: Seq,
    pub(super) bytes_since_kept: usize,
    /// Time from which expired message ids may be searched again.
    pub(super) expire_at: Option<Mono>,
    /// The append in flight; at most one, so that the log's order is the order of decisions.
    pub(super) in_flight: Option<Append>,
    /// Start of the append in flight. `ending`: for each turn that it ends, the time of arrival and the strategy.
    /// For metrics.
    pub(super) sent: Mono,
    pub(super) ending: Vec<(Mono, Strategy)>,
    pub(super) backlog: VecDeque<Record>,
    /// The deadline of a write that may be delayed.
    pub(super) write_at: Option<Mono>,
    /// Control entries that needed no fact.
    pub(super) consumed: Vec<Place>,
    /// The last positions of inbox and control lane that were handled.
    pub(super) head: Place,
    pub(super) control_head: Place,
    /// The same when the append in flight started; a store whose lanes end before that has lost entries.
    pub(super) heads: (Place, Place),
    /// A read of inbox and control lane is in flight; `read_again`: another one must follow.
    pub(super) reading: bool,
    pub(super) read_again: bool,
    pub(super) catching_up: bool,
    pub(super) ears: BTreeMap<NodeId, Ear>,
    /// The previous owner.
    pub(super) before: Option<NodeId>,
    pub(super) version: Version,
    /// The nodes that offered control entries, to be notified of the answers.
    pub(super) ringers: BTreeMap<ControlId, NodeId>,
    pub(super) lingering: bool,
    pub(super) releasing: bool,
    /// The node that was asked to reserve the session, until it answers.
    pub(super) heir: Option<NodeId>,
    /// The lease of the ownership is lost; the session continues if this claim wins.
    pub(super) reclaim: Option<Nonce>,
    /// Outputs held back while this node has no lease.
    pub(super) unsaid: Vec<Said>,
    /// The store may have lost writes, and this owner has yet to check its log.
    pub(super) doubted: bool,
    /// The account that the session counts for.
    pub(super) account: Option<Account>,
    pub(super) booking: Booking,
}

/// A subscriber node of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ear {
    pub(super) stamp: Stamp,
    pub(super) acked: Seq,
    pub(super) silent: u32,
    /// The stamp at the first lease check after a doubt, and the time of the check; a newer stamp proves that the
    /// node is alive.
    pub(super) doubted: Option<(Stamp, Mono)>,
}

impl Ear {
    pub(super) fn new(stamp: Stamp) -> Self {
        Self { stamp, acked: Seq(0), silent: 0, doubted: None }
    }
}

impl Owned {
    pub(super) fn new(claimed: &Claimed, runtime: SessionRuntime, durable: State, kept: Seq) -> Self {
        let ears = claimed.listeners.iter().map(|(node, stamp)| (*node, Ear::new(*stamp)));
        Self {
            token: claimed.token,
            runtime,
            durable,
            kept,
            trimmed: Seq(0),
            bytes_since_kept: 0,
            expire_at: None,
            in_flight: None,
            sent: Mono::default(),
            ending: Vec::new(),
            backlog: VecDeque::new(),
            write_at: None,
            consumed: Vec::new(),
            head: Place(0),
            control_head: Place(0),
            heads: (Place(0), Place(0)),
            reading: false,
            read_again: false,
            catching_up: false,
            ears: ears.collect(),
            before: None,
            version: claimed.version,
            ringers: BTreeMap::new(),
            lingering: false,
            releasing: false,
            heir: None,
            reclaim: None,
            unsaid: Vec::new(),
            doubted: false,
            account: None,
            booking: Booking::None,
        }
    }

    pub(super) fn tail(&self) -> Cursor {
        self.durable.tail
    }

    /// Returns the epoch that facts are written under.
    pub(super) fn epoch(&self) -> Epoch {
        self.token.epoch
    }

    /// Returns whether nothing is to be written and no write is in flight.
    pub(super) fn is_written(&self) -> bool {
        self.in_flight.is_none() && self.backlog.is_empty() && self.consumed.is_empty()
    }

    /// Returns whether every pending write may be delayed, because no client waits for it.
    pub(super) fn may_wait(&self) -> bool {
        self.consumed.is_empty() && self.backlog.iter().all(|record| record.entry.fact.may_wait())
    }

    /// Returns whether a probably live node subscribes. The previous owner's subscription does not count, because
    /// its death is the likely reason for the takeover.
    pub(super) fn is_heard(&self) -> bool {
        self.ears.keys().any(|node| Some(*node) != self.before)
    }

    /// Returns whether nothing is to be decided or written, and every subscriber has acknowledged everything (I10).
    pub(super) fn is_quiet(&self, me: NodeId) -> bool {
        let tail = self.tail().seq;
        let heard = self.ears.iter().all(|(node, ear)| *node == me || ear.acked >= tail);
        self.is_written() && heard && self.runtime.is_quiet() && !self.reading && !self.releasing
    }

    /// Returns whether an offered input directly follows the last one, so that its content spares a read of the
    /// inbox.
    pub(super) fn is_next(&self, place: Place, prev: Place) -> bool {
        place > self.head && prev == self.head
    }
}

/// Returns the inputs after a position, in order.
pub(super) fn newer(inputs: &Inputs, head: Place) -> impl Iterator<Item = (Place, Arc<Input>)> {
    inputs
        .inputs
        .iter()
        .filter(move |(place, _)| *place > head)
        .map(|(place, input)| (*place, Arc::clone(input)))
}
