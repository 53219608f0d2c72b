//! The metrics of a node, by area: families in a registry that is passed in, with bounded labels (S-39). `family`
//! builds families, `document` prints their documentation, and `load` sums up the load. Updated by all parts of
//! the gateway.
mod agents;
mod auth;
mod blobs;
mod buckets;
mod bus;
mod document;
mod driver;
mod family;
mod http;
mod links;
mod load;
mod models;
mod node;
mod store;
mod switchboard;
mod tls;

pub use agents::{AgentMetrics, ConnectionGauge};
pub use auth::{AuthMetrics, DenialReason, FetchOutcome, RateExchange, RateScope};
pub use blobs::{BlobMetrics, BodyOperation, BodyRequestResult};
pub use bus::{BusMetrics, GapCause, LossReason};
pub use document::document;
pub use driver::{DriverMetrics, InputSource};
pub use family::{FamilySpec, LabelSpec, MetricKind};
pub use http::{HttpMethod, HttpMetrics, ROUTES};
pub use links::{Direction, HandshakeOutcome, LinkMetrics, Transport};
pub use load::NodeLoad;
pub use models::{ModelAttemptOutcome, ModelCallOutcome, ModelMetrics, UpstreamGauge};
pub use node::NodeMetrics;
pub use store::{PendingOps, StoreMetrics};
pub use switchboard::SwitchboardMetrics;
pub use tls::{TlsHandshakeOutcome, TlsMetrics};

use family::FamilyBuilder;
use prometheus::Registry;
use prometheus::process_collector::ProcessCollector;

/// Every metric family of a node.
#[derive(Debug)]
pub struct Metrics {
    pub links: LinkMetrics,
    /// TLS handshakes and certificates.
    pub tls: TlsMetrics,
    /// Authentication and rate limits.
    pub auth: AuthMetrics,
    /// HTTP requests that do not become links.
    pub http: HttpMetrics,
    /// Operations of the store.
    pub store: StoreMetrics,
    /// Requests to the S3-compatible store of files.
    pub blobs: BlobMetrics,
    /// The task that owns the switchboard.
    pub driver: DriverMetrics,
    /// Orders to agents, and their reports.
    pub agents: AgentMetrics,
    /// Calls of models.
    pub models: ModelMetrics,
    /// The switchboard's own statistics, updated by the driver.
    pub switchboard: SwitchboardMetrics,
    /// Messages between nodes.
    pub bus: BusMetrics,
    /// The node and its process.
    pub node: NodeMetrics,
    families: Vec<FamilySpec>,
}

/// Defines an enum whose variants are the values of a label, with their names at the same indices in `NAMES`.
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
    /// Creates every family and registers it.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let workshop = &mut FamilyBuilder::new(registry);
        Ok(Self {
            links: LinkMetrics::register(workshop)?,
            tls: TlsMetrics::register(workshop)?,
            auth: AuthMetrics::register(workshop)?,
            http: HttpMetrics::register(workshop)?,
            store: StoreMetrics::register(workshop)?,
            blobs: BlobMetrics::register(workshop)?,
            driver: DriverMetrics::register(workshop)?,
            agents: AgentMetrics::register(workshop)?,
            models: ModelMetrics::register(workshop)?,
            switchboard: SwitchboardMetrics::register(workshop)?,
            bus: BusMetrics::register(workshop)?,
            node: NodeMetrics::register(workshop)?,
            families: std::mem::take(&mut workshop.families),
        })
    }

    /// Returns every family of the gateway, for the documentation.
    pub fn families(&self) -> &[FamilySpec] {
        &self.families
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{Encoder, TextEncoder};

    #[test]
    fn metric_names_have_an_area_prefix_and_no_id_labels() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).expect("each family once");
        metrics.links.record_closed(Transport::WebSocket, 4508);
        metrics.links.record_closed(Transport::WebSocket, 12345);
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
