//! An index of the sessions of the model store, in the order of creation.
use crate::id::{SessionKey, TenantId, UserId};
use crate::store::{CreationKey, IdleCursor, StoredSession};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Sessions by tenant, and by tenant and user.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionIndex {
    all: BTreeMap<(TenantId, Option<UserId>), BTreeSet<CreationKey>>,
}

impl SessionIndex {
    /// Builds the index of a store's sessions.
    pub(super) fn from_sessions<'a>(slots: impl Iterator<Item = (&'a SessionKey, &'a StoredSession)>) -> Self {
        let mut register = Self::default();
        slots.for_each(|(key, slot)| register.insert(key, slot));
        register
    }

    /// Adds a session, if it exists by now; repeating this is harmless.
    pub(super) fn insert(&mut self, key: &SessionKey, slot: &StoredSession) {
        let Some(user) = slot.user.as_ref().filter(|_| !slot.deleted) else { return };
        let birth = CreationKey { at: slot.created_at, session: key.session.clone() };
        for user in [None, Some(user.clone())] {
            self.all.entry((key.tenant.clone(), user)).or_default().insert(birth.clone());
        }
    }

    /// Removes a deleted session.
    pub(super) fn remove(&mut self, key: &SessionKey, slot: &StoredSession) {
        let birth = CreationKey { at: slot.created_at, session: key.session.clone() };
        for user in [None, slot.user.clone()] {
            if let Some(births) = self.all.get_mut(&(key.tenant.clone(), user)) {
                births.remove(&birth);
            }
        }
    }

    /// Returns the sessions from a position on, in the order of tenants and of creation.
    pub(super) fn iter_from(&self, from: Option<&IdleCursor>) -> impl Iterator<Item = (&TenantId, &CreationKey)> {
        let first = from.map(|cursor| (cursor.tenant.clone(), None));
        let tenants = match first {
            Some(first) => self.all.range(first..),
            None => self.all.range::<(TenantId, Option<UserId>), _>(..),
        };
        let births = tenants.filter(|((_, user), _)| user.is_none());
        births.flat_map(move |((tenant, _), births)| {
            let after = from.filter(|cursor| cursor.tenant == *tenant).and_then(|cursor| cursor.after.clone());
            let start = after.map_or(Bound::Unbounded, Bound::Excluded);
            births.range((start, Bound::Unbounded)).map(move |birth| (tenant, birth))
        })
    }

    /// Returns sessions of a tenant or of one of its users, latest creation first.
    pub(super) fn created_before(
        &self,
        tenant: &TenantId,
        user: Option<&UserId>,
        before: Option<&CreationKey>,
    ) -> impl Iterator<Item = &CreationKey> {
        let sessions = self.all.get(&(tenant.clone(), user.cloned()));
        let older = sessions.map(|sessions| match before {
            Some(before) => sessions.range(..before.clone()),
            None => sessions.range::<CreationKey, _>(..),
        });
        older.into_iter().flatten().rev()
    }
}
