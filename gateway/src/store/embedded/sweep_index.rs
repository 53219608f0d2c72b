//! The index of sessions that a sweep may find: owned sessions, and unowned sessions with waiting inputs. Kept by
//! batches.
use crate::store::embedded::leases::Leases;
use std::collections::BTreeMap;
use turnway_core::id::{Epoch, Holder, OwnershipSnapshot, SessionKey};
use turnway_core::time::Mono;

/// Sessions by holder: every session that is owned, or is unowned with something in its inbox or control lane. The
/// table `work` has the same keys. The cost of a sweep depends on the sessions due, not on all sessions.
#[derive(Default)]
pub(super) struct SweepIndex {
    by_holder: BTreeMap<Option<Holder>, BTreeMap<SessionKey, Epoch>>,
}

impl SweepIndex {
    /// Records a change of a session's ownership.
    pub(super) fn update(&mut self, key: &SessionKey, was: Option<OwnershipSnapshot>, is: Option<OwnershipSnapshot>) {
        if let Some(seen) = was
            && let Some(sessions) = self.by_holder.get_mut(&seen.holder)
        {
            sessions.remove(key);
            if sessions.is_empty() {
                self.by_holder.remove(&seen.holder);
            }
        }
        if let Some(seen) = is {
            self.by_holder.entry(seen.holder).or_default().insert(key.clone(), seen.epoch);
        }
    }

    /// Removes a session, whoever owns it.
    pub(super) fn remove(&mut self, key: &SessionKey) {
        self.by_holder.retain(|_, sessions| {
            sessions.remove(key);
            !sessions.is_empty()
        });
    }

    /// Returns the sessions without an owner and those whose holder has no lease, ordered by key.
    pub(super) fn due(&self, leases: &Leases, now: Mono, limit: usize) -> Vec<(SessionKey, OwnershipSnapshot)> {
        let dead = self.by_holder.iter().filter(|(holder, _)| holder.is_none_or(|h| !leases.is_leased(now, h)));
        let mut due: Vec<_> = dead
            .flat_map(|(holder, sessions)| {
                let seen = |epoch: &Epoch| OwnershipSnapshot { holder: *holder, epoch: *epoch };
                sessions.iter().take(limit).map(move |(key, epoch)| (key.clone(), seen(epoch)))
            })
            .collect();
        due.sort_by(|(a, _), (b, _)| a.cmp(b));
        due.truncate(limit);
        due
    }
}
