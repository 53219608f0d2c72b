//! Settings as they were written: which key, which words, where.
use super::file;
use super::key::{Fallback, Key, SETTINGS, Setting};
use super::mistake::{Mistake, Place};
use super::nearest::nearest;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Everything an operator may say, as text: tests pass a map.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file's name and text, if there is one.
    pub file: Option<(PathBuf, String)>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// The command line.
    pub flags: Vec<(Flag, String)>,
}

/// What a flag sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// A key.
    Key(Key),
    /// One more agent.
    Agent,
}

/// One agent, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentText {
    /// `ID=URL[,key=value…]`.
    Line {
        /// All of it.
        text: String,
        /// Where.
        place: Place,
    },
    /// `[agents.ID]`.
    Table {
        /// Its name.
        id: String,
        /// Where the table begins.
        place: Place,
        /// Its keys, in the file's order, each with its place.
        pairs: Vec<(String, String, Place)>,
    },
}

/// All settings, the weakest source first.
#[derive(Debug, Default)]
pub(super) struct Raw {
    pub(super) settings: Vec<(Key, String, Place)>,
    pub(super) agents: Vec<AgentText>,
    pub(super) mistakes: Vec<Mistake>,
}

/// What all of our variables begin with: another name that does is a slip of the pen.
const OURS: &str = "TURNWAY_";
/// `TURNWAY_AGENTS_<ID>=URL[,key=value…]`.
const AGENTS: &str = "TURNWAY_AGENTS_";
/// Ours, and no setting of a node: which file it reads, where the client commands find it and as whom
/// they ask, and what the project's own tests are told.
const OTHERS: [&str; 7] = [
    "TURNWAY_CONFIG",
    "TURNWAY_URL",
    "TURNWAY_USER",
    "TURNWAY_API_KEY",
    "TURNWAY_ADMIN",
    "TURNWAY_BIN",
    "TURNWAY_PYTHON",
];

/// Finds every setting of every source.
pub(super) fn gather(sources: &Sources) -> Raw {
    let mut raw = Raw::default();
    for setting in &SETTINGS {
        if let Fallback::Fixed(text) = setting.default {
            raw.settings.push((setting.key, text.to_owned(), Place::Default));
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
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "--agent",
            Self::Key(key) => key.setting().flag.unwrap_or("(none)"),
        }
    }
}

// === impl Raw ===

impl Raw {
    fn read_env(&mut self, name: &str, value: &str) {
        let Some(rest) = name.strip_prefix(OURS) else { return };
        let place = Place::Env(name.to_owned());
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.env() == name) {
            self.settings.push((setting.key, value.to_owned(), place));
        } else if let Some(id) = name.strip_prefix(AGENTS) {
            self.agents.push(AgentText::Line { text: format!("{id}={value}"), place });
        } else if !OTHERS.contains(&name) && !is_of_a_service(rest, value) {
            self.mistakes.push(Mistake::new(&place, format!("unknown setting{}", meant(rest))));
        }
    }

    fn read_flags(&mut self, flags: &[(Flag, String)]) {
        let mut seen = Vec::new();
        for (flag, value) in flags {
            let place = Place::Flag(flag.name());
            match flag {
                Flag::Agent => self.agents.push(AgentText::Line { text: value.clone(), place }),
                Flag::Key(key) if seen.contains(key) => {
                    self.mistakes.push(Mistake::of(key, &place, "given twice"));
                }
                Flag::Key(key) => {
                    seen.push(*key);
                    self.settings.push((*key, value.clone(), place));
                }
            }
        }
    }
}

/// What all of our names begin with makes none of them nearer.
fn meant(rest: &str) -> String {
    let known: Vec<String> = SETTINGS.iter().map(Setting::env).collect();
    let known = known.iter().map(String::as_str).chain(OTHERS);
    let near = nearest(rest, known.filter_map(|name| name.strip_prefix(OURS)));
    near.map(|name| format!("; did you mean \"{OURS}{name}\"?")).unwrap_or_default()
}

/// Kubernetes tells every container of a service called `turnway`, or `turnway-…`, in variables that
/// begin like ours: `TURNWAY_SERVICE_HOST`, `TURNWAY_ADMIN_PORT_8081_TCP_ADDR`, … Nobody wrote those.
fn is_of_a_service(rest: &str, value: &str) -> bool {
    let rest = format!("_{rest}");
    let is_link = |value: &str| ["tcp://", "udp://", "sctp://"].iter().any(|kind| value.starts_with(kind));
    let has_port = rest.match_indices("_PORT_").any(|(at, part)| {
        let mut words = rest[at + part.len()..].split('_');
        let number = words.next().is_some_and(|word| word.parse::<u16>().is_ok());
        number && words.next().is_some_and(|word| matches!(word, "TCP" | "UDP" | "SCTP"))
    });
    rest.ends_with("_SERVICE_HOST")
        || rest.ends_with("_SERVICE_PORT")
        || rest.contains("_SERVICE_PORT_")
        || (rest.ends_with("_PORT") && is_link(value))
        || has_port
}

// === impl AgentText ===

impl AgentText {
    /// Where it was written.
    pub fn place(&self) -> &Place {
        match self {
            Self::Line { place, .. } | Self::Table { place, .. } => place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, value: &str) -> Vec<String> {
        let env = [(name.to_owned(), value.to_owned())].into();
        let raw = gather(&Sources { env, ..Sources::default() });
        raw.mistakes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_unknown_variable_of_ours_is_a_mistake() {
        assert_eq!(
            told("TURNWAY_LISTEN_HTPP", "x"),
            ["environment TURNWAY_LISTEN_HTPP: unknown setting; did you mean \"TURNWAY_LISTEN_HTTP\"?"]
        );
        assert_eq!(told("TURNWAY_COLOUR", "x"), ["environment TURNWAY_COLOUR: unknown setting"]);
        assert_eq!(told("TURNWAY_PORT", "8080"), ["environment TURNWAY_PORT: unknown setting"]);
        for name in ["TURNWAY_URL", "TURNWAYX", "HOME", "TURNWAY_LOG"] {
            assert_eq!(told(name, "x"), [""; 0], "{name}");
        }
    }

    #[test]
    fn what_an_orchestrator_says_is_no_mistake() {
        for (name, value) in [
            ("TURNWAY_SERVICE_HOST", "10.0.0.1"),
            ("TURNWAY_SERVICE_PORT", "8080"),
            ("TURNWAY_SERVICE_PORT_HTTP", "8080"),
            ("TURNWAY_PORT", "tcp://10.0.0.1:8080"),
            ("TURNWAY_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
            ("TURNWAY_PORT_8443_UDP_PROTO", "udp"),
            ("TURNWAY_ADMIN_SERVICE_HOST", "10.0.0.1"),
            ("TURNWAY_ADMIN_PORT_8081_TCP_ADDR", "10.0.0.1"),
        ] {
            assert_eq!(told(name, value), [""; 0], "{name}");
        }
    }

    #[test]
    fn a_flag_is_given_once() {
        let flag = |value: &str| (Flag::Key(Key::Log), value.to_owned());
        let raw = gather(&Sources { flags: vec![flag("json"), flag("pretty")], ..Sources::default() });
        let said: Vec<String> = raw.mistakes.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["flag --log: log: given twice"]);
    }
}
