//! Runs one attempt at an agent that has dialled in, over a connection of this node or of another node. Called by
//! `execution`.
use super::desk::{Desk, Letter, Placed};
use super::lines::{Dialed, Dialing};
use crate::agent::attempt::Attempt;
use std::collections::BTreeSet;
use std::sync::Arc;
use turnway_bindings::dialin::Word;
use turnway_bindings::dialin::said::Said;
use turnway_bindings::link::Capabilities;
use turnway_core::limits;
use turnway_core::protocol::action::News;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, Invoke, Order};
use turnway_core::protocol::steer::{Steer, SteerOutcome};

/// One attempt over one connection. Dropping it tells the agent to stop, unless the agent has ended the attempt.
enum Call {
    /// Over a connection of this node.
    Here(Placed),
    /// Over a connection of another node.
    There(Dialed),
}

/// The outcome of the search for a connection.
enum Found {
    Call(Call),
    /// No connection has room.
    Nobody,
    /// The node that may have a connection was lost before it answered.
    Lost,
}

// === impl Call ===

impl Call {
    /// Finds a connection: the one of this node with the fewest attempts, or else one of the other node with the fewest
    /// attempts for each connection. Waits up to [`limits::DIALIN_WAIT`] if none has room.
    async fn find(desk: &Desk, invoke: &Invoke) -> Found {
        let found = async {
            loop {
                // Registered before the search, so that a connection that arrives between search and wait is noticed.
                let came = desk.came.notified();
                if let Some(placed) = desk.place(invoke) {
                    return Found::Call(Self::Here(placed));
                }
                let mut tried = BTreeSet::new();
                while let Some(node) = desk.beyond.best(&desk.agent, &tried) {
                    match desk.beyond.dial(node, invoke).await {
                        Dialing::Placed(dialed) => return Found::Call(Self::There(dialed)),
                        Dialing::Refused => _ = tried.insert(node),
                        Dialing::Lost => return Found::Lost,
                    }
                }
                desk.beyond.want();
                came.await;
            }
        };
        tokio::time::timeout(limits::DIALIN_WAIT, found).await.unwrap_or(Found::Nobody)
    }

    fn capabilities(&self) -> Capabilities {
        match self {
            Self::Here(placed) => placed.line.capabilities,
            Self::There(dialed) => dialed.capabilities,
        }
    }

    fn order(&self, order: Order) {
        match self {
            Self::Here(placed) => placed.line.put(Letter::Order(Box::new(order))),
            Self::There(dialed) => dialed.order(order),
        }
    }

    /// Returns the agent's next message, or `None` if the connection is gone. Cancel-safe.
    async fn word(&mut self) -> Option<Word> {
        match self {
            Self::Here(placed) => placed.words.recv().await,
            Self::There(dialed) => dialed.word().await,
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
enum Event {
    Cancelled,
    Steer(Steer),
    News(News),
    Word(Option<Word>),
}

/// Runs one attempt to its end. Dropping the future tells the agent to stop.
pub(in crate::agent) async fn run(attempt: &mut Attempt, desk: &Arc<Desk>) -> AgentEvent {
    let line = attempt.line();
    let found = tokio::select! {
        biased;
        () = line.cancel_ordered() => return AgentEvent::CancelAcked,
        found = Call::find(desk, &attempt.invoke) => found,
    };
    let mut call = match found {
        Found::Call(call) => call,
        Found::Lost => {
            let why = "the node with the agent's connection was lost".to_owned();
            return AgentEvent::Failed(AgentFailure::Lost(why));
        }
        Found::Nobody => {
            let why = if desk.is_served(&attempt.invoke.key.tenant) {
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
            () = line.cancel_ordered(), if !cancelled => Event::Cancelled,
            steer = line.steer_ordered() => Event::Steer(steer),
            news = line.news() => Event::News(news),
            word = call.word() => Event::Word(word),
        };
        match event {
            Event::Cancelled => {
                cancelled = true;
                let Invoke { key, run_id, attempt, epoch, .. } = &attempt.invoke;
                let (tenant, run_id) = (key.tenant.clone(), run_id.clone());
                call.order(Order::Cancel { tenant, run_id, attempt: *attempt, epoch: *epoch });
                // A connection that does not acknowledge cancels is told, and the attempt ends at once.
                if !call.capabilities().cancel {
                    return AgentEvent::CancelAcked;
                }
            }
            Event::Steer(steer) => {
                if let Some(refused) = call.steer(steer) {
                    attempt.report(refused).await;
                }
            }
            Event::News(news) => call.order(Order::News(Box::new(news))),
            Event::Word(word) => {
                if let Some(end) = said(attempt, word).await {
                    return if cancelled { AgentEvent::CancelAcked } else { end };
                }
            }
        }
    }
}

/// Reports a message of the agent. Returns the end of the attempt, if this was the last message.
async fn said(attempt: &mut Attempt, word: Option<Word>) -> Option<AgentEvent> {
    match word {
        None => {
            let why = "the connection to the agent was lost".to_owned();
            return Some(AgentEvent::Failed(AgentFailure::Lost(why)));
        }
        Some(Word::Acked) => attempt.report(AgentEvent::Acked).await,
        // An attempt that was not asked to stop has no cancel to acknowledge; the machine lets no such message through.
        Some(Word::CancelAcked) => return Some(AgentEvent::CancelAcked),
        Some(Word::Said(Said::Delta { kind, text, id })) => attempt.say(kind, text, id).await,
        Some(Word::Said(Said::State { state, detail, id })) => {
            attempt.report(AgentEvent::State { state, detail, id }).await;
        }
        Some(Word::Said(Said::Steered { message_id, outcome })) => {
            attempt.report(AgentEvent::Steered { message_id, outcome }).await;
        }
        Some(Word::Said(Said::Handover { wish, id })) => {
            attempt.report(AgentEvent::Handover { wish, id }).await;
        }
        Some(Word::Said(Said::Action { wish, id })) => {
            attempt.report(AgentEvent::Action { wish, id }).await;
        }
        Some(Word::Said(Said::Subscribe { types })) => attempt.report(AgentEvent::Subscribed(types)).await,
        Some(Word::Said(Said::Unknown | Said::Alive)) => attempt.alive().await,
        Some(Word::Said(Said::Done { stop, usage })) => return Some(AgentEvent::Done { stop, usage }),
        Some(Word::Said(Said::Failed(failure))) => return Some(AgentEvent::Failed(failure)),
    }
    None
}
