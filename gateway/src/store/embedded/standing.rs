//! The index of sessions that a sweep may find: owned sessions, and unowned sessions with waiting inputs. Kept by
//! batches.
use crate::store::embedded::leases::Leases;
use std::collections::BTreeMap;
use turnway_core::id::{Epoch, Holder, Seen, SessionKey};
use turnway_core::time::Mono;

/// Sessions by holder: every session that is owned, or is unowned with something in its inbox or control lane. The
/// table `work` has the same keys. The cost of a sweep depends on the sessions due, not on all sessions.
#[derive(Default)]
pub(super) struct Standing {
    held: BTreeMap<Option<Holder>, BTreeMap<SessionKey, Epoch>>,
}

impl Standing {
    /// Records a change of a session's ownership.
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

    /// Removes a session, whoever owns it.
    pub(super) fn forget(&mut self, key: &SessionKey) {
        self.held.retain(|_, sessions| {
            sessions.remove(key);
            !sessions.is_empty()
        });
    }

    /// Returns the sessions without an owner and those whose holder has no lease, ordered by key.
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
