//! Owners that die, and owners that only seem to.
use crate::view::View;
use crate::{Fleet, PIECES, answer};
use serde_json::Value;
use std::time::{Duration, Instant};
use turnway_tests::real::{figure, quantile, size};

fn restarted(message: &Value) -> bool {
    message["name"] == "RUN_RESTARTED"
}

/// What shows a client that somebody has taken over: the restart, a piece of the new attempt, or the end.
fn goes_on(message: &Value) -> bool {
    restarted(message) || message["type"] == "done" || (message["type"] == "delta" && message["attempt"] == 2)
}

/// Covers: G-01, G3, G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_an_owner_costs_a_moment() {
    let mut fleet = Fleet::start(3).await;
    // The ones that stay: who has just come believes in no death yet.
    fleet.settle().await;
    let trials = size("FLEET_KILLS", 4);
    let mut taken_over = Vec::new();
    for n in 0..trials {
        let session = format!("s{n}");
        let (edge, owner) = (fleet.nodes.len() - 2, fleet.nodes.len() - 1);
        let mut asker = View::open(fleet.nodes[owner].http, "ann", &session).await;
        let run = asker.ask("r1", "first").await;
        let mut watcher = View::open(fleet.nodes[edge].http, "ann", &session).await;
        // In mid-answer, and before anything of it was said.
        if n % 2 == 0 {
            fleet.pace.add_permits(3);
            watcher.until_said(&run, 1, 1).await;
        } else {
            fleet.until_asked(&run, 1).await;
        }
        assert_eq!(fleet.owner(&session), fleet.nodes[owner].id);

        fleet.nodes[owner].kill().await;
        let dead = Instant::now();
        watcher.until(goes_on).await;
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
    let (half, most) = (quantile(&mut taken_over, 0.5), quantile(&mut taken_over, 0.99));
    figure(
        &format!(
            "kill -9 of an owner, until a client elsewhere sees its turn go on, {trials} trials, p50 / p99"
        ),
        format!("{half:?} / {most:?}"),
    );
    // Of few trials nothing follows.
    let quick = half <= Duration::from_millis(700) && most <= Duration::from_millis(1200);
    assert!(trials < 40 || quick, "{half:?} at the median, {most:?} at most");
}

/// Covers: G-02, G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_sleeps_is_replaced_within_four_seconds() {
    let fleet = Fleet::start(3).await;
    fleet.settle().await;
    let trials = size("FLEET_SLEEPS", 1);
    let mut taken_over = Vec::new();
    for n in 0..trials {
        let session = format!("s{n}");
        let mut asker = View::open(fleet.nodes[2].http, "ann", &session).await;
        let run = asker.ask("r1", "paced, and asleep").await;
        let mut watcher = View::open(fleet.nodes[1].http, "ann", &session).await;
        watcher.until_said(&run, 1, 1).await;
        fleet.nodes[2].signal("-STOP").await;
        let asleep = Instant::now();
        watcher.until(goes_on).await;
        taken_over.push(asleep.elapsed());
        fleet.nodes[2].signal("-CONT").await;
        for view in [&mut watcher, &mut asker] {
            assert_eq!(view.until_done(&run).await["status"], "completed");
            assert_eq!(view.answer(&run), answer("paced, and asleep"));
        }
        assert_eq!(asker.facts(), watcher.facts());
    }
    let (half, most) = (quantile(&mut taken_over, 0.5), quantile(&mut taken_over, 0.99));
    figure(
        &format!(
            "SIGSTOP of an owner, until a client elsewhere sees its turn go on, {trials} trials, p50 / p99"
        ),
        format!("{half:?} / {most:?}"),
    );
    assert!(most <= Duration::from_secs(4), "{half:?} at the median, {most:?} at most");
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
