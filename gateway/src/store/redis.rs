//! The store of a fleet: Redis, with one Lua function for each atomic rule (`turnway.lua`). Ops are pipelined at
//! once; an op without a connection fails with `Unavailable`, and an op whose answer is lost fails with `Unknown` and
//! is repeated by its caller. Opened by `app::build`.
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

/// Timeout of a command, which covers fsyncs and forks of the server. A caller that waited longer is better served by
/// `Unknown`.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Timeout of a lease renewal: a later answer is of no use. Further renewals are sent meanwhile, and each lease
/// counts from when its renewal was sent (ownership.md §1.6), so a slow round trip costs no renewal.
const RENEW_WITHIN: Duration = limits::LEASE;
/// Timeout of the replicas connection; `WAIT` itself blocks for up to one second.
const WAIT_WITHIN: Duration = Duration::from_secs(4);
/// Interval between two attempts to reach an unavailable server at start.
const START_AGAIN: Duration = Duration::from_millis(500);

/// Timeout for the connections to be established, once the server was checked at start.
const READY_WITHIN: Duration = Duration::from_secs(15);

/// Settings and callbacks of the Redis store.
#[derive(Clone, Default)]
pub struct Options {
    /// The guarantee that a reply gives.
    pub durability: Durability,
    /// Login that may load functions and read the server's settings, if different from the store's own.
    pub deployer: Option<Login>,
    /// Durability that the operator attests where the server's settings cannot be read.
    pub attest: Option<Durability>,
    /// Maximum time that a start waits for a server that is unavailable, loads its data, or has no memory for the
    /// functions.
    pub wait: Duration,
    /// Quotas on the bytes stored for tenants and users.
    pub quotas: Quotas,
    /// Called every 30 s with the server's memory usage; `None` disables the reports.
    pub filled: Option<Filled>,
    /// The process state to which reasons for not being ready are reported.
    pub life: Life,
    /// A test's clock, used instead of the server's.
    pub clock: Option<Clock>,
}

/// The reason why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No connection could be established.
    #[error(transparent)]
    Unreached(#[from] Unreached),
    /// The server refused a command or did not answer it.
    #[error("{error}")]
    Asked {
        /// Error of the command.
        error: RedisError,
    },
    /// The user lacks rights that a node needs.
    #[error(
        "the user of store.url lacks rights: {0}; give it those of deploy/redis-users.acl. A command that the server \
         does not have cannot be given: such a server cannot be used"
    )]
    Rights(Rights),
    /// The server has no functions.
    #[error("Redis {version} has no functions; use version 7.0 or later")]
    TooOld {
        /// Version of the server.
        version: String,
    },
    /// The server is set to evict keys when memory runs out.
    #[error("Redis would evict sessions when memory runs out: set `maxmemory-policy noeviction`")]
    Evicts,
    /// The server guarantees less than is required.
    #[error(
        "with its current settings Redis gives durability {gives}, not {wanted}: {missing}; or set `store.durability` to {gives}"
    )]
    Level {
        /// Durability that is required.
        wanted: &'static str,
        /// Durability that the server gives.
        gives: &'static str,
        /// Settings that would have to change.
        missing: String,
    },
    /// The functions cannot be loaded.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The server does not answer `TIME`, and the nodes of a fleet have no other common clock.
    #[error("Redis does not answer TIME: {error}")]
    Time {
        /// Error of the command.
        error: String,
    },
    /// The system provides no random numbers.
    #[error("the system provides no random numbers: {0}")]
    Chance(getrandom::Error),
}

/// The store of a gateway that is one of several. Dropping the store leaves unanswered ops `Unknown`.
pub struct Redis {
    desk: Arc<Desk>,
    under_way: Arc<AtomicUsize>,
    answers: Answers,
    runtime: Handle,
    given: Given,
}

// === impl OpenError ===

impl OpenError {
    /// Returns whether a later attempt may succeed.
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

    /// Returns advice for the operator that matches the server's error.
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
        code.map_or("check that Redis runs and that this node can reach it", |code| advice(&code))
    }
}

// === impl Redis ===

impl Redis {
    /// Checks a server, loads the functions if needed, and opens the store's connections.
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
        // The server was available a moment ago. If it is gone again, the store handles that as any other outage.
        let _ = timeout(READY_WITHIN, store.ready()).await;
        Ok(store)
    }

    /// Returns the durability of a reply: less than required if the server's settings cannot be read.
    pub fn level(&self) -> Durability {
        self.given.level
    }

    /// Returns whether the durability is only attested by the operator.
    pub fn is_attested(&self) -> bool {
        self.given.attested
    }

    /// Waits until the store is connected to a server whose durability suffices.
    pub async fn ready(&self) {
        self.desk.commands.ready().await;
        self.desk.leases.ready().await;
        self.desk.guard.ready().await;
        if let Some(replicas) = &self.desk.replicas {
            replicas.line().ready().await;
        }
    }

    /// Returns the server's time.
    pub async fn time(&self) -> Result<Millis, OpenError> {
        let asked = self.desk.commands.ask(&::redis::cmd("TIME")).await;
        let told = asked.map_err(|error| OpenError::Time { error: error.to_string() })?;
        let time = answer::Answer::of(told).and_then(answer::Answer::time);
        time.map(Millis).map_err(|_| OpenError::Time { error: "the answer is not a time".to_owned() })
    }

    /// Waits until the connection is lost.
    pub async fn lost(&self) {
        self.desk.commands.gone().await;
    }
}

/// Checks a server, loads the functions and checks the user's rights; retries while the server is unavailable.
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
            // Until the call is sent, the op did not happen.
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

/// A submitted op that is answered exactly once, at the latest when it is dropped.
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

    /// Every op allocates this future, and there are thousands of ops when a node takes over sessions.
    #[test]
    fn store_request_future_stays_small() {
        let size = size(Question::ask);
        assert!(size <= 1024, "{size}");
    }
}
