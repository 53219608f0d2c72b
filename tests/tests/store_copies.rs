//! Tests checking and copying the embedded store, in use or not: damage is found, and the original is never
//! changed.
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use turnway::store::Store;
use turnway::store::embedded::{CheckReport, EmbeddedOpenError, EmbeddedOptions, EmbeddedStore, check, copy};
use turnway_core::rng::Rng;
use turnway_core::store::{Op, Reply};
use turnway_simulator::quiet_panics;
use turnway_simulator::script::{START_TIME, Script};

const FILE: &str = "turnway.redb";

fn options() -> EmbeddedOptions {
    EmbeddedOptions::new(Arc::new(|| START_TIME), Arc::new(|fault| panic!("{fault}")))
}

/// Fills a store with records of every kind, and checks it.
fn fill(dir: &Path, ops: usize) -> CheckReport {
    let (answer, answers) = channel();
    let sink = Arc::new(move |op: Op, result| drop(answer.send((op, result))));
    let store = EmbeddedStore::open(dir, options(), sink).expect("a store");
    let mut script = Script::new(11, false);
    for _ in 0..ops {
        store.submit(script.next(START_TIME));
        let (op, reply) = answers.recv().expect("an answer");
        script.learn(&op, &reply.expect("a reply"));
    }
    drop(store);
    let report = check(dir, &options()).expect("checked");
    assert!(report.damages == 0 && report.sessions > 1 && report.facts > 1, "{report:?}");
    report
}

fn read(dir: &Path) -> Vec<u8> {
    std::fs::read(dir.join(FILE)).expect("read")
}

/// Flips single bits of the file. Not every flipped bit must be found, because some bytes are unused; but if no
/// damage is reported, no data is missing.
#[test]
fn flipped_bit_is_reported_or_harmless() {
    let dir = tempfile::tempdir().expect("a directory");
    let whole = fill(dir.path(), 400);
    let before = read(dir.path());
    let mut rng = Rng::from_number(5);
    let mut found = 0;
    // Random places, and each byte of the header, which names the last commit.
    let anywhere = std::iter::repeat_with(|| rng.below(before.len() as u64) as usize).take(300);
    let places: Vec<usize> = (0..320).chain(anywhere).collect();
    for (n, at) in places.into_iter().enumerate() {
        let bit = n % 8;
        let mut turned = before.clone();
        turned[at] ^= 1 << bit;
        std::fs::write(dir.path().join(FILE), &turned).expect("written");
        // Panics of the database engine on a damaged page are caught where the file is read.
        let looked = quiet_panics::catch(|| check(dir.path(), &options())).expect("no panic gets out");
        let report = looked.unwrap_or_else(|error| panic!("byte {at} bit {bit}: {error}"));
        if report.damages == 0 {
            let same = CheckReport { unclosed: report.unclosed, ..whole.clone() };
            assert_eq!(report, same, "byte {at} bit {bit}");
        } else {
            found += 1;
        }
        assert!(read(dir.path()) == turned, "byte {at} bit {bit}: looking has written");
    }
    assert!(found > 20, "only {found} of 300 were found");
}

/// A flipped bit of a fact is always found.
#[test]
fn fact_with_a_flipped_bit_is_reported_and_not_copied() {
    let dir = tempfile::tempdir().expect("a directory");
    let to = tempfile::tempdir().expect("a directory");
    fill(dir.path(), 200);
    let mut bytes = read(dir.path());
    let fact = b"\"type\":\"";
    let at = bytes.windows(fact.len()).position(|window| window == fact).expect("a fact");
    bytes[at + 1] ^= 1;
    std::fs::write(dir.path().join(FILE), &bytes).expect("written");
    let report = check(dir.path(), &options()).expect("checked");
    assert!(report.damages > 0, "{report:?}");
    let copied = copy(dir.path(), to.path(), &options()).expect("copied without it");
    assert!(copied.left_out == 1 && copied.damages == 0, "{copied:?}");
    assert_eq!(check(to.path(), &options()).expect("checked").damages, 0);
}

#[test]
fn missing_or_invalid_store_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = check(&dir.path().join("nowhere"), &options());
    assert!(matches!(missing, Err(EmbeddedOpenError::Missing { .. })), "{missing:?}");
    assert!(matches!(check(dir.path(), &options()), Err(EmbeddedOpenError::Missing { .. })));
    assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0, "looking makes nothing");
    for nonsense in [&b""[..], b"redb", &[7; 100_000]] {
        std::fs::write(dir.path().join(FILE), nonsense).expect("written");
        let report = check(dir.path(), &options()).expect("checked");
        assert!(report.damages == 1 && report.bytes == nonsense.len() as u64, "{report:?}");
    }
}

#[test]
fn copy_equals_the_original_and_overwrites_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let to = tempfile::tempdir().expect("a directory");
    let whole = fill(dir.path(), 300);
    let before = read(dir.path());
    let to = to.path().join("a/b");
    let copied = copy(dir.path(), &to, &options()).expect("copied");
    assert_eq!(CheckReport { bytes: whole.bytes, ..copied }, whole);
    assert!(read(dir.path()) == before, "the original was written");
    let kept = read(&to);
    assert!(matches!(copy(dir.path(), &to, &options()), Err(EmbeddedOpenError::NotEmpty { .. })));
    assert!(read(&to) == kept);
    // A directory with any other file is not used either.
    let other = tempfile::tempdir().expect("a directory");
    std::fs::write(other.path().join("letters.txt"), "dear ann").expect("written");
    assert!(matches!(copy(dir.path(), other.path(), &options()), Err(EmbeddedOpenError::NotEmpty { .. })));
    // Remains of an earlier attempt do not prevent a copy.
    let tried = tempfile::tempdir().expect("a directory");
    std::fs::write(tried.path().join("turnway.redb.new"), "half").expect("written");
    copy(dir.path(), tried.path(), &options()).expect("copied");
}

/// A copy contains everything answered before the copy began, and is consistent while writes continue.
#[test]
fn copy_of_a_store_in_use_is_consistent() {
    let dir = tempfile::tempdir().expect("a directory");
    let answered = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&answered);
    let sink = Arc::new(move |_: Op, result: Result<Reply, _>| {
        assert!(result.is_ok(), "{result:?}");
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let store = EmbeddedStore::open(dir.path(), options(), sink).expect("a store");
    let copier = store.copier();
    let over = AtomicBool::new(false);
    let put = |n: u64| Op::Put { name: format!("n{n:06}"), expect: 0, value: Some(vec![7; 500]) };
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut said = 0;
            while !over.load(Ordering::SeqCst) {
                // At most a hundred operations ahead of the disk, so that none is refused.
                while said < answered.load(Ordering::SeqCst) + 100 {
                    store.submit(put(said));
                    said += 1;
                }
                std::thread::yield_now();
            }
        });
        let mut sizes = BTreeSet::new();
        for n in 0..5 {
            let least = answered.load(Ordering::SeqCst);
            let to = dir.path().join(format!("copy{n}"));
            let report = copier.copy(&to).expect("copied");
            assert!(report.damages == 0 && report.values >= least, "{least} {report:?}");
            assert_eq!(check(&to, &options()).expect("checked"), report);
            sizes.insert(report.values);
        }
        over.store(true, Ordering::SeqCst);
        assert!(sizes.len() > 1, "nothing went on meanwhile: {sizes:?}");
    });
    drop(store);
    assert!(matches!(copier.copy(&dir.path().join("late")), Err(EmbeddedOpenError::Fault(_))), "it is closed");
}
