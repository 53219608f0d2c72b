//! Serves `GET /v1/nodes`: the nodes of the fleet, with their phase and load.
use crate::bus::redis::{NodeDurability, NodeRecord, NodeState, NodeStatus, RedisBus};
use crate::clock::Clock;
use crate::metrics::{Metrics, NodeLoad};
use crate::phase::{Lifecycle, NodePhase};
use crate::response::{self, Body};
use http::{Response, StatusCode};
use serde::Serialize;
use std::sync::Arc;
use turnway_core::id::NodeId;
use turnway_core::protocol::codec::BlobKind;
use turnway_core::protocol::entry::FACT_LEVEL;
use turnway_core::protocol::refusal::{Code, Refusal};

/// Retry delay if the store is unavailable.
const RETRY_AFTER_MS: u64 = 1000;

/// The handler that lists the nodes.
#[derive(Clone)]
pub struct NodesPage {
    /// The id of this node.
    pub node: NodeId,
    /// The configured label of this node.
    pub name: String,
    /// The address at which this node serves clients.
    pub address: String,
    /// The source of this node's load.
    pub metrics: Arc<Metrics>,
    pub clock: Clock,
    pub life: Lifecycle,
    /// The durability of this node's acknowledgements.
    pub durability: NodeDurability,
    /// The fleet's registry; `None` if the node is alone.
    pub fleet: Option<Arc<RedisBus>>,
}

#[derive(Serialize)]
struct NodeListView {
    nodes: Vec<NodeListItem>,
}

#[derive(Serialize)]
struct NodeListItem {
    node_id: String,
    name: String,
    address: String,
    phase: &'static str,
    release: String,
    frames: u8,
    /// The level of facts that the node knows.
    facts: u32,
    /// By the store's clock.
    seen_ms: u64,
    seen_ago_ms: u64,
    /// True for the node that answers; its values are current.
    answering: bool,
    /// Durability of acknowledgements, and whether only `store.attest` claims it; `None` for a release that does not
    /// report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<NodeDurability>,
    /// Sessions of the node's own store that are closed because their records are damaged.
    #[serde(skip_serializing_if = "is_zero")]
    damaged_sessions: u64,
    /// `None` for a release that does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<NodeLoad>,
}

// === impl NodesPage ===

impl NodesPage {
    /// Answers with this node first, then the others by name.
    pub(super) async fn answer(&self) -> Response<Body> {
        let mut nodes = Vec::new();
        if let Some(fleet) = &self.fleet {
            let known = match fleet.nodes().await {
                Ok(known) => known,
                Err(error) => {
                    tracing::debug!(%error, "cannot list the nodes");
                    let why = "cannot list the nodes: the store is unavailable";
                    let refusal = Refusal::new(Code::StoreUnavailable, why);
                    let refusal = Refusal { retry_after_ms: Some(RETRY_AFTER_MS), ..refusal };
                    return response::refused(StatusCode::SERVICE_UNAVAILABLE, &refusal);
                }
            };
            let now = self.clock.now().store.0;
            let others = known.into_iter().filter(|(node, _)| *node != self.node);
            nodes.extend(others.map(|(node, seen)| other_item(node, seen, now)));
        }
        nodes.sort_by(|a: &NodeListItem, b| a.name.cmp(&b.name).then_with(|| a.seen_ms.cmp(&b.seen_ms)));
        nodes.insert(0, self.own_item());
        response::json(StatusCode::OK, &NodeListView { nodes })
    }

    fn own_item(&self) -> NodeListItem {
        let lag = self.fleet.as_ref().and_then(|fleet| fleet.lag_us());
        NodeListItem {
            node_id: self.node.to_string(),
            name: self.name.clone(),
            address: self.address.clone(),
            phase: match self.life.phase() {
                NodePhase::Starting => "starting",
                NodePhase::Serving => "serving",
                NodePhase::Draining => "draining",
                NodePhase::Stopping | NodePhase::Stopped => "leaving",
            },
            release: env!("CARGO_PKG_VERSION").to_owned(),
            frames: BlobKind::Frame.version(),
            facts: FACT_LEVEL,
            seen_ms: self.clock.now().store.0,
            seen_ago_ms: 0,
            answering: true,
            durability: Some(self.durability.clone()),
            damaged_sessions: self.life.damaged_sessions(),
            load: Some(NodeLoad { bus_lag_us: lag, ..NodeLoad::from_metrics(&self.metrics) }),
        }
    }
}

fn other_item(node: NodeId, NodeStatus { record, leased }: NodeStatus, now: u64) -> NodeListItem {
    let NodeRecord { name, address, state, frames, release, seen_ms, durability, facts, load } = record;
    let phase = match (leased, state) {
        // The node is dead, suspended, or cut off from the store.
        (false, NodeState::Serving | NodeState::Draining) => "gone",
        (true, NodeState::Serving) => "serving",
        (true, NodeState::Draining) => "draining",
    };
    let seen_ago_ms = now.saturating_sub(seen_ms);
    let node_id = node.to_string();
    NodeListItem {
        node_id,
        name,
        address,
        phase,
        release,
        frames,
        facts,
        seen_ms,
        seen_ago_ms,
        answering: false,
        durability,
        damaged_sessions: 0,
        load,
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
