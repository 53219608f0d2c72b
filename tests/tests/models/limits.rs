//! Limits of simultaneous calls.
use crate::caller::Caller;
use crate::route::Route;
use crate::world::{flag, open_node, until_metric, until_quiet, with_gpt};
use tempfile::tempdir;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream};

/// Upstream that answers each call when it is released.
async fn gated() -> ScriptedUpstream {
    ScriptedUpstream::start(|request| {
        let route = Route::of(&request.path);
        Answer::new().gate().then_whole(200, &[("content-type", "application/json")], route.answer())
    })
    .await
}

/// Covers: PR-14.
#[tokio::test]
async fn full_upstream_refuses_calls_until_one_ends() {
    let upstream = gated().await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "calls=2").await;
    let mut open = Vec::new();
    let mut exchanges = Vec::new();
    for _ in 0..2 {
        let caller = caller.clone();
        let body = Route::Chat.request("gpt", false);
        open.push(tokio::spawn(async move { caller.post(Route::Chat.path(), body).await }));
        exchanges.push(upstream.next().await);
    }
    until_metric(&node, "turnway_model_open_calls", "", 2.0).await;
    for (route, stream) in Route::modes() {
        let refused = caller.post(route.path(), route.request("gpt", stream)).await;
        route.must_be(&refused, 429, "model_busy");
        assert_eq!((refused.header("retry-after"), refused.header("x-should-retry")), ("1", "true"));
    }
    assert_eq!(upstream.calls(), 2);
    exchanges.iter().for_each(|exchange| exchange.release());
    for call in open {
        assert_eq!(call.await.expect("an answer").text(), Route::Chat.answer());
    }
    until_quiet(&node).await;
    let body = Route::Chat.request("gpt", false);
    let next = tokio::spawn(async move { caller.post(Route::Chat.path(), body).await });
    upstream.next().await.release();
    assert_eq!(next.await.expect("an answer").status, 200);
    until_quiet(&node).await;
}

/// Covers: PR-14.
#[tokio::test]
async fn full_upstream_leaves_calls_to_another_of_its_name() {
    let one = gated().await;
    let two = gated().await;
    let dir = tempdir().expect("a directory");
    let models = [flag("a", &one, "name=gpt,calls=1"), flag("b", &two, "name=gpt,calls=1")];
    let node = open_node(&dir, &models).await;
    let caller = Caller::new(&node);
    let mut open = Vec::new();
    for _ in 0..2 {
        let caller = caller.clone();
        let body = Route::Chat.request("gpt", false);
        open.push(tokio::spawn(async move { caller.post(Route::Chat.path(), body).await }));
    }
    let exchanges = [one.next().await, two.next().await];
    let refused = caller.post(Route::Chat.path(), Route::Chat.request("gpt", false)).await;
    Route::Chat.must_be(&refused, 429, "model_busy");
    exchanges.iter().for_each(|exchange| exchange.release());
    for call in open {
        assert_eq!(call.await.expect("an answer").status, 200);
    }
    until_quiet(&node).await;
}

/// Covers: PR-8: a caller that leaves gives its place back.
#[tokio::test]
async fn abandoned_call_gives_its_place_back() {
    let upstream = gated().await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "calls=1").await;
    for _ in 0..5 {
        let caller = caller.clone();
        let body = Route::Messages.request("gpt", false);
        let call = tokio::spawn(async move { caller.post(Route::Messages.path(), body).await });
        let exchange = upstream.next().await;
        call.abort();
        drop(call.await);
        exchange.closed().await;
        until_quiet(&node).await;
    }
    assert_eq!(upstream.calls(), 5);
}
