//! The deterministic store in memory: the reference for all other stores, and the simulator's store.
use crate::id::{Holder, NodeId, Principal, RunId, SessionKey, TenantId, UserId};
use crate::mutant::{Mutant, planted};
use crate::protocol::conversation::ConversationKey;
use crate::store::binding::{BindingAction, BindingRow};
use crate::store::blob::BlobAction;
use crate::store::meter::{ModelUsageMeter, RecordSizes};
use crate::store::model_bindings::ModelBindings;
use crate::store::quota::{ByteMeasure, Quotas};
use crate::store::session_index::SessionIndex;
use crate::store::{
    ConversationOp, ConversationReply, CreationKey, IdleCursor, Op, Reply, RouteVersion, StoreRefusal, StoredSession,
};
use crate::time::{Millis, Mono, Now};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

/// A store in memory that answers at once, and whose last writes can be undone.
#[derive(Clone, Debug, Default)]
pub struct ModelStore {
    journaled: bool,
    sessions: BTreeMap<SessionKey, StoredSession>,
    index: SessionIndex,
    values: BTreeMap<String, (u64, Vec<u8>)>,
    leases: BTreeMap<Holder, Mono>,
    bindings: ModelBindings,
    journal: Vec<JournalEntry>,
    era: u64,
    /// `None`: bytes are not counted.
    meter: Option<ModelUsageMeter>,
}

/// A record as it was before a write.
#[derive(Clone, Debug)]
enum JournalEntry {
    Session(SessionKey, Box<StoredSession>),
    Conversation(ConversationKey, Option<Box<BindingRow>>),
}

impl ModelStore {
    /// Creates an empty store; with `journaled` its writes can be undone.
    pub fn new(journaled: bool) -> Self {
        Self { journaled, ..Self::default() }
    }

    /// Creates an empty store that counts bytes, and refuses inputs over a quota or over `capacity` bytes in all.
    pub fn metered(measure: ByteMeasure, quotas: Quotas, capacity: Option<u64>) -> Self {
        Self { meter: Some(ModelUsageMeter::new(measure, quotas, capacity)), ..Self::default() }
    }

    /// Executes one op, atomically. Leases run by `now.mono`; `now.store` is the store's clock.
    pub fn apply(&mut self, now: Now, op: &Op) -> Reply {
        if self.journaled
            && let Some(key) = op.key()
        {
            let was = self.sessions.get(key).cloned().unwrap_or_default();
            self.journal.push(JournalEntry::Session(key.clone(), Box::new(was)));
        }
        let Some(key) = op.key() else { return self.execute(now, op) };
        // Only these ops create sessions.
        let may_be_new = matches!(op, Op::Accept { .. } | Op::Control { create: true, .. });
        let was_free = may_be_new && self.sessions.get(key).is_none_or(|slot| slot.user.is_none());
        let reply = self.execute(now, op);
        if was_free && let Some(slot) = self.sessions.get(key) {
            self.index.insert(key, slot);
        }
        let is_released = reply == Reply::Released;
        if let Some(meter) = &mut self.meter
            && (is_released || changes_bytes(op))
            && let Some(slot) = self.sessions.get_mut(key)
        {
            if is_released { meter.flush(key, slot) } else { meter.update(key, slot) }
        }
        reply
    }

    fn execute(&mut self, now: Now, op: &Op) -> Reply {
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
            Op::Accept { key, principal, input, hash, route } => {
                let meter = self.meter.as_ref();
                let refuses = |sizes: &RecordSizes, user: &UserId, bytes| meter?.check_room(key, sizes, user, bytes);
                let slot = self.sessions.entry(key.clone()).or_default();
                slot.accept(now.store, principal, (input.clone(), *hash, route.as_ref()), refuses)
            }
            Op::Control { key, create: false, .. } if !self.sessions.contains_key(key) => {
                Reply::Refused(StoreRefusal::NotFound)
            }
            Op::Control { key, principal, control, create } => {
                self.session_mut(key).control(now.store, principal, control.clone(), *create)
            }
            Op::Claim { key, holder, nonce, expect, floor } => {
                self.session_mut(key).claim(now.store, *holder, *nonce, *expect, *floor)
            }
            Op::Append(append) => self.session_mut(&append.key).append(append),
            Op::Release { key, token, tail, drain } => self.session_mut(key).release(*token, *tail, *drain),
            Op::Transfer { key, token, tail, to, nonce } => {
                self.session_mut(key).transfer(now.store, *token, *tail, *to, *nonce)
            }
            Op::Listen { key, node, stamp } => {
                let leases = &self.leases;
                let leased = |node: NodeId| leases.iter().any(|(h, until)| h.node == node && *until > now.mono);
                self.sessions.entry(key.clone()).or_default().listen(*node, *stamp, leased)
            }
            Op::Unlisten { key, node, stamp } => {
                if let Some(slot) = self.sessions.get_mut(key) {
                    slot.unlisten(*node, *stamp);
                }
                Reply::Done
            }
            Op::ReadView { key } => Reply::View(Box::new(self.session_or_default(key).view())),
            Op::Read { key, after, limit } => self.session_or_default(key).read(*after, *limit),
            Op::Inbox { key, after, control_after, .. } => {
                Reply::Inbox(self.session_or_default(key).inbox_after(*after, *control_after))
            }
            Op::WriteSnapshot(keep) => self.session_mut(&keep.key).write_snapshot(keep),
            Op::Trim { key, token, upto } => self.session_mut(key).trim(*token, *upto),
            Op::Find { key, principal, run_id, fence, .. } => self.find(now, key, principal, (run_id, fence.as_ref())),
            Op::FindControl { key, principal, id, .. } => self.session_or_default(key).find_control(principal, id),
            Op::Delete { key, principal, .. } => self.delete_with(key, |slot| slot.delete(principal)),
            Op::ListSessions { tenant, user, before, limit, .. } => {
                self.sessions_before(tenant, user.as_ref(), before.as_ref(), *limit)
            }
            Op::ScanIdle { from, before, limit } => self.scan_idle(from.as_ref(), *before, *limit),
            Op::DeleteIdle { key, before } => self.delete_with(key, |slot| slot.delete_if_idle(*before)),
            Op::Sweep { limit } => self.sweep(now, *limit),
            Op::Get { name } => self.read_value(name),
            Op::Put { name, expect, value } => self.write_value(name, *expect, value.clone()),
            Op::Conversation { op, .. } => self.conversation(now.store, op),
            Op::Blob { key, principal, action, .. } => self.act_on_blobs(now.store, key, principal, action),
            Op::Expire { key, before_ms } => {
                self.session_mut(key).expire(Millis(*before_ms));
                Reply::Done
            }
        }
    }

    /// Returns a session for reading. Reading an unknown session does not create it.
    fn session_or_default(&self, key: &SessionKey) -> Cow<'_, StoredSession> {
        self.sessions.get(key).map_or_else(|| Cow::Owned(StoredSession::default()), Cow::Borrowed)
    }

    fn session_mut(&mut self, key: &SessionKey) -> &mut StoredSession {
        self.sessions.entry(key.clone()).or_default()
    }

    fn find(
        &mut self,
        now: Now,
        key: &SessionKey,
        principal: &Principal,
        (run_id, fence): (&RunId, Option<&RouteVersion>),
    ) -> Reply {
        match fence {
            Some(fence) => self.session_mut(key).find_or_fence(now.store, principal, run_id, fence),
            None => self.session_or_default(key).find(principal, run_id),
        }
    }

    /// Deletes a session and removes it from the index.
    fn delete_with(&mut self, key: &SessionKey, delete: impl FnOnce(&mut StoredSession) -> Reply) -> Reply {
        let Some(slot) = self.sessions.get_mut(key) else { return Reply::Refused(StoreRefusal::NotFound) };
        let reply = delete(slot);
        if reply == Reply::Done {
            self.index.remove(key, slot);
        }
        reply
    }

    fn renew(&mut self, now: Now, holder: Holder, ttl: Duration, fresh: bool) -> Reply {
        let revive = planted(Mutant::LeaseRevives) && self.leases.contains_key(&holder);
        if !fresh && !revive && !self.is_leased(now.mono, holder) {
            return Reply::LeaseLost;
        }
        self.leases.insert(holder, now.mono + ttl);
        Reply::Renewed { era: self.era, clock: now.store }
    }

    fn sweep(&self, now: Now, limit: u32) -> Reply {
        let free = !planted(Mutant::SweepSkipsFree);
        let quiet = !planted(Mutant::SweepSkipsQuiet);
        let due = self.sessions.iter().filter(|(_, slot)| {
            let open = !slot.inbox.is_empty() || !slot.control.is_empty();
            match slot.holder {
                None => free && open,
                Some(holder) => !self.is_leased(now.mono, holder) && (quiet || open),
            }
        });
        let limit = if planted(Mutant::NoSweep) { 0 } else { limit };
        Reply::Unowned {
            sessions: due.take(limit as usize).map(|(key, slot)| (key.clone(), slot.ownership())).collect(),
        }
    }

    fn sessions_before(
        &self,
        tenant: &TenantId,
        user: Option<&UserId>,
        before: Option<&CreationKey>,
        limit: u32,
    ) -> Reply {
        let mut older = self.index.created_before(tenant, user, before).filter_map(|birth| {
            let key = SessionKey { tenant: tenant.clone(), session: birth.session.clone() };
            self.sessions.get(&key)?.summary(birth)
        });
        let sessions = older.by_ref().take(limit as usize).collect();
        Reply::Sessions { sessions, more: older.next().is_some() }
    }

    fn scan_idle(&self, from: Option<&IdleCursor>, before: Millis, limit: u32) -> Reply {
        let mut sessions = Vec::new();
        let mut last = None;
        for (looked, (tenant, birth)) in self.index.iter_from(from).enumerate() {
            if looked == limit as usize {
                return Reply::Idle { sessions, next: last };
            }
            let key = SessionKey { tenant: tenant.clone(), session: birth.session.clone() };
            if self.sessions.get(&key).is_some_and(|slot| slot.is_idle(before)) {
                sessions.push(key);
            }
            last = Some(IdleCursor { tenant: tenant.clone(), after: Some(birth.clone()) });
        }
        Reply::Idle { sessions, next: None }
    }

    fn conversation(&mut self, now: Millis, op: &ConversationOp) -> Reply {
        let reply = match op {
            ConversationOp::Change { key, action } => {
                if let BindingAction::Bind(new) = action {
                    let session = SessionKey { tenant: key.tenant.clone(), session: new.session.clone() };
                    let refusal = self.session_or_default(&session).bind_refusal(&new.principal);
                    if let Some(refusal) = refusal.or_else(|| self.bindings.bind_refusal(key, &session)) {
                        return Reply::Refused(refusal);
                    }
                }
                if self.journaled {
                    let was = self.bindings.row(key).cloned().map(Box::new);
                    self.journal.push(JournalEntry::Conversation(key.clone(), was));
                }
                self.bindings.change(now, key, action)
            }
            ConversationOp::List { session, principal } => {
                let stored = self.session_or_default(session);
                if principal.as_ref().is_some_and(|principal| stored.is_hidden_from(principal)) {
                    return Reply::Refused(StoreRefusal::NotFound);
                }
                ConversationReply::Bindings(self.bindings.list(session))
            }
            ConversationOp::Read { keys } => {
                ConversationReply::Rows(keys.iter().map(|key| self.bindings.row(key).cloned()).collect())
            }
            ConversationOp::FindDue { limit } => ConversationReply::Due(self.bindings.due(now, *limit)),
        };
        Reply::Conversation(reply)
    }

    fn act_on_blobs(&mut self, now: Millis, key: &SessionKey, principal: &Principal, action: &BlobAction) -> Reply {
        let Some(slot) = self.sessions.get_mut(key) else { return Reply::Refused(StoreRefusal::NotFound) };
        let meter = self.meter.as_ref();
        let refuses = |sizes: &RecordSizes, user: &UserId, bytes| meter?.check_room(key, sizes, user, bytes);
        slot.act_on_blobs(now, principal, action, refuses)
    }

    fn read_value(&self, name: &str) -> Reply {
        match self.values.get(name) {
            Some((version, value)) => Reply::Value { version: *version, value: Some(value.clone()) },
            None => Reply::Value { version: 0, value: None },
        }
    }

    fn write_value(&mut self, name: &str, expect: u64, value: Option<Vec<u8>>) -> Reply {
        let version = self.values.get(name).map_or(0, |(version, _)| *version);
        if version == expect {
            match value {
                Some(value) => drop(self.values.insert(name.to_owned(), (version + 1, value))),
                None => drop(self.values.remove(name)),
            }
        }
        self.read_value(name)
    }

    // === for checkers ===

    /// Returns whether a holder's lease is valid.
    pub fn is_leased(&self, now: Mono, holder: Holder) -> bool {
        self.leases.get(&holder).is_some_and(|until| *until > now)
    }
    /// Returns a stored session.
    pub fn session(&self, key: &SessionKey) -> Option<&StoredSession> {
        self.sessions.get(key)
    }
    /// Returns every stored session.
    pub fn sessions(&self) -> impl Iterator<Item = (&SessionKey, &StoredSession)> {
        self.sessions.iter()
    }
    /// Returns every conversation's row.
    pub fn conversations(&self) -> impl Iterator<Item = (&ConversationKey, &BindingRow)> {
        self.bindings.iter()
    }
    /// Returns the stored bytes of all users; 0 if they are not counted.
    pub fn stored_bytes(&self) -> u64 {
        self.meter.as_ref().map_or(0, ModelUsageMeter::total)
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
            match self.journal.pop() {
                Some(JournalEntry::Session(key, slot)) => drop(self.sessions.insert(key, *slot)),
                Some(JournalEntry::Conversation(key, row)) => self.bindings.restore(key, row.map(|row| *row)),
                None => break,
            }
        }
        self.index = SessionIndex::from_sessions(self.sessions.iter());
    }
}

/// Returns whether an op may add records to a session or remove some.
fn changes_bytes(op: &Op) -> bool {
    match op {
        Op::Accept { .. }
        | Op::Control { .. }
        | Op::Append(_)
        | Op::WriteSnapshot(_)
        | Op::Trim { .. }
        | Op::Delete { .. }
        | Op::DeleteIdle { .. }
        | Op::Blob { .. } => true,
        Op::Renew { .. }
        | Op::Retire { .. }
        | Op::Lease { .. }
        | Op::Claim { .. }
        | Op::Release { .. }
        | Op::Transfer { .. }
        | Op::Listen { .. }
        | Op::Unlisten { .. }
        | Op::ReadView { .. }
        | Op::Read { .. }
        | Op::Inbox { .. }
        | Op::Find { .. }
        | Op::FindControl { .. }
        | Op::ListSessions { .. }
        | Op::ScanIdle { .. }
        | Op::Sweep { .. }
        | Op::Get { .. }
        | Op::Put { .. }
        | Op::Conversation { .. }
        | Op::Expire { .. } => false,
    }
}
