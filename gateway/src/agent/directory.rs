//! The configured agents and how each is reached, parsed from flags or configuration. Called by `cli::plan`; used by
//! `agent`.
mod model;
mod value;

pub use model::{ModelEndpoint, SystemPrompt};

use crate::agent::http::HttpEndpoint;
use crate::config::ServedBy;
use crate::config::agent::agent_keys;
use crate::config::nearest::did_you_mean;
use crate::models::demo;
use crate::outbound::client::ConnectionOptions;
use model::ModelOptions;
use std::time::Duration;
use turnway_core::id::AgentId;
use turnway_core::limits;
use turnway_core::protocol::agent::{AgentPolicy, OnOwnerLoss};
use value::{flag, history, invalid, keep_alive, on_owner_loss, patterns, wait};

/// One configured agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSpec {
    pub id: AgentId,
    pub endpoint: Endpoint,
    pub policy: AgentPolicy,
    /// True if the agent takes `POST {endpoint}/cancel`; otherwise closing the request cancels. Always set for an agent
    /// that outlives its request.
    pub cancel: bool,
    /// Used by HTTP agents only.
    pub keep_alive_options: KeepAliveOptions,
    /// Number of earlier messages that are sent with an input; 0 sends none.
    pub history_messages: usize,
}

/// The keep-alive settings of the connections to one agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAliveOptions {
    /// Time that an idle connection is kept; zero keeps none.
    pub keep_alive: Duration,
    /// True if a request that met the close of a pooled connection is sent once more on a new one.
    pub resend_on_stale: bool,
}

/// The properties of an agent that clients and operators may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentProfile {
    pub id: AgentId,
    /// `http`, `builtin`, `dial_in` or `model`.
    pub kind: &'static str,
    /// Base URL of an HTTP agent, for operators only.
    pub url: Option<String>,
    /// True if the agent takes cancel requests of its own.
    pub cancel: bool,
    /// True if the agent takes further inputs during a run.
    pub steer: bool,
    /// True if a run survives its connection and the agent can send the rest.
    pub resume: bool,
}

/// The transport by which an agent is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// HTTP requests, answered by SSE.
    Http(Box<HttpEndpoint>),
    /// A function in this process.
    Builtin(BuiltinAgent),
    /// A connection that the agent opens itself, as one of these identities.
    DialIn(ServedBy),
    /// Calls of a model that the operator configured.
    Model(Box<ModelEndpoint>),
}

/// A builtin agent (`--demo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltinAgent {
    /// Repeats the input, word by word.
    Echo,
    /// Counts: a long task with progress.
    Counter,
}

/// An error in an agent's configuration. Must not repeat a URL, or text that looks like one: it may hold a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAgent {
    /// The flag is not of the form `ID=URL`.
    #[error("expected ID=URL[,key=value…]")]
    Form,
    /// The id before the `=`, or of the table, is invalid.
    #[error("invalid agent id {0:?}: use 1 to 64 characters of A-Z a-z 0-9 _ -")]
    Id(String),
    /// The URL is invalid.
    #[error("{why}")]
    Url { agent: String, why: &'static str },
    /// A part after the URL is not `key=value`.
    #[error("{part:?} is not key=value")]
    Part { agent: String, part: String },
    /// A key or its value is invalid.
    #[error("{bad}")]
    Key { agent: String, key: String, bad: BadAgentKey },
    /// Two agents have the same id.
    #[error("agent {0} is configured twice")]
    Duplicate(AgentId),
    /// The default agent is not among the configured agents.
    #[error("default agent {0} is not configured")]
    Default(AgentId),
    /// An `https` agent is configured, and this machine has no root certificates.
    #[error("agents over https need root certificates: {0}")]
    Roots(String),
}

/// An error in one key of an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAgentKey {
    /// The key is unknown.
    #[error("unknown key{hint}; valid keys are url, {}", agent_keys().collect::<Vec<_>>().join(", "))]
    Unknown {
        /// Suggests a similar key; may be empty.
        hint: String,
    },
    /// The key is given twice.
    #[error("given twice")]
    Duplicate,
    /// The value is invalid.
    #[error("expected {why}, not {value:?}")]
    Value {
        value: String,
        /// The expected values.
        why: &'static str,
    },
    /// The file that the value names cannot be used.
    #[error("{path:?} {why}")]
    File { path: String, why: String },
}

/// The settings of an agent while they are parsed: all but its id and its endpoint.
#[derive(Default)]
struct AgentOptions {
    policy: AgentPolicy,
    /// `None` if not configured.
    cancel: Option<bool>,
    served_by: ServedBy,
    /// `None` if not configured.
    keep_alive: Option<Duration>,
    /// `None` if not configured.
    resend_on_stale: Option<bool>,
    history_messages: usize,
    model: ModelOptions,
}

/// Parses the flag form `ID=URL[,key=value…]`, e.g. `a=http://127.0.0.1:9000,cancel=true,silence=30s`. Returns every
/// error in it.
pub fn parse_agent(text: &str) -> Result<AgentSpec, Vec<BadAgent>> {
    let (id, rest) = text.split_once('=').ok_or_else(|| vec![BadAgent::Form])?;
    let id = id.trim();
    let mut parts = rest.split(',');
    let mut pairs = vec![("url", parts.next().unwrap_or_default().trim())];
    let mut bad = Vec::new();
    for part in parts {
        match part.split_once('=') {
            Some((key, value)) => pairs.push((key.trim(), value.trim())),
            None => bad.push(BadAgent::Part { agent: redact_id(id), part: redact_id(part) }),
        }
    }
    match AgentSpec::parse(id, pairs) {
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
    /// Creates an agent with the default policy; `url` is `http(s)://…`, `builtin:echo`, `builtin:counter`,
    /// `model:NAME` or `dial-in:`.
    pub fn new(id: &str, url: &str) -> Result<Self, BadAgent> {
        let first = |bad: Vec<(Option<usize>, BadAgent)>| bad.into_iter().next().map(|(_, bad)| bad);
        Self::parse(id, [("url", url)]).map_err(|bad| first(bad).unwrap_or(BadAgent::Form))
    }

    /// Parses an agent from its id and its keys, which must include `url`. Returns every error, each with the index of
    /// its pair, or `None` if the error is not about a single pair.
    pub fn parse<'a>(
        id: &str,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Vec<(Option<usize>, BadAgent)>> {
        let mut wrong = Vec::new();
        let name = AgentId::parse(id).map_err(|_| wrong.push((None, BadAgent::Id(redact_id(id))))).ok();
        let mut endpoint = None;
        let mut seen = Vec::new();
        let mut rest = Vec::new();
        for (at, (key, value)) in pairs.into_iter().enumerate() {
            let key_of = |bad| BadAgent::Key { agent: redact_id(id), key: key.to_owned(), bad };
            if seen.contains(&key) {
                wrong.push((Some(at), key_of(BadAgentKey::Duplicate)));
            } else if key == "url" {
                match Endpoint::parse(value) {
                    Ok(parsed) => endpoint = Some(parsed),
                    Err(why) => wrong.push((Some(at), BadAgent::Url { agent: redact_id(id), why })),
                }
            } else {
                rest.push((at, key, value));
            }
            seen.push(key);
        }
        if !seen.contains(&"url") {
            wrong.push((None, BadAgent::Url { agent: redact_id(id), why: "missing" }));
        }
        let mut conduct = endpoint.as_ref().map_or_else(AgentOptions::default, AgentOptions::defaults_for);
        for (at, key, value) in rest {
            if let Err(bad) = conduct.set(key, value) {
                wrong.push((Some(at), BadAgent::Key { agent: redact_id(id), key: key.to_owned(), bad }));
            }
        }
        if let Some(endpoint) = &endpoint
            && let Err((key, bad)) = conduct.check_consistency(endpoint)
        {
            let at = seen.iter().position(|seen| *seen == key);
            wrong.push((at, BadAgent::Key { agent: redact_id(id), key: key.to_owned(), bad }));
        }
        let keeping = conduct.keep_alive_options();
        let (resumes, AgentOptions { policy, cancel, served_by, history_messages, model, .. }) =
            (conduct.resumes(), conduct);
        let cancel = cancel.unwrap_or(resumes);
        let endpoint = endpoint.map(|endpoint| endpoint.with_served_by(served_by).with_model_options(model));
        match (name, endpoint) {
            (Some(id), Some(endpoint)) if wrong.is_empty() => {
                Ok(Self { id, endpoint, policy, cancel, keep_alive_options: keeping, history_messages })
            }
            (_, _) => Err(wrong),
        }
    }

    /// Returns the properties that may be shown.
    pub fn profile(&self) -> AgentProfile {
        let (kind, url) = match &self.endpoint {
            Endpoint::Http(http) => ("http", Some(http.base())),
            Endpoint::Builtin(_) => ("builtin", None),
            Endpoint::DialIn(_) => ("dial_in", None),
            Endpoint::Model(_) => ("model", None),
        };
        let resume = self.policy.on_owner_loss == OnOwnerLoss::Resume;
        AgentProfile { id: self.id.clone(), kind, url, cancel: self.cancel, steer: self.policy.steer, resume }
    }

    /// Returns the agents of `--demo`: `echo`, `counter`, and `assistant`, which is the demo model. All are members of every
    /// new session.
    pub fn demo() -> Result<Vec<Self>, BadAgent> {
        let mut agents = vec![
            Self::new("echo", "builtin:echo")?,
            Self::new("counter", "builtin:counter")?,
            Self::new("assistant", &format!("model:{}", demo::MODEL))?,
        ];
        agents.iter_mut().for_each(|agent| agent.policy.auto_joins = true);
        Ok(agents)
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn parse(url: &str) -> Result<Self, &'static str> {
        if url == "dial-in:" {
            return Ok(Self::DialIn(ServedBy::default()));
        }
        if let Some(name) = url.strip_prefix("model:") {
            return Ok(Self::Model(Box::new(ModelEndpoint::new(name)?)));
        }
        match url.strip_prefix("builtin:") {
            Some("echo") => Ok(Self::Builtin(BuiltinAgent::Echo)),
            Some("counter") => Ok(Self::Builtin(BuiltinAgent::Counter)),
            Some(_) => Err("unknown builtin agent; use builtin:echo or builtin:counter"),
            None => Ok(Self::Http(Box::new(HttpEndpoint::parse(url)?))),
        }
    }

    /// Sets the identities that serve a dial-in agent; has no effect on other transports.
    fn with_served_by(self, served_by: ServedBy) -> Self {
        match self {
            Self::DialIn(_) => Self::DialIn(served_by),
            Self::Http(_) | Self::Builtin(_) | Self::Model(_) => self,
        }
    }

    /// Sets the options of a model; has no effect on other transports.
    fn with_model_options(self, options: ModelOptions) -> Self {
        match self {
            Self::Model(model) => Self::Model(Box::new(model.with_options(options))),
            Self::Http(_) | Self::Builtin(_) | Self::DialIn(_) => self,
        }
    }
}

// === impl KeepAliveOptions ===

impl From<KeepAliveOptions> for ConnectionOptions {
    fn from(options: KeepAliveOptions) -> Self {
        Self {
            keep_alive: options.keep_alive,
            idle_max: limits::AGENT_IDLE_CONNECTIONS_MAX,
            resend_on_stale: options.resend_on_stale,
            connect_timeout: limits::AGENT_CONNECT_TIMEOUT,
        }
    }
}

impl Default for KeepAliveOptions {
    fn default() -> Self {
        Self { keep_alive: limits::AGENT_KEEP_ALIVE, resend_on_stale: true }
    }
}

// === impl AgentOptions ===

impl AgentOptions {
    /// Returns the defaults for an endpoint.
    fn defaults_for(endpoint: &Endpoint) -> Self {
        let mut conduct = Self::default();
        if matches!(endpoint, Endpoint::Builtin(_)) {
            // Builtin agents depend on nothing but their input, so running one again is harmless.
            conduct.policy.on_owner_loss = OnOwnerLoss::Retry;
            conduct.cancel = Some(true);
            conduct.policy.steer = matches!(endpoint, Endpoint::Builtin(BuiltinAgent::Counter));
        }
        if matches!(endpoint, Endpoint::Model(_)) {
            // Every attempt sends the same conversation, and a model does nothing but answer.
            conduct.policy.on_owner_loss = OnOwnerLoss::Retry;
            conduct.policy.input_ack = limits::MODEL_AGENT_ACK_TIMEOUT;
            conduct.cancel = Some(true);
        }
        if matches!(endpoint, Endpoint::DialIn(_)) {
            // A dial-in agent says in its hello if it does not answer cancels.
            conduct.cancel = Some(true);
        }
        conduct
    }

    /// Sets one of [`AGENT_SETTINGS`](crate::config::AGENT_SETTINGS).
    fn set(&mut self, key: &str, value: &str) -> Result<(), BadAgentKey> {
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
                let why = "at most 32 patterns of fact types, separated by |: `*` matches one segment, `>` the rest";
                self.policy.events = patterns(value).ok_or_else(|| invalid(value, why))?;
            }
            "history" => self.history_messages = history(value)?,
            "keep_alive" => self.keep_alive = Some(keep_alive(value)?),
            "resend_on_stale" => self.resend_on_stale = Some(flag(value)?),
            "served_by" => {
                self.served_by = ServedBy::parse(value).ok_or_else(|| invalid(value, ServedBy::EXPECTED))?;
            }
            "system" => self.model.set_system(value)?,
            "context" => self.model.set_context(value)?,
            "max_output" => self.model.set_max_output(value)?,
            _ => return Err(BadAgentKey::Unknown { hint: did_you_mean(key, agent_keys().chain(["url"])) }),
        }
        Ok(())
    }
}

impl AgentOptions {
    fn keep_alive_options(&self) -> KeepAliveOptions {
        let default = KeepAliveOptions::default();
        KeepAliveOptions {
            keep_alive: self.keep_alive.unwrap_or(default.keep_alive),
            resend_on_stale: self.resend_on_stale.unwrap_or(default.resend_on_stale),
        }
    }

    fn resumes(&self) -> bool {
        self.policy.on_owner_loss == OnOwnerLoss::Resume
    }

    /// Checks that the keys agree with each other. Returns the first key that does not, and why.
    fn check_consistency(&self, endpoint: &Endpoint) -> Result<(), (&'static str, BadAgentKey)> {
        let is_builtin = matches!(endpoint, Endpoint::Builtin(_));
        let is_echo = *endpoint == Endpoint::Builtin(BuiltinAgent::Echo);
        let is_dial_in = matches!(endpoint, Endpoint::DialIn(_));
        if is_dial_in && self.cancel == Some(false) {
            let why = "no value: an agent that dials in says in its hello whether it supports cancel";
            return Err(("cancel", invalid("false", why)));
        }
        if self.served_by.is_named() && !is_dial_in {
            let why = "no value: only agents with url = \"dial-in:\" have served_by";
            return Err(("served_by", invalid("a name", why)));
        }
        if self.history_messages > 0 && !is_dial_in && !matches!(endpoint, Endpoint::Http(_)) {
            let why = "off: builtin agents need no earlier messages, and models have `context`";
            return Err(("history", invalid(&self.history_messages.to_string(), why)));
        }
        if !matches!(endpoint, Endpoint::Http(_)) {
            let why = "no value: only agents behind http:// or https:// have pooled connections";
            if let Some(wait) = self.keep_alive {
                return Err(("keep_alive", invalid(&format!("{}ms", wait.as_millis()), why)));
            }
            if let Some(flag) = self.resend_on_stale {
                return Err(("resend_on_stale", invalid(&flag.to_string(), why)));
            }
        }
        if self.resumes() && is_builtin {
            let why = "retry, retry_if_silent or fail: a builtin agent does not survive its node";
            return Err(("on_owner_loss", invalid("resume", why)));
        }
        if self.resumes() && self.cancel == Some(false) {
            let why = "true: with on_owner_loss=resume, closing a request does not cancel the run";
            return Err(("cancel", invalid("false", why)));
        }
        if !matches!(endpoint, Endpoint::Model(_)) {
            self.model.check_unused()?;
        } else if self.resumes() {
            let why = "retry, retry_if_silent or fail: a call of a model does not survive its node";
            return Err(("on_owner_loss", invalid("resume", why)));
        } else if self.policy.steer {
            return Err(("steer", invalid("true", "false: a model takes no input while it answers")));
        } else if !self.policy.events.is_empty() {
            return Err(("events", invalid("a type", "none: a model does not use events")));
        }
        if is_builtin && !self.policy.events.is_empty() {
            return Err(("events", invalid("a type", "none: a builtin agent does not use events")));
        }
        if is_echo && self.policy.steer {
            return Err(("steer", invalid("true", "false: builtin:echo takes no input while it answers")));
        }
        Ok(())
    }
}

// === impl BadAgent ===

impl BadAgent {
    /// Returns the configuration key that the error is about.
    pub fn key(&self) -> Option<String> {
        match self {
            Self::Form | Self::Roots(_) => None,
            Self::Id(_) => Some("agents".to_owned()),
            Self::Url { agent, .. } => Some(format!("agents.{agent}.url")),
            Self::Part { agent, .. } => Some(format!("agents.{agent}")),
            Self::Key { agent, key, .. } => Some(format!("agents.{agent}.{key}")),
            Self::Duplicate(id) => Some(format!("agents.{id}")),
            Self::Default(_) => Some("default_agent".to_owned()),
        }
    }
}

/// Returns text that is safe to show as an id: `--agent http://user:secret@…` would show all of it.
fn redact_id(id: &str) -> String {
    if id.contains([':', '/', '@']) { "…".to_owned() } else { id.to_owned() }
}

#[cfg(test)]
mod tests;
