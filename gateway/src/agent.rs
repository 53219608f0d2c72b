//! Runs the attempts of a node at its agents: takes orders from the switchboard and sends reports back, with one task
//! for each running attempt. Orders never block. Reports wait while the switchboard's queue is full, which in turn
//! pauses reading from the agent. Called by the driver.
pub mod access;
mod attempt;
mod budget;
pub mod conversation;
mod counter;
mod deliver;
pub mod dialin;
pub mod directory;
mod earlier_messages;
mod echo;
mod execution;
mod health;
pub mod http;
mod model_agent;
mod news;
mod pipeline_bridge;
mod pipelined;
pub mod plugins;
mod request;
pub mod sse;
mod steer;

use crate::agent::access::GatewayAccess;
use crate::agent::attempt::{AttemptControl, AttemptTask, AttemptTimer};
use crate::agent::conversation::ModelAccess;
use crate::agent::dialin::{AgentConnectionPool, AgentRegistry, RemoteCalls};
use crate::agent::directory::{AgentProfile, AgentSpec, BadAgent, BuiltinAgent, Endpoint, KeepAliveOptions};
use crate::agent::execution::{AttemptAgent, RunningAttempt};
use crate::agent::health::AgentHealth;
use crate::agent::http::{HttpAgent, HttpEndpoint};
use crate::agent::model_agent::ModelAgent;
use crate::agent::plugins::Plugins;
use crate::agent::request::RequestIds;
use crate::clock::Clock;
use crate::metrics::{AgentMetrics, Metrics};
use crate::outbound::client::{Connectors, OutboundClient, ResendCounter};
use crate::run_token::{RunTokens, TokenRun};
use crate::supervise;
use ::http::HeaderValue;
use dashmap::{DashMap, Entry};
use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use turnway_core::id::{AgentId, Epoch, NodeId, QualifiedRun, RunId, SessionKey, TenantId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::private::Private;
use turnway_core::protocol::agent::{
    AgentDirectory, AgentEvent, AgentFailure, AgentPolicy, Invoke, OnOwnerLoss, Order,
};
use turnway_core::protocol::steer::{Steer, SteerOutcome};

pub use crate::agent::attempt::DELTA_TEXT_BYTES_MAX;

/// Attempts above the switchboard's own limit: an attempt may have ended while its task still runs.
const ATTEMPTS_ENDING_MAX: usize = 256;

/// An event of one attempt at one run, on the way to the switchboard.
#[derive(Clone, Debug)]
pub struct AttemptReport {
    pub key: SessionKey,
    pub run_id: RunId,
    pub attempt: u32,
    /// The ownership under which the attempt was ordered.
    pub epoch: Epoch,
    pub event: AgentEvent,
}

/// The agents of a node, and every attempt that runs at one of them.
#[derive(Clone)]
pub struct Agents(Arc<AgentsInner>);

struct AgentsInner {
    agents: BTreeMap<AgentId, AgentBackend>,
    profiles: Vec<AgentProfile>,
    /// Number of earlier messages that each agent gets.
    history_messages: BTreeMap<AgentId, usize>,
    directory: AgentDirectory,
    registry: AgentRegistry,
    plugins: Plugins,
    access: GatewayAccess,
    model_access: Arc<OnceLock<ModelAccess>>,
    running: DashMap<AttemptKey, RunningAttempt>,
    slots: Arc<Semaphore>,
    unknown_events: Arc<AtomicU64>,
    reports: Sender<AttemptReport>,
    runtime: Handle,
    clock: Clock,
    metrics: Arc<Metrics>,
}

#[derive(Clone)]
enum AgentBackend {
    Http(Arc<HttpAgent>),
    Builtin(BuiltinAgent),
    DialIn(Arc<AgentConnectionPool>),
    Model(Arc<ModelAgent>),
}

/// The key of an attempt: run and attempt number.
type AttemptKey = (RunId, u32);

/// Checks that the default agent is configured.
fn known_default(default: AgentId, agents: &BTreeMap<AgentId, AgentBackend>) -> Result<AgentId, BadAgent> {
    if agents.contains_key(&default) { Ok(default) } else { Err(BadAgent::Default(default)) }
}

/// Builds the connectors of all HTTP agents.
fn connectors(specs: &[AgentSpec], clock: &Clock) -> Result<Connectors, BadAgent> {
    let is_https = specs.iter().any(|spec| matches!(&spec.endpoint, Endpoint::Http(http) if http.is_https()));
    let connectors = Connectors::new(is_https, limits::AGENT_CONNECT_TIMEOUT, clock.clone());
    connectors.map_err(|error| BadAgent::Roots(error.to_string()))
}

fn client(
    connectors: &Connectors,
    endpoint: &HttpEndpoint,
    options: KeepAliveOptions,
    resends: &ResendCounter,
) -> OutboundClient {
    connectors.client(endpoint.is_https(), options.into(), Arc::clone(resends))
}

fn resend_counter(metrics: &Arc<Metrics>) -> ResendCounter {
    let metrics = Arc::clone(metrics);
    Arc::new(move || metrics.agents.count_resend())
}

// === impl Agents ===

impl Agents {
    /// Builds the configured agents behind these plugins. Without `default`, the first agent is the default. Reports go
    /// to `reports`, tasks run on the runtime of `remote_calls`, and durations go to `metrics`.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the node that agents are given")]
    pub fn new(
        specs: Vec<AgentSpec>,
        default: Option<AgentId>,
        plugins: Plugins,
        reports: Sender<AttemptReport>,
        attempts: u64,
        (remote_calls, access): (&RemoteCalls, GatewayAccess),
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Result<Self, BadAgent> {
        let specs: Vec<_> = specs.into_iter().map(|spec| plugins.restrict_features(spec)).collect();
        let connectors = connectors(&specs, &clock)?;
        let resends = resend_counter(&metrics);
        let unknown = Arc::new(AtomicU64::new(0));
        let mut directory =
            AgentDirectory { default: specs.first().map(|spec| spec.id.clone()), ..AgentDirectory::default() };
        let model_access = Arc::default();
        let mut agents = BTreeMap::new();
        let mut pools = BTreeMap::new();
        let profiles = specs.iter().map(AgentSpec::profile).collect();
        let history_messages = specs.iter().map(|spec| (spec.id.clone(), spec.history_messages)).collect();
        for spec in specs {
            let is_local = matches!(spec.endpoint, Endpoint::Builtin(_));
            let agent = match spec.endpoint.clone() {
                Endpoint::Http(endpoint) => {
                    let client = client(&connectors, &endpoint, spec.keep_alive_options, &resends);
                    AgentBackend::Http(http_agent(&spec, *endpoint, client, &unknown))
                }
                Endpoint::Builtin(builtin) => AgentBackend::Builtin(builtin),
                Endpoint::DialIn(served_by) => {
                    let resumes = spec.policy.on_owner_loss == OnOwnerLoss::Resume;
                    let connected = metrics.agents.connection_gauge(spec.id.as_str());
                    let id = spec.id.clone();
                    let pool = AgentConnectionPool::new(id, served_by, resumes, connected, remote_calls.clone());
                    let pool = Arc::new(pool);
                    pools.insert(spec.id.clone(), Arc::clone(&pool));
                    AgentBackend::DialIn(pool)
                }
                Endpoint::Model(endpoint) => {
                    let access = Arc::clone(&model_access);
                    AgentBackend::Model(Arc::new(ModelAgent { endpoint: *endpoint, access }))
                }
            };
            if agents.insert(spec.id.clone(), agent).is_some() {
                return Err(BadAgent::Duplicate(spec.id));
            }
            directory.agents.insert(spec.id, AgentPolicy { is_local, ..spec.policy });
        }
        if let Some(default) = default {
            directory.default = Some(known_default(default, &agents)?);
        }
        Ok(Self(Arc::new(AgentsInner {
            agents,
            profiles,
            history_messages,
            directory,
            registry: AgentRegistry::new(pools, remote_calls),
            plugins,
            access,
            model_access,
            running: DashMap::new(),
            slots: Arc::new(Semaphore::new(slots_max(attempts))),
            unknown_events: unknown,
            reports,
            runtime: remote_calls.runtime().clone(),
            clock,
            metrics,
        })))
    }

    /// Gives the agents that are models what they need of the node. Must be called before the first order.
    pub fn set_model_access(&self, access: ModelAccess) {
        // A second call changes nothing.
        _ = self.0.model_access.set(access);
    }

    /// Executes an order of the switchboard. Never blocks. Every order may arrive twice.
    pub fn perform(&self, order: Order) {
        match order {
            Order::Invoke(invoke) => self.invoke(invoke),
            Order::Cancel { tenant, run_id, attempt, epoch } => self.cancel(tenant, run_id, attempt, epoch),
            Order::Steer(steer) => self.steer(*steer),
            Order::News(delivery) => self.news(*delivery),
            Order::Drop { run_id, attempt } => {
                if let Some((_, running)) = self.0.running.remove(&(run_id, attempt)) {
                    running.task.abort();
                }
            }
            Order::Stop { tenant, agent_id, run_id, attempt, epoch } => {
                self.stop(&agent_id, &QualifiedRun { tenant, run_id }, attempt, epoch);
            }
            Order::Credit { run_id, attempt, upto } => {
                if let Some(running) = self.0.running.get(&(run_id, attempt)) {
                    running.control.raise_credit(upto);
                }
            }
        }
    }

    /// Returns what the configuration says about the agents.
    pub fn directory(&self) -> AgentDirectory {
        self.0.directory.clone()
    }

    /// Returns the profiles of all agents, in the order of the configuration.
    pub fn profiles(&self) -> &[AgentProfile] {
        &self.0.profiles
    }

    /// Returns the metrics of the agents.
    pub fn metrics(&self) -> &AgentMetrics {
        &self.0.metrics.agents
    }

    /// Returns the agent that answers an input without an addressee.
    pub fn default_agent(&self) -> Option<&AgentId> {
        self.0.directory.default.as_ref()
    }

    /// Returns whether the last request to an agent reached it for this tenant; `false` for an unknown agent.
    pub fn is_healthy(&self, agent: &AgentId, tenant: &TenantId) -> bool {
        match self.0.agents.get(agent) {
            Some(AgentBackend::Http(http)) => http.health.is_healthy(),
            Some(AgentBackend::Builtin(_)) => true,
            Some(AgentBackend::DialIn(pool)) => pool.is_served(tenant),
            Some(AgentBackend::Model(_)) => true,
            None => false,
        }
    }

    /// Returns the nodes at which a dial-in agent is connected, this node first, and the number of its connections at
    /// each. `None` if the agent does not dial in.
    pub fn nodes(&self, agent: &AgentId) -> Option<Vec<(NodeId, usize)>> {
        self.0.registry.pool(agent).map(|pool| pool.nodes())
    }

    /// Returns the registry of dial-in agents.
    pub fn registry(&self) -> &AgentRegistry {
        &self.0.registry
    }

    /// Returns the tokens of runs.
    pub fn tokens(&self) -> &RunTokens {
        &self.0.access.tokens
    }

    /// Returns the number of running attempts.
    pub fn running(&self) -> usize {
        self.0.running.len()
    }

    /// Returns how many events of HTTP agents were ignored because their type is unknown.
    pub fn unknown_events(&self) -> u64 {
        self.0.unknown_events.load(Ordering::Relaxed)
    }

    /// Aborts every attempt, because the node shuts down.
    pub fn abort_all(&self) {
        self.0.running.retain(|_, running| {
            running.task.abort();
            false
        });
    }

    fn invoke(&self, invoke: Invoke) {
        let name = (invoke.run_id.clone(), invoke.attempt);
        // After the store lost an attempt, the attempt is ordered again with its old number and a new epoch: the older
        // request is aborted.
        if let Some((_, older)) = self.0.running.remove_if(&name, |_, running| running.epoch != invoke.epoch) {
            older.task.abort();
        }
        // The map entry is held while the task starts, so that the task cannot end before it is in the map.
        let Entry::Vacant(entry) = self.0.running.entry(name) else { return };
        let (work, slot) = match self.prepare(&invoke) {
            Ok(prepared) => prepared,
            Err(why) => {
                drop(entry);
                let event = AgentEvent::Failed(AgentFailure::Unavailable(why.to_owned()));
                let Invoke { key, run_id, attempt, epoch, .. } = invoke;
                return self.report(AttemptReport { key, run_id, attempt, epoch, event });
            }
        };
        let control = Arc::new(AttemptControl::new(invoke.resume.as_ref().map_or(0, |resume| resume.saved)));
        let silence = self.0.directory.policy(&invoke.agent_id).silence;
        let watch = AttemptTimer::start(&self.0.clock, &self.0.metrics, invoke.resume.is_some(), silence);
        let epoch = invoke.epoch;
        let key = invoke.key.clone();
        let run_id = invoke.run_id.clone();
        let attempt = invoke.attempt;
        let event = AgentEvent::Failed(AgentFailure::Unavailable("the attempt's task panicked".to_owned()));
        let end = AttemptReport { key, run_id, attempt, epoch, event };
        let reports = self.0.reports.clone();
        let attempt = AttemptTask::new(invoke, Arc::clone(&control), self.0.reports.clone(), watch);
        let agents = Arc::clone(&self.0);
        let run = async move {
            // Pinned inside the future: a future that is passed by value is copied, and is as large as everything that
            // it may wait for.
            let run = pin!(execution::run(agents, attempt, work));
            // Without a report the turn would wait until the limit for a silent agent.
            if supervise::run_caught("attempt", run).await {
                _ = reports.send(end).await;
            }
        };
        let task = self.0.runtime.spawn(run).abort_handle();
        entry.insert(RunningAttempt { epoch, control, task, _slot: slot });
    }

    fn prepare(&self, invoke: &Invoke) -> Result<(AttemptAgent, Option<OwnedSemaphorePermit>), &'static str> {
        match self.0.agents.get(&invoke.agent_id) {
            Some(AgentBackend::Http(http)) => {
                let slot =
                    Arc::clone(&self.0.slots).try_acquire_owned().map_err(|_| "too many attempts are running")?;
                if planted(Planted::AttemptPlaceKept) {
                    slot.forget();
                    return Ok((AttemptAgent::Http(Arc::clone(http)), None));
                }
                Ok((AttemptAgent::Http(Arc::clone(http)), Some(slot)))
            }
            Some(AgentBackend::Builtin(builtin)) => Ok((AttemptAgent::Builtin(*builtin), None)),
            Some(AgentBackend::DialIn(pool)) => {
                let slot =
                    Arc::clone(&self.0.slots).try_acquire_owned().map_err(|_| "too many attempts are running")?;
                Ok((AttemptAgent::DialIn(Arc::clone(pool)), Some(slot)))
            }
            Some(AgentBackend::Model(model)) => {
                let slot =
                    Arc::clone(&self.0.slots).try_acquire_owned().map_err(|_| "too many attempts are running")?;
                Ok((AttemptAgent::Model(Arc::clone(model)), Some(slot)))
            }
            None => Err("the agent is not configured on this node"),
        }
    }

    fn cancel(&self, tenant: TenantId, run_id: RunId, attempt: u32, epoch: Epoch) {
        let name = (run_id, attempt);
        if let Some(running) = self.0.running.get(&name) {
            running.control.cancel();
            return;
        }
        // An attempt that does not run has stopped.
        let (run_id, attempt) = name;
        let key = SessionKey { tenant, session: run_id.session() };
        self.report(AttemptReport { key, run_id, attempt, epoch, event: AgentEvent::CancelAcked });
    }

    /// Passes another input to a running attempt. An attempt that does not run refuses the input.
    fn steer(&self, mut steer: Steer) {
        self.0.access.complete(&steer.key.session, &mut steer.message.content);
        if plugins::is_command(&steer.message.content) {
            // A command is addressed to the gateway: it becomes the next turn, which the pipeline answers.
            return self.report(steer_report(steer, SteerOutcome::Refused));
        }
        let name = (steer.run_id.clone(), steer.attempt);
        let agent = self.0.agents.get(&steer.agent_id);
        // The map entry is held while a builtin or dial-in agent gets the input, so that a task that removes the entry
        // sees the input.
        let running = self.0.running.get(&name);
        match (agent, running) {
            (Some(AgentBackend::Http(agent)), Some(running)) => {
                let Some(auth) = running.control.credential() else {
                    // The agent was not asked yet.
                    drop(running);
                    return self.report(steer_report(steer, SteerOutcome::Refused));
                };
                let inner = Arc::clone(&self.0);
                let agent = Arc::clone(agent);
                self.0.runtime.spawn(async move {
                    let outcome = steer::deliver_steer(&agent, &steer, auth).await;
                    if let Some(outcome) = outcome {
                        let _ = inner.reports.send(steer_report(steer, outcome)).await;
                    }
                });
            }
            (Some(AgentBackend::Builtin(_) | AgentBackend::DialIn(_)), Some(running)) => running.control.steer(steer),
            (Some(_) | None, _) => self.report(steer_report(steer, SteerOutcome::Refused)),
        }
    }

    /// Stops an attempt that no node runs any more. Only an agent that outlives its request has anything to stop.
    fn stop(&self, agent: &AgentId, run: &QualifiedRun, attempt: u32, epoch: Epoch) {
        let agent = match self.0.agents.get(agent) {
            Some(AgentBackend::Http(http)) => http,
            Some(AgentBackend::DialIn(pool)) => {
                let QualifiedRun { tenant, run_id } = run.clone();
                let agent_id = agent.clone();
                return pool.stop(&Order::Stop { tenant, agent_id, run_id, attempt, epoch });
            }
            Some(AgentBackend::Builtin(_) | AgentBackend::Model(_)) | None => return,
        };
        let key = run.key();
        let names = RequestIds::new(&key, &run.run_id, attempt, epoch);
        let tokens = self.0.access.tokens.clone();
        let agent = Arc::clone(agent);
        let run = TokenRun { tenant: key.tenant, run_id: run.run_id.clone() };
        self.0.runtime.spawn(async move {
            // Without a credential the agent would not obey. It ends by itself after its own time.
            if let Ok(token) = tokens.mint(&run).await {
                agent.stop(names, bearer(&token));
            }
        });
    }

    /// Reports from an order, which must not block.
    fn report(&self, report: AttemptReport) {
        use tokio::sync::mpsc::error::TrySendError;
        match self.0.reports.try_send(report) {
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(report)) => {
                let reports = self.0.reports.clone();
                self.0.runtime.spawn(async move { reports.send(report).await });
            }
        }
    }
}

/// Builds an HTTP agent.
fn http_agent(
    spec: &AgentSpec,
    endpoint: HttpEndpoint,
    client: OutboundClient,
    unknown_events: &Arc<AtomicU64>,
) -> Arc<HttpAgent> {
    Arc::new(HttpAgent {
        client,
        health: AgentHealth::new(endpoint.clone()),
        endpoint,
        supports_cancel: spec.cancel,
        resumes: spec.policy.on_owner_loss == OnOwnerLoss::Resume,
        cancel_timeout: spec.policy.cancel_ack,
        unknown_events: Arc::clone(unknown_events),
    })
}

/// Returns how many attempts may have a task: those that the switchboard permits, and those that are ending.
fn slots_max(attempts: u64) -> usize {
    let most = Semaphore::MAX_PERMITS - ATTEMPTS_ENDING_MAX;
    usize::try_from(attempts).unwrap_or(most).min(most) + ATTEMPTS_ENDING_MAX
}

impl fmt::Debug for Agents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agents").field("directory", &self.0.directory).field("running", &self.running()).finish()
    }
}

/// Builds the report of an agent's response to a steering input.
fn steer_report(steer: Steer, outcome: SteerOutcome) -> AttemptReport {
    let Steer { key, run_id, attempt, epoch, message_id, .. } = steer;
    AttemptReport { key, run_id, attempt, epoch, event: AgentEvent::Steered { message_id, outcome } }
}

/// Returns the header `Authorization` with the token of a run.
fn bearer(token: &Private<String>) -> HeaderValue {
    let value = HeaderValue::try_from(format!("Bearer {}", token.reveal()));
    let mut auth = value.unwrap_or_else(|_| unreachable!("a token is Base64"));
    auth.set_sensitive(true);
    auth
}
