//! `turnway agents`: lists the agents of a gateway. The chat uses the same list.
use super::gateway::Gateway;
use super::http::{Ask, PATIENCE, Server};
use super::table::{Column, Table};
use super::{Exit, Trouble, say, say_json};
use clap::Args;
use http::Method;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Arguments of `turnway agents`.
#[derive(Clone, Debug, Args)]
pub struct AgentsArgs {
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: Gateway,
}

#[derive(Deserialize)]
struct Agents {
    agents: Vec<Agent>,
}

/// The fields of an agent that the table shows.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Agent {
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
pub async fn run(args: AgentsArgs, json: bool) -> Result<Exit, Trouble> {
    let told = ask(&args.gateway).await?;
    if json {
        say_json(&told)?;
        return Ok(Exit::Fine);
    }
    let agents = read(told)?;
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
        table.row([agent.agent_id, agent.kind, default.into(), health.into(), can.join(","), endpoint]);
    }
    say(&table.text())?;
    Ok(Exit::Fine)
}

/// Fetches the agents that a gateway has for this user.
pub(super) async fn list(gateway: &Gateway) -> Result<Vec<Agent>, Trouble> {
    read(ask(gateway).await?)
}

async fn ask(gateway: &Gateway) -> Result<Value, Trouble> {
    let server = Server::parse(&gateway.url)?;
    let (method, path, who) = (Method::GET, "/v1/agents", Some(gateway));
    server.ask(Ask { method, path, who, body: None, patience: PATIENCE }).await
}

fn read(told: Value) -> Result<Vec<Agent>, Trouble> {
    let read = serde_json::from_value(told).map(|Agents { agents }| agents);
    read.map_err(|error| Trouble::Failed(format!("the gateway's answer has an unexpected format, probably because it runs another release: {error}")))
}

// === impl Agent ===

impl Agent {
    /// Returns `healthy` or `unreachable`.
    pub(super) fn health(&self) -> &'static str {
        if self.healthy { "healthy" } else { "unreachable" }
    }
}
