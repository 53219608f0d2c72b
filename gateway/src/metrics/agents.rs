//! Metrics of agents: orders, outcomes of calls, and durations.
use super::family::FamilyBuilder;
use super::links::Direction;
use super::{buckets, label_values};
use prometheus::{Histogram, IntCounter, IntGauge, IntGaugeVec};
use std::time::Duration;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, Order};

/// The metrics of agents.
#[derive(Debug)]
pub struct AgentMetrics {
    orders: [IntCounter; OrderKind::NAMES.len()],
    calls: [IntCounter; CallOutcome::NAMES.len()],
    resends: IntCounter,
    first_token: Histogram,
    call: Histogram,
    dialed_in: IntGaugeVec,
    remote: [IntGauge; Direction::NAMES.len()],
}

/// The gauge of one agent's open connections.
#[derive(Clone, Debug)]
pub struct ConnectionGauge(IntGauge);

label_values! {
    /// The kind of an order to an agent.
    OrderKind {
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
    CallOutcome {
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
    pub(super) fn register(workshop: &mut FamilyBuilder<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            orders: workshop.counters("turnway_agent_orders_total", "Orders to agents.", "order", &OrderKind::NAMES)?,
            calls: workshop.counters(
                "turnway_agent_calls_total",
                "Calls of agents by outcome; dropped calls are counted as orders only.",
                "outcome",
                &CallOutcome::NAMES,
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
            dialed_in: workshop.gauge_vec(
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
    pub fn count_resend(&self) {
        self.resends.inc();
    }

    /// Returns the number of requests that were sent once more.
    pub fn resends(&self) -> u64 {
        self.resends.get()
    }

    /// Returns the gauge of an agent's connections, which starts at 0. The configuration bounds the number of
    /// agents.
    pub fn connection_gauge(&self, agent: &str) -> ConnectionGauge {
        ConnectionGauge(self.dialed_in.with_label_values(&[agent]))
    }

    /// Sets the attempts of this node at agents of other nodes, and those of other nodes at agents of this
    /// node.
    pub fn set_remote_attempts(&self, begun: usize, taken_on: usize) {
        for (direction, count) in [(Direction::Out, begun), (Direction::In, taken_on)] {
            self.remote[direction as usize].set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Counts an order to an agent.
    pub fn count_order(&self, order: &Order) {
        let kind = match order {
            Order::Invoke(invoke) if invoke.resume.is_some() => OrderKind::Resume,
            Order::Invoke(_) => OrderKind::Invoke,
            Order::Stop { .. } => OrderKind::Stop,
            Order::Cancel { .. } => OrderKind::Cancel,
            Order::Steer(_) => OrderKind::Steer,
            Order::Drop { .. } => OrderKind::Drop,
            Order::News(_) => OrderKind::News,
            Order::Credit { .. } => OrderKind::Credit,
        };
        self.orders[kind as usize].inc();
    }

    /// Counts the outcome of a call, if the event ends the call.
    pub fn record_event(&self, event: &AgentEvent) {
        let end = match event {
            AgentEvent::Acked
            | AgentEvent::Alive
            | AgentEvent::Delta { .. }
            | AgentEvent::State { .. }
            | AgentEvent::Steered { .. }
            | AgentEvent::Handover { .. }
            | AgentEvent::Subscribed(_)
            | AgentEvent::Action { .. } => return,
            AgentEvent::Done { .. } => CallOutcome::Done,
            AgentEvent::CancelAcked => CallOutcome::Cancelled,
            AgentEvent::Failed(AgentFailure::Unavailable(_)) => CallOutcome::Unavailable,
            AgentEvent::Failed(AgentFailure::Reported { .. } | AgentFailure::Model { .. }) => CallOutcome::Reported,
            AgentEvent::Failed(AgentFailure::Blocked { .. }) => CallOutcome::Blocked,
            AgentEvent::Failed(AgentFailure::Broken(_)) => CallOutcome::Broken,
            AgentEvent::Failed(AgentFailure::Answered(answer)) if answer.is_away => CallOutcome::Unavailable,
            AgentEvent::Failed(AgentFailure::Answered(_)) => CallOutcome::Broken,
            AgentEvent::Failed(AgentFailure::TooLarge | AgentFailure::HeadTooLarge) => CallOutcome::TooLarge,
            AgentEvent::Failed(AgentFailure::NotKnown) => CallOutcome::NotKnown,
            AgentEvent::Failed(AgentFailure::Lost(_)) => CallOutcome::Lost,
        };
        self.calls[end as usize].inc();
    }

    /// Records the time to the first piece of an answer.
    pub fn record_first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// Records the duration of a call.
    pub fn record_call_end(&self, after: Duration) {
        self.call.observe(after.as_secs_f64());
    }
}

// === impl ConnectionGauge ===

impl ConnectionGauge {
    /// Counts an opened connection.
    pub fn increment(&self) {
        self.0.inc();
    }

    /// Counts a closed connection.
    pub fn decrement(&self) {
        self.0.dec();
    }
}
