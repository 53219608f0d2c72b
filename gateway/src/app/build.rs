//! Putting a node together. Whatever cannot be had is found out here, before the first client.
use crate::agent::directory::BadAgent;
use crate::agent::{Agents, Report};
use crate::cli::plan::Plan;
use crate::clock::Clock;
use crate::config::{Durability, StoreConfig};
use crate::door::Door;
use crate::driver::{AnswerQueue, Driver, Hands, Inbox};
use crate::links::{self, Links};
use crate::listen::upgrade::Reception;
use crate::listen::{House, Listener};
use crate::metrics::Metrics;
use crate::phase::{Life, Phase};
use crate::store::embedded::{self, Embedded, OpenError};
use crate::store::memory::Memory;
use crate::store::{Answers, Store};
use crate::{admin, http};
use prometheus::Registry;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio_util::task::TaskTracker;
use turnway_bindings::switchboard::{self, Switchboard};
use turnway_core::id::NodeId;
use turnway_core::limits;

/// Connections of operators at a time: a scraper, a probe, a few people.
const ADMIN_CONNECTIONS_MAX: usize = 128;
/// Files that are not connections of clients: the store, agents, operators.
const FILES_RESERVE: u64 = 512;
/// Reports of agents on their way; an agent that waits here is not read.
const REPORTS_MAX: usize = limits::DRIVER_QUEUE_MAX;

/// A node that is built and has not begun.
pub struct App {
    pub(super) plan: Plan,
    pub(super) node: NodeId,
    pub(super) life: Life,
    pub(super) links: Arc<Links>,
    pub(super) agents: Agents,
    pub(super) driver: Driver,
    pub(super) public: (Listener, Arc<House>),
    pub(super) admin: (Listener, Arc<House>),
    pub(super) tasks: TaskTracker,
    /// Rung when the store can promise nothing more.
    pub(super) fatal: Arc<Notify>,
}

/// Why a node cannot be.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A port cannot be had.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The store cannot be opened.
    #[error("cannot open the store: {0}")]
    Store(#[from] OpenError),
    /// The agents cannot be reached as configured.
    #[error(transparent)]
    Agents(#[from] BadAgent),
    /// The system has no randomness to give, and ids and fences are made of it.
    #[error("no randomness: {0}")]
    Chance(getrandom::Error),
    /// Two families of metrics have one name: a bug.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

// === impl App ===

impl App {
    /// Builds a node whose tasks will run on this runtime.
    pub fn build(plan: Plan, runtime: &Handle) -> Result<Self, BuildError> {
        let public = listen(plan.config.http)?;
        let admin = listen(plan.config.admin)?;
        let (clock, life, links, tasks) =
            (Clock::start(), Life::default(), Arc::default(), TaskTracker::new());
        let registry = Registry::new();
        let metrics = Arc::new(Metrics::register(&registry)?);
        let fatal = Arc::new(Notify::new());

        let answers = AnswerQueue::default();
        let store = open(&plan.config.store, &clock, &fatal, answers.sink())?;
        let (reporter, reports) = mpsc::channel::<Report>(REPORTS_MAX);
        let agents = Agents::new(plan.agents.clone(), plan.default_agent.clone(), reporter, runtime.clone())?;
        let node = NodeId(u128::from_be_bytes(chance()?));
        let config = switchboard::Config {
            node,
            directory: Arc::new(agents.directory()),
            seed: chance()?,
            alone: true,
            keep_facts: None,
        };
        let (board, asked) = links::board();
        let hands = Hands {
            store,
            links: Arc::clone(&links),
            agents: agents.clone(),
            metrics: Arc::clone(&metrics),
            life: life.clone(),
        };
        let driver = Driver::new(
            Switchboard::new(config),
            Inbox::new(asked, reports, answers),
            hands,
            clock.clone(),
            life.clone(),
            Arc::clone(&metrics),
        );
        let reception = Reception {
            door: Door,
            links: Arc::clone(&links),
            board,
            clock,
            metrics: Arc::clone(&metrics),
            node,
            durability: plan.config.store.promise(),
            tasks: tasks.clone(),
        };
        let pages = http::Pages {
            node: http::Node { name: plan.config.node_name.clone(), links: Arc::clone(&links) },
        };
        let house = House {
            pages: Arc::new(move |request| pages.answer(request)),
            reception: Some(Arc::new(reception)),
            until: Phase::Draining,
            life: life.clone(),
            metrics: Arc::clone(&metrics),
            connections_max: connections_max(),
            tasks: tasks.clone(),
        };
        let pages = admin::Pages { life: life.clone(), registry };
        let office = House {
            pages: Arc::new(move |request| pages.answer(request)),
            reception: None,
            until: Phase::Leaving,
            life: life.clone(),
            metrics,
            connections_max: ADMIN_CONNECTIONS_MAX,
            // Of its own: nobody waits for operators.
            tasks: TaskTracker::new(),
        };
        let (public, admin) = ((public, Arc::new(house)), (admin, Arc::new(office)));
        Ok(Self { plan, node, life, links, agents, driver, public, admin, tasks, fatal })
    }
}

fn listen(address: SocketAddr) -> Result<Listener, BuildError> {
    Listener::bind(address).map_err(|error| BuildError::Listen { address, error })
}

fn chance<const N: usize>() -> Result<[u8; N], BuildError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(BuildError::Chance)?;
    Ok(bytes)
}

fn open(
    config: &StoreConfig,
    clock: &Clock,
    fatal: &Arc<Notify>,
    answers: Answers,
) -> Result<Arc<dyn Store>, OpenError> {
    let clock = clock.clone();
    let clock: embedded::Clock = Arc::new(move || clock.now());
    match config {
        StoreConfig::Memory => Ok(Arc::new(Memory::new(clock, answers))),
        StoreConfig::Embedded { dir, durability } => {
            let fatal = Arc::clone(fatal);
            let mut options = embedded::Options::new(clock, Arc::new(move |_| fatal.notify_one()));
            options.durability = match durability {
                // No embedded store forgets on purpose: who asks for less gets the next level.
                Durability::Mem | Durability::Os => embedded::Durability::Os,
                Durability::Fsync => embedded::Durability::Fsync,
            };
            Ok(Arc::new(Embedded::open(dir, options, answers)?))
        }
    }
}

/// As many as the process may open files for, and no more than [`limits::CONNECTIONS_MAX`]. The soft
/// limit of most systems is far below the hard one, for the sake of programs that use `select`.
fn connections_max() -> usize {
    let had = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: had.maximum, maximum: had.maximum };
    // A system that does not let us have more leaves us with what there is.
    let _ = setrlimit(Resource::Nofile, wanted);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let rest = usize::try_from(files.saturating_sub(FILES_RESERVE)).unwrap_or(usize::MAX);
    rest.clamp(1, limits::CONNECTIONS_MAX)
}
