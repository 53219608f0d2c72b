//! One link from its first byte to its last: a [`Link`] machine between a socket, the door and the
//! switchboard. One task, one timer, and nothing else while it is idle.
//!
//! - `credential`: what it shows of itself.
mod credential;

use super::Arrival;
use super::end::End;
use super::seam::Seam;
use super::upgrade::{Reception, refit};
use super::wear::Wear;
use crate::door::Admitted;
use crate::links::{Mail, Seat};
use crate::metrics::{Direction, Handshake};
use crate::rates::Pass;
use futures_util::{FutureExt, Sink, SinkExt, StreamExt};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, Sleep};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Bytes, Error, Message};
use turnway_bindings::link::{Input, Link, LinkConfig, Output};
use turnway_core::id::LinkId;
use turnway_core::machine::Machine;
use turnway_core::time::{Mono, Now};

/// A WebSocket over a connection.
pub(super) type Socket = WebSocketStream<Seam>;

/// From our close frame to hanging up: a client that has left need not be waited for.
const FAREWELL: Duration = Duration::from_secs(2);
/// A timer where the link has no deadline.
const LONG: Duration = Duration::from_secs(3600);

/// A link while it lasts.
struct Visit<'a> {
    reception: &'a Reception,
    arrival: &'a Arrival,
    seat: Seat,
    link: Box<Link>,
    /// How often it may ask.
    pass: Pass,
    /// When the event at hand came: reading two clocks for every note would cost more than writing it.
    now: Now,
    socket: &'a mut Socket,
    /// Written but not flushed.
    unflushed: bool,
    /// How much may have grown in the codec's buffers since it was fresh.
    wear: Wear,
    /// What the link wanted while its socket was stuck.
    held: VecDeque<Output>,
    alarm: Pin<Box<Sleep>>,
    /// When the alarm goes off. It may be earlier than the link's deadline: waking up for nothing
    /// costs less than setting it anew with every message.
    armed: Mono,
    stage: Stage,
    /// Who it is, where that has to be shown again.
    admitted: Option<Box<Admitted>>,
}

/// How far a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Stranger,
    Denied,
    /// The switchboard knows it, and must be told when it is gone.
    Connected,
}

/// What woke a link.
enum Event {
    Mail(Mail),
    Heard(Option<Result<Message, Error>>),
    Alarm,
}

/// Serves one client until it or we have had enough. Whatever is only needed while there is something
/// to do lives on the heap meanwhile: the rest is what an idle link costs.
pub(super) async fn serve(mut socket: Box<Socket>, reception: &Reception, arrival: Arrival) {
    reception.metrics.links.opened();
    let mut visit = Visit::new(&mut socket, reception, &arrival);
    let id = visit.seat.id();
    // The switchboard must hear of the end also where the end is a bug of ours.
    let end = AssertUnwindSafe(visit.run()).catch_unwind().await;
    let end = end.unwrap_or(End::Close(1011, "internal error".into()));
    let stage = visit.stage;
    drop(visit);
    Box::pin(finish(socket, reception, id, stage, end)).await;
}

async fn finish(socket: Box<Socket>, reception: &Reception, id: LinkId, stage: Stage, end: End) {
    let metrics = &reception.metrics.links;
    match stage {
        // Without a switchboard there is nobody left to tell.
        Stage::Connected => _ = reception.board.disconnect(id).await,
        Stage::Denied => metrics.began(Handshake::Denied),
        Stage::Stranger if matches!(end, End::Close(..)) => metrics.began(Handshake::Refused),
        Stage::Stranger => metrics.began(Handshake::Abandoned),
    }
    tracing::debug!(link = id.0, code = end.code(), "link closed");
    metrics.closed(end.code());
    let mut socket = socket;
    let goodbye = async {
        match end {
            End::Close(code, reason) => {
                let reason = reason.into_owned().into();
                (*socket).close(Some(CloseFrame { code: code.into(), reason })).await.ok();
            }
            // The codec holds the answer to the client's own close frame; a second one it would refuse.
            End::Closed(_) => _ = socket.flush().await,
            End::Lost => return,
        }
        hang_up(&mut socket).await;
    };
    let _ = tokio::time::timeout(FAREWELL, goodbye).await;
}

/// Waits a little until the client has heard why: a socket that is closed while unread bytes wait in it is
/// reset, and the reason is lost (RFC 6455 §7.1.1).
async fn hang_up(socket: &mut Socket) {
    let Some(mut stream) = socket.get_mut().take() else { return };
    stream.shutdown().await.ok();
    let mut unread = [0; 512];
    while stream.read(&mut unread).await.is_ok_and(|count| count > 0) {}
}

// === impl Visit ===

impl<'a> Visit<'a> {
    fn new(socket: &'a mut Socket, reception: &'a Reception, arrival: &'a Arrival) -> Self {
        let seat = reception.links.open();
        let now = reception.clock.now();
        let node = format!("{}", reception.node);
        let config = LinkConfig {
            node: reception.node,
            connection_id: format!("{}-{}", &node[..8], seat.id().0),
            resume_window_ms: 0,
            durability: reception.durability,
            // Any spread will do: neighbours get heartbeats far from each other.
            heartbeat_permille: 900 + u32::try_from(seat.id().0.wrapping_mul(83) % 201).unwrap_or(100),
        };
        Self {
            reception,
            arrival,
            seat,
            link: Box::new(Link::new(now, config)),
            pass: Pass::default(),
            now,
            socket,
            unflushed: false,
            wear: Wear::default(),
            held: VecDeque::new(),
            alarm: Box::pin(tokio::time::sleep(LONG)),
            armed: now.mono + LONG,
            stage: Stage::Stranger,
            admitted: None,
        }
    }

    async fn run(&mut self) -> End {
        loop {
            let event = self.wait().await;
            if let Err(end) = Box::pin(self.work(event)).await {
                return end;
            }
        }
    }

    async fn work(&mut self, event: Event) -> Result<(), End> {
        self.now = self.reception.clock.now();
        let is_idle = matches!(event, Event::Alarm);
        self.take(event).await?;
        self.perform().await?;
        if self.wear.is_due(is_idle) && self.socket.get_ref().is_between() {
            self.refit(is_idle).await?;
        }
        Ok(())
    }

    /// Gives the socket a fresh codec: the old one would keep its buffers for as long as the link lives.
    async fn refit(&mut self, is_idle: bool) -> Result<(), End> {
        // The codec may still owe a pong.
        self.push(|socket, cx| socket.poll_flush(cx)).await?;
        let seam = std::mem::take(self.socket.get_mut());
        *self.socket = refit(seam, is_idle).await;
        self.wear = Wear::fresh(is_idle);
        Ok(())
    }

    async fn wait(&mut self) -> Event {
        self.arm();
        tokio::select! {
            mail = self.seat.mail() => Event::Mail(mail),
            heard = self.socket.next() => Event::Heard(heard),
            () = &mut self.alarm => Event::Alarm,
        }
    }

    async fn take(&mut self, event: Event) -> Result<(), End> {
        match event {
            Event::Mail(Mail::Notes(notes)) => {
                for note in notes {
                    self.tell(Input::Note(note));
                    self.drain().await?;
                }
            }
            Event::Mail(Mail::Leave(fate)) => return Err(fate.into()),
            Event::Heard(None) => return Err(End::Lost),
            Event::Heard(Some(Err(error))) => match End::of(&error) {
                None => self.tell(Input::TooLarge),
                Some(end) => return Err(end),
            },
            Event::Heard(Some(Ok(message))) => self.hear(message)?,
            Event::Alarm => self.wake(),
        }
        Ok(())
    }

    fn hear(&mut self, message: Message) -> Result<(), End> {
        self.reception.metrics.links.passed(Direction::In, message.len());
        self.socket.get_mut().taken();
        self.wear.add(message.len());
        match message {
            Message::Text(text) => self.tell(Input::Text(text.as_str().to_owned())),
            Message::Binary(_) => self.tell(Input::Binary),
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => self.tell(Input::Alive),
            Message::Close(frame) => return Err(End::Closed(frame.map_or(1005, |frame| frame.code.into()))),
        }
        Ok(())
    }

    /// Everything the link wants, with one flush at the end; until it wants nothing more.
    async fn perform(&mut self) -> Result<(), End> {
        loop {
            self.drain().await?;
            if !self.unflushed {
                return Ok(());
            }
            self.push(|socket, cx| socket.poll_flush(cx)).await?;
            self.unflushed = false;
            self.tell(Input::Flushed);
        }
    }

    /// Does what the link wants now.
    async fn drain(&mut self) -> Result<(), End> {
        while let Some(output) = self.held.pop_front().or_else(|| self.link.poll_output()) {
            match output {
                Output::Write(text) => self.write(Message::text(text)).await?,
                Output::Ping => self.write(Message::Ping(Bytes::new())).await?,
                Output::Hello(hello) => Box::pin(self.meet(hello)).await?,
                Output::Refresh { request_id, token } => Box::pin(self.renew(request_id, token)).await,
                Output::Command(command) => match self.pass.refusal(&command, self.now.mono) {
                    Some(note) => self.tell(Input::Note(note)),
                    None => self.reception.board.room().await?.say(self.seat.id(), command),
                },
                Output::Written(weight) => self.reception.board.room().await?.written(self.seat.id(), weight),
                Output::Close { code, reason } => return Err(End::Close(code, reason)),
            }
        }
        Ok(())
    }

    async fn write(&mut self, message: Message) -> Result<(), End> {
        self.push(|socket, cx| socket.poll_ready(cx)).await?;
        self.reception.metrics.links.passed(Direction::Out, message.len());
        self.wear.add(message.len());
        self.unflushed = true;
        self.socket.start_send_unpin(message).map_err(|_| End::Lost)
    }

    /// Waits for the socket to take what is written. Nothing is read meanwhile: a client that does
    /// not listen may not speak.
    async fn push(
        &mut self,
        mut poll: impl FnMut(Pin<&mut Socket>, &mut Context<'_>) -> Poll<Result<(), Error>>,
    ) -> Result<(), End> {
        loop {
            self.arm();
            let socket = &mut *self.socket;
            tokio::select! {
                biased;
                done = poll_fn(|cx| poll(Pin::new(&mut *socket), cx)) => return done.map_err(|_| End::Lost),
                () = &mut self.alarm => {
                    self.now = self.reception.clock.now();
                    self.wake();
                }
                fate = self.seat.struck() => return Err(fate.into()),
            }
            // The machine's law: what it wants is taken before it is told anything more.
            while let Some(output) = self.link.poll_output() {
                match output {
                    // What came before it can no longer be said, so nothing is lost by closing now.
                    Output::Close { code, reason } => return Err(End::Close(code, reason)),
                    Output::Write(_)
                    | Output::Ping
                    | Output::Hello(_)
                    | Output::Refresh { .. }
                    | Output::Command(_)
                    | Output::Written(_) => self.held.push_back(output),
                }
            }
        }
    }

    fn tell(&mut self, input: Input) {
        self.link.handle_input(self.now, input);
    }

    fn wake(&mut self) {
        let now = self.now;
        self.armed = now.mono + LONG;
        self.alarm.as_mut().reset(Instant::now() + LONG);
        self.link.handle_timeout(now);
    }

    /// Sees that the alarm goes off at the link's deadline, or before.
    fn arm(&mut self) {
        if let Some(deadline) = self.link.poll_timeout()
            && deadline.at < self.armed
        {
            self.armed = deadline.at;
            let wait = deadline.at - self.reception.clock.mono();
            self.alarm.as_mut().reset(Instant::now() + wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step<'b, 'a, F: Future>(_: fn(&'b mut Visit<'a>, Event) -> F) -> usize {
        size_of::<F>()
    }

    /// What every event of every link allocates for a moment. Over 1 KiB the allocator takes its long
    /// way, which costs 3 to 8 us a turn.
    #[test]
    fn a_step_is_small() {
        let size = step(Visit::work);
        assert!(size <= 1024, "{size}");
    }

    fn size<'a, F: Future>(_: fn(Box<Socket>, &'a Reception, Arrival) -> F) -> usize {
        size_of::<F>()
    }

    /// Covers: G-15.
    #[test]
    fn an_idle_link_is_small() {
        let (task, link, socket) = (size(serve), size_of::<Link>(), size_of::<Socket>());
        assert!(task + link + socket <= 1280, "task {task}, link {link}, socket {socket}");
    }
}
