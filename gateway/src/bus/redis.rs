//! Over Redis: each node subscribes to its own inbox channel, and publishes to those of others.
//!
//! - [`outbox`], [`speak`]: what is to be said: gathered, put into frames, published.
//! - [`inbox`], [`hear`]: what was published to this node: taken without waiting, read, handed on.
//! - [`pulse`]: a heartbeat through one's own channel, for a subscription may be there and dead.
mod hear;
mod inbox;
mod outbox;
mod pulse;
mod speak;

use crate::bus::{Bus, Mail, Mouth};
use crate::clock::Clock;
use crate::config::redis::RedisUrl;
use crate::metrics::{Loss, Metrics};
use crate::redis::{Line, Settings};
use inbox::Inbox;
use outbox::Outbox;
use pulse::Pulse;
use speak::Speaker;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use turnway_core::id::NodeId;

/// A publish without an answer for so long is given up: its words are lost, or were said.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// One node's place on the bus. Ends when dropped.
pub struct Redis {
    outbox: Arc<Outbox>,
    hears: Line,
    metrics: Arc<Metrics>,
    tasks: Vec<AbortHandle>,
}

/// What a place on the bus is made with.
pub struct Place {
    /// The server.
    pub url: RedisUrl,
    /// Whose place it is.
    pub node: NodeId,
    /// Where to what is heard goes.
    pub mouth: Mouth,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What times heartbeats.
    pub clock: Clock,
}

/// Where words to a node go.
pub fn channel(node: NodeId) -> String {
    format!("inbox:{{{node}}}")
}

// === impl Redis ===

impl Redis {
    /// Takes a place; it is heard there once [`Self::ready`] returns.
    pub fn open(place: Place, runtime: &Handle) -> Self {
        let Place { url, node, mouth, metrics, clock } = place;
        let (outbox, pulse) = (Arc::new(Outbox::default()), Arc::new(Pulse::new(clock.clone())));
        let inbox = Arc::new(Inbox::new(Arc::clone(&pulse), Arc::clone(&metrics)));
        let settings = Settings {
            name: "bus in",
            answer_within: ANSWER_WITHIN,
            channels: vec![channel(node)],
            hears: Some(hear::hears(Arc::clone(&inbox))),
        };
        let hears = Line::open(url.clone(), settings, runtime);
        let settings =
            Settings { name: "bus out", answer_within: ANSWER_WITHIN, channels: Vec::new(), hears: None };
        let speaker = Speaker {
            node,
            line: Line::open(url, settings, runtime),
            own: hears.clone(),
            outbox: Arc::clone(&outbox),
            pulse,
            mouth: mouth.clone(),
            metrics: Arc::clone(&metrics),
        };
        let tasks = [
            runtime.spawn(speaker.run()),
            runtime.spawn(hear::read(Arc::clone(&inbox), mouth, Arc::clone(&metrics))),
            runtime.spawn(hear::watch(hears.clone(), inbox)),
        ];
        Self { outbox, hears, metrics, tasks: tasks.map(|task| task.abort_handle()).into() }
    }

    /// Waits until this node is heard: before that its words may be answered, and the answers lost.
    pub async fn ready(&self) {
        self.hears.ready().await;
    }

    /// Waits until everything posted so far was published, or could not be.
    pub async fn said(&self) {
        self.outbox.empty().await;
    }
}

impl Bus for Redis {
    fn post(&self, mail: &mut Vec<Mail>) {
        let lost = self.outbox.put(mail);
        if lost > 0 {
            self.metrics.bus.lost(Loss::Outbox, lost);
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}
