//! Single machines with a store of their own, so that the machine laws can be tested with scripts without feedback.
use super::fixtures;
use std::collections::VecDeque;
use std::sync::Arc;
use turnway_core::id::{AgentEventId, Epoch, FenceToken, InboxPosition, LinkId, NodeId, Nonce, RunId, Seq};
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, Order, StopReason, TextKind};
use turnway_core::protocol::input::{ControlEntry, ControlRequest, Input as Said, Strategy};
use turnway_core::protocol::member::SessionTaskResult;
use turnway_core::rng::Rng;
use turnway_core::session::{Input as Told, Output as Wanted, SessionRuntime, State};
use turnway_core::store::{ModelStore, Op, StoreError};
use turnway_core::time::{Deadline, Mono, Now};
use turnway_node::switchboard::{Capacity, Config, Input, Output, Switchboard};
use turnway_wire::channel::command::{CancelTarget, LinkCommand, SubscribeCommand};

/// A step of a script; numbers select among the existing links, sessions and requests.
#[derive(Clone, Debug)]
pub enum Move {
    /// A link connects.
    Connect,
    /// A link disconnects.
    Disconnect(u64),
    /// A link sends a command.
    Say(u64, u64),
    /// The store answers the oldest operation, or fails.
    Answer(u64),
    /// The agent with the last order reports an event.
    Report(u64),
    /// Messages were written to a link.
    Written(u64),
    /// A bus or link condition: held link, gap, unheard message, successor list.
    Trouble(u64),
    /// Drain the node.
    Drain,
}

impl Move {
    /// Picks a random step.
    pub fn random(rng: &mut Rng) -> Self {
        let one = rng.below(4);
        let two = rng.next_u64();
        match rng.below(100) {
            0..6 => Self::Connect,
            6..8 => Self::Disconnect(one),
            8..25 => Self::Say(one, two),
            25..75 => Self::Answer(two),
            75..94 => Self::Report(two),
            94..97 => Self::Written(one),
            97..99 => Self::Trouble(two),
            _ => Self::Drain,
        }
    }
}

/// A switchboard and its store.
pub struct SwitchboardHarness {
    board: Switchboard,
    model: ModelStore,
    asked: VecDeque<Op>,
    ordered: Option<(turnway_core::id::SessionKey, RunId, u32, Epoch)>,
    shown: VecDeque<String>,
    links: u64,
    /// Deadlines before this time are due at once.
    born: Mono,
}

impl SwitchboardHarness {
    /// Creates a node that has just started.
    pub fn new(now: Now) -> Self {
        let config = Config {
            node: NodeId(1),
            directory: fixtures::directory(),
            seed: [7; 32],
            single_node: false,
            keep_facts: None,
            max_age: None,
            capacity: Capacity::default(),
        };
        Self {
            board: Switchboard::new(config),
            model: ModelStore::new(false),
            asked: VecDeque::new(),
            ordered: None,
            shown: VecDeque::new(),
            links: 0,
            born: now.mono,
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.board.poll_output() {
            self.shown.push_back(format!("{output:?}"));
            match output {
                Output::Store(op) => self.asked.push_back(op),
                Output::Order(Order::Invoke(invoke)) => {
                    self.ordered = Some((invoke.key, invoke.run_id, invoke.attempt, invoke.epoch));
                }
                Output::Order(_) | Output::Tool(_) | Output::Publish { .. } | Output::Notify { .. } | Output::Exit => {}
            }
        }
    }

    fn command(&self, link: u64, pick: u64) -> LinkCommand {
        let key = fixtures::key("default", &format!("s{}", pick % 2));
        let session = key.session.clone();
        let request_id = Some(fixtures::request(pick % 1000));
        let user = fixtures::user(&format!("u{}", link % 2), "default", false);
        let n = 1 + pick % 5;
        let run_id = RunId::derive(&key, &user.user, &fixtures::message_id(n));
        match pick % 10 {
            9 => LinkCommand::Control { request_id, session, request: super::odd_requests::wish(pick / 10) },
            0 => LinkCommand::Open { request_id, session: Some(session), agents: Vec::new(), active: None },
            1 => LinkCommand::Control { request_id, session, request: ControlRequest::Close },
            2 => LinkCommand::Cancel { request_id, target: CancelTarget::Run(run_id), wants_receipt: false },
            3 => LinkCommand::Cancel { request_id, target: CancelTarget::Session(session), wants_receipt: false },
            4 | 5 => {
                let after_seq = Some(Seq(pick % 7));
                let after_epoch = Some(Epoch(pick % 3));
                let runs = Vec::new();
                let types = Vec::new();
                LinkCommand::Subscribe(SubscribeCommand { request_id, session, after_seq, after_epoch, runs, types })
            }
            _ => {
                let strategy = if pick.is_multiple_of(2) { Strategy::Interrupt } else { Strategy::Enqueue };
                let manner = super::behaviour::AgentBehaviour::Plain;
                let saying =
                    fixtures::PlannedMessage { client: 0, run_id, manner, strategy, replaces: None, agent_id: None };
                LinkCommand::Invoke(Box::new(saying.invoke(
                    n,
                    fixtures::request(pick % 1000),
                    &session,
                    pick.is_multiple_of(11),
                )))
            }
        }
    }
}

fn event(pick: u64) -> AgentEvent {
    let id = AgentEventId::parse(&format!("e{}", pick % 97)).ok().filter(|_| pick.is_multiple_of(2));
    match pick % 8 {
        0 => AgentEvent::Acked,
        1 => AgentEvent::Done { stop: StopReason::EndTurn, usage: None },
        2 => AgentEvent::State { state: "busy".to_owned(), detail: None, id },
        3 => AgentEvent::CancelAcked,
        _ => AgentEvent::Delta { kind: TextKind::Text, text: Private("word ".repeat((pick % 3000) as usize)), id },
    }
}

impl Machine for SwitchboardHarness {
    type Input = Move;
    type Output = String;

    fn handle_input(&mut self, now: Now, input: Move) {
        let link = |n: u64| LinkId(1 + n);
        let input = match input {
            Move::Connect => {
                self.links += 1;
                let principal = fixtures::user(&format!("u{}", self.links % 2), "default", false);
                Input::Connect { link: LinkId(self.links), principal }
            }
            Move::Disconnect(n) => Input::Disconnect { link: link(n) },
            Move::Say(n, pick) => Input::Command { link: link(n), command: self.command(n + 1, pick) },
            Move::Answer(pick) => {
                let Some(op) = self.asked.pop_front() else { return };
                let result = match pick % 12 {
                    0 => Err(StoreError::Unavailable),
                    1 => Err(StoreError::Unknown),
                    _ => Ok(self.model.apply(now, &op)),
                };
                Input::Stored { op, result }
            }
            Move::Report(pick) => {
                let Some((key, run_id, attempt, epoch)) = self.ordered.clone() else { return };
                Input::Agent { key, run_id, attempt, epoch, events: vec![event(pick)] }
            }
            Move::Written(n) => Input::Written { link: link(n), weight: 10_000 },
            Move::Trouble(pick) if pick % 5 == 3 => {
                let session = fixtures::key("default", &format!("s{}", pick % 2)).session;
                Input::PauseSession { link: link(pick % 3), session, is_paused: pick % 4 < 2 }
            }
            Move::Trouble(pick) if pick % 3 == 0 => Input::MessagesMissed,
            Move::Trouble(pick) if pick % 3 == 1 => Input::PublishFailed { to: NodeId(2) },
            Move::Trouble(_) => Input::Successors([NodeId(2)].into()),
            Move::Drain => Input::Drain,
        };
        self.board.handle_input(now, input);
        self.drain();
    }

    fn handle_timeout(&mut self, now: Now) {
        self.board.handle_timeout(now);
        self.drain();
    }

    fn poll_output(&mut self) -> Option<String> {
        self.shown.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let due = self.board.poll_timeout()?;
        Some(Deadline { at: due.at.max(self.born), ..due })
    }
}

/// A session's machine whose records become durable when the script says so.
pub struct SessionHarness {
    runtime: SessionRuntime,
    written: u64,
    position: u64,
    shown: VecDeque<String>,
}

impl SessionHarness {
    /// Creates the owner of a new session.
    pub fn new(_: Now) -> Self {
        let token = FenceToken { epoch: Epoch(1), nonce: Nonce(1) };
        let key = fixtures::key("default", "s1");
        let rng = Rng::from_number(1);
        let runtime = SessionRuntime::new(key, token, fixtures::directory(), rng, State::default());
        Self { runtime, written: 0, position: 0, shown: VecDeque::new() }
    }

    fn drain(&mut self) {
        while let Some(output) = self.runtime.poll_output() {
            self.written += u64::from(matches!(output, Wanted::Record(_)));
            self.shown.push_back(format!("{output:?}"));
        }
    }

    fn input(&mut self, input: Move) -> Option<Told> {
        self.position += 1;
        let position = InboxPosition(self.position);
        let key = fixtures::key("default", "s1");
        let user = fixtures::user("ann", "default", false).user;
        let control = |n: u64, what| {
            let id = turnway_core::id::ControlId::parse(&format!("c{n}")).expect("a control's name");
            Told::Control {
                position,
                control: Arc::new(ControlEntry { id, user: user.clone(), request_id: None, what }),
            }
        };
        Some(match input {
            Move::Say(_, pick) => {
                let message_id = fixtures::message_id(self.position);
                let run_id = RunId::derive(&key, &user, &message_id);
                let strategy = if pick % 3 == 0 { Strategy::Interrupt } else { Strategy::Enqueue };
                let message = fixtures::say(self.position, false);
                let request_id = None;
                let agent_id = pick.is_multiple_of(5).then(|| fixtures::agent("lasting"));
                let history = fixtures::history(self.position, false);
                let metadata = None;
                let traceparent = None;
                let input = Said {
                    run_id,
                    message_id,
                    request_id,
                    user,
                    agent_id,
                    message,
                    history,
                    strategy,
                    replaces: None,
                    metadata,
                    origin: None,
                    traceparent,
                };
                Told::Take { position, input: Arc::new(input) }
            }
            Move::Answer(_) => Told::Durable(Seq(self.written)),
            Move::Report(pick) => {
                let running = self.runtime.state().running.clone()?;
                Told::Agent { run_id: running, attempt: 1, epoch: Epoch(1), event: event(pick) }
            }
            Move::Connect => {
                let agents = ["again", "lasting"].map(fixtures::agent).into();
                control(self.position, ControlRequest::Open { agents, active: None })
            }
            Move::Disconnect(_) => control(self.position, ControlRequest::Close),
            Move::Written(pick) if pick % 3 == 0 => control(self.position, ControlRequest::Cancel { run_id: None }),
            Move::Written(pick) => control(self.position, super::odd_requests::wish(self.position + pick)),
            Move::Trouble(pick) if pick % 3 == 0 => {
                let (_, change) = self.runtime.state().changes.iter().next()?;
                Told::TaskResult { tx_id: change.tx_id, receipt: SessionTaskResult::Done(None) }
            }
            Move::Trouble(_) => Told::InboxRead,
            Move::Drain if self.position.is_multiple_of(2) => Told::HandOver,
            Move::Drain => Told::Suspend,
        })
    }
}

impl Machine for SessionHarness {
    type Input = Move;
    type Output = String;

    fn handle_input(&mut self, now: Now, input: Move) {
        if let Some(input) = self.input(input) {
            self.runtime.handle_input(now, input);
            self.drain();
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        self.runtime.handle_timeout(now);
        self.drain();
    }

    fn poll_output(&mut self) -> Option<String> {
        self.shown.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        self.runtime.poll_timeout()
    }
}
