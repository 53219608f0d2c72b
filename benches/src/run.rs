//! A load from its first connection to its last figure. Every mode drives its connections through a run.
use crate::cli::{Aim, Common, Load, Outputs};
use crate::due_queue::DueQueue;
use crate::error::{BenchError, ConnectionFailure};
use crate::process::{Process, ProcessMonitor};
use crate::progress::Progress;
use crate::quic_endpoints::QuicEndpoints;
use crate::record::{Count, Measure, Record};
use crate::schedule::Schedule;
use crate::target::Target;
use futures_util::StreamExt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep_until, timeout};

/// Maximum connections that are opened at a time: setting up must not measure a burst.
const CONCURRENT_OPENS_MAX: usize = 128;
/// Files that the process needs besides its connections.
const FILES_BESIDE: usize = 64;
/// Pause after a refusal, if no rate sets the pace.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// A load in progress.
#[derive(Debug)]
pub struct Run {
    mode: &'static str,
    common: Common,
    target: Target,
    udp: QuicEndpoints,
    tag: String,
    record: RefCell<Record>,
    stage: Cell<LoadStage>,
    started_at: Cell<Instant>,
    ended: Cell<Option<Instant>>,
    due_queues: RefCell<Vec<Rc<DueQueue>>>,
    server: Option<ProcessMonitor>,
    own: ProcessMonitor,
    progress: Progress,
    /// Notified when every connection is lost.
    all_lost: Notify,
}

/// The stage of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadStage {
    Setup,
    Running,
    /// No further request is sent; open ones may still be answered.
    Draining,
}

// === impl Run ===

impl Run {
    /// Checks the arguments and the environment before any connection is opened.
    pub fn new(mode: &'static str, about: Measure, common: &Common) -> Result<Rc<Self>, BenchError> {
        let aim = &common.aim;
        let target = Target::find(&aim.url, "ws", aim.sources, aim.i_own_this_target)?;
        Self::with_target(mode, about, common, target)
    }

    /// The same for a mode whose server is an HTTP server.
    pub fn over_http(mode: &'static str, about: Measure, common: &Common) -> Result<Rc<Self>, BenchError> {
        let aim = &common.aim;
        if aim.sources.is_some() {
            return Err(BenchError::Usage(format!("{mode} has no --sources")));
        }
        let target = Target::find(&aim.url, "http", None, aim.i_own_this_target)?;
        Self::with_target(mode, about, common, target)
    }

    fn with_target(
        mode: &'static str,
        about: Measure,
        common: &Common,
        target: Target,
    ) -> Result<Rc<Self>, BenchError> {
        let server = common.outputs.server_pid.map(monitor).transpose()?;
        // QUIC connections share sockets.
        let sockets = if target.quic_name().is_some() { 0 } else { common.load.connections };
        raise_file_limit(sockets + FILES_BESIDE)?;
        Ok(Rc::new(Self {
            mode,
            common: common.clone(),
            target,
            udp: QuicEndpoints::default(),
            tag: tag()?,
            record: RefCell::new(Record::new(about)),
            stage: Cell::new(LoadStage::Setup),
            started_at: Cell::new(Instant::now()),
            ended: Cell::new(None),
            due_queues: RefCell::default(),
            server,
            own: ProcessMonitor::new(Process::own()),
            progress: Progress::new(),
            all_lost: Notify::new(),
        }))
    }

    /// Creates a run for a mode without a rate.
    pub fn unpaced(mode: &'static str, about: Measure, common: &Common) -> Result<Rc<Self>, BenchError> {
        if common.load.rate.is_some() {
            return Err(BenchError::Usage(format!("{mode} has no --rate")));
        }
        Self::new(mode, about, common)
    }

    /// Creates a run for tests, which records but has no connections.
    #[cfg(test)]
    pub(crate) fn idle(about: Measure) -> Rc<Self> {
        use clap::Parser;
        let crate::cli::Mode::Echo(args) = crate::cli::Cli::parse_from(["turnway-bench", "echo"]).mode else {
            panic!("this was `echo`");
        };
        let run = Self::new("idle", about, &args.common).expect("sound defaults");
        run.record.borrow_mut().start(Instant::now());
        run
    }

    /// Returns the name of the mode.
    pub fn mode(&self) -> &'static str {
        self.mode
    }
    /// Returns the amount and the duration of the load.
    pub fn load(&self) -> &Load {
        &self.common.load
    }
    /// Returns the requested outputs.
    pub fn outputs(&self) -> &Outputs {
        &self.common.outputs
    }
    /// Returns the arguments that select the server.
    pub fn aim(&self) -> &Aim {
        &self.common.aim
    }
    /// Returns the server under load.
    pub fn target(&self) -> &Target {
        &self.target
    }
    /// Returns the sockets of QUIC connections.
    pub fn udp(&self) -> &QuicEndpoints {
        &self.udp
    }
    /// Returns the API key that every connection uses.
    pub fn api_key(&self) -> Option<&str> {
        self.common.aim.api_key.as_deref()
    }
    /// Returns the tag that makes this run's sessions unique.
    pub fn tag(&self) -> &str {
        &self.tag
    }
    /// Returns the server's process, if it is watched.
    pub fn server(&self) -> Option<&ProcessMonitor> {
        self.server.as_ref()
    }
    /// Returns this process.
    pub fn own(&self) -> &ProcessMonitor {
        &self.own
    }
    /// Returns the measurements.
    pub fn record(&self) -> &RefCell<Record> {
        &self.record
    }
    /// Returns the progress display.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }
    /// Returns the start of the load.
    pub fn started_at(&self) -> Instant {
        self.started_at.get()
    }
    /// Returns the duration of the load, without the setup and the wait for the last answers.
    pub fn duration(&self) -> Duration {
        self.ended.get().unwrap_or_else(Instant::now).saturating_duration_since(self.started_at.get())
    }
    /// Returns whether requests may be sent.
    pub fn is_running(&self) -> bool {
        self.stage.get() == LoadStage::Running
    }
    /// Returns whether the load is over.
    pub fn is_over(&self) -> bool {
        self.stage.get() == LoadStage::Draining
    }
    /// Returns whether requests are due by a schedule.
    pub fn is_open_loop(&self) -> bool {
        self.common.load.rate.is_some()
    }

    /// Records a duration; see [`Record::record_duration`].
    pub fn record_duration(&self, what: Measure, time: Duration) {
        self.record.borrow_mut().record_duration(what, time);
    }
    /// Adds to a count; see [`Record::count`].
    pub fn count(&self, what: Count, times: u64) {
        self.record.borrow_mut().count(what, times);
    }
    /// Counts an error; see [`Record::count_error`].
    pub fn count_error(&self, code: &str) {
        self.record.borrow_mut().count_error(code);
    }
    /// Counts a connection that was lost unexpectedly.
    pub fn count_lost(&self, lost: &ConnectionFailure) {
        self.count(Count::Lost, 1);
        self.count_error(&lost.code());
        if self.record.borrow().counted(Count::Lost) >= self.common.load.connections as u64 {
            self.all_lost.notify_one();
        }
    }

    /// Makes `count` values, several at a time; the first failure ends it.
    pub async fn make_all<T, F: Future<Output = Result<T, BenchError>>>(
        &self,
        count: usize,
        make: impl FnMut(usize) -> F,
    ) -> Result<Vec<T>, BenchError> {
        let mut made = Vec::with_capacity(count);
        let mut making = futures_util::stream::iter((0..count).map(make)).buffer_unordered(CONCURRENT_OPENS_MAX);
        while let Some(one) = making.next().await {
            made.push(one?);
            self.show(made.len(), count, "ready");
        }
        Ok(made)
    }

    /// Starts the load and the measurement.
    pub fn begin(self: &Rc<Self>) {
        let now = Instant::now();
        self.started_at.set(now);
        self.record.borrow_mut().start(now);
        self.stage.set(LoadStage::Running);
        self.watches().for_each(ProcessMonitor::start_cpu);
        tokio::task::spawn_local(Rc::clone(self).sample_each_second());
    }

    fn watches(&self) -> impl Iterator<Item = &ProcessMonitor> {
        self.server.iter().chain([&self.own])
    }

    /// Samples each second until the load is over.
    async fn sample_each_second(self: Rc<Self>) {
        let mut seconds = interval(Duration::from_secs(1));
        seconds.tick().await;
        while self.is_running() {
            seconds.tick().await;
            self.tick();
        }
    }

    fn tick(&self) {
        self.watches().for_each(ProcessMonitor::sample);
        let rss = self.server.as_ref().and_then(|server| server.process.rss());
        let mut record = self.record.borrow_mut();
        record.end_second(Instant::now(), self.started_at.get(), rss);
        let done = self.started_at.get().elapsed().as_secs();
        let of = self.common.load.duration.as_secs();
        if let Some(tick) = record.ticks().last().filter(|_| !self.due_queues.borrow().is_empty()) {
            let p99 = tick.p99.map(|p99| format!(", p99 {:.2} ms", p99 / 1000.0)).unwrap_or_default();
            let failed: u64 = record.errors().values().sum();
            let said = format!("{done} of {of} s: {:.0}/s{p99}, {failed} errors", tick.rate);
            self.progress.show(done, of, &said);
        }
    }

    /// Makes requests due on the connections: by the schedule with a rate, once each without.
    pub async fn dispatch(&self, bells: Vec<Rc<DueQueue>>) -> Result<(), BenchError> {
        *self.due_queues.borrow_mut() = bells;
        let bells = self.due_queues.borrow().clone();
        match self.common.load.rate {
            None => {
                bells.iter().for_each(|due_queue| self.make_due(due_queue, Instant::now()));
                self.wait_for_end().await;
            }
            Some(rate) => {
                let schedule = Schedule::new(self.started_at.get(), rate, self.common.load.duration);
                let mut turn = bells.iter().cycle();
                let ringing = schedule.run(|due| {
                    if let Some(due_queue) = turn.next() {
                        self.make_due(due_queue, due.at);
                    }
                });
                tokio::select! {
                    rung = ringing => {
                        rung.map_err(|error| BenchError::Unavailable(format!("no timer: {error}")))?;
                        self.wait_for_end().await;
                    }
                    () = self.aborted() => {}
                }
            }
        }
        self.end();
        Ok(())
    }

    /// Waits for the end of the load, unless it is aborted.
    pub async fn wait_for_end(&self) {
        let until = self.started_at.get() + self.common.load.duration;
        self.pause(until.saturating_duration_since(Instant::now())).await;
    }

    /// Shows progress that is not counted per second.
    pub fn show(&self, done: usize, of: usize, what: &str) {
        self.progress.show(done as u64, of as u64, &format!("{done} of {of} {what}"));
    }

    /// Waits, unless the load is aborted.
    pub async fn pause(&self, time: Duration) {
        tokio::select! {
            () = sleep_until((Instant::now() + time).into()) => {}
            () = self.aborted() => {}
        }
    }

    /// Waits until the user interrupts, or no connection is left.
    async fn aborted(&self) {
        tokio::select! {
            () = wait_for_sigint() => {}
            () = self.all_lost.notified() => {}
        }
    }

    /// Ends the load: no further request is sent.
    pub fn end(&self) {
        self.ended.set(Some(Instant::now()));
        self.tick();
        self.record.borrow_mut().end_load();
        self.stage.set(LoadStage::Draining);
        self.due_queues.borrow().iter().for_each(|due_queue| due_queue.wake());
    }

    /// Makes a request due on a connection.
    pub fn make_due(&self, due_queue: &DueQueue, at: Instant) {
        self.count(Count::Asked, 1);
        due_queue.push(at);
    }

    /// Makes the next request due in a closed loop; after a refusal only after a pause of 100 ms.
    pub fn make_due_again(self: &Rc<Self>, due_queue: &Rc<DueQueue>, was_refused: bool) {
        if !self.is_running() || self.is_open_loop() {
            return;
        }
        if !was_refused {
            return self.make_due(due_queue, Instant::now());
        }
        let run = Rc::clone(self);
        let due_queue = Rc::clone(due_queue);
        tokio::task::spawn_local(async move {
            sleep_until((Instant::now() + REFUSAL_PAUSE).into()).await;
            if run.is_running() {
                run.make_due(&due_queue, Instant::now());
            }
        });
    }

    /// Waits for the last answers, at most for the grace period; requests without an answer then count as
    /// unanswered.
    pub async fn drain(&self, mut tasks: JoinSet<()>) {
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(self.common.load.grace, all).await.is_err() {
            tasks.abort_all();
        }
        self.watches().for_each(ProcessMonitor::sample);
        let mut record = self.record.borrow_mut();
        let ended = [Count::Completed, Count::Failed, Count::Cancelled, Count::Refused];
        let ended: u64 = ended.iter().map(|count| record.counted(*count)).sum();
        let unanswered = record.counted(Count::Asked).saturating_sub(ended);
        record.count(Count::Unanswered, unanswered);
    }
}

/// Waits for SIGINT.
async fn wait_for_sigint() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// Returns eight random hexadecimal digits.
fn tag() -> Result<String, BenchError> {
    let mut bytes = [0; 4];
    let failed = |error| BenchError::Unavailable(format!("the system provides no randomness: {error}"));
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Raises the limit of open files if necessary.
fn raise_file_limit(files: usize) -> Result<(), BenchError> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = files as u64;
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let most = limit.maximum.unwrap_or(wanted);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
    if most < wanted || raised.is_err() {
        let why = format!("this process may open {most} files, and {wanted} are needed: see `ulimit -n`");
        return Err(BenchError::Usage(why));
    }
    Ok(())
}

fn monitor(pid: u32) -> Result<ProcessMonitor, BenchError> {
    let process = Process::find(pid).ok_or_else(|| BenchError::Usage(format!("there is no process {pid}")))?;
    Ok(ProcessMonitor::new(process))
}
