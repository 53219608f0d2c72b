//! Command-line arguments of `turnway-bench`.
mod compare;
mod idle;
mod models;

use clap::{Args, Parser, Subcommand};
pub use compare::{Compare, Row, System};
pub use idle::{EchoServer, Idle};
pub use models::{ModelUpstream, Models};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Longest load, so that a forgotten one ends by itself.
const DURATION_MAX: Duration = Duration::from_secs(60 * 60);
/// Most connections: some 40 KB each by QUIC. A WebSocket also needs a file, of which a process may have fewer.
const CONNECTIONS_MAX: u64 = 100_000;

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "turnway-bench", version, about = "Loads a Turnway node and reports the results.")]
#[command(
    arg_required_else_help = true,
    after_help = "\
With --rate the loop is open: requests are sent when they are due, regardless of open answers, and latency \
counts from the due time. Without --rate the loop is closed: each connection waits for the end of one request \
before it begins the next.

Exit codes: 0 fine; 1 something was lost, wrong or never answered; 64 usage; 69 the server cannot be reached."
)]
pub struct Cli {
    /// The mode to run.
    #[command(subcommand)]
    pub mode: Mode,
}

/// Modes of the load generator.
#[derive(Debug, Subcommand)]
pub enum Mode {
    /// Whole turns, a session for each connection: how long until accepted, first text, end.
    Turns(Turns),
    /// Long answers: the time between two pieces of text, and how much text comes through.
    Stream(Stream),
    /// Connections that do nothing, and the memory they cost.
    Idle(Idle),
    /// Drops every connection at once and resumes with cursors: how long it takes, and what is lost.
    Reconnect(Reconnect),
    /// One session with many listeners: what they hear, and how far apart.
    Fanout(Fanout),
    /// The first text of a turn through a node, beside that of a direct request to its agent.
    FirstDelta(FirstDelta),
    /// Messages there and back, against `echo-server`: what a turn is compared with.
    Echo(Echo),
    /// Gives sessions a long history, for `take-up`.
    History(History),
    /// Measures the first turn of a session that has a history and is in no node's memory.
    TakeUp(TakeUp),
    /// A bare echo server with the node's libraries and buffers: by WebSocket, or by QUIC.
    EchoServer(EchoServer),
    /// A lean agent (HTTP and server-sent events) that streams what it is asked for.
    Agent(Agent),
    /// Chat completions at a models route, or at `model-upstream`: first byte, whole call, calls a second.
    Models(Models),
    /// A scripted model: answers chat completions, streamed or whole.
    ModelUpstream(ModelUpstream),
    /// Single durable commits of the node's storage engine, one after the other.
    Commit(Commit),
    /// Turnway beside NATS, nchan, Sockudo and Socket.IO: the same loads, one table.
    Compare(Compare),
}

/// Arguments that select the server.
#[derive(Clone, Debug, Args)]
pub struct Aim {
    /// The server: ws://HOST:PORT, wss:// with TLS, or quic://; without a path /v1/connect
    #[arg(long, value_name = "URL", default_value = "ws://127.0.0.1:8080")]
    pub url: String,
    /// Connect from this many addresses, 127.0.0.2 and up: each has only some 28,000 ports
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=250))]
    pub sources: Option<u8>,
    /// Say hello with this key instead of user ids
    #[arg(long, value_name = "KEY", env = "BENCH_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Allow a server that is not on this machine: confirms that you may load it
    #[arg(long)]
    pub i_own_this_target: bool,
}

/// Arguments that set the amount and the duration of the load.
#[derive(Clone, Debug, Args)]
pub struct Load {
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = connections)]
    pub connections: usize,
    /// Turns or messages a second over all connections; absent: as many as are answered
    #[arg(long, value_name = "R", value_parser = rate)]
    pub rate: Option<f64>,
    /// Duration, such as 500ms, 30s or 2m; at most 1h
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub duration: Duration,
    /// Time to wait for answers after that
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub grace: Duration,
}

/// Arguments that select the owner of the sessions in a fleet.
#[derive(Clone, Debug, Args)]
pub struct Owner {
    /// In a fleet: the first turn of each session goes to this node, which then owns it, ws://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub begin_at: Option<String>,
}

/// Arguments that select the outputs.
#[derive(Clone, Debug, Args)]
pub struct Outputs {
    /// Watch the memory and the CPU time of this process
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write HdrHistogram percentiles as text; further ones go to FILE-NAME beside it
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,
    /// Write a plot as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// Arguments that every load has.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Server under load.
    #[command(flatten)]
    pub aim: Aim,
    /// Amount and duration.
    #[command(flatten)]
    pub load: Load,
    /// Files and formats of the results.
    #[command(flatten)]
    pub outputs: Outputs,
}

/// Arguments of [`Mode::Turns`].
#[derive(Clone, Debug, Args)]
pub struct Turns {
    /// Target, load and outputs.
    #[command(flatten)]
    pub common: Common,
    /// Owner of the sessions.
    #[command(flatten)]
    pub owner: Owner,
    /// Agent to call
    #[arg(long, value_name = "ID", default_value = "echo")]
    pub agent: String,
    /// Bytes of an input
    #[arg(long, value_name = "B", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Send bare messages instead, as `echo` does
    #[arg(long)]
    pub bare: bool,
}

/// Arguments of answers that an agent streams.
#[derive(Clone, Debug, Args)]
pub struct Streaming {
    /// Agent to call: `echo`, or one that understands "count to N every TIME"
    #[arg(long, value_name = "ID", default_value = "counter")]
    pub agent: String,
    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub tokens: u32,
    /// Between two tokens; 0ms leaves it to the agent
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = pace)]
    pub pace: Duration,
    /// The agent is `turnway-bench agent --stamps` on this machine: measure each token's way from there
    #[arg(long)]
    pub stamped: bool,
}

/// Arguments of [`Mode::Stream`].
#[derive(Clone, Debug, Args)]
pub struct Stream {
    /// Target, load and outputs.
    #[command(flatten)]
    pub common: Common,
    /// Owner of the sessions.
    #[command(flatten)]
    pub owner: Owner,
    /// Answers to request.
    #[command(flatten)]
    pub streaming: Streaming,
}

/// Arguments of [`Mode::Reconnect`].
#[derive(Clone, Debug, Args)]
pub struct Reconnect {
    /// Target, load and outputs.
    #[command(flatten)]
    pub common: Common,
    /// Answers to request.
    #[command(flatten)]
    pub streaming: Streaming,
    /// Percent of the connections that are in the middle of an answer when they are dropped
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub open: u8,
    /// Number of rounds, each of which drops all connections, if the duration allows
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
}

/// Arguments of [`Mode::Fanout`].
#[derive(Clone, Debug, Args)]
pub struct Fanout {
    /// Target, load and outputs.
    #[command(flatten)]
    pub common: Common,
    /// Answers to request.
    #[command(flatten)]
    pub streaming: Streaming,
}

/// Arguments of [`Mode::FirstDelta`].
#[derive(Clone, Debug, Args)]
pub struct FirstDelta {
    /// Target, load and outputs.
    #[command(flatten)]
    pub common: Common,
    /// Owner of the sessions.
    #[command(flatten)]
    pub owner: Owner,
    /// The agent, as the node knows it
    #[arg(long, value_name = "ID")]
    pub agent: String,
    /// The same agent, http://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub direct: String,
    /// Bytes of an input
    #[arg(long, value_name = "B", default_value_t = 64, value_parser = size)]
    pub size: usize,
}

/// Arguments of [`Mode::Echo`].
#[derive(Clone, Debug, Args)]
pub struct Echo {
    /// Target, load and outputs.
    #[command(flatten)]
    pub common: Common,
    /// Bytes of a message
    #[arg(long, value_name = "B", default_value_t = 64, value_parser = size)]
    pub size: usize,
}

/// Arguments of [`Mode::History`].
#[derive(Clone, Debug, Args)]
pub struct History {
    /// Target, load and outputs.
    #[command(flatten)]
    pub common: Common,
    /// Sessions are called NAME-0, NAME-1, …
    #[arg(long, value_name = "NAME", default_value = "history")]
    pub name: String,
    /// Facts of each session's log
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub facts: u64,
    /// Agent to call
    #[arg(long, value_name = "ID", default_value = "echo")]
    pub agent: String,
}

/// Arguments of [`Mode::TakeUp`].
#[derive(Clone, Debug, Args)]
pub struct TakeUp {
    /// Target, load and outputs.
    #[command(flatten)]
    pub common: Common,
    /// As it was given to `history`
    #[arg(long, value_name = "NAME", default_value = "history")]
    pub name: String,
    /// Agent to call
    #[arg(long, value_name = "ID", default_value = "echo")]
    pub agent: String,
}

/// Arguments of [`Mode::Agent`].
#[derive(Clone, Debug, Args)]
pub struct Agent {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Maximum running time
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub duration: Duration,
    /// Tokens of an answer, unless the input says "count to N"
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub tokens: u32,
    /// Each token is the time it was said at, for --stamped
    #[arg(long)]
    pub stamps: bool,
}

/// Arguments of [`Mode::Commit`].
#[derive(Clone, Debug, Args)]
pub struct Commit {
    /// Files and formats of the results.
    #[command(flatten)]
    pub outputs: Outputs,
    /// Directory of the database, which is removed again
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Duration of the measurement
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub duration: Duration,
}

fn connections(text: &str) -> Result<usize, String> {
    let range = 1..=CONNECTIONS_MAX;
    let count = text.parse().ok().filter(|count| range.contains(count));
    let count = count.and_then(|count| usize::try_from(count).ok());
    count.ok_or_else(|| format!("a number from 1 to {CONNECTIONS_MAX}"))
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.01..=1e7).contains(rate));
    rate.ok_or_else(|| "a number a second, from 0.01 to 10000000".to_owned())
}

fn size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|size| (1..=16 * 1024 * 1024).contains(size));
    size.ok_or_else(|| "a number of bytes, from 1 to 16777216".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = pace(text)?;
    if duration.is_zero() || duration > DURATION_MAX {
        return Err("more than nothing and at most 1h".to_owned());
    }
    Ok(duration)
}

fn pace(text: &str) -> Result<Duration, String> {
    let unit = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("a time such as 500ms, 30s or 2m".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| "too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn times_are_read_and_bounded() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(pace("0ms"), Ok(Duration::ZERO));
        for bad in ["", "5", "0s", "61m", "x", "-1s", "1d", "9e9h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
