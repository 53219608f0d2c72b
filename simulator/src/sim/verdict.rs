//! Runs worlds, reports their failures, and how to replay them.
use super::faults::Faults;
use super::world::{Counters, World};
use crate::quiet_panics;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use turnway_core::mutant::{self, Mutant};

/// Reads a number from the environment.
pub fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs a closure with a planted bug; returns the message of a failed checker. Panics print nothing.
pub fn judge<T>(mutant: Mutant, run: impl FnOnce() -> T) -> Result<T, String> {
    mutant::plant(mutant);
    let outcome = quiet_panics::catch(run);
    mutant::plant(Mutant::None);
    outcome.map_err(|why| {
        let text = why.downcast_ref::<String>().map(String::as_str);
        text.or(why.downcast_ref::<&str>().copied()).unwrap_or("?").replace('\n', " ")
    })
}

/// Runs one seed's scenario with a planted bug.
pub fn verdict(seed: u64, mutant: Mutant) -> Result<World, String> {
    judge(mutant, || World::scenario(seed, mix(seed)))
}

/// Result of many seeds.
#[derive(Debug, Default)]
pub struct Campaign {
    /// Number of seeds run.
    pub seeds: u64,
    /// Sums of the counters.
    pub total: Counters,
    /// Maximum of each counter in one world.
    pub most: Counters,
    /// Failed seeds, and why.
    pub wrong: Vec<(u64, String)>,
}

impl Campaign {
    fn add(&mut self, tally: Counters) {
        self.seeds += 1;
        self.total.join(tally, |a, b| a + b);
        self.most.join(tally, u64::max);
    }
}

impl Counters {
    fn join(&mut self, other: Self, with: impl Fn(u64, u64) -> u64) {
        self.steps = with(self.steps, other.steps);
        self.ops = with(self.ops, other.ops);
        self.peer_messages = with(self.peer_messages, other.peer_messages);
        self.client_messages = with(self.client_messages, other.client_messages);
        self.turns = with(self.turns, other.turns);
        self.posts = with(self.posts, other.posts);
        self.tasks = with(self.tasks, other.tasks);
        self.gathered = with(self.gathered, other.gathered);
        self.presses = with(self.presses, other.presses);
        self.faults = with(self.faults, other.faults);
    }
}

/// Runs seeds from `from` on, on every core, until the time is up or `seeds` of them are done.
pub fn campaign(from: u64, seeds: u64, time: Duration) -> Campaign {
    let next = AtomicU64::new(from);
    let start = Instant::now();
    let all = Mutex::new(Campaign::default());
    let stop = AtomicBool::new(false);
    let work = || {
        while start.elapsed() < time && !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from.saturating_add(seeds) {
                return;
            }
            let outcome = verdict(seed, Mutant::None);
            let mut all = all.lock().expect("no thread dies with the lock");
            match outcome {
                Ok(world) => all.add(world.tally),
                Err(why) => {
                    all.wrong.push((seed, why));
                    stop.store(all.wrong.len() >= 20, Ordering::Relaxed);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..cores() {
            scope.spawn(work);
        }
    });
    all.into_inner().expect("no thread died with the lock")
}

/// Returns the number of worlds that run at once.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Returns the faults of a seed. Independently of the fault rates, a third of the worlds have member changes
/// (`SIM_COMPANY=1`: all), half a resumable agent (`SIM_LASTING=1`), half steering messages (`SIM_STEERING=1`), a
/// quarter handovers (`SIM_HANDOVERS=1`), a third actions (`SIM_ACTIONS=1`), a third rooms of a platform with adapters,
/// which operators bind to sessions (`SIM_CHANNELS=1`), and a third separate indexes (`SIM_INDEXED=1`). In half of the worlds
/// with rooms, agents give tasks (`SIM_TASKS=1`), in half of them messages are gathered (`SIM_DEBOUNCE=1`), and in half of
/// them answers have buttons (`SIM_BUTTONS=1`). In some worlds the store loses acknowledged writes, as after a failover to a
/// lagging replica; `SIM_FORGETFUL=1` makes it all of them.
pub fn mix(seed: u64) -> Faults {
    let faults = Faults::swarm(seed);
    let lasting = (seed / 10).is_multiple_of(2) || env("SIM_LASTING", 0) > 0;
    let faults = if lasting { faults.with_resumable_agent() } else { faults };
    let company = (seed / 20).is_multiple_of(3) || env("SIM_COMPANY", 0) > 0;
    let faults = if company { faults.with_member_changes() } else { faults };
    let handovers = (seed / 3).is_multiple_of(4) || env("SIM_HANDOVERS", 0) > 0;
    let faults = if handovers { faults.handovers() } else { faults };
    let actions = (seed / 7).is_multiple_of(3) || env("SIM_ACTIONS", 0) > 0;
    let faults = if actions { faults.actions() } else { faults };
    let steering = (seed / 5).is_multiple_of(2) || env("SIM_STEERING", 0) > 0;
    let faults = if steering { faults.steering() } else { faults };
    let channels = (seed / 2).is_multiple_of(3) || env("SIM_CHANNELS", 0) > 0;
    let faults = if channels { faults.channels() } else { faults };
    let tasks = channels && (seed / 6).is_multiple_of(2) || env("SIM_TASKS", 0) > 0;
    let faults = if tasks { faults.tasks() } else { faults };
    let debounce = channels && (seed / 12).is_multiple_of(2) || env("SIM_DEBOUNCE", 0) > 0;
    let faults = if debounce { faults.debounce() } else { faults };
    let buttons = channels && (seed / 24).is_multiple_of(2) || env("SIM_BUTTONS", 0) > 0;
    let faults = if buttons { faults.buttons() } else { faults };
    let indexed = (seed / 4).is_multiple_of(3) || env("SIM_INDEXED", 0) > 0;
    let faults = if indexed { faults.indexed() } else { faults };
    if env("SIM_FORGETFUL", 0) > 0 { faults.with_lost_writes() } else { faults }
}
