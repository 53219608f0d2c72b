//! An SHA-256 whose intermediate state can be stored, so that another owner can continue the hash of a recorded text.
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::compress256;
use sha2::digest::generic_array::GenericArray;
use std::fmt;

/// Block size of SHA-256, in bytes.
const BLOCK: usize = 64;
/// Position of the length in the last block.
const LENGTH_AT: usize = BLOCK - 8;
/// Initial state of SHA-256 (FIPS 180-4, §5.3.3).
const INITIAL_STATE: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The hash of a text so far. It can be serialised, unlike the hasher of the `sha2` crate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextHash {
    state: [u32; 8],
    /// The bytes after the last whole block.
    #[serde(deserialize_with = "less_than_a_block")]
    rest: Vec<u8>,
    bytes: u64,
}

fn less_than_a_block<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let rest = Vec::<u8>::deserialize(from)?;
    if rest.len() < BLOCK { Ok(rest) } else { Err(D::Error::custom("more bytes than one hash block")) }
}

impl Default for TextHash {
    fn default() -> Self {
        Self { state: INITIAL_STATE, rest: Vec::new(), bytes: 0 }
    }
}

impl fmt::Debug for TextHash {
    /// Omits `rest`, which contains the end of the text (S-38).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TextHash({} bytes)", self.bytes)
    }
}

impl TextHash {
    /// Hashes the next piece.
    pub fn update(&mut self, mut piece: &[u8]) {
        self.bytes += piece.len() as u64;
        if !self.rest.is_empty() {
            let (head, tail) = piece.split_at(piece.len().min(BLOCK - self.rest.len()));
            self.rest.extend_from_slice(head);
            piece = tail;
            if let Ok(block) = <[u8; BLOCK]>::try_from(self.rest.as_slice()) {
                compress256(&mut self.state, &[GenericArray::from(block)]);
                self.rest.clear();
            }
        }
        let (blocks, rest) = piece.as_chunks::<BLOCK>();
        for block in blocks {
            compress256(&mut self.state, &[GenericArray::from(*block)]);
        }
        self.rest.extend_from_slice(rest);
    }

    /// Returns the hash of all pieces, hex.
    pub fn hex(&self) -> String {
        let mut state = self.state;
        let mut last = [0u8; BLOCK];
        last[..self.rest.len()].copy_from_slice(&self.rest);
        last[self.rest.len()] = 0x80;
        if self.rest.len() >= LENGTH_AT {
            compress256(&mut state, &[GenericArray::from(last)]);
            last = [0; BLOCK];
        }
        last[LENGTH_AT..].copy_from_slice(&(self.bytes * 8).to_be_bytes());
        compress256(&mut state, &[GenericArray::from(last)]);
        state.iter().map(|word| format!("{word:08x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::codec::{BlobKind, decode, encode};
    use sha2::{Digest, Sha256};

    /// Covers: G6.
    #[test]
    fn digest_is_sha256_across_chunks_and_snapshots() {
        let text: Vec<u8> = (0..1000u32).map(|n| (n * 7 % 251) as u8).collect();
        for length in (0..200).chain([255, 256, 257, 511, 512, 1000]) {
            let text = &text[..length];
            let wanted: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
            for cut in [1, 3, 55, 56, 63, 64, 65, 200] {
                let mut hash = TextHash::default();
                for piece in text.chunks(cut) {
                    hash.update(piece);
                    let kept = encode(BlobKind::Snapshot, &hash).expect("it is small");
                    hash = decode(BlobKind::Snapshot, &kept).expect("it is whole");
                }
                assert_eq!(hash.hex(), wanted, "{length} bytes cut at {cut}");
            }
        }
    }

    /// Covers: S-38.
    #[test]
    fn debug_output_contains_no_text() {
        let mut hash = TextHash::default();
        hash.update(b"canary");
        assert_eq!(format!("{hash:?}"), "TextHash(6 bytes)");
    }
}
