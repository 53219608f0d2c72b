//! A disk with a write cache, and a switch that cuts its power.
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use turnway_core::rng::Rng;

const SECTOR: usize = 512;
type Sector = [u8; SECTOR];

/// A disk in memory. What was written since the last sync is in its cache, and every 512 bytes of it
/// survive a power cut or not, each on its own, in any version they ever had since.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// What a power cut leaves for certain.
    durable: Vec<u8>,
    /// What is read.
    cached: Vec<u8>,
    /// Every version of a sector since the last sync, oldest first.
    versions: BTreeMap<usize, Vec<Sector>>,
    /// Calls until the power is cut.
    fuse: Option<u64>,
    /// Only syncs burn the fuse.
    slow: bool,
    dead: bool,
    syncs: u64,
    /// Of a hundred syncs so many are said to be done and are not.
    lies: u64,
    rng: Rng,
}

impl Disk {
    /// An empty disk. Of a hundred syncs it says of so many that they are done, and has done nothing.
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

    /// The power is cut within the call that comes after `calls` more.
    pub fn cut_after(&self, calls: u64) {
        let mut state = self.lock();
        (state.fuse, state.slow) = (Some(calls), false);
    }
    /// The power is cut within the sync that comes after `syncs` more: all is written, nothing certain.
    pub fn cut_after_syncs(&self, syncs: u64) {
        let mut state = self.lock();
        (state.fuse, state.slow) = (Some(syncs), true);
    }

    /// How often it was synced.
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// Whether the power has been cut.
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// A disk of its own with all that is read on this one, and with power for ever.
    #[must_use]
    pub fn copy(&self) -> Self {
        let (copy, state) = (Self::new(0), self.lock());
        copy.lock().cached.clone_from(&state.cached);
        copy.lock().durable.clone_from(&state.cached);
        copy
    }

    /// The power is cut, if it is not yet, and comes back. The old handle stays dead for ever.
    #[must_use]
    pub fn revive(&self, rng: &mut Rng) -> Self {
        let mut state = self.lock();
        state.dead = true;
        let mut durable = std::mem::take(&mut state.durable);
        // Now and then all of it survives, or nothing; else some share of it.
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
    /// Counts a call. The last one may have any part of its effect, and fails.
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
        // What was cut off does not come back when the file grows again.
        let kept = (len as usize).div_ceil(SECTOR);
        state.versions.retain(|sector, _| *sector < kept);
        state.done()
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.call(true)?;
        state.syncs += 1;
        // Within the cut, nothing is certain: what was on its way stays in the cache.
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
    fn a_cut_loses_what_was_not_synced_and_nothing_else() {
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
