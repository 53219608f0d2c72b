//! Turnway: a distributed edge gateway for conversations with AI agents.
use clap::Parser;
use std::io::IsTerminal;
use std::process::ExitCode;
use tokio::runtime::{Builder, Runtime};
use turnway::app::App;
use turnway::cli::plan::{self, Plan};
use turnway::cli::serve::ServeArgs;
use turnway::cli::{
    self, Cli, Command, Exit, Trouble, agents, chat, check_config, complain, dev_cert, key, nodes, replay,
    sessions, store, version,
};
use turnway::config::LogFormat;
use turnway::trace::{self, Shape};

/// Gives memory back after many connections have closed, also where nothing happens any more: the
/// system's allocator does not, and others wait for the next allocation of each thread. Its settings
/// are compiled in, from `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Whoever speaks TLS takes the process's provider; there is one, for all of them.
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        complain("turnway: another TLS provider is already installed\n");
        return Exit::Bug.into();
    }
    let (cli, json) = match Cli::try_parse() {
        Ok(cli) => (cli.command, cli.json),
        Err(error) => return misunderstood(&error).into(),
    };
    let ended = obey(cli, json).unwrap_or_else(|trouble| {
        trouble.tell(json);
        trouble.exit()
    });
    ended.into()
}

fn obey(command: Command, json: bool) -> Result<Exit, Trouble> {
    match command {
        Command::Serve(args) => serve(&args),
        Command::Chat(args) => in_runtime(chat::run(args)),
        Command::Replay(args) => in_runtime(replay::run(args, json)),
        Command::Sessions(args) => in_runtime(sessions::run(args, json)),
        Command::Agents(args) => in_runtime(agents::run(args, json)),
        Command::Nodes(args) => in_runtime(nodes::run(args, json)),
        Command::CheckConfig(args) => check_config::run(&args, json),
        Command::DefaultConfig => cli::default_config(json),
        Command::ConfigDoc => cli::config_doc(json),
        Command::Key(command) => in_runtime(key::run(command, json)),
        Command::DevCert(args) => dev_cert::run(&args, json),
        Command::Store(command) => match store::node(&command) {
            Some(wish) => in_runtime(store::ask(wish, json)),
            None => store::run(&command, json),
        },
        Command::Version => version::run(json),
    }
}

/// What is no command line; or one that asks for help or the version.
fn misunderstood(error: &clap::Error) -> Exit {
    let exit = if error.use_stderr() { Exit::Usage } else { Exit::Fine };
    if exit == Exit::Usage && std::env::args_os().any(|arg| arg == "--json") {
        Trouble::Usage(error.render().to_string().trim_end().to_owned()).tell(true);
    } else {
        // Nobody listening is no trouble.
        let _ = error.print();
    }
    exit
}

/// Reads what the node is to be, builds it, runs it.
fn serve(args: &ServeArgs) -> Result<Exit, Trouble> {
    let plan = plan::read(args, std::env::vars_os()).map_err(Trouble::Mistakes)?;
    trace::start(shape(plan.config.log), std::env::var("RUST_LOG").ok().as_deref());
    let runtime = runtime(Builder::new_multi_thread())?;
    let exit = run(plan, &runtime);
    // Whatever still runs has been waited for as long as it deserved.
    runtime.shutdown_background();
    exit
}

fn run(plan: Plan, runtime: &Runtime) -> Result<Exit, Trouble> {
    let app = App::build(plan, runtime.handle()).map_err(|error| Trouble::Unavailable(error.to_string()))?;
    Ok(runtime.block_on(app.run()))
}

/// A client needs no second thread.
fn in_runtime(command: impl Future<Output = Result<Exit, Trouble>>) -> Result<Exit, Trouble> {
    runtime(Builder::new_current_thread())?.block_on(command)
}

fn runtime(mut builder: Builder) -> Result<Runtime, Trouble> {
    builder.enable_all().build().map_err(|error| Trouble::Unavailable(format!("no runtime: {error}")))
}

fn shape(log: LogFormat) -> Shape {
    match log {
        LogFormat::Pretty => Shape::Pretty,
        LogFormat::Json => Shape::Json,
        LogFormat::Auto if std::io::stderr().is_terminal() => Shape::Pretty,
        LogFormat::Auto => Shape::Json,
    }
}
