//! Runs one attempt at an agent that has dialled in, over a connection of this node or of another node. Called by
//! `execution`.
use super::pool::{AgentCommand, AgentConnectionPool, LocalCall};
use super::remote_calls::{DialOutcome, RemoteCall};
use crate::agent::attempt::AttemptTask;
use std::collections::BTreeSet;
use std::sync::Arc;
use turnway_core::limits;
use turnway_core::protocol::action::FactDelivery;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, Invoke, Order};
use turnway_core::protocol::steer::{Steer, SteerOutcome};
use turnway_wire::agent::AttemptEvent;
use turnway_wire::agent::message::AgentMessage;
use turnway_wire::channel::hello::DialInCapabilities;

/// One attempt over one connection. Dropping it tells the agent to stop, unless the agent has ended the attempt.
enum DialInCall {
    /// Over a connection of this node.
    Local(LocalCall),
    /// Over a connection of another node.
    Remote(RemoteCall),
}

/// The outcome of the search for a connection.
enum FindOutcome {
    Call(DialInCall),
    /// No connection has room.
    NoRoom,
    /// The node that may have a connection was lost before it answered.
    Lost,
}

// === impl DialInCall ===

impl DialInCall {
    /// Finds a connection: the one of this node with the fewest attempts, or else one of the other node with the fewest
    /// attempts for each connection. Waits up to [`limits::DIALIN_WAIT`] if none has room.
    async fn find(pool: &AgentConnectionPool, invoke: &Invoke) -> FindOutcome {
        let found = async {
            loop {
                // Registered before the search, so that a connection that arrives between search and wait is noticed.
                let available = pool.available.notified();
                if let Some(placed) = pool.place(invoke) {
                    return FindOutcome::Call(Self::Local(placed));
                }
                let mut tried = BTreeSet::new();
                while let Some(node) = pool.remote.best_node(&pool.agent, &tried) {
                    match pool.remote.dial(node, invoke).await {
                        DialOutcome::Placed(dialed) => return FindOutcome::Call(Self::Remote(dialed)),
                        DialOutcome::Refused => _ = tried.insert(node),
                        DialOutcome::Lost => return FindOutcome::Lost,
                    }
                }
                pool.remote.notify_wanted();
                available.await;
            }
        };
        tokio::time::timeout(limits::DIALIN_WAIT, found).await.unwrap_or(FindOutcome::NoRoom)
    }

    fn capabilities(&self) -> DialInCapabilities {
        match self {
            Self::Local(placed) => placed.connection.capabilities,
            Self::Remote(dialed) => dialed.capabilities,
        }
    }

    fn order(&self, order: Order) {
        match self {
            Self::Local(placed) => placed.connection.push(AgentCommand::Order(Box::new(order))),
            Self::Remote(dialed) => dialed.order(order),
        }
    }

    /// Returns the agent's next message, or `None` if the connection is gone. Cancel-safe.
    async fn recv_message(&mut self) -> Option<AttemptEvent> {
        match self {
            Self::Local(placed) => placed.messages.recv().await,
            Self::Remote(dialed) => dialed.recv_message().await,
        }
    }

    /// Sends a steering input if the connection supports steering; otherwise returns the refusal to report.
    fn steer(&self, steer: Steer) -> Option<AgentEvent> {
        if self.capabilities().steer {
            self.order(Order::Steer(Box::new(steer)));
            return None;
        }
        Some(AgentEvent::Steered { message_id: steer.message_id, outcome: SteerOutcome::Refused })
    }
}

/// An event that the loop of an attempt handles.
enum CallEvent {
    Cancelled,
    Steer(Steer),
    News(FactDelivery),
    Message(Option<AttemptEvent>),
}

/// Runs one attempt to its end. Dropping the future tells the agent to stop.
pub(in crate::agent) async fn run(attempt: &mut AttemptTask, pool: &Arc<AgentConnectionPool>) -> AgentEvent {
    let control = attempt.control();
    let found = tokio::select! {
        biased;
        () = control.wait_cancelled() => return AgentEvent::CancelAcked,
        found = DialInCall::find(pool, &attempt.invoke) => found,
    };
    let mut call = match found {
        FindOutcome::Call(call) => call,
        FindOutcome::Lost => {
            let why = "the node with the agent's connection was lost".to_owned();
            return AgentEvent::Failed(AgentFailure::Lost(why));
        }
        FindOutcome::NoRoom => {
            let why = if pool.is_served(&attempt.invoke.key.tenant) {
                "no connection of this agent has capacity for this session"
            } else {
                "this agent is not connected"
            };
            return AgentEvent::Failed(AgentFailure::Unavailable(why.to_owned()));
        }
    };
    let mut cancelled = false;
    loop {
        let event = tokio::select! {
            biased;
            () = control.wait_cancelled(), if !cancelled => CallEvent::Cancelled,
            steer = control.recv_steer() => CallEvent::Steer(steer),
            delivery = control.recv_news() => CallEvent::News(delivery),
            word = call.recv_message() => CallEvent::Message(word),
        };
        match event {
            CallEvent::Cancelled => {
                cancelled = true;
                let Invoke { key, run_id, attempt, epoch, .. } = &attempt.invoke;
                let tenant = key.tenant.clone();
                let run_id = run_id.clone();
                call.order(Order::Cancel { tenant, run_id, attempt: *attempt, epoch: *epoch });
                // A connection that does not acknowledge cancels is told, and the attempt ends at once.
                if !call.capabilities().cancel {
                    return AgentEvent::CancelAcked;
                }
            }
            CallEvent::Steer(steer) => {
                if let Some(refused) = call.steer(steer) {
                    attempt.report(refused).await;
                }
            }
            CallEvent::News(delivery) => call.order(Order::News(Box::new(delivery))),
            CallEvent::Message(event) => {
                if let Some(end) = report_message(attempt, event).await {
                    return if cancelled { AgentEvent::CancelAcked } else { end };
                }
            }
        }
    }
}

/// Reports a message of the agent. Returns the end of the attempt, if this was the last message.
async fn report_message(attempt: &mut AttemptTask, event: Option<AttemptEvent>) -> Option<AgentEvent> {
    match event {
        None => {
            let why = "the connection to the agent was lost".to_owned();
            return Some(AgentEvent::Failed(AgentFailure::Lost(why)));
        }
        Some(AttemptEvent::Acked) => attempt.report(AgentEvent::Acked).await,
        // An attempt that was not asked to stop has no cancel to acknowledge; the machine lets no such message through.
        Some(AttemptEvent::CancelAcked) => return Some(AgentEvent::CancelAcked),
        Some(AttemptEvent::Message(AgentMessage::Delta { kind, text, id })) => {
            attempt.report_text(kind, text, id).await
        }
        Some(AttemptEvent::Message(AgentMessage::State { state, detail, id })) => {
            attempt.report(AgentEvent::State { state, detail, id }).await;
        }
        Some(AttemptEvent::Message(AgentMessage::Steered { message_id, outcome })) => {
            attempt.report(AgentEvent::Steered { message_id, outcome }).await;
        }
        Some(AttemptEvent::Message(AgentMessage::Handover { request, id })) => {
            attempt.report(AgentEvent::Handover { request, id }).await;
        }
        Some(AttemptEvent::Message(AgentMessage::Action { request, id })) => {
            attempt.report(AgentEvent::Action { request, id }).await;
        }
        Some(AttemptEvent::Message(AgentMessage::Subscribe { types })) => {
            attempt.report(AgentEvent::Subscribed(types)).await
        }
        Some(AttemptEvent::Message(AgentMessage::Unknown | AgentMessage::Alive)) => attempt.report_alive().await,
        Some(AttemptEvent::Message(AgentMessage::Done { stop, usage })) => {
            return Some(AgentEvent::Done { stop, usage });
        }
        Some(AttemptEvent::Message(AgentMessage::Failed(failure))) => return Some(AgentEvent::Failed(failure)),
    }
    None
}
