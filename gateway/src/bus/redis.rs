//! The bus over Redis pub/sub: each node subscribes to its own inbox channel and to the channel of all nodes. Sends by
//! [`outbox`] and [`speak`], receives by [`inbox`] and [`hear`]; [`pulse`] detects dead subscriptions by a heartbeat
//! through the node's own channel, and [`roll`] keeps the list of nodes. Opened by `app::build`.
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

/// Timeout of a publish: after it the messages may have been lost, or sent.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// The connection of one node to the bus. Ends when dropped.
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

/// The configuration of a node's connection to the bus.
pub struct Place {
    pub url: RedisUrl,
    pub node: NodeId,
    /// A name for people.
    pub name: String,
    /// The address at which the node serves clients, for people.
    pub address: String,
    /// Receives the events of the bus.
    pub mouth: Mouth,
    pub metrics: Arc<Metrics>,
    /// Times the heartbeats.
    pub clock: Clock,
    /// Says whether the node drains; takes the reason if the bus is not heard.
    pub life: Life,
    /// The durability of the node's acknowledgements.
    pub durability: Kept,
}

/// Returns the pub/sub channel of a node's inbox.
pub fn channel(node: NodeId) -> String {
    format!("inbox:{{{node}}}")
}

// === impl Redis ===

impl Redis {
    /// Opens the connection; the bus is usable once [`Self::joined`] returns.
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

    /// Waits until this node is subscribed and listed. Before that, other nodes would send to it in vain and take it
    /// for dead.
    pub async fn joined(&self) {
        self.hears.ready().await;
        // The task that sends this lives as long as `self`.
        let _ = self.entered.clone().wait_for(|entered| *entered).await;
    }

    /// Returns the error with which Redis refused to let this node subscribe or publish.
    pub fn refusal(&self) -> Option<String> {
        let (code, detail) = self.hears.refusal().or_else(|| self.says.refusal())?;
        Some(format!("{code} {detail}"))
    }

    /// Returns the nodes that are there, or were until a while ago.
    pub async fn nodes(&self) -> Result<BTreeMap<NodeId, Seen>, Missed> {
        roll::seen(&self.says).await
    }

    /// Returns how long a message takes from this node to itself, in microseconds; if the heartbeat is overdue, the
    /// time since the last one.
    pub fn lag(&self) -> Option<u64> {
        self.pulse.lag().map(roll::micros)
    }

    /// Waits until everything posted so far was published, or has failed.
    pub async fn said(&self) {
        self.outbox.empty().await;
    }

    /// Publishes the remaining messages, and removes this node from the list of nodes.
    pub async fn leave(&self) {
        self.said().await;
        self.tasks.iter().for_each(AbortHandle::abort);
        if let Err(error) = roll::strike(&self.says, self.node).await {
            tracing::debug!(%error, "this node's record could not be removed; it expires later");
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
