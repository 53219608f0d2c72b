//! One agent that dials in, and the pool of its connections to this node. Places attempts at connections; called by
//! `call` and, for attempts of other nodes, by `remote_calls`.
use super::RemoteCalls;
use crate::bus;
use crate::config::ServedBy;
use crate::metrics::ConnectionGauge;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use turnway_core::id::{AgentId, NodeId, RunId, TenantId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::agent::{Invoke, Order};
use turnway_wire::agent::AttemptEvent;
use turnway_wire::channel::hello::DialInCapabilities;
use turnway_wire::channel::service::TenantScope;
use turnway_wire::peer::remote::AgentCapacity;

/// The connections of one agent that dials in.
pub struct AgentConnectionPool {
    pub(super) agent: AgentId,
    pub(super) served_by: ServedBy,
    /// True if the agent's events have ids, and the agent can be asked for the events after one.
    pub(super) resumes: bool,
    /// The agent's connections to other nodes.
    pub(super) remote: RemoteCalls,
    connections: Mutex<Vec<Arc<AgentConnection>>>,
    /// Notified when a connection arrives or has room again, here or at another node.
    pub(super) available: Notify,
    gauge: ConnectionGauge,
}

/// One connection of an agent, with the commands that wait for its task.
pub struct AgentConnection {
    pub(super) capabilities: DialInCapabilities,
    reach: TenantScope,
    queue: Mutex<AgentCommandQueue>,
    wake: Notify,
    is_overrun: AtomicBool,
}

#[derive(Default)]
struct AgentCommandQueue {
    commands: VecDeque<AgentCommand>,
    /// Attempts that were placed at this connection and not taken off again.
    open: usize,
    /// Attempts ever placed at this connection; numbers them.
    placed_total: u64,
    is_closed: bool,
}

/// A command to the task of a connection.
#[derive(Debug)]
pub enum AgentCommand {
    /// Starts an attempt, which gets this number at this connection; its events go to the sender.
    Invoke(Box<Invoke>, u64, Sender<AttemptEvent>),
    /// Passes an order on.
    Order(Box<Order>),
    /// Ends the attempt of this number: nothing receives its events any more.
    Forget(RunId, u32, u64),
}

/// The registration of a connection at its pool. Dropping it closes the event queues of the attempts over the
/// connection.
#[derive(Debug)]
pub struct PoolRegistration {
    pool: Arc<AgentConnectionPool>,
    connection: Arc<AgentConnection>,
}

/// One attempt over one connection of this node. Dropping it tells the agent to stop, unless the agent has ended the
/// attempt.
pub(super) struct LocalCall {
    pub(super) connection: Arc<AgentConnection>,
    pub(super) messages: Receiver<AttemptEvent>,
    run_id: RunId,
    attempt: u32,
    number: u64,
}

// === impl AgentConnectionPool ===

impl AgentConnectionPool {
    /// Creates a pool without connections.
    pub(in crate::agent) fn new(
        agent: AgentId,
        served_by: ServedBy,
        resumes: bool,
        gauge: ConnectionGauge,
        remote: RemoteCalls,
    ) -> Self {
        let connections = Mutex::default();
        let available = Notify::new();
        Self { agent, served_by, resumes, remote, connections, available, gauge }
    }

    /// Returns whether there is a connection for this tenant at this node, or any connection at another node: nodes do
    /// not tell each other for which tenants their connections are.
    pub(in crate::agent) fn is_served(&self, tenant: &TenantId) -> bool {
        // A statement of its own, to release the lock: the remote calls lock this list while their own lock is held, so
        // their lock must not be taken while the list is locked.
        let is_here = self.connections().iter().any(|connection| connection.reach.covers(tenant));
        is_here || !self.remote.other_nodes(&self.agent).is_empty()
    }

    /// Returns the nodes with connections, this node first, and the number at each.
    pub(in crate::agent) fn nodes(&self) -> Vec<(NodeId, usize)> {
        let here = Some((bus::RemoteCallHandler::node(&self.remote), self.connections().len()))
            .filter(|(_, connections)| *connections > 0);
        let elsewhere = self.remote.other_nodes(&self.agent).into_iter();
        let elsewhere = elsewhere.map(|(node, connections)| (node, connections as usize));
        here.into_iter().chain(elsewhere).collect()
    }

    /// Sends a stop order to every connection, here and at other nodes: the agent's process that knows the run must
    /// stop it.
    pub(in crate::agent) fn stop(&self, order: &Order) {
        self.stop_local(order);
        self.remote.stop_remote(&self.agent, order);
    }

    /// Sends a stop order to every connection of this node that may know the run. A node of an earlier release does not
    /// name the tenant and means the default tenant.
    pub(super) fn stop_local(&self, order: &Order) {
        let Order::Stop { tenant, .. } = order else { return };
        let may_know = |connection: &&Arc<AgentConnection>| connection.reach.covers(tenant);
        for connection in self.connections().iter().filter(may_know) {
            connection.push(AgentCommand::Order(Box::new(order.clone())));
        }
    }

    /// Places an attempt at the connection of this node with the fewest attempts among those for this tenant. Returns
    /// `None` if that connection has no room.
    pub(super) fn place(&self, invoke: &Invoke) -> Option<LocalCall> {
        let connections = self.connections();
        let open = |connection: &&Arc<AgentConnection>| connection.queue().open;
        let covers = |connection: &AgentConnection| connection.reach.covers(&invoke.key.tenant);
        let able = connections.iter().filter(|connection| covers(connection) || planted(Planted::DialinReachIgnored));
        let connection = able.min_by_key(open).filter(|connection| open(connection) < limits::DIALIN_RUNS_MAX)?;
        let (to, events) = channel(limits::DIALIN_RUN_EVENTS_MAX);
        let number = {
            let mut queue = connection.queue();
            queue.open += 1;
            queue.placed_total += 1;
            queue.placed_total
        };
        connection.push(AgentCommand::Invoke(Box::new(invoke.clone()), number, to));
        let connection = Arc::clone(connection);
        Some(LocalCall { connection, messages: events, run_id: invoke.run_id.clone(), attempt: invoke.attempt, number })
    }

    /// Adds a connection, unless the agent has `max` connections, or `of_tenant_max` connections that serve the same
    /// tenant only. Returns whether it was added.
    pub(super) fn add(&self, connection: &Arc<AgentConnection>, max: usize, of_tenant_max: usize) -> bool {
        let mut connections = self.connections();
        let same = connections.iter().filter(|other| other.reach == connection.reach).count();
        if connections.len() >= max
            || connection.reach != TenantScope::AllTenants
                && same >= of_tenant_max
                && !planted(Planted::DialinTenantTakesAll)
        {
            return false;
        }
        connections.push(Arc::clone(connection));
        drop(connections);
        self.gauge.increment();
        self.notify_changed();
        true
    }

    fn remove(&self, connection: &Arc<AgentConnection>) {
        self.connections().retain(|other| !Arc::ptr_eq(other, connection));
        if !planted(Planted::DialinGaugeKept) {
            self.gauge.decrement();
        }
        self.notify_changed();
    }

    /// Wakes the attempts that wait for a connection, and tells other nodes the new load.
    fn notify_changed(&self) {
        self.available.notify_waiters();
        self.remote.update_serving(&self.agent, self.serving());
    }

    /// Returns the number of connections, the attempts over them, and whether one has room.
    fn serving(&self) -> AgentCapacity {
        let connections = self.connections();
        let open: Vec<usize> = connections.iter().map(|connection| connection.queue().open).collect();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        AgentCapacity {
            connections: number(open.len()),
            open: number(open.iter().sum()),
            has_room: open.iter().any(|open| *open < limits::DIALIN_RUNS_MAX),
        }
    }

    /// Returns the connections; no code panics while it holds this lock. The holder must not call into the remote
    /// calls, which take this lock while they hold their own.
    fn connections(&self) -> MutexGuard<'_, Vec<Arc<AgentConnection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AgentConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} connections>", self.connections().len())
    }
}

// === impl AgentConnection ===

impl AgentConnection {
    /// Creates a connection with these capabilities, for the tenants of `reach`.
    pub(super) fn new(capabilities: DialInCapabilities, reach: TenantScope) -> Self {
        let queue = Mutex::default();
        let wake = Notify::new();
        let is_overrun = AtomicBool::new(false);
        Self { capabilities, reach, queue, wake, is_overrun }
    }

    /// Queues a command for the connection's task.
    pub(super) fn push(&self, command: AgentCommand) {
        let mut queue = self.queue();
        // A command to a closed connection is dropped, and with it the sender of the attempt's events.
        if queue.is_closed {
            return;
        }
        if queue.commands.len() >= limits::DIALIN_ORDERS_MAX {
            self.is_overrun.store(true, Ordering::Release);
        } else {
            queue.commands.push_back(command);
        }
        drop(queue);
        self.wake.notify_one();
    }

    fn queue(&self) -> MutexGuard<'_, AgentCommandQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AgentConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} attempts>", self.queue().open)
    }
}

// === impl PoolRegistration ===

impl PoolRegistration {
    pub(super) fn new(pool: Arc<AgentConnectionPool>, connection: Arc<AgentConnection>) -> Self {
        Self { pool, connection }
    }

    /// Returns whether the agent's events have ids.
    pub fn has_event_ids(&self) -> bool {
        self.pool.resumes
    }

    /// Waits for the next command. Returns `None` if the queue has overflowed, and the connection must be closed.
    /// Cancel-safe.
    pub async fn next_command(&self) -> Option<AgentCommand> {
        loop {
            if self.connection.is_overrun.load(Ordering::Acquire) {
                return None;
            }
            let next = self.connection.queue().commands.pop_front();
            if let Some(command) = next {
                if let AgentCommand::Forget(..) = command {
                    self.connection.queue().open -= usize::from(!planted(Planted::DialinRunsKept));
                    self.pool.notify_changed();
                }
                return Some(command);
            }
            self.connection.wake.notified().await;
        }
    }
}

impl Drop for PoolRegistration {
    fn drop(&mut self) {
        let mut queue = self.connection.queue();
        queue.is_closed = true;
        // Commands that were not taken were never sent; dropping them closes the event queues of their attempts.
        let letters = std::mem::take(&mut queue.commands);
        drop(queue);
        drop(letters);
        self.pool.remove(&self.connection);
    }
}

// === impl LocalCall ===

impl Drop for LocalCall {
    fn drop(&mut self) {
        self.connection.push(AgentCommand::Forget(self.run_id.clone(), self.attempt, self.number));
    }
}
