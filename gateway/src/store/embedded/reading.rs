//! Reads of one session: its view, log, snapshot, and waiting inputs. Changes nothing. Used by the ops on one
//! session.
use crate::store::embedded::fault::Fault;
use crate::store::embedded::head::Head;
use crate::store::embedded::record::{Eye, Spot};
use crate::store::embedded::tables::{self, Lane, Tables};
use redb::ReadableTable;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use turnway_core::id::{Epoch, Nonce, Place, Seq};
use turnway_core::limits;
use turnway_core::protocol::entry::Entry;
use turnway_core::store::{Heard, Inputs, Reply, Snapshot, View};
use turnway_core::time::Millis;

/// A record of the log: the writer's nonce and the fact's JSON.
pub(super) struct Written<'a> {
    pub(super) nonce: Nonce,
    pub(super) json: &'a str,
}

impl<'a> Written<'a> {
    pub(super) fn unseal(spot: Spot<'_>, value: &'a [u8]) -> Result<Self, Fault> {
        let mut eye = Eye(spot.unseal(value)?);
        let nonce = eye.u128().ok_or_else(|| spot.damaged("invalid encoding"))?;
        let json = std::str::from_utf8(eye.0).map_err(|_| spot.damaged("not UTF-8"))?;
        Ok(Self { nonce: Nonce(nonce), json })
    }

    /// Parses the fact and checks that its sequence number matches the position at which it was found.
    pub(super) fn entry(&self, spot: Spot<'_>, seq: Seq) -> Result<(Epoch, Arc<Entry>), Fault> {
        let envelope = Entry::from_json(self.json).map_err(|_| spot.damaged("not a valid fact"))?;
        if envelope.seq != seq {
            return Err(spot.damaged("the record names another position"));
        }
        Ok((envelope.epoch, Arc::new(envelope.entry)))
    }
}

/// A reader of one session.
pub(super) struct Reading<'a, 'txn> {
    pub(super) prefix: &'a [u8],
    pub(super) head: &'a Head,
    pub(super) tables: &'a Tables<'txn>,
}

impl Reading<'_, '_> {
    /// Returns the time of the last stored fact; 0 if no fact is stored.
    pub(super) fn last_time(&self) -> Result<Millis, Fault> {
        let seq = self.head.end.seq;
        if seq <= self.head.floor {
            return Ok(Millis(0));
        }
        let key = tables::fact(self.prefix, seq);
        let spot = Spot { table: "log", key: &key };
        let value = self.tables.log.get(&*key)?.ok_or_else(|| spot.damaged("missing"))?;
        Ok(Written::unseal(spot, value.value())?.entry(spot, seq)?.1.time)
    }

    /// Passes the facts after `after` to `each` in order, until `each` returns false. Fails on a gap in the log.
    fn facts(&self, after: Seq, mut each: impl FnMut(Epoch, Arc<Entry>) -> bool) -> Result<(), Fault> {
        let mut expected = after.max(self.head.floor).0.saturating_add(1);
        if expected > self.head.end.seq.0 {
            return Ok(());
        }
        let first = tables::fact(self.prefix, Seq(expected));
        let last = tables::fact(self.prefix, self.head.end.seq);
        for item in self.tables.log.range(&*first..=&*last)? {
            let (key, value) = item?;
            let spot = Spot { table: "log", key: key.value() };
            if spot.key != tables::fact(self.prefix, Seq(expected)) {
                return Err(spot.damaged("a record before it is missing"));
            }
            let (epoch, entry) = Written::unseal(spot, value.value())?.entry(spot, Seq(expected))?;
            if !each(epoch, entry) {
                return Ok(());
            }
            expected += 1;
        }
        let whole = expected == self.head.end.seq.0 + 1;
        if whole { Ok(()) } else { Err(Spot { table: "log", key: &last }.damaged("missing")) }
    }

    pub(super) fn view(&self) -> Result<View, Fault> {
        let head = self.head;
        let mut facts = Vec::new();
        self.facts(head.kept(), |epoch, entry| {
            facts.push((epoch, entry));
            true
        })?;
        Ok(View {
            owner: head.seen(),
            user: head.user.clone().filter(|_| !head.deleted),
            closed: head.closed,
            snapshot: self.snapshot()?,
            facts,
            tail: head.end,
            floor: head.floor,
        })
    }

    fn snapshot(&self) -> Result<Option<Snapshot>, Fault> {
        let Some(at) = self.head.snapshot else { return Ok(None) };
        let spot = Spot { table: "snapshots", key: self.prefix };
        let value = self.tables.snapshots.get(self.prefix)?.ok_or_else(|| spot.damaged("missing"))?;
        let mut eye = Eye(spot.unseal(value.value())?);
        if eye.cursor() != Some(at) {
            return Err(spot.damaged("the record names another position"));
        }
        Ok(Some(Snapshot { at, state: eye.0.into() }))
    }

    pub(super) fn read(&self, after: Seq, limit: u32) -> Result<Reply, Fault> {
        let after = after.max(self.head.floor);
        let (mut facts, mut bytes) = (Vec::new(), 0);
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
        Ok(Reply::Heard(Heard { after, facts, tail: self.head.end, floor: self.head.floor }))
    }

    pub(super) fn waiting(&self, after: Place, control_after: Place) -> Result<Inputs, Fault> {
        let head = self.head;
        let inputs = head.inbox.keys().filter(|place| **place > after);
        let controls = head.control.iter().filter(|place| **place > control_after);
        Ok(Inputs {
            inputs: inputs.map(|at| self.waiter(Lane::Inbox, *at)).collect::<Result<_, _>>()?,
            tail: head.tail,
            controls: controls.map(|at| self.waiter(Lane::Control, *at)).collect::<Result<_, _>>()?,
            control_tail: head.control_tail,
        })
    }

    fn waiter<T: DeserializeOwned>(&self, lane: Lane, place: Place) -> Result<(Place, Arc<T>), Fault> {
        let key = tables::waiting(self.prefix, lane, place);
        let spot = Spot { table: "lanes", key: &key };
        let value = self.tables.lanes.get(&*key)?.ok_or_else(|| spot.damaged("missing"))?;
        let body = serde_json::from_slice(spot.unseal(value.value())?);
        Ok((place, Arc::new(body.map_err(|_| spot.damaged("invalid encoding"))?)))
    }
}
