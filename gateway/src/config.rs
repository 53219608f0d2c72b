//! The configuration of a node: file < environment < flags. [`raw`] and `file` find the settings, [`key`], [`agent`],
//! [`model`] and [`channel`] name them, [`parse`] checks them, [`mistake`] reports every error at once, and [`document`] prints them
//! as a file and as a page. Called by `cli::plan`.
pub mod agent;
pub mod allowed_clients;
pub mod amount;
pub mod auth;
pub mod base_url;
pub mod blobs;
pub mod channel;
pub mod document;
mod file;
pub mod key;
pub mod mistake;
pub mod model;
pub mod nearest;
pub mod network;
pub mod parse;
mod rate;
pub mod raw;
pub mod redis;
pub mod s3;
pub mod served_by;
mod settings;
mod share;

pub use agent::AGENT_SETTINGS;
pub use allowed_clients::{AllowedHosts, HostName, Origin};
pub use auth::{AuthConfig, AuthMode, IssuerConfig, JwksSource, SignatureAlgorithm};
pub use key::{SETTINGS, SettingKey};
pub use mistake::{ConfigMistake, SettingLocation};
pub use model::{ModelSpec, RecordCalls};
pub use network::Networks;
pub use rate::RateSettings;
pub use raw::{ConfigSources, EntryText, Flag};
pub use served_by::ServedBy;
pub use share::UsageLimits;

use blobs::BlobSettings;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use turnway_core::protocol::channels::ChannelDirectory;

/// A node's configuration, parsed and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Address for clients.
    pub http: SocketAddr,
    /// Address for clients over QUIC; `None` disables QUIC.
    pub quic: Option<SocketAddr>,
    /// True if browsers may connect to the QUIC address by WebTransport.
    pub webtransport: bool,
    /// Maximum QUIC connections at a time.
    pub quic_connections: usize,
    /// Address for operators.
    pub admin: SocketAddr,
    /// Address for load balancers and probes of other machines; `None` disables it.
    pub health: Option<SocketAddr>,
    /// True if the health address also serves metrics.
    pub health_metrics: bool,
    /// Host names that clients may use, besides the machine's own on a loopback address.
    pub hosts: AllowedHosts,
    /// Origins of web pages that may connect, besides this machine's on a loopback address.
    pub origins: Vec<Origin>,
    /// Proxies that are trusted to name the client's address.
    pub proxies: Networks,
    /// Maximum connections from one address at a time.
    pub per_address: PerAddress,
    /// The certificate for clients; `None` disables TLS.
    pub tls: Option<TlsFiles>,
    pub auth: AuthConfig,
    pub rates: RateSettings,
    /// The upstreams of models, ordered by the precedence of their sources.
    pub models: Vec<ModelSpec>,
    pub llm_record: RecordCalls,
    /// The settings of channels, by name.
    pub channels: ChannelDirectory,
    /// The identities that may run tools for every tenant.
    pub tools_served_by: ServedBy,
    /// The resources that users may hold of this node at a time.
    pub holding: UsageLimits,
    pub store: StoreConfig,
    /// Minimum facts kept of each session; `None` keeps all of them.
    pub keep_facts: Option<u64>,
    /// Time that a session is kept after its last fact; `None` keeps it for ever.
    pub max_age: Option<Duration>,
    /// The files that may be uploaded into sessions.
    pub blobs: BlobSettings,
    /// The skew of the system's clock from which a node is not ready; `None` never makes it unready.
    pub skew_max: Option<Duration>,
    /// A label for people; a node's id is valid for one run of the process only.
    pub node_name: String,
    /// The gateway's URL for agents, without a slash at the end; `None`: this node's own address.
    pub node_url: Option<String>,
    /// The agent for inputs without an addressee, and the place of the setting.
    pub default_agent: Option<(String, SettingLocation)>,
    /// True if the builtin agents are added.
    pub demo: bool,
    pub log: LogFormat,
}

// === impl Config ===

impl Config {
    /// Returns true if the clients' listener serves the web chat.
    pub fn serves_web_chat(&self) -> bool {
        self.demo || self.channels.0.keys().any(|name| name.as_str() == channel::WEB_CHANNEL)
    }
}

/// The outcome of reading all sources.
#[derive(Debug)]
pub struct LoadedConfig {
    /// Must be used only if there are no mistakes.
    pub config: Config,
    /// The agents as text; `agent::directory` parses them.
    pub agents: Vec<EntryText>,
    pub mistakes: Vec<ConfigMistake>,
    /// Remarks that do not stop a node.
    pub warnings: Vec<ConfigMistake>,
}

/// Reads every source to its end, despite any mistakes.
pub fn load(sources: &ConfigSources) -> LoadedConfig {
    let mut raw = raw::gather(sources);
    let config = parse::read(&mut raw);
    LoadedConfig { config, agents: raw.agents, mistakes: raw.mistakes, warnings: raw.warnings }
}

/// The limit of connections from one address at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PerAddress {
    /// [`turnway_core::limits::ADDRESS_CONNECTIONS_MAX`], and any number from this machine.
    #[default]
    Default,
    /// This number, also from this machine.
    Limit(usize),
    /// Any number of connections.
    Off,
}

/// The files of a certificate chain and its key, each with the place of its setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates, the server's own first.
    pub cert: (PathBuf, SettingLocation),
    pub key: (PathBuf, SettingLocation),
}

/// The store that holds the facts, and the durability that an acknowledgement promises.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one of it, made at the start")]
pub enum StoreConfig {
    /// An embedded store in a directory of this machine.
    Embedded {
        dir: PathBuf,
        durability: Durability,
        /// Memory for pages of the store's file, in bytes.
        cache_bytes: u64,
        /// Free disk space in bytes below which inputs are refused.
        reserve_bytes: u64,
    },
    /// A store in memory that ends with the process.
    Memory,
    /// A Redis that several nodes share.
    Redis {
        url: redis::RedisUrl,
        durability: Durability,
        /// The login that may load functions and read settings, if other than the login in the URL.
        deployer: Option<redis::RedisLogin>,
        /// The level that the operator vouches for, if the server's settings cannot be read.
        attest: Option<Durability>,
        /// Time that a start waits for the server.
        wait: Duration,
    },
}

/// The failures that an acknowledged fact survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Lost with the process.
    Mem,
    /// Survives a crash of the process, not of the machine.
    Os,
    /// Survives a crash of the machine, not the loss of its disk.
    #[default]
    Fsync,
    /// Survives the loss of the disk, because a replica has a copy.
    FsyncReplica,
}

/// The format of logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `Pretty` on a terminal, otherwise `Json`.
    #[default]
    Auto,
    /// Text for people.
    Pretty,
    /// JSON for machines.
    Json,
}

// === impl StoreConfig ===

impl StoreConfig {
    /// Returns the durability level for `turn_accepted.durability`.
    pub fn durability(&self) -> &'static str {
        match self {
            Self::Memory => Durability::Mem.as_str(),
            Self::Embedded { durability, .. } | Self::Redis { durability, .. } => durability.as_str(),
        }
    }
}

// === impl Durability ===

impl Durability {
    /// Returns the level as written in configurations and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mem => "mem",
            Self::Os => "os",
            Self::Fsync => "fsync",
            Self::FsyncReplica => "fsync+replica",
        }
    }
}
