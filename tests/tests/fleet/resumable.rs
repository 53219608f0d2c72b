//! Answers of a resumable agent: a new owner continues them at the byte.
use crate::view::View;
use crate::{Fleet, LASTING, PIECES, answer, figure_quantiles, piece};
use serde_json::Value;
use std::time::{Duration, Instant};
use turnway_tests::real::{figure, size};

const BEGAN: &str = "RUN_RESTARTED";
const WENT_ON: &str = "RUN_RESUMED";

/// Asserts that a run completed in its first attempt, with its whole text, and was resumed this number of
/// times.
fn assert_resumed(view: &View, run: &str, text: &str, times: usize) {
    let done = view.end(run).expect("it has ended");
    assert_eq!((&done["status"], &done["attempt"]), (&"completed".into(), &1.into()), "{done}");
    assert!(view.answer(run) == answer(text), "another text");
    assert_eq!((view.events(BEGAN), view.events(WENT_ON)), (0, times), "it goes on, and does not begin again");
}

impl Fleet {
    /// Returns the attempt numbers with which a run's agent was invoked.
    fn attempts_at(&self, run: &str) -> Vec<u64> {
        let journal = self.agents.journal();
        journal.iter().filter(|asked| asked.run_id == run).map(|asked| asked.attempt).collect()
    }

    /// Asserts that each resume request came under a newer epoch than those before it.
    fn assert_epochs_increase(&self, run: &str) {
        let journal = self.agents.journal();
        let mut last = journal.iter().find(|asked| asked.run_id == run).expect("it was asked").epoch;
        for again in self.agents.resume_requests().iter().filter(|again| again.run_id == run) {
            assert!(again.epoch > last, "{again:?} after {last}");
            last = again.epoch;
        }
    }
}

/// Covers: G-01, G2, G3, G5, G6, G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_resumes_at_the_byte_after_its_owner_is_killed() {
    let mut fleet = Fleet::start(3).await;
    fleet.settle().await;
    let trials = size("FLEET_LASTING_KILLS", 4);
    let mut taken_over = Vec::new();
    for n in 0..trials {
        let session = format!("s{n}");
        let edge = fleet.nodes.len() - 2;
        let owner = fleet.nodes.len() - 1;
        let (mut asker, mut watcher, run) = fleet.ask_and_watch(&session, (LASTING, "first"), owner, edge).await;
        // In mid-answer with text that was delivered but not recorded, and before any text.
        let said = if n % 2 == 0 { (0..3).map(|n| piece("first", n).len()).sum() } else { 0 };
        fleet.until_asked(&run, 1).await;
        if said > 0 {
            fleet.pace.add_permits(3);
            for view in [&mut watcher, &mut asker] {
                view.until_text(&run, 1, said).await;
            }
        }
        assert_eq!(fleet.owner(&session), fleet.nodes[owner].id);

        fleet.nodes[owner].kill().await;
        let dead = Instant::now();
        // The agent continues although no node reads its answer.
        fleet.pace.add_permits(3);
        watcher.until_text(&run, 1, said + 1).await;
        taken_over.push(dead.elapsed());
        assert!(dead.elapsed() < Duration::from_secs(4), "{:?} until it went on", dead.elapsed());
        fleet.pace.add_permits(PIECES);
        watcher.until_done(&run).await;
        assert_resumed(&watcher, &run, "first", 1);
        // The client of the killed node resumes at another one, from its cursor.
        asker.move_to(fleet.nodes[0].http).await.expect("it connects");
        asker.until_done(&run).await;
        assert_resumed(&asker, &run, "first", 1);
        assert_eq!(asker.facts(), watcher.facts());
        assert_eq!((fleet.attempts_at(&run), fleet.resumed(&run)), (vec![1], 1), "it was invoked once");
        fleet.assert_epochs_increase(&run);
        fleet.replace_last_node().await;
    }
    let name = format!("kill -9 of an owner, until a client elsewhere sees the next byte, {trials} trials, p50 / p99");
    figure_quantiles(&name, &mut taken_over, 0.99);
}

/// Covers: G-02, G1, G3, G6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspended_owner_loses_its_answer_to_another_node() {
    let fleet = Fleet::start(3).await;
    fleet.settle().await;
    let (mut sleeper, mut watcher, run) = fleet.ask_and_watch("s1", (LASTING, "first"), 1, 0).await;
    fleet.pace.add_permits(3);
    watcher.until_text(&run, 1, 1).await;
    fleet.nodes[1].signal("-STOP").await;
    // The rest goes to the suspended node too, which finds it when it wakes.
    fleet.pace.close();
    watcher.until_done(&run).await;
    assert_resumed(&watcher, &run, "first", 1);
    fleet.nodes[1].signal("-CONT").await;
    sleeper.until_done(&run).await;
    assert_resumed(&sleeper, &run, "first", 1);
    fleet.assert_woken_node_serves(1, LASTING, &mut sleeper, &mut watcher).await;
    assert_eq!((fleet.attempts_at(&run), fleet.resumed(&run)), (vec![1], 1));
    fleet.assert_epochs_increase(&run);
}

/// Hands answers over without waiting for their end, so that clients see only a short pause.
///
/// Covers: G-14, G3, G6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_node_hands_over_running_answers() {
    let mut fleet = Fleet::start(3).await;
    fleet.settle().await;
    let (mut asker, mut watcher, run) = fleet.ask_and_watch("s1", (LASTING, "first"), 2, 0).await;
    fleet.pace.add_permits(3);
    for view in [&mut watcher, &mut asker] {
        view.until_text(&run, 1, 1).await;
    }
    let told = Instant::now();
    fleet.nodes[2].signal("-TERM").await;
    watcher.until(|message| message["name"] == WENT_ON).await;
    let over = told.elapsed();
    asker.move_to(fleet.nodes[1].http).await.expect("it connects");
    assert_eq!(fleet.nodes[2].exit().await, Some(0));
    let left = told.elapsed();
    assert!(over < Duration::from_secs(2) && left < Duration::from_secs(10), "{over:?}, {left:?}");
    figure("SIGTERM of an owner, until its answer goes on elsewhere / until it has left", {
        format!("{over:?} / {left:?}")
    });
    fleet.pace.add_permits(PIECES);
    for view in [&mut watcher, &mut asker] {
        view.until_done(&run).await;
        assert_resumed(view, &run, "first", 1);
    }
    assert_eq!(asker.facts(), watcher.facts());
    assert_eq!((fleet.attempts_at(&run), fleet.resumed(&run)), (vec![1], 1));
}

/// Restarts a run that its agent no longer knows if no text was delivered, and otherwise fails it.
///
/// Covers: G3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_unknown_to_its_agent_restarts_only_without_text() {
    let mut fleet = Fleet::start(3).await;
    fleet.settle().await;
    let mut views = Vec::new();
    for said in [true, false] {
        let session = format!("said-{said}");
        let (_asker, mut watcher, run) = fleet.ask_and_watch(&session, (LASTING, "first"), 2, 0).await;
        fleet.until_asked(&run, 1).await;
        if said {
            fleet.pace.add_permits(1);
            watcher.until_text(&run, 1, 1).await;
        }
        views.push((said, run, watcher));
    }
    fleet.agents.forget();
    fleet.nodes[2].kill().await;
    fleet.pace.close();
    for (said, run, mut watcher) in views {
        let done = watcher.until_done(&run).await;
        if said {
            assert_eq!((&done["status"], &done["attempt"]), (&"failed".into(), &1.into()), "{done}");
            let error = watcher.text_of(&run, 1).len() as u64;
            assert_eq!(done["text_bytes"], Value::from(error), "what was said stays");
        } else {
            assert_eq!((&done["status"], &done["attempt"]), (&"completed".into(), &2.into()), "{done}");
            assert!(watcher.answer(&run) == answer("first"));
        }
        let attempts = if said { vec![1] } else { vec![1, 2] };
        assert_eq!((fleet.attempts_at(&run), fleet.resumed(&run)), (attempts, 0));
        assert_eq!((watcher.events(BEGAN), watcher.events(WENT_ON)), (usize::from(!said), 1));
    }
}
