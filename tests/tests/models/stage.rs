//! Stages for tests of runs that call models: nodes, agents and runs that a test leads, and the recorded calls of a run with
//! their sums. Asserts no more than that records are well formed.
use crate::caller::Caller;
use crate::route::Route;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tempfile::{TempDir, tempdir};
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{AgentStream, Agents, HungUp, Invocation, Reply};
use turnway_tests::real::documented;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Agent whose runs the tests open.
pub(crate) const AGENT: &str = "helper";
/// Prices of a million tokens. The usage of [`Route`] then costs 50 + 12.5 + 120 millionths, and that of embeddings 20.
pub(crate) const PRICES: &str = "price_input=2500000,price_cached=1250000,price_output=10000000";
/// Redis settings under which a node waits for the disk, as in production.
pub(crate) const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

// === nodes, agents and runs ===

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Embedded,
    Redis,
}

/// The next step of an agent.
#[derive(Clone, Copy, Debug)]
enum Cue {
    Text(&'static str),
    Done,
}

/// One invocation of an agent, which accepts its input at once, and then sends only what the test tells it to send.
#[derive(Debug)]
pub(crate) struct LedAttempt {
    pub(crate) invocation: Invocation,
    cues: mpsc::UnboundedSender<Cue>,
}

/// Agents that a test leads.
#[derive(Debug)]
pub(crate) struct LedAgents {
    pub(crate) agents: Agents,
    attempts: mpsc::UnboundedReceiver<LedAttempt>,
}

/// Nodes of one store, without authentication, and an agent that the test leads.
pub(crate) struct Stage {
    pub(crate) nodes: Vec<Node>,
    pub(crate) agents: LedAgents,
    redis: Option<Redis>,
    flags: Vec<String>,
    dir: TempDir,
}

/// An open run.
pub(crate) struct TestRun {
    /// The client that opened the run.
    pub(crate) client: WebSocketClient,
    pub(crate) id: String,
    pub(crate) session: String,
    pub(crate) attempt: LedAttempt,
    /// A caller with the token of the run, at the node of the client.
    pub(crate) caller: Caller,
}

impl StoreKind {
    pub(crate) const ALL: [Self; 2] = [Self::Embedded, Self::Redis];
}

impl LedAttempt {
    /// Lets the agent send a piece of text.
    pub(crate) fn say(&self, text: &'static str) {
        self.cues.send(Cue::Text(text)).expect("the agent is there");
    }

    /// Lets the agent end its answer.
    pub(crate) fn finish(&self) {
        self.cues.send(Cue::Done).expect("the agent is there");
    }
}

async fn follow(stream: AgentStream, mut cues: mpsc::UnboundedReceiver<Cue>) -> Result<(), HungUp> {
    loop {
        let cue = tokio::select! {
            gone = stream.hung_up() => return gone,
            cue = cues.recv() => cue,
        };
        match cue {
            Some(Cue::Text(text)) => stream.delta(text).await?,
            Some(Cue::Done) => return stream.done().await,
            // The test leads another attempt.
            None => return stream.hung_up().await,
        }
    }
}

impl LedAgents {
    pub(crate) async fn start() -> Self {
        let (told, attempts) = mpsc::unbounded_channel();
        let agents = Agents::start(move |invocation| {
            let (cues, heard) = mpsc::unbounded_channel();
            // The test may have ended.
            let _ = told.send(LedAttempt { invocation, cues });
            Reply::speak(|stream| follow(stream, heard))
        });
        Self { agents: agents.await, attempts }
    }

    /// Waits for the next invocation.
    pub(crate) async fn next(&mut self) -> LedAttempt {
        timeout(PATIENCE, self.attempts.recv()).await.expect("invoked in time").expect("the agents live")
    }
}

impl Stage {
    /// Starts nodes with further settings of the agent, each after a comma, and further arguments of the nodes.
    pub(crate) async fn start(store: StoreKind, nodes: usize, agent_settings: &str, args: &[&str]) -> Self {
        let dir = tempdir().expect("a directory");
        let redis = match store {
            StoreKind::Embedded => None,
            StoreKind::Redis => Some(Redis::start(&dir.path().join("redis"), &DURABLE)),
        };
        let agents = LedAgents::start().await;
        let agent = format!("{},on_owner_loss=retry{agent_settings}", agents.agents.flag(AGENT));
        let flags = [&["--agent", &agent][..], args].concat().iter().map(|&flag| flag.to_owned()).collect();
        let mut stage = Self { nodes: Vec::new(), agents, redis, flags, dir };
        for _ in 0..nodes {
            stage.join().await;
        }
        stage
    }

    async fn join(&mut self) {
        let home = self.dir.path().join(format!("node-{}", self.nodes.len()));
        std::fs::create_dir_all(&home).expect("a directory");
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let node = match &self.redis {
            Some(redis) => Node::start_on(&redis.url(), &home, &flags).await,
            None => Node::start(&home, &flags).await,
        };
        self.nodes.push(node);
    }

    pub(crate) fn redis(&self) -> &Redis {
        self.redis.as_ref().expect("a stage with Redis")
    }

    /// Returns a reader at a node, for the user of [`Self::open_run`].
    pub(crate) fn web(&self, node: usize) -> Web {
        Web::new(self.nodes[node].http, Some("ann"))
    }

    /// Opens a run of the agent at the first node, which becomes the owner of the session.
    pub(crate) async fn open_run(&mut self, session: &str) -> TestRun {
        let node = &self.nodes[0];
        let mut client = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("let in");
        let accepted = client.ask(&format!("open-{session}"), invoke(session, AGENT, "hi")).await.expect("an answer");
        let attempt = self.agents.next().await;
        let id = accepted["run_id"].as_str().unwrap_or_else(|| panic!("{accepted}")).to_owned();
        assert_eq!(attempt.invocation.run_id, id);
        let caller = Caller::new(node).bearer(&attempt.invocation.token);
        TestRun { client, id, session: session.to_owned(), attempt, caller }
    }

    /// Asserts that the first node owns a session.
    pub(crate) fn must_own(&self, session: &str) {
        let key = format!("own:{{default/{session}}}");
        let owner = self.redis().command::<Option<String>>(&["HGET", &key, "n"]);
        assert_eq!(owner.as_ref(), Some(&self.nodes[0].id));
    }

    /// Kills the first node, the owner of a run. Returns once the run's agent is asked again by the second node, which the
    /// client of the run follows from then on.
    pub(crate) async fn kill_owner(&mut self, run: &mut TestRun, meanwhile: impl FnOnce()) {
        self.must_own(&run.session);
        self.nodes[0].kill().await;
        meanwhile();
        run.attempt = self.agents.next().await;
        assert_eq!((&run.attempt.invocation.run_id, run.attempt.invocation.attempt), (&run.id, 2));
        let resume = vec![json!({"session_id": run.session, "after_seq": 0})];
        run.client = WebSocketClient::hello(self.nodes[1].http, "ann", resume).await.expect("welcome");
    }

    /// Follows a run at the first node, which was restarted, once the run's agent is asked again.
    pub(crate) async fn continue_run(&mut self, run: &mut TestRun) {
        run.attempt = self.agents.next().await;
        assert_eq!((&run.attempt.invocation.run_id, run.attempt.invocation.attempt), (&run.id, 2));
        let resume = vec![json!({"session_id": run.session, "after_seq": 0})];
        run.client = WebSocketClient::hello(self.nodes[0].http, "ann", resume).await.expect("welcome");
    }

    /// Opens another run in the session of a run that has ended; returns its id.
    pub(crate) async fn open_next_run(&mut self, run: &mut TestRun) -> String {
        let accepted = run.client.ask("next", invoke(&run.session, AGENT, "again")).await.expect("an answer");
        let attempt = self.agents.next().await;
        assert_eq!(accepted["run_id"], attempt.invocation.run_id);
        attempt.invocation.run_id
    }
}

impl TestRun {
    /// Waits for the end of the run; returns its status, or the code of its failure.
    pub(crate) async fn end(&mut self) -> String {
        let is_end =
            |message: &Value| message["run_id"] == self.id && (message["type"] == "done" || message["type"] == "error");
        let end = self.client.until(is_end).await.expect("an end");
        let result = end["code"].as_str().or(end["status"].as_str());
        result.unwrap_or_else(|| panic!("{end}")).to_owned()
    }

    /// Lets the agent end its answer, and waits for the end of the run.
    pub(crate) async fn must_complete(&mut self) {
        self.attempt.finish();
        assert_eq!(self.end().await, "completed");
    }

    /// Makes a call and reads its whole answer; returns the status.
    pub(crate) async fn call(&self, route: Route, model: &str, stream: bool) -> u16 {
        self.caller.post(route.path(), route.request(model, stream)).await.status
    }
}

// === facts ===

/// The record of one call.
#[derive(Clone, Debug)]
pub(crate) struct RecordedCall {
    pub(crate) run_id: Value,
    /// Data of `llm.call.started`.
    pub(crate) started: Value,
    /// Data of `llm.call.ended`; null while the call is open.
    pub(crate) ended: Value,
}

impl RecordedCall {
    pub(crate) fn is_of(&self, model: &str) -> bool {
        self.started["model"] == model
    }
}

/// Reads the calls in a session's log, in the order of their beginnings. Panics if one of them has started or ended twice,
/// or ended before it started. Returns nothing while the session is not available.
pub(crate) async fn read_calls(web: &Web, session: &str) -> Option<Vec<RecordedCall>> {
    let mut calls: Vec<RecordedCall> = Vec::new();
    let mut after = Value::from(0);
    while !after.is_null() {
        let reply = web.get(&format!("/v1/sessions/{session}/events?types=llm.%3E&after_seq={after}")).await;
        if reply.status == 503 {
            return None;
        }
        assert_eq!(reply.status, 200, "{}", reply.text);
        let mut page = reply.json();
        for fact in page["events"].as_array().expect("events") {
            documented::assert_event_data(fact);
            add_fact(&mut calls, fact);
        }
        after = page["next"].take();
    }
    Some(calls)
}

fn add_fact(calls: &mut Vec<RecordedCall>, fact: &Value) {
    let data = &fact["data"];
    let known = calls.iter_mut().find(|call| call.started["call_id"] == data["call_id"]);
    match (fact["type"].as_str(), known) {
        (Some("llm.call.started"), None) => {
            calls.push(RecordedCall { run_id: fact["run_id"].clone(), started: data.clone(), ended: Value::Null });
        }
        (Some("llm.call.ended"), Some(call)) => {
            assert_eq!(call.ended, Value::Null, "a call ended twice: {fact}");
            assert_eq!(call.run_id, fact["run_id"], "{fact}");
            for same in ["agent_id", "model"] {
                assert_eq!(call.started[same], data[same], "{fact}");
            }
            call.ended = data.clone();
        }
        (_, known) => panic!("{fact} after {known:?}"),
    }
}

/// Waits until the calls in a session's log satisfy `fits`.
pub(crate) async fn until_calls(web: &Web, session: &str, fits: impl Fn(&[RecordedCall]) -> bool) -> Vec<RecordedCall> {
    let begun = Instant::now();
    let mut looks = interval(Duration::from_millis(20));
    loop {
        looks.tick().await;
        let calls = read_calls(web, session).await;
        match calls {
            Some(calls) if fits(&calls) => return calls,
            calls => assert!(begun.elapsed() < PATIENCE, "{calls:#?}"),
        }
    }
}

/// Waits until this number of calls of a session has ended, and no call is open. Panics if there are more.
pub(crate) async fn until_ended(web: &Web, session: &str, count: usize) -> Vec<RecordedCall> {
    let all_ended = |calls: &[RecordedCall]| calls.len() >= count && calls.iter().all(|call| !call.ended.is_null());
    let calls = until_calls(web, session, all_ended).await;
    assert_eq!(calls.len(), count, "{calls:#?}");
    calls
}

/// Waits until a run has this number of open calls; returns its usage.
pub(crate) async fn until_open(web: &Web, run_id: &str, count: u64) -> Value {
    let begun = Instant::now();
    let mut looks = interval(Duration::from_millis(20));
    loop {
        looks.tick().await;
        let usage = web.json(&format!("/v1/runs/{run_id}/usage")).await;
        assert_eq!(usage["run_id"], run_id);
        if usage["open_calls"] == count {
            return usage;
        }
        assert!(begun.elapsed() < PATIENCE, "{usage}");
    }
}

// === sums ===

/// Sums up the ends of calls as the usage of a run does.
fn sum_of(ends: &[&Value]) -> Value {
    let total = |count: &dyn Fn(&Value) -> u64| ends.iter().map(|end| count(end)).sum::<u64>();
    let tokens = |name: &str| total(&|end| end["usage"][name].as_u64().unwrap_or(0));
    let is_uncounted = |end: &Value| end["usage"]["input_tokens"].is_null();
    json!({
        "calls": ends.len(),
        "calls_without_usage": total(&|end| u64::from(is_uncounted(end))),
        "input_tokens": tokens("input_tokens"),
        "cached_input_tokens": tokens("cached_input_tokens"),
        "output_tokens": tokens("output_tokens"),
        "reasoning_tokens": tokens("reasoning_tokens"),
        "cost": total(&|end| end["cost"].as_u64().unwrap_or(0)),
        "calls_without_cost": total(&|end| u64::from(end["cost"].is_null())),
    })
}

/// Returns the usage that the calls of a run add up to, without its open calls; models in the order of their names.
pub(crate) fn usage_of(run_id: &str, calls: &[RecordedCall]) -> Value {
    let ends: Vec<&Value> = calls.iter().map(|call| &call.ended).collect();
    let models: BTreeSet<&str> = ends.iter().filter_map(|end| end["model"].as_str()).collect();
    let by_model = models.into_iter().map(|model| {
        let own: Vec<&Value> = ends.iter().copied().filter(|end| end["model"] == model).collect();
        let mut sum = sum_of(&own);
        sum["agent_id"] = own[0]["agent_id"].clone();
        sum["model"] = model.into();
        sum
    });
    let mut usage = sum_of(&ends);
    usage["by_model"] = by_model.collect();
    usage["run_id"] = run_id.into();
    usage["open_calls"] = 0.into();
    usage
}

/// Sorts the models of a usage by their names.
pub(crate) fn sorted(mut usage: Value) -> Value {
    let models = usage["by_model"].as_array_mut().expect("a list");
    models.sort_by_key(|entry| entry["model"].to_string());
    usage
}
