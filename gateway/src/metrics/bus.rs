//! Metrics of the bus: messages between nodes, and messages lost.
use super::links::Direction;
use super::workshop::{Grid, Workshop};
use super::{buckets, label_values};
use prometheus::{Histogram, IntCounter};
use std::time::Duration;
use turnway_bindings::peer::Words;

/// The metrics of the bus.
#[derive(Debug)]
pub struct BusMetrics {
    frames: [IntCounter; Direction::NAMES.len()],
    bytes: [IntCounter; Direction::NAMES.len()],
    words: Grid<IntCounter>,
    unheard: IntCounter,
    dropped: [IntCounter; Loss::NAMES.len()],
    gaps: [IntCounter; Lapse::NAMES.len()],
    heartbeat: Histogram,
}

label_values! {
    /// The kind of a message between nodes.
    Said {
        /// An inbox or a control lane has a new entry.
        Bell = "bell",
        /// The owner has taken an input.
        Taken = "taken",
        /// A control entry has been answered.
        Answered = "answered",
        /// The offer went to a node that does not own the session.
        NotMine = "not_mine",
        /// A node has begun to subscribe to a session.
        Hello = "hello",
        /// Durable facts.
        Facts = "facts",
        /// A piece of an answer.
        Chunk = "chunk",
        /// A request for a missing piece of text.
        Want = "want",
        /// The positions where logs end.
        Beacon = "beacon",
        /// The positions up to which logs are known.
        Have = "have",
        /// An offer to hand a session over.
        Adopt = "adopt",
        /// A probe whether a node is alive.
        Knock = "knock",
        /// A piece of a process's output.
        Printed = "printed",
        /// A message about attempts at agents that have dialed in at another node.
        Trunk = "trunk",
        /// A question whether the node would own a session.
        Reserve = "reserve",
        /// The answer that the node would own the session.
        Reserved = "reserved",
    }
}

label_values! {
    /// The reason why messages were lost at this node.
    pub Loss {
        /// The outgoing queue was full.
        Outbox = "outbox",
        /// The incoming queue was full.
        Inbox = "inbox",
        /// The bus could not send them.
        Unsent = "unsent",
        /// They do not fit into a frame.
        TooLarge = "too_large",
        /// Their version is not supported by this release.
        Version = "version",
        /// They are not a frame.
        Unreadable = "unreadable",
    }
}

label_values! {
    /// The reason why messages may have been missed.
    pub Lapse {
        /// The subscription's connection broke.
        Broken = "broken",
        /// The subscription was open, but delivered nothing any more.
        Deaf = "deaf",
        /// More arrived than could be taken.
        Overflow = "overflow",
    }
}

// === impl BusMetrics ===

impl BusMetrics {
    pub(super) fn register(workshop: &mut Workshop<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            frames: workshop.counters(
                "turnway_bus_frames_total",
                "Frames from and to other nodes; each holds the messages of one moment.",
                "direction",
                &Direction::NAMES,
            )?,
            bytes: workshop.counters(
                "turnway_bus_bytes_total",
                "Bytes of these frames.",
                "direction",
                &Direction::NAMES,
            )?,
            words: workshop.counter_grid(
                "turnway_bus_words_total",
                "Messages between nodes, by kind; offers that Redis sends for a node are counted at the receiver.",
                &[("direction", &Direction::NAMES), ("kind", &Said::NAMES)],
            )?,
            unheard: workshop
                .counter("turnway_bus_unheard_total", "Frames to a node that had no subscriber.")?,
            dropped: workshop.counters(
                "turnway_bus_dropped_total",
                "Messages lost at this node, by reason; for `version` and `unreadable` the unit is frames.",
                "reason",
                &Loss::NAMES,
            )?,
            gaps: workshop.counters(
                "turnway_bus_gaps_total",
                "Times this node may have missed messages and therefore read all subscribed sessions again.",
                "cause",
                &Lapse::NAMES,
            )?,
            heartbeat: workshop.histogram(
                "turnway_bus_heartbeat_seconds",
                "Round-trip time of a message from this node to itself over the bus.",
                &buckets::SHORT,
            )?,
        })
    }

    /// Records a frame that was sent or received.
    pub fn passed(&self, direction: Direction, bytes: usize) {
        self.frames[direction as usize].inc();
        self.bytes[direction as usize].inc_by(bytes as u64);
    }

    /// Counts a message that was sent or received.
    pub fn said(&self, direction: Direction, words: &Words) {
        if let Some(counter) = self.words.at(direction as usize, said(words) as usize) {
            counter.inc();
        }
    }

    /// Counts a frame to a node that had no subscriber.
    pub fn unheard(&self) {
        self.unheard.inc();
    }

    /// Counts lost messages.
    pub fn lost(&self, why: Loss, count: u64) {
        self.dropped[why as usize].inc_by(count);
    }

    /// Counts a gap, after which messages may have been missed.
    pub fn lapsed(&self, why: Lapse) {
        self.gaps[why as usize].inc();
    }

    /// Records the round-trip time of a heartbeat.
    pub fn beat(&self, took: Duration) {
        self.heartbeat.observe(took.as_secs_f64());
    }
}

fn said(words: &Words) -> Said {
    match words {
        Words::Bell { .. } => Said::Bell,
        Words::Taken { .. } => Said::Taken,
        Words::Answered { .. } => Said::Answered,
        Words::NotMine { .. } => Said::NotMine,
        Words::Hello { .. } => Said::Hello,
        Words::Facts { .. } => Said::Facts,
        Words::Chunk { .. } => Said::Chunk,
        Words::Want { .. } => Said::Want,
        Words::Beacon { .. } => Said::Beacon,
        Words::Have { .. } => Said::Have,
        Words::Adopt { .. } => Said::Adopt,
        Words::Knock => Said::Knock,
        Words::Printed { .. } => Said::Printed,
        Words::Trunk(_) => Said::Trunk,
        Words::Reserve { .. } => Said::Reserve,
        Words::Reserved { .. } => Said::Reserved,
    }
}
