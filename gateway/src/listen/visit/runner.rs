//! Serves the connection of a tool runner, from `welcome` to its end: drives the [`Line`] machine between a [`Wire`]
//! and the node's runner pool.
use super::super::end::End;
use super::super::wire::{Beat, Heard, Wire};
use super::{LONG, Stage, Visit, agent, heartbeat_permille};
use crate::door::Admitted;
use crate::door::serves::Serving;
use crate::links::{Fate, Mail};
use crate::metrics::{Denial, Direction, Handshake};
use crate::phase::Phase;
use crate::tools::Place;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};
use tokio::time::Instant;
use turnway_bindings::link::{self, Credential, Hello, NotServing};
use turnway_bindings::runner::line::{Input, Line, LineConfig, Output};
use turnway_bindings::runner::shop::NotAdmitted;
use turnway_bindings::runner::words::ToRunner;
use turnway_core::id::RequestId;
use turnway_core::machine::Machine;

/// A peer that serves the gateway instead of being served by it.
pub(super) enum Calling {
    Agent(agent::Arrived),
    Runner(Arrived),
}

/// An admitted tool runner with its registration.
pub(super) struct Arrived {
    place: Place,
    config: LineConfig,
}

/// The running task of a tool runner's connection.
struct Duty<'v, 'a, W> {
    visit: &'v mut Visit<'a, W>,
    place: Place,
    machine: Line,
    /// Outputs that the machine produced while the transport was blocked.
    held: VecDeque<Output>,
    unflushed: bool,
    /// The runner was told that this node drains.
    told: bool,
}

/// An event that wakes the task.
enum Event {
    Heard(Result<Heard, End>),
    Letter(Option<ToRunner>),
    Leaving,
    Mail(Mail),
    Alarm,
}

// === impl Visit ===

impl<W: Wire> Visit<'_, W> {
    /// Registers a tool runner, if its credential may serve as this runner.
    pub(super) fn receive_runner(&mut self, hello: &Hello, admitted: Admitted) {
        let tools = &self.reception.tools;
        let entered = hello.runner.as_deref().ok_or(NotServing::Forbidden).and_then(|runner| {
            let identity = admitted.serves(Serving::Runner(runner), tools.served_by());
            let entered = tools.enter(runner.clone(), identity.ok_or(NotServing::Forbidden)?);
            entered.map_err(|why| match why {
                NotAdmitted::IdInUse => NotServing::IdInUse,
                NotAdmitted::Crowded => NotServing::Crowded,
            })
        });
        match entered {
            Ok(place) => {
                let node = format!("{}", self.reception.node);
                let config = LineConfig {
                    node: self.reception.node,
                    connection_id: format!("{}-{}", &node[..8], self.seat.id().0),
                    expires: admitted.proof.ends(),
                    heartbeat_permille: heartbeat_permille(&self.seat),
                };
                self.reception.metrics.links.began(Handshake::Admitted);
                self.stage = Stage::Calling;
                self.admitted = Some(Box::new(admitted));
                self.arrived = Some(Box::new(Calling::Runner(Arrived { place, config })));
            }
            Err(why) => {
                tracing::debug!(link = self.seat.id().0, ?why, "tool runner connection refused");
                self.reception.metrics.auth.denied(Denial::Role);
                self.stage = Stage::Denied;
                self.tell(link::Input::NotServing(why));
            }
        }
    }

    /// Serves the runner until either side closes.
    pub(super) async fn serve_runner(&mut self, arrived: Arrived) -> End {
        let Arrived { place, config } = arrived;
        self.now = self.reception.clock.now();
        let machine = Line::new(self.now, &config);
        let (held, unflushed, told) = (VecDeque::new(), false, false);
        let mut duty = Duty { machine, visit: self, place, held, unflushed, told };
        loop {
            if let Err(end) = duty.perform().await {
                return end;
            }
            let event = duty.wait().await;
            if let Err(end) = duty.take(event) {
                return end;
            }
        }
    }
}

// === impl Duty ===

impl<W: Wire> Duty<'_, '_, W> {
    async fn wait(&mut self) -> Event {
        self.arm();
        let (life, visit) = (&self.visit.reception.life, &mut *self.visit);
        tokio::select! {
            mail = visit.seat.mail() => Event::Mail(mail),
            letter = self.place.letter() => Event::Letter(letter),
            heard = visit.wire.hear() => Event::Heard(heard),
            () = life.reached(Phase::Draining), if !self.told => Event::Leaving,
            () = &mut visit.alarm => Event::Alarm,
        }
    }

    fn take(&mut self, event: Event) -> Result<(), End> {
        self.visit.now = self.visit.reception.clock.now();
        match event {
            Event::Mail(Mail::Leave(fate)) => return Err(fate.into()),
            // The switchboard does not know this connection.
            Event::Mail(Mail::Notes(_)) => {}
            Event::Letter(None) => return Err(Fate::Slow.into()),
            Event::Letter(Some(word)) => self.tell(Input::Tell(Box::new(word))),
            Event::Leaving => {
                self.told = true;
                self.tell(Input::Leaving);
            }
            Event::Heard(heard) => self.hear(heard?),
            Event::Alarm => self.wake(),
        }
        Ok(())
    }

    fn hear(&mut self, heard: Heard) {
        if let Some(bytes) = heard.bytes() {
            self.visit.reception.metrics.links.passed(Direction::In, bytes);
        }
        match heard {
            Heard::Text(text) => self.tell(Input::Text(text)),
            Heard::Binary(_) => self.tell(Input::Binary),
            Heard::TooLarge => self.tell(Input::TooLarge),
            Heard::Alive(_) => self.tell(Input::Alive),
            Heard::Beside => {}
        }
    }

    /// Performs all outputs of the machine, with one flush at the end.
    async fn perform(&mut self) -> Result<(), End> {
        loop {
            while let Some(output) = self.held.pop_front().or_else(|| self.machine.poll_output()) {
                self.act(output).await?;
            }
            if !self.unflushed {
                return Ok(());
            }
            self.push(|wire, cx| wire.poll_flush(cx)).await?;
            self.unflushed = false;
            self.tell(Input::Flushed);
        }
    }

    async fn act(&mut self, output: Output) -> Result<(), End> {
        match output {
            Output::Write(text) => {
                self.push(|wire, cx| wire.poll_ready(cx)).await?;
                self.visit.reception.metrics.links.passed(Direction::Out, text.len());
                self.unflushed = true;
                self.visit.wire.write(text)?;
            }
            // Waits while the switchboard is busy; nothing more is read meanwhile.
            Output::Word(word) => self.place.said(*word).await,
            Output::Ping => {
                self.push(|wire, cx| wire.poll_ready(cx)).await?;
                match self.visit.wire.beat()? {
                    Beat::Written => {
                        self.visit.reception.metrics.links.passed(Direction::Out, 0);
                        self.unflushed = true;
                    }
                    Beat::Heard => self.tell(Input::Alive),
                }
            }
            Output::Refresh { request_id, token } => self.renew(request_id, token).await,
            Output::Close { code, reason } => return Err(End::Close(code, reason.into())),
        }
        Ok(())
    }

    async fn renew(&mut self, request_id: Option<RequestId>, token: Credential) {
        let renewal = self.visit.renewal(token).await;
        self.tell(Input::Refreshed { request_id, renewal });
    }

    /// Waits until the transport accepts what is written. Nothing is read meanwhile.
    async fn push(
        &mut self,
        mut poll: impl FnMut(&mut W, &mut Context<'_>) -> Poll<Result<(), End>>,
    ) -> Result<(), End> {
        loop {
            self.arm();
            let wire = &mut *self.visit.wire;
            tokio::select! {
                biased;
                done = poll_fn(|cx| poll(&mut *wire, cx)) => return done,
                () = &mut self.visit.alarm => {
                    self.visit.now = self.visit.reception.clock.now();
                    self.wake();
                }
                fate = self.visit.seat.struck() => return Err(fate.into()),
            }
            while let Some(output) = self.machine.poll_output() {
                match output {
                    Output::Close { code, reason } => return Err(End::Close(code, reason.into())),
                    Output::Write(_) | Output::Word(_) | Output::Refresh { .. } | Output::Ping => {
                        self.held.push_back(output);
                    }
                }
            }
        }
    }

    fn tell(&mut self, input: Input) {
        self.machine.handle_input(self.visit.now, input);
    }

    fn wake(&mut self) {
        let now = self.visit.now;
        self.visit.armed = now.mono + LONG;
        self.visit.alarm.as_mut().reset(Instant::now() + LONG);
        self.machine.handle_timeout(now);
    }

    fn arm(&mut self) {
        if let Some(deadline) = self.machine.poll_timeout() {
            self.visit.arm_at(deadline.at);
        }
    }
}
