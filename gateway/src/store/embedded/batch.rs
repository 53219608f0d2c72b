//! Performs the ops of one batch in one write transaction, each on its session or on the shared tables. Called by the
//! engine; does not commit.
use crate::store::embedded::fault::Fault;
use crate::store::embedded::fence::{self, Fence};
use crate::store::embedded::head::Head;
use crate::store::embedded::heads::Heads;
use crate::store::embedded::index::{self, Line};
use crate::store::embedded::leases::Leases;
use crate::store::embedded::meter::Meter;
use crate::store::embedded::record::{Eye, Pen, Spot};
use crate::store::embedded::standing::Standing;
use crate::store::embedded::step::Step;
use crate::store::embedded::tables::{self, Tables};
use redb::ReadableTable;
use std::collections::BTreeSet;
use turnway_core::id::{SessionKey, TenantId, UserId};
use turnway_core::store::quota::Usage;
use turnway_core::store::{Birth, IdlePlace, Op, Reply};
use turnway_core::time::{Millis, Now};

/// The earliest moment at which a reply may be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Basis {
    /// At once, because the reply rests only on durable data.
    Durable,
    /// After the commit, because the reply rests on a change in this batch.
    Batch,
}

/// The state of one write transaction.
pub(super) struct Batch<'e, 'txn> {
    pub(super) heads: &'e mut Heads,
    pub(super) standing: &'e mut Standing,
    pub(super) leases: &'e Leases,
    pub(super) fence: &'e mut Fence,
    pub(super) tables: Tables<'txn>,
    /// Stored bytes of users, quotas, and free disk space above the reserve.
    pub(super) meter: &'e mut Meter,
    /// Names of the values that this batch changed.
    names: BTreeSet<String>,
    /// Whether the batch changed anything.
    pub(super) dirty: bool,
}

impl<'e, 'txn> Batch<'e, 'txn> {
    pub(super) fn new(
        heads: &'e mut Heads,
        standing: &'e mut Standing,
        leases: &'e Leases,
        fence: &'e mut Fence,
        tables: Tables<'txn>,
        meter: &'e mut Meter,
    ) -> Self {
        Self { heads, standing, leases, fence, tables, meter, names: BTreeSet::new(), dirty: false }
    }

    /// Performs one op.
    pub(super) fn perform(&mut self, now: Now, full: bool, op: &Op) -> Result<(Reply, Basis), Fault> {
        if let Some(key) = op.key() {
            if self.fence.is_closed(key) {
                return Ok((fence::closed_off(op), Basis::Durable));
            }
            let reply = self.step(now, full, key, op)?;
            return Ok((reply, self.basis(self.heads.is_dirty(key))));
        }
        #[expect(clippy::wildcard_enum_match_arm, reason = "ops with a key are above, leases elsewhere")]
        match op {
            Op::Get { name } => Ok((self.value(name)?, self.basis(self.names.contains(name)))),
            Op::Put { name, expect, value } => {
                let reply = self.put(name, *expect, value.as_deref())?;
                Ok((reply, self.basis(self.names.contains(name))))
            }
            Op::Sessions { tenant, user, before, limit, .. } => {
                let reply = self.sessions(tenant, user.as_ref(), before.as_ref(), *limit as usize)?;
                Ok((reply, self.basis(self.dirty)))
            }
            Op::Idle { from, before, limit } => {
                let reply = self.idle(from.as_ref(), *before, *limit as usize)?;
                Ok((reply, self.basis(self.dirty)))
            }
            Op::Sweep { limit } => {
                let sessions = self.standing.due(self.leases, now.mono, *limit as usize);
                Ok((Reply::Work { sessions }, self.basis(self.dirty)))
            }
            op => Ok((self.leases.serve(now, op).unwrap_or(Reply::Done), Basis::Durable)),
        }
    }

    fn basis(&self, changed: bool) -> Basis {
        if changed { Basis::Batch } else { Basis::Durable }
    }

    /// Performs an op on one session and keeps the index of sweepable sessions up to date.
    fn step(&mut self, now: Now, full: bool, key: &SessionKey, op: &Op) -> Result<Reply, Fault> {
        let prefix = tables::prefix(key);
        let head = self.heads.find(key, &self.tables)?;
        let (was, was_free) = (head.standing(), head.user.is_none());
        let tables = &mut self.tables;
        let leases = self.leases;
        let lives = |node| leases.lives(now.mono, node);
        let meter = &*self.meter;
        let is_over = |head: &Head, weight: u64| meter.is_over(key, head, op, weight);
        let mut step = Step {
            now: now.store,
            lives: &lives,
            full,
            is_over: &is_over,
            grown: 0,
            prefix: &prefix,
            head,
            tables,
            changed: false,
        };
        let reply = take(&mut step, op)?;
        let grown = step.head.user.clone().map(|user| (user, step.grown));
        if was_free && let Some(user) = &step.head.user {
            index::enter(&mut step.tables.sessions, key, user, now.store)?;
        }
        let (is, changed) = (step.head.standing(), step.changed);
        if let Some((user, grown)) = grown.filter(|(_, grown)| *grown != 0) {
            self.meter.usage.add(&Usage::account(key, &user), grown);
        }
        if was != is {
            match (was.is_some(), is.is_some()) {
                (false, true) => drop(self.tables.work.insert(&*prefix, &[][..])?),
                (true, false) => drop(self.tables.work.remove(&*prefix)?),
                (true, true) | (false, false) => {}
            }
            self.standing.turn(key, was, is);
        }
        if changed {
            self.dirty = true;
            self.heads.change(key);
        }
        Ok(reply)
    }

    // === the index of sessions ===

    fn sessions(
        &mut self,
        tenant: &TenantId,
        user: Option<&UserId>,
        before: Option<&Birth>,
        limit: usize,
    ) -> Result<Reply, Fault> {
        let (first, end) = index::range(tenant, user, before);
        let (mut sessions, mut more) = (Vec::new(), false);
        for item in self.tables.sessions.range(&*first..&*end)?.rev() {
            if sessions.len() == limit {
                more = true;
                break;
            }
            let (key, _) = item?;
            let spot = Spot { table: "sessions", key: key.value() };
            // The index is rebuilt when the store is repaired; a damaged entry must not end a user's page.
            let Some(line) = Line::read(spot.key) else {
                tracing::error!(fault = %spot.damaged("invalid encoding"), "a damaged index entry was skipped");
                continue;
            };
            let key = line.session();
            if self.fence.is_closed(&key) {
                continue;
            }
            let head = self.heads.find(&key, &self.tables);
            let found =
                head.and_then(|head| head.summary(line.birth).ok_or_else(|| spot.damaged("the session has no user")));
            match found {
                Ok(summary) if user.is_none_or(|user| *user == summary.user) => sessions.push(summary),
                Ok(_) => {
                    let fault = spot.damaged("belongs to another user");
                    tracing::error!(%fault, "a damaged index entry was skipped");
                }
                Err(fault @ Fault::Damaged { .. }) => {
                    self.fence.close(&key, &fault)?;
                    self.standing.forget(&key);
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(Reply::Sessions { sessions, more })
    }

    fn idle(&mut self, from: Option<&IdlePlace>, before: Millis, limit: usize) -> Result<Reply, Fault> {
        let (mut sessions, mut last, mut looked) = (Vec::new(), None, 0);
        let mut start = index::after(from);
        loop {
            let found = match self.tables.sessions.range(&*start..)?.next() {
                None => return Ok(Reply::Idle { sessions, next: None }),
                Some(item) => item?.0.value().to_vec(),
            };
            let Some(line) = Line::read(&found) else {
                start = [&*found, &[0]].concat();
                continue;
            };
            if line.user.is_some() {
                start = index::next_tenant(&line.tenant);
                continue;
            }
            if looked == limit {
                return Ok(Reply::Idle { sessions, next: last });
            }
            looked += 1;
            let key = line.session();
            let place = IdlePlace { tenant: line.tenant, after: Some(line.birth) };
            start = index::after(Some(&place));
            last = Some(place);
            if self.fence.is_closed(&key) {
                continue;
            }
            match self.heads.find(&key, &self.tables) {
                Ok(head) if head.is_idle(before) => sessions.push(key),
                Ok(_) => {}
                Err(fault @ Fault::Damaged { .. }) => {
                    self.fence.close(&key, &fault)?;
                    self.standing.forget(&key);
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    // === values ===

    /// Returns the version and bytes stored under a name. A damaged value is removed: its owner sets it again, and a
    /// value without a valid checksum must not be trusted.
    fn stored(&mut self, name: &str) -> Result<Option<(u64, Vec<u8>)>, Fault> {
        let spot = Spot { table: "values", key: name.as_bytes() };
        let read = {
            let Some(value) = self.tables.values.get(spot.key)? else { return Ok(None) };
            let mut eye = Eye(spot.unseal(value.value()).unwrap_or_default());
            eye.u64().map(|version| (version, eye.0.to_vec()))
        };
        if read.is_none() {
            tracing::error!(fault = %spot.damaged("checksum"), "a damaged value was removed");
            self.tables.values.remove(spot.key)?;
            self.dirty = true;
            self.names.insert(name.to_owned());
        }
        Ok(read)
    }

    fn value(&mut self, name: &str) -> Result<Reply, Fault> {
        Ok(match self.stored(name)? {
            Some((version, value)) => Reply::Value { version, value: Some(value) },
            None => Reply::Value { version: 0, value: None },
        })
    }

    fn put(&mut self, name: &str, expect: u64, value: Option<&[u8]>) -> Result<Reply, Fault> {
        let version = self.stored(name)?.map_or(0, |(version, _)| version);
        if version == expect {
            let key = name.as_bytes();
            let was = match value {
                Some(value) => {
                    let record = Pen::new(8 + value.len()).u64(version + 1).raw(value).seal(key);
                    self.tables.values.insert(key, &*record)?
                }
                None => self.tables.values.remove(key)?,
            };
            // Removing a value that does not exist is no change.
            if was.is_some() || value.is_some() {
                self.dirty = true;
                self.names.insert(name.to_owned());
            }
        }
        self.value(name)
    }
}

fn take(step: &mut Step<'_, '_>, op: &Op) -> Result<Reply, Fault> {
    Ok(match op {
        Op::Accept { principal, input, hash, .. } => step.accept(principal, input, *hash)?,
        Op::Control { principal, control, create, .. } => step.control(principal, control, *create)?,
        Op::Claim { holder, nonce, expect, floor, .. } => step.claim(*holder, *nonce, *expect, *floor)?,
        Op::Append(append) => step.append(append)?,
        Op::Release { token, tail, drain, .. } => step.release(*token, *tail, *drain),
        Op::Transfer { token, tail, to, nonce, .. } => step.transfer(*token, *tail, *to, *nonce),
        Op::Listen { node, stamp, .. } => step.listen(*node, *stamp),
        Op::Unlisten { node, stamp, .. } => step.unlisten(*node, *stamp),
        Op::Open { .. } => Reply::View(Box::new(step.reading().view()?)),
        Op::Read { after, limit, .. } => step.reading().read(*after, *limit)?,
        Op::Inbox { after, control_after, .. } => {
            Reply::Waiting(step.reading().waiting(*after, *control_after)?)
        }
        Op::Keep(keep) => step.keep(keep)?,
        Op::Trim { token, upto, .. } => step.trim(*token, *upto)?,
        Op::Find { principal, run_id, .. } => step.find(principal, run_id)?,
        Op::Delete { key, principal, .. } => step.delete(key, principal)?,
        Op::Forget { key, before } => step.forget(key, *before)?,
        Op::Expire { before_ms, .. } => step.expire(Millis(*before_ms))?,
        // These ops concern no single session and never get here.
        Op::Renew { .. }
        | Op::Retire { .. }
        | Op::Lease { .. }
        | Op::Sessions { .. }
        | Op::Idle { .. }
        | Op::Sweep { .. }
        | Op::Get { .. }
        | Op::Put { .. } => Reply::Done,
    })
}
