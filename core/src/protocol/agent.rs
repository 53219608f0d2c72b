//! What an agent is told, what it may report, and what is known of it beforehand.
use crate::id::{AgentId, Epoch, MessageId, RunId, SaidId, SessionKey, TenantId, UserId};
use crate::limits;
use crate::private::Private;
use crate::protocol::action::{ActionWish, ActionsContext, News};
use crate::protocol::entry::Scope;
use crate::protocol::handover::{HandoverContext, HandoverWish};
use crate::protocol::history::History;
use crate::protocol::input::Message;
use crate::protocol::json::{Json, json_bytes};
use crate::protocol::pattern::Pattern;
use crate::protocol::steer::{Steer, SteerOutcome};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What becomes of a turn whose owner was lost in its middle (ownership.md §2.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnOwnerLoss {
    /// Run it again: the agent is safe to repeat.
    Retry,
    /// Run it again only if no text of it was shown.
    #[default]
    RetryIfSilent,
    /// End it `failed{owner_lost}`.
    Fail,
    /// Let the same attempt go on: its agent outlives the connection, and says again what was not recorded.
    Resume,
}

/// How far an attempt is recorded, in the words of an agent whose events have names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The last event of which all is recorded, and all before it.
    pub event_id: SaidId,
    /// Where its text ends: bytes of this attempt's text.
    pub text_bytes: u64,
}

/// What is known of one agent before it is asked: its waits and its abilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPolicy {
    /// What becomes of its turns when their owner is lost.
    pub on_owner_loss: OnOwnerLoss,
    /// From the order to INPUT_ACK.
    pub input_ack: Duration,
    /// Between two signs of life.
    pub silence: Duration,
    /// The whole run.
    pub run: Duration,
    /// From CANCEL to CANCEL_ACK.
    pub cancel_ack: Duration,
    /// It takes further inputs while it runs.
    pub steer: bool,
    /// From its asking for a handover until that is rejected if nobody has decided.
    pub handover: Duration,
    /// It runs inside this process, so its attempts take no place among those of agents outside.
    pub is_local: bool,
    /// Facts it is told of while it runs, besides those about its own actions (EV-G1).
    pub events: Arc<[Pattern]>,
    /// It is a member of every new session whose members nobody has named.
    pub joins: bool,
}

impl Default for AgentPolicy {
    fn default() -> Self {
        Self {
            on_owner_loss: OnOwnerLoss::default(),
            input_ack: limits::AGENT_ACK_HTTP,
            silence: limits::AGENT_SILENCE,
            run: limits::RUN_TIMEOUT,
            cancel_ack: limits::CANCEL_ACK,
            steer: false,
            handover: limits::HANDOVER,
            is_local: false,
            events: Arc::default(),
            joins: false,
        }
    }
}

/// The agents a node knows. The same on every node of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// By id.
    pub agents: BTreeMap<AgentId, AgentPolicy>,
    /// Who answers where nobody is addressed.
    pub default: Option<AgentId>,
}

impl Directory {
    /// An agent's policy; the default one for an agent that has left the configuration.
    pub fn policy(&self, agent: &AgentId) -> AgentPolicy {
        self.agents.get(agent).cloned().unwrap_or_default()
    }

    /// Returns the members of a new session for which nobody has named any: the agent that is to answer (else the
    /// default one), then those that join by themselves.
    pub fn company(&self, first: Option<&AgentId>) -> Vec<AgentId> {
        let first = first.or(self.default.as_ref());
        let joining = self.agents.iter().filter(|(agent, policy)| policy.joins && Some(*agent) != first);
        let members = first.into_iter().chain(joining.map(|(agent, _)| agent));
        members.take(limits::SESSION_AGENTS_MAX).cloned().collect()
    }
}

/// One order to an agent. It leaves the process only after the fact that justifies it is durable (G4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Answer this.
    Invoke(Invoke),
    /// Stop; report [`AgentEvent::CancelAcked`] once it has.
    Cancel {
        /// The tenant of the run's session. Nodes of the release before do not tell it.
        #[serde(default = "TenantId::default_tenant", skip_serializing_if = "TenantId::is_default")]
        tenant: TenantId,
        /// Which run.
        run_id: RunId,
        /// Which attempt.
        attempt: u32,
        /// The ownership that ordered the attempt: comes back with the report.
        epoch: Epoch,
    },
    /// Take this in while you run; report [`AgentEvent::Steered`].
    Steer(Box<Steer>),
    /// The run has ended for the gateway: close what is open, report nothing more.
    Drop {
        /// Which run.
        run_id: RunId,
        /// Which attempt.
        attempt: u32,
    },
    /// Tell an agent that outlives its connection that nobody is going to ask for the rest of a run that has
    /// ended. Nothing is reported of it.
    Stop {
        /// The tenant of the run's session. Nodes of the release before do not tell it.
        #[serde(default = "TenantId::default_tenant", skip_serializing_if = "TenantId::is_default")]
        tenant: TenantId,
        /// Whom.
        agent_id: AgentId,
        /// Which run.
        run_id: RunId,
        /// Which attempt.
        attempt: u32,
        /// The ownership that ended it.
        epoch: Epoch,
    },
    /// Something has become of what it has asked for, or has happened that it wants to be told of.
    News(Box<News>),
    /// Text up to here is checkpointed: read on (at most [`limits::UNSAVED_TEXT_BYTES_MAX`] past it).
    Credit {
        /// Which run.
        run_id: RunId,
        /// Which attempt.
        attempt: u32,
        /// Bytes of text.
        upto: u64,
    },
}

/// What an agent is asked to answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoke {
    /// Which session.
    pub key: SessionKey,
    /// Which turn; also the idempotency key.
    pub run_id: RunId,
    /// Which attempt at it, from 1.
    pub attempt: u32,
    /// The ownership it is asked under: agents may refuse a lower one than they have seen.
    pub epoch: Epoch,
    /// Whom.
    pub agent_id: AgentId,
    /// Who asks.
    pub user: UserId,
    /// What.
    pub message: Message,
    /// What was said before, where the asker keeps the conversation.
    pub history: Option<History>,
    /// W3C trace context.
    pub traceparent: Option<String>,
    /// It was handed this session by another agent, and was not told of it yet (SR-F6).
    pub handover: Option<Box<HandoverContext>>,
    /// What is under way for it, and what came of what it has asked for (EV-C6).
    pub actions: Option<Box<ActionsContext>>,
    /// What it is told of itself: where plugins have something to tell; no owner has.
    pub system_prompt: Option<Box<Private<String>>>,
    /// It was asked before, under an ownership that is lost: it is to say what follows this.
    pub resume: Option<Resume>,
}

/// From where an attempt goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// What is recorded of it; none: nothing, or a part of its first event.
    pub after: Option<Mark>,
    /// Bytes of its text that are recorded: no less than up to the mark.
    pub saved: u64,
}

impl Resume {
    /// Bytes of text before the first event that is said again.
    pub fn from(&self) -> u64 {
        self.after.as_ref().map_or(0, |mark| mark.text_bytes)
    }
}

/// Text the answer consists of, or thinking beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TextKind {
    /// The answer: resumable, counted in `text_bytes`.
    #[default]
    Text,
    /// Reasoning (ST-23): shown live, neither resumable nor counted.
    Reasoning,
}

/// Why a run stopped (ST-19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The agent said all it wanted.
    #[default]
    EndTurn,
    /// Out of tokens.
    MaxTokens,
    /// The agent refused.
    Refusal,
    /// Somebody cancelled it.
    Cancelled,
    /// It failed.
    Error,
    /// It took too long.
    Timeout,
    /// The input has become part of another run (ST-7).
    Steered,
}

/// What a fact about an agent's words has besides them: the names of its fields, counts, a mark or a hash.
const DATA_NAMES_BYTES: usize = 512;

/// What an agent may report of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEvent {
    /// It has the input (INPUT_ACK, SR-K1).
    Acked,
    /// The next piece of its text.
    Delta {
        /// Of which kind.
        kind: TextKind,
        /// The piece.
        text: Private<String>,
        /// The event that ends with it, where events have names.
        id: Option<SaidId>,
    },
    /// A state in the agent's own words.
    State {
        /// The word.
        state: String,
        /// More of it.
        detail: Option<Json>,
        /// The event, where events have names.
        id: Option<SaidId>,
    },
    /// That was all.
    Done {
        /// Why it stopped.
        stop: StopReason,
        /// Tokens and the like, as the agent counts them.
        usage: Option<Json>,
    },
    /// What it makes of an input it was given on the way (ST-8).
    Steered {
        /// Which input.
        message_id: MessageId,
        /// What it makes of it.
        outcome: SteerOutcome,
    },
    /// It asks that another agent answer (HANDOVER_REQUEST, SR-F1).
    Handover {
        /// Who, and why.
        wish: Box<HandoverWish>,
        /// The event, where events have names.
        id: Option<SaidId>,
    },
    /// It wants something done (EV-E3).
    Action {
        /// What.
        wish: Box<ActionWish>,
        /// The event, where events have names.
        id: Option<SaidId>,
    },
    /// While this attempt runs it wants to be told of such facts too, and of no others that it has asked for before.
    Subscribed(Arc<[Pattern]>),
    /// Something came of it that says nothing: a comment, an unknown event, an empty piece, a part of an event. It only
    /// restarts the silence clock.
    Alive,
    /// It has stopped (CANCEL_ACK, SR-K2).
    CancelAcked,
    /// It did not work out.
    Failed(AgentFailure),
}

// === impl AgentEvent ===

impl AgentEvent {
    /// What the agent's own words take in a fact, as JSON. Text is recorded in stretches that fit, and
    /// words about a failure are cut, so neither counts.
    pub fn data_bytes(&self) -> usize {
        match self {
            Self::State { state, detail, .. } => {
                json_bytes(&(Scope::Agent, state, detail)) + DATA_NAMES_BYTES
            }
            Self::Handover { wish, .. } => json_bytes(&(&wish.reason, &wish.summary)) + DATA_NAMES_BYTES,
            Self::Action { wish, .. } => json_bytes(&(&wish.name, &wish.what)) + DATA_NAMES_BYTES,
            Self::Done { stop, usage } => json_bytes(&(stop, usage)) + DATA_NAMES_BYTES,
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

/// What went wrong at an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentFailure {
    /// No connection, or a status that says "not now" (502, 503, 504).
    Unavailable(String),
    /// The agent reported an error of its own.
    Reported {
        /// Its code.
        code: String,
        /// Its text.
        message: Private<String>,
    },
    /// It was not asked: a plugin of the node refused the turn.
    Blocked {
        /// The plugin's code.
        code: String,
        /// Its text.
        message: Private<String>,
    },
    /// It answered what is not its protocol; what was wrong, without content.
    Broken(String),
    /// It answered more than it may.
    TooLarge,
    /// Asked for the rest of an attempt, it does not know of it.
    NotKnown,
    /// It had dialed in, and its connection is gone before it said the end; another one of it may go on.
    Lost(String),
    /// It answered with an error, or with something else than an event stream.
    Answered(Box<ErrorAnswer>),
    /// The head of its answer has more header fields, or more bytes, than it may.
    HeadTooLarge,
}

/// An HTTP answer of an agent that is no answer to its input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorAnswer {
    /// What was wrong with it, without its content.
    pub why: String,
    /// The status says that nobody is there to answer (502, 503, 504).
    pub is_away: bool,
    /// The status says that it has too much to do for now (429, 503).
    pub is_busy: bool,
    /// When to ask again, milliseconds, as the agent says (`Retry-After`).
    pub retry_after_ms: Option<u64>,
    /// The beginning of its body, at most [`limits::AGENT_ERROR_BYTES_MAX`]: for operators, for it may name what is the
    /// agent's own business.
    pub body: Option<Private<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> AgentId {
        AgentId::parse(name).expect("a name")
    }

    #[test]
    fn company_is_the_answering_agent_and_those_that_join() {
        let joins = |joins| AgentPolicy { joins, ..AgentPolicy::default() };
        let agents = [("a", false), ("echo", true), ("counter", true)];
        let agents = agents.map(|(name, does)| (agent(name), joins(does))).into();
        let directory = Directory { agents, default: Some(agent("echo")) };
        assert_eq!(directory.company(None), ["echo", "counter"].map(agent));
        assert_eq!(directory.company(Some(&agent("counter"))), ["counter", "echo"].map(agent));
        assert_eq!(directory.company(Some(&agent("a"))), ["a", "counter", "echo"].map(agent));
        let alone = Directory { default: Some(agent("a")), ..Directory::default() };
        assert_eq!(alone.company(None), [agent("a")]);
        assert_eq!(Directory::default().company(None), []);
    }
}
