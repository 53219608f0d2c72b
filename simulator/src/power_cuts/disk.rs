//! A simulated disk with a write cache, whose power can be cut.
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use turnway_core::rng::Rng;

const SECTOR: usize = 512;
type Sector = [u8; SECTOR];

/// A disk in memory. Writes since the last sync are in its cache; each 512-byte sector of them survives a power cut
/// or not, independently, in any version that it had since.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Content that survives a power cut for certain.
    durable: Vec<u8>,
    /// Content that is read.
    cached: Vec<u8>,
    /// Every version of a sector since the last sync, oldest first.
    versions: BTreeMap<usize, Vec<Sector>>,
    /// Calls until the power is cut.
    fuse: Option<u64>,
    /// True if only syncs count towards the cut.
    slow: bool,
    dead: bool,
    syncs: u64,
    /// Percentage of syncs that report success without effect.
    lies: u64,
    rng: Rng,
}

impl Disk {
    /// Creates an empty disk. This percentage of syncs reports success without effect.
    pub fn new(lies: u64) -> Self {
        let state = State {
            durable: Vec::new(),
            cached: Vec::new(),
            versions: BTreeMap::new(),
            fuse: None,
            slow: false,
            dead: false,
            syncs: 0,
            lies,
            rng: Rng::from_number(lies),
        };
        Self(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no call on a disk panics")
    }

    /// Cuts the power within the call after this many more.
    pub fn cut_after(&self, calls: u64) {
        let mut state = self.lock();
        (state.fuse, state.slow) = (Some(calls), false);
    }
    /// Cuts the power within the sync after this many more: everything is written, and nothing is certain.
    pub fn cut_after_syncs(&self, syncs: u64) {
        let mut state = self.lock();
        (state.fuse, state.slow) = (Some(syncs), true);
    }

    /// Returns the number of syncs.
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// Returns whether the power was cut.
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Copies the readable content to a disk of its own, whose power is never cut.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = Self::new(0);
        let state = self.lock();
        copy.lock().cached.clone_from(&state.cached);
        copy.lock().durable.clone_from(&state.cached);
        copy
    }

    /// Cuts the power, if it is on, and restores it. The old handle stays dead.
    #[must_use]
    pub fn revive(&self, rng: &mut Rng) -> Self {
        let mut state = self.lock();
        state.dead = true;
        let mut durable = std::mem::take(&mut state.durable);
        // Sometimes the whole cache survives, or nothing; else some share of it.
        let share = [0, 100, 100, 20, 50, 80][rng.below(6) as usize];
        if share == 100 || rng.chance(50) {
            durable.resize(state.cached.len(), 0);
        }
        for (sector, versions) in std::mem::take(&mut state.versions) {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            if let Some(bytes) = durable.get_mut(range)
                && rng.chance(share)
            {
                let last = versions.len() as u64 - 1;
                let version = if share == 100 || rng.chance(70) { last } else { rng.below(last + 1) };
                bytes.copy_from_slice(&versions[version as usize]);
            }
        }
        let disk = Self::new(state.lies);
        *disk.lock() = State {
            cached: durable.clone(),
            durable,
            versions: BTreeMap::new(),
            fuse: None,
            slow: false,
            dead: false,
            syncs: 0,
            lies: state.lies,
            rng: Rng::from_number(rng.next_u64()),
        };
        disk
    }
}

impl State {
    /// Counts a call. The call at the cut may have any part of its effect, and fails.
    fn call(&mut self, sync: bool) -> io::Result<()> {
        self.done()?;
        match &mut self.fuse {
            Some(_) if self.slow && !sync => {}
            Some(0) => self.dead = true,
            Some(calls) => *calls -= 1,
            None => {}
        }
        Ok(())
    }

    fn done(&self) -> io::Result<()> {
        if self.dead { Err(power()) } else { Ok(()) }
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        self.cached[offset..offset + data.len()].copy_from_slice(data);
        let sectors = offset / SECTOR..(offset + data.len()).div_ceil(SECTOR);
        for sector in sectors {
            let start = sector * SECTOR;
            let mut bytes = [0; SECTOR];
            let end = self.cached.len().min(start + SECTOR);
            bytes[..end - start].copy_from_slice(&self.cached[start..end]);
            self.versions.entry(sector).or_default().push(bytes);
        }
    }
}

fn power() -> io::Error {
    io::Error::other("the power was cut")
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        let state = self.lock();
        state.done().map(|()| state.cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.lock();
        state.done()?;
        let start = offset as usize;
        let bytes = state.cached.get(start..start + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.call(false)?;
        state.cached.resize(len as usize, 0);
        // Truncated content does not return when the file grows again.
        let kept = (len as usize).div_ceil(SECTOR);
        state.versions.retain(|sector, _| *sector < kept);
        state.done()
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.call(true)?;
        state.syncs += 1;
        // At the cut nothing is certain: writes in flight stay in the cache.
        state.done()?;
        let state = &mut *state;
        if !state.rng.chance(state.lies) {
            state.durable.resize(state.cached.len(), 0);
            for sector in std::mem::take(&mut state.versions).into_keys() {
                let range = sector * SECTOR..((sector + 1) * SECTOR).min(state.cached.len());
                state.durable[range.clone()].copy_from_slice(&state.cached[range]);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        state.call(false)?;
        state.write(offset as usize, data);
        state.done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_cut_loses_only_unsynced_sectors() {
        let mut lost = 0;
        for seed in 0..100 {
            let mut rng = Rng::from_number(seed);
            let disk = Disk::new(0);
            disk.set_len(4096).and_then(|()| disk.write(0, &[1; 1024])).expect("written");
            disk.sync_data().expect("synced");
            disk.write(512, &[2; 1024]).expect("written");
            let revived = disk.revive(&mut rng);
            assert!(disk.write(0, &[3]).is_err() && disk.is_dead());
            let mut bytes = [0; 1536];
            revived.read(0, &mut bytes).expect("read");
            assert_eq!(bytes[..512], [1; 512]);
            assert!(bytes[512..1024] == [1; 512] || bytes[512..1024] == [2; 512], "whole sectors");
            lost += u32::from(bytes[512..1024] == [1; 512]) + u32::from(bytes[1024..] == [0; 512]);
        }
        assert!((20..180).contains(&lost), "{lost}");
    }
}
