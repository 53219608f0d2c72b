//! Fixed participants of simulations: valid names, agents with their policies, and message texts.
use super::behaviour::AgentBehaviour;
use super::faults::Faults;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{
    AgentId, ChannelName, MessageId, Principal, RequestId, RunId, SessionId, SessionKey, TenantId, UserId,
};
use turnway_core::protocol::agent::{AgentDirectory, AgentPolicy, OnOwnerLoss};
use turnway_core::protocol::channels::{ChannelDirectory, ChannelSettings};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::{Content, Message, Role, Strategy};
use turnway_core::protocol::pattern::Pattern;
use turnway_wire::channel::command::InvokeCommand;

/// Agents, by the policy for their turns when an owner is lost.
pub(crate) const AGENTS: [(&str, OnOwnerLoss); 4] = [
    ("again", OnOwnerLoss::Retry),
    ("shy", OnOwnerLoss::RetryIfSilent),
    ("once", OnOwnerLoss::Fail),
    ("lasting", OnOwnerLoss::Resume),
];

/// The channel of rooms.
pub(crate) const CHANNEL: &str = "rooms";
/// The time for which a message of a room waits for the next one of its sender, where messages are gathered.
pub(crate) const DEBOUNCE: Duration = Duration::from_millis(1200);

/// An agent that is no member of any session.
pub(crate) const STRANGER: &str = "stranger";

/// Agent directory of every node, with short timeouts so that virtual time is not wasted.
pub(crate) fn directory() -> Arc<AgentDirectory> {
    directory_with(ChannelDirectory::default())
}

/// The settings of the channel of rooms. The debounce is short, as the timeouts are.
pub(crate) fn rooms(faults: &Faults) -> ChannelDirectory {
    let settings = ChannelSettings {
        debounce: faults.debounce.then_some(DEBOUNCE),
        spawn_subagent_sessions: faults.tasks,
        ..ChannelSettings::default()
    };
    ChannelDirectory([(channel(), settings)].into())
}

/// Returns the name of the channel of rooms.
pub(crate) fn channel() -> ChannelName {
    ChannelName::parse(CHANNEL).expect("a channel's name")
}

/// The same directory with settings of channels.
pub(crate) fn directory_with(channels: ChannelDirectory) -> Arc<AgentDirectory> {
    let policy = |on_owner_loss| AgentPolicy {
        on_owner_loss,
        input_ack: Duration::from_secs(3),
        silence: Duration::from_secs(4),
        run: Duration::from_secs(25),
        cancel_ack: Duration::from_secs(2),
        // One agent accepts no steering.
        steer: on_owner_loss != OnOwnerLoss::Fail,
        handover: Duration::from_secs(6),
        events: subscribed(on_owner_loss),
        is_local: false,
        auto_joins: false,
    };
    let mut agents: BTreeMap<AgentId, AgentPolicy> =
        AGENTS.iter().map(|(name, loss)| (agent(name), policy(*loss))).collect();
    agents.insert(agent(STRANGER), policy(OnOwnerLoss::Retry));
    Arc::new(AgentDirectory { agents, default: Some(agent("again")), channels })
}

/// Returns the fact types that an agent of this kind subscribes to: all, some, or only its own.
fn subscribed(on_owner_loss: OnOwnerLoss) -> Arc<[Pattern]> {
    patterns(match on_owner_loss {
        OnOwnerLoss::Retry | OnOwnerLoss::Resume => &[">"],
        OnOwnerLoss::RetryIfSilent => &["run.*", "tool.>"],
        OnOwnerLoss::Fail => &[],
    })
}

pub(crate) fn patterns(texts: &[&str]) -> Arc<[Pattern]> {
    texts.iter().map(|text| Pattern::parse(text).expect("a pattern")).collect()
}

pub(crate) fn agent(name: &str) -> AgentId {
    AgentId::parse(name).expect("an agent's name")
}

pub(crate) fn user(name: &str, tenant: &str, operator: bool) -> Principal {
    let tenant = TenantId::parse(tenant).expect("a tenant's name");
    Principal { tenant, user: UserId::parse(name).expect("a user's name"), operator, writes: true }
}

pub(crate) fn key(tenant: &str, session: &str) -> SessionKey {
    let tenant = TenantId::parse(tenant).expect("a tenant's name");
    SessionKey { tenant, session: SessionId::parse(session).expect("a session's name") }
}

pub(crate) fn request(n: u64) -> RequestId {
    RequestId::parse(&format!("r{n}")).expect("a request's name")
}

/// A message that a client wants to send, with any number of retries.
#[derive(Clone, Debug)]
pub(crate) struct PlannedMessage {
    /// Index of the client.
    pub(crate) client: usize,
    /// Run that the message starts.
    pub(crate) run_id: RunId,
    /// Behaviour of the agent.
    pub(crate) manner: AgentBehaviour,
    /// Strategy if a run is open.
    pub(crate) strategy: Strategy,
    /// Run that the message replaces.
    pub(crate) replaces: Option<RunId>,
    pub(crate) agent_id: Option<AgentId>,
}

pub(crate) fn message_id(n: u64) -> MessageId {
    MessageId::parse(&format!("m{n}")).expect("a message's name")
}

impl PlannedMessage {
    /// Builds the request; `twisted` gives it another body under the same name.
    pub(crate) fn invoke(&self, n: u64, request_id: RequestId, session: &SessionId, twisted: bool) -> InvokeCommand {
        InvokeCommand {
            request_id: Some(request_id),
            session: Some(session.clone()),
            agent_id: self.agent_id.clone(),
            message: say(n, twisted && !n.is_multiple_of(8)),
            history: history(n, twisted && n.is_multiple_of(8)),
            message_id: Some(message_id(n)),
            strategy: Some(self.strategy),
            replaces: self.replaces.clone(),
            metadata: None,
            traceparent: None,
        }
    }
}

/// Returns the conversation before a message, for every fourth message.
pub(crate) fn history(n: u64, twisted: bool) -> Option<History> {
    let earlier = format!("{} before {n}", if twisted { "something else" } else { "hello" });
    let earlier = serde_json::json!({ "role": "user", "content": earlier });
    n.is_multiple_of(4).then(|| History::from_messages(&[earlier]).expect("short"))
}

/// Returns the text of a message, which begins with its number.
pub(crate) fn say(n: u64, twisted: bool) -> Message {
    let text = format!("{n} {}", if twisted { "something else" } else { "hello" });
    Message { role: Role::User, content: Content::Text(text) }
}

/// Returns whether the body differs from the one that belongs to this number.
pub(crate) fn is_twisted(invoke: &InvokeCommand) -> bool {
    let n = number(&invoke.message);
    (&invoke.message, &invoke.history) != (&say(n, false), &history(n, false))
}

/// Parses the number of a message, or of the first one of messages that were gathered.
pub(crate) fn number(message: &Message) -> u64 {
    number_of_line(&message.content.plain_text())
}

/// Parses the numbers of messages that were gathered.
pub(crate) fn numbers(message: &Message) -> Vec<u64> {
    message.content.plain_text().lines().map(number_of_line).collect()
}

fn number_of_line(text: &str) -> u64 {
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}
