//! Runs the attempts of a node at its agents: takes orders from the switchboard and sends reports back, with one task
//! for each running attempt. Orders never block. Reports wait while the switchboard's queue is full, which in turn
//! pauses reading from the agent. Called by the driver.
mod attempt;
mod budget;
mod client;
mod counter;
mod deliver;
mod desk;
pub mod dialin;
pub mod directory;
mod echo;
mod health;
pub mod http;
mod news;
pub mod plugins;
mod request;
pub(crate) mod retry_after;
pub mod sse;
mod stages;
mod steer;
pub mod token;
mod traffic;
mod work;

use crate::agent::attempt::{Attempt, Line, Watch};
use crate::agent::client::Connectors;
use crate::agent::dialin::{Desk, Exchange, Lines};
use crate::agent::directory::{AgentSpec, BadAgent, Builtin, Endpoint, Profile};
use crate::agent::health::Health;
use crate::agent::http::HttpAgent;
use crate::agent::plugins::Plugins;
use crate::agent::request::Names;
use crate::agent::token::{RunToken, Tokens};
use crate::agent::work::{Running, Work};
use crate::clock::Clock;
use crate::metrics::{AgentMetrics, Metrics};
use crate::supervise;
use ::http::HeaderValue;
use dashmap::{DashMap, Entry};
use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use turnway_core::id::{AgentId, Epoch, NodeId, QualifiedRun, RunId, SessionKey, TenantId};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::agent::{
    AgentEvent, AgentFailure, AgentPolicy, Directory, Invoke, OnOwnerLoss, Order,
};
use turnway_core::protocol::steer::{Steer, SteerOutcome};

pub use crate::agent::attempt::DELTA_TEXT_BYTES_MAX;

/// Attempts above the switchboard's own limit: an attempt may have ended while its task still runs.
const ATTEMPTS_ENDING_MAX: usize = 256;

/// An event of one attempt at one run, on the way to the switchboard.
#[derive(Clone, Debug)]
pub struct Report {
    pub key: SessionKey,
    pub run_id: RunId,
    pub attempt: u32,
    /// The ownership under which the attempt was ordered.
    pub epoch: Epoch,
    pub event: AgentEvent,
}

/// The agents of a node, and every attempt that runs at one of them.
#[derive(Clone)]
pub struct Agents(Arc<Inner>);

struct Inner {
    agents: BTreeMap<AgentId, Agent>,
    profiles: Vec<Profile>,
    directory: Directory,
    exchange: Exchange,
    plugins: Plugins,
    tokens: Tokens,
    running: DashMap<Name, Running>,
    places: Arc<Semaphore>,
    unknown: Arc<AtomicU64>,
    reports: Sender<Report>,
    runtime: Handle,
    clock: Clock,
    metrics: Arc<Metrics>,
}

#[derive(Clone)]
enum Agent {
    Http(Arc<HttpAgent>),
    Builtin(Builtin),
    DialIn(Arc<Desk>),
}

/// The key of an attempt: run and attempt number.
type Name = (RunId, u32);

// === impl Agents ===

impl Agents {
    /// Builds the configured agents behind these plugins. Without `default`, the first agent is the default. Reports go
    /// to `reports`, tasks run on the runtime of `lines`, and durations go to `metrics`.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the node that agents are given")]
    pub fn new(
        specs: Vec<AgentSpec>,
        default: Option<AgentId>,
        plugins: Plugins,
        reports: Sender<Report>,
        attempts: u64,
        lines: &Lines,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Result<Self, BadAgent> {
        let specs: Vec<_> = specs.into_iter().map(|spec| plugins.allow(spec)).collect();
        let is_https =
            specs.iter().any(|spec| matches!(&spec.endpoint, Endpoint::Http(http) if http.is_https()));
        let connectors = Connectors::new(is_https, clock.clone(), Arc::clone(&metrics))?;
        let unknown = Arc::new(AtomicU64::new(0));
        let mut directory =
            Directory { agents: BTreeMap::new(), default: specs.first().map(|spec| spec.id.clone()) };
        let (mut agents, mut desks) = (BTreeMap::new(), BTreeMap::new());
        let profiles = specs.iter().map(AgentSpec::profile).collect();
        for spec in specs {
            let is_local = matches!(spec.endpoint, Endpoint::Builtin(_));
            let agent = match spec.endpoint {
                Endpoint::Http(endpoint) => Agent::Http(Arc::new(HttpAgent {
                    client: connectors.client(endpoint.is_https(), spec.keeping),
                    health: Health::new((*endpoint).clone()),
                    endpoint: *endpoint,
                    takes_cancel: spec.cancel,
                    resumes: spec.policy.on_owner_loss == OnOwnerLoss::Resume,
                    cancel_wait: spec.policy.cancel_ack,
                    unknown: Arc::clone(&unknown),
                })),
                Endpoint::Builtin(builtin) => Agent::Builtin(builtin),
                Endpoint::DialIn(served_by) => {
                    let resumes = spec.policy.on_owner_loss == OnOwnerLoss::Resume;
                    let connected = metrics.agents.dialed_in(spec.id.as_str());
                    let (id, beyond) = (spec.id.clone(), lines.clone());
                    let desk = Arc::new(Desk::new(id, served_by, resumes, connected, beyond));
                    desks.insert(spec.id.clone(), Arc::clone(&desk));
                    Agent::DialIn(desk)
                }
            };
            if agents.insert(spec.id.clone(), agent).is_some() {
                return Err(BadAgent::Same(spec.id));
            }
            directory.agents.insert(spec.id, AgentPolicy { is_local, ..spec.policy });
        }
        if let Some(default) = default {
            if !agents.contains_key(&default) {
                return Err(BadAgent::Default(default));
            }
            directory.default = Some(default);
        }
        let (running, tokens) = (DashMap::new(), Tokens::default());
        let places = Arc::new(Semaphore::new(places_max(attempts)));
        Ok(Self(Arc::new(Inner {
            agents,
            profiles,
            directory,
            exchange: Exchange::new(desks, lines),
            plugins,
            tokens,
            running,
            places,
            unknown,
            reports,
            runtime: lines.runtime().clone(),
            clock,
            metrics,
        })))
    }

    /// Executes an order of the switchboard. Never blocks. Every order may arrive twice.
    pub fn perform(&self, order: Order) {
        match order {
            Order::Invoke(invoke) => self.invoke(invoke),
            Order::Cancel { tenant, run_id, attempt, epoch } => self.cancel(tenant, run_id, attempt, epoch),
            Order::Steer(steer) => self.steer(*steer),
            Order::News(news) => self.news(*news),
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
                    running.line.credit(upto);
                }
            }
        }
    }

    /// Returns what the configuration says about the agents.
    pub fn directory(&self) -> Directory {
        self.0.directory.clone()
    }

    /// Returns the profiles of all agents, in the order of the configuration.
    pub fn profiles(&self) -> &[Profile] {
        &self.0.profiles
    }

    /// Returns the metrics of the agents.
    pub fn counted(&self) -> &AgentMetrics {
        &self.0.metrics.agents
    }

    /// Returns the agent that answers an input without an addressee.
    pub fn default_agent(&self) -> Option<&AgentId> {
        self.0.directory.default.as_ref()
    }

    /// Returns whether the last request to an agent reached it for this tenant; `false` for an unknown agent.
    pub fn is_healthy(&self, agent: &AgentId, tenant: &TenantId) -> bool {
        match self.0.agents.get(agent) {
            Some(Agent::Http(http)) => http.health.is_healthy(),
            Some(Agent::Builtin(_)) => true,
            Some(Agent::DialIn(desk)) => desk.is_served(tenant),
            None => false,
        }
    }

    /// Returns the nodes at which a dial-in agent is connected, this node first, and the number of its connections at
    /// each. `None` if the agent does not dial in.
    pub fn nodes(&self, agent: &AgentId) -> Option<Vec<(NodeId, usize)>> {
        self.0.exchange.desk(agent).map(|desk| desk.nodes())
    }

    /// Returns the registry of dial-in agents.
    pub fn exchange(&self) -> &Exchange {
        &self.0.exchange
    }

    /// Returns the tokens of the running attempts.
    pub fn tokens(&self) -> &Tokens {
        &self.0.tokens
    }

    /// Returns the number of running attempts.
    pub fn running(&self) -> usize {
        self.0.running.len()
    }

    /// Returns how many events of HTTP agents were ignored because their type is unknown.
    pub fn unknown_events(&self) -> u64 {
        self.0.unknown.load(Ordering::Relaxed)
    }

    /// Aborts every attempt, because the node shuts down.
    pub fn close(&self) {
        self.0.running.retain(|_, running| {
            running.task.abort();
            false
        });
    }

    fn invoke(&self, invoke: Invoke) {
        let name = (invoke.run_id.clone(), invoke.attempt);
        // After the store lost an attempt, the attempt is ordered again with its old number and a new epoch: the older
        // request is aborted.
        if let Some((_, older)) = self.0.running.remove_if(&name, |_, running| running.epoch != invoke.epoch)
        {
            older.task.abort();
        }
        // The map entry is held while the task starts, so that the task cannot end before it is in the map.
        let Entry::Vacant(entry) = self.0.running.entry(name) else { return };
        let (work, token, place) = match self.prepare(&invoke) {
            Ok(prepared) => prepared,
            Err(why) => {
                drop(entry);
                let event = AgentEvent::Failed(AgentFailure::Unavailable(why.to_owned()));
                let Invoke { key, run_id, attempt, epoch, .. } = invoke;
                return self.report(Report { key, run_id, attempt, epoch, event });
            }
        };
        let line = Arc::new(Line::new(invoke.resume.as_ref().map_or(0, |resume| resume.saved)));
        let silence = self.0.directory.policy(&invoke.agent_id).silence;
        let watch = Watch::start(&self.0.clock, &self.0.metrics, invoke.resume.is_some(), silence);
        let epoch = invoke.epoch;
        let (key, run_id, attempt) = (invoke.key.clone(), invoke.run_id.clone(), invoke.attempt);
        let event = AgentEvent::Failed(AgentFailure::Unavailable("the attempt's task panicked".to_owned()));
        let (end, reports) = (Report { key, run_id, attempt, epoch, event }, self.0.reports.clone());
        let attempt = Attempt::new(invoke, Arc::clone(&line), self.0.reports.clone(), watch);
        let agents = Arc::clone(&self.0);
        let run = async move {
            // Pinned inside the future: a future that is passed by value is copied, and is as large as everything that
            // it may wait for.
            let run = pin!(work::run(agents, attempt, work));
            // Without a report the turn would wait until the limit for a silent agent.
            if supervise::caught("attempt", run).await {
                _ = reports.send(end).await;
            }
        };
        let task = self.0.runtime.spawn(run).abort_handle();
        entry.insert(Running { epoch, line, task, token, _place: place });
    }

    fn prepare(
        &self,
        invoke: &Invoke,
    ) -> Result<(Work, Option<RunToken>, Option<OwnedSemaphorePermit>), &'static str> {
        match self.0.agents.get(&invoke.agent_id) {
            Some(Agent::Http(http)) => {
                let place =
                    Arc::clone(&self.0.places).try_acquire_owned().map_err(|_| "too many attempts are running")?;
                let (token, auth) = self.credential(&invoke.key, &invoke.run_id)?;
                if planted(Planted::AttemptPlaceKept) {
                    place.forget();
                    return Ok((Work::Http(Arc::clone(http), auth), Some(token), None));
                }
                Ok((Work::Http(Arc::clone(http), auth), Some(token), Some(place)))
            }
            // Builtin agents run in this process and need no credential.
            Some(Agent::Builtin(builtin)) => Ok((Work::Builtin(*builtin), None, None)),
            // The connection has authenticated the agent.
            Some(Agent::DialIn(desk)) => {
                let place =
                    Arc::clone(&self.0.places).try_acquire_owned().map_err(|_| "too many attempts are running")?;
                Ok((Work::DialIn(Arc::clone(desk)), None, Some(place)))
            }
            None => Err("the agent is the agent is not configured"),
        }
    }

    /// Returns the credential of a request about a run. The agent may speak for that run only.
    fn credential(&self, key: &SessionKey, run_id: &RunId) -> Result<(RunToken, HeaderValue), &'static str> {
        let token = self.0.tokens.mint(key, run_id).map_err(|_| "the system provides no randomness")?;
        let auth = bearer(&token).ok_or("the run token is not a valid header value")?;
        Ok((token, auth))
    }

    fn cancel(&self, tenant: TenantId, run_id: RunId, attempt: u32, epoch: Epoch) {
        let name = (run_id, attempt);
        if let Some(running) = self.0.running.get(&name) {
            running.line.cancel();
            return;
        }
        // An attempt that does not run has stopped.
        let (run_id, attempt) = name;
        let key = SessionKey { tenant, session: run_id.session() };
        self.report(Report { key, run_id, attempt, epoch, event: AgentEvent::CancelAcked });
    }

    /// Passes another input to a running attempt. An attempt that does not run refuses the input.
    fn steer(&self, steer: Steer) {
        if plugins::is_command(&steer.message.content) {
            // A command is addressed to the gateway: it becomes the next turn, which the pipeline answers.
            return self.report(answered(steer, SteerOutcome::Refused));
        }
        let name = (steer.run_id.clone(), steer.attempt);
        let agent = self.0.agents.get(&steer.agent_id);
        // The map entry is held while a builtin or dial-in agent gets the input, so that a task that removes the entry
        // sees the input.
        let running = self.0.running.get(&name);
        match (agent, running) {
            (Some(Agent::Http(agent)), Some(running)) => {
                let Some(auth) = running.token.as_ref().and_then(bearer) else { return };
                let (inner, agent) = (Arc::clone(&self.0), Arc::clone(agent));
                self.0.runtime.spawn(async move {
                    let outcome = steer::hand_over(&agent, &steer, auth).await;
                    if let Some(outcome) = outcome {
                        let _ = inner.reports.send(answered(steer, outcome)).await;
                    }
                });
            }
            (Some(Agent::Builtin(_) | Agent::DialIn(_)), Some(running)) => running.line.steer(steer),
            (Some(_) | None, _) => self.report(answered(steer, SteerOutcome::Refused)),
        }
    }

    /// Stops an attempt that no node runs any more. Only an agent that outlives its request has anything to stop.
    fn stop(&self, agent: &AgentId, run: &QualifiedRun, attempt: u32, epoch: Epoch) {
        let agent = match self.0.agents.get(agent) {
            Some(Agent::Http(http)) => http,
            Some(Agent::DialIn(desk)) => {
                let QualifiedRun { tenant, run_id } = run.clone();
                let agent_id = agent.clone();
                return desk.stop(&Order::Stop { tenant, agent_id, run_id, attempt, epoch });
            }
            Some(Agent::Builtin(_)) | None => return,
        };
        let key = run.key();
        let Ok((_token, auth)) = self.credential(&key, &run.run_id) else { return };
        let names = Names::new(&key, &run.run_id, attempt, epoch);
        let _runtime = self.0.runtime.enter();
        agent.stop(names, auth);
    }

    /// Reports from an order, which must not block.
    fn report(&self, report: Report) {
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

/// Returns how many attempts may have a task: those that the switchboard permits, and those that are ending.
fn places_max(attempts: u64) -> usize {
    let most = Semaphore::MAX_PERMITS - ATTEMPTS_ENDING_MAX;
    usize::try_from(attempts).unwrap_or(most).min(most) + ATTEMPTS_ENDING_MAX
}

impl fmt::Debug for Agents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agents")
            .field("directory", &self.0.directory)
            .field("running", &self.running())
            .finish()
    }
}

/// Builds the report of an agent's response to a steering input.
fn answered(steer: Steer, outcome: SteerOutcome) -> Report {
    let Steer { key, run_id, attempt, epoch, message_id, .. } = steer;
    Report { key, run_id, attempt, epoch, event: AgentEvent::Steered { message_id, outcome } }
}

fn bearer(token: &RunToken) -> Option<HeaderValue> {
    let mut auth = HeaderValue::try_from(format!("Bearer {}", token.reveal())).ok()?;
    auth.set_sensitive(true);
    Some(auth)
}
