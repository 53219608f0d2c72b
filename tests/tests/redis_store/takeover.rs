//! Measures the time until another node has taken over all sessions of a dead node.
use crate::store_client::{StoreClient, accept, holder, key};
use redis::Value;
use std::collections::BTreeSet;
use std::time::Instant;
use tempfile::tempdir;
use turnway::config::Durability;
use turnway::store::Store;
use turnway_core::id::{Epoch, Holder, Nonce, OwnershipSnapshot};
use turnway_core::limits;
use turnway_core::store::{Op, Reply};
use turnway_tests::real::redis::Redis;
use turnway_tests::real::{figure, size};

/// Operations in flight at a time.
const ABREAST: usize = 256;
/// Sessions of one sweep page, as a node requests them; and the number of pages after which all sessions are
/// checked again.
const SWEPT: u32 = limits::SWEEP_SESSIONS_MAX;
const AGAIN: usize = 32;

fn claim(session: &str, holder: Holder, expect: OwnershipSnapshot) -> Op {
    let nonce = Nonce(u128::from(expect.epoch.0) + 7);
    let floor = Epoch(0);
    Op::Claim { key: key(session), holder, nonce, expect, floor }
}

/// All registrations are young, so that none may be removed: the worst case of a sweep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_a_dead_node_are_taken_over_in_few_sweeps() {
    let count = size("REDIS_TAKEOVER_SESSIONS", 1000);
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let dead = holder(1, 1);
    let alive = holder(2, 2);
    let mut first = StoreClient::open(&server.url(), Durability::Mem).await;
    first.era(dead, true).await;
    let claims = (0..count).map(|n| claim(&format!("s{n}"), dead, OwnershipSnapshot::default()));
    first.pour(claims, ABREAST).await;
    first.pour((0..count).map(|n| accept(&format!("s{n}"), "m")), ABREAST).await;
    assert_eq!(first.ask(Op::Retire { holder: dead }).await, Ok(Reply::Done));
    drop(first);

    let mut second = StoreClient::open(&server.url(), Durability::Mem).await;
    second.era(alive, true).await;
    let _: Value = server.command(&["CONFIG", "RESETSTAT"]);
    let began = Instant::now();
    let sweeps = take_all(&mut second, alive, count).await;
    let took = began.elapsed();
    figure(
        &format!("takeover of {count} sessions with open work, ms (sweeps)"),
        format!("{} ({sweeps})", took.as_millis()),
    );
    assert!(sweeps <= count.div_ceil(SWEPT as usize) + 2, "{sweeps} sweeps");
    // One `hmget` for each claim; the rest are checks by the sweep.
    let looks = calls(&server, "hmget") - count;
    figure("looks at sessions in it", looks);
    // Three quarters of a page's claims may be unanswered when the next page is requested; those sessions are looked at again.
    assert!(looks <= count + count * 3 / 4 + sweeps / AGAIN * count, "{looks} looks at {count} sessions");
}

/// Takes over as the gateway does: the next page is requested once a quarter of the last page's claims is answered.
/// Returns the number of pages.
async fn take_all(store: &mut StoreClient, alive: Holder, count: usize) -> usize {
    let mut taken = BTreeSet::new();
    let mut sweeps = 1;
    let mut missing = 0;
    let mut sweeping = true;
    store.store.submit(Op::Sweep { limit: SWEPT });
    while taken.len() < count {
        let reply = store.answer().await.expect("an answer");
        if let Reply::Unowned { sessions } = &reply {
            sweeping = false;
            missing = sessions.len().div_ceil(4);
            for (key, seen) in sessions {
                store.store.submit(claim(key.session.as_str(), alive, *seen));
            }
            assert!(missing > 0 || taken.len() == count, "{} of {count} taken, and no more found", taken.len());
            continue;
        }
        let Reply::Claimed(claimed) = reply else { panic!("{reply:?}") };
        let [(_, input)] = &claimed.inbox.inputs[..] else { panic!("{:?}", claimed.inbox) };
        assert!(taken.insert(input.run_id.clone()), "claimed twice");
        missing = missing.saturating_sub(1);
        if missing == 0 && !sweeping {
            (sweeping, sweeps) = (true, sweeps + 1);
            store.store.submit(Op::Sweep { limit: SWEPT });
        }
    }
    if sweeping {
        store.answer().await.expect("the last sweep's");
    }
    assert_eq!(store.ask(Op::Sweep { limit: SWEPT }).await, Ok(Reply::Unowned { sessions: Vec::new() }));
    sweeps
}

/// Returns the number of calls of a command.
fn calls(server: &Redis, command: &str) -> usize {
    let said: String = server.command(&["INFO", "commandstats"]);
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    let count = line.and_then(|line| line.split(',').next()).and_then(|count| count.parse().ok());
    count.expect("it was performed")
}
