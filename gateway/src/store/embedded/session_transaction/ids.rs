//! The ids that a session remembers: accepted messages and control entries, for deduplication.
use super::SessionTransaction;
use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::record::{InputRecord, RecordLocation, RecordReader};
use crate::store::embedded::tables;
use redb::ReadableTable;
use turnway_core::id::{ControlId, Cursor, InboxPosition, Principal, RunId, Seq};
use turnway_core::protocol::input::BodyHash;
use turnway_core::store::{Reply, RouteVersion, RunLocation, StoreRefusal};

impl SessionTransaction<'_, '_> {
    /// Returns the position of a run's facts to a principal who may see them.
    pub(in super::super) fn find(&mut self, principal: &Principal, run_id: &RunId) -> Result<Reply, StoreFault> {
        let record = if self.head.is_foreign(principal) { None } else { self.input_record(run_id)? };
        Ok(match record {
            Some(record) => Reply::Found(RunLocation { after: record.log_tail, ended: record.ended }),
            None => Reply::Refused(StoreRefusal::NotFound),
        })
    }

    pub(in super::super) fn find_control(&self, principal: &Principal, id: &ControlId) -> Result<Reply, StoreFault> {
        let is_hidden = self.head.deleted || self.head.is_foreign(principal);
        let record = if is_hidden { None } else { self.control_record(id)? };
        Ok(match record {
            Some((position, _)) => Reply::ControlFound { ended: !self.head.control.contains(&position) },
            None => Reply::Refused(StoreRefusal::NotFound),
        })
    }

    /// Finds a run; if it was not accepted, inputs that an older version of a binding led here are not accepted any more.
    /// The record of that has the form of an input's, so that it expires like one.
    pub(in super::super) fn find_or_fence(
        &mut self,
        principal: &Principal,
        run_id: &RunId,
        fence: &RouteVersion,
    ) -> Result<Reply, StoreFault> {
        let reply = self.find(principal, run_id)?;
        let is_absent = matches!(reply, Reply::Refused(_)) && !self.head.deleted && !self.head.is_foreign(principal);
        if is_absent && self.fence(&fence.place)?.is_none_or(|known| known < fence.version) {
            let record = InputRecord {
                position: InboxPosition(fence.version),
                prev_position: InboxPosition(0),
                hash: BodyHash::default(),
                log_tail: Cursor::default(),
                accepted: self.now,
                ended: Some(Seq(0)),
            };
            self.store_input_record(&fence.place, &record)?;
            self.changed = true;
        }
        Ok(reply)
    }

    /// Returns the latest version by which a conversation that led here has led elsewhere.
    pub(super) fn fence(&mut self, place: &RunId) -> Result<Option<u64>, StoreFault> {
        Ok(self.input_record(place)?.map(|record| record.position.0))
    }

    /// Returns the record of an input: from the head while it waits, from the table afterwards.
    pub(super) fn input_record(&mut self, run_id: &RunId) -> Result<Option<InputRecord>, StoreFault> {
        if let Some(record) = self.head.input_record_mut(run_id) {
            return Ok(Some(record.clone()));
        }
        let key = tables::run_key(self.prefix, run_id);
        let value = self.tables.ids.get(&*key)?;
        value.map(|value| InputRecord::unseal(RecordLocation { table: "ids", key: &key }, value.value())).transpose()
    }

    pub(super) fn store_input_record(&mut self, run_id: &RunId, record: &InputRecord) -> Result<(), StoreFault> {
        let key = tables::run_key(self.prefix, run_id);
        self.tables.ids.insert(&*key, &*record.seal(&key))?;
        Ok(())
    }

    pub(super) fn control_record(&self, id: &ControlId) -> Result<Option<(InboxPosition, InboxPosition)>, StoreFault> {
        let key = tables::control_id_key(self.prefix, id);
        let Some(value) = self.tables.ids.get(&*key)? else { return Ok(None) };
        let spot = RecordLocation { table: "ids", key: &key };
        let mut reader = RecordReader(spot.unseal(value.value())?);
        let positions = (|| Some((InboxPosition(reader.u64()?), InboxPosition(reader.u64()?))))();
        positions.map(Some).ok_or_else(|| spot.damaged("invalid encoding"))
    }
}
