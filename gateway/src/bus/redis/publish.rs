//! Publishes messages: those for one node are packed into frames, and the frames of a batch are sent in one pipeline.
//! Runs as a task of `bus::redis`.
use super::heartbeat::{Heartbeat, INTERVAL};
use super::inbox_channel;
use super::outbox::BusOutbox;
use crate::bus::{AddressedMessage, BusEvent, BusEventSender};
use crate::metrics::{Direction, LossReason, Metrics};
use crate::phase::{Lifecycle, UnreadyReason};
use crate::redis::{RedisCommandError, RedisConnection};
use ::redis::{Pipeline, Value, cmd, pipe};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::{MissedTickBehavior, interval};
use turnway_core::id::NodeId;
use turnway_core::protocol::codec::{self, BlobKind};
use turnway_wire::peer::frame::FramePacker;

/// Maximum pipelines without a response. At this number further messages wait, and are packed into the next batch.
const UNDER_WAY_MAX: usize = 8;

/// The task that publishes messages and heartbeats.
pub(super) struct BusPublisher {
    pub(super) node: NodeId,
    /// The connection for publishing.
    pub(super) publisher: RedisConnection,
    /// The connection with the subscriptions.
    pub(super) subscriber: RedisConnection,
    pub(super) outbox: Arc<BusOutbox>,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) events: BusEventSender,
    pub(super) metrics: Arc<Metrics>,
    /// Takes the reason if this node does not receive messages.
    pub(super) life: Lifecycle,
}

/// The frames of one pipeline.
struct PublishBatch {
    pipeline: Pipeline,
    /// The receiver and the size in bytes of each command.
    frames: Vec<(NodeId, usize)>,
    messages: u64,
}

// === impl BusPublisher ===

impl BusPublisher {
    pub(super) async fn run(self) {
        let mut under_way: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
        let mut beat = interval(INTERVAL);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Pipelines in flight are polled first, so that they are sent in the order in which they were built.
                biased;
                Some(()) = under_way.next() => {}
                _ = beat.tick() => {
                    self.check_subscription();
                    under_way.push(self.send_heartbeat().boxed());
                }
                messages = self.outbox.take(), if under_way.len() < UNDER_WAY_MAX => {
                    under_way.push(self.publish(self.pack(messages)).boxed());
                }
            }
        }
    }

    fn pack(&self, messages: Vec<AddressedMessage>) -> PublishBatch {
        let count = messages.len() as u64;
        let mut packers = BTreeMap::new();
        for (to, message) in messages {
            self.metrics.bus.count_message(Direction::Out, &message);
            packers.entry(to).or_insert_with(|| FramePacker::new(self.node)).add(message);
        }
        let mut parcel = PublishBatch { pipeline: pipe(), frames: Vec::new(), messages: count };
        for (to, packer) in packers {
            let (frames, lost) = packer.finish();
            if lost > 0 {
                self.metrics.bus.count_lost(LossReason::TooLarge, lost);
            }
            for frame in frames {
                parcel.frames.push((to, frame.len()));
                parcel.pipeline.cmd("PUBLISH").arg(inbox_channel(to)).arg(frame);
            }
        }
        parcel
    }

    async fn publish(&self, parcel: PublishBatch) {
        let answers = self.publisher.execute_all(&parcel.pipeline).await;
        match answers {
            Ok(answers) => self.handle_answers(&parcel, &answers).await,
            // Sent or not: a node that waits for an answer asks again.
            Err(RedisCommandError::NotSent | RedisCommandError::Unanswered | RedisCommandError::Refused { .. }) => {
                self.metrics.bus.count_lost(LossReason::Unsent, parcel.messages);
            }
        }
        self.outbox.done();
    }

    async fn handle_answers(&self, parcel: &PublishBatch, answers: &[Result<Value, RedisCommandError>]) {
        let mut gone = BTreeSet::new();
        for ((to, bytes), answer) in parcel.frames.iter().zip(answers) {
            match answer {
                Ok(Value::Int(0)) => {
                    self.metrics.bus.count_undelivered();
                    gone.insert(*to);
                }
                Ok(_) => self.metrics.bus.record_frame(Direction::Out, *bytes),
                Err(error) => {
                    self.metrics.bus.count_lost(LossReason::Unsent, 1);
                    tracing::warn!(%error, "Redis refuses to publish this node's messages");
                }
            }
        }
        for to in gone {
            // Waits while the driver is behind.
            self.events.send(BusEvent::NotSubscribed(to)).await;
        }
    }

    async fn send_heartbeat(&self) {
        let number = self.heartbeat.begin();
        let Ok(beat) = codec::encode(BlobKind::Heartbeat, &number) else { return };
        if self.publisher.execute(cmd("PUBLISH").arg(inbox_channel(self.node)).arg(beat)).await.is_ok() {
            self.heartbeat.record_published(number);
        }
    }

    /// Subscribes again if the subscription looks intact and no heartbeat returns over it.
    fn check_subscription(&self) {
        self.life.report(UnreadyReason::BusUnheard, self.heartbeat.is_overdue());
        if self.subscriber.generation().is_some() && self.heartbeat.is_subscription_dead() {
            tracing::warn!("the subscription to this node's inbox is dead; subscribing again");
            self.heartbeat.mark_dead();
            self.subscriber.reconnect();
        }
    }
}
