//! The encoding of records: a CRC32C, then the body. Facts, inputs and control entries are JSON because they outlive
//! releases; data that only the store itself reads is fixed binary, little-endian.
use crate::store::embedded::fault::StoreFault;
use turnway_core::id::{Cursor, Epoch, InboxPosition, Seq};
use turnway_core::protocol::input::BodyHash;
use turnway_core::time::Millis;

const CRC_BYTES: usize = 4;

/// A writer for the bytes of one record.
pub(super) struct RecordWriter(Vec<u8>);

impl RecordWriter {
    pub(super) fn new(capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(CRC_BYTES + capacity);
        bytes.extend_from_slice(&[0; CRC_BYTES]);
        Self(bytes)
    }
    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    pub(super) fn byte(self, byte: u8) -> Self {
        self.raw(&[byte])
    }
    pub(super) fn u32(self, number: u32) -> Self {
        self.raw(&number.to_le_bytes())
    }
    pub(super) fn u64(self, number: u64) -> Self {
        self.raw(&number.to_le_bytes())
    }
    pub(super) fn u128(self, number: u128) -> Self {
        self.raw(&number.to_le_bytes())
    }
    pub(super) fn text(self, text: &str) -> Self {
        self.u32(text.len() as u32).raw(text.as_bytes())
    }
    pub(super) fn cursor(self, at: Cursor) -> Self {
        self.u64(at.seq.0).u64(at.epoch.0)
    }
    /// Prepends the CRC. It covers the key, so that a record under a wrong key counts as damaged.
    pub(super) fn seal(mut self, key: &[u8]) -> Vec<u8> {
        let crc = crc32c::crc32c_append(crc32c::crc32c(key), &self.0[CRC_BYTES..]);
        self.0[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
        self.0
    }
}

/// Table and key of a record, for error reports.
#[derive(Clone, Copy)]
pub(super) struct RecordLocation<'a> {
    pub(super) table: &'static str,
    pub(super) key: &'a [u8],
}

impl RecordLocation<'_> {
    pub(super) fn damaged(&self, what: &'static str) -> StoreFault {
        StoreFault::Damaged { table: self.table, key: self.key.escape_ascii().to_string(), what }
    }
    /// Checks the CRC and returns the body of a record.
    pub(super) fn unseal<'v>(&self, value: &'v [u8]) -> Result<&'v [u8], StoreFault> {
        let (crc, body) = value.split_first_chunk().ok_or_else(|| self.damaged("too short"))?;
        let found = crc32c::crc32c_append(crc32c::crc32c(self.key), body);
        if found == u32::from_le_bytes(*crc) { Ok(body) } else { Err(self.damaged("checksum mismatch")) }
    }
}

/// A reader of a record's body; every method returns `None` past the end.
pub(super) struct RecordReader<'a>(pub(super) &'a [u8]);

impl<'a> RecordReader<'a> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }
    pub(super) fn raw(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }
    pub(super) fn byte(&mut self) -> Option<u8> {
        self.chunk::<1>().map(|[byte]| byte)
    }
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_le_bytes)
    }
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_le_bytes)
    }
    pub(super) fn u128(&mut self) -> Option<u128> {
        self.chunk().map(u128::from_le_bytes)
    }
    pub(super) fn text(&mut self) -> Option<&'a str> {
        let length = self.u32()?;
        std::str::from_utf8(self.raw(length as usize)?).ok()
    }
    pub(super) fn cursor(&mut self) -> Option<Cursor> {
        Some(Cursor { seq: Seq(self.u64()?), epoch: Epoch(self.u64()?) })
    }
    /// Returns `read` if no bytes are left over.
    pub(super) fn finish<T>(&self, read: T) -> Option<T> {
        self.0.is_empty().then_some(read)
    }
}

/// The record of an accepted input: its position in the inbox, its body's hash, and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InputRecord {
    pub(super) position: InboxPosition,
    pub(super) prev_position: InboxPosition,
    pub(super) hash: BodyHash,
    pub(super) log_tail: Cursor,
    pub(super) accepted: Millis,
    pub(super) ended: Option<Seq>,
}

impl InputRecord {
    pub(super) fn write(&self, writer: RecordWriter) -> RecordWriter {
        let writer = writer.u64(self.position.0).u64(self.prev_position.0).raw(&self.hash);
        let writer = writer.cursor(self.log_tail).u64(self.accepted.0);
        match self.ended {
            None => writer.byte(0),
            Some(ended) => writer.byte(1).u64(ended.0),
        }
    }
    pub(super) fn read(reader: &mut RecordReader<'_>) -> Option<Self> {
        let position = InboxPosition(reader.u64()?);
        let prev = InboxPosition(reader.u64()?);
        let hash = reader.chunk()?;
        let at = reader.cursor()?;
        let accepted = Millis(reader.u64()?);
        let ended = match reader.byte()? {
            0 => None,
            _ => Some(Seq(reader.u64()?)),
        };
        Some(Self { position, prev_position: prev, hash, log_tail: at, accepted, ended })
    }
    pub(super) fn seal(&self, key: &[u8]) -> Vec<u8> {
        self.write(RecordWriter::new(Self::BYTES)).seal(key)
    }
    pub(super) fn unseal(spot: RecordLocation<'_>, value: &[u8]) -> Result<Self, StoreFault> {
        let mut reader = RecordReader(spot.unseal(value)?);
        let record = Self::read(&mut reader).and_then(|record| reader.finish(record));
        record.ok_or_else(|| spot.damaged("invalid encoding"))
    }
    /// Maximum encoded size in bytes.
    pub(super) const BYTES: usize = 88;
}
