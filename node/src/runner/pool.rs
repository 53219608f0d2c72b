//! The pool of a node's tool runners: assigns actions, queries lost ones, and reports when no runner is left.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use turnway_core::id::{EventId, QualifiedAction, RunnerId, SessionKey, SystemName, ToolName};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::action::{OutputStream, ProcessOutput, ToolExecution, ToolOrder, ToolReport};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::qualified::unqualify_processes;
use turnway_core::rate::OutputRate;
use turnway_core::time::{Deadline, Millis, Mono, Now};
use turnway_wire::channel::service::{ServerIdentity, TenantScope};
use turnway_wire::runner::{FromRunner, ToRunner, UNKNOWN_ACTION_CODE};

/// The id of a connection, unique in this process.
pub type RunnerConnectionId = u64;

/// An input of the pool.
#[derive(Clone, Debug)]
pub enum Input {
    /// An order of a session.
    Order(ToolOrder),
    /// A runner has connected.
    RunnerConnected {
        connection: RunnerConnectionId,
        /// The runner's own id.
        runner: RunnerId,
        /// The runner's credential and tenants; [`RunnerPool::check_admission`] has accepted the runner.
        identity: ServerIdentity,
        tools: Vec<ToolName>,
    },
    /// A runner has disconnected.
    RunnerDisconnected { connection: RunnerConnectionId },
    /// A message of a runner.
    Message { connection: RunnerConnectionId, message: FromRunner },
}

/// An output of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message to a runner.
    Send { connection: RunnerConnectionId, message: ToRunner },
    /// Send a report to a session.
    Report { key: SessionKey, action_id: EventId, report: ToolReport },
}

/// All tool runners of a node, and the actions in progress.
///
/// An action is given to one runner, once. If that runner disconnects, it may return and is queried; the action is
/// never given to another runner. A stop of an action is repeated if its runner connects again within
/// [`limits::RUNNER_WAIT`], because the connection that it was sent over may have been lost already.
#[derive(Debug, Default)]
pub struct RunnerPool {
    runners: BTreeMap<RunnerConnectionId, Runner>,
    jobs: BTreeMap<EventId, Job>,
    outputs: VecDeque<Output>,
}

#[derive(Debug)]
struct Runner {
    id: RunnerId,
    identity: ServerIdentity,
    tools: BTreeSet<ToolName>,
}

/// The reason for refusing a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunnerRefusal {
    /// The runner's id is in use by another credential: by a connection, or by actions whose results are still
    /// expected.
    IdInUse,
    /// The node, or the runner's tenant, has the maximum number of runners.
    LimitReached,
}

/// An action that has not ended.
#[derive(Debug)]
struct Job {
    key: SessionKey,
    tool: ToolName,
    /// The runner that performs the action, or must perform it.
    runner: Option<RunnerId>,
    /// The identity of the runner that received the action; `None` if an earlier owner of the session assigned it.
    holder: Option<ServerIdentity>,
    state: JobState,
    /// The time by which the session's owner has given up the action.
    abandoned_at: Mono,
    /// The rate limit of the action's output.
    output_rate: OutputRate,
    /// True if output was dropped from stdout, and from stderr.
    dropped_output: (bool, bool),
}

/// The state of an action.
#[derive(Debug)]
enum JobState {
    /// No suitable runner is connected; waits until the given time.
    Unassigned(Box<ToolExecution>, Mono),
    /// Assigned to the runner of a connection.
    Assigned(RunnerConnectionId),
    /// The runner has disconnected and may return until the given time.
    RunnerLost(Mono),
    /// An earlier owner assigned the action; these runners were queried and may answer until the given time.
    Queried(BTreeSet<RunnerConnectionId>, Mono),
    /// Ended for its session: the runner is sent this signal when it connects until the given time.
    Stopped(&'static str, Mono),
}

// === impl RunnerPool ===

impl Machine for RunnerPool {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        match input {
            Input::Order(ToolOrder::Execute(execute)) => self.execute(now, *execute),
            Input::Order(ToolOrder::Signal { action_id, signal, runner: _ }) => self.signal(now, action_id, signal),
            Input::Order(ToolOrder::Query { key, action_id, tool, runner, deadline }) => {
                let at = JobState::Queried(BTreeSet::new(), now.mono + limits::RUNNER_WAIT);
                self.query(action_id, Job::new(now, (key, tool), runner, at, deadline));
            }
            Input::RunnerConnected { connection, runner, identity, tools } => {
                let tools = tools.into_iter().collect();
                self.runner_connected(connection, Runner { id: runner, identity, tools });
            }
            Input::RunnerDisconnected { connection } => self.runner_disconnected(now, connection),
            Input::Message { connection, message } => self.handle_message(now, connection, message),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        let due = |job: &Job| job.deadline().is_some_and(|at| at <= now.mono);
        let due: Vec<EventId> = self.jobs.iter().filter(|(_, job)| due(job)).map(|(id, _)| *id).collect();
        for action_id in due {
            let Some(job) = self.jobs.remove(&action_id) else { continue };
            let report = match job.state {
                _ if job.abandoned_at <= now.mono => continue,
                JobState::Stopped(..) => continue,
                JobState::Unassigned(..) => ToolReport::NoRunner,
                JobState::RunnerLost(_) | JobState::Queried(..) | JobState::Assigned(_) => ToolReport::Lost,
            };
            self.outputs.push_back(Output::Report { key: job.key, action_id, report });
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        self.jobs.values().filter_map(Job::deadline).min().map(|at| Deadline { at, label: "tool runner" })
    }
}

impl RunnerPool {
    /// Returns the number of connected runners.
    pub fn runners(&self) -> usize {
        self.runners.len()
    }

    /// Checks whether a runner may connect. Ids are unique within one tenant scope: a runner of one tenant cannot
    /// block an id of another tenant, nor of a runner that serves the whole node.
    pub fn check_admission(&self, id: &RunnerId, identity: &ServerIdentity) -> Result<(), RunnerRefusal> {
        let is_anothers =
            |other: &ServerIdentity| other.tenants == identity.tenants && other.credential != identity.credential;
        let connected = self.runners.values().any(|it| it.id == *id && is_anothers(&it.identity));
        let expected = |job: &Job| {
            let has_result = !matches!(job.state, JobState::Stopped(..));
            has_result && job.runner.as_ref() == Some(id) && job.holder.as_ref().is_some_and(is_anothers)
        };
        if connected || self.jobs.values().any(expected) {
            return Err(RunnerRefusal::IdInUse);
        }
        let of_reach = self.runners.values().filter(|it| it.identity.tenants == identity.tenants).count();
        let most = match identity.tenants {
            TenantScope::AllTenants => limits::RUNNERS_MAX,
            TenantScope::Tenant(_) => limits::RUNNERS_OF_TENANT_MAX,
        };
        let is_many = of_reach >= most && !planted(Planted::RunnerTenantTakesAll);
        if is_many || self.runners.len() >= limits::RUNNERS_MAX {
            return Err(RunnerRefusal::LimitReached);
        }
        Ok(())
    }

    fn execute(&mut self, now: Now, execute: ToolExecution) {
        let action_id = execute.action_id;
        if self.jobs.contains_key(&action_id) {
            return;
        }
        self.make_room();
        if self.jobs.len() >= limits::NODE_ACTIONS_MAX {
            let key = execute.key;
            let report = ToolReport::NoRunner;
            return self.outputs.push_back(Output::Report { key, action_id, report });
        }
        let key = execute.key.clone();
        let tool = execute.tool.clone();
        let runner = execute.runner.clone();
        let deadline = execute.deadline;
        let at = JobState::Unassigned(Box::new(execute), now.mono + limits::RUNNER_WAIT);
        self.jobs.insert(action_id, Job::new(now, (key, tool), runner, at, deadline));
        self.assign(action_id);
    }

    /// Forgets a stopped action if the node has no room for another: it would only repeat its stop.
    fn make_room(&mut self) {
        if self.jobs.len() < limits::NODE_ACTIONS_MAX {
            return;
        }
        let stopped = self.jobs.iter().find(|(_, job)| matches!(job.state, JobState::Stopped(..))).map(|(id, _)| *id);
        stopped.into_iter().for_each(|action_id| drop(self.jobs.remove(&action_id)));
    }

    /// Assigns an action to its required runner, or to the least loaded suitable one.
    fn assign(&mut self, action_id: EventId) {
        let Some(job) = self.jobs.get(&action_id) else { return };
        let Some(connection) = self.suitable_runners(job).min_by_key(|it| self.load(*it)) else {
            return;
        };
        let (Some(job), Some(runner)) = (self.jobs.get_mut(&action_id), self.runners.get(&connection)) else {
            return;
        };
        (job.runner, job.holder) = (Some(runner.id.clone()), Some(runner.identity.clone()));
        if let JobState::Unassigned(execute, _) = std::mem::replace(&mut job.state, JobState::Assigned(connection)) {
            self.outputs.push_back(Output::Send { connection, message: ToRunner::Execute(execute) });
        }
    }

    fn suitable_runners(&self, job: &Job) -> impl Iterator<Item = RunnerConnectionId> {
        let fits = move |runner: &Runner| {
            let is_asked = job.runner.as_ref().is_none_or(|who| runner.id == *who);
            is_asked && runner.tools.contains(&job.tool) && job.may_run_on(runner)
        };
        self.runners.iter().filter(move |(_, runner)| fits(runner)).map(|(connection, _)| *connection)
    }

    fn load(&self, connection: RunnerConnectionId) -> usize {
        self.jobs.values().filter(|job| matches!(job.state, JobState::Assigned(at) if at == connection)).count()
    }

    /// Stops an action. A session that stops an action expects no report about it any more.
    fn signal(&mut self, now: Now, action_id: EventId, signal: &'static str) {
        let Some(job) = self.jobs.get_mut(&action_id) else { return };
        let to = match &mut job.state {
            JobState::Assigned(connection) => BTreeSet::from([*connection]),
            JobState::Queried(queried, _) => std::mem::take(queried),
            JobState::RunnerLost(_) => BTreeSet::new(),
            JobState::Stopped(..) => return,
            JobState::Unassigned(..) => {
                self.jobs.remove(&action_id);
                return;
            }
        };
        job.state = JobState::Stopped(signal, now.mono + limits::RUNNER_WAIT);
        let message = ToRunner::Signal { key: job.key.clone(), action_id, signal };
        let sends = to.into_iter().map(|connection| Output::Send { connection, message: message.clone() });
        self.outputs.extend(sends);
    }

    /// Queries the state of an action that an earlier owner of the session had assigned.
    fn query(&mut self, action_id: EventId, mut job: Job) {
        // An action with the same id in another session is a different action.
        if let Some(known) = self.jobs.get(&action_id).filter(|known| known.key == job.key) {
            job.runner = job.runner.or_else(|| known.runner.clone());
            job.holder = known.holder.clone().filter(|_| known.runner == job.runner);
        }
        let queried: BTreeSet<RunnerConnectionId> = self.suitable_runners(&job).collect();
        for connection in queried.iter().copied() {
            let message = ToRunner::Query { key: job.key.clone(), action_id };
            self.outputs.push_back(Output::Send { connection, message });
        }
        if let JobState::Queried(whom, _) = &mut job.state {
            *whom = queried;
        }
        self.jobs.insert(action_id, job);
    }

    fn runner_connected(&mut self, connection: RunnerConnectionId, runner: Runner) {
        let mut waiting = Vec::new();
        for (action_id, job) in self.jobs.iter_mut().filter(|(_, job)| job.may_run_on(&runner)) {
            let its = job.runner.as_ref() == Some(&runner.id);
            let may_be_its = its || job.runner.is_none() && runner.tools.contains(&job.tool);
            let key = job.key.clone();
            let action_id = *action_id;
            let message = match &mut job.state {
                JobState::Unassigned(..) => {
                    waiting.push(action_id);
                    continue;
                }
                JobState::RunnerLost(_) if its => {
                    job.state = JobState::Assigned(connection);
                    ToRunner::Query { key, action_id }
                }
                JobState::Queried(queried, _) if may_be_its => {
                    queried.insert(connection);
                    ToRunner::Query { key, action_id }
                }
                JobState::Stopped(signal, _) if may_be_its => ToRunner::Signal { key, action_id, signal },
                JobState::RunnerLost(_) | JobState::Queried(..) | JobState::Assigned(_) | JobState::Stopped(..) => {
                    continue;
                }
            };
            self.outputs.push_back(Output::Send { connection, message });
        }
        self.runners.insert(connection, runner);
        waiting.into_iter().for_each(|action_id| self.assign(action_id));
    }

    fn runner_disconnected(&mut self, now: Now, connection: RunnerConnectionId) {
        let Some(gone) = self.runners.remove(&connection) else { return };
        // The runner may have reconnected before the loss of its old connection was noticed.
        let same = |runner: &Runner| runner.id == gone.id && runner.identity == gone.identity;
        let back = self.runners.iter().find(|(_, runner)| same(runner)).map(|(back, _)| *back);
        for (action_id, job) in &mut self.jobs {
            // Runner ids are unique within one tenant or credential only.
            let was_its = job.runner.as_ref() == Some(&gone.id) && job.may_run_on(&gone);
            match &mut job.state {
                JobState::Assigned(at) if *at == connection => match back {
                    Some(back) => {
                        job.state = JobState::Assigned(back);
                        let query = ToRunner::Query { key: job.key.clone(), action_id: *action_id };
                        self.outputs.push_back(Output::Send { connection: back, message: query });
                    }
                    None => job.state = JobState::RunnerLost(now.mono + limits::RUNNER_WAIT),
                },
                JobState::Queried(queried, _) => _ = queried.remove(&connection),
                JobState::Stopped(signal, _) if was_its => {
                    let key = job.key.clone();
                    let message = ToRunner::Signal { key, action_id: *action_id, signal };
                    self.outputs.extend(back.map(|connection| Output::Send { connection, message }));
                }
                JobState::Assigned(_) | JobState::RunnerLost(_) | JobState::Unassigned(..) | JobState::Stopped(..) => {}
            }
        }
    }

    /// Handles a runner's message; only messages about actions that the runner was given or queried about count.
    fn handle_message(&mut self, now: Now, connection: RunnerConnectionId, message: FromRunner) {
        let (action_id, report) = match message {
            FromRunner::Invoked { action_id, pid } => {
                let Some(runner) = self.runners.get(&connection).map(|runner| runner.id.clone()) else {
                    return;
                };
                (action_id, ToolReport::Invoked { runner, pid })
            }
            FromRunner::Progress { action_id, data } => (action_id, ToolReport::Progress(data)),
            FromRunner::Result { action_id, ok, result, error } => {
                if error.as_ref().is_some_and(|error| error.code == UNKNOWN_ACTION_CODE) {
                    return self.handle_unknown_action(connection, &action_id);
                }
                (action_id, ToolReport::Ended { ok, result, error })
            }
            FromRunner::Chunk { session, printed } => {
                return self.report_output(now, connection, session.as_ref(), printed);
            }
            FromRunner::System { action_id, name, data } => {
                return self.report_system_event(connection, action_id.as_ref(), &name, data.as_ref());
            }
        };
        let named = action_id.clone();
        let action_id = action_id.id;
        let fits = |job: &&mut Job| job.involves(connection) && named.may_belong_to(&job.key);
        let Some(job) = self.jobs.get_mut(&action_id).filter(fits) else { return };
        let Some(Runner { id: runner, identity, .. }) = self.runners.get(&connection) else { return };
        let runner = runner.clone();
        (job.state, job.runner) = (JobState::Assigned(connection), Some(runner.clone()));
        job.holder = Some(identity.clone());
        let key = job.key.clone();
        let report = unqualify_report(&key, &job.tool, report);
        let is_over = matches!(report, ToolReport::Ended { .. });
        if is_over {
            self.jobs.remove(&action_id);
            // A result implies that the action was started; a repeated `Invoked` report is harmless.
            let report = ToolReport::Invoked { runner, pid: None };
            self.outputs.push_back(Output::Report { key: key.clone(), action_id, report });
        }
        self.outputs.push_back(Output::Report { key, action_id, report });
    }

    /// Reports an event of the runner's machine once to each session with an action there, or to the session of the
    /// named action only.
    fn report_system_event(
        &mut self,
        connection: RunnerConnectionId,
        about: Option<&QualifiedAction>,
        name: &SystemName,
        data: Option<&Json>,
    ) {
        let Some(runner) = self.runners.get(&connection).map(|runner| runner.id.clone()) else { return };
        let mut informed = BTreeSet::new();
        for (action_id, job) in &self.jobs {
            let fits = about.is_none_or(|about| about.id == *action_id && about.may_belong_to(&job.key));
            if fits
                && matches!(job.state, JobState::Assigned(at) if at == connection)
                && informed.insert(job.key.clone())
            {
                let name = name.clone();
                let data = data.cloned();
                let data = data.map(|data| unqualify_json(&job.key, name.as_str(), data));
                let report = ToolReport::System { runner: runner.clone(), name, data };
                self.outputs.push_back(Output::Report { key: job.key.clone(), action_id: *action_id, report });
            }
        }
    }

    /// Reports a piece of process output; output beyond the rate limit is dropped.
    fn report_output(
        &mut self,
        now: Now,
        connection: RunnerConnectionId,
        session: Option<&SessionKey>,
        mut printed: Box<ProcessOutput>,
    ) {
        let Some(job) = self.jobs.get_mut(&printed.action_id) else { return };
        let is_its = session.is_none_or(|session| *session == job.key);
        if !is_its || !matches!(job.state, JobState::Assigned(at) if at == connection) {
            return;
        }
        let gap = match printed.stream {
            OutputStream::Stdout => &mut job.dropped_output.0,
            OutputStream::Stderr => &mut job.dropped_output.1,
        };
        if !job.output_rate.take(now.mono, printed.data.reveal().len(), limits::NODE_OUTPUT_BYTES_PER_SECOND) {
            *gap = true;
            return;
        }
        printed.truncated |= std::mem::take(gap) && !planted(Planted::OutputGapHidden);
        let key = job.key.clone();
        let action_id = printed.action_id;
        self.outputs.push_back(Output::Report { key, action_id, report: ToolReport::Output(printed) });
    }

    fn handle_unknown_action(&mut self, connection: RunnerConnectionId, action: &QualifiedAction) {
        let action_id = action.id;
        let fits = |job: &&mut Job| job.involves(connection) && action.may_belong_to(&job.key);
        let Some(job) = self.jobs.get_mut(&action_id).filter(fits) else { return };
        if let JobState::Queried(queried, _) = &mut job.state {
            queried.remove(&connection);
            if !queried.is_empty() {
                return;
            }
        }
        let Some(job) = self.jobs.remove(&action_id) else { return };
        self.outputs.push_back(Output::Report { key: job.key, action_id, report: ToolReport::Unknown });
    }
}

/// Replaces qualified process ids by plain ones; clients and the log use plain ids only.
fn unqualify_report(key: &SessionKey, tool: &ToolName, report: ToolReport) -> ToolReport {
    match report {
        ToolReport::Ended { ok, result, error } => {
            let result = result.map(|result| unqualify_json(key, tool.as_str(), result));
            ToolReport::Ended { ok, result, error }
        }
        ToolReport::Progress(data) => ToolReport::Progress(unqualify_json(key, tool.as_str(), data)),
        ToolReport::Invoked { .. }
        | ToolReport::System { .. }
        | ToolReport::Output(_)
        | ToolReport::Unknown
        | ToolReport::NoRunner
        | ToolReport::Lost => report,
    }
}

fn unqualify_json(key: &SessionKey, about: &str, json: Json) -> Json {
    if key.tenant.is_default() {
        return json;
    }
    let Ok(text) = serde_json::to_string(&json) else { return json };
    serde_json::from_str(&unqualify_processes(key, about, text)).unwrap_or(json)
}

// === impl Job ===

impl Job {
    /// Creates a job. The session's owner gives the action up at its deadline; the owner may be another node by
    /// then.
    fn new(
        now: Now,
        (key, tool): (SessionKey, ToolName),
        runner: Option<RunnerId>,
        state: JobState,
        deadline: Millis,
    ) -> Self {
        let left = Duration::from_millis(deadline.0.saturating_sub(now.store.0));
        let abandoned_at = now.mono + left.min(limits::ACTION_TIMEOUT_MAX) + limits::RUNNER_WAIT;
        Self {
            key,
            tool,
            runner,
            holder: None,
            state,
            abandoned_at,
            output_rate: OutputRate::default(),
            dropped_output: (false, false),
        }
    }

    /// Returns whether a runner may perform the action: the runner serves the action's tenant, and no other runner
    /// has received the action.
    fn may_run_on(&self, runner: &Runner) -> bool {
        (runner.identity.tenants.covers(&self.key.tenant) || planted(Planted::RunnerReachIgnored))
            && self.holder.as_ref().is_none_or(|holder| *holder == runner.identity)
    }

    fn deadline(&self) -> Option<Mono> {
        let waits = match &self.state {
            JobState::Unassigned(_, at)
            | JobState::RunnerLost(at)
            | JobState::Queried(_, at)
            | JobState::Stopped(_, at) => *at,
            JobState::Assigned(_) => self.abandoned_at,
        };
        Some(waits.min(self.abandoned_at))
    }

    fn involves(&self, connection: RunnerConnectionId) -> bool {
        match &self.state {
            JobState::Assigned(at) => *at == connection,
            JobState::Queried(queried, _) => queried.contains(&connection),
            JobState::Unassigned(..) | JobState::RunnerLost(_) | JobState::Stopped(..) => false,
        }
    }
}

#[cfg(test)]
mod tests;
