//! One run of the kit: starts the platform and the adapter, performs the checks of the wanted grade, and collects the
//! report. Called by the command `turnway adapter-check`.
use crate::adapter_process::{AdapterProcess, with_absolute_paths};
use crate::bench::{CheckBench, CheckFailure, CheckResult};
use crate::catalog::{AdapterCheck, AdapterGrade, CATALOG, CheckEntry};
use crate::check_gateway::{CheckGateway, without_secrets};
use crate::checks::{self, ChaosScript};
use crate::control::ControlApi;
use crate::limits::{CHAOS_SETTLE_TIMEOUT, CHECK_TIMEOUT, START_TIMEOUT};
use crate::report::{AdapterReport, CheckOutcome, CheckedRow};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::time::timeout;

/// The program of the built-in platform.
const ROOMS: &str = include_str!("../../examples/rooms/rooms.py");
/// The key that an adapter is given if the caller has none.
const MADE_UP_KEY: &str = "twk_adapter-check";

/// The platform of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckPlatform {
    /// None: only checks that need no platform run.
    Absent,
    /// The platform of `examples/rooms`, which the kit starts.
    Rooms,
    /// A running platform with the control API, by its address.
    Running(String),
}

/// The request for a run.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Program and arguments of the adapter.
    pub command: Vec<OsString>,
    pub platform: CheckPlatform,
    pub wanted: AdapterGrade,
    /// Checks that are not performed, with the author's reason.
    pub exempt: Vec<(AdapterCheck, String)>,
    /// Performs only these checks; empty: all of the wanted grade.
    pub only: Vec<AdapterCheck>,
    /// Length of the chaos script in seconds.
    pub chaos_seconds: u64,
    pub seed: u64,
}

/// The reason why there is no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Failed(String),
}

/// The programs of a run. All end with this value.
struct CheckStage {
    bench: CheckBench,
    _rooms: Option<AdapterProcess>,
    _dir: TempDir,
}

/// Performs the checks and returns the report. `progress` is told each row as soon as it is known.
pub async fn run(options: &CheckOptions, mut progress: impl FnMut(&CheckedRow)) -> Result<AdapterReport, CheckError> {
    let stage = CheckStage::start(options).await?;
    let script = ChaosScript { seconds: options.chaos_seconds, seed: options.seed };
    let mut rows = Vec::new();
    for entry in CATALOG.iter().filter(|entry| is_wanted(entry, options)) {
        let begun = Instant::now();
        let outcome = match outcome_without_run(entry, options) {
            Some(outcome) => outcome,
            None => perform(&stage.bench, entry, script).await,
        };
        rows.push(CheckedRow { check: entry.check, outcome, took: begun.elapsed() });
        rows.last().into_iter().for_each(&mut progress);
    }
    let adapter = stage.bench.gateway.state().hello().map_or(Value::Null, without_secrets);
    stage.bench.adapter.kill().await;
    Ok(AdapterReport { rows, wanted: options.wanted, is_partial: !options.only.is_empty(), adapter })
}

fn is_wanted(entry: &CheckEntry, options: &CheckOptions) -> bool {
    if options.only.is_empty() { entry.grade <= options.wanted } else { options.only.contains(&entry.check) }
}

/// Returns the outcome of a check that is not performed.
fn outcome_without_run(entry: &CheckEntry, options: &CheckOptions) -> Option<CheckOutcome> {
    let exempt = options.exempt.iter().find(|(check, _)| *check == entry.check);
    if let Some((_, reason)) = exempt {
        return Some(CheckOutcome::Exempt(reason.clone()));
    }
    (entry.needs_platform && options.platform == CheckPlatform::Absent).then_some(CheckOutcome::NotRun)
}

async fn perform(bench: &CheckBench, entry: &CheckEntry, script: ChaosScript) -> CheckOutcome {
    let records = bench.gateway.state().records.len();
    let violations = bench.gateway.state().violations.len();
    let longest = if entry.check == AdapterCheck::Chaos {
        Duration::from_secs(script.seconds) + 3 * CHAOS_SETTLE_TIMEOUT
    } else {
        CHECK_TIMEOUT
    };
    let performed = timeout(longest, prepare_and_perform(bench, entry, script)).await;
    let late = || CheckFailure(format!("the check did not end within {} s", longest.as_secs()));
    let ended = performed.unwrap_or_else(|_| Err(late()));
    let broken = bench.gateway.state().violations.get(violations).cloned();
    let reason = match (ended, broken) {
        (Ok(true), None) => return CheckOutcome::Passed,
        (Ok(false), None) => return CheckOutcome::NotDeclared,
        (Err(failure), _) => failure.0,
        (Ok(_), Some(violation)) => format!("a message that the protocol does not allow: {violation}"),
    };
    CheckOutcome::Failed { reason, evidence: bench.evidence(records).await }
}

/// Performs a check; returns false if the adapter does not declare what the check proves.
async fn prepare_and_perform(bench: &CheckBench, entry: &CheckEntry, script: ChaosScript) -> CheckResult<bool> {
    bench.prepare().await?;
    if entry.capability.is_some_and(|capability| !bench.declares(capability)) {
        return Ok(false);
    }
    checks::perform(entry.check, bench, script).await
}

// === impl CheckStage ===

impl CheckStage {
    async fn start(options: &CheckOptions) -> Result<Self, CheckError> {
        let failed = |why: std::io::Error| CheckError::Failed(why.to_string());
        let dir = TempDir::with_prefix("turnway-adapter-check-").map_err(failed)?;
        let (rooms, url) = match &options.platform {
            CheckPlatform::Absent => (None, None),
            CheckPlatform::Running(url) => (None, Some(url.clone())),
            CheckPlatform::Rooms => {
                let (process, url) = start_rooms(dir.path()).await?;
                (Some(process), Some(url))
            }
        };
        let platform = url.map(|url| ControlApi::parse(&url)).transpose().map_err(CheckError::Usage)?;
        if let Some(platform) = &platform {
            platform.plant(json!([])).await.map_err(CheckError::Failed)?;
        }
        let gateway = CheckGateway::listen().await.map_err(failed)?;
        let api_key = std::env::var("TURNWAY_API_KEY").unwrap_or_else(|_| MADE_UP_KEY.to_owned());
        let mut env = vec![("TURNWAY_URL", gateway.url.clone()), ("TURNWAY_API_KEY", api_key.clone())];
        if let Some(platform) = &platform {
            env.push(("PLATFORM_URL", platform.url.clone()));
            env.push(("ROOMS_URL", platform.url.clone()));
        }
        let here = std::env::current_dir().map_err(failed)?;
        let adapter = AdapterProcess::new(with_absolute_paths(&options.command, &here), env, dir.path());
        adapter.start().await.map_err(CheckError::Usage)?;
        Ok(Self { bench: CheckBench::new(gateway, adapter, platform, api_key), _rooms: rooms, _dir: dir })
    }
}

/// Starts the built-in platform; returns its process and its address.
async fn start_rooms(dir: &Path) -> Result<(AdapterProcess, String), CheckError> {
    let script = dir.join("rooms.py");
    std::fs::write(&script, ROOMS).map_err(|why| CheckError::Failed(why.to_string()))?;
    let process = AdapterProcess::new(vec!["python3".into(), script.into(), "0".into()], Vec::new(), dir);
    let needed = "the platform rooms is a Python program: install Python 3.11 or later, or name a running platform \
                  with --platform URL";
    process.start().await.map_err(|why| CheckError::Failed(format!("{why}; {needed}")))?;
    match timeout(START_TIMEOUT, process.line_after("rooms: ")).await {
        Ok(url) => Ok((process, url)),
        Err(_) => {
            Err(CheckError::Failed(format!("python3 did not start rooms: {:?}; {needed}", process.last_output())))
        }
    }
}
