//! `turnway adapter new`: writes the files of a new adapter (docs/adapter-check.md). Called by `node`.
use super::{CliError, CliExit, write_json, write_stdout};
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::PathBuf;
use turnway_adapter_kit::scaffold::{self, ScaffoldError, ScaffoldLanguage};

/// Subcommands of `turnway adapter`.
#[derive(Clone, Debug, Subcommand)]
pub enum AdapterCliCommand {
    /// Write the files of a new adapter, which reaches bronze as it is
    New(AdapterNewArgs),
}

/// Arguments of `turnway adapter new`.
#[derive(Clone, Debug, Args)]
pub struct AdapterNewArgs {
    /// Name of the adapter, which is its channel: a-z, 0-9 and -
    #[arg(value_name = "NAME", value_parser = scaffold::parse_name)]
    pub name: String,
    /// Language: python (with the SDK), rust or ts (both without one)
    #[arg(long, value_name = "python|rust|ts", value_parser = ScaffoldLanguage::parse)]
    pub lang: ScaffoldLanguage,
    /// Directory for the files, made if necessary; without it one with the adapter's name. Nothing is overwritten
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Writes the files and prints their paths.
pub fn run(command: AdapterCliCommand, json: bool) -> Result<CliExit, CliError> {
    let AdapterCliCommand::New(args) = command;
    let dir = args.dir.unwrap_or_else(|| PathBuf::from(&args.name));
    let files = scaffold::create(&args.name, args.lang, &dir).map_err(|error| match error {
        ScaffoldError::Exists(_) => CliError::Usage(error.to_string()),
        ScaffoldError::Io { .. } => CliError::Failed(error.to_string()),
    })?;
    let paths: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    if json {
        write_json(&json!({ "files": paths }))?;
    } else {
        write_stdout(&format!("{}\n", paths.join("\n")))?;
    }
    Ok(CliExit::Success)
}
