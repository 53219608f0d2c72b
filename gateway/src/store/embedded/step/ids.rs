//! The ids that a session remembers: accepted messages and control entries, for deduplication.
use super::Step;
use crate::store::embedded::fault::Fault;
use crate::store::embedded::record::{Eye, Spot, TakenInput};
use crate::store::embedded::tables;
use redb::ReadableTable;
use turnway_core::id::{ControlId, Place, Principal, RunId};
use turnway_core::store::{Found, Refused, Reply};

impl Step<'_, '_> {
    /// Returns the position of a run's facts to a principal who may see them.
    pub(in super::super) fn find(&mut self, principal: &Principal, run_id: &RunId) -> Result<Reply, Fault> {
        let taken = if self.head.foreign(principal) { None } else { self.taken(run_id)? };
        Ok(match taken {
            Some(taken) => Reply::Found(Found { after: taken.at, ended: taken.ended }),
            None => Reply::Refused(Refused::NotFound),
        })
    }

    /// Returns the record of an input: from the head while it waits, from the table afterwards.
    pub(super) fn taken(&mut self, run_id: &RunId) -> Result<Option<TakenInput>, Fault> {
        if let Some(taken) = self.head.taken(run_id) {
            return Ok(Some(taken.clone()));
        }
        let key = tables::run(self.prefix, run_id);
        let value = self.tables.ids.get(&*key)?;
        value.map(|value| TakenInput::unseal(Spot { table: "ids", key: &key }, value.value())).transpose()
    }

    pub(super) fn remember(&mut self, run_id: &RunId, taken: &TakenInput) -> Result<(), Fault> {
        let key = tables::run(self.prefix, run_id);
        self.tables.ids.insert(&*key, &*taken.seal(&key))?;
        Ok(())
    }

    pub(super) fn heard(&self, id: &ControlId) -> Result<Option<(Place, Place)>, Fault> {
        let key = tables::heard(self.prefix, id);
        let Some(value) = self.tables.ids.get(&*key)? else { return Ok(None) };
        let spot = Spot { table: "ids", key: &key };
        let mut eye = Eye(spot.unseal(value.value())?);
        let places = (|| Some((Place(eye.u64()?), Place(eye.u64()?))))();
        places.map(Some).ok_or_else(|| spot.damaged("form"))
    }
}
