//! Pace and size of conversations' bindings on both stores, and on Redis beside bare calls of the same run.
//! `./test long binding-pace` runs the full size.
mod bare_redis;
mod figures;
mod ops;
mod pace;
mod store_client;
mod upkeep;

use bare_redis::BareRedis;
use figures::Goal;
use pace::{Pace, Sizes};
use redb::Database;
use redb::backends::FileBackend;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use store_client::{StoreClient, answers};
use tikv_jemallocator::Jemalloc;
use turnway::config::Durability;
use turnway::config::redis::RedisUrl;
use turnway::store::embedded::{EmbeddedOptions, EmbeddedStore, Engine};
use turnway::store::redis::{RedisStore, RedisStoreOptions};
use turnway_core::time::{Millis, Mono, Now};
use turnway_tests::real::amount;
use turnway_tests::real::redis::Redis;

/// The allocator of the product.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Goals with a million bindings stored (docs/benchmarks.md).
const CHANGES_PER_SECOND: f64 = 5000.0;
const EXPIRY_SECONDS: f64 = 60.0;
const REDIS_RESOLVE_MICROS: f64 = 1000.0;
const EMBEDDED_RESOLVE_MICROS: f64 = 50.0;
const CACHED_RESOLVE_MICROS: f64 = 5.0;

/// Bounds that fail the test: far from the goals, because other tests and compilers may use the machine. The median of a
/// look-up is one that a person who writes a message does not notice.
const RESOLVE_MICROS_MAX: f64 = 20_000.0;
const CHANGES_PER_SECOND_MIN: f64 = 200.0;

const MIB: usize = 1024 * 1024;

/// Runs all measurements.
async fn measure(pace: &mut Pace, stored_bytes: impl Fn(Option<&BareRedis>) -> u64) {
    pace.fill(stored_bytes).await;
    for round in 0..pace.sizes.rounds {
        pace.measure_round(round).await;
    }
    pace.expire().await;
}

/// Prints the figures beside the goals, and holds them to the bounds.
fn judge(name: &str, pace: &Pace, resolve_micros: f64) {
    let changes = ["bind, 256 in flight, per second", "unbind, 256 in flight, per second"];
    let goals = [
        ("resolve, p99 µs", Goal::AtMost(resolve_micros)),
        ("resolve of a cached row, p99 µs", Goal::AtMost(CACHED_RESOLVE_MICROS)),
        (changes[0], Goal::AtLeast(CHANGES_PER_SECOND)),
        (changes[1], Goal::AtLeast(CHANGES_PER_SECOND)),
        ("expiry of 100,000, seconds", Goal::AtMost(EXPIRY_SECONDS)),
    ];
    let figures = &pace.figures;
    figures.print(&format!("{name}, {} bindings", pace.sizes.count), &goals);
    let resolve = figures.median("resolve, p50 µs");
    assert!(resolve <= RESOLVE_MICROS_MAX, "a look-up takes {resolve} µs");
    for change in changes {
        let rate = figures.median(change);
        assert!(rate >= CHANGES_PER_SECOND_MIN, "{change}: {rate}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_bindings_are_measured_and_end_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let (sink, answers) = answers();
    let options = RedisStoreOptions { durability: Durability::Mem, ..RedisStoreOptions::default() };
    let url = RedisUrl::parse(&server.url()).expect("a URL");
    let store = RedisStore::open(url, options, sink).await.unwrap_or_else(|error| panic!("{error}"));
    let redis = BareRedis::open(server).await;
    let mut pace = Pace::new(StoreClient::new(Arc::new(store), answers), Some(redis), Sizes::from_environment());
    measure(&mut pace, |redis| redis.map_or(0, BareRedis::used_memory)).await;
    judge("redis", &pace, REDIS_RESOLVE_MICROS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_bindings_are_measured_and_end_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let (sink, answers) = answers();
    let start = Instant::now();
    let clock = move || {
        let passed = start.elapsed();
        Now { mono: Mono(passed), store: Millis(1_764_000_000_000).after(passed) }
    };
    let mut options = EmbeddedOptions::new(Arc::new(clock), Arc::new(|fault| panic!("{fault}")));
    options.cache_bytes = amount("BINDING_PACE_CACHE_MIB", options.cache_bytes / MIB) * MIB;
    let store = Arc::new(EmbeddedStore::open(dir.path(), options.clone(), sink).expect("a store"));
    let mut pace = Pace::new(StoreClient::new(store.clone(), answers), None, Sizes::from_environment());
    measure(&mut pace, |_| bytes_in(dir.path())).await;
    store.close();
    let database = dir.path().join("turnway.redb");
    measure_pages(&mut pace, &database);
    measure_engine(&mut pace, &database, &options);
    judge("embedded", &pace, EMBEDDED_RESOLVE_MICROS);
}

/// Measures the parts of the store's file at the end of the run.
fn measure_pages(pace: &mut Pace, path: &Path) {
    let file_bytes = path.metadata().expect("the store's file").len() as f64;
    let database = Database::open(path).expect("a database");
    let txn = database.begin_write().expect("a transaction");
    let stats = txn.stats().expect("statistics");
    let used = stats.allocated_pages() as f64 * stats.page_size() as f64;
    pace.figures.add("share of the file in free pages", 1.0 - used / file_bytes);
    pace.figures.add("share of records in the other pages", stats.stored_bytes() as f64 / used);
    txn.abort().expect("ended");
}

/// Measures look-ups in the engine of the embedded store alone, which other threads and processes delay less.
fn measure_engine(pace: &mut Pace, database: &Path, options: &EmbeddedOptions) {
    let file = File::options().read(true).write(true).open(database).expect("the store's file");
    let backend = FileBackend::new(file).expect("nobody else has the file open");
    let mut engine = Engine::with_backend(backend, options).expect("the store");
    for round in 0..pace.sizes.rounds {
        pace.measure_engine_round(round, &mut engine);
    }
}

/// Returns the size of all files of a directory.
fn bytes_in(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).expect("a directory");
    files.map(|file| file.and_then(|file| file.metadata()).expect("a file").len()).sum()
}
