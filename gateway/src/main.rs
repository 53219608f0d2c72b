//! Turnway: a distributed edge gateway for conversations with AI agents.
use clap::Parser;
use std::io::IsTerminal;
use std::process::ExitCode;
use tokio::runtime::{Builder, Runtime};
use turnway::app::App;
use turnway::cli::plan::{self, Plan};
use turnway::cli::serve::ServeArgs;
use turnway::cli::{Cli, Command, Exit, chat, check_config, complain, replay, version};
use turnway::config::LogFormat;
use turnway::trace::{self, Shape};

/// Gives memory back after many connections have closed, which the system's allocator does not.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Whoever speaks TLS takes the process's provider; there is one, for all of them.
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        complain("turnway: another TLS provider is already installed\n");
        return Exit::Bug.into();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Fine };
            let _ = error.print();
            return exit.into();
        }
    };
    match cli.command {
        Command::Serve(args) => serve(&args).into(),
        Command::CheckConfig(args) => check_config::run(&args).into(),
        Command::Chat(args) => in_runtime(chat::run(args)),
        Command::Replay(args) => in_runtime(replay::run(args)),
        Command::Version => version::run().into(),
    }
}

/// Reads what the node is to be, builds it, runs it.
fn serve(args: &ServeArgs) -> Exit {
    let plan = match plan::read(args, std::env::vars_os()) {
        Ok(plan) => plan,
        Err(mistakes) => {
            complain(&plan::list(&mistakes));
            return Exit::Usage;
        }
    };
    trace::start(shape(plan.config.log), std::env::var("RUST_LOG").ok().as_deref());
    let Some(runtime) = runtime(Builder::new_multi_thread()) else { return Exit::Unavailable };
    let exit = run(plan, &runtime);
    // Whatever still runs has been waited for as long as it deserved.
    runtime.shutdown_background();
    exit
}

fn run(plan: Plan, runtime: &Runtime) -> Exit {
    match App::build(plan, runtime.handle()) {
        Ok(app) => runtime.block_on(app.run()),
        Err(error) => {
            complain(&format!("turnway: {error}\n"));
            Exit::Unavailable
        }
    }
}

/// A client needs no second thread.
fn in_runtime(command: impl Future<Output = ExitCode>) -> ExitCode {
    match runtime(Builder::new_current_thread()) {
        Some(runtime) => runtime.block_on(command),
        None => Exit::Unavailable.into(),
    }
}

fn runtime(mut builder: Builder) -> Option<Runtime> {
    builder.enable_all().build().map_err(|error| complain(&format!("turnway: no runtime: {error}\n"))).ok()
}

fn shape(log: LogFormat) -> Shape {
    match log {
        LogFormat::Pretty => Shape::Pretty,
        LogFormat::Json => Shape::Json,
        LogFormat::Auto if std::io::stderr().is_terminal() => Shape::Pretty,
        LogFormat::Auto => Shape::Json,
    }
}
