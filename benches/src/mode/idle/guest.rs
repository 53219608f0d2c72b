//! An idle client: connects, sends one request, stays idle, and at the end is checked with another request.
use crate::cli::Idle;
use crate::connection::Line;
use crate::mode::talk::{Job, Talk};
use crate::record::{Count, Measure};
use crate::run::Run;
use crate::trouble::{Lost, Trouble};
use crate::wire;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::{Semaphore, watch};

/// Bytes of a small turn's input.
const SIZE: usize = 64;
/// Maximum bytes of a message besides its text: ids and names.
const BESIDE: usize = 512;
/// Maximum simultaneous checks at the end: a burst must not be measured.
const ASKED_MAX: usize = 128;
/// A request that a node answers without any session.
const PING: &str = "{\"type\":\"ping\"}";

/// The behaviour of all clients.
#[derive(Debug)]
pub(super) struct Plan {
    run: Rc<Run>,
    small: Rc<Job>,
    large: Rc<Job>,
    /// Number of clients, from the first on, that send the large input.
    big: usize,
    hello_only: bool,
    bare: bool,
    turns: Semaphore,
    answered: Cell<u64>,
}

/// A client before it becomes idle.
#[derive(Debug)]
pub(super) enum Guest {
    /// A client of a bare server.
    Bare(Line, Rc<str>),
    /// A client with a session.
    Talk(Box<Talk>),
}

// === impl Plan ===

impl Plan {
    pub(super) fn new(run: &Rc<Run>, args: &Idle) -> Rc<Self> {
        let job = |bytes| {
            let text = wire::words(bytes);
            let answer = (args.agent == "echo").then(|| text.clone());
            Rc::new(Job { agent: args.agent.clone(), text, answer, is_stamped: false, asks_again: false })
        };
        Rc::new(Self {
            run: Rc::clone(run),
            small: job(SIZE),
            large: job(turnway_core::limits::MESSAGE_BYTES_MAX - BESIDE),
            big: args.big,
            hello_only: args.hello_only,
            bare: args.bare,
            turns: Semaphore::new(ASKED_MAX),
            answered: Cell::new(0),
        })
    }

    /// Connects the n-th client.
    pub(super) async fn open(&self, n: usize) -> Result<Guest, Trouble> {
        if self.bare {
            return Ok(Guest::Bare(Line::open(&self.run, n).await?, self.small.text.as_str().into()));
        }
        let job = if n < self.big { &self.large } else { &self.small };
        Ok(Guest::Talk(Box::new(Talk::open(&self.run, job, n).await?)))
    }

    /// Connects the n-th client, runs its turn if it is to have one, and returns its connection.
    pub(super) async fn seat(&self, n: usize) -> Result<Line, Trouble> {
        let mut guest = self.open(n).await?;
        if !self.hello_only {
            self.run.count(Count::Asked, 1);
            guest.ask().await?;
        }
        if self.bare {
            self.run.count(Count::Completed, 1);
        }
        Ok(guest.into_line())
    }

    /// Answers pings until the idle time is over, then checks that the connection works.
    pub(super) async fn stay(self: Rc<Self>, mut line: Line, mut over: watch::Receiver<bool>) {
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
            None => self.prove(&mut line).await,
        };
        match shown {
            Ok(()) => {
                self.run.count(Count::Completed, 1);
                self.answered.set(self.answered.get() + 1);
                line.close().await;
            }
            Err(lost) => self.run.lost(&lost),
        }
    }

    /// Sends a request on a connection that was idle, and waits for the answer.
    async fn prove(&self, line: &mut Line) -> Result<(), Lost> {
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let (said, answer) = if self.bare { (self.small.text.as_str(), None) } else { (PING, Some("pong")) };
        let since = Instant::now();
        say(line, said).await?;
        loop {
            let text = line.answer().await?;
            if answer.map_or(*text == *said, |kind| wire::kind(&text) == kind) {
                self.run.took(Measure::RoundTrip, since.elapsed());
                return Ok(());
            }
        }
    }

    /// Returns the number of clients that still answered.
    pub(super) fn answered(&self) -> u64 {
        self.answered.get()
    }
}

// === impl Guest ===

impl Guest {
    /// Runs a turn, or sends a bare message and reads it back.
    pub(super) async fn ask(&mut self) -> Result<(), Trouble> {
        match self {
            Self::Talk(talk) => talk.one_turn().await,
            Self::Bare(line, text) => {
                say(line, text).await?;
                let heard = line.answer().await?;
                if *heard != **text {
                    return Err(Trouble::Failed("this is no echo server".to_owned()));
                }
                Ok(())
            }
        }
    }

    /// Returns the connection, when the client has no further request.
    pub(super) fn into_line(self) -> Line {
        match self {
            Self::Talk(talk) => talk.into_line(),
            Self::Bare(line, _) => line,
        }
    }
}

async fn say(line: &mut Line, text: &str) -> Result<(), Lost> {
    line.feed(text.to_owned()).await?;
    line.flush().await
}
