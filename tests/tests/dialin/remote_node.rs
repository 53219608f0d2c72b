//! Remote attempts: agents connected to another node than the run's owner, with up to three nodes on one
//! Redis.
use crate::{connect_agent, connect_user, hello, next_order, run_end, send, start_turn, until_message};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use turnway_tests::real::identity::pepper;
use turnway_tests::real::node::Node;
use turnway_tests::real::quic::QuicConnection;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::tls::{Pair, Trust};
use turnway_tests::real::wire::{WebSocketClient, invoke};
use turnway_tests::real::{PATIENCE, figure, http, quantile};

/// Redis settings under which a killed server loses no acknowledged write.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

pub(crate) struct Fleet {
    pub(crate) nodes: Vec<Node>,
    redis: Redis,
    dir: TempDir,
}

impl Fleet {
    /// Starts `count` nodes whose agent `a` dials in, with these keys in its flag.
    pub(crate) async fn start(count: usize, keys: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let redis = Redis::start(&dir.path().join("redis"), &DURABLE);
        let mut fleet = Self { nodes: Vec::new(), redis, dir };
        for _ in 0..count {
            fleet.join(keys, &[]).await;
        }
        fleet
    }

    /// Starts `count` nodes whose agent `a` dials in and that require API keys.
    pub(crate) async fn guarded(count: usize) -> Self {
        let mut fleet = Self::start(0, "").await;
        let pepper = pepper(fleet.dir.path());
        let flags = ["--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
        for _ in 0..count {
            fleet.join("", &flags).await;
        }
        fleet
    }

    async fn join(&mut self, keys: &str, flags: &[&str]) {
        let home = self.dir.path().join(format!("n{}", self.nodes.len()));
        std::fs::create_dir_all(&home).expect("a directory");
        let agent = format!("a=dial-in:{keys}");
        let flags = [&["--demo", "--agent", agent.as_str()][..], flags].concat();
        self.nodes.push(Node::start_on(&self.redis.url(), &home, &flags).await);
    }

    /// Waits until a node's metrics contain this line.
    async fn until_metric(&self, node: usize, line: &str) {
        let seen = async {
            loop {
                let (_, page) = http::get(self.nodes[node].admin, "/metrics").await.expect("it answers");
                if page.lines().any(|it| it == line) {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("{line}"));
    }

    /// Waits until a node reports that its store is unavailable.
    async fn until_unready(&self, node: usize) {
        let seen = async { while http::get(self.nodes[node].admin, "/readyz").await.expect("it answers").0 == 200 {} };
        tokio::time::timeout(PATIENCE, seen).await.expect("it finds out");
    }

    /// Waits until a node counts these numbers of remote attempts in each direction.
    pub(crate) async fn until_remote_attempts(&self, node: usize, begun: usize, taken_on: usize) {
        self.until_metric(node, &format!("turnway_agent_remote_attempts{{direction=\"out\"}} {begun}")).await;
        self.until_metric(node, &format!("turnway_agent_remote_attempts{{direction=\"in\"}} {taken_on}")).await;
    }
}

/// Returns the next order, which must be an invoke.
async fn invoked(agent: &mut WebSocketClient) -> Value {
    next_order(agent, "invoke").await
}

/// Sends a piece of text with an event id.
async fn piece(agent: &mut WebSocketClient, invoke: &Value, text: &str, id: &str) {
    send(agent, invoke, "delta", json!({"text": text, "id": id})).await;
}

/// Covers: MP-F1, MP-F5: an agent serves every node; all that passes between it and its owner does so over the bus.
#[tokio::test]
async fn agent_serves_a_run_of_another_node() {
    let fleet = Fleet::start(2, ",steer=true").await;
    let mut agent = connect_agent(&fleet.nodes[1], json!({"steer": true})).await;
    let mut ann = connect_user(&fleet.nodes[0]).await;
    let host = start_turn(&mut ann, "s1", "hello").await;
    let invoke = invoked(&mut agent).await;
    assert_eq!((&invoke["run_id"], &invoke["attempt"]), (&json!(host), &json!(1)));
    assert_eq!(invoke["input_message"]["content"], "hello");
    fleet.until_remote_attempts(0, 1, 0).await;
    fleet.until_remote_attempts(1, 0, 1).await;
    send(&mut agent, &invoke, "input_ack", json!({})).await;
    until_message(&mut ann, &host, |message| message["name"] == "AGENT_STARTED").await;
    send(&mut agent, &invoke, "state", json!({"state": "thinking", "detail": {"deep": [1, null]}})).await;
    let thinks = |message: &Value| message["type"] == "state" && message["scope"] == "agent";
    let state = until_message(&mut ann, &host, thinks).await;
    assert_eq!((&state["state"], &state["detail"]), (&json!("thinking"), &json!({"deep": [1, null]})));
    // A steer reaches the agent, and the agent's answer reaches the sender.
    let taken = start_turn(&mut ann, "s1", "more").await;
    let steer = next_order(&mut agent, "steer").await;
    assert_eq!(steer["message"]["content"], "more");
    let ack = json!({"type": "steer_ack", "message_id": steer["message_id"], "outcome": "accepted"});
    agent.say(ack).await.expect("said");
    for n in 0..200 {
        send(&mut agent, &invoke, "delta", json!({"text": format!("語{n} ")})).await;
    }
    send(&mut agent, &invoke, "done", json!({"usage": {"tokens": 7}})).await;
    let mut text = String::new();
    let mut ends = Vec::new();
    while ends.len() < 2 {
        let message = ann.next().await.expect("it goes on");
        if message["type"] == "delta" {
            assert_eq!((&message["run_id"], &message["offset"]), (&json!(host), &json!(text.len())));
            text.push_str(message["text"].as_str().expect("text"));
        } else if message["type"] == "done" {
            ends.push(message);
        }
    }
    ends.sort_by_key(|done| done["run_id"] != host);
    let whole: String = (0..200).map(|n| format!("語{n} ")).collect();
    assert_eq!((text, &ends[0]["status"]), (whole, &json!("completed")));
    assert_eq!(ends[0]["usage"], json!({"tokens": 7}));
    assert_eq!((&ends[1]["run_id"], &ends[1]["host_run_id"]), (&json!(taken), &json!(host)));
    fleet.until_remote_attempts(0, 0, 0).await;
    fleet.until_remote_attempts(1, 0, 0).await;
    // A cancel reaches the agent, and the agent's acknowledgement comes back.
    let run = start_turn(&mut ann, "s1", "again").await;
    let invoke = invoked(&mut agent).await;
    send(&mut agent, &invoke, "input_ack", json!({})).await;
    until_message(&mut ann, &run, |message| message["name"] == "AGENT_STARTED").await;
    ann.say(json!({"type": "cancel_run", "run_id": run})).await.expect("said");
    let cancel = next_order(&mut agent, "cancel").await;
    send(&mut agent, &cancel, "cancel_ack", json!({})).await;
    assert_eq!(run_end(&mut ann, &run).await.1["status"], "cancelled");
}

/// Covers: MP-F1: operators see where an agent is connected, whichever node they ask.
#[tokio::test]
async fn agents_endpoint_lists_the_nodes_of_an_agent() {
    let fleet = Fleet::start(2, "").await;
    let _agents = [connect_agent(&fleet.nodes[1], json!({})).await, connect_agent(&fleet.nodes[1], json!({})).await];
    let wanted = json!([{"node_id": fleet.nodes[1].id, "connections": 2}]);
    let seen = async {
        loop {
            let (_, page) = http::get(fleet.nodes[0].http, "/v1/agents").await.expect("it answers");
            let page: Value = serde_json::from_str(&page).expect("JSON");
            let agents = page["agents"].as_array().expect("a list");
            let agent = agents.iter().find(|agent| agent["agent_id"] == "a").expect("it is configured");
            if agent["nodes"] == wanted {
                assert_eq!((&agent["healthy"], &agent["kind"]), (&json!(true), &json!("dial_in")));
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, seen).await.expect("both connections are known");
}

/// Covers: MP-A1.
#[tokio::test]
async fn quic_agent_serves_a_run_of_another_node() {
    let mut fleet = Fleet::start(1, "").await;
    let pair = Pair::make(fleet.dir.path(), "pair").await;
    let flags = [&["--quic", "127.0.0.1:0"][..], &pair.flags()].concat();
    fleet.join("", &flags).await;
    let quic = fleet.nodes[1].quic.expect("it speaks QUIC");
    let trust = Trust::of([&pair]);
    let agent = QuicConnection::open(quic, &trust).await.expect("it connects");
    let mut agent = agent.greet_with(hello(&json!({}))).await.expect("welcome");
    let mut ann = connect_user(&fleet.nodes[0]).await;
    let run = start_turn(&mut ann, "s1", "hello").await;
    let invoke = agent.until(|order| order["type"] == "invoke").await.expect("an order");
    for (kind, text) in [("delta", "by "), ("delta", "datagrams"), ("done", "")] {
        let message = json!({"type": kind, "run_id": invoke["run_id"], "text": text});
        agent.say(&message).await.expect("said");
    }
    assert_eq!(run_end(&mut ann, &run).await.0, "by datagrams");
}

/// Covers: G3, G6: the agent's node is killed in mid-answer; its next connection is at another one, and goes on there.
#[tokio::test]
async fn answer_resumes_after_the_agents_node_is_killed() {
    let mut fleet = Fleet::start(3, ",on_owner_loss=resume").await;
    let can = json!({"resume": true});
    let mut one = connect_agent(&fleet.nodes[1], can.clone()).await;
    let mut ann = connect_user(&fleet.nodes[0]).await;
    let run = start_turn(&mut ann, "s1", "hello").await;
    let invoke = invoked(&mut one).await;
    piece(&mut one, &invoke, "one ", "e1").await;
    piece(&mut one, &invoke, "two ", "e2").await;
    until_message(&mut ann, &run, |message| message["offset"] == 4).await;
    fleet.nodes[1].kill().await;
    let killed = Instant::now();
    let mut two = connect_agent(&fleet.nodes[2], can).await;
    let invoke = invoked(&mut two).await;
    figure(
        "kill -9 of an agent's node, until its next connection elsewhere is asked",
        format!("{:?}", killed.elapsed()),
    );
    assert_eq!((&invoke["attempt"], &invoke["resume"]), (&json!(1), &json!({"last_event_id": "e2"})));
    piece(&mut two, &invoke, "three", "e3").await;
    send(&mut two, &invoke, "done", json!({"id": "e4"})).await;
    let mut rest = String::new();
    let done = loop {
        let message =
            until_message(&mut ann, &run, |message| message["type"] == "delta" || message["type"] == "done").await;
        if message["type"] == "done" {
            break message;
        }
        assert_eq!((&message["offset"], &message["attempt"]), (&json!(8 + rest.len()), &json!(1)));
        rest.push_str(message["text"].as_str().expect("text"));
    };
    assert_eq!((rest.as_str(), &done["status"]), ("three", &json!("completed")));
    assert!(killed.elapsed() < Duration::from_secs(4), "{:?}", killed.elapsed());
}

/// Covers: G3, MP-F1: the owner is killed in mid-answer; its agent, which is connected elsewhere, is not told to stop
/// but asked by the next owner for what follows.
#[tokio::test]
async fn answer_resumes_after_its_owner_is_killed() {
    let mut fleet = Fleet::start(3, ",on_owner_loss=resume").await;
    let mut agent = connect_agent(&fleet.nodes[1], json!({"resume": true})).await;
    let mut asker = connect_user(&fleet.nodes[0]).await;
    let mut ann = connect_user(&fleet.nodes[2]).await;
    let run = start_turn(&mut asker, "s1", "hello").await;
    let opened =
        ann.ask("o", json!({"type": "subscribe", "session_id": "s1", "after_seq": 0})).await.expect("answered");
    assert_eq!(opened["type"], "subscribed", "{opened}");
    let invoke = invoked(&mut agent).await;
    piece(&mut agent, &invoke, "one ", "e1").await;
    until_message(&mut ann, &run, |message| message["type"] == "delta").await;
    fleet.nodes[0].kill().await;
    let again = invoked(&mut agent).await;
    assert_eq!((&again["run_id"], &again["attempt"]), (&json!(run), &json!(1)));
    assert!(again["epoch"].as_u64() > invoke["epoch"].as_u64(), "{again}");
    let resume = again["resume"].as_object().expect("it is to go on");
    if resume.get("last_event_id").is_none() {
        piece(&mut agent, &again, "one ", "e1").await;
    }
    piece(&mut agent, &again, "two", "e2").await;
    send(&mut agent, &again, "done", json!({"id": "e3"})).await;
    let done = until_message(&mut ann, &run, |message| message["type"] == "done").await;
    assert_eq!((&done["status"], &done["attempt"], &done["text_bytes"]), (&json!("completed"), &json!(1), &json!(7)));
    // The agent got no cancel: its next order is the invoke of the next turn.
    let next = start_turn(&mut ann, "s2", "next").await;
    assert_eq!(invoked(&mut agent).await["run_id"], json!(next));
}

/// Covers: G9, MP-F5: Redis is killed in mid-answer and comes back; what was said meanwhile is said again, once.
#[tokio::test]
async fn answer_is_complete_after_a_redis_restart() {
    let mut fleet = Fleet::start(2, "").await;
    let mut agent = connect_agent(&fleet.nodes[1], json!({})).await;
    let mut ann = connect_user(&fleet.nodes[0]).await;
    let run = start_turn(&mut ann, "s1", "hello").await;
    let invoke = invoked(&mut agent).await;
    send(&mut agent, &invoke, "delta", json!({"text": "before "})).await;
    until_message(&mut ann, &run, |message| message["type"] == "delta").await;
    fleet.redis.kill();
    for n in 0..20 {
        send(&mut agent, &invoke, "delta", json!({"text": format!("{n} ")})).await;
    }
    // Both nodes have noticed the outage.
    for node in [0, 1] {
        fleet.until_unready(node).await;
    }
    fleet.redis.restart();
    send(&mut agent, &invoke, "delta", json!({"text": "after"})).await;
    send(&mut agent, &invoke, "done", json!({})).await;
    let mut text = "before ".to_owned();
    let done = loop {
        let message =
            until_message(&mut ann, &run, |message| message["type"] == "delta" || message["type"] == "done").await;
        if message["type"] == "done" {
            break message;
        }
        assert_eq!((&message["offset"], &message["attempt"]), (&json!(text.len()), &json!(1)), "{message}");
        text.push_str(message["text"].as_str().expect("text"));
    };
    let whole: String = (0..20).map(|n| format!("{n} ")).collect();
    assert_eq!((text, &done["status"]), (format!("before {whole}after"), &json!("completed")));
}

/// Covers: MP-F1: attempts are spread over the connections of an agent, at whichever nodes they are.
#[tokio::test]
async fn attempts_are_balanced_over_nodes() {
    let fleet = Fleet::start(3, "").await;
    let mut agents = [connect_agent(&fleet.nodes[1], json!({})).await, connect_agent(&fleet.nodes[2], json!({})).await];
    let mut ann = connect_user(&fleet.nodes[0]).await;
    // Both connections are known before the first attempt chooses one.
    let known = async {
        loop {
            let (_, page) = http::get(fleet.nodes[0].http, "/v1/agents").await.expect("it answers");
            if page.matches("\"connections\":1").count() == 2 {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, known).await.expect("both are known");
    for n in 0..20 {
        start_turn(&mut ann, &format!("s{n}"), "hello").await;
    }
    let [one, two] = &mut agents;
    let mut asked = [0, 0];
    let mut done = 0;
    while done < 20 {
        let (which, invoke, agent) = tokio::select! {
            order = one.next() => (0, order.expect("an order"), &mut *one),
            order = two.next() => (1, order.expect("an order"), &mut *two),
        };
        assert_eq!(invoke["type"], "invoke", "{invoke}");
        asked[which] += 1;
        send(agent, &invoke, "done", json!({})).await;
        done += 1;
    }
    assert!(asked.iter().all(|asked| *asked >= 7), "{asked:?}");
}

/// Covers: MP-B13: a node that leaves lets end what others have under way with its agents.
#[tokio::test]
async fn leaving_node_lets_remote_attempts_end() {
    let mut fleet = Fleet::start(2, "").await;
    let mut agent = connect_agent(&fleet.nodes[1], json!({})).await;
    let mut ann = connect_user(&fleet.nodes[0]).await;
    let run = start_turn(&mut ann, "s1", "hello").await;
    let invoke = invoked(&mut agent).await;
    send(&mut agent, &invoke, "input_ack", json!({})).await;
    until_message(&mut ann, &run, |message| message["name"] == "AGENT_STARTED").await;
    fleet.nodes[1].signal("-TERM").await;
    next_order(&mut agent, "go_away").await;
    send(&mut agent, &invoke, "delta", json!({"text": "to the end"})).await;
    send(&mut agent, &invoke, "done", json!({})).await;
    assert_eq!(run_end(&mut ann, &run).await.0, "to the end");
    assert_eq!(fleet.nodes[1].exit().await, Some(0));
}

/// Covers: MP-D15: who comes to another node while a run waits is asked.
#[tokio::test]
async fn agent_that_connects_elsewhere_gets_the_waiting_run() {
    let fleet = Fleet::start(2, "").await;
    let mut ann = connect_user(&fleet.nodes[0]).await;
    let run = start_turn(&mut ann, "s1", "anybody?").await;
    until_message(&mut ann, &run, |message| message["type"] == "run_started").await;
    let mut agent = connect_agent(&fleet.nodes[1], json!({})).await;
    let invoke = invoked(&mut agent).await;
    assert_eq!(invoke["run_id"], json!(run));
    // A run whose connection ends in mid-answer is sent to a connection at the other node.
    drop(agent);
    let mut agent = connect_agent(&fleet.nodes[0], json!({})).await;
    let invoke = invoked(&mut agent).await;
    assert_eq!((&invoke["run_id"], &invoke["attempt"]), (&json!(run), &json!(2)));
    send(&mut agent, &invoke, "done", json!({})).await;
    assert_eq!(run_end(&mut ann, &run).await.1["status"], "completed");
}

/// Covers: MP-F1: many answers side by side, begun as soon as they are asked for: a word that overtook another would be
/// lost, and said again only after a count of what there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_remote_attempts_keep_message_order() {
    let fleet = Fleet::start(2, "").await;
    let mut agent = connect_agent(&fleet.nodes[1], json!({})).await;
    let mut ann = connect_user(&fleet.nodes[0]).await;
    let answers = tokio::spawn(async move {
        while let Ok(order) = agent.next().await {
            for text in ["one ", "two ", "three"] {
                send(&mut agent, &order, "delta", json!({"text": text})).await;
            }
            send(&mut agent, &order, "done", json!({})).await;
        }
    });
    let sessions = 30;
    let mut slowest = Duration::ZERO;
    for round in 0..20 {
        let began = Instant::now();
        for n in 0..sessions {
            let mut words = invoke(&format!("s{n}"), "a", "hello");
            words["request_id"] = format!("r{round} s{n}").into();
            ann.say(words).await.expect("said");
        }
        for _ in 0..sessions {
            let done = ann.until(|message| message["type"] == "done").await.expect("its end");
            assert_eq!((&done["status"], &done["text_bytes"]), (&json!("completed"), &json!(13)), "{done}");
        }
        slowest = slowest.max(began.elapsed());
    }
    drop(ann);
    answers.abort();
    figure("30 turns at once by an agent at another node, the slowest of 20 rounds", format!("{slowest:?}"));
    // A retransmission would come only after a second.
    assert!(slowest < Duration::from_millis(900), "{slowest:?}");
}

/// Measures the time to the first delta with the agent's connection at the owner and at another node.
#[tokio::test]
async fn remote_attempt_latency_is_measured() {
    let fleet = Fleet::start(2, "").await;
    let mut ann = connect_user(&fleet.nodes[0]).await;
    let mut halves = Vec::new();
    for node in [0, 1] {
        let mut agent = connect_agent(&fleet.nodes[node], json!({})).await;
        let mut took = Vec::new();
        for n in 0..100 {
            let began = Instant::now();
            let run = start_turn(&mut ann, &format!("s{node}"), &format!("hello {n}")).await;
            let invoke = invoked(&mut agent).await;
            send(&mut agent, &invoke, "delta", json!({"text": "x"})).await;
            until_message(&mut ann, &run, |message| message["type"] == "delta").await;
            took.push(began.elapsed());
            send(&mut agent, &invoke, "done", json!({})).await;
            run_end(&mut ann, &run).await;
        }
        halves.push(quantile(&mut took, 0.5));
    }
    figure(
        "from an input to the first piece of a dialed-in agent's answer, its connection at the owner / at another node, p50",
        format!("{:?} / {:?}", halves[0], halves[1]),
    );
    assert!(halves[1] < halves[0] + Duration::from_millis(20), "{halves:?}");
}
