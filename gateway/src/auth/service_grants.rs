//! Defines what a credential may serve besides acting as a user: agents that dial in, tool runners, adapters of chat
//! systems. An API key gets these grants when it is created (`turnway key new --serves`), for its own tenant's
//! sessions.
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use turnway_core::id::{AccountId, AgentId, ChannelName, ToolName};
use turnway_core::limits;
use turnway_wire::channel::adapter::AdapterHello;
use turnway_wire::channel::hello::RunnerHello;

/// Everything that a key may serve; written as a list of words such as `agent:helper`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct ServiceGrants(BTreeSet<Grant>);

/// A single thing that a key may serve.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grant {
    /// The agent with this id, which dials in.
    Agent(AgentId),
    /// The tool runner with this id and all of its tools, or the tool with this name at any runner.
    Tools(ToolName),
    /// One account of a chat system.
    Adapter {
        /// The chat system, such as `telegram`.
        channel: ChannelName,
        /// The account in that system.
        account: AccountId,
    },
}

/// The role that a connection requests in its `hello`.
#[derive(Clone, Copy, Debug)]
pub enum ServiceRole<'a> {
    /// An agent that dials in.
    Agent(&'a AgentId),
    /// A tool runner, with the tools that it offers.
    Runner(&'a RunnerHello),
    /// An adapter of one account.
    Adapter(&'a AdapterHello),
}

/// The reason why a list of grants is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidServiceGrant {
    /// A word that names nothing that can be served.
    #[error("unknown grant {0:?}; expected agent:NAME, tools:NAME or adapter:CHANNEL/ACCOUNT")]
    Word(String),
    /// More than [`limits::CREDENTIAL_SERVES_MAX`] words.
    #[error("expected at most {} grants", limits::CREDENTIAL_SERVES_MAX)]
    TooMany,
}

// === impl ServiceGrants ===

impl ServiceGrants {
    /// Parses the words of a list of grants.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidServiceGrant> {
        let grant =
            |word| Grant::parse(word).ok_or_else(|| InvalidServiceGrant::Word(word.chars().take(128).collect()));
        let grants = words.into_iter().map(grant).collect::<Result<BTreeSet<_>, _>>()?;
        if grants.len() > limits::CREDENTIAL_SERVES_MAX { Err(InvalidServiceGrant::TooMany) } else { Ok(Self(grants)) }
    }

    /// Returns true if these grants cover the role. A runner must be covered by its own id, or for each tool that it
    /// offers.
    pub fn allows(&self, role: ServiceRole<'_>) -> bool {
        match role {
            ServiceRole::Adapter(AdapterHello { channel, account, .. }) => {
                self.0.contains(&Grant::Adapter { channel: channel.clone(), account: account.clone() })
            }
            ServiceRole::Agent(agent) => self.0.contains(&Grant::Agent(agent.clone())),
            ServiceRole::Runner(runner) => {
                let by_id = self.0.iter().any(|grant| grant.is_runner(runner.runner_id.as_str()));
                let has = |tool: &ToolName| self.0.contains(&Grant::Tools(tool.clone()));
                by_id || !runner.tools.is_empty() && runner.tools.iter().all(has)
            }
        }
    }

    /// Returns true if there are no grants.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the grants as sorted words.
    pub fn words(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}

impl TryFrom<Vec<String>> for ServiceGrants {
    type Error = InvalidServiceGrant;

    fn try_from(words: Vec<String>) -> Result<Self, InvalidServiceGrant> {
        Self::parse(words.iter().map(String::as_str))
    }
}

impl From<ServiceGrants> for Vec<String> {
    fn from(serves: ServiceGrants) -> Self {
        serves.words()
    }
}

// === impl Grant ===

impl Grant {
    fn parse(word: &str) -> Option<Self> {
        let (kind, name) = word.split_once(':')?;
        match kind {
            "agent" => AgentId::parse(name).ok().map(Self::Agent),
            "tools" => ToolName::parse(name).ok().map(Self::Tools),
            "adapter" => {
                let (channel, account) = name.split_once('/')?;
                let channel = ChannelName::parse(channel).ok()?;
                let account = AccountId::parse(account).ok()?;
                Some(Self::Adapter { channel, account })
            }
            _ => None,
        }
    }

    fn is_runner(&self, id: &str) -> bool {
        match self {
            Self::Tools(name) => name.as_str() == id,
            Self::Agent(_) | Self::Adapter { .. } => false,
        }
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent(agent) => write!(f, "agent:{agent}"),
            Self::Tools(name) => write!(f, "tools:{name}"),
            Self::Adapter { channel, account } => write!(f, "adapter:{channel}/{account}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::RunnerId;

    fn serves(words: &[&str]) -> ServiceGrants {
        ServiceGrants::parse(words.iter().copied()).expect("words")
    }

    fn runner(id: &str, tools: &[&str]) -> RunnerHello {
        let tools = tools.iter().map(|tool| ToolName::parse(tool).expect("a name")).collect();
        RunnerHello { runner_id: RunnerId::parse(id).expect("a name"), tools }
    }

    /// Covers: S-07.
    #[test]
    fn runner_is_covered_by_its_id_or_by_every_tool() {
        let allows =
            |words: &[&str], id: &str, tools: &[&str]| serves(words).allows(ServiceRole::Runner(&runner(id, tools)));
        assert!(allows(&["tools:box"], "box", &["search", "process.spawn"]));
        assert!(allows(&["tools:search"], "box", &["search"]));
        assert!(allows(&["tools:search", "tools:process.spawn"], "box", &["search", "process.spawn"]));
        assert!(!allows(&["tools:search"], "box", &["search", "process.spawn"]));
        assert!(!allows(&["tools:search"], "box", &[]));
        assert!(!allows(&["agent:box", "adapter:box/box"], "box", &["search"]));
        assert!(!allows(&[], "box", &["search"]));
    }

    /// Covers: S-07.
    #[test]
    fn agent_is_covered_by_its_own_id_alone() {
        let helper = AgentId::parse("helper").expect("a name");
        assert!(serves(&["agent:helper"]).allows(ServiceRole::Agent(&helper)));
        assert!(!serves(&["agent:help", "tools:helper"]).allows(ServiceRole::Agent(&helper)));
    }

    #[test]
    fn serves_list_round_trips() {
        let words = ["agent:helper", "tools:process.spawn", "adapter:telegram/shop_bot"];
        let read = serves(&words);
        assert_eq!(serves(&read.words().iter().map(String::as_str).collect::<Vec<_>>()), read);
        for bad in
            ["", "agent", "agent:", "agent:a b", "agents:a", "tools:*", "adapter:telegram", "adapter:/x", "operator"]
        {
            assert!(matches!(ServiceGrants::parse([bad]), Err(InvalidServiceGrant::Word(_))), "{bad}");
        }
        let many: Vec<String> = (0..=limits::CREDENTIAL_SERVES_MAX).map(|n| format!("agent:a{n}")).collect();
        assert_eq!(ServiceGrants::try_from(many), Err(InvalidServiceGrant::TooMany));
    }
}
