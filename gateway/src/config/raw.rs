//! Collects the settings of all sources as text, each with its key and its place.
use super::channel::ChannelText;
use super::file;
use super::key::{DefaultValue, SETTINGS, Setting, SettingKey};
use super::mistake::{ConfigMistake, SettingLocation};
use super::nearest::nearest;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// The text of every source; tests pass a map.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// Path and text of the file, if there is one.
    pub file: Option<(PathBuf, String)>,
    pub env: BTreeMap<String, String>,
    /// Command-line flags in their order.
    pub flags: Vec<(Flag, String)>,
}

/// The target of a command-line flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    Key(SettingKey),
    /// An additional agent.
    Agent,
    /// An additional upstream of models.
    Model,
}

/// The text of one entry of a section with a table for each entry: an agent, or an upstream of models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryText {
    /// `ID=URL[,key=value…]`, of a flag or the environment.
    Line {
        /// The whole text.
        text: String,
        location: SettingLocation,
    },
    /// The table `[agents.ID]` or `[models.ID]` of the file.
    Table {
        id: String,
        /// Place of the table's start.
        location: SettingLocation,
        /// Keys and values in the file's order, each with its place.
        pairs: Vec<(String, String, SettingLocation)>,
    },
}

/// All settings in ascending precedence of their sources.
#[derive(Debug, Default)]
pub(super) struct RawConfig {
    pub(super) settings: Vec<(SettingKey, String, SettingLocation)>,
    pub(super) agents: Vec<EntryText>,
    pub(super) models: Vec<EntryText>,
    pub(super) channels: Vec<ChannelText>,
    pub(super) mistakes: Vec<ConfigMistake>,
    /// Remarks that do not stop a node.
    pub(super) warnings: Vec<ConfigMistake>,
}

/// Prefix of all environment variables of this project.
const ENV_PREFIX: &str = "TURNWAY_";
/// Prefix of a variable that configures an agent: `TURNWAY_AGENTS_<ID>=URL[,key=value…]`.
const AGENT_ENV_PREFIX: &str = "TURNWAY_AGENTS_";
/// Prefix of a variable that configures an upstream of models: `TURNWAY_MODELS_<ID>=URL[,key=value…]`.
const MODEL_ENV_PREFIX: &str = "TURNWAY_MODELS_";
/// Variables with the prefix that are no settings of a node: the name of its file, address and credentials of
/// the client commands, and parameters of the project's tests.
const NON_SETTING_VARIABLES: [&str; 9] = [
    "TURNWAY_CONFIG",
    "TURNWAY_URL",
    "TURNWAY_USER",
    "TURNWAY_API_KEY",
    "TURNWAY_API_KEY_FILE",
    "TURNWAY_RUNNER_ID",
    "TURNWAY_ADMIN",
    "TURNWAY_BIN",
    "TURNWAY_PYTHON",
];

/// Collects the settings of all sources.
pub(super) fn gather(sources: &ConfigSources) -> RawConfig {
    let mut raw = RawConfig::default();
    for setting in &SETTINGS {
        if let DefaultValue::Fixed(text) = setting.default {
            raw.settings.push((setting.key, text.to_owned(), SettingLocation::Default));
        }
    }
    if let Some((path, text)) = &sources.file {
        file::read(path, text, &mut raw);
    }
    for (name, value) in &sources.env {
        raw.read_env(name, value);
    }
    raw.read_flags(&sources.flags);
    raw
}

// === impl Flag ===

impl Flag {
    /// Returns the flag's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "--agent",
            Self::Model => "--model",
            Self::Key(key) => key.setting().flag.unwrap_or("(none)"),
        }
    }
}

// === impl RawConfig ===

impl RawConfig {
    fn read_env(&mut self, name: &str, value: &str) {
        let Some(rest) = name.strip_prefix(ENV_PREFIX) else { return };
        let location = SettingLocation::Env(name.to_owned());
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.env() == name) {
            self.settings.push((setting.key, value.to_owned(), location));
        } else if NON_SETTING_VARIABLES.contains(&name) || is_kubernetes_service_variable(rest, value) {
            // Set by Kubernetes, or not meant for a node.
        } else if let Some(id) = name.strip_prefix(AGENT_ENV_PREFIX) {
            self.agents.push(EntryText::Line { text: format!("{id}={value}"), location });
        } else if let Some(id) = name.strip_prefix(MODEL_ENV_PREFIX) {
            self.models.push(EntryText::Line { text: format!("{id}={value}"), location });
        } else if let Some(known) = nearest_variable(rest) {
            let what = format!("unknown setting; did you mean \"{ENV_PREFIX}{known}\"?");
            self.mistakes.push(ConfigMistake::new(&location, what));
        } else {
            self.warnings.push(ConfigMistake::new(&location, "unknown setting, ignored"));
        }
    }

    fn read_flags(&mut self, flags: &[(Flag, String)]) {
        let mut seen = Vec::new();
        for (flag, value) in flags {
            let location = SettingLocation::Flag(flag.name());
            match flag {
                Flag::Agent => self.agents.push(EntryText::Line { text: value.clone(), location }),
                Flag::Model => self.models.push(EntryText::Line { text: value.clone(), location }),
                Flag::Key(key) if seen.contains(key) => {
                    self.mistakes.push(ConfigMistake::for_key(key, &location, "given twice"));
                }
                Flag::Key(key) => {
                    seen.push(*key);
                    self.settings.push((*key, value.clone(), location));
                }
            }
        }
    }
}

/// Returns the known variable nearest to `rest`. Both are compared without the prefix, which would make every
/// name look similar.
fn nearest_variable(rest: &str) -> Option<String> {
    let known: Vec<String> = SETTINGS.iter().map(Setting::env).collect();
    let known = known.iter().map(String::as_str).chain(NON_SETTING_VARIABLES);
    nearest(rest, known.filter_map(|name| name.strip_prefix(ENV_PREFIX))).map(ToOwned::to_owned)
}

/// Returns whether Kubernetes set the variable for a service called `turnway` or `turnway-…`:
/// `TURNWAY_SERVICE_HOST`, `TURNWAY_ADMIN_PORT_8081_TCP_ADDR`, `TURNWAY_AGENTS_PORT`, … Name and value must
/// both fit, so that an agent called `SERVICE_HOST` can still be configured (Kubernetes, "Discovering
/// services", environment variables).
fn is_kubernetes_service_variable(rest: &str, value: &str) -> bool {
    let rest = format!("_{rest}");
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let is_link = || {
        let kinds = ["tcp://", "udp://", "sctp://"];
        kinds
            .iter()
            .any(|kind| value.strip_prefix(kind).is_some_and(|at| at.parse::<SocketAddr>().is_ok() || is_host_port(at)))
    };
    // `…_PORT_9000_TCP`, alone or with `_PROTO`, `_PORT` or `_ADDR`.
    let of_port = rest.match_indices("_PORT_").any(|(at, part)| {
        let mut words = rest[at + part.len()..].split('_');
        let is_numbered = words.next().is_some_and(is_port);
        let is_named = words.next().is_some_and(|word| matches!(word, "TCP" | "UDP" | "SCTP"));
        is_numbered
            && is_named
            && match (words.next(), words.next()) {
                (None, _) => is_link(),
                (Some("PROTO"), None) => matches!(value, "tcp" | "udp" | "sctp"),
                (Some("PORT"), None) => is_port(value),
                (Some("ADDR"), None) => is_host(value),
                (Some(_), _) => false,
            }
    });
    (rest.ends_with("_SERVICE_HOST") && is_host(value))
        || ((rest.ends_with("_SERVICE_PORT") || rest.contains("_SERVICE_PORT_")) && is_port(value))
        || (rest.ends_with("_PORT") && is_link())
        || of_port
}

/// Returns whether the text is an IP address or a DNS name. The address of a headless service is `None`.
fn is_host(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
        || (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.'))
}

fn is_host_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        is_host(host) && port.parse::<u16>().is_ok()
    })
}

// === impl EntryText ===

impl EntryText {
    /// Returns the place where the entry was configured.
    pub fn place(&self) -> &SettingLocation {
        match self {
            Self::Line { location, .. } | Self::Table { location, .. } => location,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(name: &str, value: &str) -> RawConfig {
        let env = [(name.to_owned(), value.to_owned())].into();
        gather(&ConfigSources { env, ..ConfigSources::default() })
    }

    fn shown(mistakes: &[ConfigMistake]) -> Vec<String> {
        mistakes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unknown_variable_similar_to_a_setting_is_an_error() {
        for (wrong, right) in
            [("TURNWAY_LISTEN_HTPP", "TURNWAY_LISTEN_HTTP"), ("TURNWAY_STORE_ULR", "TURNWAY_STORE_URL")]
        {
            let message = format!("environment {wrong}: unknown setting; did you mean \"{right}\"?");
            let raw = raw(wrong, "x");
            assert_eq!((shown(&raw.mistakes), raw.warnings), (vec![message], Vec::new()));
        }
    }

    #[test]
    fn other_unknown_variable_is_a_warning() {
        for name in ["TURNWAY_COLOUR", "TURNWAY_PORT", "TURNWAY_ENV_HOME", "TURNWAY_RELEASE"] {
            let raw = raw(name, "8080");
            let message = format!("environment {name}: unknown setting, ignored");
            assert_eq!((shown(&raw.warnings), shown(&raw.mistakes)), (vec![message], Vec::new()));
        }
        for name in ["TURNWAY_URL", "TURNWAY_API_KEY_FILE", "TURNWAY_RUNNER_ID", "TURNWAYX", "HOME", "TURNWAY_LOG"] {
            let raw = raw(name, "x");
            assert_eq!((raw.warnings, raw.mistakes), (Vec::new(), Vec::new()), "{name}");
        }
    }

    /// Variables of services whose names begin with `turnway`, as Kubernetes 1.30 and Docker links write them.
    #[test]
    fn service_link_variables_are_ignored() {
        for service in
            ["", "_AGENTS", "_AGENTS_EU_1", "_ADMIN", "_LISTEN", "_STORE", "_LOG", "_REDIS_MASTER", "_NODE_NAME"]
        {
            for (name, value) in [
                ("SERVICE_HOST", "10.0.0.1"),
                ("SERVICE_HOST", "fd00::12"),
                ("SERVICE_HOST", "None"),
                ("SERVICE_PORT", "9000"),
                ("SERVICE_PORT_HTTP", "9000"),
                ("SERVICE_PORT_HTTP_METRICS", "9000"),
                ("PORT", "tcp://10.0.0.1:9000"),
                ("PORT", "udp://[fd00::12]:9000"),
                ("PORT", "tcp://fd00::12:9000"),
                ("PORT_9000_TCP", "tcp://10.0.0.1:9000"),
                ("PORT_9000_TCP_PROTO", "tcp"),
                ("PORT_9000_TCP_PORT", "9000"),
                ("PORT_9000_TCP_ADDR", "10.0.0.1"),
                ("PORT_8443_UDP_PROTO", "udp"),
                ("PORT_8443_SCTP_ADDR", "fd00::12"),
            ] {
                let name = format!("TURNWAY{service}_{name}");
                let raw = raw(&name, value);
                assert_eq!((shown(&raw.mistakes), shown(&raw.warnings)), (vec![], vec![]), "{name}={value}");
                assert_eq!(raw.agents, [], "{name}={value}");
            }
        }
    }

    #[test]
    fn agent_variable_may_look_like_a_service_link() {
        for (name, url) in [
            ("TURNWAY_AGENTS_SERVICE_HOST", "http://127.0.0.1:1"),
            ("TURNWAY_AGENTS_X_PORT", "https://agent.example"),
            ("TURNWAY_AGENTS_PORT_9000_TCP", "dial-in:"),
            ("TURNWAY_AGENTS_helper", "tcp://10.0.0.1:9000"),
        ] {
            assert_eq!(raw(name, url).agents.len(), 1, "{name}");
        }
    }

    #[test]
    fn repeated_flag_is_rejected() {
        let flag = |value: &str| (Flag::Key(SettingKey::Log), value.to_owned());
        let raw = gather(&ConfigSources { flags: vec![flag("json"), flag("pretty")], ..ConfigSources::default() });
        let message: Vec<String> = raw.mistakes.iter().map(ToString::to_string).collect();
        assert_eq!(message, ["flag --log: log: given twice"]);
    }
}
