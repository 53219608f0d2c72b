//! The bus over Redis pub/sub: each node subscribes to its own inbox channel and to the channel of all nodes. Sends by
//! `outbox` and `publish`, receives by `inbox` and `receive`; `heartbeat` detects dead subscriptions by messages
//! through the node's own channel, and `node_list` keeps the list of nodes. Opened by `app::build`.
mod heartbeat;
mod inbox;
mod node_list;
mod outbox;
mod publish;
mod receive;

pub use node_list::{NodeDurability, NodeRecord, NodeState, NodeStatus};

use crate::bus::{AddressedMessage, Bus, BusEventSender};
use crate::clock::Clock;
use crate::config::redis::RedisUrl;
use crate::metrics::{LossReason, Metrics};
use crate::phase::Lifecycle;
use crate::redis::{RedisCommandError, RedisConnection, RedisConnectionOptions};
use crate::supervise;
use heartbeat::Heartbeat;
use inbox::BusInbox;
use node_list::NodeListing;
use outbox::BusOutbox;
use publish::BusPublisher;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use turnway_core::id::NodeId;
use turnway_wire::peer::remote::ALL_NODES;

/// Timeout of a publish: after it the messages may have been lost, or sent.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(4);

/// The connection of one node to the bus. Ends when dropped.
pub struct RedisBus {
    node: NodeId,
    outbox: Arc<BusOutbox>,
    heartbeat: Arc<Heartbeat>,
    subscriber: RedisConnection,
    publisher: RedisConnection,
    is_listed: watch::Receiver<bool>,
    metrics: Arc<Metrics>,
    tasks: Vec<AbortHandle>,
}

/// The configuration of a node's connection to the bus.
pub struct RedisBusOptions {
    pub url: RedisUrl,
    pub node: NodeId,
    /// A name for people.
    pub name: String,
    /// The address at which the node serves clients, for people.
    pub address: String,
    /// Receives the events of the bus.
    pub events: BusEventSender,
    pub metrics: Arc<Metrics>,
    /// Times the heartbeats.
    pub clock: Clock,
    /// Says whether the node drains; takes the reason if the bus is not heard.
    pub life: Lifecycle,
    /// The durability of the node's acknowledgements.
    pub durability: NodeDurability,
}

/// Returns the pub/sub channel of a node's inbox.
pub fn inbox_channel(node: NodeId) -> String {
    format!("inbox:{{{node}}}")
}

// === impl RedisBus ===

impl RedisBus {
    /// Opens the connection; the bus is usable once [`Self::wait_joined`] returns.
    pub fn open(options: RedisBusOptions, runtime: &Handle) -> Self {
        let RedisBusOptions { url, node, name, address, events, metrics, clock, life, durability } = options;
        let outbox = Arc::new(BusOutbox::default());
        let heartbeat = Arc::new(Heartbeat::new(clock.clone()));
        let inbox = Arc::new(BusInbox::new(Arc::clone(&heartbeat), Arc::clone(&metrics)));
        let settings = RedisConnectionOptions {
            name: "bus in",
            command_timeout: PUBLISH_TIMEOUT,
            channels: vec![inbox_channel(node), inbox_channel(ALL_NODES)],
            push_handler: Some(receive::push_handler(Arc::clone(&inbox))),
        };
        let subscriber = RedisConnection::open(url.clone(), settings, runtime);
        let settings = RedisConnectionOptions {
            name: "bus out",
            command_timeout: PUBLISH_TIMEOUT,
            channels: Vec::new(),
            push_handler: None,
        };
        let publisher = RedisConnection::open(url, settings, runtime);
        let speaker = BusPublisher {
            node,
            publisher: publisher.clone(),
            subscriber: subscriber.clone(),
            outbox: Arc::clone(&outbox),
            heartbeat: Arc::clone(&heartbeat),
            events: events.clone(),
            metrics: Arc::clone(&metrics),
            life: life.clone(),
        };
        let (enters, is_listed) = watch::channel(false);
        let roll = NodeListing {
            node,
            name,
            address,
            connection: publisher.clone(),
            clock,
            life: life.clone(),
            durability,
            metrics: Arc::clone(&metrics),
            heartbeat: Arc::clone(&heartbeat),
            events: events.clone(),
        };
        let tasks = [
            supervise::spawn_required(runtime, "bus out", speaker.run()),
            supervise::spawn_required(
                runtime,
                "bus in",
                receive::forward_frames(Arc::clone(&inbox), events, Arc::clone(&metrics)),
            ),
            supervise::spawn_required(runtime, "bus gaps", receive::report_gaps(subscriber.clone(), inbox)),
            supervise::spawn_required(runtime, "list of nodes", roll.run(enters)),
        ];
        let tasks = tasks.map(|task| task.abort_handle()).into();
        Self { node, outbox, heartbeat, subscriber, publisher, is_listed, metrics, tasks }
    }

    /// Waits until this node is subscribed and listed. Before that, other nodes would send to it in vain and take it
    /// for dead.
    pub async fn wait_joined(&self) {
        self.subscriber.wait_connected().await;
        // The task that sends this lives as long as `self`.
        let _ = self.is_listed.clone().wait_for(|entered| *entered).await;
    }

    /// Returns the error with which Redis refused to let this node subscribe or publish.
    pub fn refusal(&self) -> Option<String> {
        let (code, detail) = self.subscriber.last_error().or_else(|| self.publisher.last_error())?;
        Some(format!("{code} {detail}"))
    }

    /// Returns the nodes that are there, or were until a while ago.
    pub async fn nodes(&self) -> Result<BTreeMap<NodeId, NodeStatus>, RedisCommandError> {
        node_list::read_statuses(&self.publisher).await
    }

    /// Returns how long a message takes from this node to itself, in microseconds; if the heartbeat is overdue, the
    /// time since the last one.
    pub fn lag_us(&self) -> Option<u64> {
        self.heartbeat.lag().map(node_list::micros)
    }

    /// Waits until everything posted so far was published, or has failed.
    pub async fn flush(&self) {
        self.outbox.wait_empty().await;
    }

    /// Publishes the remaining messages, and removes this node from the list of nodes.
    pub async fn leave(&self) {
        self.flush().await;
        self.tasks.iter().for_each(AbortHandle::abort);
        if let Err(error) = node_list::remove_record(&self.publisher, self.node).await {
            tracing::debug!(%error, "this node's record could not be removed; it expires later");
        }
    }
}

impl Bus for RedisBus {
    fn publish(&self, messages: &mut Vec<AddressedMessage>) {
        let lost = self.outbox.push(messages);
        if lost > 0 {
            self.metrics.bus.count_lost(LossReason::Outbox, lost);
        }
    }
}

impl Drop for RedisBus {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}
