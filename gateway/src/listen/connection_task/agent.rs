//! Serves the connection of an agent that dialed in, from `welcome` to its end: drives the [`DialIn`] machine between a
//! [`LinkTransport`] and the attempts that run over the connection.
use super::super::close_reason::LinkCloseReason;
use super::super::link_transport::{HeartbeatOutcome, LinkTransport, TransportEvent};
use super::runner::AdmittedService;
use super::{ConnectionStage, ConnectionTask, IDLE_TIMER, heartbeat_permille};
use crate::agent::dialin::{AgentCommand, DialInRefusal, PoolRegistration};
use crate::auth::AuthenticatedClient;
use crate::auth::service_grants::ServiceRole;
use crate::links::{CloseReason, MailboxItem};
use crate::metrics::{DenialReason, Direction, HandshakeOutcome};
use crate::phase::NodePhase;
use std::collections::{BTreeMap, VecDeque};
use std::future::{pending, poll_fn};
use std::task::{Context, Poll};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{OwnedPermit, Sender};
use tokio::time::Instant;
use turnway_core::id::{RequestId, RunId};
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::Order;
use turnway_node::dialin::{DialIn, DialInConfig, Input, Output};
use turnway_node::link::{self, ServiceRefusal};
use turnway_wire::agent::AttemptEvent;
use turnway_wire::agent::message::AgentMessage;
use turnway_wire::channel::hello::{Credential, HelloRequest};

/// An admitted agent with its registration.
pub(super) struct AdmittedAgent {
    registration: PoolRegistration,
    config: DialInConfig,
}

/// The running task of an agent's connection.
struct AgentConnectionTask<'v, 'a, W> {
    task: &'v mut ConnectionTask<'a, W>,
    /// Dropped with the task; the attempts that ran over the connection then end.
    registration: PoolRegistration,
    machine: DialIn,
    /// Receivers of attempt events, by run.
    runs: BTreeMap<RunId, AttemptRoute>,
    /// An event whose attempt had no capacity. Nothing more is read until it is delivered.
    blocked: Option<(Sender<AttemptEvent>, AttemptEvent)>,
    /// Outputs that the machine produced while the transport was blocked.
    pending_outputs: VecDeque<Output>,
    unflushed: bool,
    /// Bytes received when the transport was last checked.
    received: u64,
    /// The agent was told that this node drains.
    drain_announced: bool,
}

/// An attempt that was sent to the agent over this connection.
struct AttemptRoute {
    attempt: u32,
    /// Number of the invoke on this connection.
    number: u64,
    events: Sender<AttemptEvent>,
}

/// An event that wakes the task.
enum AgentConnectionEvent {
    Inbound(Result<TransportEvent, LinkCloseReason>),
    Command(Option<AgentCommand>),
    /// Capacity for the blocked event; `None` if its attempt has ended.
    Capacity(Option<OwnedPermit<AttemptEvent>>),
    Draining,
    Mailbox(MailboxItem),
    Timer,
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
            let place = registry.register(agent, hello.capabilities, identity.tenants).map_err(|why| match why {
                DialInRefusal::Forbidden | DialInRefusal::ResumeRequired => ServiceRefusal::Forbidden,
                DialInRefusal::TooManyConnections => ServiceRefusal::LimitReached,
            })?;
            Ok((agent.clone(), place))
        });
        match entered {
            Ok((agent, place)) => {
                let node = format!("{}", self.context.node);
                let config = DialInConfig {
                    agent,
                    capabilities: hello.capabilities,
                    has_event_ids: place.has_event_ids(),
                    node: self.context.node,
                    connection_id: format!("{}-{}", &node[..8], self.mailbox.id().0),
                    expires: admitted.proof.expires(),
                    heartbeat_permille: heartbeat_permille(&self.mailbox),
                };
                self.context.metrics.links.count_handshake(HandshakeOutcome::Admitted);
                self.stage = ConnectionStage::Serving;
                self.admitted = Some(Box::new(admitted));
                self.admitted_service =
                    Some(Box::new(AdmittedService::Agent(AdmittedAgent { registration: place, config })));
            }
            Err(why) => {
                tracing::debug!(link = self.mailbox.id().0, ?why, "agent connection refused");
                self.context.metrics.auth.count_denied(DenialReason::Role);
                self.stage = ConnectionStage::Denied;
                self.handle_input(link::Input::NotServing(why));
            }
        }
    }

    /// Serves the agent until either side closes.
    pub(super) async fn serve_agent(&mut self, arrived: AdmittedAgent) -> LinkCloseReason {
        let AdmittedAgent { registration: place, config } = arrived;
        self.now = self.context.clock.now();
        let received = self.wire.received();
        let mut duty = AgentConnectionTask {
            machine: DialIn::new(self.now, config),
            task: self,
            registration: place,
            runs: BTreeMap::new(),
            blocked: None,
            pending_outputs: VecDeque::new(),
            unflushed: false,
            received,
            drain_announced: false,
        };
        loop {
            if let Err(end) = duty.drain_and_flush().await {
                return end;
            }
            let event = duty.next_event().await;
            if let Err(end) = duty.handle_event(event).await {
                return end;
            }
        }
    }
}

// === impl AgentConnectionTask ===

impl<W: LinkTransport> AgentConnectionTask<'_, '_, W> {
    async fn next_event(&mut self) -> AgentConnectionEvent {
        self.arm_timer();
        let life = &self.task.context.life;
        let task = &mut *self.task;
        tokio::select! {
            item = task.mailbox.recv() => AgentConnectionEvent::Mailbox(item),
            command = self.registration.next_command() => AgentConnectionEvent::Command(command),
            room = wait_for_capacity(self.blocked.as_ref()), if self.blocked.is_some() => AgentConnectionEvent::Capacity(room),
            event = task.wire.recv(), if self.blocked.is_none() => AgentConnectionEvent::Inbound(event),
            () = life.wait_for_phase(NodePhase::Draining), if !self.drain_announced => AgentConnectionEvent::Draining,
            () = &mut task.timer => AgentConnectionEvent::Timer,
        }
    }

    async fn handle_event(&mut self, event: AgentConnectionEvent) -> Result<(), LinkCloseReason> {
        self.task.now = self.task.context.clock.now();
        match event {
            AgentConnectionEvent::Mailbox(MailboxItem::Close(fate)) => return Err(fate.into()),
            // The switchboard does not know this connection.
            AgentConnectionEvent::Mailbox(MailboxItem::Notes(_)) => {}
            AgentConnectionEvent::Command(None) => return Err(CloseReason::SlowConsumer.into()),
            AgentConnectionEvent::Command(Some(command)) => self.handle_command(command),
            AgentConnectionEvent::Capacity(permit) => {
                if let (Some(permit), Some((_, waiting))) = (permit, self.blocked.take()) {
                    permit.send(waiting);
                }
                // Reads were paused, so silence is not a timeout.
                self.handle_input(Input::SignOfLife);
            }
            AgentConnectionEvent::Draining => {
                self.drain_announced = true;
                self.handle_input(Input::Draining);
            }
            AgentConnectionEvent::Inbound(received) => self.handle_inbound(received?),
            AgentConnectionEvent::Timer => self.handle_timeout(),
        }
        Ok(())
    }

    fn handle_command(&mut self, command: AgentCommand) {
        match command {
            // Dropping the sender tells the attempt that no events will come.
            AgentCommand::Invoke(invoke, ..) if !self.machine.accepts(&invoke) => {}
            AgentCommand::Invoke(invoke, number, events) => {
                let attempt = invoke.attempt;
                self.runs.insert(invoke.run_id.clone(), AttemptRoute { attempt, number, events });
                let order = Order::Invoke(*invoke);
                self.handle_input(Input::Order(Box::new(order)));
            }
            AgentCommand::Order(order) => self.handle_input(Input::Order(order)),
            AgentCommand::Forget(run_id, attempt, number) => {
                // Another owner may have sent the same attempt again; that one continues.
                if self.runs.get(&run_id).is_some_and(|ordered| ordered.number == number) {
                    self.runs.remove(&run_id);
                    let order = Order::Drop { run_id, attempt };
                    self.handle_input(Input::Order(Box::new(order)));
                }
            }
        }
    }

    fn handle_inbound(&mut self, event: TransportEvent) {
        if let Some(bytes) = event.bytes() {
            self.task.context.metrics.links.record_message(Direction::In, bytes);
        }
        self.received = self.task.wire.received();
        match event {
            TransportEvent::Text(text) => self.handle_input(Input::Text(text)),
            TransportEvent::Binary(_) => self.handle_input(Input::Binary),
            TransportEvent::TooLarge => self.handle_input(Input::TooLarge),
            TransportEvent::SignOfLife(_) => self.handle_input(Input::SignOfLife),
            TransportEvent::SideStreams => {}
        }
    }

    /// Performs all outputs of the machine, with one flush at the end.
    async fn drain_and_flush(&mut self) -> Result<(), LinkCloseReason> {
        loop {
            while let Some(output) = self.pending_outputs.pop_front().or_else(|| self.machine.poll_output()) {
                self.perform_output(output).await?;
            }
            if !self.unflushed {
                return Ok(());
            }
            self.poll_transport(|wire, cx| wire.poll_flush(cx)).await?;
            self.unflushed = false;
            self.handle_input(Input::Flushed);
        }
    }

    async fn perform_output(&mut self, output: Output) -> Result<(), LinkCloseReason> {
        match output {
            Output::Write(text) => {
                self.poll_transport(|wire, cx| wire.poll_ready(cx)).await?;
                self.task.context.metrics.links.record_message(Direction::Out, text.len());
                self.unflushed = true;
                self.task.wire.write(text)?;
            }
            Output::AttemptEvent { run_id, attempt, event } => self.forward_event(&run_id, attempt, event).await,
            Output::Ping => {
                self.poll_transport(|wire, cx| wire.poll_ready(cx)).await?;
                match self.task.wire.heartbeat()? {
                    HeartbeatOutcome::Written => {
                        self.task.context.metrics.links.record_message(Direction::Out, 0);
                        self.unflushed = true;
                    }
                    HeartbeatOutcome::Alive => self.handle_input(Input::SignOfLife),
                }
            }
            // If the attempt's queue is full, the queued events already show that the agent is alive.
            Output::AttemptAlive { run_id, attempt } => {
                if let Some(ordered) = self.runs.get(&run_id).filter(|ordered| ordered.attempt == attempt) {
                    _ = ordered.events.try_send(AttemptEvent::Said(AgentMessage::Alive));
                }
            }
            Output::Refresh { request_id, token } => self.handle_refresh(request_id, token).await,
            Output::Close { code, reason } => return Err(LinkCloseReason::ByServer(code, reason)),
        }
        Ok(())
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

    async fn handle_refresh(&mut self, request_id: Option<RequestId>, token: Credential) {
        let renewal = self.task.refresh_credential(token).await;
        self.handle_input(Input::Refreshed { request_id, renewal });
    }

    /// Waits until the transport accepts what is written. Nothing is read meanwhile.
    async fn poll_transport(
        &mut self,
        mut poll: impl FnMut(&mut W, &mut Context<'_>) -> Poll<Result<(), LinkCloseReason>>,
    ) -> Result<(), LinkCloseReason> {
        loop {
            self.arm_timer();
            let wire = &mut *self.task.wire;
            tokio::select! {
                biased;
                done = poll_fn(|cx| poll(&mut *wire, cx)) => return done,
                () = &mut self.task.timer => {
                    self.task.now = self.task.context.clock.now();
                    self.handle_timeout();
                }
                fate = self.task.mailbox.wait_close() => return Err(fate.into()),
            }
            while let Some(output) = self.machine.poll_output() {
                match output {
                    Output::Close { code, reason } => return Err(LinkCloseReason::ByServer(code, reason)),
                    Output::Write(_)
                    | Output::AttemptEvent { .. }
                    | Output::AttemptAlive { .. }
                    | Output::Refresh { .. }
                    | Output::Ping => {
                        self.pending_outputs.push_back(output);
                    }
                }
            }
        }
    }

    fn handle_input(&mut self, input: Input) {
        self.machine.handle_input(self.task.now, input);
    }

    fn handle_timeout(&mut self) {
        let now = self.task.now;
        self.task.timer_at = now.mono + IDLE_TIMER;
        self.task.timer.as_mut().reset(Instant::now() + IDLE_TIMER);
        if self.blocked.is_some() {
            self.handle_input(Input::SignOfLife);
        }
        let received = self.task.wire.received();
        if received > self.received {
            self.received = received;
            self.handle_input(Input::PartialMessage);
        }
        self.machine.handle_timeout(now);
    }

    fn arm_timer(&mut self) {
        if let Some(deadline) = self.machine.poll_timeout() {
            self.task.arm_timer_at(deadline.at);
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
