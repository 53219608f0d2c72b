//! `turnway-bench`: runs a load and prints its figures.
use clap::Parser;
use std::process::ExitCode;
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use turnway::cli::CliExit;
use turnway_benches::cli::Cli;
use turnway_benches::mode;
use turnway_benches::output::print_stderr;

/// The node's allocator, so that the echo server is comparable with the node.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let exit = if error.use_stderr() { CliExit::Usage } else { CliExit::Success };
            // Printing fails only if the reader is gone, which is no failure.
            let _ = error.print();
            return exit.into();
        }
    };
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_stderr(&format!("turnway-bench: cannot start the runtime: {error}\n"));
            return CliExit::Unavailable.into();
        }
    };
    match LocalSet::new().block_on(&runtime, mode::run(cli.mode)) {
        Ok(exit) => exit.into(),
        Err(trouble) => {
            print_stderr(&format!("turnway-bench: {trouble}\n"));
            trouble.exit_status().into()
        }
    }
}
