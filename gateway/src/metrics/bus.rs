//! What nodes say to each other, and what of it is lost.
use super::links::Direction;
use super::workshop::{Grid, Workshop};
use super::{buckets, label_values};
use prometheus::{Histogram, IntCounter};
use std::time::Duration;
use turnway_bindings::peer::Words;

/// What is counted of the bus.
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
    /// The kinds of words.
    Said {
        /// Something lies in an inbox or a control lane.
        Bell = "bell",
        /// An input is in its owner's hands.
        Taken = "taken",
        /// A control entry is answered.
        Answered = "answered",
        /// Rung at the wrong door.
        NotMine = "not_mine",
        /// Somebody listens from now on.
        Hello = "hello",
        /// Durable facts.
        Facts = "facts",
        /// A piece of an answer.
        Chunk = "chunk",
        /// A piece is missing.
        Want = "want",
        /// Where logs end.
        Beacon = "beacon",
        /// How far they are known.
        Have = "have",
        /// An offer to take over.
        Adopt = "adopt",
        /// Is somebody there?
        Knock = "knock",
        /// A piece of what a process prints.
        Printed = "printed",
        /// Of agents that have dialed in at another node.
        Trunk = "trunk",
        /// A question whether the node would own a session.
        Reserve = "reserve",
        /// The answer that it would.
        Reserved = "reserved",
    }
}

label_values! {
    /// Why words did not get through this node.
    pub Loss {
        /// More was to be said than could be.
        Outbox = "outbox",
        /// More was heard than could be taken.
        Inbox = "inbox",
        /// They could not be handed over.
        Unsent = "unsent",
        /// They fit in no frame.
        TooLarge = "too_large",
        /// They are of a version that this release does not read.
        Version = "version",
        /// They are no frame.
        Unreadable = "unreadable",
    }
}

label_values! {
    /// Why words may have been missed.
    pub Lapse {
        /// The subscription's connection broke.
        Broken = "broken",
        /// The subscription stood, and nothing came by it any more.
        Deaf = "deaf",
        /// More was heard than could be taken.
        Overflow = "overflow",
    }
}

// === impl BusMetrics ===

impl BusMetrics {
    pub(super) fn register(workshop: &mut Workshop<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            frames: workshop.counters(
                "turnway_bus_frames_total",
                "Frames of and to other nodes; each has the words of one moment.",
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
                "What nodes said to each other, by what it was; bells that Redis rang for a node are counted where they are heard.",
                &[("direction", &Direction::NAMES), ("kind", &Said::NAMES)],
            )?,
            unheard: workshop
                .counter("turnway_bus_unheard_total", "Frames to a node that nobody listened to.")?,
            dropped: workshop.counters(
                "turnway_bus_dropped_total",
                "Lost here, by reason: words, but frames where they were heard and not read.",
                "reason",
                &Loss::NAMES,
            )?,
            gaps: workshop.counters(
                "turnway_bus_gaps_total",
                "Times this node may have missed words, and read anew all that its links follow.",
                "cause",
                &Lapse::NAMES,
            )?,
            heartbeat: workshop.histogram(
                "turnway_bus_heartbeat_seconds",
                "From this node to itself by way of the bus.",
                &buckets::SHORT,
            )?,
        })
    }

    /// A frame passed.
    pub fn passed(&self, direction: Direction, bytes: usize) {
        self.frames[direction as usize].inc();
        self.bytes[direction as usize].inc_by(bytes as u64);
    }

    /// Words passed.
    pub fn said(&self, direction: Direction, words: &Words) {
        if let Some(counter) = self.words.at(direction as usize, said(words) as usize) {
            counter.inc();
        }
    }

    /// A frame found nobody.
    pub fn unheard(&self) {
        self.unheard.inc();
    }

    /// So much was lost.
    pub fn lost(&self, why: Loss, count: u64) {
        self.dropped[why as usize].inc_by(count);
    }

    /// Words may have been missed.
    pub fn lapsed(&self, why: Lapse) {
        self.gaps[why as usize].inc();
    }

    /// A heartbeat came back after so long.
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
