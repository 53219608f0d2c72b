//! Serves `GET /v1/agents`: the agents that this node knows.
use crate::agent::directory::Profile;
use crate::answer;
use crate::door::Admitted;
use crate::door::service::Service;
use crate::http::openapi::refusals::Plain;
use crate::http::{Answer, Desk};
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use std::sync::Arc;
use turnway_core::id::{AgentId, NodeId};
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
pub(super) struct Agents {
    agents: Vec<Agent>,
}

#[derive(Serialize, ToSchema)]
struct Agent {
    #[schema(value_type = String)]
    agent_id: AgentId,
    /// `http`, `builtin` or `dial_in`.
    kind: &'static str,
    /// True for the agent that answers if none is named.
    default: bool,
    /// True if the agent could be reached at the last try.
    healthy: bool,
    capabilities: Capabilities,
    /// Nodes that an agent which dials in is connected to, as far as this node knows. Only for this machine's operator (`auth.mode = "none"`, no user named).
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Vec<Connected>>,
    /// Address of the agent. Only for this machine's operator, because it may reveal an internal network.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
}

/// An agent's connections to one node.
#[derive(Serialize, ToSchema)]
struct Connected {
    #[schema(pattern = "^[0-9a-f]{32}$")]
    node_id: String,
    #[schema(minimum = 1)]
    connections: u64,
}

#[derive(Serialize, ToSchema)]
struct Capabilities {
    cancel: bool,
    steer: bool,
    resume: bool,
}

/// List the agents of this node
#[utoipa::path(
    get,
    operation_id = "list_agents",
    path = "/v1/agents",
    params(("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    responses((status = 200, description = "All agents", body = Agents), Plain),
)]
pub(super) async fn list(State(desk): State<Arc<Desk>>, headers: HeaderMap) -> Answer {
    let Admitted { principal, service, .. } = desk.admit(&headers).await?;
    // A tenant's operator may see its tenant only, and nothing about the node.
    let is_operator = principal.operator && service == Service::Anything;
    let show = |profile: &Profile| Agent {
        agent_id: profile.id.clone(),
        kind: profile.kind,
        default: desk.agents.default_agent() == Some(&profile.id),
        healthy: desk.agents.is_healthy(&profile.id, &principal.tenant),
        capabilities: Capabilities { cancel: profile.cancel, steer: profile.steer, resume: profile.resume },
        nodes: desk.agents.nodes(&profile.id).filter(|_| is_operator).map(connected),
        endpoint: profile.url.clone().filter(|_| is_operator),
    };
    let agents = desk.agents.profiles().iter().map(show).collect();
    Ok(answer::json(StatusCode::OK, &Agents { agents }))
}

fn connected(nodes: Vec<(NodeId, usize)>) -> Vec<Connected> {
    let show = |(node, connections): (NodeId, usize)| Connected {
        node_id: node.to_string(),
        connections: connections as u64,
    };
    nodes.into_iter().map(show).collect()
}
