//! One link from its first byte to its last, whatever carries it: a [`Link`] machine between a [`Wire`], the
//! door and the switchboard. One task, one timer, and nothing else while it is idle.
//!
//! - `credential`: what it shows of itself; `agent`, `runner`: the rest of it where it is one that has dialed in.
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

/// A timer where the link has no deadline.
const LONG: Duration = Duration::from_secs(3600);

/// A link while it lasts.
struct Visit<'a, W> {
    reception: &'a Reception,
    arrival: &'a Arrival,
    seat: Seat,
    link: Box<Link>,
    /// How often it may ask.
    pass: Pass,
    /// It has asked somebody for something in this step.
    asked: bool,
    /// When the event at hand came: reading two clocks for every note would cost more than writing it.
    now: Now,
    wire: &'a mut W,
    /// Written but not flushed.
    unflushed: bool,
    /// What the link wanted while its wire was stuck.
    held: VecDeque<Output>,
    alarm: Pin<Box<Sleep>>,
    /// When the alarm goes off. It may be earlier than the link's deadline: waking up for nothing
    /// costs less than setting it anew with every message.
    armed: Mono,
    stage: Stage,
    /// Who it is, where that has to be shown again.
    admitted: Option<Box<Admitted>>,
    /// It is an agent's or a tool runner's, and goes on as one.
    arrived: Option<Box<Calling>>,
}

/// How far a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Stranger,
    Denied,
    /// The switchboard knows it, and must be told when it is gone.
    Connected,
    /// An agent has dialed in, or a tool runner; what they do is told when they are gone.
    Calling,
}

/// What woke a link.
enum Event {
    Mail(Mail),
    Heard(Result<Heard, End>),
    Alarm,
}

/// Serves one client until it or we have had enough. Whatever is only needed while there is something
/// to do lives on the heap meanwhile: the rest is what an idle link costs.
pub(super) async fn serve<W: Wire>(mut wire: Box<W>, reception: &Reception, arrival: Arrival) {
    reception.metrics.links.opened(W::TRANSPORT);
    let mut visit = Visit::new(&mut *wire, reception, &arrival);
    let id = visit.seat.id();
    // The switchboard must hear of the end also where the end is a bug of ours.
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
            // Without a switchboard there is nobody left to tell.
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
        // A refusal would be one more answer of the kind that there are too many of.
        if is_said && !self.asked && !self.pass.may_talk(self.now.mono) {
            return Err(End::Close(4429, "too many messages that ask for nothing".into()));
        }
        if let Some(news) = self.wire.held() {
            Box::pin(self.hold(news)).await?;
        }
        // Behind the holds: what is given back is not spent on those.
        if let Some(beside) = self.wire.beside() {
            self.tell(Input::Beside(beside));
            Box::pin(self.drain()).await?;
        }
        if self.wire.is_worn(is_idle) {
            // It may still owe something.
            self.push(|wire, cx| wire.poll_flush(cx)).await?;
            self.wire.refit(is_idle).await;
        }
        Ok(())
    }

    /// Tells the switchboard of which sessions nothing more should come for a while, or again. It happens seldom: in
    /// a future of its own it costs the others nothing.
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

    /// Everything the link wants, with one flush at the end; until it wants nothing more.
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

    /// Does what the link wants now.
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

    /// Why this is not asked now, if it is asked too often.
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

    /// Waits for the wire to take what is written. Nothing is read meanwhile: a client that does
    /// not listen may not speak.
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
            // The machine's law: what it wants is taken before it is told anything more.
            while let Some(output) = self.link.poll_output() {
                match output {
                    // What came before it can no longer be said, so nothing is lost by closing now.
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

    /// Sees that the alarm goes off at the link's deadline, or before.
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

/// Any spread will do: neighbours get heartbeats far from each other.
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

    /// What every event of every link allocates for a moment. Over 1 KiB the allocator takes its long
    /// way, which costs 3 to 8 us a turn.
    #[test]
    fn a_step_is_small() {
        let size = step(Visit::work);
        assert!(size <= 1024, "{size}");
    }

    fn size<'a, F: Future>(_: fn(Box<WebSocket>, &'a Reception, Arrival) -> F) -> usize {
        size_of::<F>()
    }

    /// Covers: G-15.
    #[test]
    fn an_idle_link_is_small() {
        let (task, link, socket) = (size(serve), size_of::<Link>(), size_of::<WebSocket>());
        assert!(task + link + socket <= 1280, "task {task}, link {link}, socket {socket}");
    }
}
