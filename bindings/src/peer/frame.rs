//! Binary encoding of the messages that one node sends to another at once (S-14).
use super::Words;
use super::trunk::{Count, TrunkWords};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use turnway_core::id::{Cursor, Epoch, NodeId, Place, Seen, Seq, SessionKey};
use turnway_core::limits::FRAME_WORDS_MAX;
use turnway_core::protocol::codec::{self, Batch, CodecError, Kind};

/// Exclusive upper bound of every number that a node counts or reads from a clock, so that no sum of two overflows.
const NUMBER_MAX: u64 = 1 << 53;

/// The messages that one node sent at once.
///
/// A frame is the codec's header and `(NodeId, [Words])`. Numbers are fixed-width little-endian; texts, lists and
/// variants are prefixed with their length or index; facts, inputs and control entries are JSON texts. A node reads
/// only the version that it writes, which the header names; unreadable frames are dropped, because messages may be
/// lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub from: NodeId,
    pub words: Vec<Words>,
}

impl Frame {
    /// Parses a frame. Invalid bytes allocate no more memory than their length and return an error.
    pub fn read(blob: &[u8]) -> Result<Self, CodecError> {
        let (from, Crowd(words)) = codec::decode(Kind::Frame, blob)?;
        if words.iter().all(is_sound) { Ok(Self { from, words }) } else { Err(CodecError::Body) }
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
pub fn bell_begins(from: NodeId, key: &SessionKey, json: usize) -> Option<Vec<u8>> {
    /// Bytes of the owner, of the entry's kind and positions, and of a length.
    const REST: usize = (1 + 16 + 16 + 8) + (4 + 8 + 8) + 8;
    /// One message, and the index of its variant; see [`Words`].
    const ONE_BELL: (u64, u32) = (1, 0);
    codec::begin(Kind::Frame, &(from, ONE_BELL, key), REST + json).ok()
}

/// Packs messages for one node into as few frames as possible, in order.
#[derive(Debug)]
pub struct Packer {
    from: NodeId,
    batch: Option<Batch>,
    frames: Vec<Vec<u8>>,
    lost: u64,
}

impl Packer {
    /// Creates an empty packer.
    pub fn new(from: NodeId) -> Self {
        Self { from, batch: None, frames: Vec::new(), lost: 0 }
    }

    /// Adds a message. A message that is too large for one frame is split, if it can be.
    pub fn add(&mut self, words: Words) {
        if self.batch.as_ref().is_some_and(|batch| batch.items() >= FRAME_WORDS_MAX as u64) {
            self.close();
        }
        if self.push(&words).is_ok() {
            return;
        }
        if self.batch.is_some() {
            self.close();
            return self.add(words);
        }
        match halves(words) {
            Some((first, second)) => {
                self.add(first);
                self.add(second);
            }
            None => self.lost += 1,
        }
    }

    /// Returns the frames, and the number of messages too large for any frame.
    pub fn finish(mut self) -> (Vec<Vec<u8>>, u64) {
        self.close();
        (self.frames, self.lost)
    }

    fn push(&mut self, words: &Words) -> Result<(), CodecError> {
        match &mut self.batch {
            Some(batch) => batch.push(words),
            None => {
                let mut batch = Batch::new(Kind::Frame, &self.from)?;
                batch.push(words)?;
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
fn halves(words: Words) -> Option<(Words, Words)> {
    let cut = |mut logs: Vec<(SessionKey, Cursor)>| {
        let rest = logs.split_off(logs.len() / 2);
        (!logs.is_empty()).then_some((logs, rest))
    };
    match words {
        Words::Facts { key, owner, after, mut facts } => {
            let rest = facts.split_off(facts.len() / 2);
            let (last, _) = facts.last()?;
            let next = Cursor { seq: Seq(after.seq.0 + facts.len() as u64), epoch: *last };
            let first = Words::Facts { key: key.clone(), owner, after, facts };
            Some((first, Words::Facts { key, owner, after: next, facts: rest }))
        }
        Words::Beacon { logs } => {
            cut(logs).map(|(logs, rest)| (Words::Beacon { logs }, Words::Beacon { logs: rest }))
        }
        Words::Have { logs } => {
            cut(logs).map(|(logs, rest)| (Words::Have { logs }, Words::Have { logs: rest }))
        }
        Words::Bell { .. }
        | Words::Taken { .. }
        | Words::Answered { .. }
        | Words::NotMine { .. }
        | Words::Hello { .. }
        | Words::Chunk { .. }
        | Words::Printed { .. }
        | Words::Want { .. }
        | Words::Adopt { .. }
        | Words::Knock
        | Words::Trunk(_)
        | Words::Reserve { .. }
        | Words::Reserved { .. } => None,
    }
}

/// Returns whether every number in a message is within its range.
fn is_sound(words: &Words) -> bool {
    use super::{Chunk, Item};
    let small = |numbers: &[u64]| numbers.iter().all(|number| *number < NUMBER_MAX);
    let seen = |owner: &Seen| small(&[owner.epoch.0]);
    let at = |cursor: &Cursor| small(&[cursor.seq.0, cursor.epoch.0]);
    let lies = |place: &Place, prev: &Place| small(&[place.0, prev.0]);
    match words {
        Words::Bell { owner, item, .. } => {
            seen(owner)
                && match item {
                    Item::Input { place, prev, .. } | Item::Control { place, prev, .. } => lies(place, prev),
                }
        }
        Words::NotMine { owner, .. } | Words::Adopt { free: owner, .. } => seen(owner),
        Words::Hello { stamp, .. } => small(&[stamp.0]),
        Words::Facts { owner, after, facts, .. } => {
            seen(owner) && at(after) && facts.iter().all(|(epoch, _)| small(&[epoch.0]))
        }
        Words::Chunk { epoch: Epoch(epoch), chunk: Chunk { offset, .. }, .. } => small(&[*epoch, *offset]),
        Words::Reserve { epoch, .. } | Words::Reserved { epoch, .. } => small(&[epoch.0]),
        Words::Printed { epoch: Epoch(epoch), printed, .. } => small(&[*epoch, printed.offset]),
        Words::Want { offset, .. } => small(&[*offset]),
        Words::Beacon { logs } | Words::Have { logs } => logs.iter().all(|(_, cursor)| at(cursor)),
        Words::Trunk(words) => numbers(words).all(|number| number < NUMBER_MAX),
        Words::Taken { .. } | Words::Answered { .. } | Words::Knock => true,
    }
}

/// Returns the numbers in a message about remote attempts.
fn numbers(words: &TrunkWords) -> impl Iterator<Item = u64> {
    let (first, counts) = match words {
        TrunkWords::Order { call, n, .. } | TrunkWords::Spoken { call, n, .. } => ([*call, *n], None),
        TrunkWords::Hung { call } | TrunkWords::Gone { call } => ([*call, 0], None),
        TrunkWords::Counts { begun, taken_on } => ([0, 0], Some(begun.iter().chain(taken_on))),
        TrunkWords::Who | TrunkWords::Serving { .. } | TrunkWords::Halt { .. } => ([0, 0], None),
    };
    let counted = |count: &Count| [count.call, count.got, count.taken];
    first.into_iter().chain(counts.into_iter().flatten().flat_map(counted))
}

/// The messages of a frame. Their number is limited while reading, because a message of one byte on the wire takes
/// many times that in memory.
struct Crowd(Vec<Words>);

impl<'de> Deserialize<'de> for Crowd {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Counted)
    }
}

struct Counted;

impl<'de> Visitor<'de> for Counted {
    type Value = Crowd;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {FRAME_WORDS_MAX} messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Crowd, A::Error> {
        let mut words = Vec::new();
        while let Some(next) = from.next_element()? {
            if words.len() == FRAME_WORDS_MAX {
                return Err(A::Error::custom("too many messages"));
            }
            words.push(next);
        }
        Ok(Crowd(words))
    }
}
