//! `turnway serve`: its flags. They stay text here, so that one place tells all mistakes at once.
use crate::config::{Flag, Key};
use clap::Args;
use std::path::PathBuf;

/// How to run a node. Flags overrule the environment (`TURNWAY_<SECTION>_<KEY>`), and that the file.
#[derive(Clone, Debug, Default, Args)]
pub struct ServeArgs {
    /// Configuration file [default: ./turnway.toml, if there is one]
    #[arg(long, value_name = "FILE", env = "TURNWAY_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where clients connect, by HTTP and WebSocket [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Where clients connect by QUIC; only `off` in this release
    #[arg(long, value_name = "ADDR|off")]
    pub quic: Option<String>,
    /// Where operators look: health, metrics, drain [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
    /// Where facts live: embedded:DIR or memory: [default: embedded:./turnway-data]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// What an acknowledgement promises: mem, os or fsync [default: fsync]
    #[arg(long, value_name = "LEVEL")]
    pub durability: Option<String>,
    /// How much history is kept: keep, or facts=N for at least the last N facts of each session [default: keep]
    #[arg(long, value_name = "HOW")]
    pub retention: Option<String>,
    /// A label for people [default: the machine's name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Who may connect; only `none` in this release: this machine only
    #[arg(long, value_name = "HOW")]
    pub auth: Option<String>,
    /// An agent; may be repeated
    #[arg(long, value_name = "ID=URL[,key=value…]")]
    pub agent: Vec<String>,
    /// Who answers where nobody is addressed [default: the first --agent]
    #[arg(long, value_name = "ID")]
    pub default_agent: Option<String>,
    /// Bring the agents `echo` and `counter` along, and show how to talk to them
    #[arg(long)]
    pub demo: bool,
    /// How logs look: pretty or json [default: pretty on a terminal]
    #[arg(long, value_name = "FORMAT")]
    pub log: Option<String>,
}

// === impl ServeArgs ===

impl ServeArgs {
    /// What the flags set.
    pub fn flags(&self) -> Vec<(Flag, String)> {
        let keys = [
            (Key::ListenHttp, &self.listen),
            (Key::ListenQuic, &self.quic),
            (Key::ListenAdmin, &self.admin),
            (Key::StoreUrl, &self.store),
            (Key::StoreDurability, &self.durability),
            (Key::StoreRetention, &self.retention),
            (Key::NodeName, &self.node_name),
            (Key::Auth, &self.auth),
            (Key::DefaultAgent, &self.default_agent),
            (Key::Log, &self.log),
        ];
        let keys = keys.into_iter().filter_map(|(key, text)| Some((Flag::Key(key), text.clone()?)));
        let demo = self.demo.then(|| (Flag::Key(Key::Demo), "true".to_owned()));
        let agents = self.agent.iter().map(|text| (Flag::Agent, text.clone()));
        keys.chain(demo).chain(agents).collect()
    }
}
