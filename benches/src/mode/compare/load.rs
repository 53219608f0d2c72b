//! Loads that are the same for every system: paced, or as much as comes through with so many outstanding.
use super::ground::pass;
use super::listener::Listener;
use super::mark::{Mark, message};
use super::peer::{Line, Mouth};
use crate::trouble::{Lost, Trouble};
use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Messages handed over at a time.
const BATCH: u64 = 64;
/// A server that delivers nothing for so long is stuck.
const STUCK: Duration = Duration::from_secs(5);
/// A minute in nanoseconds: nothing that arrives at all arrives later.
const NANOS_MAX: u64 = 60_000_000_000;

/// What all listeners together have heard.
pub struct Tally {
    heard: Cell<u64>,
    ages: RefCell<Histogram<u64>>,
    /// Since when ages count.
    is_timed: Cell<bool>,
    changed: Notify,
}

/// Listeners that hear on their own.
pub struct Crowd {
    tasks: JoinSet<Result<(), Lost>>,
    /// What they heard.
    pub tally: Rc<Tally>,
}

// === impl Tally ===

impl Tally {
    /// Nothing yet.
    pub fn new(is_timed: bool) -> Rc<Self> {
        let ages = Histogram::new_with_bounds(1, NANOS_MAX, 3).expect("bounds that are constants");
        Rc::new(Self {
            heard: Cell::new(0),
            ages: RefCell::new(ages),
            is_timed: Cell::new(is_timed),
            changed: Notify::new(),
        })
    }

    /// One more.
    pub fn hear(&self, mark: Mark) {
        self.heard.set(self.heard.get() + 1);
        if self.is_timed.get() {
            let nanos = u64::try_from(mark.age().as_nanos()).unwrap_or(u64::MAX);
            self.ages.borrow_mut().saturating_record(nanos);
        }
        self.changed.notify_one();
    }

    /// How many.
    pub fn heard(&self) -> u64 {
        self.heard.get()
    }

    /// Waits until so many were heard, or nothing more comes; how many there are.
    pub async fn settled(&self, all: u64, patience: Duration) -> u64 {
        while self.heard() < all && timeout(patience, self.changed.notified()).await.is_ok() {}
        self.heard()
    }

    /// Microseconds from saying to hearing, at this share of all.
    pub fn age_us(&self, quantile: f64) -> f64 {
        crate::record::micros(self.ages.borrow().value_at_quantile(quantile))
    }
}

// === impl Crowd ===

impl Crowd {
    /// These hear from now on.
    pub fn begin(listeners: Vec<Listener>, tally: Rc<Tally>) -> Self {
        let mut tasks = JoinSet::new();
        for mut listener in listeners {
            let tally = Rc::clone(&tally);
            tasks.spawn_local(async move {
                loop {
                    listener.hear(&mut |mark| tally.hear(mark)).await?;
                    tokio::task::yield_now().await;
                }
            });
        }
        Self { tasks, tally }
    }

    /// None of them may have been cut off.
    pub fn check(&mut self) -> Result<(), Trouble> {
        match self.tasks.try_join_next() {
            Some(Ok(Err(lost))) => Err(Trouble::Failed(lost.to_string())),
            Some(Ok(Ok(())) | Err(_)) | None => Ok(()),
        }
    }
}

/// Messages at a steady pace, the channels in turn. The first is `from`.
pub async fn pace(mouth: &mut dyn Mouth, channels: usize, rate: u32, from: u32, to: u32) -> Result<(), Lost> {
    // The timer counts in milliseconds: what is due in one is said together.
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (begun, mut next) = (Instant::now(), from);
    while next < to {
        ticks.tick().await;
        let due = begun.elapsed().as_secs_f64() * f64::from(rate);
        let mut lines = Vec::new();
        while next < to && f64::from(next - from) <= due {
            lines.push(Line { channel: next as usize % channels, text: message(next) });
            next += 1;
        }
        mouth.say(&lines).await?;
    }
    Ok(())
}

/// As many as come through in this time with so many outstanding, to one channel with so many listeners;
/// deliveries a second.
pub async fn flood(
    mouth: &mut dyn Mouth,
    crowd: &mut Crowd,
    listeners: u64,
    outstanding: u64,
    lasting: Duration,
) -> Result<f64, Trouble> {
    let (begun, mut said, tally) = (Instant::now(), 0_u64, Rc::clone(&crowd.tally));
    while begun.elapsed() < lasting {
        let room = outstanding.saturating_sub(said - tally.heard() / listeners);
        if room == 0 {
            if timeout(STUCK, tally.changed.notified()).await.is_err() {
                crowd.check()?;
                let heard = tally.heard();
                return Err(Trouble::Failed(format!("stuck after {heard} deliveries")));
            }
            continue;
        }
        let lines: Vec<Line> = (0..room.min(BATCH))
            .map(|n| Line { channel: 0, text: message(u32::try_from(said + n).unwrap_or(u32::MAX)) })
            .collect();
        match timeout(STUCK, mouth.say(&lines)).await {
            Ok(done) => done?,
            Err(_) => return Err(Trouble::Failed(format!("stuck after {} deliveries", tally.heard()))),
        }
        said += lines.len() as u64;
        tokio::task::yield_now().await;
    }
    crowd.check()?;
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 in any load")]
    let heard = tally.heard() as f64;
    let rate = heard / begun.elapsed().as_secs_f64();
    let patience = Duration::from_secs(1);
    let (all, arrived) = (said * listeners, tally.settled(said * listeners, patience).await);
    if arrived != all {
        return Err(Trouble::Failed(format!("{rate:.0} a second, but {arrived} of {all} arrived")));
    }
    Ok(rate)
}

/// What was begun everywhere, such as subscriptions that travel between nodes, has come to its end.
pub async fn settle(is_quick: bool) {
    pass(Duration::from_millis(if is_quick { 300 } else { 1000 })).await;
}
