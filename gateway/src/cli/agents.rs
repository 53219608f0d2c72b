//! `turnway agents`: who answers at a gateway.
use super::gateway::Gateway;
use super::http::{Ask, PATIENCE, Server};
use super::table::{Column, Table};
use super::{Exit, Trouble, say, say_json};
use clap::Args;
use http::Method;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Whose agents.
#[derive(Clone, Debug, Args)]
pub struct AgentsArgs {
    /// Where, and as whom.
    #[command(flatten)]
    pub gateway: Gateway,
}

#[derive(Deserialize)]
struct Agents {
    agents: Vec<Agent>,
}

/// What has a column.
#[derive(Deserialize)]
struct Agent {
    agent_id: String,
    kind: String,
    default: bool,
    healthy: bool,
    #[serde(default)]
    capabilities: Map<String, Value>,
    /// Shown to operators only.
    #[serde(default)]
    endpoint: Option<String>,
}

/// Prints them.
pub async fn run(args: AgentsArgs, json: bool) -> Result<Exit, Trouble> {
    let server = Server::parse(&args.gateway.url)?;
    let (method, path, who) = (Method::GET, "/v1/agents", Some(&args.gateway));
    let told = server.ask(Ask { method, path, who, body: None, patience: PATIENCE }).await?;
    if json {
        say_json(&told)?;
        return Ok(Exit::Fine);
    }
    let Agents { agents } = serde_json::from_value(told)
        .map_err(|error| Trouble::Failed(format!("an answer of another release: {error}")))?;
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
        let health = if agent.healthy { "healthy" } else { "unreachable" };
        let can = agent.capabilities.iter().filter(|(_, able)| **able == Value::Bool(true));
        let can: Vec<&str> = can.map(|(name, _)| name.as_str()).collect();
        let endpoint = agent.endpoint.unwrap_or_default();
        table.row([agent.agent_id, agent.kind, default.into(), health.into(), can.join(","), endpoint]);
    }
    say(&table.text())?;
    Ok(Exit::Fine)
}
