//! Arguments of `turnway-bench idle`, and of `turnway-bench echo-server`, which it is compared with.
use super::{Common, duration, pace};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of [`super::Mode::Idle`].
#[derive(Clone, Debug, Args)]
pub struct Idle {
    /// Target, load and outputs.
    #[command(flatten)]
    pub common: Common,
    /// Agent to call
    #[arg(long, value_name = "ID", default_value = "echo")]
    pub agent: String,
    /// Say hello and nothing else: what a connection costs without a session
    #[arg(long, conflicts_with = "big")]
    pub hello_only: bool,
    /// The server is `echo-server`: send one bare message, and nothing else
    #[arg(long, conflicts_with_all = ["big", "hello_only"])]
    pub bare: bool,
    /// So many of the connections send one message of the largest size
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub big: usize,
    /// Time without load, when all are connected, before CPU time is counted
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = pace)]
    pub rest: Duration,
}

/// Arguments of [`super::Mode::EchoServer`].
#[derive(Clone, Debug, Args)]
pub struct EchoServer {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Maximum running time
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub duration: Duration,
    /// By QUIC, with the certificate in this directory, which is made where there is none
    #[arg(long, value_name = "DIR")]
    pub quic: Option<PathBuf>,
    /// Ping each connection so often; as nodes do it, some a tenth more and some a tenth less often
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub beat: Option<Duration>,
}
