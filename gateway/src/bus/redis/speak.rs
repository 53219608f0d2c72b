//! Publishes messages: those for one node are packed into frames, and the frames of a batch are sent in one pipeline.
//! Runs as a task of `bus::redis`.
use super::channel;
use super::outbox::Outbox;
use super::pulse::{BEAT, Pulse};
use crate::bus::{Heard, Mail, Mouth};
use crate::metrics::{Direction, Loss, Metrics};
use crate::phase::{Life, Reason};
use crate::redis::{Line, Missed};
use ::redis::{Pipeline, Value, cmd, pipe};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::{MissedTickBehavior, interval};
use turnway_bindings::peer::frame::Packer;
use turnway_core::id::NodeId;
use turnway_core::protocol::codec::{self, Kind};

/// Maximum pipelines without a response. At this number further messages wait, and are packed into the next batch.
const UNDER_WAY_MAX: usize = 8;

/// The task that publishes messages and heartbeats.
pub(super) struct Speaker {
    pub(super) node: NodeId,
    /// The connection for publishing.
    pub(super) line: Line,
    /// The connection with the subscriptions.
    pub(super) own: Line,
    pub(super) outbox: Arc<Outbox>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) mouth: Mouth,
    pub(super) metrics: Arc<Metrics>,
    /// Takes the reason if this node does not receive messages.
    pub(super) life: Life,
}

/// The frames of one pipeline.
struct Parcel {
    pipeline: Pipeline,
    /// The receiver and the size in bytes of each command.
    frames: Vec<(NodeId, usize)>,
    words: u64,
}

// === impl Speaker ===

impl Speaker {
    pub(super) async fn run(self) {
        let mut under_way: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Pipelines in flight are polled first, so that they are sent in the order in which they were built.
                biased;
                Some(()) = under_way.next() => {}
                _ = beat.tick() => {
                    self.listen();
                    under_way.push(self.beat().boxed());
                }
                mail = self.outbox.take(), if under_way.len() < UNDER_WAY_MAX => {
                    under_way.push(self.say(self.pack(mail)).boxed());
                }
            }
        }
    }

    fn pack(&self, mail: Vec<Mail>) -> Parcel {
        let (words, mut packers) = (mail.len() as u64, BTreeMap::new());
        for (to, words) in mail {
            self.metrics.bus.said(Direction::Out, &words);
            packers.entry(to).or_insert_with(|| Packer::new(self.node)).add(words);
        }
        let mut parcel = Parcel { pipeline: pipe(), frames: Vec::new(), words };
        for (to, packer) in packers {
            let (frames, lost) = packer.finish();
            if lost > 0 {
                self.metrics.bus.lost(Loss::TooLarge, lost);
            }
            for frame in frames {
                parcel.frames.push((to, frame.len()));
                parcel.pipeline.cmd("PUBLISH").arg(channel(to)).arg(frame);
            }
        }
        parcel
    }

    async fn say(&self, parcel: Parcel) {
        let answers = self.line.ask_all(&parcel.pipeline).await;
        match answers {
            Ok(answers) => self.told(&parcel, &answers).await,
            // Sent or not: a node that waits for an answer asks again.
            Err(Missed::NotSent | Missed::Unanswered | Missed::Refused { .. }) => {
                self.metrics.bus.lost(Loss::Unsent, parcel.words);
            }
        }
        self.outbox.done();
    }

    async fn told(&self, parcel: &Parcel, answers: &[Result<Value, Missed>]) {
        let mut gone = BTreeSet::new();
        for ((to, bytes), answer) in parcel.frames.iter().zip(answers) {
            match answer {
                Ok(Value::Int(0)) => {
                    self.metrics.bus.unheard();
                    gone.insert(*to);
                }
                Ok(_) => self.metrics.bus.passed(Direction::Out, *bytes),
                Err(error) => {
                    self.metrics.bus.lost(Loss::Unsent, 1);
                    tracing::warn!(%error, "Redis refuses to publish this node's messages");
                }
            }
        }
        for to in gone {
            // Waits while the driver is behind.
            self.mouth.send(Heard::Unheard(to)).await;
        }
    }

    async fn beat(&self) {
        let number = self.pulse.begin();
        let Ok(beat) = codec::encode(Kind::Beat, &number) else { return };
        if self.line.ask(cmd("PUBLISH").arg(channel(self.node)).arg(beat)).await.is_ok() {
            self.pulse.taken(number);
        }
    }

    /// Subscribes again if the subscription looks intact and no heartbeat returns over it.
    fn listen(&self) {
        self.life.report(Reason::BusUnheard, self.pulse.is_unheard());
        if self.own.turn().is_some() && self.pulse.is_deaf() {
            tracing::warn!("the subscription to this node's inbox is dead; subscribing again");
            self.pulse.fell_silent();
            self.own.renew();
        }
    }
}
