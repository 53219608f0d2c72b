//! `turnway drain`: asks a node to stop accepting work, and optionally waits until its process has ended.
use super::http_client::{ANSWER_TIMEOUT, ApiClient, ApiRequest};
use super::probe::{DEFAULT_ADMIN_URL, reasons};
use super::{CliError, CliExit, write_json, write_stdout};
use clap::Args;
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// Interval between two polls of `/readyz`.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Timeout of one poll; a draining node may be slow to answer.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);

/// Arguments of `turnway drain`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit codes: 0 the node drains, or with --wait has stopped; 1 it has not stopped in time, and still \
                  drains; 69 the node does not answer."
)]
pub struct DrainArgs {
    /// Address of the node's operators' listener
    #[arg(long, value_name = "URL", env = "TURNWAY_ADMIN", default_value = DEFAULT_ADMIN_URL)]
    pub admin: String,
    /// Wait until the node has stopped
    #[arg(long)]
    pub wait: bool,
    /// Maximum wait in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "wait")]
    pub timeout: u64,
}

/// Requests the drain, and waits for its end if asked to.
pub async fn run(args: DrainArgs, json: bool) -> Result<CliExit, CliError> {
    let server = ApiClient::parse(&args.admin)?;
    let method = Method::POST;
    let path = "/drain";
    let who = None;
    server
        .request_json(ApiRequest { method, path, credentials: who, body: Some(json!({})), timeout: ANSWER_TIMEOUT })
        .await?;
    if !args.wait {
        return print_phase(json, "draining", None, CliExit::Success);
    }
    let end = Instant::now() + Duration::from_secs(args.timeout);
    loop {
        let remaining = match server.fetch_raw("/readyz", POLL_TIMEOUT).await {
            Ok((_, body)) => match remaining(&body) {
                Some(remaining) => remaining,
                // A process that drains does so until it ends, so this answer comes from its replacement.
                None => return print_phase(json, "left", None, CliExit::Success),
            },
            Err(CliError::Unavailable(_)) => return print_phase(json, "left", None, CliExit::Success),
            Err(error) => return Err(error),
        };
        if Instant::now() + POLL_INTERVAL > end {
            return print_phase(json, "draining", Some(remaining), CliExit::Failed);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the number of sessions that a draining node still holds, or `None` if the node does not drain.
fn remaining(body: &[u8]) -> Option<u64> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let is_draining = reasons(&answer).any(|reason| reason == "draining");
    is_draining.then(|| answer.get("remaining").and_then(Value::as_u64).unwrap_or_default())
}

fn print_phase(json: bool, phase: &str, remaining: Option<u64>, exit: CliExit) -> Result<CliExit, CliError> {
    if json {
        write_json(&json!({ "phase": phase, "remaining": remaining }))?;
    } else {
        match remaining {
            Some(sessions) => write_stdout(&format!("still draining: {sessions} sessions are left\n"))?,
            None => write_stdout(&format!("{phase}\n"))?,
        }
    }
    Ok(exit)
}
