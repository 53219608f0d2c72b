//! Arguments of `turnway-bench models`, and of `turnway-bench model-upstream`, which its calls end at.
use super::{Common, duration, pace};
use clap::Args;
use std::net::SocketAddr;
use std::time::Duration;

/// Arguments of [`super::Mode::Models`].
#[derive(Clone, Debug, Args)]
pub struct Models {
    /// Target (http://HOST:PORT/v1), load and outputs.
    #[command(flatten)]
    pub common: Common,
    /// Model to call
    #[arg(long, value_name = "NAME", default_value = "gpt")]
    pub model: String,
    /// Ask for streams
    #[arg(long)]
    pub stream: bool,
    /// Pieces of text of an answer, as `model-upstream` has been told
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub chunks: u32,
    /// End after this many calls, if they end before --duration does
    #[arg(long, value_name = "N", conflicts_with = "rate")]
    pub calls: Option<u64>,
    /// A further header of each request, such as 'x-name: value'; may be repeated
    #[arg(long, value_name = "HEADER")]
    pub header: Vec<String>,
    /// Open one stream on each connection, keep all of them open for --duration, and report the server's memory
    #[arg(long, requires = "stream", conflicts_with_all = ["calls", "rate"])]
    pub hold: bool,
}

/// Arguments of [`super::Mode::ModelUpstream`].
#[derive(Clone, Debug, Args)]
pub struct ModelUpstream {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Maximum running time
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub duration: Duration,
    /// Pieces of text of an answer
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub chunks: u32,
    /// Between two pieces of a stream; 0ms writes a stream at once
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = pace)]
    pub pause: Duration,
}
