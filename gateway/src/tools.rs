//! The tool runners connected to this node (protocol.md §1.7). A [`Shop`] decides which runner executes an action; this
//! file carries orders and messages to and from it. Orders never block. Messages of a runner wait while the
//! switchboard's queue is full, which in turn pauses reading from that runner.
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

/// Length of a timer when no deadline is set.
const LONG: Duration = Duration::from_secs(3600);

/// A report about an action, on the way to the switchboard.
#[derive(Clone, Debug)]
pub struct Report {
    pub key: SessionKey,
    pub action_id: EventId,
    pub report: ToolReport,
}

/// The tool runners of a node. Clones share one state.
#[derive(Clone)]
pub struct Tools(Arc<Inner>);

struct Inner {
    room: Mutex<Room>,
    /// Notified when the next deadline may have changed.
    bell: Notify,
    reports: Sender<Report>,
    runtime: Handle,
    clock: Clock,
    /// The identities that may run tools for every tenant.
    served_by: ServedBy,
}

#[derive(Default)]
struct Room {
    shop: Shop,
    posts: BTreeMap<Connection, Arc<Post>>,
    last: Connection,
}

/// The messages that wait for one runner's connection; the flag is set when the queue has overflowed.
#[derive(Default)]
struct Post {
    letters: Mutex<(VecDeque<ToRunner>, bool)>,
    bell: Notify,
}

/// The registration of a runner's connection. After it is dropped, the runner's actions wait for the runner to
/// reconnect.
pub struct Place {
    tools: Tools,
    connection: Connection,
    post: Arc<Post>,
}

// === impl Tools ===

impl Tools {
    /// Creates the pool without runners. Reports go to `reports`; the timer task runs on `runtime`.
    pub fn new(reports: Sender<Report>, runtime: &Handle, clock: Clock, served_by: ServedBy) -> Self {
        let (room, bell) = (Mutex::default(), Notify::new());
        let this = Self(Arc::new(Inner { room, bell, reports, runtime: runtime.clone(), clock, served_by }));
        let watched = this.clone();
        runtime.spawn(supervise::keep("tools", move || watched.clone().watch()));
        this
    }

    /// Executes an order of a session. Never blocks. Every order may arrive twice.
    pub fn perform(&self, order: ToolOrder) {
        for report in self.tell(Input::Order(order)) {
            self.report(report);
        }
    }

    /// Returns the identities that the configuration lets run tools for every tenant.
    pub fn served_by(&self) -> &ServedBy {
        &self.0.served_by
    }

    /// Registers a runner that may serve as this identity.
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

    /// Returns the number of connected runners.
    pub fn connected(&self) -> usize {
        self.room().shop.runners()
    }

    /// Passes an input to the pool's machine. Returns the reports for sessions, because only the caller knows whether
    /// they may wait.
    fn tell(&self, input: Input) -> Vec<Report> {
        let mut room = self.room();
        room.shop.handle_input(self.0.clock.now(), input);
        let reports = room.drain();
        drop(room);
        self.0.bell.notify_one();
        reports
    }

    /// Runs the timer of the pool's machine.
    async fn watch(self) {
        loop {
            let due = self.room().shop.poll_timeout();
            let wait = due.map_or(LONG, |due| due.at - self.0.clock.mono());
            tokio::select! {
                () = self.0.bell.notified() => {}
                () = tokio::time::sleep(wait) => {
                    for report in self.wake() {
                        // The send fails only while the node shuts down.
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

    /// Reports from an order, which must not block. There are no more such reports than actions.
    fn report(&self, report: Report) {
        match self.0.reports.try_send(report) {
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(report)) => {
                let reports = self.0.reports.clone();
                self.0.runtime.spawn(async move { reports.send(report).await });
            }
        }
    }

    /// Returns the locked state; no code panics while it holds this lock.
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
    /// Waits for the next message to the runner. Returns `None` if the queue has overflowed, and the connection must be
    /// closed. Cancel-safe.
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

    /// Handles a message of the runner. Waits while the switchboard's queue is full.
    pub async fn said(&self, word: FromRunner) {
        let connection = self.connection;
        for report in self.tools.tell(Input::Said { connection, word }) {
            // The send fails only while the node shuts down.
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
