//! An SHA-256 whose intermediate state can be stored, so that another owner can continue the hash of a recorded text.
use sha2::compress256;
use sha2::digest::generic_array::GenericArray;
use std::fmt;

/// Block size of SHA-256, in bytes.
pub(super) const HASH_BLOCK_BYTES: usize = 64;
/// Position of the length in the last block.
const LENGTH_AT: usize = HASH_BLOCK_BYTES - 8;
/// Initial state of SHA-256 (FIPS 180-4, §5.3.3).
const INITIAL_STATE: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The hash of a text so far. Its state can be stored, unlike that of the hasher of the `sha2` crate.
#[derive(Clone, PartialEq, Eq)]
pub struct TextHash {
    pub(super) state: [u32; 8],
    /// The bytes after the last whole block.
    pub(super) rest: Vec<u8>,
    pub(super) bytes: u64,
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
            let (head, tail) = piece.split_at(piece.len().min(HASH_BLOCK_BYTES - self.rest.len()));
            self.rest.extend_from_slice(head);
            piece = tail;
            if let Ok(block) = <[u8; HASH_BLOCK_BYTES]>::try_from(self.rest.as_slice()) {
                compress256(&mut self.state, &[GenericArray::from(block)]);
                self.rest.clear();
            }
        }
        let (blocks, rest) = piece.as_chunks::<HASH_BLOCK_BYTES>();
        for block in blocks {
            compress256(&mut self.state, &[GenericArray::from(*block)]);
        }
        self.rest.extend_from_slice(rest);
    }

    /// Returns the hash of all pieces, hex.
    pub fn hex(&self) -> String {
        let mut state = self.state;
        let mut last = [0u8; HASH_BLOCK_BYTES];
        last[..self.rest.len()].copy_from_slice(&self.rest);
        last[self.rest.len()] = 0x80;
        if self.rest.len() >= LENGTH_AT {
            compress256(&mut state, &[GenericArray::from(last)]);
            last = [0; HASH_BLOCK_BYTES];
        }
        last[LENGTH_AT..].copy_from_slice(&(self.bytes * 8).to_be_bytes());
        compress256(&mut state, &[GenericArray::from(last)]);
        state.iter().map(|word| format!("{word:08x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: S-38.
    #[test]
    fn debug_output_contains_no_text() {
        let mut hash = TextHash::default();
        hash.update(b"canary");
        assert_eq!(format!("{hash:?}"), "TextHash(6 bytes)");
    }
}
