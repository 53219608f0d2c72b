//! The deterministic store in memory: the reference for all other stores, and the simulator's store.
use crate::id::{Holder, NodeId, SessionKey, TenantId, UserId};
use crate::mutant::{Mutant, planted};
use crate::store::meter::{Meter, Sizes};
use crate::store::quota::{Measure, Quotas};
use crate::store::register::Register;
use crate::store::{Birth, IdlePlace, Op, Refused, Reply, Slot};
use crate::time::{Millis, Mono, Now};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

/// A store in memory that answers at once, and whose last writes can be undone.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    journaled: bool,
    slots: BTreeMap<SessionKey, Slot>,
    register: Register,
    values: BTreeMap<String, (u64, Vec<u8>)>,
    leases: BTreeMap<Holder, Mono>,
    journal: Vec<(SessionKey, Slot)>,
    era: u64,
    /// `None`: bytes are not counted.
    meter: Option<Meter>,
}

impl Shelf {
    /// Creates an empty store; with `journaled` its writes can be undone.
    pub fn new(journaled: bool) -> Self {
        Self { journaled, ..Self::default() }
    }

    /// Creates an empty store that counts bytes, and refuses inputs over a quota or over `room` bytes in all.
    pub fn metered(measure: Measure, quotas: Quotas, room: Option<u64>) -> Self {
        Self { meter: Some(Meter::new(measure, quotas, room)), ..Self::default() }
    }

    /// Executes one op, atomically. Leases run by `now.mono`; `now.store` is the store's clock.
    pub fn apply(&mut self, now: Now, op: &Op) -> Reply {
        if self.journaled
            && let Some(key) = op.key()
        {
            let was = self.slots.get(key).cloned().unwrap_or_default();
            self.journal.push((key.clone(), was));
        }
        let Some(key) = op.key() else { return self.perform(now, op) };
        // Only these ops create sessions.
        let may_be_new = matches!(op, Op::Accept { .. } | Op::Control { create: true, .. });
        let was_free = may_be_new && self.slots.get(key).is_none_or(|slot| slot.user.is_none());
        let reply = self.perform(now, op);
        if was_free && let Some(slot) = self.slots.get(key) {
            self.register.enter(key, slot);
        }
        let is_released = reply == Reply::Released;
        if let Some(meter) = &mut self.meter
            && (is_released || changes_bytes(op))
            && let Some(slot) = self.slots.get_mut(key)
        {
            if is_released { meter.settle(key, slot) } else { meter.follow(key, slot) }
        }
        reply
    }

    fn perform(&mut self, now: Now, op: &Op) -> Reply {
        match op {
            Op::Renew { holder, ttl, fresh, .. } => self.renew(now, *holder, *ttl, *fresh),
            Op::Retire { holder } => {
                self.leases.remove(holder);
                Reply::Done
            }
            Op::Lease { node, .. } => {
                let lives = self.leases.iter().filter(|(h, until)| h.node == *node && **until > now.mono);
                Reply::Leased { left: lives.map(|(_, until)| *until - now.mono).max() }
            }
            Op::Accept { key, principal, input, hash } => {
                let meter = self.meter.as_ref();
                let refuses = |sizes: &Sizes, user: &UserId, bytes| meter?.refuses(key, sizes, user, bytes);
                let slot = self.slots.entry(key.clone()).or_default();
                slot.accept(now.store, principal, input.clone(), *hash, refuses)
            }
            Op::Control { key, create: false, .. } if !self.slots.contains_key(key) => {
                Reply::Refused(Refused::NotFound)
            }
            Op::Control { key, principal, control, create } => {
                self.slot(key).control(now.store, principal, control.clone(), *create)
            }
            Op::Claim { key, holder, nonce, expect, floor } => {
                self.slot(key).claim(now.store, *holder, *nonce, *expect, *floor)
            }
            Op::Append(append) => self.slot(&append.key).append(append),
            Op::Release { key, token, tail, drain } => self.slot(key).release(*token, *tail, *drain),
            Op::Transfer { key, token, tail, to, nonce } => {
                self.slot(key).transfer(now.store, *token, *tail, *to, *nonce)
            }
            Op::Listen { key, node, stamp } => {
                let leases = &self.leases;
                let leased =
                    |node: NodeId| leases.iter().any(|(h, until)| h.node == node && *until > now.mono);
                self.slots.entry(key.clone()).or_default().listen(*node, *stamp, leased)
            }
            Op::Unlisten { key, node, stamp } => {
                if let Some(slot) = self.slots.get_mut(key) {
                    slot.unlisten(*node, *stamp);
                }
                Reply::Done
            }
            Op::Open { key } => Reply::View(Box::new(self.look(key).view())),
            Op::Read { key, after, limit } => self.look(key).read(*after, *limit),
            Op::Inbox { key, after, control_after, .. } => {
                Reply::Waiting(self.look(key).waiting(*after, *control_after))
            }
            Op::Keep(keep) => self.slot(&keep.key).keep(keep),
            Op::Trim { key, token, upto } => self.slot(key).trim(*token, *upto),
            Op::Find { key, principal, run_id, .. } => self.look(key).find(principal, run_id),
            Op::Delete { key, principal, .. } => self.remove(key, |slot| slot.delete(principal)),
            Op::Sessions { tenant, user, before, limit, .. } => {
                self.sessions_before(tenant, user.as_ref(), before.as_ref(), *limit)
            }
            Op::Idle { from, before, limit } => self.idle(from.as_ref(), *before, *limit),
            Op::Forget { key, before } => self.remove(key, |slot| slot.forget(*before)),
            Op::Sweep { limit } => self.sweep(now, *limit),
            Op::Get { name } => self.value(name),
            Op::Put { name, expect, value } => self.put(name, *expect, value.clone()),
            Op::Expire { key, before_ms } => {
                self.slot(key).expire(Millis(*before_ms));
                Reply::Done
            }
        }
    }

    /// Returns a session for reading. Reading an unknown session does not create it.
    fn look(&self, key: &SessionKey) -> Cow<'_, Slot> {
        self.slots.get(key).map_or_else(|| Cow::Owned(Slot::default()), Cow::Borrowed)
    }

    fn slot(&mut self, key: &SessionKey) -> &mut Slot {
        self.slots.entry(key.clone()).or_default()
    }

    /// Deletes a session and removes it from the index.
    fn remove(&mut self, key: &SessionKey, delete: impl FnOnce(&mut Slot) -> Reply) -> Reply {
        let Some(slot) = self.slots.get_mut(key) else { return Reply::Refused(Refused::NotFound) };
        let reply = delete(slot);
        if reply == Reply::Done {
            self.register.leave(key, slot);
        }
        reply
    }

    fn renew(&mut self, now: Now, holder: Holder, ttl: Duration, fresh: bool) -> Reply {
        let revive = planted(Mutant::LeaseRevives) && self.leases.contains_key(&holder);
        if !fresh && !revive && !self.leased(now.mono, holder) {
            return Reply::Lost;
        }
        self.leases.insert(holder, now.mono + ttl);
        Reply::Renewed { era: self.era, clock: now.store }
    }

    fn sweep(&self, now: Now, limit: u32) -> Reply {
        let free = !planted(Mutant::SweepSkipsFree);
        let quiet = !planted(Mutant::SweepSkipsQuiet);
        let due = self.slots.iter().filter(|(_, slot)| {
            let open = !slot.inbox.is_empty() || !slot.control.is_empty();
            match slot.holder {
                None => free && open,
                Some(holder) => !self.leased(now.mono, holder) && (quiet || open),
            }
        });
        let limit = if planted(Mutant::NoSweep) { 0 } else { limit };
        Reply::Work {
            sessions: due.take(limit as usize).map(|(key, slot)| (key.clone(), slot.seen())).collect(),
        }
    }

    fn sessions_before(
        &self,
        tenant: &TenantId,
        user: Option<&UserId>,
        before: Option<&Birth>,
        limit: u32,
    ) -> Reply {
        let mut older = self.register.before(tenant, user, before).filter_map(|birth| {
            let key = SessionKey { tenant: tenant.clone(), session: birth.session.clone() };
            self.slots.get(&key)?.summary(birth)
        });
        let sessions = older.by_ref().take(limit as usize).collect();
        Reply::Sessions { sessions, more: older.next().is_some() }
    }

    fn idle(&self, from: Option<&IdlePlace>, before: Millis, limit: u32) -> Reply {
        let (mut sessions, mut last) = (Vec::new(), None);
        for (looked, (tenant, birth)) in self.register.walk(from).enumerate() {
            if looked == limit as usize {
                return Reply::Idle { sessions, next: last };
            }
            let key = SessionKey { tenant: tenant.clone(), session: birth.session.clone() };
            if self.slots.get(&key).is_some_and(|slot| slot.is_idle(before)) {
                sessions.push(key);
            }
            last = Some(IdlePlace { tenant: tenant.clone(), after: Some(birth.clone()) });
        }
        Reply::Idle { sessions, next: None }
    }

    fn value(&self, name: &str) -> Reply {
        match self.values.get(name) {
            Some((version, value)) => Reply::Value { version: *version, value: Some(value.clone()) },
            None => Reply::Value { version: 0, value: None },
        }
    }

    fn put(&mut self, name: &str, expect: u64, value: Option<Vec<u8>>) -> Reply {
        let version = self.values.get(name).map_or(0, |(version, _)| *version);
        if version == expect {
            match value {
                Some(value) => drop(self.values.insert(name.to_owned(), (version + 1, value))),
                None => drop(self.values.remove(name)),
            }
        }
        self.value(name)
    }

    // === for checkers ===

    /// Returns whether a holder's lease is valid.
    pub fn leased(&self, now: Mono, holder: Holder) -> bool {
        self.leases.get(&holder).is_some_and(|until| *until > now)
    }
    /// Returns a stored session.
    pub fn session(&self, key: &SessionKey) -> Option<&Slot> {
        self.slots.get(key)
    }
    /// Returns every stored session.
    pub fn sessions(&self) -> impl Iterator<Item = (&SessionKey, &Slot)> {
        self.slots.iter()
    }
    /// Returns the stored bytes of all users; 0 if they are not counted.
    pub fn stored_bytes(&self) -> u64 {
        self.meter.as_ref().map_or(0, Meter::total)
    }
    /// Restarts the store with all its data, but without the leases.
    pub fn restart(&mut self) {
        self.era += 1;
        self.leases.clear();
    }
    /// Undoes the last writes, as a fail-over to a lagging replica does.
    pub fn rewind(&mut self, writes: u64) {
        self.era += 1;
        for _ in 0..writes {
            let Some((key, slot)) = self.journal.pop() else { break };
            self.slots.insert(key, slot);
        }
        self.register = Register::of(self.slots.iter());
    }
}

/// Returns whether an op may add records to a session or remove some.
fn changes_bytes(op: &Op) -> bool {
    match op {
        Op::Accept { .. }
        | Op::Control { .. }
        | Op::Append(_)
        | Op::Keep(_)
        | Op::Trim { .. }
        | Op::Delete { .. }
        | Op::Forget { .. } => true,
        Op::Renew { .. }
        | Op::Retire { .. }
        | Op::Lease { .. }
        | Op::Claim { .. }
        | Op::Release { .. }
        | Op::Transfer { .. }
        | Op::Listen { .. }
        | Op::Unlisten { .. }
        | Op::Open { .. }
        | Op::Read { .. }
        | Op::Inbox { .. }
        | Op::Find { .. }
        | Op::Sessions { .. }
        | Op::Idle { .. }
        | Op::Sweep { .. }
        | Op::Get { .. }
        | Op::Put { .. }
        | Op::Expire { .. } => false,
    }
}
