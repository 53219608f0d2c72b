//! Every store answers random operations exactly as the model does: the embedded one with any batching and
//! over restarts, the one in memory, and Redis, also as a cluster of one. `DIFFERENTIAL_SEQUENCES` sets the
//! number of sequences, `DIFFERENTIAL_SEED` the first seed.
#[path = "differential/pair.rs"]
mod pair;

use pair::{Pair, Traits, quotas};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::channel;
use turnway::config::Durability as Level;
use turnway::config::redis::RedisUrl;
use turnway::store::embedded::{self, CommitDurability, EmbeddedOptions, EmbeddedStore, Engine};
use turnway::store::memory::MemoryStore;
use turnway::store::redis;
use turnway_core::store::quota::ByteMeasure;
use turnway_simulator::power_cuts::Disk;
use turnway_simulator::script::START_TIME;
use turnway_tests::real::redis::Redis;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn options(clock: embedded::ClockFn, seed: u64) -> EmbeddedOptions {
    let mut options = EmbeddedOptions::new(clock, Arc::new(|fault| panic!("{fault}")));
    options.two_phase = seed.is_multiple_of(8);
    options.durability = if seed % 8 == 1 { CommitDurability::Os } else { CommitDurability::Fsync };
    options.quotas = quotas(seed);
    options
}

/// Runs one sequence on the embedded store, mostly on a disk in memory, because a real one is slow; every
/// tenth one uses a directory.
fn compare(seed: u64) -> BTreeMap<&'static str, u64> {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = Disk::new(0);
    let path = seed.is_multiple_of(10).then(|| dir.path().to_owned());
    let backend = disk.clone();
    let quotas = (ByteMeasure::Text, quotas(seed));
    let ways = Traits { in_order: true, two_clocks: true, restarts: true, quotas };
    let mut pair = Pair::new(seed, ways, move |clock| {
        let (sender, receiver) = channel();
        let sink = Arc::new(move |op, result| sender.send((op, result)).expect("somebody listens"));
        let options = options(clock, seed);
        let store = match &path {
            Some(path) => EmbeddedStore::open(path, options, sink),
            None => EmbeddedStore::with_backend(backend.clone(), options, sink),
        };
        (Box::new(store.expect("a store")), receiver)
    });
    pair.run();
    let mut given = std::mem::take(&mut pair.given);
    given.insert(FORGOTTEN, pair.forgotten);
    drop(pair);
    let options = options(Arc::new(|| START_TIME), seed);
    let report = match seed.is_multiple_of(10) {
        true => embedded::check(dir.path(), &options).expect("checked"),
        false => Engine::with_backend(disk, &options).expect("opened").check(),
    };
    assert_eq!(report.damages, 0, "{report:#?}");
    given
}

/// Number of reply kinds that the model gives; `refused: full` is not among them.
const KINDS: usize = 62;
/// Kind under which sessions deleted because of their age are counted.
const FORGOTTEN: &str = "forgotten";

/// Covers: MP-B12.
#[test]
fn embedded_store_answers_like_the_model() {
    let first = number("DIFFERENTIAL_SEED", 1);
    let sequences = number("DIFFERENTIAL_SEQUENCES", 300);
    let mut given = BTreeMap::new();
    for seed in first..first + sequences {
        add_replies(&mut given, seed, || compare(seed));
    }
    print_report(&given, first, sequences);
}

fn add_replies(
    given: &mut BTreeMap<&'static str, u64>,
    seed: u64,
    compare: impl FnOnce() -> BTreeMap<&'static str, u64>,
) {
    let Ok(some) = std::panic::catch_unwind(AssertUnwindSafe(compare)) else {
        panic!("DIFFERENTIAL_SEED={seed} DIFFERENTIAL_SEQUENCES=1");
    };
    some.into_iter().for_each(|(kind, count)| *given.entry(kind).or_default() += count);
}

fn print_report(given: &BTreeMap<&'static str, u64>, first: u64, sequences: u64) {
    assert!(sequences < 40 || given[FORGOTTEN] > 0, "no session was deleted because of its age");
    let ops: u64 = given.values().sum();
    eprintln!("{sequences} sequences from seed {first}, {ops} ops: equal\n{given:#?}");
    assert!(sequences < 100 || given.len() == KINDS, "{} kinds of replies", given.len());
}

#[test]
fn memory_store_answers_like_the_model() {
    for seed in 1..20 {
        let quotas = quotas(seed);
        let counted = (ByteMeasure::Weight, quotas);
        let ways = Traits { in_order: true, two_clocks: true, restarts: false, quotas: counted };
        let mut pair = Pair::new(seed, ways, move |clock| {
            let (sender, receiver) = channel();
            let sink = move |op, result| sender.send((op, result)).expect("somebody listens");
            (Box::new(MemoryStore::new(clock, quotas, Arc::new(|_, _| {}), Arc::new(sink))), receiver)
        });
        pair.run();
    }
}

/// Runs one sequence on a server after emptying it.
fn compare_redis(seed: u64, server: &Redis, runtime: &tokio::runtime::Runtime) -> BTreeMap<&'static str, u64> {
    let _: String = server.command(&["FLUSHALL"]);
    let url = RedisUrl::parse(&server.url()).expect("a URL");
    let runtime = runtime.handle().clone();
    let quotas = quotas(seed);
    let counted = (ByteMeasure::Deferred, quotas);
    let ways = Traits { in_order: false, two_clocks: false, restarts: true, quotas: counted };
    let mut pair = Pair::new(seed, ways, move |clock| {
        let (sender, receiver) = channel();
        // The last answers may arrive after the receiver is gone.
        let sink = Arc::new(move |op, result| drop(sender.send((op, result))));
        let clock = Some(clock);
        let options =
            redis::RedisStoreOptions { durability: Level::Mem, clock, quotas, ..redis::RedisStoreOptions::default() };
        let store = runtime.block_on(redis::RedisStore::open(url.clone(), options, sink));
        (Box::new(store.expect("a store")), receiver)
    });
    pair.run();
    let mut given = pair.given;
    given.insert(FORGOTTEN, pair.forgotten);
    given
}

fn compare_all_redis(args: &[&str], prepare: impl Fn(&Redis), sequences: u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Redis::start(dir.path(), args);
    prepare(&server);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let first = number("DIFFERENTIAL_SEED", 1);
    let mut given = BTreeMap::new();
    for seed in first..first + sequences {
        add_replies(&mut given, seed, || compare_redis(seed, &server, &runtime));
    }
    print_report(&given, first, sequences);
}

#[test]
fn redis_store_answers_like_the_model() {
    compare_all_redis(&[], |_| {}, number("DIFFERENTIAL_SEQUENCES", 120));
}

/// Runs on a cluster, which rejects functions whose keys lie in two slots or that access undeclared keys,
/// except the declared functions that count a session's bytes for its tenant.
#[test]
fn redis_functions_run_on_a_cluster() {
    let whole = |server: &Redis| {
        let _: String = server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        while !server.command::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {}
    };
    compare_all_redis(&["--cluster-enabled", "yes"], whole, number("DIFFERENTIAL_SEQUENCES", 120) / 6);
}
