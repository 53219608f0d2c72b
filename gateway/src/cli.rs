//! The command line of `turnway`: its commands, one file for each, and shared output functions. Called by `node`.
pub mod adapter_check;
pub mod adapter_new;
pub mod adapters;
pub mod agents;
pub mod bindings;
pub mod budgets;
pub mod chat;
pub mod check_config;
mod child_binding;
pub mod deliveries;
pub mod dev_cert;
pub mod drain;
pub mod error;
pub mod gateway;
mod http_client;
pub mod key;
pub mod nodes;
mod place;
pub mod plan;
pub mod probe;
mod render;
pub mod replay;
pub mod serve;
pub mod sessions;
pub mod store;
mod table;
mod time_format;
pub mod tool_runner;
pub mod version;

pub use error::{CliError, CliExit};

use crate::config::document;
use clap::{Parser, Subcommand};
use serde::Serialize;
use std::io::{self, Write};

const AFTER_HELP: &str = "\
Exit codes: 0 success, 1 failure, 64 wrong usage or configuration, 69 service unavailable, 70 internal error.
Try it: `turnway serve --demo`, and `turnway chat` in another terminal.";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "turnway", version, about, after_help = AFTER_HELP, arg_required_else_help = true)]
pub struct Cli {
    /// Print JSON instead of text: results on stdout, errors on stderr
    #[arg(long, global = true)]
    pub json: bool,
    /// The command to run.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// A command of `turnway`.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Run a node
    Serve(serve::ServeArgs),
    /// Talk to an agent through a node
    Chat(chat::ChatArgs),
    /// Show a session's log, fact by fact
    Replay(replay::ReplayArgs),
    /// List sessions, newest first
    Sessions(sessions::SessionsArgs),
    /// List, make, end and explain the bindings of conversations to sessions
    #[command(subcommand)]
    Bindings(bindings::BindingsCliCommand),
    /// List, explain and settle the answers to conversations that were not sent
    #[command(subcommand)]
    Deliveries(deliveries::DeliveriesCliCommand),
    /// List the accounts of adapters that are paused, pause and resume them
    #[command(subcommand)]
    Adapters(adapters::AdaptersCliCommand),
    /// Begin an adapter of your own
    #[command(subcommand)]
    Adapter(adapter_new::AdapterCliCommand),
    /// Check an adapter against a misbehaving gateway and platform, and print its grade
    AdapterCheck(adapter_check::AdapterCheckArgs),
    /// List the agents of a gateway
    Agents(agents::AgentsArgs),
    /// List the nodes of a fleet and the load of each
    Nodes(nodes::NodesArgs),
    /// Check whether a node is alive or ready; the exit code suits container probes
    Probe(probe::ProbeArgs),
    /// Start to drain a node; with --wait, wait until the node has stopped
    Drain(drain::DrainArgs),
    /// Check a configuration and report every error in it
    CheckConfig(serve::ServeArgs),
    /// Print a complete configuration file with the default values
    DefaultConfig,
    /// Print the configuration reference as Markdown
    ConfigDoc,
    /// Show, set and remove budgets of calls of models through a node's operators' listener
    #[command(subcommand)]
    Budgets(budgets::BudgetsCommand),
    /// Create, list, migrate and revoke API keys through a node's operators' listener
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Create a self-signed certificate for this machine, to try TLS
    DevCert(dev_cert::DevCertArgs),
    /// Check, back up or restore an embedded store
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Run allowed programs as tools for agents
    ToolRunner(tool_runner::ToolRunnerArgs),
    /// Print the version of this build
    Version,
}

/// Prints text of several lines; as JSON it is one string.
pub fn print(json: bool, text: &str) -> Result<CliExit, CliError> {
    if json {
        write_json(&text)?
    } else {
        write_stdout(text)?
    }
    Ok(CliExit::Success)
}

/// Runs `turnway default-config`.
pub fn default_config(json: bool) -> Result<CliExit, CliError> {
    print(json, &document::default_file())
}

/// Runs `turnway config-doc`.
pub fn config_doc(json: bool) -> Result<CliExit, CliError> {
    print(json, &document::markdown_page())
}

/// Prints to stdout.
pub fn write_stdout(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return CliError::StdoutClosed;
        }
        CliError::Failed(format!("cannot write to stdout: {error}"))
    })
}

/// Prints one line of JSON to stdout.
pub fn write_json(value: &impl Serialize) -> Result<(), CliError> {
    let line = serde_json::to_string(value).map_err(|error| CliError::Bug(error.to_string()))?;
    write_stdout(&format!("{line}\n"))
}

/// Prints an error to stderr. A closed stderr is ignored.
pub fn write_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
