//! Owners that die, and owners that only seem to.
use crate::view::View;
use crate::{Fleet, PIECES, answer};
use serde_json::Value;
use std::time::{Duration, Instant};
use turnway_tests::real::{figure, quantile, size};

fn restarted(message: &Value) -> bool {
    message["name"] == "RUN_RESTARTED"
}

/// Covers: G-01, G3, G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_an_owner_in_mid_answer_costs_a_moment() {
    let mut fleet = Fleet::start(3).await;
    let mut taken_over = Vec::new();
    for n in 0..size("FLEET_KILLS", 2) {
        fleet.settle().await;
        let session = format!("s{n}");
        let (edge, owner) = (fleet.nodes.len() - 2, fleet.nodes.len() - 1);
        let mut asker = View::open(fleet.nodes[owner].http, "ann", &session).await;
        let run = asker.ask("r1", "first").await;
        let mut watcher = View::open(fleet.nodes[edge].http, "ann", &session).await;
        fleet.pace.add_permits(3);
        watcher.until_said(&run, 1, 1).await;
        assert_eq!(fleet.owner(&session), fleet.nodes[owner].id);

        let dead = Instant::now();
        fleet.nodes[owner].kill().await;
        watcher.until(restarted).await;
        taken_over.push(dead.elapsed());
        assert!(dead.elapsed() < Duration::from_secs(4), "{:?} until somebody took over", dead.elapsed());
        fleet.pace.add_permits(2 * PIECES);
        assert_eq!(watcher.until_done(&run).await["status"], "completed");
        assert_eq!(watcher.answer(&run), answer("first"));
        // Who was connected to the dead one finds the same elsewhere.
        asker.move_to(fleet.nodes[0].http).await.expect("it connects");
        asker.until_done(&run).await;
        assert_eq!((asker.answer(&run), asker.facts()), (watcher.answer(&run), watcher.facts()));
        fleet.nodes.pop();
        fleet.pace.forget_permits(usize::MAX);
        fleet.join().await;
    }
    let (half, most) = (quantile(&mut taken_over, 0.5), quantile(&mut taken_over, 1.0));
    figure(
        "kill -9 of an owner in mid-answer, until a client elsewhere sees the run restarted, p50 / max",
        format!("{half:?} / {most:?}"),
    );
}

/// Covers: G-02, G-05, G1, G3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_slept_longer_than_its_lease_ends_nothing() {
    let fleet = Fleet::start(3).await;
    fleet.settle().await;
    let mut sleeper = View::open(fleet.nodes[1].http, "ann", "s1").await;
    let run = sleeper.ask("r1", "first").await;
    let mut watcher = View::open(fleet.nodes[0].http, "ann", "s1").await;
    fleet.pace.add_permits(3);
    watcher.until_said(&run, 1, 1).await;
    assert_eq!(fleet.owner("s1"), fleet.nodes[1].id);

    let asleep = Instant::now();
    fleet.nodes[1].signal("-STOP").await;
    // What is left of the answer goes to the sleeper too, who finds it when it wakes.
    fleet.pace.close();
    watcher.until(restarted).await;
    figure(
        "SIGSTOP of an owner, until a client elsewhere sees the run restarted",
        format!("{:?}", asleep.elapsed()),
    );
    assert_eq!(watcher.until_done(&run).await["status"], "completed");
    assert_eq!(watcher.answer(&run), answer("first"));

    fleet.nodes[1].signal("-CONT").await;
    // It sees that it was replaced: its clock says so, or the fence does.
    assert_eq!(sleeper.until_done(&run).await["attempt"], 2);
    assert_eq!(sleeper.answer(&run), answer("first"));
    fleet.until_counted(1, "turnway_ownership_leases_lost_total", 0.0).await;
    let next = sleeper.ask("r2", "second").await;
    for view in [&mut sleeper, &mut watcher] {
        assert_eq!(view.until_done(&next).await["status"], "completed");
    }
    // The views count the ends of each run, and there is one.
    assert_eq!(sleeper.facts(), watcher.facts());
    assert_eq!(fleet.agents.journal().iter().filter(|asked| asked.run_id == run).count(), 2);
}
