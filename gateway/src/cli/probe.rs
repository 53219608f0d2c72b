//! `turnway probe`: reports a node's liveness or readiness as an exit code, for container probes.
use super::http::Server;
use super::{Exit, Trouble, say, say_json};
use clap::Args;
use http::StatusCode;
use serde_json::Value;
use std::time::Duration;

/// Default address of a node's operators' listener.
pub(super) const ADMIN: &str = "http://127.0.0.1:8081";
/// Container runtimes probe every few seconds, and count a probe that hangs as failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `turnway probe`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit codes: 0 yes, 1 no, 69 the node does not answer. For a container: HEALTHCHECK \
                  CMD [\"turnway\", \"probe\"]"
)]
pub struct ProbeArgs {
    /// Address of a node's operators' listener
    #[arg(long, value_name = "URL", env = "TURNWAY_ADMIN", default_value = ADMIN)]
    pub admin: String,
    /// Another address that serves /livez and /readyz
    #[arg(long, value_name = "URL", conflicts_with = "admin")]
    pub url: Option<String>,
    /// Check whether new work may be sent to the node [default]
    #[arg(long, conflicts_with = "live")]
    pub ready: bool,
    /// Check whether the process answers
    #[arg(long)]
    pub live: bool,
}

/// Probes the node and prints the result.
pub async fn run(args: ProbeArgs, json: bool) -> Result<Exit, Trouble> {
    let server = Server::parse(args.url.as_deref().unwrap_or(&args.admin))?;
    let path = if args.live { "/livez" } else { "/readyz" };
    let (status, body) = server.look(path, PATIENCE).await?;
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    let reasons: Vec<&str> = reasons(&answer).collect();
    let (is_so, word) = (status == StatusCode::OK, if args.live { "live" } else { "ready" });
    if json {
        say_json(&serde_json::json!({ word: is_so, "reasons": reasons, "status": status.as_u16() }))?;
    } else {
        match (is_so, reasons.is_empty()) {
            (true, _) => say(&format!("{word}\n"))?,
            (false, false) => say(&format!("not {word}: {}\n", reasons.join(", ")))?,
            (false, true) => say(&format!("not {word}: {status}\n"))?,
        }
    }
    Ok(if is_so { Exit::Fine } else { Exit::Failed })
}

/// Returns the codes of the reasons why a node is not ready, from the body of `/readyz`.
pub(super) fn reasons(answer: &Value) -> impl Iterator<Item = &str> {
    answer.get("reasons").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}
