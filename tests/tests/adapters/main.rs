//! Adapters on real nodes: what people write in conversations becomes turns, and the answers go back to their places, on
//! both stores and over several nodes.
mod agents;
mod attachments;
mod bots;
mod buttons;
mod capabilities;
mod changes;
mod chaos;
mod children;
mod closed;
mod edits;
mod farewell;
mod fleet;
mod gather;
mod hops;
mod inbound_files;
mod mirror;
mod moved;
mod outcomes;
mod paused;
mod probes;
mod quic;
mod rebound;
mod rooms;
mod sdk;
mod sdk_files;
mod send;
mod shown;
mod signals;
mod stale;
mod suppressed;
mod surplus;
mod tasks;
mod undelivered;

use serde_json::{Value, json};
use std::net::SocketAddr;
use tempfile::{TempDir, tempdir};
use turnway_tests::real::http::get;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient};

/// An adapter of the channel `rooms` whose platform is the test.
pub(crate) struct TestAdapter {
    pub(crate) client: WebSocketClient,
    /// Parts that arrived while something else was awaited.
    deliveries: Vec<Value>,
    account: String,
}

impl TestAdapter {
    /// Connects an adapter and waits until it sends for its account.
    pub(crate) async fn active(node: &Node, account: &str, capabilities: Value) -> Self {
        let mut adapter = Self::connect(node, account, capabilities).await;
        adapter.await_state("active").await;
        adapter
    }

    /// Connects an adapter.
    pub(crate) async fn connect(node: &Node, account: &str, capabilities: Value) -> Self {
        Self::try_connect(node.http, account, capabilities).await.expect("it is admitted")
    }

    /// Connects an adapter to a node that may be down.
    pub(crate) async fn try_connect(node: SocketAddr, account: &str, capabilities: Value) -> Option<Self> {
        let hello = json!({
            "type": "hello", "role": "adapter", "channel": "rooms", "account_id": account,
            "capabilities": capabilities,
        });
        let client = WebSocketClient::open(node).await.ok()?.greet_with(hello).await.ok()?;
        Some(Self { client, deliveries: Vec::new(), account: account.to_owned() })
    }

    pub(crate) async fn await_state(&mut self, state: &str) {
        loop {
            let message = self.next().await;
            if message["type"] == "adapter_state" && message["state"] == state {
                return;
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Value {
        let message = self.client.next().await.expect("the node speaks");
        if message["type"] == "deliver" || message["type"] == "create_conversation" {
            self.deliveries.push(message.clone());
        }
        message
    }

    pub(crate) fn place(&self, id: &str) -> Value {
        json!({"channel": "rooms", "account_id": self.account, "conversation_id": id})
    }

    /// Sends an inbound event; returns the answer.
    pub(crate) async fn bring(&mut self, event: Value) -> Value {
        let request_id = event["request_id"].clone();
        self.client.say(event).await.expect("it is sent");
        loop {
            let message = self.next().await;
            if message["request_id"] == request_id && message["type"] != "deliver" {
                return message;
            }
        }
    }

    /// Brings a message of ann's; returns the answer.
    pub(crate) async fn bring_message(&mut self, conversation: &str, id: &str, text: &str) -> Value {
        let event = self.message(conversation, id, text);
        self.bring(event).await
    }

    /// Returns a message of ann's.
    pub(crate) fn message(&self, conversation: &str, id: &str, text: &str) -> Value {
        json!({
            "type": "inbound", "request_id": id, "conversation": self.place(conversation),
            "sender": {"id": "ann", "name": "Ann"}, "message": {"message_id": id, "content": text},
        })
    }

    /// Returns the next part that the adapter is to send.
    pub(crate) async fn next_part(&mut self) -> Value {
        while self.deliveries.is_empty() {
            self.next().await;
        }
        self.deliveries.remove(0)
    }

    /// Reports what became of a part.
    pub(crate) async fn report(&mut self, part: &Value, outcome: Value) {
        let mut report = json!({"type": "delivered", "delivery_id": part["delivery_id"], "part": part["part"]});
        report.as_object_mut().expect("an object").extend(outcome.as_object().expect("an object").clone());
        // The node may be gone; then the report is lost.
        _ = self.client.say(report).await;
    }

    /// Reports that the platform has a part at its place.
    pub(crate) async fn confirm(&mut self, part: &Value, external_id: &str) {
        let place = part["conversation"].clone();
        self.report(part, json!({"outcome": "sent", "external_id": external_id, "place": place})).await;
    }
}

/// Returns the facts about deliveries in a session's log: type, part and reason.
pub(crate) async fn recorded(node: &Node, session: &str) -> Vec<String> {
    let path = format!("/v1/sessions/{session}/events?types=delivery.*&limit=500");
    let page = turnway_tests::real::web::Web::new(node.http, None).json(&path).await;
    let fact = |event: &Value| {
        let data = &event["data"];
        let reason = data["reason"].as_str().unwrap_or_default();
        format!("{} {} {reason}", event["type"].as_str().unwrap_or_default(), data["part"]).trim_end().to_owned()
    };
    page["events"].as_array().expect("events").iter().map(fact).collect()
}

/// Waits until a session's log has these facts about deliveries. Fails as soon as another one is in their place.
pub(crate) async fn await_recorded(node: &Node, session: &str, expected: &[&str]) {
    let mut looks = tokio::time::interval(std::time::Duration::from_millis(50));
    let found = tokio::time::timeout(4 * turnway_tests::real::PATIENCE, async {
        loop {
            let facts = recorded(node, session).await;
            if facts == expected {
                break;
            }
            assert!(expected.iter().zip(&facts).all(|(expected, fact)| expected == fact), "{facts:?}: {expected:?}");
            looks.tick().await;
        }
    });
    if found.await.is_err() {
        assert_eq!(recorded(node, session).await, expected, "{session}");
    }
}

/// Waits until the node's metrics have this line.
pub(crate) async fn await_metric(node: &Node, line: &str) {
    let mut looks = tokio::time::interval(std::time::Duration::from_millis(50));
    let found = tokio::time::timeout(turnway_tests::real::PATIENCE, async {
        while !get(node.admin, "/metrics").await.is_some_and(|(_, page)| page.lines().any(|other| other == line)) {
            looks.tick().await;
        }
    });
    assert!(found.await.is_ok(), "{line}");
}

async fn answers_go_back(store: &str, dir: &TempDir) {
    let node = Node::start_on(store, dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"text": 2, "key": 2})).await;
    let accepted = adapter.bring_message("lobby", "m1", "hello there").await;
    assert_eq!(accepted["type"], "inbound_accepted", "{accepted}");
    assert_eq!((&accepted["disposition"], &accepted["duplicate"]), (&json!("run"), &json!(false)), "{accepted}");
    let part = adapter.next_part().await;
    assert_eq!((&part["kind"], &part["part"], &part["parts"]), (&json!("final"), &json!(1), &json!(1)), "{part}");
    assert_eq!((&part["conversation"], &part["reply_to"]), (&adapter.place("lobby"), &json!("m1")), "{part}");
    assert!(part["text"].as_str().expect("a text").contains("hello there"), "{part}");
    assert!(part["key"].as_str().expect("a key").len() <= 25, "{part}");
    adapter.confirm(&part, "x1").await;
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    await_recorded(&node, &session, &["delivery.requested null", "delivery.sent 1"]).await;
    let again = adapter.bring_message("lobby", "m1", "hello there").await;
    assert_eq!((&again["duplicate"], &again["run_id"]), (&json!(true), &accepted["run_id"]), "{again}");
    let next = adapter.bring_message("lobby", "m2", "and again").await;
    assert_eq!(next["session_id"], accepted["session_id"], "{next}");
    let part = adapter.next_part().await;
    assert_eq!(part["reply_to"], "m2", "the repeated message has no second answer: {part}");
    adapter.confirm(&part, "x2").await;
}

/// Covers: BD-I4, BD-M1, BD-M4, BD-S8.
#[tokio::test]
async fn answers_go_back_to_their_conversations_embedded() {
    let dir = tempdir().expect("a directory");
    answers_go_back(&format!("embedded:{}", dir.path().join("data").display()), &dir).await;
}

/// Covers: BD-I4, BD-M1, BD-M4, BD-S8.
#[tokio::test]
async fn answers_go_back_to_their_conversations_redis() {
    let dir = tempdir().expect("a directory");
    let server = tempdir().expect("a directory");
    let redis = Redis::start(server.path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    answers_go_back(&redis.url(), &dir).await;
}

/// A user who creates the session of a conversation before the conversation does would read what people write there.
#[tokio::test]
async fn users_cannot_create_sessions_of_conversations() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({})).await;
    let accepted = adapter.bring_message("lobby", "m1", "hello").await;
    let mut bob = WebSocketClient::hello(node.http, "bob", vec![]).await.expect("bob connects");
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    let other = session.replace(|c: char| c.is_ascii_digit(), "a");
    for named in [session, format!("{}a", &other[..other.len() - 1])] {
        for request in [
            json!({"type": "session_open", "session_id": named}),
            json!({"type": "agent_invoke", "session_id": named, "message": {"content": "mine"}}),
            json!({"type": "subscribe", "session_id": named}),
        ] {
            let answer = bob.ask("r", request.clone()).await.expect("an answer");
            assert_eq!(
                (&answer["type"], &answer["code"]),
                (&json!("error"), &json!("not_found")),
                "{request}: {answer}"
            );
        }
    }
}

/// Covers: BD-R8, BD-B6.
#[tokio::test]
async fn adapter_acts_for_its_own_account_only() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({})).await;
    let foreign = json!({
        "type": "inbound", "request_id": "r1", "sender": {"id": "ann"},
        "conversation": {"channel": "rooms", "account_id": "other", "conversation_id": "lobby"},
        "message": {"message_id": "m1", "content": "hello"},
    });
    let refused = adapter.bring(foreign).await;
    assert_eq!((&refused["type"], &refused["code"]), (&json!("error"), &json!("forbidden")), "{refused}");
    let bind = json!({
        "type": "bind", "session_id": "s", "conversation": {"channel": "rooms", "account_id": "other", "conversation_id": "x"},
    });
    let refused = adapter.client.ask("b", bind).await.expect("an answer");
    assert_eq!(refused["code"], "forbidden", "{refused}");
    // The conversation that it has a message of may be bound, to a session of the adapter's own.
    adapter.client.ask("o", json!({"type": "session_open", "session_id": "own"})).await.expect("an answer");
    let bind = json!({"type": "bind", "session_id": "own", "conversation": adapter.place("lobby")});
    let bound = adapter.client.ask("b2", bind.clone()).await.expect("an answer");
    assert_eq!((&bound["type"], &bound["binding"]["session_id"]), (&json!("bound"), &json!("own")), "{bound}");
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    let inbound = json!({
        "type": "inbound", "sender": {"id": "ann"}, "message": {"message_id": "m1", "content": "hello"},
        "conversation": {"channel": "rooms", "account_id": "main", "conversation_id": "lobby"},
    });
    for request in [inbound, bind] {
        let refused = ann.ask("i", request).await.expect("an answer");
        assert_eq!(refused["code"], "forbidden", "a user is no adapter: {refused}");
    }
}

/// Covers: BD-S9, BD-S10.
#[tokio::test]
async fn messages_of_a_bound_conversation_reach_its_session() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    ann.ask("o", json!({"type": "session_open", "session_id": "s1"})).await.expect("an answer");
    let mut operator = WebSocketClient::open(node.http).await.expect("a connection");
    operator = operator.greet_with(json!({"type": "hello"})).await.expect("an operator");
    let bind = json!({"type": "bind", "session_id": "s1", "conversation": adapter.place("thread")});
    let bound = operator.ask("b", bind).await.expect("an answer");
    assert_eq!(bound["type"], "bound", "{bound}");
    let accepted = adapter.bring_message("thread", "m1", "in the thread").await;
    assert_eq!(accepted["session_id"], "s1", "{accepted}");
    let part = adapter.next_part().await;
    assert_eq!(part["conversation"], adapter.place("thread"), "{part}");
    adapter.confirm(&part, "x1").await;
    await_recorded(&node, "s1", &["delivery.requested null", "delivery.sent 1"]).await;
    // A message of a plain client is answered to that client, and to no conversation.
    let turn = json!({"type": "agent_invoke", "session_id": "s1", "message": {"content": "from the app"}});
    ann.ask("t", turn).await.expect("an answer");
    ann.until(|message| message["type"] == "done").await.expect("it ends");
    await_recorded(&node, "s1", &["delivery.requested null", "delivery.sent 1"]).await;
    // The conversation's end ends its binding; its next message has a session of its own.
    let closed = json!({
        "type": "inbound", "request_id": "c", "event": "conversation_closed", "conversation": adapter.place("thread"),
        "sender": {"id": "platform"}, "message": {"message_id": "none"},
    });
    let answer = adapter.bring(closed).await;
    assert_eq!(answer["disposition"], "recorded", "{answer}");
    let accepted = adapter.bring_message("thread", "m2", "still here?").await;
    assert_ne!(accepted["session_id"], "s1", "{accepted}");
}

/// Covers: S-07.
#[tokio::test]
async fn adapter_hello_needs_channel_and_account() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    for hello in [
        json!({"type": "hello", "role": "adapter"}),
        json!({"type": "hello", "role": "adapter", "channel": "rooms"}),
        json!({"type": "hello", "role": "adapter", "channel": "a/b", "account_id": "main"}),
        json!({"type": "hello", "role": "adapter", "channel": "rooms", "account_id": "main", "capabilities": {"text": 3}}),
    ] {
        let mut client = WebSocketClient::open(node.http).await.expect("a connection");
        client.say(hello.clone()).await.expect("it is sent");
        let end = client.until(|_| false).await.expect_err("it is closed");
        assert_eq!(end, ConnectionEnd::Closed(4401), "{hello}");
    }
}
