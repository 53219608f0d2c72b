//! Budgets with many callers at the same time, at several nodes, and across kills and restarts.
use crate::budgets::{Budgets, PLENTY, answering, bound, limit, must_refuse, request, user};
use crate::caller::{Caller, Received};
use crate::route::Route;
use crate::stage::{PRICES, Stage, StoreKind};
use crate::world::{flag, model_args, open_node};
use serde_json::json;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream, UpstreamRequest};

/// Time in which a change of a limit takes effect at every node, on a busy machine.
const EVERYWHERE_WITHIN: Duration = Duration::from_secs(15);
/// Calls at a time in the tests of concurrency, and those for which the budget is enough.
const CALLERS: usize = 40;
const ADMITTED: usize = 12;
/// Output limit of these calls.
const OUTPUT: u64 = 16;

/// Returns the answer of a chat that uses all that was reserved for it.
fn exact(request: &UpstreamRequest) -> String {
    let usage = json!({"prompt_tokens": request.body.len(), "completion_tokens": OUTPUT});
    json!({"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}], "usage": usage}).to_string()
}

/// Starts an upstream whose calls use all that was reserved for them. Those of the model `held` wait for their release.
async fn exacting() -> ScriptedUpstream {
    ScriptedUpstream::start(|request| {
        let held = if request.json()["model"] == "held" { Answer::new().gate() } else { Answer::new() };
        held.then_whole(200, &[("content-type", "application/json")], exact(request))
    })
    .await
}

/// Returns the flags of a node with these calls, and with a model at another upstream.
fn exact_models(upstream: &ScriptedUpstream, other: &ScriptedUpstream) -> [String; 3] {
    [flag("held", upstream, ""), flag("fast", upstream, ""), flag("probe", other, "")]
}

fn exact_body(model: &str, node: usize) -> String {
    let members = format!("\"max_tokens\":{OUTPUT},\"metadata\":{{\"node\":\"{node}\"}}");
    request(Route::Chat, model, &members, false)
}

/// Waits until every node knows that a user, or the tenant, has a budget. No call reserves anything meanwhile: calls
/// without an output limit are refused from then on.
async fn until_known(nodes: &[Node], name: &str) {
    for node in nodes {
        let caller = user(&Caller::new(node), name);
        let begun = Instant::now();
        let mut looks = interval(Duration::from_millis(100));
        loop {
            looks.tick().await;
            let answer = caller.post(Route::Chat.path(), request(Route::Chat, "probe", "", false)).await;
            if answer.status == 400 {
                break;
            }
            assert!(answer.status == 200 && begun.elapsed() < PATIENCE, "{}", answer.text());
        }
    }
}

/// Lets callers of one user make a call each, at the same time, at nodes in turn.
fn call_all(nodes: &[Node], name: &str, model: &str) -> JoinSet<Received> {
    let mut calls = JoinSet::new();
    for n in 0..CALLERS {
        let node = n % nodes.len();
        let caller = user(&Caller::new(&nodes[node]), name);
        let body = exact_body(model, node);
        calls.spawn(async move { caller.post(Route::Chat.path(), body).await });
    }
    calls
}

async fn next_answer(calls: &mut JoinSet<Received>) -> Received {
    let answer = timeout(PATIENCE, calls.join_next()).await.expect("an answer in time");
    answer.expect("a call is left").expect("an answer")
}

/// Exhausts the budget of a user, and then that of the tenant, with more calls at a time than they are enough for.
async fn must_admit_exactly(store: StoreKind, count: usize) {
    let upstream = exacting().await;
    let other = answering().await;
    let models = exact_models(&upstream, &other);
    let stage = Stage::start(store, count, "", &model_args(&models)).await;
    let budgets = Budgets::at(&stage.nodes[0]);
    let share = ADMITTED as u64 * bound(&exact_body("held", 0), OUTPUT);
    budgets.set_tokens("user:ann", share).await;
    budgets.set_tokens("user:bob", PLENTY).await;
    for name in ["ann", "bob"] {
        until_known(&stage.nodes, name).await;
    }
    budgets.set_tokens("tenant", 2 * share).await;
    // Only the tenant has a budget for calls of this user.
    until_known(&stage.nodes, "eve").await;
    let mut calls = call_all(&stage.nodes, "ann", "held");
    let mut exchanges = Vec::new();
    for _ in 0..ADMITTED {
        exchanges.push(upstream.next().await);
    }
    // The others are refused while these are open.
    for _ in ADMITTED..CALLERS {
        must_refuse(Route::Chat, &next_answer(&mut calls).await);
    }
    for account in ["user:ann", "tenant"] {
        budgets.until_reserved(account, ADMITTED, share).await;
    }
    exchanges.iter().for_each(|exchange| exchange.release());
    for _ in 0..ADMITTED {
        assert_eq!(next_answer(&mut calls).await.status, 200);
    }
    for account in ["user:ann", "tenant"] {
        budgets.until_settled(account, share, 0).await;
    }
    // These calls end while others begin. What the tenant refuses does not stay reserved for the user.
    let mut calls = call_all(&stage.nodes, "bob", "fast");
    let mut admitted = 0;
    for _ in 0..CALLERS {
        let answer = next_answer(&mut calls).await;
        if answer.status == 200 {
            admitted += 1;
        } else {
            must_refuse(Route::Chat, &answer);
        }
    }
    assert_eq!((admitted, upstream.calls()), (ADMITTED, 2 * ADMITTED));
    for (account, used) in [("user:ann", share), ("user:bob", share), ("tenant", 2 * share)] {
        for node in &stage.nodes {
            Budgets::at(node).until_settled(account, used, 0).await;
        }
    }
}

/// Covers: PR-10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_calls_do_not_exceed_a_budget() {
    must_admit_exactly(StoreKind::Embedded, 1).await;
}

/// Covers: PR-10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_at_three_nodes_do_not_exceed_a_budget() {
    must_admit_exactly(StoreKind::Redis, 3).await;
}

/// Covers: PR-10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limit_takes_effect_at_every_node() {
    let upstream = answering().await;
    let stage = Stage::start(StoreKind::Redis, 2, "", &["--model", &flag("gpt", &upstream, "")]).await;
    let body = request(Route::Chat, "gpt", &limit(Route::Chat, 100), false);
    let call =
        async |node: usize| user(&Caller::new(&stage.nodes[node]), "ann").post(Route::Chat.path(), body.clone()).await;
    // Both nodes believe that there is no budget.
    for node in 0..2 {
        assert_eq!(call(node).await.status, 200);
    }
    for (here, there, is_set) in [(0, 1, true), (1, 0, false), (1, 0, true), (0, 1, false)] {
        let budgets = Budgets::at(&stage.nodes[here]);
        let begun = Instant::now();
        let status = if is_set {
            budgets.set_tokens("user:ann", 0).await;
            must_refuse(Route::Chat, &call(here).await);
            429
        } else {
            assert_eq!(budgets.remove("user:ann").await.status, 200);
            assert_eq!(call(here).await.status, 200);
            200
        };
        let mut looks = interval(Duration::from_millis(100));
        loop {
            looks.tick().await;
            if call(there).await.status == status {
                break;
            }
            assert!(begun.elapsed() < EVERYWHERE_WITHIN, "set: {is_set} at {here}");
        }
    }
}

/// Returns the requests at an upstream that came through a node.
fn through(upstream: &ScriptedUpstream, node: usize) -> usize {
    upstream
        .requests()
        .iter()
        .filter(|request| request.json()["metadata"]["node"].as_str() == Some(node.to_string().as_str()))
        .count()
}

/// Waits until every call at the nodes that live is either refused or at the upstream; returns the number of the latter.
async fn until_decided(calls: &mut JoinSet<Received>, upstream: &ScriptedUpstream) -> usize {
    let all = calls.len();
    let begun = Instant::now();
    let mut looks = interval(Duration::from_millis(20));
    let mut refused = 0;
    loop {
        looks.tick().await;
        while let Some(answer) = calls.try_join_next() {
            must_refuse(Route::Chat, &answer.expect("an answer"));
            refused += 1;
        }
        assert!(upstream.calls() <= ADMITTED, "the upstream saw more calls than the budget is enough for");
        let open = through(upstream, 1) + through(upstream, 2);
        if refused + open == all {
            return open;
        }
        assert!(begun.elapsed() < PATIENCE, "{refused} refused, {open} open");
    }
}

/// Covers: PR-10: calls of a dead node may have been served, so what is reserved for them stays reserved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations_of_a_killed_node_stay() {
    let upstream = exacting().await;
    let other = answering().await;
    let models = exact_models(&upstream, &other);
    let mut stage = Stage::start(StoreKind::Redis, 3, "", &model_args(&models)).await;
    let most = bound(&exact_body("held", 0), OUTPUT);
    let share = ADMITTED as u64 * most;
    let budgets = Budgets::at(&stage.nodes[1]);
    budgets.set_tokens("user:ann", share).await;
    until_known(&stage.nodes, "ann").await;
    let lost = user(&Caller::new(&stage.nodes[0]), "ann");
    let mut at_dead = JoinSet::new();
    at_dead.spawn(async move { lost.post(Route::Chat.path(), exact_body("held", 0)).await });
    let mut held = vec![upstream.next().await];
    let mut at_live = JoinSet::new();
    for n in 0..CALLERS {
        let node = n % stage.nodes.len();
        let caller = user(&Caller::new(&stage.nodes[node]), "ann");
        let calls = if node == 0 { &mut at_dead } else { &mut at_live };
        calls.spawn(async move { caller.post(Route::Chat.path(), exact_body("held", node)).await });
    }
    held.push(upstream.next().await);
    stage.nodes[0].kill().await;
    at_dead.abort_all();
    let open = until_decided(&mut at_live, &upstream).await;
    let dead = ADMITTED - open;
    assert!(dead >= through(&upstream, 0).max(1), "{dead} of the dead node, {open} open");
    // Calls were refused, so that nothing is left.
    let budget = budgets.until_reserved("user:ann", ADMITTED, share).await;
    assert_eq!(budget["remaining_tokens"], 0, "{budget}");
    while held.len() < upstream.calls() {
        held.push(upstream.next().await);
    }
    held.iter().for_each(|exchange| exchange.release());
    for _ in 0..open {
        assert_eq!(next_answer(&mut at_live).await.status, 200);
    }
    let budget = budgets.until_reserved("user:ann", dead, dead as u64 * most).await;
    assert_eq!(budget["used"]["tokens"], open as u64 * most, "{budget}");
    // The node's next life gives nothing back, either.
    stage.nodes[0].restart().await;
    until_known(&stage.nodes, "ann").await;
    for node in &stage.nodes {
        let answer = user(&Caller::new(node), "ann").post(Route::Chat.path(), exact_body("fast", 0)).await;
        must_refuse(Route::Chat, &answer);
        assert_eq!(Budgets::at(node).show("user:ann").await, budget);
    }
    assert_eq!(upstream.calls(), open + through(&upstream, 0));
}

/// Covers: PR-10.
#[tokio::test]
async fn amounts_survive_a_restart() {
    let upstream = ScriptedUpstream::start(|request| {
        let is_held = request.json()["model"] == "held";
        if is_held { Answer::new().hang() } else { Answer::json(200, Route::Chat.answer()) }
    })
    .await;
    let dir = tempdir().expect("a directory");
    let mut node = open_node(&dir, &[flag("gpt", &upstream, PRICES), flag("held", &upstream, PRICES)]).await;
    let budgets = Budgets::at(&node);
    budgets.set("user:ann", json!({"tokens": PLENTY, "cost": PLENTY, "period": "month"})).await;
    let caller = user(&Caller::new(&node), "ann");
    let body = |model: &str| request(Route::Chat, model, &limit(Route::Chat, 100), false);
    assert_eq!(caller.post(Route::Chat.path(), body("gpt")).await.status, 200);
    budgets.until_settled("user:ann", 42, 183).await;
    let held = caller.clone();
    let text = body("held");
    let call = tokio::spawn(async move { held.post(Route::Chat.path(), text).await });
    while upstream.next().await.request.json()["model"] != "held" {}
    let most = bound(&body("held"), 100);
    let before = budgets.until_reserved("user:ann", 1, most).await;
    node.kill().await;
    call.abort();
    node.restart().await;
    assert_eq!(budgets.show("user:ann").await, before, "after a crash");
    assert_eq!(node.terminate().await, Some(0));
    node.restart().await;
    assert_eq!(budgets.show("user:ann").await, before, "after an orderly stop");
    // The call of the dead process keeps its share.
    let least = 42 + most + bound(&body("gpt"), 100);
    budgets.set("user:ann", json!({"tokens": least - 1, "period": "month"})).await;
    must_refuse(Route::Chat, &caller.post(Route::Chat.path(), body("gpt")).await);
    budgets.set("user:ann", json!({"tokens": least, "period": "month"})).await;
    assert_eq!(caller.post(Route::Chat.path(), body("gpt")).await.status, 200);
    let budget = budgets.until_reserved("user:ann", 1, most).await;
    assert_eq!(budget["used"], json!({"tokens": 84, "cost": 366}), "{budget}");
}
