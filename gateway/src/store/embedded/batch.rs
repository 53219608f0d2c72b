//! Performs the ops of one batch in one write transaction, each on its session or on the shared tables. Called by the
//! engine; does not commit.
use crate::store::embedded::conversations::ConversationTables;
use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::head::SessionHead;
use crate::store::embedded::head_cache::HeadCache;
use crate::store::embedded::index::{self, IndexKey};
use crate::store::embedded::leases::Leases;
use crate::store::embedded::meter::UsageMeter;
use crate::store::embedded::quarantine::{self, Quarantine};
use crate::store::embedded::record::{RecordLocation, RecordReader, RecordWriter};
use crate::store::embedded::session_transaction::SessionTransaction;
use crate::store::embedded::sweep_index::SweepIndex;
use crate::store::embedded::tables::{self, Tables};
use redb::{ReadableTable, WriteTransaction};
use std::collections::BTreeSet;
use turnway_core::id::{Principal, SessionKey, TenantId, UserId};
use turnway_core::protocol::conversation::ConversationKey;
use turnway_core::store::binding::{BindingAction, NewBinding};
use turnway_core::store::quota::Usage;
use turnway_core::store::{ConversationOp, ConversationReply, CreationKey, IdleCursor, Op, Reply, StoreRefusal};
use turnway_core::time::{Millis, Now};

/// The earliest moment at which a reply may be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyTiming {
    /// At once, because the reply rests only on durable data.
    Immediate,
    /// After the commit, because the reply rests on a change in this batch.
    AfterCommit,
}

/// The state of one write transaction.
pub(super) struct BatchTransaction<'e, 'txn> {
    pub(super) heads: &'e mut HeadCache,
    pub(super) sweep_index: &'e mut SweepIndex,
    pub(super) leases: &'e Leases,
    pub(super) quarantine: &'e mut Quarantine,
    txn: &'txn WriteTransaction,
    pub(super) tables: Tables<'txn>,
    /// The tables of conversations, opened by the first op that needs them.
    conversations: Option<ConversationTables<'txn>>,
    /// Stored bytes of users, quotas, and free disk space above the reserve.
    pub(super) meter: &'e mut UsageMeter,
    /// Names of the values that this batch changed.
    changed_values: BTreeSet<String>,
    /// True if the batch changed anything.
    pub(super) dirty: bool,
}

impl<'e, 'txn> BatchTransaction<'e, 'txn> {
    pub(super) fn new(
        heads: &'e mut HeadCache,
        sweep_index: &'e mut SweepIndex,
        leases: &'e Leases,
        quarantine: &'e mut Quarantine,
        txn: &'txn WriteTransaction,
        tables: Tables<'txn>,
        meter: &'e mut UsageMeter,
    ) -> Self {
        Self {
            heads,
            sweep_index,
            leases,
            quarantine,
            txn,
            tables,
            conversations: None,
            meter,
            changed_values: BTreeSet::new(),
            dirty: false,
        }
    }

    /// Performs one op.
    pub(super) fn perform(&mut self, now: Now, full: bool, op: &Op) -> Result<(Reply, ReplyTiming), StoreFault> {
        if let Some(key) = op.key() {
            if self.quarantine.is_quarantined(key) {
                return Ok((quarantine::quarantined_reply(op), ReplyTiming::Immediate));
            }
            let reply = self.perform_on_session(now, full, key, op)?;
            return Ok((reply, self.timing(self.heads.is_dirty(key))));
        }
        #[expect(clippy::wildcard_enum_match_arm, reason = "ops with a key are above, leases elsewhere")]
        match op {
            Op::Get { name } => Ok((self.value_reply(name)?, self.timing(self.changed_values.contains(name)))),
            Op::Put { name, expect, value } => {
                let reply = self.put_value(name, *expect, value.as_deref())?;
                Ok((reply, self.timing(self.changed_values.contains(name))))
            }
            Op::ListSessions { tenant, user, before, limit, .. } => {
                let reply = self.sessions(tenant, user.as_ref(), before.as_ref(), *limit as usize)?;
                Ok((reply, self.timing(self.dirty)))
            }
            Op::ScanIdle { from, before, limit } => {
                let reply = self.idle(from.as_ref(), *before, *limit as usize)?;
                Ok((reply, self.timing(self.dirty)))
            }
            Op::Conversation { op, .. } => self.perform_on_conversations(now.store, full, op),
            Op::Sweep { limit } => {
                let sessions = self.sweep_index.due(self.leases, now.mono, *limit as usize);
                Ok((Reply::Unowned { sessions }, self.timing(self.dirty)))
            }
            op => Ok((self.leases.handle(now, op).unwrap_or(Reply::Done), ReplyTiming::Immediate)),
        }
    }

    fn timing(&self, changed: bool) -> ReplyTiming {
        if changed { ReplyTiming::AfterCommit } else { ReplyTiming::Immediate }
    }

    /// Performs an op on one session and keeps the index of sweepable sessions up to date.
    fn perform_on_session(&mut self, now: Now, full: bool, key: &SessionKey, op: &Op) -> Result<Reply, StoreFault> {
        let prefix = tables::session_prefix(key);
        let head = self.heads.find(key, &self.tables)?;
        let was = head.sweep_state();
        let was_free = head.user.is_none();
        let tables = &mut self.tables;
        let leases = self.leases;
        let lives = |node| leases.has_live_lease(now.mono, node);
        let meter = &*self.meter;
        let is_over = |head: &SessionHead, weight: u64| meter.is_over(key, head, op, weight);
        let mut step = SessionTransaction {
            now: now.store,
            is_alive: &lives,
            is_low_on_space: full,
            is_over_quota: &is_over,
            bytes_added: 0,
            prefix: &prefix,
            head,
            tables,
            changed: false,
        };
        let reply = dispatch(&mut step, op)?;
        let grown = step.head.user.clone().map(|user| (user, step.bytes_added));
        if was_free && let Some(user) = &step.head.user {
            index::insert(&mut step.tables.sessions, key, user, now.store)?;
        }
        let is = step.head.sweep_state();
        let changed = step.changed;
        if let Some((user, grown)) = grown.filter(|(_, grown)| *grown != 0) {
            self.meter.usage.record(&Usage::account(key, &user), grown);
        }
        if was != is {
            match (was.is_some(), is.is_some()) {
                (false, true) => drop(self.tables.work.insert(&*prefix, &[][..])?),
                (true, false) => drop(self.tables.work.remove(&*prefix)?),
                (true, true) | (false, false) => {}
            }
            self.sweep_index.update(key, was, is);
        }
        if changed {
            self.dirty = true;
            self.heads.mark_dirty(key);
        }
        Ok(reply)
    }

    // === the index of sessions ===

    fn sessions(
        &mut self,
        tenant: &TenantId,
        user: Option<&UserId>,
        before: Option<&CreationKey>,
        limit: usize,
    ) -> Result<Reply, StoreFault> {
        let (first, end) = index::range(tenant, user, before);
        let mut sessions = Vec::new();
        let mut more = false;
        for item in self.tables.sessions.range(&*first..&*end)?.rev() {
            if sessions.len() == limit {
                more = true;
                break;
            }
            let (key, _) = item?;
            let spot = RecordLocation { table: "sessions", key: key.value() };
            // The index is rebuilt when the store is repaired; a damaged entry must not end a user's page.
            let Some(entry) = IndexKey::parse(spot.key) else {
                tracing::error!(fault = %spot.damaged("invalid encoding"), "a damaged index entry was skipped");
                continue;
            };
            let key = entry.session();
            if self.quarantine.is_quarantined(&key) {
                continue;
            }
            let head = self.heads.find(&key, &self.tables);
            let no_user = || spot.damaged("the session has no user");
            let found = head.and_then(|head| head.summary(entry.birth).ok_or_else(no_user));
            match found {
                Ok(summary) if user.is_none_or(|user| *user == summary.user) => sessions.push(summary),
                Ok(_) => {
                    let fault = spot.damaged("belongs to another user");
                    tracing::error!(%fault, "a damaged index entry was skipped");
                }
                Err(fault @ StoreFault::Damaged { .. }) => {
                    self.quarantine.quarantine(&key, &fault)?;
                    self.sweep_index.remove(&key);
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(Reply::Sessions { sessions, more })
    }

    fn idle(&mut self, from: Option<&IdleCursor>, before: Millis, limit: usize) -> Result<Reply, StoreFault> {
        let mut sessions = Vec::new();
        let mut last = None;
        let mut looked = 0;
        let mut start = index::resume_key(from);
        loop {
            let found = match self.tables.sessions.range(&*start..)?.next() {
                None => return Ok(Reply::Idle { sessions, next: None }),
                Some(item) => item?.0.value().to_vec(),
            };
            let Some(entry) = IndexKey::parse(&found) else {
                start = [&*found, &[0]].concat();
                continue;
            };
            if entry.user.is_some() {
                start = index::next_tenant(&entry.tenant);
                continue;
            }
            if looked == limit {
                return Ok(Reply::Idle { sessions, next: last });
            }
            looked += 1;
            let key = entry.session();
            let cursor = IdleCursor { tenant: entry.tenant, after: Some(entry.birth) };
            start = index::resume_key(Some(&cursor));
            last = Some(cursor);
            if self.quarantine.is_quarantined(&key) {
                continue;
            }
            match self.heads.find(&key, &self.tables) {
                Ok(head) if head.is_idle(before) => sessions.push(key),
                Ok(_) => {}
                Err(fault @ StoreFault::Damaged { .. }) => {
                    self.quarantine.quarantine(&key, &fault)?;
                    self.sweep_index.remove(&key);
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    // === conversations ===

    fn perform_on_conversations(
        &mut self,
        now: Millis,
        full: bool,
        op: &ConversationOp,
    ) -> Result<(Reply, ReplyTiming), StoreFault> {
        if let ConversationOp::Change { key, action: BindingAction::Bind(new) } = op
            && let Some(refusal) = self.bind_refusal(full, key, new)?
        {
            return Ok((Reply::Refused(refusal), self.timing(self.dirty)));
        }
        if let ConversationOp::List { session, principal: Some(principal) } = op
            && let Some(refusal) = self.list_refusal(session, principal)?
        {
            return Ok((Reply::Refused(refusal), self.timing(self.dirty)));
        }
        let has_changed_sessions = self.dirty;
        let tables = self.conversation_tables()?;
        let (reply, rests_on_batch) = match op {
            ConversationOp::Change { key, action } => {
                let (reply, is_changed) = tables.change(now, key, action)?;
                let rests_on_batch = tables.is_changed(key);
                self.dirty |= is_changed;
                (reply, rests_on_batch)
            }
            // A checked list also depends on the session, which this batch may have created.
            ConversationOp::List { session, principal } => {
                let rests_on_batch = tables.has_changes() || (principal.is_some() && has_changed_sessions);
                (ConversationReply::Bindings(tables.list(session)?), rests_on_batch)
            }
            ConversationOp::Read { keys } => {
                let rests_on_batch = keys.iter().any(|key| tables.is_changed(key));
                (ConversationReply::Rows(tables.read(keys)?), rests_on_batch)
            }
            ConversationOp::FindDue { limit } => {
                (ConversationReply::Due(tables.due(now, *limit)?), tables.has_changes())
            }
        };
        Ok((Reply::Conversation(reply), self.timing(rests_on_batch)))
    }

    fn conversation_tables(&mut self) -> Result<&mut ConversationTables<'txn>, StoreFault> {
        match &mut self.conversations {
            Some(tables) => Ok(tables),
            closed => Ok(closed.insert(ConversationTables::open(self.txn)?)),
        }
    }

    /// Returns the reason why a principal may not see the bindings of a session.
    fn list_refusal(
        &mut self,
        session: &SessionKey,
        principal: &Principal,
    ) -> Result<Option<StoreRefusal>, StoreFault> {
        if self.quarantine.is_quarantined(session) {
            return Ok(Some(StoreRefusal::Damaged));
        }
        let head = self.heads.find(session, &self.tables)?;
        let is_hidden = head.user.is_none() || head.deleted || head.is_foreign(principal);
        Ok(is_hidden.then_some(StoreRefusal::NotFound))
    }

    /// Returns the reason why a conversation may not be bound to a session.
    fn bind_refusal(
        &mut self,
        full: bool,
        key: &ConversationKey,
        new: &NewBinding,
    ) -> Result<Option<StoreRefusal>, StoreFault> {
        let session = SessionKey { tenant: key.tenant.clone(), session: new.session.clone() };
        if self.quarantine.is_quarantined(&session) {
            return Ok(Some(StoreRefusal::Damaged));
        }
        let head = self.heads.find(&session, &self.tables)?;
        if head.user.is_none() || head.deleted || head.is_foreign(&new.principal) {
            return Ok(Some(StoreRefusal::NotFound));
        }
        if head.closed {
            return Ok(Some(StoreRefusal::Closed));
        }
        if full {
            return Ok(Some(StoreRefusal::Full));
        }
        let is_full = self.conversation_tables()?.is_full(key, &new.session)?;
        Ok(is_full.then_some(StoreRefusal::TooMany))
    }

    // === values ===

    /// Returns the version and bytes stored under a name. A damaged value is removed: its owner sets it again, and a
    /// value without a valid checksum must not be trusted.
    fn load_value(&mut self, name: &str) -> Result<Option<(u64, Vec<u8>)>, StoreFault> {
        let spot = RecordLocation { table: "values", key: name.as_bytes() };
        let read = {
            let Some(value) = self.tables.values.get(spot.key)? else { return Ok(None) };
            let mut reader = RecordReader(spot.unseal(value.value()).unwrap_or_default());
            reader.u64().map(|version| (version, reader.0.to_vec()))
        };
        if read.is_none() {
            tracing::error!(fault = %spot.damaged("checksum mismatch"), "a damaged value was removed");
            self.tables.values.remove(spot.key)?;
            self.dirty = true;
            self.changed_values.insert(name.to_owned());
        }
        Ok(read)
    }

    fn value_reply(&mut self, name: &str) -> Result<Reply, StoreFault> {
        Ok(match self.load_value(name)? {
            Some((version, value)) => Reply::Value { version, value: Some(value) },
            None => Reply::Value { version: 0, value: None },
        })
    }

    fn put_value(&mut self, name: &str, expect: u64, value: Option<&[u8]>) -> Result<Reply, StoreFault> {
        let version = self.load_value(name)?.map_or(0, |(version, _)| version);
        if version == expect {
            let key = name.as_bytes();
            let was = match value {
                Some(value) => {
                    let record = RecordWriter::new(8 + value.len()).u64(version + 1).raw(value).seal(key);
                    self.tables.values.insert(key, &*record)?
                }
                None => self.tables.values.remove(key)?,
            };
            // Removing a value that does not exist is no change.
            if was.is_some() || value.is_some() {
                self.dirty = true;
                self.changed_values.insert(name.to_owned());
            }
        }
        self.value_reply(name)
    }
}

fn dispatch(step: &mut SessionTransaction<'_, '_>, op: &Op) -> Result<Reply, StoreFault> {
    Ok(match op {
        Op::Accept { principal, input, hash, route, .. } => step.accept(principal, (input, *hash), route.as_ref())?,
        Op::Control { principal, control, create, .. } => step.control(principal, control, *create)?,
        Op::Claim { holder, nonce, expect, floor, .. } => step.claim(*holder, *nonce, *expect, *floor)?,
        Op::Append(append) => step.append(append)?,
        Op::Release { token, tail, drain, .. } => step.release(*token, *tail, *drain),
        Op::Transfer { token, tail, to, nonce, .. } => step.transfer(*token, *tail, *to, *nonce),
        Op::Listen { node, stamp, .. } => step.listen(*node, *stamp),
        Op::Unlisten { node, stamp, .. } => step.unlisten(*node, *stamp),
        Op::ReadView { .. } => Reply::View(Box::new(step.reading().view()?)),
        Op::Read { after, limit, .. } => step.reading().read_log(*after, *limit)?,
        Op::Inbox { after, control_after, .. } => Reply::Inbox(step.reading().pending_inputs(*after, *control_after)?),
        Op::WriteSnapshot(keep) => step.keep(keep)?,
        Op::Trim { token, upto, .. } => step.trim(*token, *upto)?,
        Op::Find { principal, run_id, fence: Some(fence), .. } => step.find_or_fence(principal, run_id, fence)?,
        Op::Find { principal, run_id, fence: None, .. } => step.find(principal, run_id)?,
        Op::FindControl { principal, id, .. } => step.find_control(principal, id)?,
        Op::Delete { key, principal, .. } => step.delete(key, principal)?,
        Op::DeleteIdle { key, before } => step.forget(key, *before)?,
        Op::Blob { principal, action, .. } => step.act_on_blobs(principal, action)?,
        Op::Expire { before_ms, .. } => step.expire(Millis(*before_ms))?,
        // These ops concern no single session and never get here.
        Op::Renew { .. }
        | Op::Retire { .. }
        | Op::Lease { .. }
        | Op::ListSessions { .. }
        | Op::ScanIdle { .. }
        | Op::Sweep { .. }
        | Op::Get { .. }
        | Op::Put { .. }
        | Op::Conversation { .. } => Reply::Done,
    })
}
