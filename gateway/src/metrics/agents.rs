//! What is ordered of agents, and how their calls end.
use super::add;
use prometheus::{IntCounterVec, Opts, Registry};

/// What is counted of agents.
#[derive(Debug)]
pub struct AgentMetrics {
    orders: IntCounterVec,
    calls: IntCounterVec,
}

// === impl AgentMetrics ===

impl AgentMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let orders = Opts::new("turnway_agent_orders_total", "What agents were told.");
        let calls = Opts::new("turnway_agent_calls_total", "How calls of agents ended.");
        Ok(Self {
            orders: add(registry, IntCounterVec::new(orders, &["order"])?)?,
            calls: add(registry, IntCounterVec::new(calls, &["outcome"])?)?,
        })
    }

    /// An agent is told this.
    pub fn ordered(&self, order: &'static str) {
        self.orders.with_label_values(&[order]).inc();
    }

    /// A call ended like this.
    pub fn ended(&self, outcome: &'static str) {
        self.calls.with_label_values(&[outcome]).inc();
    }
}
