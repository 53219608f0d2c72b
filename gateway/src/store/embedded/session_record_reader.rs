//! Reads of one session: its view, log, snapshot, and waiting inputs. Changes nothing. Used by the ops on one
//! session.
use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::head::SessionHead;
use crate::store::embedded::record::{RecordLocation, RecordReader};
use crate::store::embedded::tables::{self, InputLane, Tables};
use redb::ReadableTable;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use turnway_core::id::{Epoch, InboxPosition, Nonce, Seq};
use turnway_core::limits;
use turnway_core::protocol::entry::Entry;
use turnway_core::store::{FactPage, InboxContents, Reply, SessionView, Snapshot};
use turnway_core::time::Millis;

/// A record of the log: the writer's nonce and the fact's JSON.
pub(super) struct LogRecord<'a> {
    pub(super) nonce: Nonce,
    pub(super) json: &'a str,
}

impl<'a> LogRecord<'a> {
    pub(super) fn unseal(spot: RecordLocation<'_>, value: &'a [u8]) -> Result<Self, StoreFault> {
        let mut reader = RecordReader(spot.unseal(value)?);
        let nonce = reader.u128().ok_or_else(|| spot.damaged("invalid encoding"))?;
        let json = std::str::from_utf8(reader.0).map_err(|_| spot.damaged("not UTF-8"))?;
        Ok(Self { nonce: Nonce(nonce), json })
    }

    /// Parses the fact and checks that its sequence number matches the position at which it was found.
    pub(super) fn entry(&self, spot: RecordLocation<'_>, seq: Seq) -> Result<(Epoch, Arc<Entry>), StoreFault> {
        let envelope = Entry::from_json(self.json).map_err(|_| spot.damaged("not a valid fact"))?;
        if envelope.seq != seq {
            return Err(spot.damaged("the record names another position"));
        }
        Ok((envelope.epoch, Arc::new(envelope.entry)))
    }
}

/// A reader of one session.
pub(super) struct SessionRecordReader<'a, 'txn> {
    pub(super) prefix: &'a [u8],
    pub(super) head: &'a SessionHead,
    pub(super) tables: &'a Tables<'txn>,
}

impl SessionRecordReader<'_, '_> {
    /// Returns the time of the last stored fact; 0 if no fact is stored.
    pub(super) fn last_time(&self) -> Result<Millis, StoreFault> {
        let seq = self.head.log_end.seq;
        if seq <= self.head.trimmed_to {
            return Ok(Millis(0));
        }
        let key = tables::fact_key(self.prefix, seq);
        let spot = RecordLocation { table: "log", key: &key };
        let value = self.tables.log.get(&*key)?.ok_or_else(|| spot.damaged("missing"))?;
        Ok(LogRecord::unseal(spot, value.value())?.entry(spot, seq)?.1.time)
    }

    /// Passes the facts after `after` to `each` in order, until `each` returns false. Fails on a gap in the log.
    fn facts(&self, after: Seq, mut each: impl FnMut(Epoch, Arc<Entry>) -> bool) -> Result<(), StoreFault> {
        let mut expected = after.max(self.head.trimmed_to).0.saturating_add(1);
        if expected > self.head.log_end.seq.0 {
            return Ok(());
        }
        let first = tables::fact_key(self.prefix, Seq(expected));
        let last = tables::fact_key(self.prefix, self.head.log_end.seq);
        for item in self.tables.log.range(&*first..=&*last)? {
            let (key, value) = item?;
            let spot = RecordLocation { table: "log", key: key.value() };
            if spot.key != tables::fact_key(self.prefix, Seq(expected)) {
                return Err(spot.damaged("a record before it is missing"));
            }
            let (epoch, entry) = LogRecord::unseal(spot, value.value())?.entry(spot, Seq(expected))?;
            if !each(epoch, entry) {
                return Ok(());
            }
            expected += 1;
        }
        let whole = expected == self.head.log_end.seq.0 + 1;
        if whole { Ok(()) } else { Err(RecordLocation { table: "log", key: &last }.damaged("missing")) }
    }

    pub(super) fn view(&self) -> Result<SessionView, StoreFault> {
        let head = self.head;
        let mut facts = Vec::new();
        self.facts(head.snapshot_seq(), |epoch, entry| {
            facts.push((epoch, entry));
            true
        })?;
        Ok(SessionView {
            owner: head.ownership(),
            user: head.user.clone().filter(|_| !head.deleted),
            closed: head.closed,
            snapshot: self.snapshot()?,
            facts,
            tail: head.log_end,
            floor: head.trimmed_to,
        })
    }

    fn snapshot(&self) -> Result<Option<Snapshot>, StoreFault> {
        let Some(at) = self.head.snapshot else { return Ok(None) };
        let spot = RecordLocation { table: "snapshots", key: self.prefix };
        let value = self.tables.snapshots.get(self.prefix)?.ok_or_else(|| spot.damaged("missing"))?;
        let mut reader = RecordReader(spot.unseal(value.value())?);
        if reader.cursor() != Some(at) {
            return Err(spot.damaged("its position differs from the session head"));
        }
        Ok(Some(Snapshot { at, state: reader.0.into() }))
    }

    pub(super) fn read_log(&self, after: Seq, limit: u32) -> Result<Reply, StoreFault> {
        let after = after.max(self.head.trimmed_to);
        let mut facts = Vec::new();
        let mut bytes = 0;
        if limit > 0 {
            self.facts(after, |epoch, entry| {
                bytes += entry.weight();
                let fits = bytes <= limits::READ_BYTES_MAX || facts.is_empty();
                if fits {
                    facts.push((epoch, entry));
                }
                fits && facts.len() < limit as usize
            })?;
        }
        Ok(Reply::Facts(FactPage { after, facts, tail: self.head.log_end, floor: self.head.trimmed_to }))
    }

    pub(super) fn pending_inputs(
        &self,
        after: InboxPosition,
        control_after: InboxPosition,
    ) -> Result<InboxContents, StoreFault> {
        let head = self.head;
        let inputs = head.inbox.keys().filter(|position| **position > after);
        let controls = head.control.iter().filter(|position| **position > control_after);
        Ok(InboxContents {
            inputs: inputs.map(|at| self.pending_input(InputLane::Inbox, *at)).collect::<Result<_, _>>()?,
            tail: head.tail,
            controls: controls.map(|at| self.pending_input(InputLane::Control, *at)).collect::<Result<_, _>>()?,
            control_tail: head.control_tail,
        })
    }

    fn pending_input<T: DeserializeOwned>(
        &self,
        lane: InputLane,
        position: InboxPosition,
    ) -> Result<(InboxPosition, Arc<T>), StoreFault> {
        let key = tables::lane_key(self.prefix, lane, position);
        let spot = RecordLocation { table: "lanes", key: &key };
        let value = self.tables.lanes.get(&*key)?.ok_or_else(|| spot.damaged("missing"))?;
        let body = serde_json::from_slice(spot.unseal(value.value())?);
        Ok((position, Arc::new(body.map_err(|_| spot.damaged("invalid encoding"))?)))
    }
}
