//! Attempts of this node at agents that are connected to another node, and attempts of other nodes at agents connected
//! to this node. A [`Trunk`] decides what is sent when; this file carries it to the bus, to connections and to
//! attempts. Nothing here may block while the trunk is locked.
use super::Exchange;
use super::desk::{Extension, Letter, Placed};
use crate::bus::{self, Bus, Mail};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::supervise;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::AbortHandle;
use turnway_bindings::dialin::Word;
use turnway_bindings::link::Capabilities;
use turnway_bindings::peer::trunk::{Serving, TrunkWords};
use turnway_bindings::trunk::{self, Input, Output, Trunk};
use turnway_core::id::{AgentId, NodeId};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::{Invoke, Order};

/// Length of a timer when no deadline is set.
const LONG: Duration = Duration::from_secs(3600);
/// Messages of one attempt that wait here: all that the other node sends before it gets credit for one, and the notice
/// that the attempt was placed.
const WORDS_MAX: usize = limits::TRUNK_UNTAKEN_MAX + 2;

/// The remote calls of a node, in both directions. Clones share one state.
#[derive(Clone)]
pub struct Lines(Arc<Inner>);

struct Inner {
    room: Mutex<Room>,
    /// Notified when the next deadline may have changed, or a call has ended.
    bell: Notify,
    quiet: Notify,
    /// Unset on a node that shares its store with no other node.
    bus: OnceLock<Arc<dyn Bus>>,
    exchange: OnceLock<Exchange>,
    runtime: Handle,
    clock: Clock,
    node: NodeId,
    metrics: Arc<Metrics>,
}

struct Room {
    trunk: Trunk,
    begun: BTreeMap<u64, Begun>,
    taken_on: BTreeMap<trunk::Call, TakenOn>,
    last: u64,
    mail: Vec<Mail>,
}

/// A call of this node: an attempt at an agent of another node.
struct Begun {
    words: Sender<Word>,
    placed: Option<oneshot::Sender<Option<Capabilities>>>,
}

/// A call of another node: an attempt at an agent that is connected here.
struct TakenOn {
    line: Arc<Extension>,
    /// Credit: how many messages the other node takes.
    room: Arc<Semaphore>,
    task: AbortHandle,
}

/// The outcome of dialling another node.
pub(super) enum Dialing {
    Placed(Dialed),
    /// No connection at that node has room.
    Refused,
    /// The other node may have started the attempt, and is gone.
    Lost,
}

/// One attempt over a connection of another node. Dropping it tells the agent to stop, unless the agent has ended the
/// attempt.
pub(super) struct Dialed {
    pub(super) capabilities: Capabilities,
    words: Receiver<Word>,
    call: Hold,
}

/// A call that is hung up when dropped.
struct Hold {
    lines: Lines,
    call: u64,
}

// === impl Lines ===

impl Lines {
    /// Creates the remote calls of this node. They reach no other node until [`Self::join`] is called.
    pub fn new(node: NodeId, runtime: &Handle, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let room = Room {
            trunk: Trunk::new(node),
            begun: BTreeMap::new(),
            taken_on: BTreeMap::new(),
            last: 0,
            mail: Vec::new(),
        };
        Self(Arc::new(Inner {
            room: Mutex::new(room),
            bell: Notify::new(),
            quiet: Notify::new(),
            bus: OnceLock::new(),
            exchange: OnceLock::new(),
            runtime: runtime.clone(),
            clock,
            node,
            metrics,
        }))
    }

    /// Sets the registry that serves the orders of other nodes.
    pub(super) fn reach(&self, exchange: Exchange) {
        // Set once: there is one registry for each node.
        _ = self.0.exchange.set(exchange);
    }

    /// Sets the bus by which other nodes are reached, and starts the timer task.
    pub fn join(&self, bus: Arc<dyn Bus>) {
        if self.0.bus.set(bus).is_ok() {
            let this = self.clone();
            self.0.runtime.spawn(supervise::keep("agents of other nodes", move || this.clone().watch()));
        }
    }

    /// Tells other nodes that this node leaves and takes no more of their attempts.
    pub fn leave(&self) {
        self.tell(Input::Leaving);
    }

    /// Waits until no other node has an attempt at an agent of this node.
    pub async fn quiet(&self) {
        loop {
            let quiet = self.0.quiet.notified();
            if self.room().taken_on.is_empty() {
                return;
            }
            quiet.await;
        }
    }

    /// Returns the runtime of the calls' tasks.
    pub(in crate::agent) fn runtime(&self) -> &Handle {
        &self.0.runtime
    }

    /// Returns the other nodes at which an agent is connected, and the number of its connections at each.
    pub fn elsewhere(&self, agent: &AgentId) -> Vec<(NodeId, u32)> {
        self.room().trunk.elsewhere(self.0.clock.now(), agent)
    }

    /// Returns the number of calls of this node to others, and of others to this node.
    pub fn calls(&self) -> (usize, usize) {
        self.room().trunk.calls()
    }

    pub(super) fn best(&self, agent: &AgentId, tried: &BTreeSet<NodeId>) -> Option<NodeId> {
        self.room().trunk.best(self.0.clock.now(), agent, tried)
    }

    pub(super) fn want(&self) {
        self.tell(Input::Wanted);
    }

    pub(super) fn serve(&self, agent: &AgentId, serving: Serving) {
        self.tell(Input::Serving(agent.clone(), serving));
    }

    pub(super) fn halt(&self, agent: &AgentId, order: &Order) {
        self.tell(Input::Halt(agent.clone(), Box::new(order.clone())));
    }

    /// Asks another node for an attempt at its agent. Dropping the future hangs up.
    pub(super) async fn dial(&self, to: NodeId, invoke: &Invoke) -> Dialing {
        let (placed, answer) = oneshot::channel();
        let (sender, words) = channel(WORDS_MAX);
        let call = {
            let mut room = self.room();
            room.last += 1;
            let call = room.last;
            room.begun.insert(call, Begun { words: sender, placed: Some(placed) });
            call
        };
        let hold = Hold { lines: self.clone(), call };
        self.tell(Input::Begin { call, to, invoke: Box::new(invoke.clone()) });
        match answer.await {
            Ok(Some(capabilities)) => Dialing::Placed(Dialed { capabilities, words, call: hold }),
            Ok(None) => Dialing::Refused,
            Err(_) => Dialing::Lost,
        }
    }

    /// Passes an input to the trunk, and carries out the outputs.
    fn tell(&self, input: Input) {
        // Without a bus there are no other nodes.
        let Some(bus) = self.0.bus.get() else { return };
        let now = self.0.clock.now();
        let mut room = self.room();
        room.trunk.handle_input(now, input);
        self.perform(&mut room);
        post(bus, &mut room.mail);
        let (is_quiet, (begun, taken_on)) = (room.taken_on.is_empty(), room.trunk.calls());
        drop(room);
        self.0.metrics.agents.remote(begun, taken_on);
        self.0.bell.notify_one();
        if is_quiet {
            self.0.quiet.notify_waiters();
        }
    }

    /// Runs the timer of the trunk.
    async fn watch(self) {
        loop {
            let due = self.room().trunk.poll_timeout();
            let wait = due.map_or(LONG, |due| due.at - self.0.clock.mono());
            tokio::select! {
                () = self.0.bell.notified() => {}
                () = tokio::time::sleep(wait) => self.wake(),
            }
        }
    }

    fn wake(&self) {
        let now = self.0.clock.now();
        let mut room = self.room();
        room.trunk.handle_timeout(now);
        self.perform(&mut room);
        self.0.bus.get().into_iter().for_each(|bus| post(bus, &mut room.mail));
    }

    fn perform(&self, room: &mut Room) {
        let now = self.0.clock.now();
        let mut answers = VecDeque::new();
        loop {
            // All outputs are drained before the trunk gets the answers to some of them.
            let Some(output) = room.trunk.poll_output() else {
                let Some(answer) = answers.pop_front() else { return };
                room.trunk.handle_input(now, answer);
                continue;
            };
            match output {
                Output::Publish { to, words } => room.mail.push((to, words)),
                Output::Placed(call, capabilities) => room.placed(call, Some(capabilities)),
                Output::Refused(call) => {
                    room.placed(call, None);
                    room.begun.remove(&call);
                }
                Output::Word(call, word) => {
                    // The channel has room for all messages that arrive before one is taken.
                    let to = room.begun.get(&call);
                    to.into_iter().for_each(|begun| _ = begun.words.try_send(word.clone()));
                }
                // Dropping the sender tells the attempt.
                Output::Lost(call) => _ = room.begun.remove(&call),
                Output::Ring(call, invoke) => answers.push_back(self.ring(room, call, &invoke)),
                Output::Order(call, order) => {
                    if let Some(taken_on) = room.taken_on.get(&call) {
                        taken_on.line.put(Letter::Order(order));
                    }
                }
                Output::Room(call, words) => {
                    let permits = usize::try_from(words).unwrap_or(Semaphore::MAX_PERMITS);
                    room.taken_on.get(&call).into_iter().for_each(|it| it.room.add_permits(permits));
                }
                Output::Hung(call) => {
                    if let Some(taken_on) = room.taken_on.remove(&call) {
                        taken_on.task.abort();
                    }
                }
                Output::Halt(order) => self.halted(&order),
                Output::Came(agent) => {
                    let desk = self.0.exchange.get().and_then(|exchange| exchange.desk(&agent));
                    desk.into_iter().for_each(|desk| desk.came.notify_waiters());
                }
            }
        }
    }

    /// Finds a connection of this node for an attempt of another node.
    fn ring(&self, room: &mut Room, call: trunk::Call, invoke: &Invoke) -> Input {
        let desk = self.0.exchange.get().and_then(|exchange| exchange.desk(&invoke.agent_id));
        let Some(placed) = desk.and_then(|desk| desk.place(invoke)) else { return Input::Refuse(call) };
        let line = Arc::clone(&placed.line);
        let (capabilities, words) = (line.capabilities, Arc::new(Semaphore::new(limits::TRUNK_UNTAKEN_MAX)));
        let task =
            self.0.runtime.spawn(hand_on(self.clone(), call, placed, Arc::clone(&words))).abort_handle();
        room.taken_on.insert(call, TakenOn { line, room: words, task });
        Input::Place(call, capabilities)
    }

    fn halted(&self, order: &Order) {
        if let Order::Stop { agent_id, .. } = order
            && let Some(desk) = self.0.exchange.get().and_then(|exchange| exchange.desk(agent_id))
        {
            desk.halt(order);
        }
    }

    /// Returns the locked state; no code panics while it holds this lock.
    fn room(&self) -> MutexGuard<'_, Room> {
        self.0.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl bus::Lines for Lines {
    fn node(&self) -> NodeId {
        self.0.node
    }

    fn heard(&self, from: NodeId, words: TrunkWords) {
        self.tell(Input::Peer(from, words));
    }

    fn unheard(&self, node: NodeId) {
        self.tell(Input::Unheard(node));
    }

    fn gap(&self) {
        self.tell(Input::Gap);
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{:?} calls of {}>", self.calls(), self.0.node)
    }
}

/// Publishes while the trunk is locked, to keep the order: a message that overtakes another is dropped by the receiver.
fn post(bus: &Arc<dyn Bus>, mail: &mut Vec<Mail>) {
    if !mail.is_empty() {
        bus.post(mail);
    }
}

/// Forwards the messages of a local agent about another node's attempt, as far as that node has given credit.
async fn hand_on(lines: Lines, call: trunk::Call, mut placed: Placed, room: Arc<Semaphore>) {
    // The semaphore is never closed.
    while let Ok(permit) = room.acquire().await {
        permit.forget();
        let Some(word) = placed.words.recv().await else { return lines.tell(Input::Lose(call)) };
        let is_last = word.is_last();
        lines.tell(Input::Say(call, word));
        if is_last {
            return;
        }
    }
}

// === impl Room ===

impl Room {
    fn placed(&mut self, call: u64, capabilities: Option<Capabilities>) {
        let placed = self.begun.get_mut(&call).and_then(|begun| begun.placed.take());
        // The receiver is gone only while the call is being hung up.
        placed.into_iter().for_each(|placed| _ = placed.send(capabilities));
    }
}

// === impl Dialed ===

impl Dialed {
    pub(super) fn order(&self, order: Order) {
        self.call.lines.tell(Input::Order(self.call.call, Box::new(order)));
    }

    /// Returns the agent's next message, or `None` if the connection is gone. Cancel-safe.
    pub(super) async fn word(&mut self) -> Option<Word> {
        let word = self.words.recv().await?;
        self.call.lines.tell(Input::Passed(self.call.call));
        Some(word)
    }
}

// === impl Hold ===

impl Drop for Hold {
    fn drop(&mut self) {
        self.lines.room().begun.remove(&self.call);
        self.lines.tell(Input::Hang(self.call));
    }
}
