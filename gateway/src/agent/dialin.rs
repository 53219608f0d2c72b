//! Agents that dial in (protocol.md §1.6): their connections, and the attempts that run over one of them.
//!
//! A connection has a [`Line`](super::attempt::Line)'s other end: orders wait in its [`Extension`] until its task takes
//! them, and what its agent says goes to the attempt by a queue of the attempt's own, which is short, so that what is
//! not taken is not read.
use crate::agent::attempt::Attempt;
use crate::agent::directory::ServedBy;
use crate::metrics::DialedIn;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use turnway_bindings::dialin::Word;
use turnway_bindings::dialin::said::Said;
use turnway_bindings::link::Capabilities;
use turnway_core::id::{AgentId, Principal, RunId};
use turnway_core::limits;
use turnway_core::protocol::action::News;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, Invoke, Order};
use turnway_core::protocol::steer::{Steer, SteerOutcome};

/// Where agents dial in: all that are configured to. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Exchange(Arc<BTreeMap<AgentId, Arc<Desk>>>);

/// One agent that dials in, and its connections.
pub struct Desk {
    served_by: ServedBy,
    /// Its events have names, and it can be asked for what follows one.
    resumes: bool,
    lines: Mutex<Vec<Arc<Extension>>>,
    /// One has come, or has room again.
    came: Notify,
    connected: DialedIn,
}

/// One connection, as orders reach it.
pub struct Extension {
    capabilities: Capabilities,
    post: Mutex<Post>,
    bell: Notify,
    overrun: AtomicBool,
}

#[derive(Default)]
struct Post {
    letters: VecDeque<Letter>,
    /// Attempts that were placed here and have not been taken away.
    open: usize,
    gone: bool,
}

/// What the task of a connection has to do.
#[derive(Debug)]
pub enum Letter {
    /// Order this, and hand on what is said of it.
    Invoke(Box<Invoke>, Sender<Word>),
    /// Order this.
    Order(Box<Order>),
    /// Nobody listens to this attempt any more.
    Forget(RunId, u32),
}

/// A connection's place at its desk. When it is dropped, the attempts that ran over it find out.
#[derive(Debug)]
pub struct Place {
    desk: Arc<Desk>,
    line: Arc<Extension>,
}

/// Why somebody does not get a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// No such agent dials in here, or somebody else does for it. Which of the two is not told.
    Forbidden,
    /// It cannot say what follows an event, and the agent has to.
    Forgetful,
    /// There are enough.
    Crowded,
}

/// One attempt over one connection; when it is dropped, its agent is told to stop unless it has ended it.
struct Call {
    line: Arc<Extension>,
    run_id: RunId,
    attempt: u32,
    words: Receiver<Word>,
}

// === impl Exchange ===

impl Exchange {
    pub(super) fn new(desks: BTreeMap<AgentId, Arc<Desk>>) -> Self {
        Self(Arc::new(desks))
    }

    /// Takes a connection in, of somebody who was let in by the door; `asked`: and was asked for a credential.
    pub fn enter(
        &self,
        agent: &AgentId,
        capabilities: Capabilities,
        principal: &Principal,
        asked: bool,
    ) -> Result<Place, NoPlace> {
        let desk = self.0.get(agent).ok_or(NoPlace::Forbidden)?;
        if asked && !(principal.writes && desk.served_by.admits(principal)) {
            return Err(NoPlace::Forbidden);
        }
        if desk.resumes && !capabilities.resume {
            return Err(NoPlace::Forgetful);
        }
        let mut lines = desk.lines();
        if lines.len() >= limits::DIALIN_CONNECTIONS_MAX {
            return Err(NoPlace::Crowded);
        }
        let line = Arc::new(Extension {
            capabilities,
            post: Mutex::default(),
            bell: Notify::new(),
            overrun: AtomicBool::new(false),
        });
        lines.push(Arc::clone(&line));
        drop(lines);
        desk.connected.came();
        desk.came.notify_waiters();
        Ok(Place { desk: Arc::clone(desk), line })
    }
}

// === impl Desk ===

impl Desk {
    /// A desk without connections.
    pub(super) fn new(served_by: ServedBy, resumes: bool, connected: DialedIn) -> Self {
        Self { served_by, resumes, lines: Mutex::default(), came: Notify::new(), connected }
    }

    /// Whether any connection is there.
    pub(super) fn is_served(&self) -> bool {
        !self.lines().is_empty()
    }

    /// Tells every connection: whichever process of the agent knows of the run is to stop it.
    pub(super) fn stop(&self, order: &Order) {
        for line in self.lines().iter() {
            line.put(Letter::Order(Box::new(order.clone())));
        }
    }

    /// Places an attempt at the connection that has the fewest; waits a while where there is none with room.
    async fn call(&self, invoke: &Invoke) -> Option<Call> {
        let placed = async {
            loop {
                // Before the look: whoever comes between it and the wait is noticed.
                let came = self.came.notified();
                if let Some(call) = self.place(invoke) {
                    return call;
                }
                came.await;
            }
        };
        tokio::time::timeout(limits::DIALIN_WAIT, placed).await.ok()
    }

    fn place(&self, invoke: &Invoke) -> Option<Call> {
        let lines = self.lines();
        let open = |line: &&Arc<Extension>| line.post().open;
        let line = lines.iter().min_by_key(open).filter(|line| open(line) < limits::DIALIN_RUNS_MAX)?;
        let (to, words) = channel(limits::DIALIN_UNTAKEN_MAX);
        line.post().open += 1;
        line.put(Letter::Invoke(Box::new(invoke.clone()), to));
        let line = Arc::clone(line);
        Some(Call { line, run_id: invoke.run_id.clone(), attempt: invoke.attempt, words })
    }

    /// Nothing in here can panic half-way.
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
    fn put(&self, letter: Letter) {
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
                    self.line.post().open -= 1;
                    self.desk.came.notify_waiters();
                }
                return Some(letter);
            }
            self.line.bell.notified().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.desk.lines().retain(|line| !Arc::ptr_eq(line, &self.line));
        let mut post = self.line.post();
        post.gone = true;
        // What was not taken was not ordered; whoever waits for words of it hears that there will be none.
        let letters = std::mem::take(&mut post.letters);
        drop(post);
        drop(letters);
        self.desk.connected.left();
    }
}

// === impl Call ===

impl Call {
    fn order(&self, order: Order) {
        self.line.put(Letter::Order(Box::new(order)));
    }

    /// Hands over an input that came on the way, if the connection takes such; else what becomes of it.
    fn steer(&self, steer: Steer) -> Option<AgentEvent> {
        if self.line.capabilities.steer {
            self.order(Order::Steer(Box::new(steer)));
            return None;
        }
        Some(AgentEvent::Steered { message_id: steer.message_id, outcome: SteerOutcome::Refused })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.line.put(Letter::Forget(self.run_id.clone(), self.attempt));
    }
}

/// What makes an attempt over a connection go on.
enum Event {
    Cancelled,
    Steer(Steer),
    News(News),
    Word(Option<Word>),
}

/// Runs one attempt to its end. Dropping it tells its agent to stop.
pub(super) async fn run(attempt: &mut Attempt, desk: &Arc<Desk>) -> AgentEvent {
    let line = attempt.line();
    let call = tokio::select! {
        biased;
        () = line.cancel_ordered() => return AgentEvent::CancelAcked,
        call = desk.call(&attempt.invoke) => call,
    };
    let Some(mut call) = call else {
        let why = "no connection of this agent has room".to_owned();
        return AgentEvent::Failed(AgentFailure::Unavailable(why));
    };
    let mut cancelled = false;
    loop {
        let event = tokio::select! {
            biased;
            () = line.cancel_ordered(), if !cancelled => Event::Cancelled,
            steer = line.steer_ordered() => Event::Steer(steer),
            news = line.news() => Event::News(news),
            word = call.words.recv() => Event::Word(word),
        };
        match event {
            Event::Cancelled => {
                cancelled = true;
                // One that does not say when it has stopped is told, and not waited for.
                if !call.line.capabilities.cancel {
                    return AgentEvent::CancelAcked;
                }
                let Invoke { run_id, attempt, epoch, .. } = &attempt.invoke;
                call.order(Order::Cancel { run_id: run_id.clone(), attempt: *attempt, epoch: *epoch });
            }
            Event::Steer(steer) => {
                if let Some(refused) = call.steer(steer) {
                    attempt.report(refused).await;
                }
            }
            Event::News(news) => call.order(Order::News(Box::new(news))),
            Event::Word(word) => {
                if let Some(end) = said(attempt, word).await {
                    return if cancelled { AgentEvent::CancelAcked } else { end };
                }
            }
        }
    }
}

/// Reports what an agent says; its end is returned.
async fn said(attempt: &mut Attempt, word: Option<Word>) -> Option<AgentEvent> {
    match word {
        None => {
            let why = "the connection was lost".to_owned();
            return Some(AgentEvent::Failed(AgentFailure::Lost(why)));
        }
        Some(Word::Acked) => attempt.report(AgentEvent::Acked).await,
        // One that was not asked to stop has none to acknowledge; the machine lets none through.
        Some(Word::CancelAcked) => return Some(AgentEvent::CancelAcked),
        Some(Word::Said(Said::Delta { kind, text, id })) => attempt.say(kind, text, id).await,
        Some(Word::Said(Said::State { state, detail, id })) => {
            attempt.report(AgentEvent::State { state, detail, id }).await;
        }
        Some(Word::Said(Said::Steered { message_id, outcome })) => {
            attempt.report(AgentEvent::Steered { message_id, outcome }).await;
        }
        Some(Word::Said(Said::Handover { wish, id })) => {
            attempt.report(AgentEvent::Handover { wish, id }).await;
        }
        Some(Word::Said(Said::Action { wish, id })) => {
            attempt.report(AgentEvent::Action { wish, id }).await;
        }
        Some(Word::Said(Said::Unknown)) => {}
        Some(Word::Said(Said::Done { stop, usage })) => return Some(AgentEvent::Done { stop, usage }),
        Some(Word::Said(Said::Failed(failure))) => return Some(AgentEvent::Failed(failure)),
    }
    None
}
