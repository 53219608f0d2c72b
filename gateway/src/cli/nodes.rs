//! `turnway nodes`: lists the nodes of a fleet and their load, as reported by any one of the nodes.
use super::http_client::{ANSWER_TIMEOUT, ApiClient, ApiRequest};
use super::table::{Column, Table, stdout_is_terminal};
use super::time_format::{format_ago, format_date};
use super::{CliError, CliExit, write_json, write_stdout};
use crate::metrics::NodeLoad;
use clap::Args;
use http::Method;
use serde::Deserialize;

/// Default address of a node's operators' listener.
const DEFAULT_ADMIN_URL: &str = "http://127.0.0.1:8081";

/// Arguments of `turnway nodes`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Any node of a fleet lists all of them; a node with a store of its own lists only itself. PHASE is \
                  starting, serving, draining or leaving; gone is a node without a lease: it died, sleeps, or cannot \
                  reach the store. SEEN is the time of the node's last report, which it sends every 10 s; `answers` \
                  marks the node that was asked. LAG is the time of a message from the node to itself over the bus; \
                  SKEW is the time by which its system's clock is ahead of the store's, from a second on. With \
                  --json, one object with the list of `nodes`, as GET /v1/nodes gives it."
)]
pub struct NodesArgs {
    /// Address of a node's operators' listener
    #[arg(long, value_name = "URL", env = "TURNWAY_ADMIN", default_value = DEFAULT_ADMIN_URL)]
    pub admin: String,
}

#[derive(Deserialize)]
struct NodeList {
    nodes: Vec<NodeRow>,
}

/// The fields of a node that the table shows.
#[derive(Deserialize)]
struct NodeRow {
    node_id: String,
    name: String,
    address: String,
    phase: String,
    release: String,
    frames: u8,
    seen_ms: u64,
    seen_ago_ms: u64,
    answering: bool,
    #[serde(default)]
    load: Option<NodeLoad>,
}

/// Prints the nodes, as a table or as the JSON answer of the node.
pub async fn run(args: NodesArgs, json: bool) -> Result<CliExit, CliError> {
    let server = ApiClient::parse(&args.admin)?;
    let method = Method::GET;
    let path = "/v1/nodes";
    let who = None;
    let answer =
        server.request_json(ApiRequest { method, path, credentials: who, body: None, timeout: ANSWER_TIMEOUT }).await?;
    if json {
        write_json(&answer)?;
        return Ok(CliExit::Success);
    }
    let NodeList { nodes } = serde_json::from_value(answer).map_err(|error| {
        CliError::Failed(format!("the answer has an unexpected format; the node may run another release: {error}"))
    })?;
    let mut table = Table::new(vec![
        Column::Left("NAME"),
        Column::Left("PHASE"),
        Column::Left("ADDRESS"),
        Column::Right("OWNS"),
        Column::Right("TURNS"),
        Column::Right("FOLLOWS"),
        Column::Right("LINKS"),
        Column::Right("QUEUE"),
        Column::Right("LAG"),
        Column::Right("SKEW"),
        Column::Left("SEEN"),
        Column::Left("RELEASE"),
        Column::Right("FRAMES"),
        Column::Left("NODE"),
    ]);
    for node in nodes {
        table.push_row(row(node));
    }
    write_stdout(&table.render())?;
    Ok(CliExit::Success)
}

fn row(node: NodeRow) -> [String; 14] {
    let seen = match (node.answering, stdout_is_terminal()) {
        (true, _) => "answers".to_owned(),
        (false, true) => format_ago(0, node.seen_ago_ms),
        (false, false) => format_date(node.seen_ms),
    };
    let shown = |number: fn(&NodeLoad) -> u64| {
        node.load.as_ref().map_or_else(|| "?".to_owned(), |load| number(load).to_string())
    };
    let [owns, turns] = [shown(|load| load.sessions_owned), shown(|load| load.open_turns)];
    let [follows, links] = [shown(|load| load.sessions_followed), shown(|load| load.links)];
    let queue = shown(|load| load.queue);
    let lag = node.load.as_ref().and_then(|load| load.bus_lag_us).map(format_micros).unwrap_or_default();
    let skew = node.load.as_ref().map(|load| format_skew(load.clock_skew_ms)).unwrap_or_default();
    let release = node.release;
    let frames = node.frames.to_string();
    [
        node.name,
        node.phase,
        node.address,
        owns,
        turns,
        follows,
        links,
        queue,
        lag,
        skew,
        seen,
        release,
        frames,
        node.node_id,
    ]
}

/// Formats the clock skew in seconds. A skew below one second leaves the column empty.
fn format_skew(ms: i64) -> String {
    if ms.unsigned_abs() < 1000 { String::new() } else { format!("{:+}s", ms / 1000) }
}

fn format_micros(us: u64) -> String {
    match us {
        0..1000 => format!("{us}µs"),
        1000..1_000_000 => format!("{}ms", us / 1000),
        1_000_000.. => format!("{}s", us / 1_000_000),
    }
}
