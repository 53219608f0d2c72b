//! Loads that are the same for every system: paced, or a flood with a limited number of messages in flight.
use super::listener::Listener;
use super::system::{ChannelPublisher, OutgoingMessage};
use super::test_message::{TestMessage, test_message_text};
use super::workspace::pause;
use crate::error::{BenchError, ConnectionFailure};
use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Messages published at a time.
const BATCH: u64 = 64;
/// Time without any delivery after which a server counts as stuck.
const STUCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest recorded latency: one minute in nanoseconds.
const NANOS_MAX: u64 = 60_000_000_000;

/// Counts the messages that all listeners together have received, and their latencies.
pub struct DeliveryCounter {
    received: Cell<u64>,
    latencies: RefCell<Histogram<u64>>,
    /// True if latencies are recorded.
    is_timed: Cell<bool>,
    changed: Notify,
}

/// Listeners that receive in tasks of their own.
pub struct ListenerTasks {
    tasks: JoinSet<Result<(), ConnectionFailure>>,
    /// Messages received by all subscribers.
    pub tally: Rc<DeliveryCounter>,
}

// === impl DeliveryCounter ===

impl DeliveryCounter {
    /// Creates an empty counter.
    pub fn new(is_timed: bool) -> Rc<Self> {
        let ages = Histogram::new_with_bounds(1, NANOS_MAX, 3).expect("bounds that are constants");
        Rc::new(Self {
            received: Cell::new(0),
            latencies: RefCell::new(ages),
            is_timed: Cell::new(is_timed),
            changed: Notify::new(),
        })
    }

    /// Counts a message.
    pub fn count_message(&self, mark: TestMessage) {
        self.received.set(self.received.get() + 1);
        if self.is_timed.get() {
            let nanos = u64::try_from(mark.age().as_nanos()).unwrap_or(u64::MAX);
            self.latencies.borrow_mut().saturating_record(nanos);
        }
        self.changed.notify_one();
    }

    /// Returns the number of received messages.
    pub fn received_count(&self) -> u64 {
        self.received.get()
    }

    /// Waits until `all` messages have arrived, or no more come. Returns the number.
    pub async fn wait_for(&self, all: u64, patience: Duration) -> u64 {
        while self.received_count() < all && timeout(patience, self.changed.notified()).await.is_ok() {}
        self.received_count()
    }

    /// Returns a quantile of the latency in microseconds.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        crate::record::micros(self.latencies.borrow().value_at_quantile(quantile))
    }
}

// === impl ListenerTasks ===

impl ListenerTasks {
    /// Starts a task for each listener.
    pub fn begin(listeners: Vec<Listener>, tally: Rc<DeliveryCounter>) -> Self {
        let mut tasks = JoinSet::new();
        for mut listener in listeners {
            let tally = Rc::clone(&tally);
            tasks.spawn_local(async move {
                loop {
                    listener.receive(&mut |mark| tally.count_message(mark)).await?;
                    tokio::task::yield_now().await;
                }
            });
        }
        Self { tasks, tally }
    }

    /// Fails if a listener was disconnected.
    pub fn check(&mut self) -> Result<(), BenchError> {
        match self.tasks.try_join_next() {
            Some(Ok(Err(lost))) => Err(BenchError::Failed(lost.to_string())),
            Some(Ok(Ok(())) | Err(_)) | None => Ok(()),
        }
    }
}

/// Publishes the messages `from..to` at a steady rate, to the channels in turn.
pub async fn publish_paced(
    publisher: &mut dyn ChannelPublisher,
    channels: usize,
    rate: u32,
    from: u32,
    to: u32,
) -> Result<(), ConnectionFailure> {
    // The timer has a resolution of milliseconds: messages due in the same one are published together.
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let begun = Instant::now();
    let mut next = from;
    while next < to {
        ticks.tick().await;
        let due = begun.elapsed().as_secs_f64() * f64::from(rate);
        let mut lines = Vec::new();
        while next < to && f64::from(next - from) <= due {
            lines.push(OutgoingMessage { channel: next as usize % channels, text: test_message_text(next) });
            next += 1;
        }
        publisher.publish(&lines).await?;
    }
    Ok(())
}

/// Publishes to one channel as fast as possible with a limited number of messages in flight, for this time.
/// Returns deliveries per second.
pub async fn publish_flood(
    publisher: &mut dyn ChannelPublisher,
    crowd: &mut ListenerTasks,
    listeners: u64,
    outstanding: u64,
    lasting: Duration,
) -> Result<f64, BenchError> {
    let begun = Instant::now();
    let mut said = 0_u64;
    let tally = Rc::clone(&crowd.tally);
    while begun.elapsed() < lasting {
        let room = outstanding.saturating_sub(said - tally.received_count() / listeners);
        if room == 0 {
            if timeout(STUCK_TIMEOUT, tally.changed.notified()).await.is_err() {
                crowd.check()?;
                let heard = tally.received_count();
                return Err(BenchError::Failed(format!("stuck after {heard} deliveries")));
            }
            continue;
        }
        let lines: Vec<OutgoingMessage> = (0..room.min(BATCH))
            .map(|n| OutgoingMessage {
                channel: 0,
                text: test_message_text(u32::try_from(said + n).unwrap_or(u32::MAX)),
            })
            .collect();
        match timeout(STUCK_TIMEOUT, publisher.publish(&lines)).await {
            Ok(done) => done?,
            Err(_) => {
                return Err(BenchError::Failed(format!("stuck after {} deliveries", tally.received_count())));
            }
        }
        said += lines.len() as u64;
        tokio::task::yield_now().await;
    }
    crowd.check()?;
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 in any load")]
    let heard = tally.received_count() as f64;
    let rate = heard / begun.elapsed().as_secs_f64();
    let patience = Duration::from_secs(1);
    let all = said * listeners;
    let arrived = tally.wait_for(said * listeners, patience).await;
    if arrived != all {
        return Err(BenchError::Failed(format!("{rate:.0} a second, but {arrived} of {all} arrived")));
    }
    Ok(rate)
}

/// Waits for asynchronous setup, such as subscriptions that propagate between nodes.
pub async fn wait_for_setup(is_quick: bool) {
    pause(Duration::from_millis(if is_quick { 300 } else { 1000 })).await;
}
