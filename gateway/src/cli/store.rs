//! `turnway store …`: checks, repairs, backs up and restores the directory of an embedded store.
use super::http_client::{ApiClient, ApiRequest};
use super::{CliError, CliExit, write_json, write_stdout};
use crate::clock::Clock;
use crate::config::amount::format_size;
use crate::store::embedded::{self, CheckReport, EmbeddedOpenError, EmbeddedOptions};
use clap::{Args, Subcommand};
use http::Method;
use serde::Serialize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Subcommands of `turnway store`.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Check a whole store that is not in use, and report inconsistencies; writes nothing unless asked to
    Check(CheckArgs),
    /// Copy a store into a new or empty directory, and verify the copy
    Backup(BackupArgs),
    /// Restore a backup into a new or empty directory
    Restore(RestoreArgs),
}

/// Arguments of `turnway store check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// The store's directory
    pub dir: PathBuf,
    /// Repair a damaged store: damaged sessions are removed, indexes are rebuilt, and the original file is kept
    #[arg(long, conflicts_with = "salvage")]
    pub repair: bool,
    /// Copy all undamaged data into a new or empty directory; the store is only read
    #[arg(long, value_name = "TO")]
    pub salvage: Option<PathBuf>,
}

/// Arguments of `turnway store backup`.
#[derive(Clone, Debug, Args)]
#[command(
    override_usage = "turnway store backup [OPTIONS] <DIR> <TO>\n       turnway store backup [OPTIONS] --admin <URL> <TO>"
)]
pub struct BackupArgs {
    /// Directory of a store that is not in use (not with --admin), and the backup's directory, new or empty
    #[arg(required = true, num_args = 1..=2, value_names = ["DIR", "TO"])]
    pub dirs: Vec<PathBuf>,
    /// Ask a node that runs on this machine to copy its store, at its operators' address, such as
    /// http://127.0.0.1:8081
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
}

/// Arguments of `turnway store restore`.
#[derive(Clone, Debug, Args)]
pub struct RestoreArgs {
    /// Directory of the backup, which is not changed
    pub from: PathBuf,
    /// The store's directory, new or empty
    pub dir: PathBuf,
}

/// Advice for a store that a running node has open.
const STOP_NODE_ADVICE: &str = "stop the node first";
const BACKED_UP: &str = "backed up and verified";
/// This process does nothing else, so the cache may be this large.
const CACHE_BYTES: usize = 64 * 1024 * 1024;
/// A backup takes as long as the disk needs; this limit of one day only bounds a request that hangs.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The JSON form of the result.
#[derive(Serialize)]
struct StoreCheckReport<'a> {
    ok: bool,
    dir: &'a Path,
    #[serde(flatten)]
    report: &'a CheckReport,
}

/// Runs a subcommand on a directory, and converts a panic into an error.
pub fn run(command: &StoreCommand, json: bool) -> Result<CliExit, CliError> {
    // A damaged page can make the engine panic. The panic is caught and reported as damage, so the default
    // message is suppressed.
    std::panic::set_hook(Box::new(|_| {}));
    let done = catch_unwind(AssertUnwindSafe(|| execute(command, json)));
    drop(std::panic::take_hook());
    done.unwrap_or_else(|_| Err(CliError::Bug("internal error (panic) while reading or copying the store".to_owned())))
}

/// Returns the address of the node that is to copy its store and the target directory, if the command is a
/// backup with `--admin`.
pub fn backup_target(command: &StoreCommand) -> Option<(&str, &Path)> {
    match command {
        StoreCommand::Backup(BackupArgs { dirs, admin: Some(url) }) => match dirs.as_slice() {
            [to] => Some((url, to)),
            _ => None,
        },
        StoreCommand::Check(_) | StoreCommand::Backup(_) | StoreCommand::Restore(_) => None,
    }
}

/// Asks a node to copy its store.
pub async fn request_backup((url, to): (&str, &Path), json: bool) -> Result<CliExit, CliError> {
    let to = std::path::absolute(to).map_err(|error| CliError::Usage(format!("{}: {error}", to.display())))?;
    let method = Method::POST;
    let path = "/v1/store/backup";
    let who = None;
    let body = Some(serde_json::json!({ "to": to }));
    let answer = ApiClient::parse(url)?
        .request_json(ApiRequest { method, path, credentials: who, body, timeout: BACKUP_TIMEOUT })
        .await?;
    let report: CheckReport = serde_json::from_value(answer).map_err(|error| {
        CliError::Failed(format!("the answer has an unexpected format; the node may run another release: {error}"))
    })?;
    print_report(json, &to, BACKED_UP, &report)
}

fn execute(command: &StoreCommand, json: bool) -> Result<CliExit, CliError> {
    match command {
        StoreCommand::Check(args) => {
            let stop = |error| open_error(&error, STOP_NODE_ADVICE);
            if args.repair {
                let report = embedded::repair(&args.dir, &options()).map_err(stop)?;
                return print_copied_report(json, &args.dir, "repaired", &report);
            }
            if let Some(to) = &args.salvage {
                let report = embedded::rescue(&args.dir, to, &options()).map_err(stop)?;
                return print_copied_report(json, to, "salvaged and verified", &report);
            }
            let report = embedded::check(&args.dir, &options()).map_err(stop)?;
            print_report(json, &args.dir, "no damage found", &report)
        }
        StoreCommand::Backup(args) => match (args.dirs.as_slice(), &args.admin) {
            ([dir, to], None) => copy(json, dir, to, BACKED_UP, "stop the node first, or ask it with --admin"),
            (_, None) => Err(CliError::Usage("backup needs DIR and TO, or --admin URL and TO".to_owned())),
            (_, Some(_)) => Err(CliError::Usage("with --admin, backup needs TO alone".to_owned())),
        },
        StoreCommand::Restore(args) => copy(json, &args.from, &args.dir, "restored and verified", STOP_NODE_ADVICE),
    }
}

fn copy(json: bool, from: &Path, to: &Path, done: &str, busy: &str) -> Result<CliExit, CliError> {
    let report = embedded::copy(from, to, &options()).map_err(|error| open_error(&error, busy))?;
    print_report(json, to, done, &report)
}

fn options() -> EmbeddedOptions {
    let clock = Clock::start();
    // No writer is running that could fail. The whole file is read more than once.
    let options = EmbeddedOptions::new(Arc::new(move || clock.now()), Arc::new(|_| {}));
    EmbeddedOptions { cache_bytes: CACHE_BYTES, ..options }
}

/// Converts an error of opening a store; `busy` is the advice for a store that a running node has open.
fn open_error(error: &EmbeddedOpenError, busy: &str) -> CliError {
    let message = error.to_string();
    match error {
        EmbeddedOpenError::InUse { .. } => CliError::Unavailable(format!("{message}; {busy}")),
        EmbeddedOpenError::Missing { .. } | EmbeddedOpenError::Directory { .. } | EmbeddedOpenError::Network { .. } => {
            CliError::Unavailable(message)
        }
        EmbeddedOpenError::NotEmpty { .. } | EmbeddedOpenError::Format { .. } => CliError::Failed(message),
        EmbeddedOpenError::Damaged { path, .. } => {
            CliError::Failed(format!("{message}; `turnway store check {}` lists all damage", path.display()))
        }
        EmbeddedOpenError::Thread(_) | EmbeddedOpenError::Fault(_) => CliError::Failed(message),
    }
}

/// Prints the result of a repair or a salvage; damage gives a failed exit code, omitted sessions alone do not.
fn print_copied_report(json: bool, dir: &Path, done: &str, report: &CheckReport) -> Result<CliExit, CliError> {
    print_report(json, dir, done, report).map(|_| if report.damages == 0 { CliExit::Success } else { CliExit::Failed })
}

/// Prints the result of a check or a copy. A copy that lacks sessions of the original gives a failed exit code.
fn print_report(json: bool, dir: &Path, whole: &str, report: &CheckReport) -> Result<CliExit, CliError> {
    let ok = report.damages == 0 && report.left_out == 0;
    if json {
        write_json(&StoreCheckReport { ok, dir, report })?;
    } else {
        write_stdout(&render_report(dir, whole, report))?;
    }
    Ok(if ok { CliExit::Success } else { CliExit::Failed })
}

fn render_report(dir: &Path, whole: &str, report: &CheckReport) -> String {
    let verdict = match report.damages {
        0 => whole.to_owned(),
        1 => "DAMAGED in 1 place".to_owned(),
        count => format!("DAMAGED in {count} places"),
    };
    let mut text = format!("{}: {verdict}\n", dir.display());
    let counts = [
        ("sessions", report.sessions, ""),
        ("facts", report.facts, "in their logs"),
        ("waiting", report.waiting, "inputs and cancels not processed yet"),
        ("ids", report.ids, "remembered ids of messages and cancels"),
        ("snapshots", report.snapshots, "saved session states"),
        ("values", report.values, "named values"),
        ("conversations", report.conversations, "bound, or bound before"),
    ];
    for (name, count, what) in counts {
        text += format!("  {name:<13} {count:>12}  {what}").trim_end();
        text += "\n";
    }
    text += &format!("  {:<13} {:>12}\n", "file", format_size(report.bytes));
    if report.unclosed {
        text += "  The store was not shut down cleanly; this is the state after recovery.\n";
    }
    if report.left_out > 0 {
        text += &format!("  {} damaged sessions were omitted:\n", report.left_out);
    }
    for complaint in &report.complaints {
        text += &format!("  - {complaint}\n");
    }
    let unlisted = (report.damages + report.left_out).saturating_sub(report.complaints.len() as u64);
    if unlisted > 0 {
        text += &format!("  … and {unlisted} more\n");
    }
    text
}
