//! Checks every record of a database: its checksum, its form, and whether it agrees with the session's other records.
//! Reads only. Used by `turnway store check`, by copies, and by repair.
use crate::store::embedded::conversations;
use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::head::SessionHead;
use crate::store::embedded::index::{self, IndexKey};
use crate::store::embedded::meter;
use crate::store::embedded::record::{InputRecord, RecordLocation, RecordReader};
use crate::store::embedded::report::CheckReport;
use crate::store::embedded::session_record_reader::LogRecord;
use crate::store::embedded::session_transaction::blobs::parse_blob_table;
use crate::store::embedded::tables::{
    self, BLOBS_KIND, CLOSED, HEADS, IDS, InputLane, LANES, LOG, META, SESSIONS, TableDef,
};
use crate::store::embedded::tables::{SNAPSHOTS, VALUES, WORK};
use redb::{Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata};
use std::collections::BTreeMap;
use turnway_core::id::Seq;

type ReadTable = ReadOnlyTable<&'static [u8], &'static [u8]>;

struct IntegrityChecker {
    heads: ReadTable,
    log: ReadTable,
    lanes: ReadTable,
    ids: ReadTable,
    snapshots: ReadTable,
    work: ReadTable,
    sessions: ReadTable,
}

/// Returns the damaged sessions by key prefix, each with a reason: a record is missing or contradicts the session
/// head, the head is missing, or the session was quarantined before.
pub(super) fn damaged_sessions(txn: &ReadTransaction) -> Result<BTreeMap<Vec<u8>, String>, StoreFault> {
    let examiner = IntegrityChecker::of(txn)?;
    let mut damaged = quarantined_sessions(txn)?;
    for item in examiner.heads.iter()? {
        let (key, value) = item?;
        let spot = RecordLocation { table: "heads", key: key.value() };
        let verdict =
            SessionHead::unseal(spot, value.value()).and_then(|head| examiner.check_contents(spot.key, &head));
        if let Err(fault) = verdict {
            damaged.entry(spot.key.to_vec()).or_insert_with(|| fault.to_string());
        }
    }
    for table in [&examiner.log, &examiner.lanes, &examiner.ids, &examiner.snapshots] {
        let mut last = Vec::new();
        for item in table.iter()? {
            let (key, _) = item?;
            let Some((_, rest)) = tables::split_session_key(key.value()) else { continue };
            let prefix = &key.value()[..key.value().len() - rest.len()];
            if last == prefix {
                continue;
            }
            last = prefix.to_vec();
            if examiner.heads.get(prefix)?.is_none() {
                let fault = RecordLocation { table: "heads", key: prefix }.damaged("missing");
                damaged.entry(last.clone()).or_insert_with(|| fault.to_string());
            }
        }
    }
    for item in examiner.sessions.iter()? {
        let (key, _) = item?;
        let Some(entry) = IndexKey::parse(key.value()) else { continue };
        let prefix = tables::session_prefix(&entry.session());
        if examiner.heads.get(&*prefix)?.is_none() {
            let fault = RecordLocation { table: "heads", key: &prefix }.damaged("missing");
            damaged.entry(prefix).or_insert_with(|| fault.to_string());
        }
    }
    Ok(damaged)
}

/// Returns the quarantined sessions by key prefix, each with the reason.
pub(super) fn quarantined_sessions(txn: &ReadTransaction) -> Result<BTreeMap<Vec<u8>, String>, StoreFault> {
    let table = match txn.open_table(CLOSED) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error.into()),
    };
    let mut closed = BTreeMap::new();
    for item in table.iter()? {
        let (key, value) = item?;
        let spot = RecordLocation { table: "closed", key: key.value() };
        let why = spot.unseal(value.value()).map(|why| String::from_utf8_lossy(why).into_owned());
        closed.insert(spot.key.to_vec(), why.unwrap_or_else(|fault| fault.to_string()));
    }
    Ok(closed)
}

/// Checks every record's CRC, its form, and its agreement with the session head.
pub(super) fn check_records(database: &Database) -> CheckReport {
    let mut report = CheckReport::default();
    if let Err(fault) = IntegrityChecker::open(database).and_then(|(txn, it)| it.check(&txn, &mut report)) {
        report.add_fault(&fault);
    }
    report
}

fn check_checksums(
    txn: &ReadTransaction,
    definition: TableDef,
    table: &'static str,
    report: &mut CheckReport,
) -> Result<u64, StoreFault> {
    let mut count = 0;
    for item in txn.open_table(definition)?.iter()? {
        let (key, value) = item?;
        let whole = RecordLocation { table, key: key.value() }.unseal(value.value()).map(|_| 0);
        report.count_or_complain(whole);
        count += u64::from(!meter::is_usage(key.value()));
    }
    Ok(count)
}

impl IntegrityChecker {
    fn open(database: &Database) -> Result<(ReadTransaction, Self), StoreFault> {
        let txn = database.begin_read()?;
        let examiner = Self::of(&txn)?;
        Ok((txn, examiner))
    }

    fn of(txn: &ReadTransaction) -> Result<Self, StoreFault> {
        let open = |definition: TableDef| txn.open_table(definition);
        let heads = open(HEADS)?;
        let log = open(LOG)?;
        let lanes = open(LANES)?;
        let ids = open(IDS)?;
        let snapshots = open(SNAPSHOTS)?;
        let work = open(WORK)?;
        let sessions = open(SESSIONS)?;
        Ok(Self { heads, log, lanes, ids, snapshots, work, sessions })
    }

    fn check(&self, txn: &ReadTransaction, report: &mut CheckReport) -> Result<(), StoreFault> {
        let mut working = 0;
        let mut owned = 0;
        let closed = quarantined_sessions(txn)?;
        for (prefix, why) in &closed {
            report.add_complaint(format!("session {} is quarantined: {why}", prefix.escape_ascii()));
        }
        for item in self.heads.iter()? {
            let (key, value) = item?;
            let spot = RecordLocation { table: "heads", key: key.value() };
            if closed.contains_key(spot.key) {
                continue;
            }
            match SessionHead::unseal(spot, value.value()) {
                Ok(head) => {
                    self.check_session(spot.key, &head, report)?;
                    working += u64::from(head.sweep_state().is_some());
                    owned += u64::from(head.user.is_some() && !head.deleted);
                }
                Err(fault) => report.add_fault(&fault),
            }
            report.sessions += 1;
        }
        report.values = check_checksums(txn, VALUES, "values", report)?;
        check_checksums(txn, META, "meta", report)?;
        conversations::check(txn, report)?;
        self.check_index(report)?;
        self.check_orphans(working, owned, report)
    }

    fn check_session(&self, prefix: &[u8], head: &SessionHead, report: &mut CheckReport) -> Result<(), StoreFault> {
        let facts = self.check_facts(prefix, head);
        report.facts += report.count_or_complain(facts);
        let waiting = self.check_inputs(prefix, head);
        report.waiting += report.count_or_complain(waiting);
        let ids = self.check_ids(prefix);
        report.ids += report.count_or_complain(ids);
        let snapshot = self.check_snapshot(prefix, head);
        report.snapshots += report.count_or_complain(snapshot);
        let work = RecordLocation { table: "work", key: prefix };
        if self.work.get(prefix)?.is_some() != head.sweep_state().is_some() {
            report.add_fault(&work.damaged("contradicts the session head"));
        }
        Ok(())
    }

    /// Checks that every record that the session head mentions exists and is intact.
    fn check_contents(&self, prefix: &[u8], head: &SessionHead) -> Result<(), StoreFault> {
        self.check_facts(prefix, head)?;
        self.check_inputs(prefix, head)?;
        self.check_ids(prefix)?;
        self.check_snapshot(prefix, head).map(|_| ())
    }

    fn check_facts(&self, prefix: &[u8], head: &SessionHead) -> Result<u64, StoreFault> {
        let first = tables::fact_key(prefix, Seq(0));
        let last = tables::fact_key(prefix, Seq(u64::MAX));
        let mut seq = head.trimmed_to;
        let mut epoch = None;
        for item in self.log.range(&*first..=&*last)? {
            let (key, value) = item?;
            let spot = RecordLocation { table: "log", key: key.value() };
            seq.0 += 1;
            if spot.key != tables::fact_key(prefix, seq) {
                return Err(spot.damaged("a record before it is missing"));
            }
            epoch = Some(LogRecord::unseal(spot, value.value())?.entry(spot, seq)?.0);
        }
        let end = RecordLocation { table: "log", key: &last };
        if seq != head.log_end.seq || epoch.is_some_and(|epoch| epoch != head.log_end.epoch) {
            return Err(end.damaged("the log does not end at the position in the session head"));
        }
        Ok(seq.0 - head.trimmed_to.0)
    }

    fn check_inputs(&self, prefix: &[u8], head: &SessionHead) -> Result<u64, StoreFault> {
        let inbox = head.inbox.keys().map(|position| (InputLane::Inbox, *position));
        let control = head.control.iter().map(|position| (InputLane::Control, *position));
        let mut count = 0;
        for (lane, position) in inbox.chain(control) {
            let key = tables::lane_key(prefix, lane, position);
            let spot = RecordLocation { table: "lanes", key: &key };
            let value = self.lanes.get(&*key)?.ok_or_else(|| spot.damaged("missing"))?;
            spot.unseal(value.value())?;
            count += 1;
        }
        Ok(count)
    }

    fn check_ids(&self, prefix: &[u8]) -> Result<u64, StoreFault> {
        let runs = tables::runs_start(prefix);
        let end = tables::runs_end(prefix);
        let mut count = 0;
        // Kinds of ids sort as `b`, `c`, `r`: all ids of a session lie between its prefix and the end of the run ids.
        for item in self.ids.range(prefix..&*end)? {
            let (key, value) = item?;
            let spot = RecordLocation { table: "ids", key: key.value() };
            if spot.key >= &*runs {
                InputRecord::unseal(spot, value.value())?;
            } else if spot.key.get(prefix.len()..) == Some(BLOBS_KIND) {
                parse_blob_table(spot, value.value())?;
            } else {
                spot.unseal(value.value())?;
            }
            count += 1;
        }
        Ok(count)
    }

    fn check_snapshot(&self, prefix: &[u8], head: &SessionHead) -> Result<u64, StoreFault> {
        let spot = RecordLocation { table: "snapshots", key: prefix };
        let value = self.snapshots.get(prefix)?;
        let at = match &value {
            None => None,
            Some(value) => RecordReader(spot.unseal(value.value())?).cursor(),
        };
        if at != head.snapshot {
            return Err(spot.damaged("its position differs from the session head"));
        }
        Ok(at.into_iter().count() as u64)
    }

    /// Checks that every index entry belongs to a session, and that a user's entry has its tenant's counterpart.
    fn check_index(&self, report: &mut CheckReport) -> Result<(), StoreFault> {
        for item in self.sessions.iter()? {
            let (key, _) = item?;
            let spot = RecordLocation { table: "sessions", key: key.value() };
            let Some(entry) = IndexKey::parse(spot.key) else {
                report.add_fault(&spot.damaged("invalid encoding"));
                continue;
            };
            let prefix = tables::session_prefix(&entry.session());
            let head = self.heads.get(&*prefix)?;
            let head = head.and_then(|head| {
                SessionHead::unseal(RecordLocation { table: "heads", key: &prefix }, head.value()).ok()
            });
            let user = head.and_then(|head| head.user);
            let other = if entry.user.is_some() { None } else { user.as_ref() };
            let other_key = index::key(&entry.tenant, other, &entry.birth);
            let fits = user.is_some() && (entry.user.is_none() || entry.user == user);
            if !fits || self.sessions.get(&*other_key)?.is_none() {
                report.add_fault(&spot.damaged("contradicts the session head"));
            }
        }
        Ok(())
    }

    /// Compares table sizes with the counted records, to find records that belong to no session.
    fn check_orphans(&self, working: u64, owned: u64, report: &mut CheckReport) -> Result<(), StoreFault> {
        let counts = [
            ("log", self.log.len()?, report.facts),
            ("lanes", self.lanes.len()?, report.waiting),
            ("ids", self.ids.len()?, report.ids),
            ("snapshots", self.snapshots.len()?, report.snapshots),
            ("work", self.work.len()?, working),
            ("sessions", self.sessions.len()?, 2 * owned),
        ];
        // If anything is damaged, the counts are incomplete.
        if report.damages == 0 {
            for (table, there, known) in counts {
                if there != known {
                    report.add_fault(&RecordLocation { table, key: b"*" }.damaged("a record belongs to no session"));
                }
            }
        }
        Ok(())
    }
}
