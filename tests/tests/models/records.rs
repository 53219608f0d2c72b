//! Records of the calls that runs make: two facts for each call in the log of its session, and their sums.
use crate::caller::Caller;
use crate::cancel::must_be_closed_soon;
use crate::route::Route;
use crate::stage::{
    AGENT, LedAgents, PRICES, RecordedCall, Stage, StoreKind, sorted, until_calls, until_ended, until_open, usage_of,
};
use crate::world::{flag, model_args, until_quiet};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tempfile::tempdir;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::upstream::{Answer, ScriptedUpstream, unreachable_url};
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Time from the end of a call's `total` to its `deadline_ms` in milliseconds.
const REPORT_WAIT_MS: u64 = 60_000;

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    u64::try_from(since.as_millis()).expect("a time before 500,000,000")
}

/// Asserts that the times of an answered call are in order.
fn must_have_times(ended: &Value) {
    let times = [&ended["first_byte_ms"], &ended["first_token_ms"], &ended["latency_ms"]];
    let known: Vec<u64> = times.into_iter().filter_map(Value::as_u64).collect();
    assert!(known.is_sorted() && ended["latency_ms"].is_u64() && ended["first_byte_ms"].is_u64(), "{ended}");
}

// === tests ===

/// Covers: PR-11, PR-12: both settings of `llm.record` lead to the same facts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_all_formats_are_recorded_with_their_cost() {
    for store in StoreKind::ALL {
        for record in ["before", "after"] {
            all_formats_are_recorded(store, record).await;
        }
    }
}

async fn all_formats_are_recorded(store: StoreKind, record: &str) {
    let upstream =
        ScriptedUpstream::start(|request| Route::of(&request.path).script(request.json()["stream"] == true)).await;
    let settings = |name: &str| format!("name={name},total=2m,{PRICES}");
    let models = [flag("large", &upstream, &settings("whole")), flag("quick", &upstream, &settings("streamed"))];
    let args = [&model_args(&models)[..], &["--llm-record", record]].concat();
    let mut stage = Stage::start(store, 1, "", &args).await;
    let mut run = stage.open_run("s1").await;
    let begun = now_ms();
    let name = |stream: bool| if stream { "streamed" } else { "whole" };
    for (route, stream) in Route::modes() {
        // Only the gateway asks for the usage of a chat stream.
        let body = route.request(name(stream), stream).replace(",\"stream_options\":{ \"include_usage\" :true}", "");
        assert_eq!(run.caller.post(route.path(), body).await.status, 200);
    }
    let calls = until_ended(&stage.web(0), "s1", Route::modes().len()).await;
    let deadlines = begun + 119_000 + REPORT_WAIT_MS..=now_ms() + 121_000 + REPORT_WAIT_MS;
    for (route, stream) in Route::modes() {
        let format = route.path().trim_start_matches("/v1/");
        let is_this = |call: &&RecordedCall| call.is_of(name(stream)) && call.started["format"] == format;
        let found: Vec<&RecordedCall> = calls.iter().filter(is_this).collect();
        let [RecordedCall { run_id, started, ended }] = found.as_slice() else { panic!("{format}: {calls:#?}") };
        assert_eq!((run_id, &started["agent_id"]), (&json!(run.id), &json!(AGENT)));
        assert!(deadlines.contains(&started["deadline_ms"].as_u64().expect("a time")), "{started} {deadlines:?}");
        must_have_times(ended);
        assert!(!stream || ended["first_token_ms"].is_u64(), "{ended}");
        let (usage, cost) = match route {
            Route::Chat | Route::Responses => (
                json!({"input_tokens": 30, "cached_input_tokens": 10, "output_tokens": 12, "reasoning_tokens": 5}),
                183,
            ),
            Route::Messages => (json!({"input_tokens": 30, "cached_input_tokens": 10, "output_tokens": 12}), 183),
            Route::Embeddings => (json!({"input_tokens": 8}), 20),
        };
        let expected = json!({
            "call_id": started["call_id"], "agent_id": AGENT, "model": name(stream), "outcome": "complete",
            "upstream": if stream { "quick" } else { "large" }, "attempts": 1, "status": 200, "usage": usage,
            "cost": cost,
        });
        let mut known = ended.clone();
        for time in ["latency_ms", "first_byte_ms", "first_token_ms"] {
            known.as_object_mut().expect("an object").remove(time);
        }
        assert_eq!(known, expected, "{store:?} {record} {format}");
    }
    run.must_complete().await;
    until_ended(&stage.web(0), "s1", Route::modes().len()).await;
    let page = stage.web(0).json(&format!("/v1/runs/{}/events?limit=500", run.id)).await;
    let kinds = page["events"].as_array().expect("events").iter().map(|fact| fact["type"].as_str());
    let of_calls = kinds.flatten().filter(|kind| kind.starts_with("llm.call."));
    assert_eq!(of_calls.count(), 2 * Route::modes().len(), "{page}");
}

/// Covers: PR-11, PR-31: rounded up, and absent rather than wrong.
#[tokio::test]
async fn cost_is_absent_without_a_price_or_a_count() {
    let cases = [
        ("free", "", None),
        ("half", "price_input=1000000", None),
        ("tiny", "price_input=1,price_output=1", Some(1)),
        ("cached as others", "price_input=1000000,price_output=0", Some(30)),
        ("cached apart", "price_input=1000000,price_cached=0,price_output=1000000", Some(32)),
        ("uncounted", PRICES, None),
    ];
    let upstream = ScriptedUpstream::start(|request| {
        if request.json()["model"] == "uncounted" {
            Answer::json(200, "{\"choices\":[{\"index\":0,\"message\":{},\"finish_reason\":\"stop\"}]}")
        } else {
            Answer::json(200, Route::Chat.answer())
        }
    })
    .await;
    let id = |name: &str| name.replace(' ', "-");
    let models = cases.map(|(name, settings, _)| flag(&id(name), &upstream, settings));
    let mut stage = Stage::start(StoreKind::Embedded, 1, "", &model_args(&models)).await;
    let mut run = stage.open_run("s1").await;
    for (name, ..) in cases {
        assert_eq!(run.call(Route::Chat, &id(name), false).await, 200);
    }
    let calls = until_ended(&stage.web(0), "s1", cases.len()).await;
    for (name, _, cost) in cases {
        let call = calls.iter().find(|call| call.is_of(&id(name))).expect("a record");
        assert_eq!(call.ended.get("cost").and_then(Value::as_u64), cost, "{name}: {}", call.ended);
        assert_eq!(call.ended["usage"] == json!({}), name == "uncounted", "{}", call.ended);
    }
    let usage = until_open(&stage.web(0), &run.id, 0).await;
    let counts = ["calls", "calls_without_usage", "calls_without_cost", "cost"].map(|name| &usage[name]);
    assert_eq!(counts, [6, 1, 3, 63].map(Value::from).each_ref(), "{usage}");
    run.must_complete().await;
}

/// A way for a call to end, and what is recorded of it.
struct Ending {
    model: &'static str,
    outcome: &'static str,
    upstream: &'static str,
    attempts: u64,
    /// Status of the upstream's answer.
    status: Option<u16>,
}

const fn ending(model: &'static str, outcome: &'static str, status: Option<u16>) -> Ending {
    Ending { model, outcome, upstream: model, attempts: 1, status }
}

const ENDINGS: [Ending; 10] = [
    ending("whole", "complete", Some(200)),
    ending("bad", "refused", Some(400)),
    ending("cut", "truncated", Some(200)),
    ending("failing", "error", Some(200)),
    ending("failing-at-once", "error", Some(200)),
    ending("broken", "failed", None),
    ending("late", "timeout", None),
    ending("paused", "timeout", Some(200)),
    Ending { upstream: "gone-too", attempts: 2, ..ending("gone", "failed", None) },
    Ending { upstream: "whole", attempts: 2, ..ending("busy", "complete", Some(200)) },
];

/// Answers a streamed chat as its model says.
fn ended_as(model: &str) -> Answer {
    let first = Route::Chat.events()[0].as_bytes();
    let error = b"data: {\"error\":{\"message\":\"overloaded\",\"type\":\"server_error\",\"code\":503}}\n\n";
    match model {
        "whole" => Route::Chat.script(true),
        "bad" => Answer::json(400, "{\"error\":{\"message\":\"no\"}}"),
        "cut" => Answer::stream().piece(first).cut(),
        "failing" => Answer::stream().piece(first).piece(error).end(),
        "failing-at-once" => Answer::stream().piece(error).end(),
        "broken" => Answer::new().cut(),
        "late" => Answer::new().hang(),
        "paused" | "left" => Answer::stream().piece(first).hang(),
        "busy" => Answer::json(503, "{}"),
        other => panic!("no model {other}"),
    }
}

/// Covers: PR-11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_is_recorded_with_one_outcome() {
    for store in StoreKind::ALL {
        let upstream =
            ScriptedUpstream::start(|request| ended_as(request.json()["model"].as_str().expect("a name"))).await;
        let answered = ["whole", "bad", "cut", "failing", "failing-at-once", "broken", "left"];
        let mut models: Vec<String> = answered.iter().map(|name| flag(name, &upstream, "")).collect();
        models.push(flag("late", &upstream, "first_byte=300ms"));
        models.push(flag("paused", &upstream, "silence=300ms"));
        models.push(format!("gone={},fallback=gone-too", unreachable_url().await));
        models.push(format!("gone-too={}", unreachable_url().await));
        // The fallback gets its own name, by which the script answers.
        models[0].push_str(",upstream_model=whole");
        models.push(flag("busy", &upstream, "upstream_model=busy,fallback=whole"));
        let mut stage = Stage::start(store, 1, "", &model_args(&models)).await;
        let mut run = stage.open_run("s1").await;
        for ending in &ENDINGS {
            run.call(Route::Chat, ending.model, true).await;
        }
        // A caller that leaves in the middle of an answer.
        let mut leaves = run.caller.open("POST", Route::Chat.path(), Route::Chat.request("left", true)).await;
        leaves.until_exactly(Route::Chat.events()[0].as_bytes()).await;
        drop(leaves);
        let calls = until_ended(&stage.web(0), "s1", ENDINGS.len() + 1).await;
        let left = ending("left", "cancelled", Some(200));
        for ending in ENDINGS.iter().chain([&left]) {
            let found: Vec<&RecordedCall> = calls.iter().filter(|call| call.is_of(ending.model)).collect();
            let [call] = found.as_slice() else { panic!("{}: {calls:#?}", ending.model) };
            let names = ["outcome", "upstream", "attempts", "status"].map(|name| &call.ended[name]);
            let expected =
                [json!(ending.outcome), json!(ending.upstream), json!(ending.attempts), json!(ending.status)];
            assert_eq!(names, expected.each_ref(), "{store:?} {}: {}", ending.model, call.ended);
            assert_eq!(call.ended.get("status").is_some(), ending.status.is_some(), "{}", call.ended);
        }
        run.must_complete().await;
        until_ended(&stage.web(0), "s1", ENDINGS.len() + 1).await;
        let usage = until_open(&stage.web(0), &run.id, 0).await;
        assert_eq!(usage["calls"], ENDINGS.len() + 1, "{usage}");
        until_quiet(&stage.nodes[0]).await;
    }
}

/// Covers: PR-8, PR-11: the end of a call is recorded after that of its run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_cut_by_its_run_is_recorded_as_cancelled() {
    let first = Route::Chat.events()[0].as_bytes();
    let upstream = ScriptedUpstream::always(Answer::stream().piece(first).hang()).await;
    for store in StoreKind::ALL {
        let mut stage = Stage::start(store, 1, "", &model_args(&[flag("gpt", &upstream, "")])).await;
        for (session, is_cancelled) in [("s1", true), ("s2", false)] {
            let mut run = stage.open_run(session).await;
            let mut open = run.caller.open("POST", Route::Chat.path(), Route::Chat.request("gpt", true)).await;
            open.until_exactly(first).await;
            let exchange = upstream.next().await;
            until_open(&stage.web(0), &run.id, 1).await;
            let stopped = Instant::now();
            if is_cancelled {
                run.client.say(json!({"type": "cancel_run", "run_id": run.id})).await.expect("sent");
            } else {
                run.attempt.finish();
            }
            must_be_closed_soon(&exchange, stopped, session).await;
            Route::Chat.must_be_error_event(&open.rest().await.body[first.len()..], "run_ended");
            assert_eq!(run.end().await, if is_cancelled { "cancelled" } else { "completed" });
            let calls = until_ended(&stage.web(0), session, 1).await;
            let ended = &calls[0].ended;
            assert_eq!((&ended["outcome"], &ended["attempts"]), (&json!("cancelled"), &json!(1)), "{ended}");
            assert_eq!(ended["usage"], json!({}), "{ended}");
            let usage = until_open(&stage.web(0), &run.id, 0).await;
            assert_eq!((&usage["calls"], &usage["calls_without_usage"]), (&json!(1), &json!(1)), "{usage}");
        }
    }
}

/// Covers: PR-11: a call that no upstream sees has no record, or a whole one.
#[tokio::test]
async fn refused_call_leaves_no_open_record() {
    let answer = Answer::new().gate().then_whole(200, &[("content-type", "application/json")], Route::Chat.answer());
    let upstream = ScriptedUpstream::always(answer).await;
    let mut stage = Stage::start(StoreKind::Embedded, 1, "", &model_args(&[flag("gpt", &upstream, "calls=1")])).await;
    let mut run = stage.open_run("s1").await;
    let caller = run.caller.clone();
    let open = tokio::spawn(async move { caller.post(Route::Chat.path(), Route::Chat.request("gpt", false)).await });
    let exchange = upstream.next().await;
    until_open(&stage.web(0), &run.id, 1).await;
    assert_eq!(run.call(Route::Chat, "gpt", true).await, 429);
    assert_eq!(run.call(Route::Messages, "unknown", false).await, 404);
    assert_eq!(run.caller.post(Route::Messages.path(), "{\"model\":").await.status, 400);
    until_open(&stage.web(0), &run.id, 1).await;
    exchange.release();
    assert_eq!(open.await.expect("an answer").status, 200);
    let usage = until_open(&stage.web(0), &run.id, 0).await;
    run.must_complete().await;
    let all_ended = |calls: &[RecordedCall]| calls.iter().all(|call| !call.ended.is_null());
    let calls = until_calls(&stage.web(0), "s1", all_ended).await;
    assert_eq!(usage["calls"], calls.len(), "{calls:#?}");
    let complete: Vec<&RecordedCall> = calls.iter().filter(|call| call.ended["outcome"] == "complete").collect();
    assert_eq!((complete.len(), upstream.calls()), (1, 1), "{calls:#?}");
    assert!(calls.iter().all(|call| call.is_of("gpt")), "{calls:#?}");
}

/// Covers: PR-11, PR-31.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_model_agent_are_recorded() {
    let [first, second, ..] = Route::Chat.events() else { panic!("there are events") };
    for store in StoreKind::ALL {
        let upstream = ScriptedUpstream::in_order(vec![
            Route::Chat.script(true),
            Answer::json(400, "{\"error\":{}}"),
            Answer::stream().piece(first.as_bytes()).piece(second.as_bytes()).hang(),
        ])
        .await;
        let model = flag("large", &upstream, &format!("name=gpt,{PRICES}"));
        let stage = Stage::start(store, 1, "", &["--model", &model, "--agent", "writer=model:gpt"]).await;
        let mut client = WebSocketClient::hello(stage.nodes[0].http, "ann", vec![]).await.expect("let in");
        let (_, done) = client.turn("s1", "writer", "m1", "hi").await.expect("a turn");
        let calls = until_ended(&stage.web(0), "s1", 1).await;
        let RecordedCall { run_id, started, ended } = &calls[0];
        assert_eq!(run_id, &done["run_id"]);
        let names = ["agent_id", "model", "format"].map(|name| &started[name]);
        assert_eq!(names, ["writer", "gpt", "chat/completions"].map(Value::from).each_ref());
        let names = ["outcome", "upstream", "attempts", "status", "cost"].map(|name| &ended[name]);
        let expected = [json!("complete"), json!("large"), json!(1), json!(200), json!(183)];
        assert_eq!((names, &ended["usage"]), (expected.each_ref(), &done["usage"]), "{ended}");
        must_have_times(ended);

        let accepted = client.ask("m2", invoke("s1", "writer", "hi")).await.expect("an answer");
        let failed = |message: &Value| message["type"] == "error" && message["run_id"] == accepted["run_id"];
        client.until(failed).await.expect("a failure");
        let refused = until_ended(&stage.web(0), "s1", 2).await.swap_remove(1);
        assert_eq!((&refused.run_id, &refused.ended["status"]), (&accepted["run_id"], &json!(400)));
        assert_eq!(refused.ended["outcome"], "refused");

        let accepted = client.ask("m3", invoke("s1", "writer", "hi")).await.expect("an answer");
        client.until(|message| message["type"] == "delta").await.expect("a part");
        let run_id = accepted["run_id"].as_str().expect("a run");
        until_open(&stage.web(0), run_id, 1).await;
        client.say(json!({"type": "cancel_run", "run_id": run_id})).await.expect("sent");
        let cancelled = |message: &Value| message["type"] == "done" && message["run_id"] == run_id;
        client.until(cancelled).await.expect("an end");
        let cut = until_ended(&stage.web(0), "s1", 3).await.swap_remove(2);
        assert_eq!((&cut.run_id, &cut.ended["outcome"]), (&json!(run_id), &json!("cancelled")));
        until_open(&stage.web(0), run_id, 0).await;
    }
}

/// Covers: PR-11: a call that belongs to no run is recorded nowhere.
#[tokio::test]
async fn call_of_a_users_key_is_recorded_nowhere() {
    let upstream = ScriptedUpstream::start(|request| Route::of(&request.path).script(false)).await;
    let dir = tempdir().expect("a directory");
    let mut agents = LedAgents::start().await;
    let node = guarded(&dir, &["--agent", &agents.agents.flag(AGENT), "--model", &flag("gpt", &upstream, "")]).await;
    let key = Key::make(&node, &["--user", "ann", "--scopes", "read,write,models"]).await;
    let mut client = key.hello(node.http, None).await.expect("let in");
    let accepted = client.ask("a1", invoke("s1", AGENT, "hi")).await.expect("an answer");
    let attempt = agents.next().await;
    let caller = Caller::new(&node);
    for route in Route::ALL {
        let answer = caller.clone().bearer(&key.text).post(route.path(), route.request("gpt", false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    // The record of a later call is complete before any of the others could be missing.
    let by_run = caller.with("x-api-key", &attempt.invocation.token);
    assert_eq!(by_run.post(Route::Messages.path(), Route::Messages.request("gpt", false)).await.status, 200);
    let web = Web::new(node.http, None).key(&key);
    let calls = until_ended(&web, "s1", 1).await;
    assert_eq!((&calls[0].run_id, &calls[0].started["format"]), (&accepted["run_id"], &json!("messages")));
    attempt.finish();
    client.until(|message| message["type"] == "done").await.expect("an end");
    until_quiet(&node).await;
    until_ended(&web, "s1", 1).await;
    let sessions = web.json("/v1/sessions").await;
    assert_eq!(sessions["sessions"].as_array().map(Vec::len), Some(1), "{sessions}");
}

// === usage ===

/// Covers: PR-31.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_of_a_run_equals_the_sum_of_its_facts() {
    let upstream = ScriptedUpstream::start(|request| {
        let route = Route::of(&request.path);
        match request.json()["model"].as_str() {
            Some("held") => Answer::stream().piece(route.events()[0].as_bytes()).gate().end(),
            Some("bad") => Answer::json(400, "{}"),
            Some(_) | None => route.script(request.json()["stream"] == true),
        }
    })
    .await;
    let settings = format!("upstream_model=any,{PRICES}");
    let models = [
        flag("gpt", &upstream, &settings),
        flag("mini", &upstream, "price_input=100000,price_output=200000"),
        flag("free", &upstream, ""),
        flag("bad", &upstream, PRICES),
        flag("held", &upstream, PRICES),
    ];
    // In a fleet another node sums up than the one that recorded.
    for (store, nodes) in [(StoreKind::Embedded, 1), (StoreKind::Redis, 2)] {
        let mut stage = Stage::start(store, nodes, "", &model_args(&models)).await;
        let mut run = stage.open_run("s1").await;
        let web = stage.web(nodes - 1);
        assert_eq!(sorted(until_open(&web, &run.id, 0).await), usage_of(&run.id, &[]), "before any call");
        for route in Route::STREAMED {
            for (model, stream) in [("gpt", true), ("gpt", false), ("mini", true), ("free", false), ("bad", true)] {
                run.call(route, model, stream).await;
            }
        }
        let before = usage_of(&run.id, &until_ended(&web, "s1", 15).await);
        assert_eq!(before["cost"].as_u64(), Some(6 * 183 + 3 * 6), "3 + 2.4 millionths of the small model: {before}");
        let held = Route::Messages;
        let mut open = run.caller.open("POST", held.path(), held.request("held", true)).await;
        open.until_exactly(held.events()[0].as_bytes()).await;
        let mut while_open = sorted(until_open(&web, &run.id, 1).await);
        while_open["open_calls"] = 0.into();
        assert_eq!(while_open, before, "an open call is in no sum");
        let exchange = async {
            loop {
                let exchange = upstream.next().await;
                if exchange.request.json()["model"] == "held" {
                    return exchange;
                }
            }
        };
        exchange.await.release();
        open.rest().await;
        let after = usage_of(&run.id, &until_ended(&web, "s1", 16).await);
        assert_eq!(sorted(until_open(&web, &run.id, 0).await), after);
        run.must_complete().await;
        assert_eq!(sorted(until_open(&web, &run.id, 0).await), after, "after the run");
        // The next run of the session begins anew.
        let other = stage.open_next_run(&mut run).await;
        assert_eq!(sorted(until_open(&web, &other, 0).await), usage_of(&other, &[]));
        if store == StoreKind::Embedded {
            stage.nodes[0].kill_and_restart().await;
            assert_eq!(sorted(until_open(&web, &run.id, 0).await), after, "after a restart");
        }
    }
}

/// Covers: PR-31, S-06.
#[tokio::test]
async fn usage_is_readable_by_those_who_may_read_the_run() {
    let dir = tempdir().expect("a directory");
    let mut agents = LedAgents::start().await;
    let node = guarded(&dir, &["--agent", &agents.agents.flag(AGENT)]).await;
    let ann = Key::make(&node, &["--user", "ann"]).await;
    let bob = Key::make(&node, &["--user", "bob"]).await;
    let mut client = ann.hello(node.http, None).await.expect("let in");
    let mut runs = Vec::new();
    for session in ["s1", "s2"] {
        client.ask(session, invoke(session, AGENT, "hi")).await.expect("an answer");
        runs.push(agents.next().await.invocation);
    }
    let web = Web::new(node.http, None);
    let unknown = format!("s1.{}", "a".repeat(26));
    for (who, reader, statuses) in [
        ("ann", web.clone().key(&ann), [200, 200]),
        ("bob", web.clone().key(&bob), [404, 404]),
        ("the first run", web.clone().bearer(&runs[0].token), [200, 403]),
        ("nobody", web.clone(), [401, 401]),
    ] {
        for (run_id, status) in [&runs[0].run_id, &runs[1].run_id].into_iter().zip(statuses) {
            let usage = reader.get(&format!("/v1/runs/{run_id}/usage")).await;
            assert_eq!(usage.status, status, "{who} {run_id}: {}", usage.text);
        }
        for run_id in [&runs[0].run_id, &runs[1].run_id, &unknown] {
            let run = reader.get(&format!("/v1/runs/{run_id}")).await;
            let usage = reader.get(&format!("/v1/runs/{run_id}/usage")).await;
            assert_eq!(usage.status, run.status, "{who} {run_id}: {} and {}", usage.text, run.text);
        }
    }
}

// === faults ===

/// Kills a node as soon as an upstream has seen a call: the beginnings of all calls that were seen are recorded.
///
/// Covers: PR-12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_seen_by_an_upstream_survives_a_node_crash() {
    for store in StoreKind::ALL {
        let upstream = ScriptedUpstream::always(Answer::new().hang()).await;
        let models: Vec<String> = (0..12).map(|n| flag(&format!("m{n}"), &upstream, "")).collect();
        let mut stage = Stage::start(store, 1, "", &model_args(&models)).await;
        let run = stage.open_run("s1").await;
        let calls: Vec<_> = (0..models.len())
            .map(|n| {
                let caller = run.caller.clone();
                let body = Route::Chat.request(&format!("m{n}"), n % 2 == 0);
                tokio::spawn(async move { caller.open("POST", Route::Chat.path(), body).await })
            })
            .collect();
        upstream.next().await;
        stage.nodes[0].kill().await;
        calls.iter().for_each(|call| call.abort());
        stage.nodes[0].restart().await;
        let seen: BTreeSet<String> =
            upstream.requests().iter().map(|request| request.json()["model"].to_string()).collect();
        let are_recorded = |calls: &[RecordedCall]| {
            let recorded: BTreeSet<String> = calls.iter().map(|call| call.started["model"].to_string()).collect();
            recorded.is_superset(&seen)
        };
        let recorded = until_calls(&stage.web(0), "s1", are_recorded).await;
        assert!(recorded.iter().all(|call| call.run_id == run.id), "{recorded:#?}");
        let models: BTreeSet<String> = recorded.iter().map(|call| call.started["model"].to_string()).collect();
        assert_eq!(models.len(), recorded.len(), "each call is recorded once: {recorded:#?}");
    }
}

/// The call ends before its session has a new owner, or after.
///
/// Covers: PR-11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_elsewhere_ends_once_after_its_owner_is_killed() {
    let [first, rest @ ..] = Route::Chat.events() else { panic!("there are events") };
    let answer = Answer::stream().piece(first.as_bytes()).gate().piece(rest.concat().as_bytes()).end();
    for ends_without_owner in [true, false] {
        let upstream = ScriptedUpstream::always(answer.clone()).await;
        let model = flag("gpt", &upstream, PRICES);
        let mut stage = Stage::start(StoreKind::Redis, 2, "", &["--model", &model]).await;
        let mut run = stage.open_run("s1").await;
        let elsewhere = Caller::new(&stage.nodes[1]).bearer(&run.attempt.invocation.token);
        let mut open = elsewhere.open("POST", Route::Chat.path(), Route::Chat.request("gpt", true)).await;
        open.until_exactly(first.as_bytes()).await;
        let exchange = upstream.next().await;
        until_open(&stage.web(1), &run.id, 1).await;
        let early = ends_without_owner.then(|| exchange.clone());
        stage.kill_owner(&mut run, || early.iter().for_each(|exchange| exchange.release())).await;
        if !ends_without_owner {
            exchange.release();
        }
        let answer = open.rest().await;
        assert_eq!(String::from_utf8_lossy(&answer.body), Route::Chat.events().concat(), "the run goes on");
        let web = stage.web(1);
        let calls = until_ended(&web, "s1", 1).await;
        let ended = &calls[0].ended;
        assert_eq!((&calls[0].run_id, &ended["outcome"]), (&json!(run.id), &json!("complete")), "{ended}");
        assert_eq!(ended["cost"], 183, "{ended}");
        // A call of the second attempt is recorded beside it.
        let caller = Caller::new(&stage.nodes[1]).bearer(&run.attempt.invocation.token);
        let body = Route::Chat.request("gpt", true);
        let again = tokio::spawn(async move { caller.post(Route::Chat.path(), body).await });
        upstream.next().await.release();
        assert_eq!(again.await.expect("an answer").status, 200);
        let calls = until_ended(&web, "s1", 2).await;
        run.must_complete().await;
        assert_eq!(sorted(until_open(&web, &run.id, 0).await), usage_of(&run.id, &calls));
        until_ended(&web, "s1", 2).await;
    }
}
