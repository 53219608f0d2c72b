//! Serves `GET /v1/agents`: the agents that this node knows.
use crate::agent::directory::AgentProfile;
use crate::auth::AuthenticatedClient;
use crate::auth::service_scope::ServiceScope;
use crate::http::openapi::refusals::CommonRefusals;
use crate::http::{HttpContext, HttpResult};
use crate::response;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use std::sync::Arc;
use turnway_core::id::{AgentId, NodeId};
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
#[schema(as = Agents)]
pub(super) struct AgentListView {
    agents: Vec<AgentView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Agent)]
struct AgentView {
    #[schema(value_type = String)]
    agent_id: AgentId,
    /// `http`, `builtin`, `dial_in` or `model`.
    kind: &'static str,
    /// True for the agent that answers if none is named.
    default: bool,
    /// True if the agent could be reached at the last try.
    healthy: bool,
    capabilities: AgentCapabilitiesView,
    /// Nodes that a dial-in agent is connected to, as far as this node knows. Only for this machine's operator
    /// (`auth.mode = "none"`, no user named).
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Vec<AgentNodeView>>,
    /// Address of the agent. Only for this machine's operator, because it may reveal an internal network.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
}

/// An agent's connections to one node.
#[derive(Serialize, ToSchema)]
#[schema(as = Connected)]
struct AgentNodeView {
    #[schema(pattern = "^[0-9a-f]{32}$")]
    node_id: String,
    #[schema(minimum = 1)]
    connections: u64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Capabilities)]
struct AgentCapabilitiesView {
    cancel: bool,
    steer: bool,
    resume: bool,
}

/// Lists the agents of this node
#[utoipa::path(
    get,
    operation_id = "list_agents",
    path = "/v1/agents",
    params(("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    responses((status = 200, description = "All agents", body = AgentListView), CommonRefusals),
)]
pub(super) async fn list(State(context): State<Arc<HttpContext>>, headers: HeaderMap) -> HttpResult {
    let AuthenticatedClient { principal, service, .. } = context.authenticate(&headers).await?;
    // A tenant's operator may see its tenant only, and nothing about the node.
    let is_operator = principal.operator && service == ServiceScope::Anything;
    let show = |profile: &AgentProfile| AgentView {
        agent_id: profile.id.clone(),
        kind: profile.kind,
        default: context.agents.default_agent() == Some(&profile.id),
        healthy: context.agents.is_healthy(&profile.id, &principal.tenant),
        capabilities: AgentCapabilitiesView { cancel: profile.cancel, steer: profile.steer, resume: profile.resume },
        nodes: context.agents.nodes(&profile.id).filter(|_| is_operator).map(connected),
        endpoint: profile.url.clone().filter(|_| is_operator),
    };
    let agents = context.agents.profiles().iter().map(show).collect();
    Ok(response::json(StatusCode::OK, &AgentListView { agents }))
}

fn connected(nodes: Vec<(NodeId, usize)>) -> Vec<AgentNodeView> {
    let show = |(node, connections): (NodeId, usize)| AgentNodeView {
        node_id: node.to_string(),
        connections: connections as u64,
    };
    nodes.into_iter().map(show).collect()
}
