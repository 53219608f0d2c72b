//! The driver task of a client: owns the connection, performs the outputs of [`ClientState`], and passes events to
//! the application. Spawned by the client's handle.
use crate::client::{DriverAction, DriverCommand, SecretToken};
use crate::error::ClientError;
use crate::event::Event;
use crate::limits;
use crate::output::{Lost, Output};
use crate::state::ClientState;
use crate::transport::{ClientTransport, GatewayAddress, Received};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// A second connection attempt, which results in a connection and its first message.
type SpareDial = Pin<Box<dyn Future<Output = Option<(ClientTransport, String)>> + Send>>;
type PendingDial = Pin<Box<dyn Future<Output = Result<ClientTransport, Lost>> + Send>>;

/// The task between a [`ClientState`], its connection, and the application.
pub(crate) struct ClientDriver {
    state: ClientState,
    gateway: GatewayAddress,
    started: Instant,
    commands: mpsc::Receiver<DriverCommand>,
    events: mpsc::Sender<Event>,
    /// Events for which the application's channel is full; while there are any, nothing is read.
    pending_events: VecDeque<Event>,
    transport: Option<ClientTransport>,
    /// The end of a run that arrived before its text, and the time until which it waits for the text.
    early_end: Option<(String, Instant)>,
    dialing: Option<PendingDial>,
    /// The connection being tried beside a silent one.
    sparing: Option<SpareDial>,
    quit: bool,
}

/// The reason why the driver woke up.
enum WakeReason {
    EventSent,
    Command(Option<DriverCommand>),
    Dialed(Result<ClientTransport, Lost>),
    Received(Received),
    Spared(Option<(ClientTransport, String)>),
    Timeout,
    TextTimeout,
    Abandoned,
}

impl ClientDriver {
    pub(crate) fn new(
        state: ClientState,
        gateway: GatewayAddress,
        commands: mpsc::Receiver<DriverCommand>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        let started = Instant::now();
        let pending_events = VecDeque::new();
        Self {
            state,
            gateway,
            started,
            commands,
            events,
            pending_events,
            transport: None,
            early_end: None,
            dialing: None,
            sparing: None,
            quit: false,
        }
    }

    /// Runs until the application drops its handles, or the client has ended and all events are delivered.
    pub(crate) async fn run(mut self) {
        loop {
            self.perform().await;
            if self.quit || (self.state.is_over() && self.pending_events.is_empty()) {
                break;
            }
            match self.next_wake().await {
                WakeReason::EventSent => {
                    if self.pending_events.is_empty() {
                        // Reads were paused, so this is not a silence of the gateway.
                        self.state.handle_bytes(self.now());
                    }
                }
                WakeReason::Command(Some(command)) => self.handle_command(command),
                WakeReason::Dialed(Ok(transport)) => {
                    (self.dialing, self.transport, self.early_end) = (None, Some(transport), None);
                    self.state.handle_open(self.now());
                }
                WakeReason::Dialed(Err(lost)) => {
                    self.dialing = None;
                    self.state.handle_lost(self.now(), lost);
                }
                WakeReason::Received(received) => self.handle_received(received),
                WakeReason::TextTimeout => self.emit_early_end(true),
                WakeReason::Spared(spared) => self.handle_spared(spared),
                WakeReason::Timeout => self.handle_time(),
                WakeReason::Abandoned | WakeReason::Command(None) => break,
            }
        }
        self.hang_up().await;
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    async fn next_wake(&mut self) -> WakeReason {
        let calm = self.pending_events.is_empty();
        let deadline = self.state.poll_timeout().map(|at| self.started + at);
        let wait = async move {
            match deadline {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let transport = &mut self.transport;
        let dialing = &mut self.dialing;
        let early = &self.early_end;
        let received = async move {
            match transport {
                Some(transport) => transport.recv(early.is_some()).await,
                None => std::future::pending().await,
            }
        };
        let enough = async move {
            match early {
                Some((_, until)) => sleep_until(*until).await,
                None => std::future::pending().await,
            }
        };
        let dialed = async move {
            match dialing {
                Some(dialing) => dialing.await,
                None => std::future::pending().await,
            }
        };
        let sparing = &mut self.sparing;
        let spared = async move {
            match sparing {
                Some(sparing) => sparing.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            permit = self.events.reserve(), if !calm => {
                let (Ok(permit), Some(event)) = (permit, self.pending_events.pop_front()) else {
                    return WakeReason::Abandoned;
                };
                permit.send(event);
                WakeReason::EventSent
            }
            () = self.events.closed(), if calm => WakeReason::Abandoned,
            command = self.commands.recv() => WakeReason::Command(command),
            dialed = dialed => WakeReason::Dialed(dialed),
            () = wait, if calm => WakeReason::Timeout,
            received = received, if calm => WakeReason::Received(received),
            spared = spared, if calm => WakeReason::Spared(spared),
            () = enough, if calm => WakeReason::TextTimeout,
        }
    }

    // --- performing outputs ---

    async fn perform(&mut self) {
        self.perform_all().await;
        self.flush().await;
        // A flush that finds the connection lost adds outputs.
        self.perform_all().await;
    }

    async fn perform_all(&mut self) {
        while let Some(output) = self.state.poll_output() {
            match output {
                Output::Dial => self.dialing = Some(Box::pin(ClientTransport::dial(self.gateway.clone()))),
                Output::Event(event) => self.emit(event),
                Output::Hangup => self.hang_up().await,
                Output::DialSpare(hello) => {
                    self.sparing = Some(Box::pin(ClientTransport::dial_and_greet(self.gateway.clone(), hello)));
                }
                Output::DropSpare => self.sparing = None,
                Output::Send(text) => self.send(text).await,
            }
        }
    }

    /// Delivers an event in order, without waiting while the channel has room.
    fn emit(&mut self, event: Event) {
        if !self.pending_events.is_empty() {
            return self.pending_events.push_back(event);
        }
        if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) {
            self.pending_events.push_back(event);
        }
    }

    async fn send(&mut self, text: String) {
        if let Some(transport) = &mut self.transport {
            let sent = transport.feed_in_time(text).await;
            self.check_written(sent);
        }
    }

    async fn flush(&mut self) {
        if let Some(transport) = &mut self.transport {
            let sent = transport.flush_in_time().await;
            self.check_written(sent);
        }
    }

    fn check_written(&mut self, written: Result<(), Lost>) {
        if let Err(lost) = written {
            self.drop_transport();
            self.state.handle_lost(self.now(), lost);
        }
    }

    async fn hang_up(&mut self) {
        (self.dialing, self.sparing, self.early_end) = (None, None, None);
        if let Some(transport) = self.transport.take() {
            transport.close().await;
        }
    }

    fn drop_transport(&mut self) {
        (self.transport, self.sparing, self.early_end) = (None, None, None);
    }

    // --- handling events ---

    fn handle_time(&mut self) {
        // While a run's end waits for its text no control message is read, but acknowledgements still show that the
        // gateway lives.
        if self.early_end.is_some() && self.transport.as_mut().is_some_and(ClientTransport::has_new_activity) {
            self.state.handle_bytes(self.now());
        }
        self.state.handle_timeout(self.now());
    }

    /// Handles the result of the second connection attempt: switches to it if its first message is accepted.
    fn handle_spared(&mut self, spared: Option<(ClientTransport, String)>) {
        self.sparing = None;
        let Some((transport, text)) = spared else { return };
        let now = self.now();
        if !self.state.handle_spare(now, &text) {
            return transport.abort();
        }
        self.early_end = None;
        if let Some(before) = self.transport.replace(transport) {
            before.abort();
        }
    }

    fn handle_received(&mut self, received: Received) {
        let now = self.now();
        match received {
            Received::Text(text) => {
                if self.transport.as_ref().is_some_and(ClientTransport::has_streams) && self.state.lacks_text(&text) {
                    self.early_end = Some((text, Instant::now() + limits::TEXT_TIMEOUT));
                    return self.state.handle_bytes(now);
                }
                self.state.handle_text(now, &text);
            }
            Received::UnorderedText(text) => {
                self.state.handle_text(now, &text);
                if let Some((_, until)) = &mut self.early_end {
                    // The text is still arriving.
                    *until = Instant::now() + limits::TEXT_TIMEOUT;
                }
            }
            Received::Activity => self.state.handle_bytes(now),
            Received::Lost(lost) => {
                self.drop_transport();
                return self.state.handle_lost(now, lost);
            }
        }
        self.emit_early_end(false);
    }

    /// Delivers a run's end that arrived before its text, once the text is complete or the wait is over.
    fn emit_early_end(&mut self, is_enough: bool) {
        let state = &self.state;
        if let Some((text, _)) = self.early_end.take_if(|(text, _)| is_enough || !state.lacks_text(text)) {
            self.state.handle_text(self.now(), &text);
        }
    }

    fn handle_command(&mut self, command: DriverCommand) {
        let DriverCommand { session, action: what, answer } = command;
        if self.pending_events.len() >= limits::EVENTS_MAX {
            let full = ClientError::TooMany { what: "undelivered events", max: limits::EVENTS_MAX };
            let _: Result<(), Result<(), ClientError>> = answer.send(Err(full));
            return;
        }
        let now = self.now();
        let state = &mut self.state;
        let done = match what {
            DriverAction::Subscribe(request) => state.subscribe(now, &session, request),
            DriverAction::Invoke(invoke) => state.invoke(now, &session, invoke),
            DriverAction::Cancel(run) => state.cancel(now, &session, run),
            DriverAction::DecideHandover(what) => state.decide(now, &session, what),
            DriverAction::Members(change) => state.change_members(now, &session, change),
            DriverAction::Open(open) => state.open(now, &session, open),
            DriverAction::Close => state.close(now, &session),
            DriverAction::Bookmark => state.bookmark(now, &session),
            DriverAction::Resume(mark) => state.resume(now, *mark),
            DriverAction::Leave => {
                state.leave(now, &session);
                Ok(())
            }
            DriverAction::Refresh(SecretToken(token)) => state.refresh(now, token),
            DriverAction::Shutdown => {
                self.quit = true;
                Ok(())
            }
        };
        // The caller may have been dropped; its request still counts.
        let _: Result<(), Result<(), ClientError>> = answer.send(done);
    }
}
