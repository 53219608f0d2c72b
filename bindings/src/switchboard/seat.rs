//! A node's relation to one session it owns, or is about to.
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

/// This node's relation to one session.
#[derive(Debug)]
pub(super) enum Seat {
    /// Asked for.
    Claiming {
        nonce: Nonce,
        /// For metrics.
        since: Mono,
        /// Who may hand it over by this claim, where it was only reserved yet.
        from: Option<NodeId>,
    },
    /// Won; its state is made anew, for what is kept of it cannot be read.
    Loading {
        claimed: Box<Claimed>,
        /// When it was asked for: for metrics.
        since: Mono,
        /// Who had it until then.
        before: Option<NodeId>,
    },
    /// Owned.
    Owned(Box<Owned>),
}

impl Seat {
    /// Whether it is more than reserved.
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

/// A session this node owns.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) token: Token,
    pub(super) runtime: SessionRuntime,
    /// The session after every durable fact: what snapshots are made of.
    pub(super) durable: State,
    pub(super) kept: Seq,
    /// Facts up to here were forgotten by this owner.
    pub(super) trimmed: Seq,
    pub(super) bytes_since_kept: usize,
    /// When message ids may be looked through again for old ones.
    pub(super) expire_at: Option<Mono>,
    /// The append under way: at most one, so that the log's order is the order of decisions.
    pub(super) in_flight: Option<Append>,
    /// When it set out, and the turns it ends: when each came here, and how. For metrics.
    pub(super) sent: Mono,
    pub(super) ending: Vec<(Mono, Strategy)>,
    pub(super) backlog: VecDeque<Record>,
    /// When it is written at the latest, where all of it may wait.
    pub(super) write_at: Option<Mono>,
    /// Control entries that needed no fact.
    pub(super) consumed: Vec<Place>,
    /// The last places of inbox and control lane that were taken.
    pub(super) head: Place,
    pub(super) control_head: Place,
    /// The same when the append under way set out: a store whose lanes end before that has forgotten.
    pub(super) heads: (Place, Place),
    /// A read of inbox and control lane is under way; another is wanted after it.
    pub(super) reading: bool,
    pub(super) read_again: bool,
    pub(super) catching_up: bool,
    pub(super) ears: BTreeMap<NodeId, Ear>,
    /// Who had it before this owner.
    pub(super) before: Option<NodeId>,
    pub(super) version: Version,
    /// Who rang for control entries, to be told when they are answered.
    pub(super) ringers: BTreeMap<ControlId, NodeId>,
    pub(super) lingering: bool,
    pub(super) releasing: bool,
    /// Who was asked to reserve it, while there is no answer.
    pub(super) heir: Option<NodeId>,
    /// The life it was owned under is over: it goes on if this claim wins.
    pub(super) reclaim: Option<Nonce>,
    /// Said while this node had no lease: it waits for one.
    pub(super) unsaid: Vec<Said>,
    /// The store may have forgotten what this owner remembers: it has yet to look.
    pub(super) doubted: bool,
    /// Whom it is counted for.
    pub(super) account: Option<Account>,
    pub(super) booking: Booking,
}

/// A node that listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ear {
    pub(super) stamp: Stamp,
    pub(super) acked: Seq,
    pub(super) silent: u32,
    /// Its stamp when its node's lease was first asked about, and when that was: a newer one was given by a
    /// node that lives.
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

    /// The epoch facts are written under.
    pub(super) fn epoch(&self) -> Epoch {
        self.token.epoch
    }

    /// Nothing to write and nothing under way.
    pub(super) fn is_written(&self) -> bool {
        self.in_flight.is_none() && self.backlog.is_empty() && self.consumed.is_empty()
    }

    /// Whether nothing is to be written that somebody waits for.
    pub(super) fn may_wait(&self) -> bool {
        self.consumed.is_empty() && self.backlog.iter().all(|record| record.entry.fact.may_wait())
    }

    /// Whether a node listens that need not be dead: who had it before is still among those who listen, but most likely
    /// it is its death that brought it here.
    pub(super) fn is_heard(&self) -> bool {
        self.ears.keys().any(|node| Some(*node) != self.before)
    }

    /// Nothing to decide, nothing to write, and everyone has heard everything (I10).
    pub(super) fn is_quiet(&self, me: NodeId) -> bool {
        let tail = self.tail().seq;
        let heard = self.ears.iter().all(|(node, ear)| *node == me || ear.acked >= tail);
        self.is_written() && heard && self.runtime.is_quiet() && !self.reading && !self.releasing
    }

    /// Takes the next input, if it is the next: the payload in a bell spares a read.
    pub(super) fn is_next(&self, place: Place, prev: Place) -> bool {
        place > self.head && prev == self.head
    }
}

/// Inputs after a place, in order.
pub(super) fn newer(inputs: &Inputs, head: Place) -> impl Iterator<Item = (Place, Arc<Input>)> {
    inputs
        .inputs
        .iter()
        .filter(move |(place, _)| *place > head)
        .map(|(place, input)| (*place, Arc::clone(input)))
}
