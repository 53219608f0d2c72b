//! `turnway tool-runner`: runs listed programs on behalf of agents (docs/tools.md). `driver` drives the
//! executor with a `journal`, a `process` task for each program and a `connection` to each node; `allow_list`
//! reads the list, `key_isolation` isolates the key, `users` resolves `run_as`.
mod allow_list;
mod connection;
mod driver;
mod journal;
mod key_isolation;
mod leftovers;
mod process;
mod users;

use self::allow_list::AllowList;
use self::users::RunAs;
use super::gateway::GatewayArgs;
use super::{CliError, CliExit, write_json, write_stdout};
use crate::config::amount::parse_wait;
use crate::trace::{self, LogShape};
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;
use turnway_client::Options;
use turnway_core::id::RunnerId;
use turnway_tool_executor::programs::AllowedPrograms;

/// Arguments of `turnway tool-runner`.
#[derive(Clone, Debug, Args)]
pub struct ToolRunnerArgs {
    /// List of the programs that may be run: a TOML file (docs/tools.md)
    #[arg(long, value_name = "FILE")]
    pub allow: PathBuf,
    /// Id of the runner, stable and unique; without it the host name
    #[arg(long, value_name = "ID", value_parser = RunnerId::parse, env = "TURNWAY_RUNNER_ID")]
    pub runner_id: Option<RunnerId>,
    /// Directory for the runner's journal, not shared with other runners; created if necessary
    #[arg(long, value_name = "DIR", default_value = "turnway-runner")]
    pub state: PathBuf,
    /// Time that processes have after SIGTERM before they are stopped; a second SIGTERM stops them at once
    #[arg(long, value_name = "WAIT", default_value = "10s", value_parser = parse_stop_wait)]
    pub wait: Duration,
    /// Address of another node of the same fleet; repeat for every node: a session's tools are run by the runners of
    /// the node that owns it
    #[arg(long, value_name = "URL")]
    pub also: Vec<String>,
    /// A file with the key, which others may not read; else the key is taken from TURNWAY_API_KEY. Either way the
    /// programs cannot read it from this process
    #[arg(long, value_name = "FILE", env = "TURNWAY_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// The key is on the standard input, because this process has re-executed itself
    #[arg(long = key_isolation::ON_STDIN, hide = true)]
    pub api_key_on_stdin: bool,
    /// Only check the list, and report every mistake
    #[arg(long)]
    pub check: bool,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Removes the runner's key from everything that its programs could read. Must be called before any thread is
/// started; may re-execute the process.
pub fn prepare(args: ToolRunnerArgs) -> Result<ToolRunnerArgs, CliError> {
    if args.check { Ok(args) } else { key_isolation::isolate_key(args) }
}

/// Runs requested programs until the process is told to leave, or only checks the list.
pub async fn run(args: ToolRunnerArgs, json: bool) -> Result<CliExit, CliError> {
    let AllowList { allowed, mut run_as } = allow_list::read(&args.allow).map_err(CliError::InvalidConfig)?;
    if args.check {
        let names: Vec<&str> = allowed.keys().map(String::as_str).collect();
        if json {
            write_json(&json!({ "programs": names }))?;
        } else {
            write_stdout(&format!("{}: ok: {}\n", args.allow.display(), names.join(", ")))?;
        }
        return Ok(CliExit::Success);
    }
    let shape = if std::io::stderr().is_terminal() && !json { LogShape::Pretty } else { LogShape::Json };
    trace::start(shape, std::env::var("RUST_LOG").ok().as_deref());
    let id = args.runner_id.clone().map_or_else(host_runner_id, Ok)?;
    let one = args.gateway.options();
    let others = args.also.iter().map(|url| Options { url: url.clone(), ..one.clone() });
    let options: Vec<Options> = std::iter::once(one.clone()).chain(others).collect();
    for options in &options {
        // Checked before connecting: a wrong address does not become right by retrying.
        options.endpoint().map_err(|error| CliError::Usage(error.to_string()))?;
    }
    assign_default_users(&allowed, &mut run_as, args.gateway.api_key.is_some());
    let (journal, records) = journal::Journal::open(&args.state)?;
    let plan = driver::ToolRunnerOptions { id, options, run_as, stop_wait: args.wait, json };
    driver::ToolRunnerDriver::new(plan, allowed, journal, records)?.run().await
}

/// Assigns a user to each program without `run_as`, where the runner is root: `nobody` if the runner has a key,
/// because a root program could always read that key; otherwise root, because there is no key to protect.
fn assign_default_users(allowed: &AllowedPrograms, run_as: &mut BTreeMap<String, RunAs>, has_key: bool) {
    if !users::is_root() {
        return;
    }
    let unnamed: Vec<&String> = allowed.keys().filter(|name| !run_as.contains_key(*name)).collect();
    if unnamed.is_empty() {
        return;
    }
    if has_key {
        tracing::warn!(programs = ?unnamed, "programs without run_as run as nobody, because this runner is root");
        let nobody = RunAs::nobody();
        unnamed.into_iter().for_each(|name| drop(run_as.insert(name.clone(), nobody.clone())));
    } else {
        tracing::warn!(programs = ?unnamed, "programs without run_as run as root, because this runner is root");
    }
}

fn parse_stop_wait(text: &str) -> Result<Duration, String> {
    const MAX: Duration = Duration::from_secs(3600);
    let wait = parse_wait(text).ok_or("expected a wait such as 10s")?;
    if wait > MAX { Err("at most 1h".to_owned()) } else { Ok(wait) }
}

/// Derives the runner id from the machine's host name, with characters that an id may not have replaced by `-`.
fn host_runner_id() -> Result<RunnerId, CliError> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let name: String = name.trim().chars().map(plain).take(64).collect();
    let invalid = "the host name is not a valid runner id; use --runner-id";
    RunnerId::parse(&name).map_err(|_| CliError::Usage(invalid.to_owned()))
}
