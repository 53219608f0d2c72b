//! Checks every record of a database: its checksum, its form, and whether it agrees with the session's other records.
//! Reads only. Used by `turnway store check`, by copies, and by repair.
use crate::store::embedded::fault::Fault;
use crate::store::embedded::head::Head;
use crate::store::embedded::index::{self, Line};
use crate::store::embedded::meter;
use crate::store::embedded::reading::Written;
use crate::store::embedded::record::{Eye, Spot, TakenInput};
use crate::store::embedded::report::Report;
use crate::store::embedded::tables::{
    self, CLOSED, Definition, HEADS, IDS, LANES, LOG, Lane, META, SESSIONS,
};
use crate::store::embedded::tables::{SNAPSHOTS, VALUES, WORK};
use redb::{
    Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata,
};
use std::collections::BTreeMap;
use turnway_core::id::Seq;

type Open = ReadOnlyTable<&'static [u8], &'static [u8]>;

struct Examiner {
    heads: Open,
    log: Open,
    lanes: Open,
    ids: Open,
    snapshots: Open,
    work: Open,
    sessions: Open,
}

/// Returns the damaged sessions by key prefix, each with a reason: a record is missing or contradicts the session
/// head, the head is missing, or the session was quarantined before.
pub(super) fn verdicts(txn: &ReadTransaction) -> Result<BTreeMap<Vec<u8>, String>, Fault> {
    let examiner = Examiner::of(txn)?;
    let mut damaged = closed(txn)?;
    for item in examiner.heads.iter()? {
        let (key, value) = item?;
        let spot = Spot { table: "heads", key: key.value() };
        let verdict = Head::unseal(spot, value.value()).and_then(|head| examiner.contents(spot.key, &head));
        if let Err(fault) = verdict {
            damaged.entry(spot.key.to_vec()).or_insert_with(|| fault.to_string());
        }
    }
    for table in [&examiner.log, &examiner.lanes, &examiner.ids, &examiner.snapshots] {
        let mut last = Vec::new();
        for item in table.iter()? {
            let (key, _) = item?;
            let Some((_, rest)) = tables::split(key.value()) else { continue };
            let prefix = &key.value()[..key.value().len() - rest.len()];
            if last == prefix {
                continue;
            }
            last = prefix.to_vec();
            if examiner.heads.get(prefix)?.is_none() {
                let fault = Spot { table: "heads", key: prefix }.damaged("missing");
                damaged.entry(last.clone()).or_insert_with(|| fault.to_string());
            }
        }
    }
    for item in examiner.sessions.iter()? {
        let (key, _) = item?;
        let Some(line) = Line::read(key.value()) else { continue };
        let prefix = tables::prefix(&line.session());
        if examiner.heads.get(&*prefix)?.is_none() {
            let fault = Spot { table: "heads", key: &prefix }.damaged("missing");
            damaged.entry(prefix).or_insert_with(|| fault.to_string());
        }
    }
    Ok(damaged)
}

/// Returns the quarantined sessions by key prefix, each with the reason.
pub(super) fn closed(txn: &ReadTransaction) -> Result<BTreeMap<Vec<u8>, String>, Fault> {
    let table = match txn.open_table(CLOSED) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error.into()),
    };
    let mut closed = BTreeMap::new();
    for item in table.iter()? {
        let (key, value) = item?;
        let spot = Spot { table: "closed", key: key.value() };
        let why = spot.unseal(value.value()).map(|why| String::from_utf8_lossy(why).into_owned());
        closed.insert(spot.key.to_vec(), why.unwrap_or_else(|fault| fault.to_string()));
    }
    Ok(closed)
}

/// Checks every record's CRC, its form, and its agreement with the session head.
pub(super) fn examine(database: &Database) -> Report {
    let mut report = Report::default();
    if let Err(fault) = Examiner::open(database).and_then(|(txn, it)| it.examine(&txn, &mut report)) {
        report.complain(&fault);
    }
    report
}

fn sealed(
    txn: &ReadTransaction,
    definition: Definition,
    table: &'static str,
    report: &mut Report,
) -> Result<u64, Fault> {
    let mut count = 0;
    for item in txn.open_table(definition)?.iter()? {
        let (key, value) = item?;
        let whole = Spot { table, key: key.value() }.unseal(value.value()).map(|_| 0);
        report.note(whole);
        count += u64::from(!meter::is_usage(key.value()));
    }
    Ok(count)
}

impl Examiner {
    fn open(database: &Database) -> Result<(ReadTransaction, Self), Fault> {
        let txn = database.begin_read()?;
        let examiner = Self::of(&txn)?;
        Ok((txn, examiner))
    }

    fn of(txn: &ReadTransaction) -> Result<Self, Fault> {
        let open = |definition: Definition| txn.open_table(definition);
        let (heads, log, lanes) = (open(HEADS)?, open(LOG)?, open(LANES)?);
        let (ids, snapshots, work, sessions) = (open(IDS)?, open(SNAPSHOTS)?, open(WORK)?, open(SESSIONS)?);
        Ok(Self { heads, log, lanes, ids, snapshots, work, sessions })
    }

    fn examine(&self, txn: &ReadTransaction, report: &mut Report) -> Result<(), Fault> {
        let (mut working, mut owned) = (0, 0);
        let closed = closed(txn)?;
        for (prefix, why) in &closed {
            report.object(format!("session {} is quarantined: {why}", prefix.escape_ascii()));
        }
        for item in self.heads.iter()? {
            let (key, value) = item?;
            let spot = Spot { table: "heads", key: key.value() };
            if closed.contains_key(spot.key) {
                continue;
            }
            match Head::unseal(spot, value.value()) {
                Ok(head) => {
                    self.session(spot.key, &head, report)?;
                    working += u64::from(head.standing().is_some());
                    owned += u64::from(head.user.is_some() && !head.deleted);
                }
                Err(fault) => report.complain(&fault),
            }
            report.sessions += 1;
        }
        report.values = sealed(txn, VALUES, "values", report)?;
        sealed(txn, META, "meta", report)?;
        self.index(report)?;
        self.orphans(working, owned, report)
    }

    fn session(&self, prefix: &[u8], head: &Head, report: &mut Report) -> Result<(), Fault> {
        let facts = self.facts(prefix, head);
        report.facts += report.note(facts);
        let waiting = self.waiting(prefix, head);
        report.waiting += report.note(waiting);
        let ids = self.ids(prefix);
        report.ids += report.note(ids);
        let snapshot = self.snapshot(prefix, head);
        report.snapshots += report.note(snapshot);
        let work = Spot { table: "work", key: prefix };
        if self.work.get(prefix)?.is_some() != head.standing().is_some() {
            report.complain(&work.damaged("contradicts the session head"));
        }
        Ok(())
    }

    /// Checks that every record that the session head mentions exists and is intact.
    fn contents(&self, prefix: &[u8], head: &Head) -> Result<(), Fault> {
        self.facts(prefix, head)?;
        self.waiting(prefix, head)?;
        self.ids(prefix)?;
        self.snapshot(prefix, head).map(|_| ())
    }

    fn facts(&self, prefix: &[u8], head: &Head) -> Result<u64, Fault> {
        let (first, last) = (tables::fact(prefix, Seq(0)), tables::fact(prefix, Seq(u64::MAX)));
        let mut seq = head.floor;
        let mut epoch = None;
        for item in self.log.range(&*first..=&*last)? {
            let (key, value) = item?;
            let spot = Spot { table: "log", key: key.value() };
            seq.0 += 1;
            if spot.key != tables::fact(prefix, seq) {
                return Err(spot.damaged("a record before it is missing"));
            }
            epoch = Some(Written::unseal(spot, value.value())?.entry(spot, seq)?.0);
        }
        let end = Spot { table: "log", key: &last };
        if seq != head.end.seq || epoch.is_some_and(|epoch| epoch != head.end.epoch) {
            return Err(end.damaged("the log does not end at the position in the session head"));
        }
        Ok(seq.0 - head.floor.0)
    }

    fn waiting(&self, prefix: &[u8], head: &Head) -> Result<u64, Fault> {
        let inbox = head.inbox.keys().map(|place| (Lane::Inbox, *place));
        let control = head.control.iter().map(|place| (Lane::Control, *place));
        let mut count = 0;
        for (lane, place) in inbox.chain(control) {
            let key = tables::waiting(prefix, lane, place);
            let spot = Spot { table: "lanes", key: &key };
            let value = self.lanes.get(&*key)?.ok_or_else(|| spot.damaged("missing"))?;
            spot.unseal(value.value())?;
            count += 1;
        }
        Ok(count)
    }

    fn ids(&self, prefix: &[u8]) -> Result<u64, Fault> {
        let (runs, end) = (tables::runs(prefix), tables::runs_end(prefix));
        let mut count = 0;
        // Kinds of ids sort as `c`, `r`: all ids of a session lie between its prefix and the end of the run ids.
        for item in self.ids.range(prefix..&*end)? {
            let (key, value) = item?;
            let spot = Spot { table: "ids", key: key.value() };
            if spot.key >= &*runs {
                TakenInput::unseal(spot, value.value())?;
            } else {
                spot.unseal(value.value())?;
            }
            count += 1;
        }
        Ok(count)
    }

    fn snapshot(&self, prefix: &[u8], head: &Head) -> Result<u64, Fault> {
        let spot = Spot { table: "snapshots", key: prefix };
        let value = self.snapshots.get(prefix)?;
        let at = match &value {
            None => None,
            Some(value) => Eye(spot.unseal(value.value())?).cursor(),
        };
        if at == head.snapshot {
            Ok(at.into_iter().count() as u64)
        } else {
            Err(spot.damaged("its position differs from the session head"))
        }
    }

    /// Checks that every index entry belongs to a session, and that a user's entry has its tenant's counterpart.
    fn index(&self, report: &mut Report) -> Result<(), Fault> {
        for item in self.sessions.iter()? {
            let (key, _) = item?;
            let spot = Spot { table: "sessions", key: key.value() };
            let Some(line) = Line::read(spot.key) else {
                report.complain(&spot.damaged("form"));
                continue;
            };
            let prefix = tables::prefix(&line.session());
            let head = self.heads.get(&*prefix)?;
            let head =
                head.and_then(|head| Head::unseal(Spot { table: "heads", key: &prefix }, head.value()).ok());
            let user = head.and_then(|head| head.user);
            let other = if line.user.is_some() { None } else { user.as_ref() };
            let beside = index::key(&line.tenant, other, &line.birth);
            let fits = user.is_some() && (line.user.is_none() || line.user == user);
            if !fits || self.sessions.get(&*beside)?.is_none() {
                report.complain(&spot.damaged("contradicts the session head"));
            }
        }
        Ok(())
    }

    /// Compares table sizes with the counted records, to find records that belong to no session.
    fn orphans(&self, working: u64, owned: u64, report: &mut Report) -> Result<(), Fault> {
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
                    report.complain(&Spot { table, key: b"*" }.damaged("a record belongs to no session"));
                }
            }
        }
        Ok(())
    }
}
