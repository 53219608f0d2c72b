//! Revocation of a key while the store answers slowly.
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{Instant, timeout};
use turnway_tests::real::identity::{Key, pepper};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::slow::Slow;
use turnway_tests::real::wire::ConnectionEnd;
use turnway_tests::real::{PATIENCE, figure};

/// Maximum time until a revoked key gives no access any more (S-01).
const REVOKED_WITHIN: Duration = Duration::from_secs(5);
/// Delay of every answer of the store; an answer after 2 s would count as missing.
const SLOW: Duration = Duration::from_millis(1800);

/// Covers: S-01, S-08.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revocation_is_enforced_with_a_slow_store() {
    let dirs = [tempdir(), tempdir(), tempdir()].map(|dir| dir.expect("a directory"));
    let redis = Redis::start(&dirs[0].path().join("redis"), &[]);
    let slow = Slow::to(redis.port).await;
    let pepper = pepper(dirs[0].path()).display().to_string();
    let flags = ["--demo", "--durability", "mem", "--auth", "keys", "--auth-pepper", &pepper];
    let one = Node::start_on(&redis.url(), dirs[1].path(), &flags).await;
    let url = format!("redis://127.0.0.1:{}", slow.port);
    let two = Node::start_on(&url, dirs[2].path(), &flags).await;
    let mut times = Vec::new();
    for _ in 0..3 {
        slow.delay(Duration::ZERO);
        let key = Key::make(&one, &["--user", "ann"]).await;
        let known = async {
            loop {
                if let Ok(wire) = key.hello(two.http, None).await {
                    break wire;
                }
            }
        };
        let mut idle = timeout(PATIENCE, known).await.expect("known everywhere");
        slow.delay(SLOW);
        key.revoke(&one).await;
        let revoked = Instant::now();
        assert_eq!(idle.until(|_| false).await, Err(ConnectionEnd::Closed(4401)));
        times.push(revoked.elapsed());
    }
    let slowest = times.iter().max().expect("three");
    let name = "a key taken back, until what it opened is closed elsewhere, answers of the store taking 1.8 s";
    figure(name, format!("{times:?}"));
    assert!(*slowest < REVOKED_WITHIN, "{slowest:?}");
}
