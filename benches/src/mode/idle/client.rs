//! An idle client: connects, sends one request, stays idle, and at the end is checked with another request.
use crate::cli::Idle;
use crate::connection::ServerConnection;
use crate::error::{BenchError, ConnectionFailure};
use crate::mode::session_client::{SessionClient, Workload};
use crate::record::{Count, Measure};
use crate::run::Run;
use crate::wire;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::{Semaphore, watch};

/// Bytes of a small turn's input.
const INPUT_BYTES: usize = 64;
/// Maximum bytes of a message besides its text: ids and names.
const OVERHEAD_BYTES: usize = 512;
/// Maximum simultaneous checks at the end: a burst must not be measured.
const CHECKS_MAX: usize = 128;
/// A request that a node answers without any session.
const PING: &str = "{\"type\":\"ping\"}";

/// The behaviour of all clients.
#[derive(Debug)]
pub(super) struct IdlePlan {
    run: Rc<Run>,
    small: Rc<Workload>,
    large: Rc<Workload>,
    /// Number of clients, from the first on, that send the large input.
    big: usize,
    hello_only: bool,
    bare: bool,
    turns: Semaphore,
    answered: Cell<u64>,
}

/// A client before it becomes idle.
#[derive(Debug)]
pub(super) enum IdleClient {
    /// A client of a bare server.
    BareServer(ServerConnection, Rc<str>),
    /// A client with a session.
    WithSession(Box<SessionClient>),
}

// === impl IdlePlan ===

impl IdlePlan {
    pub(super) fn new(run: &Rc<Run>, args: &Idle) -> Rc<Self> {
        let job = |bytes| {
            let text = wire::filler_text(bytes);
            let answer = (args.agent == "echo").then(|| text.clone());
            Rc::new(Workload { agent: args.agent.clone(), text, answer, is_stamped: false, is_closed_loop: false })
        };
        Rc::new(Self {
            run: Rc::clone(run),
            small: job(INPUT_BYTES),
            large: job(turnway_core::limits::MESSAGE_BYTES_MAX - OVERHEAD_BYTES),
            big: args.big,
            hello_only: args.hello_only,
            bare: args.bare,
            turns: Semaphore::new(CHECKS_MAX),
            answered: Cell::new(0),
        })
    }

    /// Connects the n-th client.
    pub(super) async fn open(&self, n: usize) -> Result<IdleClient, BenchError> {
        if self.bare {
            return Ok(IdleClient::BareServer(
                ServerConnection::connect_bare(&self.run, n).await?,
                self.small.text.as_str().into(),
            ));
        }
        let job = if n < self.big { &self.large } else { &self.small };
        Ok(IdleClient::WithSession(Box::new(SessionClient::open(&self.run, job, n).await?)))
    }

    /// Connects the n-th client, runs its turn if it is to have one, and returns its connection.
    pub(super) async fn open_idle(&self, n: usize) -> Result<ServerConnection, BenchError> {
        let mut client = self.open(n).await?;
        if !self.hello_only {
            self.run.count(Count::Asked, 1);
            client.run_turn().await?;
        }
        if self.bare {
            self.run.count(Count::Completed, 1);
        }
        Ok(client.into_line())
    }

    /// Answers pings until the idle time is over, then checks that the connection works.
    pub(super) async fn stay_idle(self: Rc<Self>, mut line: ServerConnection, mut over: watch::Receiver<bool>) {
        let left = loop {
            tokio::select! {
                heard = line.next() => if let Err(lost) = heard {
                    break Some(lost);
                },
                _ = over.wait_for(|over| *over) => break None,
            }
        };
        // A lost connection counts as asked but not answered.
        self.run.count(Count::Asked, 1);
        let shown = match left {
            Some(lost) => Err(lost),
            None => self.check_alive(&mut line).await,
        };
        match shown {
            Ok(()) => {
                self.run.count(Count::Completed, 1);
                self.answered.set(self.answered.get() + 1);
                line.close().await;
            }
            Err(lost) => self.run.count_lost(&lost),
        }
    }

    /// Sends a request on a connection that was idle, and waits for the answer.
    async fn check_alive(&self, line: &mut ServerConnection) -> Result<(), ConnectionFailure> {
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let (said, answer) = if self.bare { (self.small.text.as_str(), None) } else { (PING, Some("pong")) };
        let since = Instant::now();
        say(line, said).await?;
        loop {
            let text = line.next_in_time().await?;
            if answer.map_or(*text == *said, |kind| wire::message_type(&text) == kind) {
                self.run.record_duration(Measure::RoundTrip, since.elapsed());
                return Ok(());
            }
        }
    }

    /// Returns the number of clients that still answered.
    pub(super) fn answered_count(&self) -> u64 {
        self.answered.get()
    }
}

// === impl IdleClient ===

impl IdleClient {
    /// Runs a turn, or sends a bare message and reads it back.
    pub(super) async fn run_turn(&mut self) -> Result<(), BenchError> {
        match self {
            Self::WithSession(talk) => talk.one_turn().await,
            Self::BareServer(line, text) => {
                say(line, text).await?;
                let heard = line.next_in_time().await?;
                if *heard != **text {
                    return Err(BenchError::Failed("this is no echo server".to_owned()));
                }
                Ok(())
            }
        }
    }

    /// Returns the connection, when the client has no further request.
    pub(super) fn into_line(self) -> ServerConnection {
        match self {
            Self::WithSession(talk) => talk.into_line(),
            Self::BareServer(line, _) => line,
        }
    }
}

async fn say(line: &mut ServerConnection, text: &str) -> Result<(), ConnectionFailure> {
    line.queue(text.to_owned()).await?;
    line.flush().await
}
