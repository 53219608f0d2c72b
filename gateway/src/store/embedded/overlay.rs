//! An overlay of a file: writes stay in memory, and the file itself stays unchanged. Used by checks and by opening.
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Size in bytes of the blocks that are kept in memory.
const BLOCK: u64 = 4096;

/// A storage backend over an unchanged file. redb repairs a file that was not closed cleanly when it opens the file,
/// and a check must not overwrite what may be the last trace of lost data.
#[derive(Debug)]
pub(super) struct OverlayFile(Mutex<OverlayState>);

#[derive(Debug)]
struct OverlayState {
    file: File,
    /// Length of the file as the reader sees it.
    length: u64,
    /// Length up to which the file's own bytes are valid: the shortest length that was set.
    valid_length: u64,
    blocks: BTreeMap<u64, Box<[u8]>>,
}

// === impl OverlayFile ===

impl OverlayFile {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(Self(Mutex::new(OverlayState { file, length, valid_length: length, blocks: BTreeMap::new() })))
    }

    /// Writes the overlay into the file itself and flushes the file to disk.
    pub(super) fn write_through(self, file: &File) -> io::Result<()> {
        let OverlayState { length, valid_length: whole, blocks: written, .. } =
            self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        if file.metadata()?.len() != length || whole < length {
            // Bytes behind the shortest length read as zeros.
            file.set_len(whole)?;
            file.set_len(length)?;
        }
        for (block, bytes) in &written {
            let offset = block * BLOCK;
            let count = length.saturating_sub(offset).min(BLOCK) as usize;
            file.write_all_at(&bytes[..count], offset)?;
        }
        if written.is_empty() { Ok(()) } else { file.sync_all() }
    }

    fn state(&self) -> MutexGuard<'_, OverlayState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StorageBackend for OverlayFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        if offset + out.len() as u64 > state.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.read_base(offset, out)?;
        for (block, within, piece) in blocks(offset, out.len()) {
            if let Some(written) = state.blocks.get(&block) {
                out[piece.clone()].copy_from_slice(&written[within..within + piece.len()]);
            }
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.state();
        if length < state.length {
            state.valid_length = state.valid_length.min(length);
            let kept = length.div_ceil(BLOCK);
            state.blocks.retain(|block, _| *block < kept);
            if let Some(last) = state.blocks.get_mut(&(length / BLOCK)) {
                last[(length % BLOCK) as usize..].fill(0);
            }
        }
        state.length = length;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        for (block, within, piece) in blocks(offset, data.len()) {
            let bytes = state.block(block)?;
            bytes[within..within + piece.len()].copy_from_slice(&data[piece]);
        }
        state.length = state.length.max(offset + data.len() as u64);
        Ok(())
    }
}

// === impl OverlayState ===

impl OverlayState {
    /// Reads from the file, and zeros behind its valid bytes.
    fn read_base(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = self.valid_length.saturating_sub(offset).min(out.len() as u64) as usize;
        let (head, rest) = out.split_at_mut(there);
        rest.fill(0);
        if !head.is_empty() {
            self.file.seek(SeekFrom::Start(offset))?;
            self.file.read_exact(head)?;
        }
        Ok(())
    }

    /// Returns a block of the overlay, copied from the file on first use.
    fn block(&mut self, block: u64) -> io::Result<&mut [u8]> {
        if !self.blocks.contains_key(&block) {
            let mut bytes = vec![0; BLOCK as usize].into_boxed_slice();
            self.read_base(block * BLOCK, &mut bytes)?;
            self.blocks.insert(block, bytes);
        }
        // The block was inserted above.
        Ok(self.blocks.entry(block).or_default())
    }
}

/// Returns the blocks of a byte range: block number, offset in the block, and part of the range.
fn blocks(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < length).then(|| {
            let at = offset + done as u64;
            let within = (at % BLOCK) as usize;
            let count = (BLOCK as usize - within).min(length - done);
            let piece = done..done + count;
            done += count;
            (at / BLOCK, within, piece)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::rng::Rng;

    /// Compares the overlay with a plain vector; the file must stay unchanged.
    #[test]
    fn overlay_reads_its_writes_and_leaves_the_file_unchanged() {
        let path = std::env::temp_dir().join(format!("turnway-shadow-{}", std::process::id()));
        let before: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
        std::fs::write(&path, &before).expect("written");
        let shadow = OverlayFile::of(&path).expect("opened");
        let mut model = before.clone();
        let mut rng = Rng::from_number(7);
        for _ in 0..2_000 {
            let at = rng.below(model.len() as u64 + 1);
            let count = rng.below(9_000).min(model.len() as u64 - at) as usize;
            match rng.below(8) {
                0 => {
                    let length = rng.below(40_000);
                    shadow.set_len(length).expect("cut");
                    model.resize(length as usize, 0);
                }
                1..=3 => {
                    let data = vec![rng.below(256) as u8; count];
                    shadow.write(at, &data).expect("written");
                    model[at as usize..at as usize + count].copy_from_slice(&data);
                }
                _ => {
                    let mut out = vec![1; count];
                    shadow.read(at, &mut out).expect("read");
                    assert!(out == model[at as usize..at as usize + count]);
                }
            }
            assert_eq!(shadow.len().expect("known"), model.len() as u64);
        }
        assert!(shadow.read(model.len() as u64, &mut [0]).is_err());
        assert!(std::fs::read(&path).expect("read") == before, "the file was written");
        std::fs::remove_file(&path).expect("removed");
    }
}
