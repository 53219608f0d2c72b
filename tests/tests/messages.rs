//! The table of docs/messages.md, compared with a session in which every message occurs.
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tempfile::tempdir;
use tokio::task::JoinSet;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Column names of the table.
const SAYS: &str = "a client says";
const SHOWN: &str = "a client is shown";
const TOLD: &str = "an agent is told";
const TELLS: &str = "an agent says";
const LOG: &str = "the log";

/// Kinds of messages that concern a session.
const KINDS: [&str; 11] = [
    "USER_INPUT",
    "AGENT_OUTPUT",
    "CONTROL(INPUT_ACK)",
    "CONTROL(CANCEL)",
    "CONTROL(CANCEL_ACK)",
    "CONTROL(SWITCH_AGENT)",
    "CONTROL(HANDOVER_",
    "CONTROL(REMOVE_AGENT)",
    "EVENT(TURN_*)",
    "EVENT(AGENT_*)",
    "ERROR",
];

/// Names of the messages that occurred, by column.
#[derive(Clone, Debug, Default)]
struct Observed(Arc<Mutex<BTreeMap<&'static str, BTreeSet<String>>>>);

impl Observed {
    fn put(&self, column: &'static str, name: impl Into<String>) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.entry(column).or_default().insert(name.into());
    }

    fn of(&self, column: &str) -> BTreeSet<String> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(column).cloned().unwrap_or_default()
    }
}

/// A client that records the messages that it sends and receives.
struct RecordingClient {
    wire: WebSocketClient,
    seen: Observed,
    /// Number of requests so far.
    asked: u32,
}

impl RecordingClient {
    async fn say(&mut self, message: Value) {
        self.seen.put(SAYS, message["type"].as_str().expect("a type"));
        self.wire.say(message).await.expect("it is said");
    }

    async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.wire.next().await.expect("it is told");
            let kind = message["type"].as_str().expect("a type");
            let name = message["name"].as_str().or(message["code"].as_str());
            let shown = name.map_or_else(|| kind.to_owned(), |name| format!("{kind} {name}"));
            self.seen.put(SHOWN, shown);
            if fits(&message) {
                return message;
            }
        }
    }

    /// Sends a request and reads to the message with this name, code or type.
    async fn ask(&mut self, mut message: Value, answer: &str) -> Value {
        message["session_id"] = "s1".into();
        self.asked += 1;
        message["request_id"] = format!("r{}", self.asked).into();
        self.say(message).await;
        self.until(|told| told["name"] == answer || told["code"] == answer || told["type"] == answer).await
    }

    /// Runs a turn of the active agent to its end.
    async fn turn(&mut self, text: &str) -> Value {
        let say = json!({"type": "agent_invoke", "session_id": "s1", "message": {"content": text}});
        self.say(say).await;
        self.until(|told| told["type"] == "done").await
    }
}

/// Runs an agent that records its messages. The input `deaf` gets no answer, `ask NAME` requests a handover.
async fn serve(mut wire: WebSocketClient, seen: Observed) {
    while let Ok(order) = wire.next().await {
        let kind = order["type"].as_str().expect("a type").to_owned();
        seen.put(TOLD, kind.clone());
        let text = order["input_message"]["content"].as_str().unwrap_or_default().to_owned();
        if order["context"]["handover"].is_object() {
            seen.put(TOLD, "context.handover");
        }
        let words = match kind.as_str() {
            "cancel" => vec![json!({"type": "cancel_ack"})],
            "invoke" if text == "deaf" => vec![],
            "invoke" => answer(&text),
            _ => continue,
        };
        for mut word in words {
            seen.put(TELLS, word["type"].as_str().expect("a type"));
            (word["run_id"], word["attempt"]) = (order["run_id"].clone(), order["attempt"].clone());
            wire.say(word).await.expect("it is said");
        }
    }
}

fn answer(text: &str) -> Vec<Value> {
    let mut words = vec![json!({"type": "input_ack"}), json!({"type": "delta", "text": "well"})];
    match text.split_once(' ') {
        Some(("go", "on")) => return words,
        Some(("ask", to)) => {
            words.push(json!({"type": "state", "state": "wondering"}));
            words.push(json!({"type": "handover_request", "to": to, "reason": "sums", "summary": "2+2"}));
        }
        Some(("fail", _)) => {
            words.push(json!({"type": "error", "code": "broken", "message": "I cannot"}));
            return words;
        }
        _ => {}
    }
    words.push(json!({"type": "done"}));
    words
}

/// Sends every request about a session, so that every result occurs.
async fn converse(ann: &mut RecordingClient) {
    ann.ask(json!({"type": "session_open", "agents": ["ada"]}), "session_opened").await;
    ann.ask(json!({"type": "subscribe", "after_seq": 0}), "subscribed").await;
    ann.turn("hello").await;
    ann.ask(json!({"type": "cancel_run"}), "NO_ACTIVE_SPEAKING").await;
    ann.ask(json!({"type": "invite_agent", "agent_id": "bob"}), "AGENT_ADDED").await;
    ann.ask(json!({"type": "invite_agent", "agent_id": "nobody"}), "ADD_AGENT_FAILED").await;
    ann.ask(json!({"type": "remove_agent", "agent_id": "nobody"}), "REMOVE_AGENT_FAILED").await;
    ann.say(invoke("s1", "bob", "to another")).await;
    ann.until(|told| told["type"] == "done").await;
    ann.ask(json!({"type": "switch_agent", "agent_id": "ada"}), "ACTIVE_AGENT_CHANGED").await;
    for decision in ["reject", "confirm"] {
        let ask = json!({"type": "agent_invoke", "message": {"content": "ask bob"}});
        let prompt = ann.ask(ask, "handover_prompt").await;
        let id = &prompt["handover_id"];
        let name = if decision == "reject" { "HANDOVER_REJECTED" } else { "HANDOVER_CONFIRMED" };
        ann.ask(json!({"type": "handover_decision", "handover_id": id, "decision": decision}), name).await;
    }
    ann.until(|told| told["name"] == "ACTIVE_AGENT_CHANGED").await;
    assert_eq!(ann.turn("hello again").await["status"], "completed");
    ann.ask(json!({"type": "agent_invoke", "message": {"content": "go on"}}), "delta").await;
    ann.ask(json!({"type": "cancel_run"}), "CANCEL_SENT").await;
    ann.until(|told| told["status"] == "cancelled").await;
    for (text, code) in [("fail now", "agent_error"), ("deaf", "ROUTE_TIMEOUT")] {
        ann.ask(json!({"type": "agent_invoke", "message": {"content": text}}), code).await;
        ann.until(|told| told["status"] == "failed").await;
    }
    ann.ask(json!({"type": "remove_agent", "agent_id": "bob"}), "AGENT_REMOVED").await;
    ann.ask(json!({"type": "session_close"}), "session_closed").await;
}

/// Returns the names in backticks after a phrase, up to the next `;`.
fn named<'a>(cell: &'a str, phrase: &str) -> Vec<&'a str> {
    let parts = cell.split("; ").filter_map(|part| part.trim().strip_prefix(phrase));
    parts.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

/// Covers: SR-M1, SR-M2, SR-M3, SR-M4, SR-M5, SR-M6, SR-M7, SR-M8, SR-M9, SR-M10, SR-M11, SR-S5, SR-S7, LN-SR5,
/// RX-22.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_documented_message_occurs_where_documented() {
    let dir = tempdir().expect("a directory");
    let seen = Observed::default();
    let flags = ["--agent", "ada=dial-in:", "--agent", "bob=dial-in:,input_ack=300ms"];
    let node = Node::start(dir.path(), &flags).await;
    let mut agents = JoinSet::new();
    for agent in ["ada", "bob"] {
        let hello = json!({"type": "hello", "role": "agent", "agent_id": agent});
        let wire = WebSocketClient::open(node.http).await.expect("it connects");
        agents.spawn(serve(wire.greet_with(hello).await.expect("welcome"), seen.clone()));
    }
    let wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let mut ann = RecordingClient { wire, seen: seen.clone(), asked: 0 };
    converse(&mut ann).await;
    let web = Web::new(node.http, Some("ann"));
    for fact in web.facts("s1").await {
        seen.put(LOG, fact["type"].as_str().expect("a type"));
    }

    // The tables of fields after it are compared with the messages themselves.
    let document = include_str!("../../docs/messages.md");
    let (document, _fields) = document.split_once("\n## Fields\n").expect("the fields come after the table");
    let rows: Vec<Vec<&str>> = document
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    for kind in KINDS {
        assert!(rows.iter().any(|row| row[0].contains(kind)), "{kind} is in the table");
    }
    let mut looked_at = 0;
    for row in &rows {
        let [message, _, client, agent, log] = row[..] else { panic!("five cells: {row:?}") };
        let columns = [
            (SAYS, named(client, "says")),
            (SHOWN, named(client, "is shown")),
            (TOLD, named(agent, "is told")),
            (TELLS, named(agent, "says")),
            (LOG, named(log, "")),
        ];
        for (column, names) in columns {
            let there = seen.of(column);
            for name in names {
                assert!(there.contains(name), "{message}: {column} {name}, but only {there:?}");
                looked_at += 1;
            }
        }
    }
    assert!(looked_at > 80, "{looked_at} names");
}
