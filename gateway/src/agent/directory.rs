//! Which agents there are and how each is reached, as an operator wrote it.
use crate::agent::http::HttpEndpoint;
use std::time::Duration;
use turnway_core::id::AgentId;
use turnway_core::protocol::agent::{AgentPolicy, OnOwnerLoss};

/// The keys that may follow an agent's URL.
pub const KEYS: [&str; 7] = ["on_owner_loss", "input_ack", "silence", "run", "cancel_ack", "cancel", "steer"];

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

/// What is wrong with how an agent was configured. Each names the agent and the part at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAgent {
    /// Not even `ID=URL`.
    #[error("agent {0:?}: expected ID=URL[,key=value…]")]
    Form(String),
    /// The name before the `=`.
    #[error("agent {0:?}: an id is 1 to 64 of A-Z a-z 0-9 _ -")]
    Id(String),
    /// The URL.
    #[error("agent {agent}: bad URL: {why}")]
    Url {
        /// Whose.
        agent: String,
        /// Why; the URL itself may hold a secret and is not repeated.
        why: &'static str,
    },
    /// Something after the URL that is no `key=value`.
    #[error("agent {agent}: {part:?} is not key=value")]
    Part {
        /// Whose.
        agent: String,
        /// What it says.
        part: String,
    },
    /// A key nobody knows.
    #[error("agent {agent}: unknown key {key:?}; known are {}", KEYS.join(", "))]
    Key {
        /// Whose.
        agent: String,
        /// Which.
        key: String,
    },
    /// A key given twice.
    #[error("agent {agent}: key {key:?} is given twice")]
    Twice {
        /// Whose.
        agent: String,
        /// Which.
        key: String,
    },
    /// A value its key does not take.
    #[error("agent {agent}: {key}={value}: {why}")]
    Value {
        /// Whose.
        agent: String,
        /// Which key.
        key: String,
        /// What it says.
        value: String,
        /// What it could say.
        why: &'static str,
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

/// Parses the flag form `ID=URL[,key=value…]`, e.g. `a=http://127.0.0.1:9000,cancel=true,silence=30s`.
pub fn parse_agent(text: &str) -> Result<AgentSpec, BadAgent> {
    let (id, rest) = text.split_once('=').ok_or_else(|| BadAgent::Form(text.to_owned()))?;
    let mut parts = rest.split(',');
    let mut spec = AgentSpec::new(id.trim(), parts.next().unwrap_or_default().trim())?;
    let mut seen: Vec<&str> = Vec::new();
    for part in parts {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| BadAgent::Part { agent: id.to_owned(), part: part.to_owned() })?;
        let (key, value) = (key.trim(), value.trim());
        if seen.contains(&key) {
            return Err(BadAgent::Twice { agent: id.to_owned(), key: key.to_owned() });
        }
        seen.push(key);
        spec.set(key, value)?;
    }
    Ok(spec)
}

/// A wait as people write it: `250ms`, `15s`, `2m`, `1h`.
pub fn parse_wait(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = text.split_at(digits);
    let count: u64 = count.parse().ok()?;
    let wait = match unit {
        "ms" => Duration::from_millis(count),
        "s" => Duration::from_secs(count),
        "m" => Duration::from_secs(count.checked_mul(60)?),
        "h" => Duration::from_secs(count.checked_mul(60 * 60)?),
        _ => return None,
    };
    (!wait.is_zero() && wait <= WAIT_MAX).then_some(wait)
}

// === impl AgentSpec ===

impl AgentSpec {
    /// An agent with the default policy; `url` is `http(s)://…`, `builtin:echo` or `builtin:counter`.
    pub fn new(id: &str, url: &str) -> Result<Self, BadAgent> {
        let name = AgentId::parse(id).map_err(|_| BadAgent::Id(id.to_owned()))?;
        let bad = |why| BadAgent::Url { agent: id.to_owned(), why };
        let endpoint = match url.strip_prefix("builtin:") {
            Some("echo") => Endpoint::Builtin(Builtin::Echo),
            Some("counter") => Endpoint::Builtin(Builtin::Counter),
            Some(_) => return Err(bad("there are builtin:echo and builtin:counter")),
            None => Endpoint::Http(Box::new(HttpEndpoint::parse(url).map_err(bad)?)),
        };
        let mut policy = AgentPolicy::default();
        let mut cancel = false;
        if matches!(endpoint, Endpoint::Builtin(_)) {
            // They depend on nothing but their input, so running one again is harmless.
            policy.on_owner_loss = OnOwnerLoss::Retry;
            cancel = true;
        }
        Ok(Self { id: name, endpoint, policy, cancel, steer: false })
    }

    /// Sets one of [`KEYS`].
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), BadAgent> {
        match key {
            "on_owner_loss" => self.policy.on_owner_loss = self.on_owner_loss(key, value)?,
            "input_ack" => self.policy.input_ack = self.wait(key, value)?,
            "silence" => self.policy.silence = self.wait(key, value)?,
            "run" => self.policy.run = self.wait(key, value)?,
            "cancel_ack" => self.policy.cancel_ack = self.wait(key, value)?,
            "cancel" => self.cancel = self.flag(key, value)?,
            "steer" => self.steer = self.flag(key, value)?,
            _ => return Err(BadAgent::Key { agent: self.id.to_string(), key: key.to_owned() }),
        }
        Ok(())
    }

    /// The agents of `--demo`: `echo`, then `counter`.
    pub fn demo() -> Result<Vec<Self>, BadAgent> {
        Ok(vec![Self::new("echo", "builtin:echo")?, Self::new("counter", "builtin:counter")?])
    }

    fn on_owner_loss(&self, key: &str, value: &str) -> Result<OnOwnerLoss, BadAgent> {
        match value {
            "retry" => Ok(OnOwnerLoss::Retry),
            "retry_if_silent" => Ok(OnOwnerLoss::RetryIfSilent),
            "fail" => Ok(OnOwnerLoss::Fail),
            // Said apart from a typing error: somebody who asks for it knows what it would mean.
            "resume" => {
                Err(self.value(key, value, "no agent can be resumed yet; retry, retry_if_silent or fail"))
            }
            _ => Err(self.value(key, value, "retry, retry_if_silent or fail")),
        }
    }

    fn wait(&self, key: &str, value: &str) -> Result<Duration, BadAgent> {
        parse_wait(value)
            .ok_or_else(|| self.value(key, value, "a wait such as 250ms, 15s, 2m, 1h; at most 24h"))
    }

    fn flag(&self, key: &str, value: &str) -> Result<bool, BadAgent> {
        value.parse().map_err(|_| self.value(key, value, "true or false"))
    }

    fn value(&self, key: &str, value: &str, why: &'static str) -> BadAgent {
        BadAgent::Value { agent: self.id.to_string(), key: key.to_owned(), value: value.to_owned(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (text, said) in [
            ("nonsense", "ID=URL"),
            ("a b=http://h", "\"a b\""),
            ("a=ftp://h", "http or https"),
            ("a=http://", "bad URL"),
            ("a=/x", "bad URL"),
            ("a=http://u:p@h/", "user"),
            ("a=http://h/?q=1", "query"),
            ("a=builtin:nobody", "builtin:echo"),
            ("a=http://h,colour=red", "\"colour\""),
            ("a=http://h,resume=true", "\"resume\""),
            ("a=http://h,on_owner_loss=resume", "no agent can be resumed yet"),
            ("a=http://h,silence=1s,silence=2s", "\"silence\" is given twice"),
            ("a=http://h,silence=fast", "silence=fast"),
            ("a=http://h,run=0s", "run=0s"),
            ("a=http://h,run=99999999999999999999h", "run="),
            ("a=http://h,cancel=yes", "cancel=yes"),
            ("a=http://h,cancel", "\"cancel\" is not key=value"),
            ("a=http://h,", "\"\" is not key=value"),
        ] {
            let error = parse_agent(text).expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(!parse_agent("a=http://u:hunter2@h/").expect_err("userinfo").to_string().contains("hunter2"));
    }
}
