//! What the store keeps of one session, and the atomic steps on it.
use crate::model::rules::{Clock, Fence, Rules};

/// A generation of ownership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    /// Its number.
    pub epoch: u8,
    /// Which claim it was.
    pub nonce: u8,
}

/// A node in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Which node.
    pub node: u8,
    /// Never used again.
    pub life: u8,
}

/// What a claimer saw.
pub type Seen = (Option<Holder>, u8);

/// What is recorded of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// An attempt at it.
    Began,
    /// Its end.
    Ended,
}

/// One entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fact {
    /// Under which ownership.
    pub by: Token,
    /// Which turn.
    pub turn: u8,
    /// What of it.
    pub what: What,
}

/// The session in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The fence.
    pub token: Token,
    /// The owner.
    pub holder: Option<Holder>,
    /// Inputs not yet ended.
    pub inbox: Vec<u8>,
    /// Messages ever taken, a bit for each.
    pub taken: u8,
    /// What happened.
    pub log: Vec<Fact>,
    /// Nodes that listen, a bit for each.
    pub ears: u8,
    /// Somebody wrote who did not own.
    pub trespassed: bool,
}

/// What became of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is there, or was.
    Taken,
    /// Nobody owns the session: whoever stores it must be found if it dies.
    NoOwner,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is there.
    Done,
    /// It was not the owner's.
    Fenced,
    /// The owner does not know how things stand.
    Astray,
}

impl Slot {
    /// What is to be seen of its ownership.
    pub fn seen(&self) -> Seen {
        (self.holder, self.token.epoch)
    }

    /// How often a turn has ended.
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

    /// `given`: epochs that were ever given; the store's clock has moved on with each.
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
