//! Which agents there are and how each is reached, as an operator wrote it.
use crate::agent::http::HttpEndpoint;
use crate::config::agent::agent_keys;
use crate::config::amount::parse_wait;
use crate::config::nearest::hint;
use std::time::Duration;
use turnway_core::id::AgentId;
use turnway_core::protocol::agent::{AgentPolicy, OnOwnerLoss};

/// No wait of an agent is longer: a longer one is a slip of the pen.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// One configured agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSpec {
    /// Its name.
    pub id: AgentId,
    /// Where it is.
    pub endpoint: Endpoint,
    /// Its waits, and what becomes of its turns when their owner is lost.
    pub policy: AgentPolicy,
    /// Whether it takes `POST {endpoint}/cancel`; otherwise closing the request cancels.
    pub cancel: bool,
    /// Whether it takes `POST {endpoint}/steer`. Kept for when steering comes.
    pub steer: bool,
}

/// An agent as it shows itself to whoever may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub id: AgentId,
    /// `http` or `builtin`.
    pub kind: &'static str,
    /// Where it is, for operators.
    pub url: Option<String>,
    /// Whether it takes cancels of its own.
    pub cancel: bool,
    /// Whether it takes further inputs while it runs.
    pub steer: bool,
}

/// Where an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Behind HTTP and SSE.
    Http(Box<HttpEndpoint>),
    /// In this process.
    Builtin(Builtin),
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
    cancel: bool,
    steer: bool,
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
    /// An agent with the default policy; `url` is `http(s)://…`, `builtin:echo` or `builtin:counter`.
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
        let Conduct { policy, cancel, steer } = conduct;
        match (name, endpoint) {
            (Some(id), Some(endpoint)) if wrong.is_empty() => {
                Ok(Self { id, endpoint, policy, cancel, steer })
            }
            (_, _) => Err(wrong),
        }
    }

    /// What may be told of it.
    pub fn profile(&self) -> Profile {
        let (kind, url) = match &self.endpoint {
            Endpoint::Http(http) => ("http", Some(http.base())),
            Endpoint::Builtin(_) => ("builtin", None),
        };
        Profile { id: self.id.clone(), kind, url, cancel: self.cancel, steer: self.steer }
    }

    /// The agents of `--demo`: `echo`, then `counter`.
    pub fn demo() -> Result<Vec<Self>, BadAgent> {
        Ok(vec![Self::new("echo", "builtin:echo")?, Self::new("counter", "builtin:counter")?])
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn parse(url: &str) -> Result<Self, &'static str> {
        match url.strip_prefix("builtin:") {
            Some("echo") => Ok(Self::Builtin(Builtin::Echo)),
            Some("counter") => Ok(Self::Builtin(Builtin::Counter)),
            Some(_) => Err("there are builtin:echo and builtin:counter"),
            None => Ok(Self::Http(Box::new(HttpEndpoint::parse(url)?))),
        }
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
            conduct.cancel = true;
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
            "cancel_ack" => self.policy.cancel_ack = wait(value)?,
            "cancel" => self.cancel = flag(value)?,
            "steer" => self.steer = flag(value)?,
            _ => return Err(BadKey::Unknown { hint: hint(key, agent_keys().chain(["url"])) }),
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

fn on_owner_loss(value: &str) -> Result<OnOwnerLoss, BadKey> {
    match value {
        "retry" => Ok(OnOwnerLoss::Retry),
        "retry_if_silent" => Ok(OnOwnerLoss::RetryIfSilent),
        "fail" => Ok(OnOwnerLoss::Fail),
        // Said apart from a typing error: somebody who asks for it knows what it would mean.
        "resume" => Err(wrong(value, "retry, retry_if_silent or fail (no agent can be resumed yet)")),
        _ => Err(wrong(value, "retry, retry_if_silent or fail")),
    }
}

fn wait(value: &str) -> Result<Duration, BadKey> {
    let wait = parse_wait(value).filter(|wait| !wait.is_zero() && *wait <= WAIT_MAX);
    wait.ok_or_else(|| wrong(value, "a wait such as 250ms, 15s, 2m, 1h; at most 24h"))
}

fn flag(value: &str) -> Result<bool, BadKey> {
    value.parse().map_err(|_| wrong(value, "true or false"))
}

fn wrong(value: &str, why: &'static str) -> BadKey {
    BadKey::Value { value: value.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AGENT_SETTINGS;

    /// Covers: MP-D15, MP-E1.
    #[test]
    fn the_flag_form_sets_what_it_names() {
        let spec = parse_agent(
            "a=http://h:9/base/,cancel=true,silence=30s,on_owner_loss=fail,run=1h,input_ack=250ms,cancel_ack=2m",
        )
        .expect("a good agent");
        assert_eq!(spec.id.as_str(), "a");
        assert!(spec.cancel && !spec.steer);
        let policy = AgentPolicy {
            on_owner_loss: OnOwnerLoss::Fail,
            input_ack: Duration::from_millis(250),
            silence: Duration::from_secs(30),
            run: Duration::from_secs(3600),
            cancel_ack: Duration::from_secs(120),
        };
        assert_eq!(spec.policy, policy);
        let Endpoint::Http(http) = spec.endpoint else { panic!("an http agent") };
        assert_eq!(http.invoke, "http://h:9/base/invoke");
        assert_eq!(http.cancel, "http://h:9/base/cancel");
        assert_eq!(http.health, "http://h:9/base/health");
    }

    #[test]
    fn a_builtin_may_be_repeated() {
        let spec = parse_agent("e=builtin:echo").expect("a good agent");
        assert_eq!(spec.endpoint, Endpoint::Builtin(Builtin::Echo));
        assert_eq!(spec.policy.on_owner_loss, OnOwnerLoss::Retry);
    }

    #[test]
    fn each_mistake_is_named() {
        for (text, key, said) in [
            ("nonsense", "", "ID=URL"),
            ("a b=http://h", "agents", "\"a b\""),
            ("a=ftp://h", "agents.a.url", "http or https"),
            ("a=http://", "agents.a.url", "not a URL"),
            ("a=/x", "agents.a.url", "http://"),
            ("a=http://u:p@h/", "agents.a.url", "user"),
            ("a=http://h/?q=1", "agents.a.url", "query"),
            ("a=builtin:nobody", "agents.a.url", "builtin:echo"),
            ("a=http://h,colour=red", "agents.a.colour", "unknown key; there are url, on_owner_loss, "),
            ("a=http://h,cancle=true", "agents.a.cancle", "did you mean \"cancel\"?"),
            ("a=http://h,resume=true", "agents.a.resume", "unknown key"),
            ("a=http://h,on_owner_loss=resume", "agents.a.on_owner_loss", "no agent can be resumed yet"),
            ("a=http://h,silence=1s,silence=2s", "agents.a.silence", "given twice"),
            ("a=http://h,silence=fast", "agents.a.silence", "not \"fast\""),
            ("a=http://h,run=0s", "agents.a.run", "a wait"),
            ("a=http://h,run=25h", "agents.a.run", "a wait"),
            ("a=http://h,run=99999999999999999999h", "agents.a.run", "a wait"),
            ("a=http://h,cancel=yes", "agents.a.cancel", "true or false"),
            ("a=http://h,cancel", "agents.a", "\"cancel\" is not key=value"),
            ("a=http://h,", "agents.a", "\"\" is not key=value"),
        ] {
            let bad = parse_agent(text).expect_err(text);
            let [bad] = bad.as_slice() else { panic!("{text}: {bad:?}") };
            assert_eq!(bad.key().unwrap_or_default(), key, "{text}");
            assert!(bad.to_string().contains(said), "{text}: {bad}");
        }
        for text in ["a=http://u:hunter2@h/", "http://u:hunter2@h/?a=b", "a=http://u:1,hunter2@h/"] {
            let bad = parse_agent(text).expect_err(text);
            assert!(!format!("{bad:?}").contains("hunter2"), "{bad:?}");
        }
    }

    #[test]
    fn all_mistakes_of_one_agent_are_told() {
        let bad = parse_agent("a b=ftp://h,silence=x,colour=red,cancel").expect_err("bad");
        assert_eq!(bad.len(), 5, "{bad:?}");
    }

    #[test]
    fn what_the_table_says_holds_by_itself_is_so() {
        let plain = AgentSpec::new("a", "http://h").expect("an agent");
        let pairs = AGENT_SETTINGS.iter().map(|setting| (setting.name, setting.default));
        let spelt = AgentSpec::of("a", pairs.chain([("url", "http://h")])).expect("all of them known");
        assert_eq!(spelt, plain);
    }
}
