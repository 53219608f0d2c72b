//! Serves `GET /v1/nodes`: the nodes of the fleet, with their phase and load.
use crate::answer::{self, Body};
use crate::bus::redis::{Kept, Record, Redis, Seen, State};
use crate::clock::Clock;
use crate::metrics::{Load, Metrics};
use crate::phase::{Life, Phase};
use http::{Response, StatusCode};
use serde::Serialize;
use std::sync::Arc;
use turnway_core::id::NodeId;
use turnway_core::protocol::codec::Kind;
use turnway_core::protocol::refusal::{Code, Refusal};

/// Retry delay if the store is unavailable.
const AGAIN_MS: u64 = 1000;

/// The handler that lists the nodes.
#[derive(Clone)]
pub struct Roster {
    /// The id of this node.
    pub node: NodeId,
    /// The configured label of this node.
    pub name: String,
    /// The address at which this node serves clients.
    pub address: String,
    /// The source of this node's load.
    pub metrics: Arc<Metrics>,
    pub clock: Clock,
    pub life: Life,
    /// The durability of this node's acknowledgements.
    pub durability: Kept,
    /// The fleet's registry; `None` if the node is alone.
    pub fleet: Option<Arc<Redis>>,
}

#[derive(Serialize)]
struct Nodes {
    nodes: Vec<Node>,
}

#[derive(Serialize)]
struct Node {
    node_id: String,
    name: String,
    address: String,
    phase: &'static str,
    release: String,
    frames: u8,
    /// By the store's clock.
    seen_ms: u64,
    seen_ago_ms: u64,
    /// True for the node that answers; its values are current.
    answering: bool,
    /// Durability of acknowledgements, and whether only `store.attest` claims it; `None` for a release that does not
    /// report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<Kept>,
    /// Sessions of the node's own store that are closed because their records are damaged.
    #[serde(skip_serializing_if = "is_none")]
    damaged_sessions: u64,
    /// `None` for a release that does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<Load>,
}

// === impl Roster ===

impl Roster {
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
                    let refusal = Refusal { retry_after_ms: Some(AGAIN_MS), ..refusal };
                    return answer::refused(StatusCode::SERVICE_UNAVAILABLE, &refusal);
                }
            };
            let now = self.clock.now().store.0;
            let others = known.into_iter().filter(|(node, _)| *node != self.node);
            nodes.extend(others.map(|(node, seen)| other(node, seen, now)));
        }
        nodes.sort_by(|a: &Node, b| a.name.cmp(&b.name).then_with(|| a.seen_ms.cmp(&b.seen_ms)));
        nodes.insert(0, self.own());
        answer::json(StatusCode::OK, &Nodes { nodes })
    }

    fn own(&self) -> Node {
        let lag = self.fleet.as_ref().and_then(|fleet| fleet.lag());
        Node {
            node_id: self.node.to_string(),
            name: self.name.clone(),
            address: self.address.clone(),
            phase: match self.life.phase() {
                Phase::Starting => "starting",
                Phase::Serving => "serving",
                Phase::Draining => "draining",
                Phase::Leaving | Phase::Left => "leaving",
            },
            release: env!("CARGO_PKG_VERSION").to_owned(),
            frames: Kind::Frame.version(),
            seen_ms: self.clock.now().store.0,
            seen_ago_ms: 0,
            answering: true,
            durability: Some(self.durability.clone()),
            damaged_sessions: self.life.damaged_sessions(),
            load: Some(Load { bus_lag_us: lag, ..Load::of(&self.metrics) }),
        }
    }
}

fn other(node: NodeId, Seen { record, leased }: Seen, now: u64) -> Node {
    let Record { name, address, state, frames, release, seen_ms, durability, load } = record;
    let phase = match (leased, state) {
        // The node is dead, suspended, or cut off from the store.
        (false, State::Serving | State::Draining) => "gone",
        (true, State::Serving) => "serving",
        (true, State::Draining) => "draining",
    };
    let seen_ago_ms = now.saturating_sub(seen_ms);
    let node_id = node.to_string();
    Node {
        node_id,
        name,
        address,
        phase,
        release,
        frames,
        seen_ms,
        seen_ago_ms,
        answering: false,
        durability,
        damaged_sessions: 0,
        load,
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_none(count: &u64) -> bool {
    *count == 0
}
