//! The store of a fleet: Redis, with one function for each atomic rule.
//!
//! - `turnway.lua`: the rules. Each function touches the keys of one slot, and may be called again.
//! - `desk`: makes calls of ops and replies of answers; `intake`, `owning`, `log`, `listening`, `lease`,
//!   `listing`, `aging`, `sweep`, `sight` are its parts.
//! - `registrar`, `book`: what this process registers, and has registered, where a sweep will look.
//! - `library`, `probe`, `rights`: what has to be so before anything is asked; `guard`: and stays so; `health`: what
//!   Redis says against it.
//! - `replicas`: waits for them. `quota`: how many bytes tenants and users may keep.
//! - [`tally`]: what nodes tell each other of the rates they share.
//!
//! What is asked goes out at once, in one stream of calls that the server performs one after the other.
//! Where there is no connection an op is answered so at once. An op whose answer did not come may have
//! been performed: `Unknown`, and whoever asked asks again.
mod aging;
mod answer;
mod book;
mod call;
mod desk;
mod guard;
mod health;
mod intake;
mod key;
mod lease;
mod library;
mod listening;
mod listing;
mod log;
mod owning;
#[cfg(any(test, feature = "planted"))]
mod planted;
mod probe;
mod quota;
mod registrar;
mod replicas;
mod rights;
mod sight;
mod sweep;
pub mod tally;

pub use library::LibraryError;
pub use rights::{Missing, Rights};

use crate::config::Durability;
use crate::config::redis::{Login, RedisUrl};
use crate::phase::{Life, Reason};
use crate::redis::reach::{Patience, Unreached};
use crate::redis::refusal::advice;
use crate::redis::{Line, Settings};
use crate::store::embedded::Clock;
use crate::store::{Answers, Filled, Store};
use ::redis::RedisError;
use book::Book;
use desk::Desk;
use guard::{Guard, Watched};
use health::Health;
use library::Library;
use probe::Given;
use quota::Bounds;
use registrar::Registrar;
use replicas::Replicas;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use turnway_core::limits;
use turnway_core::store::quota::Quotas;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::Millis;

/// How long a command may take, fsyncs and forks of the server included. Whoever waits longer would
/// rather know that nobody knows.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How long a renewal may take: what comes later is of no use any more. Others set out meanwhile, and each counts from
/// when it did (ownership.md §1.6), so a longer way costs no renewal.
const RENEW_WITHIN: Duration = limits::LEASE;
/// `WAIT` waits for one second by itself.
const WAIT_WITHIN: Duration = Duration::from_secs(4);
/// Between two tries of a start to reach a server that is away.
const START_AGAIN: Duration = Duration::from_millis(500);

/// How long a start waits for its connections, once the server was looked at.
const READY_WITHIN: Duration = Duration::from_secs(15);

/// How a store behaves.
#[derive(Clone, Default)]
pub struct Options {
    /// What an answer promises.
    pub durability: Durability,
    /// Who may load functions and read the server's settings, if that is not who the store is.
    pub deployer: Option<Login>,
    /// What the operator vouches for where the server's settings cannot be seen.
    pub attest: Option<Durability>,
    /// How long a start waits for a server that is away, loads its data, or has no room for the functions.
    pub wait: Duration,
    /// How many bytes tenants and users may keep.
    pub quotas: Quotas,
    /// Called with what the server says of its memory, every 30 s; none: nobody wants to know.
    pub filled: Option<Filled>,
    /// The process that is told why it is not ready.
    pub life: Life,
    /// A test's time instead of the server's.
    pub clock: Option<Clock>,
}

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No connection.
    #[error(transparent)]
    Unreached(#[from] Unreached),
    /// It does not answer.
    #[error("{error}")]
    Asked {
        /// What it said.
        error: RedisError,
    },
    /// The user may not do all that a node does.
    #[error(
        "the user of store.url lacks rights: {0}; give it those of deploy/redis-users.acl. A command that the server \
         does not have cannot be given: such a server cannot be used"
    )]
    Rights(Rights),
    /// It has no functions.
    #[error("Redis {version} has no functions; 7.0 is the first that has")]
    TooOld {
        /// Which it is.
        version: String,
    },
    /// It forgets what it has no room for.
    #[error("Redis would forget sessions where memory runs out: set `maxmemory-policy noeviction`")]
    Evicts,
    /// It promises less than is asked for.
    #[error(
        "as it is set, Redis gives not {wanted} but {gives}: {missing}; or ask for `store.durability` {gives}"
    )]
    Level {
        /// What was asked for.
        wanted: &'static str,
        /// What it gives.
        gives: &'static str,
        /// What would have to be done.
        missing: String,
    },
    /// Its functions.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// It does not tell the time, and a node of a fleet goes by no other.
    #[error("Redis does not tell the time (TIME): {error}")]
    Time {
        /// What it said.
        error: String,
    },
    /// The system has no randomness to give.
    #[error("no randomness: {0}")]
    Chance(getrandom::Error),
}

/// The store of a gateway that is one of several. Dropping it leaves unanswered ops `Unknown`.
pub struct Redis {
    desk: Arc<Desk>,
    under_way: Arc<AtomicUsize>,
    answers: Answers,
    runtime: Handle,
    given: Given,
}

// === impl OpenError ===

impl OpenError {
    /// Whether a later try may find what this one did not.
    fn may_pass(&self) -> bool {
        let later = |error: &RedisError| match error.code() {
            Some(code) => matches!(code, "LOADING" | "MASTERDOWN" | "OOM" | "BUSY" | "MISCONF" | "READONLY"),
            None => error.is_io_error(),
        };
        match self {
            Self::Unreached(unreached) | Self::Library(LibraryError::Unreached(unreached)) => {
                unreached.may_pass()
            }
            Self::Asked { error } | Self::Library(LibraryError::Failed(error)) => later(error),
            Self::Library(LibraryError::Busy) => true,
            Self::Library(LibraryError::Forbidden(_))
            | Self::Rights(_)
            | Self::TooOld { .. }
            | Self::Evicts
            | Self::Level { .. }
            | Self::Time { .. }
            | Self::Chance(_) => false,
        }
    }

    /// What an operator can do, where the server said something.
    fn advice(&self) -> &'static str {
        let code = match self {
            Self::Unreached(unreached) | Self::Library(LibraryError::Unreached(unreached)) => {
                unreached.said().map(|(code, _)| code)
            }
            Self::Asked { error } | Self::Library(LibraryError::Failed(error)) => {
                error.code().map(str::to_owned)
            }
            Self::Library(LibraryError::Busy | LibraryError::Forbidden(_))
            | Self::Rights(_)
            | Self::TooOld { .. }
            | Self::Evicts
            | Self::Level { .. }
            | Self::Time { .. }
            | Self::Chance(_) => None,
        };
        code.map_or("check that Redis runs, and that this node reaches it", |code| advice(&code))
    }
}

// === impl Redis ===

impl Redis {
    /// Looks at a server, brings it the functions, and begins to use it.
    pub async fn open(url: RedisUrl, options: Options, answers: Answers) -> Result<Self, OpenError> {
        let deployer = match &options.deployer {
            Some(login) => RedisUrl { login: login.clone(), ..url.clone() },
            None => url.clone(),
        };
        let given = enter(&url, &deployer, &options).await?;
        let mut chance = [0; 16];
        getrandom::fill(&mut chance).map_err(OpenError::Chance)?;
        let name = format!("{:032x}", u128::from_be_bytes(chance));
        let runtime = Handle::current();
        let line = |name, answer_within| {
            let settings = Settings { name, answer_within, channels: Vec::new(), hears: None };
            Line::open(url.clone(), settings, &runtime)
        };
        let replicas = (given.level == Durability::FsyncReplica)
            .then(|| Replicas::new(line("replicas", WAIT_WITHIN), &name, &runtime));
        let commands = line("commands", ANSWER_WITHIN);
        let health = Arc::new(Health::new(options.life));
        let filled = options.filled.unwrap_or_else(|| Arc::new(|_, _| {}));
        let quotas = Arc::new(Bounds::new(options.quotas, filled, given.memory));
        let watched = Watched {
            url: url.clone(),
            deployer: deployer.clone(),
            wanted: given.level,
            attest: options.attest,
            health: Arc::clone(&health),
            quotas: Arc::clone(&quotas),
        };
        let desk = Desk {
            guard: Guard::new(commands.clone(), watched, &runtime),
            health,
            quotas,
            commands,
            leases: line("leases", RENEW_WITHIN),
            library: Library::new(deployer),
            replicas,
            clock: options.clock,
            began: Instant::now(),
            book: Mutex::new(Book::default()),
            registrar: Registrar::default(),
            well: AtomicBool::new(true),
        };
        let (desk, under_way) = (Arc::new(desk), Arc::default());
        let store = Self { desk, under_way, answers, runtime, given };
        // It was there a moment ago. If it is gone again, that is an outage like any other.
        let _ = timeout(READY_WITHIN, store.ready()).await;
        Ok(store)
    }

    /// Returns what an answer survives: less than was asked for where the server's settings cannot be seen.
    pub fn level(&self) -> Durability {
        self.given.level
    }

    /// Whether only the operator's word says so.
    pub fn is_attested(&self) -> bool {
        self.given.attested
    }

    /// Waits until it is connected, to a server that is good enough.
    pub async fn ready(&self) {
        self.desk.commands.ready().await;
        self.desk.leases.ready().await;
        self.desk.guard.ready().await;
        if let Some(replicas) = &self.desk.replicas {
            replicas.line().ready().await;
        }
    }

    /// Asks the server what time it is.
    pub async fn time(&self) -> Result<Millis, OpenError> {
        let asked = self.desk.commands.ask(&::redis::cmd("TIME")).await;
        let told = asked.map_err(|error| OpenError::Time { error: error.to_string() })?;
        let time = answer::Answer::of(told).and_then(answer::Answer::time);
        time.map(Millis).map_err(|_| OpenError::Time { error: "the answer is not a time".to_owned() })
    }

    /// Waits until it is known not to be connected.
    pub async fn lost(&self) {
        self.desk.commands.gone().await;
    }
}

/// Looks at a server, brings it the functions, and sees that the node may use it. One that is away is waited for.
async fn enter(url: &RedisUrl, deployer: &RedisUrl, options: &Options) -> Result<Given, OpenError> {
    let (began, mut patience, mut told) = (Instant::now(), Patience::default(), String::new());
    loop {
        let error = match look(url, deployer, options, patience.next_wait()).await {
            Ok(given) => {
                options.life.report(Reason::StoreAway, false);
                return Ok(given);
            }
            Err(error) => error,
        };
        let left = options.wait.saturating_sub(began.elapsed());
        if left.is_zero() || !error.may_pass() {
            return Err(error);
        }
        options.life.report(Reason::StoreAway, true);
        let said = error.to_string();
        if told != said {
            tracing::warn!(redis = %url, error = said, ?left, "waiting for Redis: {}", error.advice());
            told = said;
        }
        tokio::time::sleep(START_AGAIN.min(left)).await;
    }
}

async fn look(
    url: &RedisUrl,
    deployer: &RedisUrl,
    options: &Options,
    within: Duration,
) -> Result<Given, OpenError> {
    let given = probe::probe(deployer, options.durability, options.attest, within).await?;
    if library::ensure(deployer, within).await? {
        tracing::info!(version = library::VERSION, "loaded the functions of this release");
    }
    rights::check(url, given.level == Durability::FsyncReplica, within).await?;
    Ok(given)
}

impl Store for Redis {
    fn submit(&self, op: Op) {
        let full = self.under_way.fetch_add(1, Ordering::Relaxed) >= limits::STORE_QUEUE_MAX;
        let question = Question {
            op: Some(op),
            // Until it is sent, it did not happen.
            fate: StoreError::Unavailable,
            answers: Arc::clone(&self.answers),
            under_way: Arc::clone(&self.under_way),
        };
        if full || !question.op.as_ref().is_some_and(|op| self.desk.is_connected(op)) {
            return;
        }
        let desk = Arc::clone(&self.desk);
        self.runtime.spawn(question.ask(desk));
    }
}

/// An op that is answered exactly once, whatever happens: at the latest when it is dropped.
struct Question {
    op: Option<Op>,
    fate: StoreError,
    answers: Answers,
    under_way: Arc<AtomicUsize>,
}

impl Question {
    async fn ask(mut self, desk: Arc<Desk>) {
        self.fate = StoreError::Unknown;
        if let Some(op) = self.op.as_ref() {
            let result = desk.perform(op).await.map_err(StoreError::from);
            self.answer(result);
        }
    }

    fn answer(&mut self, result: Result<Reply, StoreError>) {
        if let Some(op) = self.op.take() {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            (self.answers)(op, result);
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.answer(Err(self.fate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<F: Future>(_: fn(Question, Arc<Desk>) -> F) -> usize {
        size_of::<F>()
    }

    /// What every op allocates for a moment, and thousands of them while a node takes over.
    #[test]
    fn a_question_is_small() {
        let size = size(Question::ask);
        assert!(size <= 1024, "{size}");
    }
}
