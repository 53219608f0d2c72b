//! Binary encoding of the messages that one node sends to another at once (S-14).
mod version_1;

use super::PeerMessage;
use super::remote::{CallProgress, RemoteMessage};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use turnway_core::id::{Cursor, Epoch, InboxPosition, NodeId, OwnershipSnapshot, Seq, SessionKey};
use turnway_core::limits::FRAME_MESSAGES_MAX;
use turnway_core::protocol::codec::{self, BatchEncoder, BlobKind, CodecError};
use turnway_core::protocol::signal::SignalKind;
use turnway_core::protocol::versioned::VersionedForm;
use version_1::{KeyVersion1, MessageVersion1};

/// Exclusive upper bound of every number that a node counts or reads from a clock, so that no sum of two overflows.
const NUMBER_MAX: u64 = 1 << 53;

/// The messages that one node sent at once.
///
/// A frame is the codec's header and `(NodeId, [PeerMessage])`, with messages in the form of [`version_1`]. Numbers are
/// fixed-width little-endian; texts, lists and variants are prefixed with their length or index; facts, inputs and
/// control entries are JSON texts. A node reads only the version that it writes, which the header names; unreadable
/// frames are dropped, because messages may be lost.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerFrame {
    pub from: NodeId,
    pub messages: Vec<PeerMessage>,
}

impl PeerFrame {
    /// Parses a frame. Invalid bytes allocate no more memory than their length and return an error.
    pub fn decode(blob: &[u8]) -> Result<Self, CodecError> {
        let (from, MessageList(messages)) = codec::decode(BlobKind::Frame, blob)?;
        if messages.iter().all(has_valid_numbers) { Ok(Self { from, messages }) } else { Err(CodecError::Body) }
    }
}

/// Returns the beginning of a frame with one offer, up to the fields that only the store knows; `None` if the
/// message is too large for a frame. The store appends, in this order:
///
/// - the owner: a byte 1, the ids of the node and its incarnation (16 bytes each), the epoch (8);
/// - the entry: 0 for an input or 1 for a control entry (4), its position and the preceding position (8 each);
/// - its JSON text, after its length (8).
///
/// All numbers are little-endian. The order is part of the contract of the functions in Redis with every release,
/// as is the frame's version.
pub fn offer_prefix(from: NodeId, key: &SessionKey, json: usize) -> Option<Vec<u8>> {
    /// Bytes of the owner, of the entry's kind and positions, and of a length.
    const REST: usize = (1 + 16 + 16 + 8) + (4 + 8 + 8) + 8;
    /// One message, and the index of its variant; see [`MessageVersion1`].
    const ONE_BELL: (u64, u32) = (1, 0);
    codec::encode_head(BlobKind::Frame, &(from, ONE_BELL, KeyVersion1::borrow(key)), REST + json).ok()
}

/// Packs messages for one node into as few frames as possible, in order.
#[derive(Debug)]
pub struct FramePacker {
    from: NodeId,
    batch: Option<BatchEncoder>,
    frames: Vec<Vec<u8>>,
    dropped: u64,
}

impl FramePacker {
    /// Creates an empty packer.
    pub fn new(from: NodeId) -> Self {
        Self { from, batch: None, frames: Vec::new(), dropped: 0 }
    }

    /// Adds a message. A message that is too large for one frame is split, if it can be.
    pub fn add(&mut self, message: PeerMessage) {
        if self.batch.as_ref().is_some_and(|batch| batch.items() >= FRAME_MESSAGES_MAX as u64) {
            self.close();
        }
        if self.push(&message).is_ok() {
            return;
        }
        if self.batch.is_some() {
            self.close();
            return self.add(message);
        }
        match split(message) {
            Some((first, second)) => {
                self.add(first);
                self.add(second);
            }
            None => self.dropped += 1,
        }
    }

    /// Returns the frames, and the number of messages too large for any frame.
    pub fn finish(mut self) -> (Vec<Vec<u8>>, u64) {
        self.close();
        (self.frames, self.dropped)
    }

    fn push(&mut self, message: &PeerMessage) -> Result<(), CodecError> {
        let form = MessageVersion1::borrow(message);
        match &mut self.batch {
            Some(batch) => batch.push(&form),
            None => {
                let mut batch = BatchEncoder::new(BlobKind::Frame, &self.from)?;
                batch.push(&form)?;
                self.batch = Some(batch);
                Ok(())
            }
        }
    }

    fn close(&mut self) {
        // A batch that accepted its items fits into a frame.
        self.frames.extend(self.batch.take().and_then(|batch| batch.finish().ok()));
    }
}

/// Splits a message into two, if it has parts.
fn split(message: PeerMessage) -> Option<(PeerMessage, PeerMessage)> {
    let cut = |mut logs: Vec<(SessionKey, Cursor)>| {
        let rest = logs.split_off(logs.len() / 2);
        (!logs.is_empty()).then_some((logs, rest))
    };
    match message {
        PeerMessage::Facts { key, owner, after, mut facts } => {
            let rest = facts.split_off(facts.len() / 2);
            let (last, _) = facts.last()?;
            let next = Cursor { seq: Seq(after.seq.0 + facts.len() as u64), epoch: *last };
            let first = PeerMessage::Facts { key: key.clone(), owner, after, facts };
            Some((first, PeerMessage::Facts { key, owner, after: next, facts: rest }))
        }
        PeerMessage::TailDigest { logs } => {
            cut(logs).map(|(logs, rest)| (PeerMessage::TailDigest { logs }, PeerMessage::TailDigest { logs: rest }))
        }
        PeerMessage::Ack { logs } => {
            cut(logs).map(|(logs, rest)| (PeerMessage::Ack { logs }, PeerMessage::Ack { logs: rest }))
        }
        PeerMessage::Offer { .. }
        | PeerMessage::InputAccepted { .. }
        | PeerMessage::ControlAnswered { .. }
        | PeerMessage::NotOwner { .. }
        | PeerMessage::Subscribed { .. }
        | PeerMessage::Chunk { .. }
        | PeerMessage::ProcessOutput { .. }
        | PeerMessage::FetchText { .. }
        | PeerMessage::HandOff { .. }
        | PeerMessage::Probe
        | PeerMessage::RemoteAttempt(_)
        | PeerMessage::Reserve { .. }
        | PeerMessage::Reserved { .. }
        | PeerMessage::Deliver { .. }
        | PeerMessage::DeliveryReport { .. }
        | PeerMessage::NoAdapter { .. }
        | PeerMessage::Signal { .. }
        | PeerMessage::PreviewUnwanted { .. }
        | PeerMessage::AdapterArrived { .. } => None,
    }
}

/// Returns whether every number in a message is within its range.
fn has_valid_numbers(message: &PeerMessage) -> bool {
    use super::{OfferedEntry, TextChunk};
    let small = |numbers: &[u64]| numbers.iter().all(|number| *number < NUMBER_MAX);
    let seen = |owner: &OwnershipSnapshot| small(&[owner.epoch.0]);
    let at = |cursor: &Cursor| small(&[cursor.seq.0, cursor.epoch.0]);
    let lies = |position: &InboxPosition, prev: &InboxPosition| small(&[position.0, prev.0]);
    match message {
        PeerMessage::Offer { owner, item, .. } => {
            seen(owner)
                && match item {
                    OfferedEntry::Input { position, prev, .. } | OfferedEntry::Control { position, prev, .. } => {
                        lies(position, prev)
                    }
                }
        }
        PeerMessage::NotOwner { owner, .. } | PeerMessage::HandOff { released: owner, .. } => seen(owner),
        PeerMessage::Subscribed { stamp, .. } => small(&[stamp.0]),
        PeerMessage::Facts { owner, after, facts, .. } => {
            seen(owner) && at(after) && facts.iter().all(|(epoch, _)| small(&[epoch.0]))
        }
        PeerMessage::Chunk { epoch: Epoch(epoch), chunk: TextChunk { offset, .. }, .. } => small(&[*epoch, *offset]),
        PeerMessage::Reserve { epoch, .. } | PeerMessage::Reserved { epoch, .. } => small(&[epoch.0]),
        PeerMessage::ProcessOutput { epoch: Epoch(epoch), printed, .. } => small(&[*epoch, printed.offset]),
        PeerMessage::FetchText { offset, .. } => small(&[*offset]),
        PeerMessage::TailDigest { logs } | PeerMessage::Ack { logs } => logs.iter().all(|(_, cursor)| at(cursor)),
        PeerMessage::RemoteAttempt(message) => numbers(message).all(|number| number < NUMBER_MAX),
        PeerMessage::Deliver { order } => small(&[order.requested_at.0, order.deadline.0]),
        PeerMessage::Signal { signal } => match &signal.kind {
            SignalKind::Preview(preview) => small(&[preview.deadline.0]),
            SignalKind::Typing { .. } | SignalKind::RemovePreview { .. } => true,
        },
        PeerMessage::InputAccepted { .. }
        | PeerMessage::ControlAnswered { .. }
        | PeerMessage::PreviewUnwanted { .. }
        | PeerMessage::DeliveryReport { .. }
        | PeerMessage::NoAdapter { .. }
        | PeerMessage::AdapterArrived { .. }
        | PeerMessage::Probe => true,
    }
}

/// Returns the numbers in a message about remote attempts.
fn numbers(message: &RemoteMessage) -> impl Iterator<Item = u64> {
    let (first, counts) = match message {
        RemoteMessage::Order { call, n, .. } | RemoteMessage::Event { call, n, .. } => ([*call, *n], None),
        RemoteMessage::Abandoned { call } | RemoteMessage::GivenUp { call } => ([*call, 0], None),
        RemoteMessage::Progress { outgoing: begun, incoming: taken_on } => ([0, 0], Some(begun.iter().chain(taken_on))),
        RemoteMessage::ListAgents | RemoteMessage::Serving { .. } | RemoteMessage::Stop { .. } => ([0, 0], None),
    };
    let counted = |count: &CallProgress| [count.call, count.received, count.delivered];
    first.into_iter().chain(counts.into_iter().flatten().flat_map(counted))
}

/// The messages of a frame. Their number is limited while reading, because a message of one byte on the wire takes
/// many times that in memory.
struct MessageList(Vec<PeerMessage>);

impl<'de> Deserialize<'de> for MessageList {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(MessageListVisitor)
    }
}

struct MessageListVisitor;

impl<'de> Visitor<'de> for MessageListVisitor {
    type Value = MessageList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {FRAME_MESSAGES_MAX} messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<MessageList, A::Error> {
        let mut messages = Vec::new();
        while let Some(next) = from.next_element::<MessageVersion1<'_>>()? {
            if messages.len() == FRAME_MESSAGES_MAX {
                return Err(A::Error::custom("too many messages"));
            }
            messages.push(next.into_domain());
        }
        Ok(MessageList(messages))
    }
}
