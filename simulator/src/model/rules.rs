//! The rules of the protocol, each of which can be switched off, and the faults of a run.

/// Check of a write against the current ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Epoch and nonce of the claim must both be equal: the design.
    Token,
    /// Only the epoch must be equal.
    Epoch,
    /// The epoch must not be lower.
    AtLeast,
}

/// Source of new epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The store's clock, which has advanced with every claim: the design.
    Runs,
    /// The store's clock, which was set back: epochs may repeat, and all other properties must hold.
    FellBack,
    /// A counter from the last epoch.
    Ignored,
}

/// Time at which a node enters the session into its index, by which other nodes find its abandoned sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Before the claim is sent, and acknowledged by the replica: the design.
    First,
    /// Before the claim is sent, but the replica may lack it.
    Unacknowledged,
    /// After the claim.
    Late,
}

/// Rules of the protocol, each as designed or broken.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub fence: Fence,
    /// Rule: epochs follow the store's clock, so that a lost epoch is not given again.
    pub clock: Clock,
    /// Rule: an acknowledged write is on the replica too.
    pub waits: bool,
    /// Rule: an accepted message is not accepted again.
    pub dedupe: bool,
    /// Rule: the write that ends a turn needs the turn's input, and removes it.
    pub consumes: bool,
    /// Rule: a write names its position in the log.
    pub places: bool,
    /// Rule: a claim names the ownership that it replaces.
    pub expects: bool,
    /// Time of the registration in the index.
    pub register: Register,
    /// Rule: an owner releases only when all subscribers have all facts.
    pub heard: bool,
    /// Rule: nodes notice that the store is an older copy.
    pub eras: bool,
    /// Rule: nodes search for abandoned sessions.
    pub sweeps: bool,
    /// Rule: a node that is named as the owner, but does not know the session, takes it over.
    pub takes_on: bool,
}

impl Rules {
    /// The rules as designed.
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

/// Maximum number of each fault in one history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FaultBudget {
    /// A node crashes and restarts.
    pub crashes: u8,
    /// A node is paused until its lease has expired.
    pub lapses: u8,
    /// The store's replica takes over and lacks the last writes.
    pub failovers: u8,
    /// The index's replica takes over.
    pub index_failovers: u8,
    /// The store performs a call, and its answer is lost.
    pub unknowns: u8,
    /// Messages between nodes are lost.
    pub losses: u8,
    /// A call of a node that died or lost its lease reaches the store later.
    pub late: u8,
}
