//! What is ordered of agents, how their calls end, and how long they take.
use super::links::Direction;
use super::workshop::Workshop;
use super::{buckets, label_values};
use prometheus::{Histogram, IntCounter, IntGauge, IntGaugeVec};
use std::time::Duration;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, Order};

/// What is counted of agents.
#[derive(Debug)]
pub struct AgentMetrics {
    orders: [IntCounter; Told::NAMES.len()],
    calls: [IntCounter; CallEnd::NAMES.len()],
    resends: IntCounter,
    first_token: Histogram,
    call: Histogram,
    dialed_in: IntGaugeVec,
    remote: [IntGauge; Direction::NAMES.len()],
}

/// How many connections of one agent there are.
#[derive(Clone, Debug)]
pub struct DialedIn(IntGauge);

label_values! {
    /// What an agent is told.
    Told {
        /// Answer.
        Invoke = "invoke",
        /// Say what follows, under another owner.
        Resume = "resume",
        /// Stop.
        Cancel = "cancel",
        /// The request is closed.
        Drop = "drop",
        /// Nobody will ask for the rest.
        Stop = "stop",
        /// Take this in.
        Steer = "steer",
        /// Something has become of what you have asked for.
        News = "news",
        /// More may be read.
        Credit = "credit",
    }
}

label_values! {
    /// How a call of an agent ends.
    CallEnd {
        /// It said all it wanted.
        Done = "done",
        /// It stopped when asked to.
        Cancelled = "cancelled",
        /// It could not be reached.
        Unavailable = "unavailable",
        /// It told of an error.
        Reported = "reported",
        /// It was not asked: a plugin refused the turn.
        Blocked = "blocked",
        /// What it said is not its protocol, or it stopped in the middle of it.
        Broken = "broken",
        /// It said too much.
        TooLarge = "too_large",
        /// Asked for the rest, it did not know of it.
        NotKnown = "not_known",
        /// It had dialed in, and was disconnected in the middle of it.
        Lost = "lost",
    }
}

// === impl AgentMetrics ===

impl AgentMetrics {
    pub(super) fn register(workshop: &mut Workshop<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            orders: workshop.counters(
                "turnway_agent_orders_total",
                "What agents were told.",
                "order",
                &Told::NAMES,
            )?,
            calls: workshop.counters(
                "turnway_agent_calls_total",
                "How calls of agents ended; those that were dropped are orders only.",
                "outcome",
                &CallEnd::NAMES,
            )?,
            resends: workshop.counter(
                "turnway_agent_resends_total",
                "Requests to agents that were sent once more, on a new connection, because the agent had closed the kept \
                 one.",
            )?,
            first_token: workshop.histogram(
                "turnway_agent_first_token_seconds",
                "From the order to an agent to the first piece of its answer, or of its reasoning.",
                &buckets::LONG,
            )?,
            call: workshop.histogram(
                "turnway_agent_call_seconds",
                "From the order to an agent to the end of its answer, however it ended.",
                &buckets::LONG,
            )?,
            dialed_in: workshop.gauges_of(
                "turnway_agent_connections",
                "Open connections of agents that dial in, by the agent's id.",
                "agent",
                &["<agent_id>"],
            )?,
            remote: workshop.gauges(
                "turnway_agent_remote_attempts",
                "Attempts at agents that dial in whose connection is at another node than their session's owner: `out` at other nodes, `in` for other nodes.",
                "direction",
                &Direction::NAMES,
            )?,
        })
    }

    /// Counts a request that is sent once more.
    pub fn resent(&self) {
        self.resends.inc();
    }

    /// Returns how many requests were sent once more.
    pub fn resends(&self) -> u64 {
        self.resends.get()
    }

    /// The connections of this agent, of which there are none so far. The configuration bounds how many have any.
    pub fn dialed_in(&self, agent: &str) -> DialedIn {
        DialedIn(self.dialed_in.with_label_values(&[agent]))
    }

    /// So many attempts of this node run at agents of others, and so many of others at agents of this one.
    pub fn remote(&self, begun: usize, taken_on: usize) {
        for (direction, count) in [(Direction::Out, begun), (Direction::In, taken_on)] {
            self.remote[direction as usize].set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// An agent is told this.
    pub fn ordered(&self, order: &Order) {
        let told = match order {
            Order::Invoke(invoke) if invoke.resume.is_some() => Told::Resume,
            Order::Invoke(_) => Told::Invoke,
            Order::Stop { .. } => Told::Stop,
            Order::Cancel { .. } => Told::Cancel,
            Order::Steer(_) => Told::Steer,
            Order::Drop { .. } => Told::Drop,
            Order::News(_) => Told::News,
            Order::Credit { .. } => Told::Credit,
        };
        self.orders[told as usize].inc();
    }

    /// An agent reports; if it is the end of its call, that is counted.
    pub fn reported(&self, event: &AgentEvent) {
        let end = match event {
            AgentEvent::Acked
            | AgentEvent::Alive
            | AgentEvent::Delta { .. }
            | AgentEvent::State { .. }
            | AgentEvent::Steered { .. }
            | AgentEvent::Handover { .. }
            | AgentEvent::Subscribed(_)
            | AgentEvent::Action { .. } => return,
            AgentEvent::Done { .. } => CallEnd::Done,
            AgentEvent::CancelAcked => CallEnd::Cancelled,
            AgentEvent::Failed(AgentFailure::Unavailable(_)) => CallEnd::Unavailable,
            AgentEvent::Failed(AgentFailure::Reported { .. }) => CallEnd::Reported,
            AgentEvent::Failed(AgentFailure::Blocked { .. }) => CallEnd::Blocked,
            AgentEvent::Failed(AgentFailure::Broken(_)) => CallEnd::Broken,
            AgentEvent::Failed(AgentFailure::Answered(answer)) if answer.is_away => CallEnd::Unavailable,
            AgentEvent::Failed(AgentFailure::Answered(_)) => CallEnd::Broken,
            AgentEvent::Failed(AgentFailure::TooLarge | AgentFailure::HeadTooLarge) => CallEnd::TooLarge,
            AgentEvent::Failed(AgentFailure::NotKnown) => CallEnd::NotKnown,
            AgentEvent::Failed(AgentFailure::Lost(_)) => CallEnd::Lost,
        };
        self.calls[end as usize].inc();
    }

    /// The first piece came after so long.
    pub fn spoke(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// The call is over after so long.
    pub fn ended(&self, after: Duration) {
        self.call.observe(after.as_secs_f64());
    }
}

// === impl DialedIn ===

impl DialedIn {
    /// One more.
    pub fn came(&self) {
        self.0.inc();
    }

    /// One less.
    pub fn left(&self) {
        self.0.dec();
    }
}
