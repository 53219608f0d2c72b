//! The only binary codec: node-to-node frames and snapshots (S-14). No other module uses `bincode`. A blob has a
//! header of magic, kind, version and length that is checked before any decoder runs.
use crate::limits::FRAME_BYTES_MAX;
use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use serde::Serialize;
use serde::de::DeserializeOwned;

const MAGIC: [u8; 2] = *b"TW";
const HEADER_BYTES: usize = 8;
/// Bytes reserved for a blob. Most blobs have more than 128 bytes, which would be reached in five allocations.
const USUAL_BYTES: usize = 256;
/// Position of the version in a header.
const VERSION_AT: usize = 3;
/// Position of the body's length in a header.
const LENGTH_RANGE: std::ops::Range<usize> = 4..HEADER_BYTES;
const CONFIG: Configuration<LittleEndian, Fixint, Limit<FRAME_BYTES_MAX>> =
    bincode::config::standard().with_fixed_int_encoding().with_limit::<FRAME_BYTES_MAX>();

/// The kind of a binary blob.
///
/// Integers have a fixed width, the length is limited, and trailing bytes are an error. Types that are encoded here
/// have no recursive parts, no zero-sized elements, and no serde features that bincode cannot decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobKind {
    /// A session's state at a position of its log.
    Snapshot,
    /// Messages between nodes.
    Frame,
    /// A node's message to itself over the bus, to check that it still receives.
    Heartbeat,
}

impl BlobKind {
    fn byte(self) -> u8 {
        match self {
            Self::Snapshot => b'S',
            Self::Frame => b'F',
            Self::Heartbeat => b'B',
        }
    }
    /// Returns the version that this release usually writes, and that [`decode`] reads.
    pub fn version(self) -> u8 {
        match self {
            // 2: data for attempts that outlive their owner. 3: records of members. 4: inputs steered into a run. 5:
            // handovers. 6: actions. 7: the answer's end in a turn that is handed over. 8: the time of the last fact. Snapshots with
            // deliveries have version 9, those with gathered inputs or suppressed
            // places version 10.
            Self::Snapshot => 8,
            Self::Frame | Self::Heartbeat => 1,
        }
    }
}

/// The reason why a blob cannot be decoded. Such a snapshot is ignored and the state rebuilt from the log; such a
/// frame is ignored and counted, since messages between nodes may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// Not a blob of this codec, or cut short, or longer than its header says.
    Framing,
    /// A version that this release does not read.
    Version(u8),
    TooLarge,
    /// The bytes do not decode to the type.
    Body,
}

/// Encodes a value with its header.
pub fn encode<T: Serialize>(kind: BlobKind, value: &T) -> Result<Vec<u8>, CodecError> {
    encode_newer(kind, kind.version(), value)
}

/// Encodes a value in a version above the one that this release usually writes.
pub fn encode_newer<T: Serialize>(kind: BlobKind, version: u8, value: &T) -> Result<Vec<u8>, CodecError> {
    let mut blob = header(kind);
    blob[VERSION_AT] = version;
    write(&mut blob, value)?;
    write_length(blob)
}

/// Encodes the header and the first value of a blob; the caller appends `rest` more bytes of body.
pub fn encode_head<T: Serialize>(kind: BlobKind, value: &T, rest: usize) -> Result<Vec<u8>, CodecError> {
    let mut blob = header(kind);
    write(&mut blob, value)?;
    let length = blob.len() - HEADER_BYTES + rest;
    if length > FRAME_BYTES_MAX {
        return Err(CodecError::TooLarge);
    }
    let length = u32::try_from(length).map_err(|_| CodecError::TooLarge)?;
    blob[LENGTH_RANGE].copy_from_slice(&length.to_le_bytes());
    Ok(blob)
}

/// An encoder for a blob of a head and a list whose items are encoded one by one; the blob decodes as a pair of both.
#[derive(Clone, Debug)]
pub struct BatchEncoder {
    blob: Vec<u8>,
    /// Position of the number of items.
    count: std::ops::Range<usize>,
    items: u64,
}

impl BatchEncoder {
    /// Starts a batch.
    pub fn new<T: Serialize>(kind: BlobKind, head: &T) -> Result<Self, CodecError> {
        let mut blob = header(kind);
        write(&mut blob, head)?;
        let from = blob.len();
        write(&mut blob, &0u64)?;
        Ok(Self { count: from..blob.len(), blob, items: 0 })
    }

    /// Appends an item; [`CodecError::TooLarge`] leaves the batch unchanged.
    pub fn push<T: Serialize>(&mut self, item: &T) -> Result<(), CodecError> {
        let from = self.blob.len();
        let written = write(&mut self.blob, item);
        if written.is_err() {
            self.blob.truncate(from);
        } else {
            self.items += 1;
        }
        written
    }

    /// Returns the number of items.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Finishes the batch and returns the blob.
    pub fn finish(mut self) -> Result<Vec<u8>, CodecError> {
        self.blob[self.count].copy_from_slice(&self.items.to_le_bytes());
        write_length(self.blob)
    }
}

/// Returns the kind of a blob without decoding it.
pub fn blob_kind(blob: &[u8]) -> Option<BlobKind> {
    let what = *blob.strip_prefix(&MAGIC)?.first()?;
    [BlobKind::Snapshot, BlobKind::Frame, BlobKind::Heartbeat].into_iter().find(|kind| kind.byte() == what)
}

/// Returns a header whose length is still to be written.
fn header(kind: BlobKind) -> Vec<u8> {
    let mut blob = Vec::with_capacity(USUAL_BYTES);
    blob.extend_from_slice(&MAGIC);
    blob.extend_from_slice(&[kind.byte(), kind.version()]);
    blob.extend_from_slice(&[0; LENGTH_RANGE.end - LENGTH_RANGE.start]);
    blob
}

fn write<T: Serialize>(blob: &mut Vec<u8>, value: &T) -> Result<(), CodecError> {
    bincode::serde::encode_into_std_write(value, blob, CONFIG).map_err(|_| CodecError::Body)?;
    if blob.len() - HEADER_BYTES > FRAME_BYTES_MAX { Err(CodecError::TooLarge) } else { Ok(()) }
}

fn write_length(mut blob: Vec<u8>) -> Result<Vec<u8>, CodecError> {
    let length = u32::try_from(blob.len() - HEADER_BYTES).map_err(|_| CodecError::TooLarge)?;
    blob[LENGTH_RANGE].copy_from_slice(&length.to_le_bytes());
    Ok(blob)
}

/// Decodes a value.
pub fn decode<T: DeserializeOwned>(kind: BlobKind, blob: &[u8]) -> Result<T, CodecError> {
    decode_older(kind, kind.version(), blob)
}

/// Decodes a blob of an earlier release, with the version that it wrote.
pub fn decode_older<T: DeserializeOwned>(kind: BlobKind, written: u8, blob: &[u8]) -> Result<T, CodecError> {
    let (header, body) = blob.split_at_checked(HEADER_BYTES).ok_or(CodecError::Framing)?;
    let [m0, m1, what, version, l0, l1, l2, l3] = *header else { return Err(CodecError::Framing) };
    if [m0, m1] != MAGIC || what != kind.byte() {
        return Err(CodecError::Framing);
    }
    if version != written {
        return Err(CodecError::Version(version));
    }
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(CodecError::TooLarge);
    }
    if length != body.len() {
        return Err(CodecError::Framing);
    }
    let (value, used) = bincode::serde::decode_from_slice(body, CONFIG).map_err(|_| CodecError::Body)?;
    if used == body.len() { Ok(value) } else { Err(CodecError::Framing) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: S-14.
    #[test]
    fn oversized_lengths_allocate_nothing() {
        let good = encode(BlobKind::Frame, &("hello".to_owned(), 7u64)).expect("encodes");
        assert_eq!(decode::<(String, u64)>(BlobKind::Frame, &good), Ok(("hello".to_owned(), 7)));
        assert_eq!(decode::<(String, u64)>(BlobKind::Snapshot, &good), Err(CodecError::Framing));
        let mut huge = good.clone();
        huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(decode::<(String, u64)>(BlobKind::Frame, &huge), Err(CodecError::Body));
        let mut newer = good.clone();
        newer[3] = 9;
        assert_eq!(decode::<(String, u64)>(BlobKind::Frame, &newer), Err(CodecError::Version(9)));
        for cut in 0..good.len() {
            assert!(decode::<(String, u64)>(BlobKind::Frame, &good[..cut]).is_err());
        }
        let mut longer = good;
        longer.push(0);
        assert_eq!(decode::<(String, u64)>(BlobKind::Frame, &longer), Err(CodecError::Framing));
    }

    /// Covers: S-14.
    #[test]
    fn batch_encodes_like_a_list() {
        let mut batch = BatchEncoder::new(BlobKind::Frame, &7u64).expect("encodes");
        let words = ["a", "bc", ""].map(str::to_owned);
        words.iter().for_each(|word| batch.push(word).expect("there is room"));
        let large = "x".repeat(FRAME_BYTES_MAX);
        assert_eq!((batch.push(&large), batch.items()), (Err(CodecError::TooLarge), 3));
        let blob = batch.finish().expect("encodes");
        assert_eq!(encode(BlobKind::Frame, &(7u64, words.to_vec())).as_ref(), Ok(&blob));
        assert_eq!((blob_kind(&blob), blob_kind(&blob[..2]), blob_kind(b"TW?")), (Some(BlobKind::Frame), None, None));
    }

    /// The bytes on the wire must not change by accident. Covers: S-14.
    #[test]
    fn encoded_bytes_match_the_golden_values() {
        let blob = encode(BlobKind::Snapshot, &(1u8, "ab".to_owned(), Some(2u32))).expect("encodes");
        let hex: String = blob.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "545753081000000001020000000000000061620102000000");
    }
}
