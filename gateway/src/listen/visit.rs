//! Serves one link from its first byte to its last over any transport: drives the [`Link`] machine between a [`Wire`],
//! authentication and the switchboard. A link is one task with one timer, and does nothing while it is idle.
//! `credential` handles `hello` and token refresh; `agent` and `runner` serve connections of agents and tool runners.
mod agent;
mod credential;
mod runner;

use self::runner::Calling;
use super::Arrival;
use super::end::End;
use super::upgrade::Reception;
use super::wire::{Beat, Heard, Wire};
use crate::door::Admitted;
use crate::links::{Mail, Seat};
use crate::metrics::{Direction, Handshake};
use crate::rates::Pass;
use futures_util::FutureExt;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use turnway_bindings::channel::command::Command;
use turnway_bindings::channel::note::Note;
use turnway_bindings::link::{Input, Link, LinkConfig, Output};
use turnway_core::id::{LinkId, SessionId};
use turnway_core::machine::Machine;
use turnway_core::time::{Mono, Now};

/// The timer's delay where the link has no deadline.
const LONG: Duration = Duration::from_secs(3600);

/// The running task of one link.
struct Visit<'a, W> {
    reception: &'a Reception,
    arrival: &'a Arrival,
    seat: Seat,
    link: Box<Link>,
    /// Rate limits of the link's credential.
    pass: Pass,
    /// The link has sent a request in this step.
    asked: bool,
    /// Time of the event at hand. Reading two clocks for each note would cost more than writing the note.
    now: Now,
    wire: &'a mut W,
    unflushed: bool,
    /// Outputs that the link produced while its transport was blocked.
    held: VecDeque<Output>,
    alarm: Pin<Box<Sleep>>,
    /// Expiry of the timer. It may lie before the link's deadline: a spurious wake-up is cheaper than resetting the
    /// timer for each message.
    armed: Mono,
    stage: Stage,
    /// Set where the client must show another token before the present one expires.
    admitted: Option<Box<Admitted>>,
    /// Set once the connection is admitted as an agent or a tool runner, and is to be served as one.
    arrived: Option<Box<Calling>>,
}

/// The progress of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Stranger,
    Denied,
    /// The switchboard knows the link and must be told of its end.
    Connected,
    /// An agent or a tool runner is connected; its registration ends when it is dropped.
    Calling,
}

/// An event that wakes the task of a link.
enum Event {
    Mail(Mail),
    Heard(Result<Heard, End>),
    Alarm,
}

/// Serves one client until either side closes. State that is needed only during an event lives on the heap meanwhile:
/// the size of this future is the cost of an idle link.
pub(super) async fn serve<W: Wire>(mut wire: Box<W>, reception: &Reception, arrival: Arrival) {
    reception.metrics.links.opened(W::TRANSPORT);
    let mut visit = Visit::new(&mut *wire, reception, &arrival);
    let id = visit.seat.id();
    // The switchboard must learn of the end also after a panic of ours.
    let end = AssertUnwindSafe(visit.run()).catch_unwind().await;
    let end = end.unwrap_or(End::Close(1011, "internal error".into()));
    let stage = visit.stage;
    drop(visit);
    Box::pin(finish(wire, reception, id, stage, end)).await;
}

async fn finish<W: Wire>(wire: Box<W>, reception: &Reception, id: LinkId, stage: Stage, end: End) {
    let metrics = &reception.metrics.links;
    match stage {
        Stage::Connected => {
            // Without a switchboard, no one needs to be told.
            reception.turnstile.pass().await;
            _ = reception.board.disconnect(id).await;
        }
        Stage::Calling => {}
        Stage::Denied => metrics.began(Handshake::Denied),
        Stage::Stranger if matches!(end, End::Close(..)) => metrics.began(Handshake::Refused),
        Stage::Stranger => metrics.began(Handshake::Abandoned),
    }
    tracing::debug!(link = id.0, code = end.code(), "link closed");
    metrics.closed(W::TRANSPORT, end.code());
    wire.close(end).await;
}

// === impl Visit ===

impl<'a, W: Wire> Visit<'a, W> {
    fn new(wire: &'a mut W, reception: &'a Reception, arrival: &'a Arrival) -> Self {
        let seat = reception.links.open();
        let now = reception.clock.now();
        let node = format!("{}", reception.node);
        let config = LinkConfig {
            node: reception.node,
            connection_id: format!("{}-{}", &node[..8], seat.id().0),
            resume_window_ms: 0,
            durability: reception.durability,
            heartbeat_permille: heartbeat_permille(&seat),
            asides: W::TAKES_ASIDES,
        };
        Self {
            reception,
            arrival,
            seat,
            link: Box::new(Link::new(now, config)),
            pass: Pass::default(),
            asked: false,
            now,
            wire,
            unflushed: false,
            held: VecDeque::new(),
            alarm: Box::pin(tokio::time::sleep(LONG)),
            armed: now.mono + LONG,
            stage: Stage::Stranger,
            admitted: None,
            arrived: None,
        }
    }

    async fn run(&mut self) -> End {
        loop {
            let event = self.wait().await;
            if let Err(end) = Box::pin(self.work(event)).await {
                return end;
            }
            match self.arrived.take().map(|arrived| *arrived) {
                Some(Calling::Agent(arrived)) => return Box::pin(self.serve_agent(arrived)).await,
                Some(Calling::Runner(arrived)) => return Box::pin(self.serve_runner(arrived)).await,
                None => {}
            }
        }
    }

    async fn work(&mut self, event: Event) -> Result<(), End> {
        self.now = self.reception.clock.now();
        let is_idle = matches!(event, Event::Alarm);
        let is_said = matches!(event, Event::Heard(Ok(Heard::Text(_) | Heard::Alive(_))));
        self.asked = false;
        self.take(event).await?;
        self.perform().await?;
        // Answering with a refusal would add to the messages that are already too many.
        if is_said && !self.asked && !self.pass.may_talk(self.now.mono) {
            return Err(End::Close(4429, "too many messages without a request".into()));
        }
        if let Some(news) = self.wire.held() {
            Box::pin(self.hold(news)).await?;
        }
        // After the hold changes: credit that comes back must not be spent on sessions about to be held.
        if let Some(beside) = self.wire.beside() {
            self.tell(Input::Beside(beside));
            Box::pin(self.drain()).await?;
        }
        if self.wire.is_worn(is_idle) {
            // The transport may still have unflushed bytes.
            self.push(|wire, cx| wire.poll_flush(cx)).await?;
            self.wire.refit(is_idle).await;
        }
        Ok(())
    }

    /// Tells the switchboard for which sessions delivery has to pause or resume. A future of its own, because it is
    /// rare and must not enlarge the others.
    async fn hold(&mut self, news: (SessionId, bool)) -> Result<(), End> {
        let mut next = Some(news);
        while let Some((session, is_held)) = next {
            self.reception.board.room().await?.hold(self.seat.id(), session, is_held);
            next = self.wire.held();
        }
        Ok(())
    }

    async fn wait(&mut self) -> Event {
        self.arm();
        tokio::select! {
            mail = self.seat.mail() => Event::Mail(mail),
            heard = self.wire.hear() => Event::Heard(heard),
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
            Event::Heard(heard) => self.hear(heard?),
            Event::Alarm => self.wake(),
        }
        Ok(())
    }

    fn hear(&mut self, heard: Heard) {
        if let Some(bytes) = heard.bytes() {
            self.reception.metrics.links.passed(Direction::In, bytes);
        }
        match heard {
            Heard::Text(text) => self.tell(Input::Text(text)),
            Heard::Binary(_) => self.tell(Input::Binary),
            Heard::TooLarge => self.tell(Input::TooLarge),
            Heard::Alive(_) => self.tell(Input::Alive),
            Heard::Beside => {}
        }
    }

    /// Performs all outputs of the link, with one flush at the end, until there are none.
    async fn perform(&mut self) -> Result<(), End> {
        loop {
            self.drain().await?;
            if !self.unflushed {
                return Ok(());
            }
            self.push(|wire, cx| wire.poll_flush(cx)).await?;
            self.unflushed = false;
            self.tell(Input::Flushed);
        }
    }

    /// Performs the outputs that the link has now.
    async fn drain(&mut self) -> Result<(), End> {
        while let Some(output) = self.held.pop_front().or_else(|| self.link.poll_output()) {
            match output {
                Output::Write(text) => self.write(text).await?,
                Output::Aside(aside) => {
                    self.reception.metrics.links.passed(Direction::Out, aside.text.len());
                    self.wire.aside(*aside)?;
                }
                Output::NoMoreAside { session, run_id } => self.wire.no_more_aside(&session, run_id.as_ref()),
                Output::Ping => self.beat().await?,
                Output::Hello(hello) => {
                    self.asked = true;
                    Box::pin(self.meet(hello)).await?;
                }
                Output::Refresh { request_id, token } => {
                    self.asked = true;
                    Box::pin(self.renew(request_id, token)).await;
                }
                Output::Command(command) => match self.refusal(&command) {
                    Some(note) => self.tell(Input::Note(note)),
                    None => self.reception.board.room().await?.say(self.seat.id(), command),
                },
                Output::Waits => self.asked = true,
                Output::Written(weight) => self.reception.board.room().await?.written(self.seat.id(), weight),
                Output::Close { code, reason } => return Err(End::Close(code, reason)),
            }
        }
        Ok(())
    }

    /// Returns the refusal of a command that exceeds a rate limit.
    fn refusal(&mut self, command: &Command) -> Option<Note> {
        self.asked = true;
        self.pass.refusal(command, self.now.mono)
    }

    async fn write(&mut self, text: String) -> Result<(), End> {
        self.push(|wire, cx| wire.poll_ready(cx)).await?;
        self.reception.metrics.links.passed(Direction::Out, text.len());
        self.unflushed = true;
        self.wire.write(text)
    }

    async fn beat(&mut self) -> Result<(), End> {
        self.push(|wire, cx| wire.poll_ready(cx)).await?;
        match self.wire.beat()? {
            Beat::Written => {
                self.reception.metrics.links.passed(Direction::Out, 0);
                self.unflushed = true;
            }
            Beat::Heard => self.tell(Input::Alive),
        }
        Ok(())
    }

    /// Waits until the transport accepts what is written. Nothing is read meanwhile: a client that does not read may
    /// not send.
    async fn push(
        &mut self,
        mut poll: impl FnMut(&mut W, &mut Context<'_>) -> Poll<Result<(), End>>,
    ) -> Result<(), End> {
        loop {
            self.arm();
            let wire = &mut *self.wire;
            tokio::select! {
                biased;
                done = poll_fn(|cx| poll(&mut *wire, cx)) => return done,
                () = &mut self.alarm => {
                    self.now = self.reception.clock.now();
                    self.wake();
                }
                fate = self.seat.struck() => return Err(fate.into()),
            }
            // The machine must be drained before its next input (law 1).
            while let Some(output) = self.link.poll_output() {
                match output {
                    // Earlier outputs cannot be written any more, so closing now loses nothing.
                    Output::Close { code, reason } => return Err(End::Close(code, reason)),
                    Output::Write(_)
                    | Output::Aside(_)
                    | Output::NoMoreAside { .. }
                    | Output::Ping
                    | Output::Hello(_)
                    | Output::Refresh { .. }
                    | Output::Command(_)
                    | Output::Waits
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

    /// Sets the timer to the link's deadline or earlier.
    fn arm(&mut self) {
        if let Some(deadline) = self.link.poll_timeout() {
            self.arm_at(deadline.at);
        }
    }

    fn arm_at(&mut self, at: Mono) {
        if at < self.armed {
            self.armed = at;
            let wait = at - self.reception.clock.mono();
            self.alarm.as_mut().reset(Instant::now() + wait);
        }
    }
}

/// Returns a spread of heartbeat intervals: links with neighbouring ids beat far apart. Any spread is sufficient.
fn heartbeat_permille(seat: &Seat) -> u32 {
    900 + u32::try_from(seat.id().0.wrapping_mul(83) % 201).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::super::websocket::WebSocket;
    use super::*;

    fn step<'b, 'a, F: Future>(_: fn(&'b mut Visit<'a, WebSocket>, Event) -> F) -> usize {
        size_of::<F>()
    }

    /// Every event of every link allocates this future for a moment. Above 1 KiB the allocator takes its slow path,
    /// which costs 3 to 8 us a turn.
    #[test]
    fn connection_event_future_stays_small() {
        let size = step(Visit::work);
        assert!(size <= 1024, "{size}");
    }

    fn size<'a, F: Future>(_: fn(Box<WebSocket>, &'a Reception, Arrival) -> F) -> usize {
        size_of::<F>()
    }

    /// Covers: G-15.
    #[test]
    fn idle_link_future_stays_small() {
        let (task, link, socket) = (size(serve), size_of::<Link>(), size_of::<WebSocket>());
        assert!(task + link + socket <= 1280, "task {task}, link {link}, socket {socket}");
    }
}
