//! Callers that leave: their upstream connection is closed, whatever the call waits for.
use crate::caller::Caller;
use crate::route::Route;
use crate::world::{CLOSED_WITHIN, flag, metric, open_node, until_metric, until_quiet};
use std::time::Instant;
use tempfile::tempdir;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::upstream::{Answer, Exchange, ScriptedUpstream};

/// Moment of a call at which its caller leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    BeforeHead,
    BeforeToken,
    Midway,
}

const MOMENTS: [Moment; 3] = [Moment::BeforeHead, Moment::BeforeToken, Moment::Midway];

/// Returns an answer that hangs at this moment.
fn hanging(route: Route, stream: bool, moment: Moment) -> Answer {
    match moment {
        Moment::BeforeHead => Answer::new().hang(),
        Moment::BeforeToken if stream => Answer::stream().hang(),
        Moment::Midway if stream => Answer::stream().piece(route.events()[0].as_bytes()).hang(),
        Moment::BeforeToken => Answer::new().head(200, &[("content-type", "application/json")]).hang(),
        Moment::Midway => Answer::new()
            .head(200, &[("content-type", "application/json")])
            .piece(&route.answer().as_bytes()[..20])
            .hang(),
    }
}

/// Asserts that the upstream saw the end of its connection soon after `left`.
pub(crate) async fn must_be_closed_soon(exchange: &Exchange, left: Instant, what: &str) {
    let took = exchange.closed().await.saturating_duration_since(left);
    assert!(took < CLOSED_WITHIN, "{what}: {took:?}");
}

/// Covers: PR-8.
#[tokio::test]
async fn caller_that_leaves_closes_the_upstream_connection() {
    let dir = tempdir().expect("a directory");
    let upstream = ScriptedUpstream::start(|request| {
        let asked = request.json();
        let name = asked["model"].as_str().expect("a name").to_owned();
        let moment = MOMENTS.into_iter().find(|moment| format!("{moment:?}") == name).expect("a moment");
        hanging(Route::of(&request.path), asked["stream"] == true, moment)
    })
    .await;
    let node = open_node(&dir, &MOMENTS.map(|moment| flag(&format!("{moment:?}"), &upstream, ""))).await;
    let caller = Caller::new(&node);
    for (route, stream) in Route::modes() {
        for moment in MOMENTS {
            let what = format!("{route:?} {stream} {moment:?}");
            let body = route.request(&format!("{moment:?}"), stream);
            let call = caller.clone();
            let waiting = tokio::spawn(async move { call.open("POST", route.path(), body).await });
            let exchange = upstream.next().await;
            assert!(!exchange.is_closed(), "{what}");
            let left = if moment == Moment::Midway {
                let mut open = timeout(PATIENCE, waiting).await.expect("a head in time").expect("a head");
                open.until(|read| !read.is_empty()).await;
                let left = Instant::now();
                drop(open);
                left
            } else {
                // The gateway may or may not have passed on a head by now.
                let left = Instant::now();
                waiting.abort();
                drop(waiting.await);
                left
            };
            must_be_closed_soon(&exchange, left, &what).await;
        }
    }
    until_quiet(&node).await;
    let calls = Route::modes().len() * MOMENTS.len();
    assert_eq!(upstream.calls(), calls, "a cancelled call is not retried");
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let calls = calls as f64;
    until_metric(&node, "turnway_model_calls_total", "outcome=\"cancelled\"", calls).await;
}

/// Covers: PR-8: the other callers of an upstream go on.
#[tokio::test]
async fn caller_that_leaves_does_not_disturb_another() {
    let [first, rest @ ..] = Route::Chat.events() else { panic!("there are events") };
    let answer = Answer::stream().piece(first.as_bytes()).gate().piece(rest.concat().as_bytes()).end();
    let upstream = ScriptedUpstream::always(answer).await;
    let dir = tempdir().expect("a directory");
    let node = open_node(&dir, &[flag("gpt", &upstream, "")]).await;
    let caller = Caller::new(&node);
    let body = Route::Chat.request("gpt", true);
    let mut stays = caller.open("POST", Route::Chat.path(), body.clone()).await;
    let kept = upstream.next().await;
    let mut leaves = caller.open("POST", Route::Chat.path(), body).await;
    let lost = upstream.next().await;
    stays.until_exactly(first.as_bytes()).await;
    leaves.until_exactly(first.as_bytes()).await;
    let left = Instant::now();
    drop(leaves);
    must_be_closed_soon(&lost, left, "a stream").await;
    assert!(!kept.is_closed());
    kept.release();
    assert_eq!(stays.rest().await.body, Route::Chat.stream_bytes());
    until_quiet(&node).await;
}

/// Covers: PR-8: a caller that leaves while an answer with `Retry-After` is waited for.
#[tokio::test]
async fn caller_that_leaves_during_a_wait_ends_the_call() {
    let busy = Answer::whole(429, &[("content-type", "application/json"), ("retry-after", "9")], "{}");
    let upstream = ScriptedUpstream::always(busy).await;
    let dir = tempdir().expect("a directory");
    let node = open_node(&dir, &[flag("gpt", &upstream, "")]).await;
    let caller = Caller::new(&node);
    let waiting =
        tokio::spawn(async move { caller.open("POST", Route::Chat.path(), Route::Chat.request("gpt", false)).await });
    upstream.next().await;
    waiting.abort();
    drop(waiting.await);
    let left = Instant::now();
    until_quiet(&node).await;
    assert!(left.elapsed() < CLOSED_WITHIN * 2, "{:?}", left.elapsed());
    assert_eq!(upstream.calls(), 1);
    assert!(metric(&node, "turnway_model_calls_total", "outcome=\"cancelled\"").await > 0.5);
}
