//! The one binary codec: node-to-node frames and snapshots (S-14). Nobody else names `bincode`.
//!
//! Fixed-width integers and a byte limit; a header of magic, kind, version and length that is read
//! before any decoder runs; trailing bytes are an error. Types that travel here have no recursive
//! parts, no zero-sized elements, and no serde features that bincode cannot read back.
use crate::limits::FRAME_BYTES_MAX;
use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use serde::Serialize;
use serde::de::DeserializeOwned;

const MAGIC: [u8; 2] = *b"TW";
const HEADER: usize = 8;
const CONFIG: Configuration<LittleEndian, Fixint, Limit<FRAME_BYTES_MAX>> =
    bincode::config::standard().with_fixed_int_encoding().with_limit::<FRAME_BYTES_MAX>();

/// What a binary blob is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A session's state at a place of its log.
    Snapshot,
    /// Words between nodes.
    Frame,
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Self::Snapshot => b'S',
            Self::Frame => b'F',
        }
    }
    /// The version this release writes.
    pub fn version(self) -> u8 {
        match self {
            Self::Snapshot | Self::Frame => 1,
        }
    }
}

/// Why a blob cannot be read. A snapshot that cannot be read is ignored and rebuilt from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// Not a blob of ours, or cut short, or longer than it says.
    Framing,
    /// Of a version this release does not read.
    Version(u8),
    /// Over the limit.
    TooLarge,
    /// The bytes do not make the value.
    Body,
}

/// Writes a value with its header.
pub fn encode<T: Serialize>(kind: Kind, value: &T) -> Result<Vec<u8>, CodecError> {
    let body = bincode::serde::encode_to_vec(value, CONFIG).map_err(|_| CodecError::Body)?;
    if body.len() > FRAME_BYTES_MAX {
        return Err(CodecError::TooLarge);
    }
    let length = u32::try_from(body.len()).map_err(|_| CodecError::TooLarge)?;
    let mut blob = Vec::with_capacity(HEADER + body.len());
    blob.extend_from_slice(&MAGIC);
    blob.extend_from_slice(&[kind.byte(), kind.version()]);
    blob.extend_from_slice(&length.to_le_bytes());
    blob.extend_from_slice(&body);
    Ok(blob)
}

/// Reads a value back.
pub fn decode<T: DeserializeOwned>(kind: Kind, blob: &[u8]) -> Result<T, CodecError> {
    let (header, body) = blob.split_at_checked(HEADER).ok_or(CodecError::Framing)?;
    let [m0, m1, what, version, l0, l1, l2, l3] = *header else { return Err(CodecError::Framing) };
    if [m0, m1] != MAGIC || what != kind.byte() {
        return Err(CodecError::Framing);
    }
    if version != kind.version() {
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
    fn hostile_lengths_allocate_nothing() {
        let good = encode(Kind::Frame, &("hello".to_owned(), 7u64)).expect("encodes");
        assert_eq!(decode::<(String, u64)>(Kind::Frame, &good), Ok(("hello".to_owned(), 7)));
        assert_eq!(decode::<(String, u64)>(Kind::Snapshot, &good), Err(CodecError::Framing));
        let mut huge = good.clone();
        huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(decode::<(String, u64)>(Kind::Frame, &huge), Err(CodecError::Body));
        let mut newer = good.clone();
        newer[3] = 9;
        assert_eq!(decode::<(String, u64)>(Kind::Frame, &newer), Err(CodecError::Version(9)));
        for cut in 0..good.len() {
            assert!(decode::<(String, u64)>(Kind::Frame, &good[..cut]).is_err());
        }
        let mut longer = good;
        longer.push(0);
        assert_eq!(decode::<(String, u64)>(Kind::Frame, &longer), Err(CodecError::Framing));
    }

    /// The bytes on the wire do not change by accident. Covers: S-14.
    #[test]
    fn golden_bytes() {
        let blob = encode(Kind::Snapshot, &(1u8, "ab".to_owned(), Some(2u32))).expect("encodes");
        let hex: String = blob.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "545753011000000001020000000000000061620102000000");
    }
}
