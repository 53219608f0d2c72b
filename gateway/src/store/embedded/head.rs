//! The head of a session: one record that holds all that decides about the session's ops. Read and changed by the ops
//! on one session.
use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::record::{InputRecord, RecordLocation, RecordReader, RecordWriter};
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{
    Cursor, Epoch, FenceToken, Holder, InboxPosition, LeaseId, ListenStamp, ListenersVersion, NodeId, Nonce,
    OwnershipSnapshot, Principal, RunId, Seq, UserId,
};
use turnway_core::protocol::annotation::Annotations;
use turnway_core::store::{CreationKey, SessionSummary};
use turnway_core::time::Millis;

/// Version of a head without annotations. Earlier releases read it.
const HEAD_VERSION: u8 = 1;
/// Version of a head with annotations, which stand at its end.
const ANNOTATED_HEAD_VERSION: u8 = 2;

/// A session without its contents: small and bounded, so that an op reads and writes little.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SessionHead {
    /// Epoch and nonce of the current ownership; writes of any other owner are fenced.
    pub(super) token: FenceToken,
    /// The owner, if there is one.
    pub(super) holder: Option<Holder>,
    /// The user who created the session.
    pub(super) user: Option<UserId>,
    pub(super) closed: bool,
    pub(super) deleted: bool,
    /// Last position of the log.
    pub(super) log_end: Cursor,
    /// Sequence number up to which facts are trimmed.
    pub(super) trimmed_to: Seq,
    /// Inputs that have not ended, by position in the inbox.
    pub(super) inbox: BTreeMap<InboxPosition, PendingInput>,
    /// Last inbox position ever assigned.
    pub(super) tail: InboxPosition,
    /// Control entries that have not been answered, by position in the control lane.
    pub(super) control: BTreeSet<InboxPosition>,
    /// Last position of the control lane ever assigned.
    pub(super) control_tail: InboxPosition,
    /// Subscriber nodes, each with the stamp of its subscription.
    pub(super) listeners: BTreeMap<NodeId, ListenStamp>,
    /// Number of changes to the subscriber nodes.
    pub(super) version: ListenersVersion,
    /// Position of the last fact in the stored snapshot, if one is stored.
    pub(super) snapshot: Option<Cursor>,
    /// Short texts that lists show.
    pub(super) annotations: Annotations,
    /// True if the head changed since the last commit; not stored.
    pub(super) dirty: bool,
}

/// An input that has not ended. The record of its id stays here and moves to the table of ids only when the input
/// ends: a turn then touches that table, in which every session has its own pages, once instead of twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingInput {
    /// Bytes that the input counts for in the inbox limit.
    pub(super) weight: u64,
    /// Run that the input starts.
    pub(super) run_id: RunId,
    /// Record of the input's id, unless it has expired.
    pub(super) record: Option<InputRecord>,
}

impl SessionHead {
    /// Returns the record of an input that still waits.
    pub(super) fn input_record_mut(&mut self, run_id: &RunId) -> Option<&mut InputRecord> {
        let mut waiting = self.inbox.values_mut().filter(|waiting| waiting.run_id == *run_id);
        waiting.find_map(|waiting| waiting.record.as_mut())
    }
    /// Returns the owner and the epoch as other nodes see them.
    pub(super) fn ownership(&self) -> OwnershipSnapshot {
        OwnershipSnapshot { holder: self.holder, epoch: self.token.epoch }
    }
    /// Returns whether the session is in use, has no owner and nothing waiting, and since a time neither received an
    /// entry nor was claimed by its last writer.
    pub(super) fn is_idle(&self, before: Millis) -> bool {
        let is_used = self.user.is_some() && !self.deleted;
        let is_quiet = self.holder.is_none() && self.inbox.is_empty() && self.control.is_empty();
        let last = self.tail.0.max(self.control_tail.0).max(self.log_end.epoch.0);
        is_used && is_quiet && last < before.0
    }
    /// Returns the ownership as a sweep sees it: of a session that is owned or has something waiting, otherwise none.
    pub(super) fn sweep_state(&self) -> Option<OwnershipSnapshot> {
        let waits = !self.inbox.is_empty() || !self.control.is_empty();
        (self.holder.is_some() || waits).then(|| self.ownership())
    }
    /// Returns the entry for a list of sessions; none for a session that is unused or deleted.
    pub(super) fn summary(&self, birth: CreationKey) -> Option<SessionSummary> {
        if self.deleted {
            return None;
        }
        let user = self.user.clone()?;
        let closed = self.closed;
        let tail = self.log_end.seq;
        let pending = u32::try_from(self.inbox.len()).unwrap_or(u32::MAX);
        Some(SessionSummary { birth, user, closed, tail, pending, annotations: self.annotations.clone() })
    }
    pub(super) fn is_foreign(&self, principal: &Principal) -> bool {
        !principal.operator && self.user.as_ref().is_some_and(|user| *user != principal.user)
    }
    pub(super) fn is_fenced(&self, token: FenceToken) -> bool {
        token != self.token || self.holder.is_none()
    }
    /// Returns the sequence number of the last fact in the stored snapshot; 0 if none is stored.
    pub(super) fn snapshot_seq(&self) -> Seq {
        self.snapshot.map_or(Seq(0), |at| at.seq)
    }

    pub(super) fn seal(&self, key: &[u8]) -> Vec<u8> {
        let flags = u8::from(self.closed)
            | u8::from(self.holder.is_some()) << 1
            | u8::from(self.user.is_some()) << 2
            | u8::from(self.snapshot.is_some()) << 3
            | u8::from(self.deleted) << 4;
        let mut writer = RecordWriter::new(192 + 192 * self.inbox.len() + 24 * self.listeners.len());
        let version = if self.annotations.is_empty() { HEAD_VERSION } else { ANNOTATED_HEAD_VERSION };
        writer = writer.byte(version).byte(flags).u64(self.token.epoch.0).u128(self.token.nonce.0);
        if let Some(holder) = self.holder {
            writer = writer.u128(holder.node.0).u128(holder.life.0);
        }
        if let Some(user) = &self.user {
            writer = writer.text(user.as_str());
        }
        if let Some(at) = self.snapshot {
            writer = writer.cursor(at);
        }
        writer = writer.cursor(self.log_end).u64(self.trimmed_to.0).u64(self.tail.0).u64(self.control_tail.0);
        writer = writer.u64(self.version.0).u32(self.inbox.len() as u32);
        writer = self.inbox.iter().fold(writer, |writer, (position, waiting)| waiting.write(writer.u64(position.0)));
        writer = writer.u32(self.control.len() as u32);
        writer = self.control.iter().fold(writer, |writer, position| writer.u64(position.0));
        writer = writer.u32(self.listeners.len() as u32);
        writer = self.listeners.iter().fold(writer, |writer, (node, stamp)| writer.u128(node.0).u64(stamp.0));
        if !self.annotations.is_empty() {
            writer = writer.u32(self.annotations.len() as u32);
            writer = self.annotations.iter().fold(writer, |writer, (name, text)| writer.text(name).text(text.reveal()));
        }
        writer.seal(key)
    }

    pub(super) fn unseal(spot: RecordLocation<'_>, value: &[u8]) -> Result<Self, StoreFault> {
        let mut reader = RecordReader(spot.unseal(value)?);
        Self::read(&mut reader).ok_or_else(|| spot.damaged("invalid encoding"))
    }

    fn read(reader: &mut RecordReader<'_>) -> Option<Self> {
        let form = reader.byte()?;
        let flags = reader.byte()?;
        if !matches!(form, HEAD_VERSION | ANNOTATED_HEAD_VERSION) {
            return None;
        }
        let flag = |bit: u8| flags & 1 << bit != 0;
        let mut head = Self { closed: flag(0), deleted: flag(4), ..Self::default() };
        head.token = FenceToken { epoch: Epoch(reader.u64()?), nonce: Nonce(reader.u128()?) };
        if flag(1) {
            head.holder = Some(Holder { node: NodeId(reader.u128()?), life: LeaseId(reader.u128()?) });
        }
        if flag(2) {
            head.user = Some(UserId::parse(reader.text()?).ok()?);
        }
        if flag(3) {
            head.snapshot = Some(reader.cursor()?);
        }
        (head.log_end, head.trimmed_to) = (reader.cursor()?, Seq(reader.u64()?));
        (head.tail, head.control_tail) = (InboxPosition(reader.u64()?), InboxPosition(reader.u64()?));
        head.version = ListenersVersion(reader.u64()?);
        for _ in 0..reader.u32()? {
            head.inbox.insert(InboxPosition(reader.u64()?), PendingInput::read(reader)?);
        }
        for _ in 0..reader.u32()? {
            head.control.insert(InboxPosition(reader.u64()?));
        }
        for _ in 0..reader.u32()? {
            head.listeners.insert(NodeId(reader.u128()?), ListenStamp(reader.u64()?));
        }
        if form == ANNOTATED_HEAD_VERSION {
            for _ in 0..reader.u32()? {
                head.annotations.insert(reader.text()?.to_owned(), reader.text()?.to_owned().into());
            }
        }
        reader.finish(head)
    }
}

impl PendingInput {
    fn write(&self, writer: RecordWriter) -> RecordWriter {
        let writer = writer.u64(self.weight).text(self.run_id.as_str());
        match &self.record {
            None => writer.byte(0),
            Some(record) => record.write(writer.byte(1)),
        }
    }
    fn read(reader: &mut RecordReader<'_>) -> Option<Self> {
        let weight = reader.u64()?;
        let run_id = RunId::parse(reader.text()?).ok()?;
        let record = match reader.byte()? {
            0 => None,
            _ => Some(InputRecord::read(reader)?),
        };
        Some(Self { weight, run_id, record })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::time::Millis;

    #[test]
    fn session_head_round_trips() {
        let position = InboxPosition(5);
        let prev = InboxPosition(4);
        let at = Cursor { seq: Seq(1), epoch: Epoch(2) };
        let hash = [7; 32];
        let accepted = Millis(8);
        let ended = Some(Seq(9));
        let record = InputRecord { position, prev_position: prev, hash, log_tail: at, accepted, ended };
        let run_id = RunId::parse("s.abcdefghijklmnopqrstuvwxyz").expect("a name");
        let waiting = |record| PendingInput { weight: 300, run_id: run_id.clone(), record };
        let head = SessionHead {
            token: FenceToken { epoch: Epoch(7), nonce: Nonce(u128::MAX) },
            holder: Some(Holder { node: NodeId(3), life: LeaseId(4) }),
            user: Some(UserId::parse("ann").expect("a name")),
            closed: true,
            deleted: true,
            log_end: Cursor { seq: Seq(9), epoch: Epoch(7) },
            trimmed_to: Seq(2),
            inbox: [(InboxPosition(5), waiting(Some(record))), (InboxPosition(6), waiting(None))].into(),
            tail: InboxPosition(5),
            control: [InboxPosition(6), InboxPosition(8)].into(),
            control_tail: InboxPosition(8),
            listeners: [(NodeId(3), ListenStamp(1))].into(),
            version: ListenersVersion(1),
            snapshot: Some(Cursor { seq: Seq(4), epoch: Epoch(6) }),
            annotations: [("label".to_owned(), "blue".to_owned().into())].into(),
            dirty: false,
        };
        let spot = RecordLocation { table: "heads", key: b"t\0s\0" };
        for (head, version) in [(head, ANNOTATED_HEAD_VERSION), (SessionHead::default(), HEAD_VERSION)] {
            let sealed = head.seal(spot.key);
            assert_eq!(spot.unseal(&sealed).expect("whole")[0], version);
            assert_eq!(SessionHead::unseal(spot, &sealed).expect("whole"), head);
            for bit in 0..sealed.len() * 8 {
                let mut torn = sealed.clone();
                torn[bit / 8] ^= 1 << (bit % 8);
                assert!(SessionHead::unseal(spot, &torn).is_err(), "bit {bit}");
            }
            assert!(SessionHead::unseal(RecordLocation { table: "heads", key: b"t\0x\0" }, &sealed).is_err());
        }
    }
}
