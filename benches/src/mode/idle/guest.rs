//! Somebody who connects, says one thing, stays, and is asked in the end whether it still works.
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

/// Words of a small turn.
const SIZE: usize = 64;
/// What a message holds beside its text, at the most: ids and names.
const BESIDE: usize = 512;
/// So many are asked at a time whether they still work: a burst is not what this is about.
const ASKED_MAX: usize = 128;
/// What a node answers without anything to do with a session.
const PING: &str = "{\"type\":\"ping\"}";

/// What everybody does.
#[derive(Debug)]
pub(super) struct Plan {
    run: Rc<Run>,
    small: Rc<Job>,
    large: Rc<Job>,
    /// So many of the first send the large one.
    big: usize,
    hello_only: bool,
    bare: bool,
    turns: Semaphore,
    answered: Cell<u64>,
}

/// One of them, before it rests.
#[derive(Debug)]
pub(super) enum Guest {
    /// At a bare server.
    Bare(Line, Rc<str>),
    /// With a session.
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

    /// The n-th, connected.
    pub(super) async fn open(&self, n: usize) -> Result<Guest, Trouble> {
        if self.bare {
            return Ok(Guest::Bare(Line::open(&self.run, n).await?, self.small.text.as_str().into()));
        }
        let job = if n < self.big { &self.large } else { &self.small };
        Ok(Guest::Talk(Box::new(Talk::open(&self.run, job, n).await?)))
    }

    /// The n-th, when it has had its turn, if it is to have one.
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

    /// Answers pings and otherwise does nothing until it is over, and then shows whether it works.
    pub(super) async fn stay(self: Rc<Self>, mut line: Line, mut over: watch::Receiver<bool>) {
        let left = loop {
            tokio::select! {
                heard = line.next() => if let Err(lost) = heard {
                    break Some(lost);
                },
                _ = over.wait_for(|over| *over) => break None,
            }
        };
        // Whoever is not there any more does not answer, and counts as one who was asked.
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

    /// Somebody who was idle says something, and is answered.
    async fn prove(&self, line: &mut Line) -> Result<(), Lost> {
        // It is never closed.
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

    /// Who still worked.
    pub(super) fn answered(&self) -> u64 {
        self.answered.get()
    }
}

// === impl Guest ===

impl Guest {
    /// A turn, or a bare message there and back.
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

    /// Its connection, when nothing more is to be asked.
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
