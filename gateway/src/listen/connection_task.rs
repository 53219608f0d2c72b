//! Serves one link over any transport, in one task with one timer: drives the [`Link`] machine between a
//! [`LinkTransport`], authentication and the switchboard. `credential` handles `hello` and token refresh; `service` serves
//! connections of agents and tool runners.
mod agent;
mod credential;
mod file_rights;
mod runner;
mod service;

use self::service::AdmittedService;
use super::IncomingRequest;
use super::close_reason::LinkCloseReason;
use super::link_transport::{HeartbeatOutcome, LinkTransport, TransportEvent};
use super::upgrade::LinkContext;
use crate::auth::AuthenticatedClient;
use crate::links::{MailboxHandle, MailboxItem};
use crate::metrics::{Direction, HandshakeOutcome};
use crate::rates::RateLimiter;
use futures_util::FutureExt;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use turnway_core::id::{LinkId, SessionId};
use turnway_core::machine::Machine;
use turnway_core::time::{Mono, Now};
use turnway_node::link::{Input, Link, LinkConfig, LinkEvent, Output};
use turnway_wire::channel::close_code;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::notification::Notification;

/// The timer's delay where the link has no deadline.
const IDLE_TIMER: Duration = Duration::from_secs(3600);

/// The running task of one link.
struct ConnectionTask<'a, W> {
    context: &'a LinkContext,
    arrival: &'a IncomingRequest,
    mailbox: MailboxHandle,
    link: Box<Link>,
    /// Rate limits of the link's credential.
    rates: RateLimiter,
    /// The link has sent a request in this step.
    made_request: bool,
    /// Time of the event at hand. Reading two clocks for each note would cost more than writing the note.
    now: Now,
    wire: &'a mut W,
    unflushed: bool,
    /// Outputs that the link produced while its transport was blocked.
    pending_outputs: VecDeque<Output>,
    timer: Pin<Box<Sleep>>,
    /// Expiry of the timer. It may lie before the link's deadline: a spurious wake-up is cheaper than resetting the
    /// timer for each message.
    timer_at: Mono,
    stage: ConnectionStage,
    /// Set where the client must show another token before the present one expires.
    admitted: Option<Box<AuthenticatedClient>>,
    /// Set once the connection is admitted as an agent or a tool runner, and is to be served as one.
    admitted_service: Option<Box<AdmittedService>>,
}

/// The progress of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStage {
    Handshaking,
    Denied,
    /// The switchboard knows the link and must be told of its end.
    Connected,
    /// An agent or a tool runner is connected; its registration ends when it is dropped.
    Serving,
}

/// An event that wakes the task of a link.
enum ConnectionEvent {
    Mailbox(MailboxItem),
    Inbound(Result<TransportEvent, LinkCloseReason>),
    Timer,
}

/// Serves one client until either side closes. State that is needed only during an event lives on the heap meanwhile:
/// the size of this future is the cost of an idle link.
pub(super) async fn serve<W: LinkTransport>(mut wire: Box<W>, context: &LinkContext, arrival: IncomingRequest) {
    context.metrics.links.record_opened(W::TRANSPORT);
    let mut task = ConnectionTask::new(&mut *wire, context, &arrival);
    let id = task.mailbox.id();
    // The switchboard must learn of the end also after a panic of ours.
    let end = AssertUnwindSafe(task.run()).catch_unwind().await;
    let end = end.unwrap_or(LinkCloseReason::ByServer(close_code::INTERNAL_ERROR, "internal error".into()));
    let stage = task.stage;
    drop(task);
    Box::pin(finish(wire, context, id, stage, end)).await;
}

async fn finish<W: LinkTransport>(
    wire: Box<W>,
    context: &LinkContext,
    id: LinkId,
    stage: ConnectionStage,
    end: LinkCloseReason,
) {
    let metrics = &context.metrics.links;
    match stage {
        ConnectionStage::Connected => {
            // Without a switchboard, no one needs to be told.
            context.churn_limiter.wait_turn().await;
            _ = context.commands.disconnect(id).await;
        }
        ConnectionStage::Serving => {}
        ConnectionStage::Denied => metrics.count_handshake(HandshakeOutcome::Denied),
        ConnectionStage::Handshaking if matches!(end, LinkCloseReason::ByServer(..)) => {
            metrics.count_handshake(HandshakeOutcome::Refused)
        }
        ConnectionStage::Handshaking => metrics.count_handshake(HandshakeOutcome::Abandoned),
    }
    tracing::debug!(link = id.0, code = end.code(), "link closed");
    metrics.record_closed(W::TRANSPORT, end.code());
    wire.close(end).await;
}

// === impl ConnectionTask ===

impl<'a, W: LinkTransport> ConnectionTask<'a, W> {
    fn new(wire: &'a mut W, context: &'a LinkContext, arrival: &'a IncomingRequest) -> Self {
        let mailbox = context.links.open();
        let now = context.clock.now();
        let config = LinkConfig {
            node: context.node,
            connection_id: connection_id(context, &mailbox),
            resume_window_ms: 0,
            durability: context.durability,
            heartbeat_permille: heartbeat_permille(&mailbox),
            side_streams: W::HAS_SIDE_STREAMS,
        };
        Self {
            context,
            arrival,
            mailbox,
            link: Box::new(Link::new(now, config)),
            rates: RateLimiter::default(),
            made_request: false,
            now,
            wire,
            unflushed: false,
            pending_outputs: VecDeque::new(),
            timer: Box::pin(tokio::time::sleep(IDLE_TIMER)),
            timer_at: now.mono + IDLE_TIMER,
            stage: ConnectionStage::Handshaking,
            admitted: None,
            admitted_service: None,
        }
    }

    async fn run(&mut self) -> LinkCloseReason {
        loop {
            let event = self.next_event().await;
            if let Err(end) = Box::pin(self.handle_event(event)).await {
                return end;
            }
            match self.admitted_service.take().map(|arrived| *arrived) {
                Some(AdmittedService::Agent(agent)) => return Box::pin(self.serve_service(agent)).await,
                Some(AdmittedService::Runner(runner)) => return Box::pin(self.serve_service(runner)).await,
                None => {}
            }
        }
    }

    async fn handle_event(&mut self, event: ConnectionEvent) -> Result<(), LinkCloseReason> {
        self.now = self.context.clock.now();
        let is_idle = matches!(event, ConnectionEvent::Timer);
        let is_said =
            matches!(event, ConnectionEvent::Inbound(Ok(TransportEvent::Text(_) | TransportEvent::SignOfLife(_))));
        self.made_request = false;
        self.dispatch(event).await?;
        self.drain_and_flush().await?;
        // Answering with a refusal would add to the messages that are already too many.
        if is_said && !self.made_request && !self.rates.may_send_control(self.now.mono) {
            return Err(LinkCloseReason::ByServer(
                close_code::RATE_LIMITED,
                "too many messages without a request".into(),
            ));
        }
        if let Some(change) = self.wire.next_hold_change() {
            Box::pin(self.forward_holds(change)).await?;
        }
        // After the hold changes: credit that comes back must not be spent on sessions about to be held.
        if let Some(progress) = self.wire.take_side_report() {
            self.handle_input(Input::SideStreamProgress(progress));
            Box::pin(self.drain_outputs()).await?;
        }
        if self.wire.needs_new_buffers(is_idle) {
            // The transport may still have unflushed bytes.
            self.poll_transport(|wire, cx| wire.poll_flush(cx)).await?;
            self.wire.replace_buffers(is_idle).await;
        }
        Ok(())
    }

    /// Tells the switchboard for which sessions delivery has to pause or resume. A future of its own, because it is
    /// rare and must not enlarge the others.
    async fn forward_holds(&mut self, change: (SessionId, bool)) -> Result<(), LinkCloseReason> {
        let mut next = Some(change);
        while let Some((session, is_held)) = next {
            self.context.commands.reserve().await?.set_held(self.mailbox.id(), session, is_held);
            next = self.wire.next_hold_change();
        }
        Ok(())
    }

    async fn next_event(&mut self) -> ConnectionEvent {
        self.arm_timer();
        tokio::select! {
            item = self.mailbox.recv() => ConnectionEvent::Mailbox(item),
            event = self.wire.recv() => ConnectionEvent::Inbound(event),
            () = &mut self.timer => ConnectionEvent::Timer,
        }
    }

    async fn dispatch(&mut self, event: ConnectionEvent) -> Result<(), LinkCloseReason> {
        match event {
            ConnectionEvent::Mailbox(MailboxItem::Notes(notes)) => {
                for note in notes {
                    self.handle_note(note);
                    self.drain_outputs().await?;
                }
            }
            ConnectionEvent::Mailbox(MailboxItem::Close(fate)) => return Err(fate.into()),
            ConnectionEvent::Inbound(received) => self.handle_inbound(received?),
            ConnectionEvent::Timer => self.handle_timeout(),
        }
        Ok(())
    }

    /// Passes a note on; an adapter gets the tokens for files with it.
    fn handle_note(&mut self, note: Notification) {
        self.handle_input(Input::Note(file_rights::with_tokens(self.context, note)));
    }

    fn handle_inbound(&mut self, event: TransportEvent) {
        self.count_inbound(&event);
        match event {
            TransportEvent::Text(text) => self.handle_input(Input::Text(text)),
            TransportEvent::Binary(_) => self.handle_input(Input::Binary),
            TransportEvent::TooLarge => self.handle_input(Input::TooLarge),
            TransportEvent::SignOfLife(_) => self.handle_input(Input::SignOfLife),
            TransportEvent::SideStreams => {}
        }
    }

    /// Performs all outputs of the link, with one flush at the end, until there are none.
    async fn drain_and_flush(&mut self) -> Result<(), LinkCloseReason> {
        loop {
            self.drain_outputs().await?;
            if !self.unflushed {
                return Ok(());
            }
            self.poll_transport(|wire, cx| wire.poll_flush(cx)).await?;
            self.unflushed = false;
            self.handle_input(Input::Flushed);
        }
    }

    /// Performs the outputs that the link has now.
    async fn drain_outputs(&mut self) -> Result<(), LinkCloseReason> {
        while let Some(output) = self.pending_outputs.pop_front().or_else(|| self.link.poll_output()) {
            match output {
                Output::Write(text) => self.write(text).await?,
                Output::Event(LinkEvent::WriteSideStream(side_text)) => {
                    self.context.metrics.links.record_message(Direction::Out, side_text.text.len());
                    self.wire.write_side_stream(*side_text)?;
                }
                Output::Event(LinkEvent::EndSideStreams { session, run_id }) => {
                    self.wire.end_side_streams(&session, run_id.as_ref())
                }
                Output::Ping => self.send_heartbeat().await?,
                Output::Event(LinkEvent::Hello(hello)) => {
                    self.made_request = true;
                    Box::pin(self.handle_hello(hello)).await?;
                }
                Output::Refresh { request_id, token } => {
                    self.made_request = true;
                    Box::pin(self.handle_refresh(request_id, token)).await;
                }
                Output::Event(LinkEvent::Command(command)) => match self.check_rate(&command) {
                    Some(note) => self.handle_input(Input::Note(note)),
                    None => self.context.commands.reserve().await?.send_command(self.mailbox.id(), command),
                },
                Output::Event(LinkEvent::CommandDeferred) => self.made_request = true,
                Output::Event(LinkEvent::Written(weight)) => {
                    self.context.commands.reserve().await?.written(self.mailbox.id(), weight)
                }
                Output::Close { code, reason } => return Err(LinkCloseReason::ByServer(code, reason)),
            }
        }
        Ok(())
    }

    /// Returns the refusal of a command that exceeds a rate limit.
    fn check_rate(&mut self, command: &LinkCommand) -> Option<Notification> {
        self.made_request = true;
        self.rates.check_command(command, self.now.mono)
    }

    async fn write(&mut self, text: String) -> Result<(), LinkCloseReason> {
        self.poll_transport(|wire, cx| wire.poll_ready(cx)).await?;
        self.write_ready(text)
    }

    async fn send_heartbeat(&mut self) -> Result<(), LinkCloseReason> {
        self.poll_transport(|wire, cx| wire.poll_ready(cx)).await?;
        match self.send_heartbeat_ready()? {
            HeartbeatOutcome::Written => {}
            HeartbeatOutcome::Alive => self.handle_input(Input::SignOfLife),
        }
        Ok(())
    }

    /// Waits until the transport accepts what is written. Nothing is read meanwhile: a client that does not read may
    /// not send.
    async fn poll_transport(
        &mut self,
        mut poll: impl FnMut(&mut W, &mut Context<'_>) -> Poll<Result<(), LinkCloseReason>>,
    ) -> Result<(), LinkCloseReason> {
        loop {
            self.arm_timer();
            if self.wait_for_transport(&mut poll).await?.is_ready() {
                return Ok(());
            }
            self.handle_timeout();
            // The machine must be drained before its next input (law 1).
            while let Some(output) = self.link.poll_output() {
                match output {
                    // Earlier outputs cannot be written any more, so closing now loses nothing.
                    Output::Close { code, reason } => return Err(LinkCloseReason::ByServer(code, reason)),
                    Output::Write(_) | Output::Refresh { .. } | Output::Ping | Output::Event(_) => {
                        self.pending_outputs.push_back(output);
                    }
                }
            }
        }
    }

    fn handle_input(&mut self, input: Input) {
        self.link.handle_input(self.now, input);
    }

    fn handle_timeout(&mut self) {
        self.restart_timer();
        self.link.handle_timeout(self.now);
    }

    /// Sets the timer to the link's deadline or earlier.
    fn arm_timer(&mut self) {
        if let Some(deadline) = self.link.poll_timeout() {
            self.arm_timer_at(deadline.at);
        }
    }
}

// === the transport, for links and for services ===

impl<W: LinkTransport> ConnectionTask<'_, W> {
    fn count_inbound(&self, event: &TransportEvent) {
        if let Some(bytes) = event.bytes() {
            self.context.metrics.links.record_message(Direction::In, bytes);
        }
    }

    /// Writes a text. Requires that [`LinkTransport::poll_ready`] was ready.
    fn write_ready(&mut self, text: String) -> Result<(), LinkCloseReason> {
        self.context.metrics.links.record_message(Direction::Out, text.len());
        self.unflushed = true;
        self.wire.write(text)
    }

    /// Sends a heartbeat. Requires that [`LinkTransport::poll_ready`] was ready.
    fn send_heartbeat_ready(&mut self) -> Result<HeartbeatOutcome, LinkCloseReason> {
        let outcome = self.wire.heartbeat()?;
        match outcome {
            HeartbeatOutcome::Written => {
                self.context.metrics.links.record_message(Direction::Out, 0);
                self.unflushed = true;
            }
            HeartbeatOutcome::Alive => {}
        }
        Ok(outcome)
    }

    /// Waits until the transport is ready by `poll`, or, as `Pending`, until the timer has expired.
    async fn wait_for_transport(
        &mut self,
        poll: &mut impl FnMut(&mut W, &mut Context<'_>) -> Poll<Result<(), LinkCloseReason>>,
    ) -> Result<Poll<()>, LinkCloseReason> {
        let wire = &mut *self.wire;
        tokio::select! {
            biased;
            done = poll_fn(|cx| poll(&mut *wire, cx)) => done.map(Poll::Ready),
            () = &mut self.timer => {
                self.now = self.context.clock.now();
                Ok(Poll::Pending)
            }
            fate = self.mailbox.wait_close() => Err(fate.into()),
        }
    }

    /// Sets the timer to expire after the longest time, before the machine says its next deadline.
    fn restart_timer(&mut self) {
        self.timer_at = self.now.mono + IDLE_TIMER;
        self.timer.as_mut().reset(Instant::now() + IDLE_TIMER);
    }

    fn arm_timer_at(&mut self, at: Mono) {
        if at < self.timer_at {
            self.timer_at = at;
            let wait = at - self.context.clock.mono();
            self.timer.as_mut().reset(Instant::now() + wait);
        }
    }
}

/// Returns the id of a connection, which is unique in the fleet.
fn connection_id(context: &LinkContext, mailbox: &MailboxHandle) -> String {
    let node = format!("{}", context.node);
    format!("{}-{}", &node[..8], mailbox.id().0)
}

/// Returns a spread of heartbeat intervals: links with neighbouring ids beat far apart. Any spread is sufficient.
fn heartbeat_permille(mailbox: &MailboxHandle) -> u32 {
    900 + u32::try_from(mailbox.id().0.wrapping_mul(83) % 201).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::super::websocket::WebSocket;
    use super::*;

    fn step<'b, 'a, F: Future>(_: fn(&'b mut ConnectionTask<'a, WebSocket>, ConnectionEvent) -> F) -> usize {
        size_of::<F>()
    }

    /// Every event of every link allocates this future for a moment. Above 1 KiB the allocator takes its slow path,
    /// which costs 3 to 8 us a turn.
    #[test]
    fn connection_event_future_stays_small() {
        let size = step(ConnectionTask::handle_event);
        assert!(size <= 1024, "{size}");
    }

    fn size<'a, F: Future>(_: fn(Box<WebSocket>, &'a LinkContext, IncomingRequest) -> F) -> usize {
        size_of::<F>()
    }

    /// Covers: G-15.
    #[test]
    fn idle_link_future_stays_small() {
        let task = size(serve);
        let link = size_of::<Link>();
        let socket = size_of::<WebSocket>();
        assert!(task + link + socket <= 1280, "task {task}, link {link}, socket {socket}");
    }
}
