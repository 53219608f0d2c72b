//! The client's hands: one task, one WebSocket at a time, doing what [`ClientState`] says.
use crate::client::{Command, Token, What};
use crate::error::ClientError;
use crate::event::Event;
use crate::fx::{Lost, Output};
use crate::limits;
use crate::state::ClientState;
use crate::trust::trust;
use futures_util::{SinkExt, StreamExt};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderValue, header::SEC_WEBSOCKET_PROTOCOL};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config};

/// On the heap: TLS is large, and it is handed around.
type Socket = Box<WebSocketStream<MaybeTlsStream<TcpStream>>>;
type Dialing = Pin<Box<dyn Future<Output = Result<Socket, Lost>> + Send>>;

/// The task between a [`ClientState`] and the world.
pub(crate) struct Driver {
    state: ClientState,
    endpoint: String,
    started: Instant,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
    /// What the application has no room for yet; while there is any, nothing is read.
    waiting: VecDeque<Event>,
    socket: Option<Socket>,
    dialing: Option<Dialing>,
    quit: bool,
}

/// What the driver woke up for.
enum Woken {
    Room,
    Command(Option<Command>),
    Dialed(Result<Socket, Lost>),
    Heard(Option<Result<Message, Error>>),
    Time,
    Alone,
}

impl Driver {
    pub(crate) fn new(
        state: ClientState,
        endpoint: String,
        commands: mpsc::Receiver<Command>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        let (started, waiting) = (Instant::now(), VecDeque::new());
        Self { state, endpoint, started, commands, events, waiting, socket: None, dialing: None, quit: false }
    }

    /// Drives until the application has gone or the client is over and all is told.
    pub(crate) async fn run(mut self) {
        loop {
            self.perform().await;
            if self.quit || (self.state.is_over() && self.waiting.is_empty()) {
                break;
            }
            match self.wake().await {
                Woken::Room => {
                    if self.waiting.is_empty() {
                        // Nothing was read meanwhile, which says nothing about the gateway.
                        self.state.handle_bytes(self.now());
                    }
                }
                Woken::Command(Some(command)) => self.handle_command(command),
                Woken::Dialed(Ok(socket)) => {
                    (self.dialing, self.socket) = (None, Some(socket));
                    self.state.handle_open(self.now());
                }
                Woken::Dialed(Err(lost)) => {
                    self.dialing = None;
                    self.state.handle_lost(self.now(), lost);
                }
                Woken::Heard(heard) => self.handle_heard(heard),
                Woken::Time => self.state.handle_timeout(self.now()),
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
        let (socket, dialing) = (&mut self.socket, &mut self.dialing);
        let heard = async move {
            match socket {
                Some(socket) => socket.next().await,
                None => std::future::pending().await,
            }
        };
        let dialed = async move {
            match dialing {
                Some(dialing) => dialing.await,
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
        }
    }

    // --- what the state wants ---

    async fn perform(&mut self) {
        self.perform_all().await;
        self.flush().await;
        // A flush that finds the connection gone has more to say.
        self.perform_all().await;
    }

    async fn perform_all(&mut self) {
        while let Some(output) = self.state.poll_output() {
            match output {
                Output::Dial => self.dialing = Some(Box::pin(dial(self.endpoint.clone()))),
                Output::Tell(event) => self.tell(event),
                Output::Hangup => self.hang_up().await,
                Output::Send(text) => self.send(text).await,
            }
        }
    }

    /// In order, and without waiting as long as there is room.
    fn tell(&mut self, event: Event) {
        if !self.waiting.is_empty() {
            return self.waiting.push_back(event);
        }
        if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) {
            self.waiting.push_back(event);
        }
    }

    async fn send(&mut self, text: String) {
        if let Some(socket) = &mut self.socket {
            let sent = timeout(limits::WRITE_TIMEOUT, socket.feed(Message::text(text))).await;
            self.check_written(sent);
        }
    }

    async fn flush(&mut self) {
        if let Some(socket) = &mut self.socket {
            let sent = timeout(limits::WRITE_TIMEOUT, socket.flush()).await;
            self.check_written(sent);
        }
    }

    fn check_written(&mut self, written: Result<Result<(), Error>, Elapsed>) {
        match written {
            Ok(Ok(())) => {}
            // Read on: the close frame that says why may still be on its way.
            Ok(Err(error)) => tracing::debug!(%error, "a write failed"),
            Err(_) => {
                self.socket = None;
                let reason = "the gateway takes nothing".to_owned();
                self.state.handle_lost(self.now(), Lost { code: None, reason, refused: false });
            }
        }
    }

    async fn hang_up(&mut self) {
        self.dialing = None;
        if let Some(mut socket) = self.socket.take() {
            // Politeness only; the gateway notices a lost connection too.
            let _ = timeout(limits::CLOSE_TIMEOUT, socket.as_mut().close(None)).await;
        }
    }

    // --- what happens ---

    fn handle_heard(&mut self, heard: Option<Result<Message, Error>>) {
        let now = self.now();
        let lost = match heard {
            Some(Ok(Message::Text(text))) => return self.state.handle_text(now, &text),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_) | Message::Frame(_))) => {
                return self.state.handle_bytes(now);
            }
            Some(Ok(Message::Close(close))) => {
                let code = close.as_ref().map(|close| u16::from(close.code));
                let reason = close.map(|close| close.reason.to_string()).filter(|reason| !reason.is_empty());
                let reason = reason.unwrap_or_else(|| "the gateway closed the connection".to_owned());
                Lost { code, reason, refused: false }
            }
            Some(Err(error)) => Lost { code: None, reason: error.to_string(), refused: false },
            None => Lost { code: None, reason: "the connection ended".to_owned(), refused: false },
        };
        self.socket = None;
        self.state.handle_lost(now, lost);
    }

    fn handle_command(&mut self, command: Command) {
        let Command { session, what, answer } = command;
        if self.waiting.len() >= limits::EVENTS_MAX {
            let full = ClientError::TooMany { what: "events not taken", max: limits::EVENTS_MAX };
            let _: Result<(), Result<(), ClientError>> = answer.send(Err(full));
            return;
        }
        let (now, state) = (self.now(), &mut self.state);
        let done = match what {
            What::Subscribe(wish) => state.subscribe(now, &session, wish),
            What::Invoke(invoke) => state.invoke(now, &session, invoke),
            What::Cancel(run) => state.cancel(now, &session, run),
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
        // Whoever asked may have gone; what was asked stands.
        let _: Result<(), Result<(), ClientError>> = answer.send(done);
    }
}

async fn dial(endpoint: String) -> Result<Socket, Lost> {
    let lost = |reason: String, refused| Lost { code: None, reason, refused };
    let mut request =
        endpoint.as_str().into_client_request().map_err(|error| lost(error.to_string(), true))?;
    request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("turnway.v1"));
    let config = WebSocketConfig::default()
        .max_message_size(Some(limits::INCOMING_BYTES_MAX))
        .max_frame_size(Some(limits::INCOMING_BYTES_MAX))
        .max_write_buffer_size(2 * limits::INCOMING_BYTES_MAX);
    let tls = endpoint.starts_with("wss:").then(|| Connector::Rustls(trust()));
    let connecting = connect_async_tls_with_config(request, Some(config), true, tls);
    match timeout(limits::CONNECT_TIMEOUT, connecting).await {
        Ok(Ok((socket, _))) => Ok(Box::new(socket)),
        Ok(Err(Error::Http(answer))) => {
            let status = answer.status();
            // Everything else may pass: a proxy whose nodes are away, a node that is starting.
            let refused = matches!(status.as_u16(), 401 | 403);
            Err(lost(format!("the gateway answers HTTP {status}"), refused))
        }
        Ok(Err(error)) => Err(lost(error.to_string(), false)),
        Err(_) => Err(lost("no connection within 10 s".to_owned(), false)),
    }
}
