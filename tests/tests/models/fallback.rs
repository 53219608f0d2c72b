//! The choice of the upstream: retries, fallbacks, weights and the breaker.
use crate::caller::Caller;
use crate::route::Route;
use crate::world::{flag, open_node, until_metric, until_quiet, with_gpt};
use futures_util::future::join_all;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream, unreachable_url};

/// Upstream that answers each route, streamed or whole.
async fn good() -> ScriptedUpstream {
    ScriptedUpstream::start(|request| Route::of(&request.path).script(request.json()["stream"] == true)).await
}

/// An error event as the first event of a stream, in the format of a route.
fn first_error(route: Route) -> &'static str {
    match route {
        Route::Chat | Route::Embeddings => {
            "data: {\"error\":{\"message\":\"overloaded\",\"type\":\"server_error\",\"code\":503}}\n\n"
        }
        Route::Responses => {
            "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"overloaded\",\"param\":null,\
             \"sequence_number\":0}\n\n"
        }
        Route::Messages => {
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"overloaded\"}}\n\n"
        }
    }
}

/// Covers: PR-7.
#[tokio::test]
async fn refused_call_is_answered_by_the_fallback() {
    for status in [429, 502, 503, 529] {
        let dir = tempdir().expect("a directory");
        let busy = ScriptedUpstream::always(Answer::json(status, "{\"error\":{}}")).await;
        let good = good().await;
        let node = open_node(&dir, &[flag("gpt", &busy, "fallback=spare"), flag("spare", &good, "")]).await;
        for (route, stream) in [(Route::Chat, true), (Route::Messages, false), (Route::Responses, true)] {
            let answer = Caller::new(&node).post(route.path(), route.request("gpt", stream)).await;
            assert_eq!((answer.status, answer.body), (200, route.script_bytes(stream)), "{status} {route:?}");
        }
        assert_eq!((busy.calls(), good.calls()), (3, 3), "{status}");
        until_metric(&node, "turnway_model_attempts_total", "outcome=\"retryable\"", 3.0).await;
        until_metric(&node, "turnway_model_attempts_total", "outcome=\"answered\"", 3.0).await;
        until_metric(&node, "turnway_model_calls_total", "outcome=\"complete\"", 3.0).await;
        until_quiet(&node).await;
    }
}

/// Covers: PR-7.
#[tokio::test]
async fn unreachable_upstream_is_replaced_by_the_fallback() {
    let dir = tempdir().expect("a directory");
    let good = good().await;
    let gone = format!("gpt={},fallback=none|spare", unreachable_url().await);
    let none = format!("none={}", unreachable_url().await);
    let node = open_node(&dir, &[gone, none, flag("spare", &good, "upstream_model=other")]).await;
    for route in Route::ALL {
        let answer = Caller::new(&node).post(route.path(), route.request("gpt", false)).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, route.answer()));
        assert_eq!(good.next().await.request.json()["model"], "other");
    }
    until_metric(&node, "turnway_model_attempts_total", "outcome=\"unreachable\"", 8.0).await;
    // Without any upstream left the caller may try again.
    let answer = Caller::new(&node).post(Route::Chat.path(), Route::Chat.request("none", false)).await;
    Route::Chat.must_be(&answer, 503, "upstream_unavailable");
    assert_eq!(answer.header("x-should-retry"), "true");
    assert!(answer.header("retry-after").parse::<u64>().is_ok(), "{answer:?}");
    until_quiet(&node).await;
}

/// Covers: PR-7: a fallback gets the bytes of the caller, with its own model name.
#[tokio::test]
async fn fallback_without_a_name_of_its_own_gets_the_same_bytes() {
    let dir = tempdir().expect("a directory");
    let busy = ScriptedUpstream::always(Answer::json(503, "{}")).await;
    let good = good().await;
    let models = [flag("gpt", &busy, "upstream_model=one,fallback=spare"), flag("spare", &good, "upstream_model=two")];
    let node = open_node(&dir, &models).await;
    let body = Route::Messages.request("gpt", false);
    assert_eq!(Caller::new(&node).post(Route::Messages.path(), body.clone()).await.status, 200);
    for (upstream, name) in [(&busy, "one"), (&good, "two")] {
        let expected = body.replace("\"gpt\"", &format!("\"{name}\""));
        assert_eq!(String::from_utf8_lossy(&upstream.only_request().body), expected);
    }
}

/// Covers: PR-7.
#[tokio::test]
async fn stream_that_begins_with_an_error_is_asked_elsewhere() {
    let dir = tempdir().expect("a directory");
    let failing = ScriptedUpstream::start(|request| {
        let error = first_error(Route::of(&request.path));
        Answer::stream().piece(b": connected\n\n").piece(error.as_bytes()).end()
    })
    .await;
    let good = good().await;
    let node = open_node(&dir, &[flag("gpt", &failing, "fallback=spare"), flag("spare", &good, "")]).await;
    for route in Route::STREAMED {
        let answer = Caller::new(&node).post(route.path(), route.request("gpt", true)).await;
        assert_eq!((answer.status, answer.text()), (200, route.events().concat()), "{route:?}");
    }
    assert_eq!((failing.calls(), good.calls()), (3, 3));
    until_quiet(&node).await;
}

/// Covers: PR-7: after the first byte an error is the caller's to see.
#[tokio::test]
async fn error_after_the_first_event_is_passed_on() {
    let dir = tempdir().expect("a directory");
    let failing = ScriptedUpstream::start(|request| {
        let route = Route::of(&request.path);
        Answer::events([route.events()[0], first_error(route)].map(str::as_bytes))
    })
    .await;
    let good = good().await;
    let node = open_node(&dir, &[flag("gpt", &failing, "fallback=spare"), flag("spare", &good, "")]).await;
    for route in Route::STREAMED {
        let answer = Caller::new(&node).post(route.path(), route.request("gpt", true)).await;
        let sent = [route.events()[0], first_error(route)].concat();
        assert!(answer.text().starts_with(&sent), "{route:?}: {}", answer.text());
        assert!(!answer.text().contains("[DONE]"), "{route:?}: {}", answer.text());
    }
    assert_eq!((failing.calls(), good.calls()), (3, 0));
    until_quiet(&node).await;
}

/// Covers: PR-7.
#[tokio::test]
async fn other_statuses_are_not_asked_elsewhere() {
    let dir = tempdir().expect("a directory");
    let good = good().await;
    let mut upstreams = Vec::new();
    let mut models = vec![flag("spare", &good, "")];
    for status in [400, 404, 408, 409, 422, 500, 501, 504] {
        let upstream = ScriptedUpstream::always(Answer::json(status, "{\"error\":{\"message\":\"no\"}}")).await;
        models.push(flag(&format!("gpt-{status}"), &upstream, "fallback=spare"));
        upstreams.push((status, upstream));
    }
    let node = open_node(&dir, &models).await;
    for (status, upstream) in &upstreams {
        let body = Route::Chat.request(&format!("gpt-{status}"), false);
        let answer = Caller::new(&node).post(Route::Chat.path(), body).await;
        assert_eq!((answer.status, answer.text().as_str()), (*status, "{\"error\":{\"message\":\"no\"}}"));
        assert_eq!(upstream.calls(), 1);
    }
    assert_eq!(good.calls(), 0);
    until_quiet(&node).await;
}

/// Covers: PR-7.
#[tokio::test]
async fn late_head_is_a_timeout_and_not_retried() {
    let dir = tempdir().expect("a directory");
    let silent = ScriptedUpstream::always(Answer::new().hang()).await;
    let good = good().await;
    let models = [flag("gpt", &silent, "first_byte=300ms,fallback=spare"), flag("spare", &good, "")];
    let node = open_node(&dir, &models).await;
    for (route, stream) in [(Route::Chat, true), (Route::Messages, false)] {
        let asked = Instant::now();
        let answer = Caller::new(&node).post(route.path(), route.request("gpt", stream)).await;
        route.must_be(&answer, 504, "upstream_timeout");
        assert_eq!(answer.header("x-should-retry"), "false");
        assert!(asked.elapsed() >= Duration::from_millis(300), "{:?}", asked.elapsed());
        silent.next().await.closed().await;
    }
    assert_eq!((silent.calls(), good.calls()), (2, 0));
    until_metric(&node, "turnway_model_attempts_total", "outcome=\"timeout\"", 2.0).await;
    until_metric(&node, "turnway_model_calls_total", "outcome=\"timeout\"", 2.0).await;
    until_quiet(&node).await;
}

/// Covers: PR-5, PR-7.
#[tokio::test]
async fn silent_or_endless_stream_ends_with_a_timeout_event() {
    let dir = tempdir().expect("a directory");
    let silent = ScriptedUpstream::start(|request| {
        Answer::stream().piece(Route::of(&request.path).events()[0].as_bytes()).hang()
    })
    .await;
    let models = [flag("quiet", &silent, "silence=300ms"), flag("long", &silent, "total=300ms")];
    let node = open_node(&dir, &models).await;
    for route in Route::STREAMED {
        for name in ["quiet", "long"] {
            let answer = Caller::new(&node).post(route.path(), route.request(name, true)).await;
            let sent = route.events()[0];
            assert!(answer.text().starts_with(sent), "{route:?} {name}: {}", answer.text());
            route.must_be_error_event(&answer.body[sent.len()..], "upstream_timeout");
            silent.next().await.closed().await;
        }
    }
    until_metric(&node, "turnway_model_calls_total", "outcome=\"timeout\"", 6.0).await;
    until_quiet(&node).await;
}

/// Covers: PR-7.
#[tokio::test]
async fn short_retry_after_is_waited_for_once() {
    let dir = tempdir().expect("a directory");
    let busy = || Answer::whole(429, &[("content-type", "application/json"), ("retry-after", "1")], "{\"n\":1}");
    let upstream = ScriptedUpstream::in_order(vec![busy(), Answer::json(200, Route::Chat.answer()), busy()]).await;
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    let asked = Instant::now();
    let answer = caller.post(Route::Chat.path(), Route::Chat.request("gpt", false)).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, Route::Chat.answer()));
    assert!(asked.elapsed() >= Duration::from_secs(1), "{:?}", asked.elapsed());
    assert_eq!(upstream.calls(), 2);
    let answer = caller.post(Route::Chat.path(), Route::Chat.request("gpt", false)).await;
    assert_eq!((answer.status, answer.text().as_str(), answer.header("retry-after")), (429, "{\"n\":1}", "1"));
    assert_eq!(upstream.calls(), 4, "once more, and then the answer is passed on");
    until_quiet(&node).await;
}

/// Covers: PR-7.
#[tokio::test]
async fn long_retry_after_is_passed_on_at_once() {
    let dir = tempdir().expect("a directory");
    let fields = [("content-type", "application/json"), ("retry-after", "11"), ("x-should-retry", "true")];
    let upstream = ScriptedUpstream::always(Answer::whole(429, &fields, "{ \"error\":{} }")).await;
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    for route in Route::ALL {
        let answer = caller.post(route.path(), route.request("gpt", false)).await;
        assert_eq!((answer.status, answer.text().as_str()), (429, "{ \"error\":{} }"));
        assert_eq!((answer.header("retry-after"), answer.header("x-should-retry")), ("11", "true"));
    }
    assert_eq!(upstream.calls(), 4);
    until_quiet(&node).await;
}

/// Covers: PR-7.
#[tokio::test]
async fn call_makes_at_most_four_requests() {
    let dir = tempdir().expect("a directory");
    let busy = ScriptedUpstream::always(Answer::json(503, "{\"last\":true}")).await;
    let names = ["b", "c", "d", "e", "f"];
    let mut models: Vec<String> = names.iter().map(|name| flag(name, &busy, "")).collect();
    models.push(flag("gpt", &busy, &format!("fallback={}", names.join("|"))));
    let node = open_node(&dir, &models).await;
    let answer = Caller::new(&node).post(Route::Chat.path(), Route::Chat.request("gpt", false)).await;
    assert_eq!((answer.status, answer.text().as_str()), (503, "{\"last\":true}"));
    assert_eq!(busy.calls(), 4);
    until_quiet(&node).await;
}

/// Covers: PR-7: several upstreams of one name share its calls; weight 0 waits for the failure of the others.
#[tokio::test]
async fn upstreams_of_one_name_share_calls_by_weight() {
    let dir = tempdir().expect("a directory");
    let willing = || {
        ScriptedUpstream::start(|request| {
            if request.json()["fail"] == true {
                Answer::json(503, "{}")
            } else {
                Answer::json(200, Route::Chat.answer())
            }
        })
    };
    let one = willing().await;
    let two = willing().await;
    let last = good().await;
    let models = [
        flag("a", &one, "name=gpt,weight=1"),
        flag("b", &two, "name=gpt,weight=3"),
        flag("c", &last, "name=gpt,weight=0"),
    ];
    let node = open_node(&dir, &models).await;
    let caller = &Caller::new(&node);
    let calls = (0..80).map(|_| caller.post(Route::Chat.path(), Route::Chat.request("gpt", false)));
    assert!(join_all(calls).await.iter().all(|answer| answer.status == 200));
    assert_eq!((one.calls() + two.calls(), last.calls()), (80, 0));
    // Shares at random would leave these bounds less than once in a million runs.
    assert!((4..=45).contains(&one.calls()), "{} of 80", one.calls());
    let body = Route::Chat.request("gpt", false).replacen('{', "{\"fail\":true,", 1);
    let answer = caller.post(Route::Chat.path(), body).await;
    assert_eq!((answer.status, last.calls()), (200, 1), "{}", answer.text());
    until_quiet(&node).await;
}

/// Covers: PR-7: off by default, because the call may have been served.
#[tokio::test]
async fn reused_connection_that_closed_is_retried_only_if_set() {
    for (setting, status, requests) in [("", 502, 2), ("retry_reused=true", 200, 3)] {
        let dir = tempdir().expect("a directory");
        let whole = || Answer::json(200, Route::Chat.answer());
        let upstream = ScriptedUpstream::in_order(vec![whole(), Answer::new().cut(), whole()]).await;
        let (node, caller) = with_gpt(&dir, &upstream, setting).await;
        let body = Route::Chat.request("gpt", false);
        assert_eq!(caller.post(Route::Chat.path(), body.clone()).await.status, 200);
        let answer = caller.post(Route::Chat.path(), body).await;
        let connections: Vec<usize> = upstream.requests().iter().map(|request| request.connection).collect();
        assert_eq!(connections[..2], [1, 1], "the connection is kept");
        assert_eq!((answer.status, upstream.calls()), (status, requests), "{setting}: {}", answer.text());
        until_quiet(&node).await;
    }
}

/// Waits for the real breaker, which opens for 10 s.
///
/// Covers: PR-7.
#[tokio::test]
async fn breaker_opens_after_failures_and_closes_after_a_probe() {
    let dir = tempdir().expect("a directory");
    let bad = || Answer::json(500, "{}");
    let answers = vec![bad(), bad(), bad(), bad(), bad(), Answer::json(200, Route::Chat.answer())];
    let upstream = ScriptedUpstream::in_order(answers).await;
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    let body = Route::Chat.request("gpt", false);
    let up = "turnway_model_upstream_up";
    until_metric(&node, up, "upstream=\"gpt\"", 1.0).await;
    for _ in 0..5 {
        assert_eq!(caller.post(Route::Chat.path(), body.clone()).await.status, 500);
    }
    let opened = Instant::now();
    until_metric(&node, up, "upstream=\"gpt\"", 0.0).await;
    let mut looks = tokio::time::interval(Duration::from_millis(250));
    let answer = loop {
        looks.tick().await;
        let answer = caller.post(Route::Chat.path(), body.clone()).await;
        if answer.status == 200 {
            break answer;
        }
        Route::Chat.must_be(&answer, 503, "upstream_unavailable");
        assert_eq!(answer.header("x-should-retry"), "true");
        assert!(answer.header("retry-after").parse::<u64>().is_ok_and(|wait| wait <= 10), "{answer:?}");
        assert!(opened.elapsed() < Duration::from_secs(20), "it stays open");
    };
    assert!(opened.elapsed() > Duration::from_secs(8), "{:?}", opened.elapsed());
    assert_eq!((answer.text().as_str(), upstream.calls()), (Route::Chat.answer(), 6));
    until_metric(&node, up, "upstream=\"gpt\"", 1.0).await;
    until_quiet(&node).await;
}
