//! The `turnway` program as a library: the command line, with the plugins that a binary adds. A binary with plugins is
//! a `main` of a few lines (docs/plugins.md).
use crate::agent::plugins::Plugins;
use crate::app::App;
use crate::cli::plan::{self, Plan};
use crate::cli::serve::ServeArgs;
use crate::cli::{
    self, Cli, Command, Exit, Trouble, agents, chat, check_config, complain, dev_cert, drain, key, nodes,
    probe, replay, sessions, store, tool_runner, version,
};
use crate::config::LogFormat;
use crate::trace::{self, Shape};
use clap::Parser;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::runtime::{Builder, Runtime};
use turnway_pipeline::Plugin;

/// The builder of a node, and the entry point of every command of `turnway`.
///
/// ```no_run
/// # use turnway_pipeline::{Hook, Plugin, Prompt, Turn};
/// # struct Mine;
/// # impl Plugin for Mine { fn name(&self) -> &str { "mine" } }
/// fn main() -> std::process::ExitCode {
///     turnway::Node::builder().plugin(Mine).main()
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Node {
    plugins: Plugins,
}

// === impl Node ===

impl Node {
    /// Creates a node with the builtin plugin only.
    pub fn builder() -> Self {
        Self::default()
    }

    /// Registers a plugin, which runs before those registered earlier (TP-N14). All nodes of a fleet must have the same
    /// plugins, in the same order.
    #[must_use]
    pub fn plugin(mut self, plugin: impl Plugin + 'static) -> Self {
        self.plugins = self.plugins.with(plugin);
        self
    }

    /// Sets the workspace, whose `AGENTS.md` is sent to every agent as `context.system_prompt`.
    #[must_use]
    pub fn workspace(mut self, workspace: impl Into<PathBuf>) -> Self {
        self.plugins = self.plugins.at(workspace);
        self
    }

    /// Runs the command that the process's arguments name, such as `serve`, to its end.
    #[must_use]
    pub fn main(self) -> ExitCode {
        // All TLS code uses this process-wide crypto provider.
        if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
            complain("turnway: another TLS provider is already installed\n");
            return Exit::Bug.into();
        }
        let (cli, json) = match Cli::try_parse() {
            Ok(cli) => (cli.command, cli.json),
            Err(error) => return misunderstood(&error).into(),
        };
        let ended = obey(cli, json, self.plugins).unwrap_or_else(|trouble| {
            trouble.tell(json);
            trouble.exit()
        });
        ended.into()
    }
}

fn obey(command: Command, json: bool, plugins: Plugins) -> Result<Exit, Trouble> {
    match command {
        Command::Serve(args) => serve(&args, plugins),
        Command::Chat(args) => in_runtime(chat::run(args)),
        Command::Replay(args) => in_runtime(replay::run(args, json)),
        Command::Sessions(args) => in_runtime(sessions::run(args, json)),
        Command::Agents(args) => in_runtime(agents::run(args, json)),
        Command::Nodes(args) => in_runtime(nodes::run(args, json)),
        Command::Probe(args) => in_runtime(probe::run(args, json)),
        Command::Drain(args) => in_runtime(drain::run(args, json)),
        Command::CheckConfig(args) => check_config::run(&args, json),
        Command::DefaultConfig => cli::default_config(json),
        Command::ConfigDoc => cli::config_doc(json),
        Command::Key(command) => in_runtime(key::run(command, json)),
        Command::DevCert(args) => dev_cert::run(&args, json),
        Command::Store(command) => match store::node(&command) {
            Some(wish) => in_runtime(store::ask(wish, json)),
            None => store::run(&command, json),
        },
        Command::ToolRunner(args) => in_runtime(tool_runner::run(tool_runner::prepare(args)?, json)),
        Command::Version => version::run(json),
    }
}

/// Prints clap's error, help or version; returns the exit code.
fn misunderstood(error: &clap::Error) -> Exit {
    let exit = if error.use_stderr() { Exit::Usage } else { Exit::Fine };
    if exit == Exit::Usage && std::env::args_os().any(|arg| arg == "--json") {
        Trouble::Usage(error.render().to_string().trim_end().to_owned()).tell(true);
    } else {
        // A closed stderr is ignored.
        let _ = error.print();
    }
    exit
}

/// Reads the configuration, builds the node and runs it.
fn serve(args: &ServeArgs, plugins: Plugins) -> Result<Exit, Trouble> {
    let plan = plan::read(args, std::env::vars_os()).map_err(Trouble::Mistakes)?;
    trace::start(shape(plan.config.log), std::env::var("RUST_LOG").ok().as_deref());
    for warning in &plan.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = runtime(Builder::new_multi_thread())?;
    let exit = run(plan, plugins, &runtime);
    // Tasks that still run have had their time to end.
    runtime.shutdown_background();
    exit
}

fn run(plan: Plan, plugins: Plugins, runtime: &Runtime) -> Result<Exit, Trouble> {
    let app = App::build(plan, plugins, runtime.handle())
        .map_err(|error| Trouble::Unavailable(error.to_string()))?;
    Ok(runtime.block_on(app.run()))
}

/// Runs a client command on a single thread.
fn in_runtime(command: impl Future<Output = Result<Exit, Trouble>>) -> Result<Exit, Trouble> {
    runtime(Builder::new_current_thread())?.block_on(command)
}

fn runtime(mut builder: Builder) -> Result<Runtime, Trouble> {
    builder.enable_all().build().map_err(|error| Trouble::Unavailable(format!("cannot start the runtime: {error}")))
}

fn shape(log: LogFormat) -> Shape {
    match log {
        LogFormat::Pretty => Shape::Pretty,
        LogFormat::Json => Shape::Json,
        LogFormat::Auto if std::io::stderr().is_terminal() => Shape::Pretty,
        LogFormat::Auto => Shape::Json,
    }
}
