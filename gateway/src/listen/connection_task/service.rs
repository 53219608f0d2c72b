//! Serves the connection of an agent or a tool runner, from `welcome` to its end: drives a [`ServiceConnection`] between a
//! [`LinkTransport`] and the [`ServiceHandler`] of the role.
use super::super::close_reason::LinkCloseReason;
use super::super::link_transport::{HeartbeatOutcome, LinkTransport, TransportEvent};
use super::agent::AgentHandler;
use super::runner::RunnerHandler;
use super::{ConnectionStage, ConnectionTask, connection_id, heartbeat_permille};
use crate::auth::AuthenticatedClient;
use crate::links::MailboxItem;
use crate::metrics::{DenialReason, HandshakeOutcome};
use crate::phase::NodePhase;
use std::collections::VecDeque;
use std::future::Future;
use std::task::{Context, Poll};
use turnway_core::machine::Machine;
use turnway_core::time::Now;
use turnway_node::connection::{ConnectionConfig, Input, Output, ServiceConnection, ServiceProtocol};
use turnway_node::link::{self, ServiceRefusal};

/// A peer that was admitted to serve the gateway instead of being served by it.
pub(super) enum AdmittedService {
    Agent(AgentHandler),
    Runner(RunnerHandler),
}

/// The gateway's side of one role: passes commands to the peer, and takes the peer's events.
pub(super) trait ServiceHandler: Send {
    /// The messages of the role.
    type Protocol: ServiceProtocol;
    /// An event of the role that wakes the task.
    type Wakeup: Send;

    /// Creates the machine of the connection.
    fn open(&self, now: Now, config: &ConnectionConfig) -> ServiceConnection<Self::Protocol>;

    /// Waits for the next event of the role. Cancel-safe.
    fn next_wakeup(&mut self) -> impl Future<Output = Self::Wakeup> + Send;

    /// Handles an event of the role, and returns the input that follows from it.
    fn handle_wakeup(
        &mut self,
        machine: &ServiceConnection<Self::Protocol>,
        wakeup: Self::Wakeup,
    ) -> Result<Option<Input<RoleCommand<Self>>>, LinkCloseReason>;

    /// Takes an event of the peer. Nothing is read from the peer meanwhile.
    fn take_event(&mut self, event: RoleEvent<Self>) -> impl Future<Output = ()> + Send;

    /// Returns true while the peer must not be read. Silence of the peer is then no timeout.
    fn is_blocked(&self) -> bool {
        false
    }

    /// Returns the command that reports received bytes of an incomplete message, if the role has one.
    fn partial_message(&self) -> Option<RoleCommand<Self>> {
        None
    }
}

type RoleCommand<H> = <<H as ServiceHandler>::Protocol as ServiceProtocol>::Command;
type RoleEvent<H> = <<H as ServiceHandler>::Protocol as ServiceProtocol>::Event;

/// The running task of a service's connection.
struct ServiceTask<'v, 'a, W, H: ServiceHandler> {
    task: &'v mut ConnectionTask<'a, W>,
    /// Dropped with the task, which ends the registration of the service.
    handler: H,
    machine: ServiceConnection<H::Protocol>,
    /// Outputs that the machine produced while the transport was blocked.
    pending_outputs: VecDeque<Output<RoleEvent<H>>>,
    /// Bytes received when the transport was last checked.
    received: u64,
    /// The peer was told that this node drains.
    drain_announced: bool,
}

/// An event that wakes the task of a service's connection.
enum ServiceEvent<T> {
    Inbound(Result<TransportEvent, LinkCloseReason>),
    Role(T),
    Draining,
    Mailbox(MailboxItem),
    Timer,
}

// === impl ConnectionTask ===

impl<W: LinkTransport> ConnectionTask<'_, W> {
    /// Begins to serve the connection as `service`, or refuses it; `role` is for the log.
    pub(super) fn finish_admission(
        &mut self,
        role: &'static str,
        admitted: AuthenticatedClient,
        service: Result<AdmittedService, ServiceRefusal>,
    ) {
        match service {
            Ok(service) => {
                self.context.metrics.links.count_handshake(HandshakeOutcome::Admitted);
                self.stage = ConnectionStage::Serving;
                self.admitted = Some(Box::new(admitted));
                self.admitted_service = Some(Box::new(service));
            }
            Err(why) => {
                tracing::debug!(link = self.mailbox.id().0, ?why, "{role} connection refused");
                self.context.metrics.auth.count_denied(DenialReason::Role);
                self.stage = ConnectionStage::Denied;
                self.handle_input(link::Input::NotServing(why));
            }
        }
    }

    /// Serves the peer until either side closes.
    pub(super) async fn serve_service<H: ServiceHandler>(&mut self, handler: H) -> LinkCloseReason {
        self.now = self.context.clock.now();
        let config = ConnectionConfig {
            node: self.context.node,
            connection_id: connection_id(self.context, &self.mailbox),
            expires: self.admitted.as_ref().and_then(|admitted| admitted.proof.expires()),
            heartbeat_permille: heartbeat_permille(&self.mailbox),
        };
        let mut service = ServiceTask {
            machine: handler.open(self.now, &config),
            handler,
            pending_outputs: VecDeque::new(),
            received: self.wire.received(),
            drain_announced: false,
            task: self,
        };
        loop {
            if let Err(end) = service.drain_and_flush().await {
                return end;
            }
            let event = service.next_event().await;
            if let Err(end) = service.handle_event(event) {
                return end;
            }
        }
    }
}

// === impl ServiceTask ===

impl<W: LinkTransport, H: ServiceHandler> ServiceTask<'_, '_, W, H> {
    async fn next_event(&mut self) -> ServiceEvent<H::Wakeup> {
        self.arm_timer();
        let life = &self.task.context.life;
        let task = &mut *self.task;
        let may_read = !self.handler.is_blocked();
        tokio::select! {
            item = task.mailbox.recv() => ServiceEvent::Mailbox(item),
            wakeup = self.handler.next_wakeup() => ServiceEvent::Role(wakeup),
            event = task.wire.recv(), if may_read => ServiceEvent::Inbound(event),
            () = life.wait_for_phase(NodePhase::Draining), if !self.drain_announced => ServiceEvent::Draining,
            () = &mut task.timer => ServiceEvent::Timer,
        }
    }

    fn handle_event(&mut self, event: ServiceEvent<H::Wakeup>) -> Result<(), LinkCloseReason> {
        self.task.now = self.task.context.clock.now();
        match event {
            ServiceEvent::Mailbox(MailboxItem::Close(fate)) => return Err(fate.into()),
            // The switchboard does not know this connection.
            ServiceEvent::Mailbox(MailboxItem::Notes(_)) => {}
            ServiceEvent::Role(wakeup) => {
                if let Some(input) = self.handler.handle_wakeup(&self.machine, wakeup)? {
                    self.handle_input(input);
                }
            }
            ServiceEvent::Draining => {
                self.drain_announced = true;
                self.handle_input(Input::Draining);
            }
            ServiceEvent::Inbound(received) => self.handle_inbound(received?),
            ServiceEvent::Timer => self.handle_timeout(),
        }
        Ok(())
    }

    fn handle_inbound(&mut self, event: TransportEvent) {
        self.task.count_inbound(&event);
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
            if !self.task.unflushed {
                return Ok(());
            }
            self.poll_transport(|wire, cx| wire.poll_flush(cx)).await?;
            self.task.unflushed = false;
            self.handle_input(Input::Flushed);
        }
    }

    async fn perform_output(&mut self, output: Output<RoleEvent<H>>) -> Result<(), LinkCloseReason> {
        match output {
            Output::Write(text) => {
                self.poll_transport(|wire, cx| wire.poll_ready(cx)).await?;
                self.task.write_ready(text)?;
            }
            Output::Event(event) => self.handler.take_event(event).await,
            Output::Ping => {
                self.poll_transport(|wire, cx| wire.poll_ready(cx)).await?;
                match self.task.send_heartbeat_ready()? {
                    HeartbeatOutcome::Written => {}
                    HeartbeatOutcome::Alive => self.handle_input(Input::SignOfLife),
                }
            }
            Output::Refresh { request_id, token } => {
                let renewal = self.task.refresh_credential(token).await;
                self.handle_input(Input::Refreshed { request_id, renewal });
            }
            Output::Close { code, reason } => return Err(LinkCloseReason::ByServer(code, reason)),
        }
        Ok(())
    }

    /// Waits until the transport accepts what is written. Nothing is read meanwhile.
    async fn poll_transport(
        &mut self,
        mut poll: impl FnMut(&mut W, &mut Context<'_>) -> Poll<Result<(), LinkCloseReason>>,
    ) -> Result<(), LinkCloseReason> {
        loop {
            self.arm_timer();
            if self.task.wait_for_transport(&mut poll).await?.is_ready() {
                return Ok(());
            }
            self.handle_timeout();
            while let Some(output) = self.machine.poll_output() {
                match output {
                    Output::Close { code, reason } => return Err(LinkCloseReason::ByServer(code, reason)),
                    Output::Write(_) | Output::Refresh { .. } | Output::Ping | Output::Event(_) => {
                        self.pending_outputs.push_back(output);
                    }
                }
            }
        }
    }

    fn handle_input(&mut self, input: Input<RoleCommand<H>>) {
        self.machine.handle_input(self.task.now, input);
    }

    fn handle_timeout(&mut self) {
        self.task.restart_timer();
        if self.handler.is_blocked() {
            self.handle_input(Input::SignOfLife);
        }
        let received = self.task.wire.received();
        if received > self.received {
            self.received = received;
            if let Some(command) = self.handler.partial_message() {
                self.handle_input(Input::Command(command));
            }
        }
        self.machine.handle_timeout(self.task.now);
    }

    fn arm_timer(&mut self) {
        if let Some(deadline) = self.machine.poll_timeout() {
            self.task.arm_timer_at(deadline.at);
        }
    }
}
