//! How long it takes until somebody else has all that a dead node had.
use crate::desk::{Desk, accept, holder, key};
use std::time::{Duration, Instant};
use tempfile::tempdir;
use turnway::config::Durability;
use turnway::store::Store;
use turnway_core::id::{Epoch, Holder, Nonce, Seen};
use turnway_core::store::{Op, Reply};
use turnway_tests::real::redis::Redis;
use turnway_tests::real::{figure, size};

/// Ops on their way at a time.
const ABREAST: usize = 256;
/// Sessions of one sweep.
const SWEPT: u32 = 256;

fn claim(session: &str, holder: Holder, expect: Seen) -> Op {
    let (nonce, floor) = (Nonce(u128::from(expect.epoch.0) + 7), Epoch(0));
    Op::Claim { key: key(session), holder, nonce, expect, floor }
}

async fn pour(desk: &mut Desk, ops: impl Iterator<Item = Op>) -> Vec<Reply> {
    let (mut ops, mut under_way, mut replies) = (ops, 0, Vec::new());
    loop {
        while under_way < ABREAST
            && let Some(op) = ops.next()
        {
            desk.store.submit(op);
            under_way += 1;
        }
        if under_way == 0 {
            return replies;
        }
        replies.push(desk.answer().await.expect("an answer"));
        under_way -= 1;
    }
}

/// All of it is young, so that no registration may be cleared away: the worst case of a sweep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_node_had_is_soon_somebody_elses() {
    let count = size("REDIS_TAKEOVER_SESSIONS", 1000);
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let (dead, alive) = (holder(1, 1), holder(2, 2));
    let mut first = Desk::open(&server.url(), Durability::Mem).await;
    first.era(dead, true).await;
    let claims = (0..count).map(|n| claim(&format!("s{n}"), dead, Seen::default()));
    pour(&mut first, claims).await;
    pour(&mut first, (0..count).map(|n| accept(&format!("s{n}"), "m"))).await;
    assert_eq!(first.ask(Op::Retire { holder: dead }).await, Ok(Reply::Done));
    drop(first);

    let mut second = Desk::open(&server.url(), Durability::Mem).await;
    second.era(alive, true).await;
    let (began, mut taken, mut sweeps, mut swept) = (Instant::now(), 0, 0, Duration::ZERO);
    loop {
        let sweep = Instant::now();
        let reply = second.ask(Op::Sweep { limit: SWEPT }).await;
        swept += sweep.elapsed();
        let Ok(Reply::Work { sessions }) = reply else { panic!("{reply:?}") };
        if sessions.is_empty() {
            break;
        }
        sweeps += 1;
        let claims = sessions.iter().map(|(key, seen)| claim(key.session.as_str(), alive, *seen));
        for reply in pour(&mut second, claims).await {
            let Reply::Claimed(claimed) = reply else { panic!("{reply:?}") };
            assert_eq!(claimed.inbox.inputs.len(), 1);
            taken += 1;
        }
    }
    let took = began.elapsed();
    assert_eq!(taken, count);
    figure(
        &format!("takeover of {count} sessions with open work, ms (of it {sweeps} sweeps, ms)"),
        format!("{} ({})", took.as_millis(), swept.as_millis()),
    );
    assert!(sweeps <= count.div_ceil(SWEPT as usize) + 2, "{sweeps} sweeps");
}
