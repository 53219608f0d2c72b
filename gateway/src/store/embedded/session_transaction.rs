//! The atomic ops on one session, with the same results as those of [`turnway_core::store::StoredSession`]. Called by
//! batches.
pub(super) mod blobs;
mod ids;

use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::head::{PendingInput, SessionHead};
use crate::store::embedded::index;
use crate::store::embedded::record::{InputRecord, RecordLocation, RecordWriter};
use crate::store::embedded::session_record_reader::{LogRecord, SessionRecordReader};
use crate::store::embedded::tables::{self, InputLane, Tables};
use redb::ReadableTable;
use serde::Serialize;
use std::collections::BTreeMap;
use turnway_core::id::{
    Epoch, FenceToken, Holder, InboxPosition, ListenStamp, NodeId, Nonce, OwnershipSnapshot, Principal, RunId, Seq,
    SessionKey, UserId,
};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::annotation::apply_annotations;
use turnway_core::protocol::input::{BodyHash, ControlEntry, Input, Strategy};
use turnway_core::shrink::Shrink;
use turnway_core::store::{Acceptance, Append, Claimed, Reply, RouteVersion, SnapshotWrite, StoreRefusal};
use turnway_core::time::Millis;

/// One op on a session, with the state that it may change.
pub(super) struct SessionTransaction<'a, 'txn> {
    pub(super) now: Millis,
    /// True if a node has a valid lease.
    pub(super) is_alive: &'a dyn Fn(NodeId) -> bool,
    /// True if the disk has no space for more inputs.
    pub(super) is_low_on_space: bool,
    /// True if the user who pays for the session has used up a quota of stored bytes; called for new inputs only.
    pub(super) is_over_quota: &'a dyn Fn(&SessionHead, u64) -> bool,
    /// Bytes of added records minus those of removed ones.
    pub(super) bytes_added: i64,
    pub(super) prefix: &'a [u8],
    pub(super) head: &'a mut SessionHead,
    pub(super) tables: &'a mut Tables<'txn>,
    pub(super) changed: bool,
}

/// Converts a size to a signed difference; records are far smaller than half the address space.
fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl<'txn> SessionTransaction<'_, 'txn> {
    // === reads and helpers ===

    pub(super) fn reading(&self) -> SessionRecordReader<'_, 'txn> {
        SessionRecordReader { prefix: self.prefix, head: &*self.head, tables: &*self.tables }
    }

    /// Returns whether the log has exactly this fact at a position.
    fn is_written(&self, seq: Seq, token: FenceToken, json: &str) -> Result<bool, StoreFault> {
        let key = tables::fact_key(self.prefix, seq);
        let Some(value) = self.tables.log.get(&*key)? else { return Ok(false) };
        let there = LogRecord::unseal(RecordLocation { table: "log", key: &key }, value.value())?;
        // The epoch is part of the JSON.
        Ok(there.nonce == token.nonce && there.json == json)
    }

    fn insert_pending(
        &mut self,
        lane: InputLane,
        position: InboxPosition,
        body: &impl Serialize,
    ) -> Result<(), StoreFault> {
        let key = tables::lane_key(self.prefix, lane, position);
        let spot = RecordLocation { table: "lanes", key: &key };
        let json = serde_json::to_vec(body).map_err(|_| spot.damaged("cannot be written"))?;
        let record = RecordWriter::new(json.len()).raw(&json).seal(&key);
        let before = self.tables.lanes.insert(&*key, &*record)?.map_or(0, |old| old.value().len());
        self.bytes_added += signed(record.len()) - signed(before);
        Ok(())
    }

    fn remove_pending(&mut self, lane: InputLane, position: InboxPosition) -> Result<(), StoreFault> {
        let gone = self.tables.lanes.remove(&*tables::lane_key(self.prefix, lane, position))?;
        self.bytes_added -= signed(gone.map_or(0, |gone| gone.value().len()));
        Ok(())
    }

    // === the lanes ===

    pub(super) fn accept(
        &mut self,
        principal: &Principal,
        (input, hash): (&Input, BodyHash),
        route: Option<&RouteVersion>,
    ) -> Result<Reply, StoreFault> {
        if self.head.deleted || self.head.is_foreign(principal) {
            return Ok(Reply::Refused(StoreRefusal::NotFound));
        }
        let owner = self.head.ownership();
        if let Some(record) = self.input_record(&input.run_id)? {
            if record.hash != hash {
                return Ok(Reply::Refused(StoreRefusal::Conflict));
            }
            let position = record.position;
            let prev = record.prev_position;
            let tail = record.log_tail;
            let ended = record.ended.is_some();
            return Ok(Reply::Accepted(Acceptance::first(position, prev, owner, tail).again(ended)));
        }
        if let Some(route) = route
            && self.fence(&route.place)?.is_some_and(|version| version > route.version)
        {
            return Ok(Reply::Refused(StoreRefusal::Busy));
        }
        let weight = input.weight() as u64;
        let refused = self.refusal_of(input, weight);
        let is_over = refused.is_none() && (self.is_over_quota)(&*self.head, weight);
        if let Some(refused) = refused.or(is_over.then_some(StoreRefusal::Quota)) {
            return Ok(Reply::Refused(refused));
        }
        let prev = self.head.tail;
        let tail = self.head.log_end;
        let position = InboxPosition(self.now.0.max(prev.0 + 1));
        let record =
            InputRecord { position, prev_position: prev, hash, log_tail: tail, accepted: self.now, ended: None };
        self.insert_pending(InputLane::Inbox, position, input)?;
        self.head.tail = position;
        self.head.user.get_or_insert_with(|| principal.user.clone());
        let waiting = PendingInput { weight, run_id: input.run_id.clone(), record: Some(record) };
        self.head.inbox.insert(position, waiting);
        self.changed = true;
        Ok(Reply::Accepted(Acceptance::first(position, prev, owner, tail)))
    }

    fn refusal_of(&self, input: &Input, weight: u64) -> Option<StoreRefusal> {
        let inbox = &self.head.inbox;
        if self.head.closed {
            return Some(StoreRefusal::Closed);
        }
        if input.strategy == Strategy::Reject && !inbox.is_empty() {
            return Some(StoreRefusal::Busy);
        }
        let bytes = inbox.values().map(|waiting| waiting.weight).sum::<u64>() + weight;
        if inbox.len() >= limits::INBOX_INPUTS_MAX || bytes > limits::INBOX_BYTES_MAX as u64 {
            return Some(StoreRefusal::TooMany);
        }
        (self.is_low_on_space && !planted(Planted::DiskReserveUsed)).then_some(StoreRefusal::Full)
    }

    pub(super) fn control(
        &mut self,
        principal: &Principal,
        control: &ControlEntry,
        create: bool,
    ) -> Result<Reply, StoreFault> {
        let is_free = self.head.user.is_none() && !create;
        if self.head.deleted || self.head.is_foreign(principal) || is_free {
            return Ok(Reply::Refused(StoreRefusal::NotFound));
        }
        let owner = self.head.ownership();
        let tail = self.head.log_end;
        if let Some((position, prev)) = self.control_record(&control.id)? {
            let ended = !self.head.control.contains(&position);
            return Ok(Reply::Accepted(Acceptance::first(position, prev, owner, tail).again(ended)));
        }
        if let Some(run_id) = control.what.cancelled_run()
            && self.input_record(run_id)?.is_none()
        {
            return Ok(Reply::Refused(StoreRefusal::NotFound));
        }
        if self.head.control.len() >= limits::CONTROL_ENTRIES_MAX {
            return Ok(Reply::Refused(StoreRefusal::TooMany));
        }
        let prev = self.head.control_tail;
        let position = InboxPosition(self.now.0.max(prev.0 + 1));
        let id_key = tables::control_id_key(self.prefix, &control.id);
        self.tables.ids.insert(&*id_key, &*RecordWriter::new(16).u64(position.0).u64(prev.0).seal(&id_key))?;
        self.insert_pending(InputLane::Control, position, control)?;
        self.head.control_tail = position;
        self.head.user.get_or_insert_with(|| principal.user.clone());
        self.head.control.insert(position);
        self.changed = true;
        Ok(Reply::Accepted(Acceptance::first(position, prev, owner, tail)))
    }

    // === ownership ===

    pub(super) fn claim(
        &mut self,
        holder: Holder,
        nonce: Nonce,
        expect: OwnershipSnapshot,
        floor: Epoch,
    ) -> Result<Reply, StoreFault> {
        let head = &mut *self.head;
        if head.token.nonce != nonce || head.holder != Some(holder) {
            let seen = head.ownership();
            if seen != expect {
                return Ok(Reply::OwnershipConflict { owner: seen });
            }
            let epoch = self.now.0.max(floor.0.saturating_add(1)).max(head.token.epoch.0 + 1);
            head.token = FenceToken { epoch: Epoch(epoch), nonce };
            head.holder = Some(holder);
            self.changed = true;
        }
        let inbox = self.reading().pending_inputs(InboxPosition(0), InboxPosition(0))?;
        let view = self.reading().view()?;
        let token = self.head.token;
        let version = self.head.version;
        let listeners = self.head.listeners.clone();
        Ok(Reply::Claimed(Box::new(Claimed { token, view, inbox, listeners, version })))
    }

    pub(super) fn release(&mut self, token: FenceToken, tail: Seq, drain: bool) -> Reply {
        if self.head.is_fenced(token) {
            return Reply::Fenced;
        }
        let left = !self.head.inbox.is_empty() || !self.head.control.is_empty();
        if tail != self.head.log_end.seq || (!drain && left) {
            return Reply::NotReleased;
        }
        self.head.holder = None;
        self.changed = true;
        Reply::Released
    }

    pub(super) fn transfer(&mut self, token: FenceToken, tail: Seq, to: Holder, nonce: Nonce) -> Reply {
        let head = &mut *self.head;
        if head.token.nonce == nonce && head.holder == Some(to) {
            return Reply::Transferred { token: head.token };
        }
        if head.is_fenced(token) {
            return Reply::Fenced;
        }
        if tail != head.log_end.seq {
            return Reply::OutOfOrder;
        }
        head.token = FenceToken { epoch: Epoch(self.now.0.max(token.epoch.0 + 1)), nonce };
        head.holder = Some(to);
        self.changed = true;
        Reply::Transferred { token: head.token }
    }

    // === the log ===

    pub(super) fn append(&mut self, append: &Append) -> Result<Reply, StoreFault> {
        let Append { key, token, after, facts, .. } = append;
        if self.head.is_fenced(*token) {
            return Ok(Reply::Fenced);
        }
        let places = (1..).map(|n| Seq(after.0.saturating_add(n)));
        let lines: Vec<(Seq, String)> =
            places.zip(facts).map(|(seq, fact)| (seq, fact.to_json(key, seq, token.epoch))).collect();
        if !self.is_already_appended(*after, *token, &lines)? {
            if *after != self.head.log_end.seq {
                return Ok(Reply::OutOfOrder);
            }
            if let Some((position, _)) = append.ends.iter().find(|(at, _)| !self.head.inbox.contains_key(at)) {
                return Ok(Reply::InputMissing { position: *position });
            }
            self.write_facts(*token, &lines)?;
            self.remove_ended(append)?;
        }
        let head = &*self.head;
        let inbox_tail = head.tail;
        let control_tail = head.control_tail;
        let version = head.version;
        let listeners = (append.known_listeners != version).then(|| head.listeners.clone());
        Ok(Reply::Appended { tail: head.log_end.seq, inbox_tail, control_tail, version, listeners })
    }

    /// Returns whether the log already has exactly these facts. Facts after the log's end need no read.
    fn is_already_appended(&self, after: Seq, token: FenceToken, lines: &[(Seq, String)]) -> Result<bool, StoreFault> {
        let past = lines.last().is_none_or(|(last, _)| *last > self.head.log_end.seq);
        if past || after < self.head.trimmed_to {
            return Ok(false);
        }
        for (seq, json) in lines {
            if !self.is_written(*seq, token, json)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn write_facts(&mut self, token: FenceToken, lines: &[(Seq, String)]) -> Result<(), StoreFault> {
        for (seq, json) in lines {
            let key = tables::fact_key(self.prefix, *seq);
            let line = RecordWriter::new(16 + json.len()).u128(token.nonce.0).raw(json.as_bytes()).seal(&key);
            self.bytes_added += signed(line.len());
            self.tables.log.insert(&*key, &*line)?;
            (self.head.log_end.seq, self.head.log_end.epoch) = (*seq, token.epoch);
            self.changed = true;
        }
        Ok(())
    }

    /// Removes the inputs and control entries that end with the appended facts.
    fn remove_ended(&mut self, append: &Append) -> Result<(), StoreFault> {
        for (position, run_id) in &append.ends {
            self.mark_ended(run_id)?;
            if let Some(waiting) = self.head.inbox.remove(position) {
                self.remove_pending(InputLane::Inbox, *position)?;
                if let Some(record) = waiting.record {
                    self.store_input_record(&waiting.run_id, &record)?;
                }
            }
            self.head.inbox.shrink_if_empty();
            self.changed = true;
        }
        for position in &append.answers {
            let left = self.head.control.remove(position);
            self.head.control.shrink_if_empty();
            if left {
                self.remove_pending(InputLane::Control, *position)?;
                self.changed = true;
            }
        }
        let closed = append.closed.unwrap_or(self.head.closed);
        self.changed |= closed != self.head.closed;
        self.head.closed = closed;
        self.changed |= !append.annotations.is_empty();
        apply_annotations(&mut self.head.annotations, &append.annotations);
        Ok(())
    }

    fn mark_ended(&mut self, run_id: &RunId) -> Result<(), StoreFault> {
        let end = self.head.log_end.seq;
        if let Some(record) = self.head.input_record_mut(run_id) {
            record.ended = Some(end);
        } else if let Some(mut record) = self.input_record(run_id)? {
            record.ended = Some(end);
            self.store_input_record(run_id, &record)?;
        }
        Ok(())
    }

    pub(super) fn keep(&mut self, keep: &SnapshotWrite) -> Result<Reply, StoreFault> {
        if self.head.is_fenced(keep.token) {
            return Ok(Reply::Fenced);
        }
        let later = self.head.snapshot.is_none_or(|kept| kept.seq < keep.at.seq);
        if keep.at.seq <= self.head.log_end.seq && later {
            let record = RecordWriter::new(16 + keep.state.len()).cursor(keep.at).raw(&keep.state).seal(self.prefix);
            let before = self.tables.snapshots.insert(self.prefix, &*record)?.map_or(0, |old| old.value().len());
            let before = if planted(Planted::QuotaOfEverySnapshot) { 0 } else { before };
            self.bytes_added += signed(record.len()) - signed(before);
            self.head.snapshot = Some(keep.at);
            self.changed = true;
        }
        Ok(Reply::Done)
    }

    pub(super) fn trim(&mut self, token: FenceToken, upto: Seq) -> Result<Reply, StoreFault> {
        if self.head.is_fenced(token) {
            return Ok(Reply::Fenced);
        }
        let upto = upto.min(self.head.snapshot_seq());
        if upto > self.head.trimmed_to {
            let first = tables::fact_key(self.prefix, Seq(0));
            let last = tables::fact_key(self.prefix, upto);
            let mut freed = 0;
            self.tables.log.retain_in(&*first..=&*last, |_, line| {
                freed += line.len();
                false
            })?;
            self.bytes_added -= signed(freed);
            self.head.trimmed_to = upto;
            self.changed = true;
        }
        Ok(Reply::Done)
    }

    pub(super) fn expire(&mut self, before: Millis) -> Result<Reply, StoreFault> {
        let first = tables::runs_start(self.prefix);
        let end = tables::runs_end(self.prefix);
        let floor = self.head.trimmed_to;
        let expired =
            |record: &InputRecord| record.accepted < before && record.ended.is_some_and(|ended| ended <= floor);
        // An input whose end is recorded may still be in the inbox, if no append named its position.
        for waiting in self.head.inbox.values_mut() {
            self.changed |= waiting.record.take_if(|record| expired(record)).is_some();
        }
        let mut gone = Vec::new();
        for item in self.tables.ids.range(&*first..&*end)? {
            let (key, value) = item?;
            let record = InputRecord::unseal(RecordLocation { table: "ids", key: key.value() }, value.value())?;
            if expired(&record) {
                gone.push(key.value().to_vec());
            }
        }
        for key in gone {
            self.tables.ids.remove(&*key)?;
            self.changed = true;
        }
        Ok(Reply::Done)
    }

    /// Deletes all records of a closed session; its head remains to mark the name as used.
    pub(super) fn delete(&mut self, key: &SessionKey, principal: &Principal) -> Result<Reply, StoreFault> {
        let Some(user) = self.head.user.clone().filter(|_| !self.head.is_foreign(principal)) else {
            return Ok(Reply::Refused(StoreRefusal::NotFound));
        };
        if self.head.deleted {
            return Ok(Reply::Done);
        }
        if !self.head.closed || !self.head.inbox.is_empty() || !self.head.control.is_empty() {
            return Ok(Reply::Refused(StoreRefusal::Busy));
        }
        self.clear(key, user)?;
        Ok(Reply::Done)
    }

    /// Deletes a session that nobody has used since a time, closed or not.
    pub(super) fn forget(&mut self, key: &SessionKey, before: Millis) -> Result<Reply, StoreFault> {
        let Some(user) = self.head.user.clone().filter(|_| !self.head.deleted) else {
            return Ok(Reply::Refused(StoreRefusal::NotFound));
        };
        if !self.head.is_idle(before) || self.reading().last_time()?.0 / 1000 >= before.0 / 1000 {
            return Ok(Reply::Refused(StoreRefusal::Busy));
        }
        self.clear(key, user)?;
        Ok(Reply::Done)
    }

    fn clear(&mut self, key: &SessionKey, user: UserId) -> Result<(), StoreFault> {
        // All keys of a session begin with its prefix, and no other keys do.
        let first = self.prefix.to_vec();
        let end = tables::prefix_range_end(self.prefix);
        let mut freed = 0;
        for table in [&mut self.tables.log, &mut self.tables.lanes] {
            table.retain_in(&*first..&*end, |_, record| {
                freed += record.len();
                false
            })?;
        }
        freed += usize::try_from(self.blob_table()?.bytes()).unwrap_or(usize::MAX);
        self.tables.ids.retain_in(&*first..&*end, |_, _| false)?;
        freed += self.tables.snapshots.remove(self.prefix)?.map_or(0, |kept| kept.value().len());
        index::remove(&mut self.tables.sessions, key, &user)?;
        self.bytes_added -= if planted(Planted::QuotaKeptAtDeletion) { 0 } else { signed(freed) };
        let head = &mut *self.head;
        *head = SessionHead {
            token: FenceToken { epoch: Epoch(head.token.epoch.0 + 1), nonce: Nonce::default() },
            user: Some(user),
            closed: true,
            deleted: true,
            tail: head.tail,
            control_tail: head.control_tail,
            listeners: std::mem::take(&mut head.listeners),
            version: head.version,
            dirty: head.dirty,
            ..SessionHead::default()
        };
        self.changed = true;
        Ok(())
    }

    // === listeners ===

    pub(super) fn listen(&mut self, node: NodeId, stamp: ListenStamp) -> Reply {
        let listeners: &mut BTreeMap<_, _> = &mut self.head.listeners;
        let known = listeners.get(&node).copied();
        if known.is_none() && listeners.len() >= limits::LISTENERS_MAX {
            // A node that died has not unsubscribed.
            let lives = self.is_alive;
            listeners.retain(|node, _| lives(*node));
        }
        if known.is_none() && listeners.len() >= limits::LISTENERS_MAX {
            return Reply::Refused(StoreRefusal::TooMany);
        }
        if known.is_none_or(|known| known < stamp) {
            listeners.insert(node, stamp);
            self.head.version.0 += 1;
            self.changed = true;
        }
        Reply::Listening { owner: self.head.ownership(), tail: self.head.log_end }
    }

    pub(super) fn unlisten(&mut self, node: NodeId, stamp: ListenStamp) -> Reply {
        if self.head.listeners.get(&node).is_some_and(|known| *known <= stamp) {
            self.head.listeners.remove(&node);
            self.head.version.0 += 1;
            self.changed = true;
        }
        Reply::Done
    }
}
