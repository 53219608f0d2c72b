//! Attempts of this node at agents that are connected to another node, and attempts of other nodes at agents connected
//! to this node. A [`RemoteAttempts`] decides what is sent when; this file carries it to the bus, to connections and to
//! attempts. Nothing here may block while the trunk is locked.
use super::AgentRegistry;
use super::pool::{AgentCommand, AgentConnection, LocalCall};
use crate::bus::{self, AddressedMessage, Bus};
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
use turnway_core::id::{AgentId, NodeId};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::{Invoke, Order};
use turnway_core::time::Now;
use turnway_node::remote_attempts::{self, Input, Output, RemoteAttempts};
use turnway_wire::agent::AttemptEvent;
use turnway_wire::channel::hello::DialInCapabilities;
use turnway_wire::peer::remote::{AgentCapacity, RemoteMessage};

/// Length of a timer when no deadline is set.
const IDLE_WAIT: Duration = Duration::from_secs(3600);
/// Messages of one attempt that wait here: all that the other node sends before it gets credit for one, and the notice
/// that the attempt was placed.
const MESSAGES_MAX: usize = limits::REMOTE_QUEUE_MAX + 2;

/// The remote calls of a node, in both directions. Clones share one state.
#[derive(Clone)]
pub struct RemoteCalls(Arc<RemoteCallsInner>);

struct RemoteCallsInner {
    state: Mutex<RemoteCallsState>,
    /// Notified when the next deadline may have changed.
    wake: Notify,
    /// Notified when no call of another node is open.
    idle: Notify,
    /// Unset on a node that shares its store with no other node.
    bus: OnceLock<Arc<dyn Bus>>,
    registry: OnceLock<AgentRegistry>,
    runtime: Handle,
    clock: Clock,
    node: NodeId,
    metrics: Arc<Metrics>,
}

struct RemoteCallsState {
    attempts: RemoteAttempts,
    outgoing: BTreeMap<u64, OutgoingRemoteCall>,
    incoming: BTreeMap<remote_attempts::RemoteCallId, IncomingRemoteCall>,
    last_call: u64,
    messages: Vec<AddressedMessage>,
}

/// The name of a call in one of the two directions.
enum RemoteCallRef {
    Outgoing(u64),
    Incoming(remote_attempts::RemoteCallId),
}

/// A call of this node: an attempt at an agent of another node.
struct OutgoingRemoteCall {
    messages: Sender<AttemptEvent>,
    placed: Option<oneshot::Sender<Option<DialInCapabilities>>>,
}

/// A call of another node: an attempt at an agent that is connected here.
struct IncomingRemoteCall {
    connection: Arc<AgentConnection>,
    /// Credit: how many messages the other node takes.
    credit: Arc<Semaphore>,
    task: AbortHandle,
}

/// The outcome of dialling another node.
pub(super) enum DialOutcome {
    Placed(RemoteCall),
    /// No connection at that node has room.
    Refused,
    /// The other node may have started the attempt, and is gone.
    Lost,
}

/// One attempt over a connection of another node. Dropping it tells the agent to stop, unless the agent has ended the
/// attempt.
pub(super) struct RemoteCall {
    pub(super) capabilities: DialInCapabilities,
    messages: Receiver<AttemptEvent>,
    guard: HangUpGuard,
}

/// A call that is hung up when dropped.
struct HangUpGuard {
    lines: RemoteCalls,
    call: u64,
}

// === impl RemoteCalls ===

impl RemoteCalls {
    /// Creates the remote calls of this node. They reach no other node until [`Self::join`] is called.
    pub fn new(node: NodeId, runtime: &Handle, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let state = RemoteCallsState {
            attempts: RemoteAttempts::new(node),
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            last_call: 0,
            messages: Vec::new(),
        };
        Self(Arc::new(RemoteCallsInner {
            state: Mutex::new(state),
            wake: Notify::new(),
            idle: Notify::new(),
            bus: OnceLock::new(),
            registry: OnceLock::new(),
            runtime: runtime.clone(),
            clock,
            node,
            metrics,
        }))
    }

    /// Sets the registry that serves the orders of other nodes.
    pub(super) fn set_registry(&self, registry: AgentRegistry) {
        // Set once: there is one registry for each node.
        _ = self.0.registry.set(registry);
    }

    /// Sets the bus by which other nodes are reached, and starts the timer task.
    pub fn join(&self, bus: Arc<dyn Bus>) {
        if self.0.bus.set(bus).is_ok() {
            let this = self.clone();
            self.0.runtime.spawn(supervise::run_restarting("agents of other nodes", move || this.clone().run_timer()));
        }
    }

    /// Tells other nodes that this node leaves and takes no more of their attempts.
    pub fn leave(&self) {
        self.handle_input(Input::Draining);
    }

    /// Waits until no other node has an attempt at an agent of this node.
    pub async fn wait_idle(&self) {
        loop {
            let quiet = self.0.idle.notified();
            if self.lock_state().incoming.is_empty() {
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
    pub fn other_nodes(&self, agent: &AgentId) -> Vec<(NodeId, u32)> {
        self.lock_state().attempts.other_nodes(self.0.clock.now(), agent)
    }

    /// Returns the number of calls of this node to others, and of others to this node.
    pub fn calls(&self) -> (usize, usize) {
        self.lock_state().attempts.call_counts()
    }

    pub(super) fn best_node(&self, agent: &AgentId, tried: &BTreeSet<NodeId>) -> Option<NodeId> {
        self.lock_state().attempts.least_loaded_node(self.0.clock.now(), agent, tried)
    }

    pub(super) fn notify_wanted(&self) {
        self.handle_input(Input::AgentWanted);
    }

    pub(super) fn update_serving(&self, agent: &AgentId, serving: AgentCapacity) {
        self.handle_input(Input::Capacity(agent.clone(), serving));
    }

    pub(super) fn stop_remote(&self, agent: &AgentId, order: &Order) {
        self.handle_input(Input::Stop(agent.clone(), Box::new(order.clone())));
    }

    /// Asks another node for an attempt at its agent. Dropping the future hangs up.
    pub(super) async fn dial(&self, to: NodeId, invoke: &Invoke) -> DialOutcome {
        let (placed, answer) = oneshot::channel();
        let (sender, messages) = channel(MESSAGES_MAX);
        let call = {
            let mut state = self.lock_state();
            state.last_call += 1;
            let call = state.last_call;
            state.outgoing.insert(call, OutgoingRemoteCall { messages: sender, placed: Some(placed) });
            call
        };
        let hold = HangUpGuard { lines: self.clone(), call };
        self.handle_input(Input::Begin { call, to, invoke: Box::new(invoke.clone()) });
        match answer.await {
            Ok(Some(capabilities)) => DialOutcome::Placed(RemoteCall { capabilities, messages, guard: hold }),
            Ok(None) => DialOutcome::Refused,
            Err(_) => DialOutcome::Lost,
        }
    }

    fn handle_input(&self, input: Input) {
        self.advance(|attempts, now| attempts.handle_input(now, input));
    }

    fn handle_timeout(&self) {
        self.advance(RemoteAttempts::handle_timeout);
    }

    /// Passes one event to the trunk, carries out the outputs, and sets the gauge. No other function runs the trunk.
    fn advance(&self, event: impl FnOnce(&mut RemoteAttempts, Now)) {
        // Without a bus there are no other nodes.
        let Some(bus) = self.0.bus.get() else { return };
        let mut state = self.lock_state();
        // Read under the lock: the trunk's time must not go back.
        event(&mut state.attempts, self.0.clock.now());
        self.drain_outputs(&mut state);
        publish(bus, &mut state.messages);
        let (outgoing, incoming) = state.attempts.call_counts();
        // Set under the lock: otherwise a thread with older counts could set the gauge last.
        self.0.metrics.agents.set_remote_attempts(outgoing, incoming);
        drop(state);
        self.0.wake.notify_one();
    }

    /// Removes a call, and notifies a drain if no call of another node is left. No other function removes a call.
    fn end_call(&self, state: &mut RemoteCallsState, call: RemoteCallRef) {
        match call {
            // Dropping the sender tells the attempt.
            RemoteCallRef::Outgoing(call) => drop(state.outgoing.remove(&call)),
            RemoteCallRef::Incoming(call) => {
                if let Some(incoming) = state.incoming.remove(&call) {
                    incoming.task.abort();
                }
                if state.incoming.is_empty() {
                    self.0.idle.notify_waiters();
                }
            }
        }
    }

    /// Runs the timer of the trunk.
    async fn run_timer(self) {
        loop {
            let due = self.lock_state().attempts.poll_timeout();
            let wait = due.map_or(IDLE_WAIT, |due| due.at - self.0.clock.mono());
            tokio::select! {
                () = self.0.wake.notified() => {}
                () = tokio::time::sleep(wait) => self.handle_timeout(),
            }
        }
    }

    fn drain_outputs(&self, state: &mut RemoteCallsState) {
        let now = self.0.clock.now();
        let mut answers = VecDeque::new();
        loop {
            // All outputs are drained before the trunk gets the answers to some of them.
            let Some(output) = state.attempts.poll_output() else {
                let Some(answer) = answers.pop_front() else { return };
                state.attempts.handle_input(now, answer);
                continue;
            };
            match output {
                Output::Publish { to, message } => state.messages.push((to, message)),
                Output::Assigned(call, capabilities) => state.resolve_placement(call, Some(capabilities)),
                Output::NoCapacity(call) => {
                    state.resolve_placement(call, None);
                    self.end_call(state, RemoteCallRef::Outgoing(call));
                }
                Output::Event(call, event) => {
                    // The channel has room for all messages that arrive before one is taken.
                    let to = state.outgoing.get(&call);
                    to.into_iter().for_each(|outgoing| _ = outgoing.messages.try_send(event.clone()));
                }
                Output::ConnectionLost(call) => self.end_call(state, RemoteCallRef::Outgoing(call)),
                Output::FindConnection(call, invoke) => answers.push_back(self.accept_call(state, call, &invoke)),
                Output::Order(call, order) => {
                    if let Some(incoming) = state.incoming.get(&call) {
                        incoming.connection.push(AgentCommand::Order(order));
                    }
                }
                Output::Credit(call, events) => {
                    let permits = usize::try_from(events).unwrap_or(Semaphore::MAX_PERMITS);
                    state.incoming.get(&call).into_iter().for_each(|it| it.credit.add_permits(permits));
                }
                Output::Abandoned(call) => self.end_call(state, RemoteCallRef::Incoming(call)),
                Output::Stop(order) => self.handle_stop(&order),
                Output::AgentAvailable(agent) => {
                    let pool = self.0.registry.get().and_then(|registry| registry.pool(&agent));
                    pool.into_iter().for_each(|pool| pool.available.notify_waiters());
                }
            }
        }
    }

    /// Finds a connection of this node for an attempt of another node.
    fn accept_call(&self, state: &mut RemoteCallsState, call: remote_attempts::RemoteCallId, invoke: &Invoke) -> Input {
        let pool = self.0.registry.get().and_then(|registry| registry.pool(&invoke.agent_id));
        let Some(placed) = pool.and_then(|pool| pool.place(invoke)) else { return Input::NoCapacity(call) };
        let connection = Arc::clone(&placed.connection);
        let capabilities = connection.capabilities;
        let credit = Arc::new(Semaphore::new(limits::REMOTE_QUEUE_MAX));
        let task =
            self.0.runtime.spawn(forward_messages(self.clone(), call, placed, Arc::clone(&credit))).abort_handle();
        state.incoming.insert(call, IncomingRemoteCall { connection, credit, task });
        Input::Assigned(call, capabilities)
    }

    fn handle_stop(&self, order: &Order) {
        if let Order::Stop { agent_id, .. } = order
            && let Some(pool) = self.0.registry.get().and_then(|registry| registry.pool(agent_id))
        {
            pool.stop_local(order);
        }
    }

    /// Returns the locked state; no code panics while it holds this lock.
    fn lock_state(&self) -> MutexGuard<'_, RemoteCallsState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl bus::RemoteCallHandler for RemoteCalls {
    fn node(&self) -> NodeId {
        self.0.node
    }

    fn handle_message(&self, from: NodeId, message: RemoteMessage) {
        self.handle_input(Input::Peer(from, message));
    }

    fn handle_not_subscribed(&self, node: NodeId) {
        self.handle_input(Input::NodeUnreachable(node));
    }

    fn handle_gap(&self) {
        self.handle_input(Input::MessagesMissed);
    }
}

impl fmt::Debug for RemoteCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{:?} calls of {}>", self.calls(), self.0.node)
    }
}

/// Publishes while the trunk is locked, to keep the order: a message that overtakes another is dropped by the receiver.
fn publish(bus: &Arc<dyn Bus>, messages: &mut Vec<AddressedMessage>) {
    if !messages.is_empty() {
        bus.publish(messages);
    }
}

/// Forwards the messages of a local agent about another node's attempt, as far as that node has given credit.
async fn forward_messages(
    remote_calls: RemoteCalls,
    call: remote_attempts::RemoteCallId,
    mut placed: LocalCall,
    credit: Arc<Semaphore>,
) {
    // The semaphore is never closed.
    while let Ok(permit) = credit.acquire().await {
        permit.forget();
        let Some(event) = placed.messages.recv().await else {
            return remote_calls.handle_input(Input::ConnectionLost(call));
        };
        let is_last = event.is_last();
        remote_calls.handle_input(Input::Event(call, event));
        if is_last {
            return;
        }
    }
}

// === impl RemoteCallsState ===

impl RemoteCallsState {
    fn resolve_placement(&mut self, call: u64, capabilities: Option<DialInCapabilities>) {
        let placed = self.outgoing.get_mut(&call).and_then(|outgoing| outgoing.placed.take());
        // The receiver is gone only while the call is being hung up.
        placed.into_iter().for_each(|placed| _ = placed.send(capabilities));
    }
}

// === impl RemoteCall ===

impl RemoteCall {
    pub(super) fn order(&self, order: Order) {
        self.guard.lines.handle_input(Input::Order(self.guard.call, Box::new(order)));
    }

    /// Returns the agent's next message, or `None` if the connection is gone. Cancel-safe.
    pub(super) async fn recv_message(&mut self) -> Option<AttemptEvent> {
        let event = self.messages.recv().await?;
        self.guard.lines.handle_input(Input::EventDelivered(self.guard.call));
        Some(event)
    }
}

// === impl HangUpGuard ===

impl Drop for HangUpGuard {
    fn drop(&mut self) {
        let call = self.call;
        self.lines.end_call(&mut self.lines.lock_state(), RemoteCallRef::Outgoing(call));
        self.lines.handle_input(Input::Abandon(call));
    }
}

#[cfg(test)]
mod tests;
