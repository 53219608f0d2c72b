//! State of the ownership model: the store and its replica, the nodes, messages and calls in flight, and the
//! acknowledgements given.
use crate::model::rules::FaultBudget;
use crate::model::slot::{Fact, Holder, Seen, Slot, Token};

/// Nodes of the fleet.
pub const NODES: u8 = 2;

/// A node's request to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Enters the session into the index of a life.
    Register { life: u8 },
    /// Stores an input.
    Accept {
        turn: u8,
        /// True if the node has registered the session.
        registered: bool,
    },
    /// Claims the ownership.
    Claim {
        by: Holder,
        nonce: u8,
        /// Ownership that the node saw before the claim.
        expect: Seen,
    },
    /// Writes a fact, or only checks the ownership.
    Append {
        token: Token,
        /// Log length that the owner expects.
        at: u8,
        fact: Option<Fact>,
    },
    /// Releases the ownership.
    Release {
        token: Token,
        /// Log length that the owner expects.
        at: u8,
    },
}

/// An ownership as its owner knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ownership {
    /// Fencing token of the owner's writes.
    pub token: Token,
    /// Length of the log.
    pub tail: u8,
    /// Inputs that the owner knows.
    pub inbox: Vec<u8>,
    /// Turn that the owner has begun.
    pub begun: Option<u8>,
    /// True if all other subscriber nodes have the whole log.
    pub delivered: bool,
    /// True if the store may have lost facts that the owner knows.
    pub uncertain: bool,
}

/// State of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    /// Life of the node's lease, as far as the node knows.
    pub life: Option<u8>,
    /// True if the session is in the index of this life.
    pub registered: bool,
    /// True if the store refused an input because the session was not registered.
    pub unregistered: bool,
    /// Store era that the node knows.
    pub era: u8,
    /// The session, if the node owns it.
    pub seat: Option<Ownership>,
    /// Store call in flight.
    pub call: Option<Call>,
    /// Turns requested at this node and not yet answered, one bit each.
    pub requested: u8,
    /// Turns accepted here whose receipt no owner has confirmed, one bit each.
    pub unconfirmed: u8,
    /// True if the store may name this node as the owner.
    pub named_owner: bool,
}

/// State of the whole fleet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fleet {
    pub store: Slot,
    /// Replica of the store.
    pub copy: Slot,
    /// Lives in whose index the session is, one bit each; the index is in another store with its own replica.
    pub index: u16,
    /// Replica of `index`.
    pub index_copy: u16,
    /// Lives with a valid lease, one bit each.
    pub leased: u16,
    /// Number of failovers of the store.
    pub era: u8,
    pub nodes: [Node; NODES as usize],
    /// Nodes to which an offer is in flight, one bit each.
    pub offers: u8,
    /// Nodes to which news of the log is in flight, one bit each.
    pub news: u8,
    /// Calls of dead lives that may still reach the store.
    pub late: Vec<Call>,
    /// Turns acknowledged as accepted, one bit each.
    pub accepted: u8,
    /// Node at which the subscriber is connected.
    pub edge: Option<u8>,
    /// Facts that the subscriber was shown.
    pub shown: Vec<Fact>,
    /// Facts that were acknowledged to an owner.
    pub acknowledged: Vec<Fact>,
    /// Every claim that was granted.
    pub granted: Vec<Token>,
    /// Lives so far.
    pub lives: u8,
    /// Claims so far.
    pub nonces: u8,
    /// Turns that clients request.
    pub turns: u8,
    /// Faults that may still happen.
    pub left: FaultBudget,
}

impl Fleet {
    /// Creates two nodes, one of them with a subscriber, and a session without an owner.
    pub fn new(turns: u8, left: FaultBudget) -> Self {
        let node = |life| Node { life: Some(life), ..Node::default() };
        let slot = Slot { listeners: 0b10, ..Slot::default() };
        Self {
            store: slot.clone(),
            copy: slot,
            index: 0,
            index_copy: 0,
            leased: 0b11,
            era: 0,
            nodes: [node(0), node(1)],
            offers: 0,
            news: 0,
            late: Vec::new(),
            accepted: 0,
            edge: Some(1),
            shown: Vec::new(),
            acknowledged: Vec::new(),
            granted: Vec::new(),
            lives: NODES,
            nonces: 0,
            turns,
            left,
        }
    }

    pub(super) fn node(&self, n: u8) -> &Node {
        &self.nodes[usize::from(n)]
    }

    pub(super) fn node_mut(&mut self, n: u8) -> &mut Node {
        &mut self.nodes[usize::from(n)]
    }

    pub(super) fn is_leased(&self, life: u8) -> bool {
        self.leased & (1 << life) != 0
    }

    /// Returns the lives that have a lease although no node uses them.
    pub(super) fn ghosts(&self) -> impl Iterator<Item = u8> + '_ {
        let lived = |life: &u8| self.nodes.iter().any(|node| node.life == Some(*life));
        (0..self.lives).filter(move |life| self.is_leased(*life) && !lived(life))
    }

    /// Returns the other subscriber nodes, one bit each.
    pub(super) fn others(&self, n: u8) -> u8 {
        self.store.listeners & !(1 << n)
    }
}
