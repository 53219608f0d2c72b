//! One agent that dials in, and its connections to this node.
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

/// One agent that dials in, and its connections.
pub struct Desk {
    pub(super) agent: AgentId,
    pub(super) served_by: ServedBy,
    /// Its events have names, and it can be asked for what follows one.
    pub(super) resumes: bool,
    /// Where else it may be connected.
    pub(super) beyond: Lines,
    lines: Mutex<Vec<Arc<Extension>>>,
    /// One has come, or has room again, here or elsewhere.
    pub(super) came: Notify,
    connected: DialedIn,
}

/// One connection, as orders reach it.
pub struct Extension {
    pub(super) capabilities: Capabilities,
    /// Whose runs it may be given.
    reach: Reach,
    post: Mutex<Post>,
    bell: Notify,
    overrun: AtomicBool,
}

#[derive(Default)]
struct Post {
    letters: VecDeque<Letter>,
    /// Attempts that were placed here and have not been taken away.
    open: usize,
    /// How many ever were.
    placed: u64,
    gone: bool,
}

/// What the task of a connection has to do.
#[derive(Debug)]
pub enum Letter {
    /// Order this, which is the attempt of this number at this connection, and hand on what is said of it.
    Invoke(Box<Invoke>, u64, Sender<Word>),
    /// Order this.
    Order(Box<Order>),
    /// Nobody listens to the attempt of this number any more.
    Forget(RunId, u32, u64),
}

/// A connection's place at its desk. When it is dropped, the attempts that ran over it find out.
#[derive(Debug)]
pub struct Place {
    desk: Arc<Desk>,
    line: Arc<Extension>,
}

/// One attempt over one connection of this node; when it is dropped, its agent is told to stop unless it has ended it.
pub(super) struct Placed {
    pub(super) line: Arc<Extension>,
    pub(super) words: Receiver<Word>,
    run_id: RunId,
    attempt: u32,
    number: u64,
}

// === impl Desk ===

impl Desk {
    /// A desk without connections.
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

    /// Whether any connection is there that may be given this tenant's runs, at this node, or any at another one: nodes
    /// do not tell each other for whom they have connections.
    pub(in crate::agent) fn is_served(&self, tenant: &TenantId) -> bool {
        // In a statement of its own: the lines between nodes ask here while they are held, and are not asked from here.
        let is_here = self.lines().iter().any(|line| line.reach.covers(tenant));
        is_here || !self.beyond.elsewhere(&self.agent).is_empty()
    }

    /// The nodes that have any, this one first, and how many.
    pub(in crate::agent) fn nodes(&self) -> Vec<(NodeId, usize)> {
        let here = Some((bus::Lines::node(&self.beyond), self.lines().len()))
            .filter(|(_, connections)| *connections > 0);
        let elsewhere = self.beyond.elsewhere(&self.agent).into_iter();
        let elsewhere = elsewhere.map(|(node, connections)| (node, connections as usize));
        here.into_iter().chain(elsewhere).collect()
    }

    /// Tells every connection, here and elsewhere: whichever process of the agent knows of the run is to stop it.
    pub(in crate::agent) fn stop(&self, order: &Order) {
        self.halt(order);
        self.beyond.halt(&self.agent, order);
    }

    /// Tells every connection of this node that may know of the run. A node of an earlier release does not say whose
    /// run it is, and means the default tenant.
    pub(super) fn halt(&self, order: &Order) {
        let Order::Stop { tenant, .. } = order else { return };
        let may_know = |line: &&Arc<Extension>| line.reach.covers(tenant);
        for line in self.lines().iter().filter(may_know) {
            line.put(Letter::Order(Box::new(order.clone())));
        }
    }

    /// Places an attempt at the connection that has the fewest of those that may be given this tenant's runs, where one
    /// of this node has room.
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

    /// One more connection, unless there are so many, or so many that serve the same tenant only; whether it is one.
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

    /// There is more or less of it than before: whoever waits looks again, and other nodes are told.
    fn changed(&self) {
        self.came.notify_waiters();
        self.beyond.serve(&self.agent, self.serving());
    }

    /// How much there is of it here.
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

    /// Nothing in here can panic half-way. Who has it asks nothing of the lines between nodes: those ask here.
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
    /// One that can do so much, for so many tenants.
    pub(super) fn new(capabilities: Capabilities, reach: Reach) -> Self {
        let (post, bell, overrun) = (Mutex::default(), Notify::new(), AtomicBool::new(false));
        Self { capabilities, reach, post, bell, overrun }
    }

    /// Gives its task something to do.
    pub(super) fn put(&self, letter: Letter) {
        let mut post = self.post();
        // What is sent to one that is gone is dropped, and with it the queue that its attempt listens to.
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

    /// Whether its agent's events have names.
    pub fn is_named(&self) -> bool {
        self.desk.resumes
    }

    /// What is to be done next; none: there was more than it has taken. Safe to drop and to ask again.
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
        // What was not taken was not ordered; whoever waits for words of it hears that there will be none.
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
