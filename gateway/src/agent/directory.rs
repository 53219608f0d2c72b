//! Which agents there are and how each is reached, as an operator wrote it.
mod value;

use crate::agent::http::HttpEndpoint;
use crate::config::ServedBy;
use crate::config::agent::agent_keys;
use crate::config::nearest::hint;
use std::time::Duration;
use turnway_core::id::AgentId;
use turnway_core::limits;
use turnway_core::protocol::agent::{AgentPolicy, OnOwnerLoss};
use value::{flag, keep_alive, on_owner_loss, patterns, wait, wrong};

/// One configured agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSpec {
    /// Its name.
    pub id: AgentId,
    /// Where it is.
    pub endpoint: Endpoint,
    /// Its waits, and what becomes of its turns when their owner is lost.
    pub policy: AgentPolicy,
    /// Whether it takes `POST {endpoint}/cancel`; otherwise closing the request cancels. Whoever outlives the
    /// request does.
    pub cancel: bool,
    /// Of an HTTP agent: how connections to it are kept.
    pub keeping: Keeping,
}

/// How the connections to one agent are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeping {
    /// How long an idle connection is kept; zero: none is.
    pub keep_alive: Duration,
    /// Whether a request that met the close of a kept connection is sent once more on a new one.
    pub resend_on_stale: bool,
}

/// An agent as it shows itself to whoever may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub id: AgentId,
    /// `http`, `builtin` or `dial_in`.
    pub kind: &'static str,
    /// Where it is, for operators.
    pub url: Option<String>,
    /// Whether it takes cancels of its own.
    pub cancel: bool,
    /// Whether it takes further inputs while it runs.
    pub steer: bool,
    /// Whether it outlives the connection and can be asked for the rest.
    pub resume: bool,
}

/// Where an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Behind HTTP and SSE.
    Http(Box<HttpEndpoint>),
    /// In this process.
    Builtin(Builtin),
    /// At the other end of a connection that it opens itself, as one of these.
    DialIn(ServedBy),
}

/// The agents a node brings along (`--demo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Builtin {
    /// Says what it was told, word by word.
    Echo,
    /// Counts: a long task with progress.
    Counter,
}

/// What is wrong with how an agent was configured. URLs and what looks like one are not repeated: they
/// may hold a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAgent {
    /// Not even `ID=URL`.
    #[error("expected ID=URL[,key=value…]")]
    Form,
    /// The name before the `=`, or of the table.
    #[error("{0:?} is no agent's id: 1 to 64 of A-Z a-z 0-9 _ -")]
    Id(String),
    /// The URL.
    #[error("{why}")]
    Url {
        /// Whose.
        agent: String,
        /// Why.
        why: &'static str,
    },
    /// Something after the URL that is no `key=value`.
    #[error("{part:?} is not key=value")]
    Part {
        /// Whose.
        agent: String,
        /// What it says.
        part: String,
    },
    /// One of its keys.
    #[error("{bad}")]
    Key {
        /// Whose.
        agent: String,
        /// Which.
        key: String,
        /// What about it.
        bad: BadKey,
    },
    /// Two agents with one name.
    #[error("agent {0} is configured twice")]
    Same(AgentId),
    /// The default agent is none of the configured ones.
    #[error("default agent {0} is not configured")]
    Default(AgentId),
    /// An `https` agent, and no root certificates on this machine.
    #[error("agents over https need root certificates: {0}")]
    Roots(String),
}

/// What is wrong with one key of an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// Nobody knows it.
    #[error("unknown key{hint}; there are url, {}", agent_keys().collect::<Vec<_>>().join(", "))]
    Unknown {
        /// What may have been meant.
        hint: String,
    },
    /// It stands there twice.
    #[error("given twice")]
    Twice,
    /// It does not take this value.
    #[error("expected {why}, not {value:?}")]
    Value {
        /// What it says.
        value: String,
        /// What it could say.
        why: &'static str,
    },
}

/// How an agent is asked: everything about it but its name and its place.
#[derive(Default)]
struct Conduct {
    policy: AgentPolicy,
    /// None where nobody said.
    cancel: Option<bool>,
    served_by: ServedBy,
    /// None where nobody said.
    keep_alive: Option<Duration>,
    /// None where nobody said.
    resend_on_stale: Option<bool>,
}

/// Parses the flag form `ID=URL[,key=value…]`, e.g. `a=http://127.0.0.1:9000,cancel=true,silence=30s`, and
/// tells everything that is wrong with it.
pub fn parse_agent(text: &str) -> Result<AgentSpec, Vec<BadAgent>> {
    let (id, rest) = text.split_once('=').ok_or_else(|| vec![BadAgent::Form])?;
    let id = id.trim();
    let mut parts = rest.split(',');
    let mut pairs = vec![("url", parts.next().unwrap_or_default().trim())];
    let mut bad = Vec::new();
    for part in parts {
        match part.split_once('=') {
            Some((key, value)) => pairs.push((key.trim(), value.trim())),
            None => bad.push(BadAgent::Part { agent: shown(id), part: shown(part) }),
        }
    }
    match AgentSpec::of(id, pairs) {
        Ok(spec) if bad.is_empty() => Ok(spec),
        Ok(_) => Err(bad),
        Err(more) => {
            bad.extend(more.into_iter().map(|(_, bad)| bad));
            Err(bad)
        }
    }
}

// === impl AgentSpec ===

impl AgentSpec {
    /// An agent with the default policy; `url` is `http(s)://…`, `builtin:echo`, `builtin:counter` or
    /// `dial-in:`.
    pub fn new(id: &str, url: &str) -> Result<Self, BadAgent> {
        let first = |bad: Vec<(Option<usize>, BadAgent)>| bad.into_iter().next().map(|(_, bad)| bad);
        Self::of(id, [("url", url)]).map_err(|bad| first(bad).unwrap_or(BadAgent::Form))
    }

    /// An agent from its name and its keys, of which `url` must be one. Everything that is wrong, each
    /// with the number of the pair it is about, or none where it is about the whole.
    pub fn of<'a>(
        id: &str,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Vec<(Option<usize>, BadAgent)>> {
        let mut wrong = Vec::new();
        let name = AgentId::parse(id).map_err(|_| wrong.push((None, BadAgent::Id(shown(id))))).ok();
        let (mut endpoint, mut seen, mut rest) = (None, Vec::new(), Vec::new());
        for (at, (key, value)) in pairs.into_iter().enumerate() {
            let key_of = |bad| BadAgent::Key { agent: shown(id), key: key.to_owned(), bad };
            if seen.contains(&key) {
                wrong.push((Some(at), key_of(BadKey::Twice)));
            } else if key == "url" {
                match Endpoint::parse(value) {
                    Ok(parsed) => endpoint = Some(parsed),
                    Err(why) => wrong.push((Some(at), BadAgent::Url { agent: shown(id), why })),
                }
            } else {
                rest.push((at, key, value));
            }
            seen.push(key);
        }
        if !seen.contains(&"url") {
            wrong.push((None, BadAgent::Url { agent: shown(id), why: "there is none" }));
        }
        let mut conduct = endpoint.as_ref().map_or_else(Conduct::default, Conduct::of);
        for (at, key, value) in rest {
            if let Err(bad) = conduct.set(key, value) {
                wrong.push((Some(at), BadAgent::Key { agent: shown(id), key: key.to_owned(), bad }));
            }
        }
        if let Some(endpoint) = &endpoint
            && let Err((key, bad)) = conduct.agrees(endpoint)
        {
            let at = seen.iter().position(|seen| *seen == key);
            wrong.push((at, BadAgent::Key { agent: shown(id), key: key.to_owned(), bad }));
        }
        let keeping = conduct.keeping();
        let (resumes, Conduct { policy, cancel, served_by, .. }) = (conduct.resumes(), conduct);
        let cancel = cancel.unwrap_or(resumes);
        let endpoint = endpoint.map(|endpoint| endpoint.served_by(served_by));
        match (name, endpoint) {
            (Some(id), Some(endpoint)) if wrong.is_empty() => {
                Ok(Self { id, endpoint, policy, cancel, keeping })
            }
            (_, _) => Err(wrong),
        }
    }

    /// What may be told of it.
    pub fn profile(&self) -> Profile {
        let (kind, url) = match &self.endpoint {
            Endpoint::Http(http) => ("http", Some(http.base())),
            Endpoint::Builtin(_) => ("builtin", None),
            Endpoint::DialIn(_) => ("dial_in", None),
        };
        let resume = self.policy.on_owner_loss == OnOwnerLoss::Resume;
        Profile { id: self.id.clone(), kind, url, cancel: self.cancel, steer: self.policy.steer, resume }
    }

    /// The agents of `--demo`: `echo`, then `counter`. Both are members of every new session.
    pub fn demo() -> Result<Vec<Self>, BadAgent> {
        let mut agents = vec![Self::new("echo", "builtin:echo")?, Self::new("counter", "builtin:counter")?];
        agents.iter_mut().for_each(|agent| agent.policy.joins = true);
        Ok(agents)
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn parse(url: &str) -> Result<Self, &'static str> {
        if url == "dial-in:" {
            return Ok(Self::DialIn(ServedBy::default()));
        }
        match url.strip_prefix("builtin:") {
            Some("echo") => Ok(Self::Builtin(Builtin::Echo)),
            Some("counter") => Ok(Self::Builtin(Builtin::Counter)),
            Some(_) => Err("there are builtin:echo and builtin:counter"),
            None => Ok(Self::Http(Box::new(HttpEndpoint::parse(url)?))),
        }
    }

    /// Where it is those who are named that serve it.
    fn served_by(self, served_by: ServedBy) -> Self {
        match self {
            Self::DialIn(_) => Self::DialIn(served_by),
            Self::Http(_) | Self::Builtin(_) => self,
        }
    }
}

// === impl Keeping ===

impl Default for Keeping {
    fn default() -> Self {
        Self { keep_alive: limits::AGENT_KEEP_ALIVE, resend_on_stale: true }
    }
}

// === impl Conduct ===

impl Conduct {
    /// What holds where nothing is said.
    fn of(endpoint: &Endpoint) -> Self {
        let mut conduct = Self::default();
        if matches!(endpoint, Endpoint::Builtin(_)) {
            // They depend on nothing but their input, so running one again is harmless.
            conduct.policy.on_owner_loss = OnOwnerLoss::Retry;
            conduct.cancel = Some(true);
            conduct.policy.steer = matches!(endpoint, Endpoint::Builtin(Builtin::Counter));
        }
        if matches!(endpoint, Endpoint::DialIn(_)) {
            // It says by itself when it does not.
            conduct.cancel = Some(true);
        }
        conduct
    }

    /// Sets one of [`AGENT_SETTINGS`](crate::config::AGENT_SETTINGS).
    fn set(&mut self, key: &str, value: &str) -> Result<(), BadKey> {
        match key {
            "on_owner_loss" => self.policy.on_owner_loss = on_owner_loss(value)?,
            "input_ack" => self.policy.input_ack = wait(value)?,
            "silence" => self.policy.silence = wait(value)?,
            "run" => self.policy.run = wait(value)?,
            "handover" => self.policy.handover = wait(value)?,
            "cancel_ack" => self.policy.cancel_ack = wait(value)?,
            "cancel" => self.cancel = Some(flag(value)?),
            "steer" => self.policy.steer = flag(value)?,
            "events" => {
                let why = "patterns of types of facts, at most 32, with | between them: `*` is one segment, `>` the rest";
                self.policy.events = patterns(value).ok_or_else(|| wrong(value, why))?;
            }
            "keep_alive" => self.keep_alive = Some(keep_alive(value)?),
            "resend_on_stale" => self.resend_on_stale = Some(flag(value)?),
            "served_by" => {
                self.served_by = ServedBy::parse(value).ok_or_else(|| wrong(value, ServedBy::FORM))?;
            }
            _ => return Err(BadKey::Unknown { hint: hint(key, agent_keys().chain(["url"])) }),
        }
        Ok(())
    }
}

impl Conduct {
    fn keeping(&self) -> Keeping {
        let default = Keeping::default();
        Keeping {
            keep_alive: self.keep_alive.unwrap_or(default.keep_alive),
            resend_on_stale: self.resend_on_stale.unwrap_or(default.resend_on_stale),
        }
    }

    fn resumes(&self) -> bool {
        self.policy.on_owner_loss == OnOwnerLoss::Resume
    }

    /// Whether its keys agree with each other; else which does not, and why.
    fn agrees(&self, endpoint: &Endpoint) -> Result<(), (&'static str, BadKey)> {
        let is_builtin = matches!(endpoint, Endpoint::Builtin(_));
        let is_echo = *endpoint == Endpoint::Builtin(Builtin::Echo);
        let is_dial_in = matches!(endpoint, Endpoint::DialIn(_));
        if is_dial_in && self.cancel == Some(false) {
            let why = "nothing: an agent that dials in says in its hello whether it answers cancels";
            return Err(("cancel", wrong("false", why)));
        }
        if self.served_by.is_named() && !is_dial_in {
            let why = "nothing: only agents with url = \"dial-in:\" are served by somebody";
            return Err(("served_by", wrong("a name", why)));
        }
        if !matches!(endpoint, Endpoint::Http(_)) {
            let why = "nothing: only to agents behind http:// or https:// connections are kept";
            if let Some(wait) = self.keep_alive {
                return Err(("keep_alive", wrong(&format!("{}ms", wait.as_millis()), why)));
            }
            if let Some(flag) = self.resend_on_stale {
                return Err(("resend_on_stale", wrong(&flag.to_string(), why)));
            }
        }
        if self.resumes() && is_builtin {
            let why = "retry, retry_if_silent or fail: a builtin agent ends with its node";
            return Err(("on_owner_loss", wrong("resume", why)));
        }
        if self.resumes() && self.cancel == Some(false) {
            let why = "true: with on_owner_loss=resume the end of a request cancels nothing";
            return Err(("cancel", wrong("false", why)));
        }
        if is_builtin && !self.policy.events.is_empty() {
            return Err(("events", wrong("a type", "none: a builtin agent has no use for events")));
        }
        if is_echo && self.policy.steer {
            return Err(("steer", wrong("true", "false: builtin:echo takes nothing in while it answers")));
        }
        Ok(())
    }
}

// === impl BadAgent ===

impl BadAgent {
    /// What it is about, as the file would name it.
    pub fn key(&self) -> Option<String> {
        match self {
            Self::Form | Self::Roots(_) => None,
            Self::Id(_) => Some("agents".to_owned()),
            Self::Url { agent, .. } => Some(format!("agents.{agent}.url")),
            Self::Part { agent, .. } => Some(format!("agents.{agent}")),
            Self::Key { agent, key, .. } => Some(format!("agents.{agent}.{key}")),
            Self::Same(id) => Some(format!("agents.{id}")),
            Self::Default(_) => Some("default_agent".to_owned()),
        }
    }
}

/// A name that may be none: of `--agent http://user:secret@…` all of it would be shown.
fn shown(id: &str) -> String {
    if id.contains([':', '/', '@']) { "…".to_owned() } else { id.to_owned() }
}

#[cfg(test)]
mod tests;
