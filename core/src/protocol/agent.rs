//! Orders to agents, the events that agents report, and the policies of agents. Agent connections and sessions use
//! them.
use crate::id::{AgentEventId, AgentId, Epoch, MessageId, RunId, SessionKey, TenantId, UserId};
use crate::limits;
use crate::private::Private;
use crate::protocol::action::{ActionRequest, ActionsContext, FactDelivery};
use crate::protocol::channels::ChannelDirectory;
use crate::protocol::delivery::InputOrigin;
use crate::protocol::entry::Scope;
use crate::protocol::handover::{HandoverContext, HandoverRequest};
use crate::protocol::history::History;
use crate::protocol::input::Message;
use crate::protocol::json::{Json, json_bytes};
use crate::protocol::pattern::Pattern;
use crate::protocol::steer::{Steer, SteerOutcome};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The treatment of a turn whose owner was lost while the turn ran (ownership.md §2.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnOwnerLoss {
    /// Run the turn again: the agent may safely repeat it.
    Retry,
    /// Run the turn again only if no text of it was shown.
    #[default]
    RetryIfSilent,
    /// End the turn `failed{owner_lost}`.
    Fail,
    /// Resume the same attempt: its agent outlives the connection, and sends again what was not recorded.
    Resume,
}

/// The recorded position of an attempt, for an agent whose events have ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventMark {
    /// The last event that is recorded completely, together with all events before it.
    pub event_id: AgentEventId,
    /// End of that event's text: bytes of this attempt's text.
    pub text_bytes: u64,
}

/// The policy for one agent: its timeouts and its abilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPolicy {
    /// The treatment of the agent's turns when their owner is lost.
    pub on_owner_loss: OnOwnerLoss,
    /// Longest wait from the order to INPUT_ACK.
    pub input_ack: Duration,
    /// Longest wait between two signs of life.
    pub silence: Duration,
    /// Longest duration of a run.
    pub run: Duration,
    /// Longest wait from CANCEL to CANCEL_ACK.
    pub cancel_ack: Duration,
    /// True if the agent takes further inputs while it runs.
    pub steer: bool,
    /// Time from the agent's request for a handover until the handover is rejected for want of a decision.
    pub handover: Duration,
    /// True if the agent runs inside this process; its attempts then need no permit.
    pub is_local: bool,
    /// Types of facts that the agent is sent while it runs, besides facts about its own actions (EV-G1).
    pub events: Arc<[Pattern]>,
    /// True if the agent becomes a member of every new session that is created without a list of members.
    pub auto_joins: bool,
}

impl Default for AgentPolicy {
    fn default() -> Self {
        Self {
            on_owner_loss: OnOwnerLoss::default(),
            input_ack: limits::AGENT_ACK_TIMEOUT_HTTP,
            silence: limits::AGENT_SILENCE_TIMEOUT,
            run: limits::RUN_TIMEOUT,
            cancel_ack: limits::CANCEL_ACK_TIMEOUT,
            steer: false,
            handover: limits::HANDOVER_TIMEOUT,
            is_local: false,
            events: Arc::default(),
            auto_joins: false,
        }
    }
}

/// The agents that a node knows, and the settings of channels; the same on every node of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentDirectory {
    pub agents: BTreeMap<AgentId, AgentPolicy>,
    /// The agent that answers inputs which address no agent, in a new session.
    pub default: Option<AgentId>,
    pub channels: ChannelDirectory,
}

impl AgentDirectory {
    /// Returns an agent's policy; the default policy for an agent that is no longer configured.
    pub fn policy(&self, agent: &AgentId) -> AgentPolicy {
        self.agents.get(agent).cloned().unwrap_or_default()
    }

    /// Returns the members of a new session that is created without a list of members: `first` (else the default
    /// agent), then the agents that join every new session.
    pub fn default_members(&self, first: Option<&AgentId>) -> Vec<AgentId> {
        let first = first.or(self.default.as_ref());
        let joining = self.agents.iter().filter(|(agent, policy)| policy.auto_joins && Some(*agent) != first);
        let members = first.into_iter().chain(joining.map(|(agent, _)| agent));
        members.take(limits::SESSION_AGENTS_MAX).cloned().collect()
    }
}

/// An order to an agent. It leaves the process only after the fact that justifies it is durable (G4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "most orders are an `Invoke`, which is moved a few times in each turn")]
pub enum Order {
    /// Answer an input.
    Invoke(Invoke),
    /// Stop the run; report [`AgentEvent::CancelAcked`] afterwards.
    Cancel {
        /// The tenant of the run's session. Nodes of the previous release do not send it.
        #[serde(default = "TenantId::default_tenant", skip_serializing_if = "TenantId::is_default")]
        tenant: TenantId,
        run_id: RunId,
        attempt: u32,
        /// The ownership that ordered the attempt; repeated in the report.
        epoch: Epoch,
    },
    /// Take a further input while running; report [`AgentEvent::Steered`].
    Steer(Box<Steer>),
    /// The run has ended for the gateway: close its connection, report nothing more.
    Drop { run_id: RunId, attempt: u32 },
    /// Tell an agent that outlives its connection that no owner will ask for the rest of a run that has ended.
    /// Nothing is reported about this order.
    Stop {
        /// The tenant of the run's session. Nodes of the previous release do not send it.
        #[serde(default = "TenantId::default_tenant", skip_serializing_if = "TenantId::is_default")]
        tenant: TenantId,
        agent_id: AgentId,
        run_id: RunId,
        attempt: u32,
        /// The ownership that ended the run.
        epoch: Epoch,
    },
    /// A fact about one of the agent's actions, or of a type that the agent has subscribed to.
    News(Box<FactDelivery>),
    /// Text up to `upto` is in a checkpoint: read on (at most [`limits::UNSAVED_TEXT_BYTES_MAX`] past it).
    Credit {
        run_id: RunId,
        attempt: u32,
        /// Bytes of this attempt's text.
        upto: u64,
    },
}

/// An input that an agent is asked to answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoke {
    pub key: SessionKey,
    /// The turn; also the idempotency key.
    pub run_id: RunId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The ownership that orders the attempt: agents may refuse a lower one than they have seen.
    pub epoch: Epoch,
    pub agent_id: AgentId,
    pub user: UserId,
    pub message: Message,
    /// Earlier messages, if the client keeps the conversation.
    pub history: Option<History>,
    /// The whole URL of the earlier messages if they are a file, set with the credential of the agent; owners never set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages_url: Option<Box<str>>,
    /// The conversation that the input came from, and who wrote it there. Nodes of an earlier release do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<InputOrigin>>,
    /// W3C trace context.
    pub traceparent: Option<String>,
    /// Set if another agent has handed the session to this agent and the agent was not told yet (SR-F6).
    pub handover: Option<Box<HandoverContext>>,
    /// The agent's open actions, and the results of its ended ones (EV-C6).
    pub actions: Option<Box<ActionsContext>>,
    /// The system prompt, set by plugins only; owners never set it.
    pub system_prompt: Option<Box<Private<String>>>,
    /// The token of the run, set for agents that dial in; owners never set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_token: Option<Box<Private<String>>>,
    /// Set if the attempt was ordered under an ownership that was lost: the agent is to send what follows this
    /// position.
    pub resume: Option<Resume>,
}

/// The position from which an attempt is resumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The recorded position; `None`: nothing is recorded, or only a part of the attempt's first event.
    pub after: Option<EventMark>,
    /// Bytes of the attempt's text that are recorded: no less than up to the mark.
    pub saved: u64,
}

impl Resume {
    /// Returns the bytes of text before the first event that is sent again.
    pub fn text_offset(&self) -> u64 {
        self.after.as_ref().map_or(0, |mark| mark.text_bytes)
    }
}

/// The kind of a piece of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TextKind {
    /// The answer: resumable, counted in `text_bytes`.
    #[default]
    Text,
    /// Reasoning (ST-23): shown live, neither resumable nor counted.
    Reasoning,
}

/// The reason why a run stopped (ST-19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The agent finished its answer.
    #[default]
    EndTurn,
    MaxTokens,
    Refusal,
    Cancelled,
    Error,
    Timeout,
    /// The input became part of another run (ST-7).
    Steered,
}

/// Bytes of a fact besides the agent's content: the names of its fields, counts, a mark or a hash.
const DATA_OVERHEAD_BYTES: usize = 512;

/// An event that an agent reports for one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEvent {
    /// The agent has the input (INPUT_ACK, SR-K1).
    Acked,
    /// The next piece of the agent's text.
    Delta {
        kind: TextKind,
        text: Private<String>,
        /// The id of the event that ends with this piece, if events have ids.
        id: Option<AgentEventId>,
    },
    /// A state in the agent's own words.
    State {
        state: String,
        detail: Option<Json>,
        /// The id of the event, if events have ids.
        id: Option<AgentEventId>,
    },
    /// The answer is complete.
    Done {
        stop: StopReason,
        /// Tokens and the like, as counted by the agent.
        usage: Option<Json>,
    },
    /// The agent's answer to an input that it was handed while running (ST-8).
    Steered {
        message_id: MessageId,
        outcome: SteerOutcome,
    },
    /// The agent requests a handover to another agent (HANDOVER_REQUEST, SR-F1).
    Handover {
        request: Box<HandoverRequest>,
        /// The id of the event, if events have ids.
        id: Option<AgentEventId>,
    },
    /// The agent requests an action (EV-E3).
    Action {
        request: Box<ActionRequest>,
        /// The id of the event, if events have ids.
        id: Option<AgentEventId>,
    },
    /// The agent subscribes to these types of facts for the rest of the attempt; this replaces its earlier
    /// subscriptions.
    Subscribed(Arc<[Pattern]>),
    /// A sign of life without content: a comment, an unknown event, an empty piece, a part of an event. It only
    /// restarts the silence clock.
    Alive,
    /// The agent has stopped (CANCEL_ACK, SR-K2).
    CancelAcked,
    Failed(AgentFailure),
}

// === impl AgentEvent ===

impl AgentEvent {
    /// Returns the bytes that the agent's content takes in a fact, as JSON. Text is recorded in parts that fit, and
    /// messages about a failure are cut, so neither counts.
    pub fn data_bytes(&self) -> usize {
        match self {
            Self::State { state, detail, .. } => json_bytes(&(Scope::Agent, state, detail)) + DATA_OVERHEAD_BYTES,
            Self::Handover { request, .. } => json_bytes(&(&request.reason, &request.summary)) + DATA_OVERHEAD_BYTES,
            Self::Action { request, .. } => json_bytes(&(&request.name, &request.what)) + DATA_OVERHEAD_BYTES,
            Self::Done { stop, usage } => json_bytes(&(stop, usage)) + DATA_OVERHEAD_BYTES,
            Self::Acked
            | Self::Alive
            | Self::Delta { .. }
            | Self::Steered { .. }
            | Self::Subscribed(_)
            | Self::CancelAcked
            | Self::Failed(_) => 0,
        }
    }
}

/// A failure of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentFailure {
    /// No connection, or a status that means "not now" (502, 503, 504).
    Unavailable(String),
    /// The agent reported an error of its own.
    Reported {
        /// The agent's error code.
        code: String,
        /// The agent's error message.
        message: Private<String>,
    },
    /// The agent was not asked: a plugin of the node refused the turn.
    Blocked {
        /// The plugin's error code.
        code: String,
        /// The plugin's error message.
        message: Private<String>,
    },
    /// The agent violated its protocol; with a description without content.
    Broken(String),
    /// The agent's answer exceeds a size limit.
    TooLarge,
    /// The agent was asked to resume an attempt and does not know it.
    NotKnown,
    /// The connection of an agent that had dialed in was lost before the end; another of its connections may resume.
    Lost(String),
    /// The agent answered with an error, or with something other than an event stream.
    Answered(Box<ErrorResponse>),
    /// The head of the agent's answer has too many header fields, or too many bytes.
    HeadTooLarge,
    /// The model of an agent that is one reported an error, or broke off its answer.
    Model {
        /// Description of the problem, without content.
        why: String,
        /// The upstream's own message: for operators only, since it may name the provider's account.
        body: Option<Private<String>>,
    },
}

/// An HTTP response of an agent that is not an answer to its input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorResponse {
    /// Description of the problem, without content.
    pub why: String,
    /// True if the status means that no agent is there to answer (502, 503, 504).
    pub is_away: bool,
    /// True if the status means that the agent is too busy for now (429, 503).
    pub is_busy: bool,
    /// Milliseconds after which to ask again, as given by the agent (`Retry-After`).
    pub retry_after_ms: Option<u64>,
    /// The beginning of the body, at most [`limits::AGENT_ERROR_BYTES_MAX`]: for operators only, since it may contain
    /// internals of the agent.
    pub body: Option<Private<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> AgentId {
        AgentId::parse(name).expect("a name")
    }

    #[test]
    fn default_members_are_the_active_agent_and_joining_ones() {
        let joins = |joins| AgentPolicy { auto_joins: joins, ..AgentPolicy::default() };
        let agents = [("a", false), ("echo", true), ("counter", true)];
        let agents = agents.map(|(name, does)| (agent(name), joins(does))).into();
        let directory = AgentDirectory { agents, default: Some(agent("echo")), ..AgentDirectory::default() };
        assert_eq!(directory.default_members(None), ["echo", "counter"].map(agent));
        assert_eq!(directory.default_members(Some(&agent("counter"))), ["counter", "echo"].map(agent));
        assert_eq!(directory.default_members(Some(&agent("a"))), ["a", "counter", "echo"].map(agent));
        let alone = AgentDirectory { default: Some(agent("a")), ..AgentDirectory::default() };
        assert_eq!(alone.default_members(None), [agent("a")]);
        assert_eq!(AgentDirectory::default().default_members(None), []);
    }
}
