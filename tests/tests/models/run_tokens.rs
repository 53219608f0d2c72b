//! Agents that call models with the tokens of their runs, while these runs are open.
use crate::caller::Caller;
use crate::cancel::must_be_closed_soon;
use crate::route::Route;
use crate::world::{flag, until_quiet};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tempfile::{TempDir, tempdir};
use tokio::sync::{mpsc, watch};
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream};
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Time after the end of a run at which its token must be dead (PR-27).
const DEAD_WITHIN: Duration = Duration::from_secs(2);

/// A node with an agent whose run is open, and the client that opened it.
struct OpenRun {
    node: Node,
    client: WebSocketClient,
    run_id: Value,
    /// A caller with the token of the run.
    caller: Caller,
    /// Lets the agent end its answer.
    end: watch::Sender<bool>,
    _agents: Agents,
}

impl OpenRun {
    async fn begin(dir: &TempDir, upstream: &ScriptedUpstream) -> Self {
        let (told, mut tokens) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(false);
        let agents = Agents::start(move |invocation| {
            // The test may have ended.
            let _ = told.send(invocation.token.clone());
            let mut ended = ended.clone();
            Reply::speak(|stream| async move {
                stream.delta("thinking").await?;
                tokio::select! {
                    gone = stream.hung_up() => return gone,
                    told = ended.wait_for(|ended| *ended) => drop(told),
                }
                stream.done().await
            })
        })
        .await;
        let agent = agents.flag("helper");
        let model = flag("gpt", upstream, "");
        let node = guarded(dir, &["--agent", &agent, "--model", &model]).await;
        // The user's own key has no right to call models.
        let ann = Key::make(&node, &["--user", "ann"]).await;
        let mut client = ann.hello(node.http, None).await.expect("let in");
        let accepted = client.ask("a1", invoke("s1", "helper", "hi")).await.expect("an answer");
        let token = timeout(PATIENCE, tokens.recv()).await.expect("invoked in time").expect("a token");
        assert!(token.starts_with("twrun_"), "a token of a run");
        let caller = Caller::new(&node).bearer(&token);
        Self { node, client, run_id: accepted["run_id"].clone(), caller, end, _agents: agents }
    }

    async fn cancel(&mut self) {
        let cancel = json!({"type": "cancel_run", "run_id": self.run_id});
        self.client.say(cancel).await.expect("sent");
    }
}

/// Waits until the run's token is refused.
async fn until_dead(caller: &Caller) -> Duration {
    let begun = Instant::now();
    let mut looks = interval(Duration::from_millis(50));
    loop {
        looks.tick().await;
        let answer = caller.post(Route::Chat.path(), Route::Chat.request("gpt", false)).await;
        if answer.status == 401 {
            Route::Chat.must_be(&answer, 401, "unauthorized");
            return begun.elapsed();
        }
        assert!(begun.elapsed() < PATIENCE, "{}", answer.text());
    }
}

/// Covers: PR-1, PR-14, PR-27.
#[tokio::test]
async fn agent_calls_models_while_its_run_is_open() {
    let upstream =
        ScriptedUpstream::start(|request| Route::of(&request.path).script(request.json()["stream"] == true)).await;
    let dir = tempdir().expect("a directory");
    let mut run = OpenRun::begin(&dir, &upstream).await;
    for (route, stream) in Route::modes() {
        let answer = run.caller.post(route.path(), route.request("gpt", stream)).await;
        assert_eq!((answer.status, answer.body), (200, route.script_bytes(stream)), "{route:?} {stream}");
        let request = upstream.next().await.request.clone();
        assert!(!format!("{request:?}").contains("twrun_"), "the token reached the upstream");
    }
    // A run token opens no turn.
    let turn = run.caller.post(Route::Chat.path(), Route::Chat.request("agent/helper", false)).await;
    Route::Chat.must_be(&turn, 403, "forbidden");
    let unknown = run.caller.post(Route::Chat.path(), Route::Chat.request("other", false)).await;
    Route::Chat.must_be(&unknown, 404, "model_not_found");
    let forged = Caller::new(&run.node).bearer("twrun_x.y");
    for route in Route::ALL {
        route.must_be(&forged.post(route.path(), route.request("gpt", false)).await, 401, "unauthorized");
    }
    run.end.send(true).expect("the agent waits");
    run.client.until(|message| message["type"] == "done").await.expect("an end");
    let took = until_dead(&run.caller).await;
    assert!(took < DEAD_WITHIN, "{took:?}");
    let calls = upstream.calls();
    for (route, stream) in Route::modes() {
        let answer = run.caller.post(route.path(), route.request("gpt", stream)).await;
        route.must_be(&answer, 401, "unauthorized");
    }
    assert_eq!(upstream.calls(), calls);
    assert!(!run.node.log().contains("twrun_"), "a token is in the log");
    until_quiet(&run.node).await;
}

/// Covers: PR-8, PR-27.
#[tokio::test]
async fn anthropics_header_takes_a_run_token() {
    let upstream = ScriptedUpstream::start(|request| Route::of(&request.path).script(false)).await;
    let (told, mut tokens) = mpsc::unbounded_channel();
    let agents = Agents::start(move |invocation| {
        // The test may have ended.
        let _ = told.send(invocation.token.clone());
        Reply::speak(|stream| async move { stream.hung_up().await })
    })
    .await;
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--model", &flag("gpt", &upstream, "")]).await;
    let mut client = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("let in");
    client.ask("a1", invoke("s1", "a", "hi")).await.expect("an answer");
    let token = timeout(PATIENCE, tokens.recv()).await.expect("invoked in time").expect("a token");
    let caller = Caller::new(&node).with("x-api-key", &token);
    let answer = caller.post(Route::Messages.path(), Route::Messages.request("gpt", false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Answers with the first event of a stream, or half of a body, and hangs.
async fn hanging() -> ScriptedUpstream {
    ScriptedUpstream::start(|request| {
        let route = Route::of(&request.path);
        match request.json()["stream"].as_bool() {
            Some(true) => Answer::stream().piece(route.events()[0].as_bytes()).hang(),
            Some(false) | None => Answer::new().hang(),
        }
    })
    .await
}

/// Asserts that every call of the run, streamed and not, ends soon after `stop`.
async fn calls_end_with(run: &mut OpenRun, upstream: &ScriptedUpstream, stop: impl AsyncFnOnce(&mut OpenRun)) {
    let mut streams = Vec::new();
    let mut exchanges = Vec::new();
    for route in Route::STREAMED {
        let mut open = run.caller.open("POST", route.path(), route.request("gpt", true)).await;
        open.until_exactly(route.events()[0].as_bytes()).await;
        streams.push((route, open));
        exchanges.push(upstream.next().await);
    }
    let mut waiting = Vec::new();
    for route in Route::ALL {
        let caller = run.caller.clone();
        waiting.push(tokio::spawn(async move { caller.post(route.path(), route.request("gpt", false)).await }));
        exchanges.push(upstream.next().await);
    }
    let stopped = Instant::now();
    stop(run).await;
    for exchange in &exchanges {
        must_be_closed_soon(exchange, stopped, &exchange.request.path).await;
    }
    for (route, open) in streams {
        let answer = open.rest().await;
        route.must_be_error_event(&answer.body[route.events()[0].len()..], "run_ended");
    }
    for answer in waiting {
        let answer = timeout(PATIENCE, answer).await.expect("an answer in time").expect("an answer");
        assert!(answer.status >= 400, "{answer:?}");
    }
    until_quiet(&run.node).await;
}

/// Covers: PR-8, PR-27.
#[tokio::test]
async fn cancelled_run_ends_its_model_calls() {
    let upstream = hanging().await;
    let dir = tempdir().expect("a directory");
    let mut run = OpenRun::begin(&dir, &upstream).await;
    calls_end_with(&mut run, &upstream, OpenRun::cancel).await;
    assert!(until_dead(&run.caller).await < DEAD_WITHIN);
}

/// Covers: PR-8, PR-27.
#[tokio::test]
async fn ended_run_ends_its_model_calls() {
    let upstream = hanging().await;
    let dir = tempdir().expect("a directory");
    let mut run = OpenRun::begin(&dir, &upstream).await;
    calls_end_with(&mut run, &upstream, async |run: &mut OpenRun| {
        run.end.send(true).expect("the agent waits");
        run.client.until(|message| message["type"] == "done").await.expect("an end");
    })
    .await;
    assert!(until_dead(&run.caller).await < DEAD_WITHIN);
}
