//! What can be typed after `turnway`, one file per command.
pub mod chat;
pub mod check_config;
pub mod plan;
pub mod replay;
pub mod serve;
pub mod version;

use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "turnway", version, about, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node.
    Serve(serve::ServeArgs),
    /// Say whether a node would start with this configuration, or everything that is wrong with it.
    CheckConfig(serve::ServeArgs),
    /// Talk to an agent through a node.
    Chat(chat::ChatArgs),
    /// Show a session's log.
    Replay(replay::ReplayArgs),
    /// Say which build this is.
    Version,
}

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Fine,
    /// It did not work out.
    Failed,
    /// It was asked for wrongly: usage or configuration.
    Usage,
    /// Something it depends on cannot be had.
    Unavailable,
    /// A bug of ours.
    Bug,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Fine => 0,
            Exit::Failed => 1,
            Exit::Usage => 64,
            Exit::Unavailable => 69,
            Exit::Bug => 70,
        })
    }
}

/// Prints for whoever started the command. Nobody listening is no reason to fail.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints what went wrong.
pub fn complain(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
