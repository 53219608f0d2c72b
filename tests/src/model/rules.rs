//! The rules of the protocol, each of which can be broken, and the harm a run may do.

/// What a write must show to be one of the owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Epoch and nonce of the claim, both equal: the design.
    Token,
    /// The epoch alone.
    Epoch,
    /// An epoch that is not lower.
    AtLeast,
}

/// What epochs are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The store's clock, which has moved on with every claim: the design.
    Runs,
    /// The same, but the clock has fallen back: epochs may repeat, and nothing else may be the worse for it.
    FellBack,
    /// They only count from the last one.
    Ignored,
}

/// When a node enters the session into its index, by which others find what it leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Before its claim goes out, and acknowledged by the replica: the design.
    First,
    /// Before its claim goes out, but the replica may lack it.
    Unacknowledged,
    /// Once it owns.
    Late,
}

/// The protocol: each rule as it is meant, or broken.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How writes are fenced.
    pub fence: Fence,
    /// Whether epochs follow the store's clock, so that one that was forgotten is not given again.
    pub clock: Clock,
    /// What is acknowledged is at the replica too.
    pub waits: bool,
    /// A message that was taken is not taken again.
    pub dedupe: bool,
    /// The write that ends a turn needs its input to be there, and takes it away.
    pub consumes: bool,
    /// A write names the place where it goes.
    pub places: bool,
    /// A claim names the ownership it replaces.
    pub expects: bool,
    /// The index.
    pub register: Register,
    /// An owner lets go only when everyone who listens has heard everything.
    pub heard: bool,
    /// Nodes notice that the store is a copy of an earlier one.
    pub eras: bool,
    /// What the dead leave is looked for.
    pub sweeps: bool,
    /// A node that is told that it owns what it does not know of takes it on.
    pub takes_on: bool,
}

impl Rules {
    /// As it is meant.
    pub const DESIGN: Self = Self {
        fence: Fence::Token,
        clock: Clock::Runs,
        waits: true,
        dedupe: true,
        consumes: true,
        places: true,
        expects: true,
        register: Register::First,
        heard: true,
        eras: true,
        sweeps: true,
        takes_on: true,
    };
}

/// How often each may happen in one history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Harm {
    /// A node dies and starts anew.
    pub crashes: u8,
    /// A node sleeps through its lease.
    pub lapses: u8,
    /// The store's replica takes over: what it lacks is forgotten.
    pub failovers: u8,
    /// The same for the store of the index.
    pub index_failovers: u8,
    /// The store does what it is asked, and its answer is lost.
    pub unknowns: u8,
    /// Words between nodes are lost.
    pub losses: u8,
    /// What a node asked before it died, or lost its lease, reaches the store later.
    pub late: u8,
}
