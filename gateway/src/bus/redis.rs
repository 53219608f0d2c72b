//! Over Redis: each node subscribes to its own inbox channel and to that of everyone, and publishes to those of others.
//!
//! - [`outbox`], [`speak`]: what is to be said: gathered, put into frames, published.
//! - [`inbox`], [`hear`]: what was published to this node: taken without waiting, read, handed on.
//! - [`pulse`]: a heartbeat through one's own channel, for a subscription may be there and dead.
//! - [`roll`]: who is there.
mod hear;
mod inbox;
mod outbox;
mod pulse;
mod roll;
mod speak;

pub use roll::{Kept, Record, Seen, State};

use crate::bus::{Bus, Mail, Mouth};
use crate::clock::Clock;
use crate::config::redis::RedisUrl;
use crate::metrics::{Loss, Metrics};
use crate::phase::Life;
use crate::redis::{Line, Missed, Settings};
use crate::supervise;
use inbox::Inbox;
use outbox::Outbox;
use pulse::Pulse;
use roll::Roll;
use speak::Speaker;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use turnway_bindings::peer::trunk::EVERYONE;
use turnway_core::id::NodeId;

/// A publish without an answer for so long is given up: its words are lost, or were said.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// One node's place on the bus. Ends when dropped.
pub struct Redis {
    node: NodeId,
    outbox: Arc<Outbox>,
    pulse: Arc<Pulse>,
    hears: Line,
    says: Line,
    entered: watch::Receiver<bool>,
    metrics: Arc<Metrics>,
    tasks: Vec<AbortHandle>,
}

/// What a place on the bus is made with.
pub struct Place {
    /// The server.
    pub url: RedisUrl,
    /// Whose place it is.
    pub node: NodeId,
    /// What it is called, for people.
    pub name: String,
    /// Where it serves clients, for people.
    pub address: String,
    /// Where to what is heard goes.
    pub mouth: Mouth,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What times heartbeats.
    pub clock: Clock,
    /// Whether it leaves, and why it is not ready.
    pub life: Life,
    /// What its acknowledgements survive.
    pub durability: Kept,
}

/// Where words to a node go.
pub fn channel(node: NodeId) -> String {
    format!("inbox:{{{node}}}")
}

// === impl Redis ===

impl Redis {
    /// Takes a place; it is there once [`Self::joined`] returns.
    pub fn open(place: Place, runtime: &Handle) -> Self {
        let Place { url, node, name, address, mouth, metrics, clock, life, durability } = place;
        let (outbox, pulse) = (Arc::new(Outbox::default()), Arc::new(Pulse::new(clock.clone())));
        let inbox = Arc::new(Inbox::new(Arc::clone(&pulse), Arc::clone(&metrics)));
        let settings = Settings {
            name: "bus in",
            answer_within: ANSWER_WITHIN,
            channels: vec![channel(node), channel(EVERYONE)],
            hears: Some(hear::hears(Arc::clone(&inbox))),
        };
        let hears = Line::open(url.clone(), settings, runtime);
        let settings =
            Settings { name: "bus out", answer_within: ANSWER_WITHIN, channels: Vec::new(), hears: None };
        let says = Line::open(url, settings, runtime);
        let speaker = Speaker {
            node,
            line: says.clone(),
            own: hears.clone(),
            outbox: Arc::clone(&outbox),
            pulse: Arc::clone(&pulse),
            mouth: mouth.clone(),
            metrics: Arc::clone(&metrics),
            life: life.clone(),
        };
        let (enters, entered) = watch::channel(false);
        let roll = Roll {
            node,
            name,
            address,
            line: says.clone(),
            clock,
            life: life.clone(),
            durability,
            metrics: Arc::clone(&metrics),
            pulse: Arc::clone(&pulse),
            mouth: mouth.clone(),
        };
        let tasks = [
            supervise::need(runtime, "bus out", speaker.run()),
            supervise::need(runtime, "bus in", hear::read(Arc::clone(&inbox), mouth, Arc::clone(&metrics))),
            supervise::need(runtime, "bus gaps", hear::watch(hears.clone(), inbox)),
            supervise::need(runtime, "list of nodes", roll.keep(enters)),
        ];
        let tasks = tasks.map(|task| task.abort_handle()).into();
        Self { node, outbox, pulse, hears, says, entered, metrics, tasks }
    }

    /// Waits until this node hears, and others can know of it: before that it would be spoken to in vain,
    /// and taken for dead.
    pub async fn joined(&self) {
        self.hears.ready().await;
        // Whoever enters lives as long as this.
        let _ = self.entered.clone().wait_for(|entered| *entered).await;
    }

    /// What Redis said when it did not let this node listen or speak.
    pub fn refusal(&self) -> Option<String> {
        let (code, detail) = self.hears.refusal().or_else(|| self.says.refusal())?;
        Some(format!("{code} {detail}"))
    }

    /// Who is there, or was until a while ago.
    pub async fn nodes(&self) -> Result<BTreeMap<NodeId, Seen>, Missed> {
        roll::seen(&self.says).await
    }

    /// How long what this node says takes to itself, in microseconds; where it does not hear itself any
    /// more, since when.
    pub fn lag(&self) -> Option<u64> {
        self.pulse.lag().map(roll::micros)
    }

    /// Waits until everything posted so far was published, or could not be.
    pub async fn said(&self) {
        self.outbox.empty().await;
    }

    /// Says what is still to be said, and takes its name from the roll.
    pub async fn leave(&self) {
        self.said().await;
        self.tasks.iter().for_each(AbortHandle::abort);
        if let Err(error) = roll::strike(&self.says, self.node).await {
            tracing::debug!(%error, "this node's record stays for a while");
        }
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
