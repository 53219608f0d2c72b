//! Time limits of runs while they wait for models: an open call stops the limits of silence and of the whole run.
use crate::caller::Caller;
use crate::route::Route;
use crate::stage::{AGENT, Stage, StoreKind, TestRun, until_ended, until_open};
use crate::world::{flag, model_args};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;
use turnway_tests::real::upstream::{Answer, Exchange, ScriptedUpstream};
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Limit of an agent's silence: long enough that a call begins in time on a busy machine.
const SILENCE: Duration = Duration::from_secs(2);
const SILENCE_LIMIT: &str = ",silence=2s";
/// Limit of a whole run.
const RUN: Duration = Duration::from_secs(3);
const RUN_LIMIT: &str = ",run=3s";
const BOTH_LIMITS: &str = ",silence=2s,run=3s";
/// Time for which a call is held open: longer than both limits.
const HELD: Duration = Duration::from_secs(5);

/// A call that waits for its release.
struct HeldCall {
    exchange: Arc<Exchange>,
    answer: JoinHandle<u16>,
}

impl HeldCall {
    /// Makes a call, and returns once its upstream has seen it.
    async fn open(caller: &Caller, upstream: &ScriptedUpstream, model: &str, stream: bool) -> Self {
        let caller = caller.clone();
        let body = Route::Chat.request(model, stream);
        let answer = tokio::spawn(async move { caller.post(Route::Chat.path(), body).await.status });
        Self { exchange: upstream.next().await, answer }
    }

    /// Lets the upstream answer, and waits until the caller has the whole answer.
    async fn finish(self) {
        self.exchange.release();
        let status = timeout(PATIENCE, self.answer).await.expect("an answer in time").expect("an answer");
        assert_eq!(status, 200);
    }
}

/// Returns an answer that waits, before its head or after the first event of a stream, for its release.
fn gated(stream: bool) -> Answer {
    let [first, rest @ ..] = Route::Chat.events() else { panic!("there are events") };
    if stream {
        Answer::stream().piece(first.as_bytes()).gate().piece(rest.concat().as_bytes()).end()
    } else {
        Answer::new().gate().then_whole(200, &[("content-type", "application/json")], Route::Chat.answer())
    }
}

async fn gated_upstream() -> ScriptedUpstream {
    ScriptedUpstream::start(|request| gated(request.json()["stream"] == true)).await
}

/// Asserts that a run does not end within this time.
async fn must_stay_open(run: &mut TestRun, time: Duration) {
    let end = timeout(time, run.end()).await;
    assert!(end.is_err(), "it ended in spite of an open call: {end:?}");
}

/// Asserts that a run ends because its agent was too slow, and not earlier than `least` after `since`.
async fn must_time_out(run: &mut TestRun, since: Instant, least: Duration) {
    assert_eq!(run.end().await, "agent_timeout");
    assert!(since.elapsed() >= least, "{:?} and not {least:?}", since.elapsed());
}

/// Covers: PR-13.
#[tokio::test]
async fn silent_run_without_a_call_times_out() {
    let mut stage = Stage::start(StoreKind::Embedded, 1, SILENCE_LIMIT, &[]).await;
    let begun = Instant::now();
    let mut run = stage.open_run("s1").await;
    run.attempt.say("thinking");
    must_time_out(&mut run, begun, SILENCE).await;
}

/// Opens two runs with a call each, streamed and not, for longer than their limits allow; both complete.
async fn open_calls_stop_the_clocks(store: StoreKind, record: &str) {
    let upstream = gated_upstream().await;
    let model = flag("gpt", &upstream, "");
    let mut stage = Stage::start(store, 1, BOTH_LIMITS, &["--model", &model, "--llm-record", record]).await;
    let mut runs = Vec::new();
    let mut calls = Vec::new();
    for (session, stream) in [("s1", false), ("s2", true)] {
        let run = stage.open_run(session).await;
        calls.push(HeldCall::open(&run.caller, &upstream, "gpt", stream).await);
        runs.push(run);
    }
    join_all(runs.iter_mut().map(|run| must_stay_open(run, HELD))).await;
    for (run, call) in runs.iter_mut().zip(calls) {
        call.finish().await;
        run.must_complete().await;
        until_ended(&stage.web(0), &run.session, 1).await;
    }
}

/// Covers: PR-13.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_call_stops_the_clocks_of_its_run() {
    for record in ["before", "after"] {
        open_calls_stop_the_clocks(StoreKind::Embedded, record).await;
    }
}

/// Covers: PR-13.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_call_stops_the_clocks_on_redis() {
    for record in ["before", "after"] {
        open_calls_stop_the_clocks(StoreKind::Redis, record).await;
    }
}

/// Covers: PR-13: the silence begins anew, however the call ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_counts_again_after_a_call() {
    let upstream = ScriptedUpstream::start(|request| {
        let first = Route::Chat.events()[0].as_bytes();
        match request.json()["model"].as_str() {
            Some("bad") => Answer::new().gate().then_whole(400, &[("content-type", "application/json")], "{}"),
            Some("cut") => Answer::stream().piece(first).gate().cut(),
            Some(_) | None => gated(true),
        }
    })
    .await;
    let names = ["whole", "bad", "cut", "left"];
    let models = names.map(|name| flag(name, &upstream, ""));
    let mut stage = Stage::start(StoreKind::Embedded, 1, SILENCE_LIMIT, &model_args(&models)).await;
    let mut runs = Vec::new();
    let mut calls = Vec::new();
    for name in names {
        let run = stage.open_run(name).await;
        calls.push(HeldCall::open(&run.caller, &upstream, name, true).await);
        runs.push(run);
    }
    join_all(runs.iter_mut().map(|run| must_stay_open(run, SILENCE * 2))).await;
    let ends = runs.iter_mut().zip(calls).zip(names).map(|((run, call), name)| async move {
        let ended = Instant::now();
        if name == "left" {
            call.answer.abort();
        } else {
            call.exchange.release();
        }
        must_time_out(run, ended, SILENCE).await;
    });
    join_all(ends).await;
    for name in names {
        until_ended(&stage.web(0), name, 1).await;
    }
}

/// Covers: PR-13: the clocks stand still until the last of several calls has ended.
#[tokio::test]
async fn silence_waits_for_the_last_of_several_calls() {
    let upstream = gated_upstream().await;
    let mut stage =
        Stage::start(StoreKind::Embedded, 1, SILENCE_LIMIT, &model_args(&[flag("gpt", &upstream, "")])).await;
    let mut run = stage.open_run("s1").await;
    let earlier = HeldCall::open(&run.caller, &upstream, "gpt", true).await;
    let later = HeldCall::open(&run.caller, &upstream, "gpt", false).await;
    until_open(&stage.web(0), &run.id, 2).await;
    earlier.finish().await;
    until_open(&stage.web(0), &run.id, 1).await;
    must_stay_open(&mut run, SILENCE * 2).await;
    let ended = Instant::now();
    later.finish().await;
    must_time_out(&mut run, ended, SILENCE).await;
}

/// Covers: PR-13: the time of the run is longer by that of its calls, and no longer.
#[tokio::test]
async fn run_limit_counts_again_after_a_call() {
    let upstream = gated_upstream().await;
    let mut stage = Stage::start(StoreKind::Embedded, 1, RUN_LIMIT, &model_args(&[flag("gpt", &upstream, "")])).await;
    let begun = Instant::now();
    let mut run = stage.open_run("s1").await;
    let call = HeldCall::open(&run.caller, &upstream, "gpt", true).await;
    must_stay_open(&mut run, HELD).await;
    call.finish().await;
    run.attempt.say("still thinking");
    must_time_out(&mut run, begun, HELD + RUN).await;
}

/// Covers: PR-13.
#[tokio::test]
async fn call_of_another_run_stops_no_clock() {
    let upstream = gated_upstream().await;
    let mut stage =
        Stage::start(StoreKind::Embedded, 1, SILENCE_LIMIT, &model_args(&[flag("gpt", &upstream, "")])).await;
    let mut waiting = stage.open_run("s1").await;
    let call = HeldCall::open(&waiting.caller, &upstream, "gpt", true).await;
    // A call without a run stops no clock, either.
    let unknown = Caller::new(&stage.nodes[0]);
    let other = HeldCall::open(&unknown, &upstream, "gpt", false).await;
    let begun = Instant::now();
    let mut silent = stage.open_run("s2").await;
    must_time_out(&mut silent, begun, SILENCE).await;
    other.finish().await;
    call.finish().await;
    waiting.must_complete().await;
}

/// Covers: PR-13: one before the head of the answer, and one after its first event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_agent_waits_for_a_slow_model() {
    let whole = Route::Chat.events().concat();
    let kind = [("content-type", "text/event-stream")];
    let before_head = Answer::new().gate().head(200, &kind).piece(whole.as_bytes()).end();
    let upstream = ScriptedUpstream::in_order(vec![before_head, gated(true)]).await;
    let model = flag("gpt", &upstream, "");
    let agent = format!("writer=model:gpt{BOTH_LIMITS}");
    let stage = Stage::start(StoreKind::Embedded, 1, "", &["--model", &model, "--agent", &agent]).await;
    let mut turns = Vec::new();
    for session in ["s1", "s2"] {
        let mut client = WebSocketClient::hello(stage.nodes[0].http, "ann", vec![]).await.expect("let in");
        let turn = tokio::spawn(async move { client.turn(session, "writer", session, "hi").await });
        turns.push((turn, upstream.next().await));
    }
    let held = join_all(turns.iter_mut().map(|(turn, _)| timeout(HELD, turn))).await;
    assert!(held.iter().all(Result::is_err), "a turn ended while its model was silent");
    for (turn, exchange) in turns {
        exchange.release();
        let ended = timeout(PATIENCE, turn).await.expect("an end in time").expect("an end");
        let (text, done) = ended.expect("an answer");
        assert_eq!((text.as_str(), &done["status"]), ("grüß dich 語𝄞", &json!("completed")), "{done}");
    }
}

/// Covers: PR-13.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_call_stops_the_clocks_of_a_dial_in_agent() {
    let upstream = gated_upstream().await;
    let dir = tempdir().expect("a directory");
    let flags = [format!("{AGENT}=dial-in:{BOTH_LIMITS}"), flag("gpt", &upstream, "")];
    let node = Node::start(dir.path(), &["--agent", &flags[0], "--model", &flags[1]]).await;
    let connection = WebSocketClient::open(node.http).await.expect("a connection");
    let hello = json!({"type": "hello", "role": "agent", "agent_id": AGENT, "capabilities": {}});
    let mut agent = connection.greet_with(hello).await.expect("an agent");
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("let in");
    let accepted = ann.ask("a1", invoke("s1", AGENT, "hi")).await.expect("an answer");
    let order = agent.until(|message| message["type"] == "invoke").await.expect("an input");
    agent.say(json!({"type": "input_ack", "run_id": order["run_id"]})).await.expect("sent");
    let caller = Caller::new(&node).bearer(order["run_token"].as_str().expect("a token"));
    let call = HeldCall::open(&caller, &upstream, "gpt", true).await;
    let is_end = |message: &Value| {
        message["run_id"] == accepted["run_id"] && (message["type"] == "done" || message["type"] == "error")
    };
    let end = timeout(HELD, ann.until(is_end)).await;
    assert!(end.is_err(), "it ended in spite of an open call: {end:?}");
    call.finish().await;
    agent.say(json!({"type": "done", "run_id": order["run_id"]})).await.expect("sent");
    let end = ann.until(is_end).await.expect("an end");
    assert_eq!(end["status"], "completed", "{end}");
}

/// Covers: PR-13: a call that another node makes stops the clocks of the owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_at_another_node_stops_the_owners_clocks() {
    let upstream = gated_upstream().await;
    let model = flag("gpt", &upstream, "");
    let mut stage = Stage::start(StoreKind::Redis, 2, BOTH_LIMITS, &["--model", &model]).await;
    let mut run = stage.open_run("s1").await;
    stage.must_own("s1");
    let elsewhere = Caller::new(&stage.nodes[1]).bearer(&run.attempt.invocation.token);
    let call = HeldCall::open(&elsewhere, &upstream, "gpt", true).await;
    must_stay_open(&mut run, HELD).await;
    call.finish().await;
    run.must_complete().await;
    until_ended(&stage.web(1), "s1", 1).await;
}

/// Covers: PR-11, PR-13: a new owner knows the calls that are open, and their ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_call_stops_the_clocks_of_a_new_owner() {
    let upstream = gated_upstream().await;
    let model = flag("gpt", &upstream, "");
    let mut stage = Stage::start(StoreKind::Redis, 2, SILENCE_LIMIT, &["--model", &model]).await;
    let mut run = stage.open_run("s1").await;
    let elsewhere = Caller::new(&stage.nodes[1]).bearer(&run.attempt.invocation.token);
    let call = HeldCall::open(&elsewhere, &upstream, "gpt", true).await;
    until_open(&stage.web(1), &run.id, 1).await;
    stage.kill_owner(&mut run, || {}).await;
    must_stay_open(&mut run, HELD).await;
    let ended = Instant::now();
    call.finish().await;
    must_time_out(&mut run, ended, SILENCE).await;
    until_ended(&stage.web(1), "s1", 1).await;
}
