//! Serves the connection of an agent that dialed in, from `welcome` to its end: drives the [`DialIn`] machine between a
//! [`Wire`] and the attempts that run over the connection.
use super::super::end::End;
use super::super::wire::{Beat, Heard, Wire};
use super::runner::Calling;
use super::{LONG, Stage, Visit, heartbeat_permille};
use crate::agent::dialin::{Letter, NoPlace, Place};
use crate::door::Admitted;
use crate::door::serves::Serving;
use crate::links::{Fate, Mail};
use crate::metrics::{Denial, Direction, Handshake};
use crate::phase::Phase;
use std::collections::{BTreeMap, VecDeque};
use std::future::{pending, poll_fn};
use std::task::{Context, Poll};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{OwnedPermit, Sender};
use tokio::time::Instant;
use turnway_bindings::dialin::said::Said;
use turnway_bindings::dialin::{DialIn, DialInConfig, Input, Output, Word};
use turnway_bindings::link::{self, Credential, Hello, NotServing};
use turnway_core::id::{RequestId, RunId};
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::Order;

/// An admitted agent with its registration.
pub(super) struct Arrived {
    place: Place,
    config: DialInConfig,
}

/// The running task of an agent's connection.
struct Duty<'v, 'a, W> {
    visit: &'v mut Visit<'a, W>,
    /// Dropped with the task; the attempts that ran over the connection then end.
    place: Place,
    machine: DialIn,
    /// Receivers of attempt events, by run.
    runs: BTreeMap<RunId, Ordered>,
    /// An event whose attempt had no capacity. Nothing more is read until it is delivered.
    untaken: Option<(Sender<Word>, Word)>,
    /// Outputs that the machine produced while the transport was blocked.
    held: VecDeque<Output>,
    unflushed: bool,
    /// Bytes received when the transport was last checked.
    received: u64,
    /// The agent was told that this node drains.
    told: bool,
}

/// An attempt that was sent to the agent over this connection.
struct Ordered {
    attempt: u32,
    /// Number of the invoke on this connection.
    number: u64,
    words: Sender<Word>,
}

/// An event that wakes the task.
enum Event {
    Heard(Result<Heard, End>),
    Letter(Option<Letter>),
    /// Capacity for the blocked event; `None` if its attempt has ended.
    Room(Option<OwnedPermit<Word>>),
    Leaving,
    Mail(Mail),
    Alarm,
}

// === impl Visit ===

impl<W: Wire> Visit<'_, W> {
    /// Registers the agent that the connection claims to be, if its credential may serve that agent.
    pub(super) fn receive_agent(&mut self, hello: &Hello, admitted: Admitted) {
        let exchange = &self.reception.exchange;
        let entered = hello.agent_id.as_ref().ok_or(NotServing::Forbidden).and_then(|agent| {
            let served_by = exchange.served_by(agent).ok_or(NotServing::Forbidden)?;
            let identity = admitted.serves(Serving::Agent(agent), served_by).ok_or(NotServing::Forbidden)?;
            let place =
                exchange.enter(agent, hello.capabilities, identity.reach).map_err(|why| match why {
                    NoPlace::Forbidden | NoPlace::Forgetful => NotServing::Forbidden,
                    NoPlace::Crowded => NotServing::Crowded,
                })?;
            Ok((agent.clone(), place))
        });
        match entered {
            Ok((agent, place)) => {
                let node = format!("{}", self.reception.node);
                let config = DialInConfig {
                    agent,
                    capabilities: hello.capabilities,
                    named: place.is_named(),
                    node: self.reception.node,
                    connection_id: format!("{}-{}", &node[..8], self.seat.id().0),
                    expires: admitted.proof.ends(),
                    heartbeat_permille: heartbeat_permille(&self.seat),
                };
                self.reception.metrics.links.began(Handshake::Admitted);
                self.stage = Stage::Calling;
                self.admitted = Some(Box::new(admitted));
                self.arrived = Some(Box::new(Calling::Agent(Arrived { place, config })));
            }
            Err(why) => {
                tracing::debug!(link = self.seat.id().0, ?why, "agent connection refused");
                self.reception.metrics.auth.denied(Denial::Role);
                self.stage = Stage::Denied;
                self.tell(link::Input::NotServing(why));
            }
        }
    }

    /// Serves the agent until either side closes.
    pub(super) async fn serve_agent(&mut self, arrived: Arrived) -> End {
        let Arrived { place, config } = arrived;
        self.now = self.reception.clock.now();
        let received = self.wire.received();
        let mut duty = Duty {
            machine: DialIn::new(self.now, config),
            visit: self,
            place,
            runs: BTreeMap::new(),
            untaken: None,
            held: VecDeque::new(),
            unflushed: false,
            received,
            told: false,
        };
        loop {
            if let Err(end) = duty.perform().await {
                return end;
            }
            let event = duty.wait().await;
            if let Err(end) = duty.take(event).await {
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
            room = room(self.untaken.as_ref()), if self.untaken.is_some() => Event::Room(room),
            heard = visit.wire.hear(), if self.untaken.is_none() => Event::Heard(heard),
            () = life.reached(Phase::Draining), if !self.told => Event::Leaving,
            () = &mut visit.alarm => Event::Alarm,
        }
    }

    async fn take(&mut self, event: Event) -> Result<(), End> {
        self.visit.now = self.visit.reception.clock.now();
        match event {
            Event::Mail(Mail::Leave(fate)) => return Err(fate.into()),
            // The switchboard does not know this connection.
            Event::Mail(Mail::Notes(_)) => {}
            Event::Letter(None) => return Err(Fate::Slow.into()),
            Event::Letter(Some(letter)) => self.open(letter),
            Event::Room(room) => {
                if let (Some(room), Some((_, word))) = (room, self.untaken.take()) {
                    room.send(word);
                }
                // Reads were paused, so silence is not a timeout.
                self.tell(Input::Alive);
            }
            Event::Leaving => {
                self.told = true;
                self.tell(Input::Leaving);
            }
            Event::Heard(heard) => self.hear(heard?),
            Event::Alarm => self.wake(),
        }
        Ok(())
    }

    fn open(&mut self, letter: Letter) {
        match letter {
            // Dropping the sender tells the attempt that no events will come.
            Letter::Invoke(invoke, ..) if !self.machine.takes(&invoke) => {}
            Letter::Invoke(invoke, number, words) => {
                let attempt = invoke.attempt;
                self.runs.insert(invoke.run_id.clone(), Ordered { attempt, number, words });
                let order = Order::Invoke(*invoke);
                self.tell(Input::Order(Box::new(order)));
            }
            Letter::Order(order) => self.tell(Input::Order(order)),
            Letter::Forget(run_id, attempt, number) => {
                // Another owner may have sent the same attempt again; that one continues.
                if self.runs.get(&run_id).is_some_and(|ordered| ordered.number == number) {
                    self.runs.remove(&run_id);
                    let order = Order::Drop { run_id, attempt };
                    self.tell(Input::Order(Box::new(order)));
                }
            }
        }
    }

    fn hear(&mut self, heard: Heard) {
        if let Some(bytes) = heard.bytes() {
            self.visit.reception.metrics.links.passed(Direction::In, bytes);
        }
        self.received = self.visit.wire.received();
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
            Output::Word { run_id, attempt, word } => self.hand_on(&run_id, attempt, word).await,
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
            // If the attempt's queue is full, the queued events already show that the agent is alive.
            Output::Alive { run_id, attempt } => {
                if let Some(ordered) = self.runs.get(&run_id).filter(|ordered| ordered.attempt == attempt) {
                    _ = ordered.words.try_send(Word::Said(Said::Alive));
                }
            }
            Output::Refresh { request_id, token } => self.renew(request_id, token).await,
            Output::Close { code, reason } => return Err(End::Close(code, reason)),
        }
        Ok(())
    }

    /// Delivers an event to its attempt's queue. One wire message yields at most two of them, so that only the second
    /// may have to wait for the first.
    async fn hand_on(&mut self, run_id: &RunId, attempt: u32, word: Word) {
        let Some(ordered) = self.runs.get(run_id).filter(|ordered| ordered.attempt == attempt) else {
            return;
        };
        let to = ordered.words.clone();
        if word.is_last() {
            self.runs.remove(run_id);
        }
        if let Some((before, first)) = self.untaken.take() {
            // An attempt always takes messages or ends, so this wait is bounded.
            _ = before.send(first).await;
        }
        if let Err(TrySendError::Full(word)) = to.try_send(word) {
            self.untaken = Some((to, word));
        }
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
                    Output::Close { code, reason } => return Err(End::Close(code, reason)),
                    Output::Write(_)
                    | Output::Word { .. }
                    | Output::Alive { .. }
                    | Output::Refresh { .. }
                    | Output::Ping => {
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
        if self.untaken.is_some() {
            self.tell(Input::Alive);
        }
        let received = self.visit.wire.received();
        if received > self.received {
            self.received = received;
            self.tell(Input::Part);
        }
        self.machine.handle_timeout(now);
    }

    fn arm(&mut self) {
        if let Some(deadline) = self.machine.poll_timeout() {
            self.visit.arm_at(deadline.at);
        }
    }
}

/// Waits until the blocked event can be delivered. Cancel-safe.
async fn room(untaken: Option<&(Sender<Word>, Word)>) -> Option<OwnedPermit<Word>> {
    match untaken {
        Some((to, _)) => to.clone().reserve_owned().await.ok(),
        None => pending().await,
    }
}
