//! A node with many running turns that gets SIGTERM.
use crate::{Fleet, LASTING, PIECES, STEADY, answer, figure_quantiles};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::interval;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};
use turnway_tests::real::{figure, size};

/// Maximum time for the node to leave.
const LEAVES_WITHIN: Duration = Duration::from_secs(20);
/// Sessions followed over one connection; the maximum is 64.
const OF_A_LINK: usize = 50;

/// One session with one turn, as its client sees it.
struct TurnView {
    session: String,
    agent: &'static str,
    text: String,
    run: Option<String>,
    said: String,
    /// Sequence number of the last fact.
    seq: u64,
    epoch: u64,
    /// Number of times that the answer was resumed by another node.
    resumed: usize,
    /// Time of the first text after that.
    went_on: Option<Instant>,
    done: Option<Value>,
}

impl TurnView {
    fn new(session: String, agent: &'static str, text: String) -> Self {
        let run = None;
        let said = String::new();
        let done = None;
        let went_on = None;
        Self { session, agent, text, run, said, seq: 0, epoch: 0, resumed: 0, went_on, done }
    }

    fn ask(&self) -> Value {
        let mut ask = invoke(&self.session, self.agent, &self.text);
        ask["request_id"] = self.session.as_str().into();
        ask
    }

    fn cursor(&self) -> Value {
        let run = self.run.clone().expect("it was accepted");
        json!({"type": "subscribe", "session_id": self.session, "after_seq": self.seq, "after_epoch": self.epoch,
            "runs": {run: {"attempt": 1, "offset": self.said.len()}}})
    }

    fn take(&mut self, message: &Value) {
        let number = |name: &str| message[name].as_u64().unwrap_or_default();
        match message["type"].as_str().unwrap_or_default() {
            "turn_accepted" => self.run = message["run_id"].as_str().map(str::to_owned),
            "subscribed" => return assert!(message["reset"] != json!(true), "{message}"),
            "error" => panic!("{message}"),
            "delta" => {
                let start = (number("attempt"), number("offset"));
                assert_eq!(start, (1, self.said.len() as u64), "a gap or a repeat: {message}");
                self.said.push_str(message["text"].as_str().expect("text"));
                if self.resumed > 0 {
                    self.went_on.get_or_insert_with(Instant::now);
                }
            }
            "done" => assert!(self.done.replace(message.clone()).is_none(), "it ended twice: {message}"),
            "event" if message["name"] == "RUN_RESUMED" => self.resumed += 1,
            _ => {}
        }
        if message.get("seq").is_some() {
            assert!(number("seq") > self.seq && number("epoch") >= self.epoch, "a fact came again: {message}");
            (self.seq, self.epoch) = (number("seq"), number("epoch"));
        }
    }
}

/// A connection and the turns that it follows, by session.
struct Connection {
    wire: WebSocketClient,
    talks: BTreeMap<String, TurnView>,
}

impl Connection {
    async fn open(at: SocketAddr, talks: Vec<TurnView>) -> Self {
        let mut wire = WebSocketClient::hello(at, "ann", vec![]).await.expect("it connects");
        for talk in &talks {
            wire.say(talk.ask()).await.expect("it is said");
        }
        let talks = talks.into_iter().map(|talk| (talk.session.clone(), talk)).collect();
        Self { wire, talks }
    }

    /// Reads the next message. Returns false if the node asks its clients to leave.
    async fn next(&mut self) -> Result<bool, ConnectionEnd> {
        let message = self.wire.next().await?;
        if let Some(talk) = message["session_id"].as_str().and_then(|session| self.talks.get_mut(session)) {
            talk.take(&message);
        }
        Ok(message["type"] != "go_away")
    }

    async fn move_to(&mut self, at: SocketAddr) {
        let mut again = interval(Duration::from_millis(50));
        loop {
            again.tick().await;
            let Ok(wire) = WebSocketClient::hello(at, "ann", vec![]).await else { continue };
            self.wire = wire;
            for talk in self.talks.values().filter(|talk| talk.done.is_none()) {
                self.wire.say(talk.cursor()).await.expect("it is said");
            }
            return;
        }
    }

    /// Follows every turn to its end, here or at another node, and sends the number of turns once each has
    /// text.
    async fn follow(mut self, elsewhere: SocketAddr, begun: mpsc::Sender<usize>) -> Vec<TurnView> {
        let mut begun = Some(begun);
        while self.talks.values().any(|talk| talk.done.is_none()) {
            if !matches!(self.next().await, Ok(true)) {
                self.move_to(elsewhere).await;
            }
            if begun.is_some() && self.talks.values().all(|talk| !talk.said.is_empty()) {
                let all = begun.take().map(|begun| begun.try_send(self.talks.len()));
                all.expect("once").expect("somebody waits");
            }
        }
        self.talks.into_values().collect()
    }
}

/// Returns turns of which three of four use the resumable agent; the others end soon.
fn talks(count: usize) -> Vec<TurnView> {
    let pace = size("FLEET_LEAVING_TURN_MS", 10_000) / PIECES;
    let talk = |n: usize| {
        let agent = if n.is_multiple_of(4) { STEADY } else { LASTING };
        TurnView::new(format!("leaving-{n}"), agent, format!("paced:{pace} {n}"))
    };
    (0..count).map(talk).collect()
}

/// Covers: G-14, G3, G5, G6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_many_turns_leaves_in_time_and_fails_none() {
    let count = size("FLEET_LEAVING_TURNS", 200);
    let mut fleet = Fleet::start(3).await;
    fleet.settle().await;
    let first = fleet.nodes[0].http;
    let others = [fleet.nodes[1].http, fleet.nodes[2].http];
    let (begun, mut all) = mpsc::channel(count);
    let mut crowds = JoinSet::new();
    let mut talks = talks(count);
    for n in 0.. {
        if talks.is_empty() {
            break;
        }
        let some = talks.split_off(talks.len().saturating_sub(OF_A_LINK));
        let crowd = Connection::open(first, some).await;
        crowds.spawn(crowd.follow(others[n % 2], begun.clone()));
    }
    drop(begun);
    let mut answering = 0;
    while answering < count {
        answering += all.recv().await.expect("every turn is answered");
    }
    assert_eq!(fleet.agents.journal().len(), count);

    let since = Instant::now();
    assert_eq!(fleet.nodes[0].terminate().await, Some(0), "it leaves when told");
    let left = since.elapsed();
    let mut silent = Vec::new();
    let mut handed = 0;
    while let Some(ended) = crowds.join_next().await {
        for talk in ended.unwrap_or_else(|why| panic!("a client: {why}")) {
            let done = talk.done.expect("it has ended");
            assert_eq!((&done["status"], &done["attempt"]), (&json!("completed"), &json!(1)), "{done}");
            assert!(talk.said == answer(&talk.text), "{}: another text", talk.session);
            assert!(talk.resumed <= usize::from(talk.agent == LASTING), "{}", talk.session);
            handed += talk.resumed;
            silent.extend(talk.went_on.map(|at| at - since));
        }
    }
    assert_eq!(fleet.agents.journal().len(), count, "each was asked of its agent once");
    assert!(handed > count / 2, "few of them still ran: {handed}");
    figure(&format!("SIGTERM of a node with {count} running turns until it has left"), format!("{left:?}"));
    let name = format!("of these {handed} went on elsewhere; from SIGTERM to more of their text, p50 / max");
    figure_quantiles(&name, &mut silent, 1.0);
    assert!(left <= LEAVES_WITHIN, "{left:?} to leave");
}
