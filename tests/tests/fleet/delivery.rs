//! A session that one node owns, used and watched at other nodes.
use crate::view::View;
use crate::{Fleet, PIECES, answer};
use serde_json::json;
use std::time::{Duration, Instant};
use turnway_core::limits;
use turnway_tests::real::{amount, figure, quantile};

/// Limit for the median of a word's way from the agent to a client: a node gathers text for a fifth of it, and the rest
/// is for a busy machine.
const WORD_WITHIN: Duration = limits::DELTA_WAIT.saturating_mul(5);
/// Limit for the part of it that another node adds (G-09): less than a node would take to gather the text once more.
const ELSEWHERE_LATER: Duration = limits::DELTA_WAIT;

/// Covers: G5, G6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_at_all_nodes_see_the_same_session() {
    let fleet = Fleet::start(3).await;
    let [a, b, c] = [0, 1, 2].map(|n| fleet.nodes[n].http);
    let mut owner = View::open(b, "ann", "s1").await;
    let first = owner.start_turn("r1", "first").await;
    fleet.pace.add_permits(3);
    owner.until_text(&first, 1, 1).await;
    assert_eq!(fleet.owner("s1"), fleet.nodes[1].id);

    // The clients join in the middle of an answer, and one sends another input meanwhile.
    let mut asker = View::open(a, "ann", "s1").await;
    let mut watcher = View::open(c, "ann", "s1").await;
    let second = asker.start_turn("r2", "second").await;
    fleet.pace.add_permits(2 * PIECES);
    for view in [&mut owner, &mut asker, &mut watcher] {
        for (run, text) in [(&first, "first"), (&second, "second")] {
            assert_eq!(view.until_done(run).await["status"], "completed");
            assert_eq!(view.answer(run), answer(text));
        }
    }
    assert_eq!(fleet.owner("s1"), fleet.nodes[1].id, "it was asked elsewhere and run where it was");
    assert_eq!(owner.facts(), asker.facts());
    assert_eq!(owner.facts(), watcher.facts());
    for node in [0, 2] {
        for kind in ["facts", "chunk"] {
            let metric = format!("turnway_bus_words_total{{direction=\"in\",kind=\"{kind}\"}}");
            assert!(fleet.counted(node, &metric).await > 0.0, "{metric}: it came over the bus");
        }
    }
    assert_eq!(fleet.agents.journal().len(), 2, "each was asked of the agent once");
}

/// Covers: SR-C1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turn_is_cancelled_from_a_third_node() {
    let fleet = Fleet::start(3).await;
    let [a, b, c] = [0, 1, 2].map(|n| fleet.nodes[n].http);
    let mut owner = View::open(b, "ann", "s1").await;
    let run = owner.start_turn("r1", "first").await;
    fleet.pace.add_permits(3);
    owner.until_text(&run, 1, 1).await;
    let mut watcher = View::open(a, "ann", "s1").await;
    let mut third = View::open(c, "ann", "s1").await;
    third.wire.say(json!({"type": "cancel_run", "request_id": "c1", "run_id": run})).await.expect("said");
    for view in [&mut owner, &mut watcher, &mut third] {
        assert_eq!(view.until_done(&run).await["status"], "cancelled");
    }
    assert_eq!(owner.facts(), watcher.facts());
    assert_eq!(owner.facts(), third.facts());
}

/// Sends words one after the other: both clients get each word soon, the one at another node hardly later than the one
/// at the owner, and both have every answer whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_reach_local_and_remote_clients_equally_soon() {
    let fleet = Fleet::start(2).await;
    let mut owner = View::open(fleet.nodes[1].http, "ann", "s1").await;
    let mut here = Vec::new();
    let mut elsewhere = Vec::new();
    let answers = amount("FLEET_ANSWERS", 2);
    for n in 0..answers {
        let text = format!("answer {n}");
        let run = owner.start_turn(&format!("r{n}"), &text).await;
        let mut watcher = View::open(fleet.nodes[0].http, "ann", "s1").await;
        let mut bytes = 0;
        for index in 0..PIECES {
            bytes += crate::piece(&text, index).len();
            let since = Instant::now();
            fleet.pace.add_permits(1);
            let mut by_owner = None;
            let mut by_watcher = None;
            while by_owner.is_none() || by_watcher.is_none() {
                tokio::select! {
                    message = owner.next(), if by_owner.is_none() => drop(message.expect("it goes on")),
                    message = watcher.next(), if by_watcher.is_none() => drop(message.expect("it goes on")),
                }
                let all = |view: &View| view.text_of(&run, 1).len() >= bytes;
                by_owner = by_owner.or_else(|| all(&owner).then(|| since.elapsed()));
                by_watcher = by_watcher.or_else(|| all(&watcher).then(|| since.elapsed()));
            }
            here.extend(by_owner);
            elsewhere.extend(by_watcher);
        }
        for view in [&mut owner, &mut watcher] {
            assert_eq!(view.until_done(&run).await["status"], "completed");
            assert_eq!(view.answer(&run), answer(&text));
        }
        assert_eq!(owner.facts(), watcher.facts());
        assert_eq!(fleet.owner("s1"), fleet.nodes[1].id, "it was watched elsewhere and run where it was");
    }
    let halves = [("its owner's", &mut here), ("another node's", &mut elsewhere)].map(|(name, took)| {
        assert_eq!(took.len(), answers * PIECES, "words to {name} client");
        let half = quantile(took, 0.5);
        let most = quantile(took, 0.99);
        figure(&format!("a word from the agent to {name} client, p50 / p99"), format!("{half:?} / {most:?}"));
        half
    });
    assert!(halves.iter().all(|half| *half <= WORD_WITHIN), "{halves:?}");
    assert!(halves[1] <= halves[0] + ELSEWHERE_LATER, "{halves:?}");
}
