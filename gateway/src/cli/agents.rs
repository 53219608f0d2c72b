//! `turnway agents`: lists the agents of a gateway. The chat uses the same list.
use super::gateway::GatewayArgs;
use super::http_client::{ANSWER_TIMEOUT, ApiClient, ApiRequest};
use super::table::{Column, Table};
use super::{CliError, CliExit, write_json, write_stdout};
use clap::Args;
use http::Method;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Arguments of `turnway agents`.
#[derive(Clone, Debug, Args)]
pub struct AgentsArgs {
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

#[derive(Deserialize)]
struct AgentList {
    agents: Vec<AgentSummary>,
}

/// The fields of an agent that the table shows.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AgentSummary {
    pub(super) agent_id: String,
    kind: String,
    default: bool,
    healthy: bool,
    #[serde(default)]
    capabilities: Map<String, Value>,
    /// Shown to operators only.
    #[serde(default)]
    endpoint: Option<String>,
}

/// Prints the agents, as a table or as the JSON answer of the gateway.
pub async fn run(args: AgentsArgs, json: bool) -> Result<CliExit, CliError> {
    let answer = fetch(&args.gateway).await?;
    if json {
        write_json(&answer)?;
        return Ok(CliExit::Success);
    }
    let agents = parse_agents(answer)?;
    let mut table = Table::new(vec![
        Column::Left("AGENT"),
        Column::Left("KIND"),
        Column::Left("DEFAULT"),
        Column::Left("HEALTH"),
        Column::Left("CAN"),
        Column::Left("ENDPOINT"),
    ]);
    for agent in agents {
        let default = if agent.default { "yes" } else { "" };
        let health = agent.health();
        let can = agent.capabilities.iter().filter(|(_, able)| **able == Value::Bool(true));
        let can: Vec<&str> = can.map(|(name, _)| name.as_str()).collect();
        let endpoint = agent.endpoint.unwrap_or_default();
        table.push_row([agent.agent_id, agent.kind, default.into(), health.into(), can.join(","), endpoint]);
    }
    write_stdout(&table.render())?;
    Ok(CliExit::Success)
}

/// Fetches the agents that a gateway has for this user.
pub(super) async fn list(gateway: &GatewayArgs) -> Result<Vec<AgentSummary>, CliError> {
    parse_agents(fetch(gateway).await?)
}

async fn fetch(gateway: &GatewayArgs) -> Result<Value, CliError> {
    let server = ApiClient::parse(&gateway.url)?;
    let method = Method::GET;
    let path = "/v1/agents";
    let who = Some(gateway);
    server.request_json(ApiRequest { method, path, credentials: who, body: None, timeout: ANSWER_TIMEOUT }).await
}

fn parse_agents(answer: Value) -> Result<Vec<AgentSummary>, CliError> {
    let read = serde_json::from_value(answer).map(|AgentList { agents }| agents);
    read.map_err(|error| {
        CliError::Failed(format!("the answer has an unexpected format; the node may run another release: {error}"))
    })
}

// === impl AgentSummary ===

impl AgentSummary {
    /// Returns `healthy` or `unreachable`.
    pub(super) fn health(&self) -> &'static str {
        if self.healthy { "healthy" } else { "unreachable" }
    }
}
