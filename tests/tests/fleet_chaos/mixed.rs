//! A fleet in the middle of an upgrade: one node of an earlier build and two of this one, on one Redis, under the load
//! and the faults of a fleet of one build. `./test mixed` builds the earlier program and starts this test.
use crate::faults::{Faults, Gaps, NODES};
use crate::members::change_members_under_faults;
use crate::takeovers::Build::{self, Earlier, Present};
use crate::takeovers::Takeovers;
use crate::{LoadedFleet, report};
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{interval, timeout};
use turnway_core::rng::Rng;
use turnway_tests::real::node::{Node, earlier_binary};
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::WebSocketClient;
use turnway_tests::real::{PATIENCE, amount, figure, size};

/// Faults are injected in rounds until the time is over; a round takes about fifteen seconds.
const ROUND: Faults = Faults { seed: 0, kills: 5, stops: 2, redis: 1, patience: PATIENCE.saturating_mul(4) };

const TWO_BUILDS: [Build; NODES] = [Earlier, Present, Present];

/// The ways in which a session goes to a node of the other build.
const DIRECTIONS: [(Build, Build); 2] = [(Earlier, Present), (Present, Earlier)];

/// Fails the test unless each build took over sessions of the other.
fn must_be_in_both_directions(takeovers: &Takeovers) {
    for (from, by) in DIRECTIONS {
        let count = takeovers.count(from, by);
        assert!(count > 0, "no session of a killed node was taken over, from {from:?} by {by:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_of_two_builds_loses_no_turn() {
    let seed = size("FLEET_MIXED_SEED", 1) as u64;
    let duration = Duration::from_secs(amount("FLEET_MIXED_SECONDS", 120) as u64);
    let mut loaded = LoadedFleet::start(None, TWO_BUILDS, seed, ROUND.patience).await;
    let mut rng = Rng::from_number(seed);
    let mut gaps = Gaps::default();
    let mut total = Faults { seed, kills: 0, stops: 0, redis: 0, ..ROUND };
    while loaded.began.elapsed() < duration && !loaded.stage.is_over() {
        gaps.append(loaded.inject(&mut rng, &ROUND).await);
        total.kills += ROUND.kills;
        total.stops += ROUND.stops;
        total.redis += ROUND.redis;
    }
    let mut told = loaded.finish(gaps).await;
    report(&mut told, seed);
    told.must_be_sound(&total);
    must_be_in_both_directions(&told.takeovers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_of_two_builds_completes_member_changes() {
    let blows = Faults { seed: size("FLEET_MIXED_SEED", 1) as u64, kills: 9, ..ROUND };
    let are_enough = |seen: &Takeovers| DIRECTIONS.iter().all(|(from, by)| seen.count(*from, *by) > 0);
    let takeovers = change_members_under_faults(TWO_BUILDS, &blows, are_enough).await;
    figure("takeovers after a kill, by build", &takeovers);
    must_be_in_both_directions(&takeovers);
}

async fn label(wire: &mut WebSocketClient, id: &str) -> Value {
    let message = json!({"type": "session_label", "session_id": "s1", "label": "blue"});
    wire.ask(id, message).await.expect("an answer")
}

/// A fact that the earlier build does not know is written once no node of that build lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fact_of_a_later_build_waits_for_the_last_earlier_node() {
    let dirs = [(); 3].map(|()| tempdir().expect("a directory"));
    let redis = Redis::start(dirs[0].path(), &[]);
    let args = ["--demo", "--durability", "mem"];
    let mut earlier = Node::start_program_on(earlier_binary(), &redis.url(), dirs[1].path(), &args).await;
    let node = Node::start_on(&redis.url(), dirs[2].path(), &args).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    ann.turn("s1", "echo", "m1", "hello").await.expect("a turn");
    let refused = label(&mut ann, "l1").await;
    assert_eq!(
        (&refused["code"], &refused["retry_after_ms"]),
        (&json!("fleet_upgrading"), &json!(10_000)),
        "{refused}"
    );
    let mut there = WebSocketClient::hello(earlier.http, "ann", vec![]).await.expect("welcome");
    there.turn("s1", "echo", "m2", "hello").await.expect("a turn by the earlier node");
    earlier.kill().await;
    let mut again = interval(Duration::from_millis(250));
    let labelled = async {
        loop {
            again.tick().await;
            let answer = label(&mut ann, "l2").await;
            // Ann follows the session, so the fact may be shown before the answer.
            if answer["type"] == "session_labelled" || answer["name"] == "SESSION_LABELLED" {
                return;
            }
            assert_eq!(answer["code"], "fleet_upgrading", "{answer}");
        }
    };
    timeout(PATIENCE.saturating_mul(2), labelled).await.expect("the only node left knows the fact");
}
