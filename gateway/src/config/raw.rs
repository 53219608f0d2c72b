//! Settings as they were written: which key, which words, where.
use super::mistake::{Mistake, Place};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

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

/// A setting's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "`name` says it")]
pub enum Key {
    ListenHttp,
    ListenAdmin,
    ListenQuic,
    StoreUrl,
    StoreDurability,
    StoreRetention,
    Auth,
    NodeName,
    DefaultAgent,
    Demo,
    Log,
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

/// Sections whose environment names are ours: another name in them is a slip of the pen.
const SECTIONS: [&str; 4] = ["TURNWAY_LISTEN_", "TURNWAY_STORE_", "TURNWAY_NODE_", "TURNWAY_AUTH_"];
/// `TURNWAY_AGENTS_<ID>=URL[,key=value…]`.
const AGENTS: &str = "TURNWAY_AGENTS_";

/// Finds every setting of every source.
pub(super) fn gather(sources: &Sources) -> Raw {
    let mut raw = Raw::default();
    if let Some((path, text)) = &sources.file {
        File { path, text, raw: &mut raw }.read();
    }
    for (name, value) in &sources.env {
        raw.read_env(name, value);
    }
    for (flag, value) in &sources.flags {
        let place = Place::Flag(flag.name());
        match flag {
            Flag::Key(key) => raw.settings.push((*key, value.clone(), place)),
            Flag::Agent => raw.agents.push(AgentText::Line { text: value.clone(), place }),
        }
    }
    raw
}

// === impl Flag ===

impl Flag {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "--agent",
            Self::Key(Key::ListenHttp) => "--listen",
            Self::Key(Key::ListenAdmin) => "--admin",
            Self::Key(Key::ListenQuic) => "--quic",
            Self::Key(Key::StoreUrl) => "--store",
            Self::Key(Key::StoreDurability) => "--durability",
            Self::Key(Key::StoreRetention) => "--retention",
            Self::Key(Key::Auth) => "--auth",
            Self::Key(Key::NodeName) => "--node-name",
            Self::Key(Key::DefaultAgent) => "--default-agent",
            Self::Key(Key::Demo) => "--demo",
            Self::Key(Key::Log) => "--log",
        }
    }
}

// === impl Key ===

impl Key {
    const ALL: [Self; 11] = [
        Self::ListenHttp,
        Self::ListenAdmin,
        Self::ListenQuic,
        Self::StoreUrl,
        Self::StoreDurability,
        Self::StoreRetention,
        Self::Auth,
        Self::NodeName,
        Self::DefaultAgent,
        Self::Demo,
        Self::Log,
    ];

    /// As it is written in the file, section and key.
    pub fn name(self) -> &'static str {
        match self {
            Self::ListenHttp => "listen.http",
            Self::ListenAdmin => "listen.admin",
            Self::ListenQuic => "listen.quic",
            Self::StoreUrl => "store.url",
            Self::StoreDurability => "store.durability",
            Self::StoreRetention => "store.retention",
            Self::Auth => "auth",
            Self::NodeName => "node.name",
            Self::DefaultAgent => "default_agent",
            Self::Demo => "demo",
            Self::Log => "log",
        }
    }

    /// As it is written in the environment.
    fn env(self) -> String {
        format!("TURNWAY_{}", self.name().replace('.', "_").to_ascii_uppercase())
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.name() == name)
    }

    /// Whether it is a section of the file rather than a key.
    fn is_section(name: &str) -> bool {
        Self::ALL.iter().any(|key| key.name().strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
    }
}

// === impl Raw ===

impl Raw {
    fn read_env(&mut self, name: &str, value: &str) {
        let place = Place::Env(name.to_owned());
        if let Some(key) = Key::ALL.into_iter().find(|key| key.env() == name) {
            self.settings.push((key, value.to_owned(), place));
        } else if let Some(id) = name.strip_prefix(AGENTS) {
            self.agents.push(AgentText::Line { text: format!("{id}={value}"), place });
        } else if SECTIONS.iter().any(|section| name.starts_with(section)) {
            self.mistakes.push(Mistake::new(&place, "unknown setting"));
        }
    }
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

/// A file that is being read.
struct File<'a> {
    path: &'a std::path::Path,
    text: &'a str,
    raw: &'a mut Raw,
}

// === impl File ===

impl File<'_> {
    fn read(&mut self) {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let at = error.span().unwrap_or_default();
            self.wrong(at, error.message().to_owned());
        }
        for (name, value) in table.get_ref() {
            let (at, name) = (name.span(), name.get_ref().as_ref());
            match value.get_ref().as_table() {
                Some(agents) if name == "agents" => self.agents(agents),
                Some(section) if Key::is_section(name) => self.section(name, section),
                Some(_) | None => self.leaf(name, at, value),
            }
        }
    }

    fn section(&mut self, section: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            self.leaf(&format!("{section}.{}", name.get_ref()), name.span(), value);
        }
    }

    fn leaf(&mut self, name: &str, at: Range<usize>, value: &Spanned<DeValue<'_>>) {
        let Some(key) = Key::named(name) else {
            return self.wrong(at, format!("unknown key {name:?}"));
        };
        let place = self.place(value.span());
        match (key, value.get_ref()) {
            (Key::Demo, DeValue::Boolean(flag)) => self.raw.settings.push((key, flag.to_string(), place)),
            (Key::Demo, other) => {
                self.wrong(value.span(), format!("{name}: expected true or false, not {}", other.type_str()));
            }
            (_, DeValue::String(text)) => self.raw.settings.push((key, text.to_string(), place)),
            (_, other) => {
                self.wrong(value.span(), format!("{name}: expected a string, not {}", other.type_str()))
            }
        }
    }

    fn agents(&mut self, agents: &DeTable<'_>) {
        for (id, value) in agents {
            let Some(table) = value.get_ref().as_table() else {
                self.wrong(id.span(), format!("agents.{}: expected a table", id.get_ref()));
                continue;
            };
            let mut pairs = Vec::new();
            for (name, value) in table {
                match word(value.get_ref()) {
                    Some(word) => pairs.push((name.get_ref().to_string(), word, self.place(value.span()))),
                    None => self.wrong(value.span(), format!("{}: expected one value", name.get_ref())),
                }
            }
            let (id, place) = (id.get_ref().to_string(), self.place(id.span()));
            self.raw.agents.push(AgentText::Table { id, place, pairs });
        }
    }

    fn wrong(&mut self, at: Range<usize>, what: String) {
        let place = self.place(at);
        self.raw.mistakes.push(Mistake { place, what });
    }

    /// Where a byte of the text lies, for a person.
    fn place(&self, at: Range<usize>) -> Place {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Place::File { path: self.path.to_owned(), line, column }
    }
}

/// A single value as the words of a flag.
fn word(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        DeValue::Integer(number) => Some(number.as_str().to_owned()),
        DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}
