//! Arguments of `turnway-bench compare`.
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// A system in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// The node beside this binary.
    Turnway,
    /// nats-server, over its WebSocket.
    Nats,
    /// nginx with the module nchan.
    Nchan,
    /// Sockudo, which speaks Pusher's protocol.
    Sockudo,
    /// Socket.IO on Node.
    Socketio,
}

/// A property that is measured of each system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Row {
    /// Memory of an idle connection.
    Idle,
    /// Publish to receive at 1,000 a second, one node.
    Latency,
    /// The most messages a second with 512 outstanding, one node.
    Max,
    /// The most deliveries a second to 500 subscribers of one channel.
    Fanout,
    /// As `latency`, from one node to another.
    Across,
    /// As `max`, from one node to another.
    AcrossMax,
    /// Messages that a subscriber lacks after one second offline.
    Drop,
    /// Messages that a subscriber lacks after its node was killed.
    Kill,
    /// Memory growth of a node while 100 subscribers read nothing, and the messages that they lack afterwards.
    Stall,
}

/// Arguments of [`Mode::Compare`](super::Mode::Compare).
#[derive(Clone, Debug, Args)]
pub struct Compare {
    /// Systems, with commas between them; absent: all that are installed
    #[arg(long, value_name = "NAME,…", value_enum, value_delimiter = ',')]
    pub peers: Vec<System>,
    /// Rows, with commas between them; absent: all
    #[arg(long, value_name = "ROW,…", value_enum, value_delimiter = ',')]
    pub rows: Vec<Row>,
    /// Small and once: it shows that everything works, and its figures say nothing
    #[arg(long)]
    pub quick: bool,
    /// Number of measurements of each row; the median counts [default: 3; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=15))]
    pub runs: Option<u8>,
    /// Directory of the table and the plots: compare.markdown and compare-ROW.svg
    #[arg(long, value_name = "DIR")]
    pub into: PathBuf,
    /// Directory that benches/peers/install has filled
    #[arg(long, value_name = "DIR", default_value = "target/peers")]
    pub installed: PathBuf,
}
