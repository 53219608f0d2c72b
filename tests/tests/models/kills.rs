//! Nodes that are killed under open streams: no call stays open for ever, neither in a log nor at its upstream.
use crate::cancel::must_be_closed_soon;
use crate::route::Route;
use crate::stage::{RecordedCall, Stage, StoreKind, read_calls};
use crate::world::{flag, model_args};
use std::time::{Duration, Instant};
use tokio::time::interval;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream};
use turnway_tests::real::{PATIENCE, size};

/// Open streams of a run when its node is killed.
const STREAMS: usize = 2;
/// Time after the end of its run at which a call counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// Each round opens a run with streams and kills its node; the run then ends at the restarted one. The size of the test
/// is `MODEL_KILLS`.
///
/// Covers: PR-8, PR-11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_under_open_streams_leave_no_call_open() {
    let rounds = size("MODEL_KILLS", 4);
    let held = Answer::stream().piece(Route::Chat.events()[0].as_bytes()).hang();
    let upstream = ScriptedUpstream::always(held).await;
    let mut stage = Stage::start(StoreKind::Embedded, 1, "", &model_args(&[flag("gpt", &upstream, "")])).await;
    let mut last_end = Instant::now();
    for round in 0..rounds {
        let mut run = stage.open_run(&format!("s{round}")).await;
        let mut callers = Vec::new();
        for _ in 0..STREAMS {
            let caller = run.caller.clone();
            let body = Route::Chat.request("gpt", true);
            callers.push(tokio::spawn(async move { caller.open("POST", Route::Chat.path(), body).await }));
        }
        let mut exchanges = Vec::new();
        for _ in 0..STREAMS {
            exchanges.push(upstream.next().await);
        }
        let killed = Instant::now();
        stage.nodes[0].kill().await;
        for exchange in &exchanges {
            must_be_closed_soon(exchange, killed, "the node was killed").await;
        }
        callers.into_iter().for_each(|caller| caller.abort());
        stage.nodes[0].restart().await;
        stage.continue_run(&mut run).await;
        run.must_complete().await;
        last_end = Instant::now();
    }
    let mut looks = interval(Duration::from_millis(200));
    for round in 0..rounds {
        loop {
            let calls = read_calls(&stage.web(0), &format!("s{round}")).await.unwrap_or_default();
            if calls.len() == STREAMS && calls.iter().all(|call| !call.ended.is_null()) {
                must_be_lost(&calls);
                break;
            }
            assert!(last_end.elapsed() < LOST_AFTER + PATIENCE, "round {round}: {calls:#?}");
            looks.tick().await;
        }
    }
}

fn must_be_lost(calls: &[RecordedCall]) {
    for call in calls {
        assert_eq!((&call.ended["outcome"], &call.ended["attempts"]), (&"lost".into(), &0.into()), "{call:?}");
    }
}
