//! The tool runners that are connected to a node, and the actions that it waits for: who is asked to do what, who is
//! asked what has become of it, and when nobody is left to ask.
//!
//! An action goes to one runner, once. Where that is gone it may come back and is asked; nobody else is given it.
use super::pace::Pace;
use super::words::{FromRunner, ToRunner, UNKNOWN_ACTION};
use crate::channel::service::{Reach, ServerIdentity};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use turnway_core::id::{EventId, QualifiedAction, RunnerId, SessionKey, SystemName, ToolName};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::action::{Execute, Printed, Stream, ToolOrder, ToolReport};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::qualified::bare_processes;
use turnway_core::time::{Deadline, Millis, Mono, Now};

/// One connection, counted per process.
pub type Connection = u64;

/// What may happen.
#[derive(Clone, Debug)]
pub enum Input {
    /// A session wants this.
    Order(ToolOrder),
    /// A runner has come.
    Came {
        /// By which connection.
        connection: Connection,
        /// As it calls itself.
        runner: RunnerId,
        /// Its credential, and whose actions it may be given; [`Shop::admits`] has let it in.
        identity: ServerIdentity,
        /// What it can do.
        tools: Vec<ToolName>,
    },
    /// A connection is gone.
    Left {
        /// Which.
        connection: Connection,
    },
    /// A runner says this.
    Said {
        /// By which connection.
        connection: Connection,
        /// What.
        word: FromRunner,
    },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Tell a runner.
    Send {
        /// By which connection.
        connection: Connection,
        /// What.
        word: ToRunner,
    },
    /// Tell a session.
    Report {
        /// Which.
        key: SessionKey,
        /// Of which action.
        action_id: EventId,
        /// What.
        report: ToolReport,
    },
}

/// All runners of a node.
#[derive(Debug, Default)]
pub struct Shop {
    runners: BTreeMap<Connection, Runner>,
    jobs: BTreeMap<EventId, Job>,
    outputs: VecDeque<Output>,
}

#[derive(Debug)]
struct Runner {
    id: RunnerId,
    identity: ServerIdentity,
    tools: BTreeSet<ToolName>,
}

/// Why a runner is not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// Its id is in use by another credential: by a connection, or by actions whose results are still expected.
    IdInUse,
    /// The node, or the runner's tenant, has as many runners as it may.
    Crowded,
}

/// An action that has not ended.
#[derive(Debug)]
struct Job {
    key: SessionKey,
    tool: ToolName,
    /// Who does it, or must do it.
    runner: Option<RunnerId>,
    /// The identity of the runner that was given it; none where an earlier owner gave it to somebody.
    holder: Option<ServerIdentity>,
    at: At,
    /// When whoever owns the session has given it up long since.
    until: Mono,
    /// Of its output.
    pace: Pace,
    /// Something of stdout was left out, and of stderr.
    gaps: (bool, bool),
}

/// Where an action is.
#[derive(Debug)]
enum At {
    /// Nobody is there who could do it, and so long it waits.
    Nobody(Box<Execute>, Mono),
    /// There.
    Runner(Connection),
    /// Its runner is gone, and so long it may come back.
    Gone(Mono),
    /// An earlier owner gave it to somebody; these were asked and have not answered, and so long they may.
    Asked(BTreeSet<Connection>, Mono),
}

// === impl Shop ===

impl Machine for Shop {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        match input {
            Input::Order(ToolOrder::Execute(execute)) => self.execute(now, *execute),
            Input::Order(ToolOrder::Signal { action_id, signal, runner: _ }) => {
                self.signal(action_id, signal)
            }
            Input::Order(ToolOrder::Query { key, action_id, tool, runner, deadline }) => {
                let at = At::Asked(BTreeSet::new(), now.mono + limits::RUNNER_WAIT);
                self.query(action_id, Job::new(now, (key, tool), runner, at, deadline));
            }
            Input::Came { connection, runner, identity, tools } => {
                let tools = tools.into_iter().collect();
                self.came(connection, Runner { id: runner, identity, tools });
            }
            Input::Left { connection } => self.left(now, connection),
            Input::Said { connection, word } => self.said(now, connection, word),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        let due = |job: &Job| job.due().is_some_and(|at| at <= now.mono);
        let due: Vec<EventId> = self.jobs.iter().filter(|(_, job)| due(job)).map(|(id, _)| *id).collect();
        for action_id in due {
            let Some(job) = self.jobs.remove(&action_id) else { continue };
            let report = match job.at {
                _ if job.until <= now.mono => continue,
                At::Nobody(..) => ToolReport::NoRunner,
                At::Gone(_) | At::Asked(..) | At::Runner(_) => ToolReport::Lost,
            };
            self.outputs.push_back(Output::Report { key: job.key, action_id, report });
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        self.jobs.values().filter_map(Job::due).min().map(|at| Deadline { at, why: "tool runner" })
    }
}

impl Shop {
    /// How many runners there are.
    pub fn runners(&self) -> usize {
        self.runners.len()
    }

    /// Checks whether a runner may come. Ids are unique for each reach: a runner of one tenant takes no id away from
    /// another tenant's, nor from one that serves the whole node.
    pub fn admits(&self, id: &RunnerId, identity: &ServerIdentity) -> Result<(), NotAdmitted> {
        let is_anothers =
            |other: &ServerIdentity| other.reach == identity.reach && other.credential != identity.credential;
        let connected = self.runners.values().any(|it| it.id == *id && is_anothers(&it.identity));
        let expected =
            |job: &Job| job.runner.as_ref() == Some(id) && job.holder.as_ref().is_some_and(is_anothers);
        if connected || self.jobs.values().any(expected) {
            return Err(NotAdmitted::IdInUse);
        }
        let of_reach = self.runners.values().filter(|it| it.identity.reach == identity.reach).count();
        let most = match identity.reach {
            Reach::Everyone => limits::RUNNERS_MAX,
            Reach::Tenant(_) => limits::RUNNERS_OF_TENANT_MAX,
        };
        let is_many = of_reach >= most && !planted(Planted::RunnerTenantTakesAll);
        if is_many || self.runners.len() >= limits::RUNNERS_MAX {
            return Err(NotAdmitted::Crowded);
        }
        Ok(())
    }

    fn execute(&mut self, now: Now, execute: Execute) {
        let action_id = execute.action_id;
        if self.jobs.contains_key(&action_id) {
            return;
        }
        if self.jobs.len() >= limits::NODE_ACTIONS_MAX {
            let (key, report) = (execute.key, ToolReport::NoRunner);
            return self.outputs.push_back(Output::Report { key, action_id, report });
        }
        let (key, tool, runner) = (execute.key.clone(), execute.tool.clone(), execute.runner.clone());
        let deadline = execute.deadline;
        let at = At::Nobody(Box::new(execute), now.mono + limits::RUNNER_WAIT);
        self.jobs.insert(action_id, Job::new(now, (key, tool), runner, at, deadline));
        self.place(action_id);
    }

    /// Gives it to whoever has it to do, or can and has the least to do.
    fn place(&mut self, action_id: EventId) {
        let Some(job) = self.jobs.get(&action_id) else { return };
        let Some(connection) = self.able(job).min_by_key(|it| self.load(*it)) else {
            return;
        };
        let (Some(job), Some(runner)) = (self.jobs.get_mut(&action_id), self.runners.get(&connection)) else {
            return;
        };
        (job.runner, job.holder) = (Some(runner.id.clone()), Some(runner.identity.clone()));
        if let At::Nobody(execute, _) = std::mem::replace(&mut job.at, At::Runner(connection)) {
            self.outputs.push_back(Output::Send { connection, word: ToRunner::Execute(execute) });
        }
    }

    fn able(&self, job: &Job) -> impl Iterator<Item = Connection> {
        let fits = move |runner: &Runner| {
            let is_asked = job.runner.as_ref().is_none_or(|who| runner.id == *who);
            is_asked && runner.tools.contains(&job.tool) && job.is_for(runner)
        };
        self.runners.iter().filter(move |(_, runner)| fits(runner)).map(|(connection, _)| *connection)
    }

    fn load(&self, connection: Connection) -> usize {
        self.jobs.values().filter(|job| matches!(job.at, At::Runner(at) if at == connection)).count()
    }

    fn signal(&mut self, action_id: EventId, signal: &'static str) {
        let Some(job) = self.jobs.remove(&action_id) else { return };
        let to = match job.at {
            At::Runner(connection) => BTreeSet::from([connection]),
            At::Asked(asked, _) => asked,
            At::Nobody(..) | At::Gone(_) => BTreeSet::new(),
        };
        for connection in to {
            let word = ToRunner::Signal { key: job.key.clone(), action_id, signal };
            self.outputs.push_back(Output::Send { connection, word });
        }
    }

    /// What has become of what an earlier owner had begun.
    fn query(&mut self, action_id: EventId, mut job: Job) {
        // An action of the same id in another session is another's.
        if let Some(known) = self.jobs.get(&action_id).filter(|known| known.key == job.key) {
            job.runner = job.runner.or_else(|| known.runner.clone());
            job.holder = known.holder.clone().filter(|_| known.runner == job.runner);
        }
        let asked: BTreeSet<Connection> = self.able(&job).collect();
        for connection in asked.iter().copied() {
            let word = ToRunner::Query { key: job.key.clone(), action_id };
            self.outputs.push_back(Output::Send { connection, word });
        }
        if let At::Asked(whom, _) = &mut job.at {
            *whom = asked;
        }
        self.jobs.insert(action_id, job);
    }

    fn came(&mut self, connection: Connection, runner: Runner) {
        let (mut waiting, mut open) = (Vec::new(), Vec::new());
        for (action_id, job) in self.jobs.iter_mut().filter(|(_, job)| job.is_for(&runner)) {
            let its = job.runner.as_ref() == Some(&runner.id);
            match &mut job.at {
                At::Nobody(..) => waiting.push(*action_id),
                At::Gone(_) if its => {
                    job.at = At::Runner(connection);
                    open.push((job.key.clone(), *action_id));
                }
                At::Asked(asked, _) if its || job.runner.is_none() && runner.tools.contains(&job.tool) => {
                    asked.insert(connection);
                    open.push((job.key.clone(), *action_id));
                }
                At::Gone(_) | At::Asked(..) | At::Runner(_) => {}
            }
        }
        self.runners.insert(connection, runner);
        for (key, action_id) in open {
            self.outputs.push_back(Output::Send { connection, word: ToRunner::Query { key, action_id } });
        }
        waiting.into_iter().for_each(|action_id| self.place(action_id));
    }

    fn left(&mut self, now: Now, connection: Connection) {
        let Some(gone) = self.runners.remove(&connection) else { return };
        // It may have come back before its old connection was found to be gone.
        let same = |runner: &Runner| runner.id == gone.id && runner.identity == gone.identity;
        let back = self.runners.iter().find(|(_, runner)| same(runner)).map(|(back, _)| *back);
        for (action_id, job) in &mut self.jobs {
            match &mut job.at {
                At::Runner(at) if *at == connection => match back {
                    Some(back) => {
                        job.at = At::Runner(back);
                        let word = ToRunner::Query { key: job.key.clone(), action_id: *action_id };
                        self.outputs.push_back(Output::Send { connection: back, word });
                    }
                    None => job.at = At::Gone(now.mono + limits::RUNNER_WAIT),
                },
                At::Asked(asked, _) => _ = asked.remove(&connection),
                At::Runner(_) | At::Gone(_) | At::Nobody(..) => {}
            }
        }
    }

    /// What a runner says counts only for what it was given or asked about.
    fn said(&mut self, now: Now, connection: Connection, word: FromRunner) {
        let (action_id, report) = match word {
            FromRunner::Invoked { action_id, pid } => {
                let Some(runner) = self.runners.get(&connection).map(|runner| runner.id.clone()) else {
                    return;
                };
                (action_id, ToolReport::Invoked { runner, pid })
            }
            FromRunner::Progress { action_id, data } => (action_id, ToolReport::Progress(data)),
            FromRunner::Result { action_id, ok, result, error } => {
                if error.as_ref().is_some_and(|error| error.code == UNKNOWN_ACTION) {
                    return self.not_known(connection, &action_id);
                }
                (action_id, ToolReport::Ended { ok, result, error })
            }
            FromRunner::Chunk { session, printed } => {
                return self.printed(now, connection, session.as_ref(), printed);
            }
            FromRunner::System { action_id, name, data } => {
                return self.machine(connection, action_id.as_ref(), &name, data.as_ref());
            }
        };
        let (named, action_id) = (action_id.clone(), action_id.id);
        let fits = |job: &&mut Job| job.is_at(connection) && named.is_of(&job.key);
        let Some(job) = self.jobs.get_mut(&action_id).filter(fits) else { return };
        let Some(Runner { id: runner, identity, .. }) = self.runners.get(&connection) else { return };
        let runner = runner.clone();
        (job.at, job.runner) = (At::Runner(connection), Some(runner.clone()));
        job.holder = Some(identity.clone());
        let key = job.key.clone();
        let report = bare(&key, &job.tool, report);
        let is_over = matches!(report, ToolReport::Ended { .. });
        if is_over {
            self.jobs.remove(&action_id);
            // Whoever has done it has begun it; said twice, it counts once.
            let report = ToolReport::Invoked { runner, pid: None };
            self.outputs.push_back(Output::Report { key: key.clone(), action_id, report });
        }
        self.outputs.push_back(Output::Report { key, action_id, report });
    }

    /// Something of its machine: each session that has it do something is told once, or the one that it is about.
    fn machine(
        &mut self,
        connection: Connection,
        about: Option<&QualifiedAction>,
        name: &SystemName,
        data: Option<&Json>,
    ) {
        let Some(runner) = self.runners.get(&connection).map(|runner| runner.id.clone()) else { return };
        let mut told = BTreeSet::new();
        for (action_id, job) in &self.jobs {
            let fits = about.is_none_or(|about| about.id == *action_id && about.is_of(&job.key));
            if fits && matches!(job.at, At::Runner(at) if at == connection) && told.insert(job.key.clone()) {
                let (name, data) = (name.clone(), data.cloned());
                let data = data.map(|data| bare_json(&job.key, name.as_str(), data));
                let report = ToolReport::System { runner: runner.clone(), name, data };
                self.outputs.push_back(Output::Report {
                    key: job.key.clone(),
                    action_id: *action_id,
                    report,
                });
            }
        }
    }

    /// A piece of its output, of what it is known to do; what is more than is shown is left out.
    fn printed(
        &mut self,
        now: Now,
        connection: Connection,
        session: Option<&SessionKey>,
        mut printed: Box<Printed>,
    ) {
        let Some(job) = self.jobs.get_mut(&printed.action_id) else { return };
        let is_its = session.is_none_or(|session| *session == job.key);
        if !is_its || !matches!(job.at, At::Runner(at) if at == connection) {
            return;
        }
        let gap = match printed.stream {
            Stream::Stdout => &mut job.gaps.0,
            Stream::Stderr => &mut job.gaps.1,
        };
        if !job.pace.take(now.mono, printed.data.reveal().len(), limits::OUTPUT_BYTES_PER_SECOND) {
            *gap = true;
            return;
        }
        printed.truncated |= std::mem::take(gap) && !planted(Planted::OutputGapHidden);
        let (key, action_id) = (job.key.clone(), printed.action_id);
        self.outputs.push_back(Output::Report { key, action_id, report: ToolReport::Printed(printed) });
    }

    fn not_known(&mut self, connection: Connection, action: &QualifiedAction) {
        let action_id = action.id;
        let fits = |job: &&mut Job| job.is_at(connection) && action.is_of(&job.key);
        let Some(job) = self.jobs.get_mut(&action_id).filter(fits) else { return };
        if let At::Asked(asked, _) = &mut job.at {
            asked.remove(&connection);
            if !asked.is_empty() {
                return;
            }
        }
        let Some(job) = self.jobs.remove(&action_id) else { return };
        self.outputs.push_back(Output::Report { key: job.key, action_id, report: ToolReport::Unknown });
    }
}

/// Names processes by their bare ids: clients and the log have no other names.
fn bare(key: &SessionKey, tool: &ToolName, report: ToolReport) -> ToolReport {
    match report {
        ToolReport::Ended { ok, result, error } => {
            let result = result.map(|result| bare_json(key, tool.as_str(), result));
            ToolReport::Ended { ok, result, error }
        }
        ToolReport::Progress(data) => ToolReport::Progress(bare_json(key, tool.as_str(), data)),
        ToolReport::Invoked { .. }
        | ToolReport::System { .. }
        | ToolReport::Printed(_)
        | ToolReport::Unknown
        | ToolReport::NoRunner
        | ToolReport::Lost => report,
    }
}

fn bare_json(key: &SessionKey, about: &str, json: Json) -> Json {
    if key.tenant.is_default() {
        return json;
    }
    let Ok(text) = serde_json::to_string(&json) else { return json };
    serde_json::from_str(&bare_processes(key, about, text)).unwrap_or(json)
}

// === impl Job ===

impl Job {
    /// Whoever owns its session gives it up at its deadline, and that may be another node by then.
    fn new(
        now: Now,
        (key, tool): (SessionKey, ToolName),
        runner: Option<RunnerId>,
        at: At,
        deadline: Millis,
    ) -> Self {
        let left = Duration::from_millis(deadline.0.saturating_sub(now.store.0));
        let until = now.mono + left.min(limits::ACTION_TIMEOUT_MAX) + limits::RUNNER_WAIT;
        Self { key, tool, runner, holder: None, at, until, pace: Pace::default(), gaps: (false, false) }
    }

    /// Returns whether a runner may have to do with it: its tenant is served by the runner, and nobody else has it.
    fn is_for(&self, runner: &Runner) -> bool {
        (runner.identity.reach.covers(&self.key.tenant) || planted(Planted::RunnerReachIgnored))
            && self.holder.as_ref().is_none_or(|holder| *holder == runner.identity)
    }

    fn due(&self) -> Option<Mono> {
        let waits = match &self.at {
            At::Nobody(_, at) | At::Gone(at) | At::Asked(_, at) => *at,
            At::Runner(_) => self.until,
        };
        Some(waits.min(self.until))
    }

    fn is_at(&self, connection: Connection) -> bool {
        match &self.at {
            At::Runner(at) => *at == connection,
            At::Asked(asked, _) => asked.contains(&connection),
            At::Nobody(..) | At::Gone(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
