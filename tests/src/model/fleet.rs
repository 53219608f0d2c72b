//! Everything there is: the store and its replica, the nodes, what is under way, and what was promised.
use crate::model::rules::Harm;
use crate::model::slot::{Fact, Holder, Seen, Slot, Token};

/// Nodes of the fleet.
pub const NODES: u8 = 2;

/// What a node asks of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Enter the session into the index of a life.
    Register {
        /// Whose.
        life: u8,
    },
    /// Take an input.
    Accept {
        /// Which.
        turn: u8,
        /// The asker is in the index.
        registered: bool,
    },
    /// Become the owner.
    Claim {
        /// Who.
        by: Holder,
        /// Which claim.
        nonce: u8,
        /// What it saw.
        expect: Seen,
    },
    /// Write a fact, or only see that all is as it should be.
    Append {
        /// By whom.
        token: Token,
        /// Where.
        at: u8,
        /// What.
        fact: Option<Fact>,
    },
    /// Let go.
    Release {
        /// By whom.
        token: Token,
        /// Where the log ends.
        at: u8,
    },
}

/// An ownership as its owner knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    /// What it shows.
    pub token: Token,
    /// Where the log ends.
    pub tail: u8,
    /// Inputs it knows of.
    pub inbox: Vec<u8>,
    /// The turn it has begun.
    pub begun: Option<u8>,
    /// Whoever else listens has all of the log.
    pub heard: bool,
    /// The store may have forgotten what this owner knows.
    pub doubted: bool,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its lease, as far as it knows.
    pub life: Option<u8>,
    /// The session is in the index of this life.
    pub registered: bool,
    /// It was told that it must be.
    pub unregistered: bool,
    /// The store it knows.
    pub era: u8,
    /// The session, if it owns it.
    pub seat: Option<Seat>,
    /// What it asks the store.
    pub call: Option<Call>,
    /// Turns that somebody asks for here and has no answer about, a bit for each.
    pub asks: u8,
    /// Turns accepted here of which no owner is known to have heard, a bit for each.
    pub rings: u8,
    /// The store may take it for the owner.
    pub rung: bool,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fleet {
    /// The store.
    pub store: Slot,
    /// Its replica.
    pub copy: Slot,
    /// Lives in whose index the session is, a bit for each: in another store, with a replica of its own.
    pub index: u16,
    /// The replica of that.
    pub index_copy: u16,
    /// Lives with a lease, a bit for each.
    pub leased: u16,
    /// How often the replica took over.
    pub era: u8,
    /// The nodes.
    pub nodes: [Node; NODES as usize],
    /// A bell is under way to these nodes.
    pub bells: u8,
    /// News of the log are under way to these nodes.
    pub news: u8,
    /// What was asked by those who are gone.
    pub late: Vec<Call>,
    /// Turns whose asker was told that they are accepted, a bit for each.
    pub accepted: u8,
    /// Where somebody listens.
    pub edge: Option<u8>,
    /// What they were shown.
    pub shown: Vec<Fact>,
    /// What an owner was told is in the log.
    pub acknowledged: Vec<Fact>,
    /// Every claim that was granted.
    pub granted: Vec<Token>,
    /// Lives and claims so far.
    pub lives: u8,
    /// The same for claims.
    pub nonces: u8,
    /// Turns that are asked for.
    pub turns: u8,
    /// Harm that may still be done.
    pub left: Harm,
}

impl Fleet {
    /// Two nodes, one with somebody who listens, and a session that nobody owns.
    pub fn new(turns: u8, left: Harm) -> Self {
        let node = |life| Node { life: Some(life), ..Node::default() };
        let slot = Slot { ears: 0b10, ..Slot::default() };
        Self {
            store: slot.clone(),
            copy: slot,
            index: 0,
            index_copy: 0,
            leased: 0b11,
            era: 0,
            nodes: [node(0), node(1)],
            bells: 0,
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

    /// Whose lease runs although nobody lives by it.
    pub(super) fn ghosts(&self) -> impl Iterator<Item = u8> + '_ {
        let lived = |life: &u8| self.nodes.iter().any(|node| node.life == Some(*life));
        (0..self.lives).filter(move |life| self.is_leased(*life) && !lived(life))
    }

    /// Nodes other than this one that listen, a bit for each.
    pub(super) fn others(&self, n: u8) -> u8 {
        self.store.ears & !(1 << n)
    }
}
