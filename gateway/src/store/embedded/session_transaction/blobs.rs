//! The table of a session's blobs: read, changed by [`change_blobs`], and written in the transaction of one op.
use super::SessionTransaction;
use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::record::{RecordLocation, RecordWriter};
use crate::store::embedded::tables;
use redb::ReadableTable;
use turnway_core::id::Principal;
use turnway_core::store::blob::{BlobAction, BlobTable, change_blobs};
use turnway_core::store::{Reply, StoreRefusal};

impl SessionTransaction<'_, '_> {
    /// Performs an action on the session's blobs.
    pub(in super::super) fn act_on_blobs(
        &mut self,
        principal: &Principal,
        action: &BlobAction,
    ) -> Result<Reply, StoreFault> {
        let head = &*self.head;
        if head.user.is_none() || head.deleted || head.is_foreign(principal) {
            return Ok(Reply::Refused(StoreRefusal::NotFound));
        }
        if action.adds() && head.closed {
            return Ok(Reply::Refused(StoreRefusal::Closed));
        }
        let before = self.blob_table()?;
        let reply = change_blobs(before.clone(), self.now, action);
        let was = before.bytes();
        let is = reply.table.bytes();
        if is > was {
            if self.is_low_on_space {
                return Ok(Reply::Refused(StoreRefusal::Full));
            }
            if (self.is_over_quota)(&*self.head, is - was) {
                return Ok(Reply::Refused(StoreRefusal::Quota));
            }
        }
        if reply.table != before {
            self.write_blob_table(&reply.table)?;
            self.bytes_added += is.cast_signed() - was.cast_signed();
            self.changed = true;
        }
        Ok(Reply::Blobs(Box::new(reply)))
    }

    /// Reads the session's table of blobs.
    pub(super) fn blob_table(&self) -> Result<BlobTable, StoreFault> {
        let key = tables::blobs_key(self.prefix);
        let Some(value) = self.tables.ids.get(&*key)? else { return Ok(BlobTable::default()) };
        parse_blob_table(RecordLocation { table: "ids", key: &key }, value.value())
    }

    fn write_blob_table(&mut self, table: &BlobTable) -> Result<(), StoreFault> {
        let key = tables::blobs_key(self.prefix);
        if table.is_empty() {
            self.tables.ids.remove(&*key)?;
            return Ok(());
        }
        let spot = RecordLocation { table: "ids", key: &key };
        let json = serde_json::to_vec(table).map_err(|_| spot.damaged("cannot be written"))?;
        self.tables.ids.insert(&*key, &*RecordWriter::new(json.len()).raw(&json).seal(&key))?;
        Ok(())
    }
}

/// Parses the record of a session's table of blobs.
pub(in super::super) fn parse_blob_table(spot: RecordLocation<'_>, value: &[u8]) -> Result<BlobTable, StoreFault> {
    serde_json::from_slice(spot.unseal(value)?).map_err(|_| spot.damaged("invalid encoding"))
}
