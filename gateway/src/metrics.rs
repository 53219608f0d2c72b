//! What is counted, by area: families in a registry that is passed in, with bounded labels (S-39).
//!
//! - [`links`], [`tls`], [`auth`], [`http`], [`store`], [`driver`], [`agents`], [`bus`], [`node`]: what the shell's rooms count themselves.
//! - [`switchboard`]: what the brain counts, told by the driver.
//! - [`load`]: how much of it there is to do, in a few numbers.
//! - [`workshop`]: where families are made; [`document`]: how they are described to people.
mod agents;
mod auth;
mod buckets;
mod bus;
mod document;
mod driver;
mod http;
mod links;
mod load;
mod node;
mod store;
mod switchboard;
mod tls;
mod workshop;

pub use agents::{AgentMetrics, DialedIn};
pub use auth::{AuthMetrics, Denial, Fetch, Limited, Told};
pub use bus::{BusMetrics, Lapse, Loss};
pub use document::document;
pub use driver::{DriverMetrics, Source};
pub use http::{HttpMetrics, Method as HttpMethod, ROUTES};
pub use links::{Direction, Handshake, LinkMetrics, Transport};
pub use load::Load;
pub use node::NodeMetrics;
pub use store::{StoreMetrics, Unanswered};
pub use switchboard::SwitchboardMetrics;
pub use tls::{Greeting, TlsMetrics};
pub use workshop::{Family, Kind, Label};

use prometheus::Registry;
use prometheus::process_collector::ProcessCollector;
use workshop::Workshop;

/// Every family of a node.
#[derive(Debug)]
pub struct Metrics {
    /// Connections of clients.
    pub links: LinkMetrics,
    /// TLS under them.
    pub tls: TlsMetrics,
    /// Who is let in.
    pub auth: AuthMetrics,
    /// Requests that stay HTTP.
    pub http: HttpMetrics,
    /// What is asked of the store.
    pub store: StoreMetrics,
    /// The task that owns the switchboard.
    pub driver: DriverMetrics,
    /// What is ordered of agents.
    pub agents: AgentMetrics,
    /// The brain.
    pub switchboard: SwitchboardMetrics,
    /// Words of and to other nodes.
    pub bus: BusMetrics,
    /// The process.
    pub node: NodeMetrics,
    families: Vec<Family>,
}

/// An enum whose values are the values of a label: their numbers are their places, in `NAMES` too.
macro_rules! label_values {
    ($(#[$doc:meta])* $vis:vis $kind:ident { $($(#[$value_doc:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $kind {
            $($(#[$value_doc])* $value,)*
        }
        impl $kind {
            pub(super) const NAMES: [&'static str; [$($name),*].len()] = [$($name),*];
        }
    };
}
use label_values;

// === impl Metrics ===

impl Metrics {
    /// Makes every family and puts it into the registry.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let workshop = &mut Workshop::new(registry);
        Ok(Self {
            links: LinkMetrics::register(workshop)?,
            tls: TlsMetrics::register(workshop)?,
            auth: AuthMetrics::register(workshop)?,
            http: HttpMetrics::register(workshop)?,
            store: StoreMetrics::register(workshop)?,
            driver: DriverMetrics::register(workshop)?,
            agents: AgentMetrics::register(workshop)?,
            switchboard: SwitchboardMetrics::register(workshop)?,
            bus: BusMetrics::register(workshop)?,
            node: NodeMetrics::register(workshop)?,
            families: std::mem::take(&mut workshop.families),
        })
    }

    /// Every family of ours, as it is documented.
    pub fn families(&self) -> &[Family] {
        &self.families
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{Encoder, TextEncoder};

    #[test]
    fn every_family_is_named_after_its_area_and_carries_no_id() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).expect("each family once");
        metrics.links.closed(Transport::WebSocket, 4508);
        metrics.links.closed(Transport::WebSocket, 12345);
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).expect("text");
        let text = String::from_utf8(text).expect("UTF-8");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.starts_with("turnway_") || line.starts_with("process_"), "{line}");
        }
        for code in ["4508", "other"] {
            let line = format!("turnway_link_closes_total{{code=\"{code}\",transport=\"websocket\"}} 1");
            assert!(text.contains(&line), "{line} is not in {text}");
        }
        assert!(Metrics::register(&registry).is_err());
    }
}
