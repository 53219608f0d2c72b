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
use turnway::store::Store;
use turnway_core::id::{EventId, FenceToken, Seq};
use turnway_core::protocol::entry::{Entry, Fact};
use turnway_core::store::{Append, Op, Reply};
use turnway_core::time::Millis;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::{figure, quantile, size};

const DISK: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
/// Operations in flight at a time, of different sessions.
const ABREAST: usize = 256;

fn tell(what: &str, mut took: Vec<Duration>) {
    let half = quantile(&mut took, 0.5);
    let most = quantile(&mut took, 0.99);
    figure(&format!("{what}, p50/p99 µs"), format!("{} / {}", half.as_micros(), most.as_micros()));
}

pub(crate) fn append(session: &str, token: FenceToken, after: Seq, n: u64) -> Op {
    let fact = Fact::SessionNotice { name: "NO_ACTIVE_SPEAKING".into(), request_id: None };
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
    Op::Append(Box::new(Append { key, token, after, facts, ends, answers, closed, known_listeners: known }))
}

/// Measures the latency of single operations, one after the other.
async fn one_by_one(desk: &mut StoreClient, url: &str, level: &str, count: usize) {
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
    for (what, command) in [("PING", cmd("PING")), ("a function that does nothing", function)] {
        let mut raw = Vec::new();
        for _ in 0..count {
            let began = Instant::now();
            line.execute(&command).await.expect("an answer");
            raw.push(began.elapsed());
        }
        tell(&format!("{level}: {what}"), raw);
    }

    let me = holder(1, 1);
    desk.era(me, true).await;
    let first = desk.accept("pace", "first").await.expect("accepted");
    let claimed = desk.claim("pace", me, first.owner).await;
    let mut accepts = Vec::new();
    let mut appends = Vec::new();
    for n in 0..count as u64 {
        let op = append("pace", claimed.token, Seq(n), n);
        let began = Instant::now();
        assert!(matches!(desk.ask(op).await, Ok(Reply::Appended { .. })));
        appends.push(began.elapsed());
        let op = accept("pace", "first");
        let began = Instant::now();
        assert!(matches!(desk.ask(op).await, Ok(Reply::Accepted(_))));
        accepts.push(began.elapsed());
    }
    tell(&format!("{level}: append of one fact"), appends);
    tell(&format!("{level}: accept (a repeat)"), accepts);
    let mut fresh = Vec::new();
    for n in 0..count {
        let session = format!("s{n}");
        desk.claim(&session, me, Default::default()).await;
        desk.accept(&session, "m0").await.expect("accepted");
        let op = accept(&session, "m1");
        let began = Instant::now();
        assert!(matches!(desk.ask(op).await, Ok(Reply::Accepted(_))));
        fresh.push(began.elapsed());
    }
    tell(&format!("{level}: accept"), fresh);
}

/// Measures the throughput of many operations in flight. Every session is claimed; each gets an input, then facts.
async fn abreast(desk: &mut StoreClient, server: &Redis, level: &str, count: usize) {
    let sessions: Vec<String> = (0..count).map(|n| format!("b{n}")).collect();
    let mut tokens = Vec::with_capacity(count);
    for session in &sessions {
        let claimed = desk.claim(session, holder(1, 1), Default::default()).await;
        desk.accept(session, "m0").await.expect("accepted");
        tokens.push(claimed.token);
    }
    let rate = |what: &str, began: Instant| {
        let rate = count as f64 / began.elapsed().as_secs_f64();
        let own = own_time(server);
        let what = format!("{level}: {what} per second, {ABREAST} abreast (µs of Redis for a call)");
        figure(&what, format!("{rate:.0} ({own})"));
    };
    own_time(server);
    let ops = sessions.iter().map(|session| accept(session, "m1")).collect();
    let began = Instant::now();
    pour(desk, ops).await;
    rate("accepts", began);
    let appends = sessions.iter().zip(&tokens);
    let ops = appends.map(|(session, token)| append(session, *token, Seq(0), 1)).collect();
    let began = Instant::now();
    pour(desk, ops).await;
    rate("appends", began);
    let pairs = sessions.iter().zip(&tokens);
    let ops = pairs.flat_map(|(session, token)| [accept(session, "m2"), append(session, *token, Seq(1), 2)]);
    let ops = ops.collect();
    let began = Instant::now();
    pour(desk, ops).await;
    rate("accepts with an append each", began);
    let read = |session: &String| Op::Read { key: key(session), after: Seq(0), limit: 10 };
    let ops = sessions.iter().map(read).collect();
    let began = Instant::now();
    pour(desk, ops).await;
    rate("reads", began);
}

/// Returns the mean time of a function call as the server reports it, since the last call of `own_time`.
fn own_time(server: &Redis) -> String {
    let stats: String = server.command(&["INFO", "commandstats"]);
    let _: redis::Value = server.command(&["CONFIG", "RESETSTAT"]);
    let calls = stats.lines().filter(|line| line.starts_with("cmdstat_fcall"));
    let own = calls.filter_map(|line| line.split_once("usec_per_call=")?.1.split(',').next());
    own.collect::<Vec<_>>().join(", ")
}

async fn pour(desk: &mut StoreClient, ops: Vec<Op>) {
    let mut ops = ops.into_iter();
    let mut under_way = 0;
    loop {
        while under_way < ABREAST
            && let Some(op) = ops.next()
        {
            desk.store.submit(op);
            under_way += 1;
        }
        if under_way == 0 {
            return;
        }
        assert!(desk.answer().await.is_ok());
        under_way -= 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_latency_and_throughput_are_measured() {
    let few = size("REDIS_PACE_OPS", 200);
    let many = size("REDIS_PACE_ABREAST", 500);
    for (level, durability, args) in [
        ("mem", Durability::Mem, &[][..]),
        ("fsync", Durability::Fsync, &DISK[..]),
        ("fsync+replica", Durability::FsyncReplica, &DISK[..]),
    ] {
        let dir = tempdir().expect("a directory");
        let server = Redis::start(&dir.path().join("a"), args);
        let replica = (durability == Durability::FsyncReplica).then(|| replica_of(&server, &dir.path().join("b")));
        let mut desk = StoreClient::open(&server.url(), durability).await;
        one_by_one(&mut desk, &server.url(), level, few).await;
        abreast(&mut desk, &server, level, many).await;
        drop(replica);
    }
}
