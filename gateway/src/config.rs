//! What an operator has decided: file < environment < flags, with every mistake told at once.
//!
//! - [`key`] with `settings`, [`agent`]: what there is to decide, one table each.
//! - [`raw`], `file`: find the settings and where each was made.
//! - [`parse`]: turns their words into values, and sees whether they fit each other.
//! - [`mistake`]: what is wrong, and where; [`nearest`]: what may have been meant.
//! - [`auth`]: who may come in; [`served`]: who serves agents and tools for the whole node; `rate`: how often clients may ask;
//!   `share`: how much they may hold.
//! - [`redis`]: where a Redis is; [`welcome`]: by which names a node is called, and which pages may
//!   talk to it; [`network`]: parts of the net.
//! - [`document`]: the tables as a file and as a page.
pub mod agent;
pub mod amount;
pub mod auth;
pub mod document;
mod file;
pub mod key;
pub mod mistake;
pub mod nearest;
pub mod network;
pub mod parse;
mod rate;
pub mod raw;
pub mod redis;
pub mod served;
mod settings;
mod share;
pub mod welcome;

pub use agent::AGENT_SETTINGS;
pub use auth::{Algorithm, Auth, AuthMode, Issuer, Jwks};
pub use key::{Key, SETTINGS};
pub use mistake::{Mistake, Place};
pub use network::Networks;
pub use rate::Rates;
pub use raw::{AgentText, Flag, Sources};
pub use served::ServedBy;
pub use share::Holding;
pub use welcome::{HostName, Hosts, Origin};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A node's configuration: values, no words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// For clients.
    pub http: SocketAddr,
    /// For clients, by QUIC; none: not so.
    pub quic: Option<SocketAddr>,
    /// Whether browsers are served there, by WebTransport.
    pub webtransport: bool,
    /// Connections by QUIC at a time.
    pub quic_connections: usize,
    /// For operators.
    pub admin: SocketAddr,
    /// For load balancers and probes of other machines; none: not so.
    pub health: Option<SocketAddr>,
    /// Whether they are shown metrics, too.
    pub health_metrics: bool,
    /// By which names clients may call it, beside its own on a loopback address.
    pub hosts: Hosts,
    /// Which pages may talk to it, beside those of this machine on a loopback address.
    pub origins: Vec<Origin>,
    /// Who says for whom it connects, and is believed.
    pub proxies: Networks,
    /// Connections from one address at a time.
    pub per_address: PerAddress,
    /// The certificate that clients are shown; none: clients are not spoken to in TLS.
    pub tls: Option<TlsFiles>,
    /// Who may come in.
    pub auth: Auth,
    /// How often clients may ask.
    pub rates: Rates,
    /// Who runs tools for every tenant.
    pub tools_served_by: ServedBy,
    /// What users may hold of this node at a time.
    pub holding: Holding,
    /// Where facts live.
    pub store: StoreConfig,
    /// How many facts of each session are kept at least; none: all, for ever.
    pub keep_facts: Option<u64>,
    /// Time that a session is kept after its last fact; none: for ever.
    pub max_age: Option<Duration>,
    /// The skew of the system's clock from which a node is not ready; none: it always is.
    pub skew_max: Option<Duration>,
    /// A label for people; a node's id is one boot.
    pub node_name: String,
    /// Who answers where nobody is addressed, and where that was said.
    pub default_agent: Option<(String, Place)>,
    /// Bring agents of our own.
    pub demo: bool,
    /// How logs look.
    pub log: LogFormat,
}

/// Everything that was found in the sources.
#[derive(Debug)]
pub struct Loaded {
    /// The values; of use only where there are no mistakes.
    pub config: Config,
    /// The agents, as they were written; the room that knows agents reads them.
    pub agents: Vec<AgentText>,
    /// What is wrong.
    pub mistakes: Vec<Mistake>,
    /// Remarks that do not stop a node.
    pub warnings: Vec<Mistake>,
}

/// Reads every source to its end, whatever is wrong with it.
pub fn load(sources: &Sources) -> Loaded {
    let mut raw = raw::gather(sources);
    let config = parse::read(&mut raw);
    Loaded { config, agents: raw.agents, mistakes: raw.mistakes, warnings: raw.warnings }
}

/// Connections from one address at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PerAddress {
    /// [`turnway_core::limits::ADDRESS_CONNECTIONS_MAX`], and any number from this machine.
    #[default]
    Usual,
    /// So many, also from this machine.
    Most(usize),
    /// Any number.
    Off,
}

/// A certificate with those that vouch for it, and its key: where they are, and where that was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates, the server's own first.
    pub cert: (PathBuf, Place),
    /// The key.
    pub key: (PathBuf, Place),
}

/// Where facts live, and what an acknowledgement promises.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one of it, made at the start")]
pub enum StoreConfig {
    /// In a directory of this machine.
    Embedded {
        /// Which.
        dir: PathBuf,
        /// What it promises.
        durability: Durability,
        /// Memory for pages of its file.
        cache_bytes: u64,
        /// Inputs are refused while its disk has less room than this.
        reserve_bytes: u64,
    },
    /// Nowhere: they end with the process.
    Memory,
    /// In a Redis that several nodes share.
    Redis {
        /// Which.
        url: redis::RedisUrl,
        /// What it promises.
        durability: Durability,
        /// Who may load functions and read settings there, if that is not who the URL names.
        deployer: Option<redis::Login>,
        /// What it keeps by the operator's word, where its settings cannot be seen.
        attest: Option<Durability>,
        /// How long a start waits for it.
        wait: Duration,
    },
}

/// What survives which mishap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Nothing survives the process.
    Mem,
    /// The process may die, the machine not.
    Os,
    /// The machine may die, the disk not.
    #[default]
    Fsync,
    /// The disk may die too: a replica has it.
    FsyncReplica,
}

/// How logs look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people on a terminal, for machines elsewhere.
    #[default]
    Auto,
    /// For people.
    Pretty,
    /// For machines.
    Json,
}

// === impl StoreConfig ===

impl StoreConfig {
    /// `turn_accepted.durability`.
    pub fn promise(&self) -> &'static str {
        match self {
            Self::Memory => Durability::Mem.word(),
            Self::Embedded { durability, .. } | Self::Redis { durability, .. } => durability.word(),
        }
    }
}

// === impl Durability ===

impl Durability {
    /// As it is written in configurations and on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Mem => "mem",
            Self::Os => "os",
            Self::Fsync => "fsync",
            Self::FsyncReplica => "fsync+replica",
        }
    }
}
