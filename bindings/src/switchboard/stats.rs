//! What a node counts. Plain numbers: the shell makes metrics of them.

/// Totals since start, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Now: links.
    pub links: u64,
    /// Now: sessions listened to.
    pub feeds: u64,
    /// Now: sessions owned, or about to be.
    pub seats: u64,
    /// Now: requests on their way.
    pub asks: u64,
    /// Now: timers set.
    pub timers: u64,
    /// Now: turns of owned sessions that have not ended.
    pub open_turns: u64,
    /// Inputs accepted for links here.
    pub accepted: u64,
    /// Of these, repeats.
    pub duplicates: u64,
    /// Requests refused.
    pub refused: u64,
    /// Turns ended here: completed.
    pub turns_completed: u64,
    /// Turns ended here: failed.
    pub turns_failed: u64,
    /// Turns ended here: cancelled.
    pub turns_cancelled: u64,
    /// Attempts after the first.
    pub restarts: u64,
    /// Reports of agents that came too late: dropped.
    pub late_reports: u64,
    /// Facts written here.
    pub facts: u64,
    /// Claims that won.
    pub claims: u64,
    /// Claims that won over a holder that was gone.
    pub takeovers: u64,
    /// Claims that lost.
    pub claims_held: u64,
    /// Writes the fence refused: this node had been replaced.
    pub fenced: u64,
    /// Seats given up because store and memory did not agree.
    pub abandoned: u64,
    /// Seats released.
    pub released: u64,
    /// Leases lost.
    pub leases_lost: u64,
    /// Ops asked again.
    pub store_retries: u64,
    /// Facts shown to links.
    pub facts_shown: u64,
    /// Pieces of text shown to links.
    pub deltas_shown: u64,
    /// Subscriptions answered.
    pub subscribed: u64,
    /// Of these, with a reset.
    pub resets: u64,
    /// Snapshots this release could not read; their states were rebuilt from the log.
    pub snapshots_unreadable: u64,
    /// Times a link was too slow and its cursor stood still.
    pub slow_links: u64,
    /// Gaps noticed in what owners said.
    pub gaps: u64,
    /// Words to other nodes.
    pub words: u64,
}
