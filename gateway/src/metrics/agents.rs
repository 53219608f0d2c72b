//! Metrics of agents: orders, outcomes of calls, and durations.
use super::links::Direction;
use super::workshop::Workshop;
use super::{buckets, label_values};
use prometheus::{Histogram, IntCounter, IntGauge, IntGaugeVec};
use std::time::Duration;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, Order};

/// The metrics of agents.
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

/// The gauge of one agent's open connections.
#[derive(Clone, Debug)]
pub struct DialedIn(IntGauge);

label_values! {
    /// The kind of an order to an agent.
    Told {
        Invoke = "invoke",
        /// Continue an answer under another owner.
        Resume = "resume",
        Cancel = "cancel",
        /// The request was closed.
        Drop = "drop",
        /// The rest of the answer is not needed.
        Stop = "stop",
        /// An additional input for the running answer.
        Steer = "steer",
        /// A change of an action or handover that the agent has requested.
        News = "news",
        /// Permission to send more.
        Credit = "credit",
    }
}

label_values! {
    /// The outcome of a call of an agent.
    CallEnd {
        /// The answer is complete.
        Done = "done",
        /// The agent stopped when asked to.
        Cancelled = "cancelled",
        /// The agent could not be reached.
        Unavailable = "unavailable",
        /// The agent reported an error.
        Reported = "reported",
        /// The agent was not called: a plugin refused the turn.
        Blocked = "blocked",
        /// The answer violates the protocol, or ended in the middle.
        Broken = "broken",
        /// The answer is too large.
        TooLarge = "too_large",
        /// The agent did not know the run that it was asked to continue.
        NotKnown = "not_known",
        /// The connection of a dial-in agent was lost during the call.
        Lost = "lost",
    }
}

// === impl AgentMetrics ===

impl AgentMetrics {
    pub(super) fn register(workshop: &mut Workshop<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            orders: workshop.counters(
                "turnway_agent_orders_total",
                "Orders to agents.",
                "order",
                &Told::NAMES,
            )?,
            calls: workshop.counters(
                "turnway_agent_calls_total",
                "Calls of agents by outcome; dropped calls are counted as orders only.",
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

    /// Returns the number of requests that were sent once more.
    pub fn resends(&self) -> u64 {
        self.resends.get()
    }

    /// Returns the gauge of an agent's connections, which starts at 0. The configuration bounds the number of
    /// agents.
    pub fn dialed_in(&self, agent: &str) -> DialedIn {
        DialedIn(self.dialed_in.with_label_values(&[agent]))
    }

    /// Sets the attempts of this node at agents of other nodes, and those of other nodes at agents of this
    /// node.
    pub fn remote(&self, begun: usize, taken_on: usize) {
        for (direction, count) in [(Direction::Out, begun), (Direction::In, taken_on)] {
            self.remote[direction as usize].set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Counts an order to an agent.
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

    /// Counts the outcome of a call, if the event ends the call.
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

    /// Records the time to the first piece of an answer.
    pub fn spoke(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// Records the duration of a call.
    pub fn ended(&self, after: Duration) {
        self.call.observe(after.as_secs_f64());
    }
}

// === impl DialedIn ===

impl DialedIn {
    /// Counts an opened connection.
    pub fn came(&self) {
        self.0.inc();
    }

    /// Counts a closed connection.
    pub fn left(&self) {
        self.0.dec();
    }
}
