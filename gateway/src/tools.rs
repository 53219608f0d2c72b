//! Tool runners: their connections, and what sessions want of them (protocol.md §1.7).
//!
//! Who does what is decided by a [`Shop`]; here orders and words are carried to it and away from it. Orders never wait.
//! What a runner says waits while the switchboard has enough to do, which in turn stops the reading of that runner.
use crate::clock::Clock;
use crate::config::ServedBy;
use crate::supervise;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use turnway_bindings::channel::service::ServerIdentity;
use turnway_bindings::link::RunnerHello;
use turnway_bindings::runner::shop::{Connection, Input, NotAdmitted, Output, Shop};
use turnway_bindings::runner::words::{FromRunner, ToRunner};
use turnway_core::id::{EventId, SessionKey};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::action::{ToolOrder, ToolReport};

/// A timer where nothing is waited for.
const LONG: Duration = Duration::from_secs(3600);

/// What is heard of an action; the switchboard knows what to do with it.
#[derive(Clone, Debug)]
pub struct Report {
    /// Whose session.
    pub key: SessionKey,
    /// Which action.
    pub action_id: EventId,
    /// What.
    pub report: ToolReport,
}

/// The tool runners of a node. Clones are the same ones.
#[derive(Clone)]
pub struct Tools(Arc<Inner>);

struct Inner {
    room: Mutex<Room>,
    /// The next time that something is due may have changed.
    bell: Notify,
    reports: Sender<Report>,
    runtime: Handle,
    clock: Clock,
    /// Who runs tools for every tenant.
    served_by: ServedBy,
}

#[derive(Default)]
struct Room {
    shop: Shop,
    posts: BTreeMap<Connection, Arc<Post>>,
    last: Connection,
}

/// What one runner is to be told and has not taken.
#[derive(Default)]
struct Post {
    letters: Mutex<(VecDeque<ToRunner>, bool)>,
    bell: Notify,
}

/// A connection's place among the runners. When it is dropped, what its runner was given waits for that to come back.
pub struct Place {
    tools: Tools,
    connection: Connection,
    post: Arc<Post>,
}

// === impl Tools ===

impl Tools {
    /// Nobody yet. What is heard of actions goes to `reports`; a task that looks at the time runs on `runtime`.
    pub fn new(reports: Sender<Report>, runtime: &Handle, clock: Clock, served_by: ServedBy) -> Self {
        let (room, bell) = (Mutex::default(), Notify::new());
        let this = Self(Arc::new(Inner { room, bell, reports, runtime: runtime.clone(), clock, served_by }));
        let watched = this.clone();
        runtime.spawn(supervise::keep("tools", move || watched.clone().watch()));
        this
    }

    /// Does what a session wants. Never waits; each order may come twice.
    pub fn perform(&self, order: ToolOrder) {
        for report in self.tell(Input::Order(order)) {
            self.report(report);
        }
    }

    /// Returns whom the configuration lets run tools for every tenant.
    pub fn served_by(&self) -> &ServedBy {
        &self.0.served_by
    }

    /// Takes in a runner that may serve as this identity.
    pub fn enter(&self, hello: RunnerHello, identity: ServerIdentity) -> Result<Place, NotAdmitted> {
        let RunnerHello { runner_id: runner, tools } = hello;
        let post = Arc::new(Post::default());
        let mut room = self.room();
        room.shop.admits(&runner, &identity)?;
        room.last += 1;
        let connection = room.last;
        room.posts.insert(connection, Arc::clone(&post));
        let came = Input::Came { connection, runner, identity, tools };
        room.shop.handle_input(self.0.clock.now(), came);
        let reports = room.drain();
        drop(room);
        self.0.bell.notify_one();
        reports.into_iter().for_each(|report| self.report(report));
        Ok(Place { tools: self.clone(), connection, post })
    }

    /// How many runners are connected.
    pub fn connected(&self) -> usize {
        self.room().shop.runners()
    }

    /// Tells the shop; what sessions are to hear of it is returned, for how long that may wait is the caller's to know.
    fn tell(&self, input: Input) -> Vec<Report> {
        let mut room = self.room();
        room.shop.handle_input(self.0.clock.now(), input);
        let reports = room.drain();
        drop(room);
        self.0.bell.notify_one();
        reports
    }

    /// Looks at the time.
    async fn watch(self) {
        loop {
            let due = self.room().shop.poll_timeout();
            let wait = due.map_or(LONG, |due| due.at - self.0.clock.mono());
            tokio::select! {
                () = self.0.bell.notified() => {}
                () = tokio::time::sleep(wait) => {
                    for report in self.wake() {
                        // Nobody listens any more: the node is going down.
                        let _ = self.0.reports.send(report).await;
                    }
                }
            }
        }
    }

    fn wake(&self) -> Vec<Report> {
        let mut room = self.room();
        room.shop.handle_timeout(self.0.clock.now());
        room.drain()
    }

    /// Reports from an order, which must not wait: no more of them than there are actions.
    fn report(&self, report: Report) {
        match self.0.reports.try_send(report) {
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(report)) => {
                let reports = self.0.reports.clone();
                self.0.runtime.spawn(async move { reports.send(report).await });
            }
        }
    }

    /// Nothing in here can panic half-way.
    fn room(&self) -> MutexGuard<'_, Room> {
        self.0.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} tool runners>", self.connected())
    }
}

// === impl Room ===

impl Room {
    fn drain(&mut self) -> Vec<Report> {
        let mut reports = Vec::new();
        while let Some(output) = self.shop.poll_output() {
            match output {
                Output::Send { connection, word } => {
                    self.posts.get(&connection).into_iter().for_each(|post| post.put(word.clone()));
                }
                Output::Report { key, action_id, report } => reports.push(Report { key, action_id, report }),
            }
        }
        reports
    }
}

// === impl Post ===

impl Post {
    fn put(&self, word: ToRunner) {
        let mut letters = self.letters();
        if letters.0.len() >= limits::RUNNER_UNTAKEN_MAX {
            letters.1 = true;
        } else {
            letters.0.push_back(word);
        }
        drop(letters);
        self.bell.notify_one();
    }

    fn letters(&self) -> MutexGuard<'_, (VecDeque<ToRunner>, bool)> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Place ===

impl Place {
    /// What the runner is to be told next; none: there was more than it has taken. Safe to drop and to ask again.
    pub async fn letter(&self) -> Option<ToRunner> {
        loop {
            {
                let mut letters = self.post.letters();
                if letters.1 {
                    return None;
                }
                if let Some(word) = letters.0.pop_front() {
                    return Some(word);
                }
            }
            self.post.bell.notified().await;
        }
    }

    /// What the runner says. Waits while the switchboard has more than it can take.
    pub async fn said(&self, word: FromRunner) {
        let connection = self.connection;
        for report in self.tools.tell(Input::Said { connection, word }) {
            // Nobody listens any more: the node is going down.
            let _ = self.tools.0.reports.send(report).await;
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<tool runner {}>", self.connection)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.tools.room().posts.remove(&self.connection);
        for report in self.tools.tell(Input::Left { connection: self.connection }) {
            self.tools.report(report);
        }
    }
}
