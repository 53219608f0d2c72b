//! One agent that dials in, and the pool of its connections to this node. Places attempts at connections; called by
//! `call` and, for attempts of other nodes, by `remote_calls`.
use super::Lines;
use crate::bus;
use crate::config::ServedBy;
use crate::metrics::DialedIn;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use turnway_bindings::channel::service::Reach;
use turnway_bindings::dialin::Word;
use turnway_bindings::link::Capabilities;
use turnway_bindings::peer::trunk::Serving;
use turnway_core::id::{AgentId, NodeId, RunId, TenantId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::agent::{Invoke, Order};

/// The connections of one agent that dials in.
pub struct Desk {
    pub(super) agent: AgentId,
    pub(super) served_by: ServedBy,
    /// True if the agent's events have ids, and the agent can be asked for the events after one.
    pub(super) resumes: bool,
    /// The agent's connections to other nodes.
    pub(super) beyond: Lines,
    lines: Mutex<Vec<Arc<Extension>>>,
    /// Notified when a connection arrives or has room again, here or at another node.
    pub(super) came: Notify,
    connected: DialedIn,
}

/// One connection of an agent, with the commands that wait for its task.
pub struct Extension {
    pub(super) capabilities: Capabilities,
    reach: Reach,
    post: Mutex<Post>,
    bell: Notify,
    overrun: AtomicBool,
}

#[derive(Default)]
struct Post {
    letters: VecDeque<Letter>,
    /// Attempts that were placed at this connection and not taken off again.
    open: usize,
    /// Attempts ever placed at this connection; numbers them.
    placed: u64,
    gone: bool,
}

/// A command to the task of a connection.
#[derive(Debug)]
pub enum Letter {
    /// Starts an attempt, which gets this number at this connection; its events go to the sender.
    Invoke(Box<Invoke>, u64, Sender<Word>),
    /// Passes an order on.
    Order(Box<Order>),
    /// Ends the attempt of this number: nothing receives its events any more.
    Forget(RunId, u32, u64),
}

/// The registration of a connection at its pool. Dropping it closes the event queues of the attempts over the
/// connection.
#[derive(Debug)]
pub struct Place {
    desk: Arc<Desk>,
    line: Arc<Extension>,
}

/// One attempt over one connection of this node. Dropping it tells the agent to stop, unless the agent has ended the
/// attempt.
pub(super) struct Placed {
    pub(super) line: Arc<Extension>,
    pub(super) words: Receiver<Word>,
    run_id: RunId,
    attempt: u32,
    number: u64,
}

// === impl Desk ===

impl Desk {
    /// Creates a pool without connections.
    pub(in crate::agent) fn new(
        agent: AgentId,
        served_by: ServedBy,
        resumes: bool,
        connected: DialedIn,
        beyond: Lines,
    ) -> Self {
        let (lines, came) = (Mutex::default(), Notify::new());
        Self { agent, served_by, resumes, beyond, lines, came, connected }
    }

    /// Returns whether there is a connection for this tenant at this node, or any connection at another node: nodes do
    /// not tell each other for which tenants their connections are.
    pub(in crate::agent) fn is_served(&self, tenant: &TenantId) -> bool {
        // A statement of its own, to release the lock: the remote calls lock this list while their own lock is held, so
        // their lock must not be taken while the list is locked.
        let is_here = self.lines().iter().any(|line| line.reach.covers(tenant));
        is_here || !self.beyond.elsewhere(&self.agent).is_empty()
    }

    /// Returns the nodes with connections, this node first, and the number at each.
    pub(in crate::agent) fn nodes(&self) -> Vec<(NodeId, usize)> {
        let here = Some((bus::Lines::node(&self.beyond), self.lines().len()))
            .filter(|(_, connections)| *connections > 0);
        let elsewhere = self.beyond.elsewhere(&self.agent).into_iter();
        let elsewhere = elsewhere.map(|(node, connections)| (node, connections as usize));
        here.into_iter().chain(elsewhere).collect()
    }

    /// Sends a stop order to every connection, here and at other nodes: the agent's process that knows the run must
    /// stop it.
    pub(in crate::agent) fn stop(&self, order: &Order) {
        self.halt(order);
        self.beyond.halt(&self.agent, order);
    }

    /// Sends a stop order to every connection of this node that may know the run. A node of an earlier release does not
    /// name the tenant and means the default tenant.
    pub(super) fn halt(&self, order: &Order) {
        let Order::Stop { tenant, .. } = order else { return };
        let may_know = |line: &&Arc<Extension>| line.reach.covers(tenant);
        for line in self.lines().iter().filter(may_know) {
            line.put(Letter::Order(Box::new(order.clone())));
        }
    }

    /// Places an attempt at the connection of this node with the fewest attempts among those for this tenant. Returns
    /// `None` if that connection has no room.
    pub(super) fn place(&self, invoke: &Invoke) -> Option<Placed> {
        let lines = self.lines();
        let open = |line: &&Arc<Extension>| line.post().open;
        let covers = |line: &Extension| line.reach.covers(&invoke.key.tenant);
        let able = lines.iter().filter(|line| covers(line) || planted(Planted::DialinReachIgnored));
        let line = able.min_by_key(open).filter(|line| open(line) < limits::DIALIN_RUNS_MAX)?;
        let (to, words) = channel(limits::DIALIN_UNTAKEN_MAX);
        let number = {
            let mut post = line.post();
            post.open += 1;
            post.placed += 1;
            post.placed
        };
        line.put(Letter::Invoke(Box::new(invoke.clone()), number, to));
        let line = Arc::clone(line);
        Some(Placed { line, words, run_id: invoke.run_id.clone(), attempt: invoke.attempt, number })
    }

    /// Adds a connection, unless the agent has `max` connections, or `of_tenant_max` connections that serve the same
    /// tenant only. Returns whether it was added.
    pub(super) fn add(&self, line: &Arc<Extension>, max: usize, of_tenant_max: usize) -> bool {
        let mut lines = self.lines();
        let same = lines.iter().filter(|other| other.reach == line.reach).count();
        if lines.len() >= max
            || line.reach != Reach::Everyone
                && same >= of_tenant_max
                && !planted(Planted::DialinTenantTakesAll)
        {
            return false;
        }
        lines.push(Arc::clone(line));
        drop(lines);
        self.connected.came();
        self.changed();
        true
    }

    fn remove(&self, line: &Arc<Extension>) {
        self.lines().retain(|other| !Arc::ptr_eq(other, line));
        if !planted(Planted::DialinGaugeKept) {
            self.connected.left();
        }
        self.changed();
    }

    /// Wakes the attempts that wait for a connection, and tells other nodes the new load.
    fn changed(&self) {
        self.came.notify_waiters();
        self.beyond.serve(&self.agent, self.serving());
    }

    /// Returns the number of connections, the attempts over them, and whether one has room.
    fn serving(&self) -> Serving {
        let lines = self.lines();
        let open: Vec<usize> = lines.iter().map(|line| line.post().open).collect();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Serving {
            connections: number(open.len()),
            open: number(open.iter().sum()),
            has_room: open.iter().any(|open| *open < limits::DIALIN_RUNS_MAX),
        }
    }

    /// Returns the connections; no code panics while it holds this lock. The holder must not call into the remote
    /// calls, which take this lock while they hold their own.
    fn lines(&self) -> MutexGuard<'_, Vec<Arc<Extension>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} connections>", self.lines().len())
    }
}

// === impl Extension ===

impl Extension {
    /// Creates a connection with these capabilities, for the tenants of `reach`.
    pub(super) fn new(capabilities: Capabilities, reach: Reach) -> Self {
        let (post, bell, overrun) = (Mutex::default(), Notify::new(), AtomicBool::new(false));
        Self { capabilities, reach, post, bell, overrun }
    }

    /// Queues a command for the connection's task.
    pub(super) fn put(&self, letter: Letter) {
        let mut post = self.post();
        // A command to a closed connection is dropped, and with it the sender of the attempt's events.
        if post.gone {
            return;
        }
        if post.letters.len() >= limits::DIALIN_ORDERS_MAX {
            self.overrun.store(true, Ordering::Release);
        } else {
            post.letters.push_back(letter);
        }
        drop(post);
        self.bell.notify_one();
    }

    fn post(&self) -> MutexGuard<'_, Post> {
        self.post.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} attempts>", self.post().open)
    }
}

// === impl Place ===

impl Place {
    pub(super) fn new(desk: Arc<Desk>, line: Arc<Extension>) -> Self {
        Self { desk, line }
    }

    /// Returns whether the agent's events have ids.
    pub fn is_named(&self) -> bool {
        self.desk.resumes
    }

    /// Waits for the next command. Returns `None` if the queue has overflowed, and the connection must be closed.
    /// Cancel-safe.
    pub async fn letter(&self) -> Option<Letter> {
        loop {
            if self.line.overrun.load(Ordering::Acquire) {
                return None;
            }
            let next = self.line.post().letters.pop_front();
            if let Some(letter) = next {
                if let Letter::Forget(..) = letter {
                    self.line.post().open -= usize::from(!planted(Planted::DialinRunsKept));
                    self.desk.changed();
                }
                return Some(letter);
            }
            self.line.bell.notified().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut post = self.line.post();
        post.gone = true;
        // Commands that were not taken were never sent; dropping them closes the event queues of their attempts.
        let letters = std::mem::take(&mut post.letters);
        drop(post);
        drop(letters);
        self.desk.remove(&self.line);
    }
}

// === impl Placed ===

impl Drop for Placed {
    fn drop(&mut self) {
        self.line.put(Letter::Forget(self.run_id.clone(), self.attempt, self.number));
    }
}
