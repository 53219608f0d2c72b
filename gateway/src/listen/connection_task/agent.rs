//! Connections of agents that dial in: the admission of an agent, and the handler that carries orders to it and its events
//! to the attempts that run over the connection.
use super::super::close_reason::LinkCloseReason;
use super::super::link_transport::LinkTransport;
use super::ConnectionTask;
use super::service::{AdmittedService, ServiceHandler};
use crate::agent::dialin::{AgentCommand, DialInRefusal, PoolRegistration};
use crate::auth::AuthenticatedClient;
use crate::auth::service_grants::ServiceRole;
use crate::links::CloseReason;
use std::collections::BTreeMap;
use std::future::pending;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{OwnedPermit, Sender};
use turnway_core::id::RunId;
use turnway_core::protocol::agent::Order;
use turnway_core::time::Now;
use turnway_node::connection::ConnectionConfig;
use turnway_node::dialin::{DialIn, DialInCommand, DialInConfig, DialInEvent, DialInProtocol, Input};
use turnway_node::link::ServiceRefusal;
use turnway_wire::agent::AttemptEvent;
use turnway_wire::agent::message::AgentMessage;
use turnway_wire::channel::hello::HelloRequest;

/// The gateway's side of an agent's connection.
pub(super) struct AgentHandler {
    /// Dropped with the handler; the attempts that ran over the connection then end.
    registration: PoolRegistration,
    /// Receivers of attempt events, by run.
    runs: BTreeMap<RunId, AttemptRoute>,
    /// An event whose attempt had no capacity. Nothing more is read until it is delivered.
    blocked: Option<(Sender<AttemptEvent>, AttemptEvent)>,
}

/// An attempt that was sent to the agent over this connection.
struct AttemptRoute {
    attempt: u32,
    /// Number of the invoke on this connection.
    number: u64,
    events: Sender<AttemptEvent>,
}

/// An event that wakes the task of an agent's connection.
pub(super) enum AgentWakeup {
    Command(Option<AgentCommand>),
    /// Capacity for the blocked event; `None` if its attempt has ended.
    Capacity(Option<OwnedPermit<AttemptEvent>>),
}

// === impl ConnectionTask ===

impl<W: LinkTransport> ConnectionTask<'_, W> {
    /// Registers the agent that the connection claims to be, if its credential may serve that agent.
    pub(super) fn admit_agent(&mut self, hello: &HelloRequest, admitted: AuthenticatedClient) {
        let registry = &self.context.agent_registry;
        let entered = hello.agent_id.as_ref().ok_or(ServiceRefusal::Forbidden).and_then(|agent| {
            let served_by = registry.served_by(agent).ok_or(ServiceRefusal::Forbidden)?;
            let identity =
                admitted.service_identity(ServiceRole::Agent(agent), served_by).ok_or(ServiceRefusal::Forbidden)?;
            registry.register(agent, hello.capabilities, identity.tenants).map_err(|why| match why {
                DialInRefusal::Forbidden | DialInRefusal::ResumeRequired => ServiceRefusal::Forbidden,
                DialInRefusal::TooManyConnections => ServiceRefusal::LimitReached,
            })
        });
        let service = entered.map(|registration| {
            AdmittedService::Agent(AgentHandler { registration, runs: BTreeMap::new(), blocked: None })
        });
        self.finish_admission("agent", admitted, service);
    }
}

// === impl AgentHandler ===

impl ServiceHandler for AgentHandler {
    type Protocol = DialInProtocol;
    type Wakeup = AgentWakeup;

    fn open(&self, now: Now, config: &ConnectionConfig) -> DialIn {
        let has_event_ids = self.registration.has_event_ids();
        DialIn::new(now, &DialInConfig { connection: config.clone(), has_event_ids })
    }

    async fn next_wakeup(&mut self) -> AgentWakeup {
        tokio::select! {
            command = self.registration.next_command() => AgentWakeup::Command(command),
            permit = wait_for_capacity(self.blocked.as_ref()), if self.blocked.is_some() => AgentWakeup::Capacity(permit),
        }
    }

    fn handle_wakeup(&mut self, machine: &DialIn, wakeup: AgentWakeup) -> Result<Option<Input>, LinkCloseReason> {
        match wakeup {
            AgentWakeup::Command(None) => Err(CloseReason::SlowConsumer.into()),
            AgentWakeup::Command(Some(command)) => {
                let order = self.handle_command(machine, command);
                Ok(order.map(|order| Input::Command(DialInCommand::Order(order))))
            }
            AgentWakeup::Capacity(permit) => {
                if let (Some(permit), Some((_, waiting))) = (permit, self.blocked.take()) {
                    permit.send(waiting);
                }
                // Reads were paused, so silence is not a timeout.
                Ok(Some(Input::SignOfLife))
            }
        }
    }

    async fn take_event(&mut self, event: DialInEvent) {
        match event {
            DialInEvent::AttemptEvent { run_id, attempt, event } => self.forward_event(&run_id, attempt, event).await,
            // If the attempt's queue is full, the queued events already show that the agent is alive.
            DialInEvent::AttemptAlive { run_id, attempt } => {
                if let Some(ordered) = self.runs.get(&run_id).filter(|ordered| ordered.attempt == attempt) {
                    _ = ordered.events.try_send(AttemptEvent::Message(AgentMessage::Alive));
                }
            }
        }
    }

    fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    fn partial_message(&self) -> Option<DialInCommand> {
        Some(DialInCommand::PartialMessage)
    }
}

impl AgentHandler {
    /// Records which attempts run over the connection, and returns the order for the agent.
    fn handle_command(&mut self, machine: &DialIn, command: AgentCommand) -> Option<Box<Order>> {
        match command {
            // Dropping the sender tells the attempt that no events will come.
            AgentCommand::Invoke(invoke, ..) if !machine.accepts(&invoke) => None,
            AgentCommand::Invoke(invoke, number, events) => {
                let attempt = invoke.attempt;
                self.runs.insert(invoke.run_id.clone(), AttemptRoute { attempt, number, events });
                Some(Box::new(Order::Invoke(*invoke)))
            }
            AgentCommand::Order(order) => Some(order),
            AgentCommand::Forget(run_id, attempt, number) => {
                // Another owner may have sent the same attempt again; that one continues.
                self.runs.get(&run_id).filter(|ordered| ordered.number == number)?;
                self.runs.remove(&run_id);
                Some(Box::new(Order::Drop { run_id, attempt }))
            }
        }
    }

    /// Delivers an event to its attempt's queue. One wire message yields at most two of them, so that only the second
    /// may have to wait for the first.
    async fn forward_event(&mut self, run_id: &RunId, attempt: u32, event: AttemptEvent) {
        let Some(ordered) = self.runs.get(run_id).filter(|ordered| ordered.attempt == attempt) else {
            return;
        };
        let to = ordered.events.clone();
        if event.is_last() {
            self.runs.remove(run_id);
        }
        if let Some((before, first)) = self.blocked.take() {
            // An attempt always takes messages or ends, so this wait is bounded.
            _ = before.send(first).await;
        }
        if let Err(TrySendError::Full(event)) = to.try_send(event) {
            self.blocked = Some((to, event));
        }
    }
}

/// Waits until the blocked event can be delivered. Cancel-safe.
async fn wait_for_capacity(
    untaken: Option<&(Sender<AttemptEvent>, AttemptEvent)>,
) -> Option<OwnedPermit<AttemptEvent>> {
    match untaken {
        Some((to, _)) => to.clone().reserve_owned().await.ok(),
        None => pending().await,
    }
}
