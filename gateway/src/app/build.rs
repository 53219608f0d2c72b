//! Builds a node from its plan. A resource that is missing must be found here, before the first client connects. Called
//! by `node`.
mod admin_listener;
mod client_limits;
mod identity;
mod quic;
mod store;

pub(super) use self::{identity::CredentialRefresh, quic::QuicService};
use super::skew_monitor::SkewMonitor;
use crate::agent::access::GatewayAccess;
use crate::agent::conversation::ModelAccess;
use crate::agent::{Agents, AttemptReport, dialin::RemoteCalls, directory::BadAgent, plugins::Plugins};
use crate::auth::{Authenticator, pepper::BadPepper};
use crate::blobs::s3::{CredentialsError, S3SetupError};
use crate::blobs::sweep::BodySweeper;
use crate::bus::local::LocalBus;
use crate::bus::redis::RedisBus;
use crate::bus::{self, Bus, BusEventSender};
use crate::cli::plan::NodePlan;
use crate::clock::Clock;
use crate::config::{Config, StoreConfig};
use crate::driver::{AnswerQueue, Driver, DriverInbox, Effects};
use crate::keys::ApiKeys;
use crate::keys::call_names::CallNames;
use crate::keys::provider::ProviderError;
use crate::links::{self, CommandSender, LinkRegistry};
use crate::listen::churn_limiter::ChurnLimiter;
use crate::listen::upgrade::LinkContext;
use crate::listen::{Listener, ListenerContext};
use crate::metrics::{Metrics, PendingOps};
use crate::models::budget::keeper::BudgetKeeper;
use crate::models::{Models, ModelsSetupError, demo};
use crate::phase::{Lifecycle, NodePhase, UnreadyReason};
use crate::response::Body;
use crate::run_token::RunTokens;
use crate::store::Store;
use crate::store::embedded::{Copier, EmbeddedOpenError, EmbeddedStore};
use crate::store::redis;
use crate::store::registers::{RegisterReplies, Registers};
use crate::tls::{CertificateReloader, TlsConfigWatch, development::DevCertError, reloader::TlsSetupError};
use crate::tools::ToolRunners;
use crate::{admin, http};
use admin_listener::AdminListener;
use futures_util::FutureExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use identity::Authentication;
use prometheus::Registry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use store::{DurabilityPromise, OpenedStore};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio_util::task::TaskTracker;
use turnway_core::id::NodeId;
use turnway_core::limits;
use turnway_core::protocol::agent::AgentDirectory;
use turnway_node::switchboard::{self, Switchboard};

/// Maximum queued reports of agents; while the queue is full, agents are not read.
const REPORTS_MAX: usize = limits::DRIVER_QUEUE_MAX;

/// A node that is built and not started.
pub struct App {
    pub(super) plan: NodePlan,
    pub(super) node: NodeId,
    /// The durability level of an acknowledgement.
    pub(super) durability: &'static str,
    /// Present if the node shares its store with other nodes.
    pub(super) fleet: Option<Arc<bus::redis::RedisBus>>,
    pub(super) life: Lifecycle,
    pub(super) links: Arc<LinkRegistry>,
    pub(super) agents: Agents,
    /// Attempts at agents of other nodes, and of other nodes at agents of this one.
    pub(super) remote_calls: RemoteCalls,
    pub(super) driver: Driver,
    pub(super) public: (Listener, Arc<ListenerContext>),
    pub(super) quic: Option<QuicService>,
    /// Address of the operators' listener, which serves already.
    pub(super) admin: SocketAddr,
    /// Present if a certificate is configured.
    pub(super) certificate_reloader: Option<CertificateReloader>,
    /// Refreshes keys and tokens while the node runs.
    pub(super) refresh: CredentialRefresh,
    pub(super) tasks: TaskTracker,
    pub(super) skew_monitor: SkewMonitor,
    /// Notified when the store can no longer keep its promise.
    pub(super) store_failed: Arc<Notify>,
    /// Present if the store is a file of this process; closed at the end.
    pub(super) embedded: Option<Arc<EmbeddedStore>>,
}

/// A reason why a node cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A TCP port cannot be bound.
    #[error("cannot listen on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    /// A UDP port cannot be bound.
    #[error(
        "cannot listen on {address} (QUIC): {error}; use --quic ADDR for another address or --quic off to disable QUIC"
    )]
    ListenQuic { address: SocketAddr, error: io::Error },
    /// The self-made certificate for QUIC cannot be created.
    #[error("cannot create a certificate for QUIC: {0}")]
    QuicCertificate(#[from] DevCertError),
    /// The certificate was valid when the configuration was checked, and is not any more.
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
    /// The pepper was readable when the configuration was checked, and is not any more.
    #[error(transparent)]
    Pepper(#[from] BadPepper),
    /// The client for the identity provider's keys cannot be built.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The embedded store cannot be opened.
    #[error("cannot open the store: {0}")]
    Store(#[from] EmbeddedOpenError),
    /// The shared store cannot be used.
    #[error("cannot use {url}: {error}")]
    Redis {
        /// Without its secrets.
        url: String,
        error: Box<redis::RedisOpenError>,
    },
    /// There are no credentials for the place of files.
    #[error("cannot use blobs.url: {0}")]
    BlobCredentials(#[from] CredentialsError),
    /// The client of the place of files cannot be built.
    #[error(transparent)]
    BlobPlace(#[from] S3SetupError),
    /// The upstreams of models cannot be reached as configured.
    #[error(transparent)]
    Models(#[from] ModelsSetupError),
    /// The server of the demo model cannot be started.
    #[error("the demo model cannot be started: {0}")]
    DemoModel(io::Error),
    /// The agents cannot be reached as configured.
    #[error(transparent)]
    Agents(#[from] BadAgent),
    /// The thread of the operators' listener cannot be started.
    #[error("the operators' listener cannot be started: {0}")]
    AdminThread(io::Error),
    /// The system gave no randomness, which ids and fencing tokens need.
    #[error("the system provides no randomness: {0}")]
    Randomness(getrandom::Error),
    /// Two metric families have the same name: a bug.
    #[error("cannot register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// The handles that every part of a node gets.
struct NodeParts {
    node: NodeId,
    clock: Clock,
    life: Lifecycle,
    links: Arc<LinkRegistry>,
    files: client_limits::FileBudget,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
}

// === impl App ===

impl App {
    /// Builds a node with these plugins. Its tasks will run on this runtime.
    pub fn build(mut plan: NodePlan, plugins: Plugins, runtime: &Handle) -> Result<Self, BuildError> {
        add_demo_model(&mut plan, runtime)?;
        let public = listen(plan.config.http)?;
        let quic = plan.config.quic.map(quic::listen).transpose()?;
        let admin = (listen(plan.config.admin)?, plan.config.health.map(listen).transpose()?);
        let registry = Registry::new();
        let shared = NodeParts::new(&plan, client_limits::file_budget(&plan), &registry)?;
        // Before the store, whose opening may have to wait, so that `/readyz` can say so.
        let admin_listener = AdminListener::open(admin, &shared, registry.clone(), &plan, &public)?;
        let fatal = Arc::new(Notify::new());
        let answers = AnswerQueue::default();
        let counter = RegisterReplies::default();
        let sink = counter.intercept(answers.sink());
        let OpenedStore { store, embedded, promise } = shared.store(&plan.config, &fatal, sink, runtime)?;
        // After the store, which gives the time that certificates are checked against.
        let certificate_reloader = shared.open_reloader(&plan)?;
        let certificates = certificate_reloader.as_ref().map(CertificateReloader::watch);
        let (registers, budgets) = shared.open_registers(counter, &store, runtime);
        let Authentication { auth, keys, call_names, run_tokens, refresh } =
            shared.identity(&plan, registers, runtime)?;
        let (reporter, reports) = mpsc::channel::<AttemptReport>(REPORTS_MAX);
        let remote_calls = RemoteCalls::new(shared.node, runtime, shared.clock.clone(), Arc::clone(&shared.metrics));
        let access = gateway_access(&plan.config, &public, run_tokens);
        let agents = shared.agents(&plan, plugins, reporter, (&remote_calls, access))?;
        let ((commands, command_receiver), (events, bus_events)) = (links::command_channel(), bus::event_channel());
        let (tool_sender, tool_reports) = mpsc::channel(REPORTS_MAX);
        let tools = ToolRunners::new(tool_sender, runtime, shared.clock.clone(), plan.config.tools_served_by.clone());
        let inbox = DriverInbox::new(command_receiver, reports, tool_reports, answers, bus_events);
        let fleet_events = events.clone().with_remote_calls(Arc::new(remote_calls.clone()));
        let fleet = shared.open_bus(&plan, &public, promise, fleet_events, runtime);
        let bus = join_bus(fleet.as_ref(), &remote_calls, events);
        let driver = shared.driver(store, (&agents, &tools), bus, inbox, &plan)?;
        admin_listener.set_pages(shared.pages(
            registry,
            embedded.as_ref().map(|store| store.copier()),
            (keys, Some(budgets.clone())),
            shared.node_list(&plan, &public, promise, fleet.clone()),
        ));
        let callees = (shared.blobs(&plan, &commands, runtime)?, shared.models(&plan, budgets)?);
        let context = shared.listener_context(
            (&plan, promise),
            commands,
            (&agents, &tools),
            (auth, call_names),
            callees,
            certificates,
        );
        let quic = quic.map(|quic| shared.quic(&plan.config, quic, &context)).transpose()?.flatten();
        Ok(Self {
            skew_monitor: shared.skew_monitor(&plan),
            public: (public, Arc::new(context)),
            quic,
            admin: admin_listener.address,
            plan,
            node: shared.node,
            durability: promise.level,
            fleet,
            life: shared.life,
            links: shared.links,
            agents,
            driver,
            remote_calls,
            certificate_reloader,
            refresh,
            tasks: shared.tasks,
            store_failed: fatal,
            embedded,
        })
    }
}

/// Starts the demo model, if the demo is on, unless the operator has configured a model of its name.
fn add_demo_model(plan: &mut NodePlan, runtime: &Handle) -> Result<(), BuildError> {
    if plan.config.demo && plan.config.models.iter().all(|spec| spec.name != demo::MODEL) {
        plan.config.models.push(demo::start(runtime).map_err(BuildError::DemoModel)?);
    }
    Ok(())
}

/// Returns the bus of a node: that of its fleet, over which calls to agents of other nodes go, too, or its own.
fn join_bus(fleet: Option<&Arc<RedisBus>>, remote_calls: &RemoteCalls, events: BusEventSender) -> Arc<dyn Bus> {
    match fleet {
        Some(fleet) => {
            remote_calls.join(Arc::<RedisBus>::clone(fleet));
            Arc::<RedisBus>::clone(fleet)
        }
        None => Arc::new(LocalBus::new(events)),
    }
}

fn gateway_access(config: &Config, public: &Listener, tokens: RunTokens) -> GatewayAccess {
    GatewayAccess { tokens, url: gateway_url(config, public.address()).into() }
}

/// Returns where agents reach the gateway.
fn gateway_url(config: &Config, listener: SocketAddr) -> String {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    // Nobody reaches the address that stands for all addresses.
    let loopback = match listener.ip() {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::LOCALHOST),
    };
    let host = if listener.ip().is_unspecified() { loopback } else { listener.ip() };
    let own = || format!("{scheme}://{}", SocketAddr::new(host, listener.port()));
    config.node_url.clone().unwrap_or_else(own)
}

// === impl NodeParts ===

impl NodeParts {
    fn agents(
        &self,
        plan: &NodePlan,
        plugins: Plugins,
        reporter: mpsc::Sender<AttemptReport>,
        (remote_calls, access): (&RemoteCalls, GatewayAccess),
    ) -> Result<Agents, BadAgent> {
        let agents = plan.agents.clone();
        let default = plan.default_agent.clone();
        let places = self.files.attempts;
        let clock = self.clock.clone();
        let metrics = Arc::clone(&self.metrics);
        Agents::new(agents, default, plugins, reporter, places, (remote_calls, access), clock, metrics)
    }

    /// Creates the handles that every part gets.
    fn new(plan: &NodePlan, files: client_limits::FileBudget, registry: &Registry) -> Result<Self, BuildError> {
        let shares = plan.config.holding.shares;
        let by_quic = plan.config.quic_connections;
        let life = Lifecycle::default();
        // Until the driver has its first lease.
        life.report(UnreadyReason::LeaseMissing, true);
        Ok(Self {
            node: NodeId(u128::from_be_bytes(random_bytes()?)),
            clock: if is_exclusive(&plan.config.store) { Clock::start() } else { Clock::following_store() },
            life,
            links: Arc::new(LinkRegistry::new(shares, files.connections, by_quic, files.model_calls)),
            files,
            metrics: Arc::new(Metrics::register(registry)?),
            tasks: TaskTracker::new(),
        })
    }

    /// Reads the certificate; `None` if none is configured.
    fn open_reloader(&self, plan: &NodePlan) -> Result<Option<CertificateReloader>, TlsSetupError> {
        let open = |files| CertificateReloader::open(files, self.clock.clone(), Arc::clone(&self.metrics));
        plan.config.tls.clone().map(open).transpose()
    }

    /// Opens the bus to the other nodes on the same store; `None` if the store is not shared.
    fn open_bus(
        &self,
        plan: &NodePlan,
        public: &Listener,
        promise: DurabilityPromise,
        bus_events: BusEventSender,
        runtime: &Handle,
    ) -> Option<Arc<bus::redis::RedisBus>> {
        let StoreConfig::Redis { url, .. } = &plan.config.store else { return None };
        let options = bus::redis::RedisBusOptions {
            url: url.clone(),
            node: self.node,
            name: plan.config.node_name.clone(),
            address: public.address().to_string(),
            events: bus_events,
            metrics: Arc::clone(&self.metrics),
            clock: self.clock.clone(),
            life: self.life.clone(),
            durability: bus::redis::NodeDurability { level: promise.level.to_owned(), attested: promise.is_attested },
        };
        Some(Arc::new(bus::redis::RedisBus::open(options, runtime)))
    }

    fn driver(
        &self,
        store: Arc<dyn Store>,
        (agents, tools): (&Agents, &ToolRunners),
        bus: Arc<dyn Bus>,
        inbox: DriverInbox,
        plan: &NodePlan,
    ) -> Result<Driver, BuildError> {
        let switchboard = Switchboard::new(switchboard::Config {
            node: self.node,
            directory: Arc::new(AgentDirectory { channels: plan.config.channels.clone(), ..agents.directory() }),
            seed: random_bytes()?,
            single_node: is_exclusive(&plan.config.store),
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
        let effects = Effects {
            store,
            links: Arc::clone(&self.links),
            agents: agents.clone(),
            tools: tools.clone(),
            bus,
            outgoing: Vec::new(),
            metrics: Arc::clone(&self.metrics),
            unanswered: PendingOps::default(),
            life: self.life.clone(),
            store_missed: None,
        };
        let clock = self.clock.clone();
        let life = self.life.clone();
        let metrics = Arc::clone(&self.metrics);
        Ok(Driver::new(switchboard, inbox, effects, clock, life, metrics))
    }

    fn skew_monitor(&self, plan: &NodePlan) -> SkewMonitor {
        SkewMonitor {
            clock: self.clock.clone(),
            life: self.life.clone(),
            metrics: Arc::clone(&self.metrics),
            skew_max: plan.config.skew_max,
        }
    }

    /// Opens the named values of the store, and the budgets that are kept in them.
    fn open_registers(
        &self,
        replies: RegisterReplies,
        store: &Arc<dyn Store>,
        runtime: &Handle,
    ) -> (Registers, BudgetKeeper) {
        let registers = replies.open(Arc::clone(store));
        let budgets = BudgetKeeper::new(registers.clone(), self.clock.clone(), runtime.clone());
        (registers, budgets)
    }

    /// Builds the upstreams of models.
    fn models(&self, plan: &NodePlan, budgets: BudgetKeeper) -> Result<Models, ModelsSetupError> {
        let env = |name: &str| std::env::var(name).ok();
        let keeping = (plan.config.llm_record, budgets);
        Models::new(&plan.config.models, keeping, env, self.clock.clone(), Arc::clone(&self.metrics))
    }

    /// Opens the place of the bytes of files, and starts to sweep it.
    fn blobs(
        &self,
        plan: &NodePlan,
        commands: &CommandSender,
        runtime: &Handle,
    ) -> Result<http::HttpBlobs, BuildError> {
        let bodies = self.bodies(&plan.config, runtime)?;
        let sweeper = BodySweeper {
            bodies: bodies.clone(),
            links: Arc::clone(&self.links),
            commands: commands.clone(),
            interval: limits::BLOB_SWEEP_INTERVAL,
        };
        Ok(http::HttpBlobs { bodies, sweeps: sweeper.start(runtime), settings: plan.config.blobs.clone() })
    }

    /// Builds the context of the public listener.
    fn listener_context(
        &self,
        (plan, promise): (&NodePlan, DurabilityPromise),
        commands: CommandSender,
        (agents, tools): (&Agents, &ToolRunners),
        (authenticator, call_names): (Authenticator, CallNames),
        (blobs, models): (http::HttpBlobs, Models),
        tls: Option<TlsConfigWatch>,
    ) -> ListenerContext {
        let context = http::HttpContext {
            auth: authenticator.clone(),
            links: Arc::clone(&self.links),
            commands: commands.clone(),
            directory: Arc::new(agents.directory()),
            agents: agents.clone(),
            clock: self.clock.clone(),
            started_at: self.clock.now().store,
            life: self.life.clone(),
            call_names,
            durability: promise.level,
            node: http::HttpNode { name: plan.config.node_name.clone() },
            blobs,
            models,
            serves_web_chat: plan.config.serves_web_chat(),
        };
        let context = Arc::new(context);
        let conversations = Arc::new(http::SessionConversations::new(&context));
        context.models.journal().set_writer(Arc::new(http::SessionCallWriter::new(&context)));
        agents.set_model_access(ModelAccess { models: context.models.clone(), conversations });
        let link_context = LinkContext {
            auth: authenticator,
            churn_limiter: ChurnLimiter::default(),
            links: Arc::clone(&self.links),
            commands,
            agent_registry: agents.registry().clone(),
            tools: tools.clone(),
            life: self.life.clone(),
            clock: self.clock.clone(),
            metrics: Arc::clone(&self.metrics),
            node: self.node,
            durability: promise.level,
            tasks: self.tasks.clone(),
        };
        let metrics = Arc::clone(&self.metrics);
        let clock = self.clock.clone();
        let router = TowerToHyperService::new(http::with_request_metrics(http::router(context), metrics, clock));
        ListenerContext {
            pages: Arc::new(move |request| router.call(request.map(Body::new)).map(|Ok(answer)| answer).boxed()),
            rules: client_limits::rules(plan),
            proxies: plan.config.proxies.clone(),
            address_limiter: client_limits::address_limiter(plan),
            link_context: Some(Arc::new(link_context)),
            tls,
            stop_phase: NodePhase::Draining,
            life: self.life.clone(),
            metrics: Arc::clone(&self.metrics),
            connections_max: self.files.connections,
            tasks: self.tasks.clone(),
        }
    }

    /// Builds the operators' view of the nodes.
    fn node_list(
        &self,
        plan: &NodePlan,
        public: &Listener,
        promise: DurabilityPromise,
        fleet: Option<Arc<bus::redis::RedisBus>>,
    ) -> admin::NodesPage {
        admin::NodesPage {
            node: self.node,
            name: plan.config.node_name.clone(),
            address: public.address().to_string(),
            metrics: Arc::clone(&self.metrics),
            clock: self.clock.clone(),
            life: self.life.clone(),
            durability: bus::redis::NodeDurability { level: promise.level.to_owned(), attested: promise.is_attested },
            fleet,
        }
    }

    /// Builds the operators' pages.
    fn pages(
        &self,
        registry: Registry,
        copier: Option<Copier>,
        (keys, budgets): (Option<Arc<ApiKeys>>, Option<BudgetKeeper>),
        roster: admin::NodesPage,
    ) -> admin::AdminPages {
        let life = self.life.clone();
        let metrics = Arc::clone(&self.metrics);
        let backup = admin::Backup::new(copier);
        let keys = admin::KeyAdmin::new(keys);
        let budgets = admin::BudgetAdmin::new(budgets);
        admin::AdminPages { life, metrics, registry, backup, keys, budgets, roster }
    }
}

/// Returns whether the store belongs to this process alone, so that any other holder of a lease in it is gone.
fn is_exclusive(config: &StoreConfig) -> bool {
    match config {
        StoreConfig::Memory | StoreConfig::Embedded { .. } => true,
        StoreConfig::Redis { .. } => false,
    }
}

fn listen(address: SocketAddr) -> Result<Listener, BuildError> {
    Listener::bind(address).map_err(|error| BuildError::Listen { address, error })
}

fn random_bytes<const N: usize>() -> Result<[u8; N], BuildError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(BuildError::Randomness)?;
    Ok(bytes)
}
