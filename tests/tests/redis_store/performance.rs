//! Measures the store's latency and throughput, compared with `PING` and with a function that does nothing over the
//! same kind of connection.
use crate::replica::replica_of;
use crate::store_client::{StoreClient, accept, holder, key};
use redis::cmd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::runtime::Handle;
use turnway::config::Durability;
use turnway::config::redis::RedisUrl;
use turnway::redis::{RedisConnection, RedisConnectionOptions};
use turnway_core::id::{EventId, FenceToken, Seq};
use turnway_core::protocol::entry::{Entry, Fact, SessionFact};
use turnway_core::store::{Append, Op, Reply};
use turnway_core::time::Millis;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::{amount, figure, quantile};

const DISK: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
/// Operations in flight at a time, of different sessions.
const ABREAST: usize = 256;
/// Redis's own time of a call, on average, in microseconds: 5,000 turns a second of 3.1 calls each (G-10, and the goal
/// in docs/benchmarks.md) leave 64; four times that for a machine with other load.
const CALL_MICROS_MAX: f64 = 250.0;
/// Operations a second with many in flight, where nothing waits for a disk: "many thousand" (G-10) on a quiet machine.
const PER_SECOND_MIN: f64 = 1000.0;
/// Limit for the median of an operation where nothing waits for a disk: this many times the median of a function that
/// does nothing, and a pause of the machine.
const IDLE_CALLS_MAX: u32 = 4;
const PAUSE: Duration = Duration::from_millis(2);
/// The same where an answer waits for a disk: an answer within the time in which a person notices no delay.
const DURABLE_WITHIN: Duration = Duration::from_millis(250);

/// Reports the times of an operation and returns their median.
fn tell(what: &str, mut took: Vec<Duration>) -> Duration {
    let half = quantile(&mut took, 0.5);
    let most = quantile(&mut took, 0.99);
    figure(&format!("{what}, p50/p99 µs"), format!("{} / {}", half.as_micros(), most.as_micros()));
    half
}

pub(crate) fn append(session: &str, token: FenceToken, after: Seq, n: u64) -> Op {
    let fact = Fact::Session(SessionFact::Notice { name: "NO_ACTIVE_SPEAKING".into(), request_id: None });
    let entry = Entry {
        id: EventId::new(Millis(1_764_000_000_000), u128::from(n)),
        time: Millis(1_764_000_000_000),
        source: "turnway".into(),
        correlation_id: "x".into(),
        causation_id: None,
        traceparent: None,
        run_id: None,
        fact,
    };
    let key = key(session);
    let facts = vec![Arc::new(entry)];
    let known = Default::default();
    let ends = Vec::new();
    let answers = Vec::new();
    let closed = None;
    Op::Append(Box::new(Append {
        key,
        token,
        after,
        facts,
        ends,
        answers,
        closed,
        annotations: Vec::new(),
        known_listeners: known,
    }))
}

/// Returns the median time of a function that does nothing, over the same kind of connection, and reports `PING` too.
async fn idle_call(url: &str, level: &str, count: usize) -> Duration {
    let answer_within = Duration::from_secs(2);
    let settings = RedisConnectionOptions {
        name: "ping",
        command_timeout: answer_within,
        channels: Vec::new(),
        push_handler: None,
    };
    let line = RedisConnection::open(RedisUrl::parse(url).expect("a URL"), settings, &Handle::current());
    line.wait_connected().await;
    let mut function = cmd("FCALL_RO");
    function.arg("turnway1_version").arg(0);
    let mut half = Duration::ZERO;
    for (what, command) in [("PING", cmd("PING")), ("a function that does nothing", function)] {
        let mut raw = Vec::new();
        for _ in 0..count {
            let began = Instant::now();
            line.execute(&command).await.expect("an answer");
            raw.push(began.elapsed());
        }
        half = tell(&format!("{level}: {what}"), raw);
    }
    half
}

/// Measures the latency of single operations, one after the other. Fails the test if a median is above its limit.
async fn one_by_one(store: &mut StoreClient, url: &str, level: &str, count: usize) {
    let idle = idle_call(url, level, count).await;
    let me = holder(1, 1);
    store.era(me, true).await;
    let first = store.accept_until("pace", "first").await;
    let claimed = store.claim("pace", me, first.owner).await;
    let mut accepts = Vec::new();
    let mut appends = Vec::new();
    for n in 0..count as u64 {
        let op = append("pace", claimed.token, Seq(n), n);
        let began = Instant::now();
        assert!(matches!(store.ask(op).await, Ok(Reply::Appended { .. })));
        appends.push(began.elapsed());
        let op = accept("pace", "first");
        let began = Instant::now();
        assert!(matches!(store.ask(op).await, Ok(Reply::Accepted(_))));
        accepts.push(began.elapsed());
    }
    let append = tell(&format!("{level}: append of one fact"), appends);
    let repeat = tell(&format!("{level}: accept (a repeat)"), accepts);
    let mut fresh = Vec::new();
    for n in 0..count {
        let session = format!("s{n}");
        store.claim(&session, me, Default::default()).await;
        store.accept_until(&session, "m0").await;
        let op = accept(&session, "m1");
        let began = Instant::now();
        assert!(matches!(store.ask(op).await, Ok(Reply::Accepted(_))));
        fresh.push(began.elapsed());
    }
    let accept = tell(&format!("{level}: accept"), fresh);
    let limit = if level == "mem" { idle * IDLE_CALLS_MAX + PAUSE } else { DURABLE_WITHIN };
    let halves = [append, repeat, accept];
    assert!(halves.iter().all(|half| *half <= limit), "{level}: {halves:?}, at most {limit:?}; idle {idle:?}");
}

/// Measures the throughput of many operations in flight. Every session is claimed; each gets an input, then facts.
async fn abreast(store: &mut StoreClient, server: &Redis, level: &str, count: usize) {
    let sessions: Vec<String> = (0..count).map(|n| format!("b{n}")).collect();
    let mut tokens = Vec::with_capacity(count);
    for session in &sessions {
        let claimed = store.claim(session, holder(1, 1), Default::default()).await;
        store.accept_until(session, "m0").await;
        tokens.push(claimed.token);
    }
    let ops = sessions.iter().map(|session| accept(session, "m1")).collect();
    let is_accepted = |reply: &Reply| matches!(reply, Reply::Accepted(_));
    measure(store, server, level, "accepts", ops, is_accepted).await;
    let appends = sessions.iter().zip(&tokens);
    let ops = appends.map(|(session, token)| append(session, *token, Seq(0), 1)).collect();
    let is_appended = |reply: &Reply, end: u64| matches!(reply, Reply::Appended { tail, .. } if *tail == Seq(end));
    measure(store, server, level, "appends", ops, |reply| is_appended(reply, 1)).await;
    let pairs = sessions.iter().zip(&tokens);
    let ops = pairs.flat_map(|(session, token)| [accept(session, "m2"), append(session, *token, Seq(1), 2)]);
    let ops = ops.collect();
    let either = |reply: &Reply| is_accepted(reply) || is_appended(reply, 2);
    measure(store, server, level, "accepts and appends", ops, either).await;
    let read = |session: &String| Op::Read { key: key(session), after: Seq(0), limit: 10 };
    let ops = sessions.iter().map(read).collect();
    let has_both = |reply: &Reply| matches!(reply, Reply::Facts(page) if page.facts.len() == 2);
    measure(store, server, level, "reads", ops, has_both).await;
}

/// Measures operations in flight together. Fails the test if an answer is not as expected, if Redis takes too long for
/// a call, or if too few are done in a second.
async fn measure(
    store: &mut StoreClient,
    server: &Redis,
    level: &str,
    what: &str,
    ops: Vec<Op>,
    is_right: impl Fn(&Reply) -> bool,
) {
    let count = ops.len();
    let _: redis::Value = server.command(&["CONFIG", "RESETSTAT"]);
    let began = Instant::now();
    let replies = store.pour(ops, ABREAST).await;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    let own = own_time(server);
    let name = format!("{level}: {what} per second, {ABREAST} abreast (µs of Redis for a call)");
    figure(&name, format!("{rate:.0} ({own:.2})"));
    assert_eq!(replies.len(), count, "{level}: answers to {what}");
    let wrong = replies.iter().find(|reply| !is_right(reply));
    assert!(wrong.is_none(), "{level}: {what}: {wrong:?}");
    assert!(own <= CALL_MICROS_MAX, "{level}: {what}: a call takes {own:.2} µs of Redis");
    assert!(level != "mem" || rate >= PER_SECOND_MIN, "{level}: {rate:.0} {what} a second");
}

/// Returns the mean time of a function call in microseconds, as the server reports it since `CONFIG RESETSTAT`.
fn own_time(server: &Redis) -> f64 {
    let stats: String = server.command(&["INFO", "commandstats"]);
    let of = |line: &str, name: &str| -> Option<f64> { line.split_once(name)?.1.split(',').next()?.parse().ok() };
    let lines: Vec<&str> = stats.lines().filter(|line| line.starts_with("cmdstat_fcall")).collect();
    let sum = |name: &str| -> f64 { lines.iter().map(|line| of(line, name).expect("a number")).sum() };
    assert!(sum("calls=") > 0.0, "no function was called: {stats}");
    sum("usec=") / sum("calls=")
}

/// Measures each operation at three levels of durability, and holds it to the limits above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_latency_and_throughput_are_measured() {
    let few = amount("REDIS_PACE_OPS", 200);
    let many = amount("REDIS_PACE_ABREAST", 500);
    for (level, durability, args) in [
        ("mem", Durability::Mem, &[][..]),
        ("fsync", Durability::Fsync, &DISK[..]),
        ("fsync+replica", Durability::FsyncReplica, &DISK[..]),
    ] {
        let dir = tempdir().expect("a directory");
        let server = Redis::start(&dir.path().join("a"), args);
        let replica = (durability == Durability::FsyncReplica).then(|| replica_of(&server, &dir.path().join("b")));
        let mut store = StoreClient::open(&server.url(), durability).await;
        one_by_one(&mut store, &server.url(), level, few).await;
        abreast(&mut store, &server, level, many).await;
        drop(replica);
    }
}
