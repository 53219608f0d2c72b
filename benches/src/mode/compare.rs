//! Mode `compare`: Turnway beside other systems that pass messages to many connections, with the same loads and
//! one clock. [`peer`] is the interface of a system, [`rows`] measures, [`page`] and [`bars`] write the
//! results.
pub mod bars;
pub mod ground;
pub mod listener;
pub mod load;
pub mod loss;
pub mod mark;
pub mod nats;
pub mod nchan;
pub mod page;
pub mod peer;
pub mod pipeline;
pub mod rows;
pub mod socketio;
pub mod sockudo;
pub mod stall;
pub mod turnway;

use crate::cli::{Compare, Row, System};
use crate::mode::echo_server::told_to_stop;
use crate::print::{complain, say};
use crate::trouble::Trouble;
use ::turnway::cli::Exit;
use clap::ValueEnum;
use ground::Ground;
use page::{Cell, Column, Named};
use rows::Sizes;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum duration of a row; a row that takes longer counts as stuck.
const ROW_MAX: Duration = Duration::from_secs(8 * 60);

/// Runs the mode. All started servers are killed in any case.
pub async fn run(args: &Compare) -> Result<Exit, Trouble> {
    tokio::select! {
        done = compare(args) => done,
        () = told_to_stop() => Err(Trouble::Failed("stopped by a signal; nothing is written".to_owned())),
    }
}

async fn compare(args: &Compare) -> Result<Exit, Trouble> {
    let failed = |error| Trouble::Failed(format!("{}: {error}", args.into.display()));
    std::fs::create_dir_all(&args.into).map_err(failed)?;
    let ground = Ground::new(&args.installed)?;
    let systems = chosen(&args.peers, System::value_variants());
    let rows = chosen(&args.rows, Row::value_variants());
    let runs = args.runs.unwrap_or(if args.quick { 1 } else { 3 });
    let mut columns = Vec::new();
    for system in systems {
        let peer = peer::of(system);
        let version = peer.version(&ground);
        if let Err(why) = &version {
            complain(&format!("{} is skipped: {why}\n", peer.name()));
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
                let stuck = || Trouble::Failed(format!("nothing within {} s", ROW_MAX.as_secs()));
                let measured = measured.map_err(|_| stuck()).and_then(|measured| measured);
                complain(&format!("{} {run}: {}: {}\n", page::key(*row), peer.name(), page::told(&measured)));
                if let Some(cell) = column.cells.last_mut() {
                    cell.take(measured);
                }
            }
        }
    }
    let columns: Vec<Named> = columns.into_iter().map(|(peer, column)| column.named(peer.name())).collect();
    write(args, &rows, &columns, runs)
}

/// Returns the requested items, or all if none were requested.
fn chosen<T: Copy>(asked: &[T], all: &[T]) -> Vec<T> {
    if asked.is_empty() { all.to_vec() } else { asked.to_vec() }
}

/// Writes the table and the plots. Succeeds if everything requested of Turnway was measured.
fn write(args: &Compare, rows: &[Row], columns: &[Named], runs: u8) -> Result<Exit, Trouble> {
    let put = |name: &str, text: &str| {
        let path = args.into.join(name);
        std::fs::write(&path, text).map_err(|error| Trouble::Failed(format!("{}: {error}", path.display())))
    };
    let text = page::of(rows, columns, runs, args.quick);
    put("compare.markdown", &text)?;
    for (n, row) in rows.iter().enumerate() {
        put(&format!("compare-{}.svg", page::key(*row)), &bars::of(*row, n, columns))?;
    }
    say(&text);
    let ours = |named: &&Named| named.column.system == System::Turnway;
    let is_whole = columns.iter().filter(ours).all(|named| named.column.cells.iter().all(Cell::is_measured));
    Ok(if is_whole { Exit::Fine } else { Exit::Failed })
}
