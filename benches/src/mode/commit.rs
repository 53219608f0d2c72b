//! Mode `commit`: single durable commits in sequence, the cost of durability on this disk.
use crate::cli::Commit;
use crate::error::BenchError;
use crate::process::{Process, ProcessMonitor};
use crate::record::{Count, Measure, Record};
use crate::report::{self, ModeFigures, ReportData};
use redb::{Database, Error, TableDefinition};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};
use turnway::cli::CliExit;

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("commits");
/// Bytes of a value, about the size of a small fact.
const VALUE_BYTES: usize = 200;
/// Commits that are not measured, because the first commits of a new file make it grow.
const WARM_UP: u64 = 20;

/// Runs the mode.
pub fn run(args: &Commit) -> Result<CliExit, BenchError> {
    let failed = |error: &dyn std::fmt::Display| BenchError::Failed(format!("{}: {error}", args.dir.display()));
    let dir = tempfile::Builder::new().prefix("turnway-bench-").tempdir_in(&args.dir);
    let dir = dir.map_err(|error| failed(&error))?;
    let own = ProcessMonitor::new(Process::own());
    let mut record = Record::new(Measure::Commit);
    let lasted = measure(&dir.path().join("commits.redb"), args.duration, &mut record, &own);
    let lasted = lasted.map_err(|error| failed(&error))?;
    let count = record.counted(Count::Completed);
    let figures = ModeFigures {
        unit: "commits",
        count,
        closed_loop: None,
        extra_json: json!({ "value_bytes": VALUE_BYTES }),
        extra_lines: Vec::new(),
    };
    let sheet = ReportData {
        mode: "commit",
        url: None,
        load: None,
        duration: lasted,
        record: &record,
        mode_figures: &figures,
        server: None,
        own: &own,
    };
    report::publish(&sheet, &args.outputs)
}

fn measure(file: &Path, duration: Duration, record: &mut Record, own: &ProcessMonitor) -> Result<Duration, Error> {
    let database = Database::create(file)?;
    for key in 0..WARM_UP {
        put(&database, key)?;
    }
    let begun = Instant::now();
    record.start(begun);
    own.start_cpu();
    let mut second = begun;
    for key in WARM_UP.. {
        let since = Instant::now();
        if since.duration_since(begun) >= duration {
            break;
        }
        if since.duration_since(second) >= Duration::from_secs(1) {
            record.end_second(since, begun, None);
            second = since;
        }
        put(&database, key)?;
        record.record_duration(Measure::Commit, since.elapsed());
        record.count(Count::Completed, 1);
    }
    let lasted = begun.elapsed();
    record.end_second(Instant::now(), begun, None);
    own.sample();
    Ok(lasted)
}

/// Stores one small value; the value is on the disk when this returns.
fn put(database: &Database, key: u64) -> Result<(), Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(TABLE)?;
        table.insert(key, [7; VALUE_BYTES].as_slice())?;
    }
    Ok(transaction.commit()?)
}
