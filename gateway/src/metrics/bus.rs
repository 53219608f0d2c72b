//! Metrics of the bus: messages between nodes, and messages lost.
use super::family::{FamilyBuilder, LazyChildren};
use super::links::Direction;
use super::{buckets, label_values};
use prometheus::{Histogram, IntCounter};
use std::time::Duration;
use turnway_wire::peer::PeerMessage;

/// The metrics of the bus.
#[derive(Debug)]
pub struct BusMetrics {
    frames: [IntCounter; Direction::NAMES.len()],
    bytes: [IntCounter; Direction::NAMES.len()],
    messages: LazyChildren<IntCounter>,
    undelivered: IntCounter,
    dropped: [IntCounter; LossReason::NAMES.len()],
    gaps: [IntCounter; GapCause::NAMES.len()],
    heartbeat: Histogram,
}

label_values! {
    /// The kind of a message between nodes.
    PeerMessageKind {
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
        /// An order to send a part of a delivery.
        Deliver = "deliver",
        /// The result of an attempt to send a part.
        DeliveryReport = "delivery_report",
        /// The node has no adapter that sends for the account.
        NoAdapter = "no_adapter",
        /// An adapter of the node sends for the account.
        AdapterArrived = "adapter_arrived",
        /// A typing signal or a preview for an adapter of the node.
        Signal = "signal",
        /// The adapter shows no previews.
        PreviewUnwanted = "preview_unwanted",
    }
}

label_values! {
    /// The reason why messages were lost at this node.
    pub LossReason {
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
    pub GapCause {
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
    pub(super) fn register(workshop: &mut FamilyBuilder<'_>) -> prometheus::Result<Self> {
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
            messages: workshop.counter_grid(
                "turnway_bus_words_total",
                "Messages between nodes, by kind; a `bell` that Redis sends for a node is counted at the receiver.",
                &[("direction", &Direction::NAMES), ("kind", &PeerMessageKind::NAMES)],
            )?,
            undelivered: workshop.counter("turnway_bus_unheard_total", "Frames to a node that had no subscriber.")?,
            dropped: workshop.counters(
                "turnway_bus_dropped_total",
                "Messages lost at this node, by reason; for `version` and `unreadable` the unit is frames.",
                "reason",
                &LossReason::NAMES,
            )?,
            gaps: workshop.counters(
                "turnway_bus_gaps_total",
                "Times this node may have missed messages and therefore read all subscribed sessions again.",
                "cause",
                &GapCause::NAMES,
            )?,
            heartbeat: workshop.histogram(
                "turnway_bus_heartbeat_seconds",
                "Round-trip time of a message from this node to itself over the bus.",
                &buckets::SHORT,
            )?,
        })
    }

    /// Records a frame that was sent or received.
    pub fn record_frame(&self, direction: Direction, bytes: usize) {
        self.frames[direction as usize].inc();
        self.bytes[direction as usize].inc_by(bytes as u64);
    }

    /// Counts a message that was sent or received.
    pub fn count_message(&self, direction: Direction, message: &PeerMessage) {
        if let Some(counter) = self.messages.child(direction as usize, message_kind(message) as usize) {
            counter.inc();
        }
    }

    /// Counts a frame to a node that had no subscriber.
    pub fn count_undelivered(&self) {
        self.undelivered.inc();
    }

    /// Counts lost messages.
    pub fn count_lost(&self, why: LossReason, count: u64) {
        self.dropped[why as usize].inc_by(count);
    }

    /// Counts a gap, after which messages may have been missed.
    pub fn count_gap(&self, why: GapCause) {
        self.gaps[why as usize].inc();
    }

    /// Records the round-trip time of a heartbeat.
    pub fn record_heartbeat(&self, took: Duration) {
        self.heartbeat.observe(took.as_secs_f64());
    }
}

fn message_kind(message: &PeerMessage) -> PeerMessageKind {
    match message {
        PeerMessage::Offer { .. } => PeerMessageKind::Bell,
        PeerMessage::InputAccepted { .. } => PeerMessageKind::Taken,
        PeerMessage::ControlAnswered { .. } => PeerMessageKind::Answered,
        PeerMessage::NotOwner { .. } => PeerMessageKind::NotMine,
        PeerMessage::Subscribed { .. } => PeerMessageKind::Hello,
        PeerMessage::Facts { .. } => PeerMessageKind::Facts,
        PeerMessage::Chunk { .. } => PeerMessageKind::Chunk,
        PeerMessage::FetchText { .. } => PeerMessageKind::Want,
        PeerMessage::TailDigest { .. } => PeerMessageKind::Beacon,
        PeerMessage::Ack { .. } => PeerMessageKind::Have,
        PeerMessage::HandOff { .. } => PeerMessageKind::Adopt,
        PeerMessage::Probe => PeerMessageKind::Knock,
        PeerMessage::ProcessOutput { .. } => PeerMessageKind::Printed,
        PeerMessage::RemoteAttempt(_) => PeerMessageKind::Trunk,
        PeerMessage::Reserve { .. } => PeerMessageKind::Reserve,
        PeerMessage::Reserved { .. } => PeerMessageKind::Reserved,
        PeerMessage::Deliver { .. } => PeerMessageKind::Deliver,
        PeerMessage::DeliveryReport { .. } => PeerMessageKind::DeliveryReport,
        PeerMessage::NoAdapter { .. } => PeerMessageKind::NoAdapter,
        PeerMessage::AdapterArrived { .. } => PeerMessageKind::AdapterArrived,
        PeerMessage::Signal { .. } => PeerMessageKind::Signal,
        PeerMessage::PreviewUnwanted { .. } => PeerMessageKind::PreviewUnwanted,
    }
}
