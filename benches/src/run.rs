//! One load from its first connection to its last figure.
use crate::bell::Bell;
use crate::cli::{Aim, Common, Load, Outputs};
use crate::process::{Process, Watch};
use crate::progress::Progress;
use crate::record::{Count, Measure, Record};
use crate::schedule::Schedule;
use crate::target::Target;
use crate::trouble::{Lost, Trouble};
use crate::udp::Udp;
use futures_util::StreamExt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep_until, timeout};

/// Connections that are being made at a time: a burst is not what setting up should measure.
const OPENING_MAX: usize = 128;
/// Files a process needs beside its connections.
const FILES_BESIDE: usize = 64;
/// After a refusal, where nothing else sets the pace.
const REST: Duration = Duration::from_millis(100);

/// A load under way.
#[derive(Debug)]
pub struct Run {
    mode: &'static str,
    common: Common,
    target: Target,
    udp: Udp,
    tag: String,
    record: RefCell<Record>,
    stage: Cell<Stage>,
    begun: Cell<Instant>,
    ended: Cell<Option<Instant>>,
    bells: RefCell<Vec<Rc<Bell>>>,
    server: Option<Watch>,
    own: Watch,
    progress: Progress,
    /// No connection is left.
    deserted: Notify,
}

/// How far a load has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Setup,
    On,
    /// Nothing new is asked; what was asked may still be answered.
    Draining,
}

// === impl Run ===

impl Run {
    /// Looks at everything that can be wrong before a connection is made.
    pub fn new(mode: &'static str, about: Measure, common: &Common) -> Result<Rc<Self>, Trouble> {
        let aim = &common.aim;
        let target = Target::find(&aim.url, "ws", aim.sources, aim.i_own_this_target)?;
        let server = common.outputs.server_pid.map(watch).transpose()?;
        // Connections of QUIC share sockets.
        let sockets = if target.quic_name().is_some() { 0 } else { common.load.connections };
        make_room(sockets + FILES_BESIDE)?;
        Ok(Rc::new(Self {
            mode,
            common: common.clone(),
            target,
            udp: Udp::default(),
            tag: tag()?,
            record: RefCell::new(Record::new(about)),
            stage: Cell::new(Stage::Setup),
            begun: Cell::new(Instant::now()),
            ended: Cell::new(None),
            bells: RefCell::default(),
            server,
            own: Watch::new(Process::own()),
            progress: Progress::new(),
            deserted: Notify::new(),
        }))
    }

    /// The same for a load that has no rate.
    pub fn unpaced(mode: &'static str, about: Measure, common: &Common) -> Result<Rc<Self>, Trouble> {
        if common.load.rate.is_some() {
            return Err(Trouble::Usage(format!("{mode} has no --rate")));
        }
        Self::new(mode, about, common)
    }

    /// One that loads nothing and counts already.
    #[cfg(test)]
    pub(crate) fn idle(about: Measure) -> Rc<Self> {
        use clap::Parser;
        let crate::cli::Mode::Echo(args) = crate::cli::Cli::parse_from(["turnway-bench", "echo"]).mode else {
            panic!("this was `echo`");
        };
        let run = Self::new("idle", about, &args.common).expect("sound defaults");
        run.record.borrow_mut().arm(Instant::now());
        run
    }

    /// What this load is called.
    pub fn mode(&self) -> &'static str {
        self.mode
    }
    /// How much, and for how long.
    pub fn load(&self) -> &Load {
        &self.common.load
    }
    /// What becomes of the figures.
    pub fn outputs(&self) -> &Outputs {
        &self.common.outputs
    }
    /// What was said of where to.
    pub fn aim(&self) -> &Aim {
        &self.common.aim
    }
    /// Where to.
    pub fn target(&self) -> &Target {
        &self.target
    }
    /// What connections of QUIC go through.
    pub fn udp(&self) -> &Udp {
        &self.udp
    }
    /// What every connection says it has.
    pub fn api_key(&self) -> Option<&str> {
        self.common.aim.api_key.as_deref()
    }
    /// Tells this run's sessions from any other's.
    pub fn tag(&self) -> &str {
        &self.tag
    }
    /// The server's process.
    pub fn server(&self) -> Option<&Watch> {
        self.server.as_ref()
    }
    /// This process.
    pub fn own(&self) -> &Watch {
        &self.own
    }
    /// Everything measured.
    pub fn record(&self) -> &RefCell<Record> {
        &self.record
    }
    /// People see this meanwhile.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }
    /// When the load began.
    pub fn begun(&self) -> Instant {
        self.begun.get()
    }
    /// How long it lasted, without the setting up and the waiting for last answers.
    pub fn lasted(&self) -> Duration {
        self.ended.get().unwrap_or_else(Instant::now).saturating_duration_since(self.begun.get())
    }
    /// Whether more may be asked.
    pub fn is_on(&self) -> bool {
        self.stage.get() == Stage::On
    }
    /// Whether nothing more will be asked.
    pub fn is_over(&self) -> bool {
        self.stage.get() == Stage::Draining
    }
    /// Whether turns are due by the clock.
    pub fn is_open_loop(&self) -> bool {
        self.common.load.rate.is_some()
    }

    /// See [`Record::took`].
    pub fn took(&self, what: Measure, time: Duration) {
        self.record.borrow_mut().took(what, time);
    }
    /// See [`Record::count`].
    pub fn count(&self, what: Count, times: u64) {
        self.record.borrow_mut().count(what, times);
    }
    /// See [`Record::error`].
    pub fn error(&self, code: &str) {
        self.record.borrow_mut().error(code);
    }
    /// A connection is gone that should not be.
    pub fn lost(&self, lost: &Lost) {
        self.count(Count::Lost, 1);
        self.error(&lost.code());
        if self.record.borrow().counted(Count::Lost) >= self.common.load.connections as u64 {
            self.deserted.notify_one();
        }
    }

    /// Makes so many of something, several at a time; the first that fails ends it.
    pub async fn gather<T, F: Future<Output = Result<T, Trouble>>>(
        &self,
        count: usize,
        make: impl FnMut(usize) -> F,
    ) -> Result<Vec<T>, Trouble> {
        let mut made = Vec::with_capacity(count);
        let mut making = futures_util::stream::iter((0..count).map(make)).buffer_unordered(OPENING_MAX);
        while let Some(one) = making.next().await {
            made.push(one?);
            self.show(made.len(), count, "ready");
        }
        Ok(made)
    }

    /// From now on it counts.
    pub fn begin(self: &Rc<Self>) {
        let now = Instant::now();
        self.begun.set(now);
        self.record.borrow_mut().arm(now);
        self.stage.set(Stage::On);
        self.watches().for_each(Watch::begin);
        tokio::task::spawn_local(Rc::clone(self).observe());
    }

    fn watches(&self) -> impl Iterator<Item = &Watch> {
        self.server.iter().chain([&self.own])
    }

    /// Each second until the load is over.
    async fn observe(self: Rc<Self>) {
        let mut seconds = interval(Duration::from_secs(1));
        seconds.tick().await;
        while self.is_on() {
            seconds.tick().await;
            self.tick();
        }
    }

    fn tick(&self) {
        self.watches().for_each(Watch::look);
        let rss = self.server.as_ref().and_then(|server| server.process.rss());
        let mut record = self.record.borrow_mut();
        record.tick(Instant::now(), self.begun.get(), rss);
        let (done, of) = (self.begun.get().elapsed().as_secs(), self.common.load.duration.as_secs());
        if let Some(tick) = record.ticks().last().filter(|_| !self.bells.borrow().is_empty()) {
            let p99 = tick.p99.map(|p99| format!(", p99 {:.2} ms", p99 / 1000.0)).unwrap_or_default();
            let failed: u64 = record.errors().values().sum();
            let said = format!("{done} of {of} s: {:.0}/s{p99}, {failed} errors", tick.rate);
            self.progress.show(done, of, &said);
        }
    }

    /// Rings each bell when something is due: by the clock with a rate, once without.
    pub async fn ring(&self, bells: Vec<Rc<Bell>>) -> Result<(), Trouble> {
        *self.bells.borrow_mut() = bells;
        let bells = self.bells.borrow().clone();
        match self.common.load.rate {
            None => {
                bells.iter().for_each(|bell| self.ask(bell, Instant::now()));
                self.last().await;
            }
            Some(rate) => {
                let schedule = Schedule::new(self.begun.get(), rate, self.common.load.duration);
                let mut turn = bells.iter().cycle();
                let ringing = schedule.run(|due| {
                    if let Some(bell) = turn.next() {
                        self.ask(bell, due.at);
                    }
                });
                tokio::select! {
                    rung = ringing => {
                        rung.map_err(|error| Trouble::Unavailable(format!("no timer: {error}")))?;
                        self.last().await;
                    }
                    () = self.cut_short() => {}
                }
            }
        }
        self.end();
        Ok(())
    }

    /// Waits for the end of the load, unless it is cut short.
    pub async fn last(&self) {
        let until = self.begun.get() + self.common.load.duration;
        self.pause(until.saturating_duration_since(Instant::now())).await;
    }

    /// How far a load has come that is not about what happens in a second.
    pub fn show(&self, done: usize, of: usize, what: &str) {
        self.progress.show(done as u64, of as u64, &format!("{done} of {of} {what}"));
    }

    /// Waits, unless it is cut short.
    pub async fn pause(&self, time: Duration) {
        tokio::select! {
            () = sleep_until((Instant::now() + time).into()) => {}
            () = self.cut_short() => {}
        }
    }

    /// Somebody has seen enough, or there is nothing more to see.
    async fn cut_short(&self) {
        tokio::select! {
            () = interrupted() => {}
            () = self.deserted.notified() => {}
        }
    }

    /// Nothing more is asked.
    pub fn end(&self) {
        self.ended.set(Some(Instant::now()));
        self.tick();
        self.record.borrow_mut().close();
        self.stage.set(Stage::Draining);
        self.bells.borrow().iter().for_each(|bell| bell.stir());
    }

    /// Something is due on a connection.
    pub fn ask(&self, bell: &Bell, at: Instant) {
        self.count(Count::Asked, 1);
        bell.ring(at);
    }

    /// The same again where the next begins when the last has ended; after a refusal with a rest.
    pub fn ask_again(self: &Rc<Self>, bell: &Rc<Bell>, was_refused: bool) {
        if !self.is_on() || self.is_open_loop() {
            return;
        }
        if !was_refused {
            return self.ask(bell, Instant::now());
        }
        let (run, bell) = (Rc::clone(self), Rc::clone(bell));
        tokio::task::spawn_local(async move {
            sleep_until((Instant::now() + REST).into()).await;
            if run.is_on() {
                run.ask(&bell, Instant::now());
            }
        });
    }

    /// Waits for the last answers, at most as long as the grace; what is left then counts as unanswered.
    pub async fn drain(&self, mut tasks: JoinSet<()>) {
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(self.common.load.grace, all).await.is_err() {
            tasks.abort_all();
        }
        self.watches().for_each(Watch::look);
        let mut record = self.record.borrow_mut();
        let ended = [Count::Completed, Count::Failed, Count::Cancelled, Count::Refused];
        let ended: u64 = ended.iter().map(|count| record.counted(*count)).sum();
        let unanswered = record.counted(Count::Asked).saturating_sub(ended);
        record.count(Count::Unanswered, unanswered);
    }
}

/// Somebody has seen enough.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// Eight letters that no other run has.
fn tag() -> Result<String, Trouble> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(|error| Trouble::Unavailable(format!("no randomness: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Asks for as many files as there are connections.
fn make_room(files: usize) -> Result<(), Trouble> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = files as u64;
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let most = limit.maximum.unwrap_or(wanted);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
    if most < wanted || raised.is_err() {
        let why = format!("this process may open {most} files, and {wanted} are needed: see `ulimit -n`");
        return Err(Trouble::Usage(why));
    }
    Ok(())
}

fn watch(pid: u32) -> Result<Watch, Trouble> {
    let process = Process::find(pid).ok_or_else(|| Trouble::Usage(format!("there is no process {pid}")))?;
    Ok(Watch::new(process))
}
