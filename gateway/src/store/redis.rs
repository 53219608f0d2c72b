//! The store of a fleet: Redis, with one Lua function for each atomic rule (`turnway.lua`). Ops are pipelined at
//! once; an op without a connection fails with `Unavailable`, and an op whose answer is lost fails with `Unknown` and
//! is repeated by its caller. Opened by `app::build`.
mod answer;
mod blobs;
mod call;
mod conversations;
mod executor;
mod health;
mod idle_sessions;
mod inputs;
mod key;
mod lease;
mod library;
mod listing;
mod log;
mod monitor;
mod observation;
mod ownership;
#[cfg(any(test, feature = "planted"))]
mod planted;
mod probe;
mod quota;
pub mod rate_reporter;
mod registrar;
mod registration_cache;
mod replicas;
mod rights;
mod subscribers;
mod sweep;

pub use library::LibraryError;
pub use rights::{MissingRight, MissingRights};

use crate::config::Durability;
use crate::config::redis::{RedisLogin, RedisUrl};
use crate::phase::{Lifecycle, UnreadyReason};
use crate::redis::connect::{ConnectError, ConnectTimeout};
use crate::redis::server_error::advice;
use crate::redis::{RedisConnection, RedisConnectionOptions};
use crate::store::embedded::ClockFn;
use crate::store::{AnswerSink, Store, UsageCallback};
use ::redis::RedisError;
use executor::OpExecutor;
use health::StoreHealth;
use library::LibraryLoader;
use monitor::{DurabilityMonitor, MonitorContext};
use probe::ServerGuarantees;
use quota::QuotaBounds;
use registrar::Registrar;
use registration_cache::RegistrationCache;
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
const COMMAND_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of a lease renewal: a later answer is of no use. Further renewals are sent meanwhile, and each lease
/// counts from when its renewal was sent (ownership.md §1.6), so a slow round trip costs no renewal.
const RENEW_TIMEOUT: Duration = limits::LEASE;
/// Timeout of the replicas connection; `WAIT` itself blocks for up to one second.
const WAIT_TIMEOUT: Duration = Duration::from_secs(4);
/// Interval between two attempts to reach an unavailable server at start.
const START_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Timeout for the connections to be established, once the server was checked at start.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

/// Settings and callbacks of the Redis store.
#[derive(Clone, Default)]
pub struct RedisStoreOptions {
    /// The guarantee that a reply gives.
    pub durability: Durability,
    /// Login that may load functions and read the server's settings, if different from the store's own.
    pub deployer: Option<RedisLogin>,
    /// Durability that the operator attests where the server's settings cannot be read.
    pub attest: Option<Durability>,
    /// Maximum time that a start waits for a server that is unavailable, loads its data, or has no memory for the
    /// functions.
    pub wait: Duration,
    /// Quotas on the bytes stored for tenants and users.
    pub quotas: Quotas,
    /// Called every 30 s with the server's memory usage; `None` disables the reports.
    pub on_usage: Option<UsageCallback>,
    /// The process state to which reasons for not being ready are reported.
    pub lifecycle: Lifecycle,
    /// A test's clock, used instead of the server's.
    pub clock: Option<ClockFn>,
}

/// The reason why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum RedisOpenError {
    /// No connection could be established.
    #[error(transparent)]
    Unreached(#[from] ConnectError),
    /// The server refused a command or did not answer it.
    #[error("{error}")]
    Command {
        /// Error of the command.
        error: RedisError,
    },
    /// The user lacks rights that a node needs.
    #[error(
        "the user of store.url lacks rights: {0}; give it those of deploy/redis-users.acl. A command that the server \
         does not have cannot be given: such a server cannot be used"
    )]
    Rights(MissingRights),
    /// The server has no functions.
    #[error("Redis {version} has no functions; use version 7.0 or later")]
    TooOld {
        /// Version of the server.
        version: String,
    },
    /// The server is set to evict keys when memory runs out.
    #[error("Redis would evict sessions when memory runs out: set `maxmemory-policy noeviction`")]
    EvictionEnabled,
    /// The server guarantees less than is required.
    #[error(
        "with its current settings Redis gives durability {gives}, not {wanted}: {missing}; or set `store.durability` \
         to {gives}"
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
    #[error("the system provides no randomness: {0}")]
    Randomness(getrandom::Error),
}

/// The store of a gateway that is one of several. Dropping the store leaves unanswered ops `Unknown`.
pub struct RedisStore {
    executor: Arc<OpExecutor>,
    in_flight: Arc<AtomicUsize>,
    answers: AnswerSink,
    runtime: Handle,
    guarantees: ServerGuarantees,
}

// === impl RedisOpenError ===

impl RedisOpenError {
    /// Returns whether a later attempt may succeed.
    fn is_retryable(&self) -> bool {
        let later = |error: &RedisError| match error.code() {
            Some(code) => matches!(code, "LOADING" | "MASTERDOWN" | "OOM" | "BUSY" | "MISCONF" | "READONLY"),
            None => error.is_io_error(),
        };
        match self {
            Self::Unreached(unreached) | Self::Library(LibraryError::Unreached(unreached)) => unreached.is_transient(),
            Self::Command { error } | Self::Library(LibraryError::Failed(error)) => later(error),
            Self::Library(LibraryError::Busy) => true,
            Self::Library(LibraryError::Forbidden(_))
            | Self::Rights(_)
            | Self::TooOld { .. }
            | Self::EvictionEnabled
            | Self::Level { .. }
            | Self::Time { .. }
            | Self::Randomness(_) => false,
        }
    }

    /// Returns advice for the operator that matches the server's error.
    fn advice(&self) -> &'static str {
        let code = match self {
            Self::Unreached(unreached) | Self::Library(LibraryError::Unreached(unreached)) => {
                unreached.server_error().map(|(code, _)| code)
            }
            Self::Command { error } | Self::Library(LibraryError::Failed(error)) => error.code().map(str::to_owned),
            Self::Library(LibraryError::Busy | LibraryError::Forbidden(_))
            | Self::Rights(_)
            | Self::TooOld { .. }
            | Self::EvictionEnabled
            | Self::Level { .. }
            | Self::Time { .. }
            | Self::Randomness(_) => None,
        };
        code.map_or("check that Redis runs and that this node can reach it", |code| advice(&code))
    }
}

// === impl RedisStore ===

impl RedisStore {
    /// Checks a server, loads the functions if needed, and opens the store's connections.
    pub async fn open(url: RedisUrl, options: RedisStoreOptions, answers: AnswerSink) -> Result<Self, RedisOpenError> {
        let deployer = match &options.deployer {
            Some(login) => RedisUrl { login: login.clone(), ..url.clone() },
            None => url.clone(),
        };
        let given = open_server(&url, &deployer, &options).await?;
        let mut chance = [0; 16];
        getrandom::fill(&mut chance).map_err(RedisOpenError::Randomness)?;
        let name = format!("{:032x}", u128::from_be_bytes(chance));
        let runtime = Handle::current();
        let open_connection = |name, answer_within| {
            let settings = RedisConnectionOptions {
                name,
                command_timeout: answer_within,
                channels: Vec::new(),
                push_handler: None,
            };
            RedisConnection::open(url.clone(), settings, &runtime)
        };
        let replicas = (given.level == Durability::FsyncReplica)
            .then(|| Replicas::new(open_connection("replicas", WAIT_TIMEOUT), &name, &runtime));
        let commands = open_connection("commands", COMMAND_TIMEOUT);
        let health = Arc::new(StoreHealth::new(options.lifecycle));
        let filled = options.on_usage.unwrap_or_else(|| Arc::new(|_, _| {}));
        let quotas = Arc::new(QuotaBounds::new(options.quotas, filled, given.memory));
        let watched = MonitorContext {
            url: url.clone(),
            deployer: deployer.clone(),
            wanted: given.level,
            attest: options.attest,
            health: Arc::clone(&health),
            quotas: Arc::clone(&quotas),
        };
        let executor = OpExecutor {
            monitor: DurabilityMonitor::new(commands.clone(), watched, &runtime),
            health,
            quotas,
            commands,
            leases: open_connection("leases", RENEW_TIMEOUT),
            library: LibraryLoader::new(deployer),
            replicas,
            clock: options.clock,
            started_at: Instant::now(),
            registrations: Mutex::new(RegistrationCache::default()),
            registrar: Registrar::default(),
            is_answering: AtomicBool::new(true),
        };
        let executor = Arc::new(executor);
        let under_way = Arc::default();
        let store = Self { executor, in_flight: under_way, answers, runtime, guarantees: given };
        // The server was available a moment ago. If it is gone again, the store handles that as any other outage.
        let _ = timeout(READY_TIMEOUT, store.ready()).await;
        Ok(store)
    }

    /// Returns the durability of a reply: less than required if the server's settings cannot be read.
    pub fn level(&self) -> Durability {
        self.guarantees.level
    }

    /// Returns whether the durability is only attested by the operator.
    pub fn is_attested(&self) -> bool {
        self.guarantees.attested
    }

    /// Waits until the store is connected to a server whose durability suffices.
    pub async fn ready(&self) {
        self.executor.commands.wait_connected().await;
        self.executor.leases.wait_connected().await;
        self.executor.monitor.ready().await;
        if let Some(replicas) = &self.executor.replicas {
            replicas.line().wait_connected().await;
        }
    }

    /// Returns the server's time.
    pub async fn time(&self) -> Result<Millis, RedisOpenError> {
        let answer = self.executor.commands.execute(&::redis::cmd("TIME")).await;
        let last_text = answer.map_err(|error| RedisOpenError::Time { error: error.to_string() })?;
        let time = answer::RedisAnswerReader::from_value(last_text).and_then(answer::RedisAnswerReader::time_millis);
        time.map(Millis).map_err(|_| RedisOpenError::Time { error: "the answer is not a time".to_owned() })
    }

    /// Waits until the connection is lost.
    pub async fn disconnected(&self) {
        self.executor.commands.wait_disconnected().await;
    }
}

/// Checks a server, loads the functions and checks the user's rights; retries while the server is unavailable.
async fn open_server(
    url: &RedisUrl,
    deployer: &RedisUrl,
    options: &RedisStoreOptions,
) -> Result<ServerGuarantees, RedisOpenError> {
    let began = Instant::now();
    let mut patience = ConnectTimeout::default();
    let mut last_text = String::new();
    loop {
        let error = match check_server(url, deployer, options, patience.next_timeout()).await {
            Ok(given) => {
                options.lifecycle.report(UnreadyReason::StoreAway, false);
                return Ok(given);
            }
            Err(error) => error,
        };
        let left = options.wait.saturating_sub(began.elapsed());
        if left.is_zero() || !error.is_retryable() {
            return Err(error);
        }
        options.lifecycle.report(UnreadyReason::StoreAway, true);
        let text = error.to_string();
        if last_text != text {
            tracing::warn!(redis = %url, error = text, ?left, "waiting for Redis: {}", error.advice());
            last_text = text;
        }
        tokio::time::sleep(START_RETRY_INTERVAL.min(left)).await;
    }
}

async fn check_server(
    url: &RedisUrl,
    deployer: &RedisUrl,
    options: &RedisStoreOptions,
    within: Duration,
) -> Result<ServerGuarantees, RedisOpenError> {
    let given = probe::probe(deployer, options.durability, options.attest, within).await?;
    if library::load_if_missing(deployer, within).await? {
        tracing::info!(version = library::VERSION, "loaded the functions of this release");
    }
    rights::check(url, given.level == Durability::FsyncReplica, within).await?;
    Ok(given)
}

impl Store for RedisStore {
    fn submit(&self, op: Op) {
        let full = self.in_flight.fetch_add(1, Ordering::Relaxed) >= limits::STORE_QUEUE_MAX;
        let question = PendingOp {
            op: Some(op),
            // Until the call is sent, the op did not happen.
            error_if_dropped: StoreError::Unavailable,
            answers: Arc::clone(&self.answers),
            in_flight: Arc::clone(&self.in_flight),
        };
        if full || !question.op.as_ref().is_some_and(|op| self.executor.is_connected(op)) {
            return;
        }
        let executor = Arc::clone(&self.executor);
        self.runtime.spawn(question.run(executor));
    }
}

/// A submitted op that is answered exactly once, at the latest when it is dropped.
struct PendingOp {
    op: Option<Op>,
    error_if_dropped: StoreError,
    answers: AnswerSink,
    in_flight: Arc<AtomicUsize>,
}

impl PendingOp {
    async fn run(mut self, executor: Arc<OpExecutor>) {
        self.error_if_dropped = StoreError::Unknown;
        if let Some(op) = self.op.as_ref() {
            let result = executor.perform(op).await.map_err(StoreError::from);
            self.answer(result);
        }
    }

    fn answer(&mut self, result: Result<Reply, StoreError>) {
        if let Some(op) = self.op.take() {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            (self.answers)(op, result);
        }
    }
}

impl Drop for PendingOp {
    fn drop(&mut self) {
        self.answer(Err(self.error_if_dropped));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<F: Future>(_: fn(PendingOp, Arc<OpExecutor>) -> F) -> usize {
        size_of::<F>()
    }

    /// Every op allocates this future, and there are thousands of ops when a node takes over sessions.
    #[test]
    fn store_request_future_stays_small() {
        let size = size(PendingOp::run);
        assert!(size <= 1024, "{size}");
    }
}
