//! What is counted, by area: families in a registry that is passed in, with bounded labels (S-39).
//!
//! - [`links`], [`store`], [`driver`], [`agents`]: what the shell's rooms count themselves.
//! - [`switchboard`]: what the brain counts, told by the driver.
mod agents;
mod driver;
mod links;
mod store;
mod switchboard;

pub use agents::AgentMetrics;
pub use driver::{DriverMetrics, Source};
pub use links::{Direction, Handshake, LinkMetrics};
pub use store::StoreMetrics;
pub use switchboard::SwitchboardMetrics;

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{IntGaugeVec, Opts, Registry};

/// Every family of a node.
#[derive(Debug)]
pub struct Metrics {
    /// Connections of clients.
    pub links: LinkMetrics,
    /// What is asked of the store.
    pub store: StoreMetrics,
    /// The task that owns the switchboard.
    pub driver: DriverMetrics,
    /// What is ordered of agents.
    pub agents: AgentMetrics,
    /// The brain.
    pub switchboard: SwitchboardMetrics,
}

// === impl Metrics ===

impl Metrics {
    /// Makes every family and puts it into the registry.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let build = Opts::new("turnway_build_info", "Which build this is; always 1.");
        let build = add(registry, IntGaugeVec::new(build, &["version"])?)?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(Self {
            links: LinkMetrics::register(registry)?,
            store: StoreMetrics::register(registry)?,
            driver: DriverMetrics::register(registry)?,
            agents: AgentMetrics::register(registry)?,
            switchboard: SwitchboardMetrics::register(registry)?,
        })
    }
}

/// Registers a family and keeps a handle to it.
fn add<C: Collector + Clone + 'static>(registry: &Registry, family: C) -> prometheus::Result<C> {
    registry.register(Box::new(family.clone()))?;
    Ok(family)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{Encoder, TextEncoder};

    #[test]
    fn every_family_is_named_after_its_area_and_carries_no_id() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).expect("each family once");
        metrics.links.closed(4508);
        metrics.links.closed(12345);
        metrics.agents.ordered("invoke");
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).expect("text");
        let text = String::from_utf8(text).expect("UTF-8");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.starts_with("turnway_") || line.starts_with("process_"), "{line}");
        }
        assert!(text.contains("turnway_link_closes_total{code=\"4508\"} 1"), "{text}");
        assert!(text.contains("turnway_link_closes_total{code=\"other\"} 1"), "{text}");
        assert!(Metrics::register(&registry).is_err());
    }
}
