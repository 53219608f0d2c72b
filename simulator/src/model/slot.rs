//! The store's record of one session in the ownership model, and the atomic steps on it.
use crate::model::rules::{Clock, Fence, Rules};

/// A generation of ownership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    pub epoch: u8,
    /// Number of the claim.
    pub nonce: u8,
}

/// A node in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    pub node: u8,
    /// Number of the life, never reused.
    pub life: u8,
}

/// Ownership as a claimer saw it: holder and epoch.
pub type Seen = (Option<Holder>, u8);

/// Kind of a recorded fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// An attempt began.
    Began,
    /// The turn ended.
    Ended,
}

/// One entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fact {
    pub by: Token,
    pub turn: u8,
    pub what: What,
}

/// The session in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Fencing token of the current ownership.
    pub token: Token,
    pub holder: Option<Holder>,
    /// Inputs whose turns have not ended.
    pub inbox: Vec<u8>,
    /// Messages ever accepted, one bit each.
    pub taken: u8,
    pub log: Vec<Fact>,
    /// Subscriber nodes, one bit each.
    pub listeners: u8,
    /// True if a node wrote that was not the owner.
    pub trespassed: bool,
}

/// Result of an accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The input is stored, or was before.
    Taken,
    /// The session has no owner: the storing node must be registered, so that the input is found if the node dies.
    NoOwner,
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The fact is in the log.
    Done,
    /// The writer is not the owner.
    Fenced,
    /// The log differs from what the owner expects.
    Astray,
}

impl Slot {
    /// Returns the ownership as a claimer sees it.
    pub fn seen(&self) -> Seen {
        (self.holder, self.token.epoch)
    }

    /// Returns the number of ends of a turn.
    pub fn ends(&self, turn: u8) -> usize {
        self.log.iter().filter(|fact| fact.turn == turn && fact.what == What::Ended).count()
    }

    pub(super) fn accept(&mut self, rules: &Rules, turn: u8, registered: bool) -> Accepted {
        if self.taken & (1 << turn) != 0 && rules.dedupe {
            return Accepted::Taken;
        }
        if self.holder.is_none() && !registered {
            return Accepted::NoOwner;
        }
        self.taken |= 1 << turn;
        self.inbox.push(turn);
        Accepted::Taken
    }

    /// `given`: number of epochs ever given; the store's clock has advanced with each.
    pub(super) fn claim(&mut self, rules: &Rules, by: Holder, nonce: u8, expect: Seen, given: u8) -> bool {
        if self.token.nonce == nonce && self.holder == Some(by) {
            return true;
        }
        if self.seen() != expect && rules.expects {
            return false;
        }
        let clock = if rules.clock == Clock::Runs { given } else { 0 };
        self.token = Token { epoch: clock.max(self.token.epoch) + 1, nonce };
        self.holder = Some(by);
        true
    }

    fn is_fenced(&self, rules: &Rules, token: Token) -> bool {
        let passes = match rules.fence {
            Fence::Token => token == self.token,
            Fence::Epoch => token.epoch == self.token.epoch,
            Fence::AtLeast => token.epoch >= self.token.epoch,
        };
        !passes || self.holder.is_none()
    }

    pub(super) fn append(&mut self, rules: &Rules, token: Token, at: u8, fact: Option<Fact>) -> Written {
        if self.is_fenced(rules, token) {
            return Written::Fenced;
        }
        let at = usize::from(at);
        let repeat = fact.is_some() && self.log.get(at) == fact.as_ref();
        if rules.places && (repeat || at != self.log.len()) {
            return if repeat { Written::Done } else { Written::Astray };
        }
        let Some(fact) = fact else { return Written::Done };
        if fact.what == What::Ended && rules.consumes {
            let Some(lies) = self.inbox.iter().position(|turn| *turn == fact.turn) else {
                return Written::Astray;
            };
            self.inbox.remove(lies);
        }
        self.log.push(fact);
        self.trespassed |= token != self.token;
        Written::Done
    }

    pub(super) fn release(&mut self, rules: &Rules, token: Token, at: u8) -> Written {
        if self.is_fenced(rules, token) {
            return Written::Fenced;
        }
        if usize::from(at) != self.log.len() || !self.inbox.is_empty() {
            return Written::Astray;
        }
        self.holder = None;
        Written::Done
    }
}
