//! `turnway adapter-check`: starts an adapter against the conformance kit and prints its grade (docs/adapter-check.md).
//! Called by `node`.
use super::{CliError, CliExit, write_json, write_stdout};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use std::ffi::OsString;
use tokio::signal::unix::{SignalKind, signal};
use turnway_adapter_kit::catalog::{AdapterCheck, AdapterGrade};
use turnway_adapter_kit::check_run::{self, CheckError, CheckOptions, CheckPlatform};
use turnway_adapter_kit::limits::{CHAOS_SECONDS, CHAOS_SECONDS_MAX};
use turnway_adapter_kit::report::AdapterReport;

const AFTER_HELP: &str = "\
The adapter gets TURNWAY_URL, TURNWAY_API_KEY, and the platform's address as PLATFORM_URL and ROOMS_URL. It is started in
a directory of its own; names of files in CMD are found from the present one. Exit codes: 0 the grade is reached, 1 it is
not, 64 wrong usage.
Try it: turnway adapter-check --platform rooms -- python3 examples/rooms/adapter.py";

/// Arguments of `turnway adapter-check`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct AdapterCheckArgs {
    /// The platform that is driven and read: `rooms`, which is built in, or the address of one with the control API;
    /// without one the checks of single messages run
    #[arg(long, value_name = "rooms|URL", value_parser = parse_platform)]
    pub platform: Option<CheckPlatform>,
    /// The grade that the adapter must reach: bronze, silver, gold or platinum; gold by default, without --platform bronze
    #[arg(long, value_parser = AdapterGrade::parse)]
    pub grade: Option<AdapterGrade>,
    /// Leave a check out, which costs the grade of the check; may be repeated
    #[arg(long, value_name = "CHECK=REASON", value_parser = AdapterCheck::parse_exemption)]
    pub exempt: Vec<(AdapterCheck, String)>,
    /// Run only this check, without a grade; may be repeated
    #[arg(long, value_name = "CHECK", value_parser = AdapterCheck::parse, conflicts_with = "grade")]
    pub only: Vec<AdapterCheck>,
    /// Length of the chaos script of platinum
    #[arg(long, value_name = "SECONDS", default_value_t = CHAOS_SECONDS, value_parser = chaos_seconds())]
    pub chaos_seconds: u64,
    /// Number that decides the order of faults in the chaos script
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// The program of the adapter with its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

fn chaos_seconds() -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(1..=CHAOS_SECONDS_MAX)
}

fn parse_platform(text: &str) -> Result<CheckPlatform, String> {
    match text {
        "rooms" => Ok(CheckPlatform::Rooms),
        url if url.starts_with("http://") => Ok(CheckPlatform::Running(url.to_owned())),
        _ => Err("the platform is `rooms`, or http://HOST:PORT".to_owned()),
    }
}

/// Checks the adapter and prints the report. Ctrl-C and SIGTERM end the adapter, too.
pub async fn run(args: AdapterCheckArgs, json: bool) -> Result<CliExit, CliError> {
    let platform = args.platform.unwrap_or(CheckPlatform::Absent);
    let usual = if platform == CheckPlatform::Absent { AdapterGrade::Bronze } else { AdapterGrade::Gold };
    let options = CheckOptions {
        command: args.command,
        wanted: args.grade.unwrap_or(usual),
        platform,
        exempt: args.exempt,
        only: args.only,
        chaos_seconds: args.chaos_seconds,
        seed: args.seed,
    };
    let failed = |error: std::io::Error| CliError::Failed(error.to_string());
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut written = Ok(());
    let checked = check_run::run(&options, |row| {
        // A closed stdout ends the command after the run.
        if !json && written.is_ok() {
            written = write_stdout(&row.line());
        }
    });
    let report: AdapterReport = tokio::select! {
        report = checked => report.map_err(|error| match error {
            CheckError::Usage(why) => CliError::Usage(why),
            CheckError::Failed(why) => CliError::Failed(why),
        })?,
        _ = interrupt.recv() => return Err(CliError::Failed("interrupted".to_owned())),
        _ = terminate.recv() => return Err(CliError::Failed("terminated".to_owned())),
    };
    written?;
    if json {
        write_json(&report.to_json())?;
    } else {
        write_stdout(&report.verdict())?;
    }
    Ok(if report.is_success() { CliExit::Success } else { CliExit::Failed })
}
