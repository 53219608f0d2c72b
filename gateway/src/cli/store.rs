//! `turnway store …`: what an operator does with an embedded store's directory.
use super::{Exit, Trouble, say, say_json};
use crate::clock::Clock;
use crate::config::amount::show_size;
use crate::store::embedded::{self, OpenError, Options, Report};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to do with it.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Read all of a store that is not in use, and tell what does not fit together; nothing is written
    Check(CheckArgs),
    /// Copy a store that is not in use into a new or empty directory, and read the copy before it counts
    Backup(BackupArgs),
    /// Make a store of a backup, in a new or empty directory
    Restore(RestoreArgs),
}

/// Which store.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// The store's directory
    pub dir: PathBuf,
}

/// From where to where.
#[derive(Clone, Debug, Args)]
pub struct BackupArgs {
    /// The store's directory
    pub dir: PathBuf,
    /// The backup's directory, new or empty
    pub to: PathBuf,
}

/// From where to where.
#[derive(Clone, Debug, Args)]
pub struct RestoreArgs {
    /// The backup's directory, which stays as it is
    pub from: PathBuf,
    /// The store's directory, new or empty
    pub dir: PathBuf,
}

/// What was found, as JSON.
#[derive(Serialize)]
struct Verdict<'a> {
    ok: bool,
    dir: &'a Path,
    #[serde(flatten)]
    report: &'a Report,
}

/// Does it.
pub fn run(command: &StoreCommand, json: bool) -> Result<Exit, Trouble> {
    // What a damaged page makes the engine do is caught and told as damage, and that is enough said.
    std::panic::set_hook(Box::new(|_| {}));
    let done = catch_unwind(AssertUnwindSafe(|| obey(command, json)));
    drop(std::panic::take_hook());
    done.unwrap_or_else(|_| Err(Trouble::Bug("a panic while the store was read or copied".to_owned())))
}

fn obey(command: &StoreCommand, json: bool) -> Result<Exit, Trouble> {
    match command {
        StoreCommand::Check(args) => {
            let report = embedded::check(&args.dir, &options()).map_err(|error| trouble(&error))?;
            show(json, &args.dir, "whole", &report)
        }
        StoreCommand::Backup(args) => copy(json, &args.dir, &args.to, "backed up, read again and whole"),
        StoreCommand::Restore(args) => copy(json, &args.from, &args.dir, "restored, read again and whole"),
    }
}

fn copy(json: bool, from: &Path, to: &Path, done: &str) -> Result<Exit, Trouble> {
    let report = embedded::copy(from, to, &options()).map_err(|error| trouble(&error))?;
    show(json, to, done, &report)
}

fn options() -> Options {
    let clock = Clock::start();
    // There is no writer that could fail.
    Options::new(Arc::new(move || clock.now()), Arc::new(|_| {}))
}

/// What keeps a store from being looked at.
fn trouble(error: &OpenError) -> Trouble {
    let told = error.to_string();
    match error {
        OpenError::InUse { .. } => Trouble::Unavailable(format!("{told}; stop the node first")),
        OpenError::Missing { .. } | OpenError::Directory { .. } | OpenError::Network { .. } => {
            Trouble::Unavailable(told)
        }
        OpenError::Occupied { .. } | OpenError::Format { .. } => Trouble::Failed(told),
        OpenError::Damaged { path, .. } => {
            Trouble::Failed(format!("{told}; `turnway store check {}` tells all of it", path.display()))
        }
        OpenError::Thread(_) | OpenError::Fault(_) => Trouble::Failed(told),
    }
}

fn show(json: bool, dir: &Path, whole: &str, report: &Report) -> Result<Exit, Trouble> {
    let ok = report.damages == 0;
    if json {
        say_json(&Verdict { ok, dir, report })?;
    } else {
        say(&text(dir, whole, report))?;
    }
    Ok(if ok { Exit::Fine } else { Exit::Failed })
}

fn text(dir: &Path, whole: &str, report: &Report) -> String {
    let verdict = match report.damages {
        0 => whole.to_owned(),
        1 => "DAMAGED in 1 place".to_owned(),
        count => format!("DAMAGED in {count} places"),
    };
    let mut text = format!("{}: {verdict}\n", dir.display());
    let counts = [
        ("sessions", report.sessions, ""),
        ("facts", report.facts, "in their logs"),
        ("waiting", report.waiting, "inputs and cancels nobody has taken up"),
        ("ids", report.ids, "of messages and cancels, remembered"),
        ("snapshots", report.snapshots, "kept states of sessions"),
        ("values", report.values, "under names"),
    ];
    for (name, count, what) in counts {
        text += format!("  {name:<10} {count:>12}  {what}").trim_end();
        text += "\n";
    }
    text += &format!("  {:<10} {:>12}\n", "file", show_size(report.bytes));
    if report.unclosed {
        text += "  It was not closed in order; this is what its next start will find.\n";
    }
    for complaint in &report.complaints {
        text += &format!("  - {complaint}\n");
    }
    let unlisted = report.damages - report.complaints.len() as u64;
    if unlisted > 0 {
        text += &format!("  … and {unlisted} more\n");
    }
    text
}
