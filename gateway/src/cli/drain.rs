//! `turnway drain`: asks a node to stop accepting work, and optionally waits until its process has ended.
use super::http::{Ask, PATIENCE, Server};
use super::probe::{ADMIN, reasons};
use super::{Exit, Trouble, say, say_json};
use clap::Args;
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// Interval between two polls of `/readyz`.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Timeout of one poll; a draining node may be slow to answer.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `turnway drain`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit codes: 0 the node drains, or with --wait has stopped; 1 it has not stopped in time and still drains; 69 \
                  the node does not answer."
)]
pub struct DrainArgs {
    /// Address of the node's operators' listener
    #[arg(long, value_name = "URL", env = "TURNWAY_ADMIN", default_value = ADMIN)]
    pub admin: String,
    /// Wait until the node has stopped
    #[arg(long)]
    pub wait: bool,
    /// Maximum wait in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "wait")]
    pub timeout: u64,
}

/// Requests the drain, and waits for its end if asked to.
pub async fn run(args: DrainArgs, json: bool) -> Result<Exit, Trouble> {
    let server = Server::parse(&args.admin)?;
    let (method, path, who) = (Method::POST, "/drain", None);
    server.ask(Ask { method, path, who, body: Some(json!({})), patience: PATIENCE }).await?;
    if !args.wait {
        return told(json, "draining", None, Exit::Fine);
    }
    let end = Instant::now() + Duration::from_secs(args.timeout);
    loop {
        let remaining = match server.look("/readyz", LOOK_PATIENCE).await {
            Ok((_, body)) => match remaining(&body) {
                Some(remaining) => remaining,
                // A process that drains does so until it ends, so this answer comes from its replacement.
                None => return told(json, "left", None, Exit::Fine),
            },
            Err(Trouble::Unavailable(_)) => return told(json, "left", None, Exit::Fine),
            Err(trouble) => return Err(trouble),
        };
        if Instant::now() + LOOK_EVERY > end {
            return told(json, "draining", Some(remaining), Exit::Failed);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Returns the number of sessions that a draining node still holds, or `None` if the node does not drain.
fn remaining(body: &[u8]) -> Option<u64> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let is_draining = reasons(&answer).any(|reason| reason == "draining");
    is_draining.then(|| answer.get("remaining").and_then(Value::as_u64).unwrap_or_default())
}

fn told(json: bool, phase: &str, remaining: Option<u64>, exit: Exit) -> Result<Exit, Trouble> {
    if json {
        say_json(&json!({ "phase": phase, "remaining": remaining }))?;
    } else {
        match remaining {
            Some(sessions) => say(&format!("still draining: {sessions} sessions are left\n"))?,
            None => say(&format!("{phase}\n"))?,
        }
    }
    Ok(exit)
}
