//! How much a node has to do, in a few numbers: for the list of nodes.
use super::Metrics;
use serde::{Deserialize, Serialize};

/// What a node says of its work. Numbers that a release does not know are 0 there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Sessions it owns, or is about to.
    pub sessions_owned: u64,
    /// Turns of these that have not ended.
    pub open_turns: u64,
    /// Sessions it listens to, whoever owns them.
    pub sessions_followed: u64,
    /// Its connections that were admitted.
    pub links: u64,
    /// Inputs that wait for its switchboard.
    pub queue: u64,
    /// Microseconds from the node to itself by way of the bus, or since it last heard itself where that is
    /// overdue; none where there is no bus, or nothing was heard yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_lag_us: Option<u64>,
    /// Milliseconds by which the system's clock is ahead of the store's; negative where it is behind.
    pub clock_skew_ms: i64,
}

// === impl Load ===

impl Load {
    /// As it was counted last, a quarter of a second ago or so.
    pub fn of(metrics: &Metrics) -> Self {
        let stats = metrics.switchboard.told();
        Self {
            sessions_owned: stats.seats,
            open_turns: stats.open_turns,
            sessions_followed: stats.feeds,
            links: stats.links,
            queue: metrics.driver.waiting(),
            bus_lag_us: None,
            clock_skew_ms: metrics.node.skew_ms(),
        }
    }
}
