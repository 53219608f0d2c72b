//! The `turnway` program as a library: the command line, with the plugins that a binary adds. A binary with plugins is
//! a `main` of a few lines (docs/plugins.md).
use crate::agent::plugins::Plugins;
use crate::app::App;
use crate::cli::plan::{self, NodePlan};
use crate::cli::serve::ServeArgs;
use crate::cli::{
    self, Cli, CliCommand, CliError, CliExit, adapter_check, adapter_new, adapters, agents, bindings, budgets, chat,
    check_config, deliveries, dev_cert, drain, key, nodes, probe, replay, sessions, store, tool_runner, version,
    write_stderr,
};
use crate::config::LogFormat;
use crate::trace::{self, LogShape};
use clap::Parser;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::runtime::{Builder, Runtime};
use turnway_pipeline::Plugin;

/// The builder of a node, and the entry point of every command of `turnway`.
///
/// ```no_run
/// # use turnway_pipeline::{Plugin, Prompt, Turn};
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
        self.plugins = self.plugins.with_workspace(workspace);
        self
    }

    /// Runs the command that the process's arguments name, such as `serve`, to its end.
    #[must_use]
    pub fn main(self) -> ExitCode {
        // All TLS code uses this process-wide crypto provider.
        if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
            write_stderr("turnway: another TLS provider is already installed\n");
            return CliExit::Bug.into();
        }
        let (cli, json) = match Cli::try_parse() {
            Ok(cli) => (cli.command, cli.json),
            Err(error) => return report_usage(&error).into(),
        };
        let ended = run_command(cli, json, self.plugins).unwrap_or_else(|error| {
            error.print(json);
            error.exit_status()
        });
        ended.into()
    }
}

fn run_command(command: CliCommand, json: bool, plugins: Plugins) -> Result<CliExit, CliError> {
    match command {
        CliCommand::Serve(args) => serve(&args, plugins),
        CliCommand::Chat(args) => in_runtime(chat::run(args)),
        CliCommand::Replay(args) => in_runtime(replay::run(args, json)),
        CliCommand::Sessions(args) => in_runtime(sessions::run(args, json)),
        CliCommand::Bindings(command) => in_runtime(bindings::run(command, json)),
        CliCommand::Adapters(command) => in_runtime(adapters::run(command, json)),
        CliCommand::Adapter(command) => adapter_new::run(command, json),
        CliCommand::AdapterCheck(args) => in_runtime(adapter_check::run(args, json)),
        CliCommand::Deliveries(command) => in_runtime(deliveries::run(command, json)),
        CliCommand::Agents(args) => in_runtime(agents::run(args, json)),
        CliCommand::Nodes(args) => in_runtime(nodes::run(args, json)),
        CliCommand::Probe(args) => in_runtime(probe::run(args, json)),
        CliCommand::Drain(args) => in_runtime(drain::run(args, json)),
        CliCommand::CheckConfig(args) => check_config::run(&args, json),
        CliCommand::DefaultConfig => cli::default_config(json),
        CliCommand::ConfigDoc => cli::config_doc(json),
        CliCommand::Budgets(command) => in_runtime(budgets::run(command, json)),
        CliCommand::Key(command) => in_runtime(key::run(command, json)),
        CliCommand::DevCert(args) => dev_cert::run(&args, json),
        CliCommand::Store(command) => match store::backup_target(&command) {
            Some(request) => in_runtime(store::request_backup(request, json)),
            None => store::run(&command, json),
        },
        CliCommand::ToolRunner(args) => in_runtime(tool_runner::run(tool_runner::prepare(args)?, json)),
        CliCommand::Version => version::run(json),
    }
}

/// Prints clap's error, help or version; returns the exit code.
fn report_usage(error: &clap::Error) -> CliExit {
    let exit = if error.use_stderr() { CliExit::Usage } else { CliExit::Success };
    if exit == CliExit::Usage && std::env::args_os().any(|arg| arg == "--json") {
        CliError::Usage(error.render().to_string().trim_end().to_owned()).print(true);
    } else {
        // A closed stderr is ignored.
        let _ = error.print();
    }
    exit
}

/// Reads the configuration, builds the node and runs it.
fn serve(args: &ServeArgs, plugins: Plugins) -> Result<CliExit, CliError> {
    let plan = plan::read(args, std::env::vars_os()).map_err(CliError::InvalidConfig)?;
    trace::start(log_format(plan.config.log), std::env::var("RUST_LOG").ok().as_deref());
    for warning in &plan.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = runtime(Builder::new_multi_thread())?;
    let exit = run(plan, plugins, &runtime);
    // Tasks that still run have had their time to end.
    runtime.shutdown_background();
    exit
}

fn run(plan: NodePlan, plugins: Plugins, runtime: &Runtime) -> Result<CliExit, CliError> {
    let app = App::build(plan, plugins, runtime.handle()).map_err(|error| CliError::Unavailable(error.to_string()))?;
    Ok(runtime.block_on(app.run()))
}

/// Runs a client command on a single thread.
fn in_runtime(command: impl Future<Output = Result<CliExit, CliError>>) -> Result<CliExit, CliError> {
    runtime(Builder::new_current_thread())?.block_on(command)
}

fn runtime(mut builder: Builder) -> Result<Runtime, CliError> {
    builder.enable_all().build().map_err(|error| CliError::Unavailable(format!("cannot start the runtime: {error}")))
}

fn log_format(log: LogFormat) -> LogShape {
    match log {
        LogFormat::Pretty => LogShape::Pretty,
        LogFormat::Json => LogShape::Json,
        LogFormat::Auto if std::io::stderr().is_terminal() => LogShape::Pretty,
        LogFormat::Auto => LogShape::Json,
    }
}
