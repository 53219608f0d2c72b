//! `turnway probe`: reports a node's liveness or readiness as an exit code, for container probes.
use super::http_client::ApiClient;
use super::{CliError, CliExit, write_json, write_stdout};
use clap::Args;
use http::StatusCode;
use serde_json::Value;
use std::time::Duration;

/// Default address of a node's operators' listener.
pub(super) const DEFAULT_ADMIN_URL: &str = "http://127.0.0.1:8081";
/// Container runtimes probe every few seconds, and count a probe that hangs as failed.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Arguments of `turnway probe`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit codes: 0 ready (with --live: live), 1 not, 69 the node does not answer. For a container: \
                  HEALTHCHECK CMD [\"turnway\", \"probe\"]"
)]
pub struct ProbeArgs {
    /// Address of a node's operators' listener
    #[arg(long, value_name = "URL", env = "TURNWAY_ADMIN", default_value = DEFAULT_ADMIN_URL)]
    pub admin: String,
    /// Another address that serves /livez and /readyz
    #[arg(long, value_name = "URL", conflicts_with = "admin")]
    pub url: Option<String>,
    #[arg(long, conflicts_with = "live", help = "Check whether new work may be sent to the node [default]")]
    pub ready: bool,
    /// Check whether the process answers
    #[arg(long)]
    pub live: bool,
}

/// Probes the node and prints the result.
pub async fn run(args: ProbeArgs, json: bool) -> Result<CliExit, CliError> {
    let server = ApiClient::parse(args.url.as_deref().unwrap_or(&args.admin))?;
    let path = if args.live { "/livez" } else { "/readyz" };
    let (status, body) = server.fetch_raw(path, PROBE_TIMEOUT).await?;
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    let reasons: Vec<&str> = reasons(&answer).collect();
    let is_so = status == StatusCode::OK;
    let word = if args.live { "live" } else { "ready" };
    if json {
        write_json(&serde_json::json!({ word: is_so, "reasons": reasons, "status": status.as_u16() }))?;
    } else {
        match (is_so, reasons.is_empty()) {
            (true, _) => write_stdout(&format!("{word}\n"))?,
            (false, false) => write_stdout(&format!("not {word}: {}\n", reasons.join(", ")))?,
            (false, true) => write_stdout(&format!("not {word}: {status}\n"))?,
        }
    }
    Ok(if is_so { CliExit::Success } else { CliExit::Failed })
}

/// Returns the codes of the reasons why a node is not ready, from the body of `/readyz`.
pub(super) fn reasons(answer: &Value) -> impl Iterator<Item = &str> {
    answer.get("reasons").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}
