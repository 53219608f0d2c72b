//! Mode `compare`: Turnway beside other systems that pass messages to many connections, with the same loads and
//! one clock. [`system`] is the interface of a system, [`rows`] measures, [`page`] and [`bar_chart`] write the
//! results.
pub mod bar_chart;
pub mod http_publish;
pub mod listener;
pub mod load;
pub mod loss;
pub mod nats;
pub mod nchan;
pub mod page;
pub mod rows;
pub mod socketio;
pub mod sockudo;
pub mod stall;
pub mod system;
pub mod test_message;
pub mod turnway;
pub mod workspace;

use crate::cli::{Compare, Row, System};
use crate::error::BenchError;
use crate::mode::echo_server::termination_signal;
use crate::output::{print_stderr, print_stdout};
use ::turnway::cli::CliExit;
use clap::ValueEnum;
use page::{Cell, Column, NamedColumn};
use rows::Sizes;
use std::time::Duration;
use tokio::time::timeout;
use workspace::Workspace;

/// Maximum duration of a row; a row that takes longer counts as stuck.
const ROW_MAX: Duration = Duration::from_secs(8 * 60);

/// Runs the mode. All started servers are killed in any case.
pub async fn run(args: &Compare) -> Result<CliExit, BenchError> {
    tokio::select! {
        done = compare(args) => done,
        () = termination_signal() => Err(BenchError::Failed("stopped by a signal; nothing is written".to_owned())),
    }
}

async fn compare(args: &Compare) -> Result<CliExit, BenchError> {
    let failed = |error| BenchError::Failed(format!("{}: {error}", args.into.display()));
    std::fs::create_dir_all(&args.into).map_err(failed)?;
    let ground = Workspace::new(&args.installed)?;
    let systems = requested_or_all(&args.peers, System::value_variants());
    let rows = requested_or_all(&args.rows, Row::value_variants());
    let runs = args.runs.unwrap_or(if args.quick { 1 } else { 3 });
    let mut columns = Vec::new();
    for system in systems {
        let peer = system::driver(system);
        let version = peer.version(&ground);
        if let Err(why) = &version {
            print_stderr(&format!("{} is skipped: {why}\n", peer.name()));
        }
        columns.push((peer, Column { system, version, cells: Vec::new() }));
    }
    let sizes = Sizes::new(args.quick);
    for row in &rows {
        for (_, column) in &mut columns {
            column.cells.push(Cell::default());
        }
        // The systems take turns, so that a bad minute of the machine affects all of them.
        for run in 1..=runs {
            for (peer, column) in columns.iter_mut().filter(|(_, column)| column.version.is_ok()) {
                let measured = timeout(ROW_MAX, rows::measure(&**peer, &ground, *row, &sizes)).await;
                let stuck = || BenchError::Failed(format!("nothing within {} s", ROW_MAX.as_secs()));
                let measured = measured.map_err(|_| stuck()).and_then(|measured| measured);
                print_stderr(&format!(
                    "{} {run}: {}: {}\n",
                    page::row_name(*row),
                    peer.name(),
                    page::figures_text(&measured)
                ));
                if let Some(cell) = column.cells.last_mut() {
                    cell.add_run(measured);
                }
            }
        }
    }
    let columns: Vec<NamedColumn> = columns.into_iter().map(|(peer, column)| column.with_name(peer.name())).collect();
    write(args, &rows, &columns, runs)
}

/// Returns the requested items, or all if none were requested.
fn requested_or_all<T: Copy>(asked: &[T], all: &[T]) -> Vec<T> {
    if asked.is_empty() { all.to_vec() } else { asked.to_vec() }
}

/// Writes the table and the plots. Succeeds if everything requested of Turnway was measured.
fn write(args: &Compare, rows: &[Row], columns: &[NamedColumn], runs: u8) -> Result<CliExit, BenchError> {
    let put = |name: &str, text: &str| {
        let path = args.into.join(name);
        std::fs::write(&path, text).map_err(|error| BenchError::Failed(format!("{}: {error}", path.display())))
    };
    let text = page::render(rows, columns, runs, args.quick);
    put("compare.markdown", &text)?;
    for (n, row) in rows.iter().enumerate() {
        put(&format!("compare-{}.svg", page::row_name(*row)), &bar_chart::render(*row, n, columns))?;
    }
    print_stdout(&text);
    let ours = |named: &&NamedColumn| named.column.system == System::Turnway;
    let is_whole = columns.iter().filter(ours).all(|named| named.column.cells.iter().all(Cell::is_measured));
    Ok(if is_whole { CliExit::Success } else { CliExit::Failed })
}
