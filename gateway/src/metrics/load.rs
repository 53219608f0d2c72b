//! Summary of a node's load, for the list of nodes.
use super::Metrics;
use serde::{Deserialize, Serialize};

/// The load of a node. A number that the node's release does not report is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeLoad {
    /// Sessions that the node owns or is about to own.
    pub sessions_owned: u64,
    /// Turns of owned sessions that have not ended.
    pub open_turns: u64,
    /// Sessions that the node subscribes to, whoever owns them.
    pub sessions_followed: u64,
    /// Admitted connections of clients.
    pub links: u64,
    /// Inputs that wait for the switchboard.
    pub queue: u64,
    /// Microseconds for a message from the node to itself over the bus, or since the last such message if one
    /// is overdue. `None` if there is no bus, or no message has arrived yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_lag_us: Option<u64>,
    /// Milliseconds by which the system's clock is ahead of the store's; negative if it is behind.
    pub clock_skew_ms: i64,
}

// === impl NodeLoad ===

impl NodeLoad {
    /// Returns the load from the latest statistics, which are about a quarter of a second old.
    pub fn from_metrics(metrics: &Metrics) -> Self {
        let stats = metrics.switchboard.stats();
        Self {
            sessions_owned: stats.owned_sessions,
            open_turns: stats.open_turns,
            sessions_followed: stats.feeds,
            links: stats.links,
            queue: metrics.driver.queued_inputs(),
            bus_lag_us: None,
            clock_skew_ms: metrics.node.skew_ms(),
        }
    }
}
