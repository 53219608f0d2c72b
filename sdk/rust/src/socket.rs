//! The driver task of a client: owns the connection, performs the outputs of [`ClientState`], and passes events to
//! the application. Spawned by the client's handle.
use crate::client::{Command, Token, What};
use crate::error::ClientError;
use crate::event::Event;
use crate::fx::{Lost, Output};
use crate::limits;
use crate::road::{Gateway, Heard, Road};
use crate::state::ClientState;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until, timeout};

/// A second connection attempt, which results in a connection and its first message.
type Sparing = Pin<Box<dyn Future<Output = Option<(Road, String)>> + Send>>;
type Dialing = Pin<Box<dyn Future<Output = Result<Road, Lost>> + Send>>;

/// The task between a [`ClientState`], its connection, and the application.
pub(crate) struct Driver {
    state: ClientState,
    gateway: Gateway,
    started: Instant,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
    /// Events for which the application's channel is full; while there are any, nothing is read.
    waiting: VecDeque<Event>,
    road: Option<Road>,
    /// The end of a run that arrived before its text, and the time until which it waits for the text.
    early: Option<(String, Instant)>,
    dialing: Option<Dialing>,
    /// The connection being tried beside a silent one.
    sparing: Option<Sparing>,
    quit: bool,
}

/// The reason why the driver woke up.
enum Woken {
    Room,
    Command(Option<Command>),
    Dialed(Result<Road, Lost>),
    Heard(Heard),
    Spared(Option<(Road, String)>),
    Time,
    Enough,
    Alone,
}

impl Driver {
    pub(crate) fn new(
        state: ClientState,
        gateway: Gateway,
        commands: mpsc::Receiver<Command>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        let (started, waiting) = (Instant::now(), VecDeque::new());
        Self {
            state,
            gateway,
            started,
            commands,
            events,
            waiting,
            road: None,
            early: None,
            dialing: None,
            sparing: None,
            quit: false,
        }
    }

    /// Runs until the application drops its handles, or the client has ended and all events are delivered.
    pub(crate) async fn run(mut self) {
        loop {
            self.perform().await;
            if self.quit || (self.state.is_over() && self.waiting.is_empty()) {
                break;
            }
            match self.wake().await {
                Woken::Room => {
                    if self.waiting.is_empty() {
                        // Reads were paused, so this is not a silence of the gateway.
                        self.state.handle_bytes(self.now());
                    }
                }
                Woken::Command(Some(command)) => self.handle_command(command),
                Woken::Dialed(Ok(road)) => {
                    (self.dialing, self.road, self.early) = (None, Some(road), None);
                    self.state.handle_open(self.now());
                }
                Woken::Dialed(Err(lost)) => {
                    self.dialing = None;
                    self.state.handle_lost(self.now(), lost);
                }
                Woken::Heard(heard) => self.handle_heard(heard),
                Woken::Enough => self.tell_end(true),
                Woken::Spared(spared) => self.handle_spared(spared),
                Woken::Time => self.handle_time(),
                Woken::Alone | Woken::Command(None) => break,
            }
        }
        self.hang_up().await;
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    async fn wake(&mut self) -> Woken {
        let calm = self.waiting.is_empty();
        let deadline = self.state.poll_timeout().map(|at| self.started + at);
        let wait = async move {
            match deadline {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let (road, dialing, early) = (&mut self.road, &mut self.dialing, &self.early);
        let heard = async move {
            match road {
                Some(road) => road.hear(early.is_some()).await,
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
            room = self.events.reserve(), if !calm => {
                let (Ok(room), Some(event)) = (room, self.waiting.pop_front()) else { return Woken::Alone };
                room.send(event);
                Woken::Room
            }
            () = self.events.closed(), if calm => Woken::Alone,
            command = self.commands.recv() => Woken::Command(command),
            dialed = dialed => Woken::Dialed(dialed),
            () = wait, if calm => Woken::Time,
            heard = heard, if calm => Woken::Heard(heard),
            spared = spared, if calm => Woken::Spared(spared),
            () = enough, if calm => Woken::Enough,
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
                Output::Dial => self.dialing = Some(Box::pin(Road::dial(self.gateway.clone()))),
                Output::Tell(event) => self.tell(event),
                Output::Hangup => self.hang_up().await,
                Output::Spare(hello) => {
                    self.sparing = Some(Box::pin(Road::greet(self.gateway.clone(), hello)));
                }
                Output::DropSpare => self.sparing = None,
                Output::Send(text) => self.send(text).await,
            }
        }
    }

    /// Delivers an event in order, without waiting while the channel has room.
    fn tell(&mut self, event: Event) {
        if !self.waiting.is_empty() {
            return self.waiting.push_back(event);
        }
        if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) {
            self.waiting.push_back(event);
        }
    }

    async fn send(&mut self, text: String) {
        if let Some(road) = &mut self.road {
            let sent = timeout(limits::WRITE_TIMEOUT, road.feed(text)).await;
            self.check_written(sent);
        }
    }

    async fn flush(&mut self) {
        if let Some(road) = &mut self.road {
            let sent = timeout(limits::WRITE_TIMEOUT, road.flush()).await;
            self.check_written(sent);
        }
    }

    fn check_written(&mut self, written: Result<Result<(), String>, Elapsed>) {
        match written {
            Ok(Ok(())) => {}
            // Reading continues: the close frame with the reason may still arrive.
            Ok(Err(error)) => tracing::debug!(%error, "a write failed"),
            Err(_) => {
                self.forget_road();
                let reason = "the gateway does not accept data".to_owned();
                self.state.handle_lost(self.now(), Lost { code: None, reason, refused: false });
            }
        }
    }

    async fn hang_up(&mut self) {
        (self.dialing, self.sparing, self.early) = (None, None, None);
        if let Some(road) = self.road.take() {
            // A clean close is optional: the gateway notices a lost connection too.
            let _ = timeout(limits::CLOSE_TIMEOUT, road.close()).await;
        }
    }

    fn forget_road(&mut self) {
        (self.road, self.sparing, self.early) = (None, None, None);
    }

    // --- handling events ---

    fn handle_time(&mut self) {
        // While a run's end waits for its text no control message is read, but acknowledgements still show that the
        // gateway lives.
        if self.early.is_some() && self.road.as_mut().is_some_and(Road::lives) {
            self.state.handle_bytes(self.now());
        }
        self.state.handle_timeout(self.now());
    }

    /// Handles the result of the second connection attempt: switches to it if its first message is accepted.
    fn handle_spared(&mut self, spared: Option<(Road, String)>) {
        self.sparing = None;
        let Some((road, text)) = spared else { return };
        let now = self.now();
        if !self.state.handle_spare(now, &text) {
            return road.leave();
        }
        self.early = None;
        if let Some(before) = self.road.replace(road) {
            before.leave();
        }
    }

    fn handle_heard(&mut self, heard: Heard) {
        let now = self.now();
        match heard {
            Heard::Text(text) => {
                if self.road.as_ref().is_some_and(Road::has_streams) && self.state.lacks_text(&text) {
                    self.early = Some((text, Instant::now() + limits::TEXT_TIMEOUT));
                    return self.state.handle_bytes(now);
                }
                self.state.handle_text(now, &text);
            }
            Heard::Aside(text) => {
                self.state.handle_text(now, &text);
                if let Some((_, until)) = &mut self.early {
                    // The text is still arriving.
                    *until = Instant::now() + limits::TEXT_TIMEOUT;
                }
            }
            Heard::Bytes => self.state.handle_bytes(now),
            Heard::Lost(lost) => {
                self.forget_road();
                return self.state.handle_lost(now, lost);
            }
        }
        self.tell_end(false);
    }

    /// Delivers a run's end that arrived before its text, once the text is complete or the wait is over.
    fn tell_end(&mut self, is_enough: bool) {
        let state = &self.state;
        if let Some((text, _)) = self.early.take_if(|(text, _)| is_enough || !state.lacks_text(text)) {
            self.state.handle_text(self.now(), &text);
        }
    }

    fn handle_command(&mut self, command: Command) {
        let Command { session, what, answer } = command;
        if self.waiting.len() >= limits::EVENTS_MAX {
            let full = ClientError::TooMany { what: "undelivered events", max: limits::EVENTS_MAX };
            let _: Result<(), Result<(), ClientError>> = answer.send(Err(full));
            return;
        }
        let (now, state) = (self.now(), &mut self.state);
        let done = match what {
            What::Subscribe(wish) => state.subscribe(now, &session, wish),
            What::Invoke(invoke) => state.invoke(now, &session, invoke),
            What::Cancel(run) => state.cancel(now, &session, run),
            What::Decide(what) => state.decide(now, &session, what),
            What::Members(change) => state.change_members(now, &session, change),
            What::Open(open) => state.open(now, &session, open),
            What::Close => state.close(now, &session),
            What::Bookmark => state.bookmark(now, &session),
            What::Resume(mark) => state.resume(now, *mark),
            What::Leave => {
                state.leave(now, &session);
                Ok(())
            }
            What::Refresh(Token(token)) => state.refresh(now, token),
            What::Quit => {
                self.quit = true;
                Ok(())
            }
        };
        // The caller may have been dropped; its request still counts.
        let _: Result<(), Result<(), ClientError>> = answer.send(done);
    }
}
