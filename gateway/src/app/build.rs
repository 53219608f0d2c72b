//! Builds a node from its plan. A resource that is missing must be found here, before the first client connects. Called
//! by `node`.
mod callers;
mod identity;
mod office;
mod quic;
mod store;

pub(super) use self::{identity::Upkeep, quic::Served};
use super::timekeeper::Timekeeper;
use crate::agent::{Agents, Report, dialin::Lines, directory::BadAgent, plugins::Plugins};
use crate::answer::Body;
use crate::bus::alone::Alone;
use crate::bus::{self, Bus, Mouth};
use crate::cli::plan::Plan;
use crate::clock::Clock;
use crate::config::StoreConfig;
use crate::door::{Door, pepper::BadPepper};
use crate::driver::{AnswerQueue, Driver, Hands, Inbox};
use crate::keys::Keys;
use crate::keys::call_names::CallNames;
use crate::keys::provider::NoProvider;
use crate::links::{self, Board, Links};
use crate::listen::turnstile::Turnstile;
use crate::listen::upgrade::Reception;
use crate::listen::{House, Listener};
use crate::metrics::{Metrics, Unanswered};
use crate::phase::{Life, Phase, Reason};
use crate::store::Store;
use crate::store::embedded::{Copier, Embedded, OpenError};
use crate::store::redis;
use crate::store::registers::Counter;
use crate::tls::{Keeper, Shown, development::NoPair, keeper::NoTls};
use crate::tools::Tools;
use crate::{admin, http};
use futures_util::FutureExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use identity::Identity;
use office::Office;
use prometheus::Registry;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use store::{Opened, Promise};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio_util::task::TaskTracker;
use turnway_bindings::switchboard::{self, Switchboard};
use turnway_core::id::NodeId;
use turnway_core::limits;

/// Maximum queued reports of agents; while the queue is full, agents are not read.
const REPORTS_MAX: usize = limits::DRIVER_QUEUE_MAX;

/// A node that is built and not started.
pub struct App {
    pub(super) plan: Plan,
    pub(super) node: NodeId,
    /// The durability level of an acknowledgement.
    pub(super) promise: &'static str,
    /// Present if the node shares its store with other nodes.
    pub(super) fleet: Option<Arc<bus::redis::Redis>>,
    pub(super) life: Life,
    pub(super) links: Arc<Links>,
    pub(super) agents: Agents,
    /// Attempts at agents of other nodes, and of other nodes at agents of this one.
    pub(super) lines: Lines,
    pub(super) driver: Driver,
    pub(super) public: (Listener, Arc<House>),
    pub(super) quic: Option<Served>,
    /// Address of the operators' listener, which serves already.
    pub(super) admin: SocketAddr,
    /// Present if a certificate is configured.
    pub(super) keeper: Option<Keeper>,
    /// Refreshes keys and tokens while the node runs.
    pub(super) upkeep: Upkeep,
    pub(super) tasks: TaskTracker,
    pub(super) timekeeper: Timekeeper,
    /// Notified when the store can no longer keep its promise.
    pub(super) fatal: Arc<Notify>,
    /// Present if the store is a file of this process; closed at the end.
    pub(super) embedded: Option<Arc<Embedded>>,
}

/// A reason why a node cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A TCP port cannot be bound.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        address: SocketAddr,
        error: io::Error,
    },
    /// A UDP port cannot be bound.
    #[error("cannot listen on {address} (QUIC): {error}; use --quic ADDR for another address or --quic off to disable QUIC")]
    ListenQuic {
        address: SocketAddr,
        error: io::Error,
    },
    /// The self-made certificate for QUIC cannot be created.
    #[error("cannot create a certificate for QUIC: {0}")]
    Pair(#[from] NoPair),
    /// The certificate was valid when the configuration was checked, and is not any more.
    #[error(transparent)]
    Tls(#[from] NoTls),
    /// The pepper was readable when the configuration was checked, and is not any more.
    #[error(transparent)]
    Pepper(#[from] BadPepper),
    /// The client for the identity provider's keys cannot be built.
    #[error(transparent)]
    Provider(#[from] NoProvider),
    /// The embedded store cannot be opened.
    #[error("cannot open the store: {0}")]
    Store(#[from] OpenError),
    /// The shared store cannot be used.
    #[error("cannot use {url}: {error}")]
    Redis {
        /// Without its secrets.
        url: String,
        error: Box<redis::OpenError>,
    },
    /// The agents cannot be reached as configured.
    #[error(transparent)]
    Agents(#[from] BadAgent),
    /// The thread of the operators' listener cannot be started.
    #[error("the operators' listener cannot be started: {0}")]
    Office(io::Error),
    /// The system gave no randomness, which ids and fencing tokens need.
    #[error("the system provides no randomness: {0}")]
    Chance(getrandom::Error),
    /// Two metric families have the same name: a bug.
    #[error("cannot register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// The handles that every part of a node gets.
struct Shared {
    node: NodeId,
    clock: Clock,
    life: Life,
    links: Arc<Links>,
    files: callers::FileBudget,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
}

// === impl App ===

impl App {
    /// Builds a node with these plugins. Its tasks will run on this runtime.
    pub fn build(plan: Plan, plugins: Plugins, runtime: &Handle) -> Result<Self, BuildError> {
        let public = listen(plan.config.http)?;
        let quic = plan.config.quic.map(quic::listen).transpose()?;
        let admin = (listen(plan.config.admin)?, plan.config.health.map(listen).transpose()?);
        let registry = Registry::new();
        let files = callers::file_budget(plan.config.holding.attempts, plan.agents.len());
        let shared = Shared::new(&plan, files, &registry)?;
        // Until the driver has its first lease.
        shared.life.report(Reason::LeaseMissing, true);
        // Before the store, whose opening may have to wait, so that `/readyz` can say so.
        let office = Office::open(admin, &shared, registry.clone(), &plan, &public)?;
        let (fatal, answers) = (Arc::new(Notify::new()), AnswerQueue::default());
        let counter = Counter::default();
        let sink = counter.before(answers.sink());
        let Opened { store, embedded, promise } = shared.store(&plan.config, &fatal, sink, runtime)?;
        // After the store, which gives the time that certificates are checked against.
        let keeper = |files| Keeper::open(files, shared.clock.clone(), Arc::clone(&shared.metrics));
        let keeper = plan.config.tls.clone().map(keeper).transpose()?;
        let shown = keeper.as_ref().map(Keeper::shown);
        let Identity { door, keys, call_names, upkeep } =
            shared.identity(&plan, counter.open(Arc::clone(&store)), runtime)?;
        let (reporter, reports) = mpsc::channel::<Report>(REPORTS_MAX);
        let lines = Lines::new(shared.node, runtime, shared.clock.clone(), Arc::clone(&shared.metrics));
        let agents = shared.agents(&plan, plugins, reporter, &lines)?;
        let ((board, asked), (mouth, ear)) = (links::board(), bus::ear());
        let (telling, told) = mpsc::channel(REPORTS_MAX);
        let tools = Tools::new(telling, runtime, shared.clock.clone(), plan.config.tools_served_by.clone());
        let inbox = Inbox::new(asked, reports, told, answers, ear);
        let fleet =
            shared.fleet(&plan, &public, promise, mouth.clone().with(Arc::new(lines.clone())), runtime);
        let bus: Arc<dyn Bus> = match &fleet {
            Some(fleet) => {
                lines.join(Arc::<bus::redis::Redis>::clone(fleet));
                Arc::<bus::redis::Redis>::clone(fleet)
            }
            None => Arc::new(Alone::new(mouth)),
        };
        let driver = shared.driver(store, (&agents, &tools), bus, inbox, &plan)?;
        let copier = embedded.as_ref().map(|store| store.copier());
        office.complete(shared.pages(
            registry,
            copier,
            keys,
            shared.roster(&plan, &public, promise, fleet.clone()),
        ));
        let house = shared.house((&plan, promise), board, (&agents, &tools), (door, call_names), shown);
        let quic = quic.map(|quic| shared.quic(&plan.config, quic, &house)).transpose()?.flatten();
        let timekeeper = shared.timekeeper(&plan);
        Ok(Self {
            timekeeper,
            public: (public, Arc::new(house)),
            quic,
            admin: office.address,
            plan,
            node: shared.node,
            promise: promise.level,
            fleet,
            life: shared.life,
            links: shared.links,
            agents,
            driver,
            lines,
            keeper,
            upkeep,
            tasks: shared.tasks,
            fatal,
            embedded,
        })
    }
}

// === impl Shared ===

impl Shared {
    fn agents(
        &self,
        plan: &Plan,
        plugins: Plugins,
        reporter: mpsc::Sender<Report>,
        lines: &Lines,
    ) -> Result<Agents, BadAgent> {
        let (agents, default) = (plan.agents.clone(), plan.default_agent.clone());
        let (places, clock) = (self.files.attempts, self.clock.clone());
        Agents::new(agents, default, plugins, reporter, places, lines, clock, Arc::clone(&self.metrics))
    }

    /// Creates the handles that every part gets.
    fn new(plan: &Plan, files: callers::FileBudget, registry: &Registry) -> Result<Self, BuildError> {
        let (shares, by_quic) = (plan.config.holding.shares, plan.config.quic_connections);
        Ok(Self {
            node: NodeId(u128::from_be_bytes(chance()?)),
            clock: if alone(&plan.config.store) { Clock::start() } else { Clock::of_a_fleet() },
            life: Life::default(),
            links: Arc::new(Links::new(shares, files.connections, by_quic)),
            files,
            metrics: Arc::new(Metrics::register(registry)?),
            tasks: TaskTracker::new(),
        })
    }

    /// Opens the bus to the other nodes on the same store; `None` if the store is not shared.
    fn fleet(
        &self,
        plan: &Plan,
        public: &Listener,
        promise: Promise,
        mouth: Mouth,
        runtime: &Handle,
    ) -> Option<Arc<bus::redis::Redis>> {
        let StoreConfig::Redis { url, .. } = &plan.config.store else { return None };
        let place = bus::redis::Place {
            url: url.clone(),
            node: self.node,
            name: plan.config.node_name.clone(),
            address: public.address().to_string(),
            mouth,
            metrics: Arc::clone(&self.metrics),
            clock: self.clock.clone(),
            life: self.life.clone(),
            durability: bus::redis::Kept { level: promise.level.to_owned(), attested: promise.is_attested },
        };
        Some(Arc::new(bus::redis::Redis::open(place, runtime)))
    }

    fn driver(
        &self,
        store: Arc<dyn Store>,
        (agents, tools): (&Agents, &Tools),
        bus: Arc<dyn Bus>,
        inbox: Inbox,
        plan: &Plan,
    ) -> Result<Driver, BuildError> {
        let switchboard = Switchboard::new(switchboard::Config {
            node: self.node,
            directory: Arc::new(agents.directory()),
            seed: chance()?,
            alone: alone(&plan.config.store),
            keep_facts: plan.config.keep_facts,
            max_age: plan.config.max_age,
            capacity: switchboard::Capacity {
                shares: plan.config.holding.shares,
                attempts: self.files.attempts,
                sessions: plan.config.holding.sessions,
                subscriptions: plan.config.holding.subscriptions,
                ..switchboard::Capacity::default()
            },
        });
        let hands = Hands {
            store,
            links: Arc::clone(&self.links),
            agents: agents.clone(),
            tools: tools.clone(),
            bus,
            mail: Vec::new(),
            metrics: Arc::clone(&self.metrics),
            unanswered: Unanswered::default(),
            life: self.life.clone(),
            store_missed: None,
        };
        let (clock, life, metrics) = (self.clock.clone(), self.life.clone(), Arc::clone(&self.metrics));
        Ok(Driver::new(switchboard, inbox, hands, clock, life, metrics))
    }

    fn timekeeper(&self, plan: &Plan) -> Timekeeper {
        Timekeeper {
            clock: self.clock.clone(),
            life: self.life.clone(),
            metrics: Arc::clone(&self.metrics),
            skew_max: plan.config.skew_max,
        }
    }

    /// Builds the context of the public listener.
    fn house(
        &self,
        (plan, promise): (&Plan, Promise),
        board: Board,
        (agents, tools): (&Agents, &Tools),
        (door, call_names): (Door, CallNames),
        tls: Option<Shown>,
    ) -> House {
        let desk = http::Desk {
            door: door.clone(),
            links: Arc::clone(&self.links),
            board: board.clone(),
            directory: Arc::new(agents.directory()),
            agents: agents.clone(),
            clock: self.clock.clone(),
            began: self.clock.now().store,
            life: self.life.clone(),
            call_names,
            durability: promise.level,
            node: http::Node { name: plan.config.node_name.clone() },
        };
        let reception = Reception {
            door,
            turnstile: Turnstile::default(),
            links: Arc::clone(&self.links),
            board,
            exchange: agents.exchange().clone(),
            tools: tools.clone(),
            life: self.life.clone(),
            clock: self.clock.clone(),
            metrics: Arc::clone(&self.metrics),
            node: self.node,
            durability: promise.level,
            tasks: self.tasks.clone(),
        };
        let (metrics, clock) = (Arc::clone(&self.metrics), self.clock.clone());
        let router = TowerToHyperService::new(http::counted(http::router(Arc::new(desk)), metrics, clock));
        House {
            pages: Arc::new(move |request| {
                router.call(request.map(Body::new)).map(|Ok(answer)| answer).boxed()
            }),
            rules: callers::rules(plan),
            proxies: plan.config.proxies.clone(),
            crowd: callers::crowd(plan),
            reception: Some(Arc::new(reception)),
            tls,
            until: Phase::Draining,
            life: self.life.clone(),
            metrics: Arc::clone(&self.metrics),
            connections_max: self.files.connections,
            tasks: self.tasks.clone(),
        }
    }

    /// Builds the operators' view of the nodes.
    fn roster(
        &self,
        plan: &Plan,
        public: &Listener,
        promise: Promise,
        fleet: Option<Arc<bus::redis::Redis>>,
    ) -> admin::Roster {
        admin::Roster {
            node: self.node,
            name: plan.config.node_name.clone(),
            address: public.address().to_string(),
            metrics: Arc::clone(&self.metrics),
            clock: self.clock.clone(),
            life: self.life.clone(),
            durability: bus::redis::Kept { level: promise.level.to_owned(), attested: promise.is_attested },
            fleet,
        }
    }

    /// Builds the operators' pages.
    fn pages(
        &self,
        registry: Registry,
        copier: Option<Copier>,
        keys: Option<Arc<Keys>>,
        roster: admin::Roster,
    ) -> admin::Pages {
        let (life, metrics) = (self.life.clone(), Arc::clone(&self.metrics));
        let (backup, keys) = (admin::Backup::new(copier), admin::KeyDesk::new(keys));
        admin::Pages { life, metrics, registry, backup, keys, roster }
    }
}

/// Returns whether the store belongs to this process alone, so that any other holder of a lease in it is gone.
fn alone(config: &StoreConfig) -> bool {
    match config {
        StoreConfig::Memory | StoreConfig::Embedded { .. } => true,
        StoreConfig::Redis { .. } => false,
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
