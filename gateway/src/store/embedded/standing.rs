//! What a sweep looks at: who holds what, and what lies where nobody is.
use crate::store::embedded::leases::Leases;
use std::collections::BTreeMap;
use turnway_core::id::{Epoch, Holder, Seen, SessionKey};
use turnway_core::time::Mono;

/// Every session that is held, or is free with something in inbox or control lane, by its holder.
/// The table `work` has the same keys; a sweep costs what is due, not what there is.
#[derive(Default)]
pub(super) struct Standing {
    held: BTreeMap<Option<Holder>, BTreeMap<SessionKey, Epoch>>,
}

impl Standing {
    /// Notes a change.
    pub(super) fn turn(&mut self, key: &SessionKey, was: Option<Seen>, is: Option<Seen>) {
        if let Some(seen) = was
            && let Some(sessions) = self.held.get_mut(&seen.holder)
        {
            sessions.remove(key);
            if sessions.is_empty() {
                self.held.remove(&seen.holder);
            }
        }
        if let Some(seen) = is {
            self.held.entry(seen.holder).or_default().insert(key.clone(), seen.epoch);
        }
    }

    /// Forgets a session, whoever holds it.
    pub(super) fn forget(&mut self, key: &SessionKey) {
        self.held.retain(|_, sessions| {
            sessions.remove(key);
            !sessions.is_empty()
        });
    }

    /// Those of nobody and of holders without a lease, in order of their keys.
    pub(super) fn due(&self, leases: &Leases, now: Mono, limit: usize) -> Vec<(SessionKey, Seen)> {
        let dead = self.held.iter().filter(|(holder, _)| holder.is_none_or(|h| !leases.leased(now, h)));
        let mut due: Vec<_> = dead
            .flat_map(|(holder, sessions)| {
                let seen = |epoch: &Epoch| Seen { holder: *holder, epoch: *epoch };
                sessions.iter().take(limit).map(move |(key, epoch)| (key.clone(), seen(epoch)))
            })
            .collect();
        due.sort_by(|(a, _), (b, _)| a.cmp(b));
        due.truncate(limit);
        due
    }
}
