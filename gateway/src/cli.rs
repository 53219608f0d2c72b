//! The command line of `turnway`: its commands, one file for each, and shared output functions. Called by `node`.
pub mod agents;
pub mod chat;
pub mod check_config;
pub mod dev_cert;
pub mod drain;
pub mod error;
pub mod gateway;
mod http_client;
pub mod key;
pub mod nodes;
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
Exit codes: 0 fine, 1 failed, 64 wrong usage or configuration, 69 something needed is unavailable, 70 a bug.
Try it: `turnway serve --demo`, and `turnway chat` in another terminal.";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "turnway", version, about, after_help = AFTER_HELP, arg_required_else_help = true)]
pub struct Cli {
    /// JSON instead of text: what is found on stdout, what goes wrong on stderr
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
    /// List sessions, the last made first
    Sessions(sessions::SessionsArgs),
    /// List the agents a gateway knows
    Agents(agents::AgentsArgs),
    /// List the nodes of a fleet, and what each has to do
    Nodes(nodes::NodesArgs),
    /// Say whether a node lives, or is ready: an exit code for container probes
    Probe(probe::ProbeArgs),
    /// Ask a node to take on nothing more and to leave, and wait for it
    Drain(drain::DrainArgs),
    /// Say whether a node would start with this configuration, or everything that is wrong with it
    CheckConfig(serve::ServeArgs),
    /// Print a complete configuration file that changes nothing
    DefaultConfig,
    /// Print the page about the configuration, as Markdown
    ConfigDoc,
    /// Make API keys, list them, take them back, by asking a node at its operators' address
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Make a certificate for this machine, to try TLS with
    DevCert(dev_cert::DevCertArgs),
    /// Look after an embedded store: check it, back it up, restore it
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Run listed programs for agents that ask
    ToolRunner(tool_runner::ToolRunnerArgs),
    /// Say which build this is
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
