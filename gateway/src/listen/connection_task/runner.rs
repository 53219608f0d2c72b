//! Serves the connection of a tool runner, from `welcome` to its end: drives the [`RunnerConnection`] machine between a
//! [`LinkTransport`] and the node's runner pool.
use super::super::close_reason::LinkCloseReason;
use super::super::link_transport::{HeartbeatOutcome, LinkTransport, TransportEvent};
use super::{ConnectionStage, ConnectionTask, IDLE_TIMER, agent, heartbeat_permille};
use crate::auth::AuthenticatedClient;
use crate::auth::service_grants::ServiceRole;
use crate::links::{CloseReason, MailboxItem};
use crate::metrics::{DenialReason, Direction, HandshakeOutcome};
use crate::phase::NodePhase;
use crate::tools::RunnerRegistration;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};
use tokio::time::Instant;
use turnway_core::id::RequestId;
use turnway_core::machine::Machine;
use turnway_node::link::{self, ServiceRefusal};
use turnway_node::runner::connection::{Input, Output, RunnerConnection, RunnerConnectionConfig};
use turnway_node::runner::pool::RunnerRefusal;
use turnway_wire::channel::hello::{Credential, HelloRequest};
use turnway_wire::runner::ToRunner;

/// A peer that serves the gateway instead of being served by it.
pub(super) enum AdmittedService {
    Agent(agent::AdmittedAgent),
    Runner(AdmittedRunner),
}

/// An admitted tool runner with its registration.
pub(super) struct AdmittedRunner {
    registration: RunnerRegistration,
    config: RunnerConnectionConfig,
}

/// The running task of a tool runner's connection.
struct RunnerConnectionTask<'v, 'a, W> {
    task: &'v mut ConnectionTask<'a, W>,
    registration: RunnerRegistration,
    machine: RunnerConnection,
    /// Outputs that the machine produced while the transport was blocked.
    pending_outputs: VecDeque<Output>,
    unflushed: bool,
    /// The runner was told that this node drains.
    drain_announced: bool,
}

/// An event that wakes the task.
enum RunnerConnectionEvent {
    Inbound(Result<TransportEvent, LinkCloseReason>),
    Message(Option<ToRunner>),
    Draining,
    Mailbox(MailboxItem),
    Timer,
}

// === impl ConnectionTask ===

impl<W: LinkTransport> ConnectionTask<'_, W> {
    /// Registers a tool runner, if its credential may serve as this runner.
    pub(super) fn admit_runner(&mut self, hello: &HelloRequest, admitted: AuthenticatedClient) {
        let tools = &self.context.tools;
        let entered = hello.runner.as_deref().ok_or(ServiceRefusal::Forbidden).and_then(|runner| {
            let identity = admitted.service_identity(ServiceRole::Runner(runner), tools.served_by());
            let entered = tools.register(runner.clone(), identity.ok_or(ServiceRefusal::Forbidden)?);
            entered.map_err(|why| match why {
                RunnerRefusal::IdInUse => ServiceRefusal::IdInUse,
                RunnerRefusal::LimitReached => ServiceRefusal::LimitReached,
            })
        });
        match entered {
            Ok(place) => {
                let node = format!("{}", self.context.node);
                let config = RunnerConnectionConfig {
                    node: self.context.node,
                    connection_id: format!("{}-{}", &node[..8], self.mailbox.id().0),
                    expires: admitted.proof.expires(),
                    heartbeat_permille: heartbeat_permille(&self.mailbox),
                };
                self.context.metrics.links.count_handshake(HandshakeOutcome::Admitted);
                self.stage = ConnectionStage::Serving;
                self.admitted = Some(Box::new(admitted));
                self.admitted_service =
                    Some(Box::new(AdmittedService::Runner(AdmittedRunner { registration: place, config })));
            }
            Err(why) => {
                tracing::debug!(link = self.mailbox.id().0, ?why, "tool runner connection refused");
                self.context.metrics.auth.count_denied(DenialReason::Role);
                self.stage = ConnectionStage::Denied;
                self.handle_input(link::Input::NotServing(why));
            }
        }
    }

    /// Serves the runner until either side closes.
    pub(super) async fn serve_runner(&mut self, arrived: AdmittedRunner) -> LinkCloseReason {
        let AdmittedRunner { registration: place, config } = arrived;
        self.now = self.context.clock.now();
        let machine = RunnerConnection::new(self.now, &config);
        let held = VecDeque::new();
        let unflushed = false;
        let drain_announced = false;
        let mut duty = RunnerConnectionTask {
            machine,
            task: self,
            registration: place,
            pending_outputs: held,
            unflushed,
            drain_announced,
        };
        loop {
            if let Err(end) = duty.drain_and_flush().await {
                return end;
            }
            let event = duty.next_event().await;
            if let Err(end) = duty.handle_event(event) {
                return end;
            }
        }
    }
}

// === impl RunnerConnectionTask ===

impl<W: LinkTransport> RunnerConnectionTask<'_, '_, W> {
    async fn next_event(&mut self) -> RunnerConnectionEvent {
        self.arm_timer();
        let life = &self.task.context.life;
        let task = &mut *self.task;
        tokio::select! {
            item = task.mailbox.recv() => RunnerConnectionEvent::Mailbox(item),
            letter = self.registration.next_message() => RunnerConnectionEvent::Message(letter),
            event = task.wire.recv() => RunnerConnectionEvent::Inbound(event),
            () = life.wait_for_phase(NodePhase::Draining), if !self.drain_announced => RunnerConnectionEvent::Draining,
            () = &mut task.timer => RunnerConnectionEvent::Timer,
        }
    }

    fn handle_event(&mut self, event: RunnerConnectionEvent) -> Result<(), LinkCloseReason> {
        self.task.now = self.task.context.clock.now();
        match event {
            RunnerConnectionEvent::Mailbox(MailboxItem::Close(fate)) => return Err(fate.into()),
            // The switchboard does not know this connection.
            RunnerConnectionEvent::Mailbox(MailboxItem::Notes(_)) => {}
            RunnerConnectionEvent::Message(None) => return Err(CloseReason::SlowConsumer.into()),
            RunnerConnectionEvent::Message(Some(message)) => self.handle_input(Input::Send(Box::new(message))),
            RunnerConnectionEvent::Draining => {
                self.drain_announced = true;
                self.handle_input(Input::Draining);
            }
            RunnerConnectionEvent::Inbound(received) => self.handle_inbound(received?),
            RunnerConnectionEvent::Timer => self.handle_timeout(),
        }
        Ok(())
    }

    fn handle_inbound(&mut self, event: TransportEvent) {
        if let Some(bytes) = event.bytes() {
            self.task.context.metrics.links.record_message(Direction::In, bytes);
        }
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
            // Waits while the switchboard is busy; nothing more is read meanwhile.
            Output::Message(message) => self.registration.handle_message(*message).await,
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
            Output::Refresh { request_id, token } => self.handle_refresh(request_id, token).await,
            Output::Close { code, reason } => return Err(LinkCloseReason::ByServer(code, reason.into())),
        }
        Ok(())
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
                    Output::Close { code, reason } => {
                        return Err(LinkCloseReason::ByServer(code, reason.into()));
                    }
                    Output::Write(_) | Output::Message(_) | Output::Refresh { .. } | Output::Ping => {
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
        self.machine.handle_timeout(now);
    }

    fn arm_timer(&mut self) {
        if let Some(deadline) = self.machine.poll_timeout() {
            self.task.arm_timer_at(deadline.at);
        }
    }
}
