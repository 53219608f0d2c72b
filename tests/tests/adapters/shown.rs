//! Accounts as operators see them: whether an adapter serves one, at whichever node, and what the adapter can do.
use super::TestAdapter;
use super::fleet::{directories, two_nodes_with};
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::tempdir;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::command::run;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

/// Returns an account of `rooms`, as a node shows it to an operator.
async fn show(node: &Node, account: &str) -> Value {
    Web::new(node.http, None).json(&format!("/v1/accounts/show?channel=rooms&account_id={account}")).await
}

/// Waits until a node shows an account in a way that fits; returns the answer.
async fn await_shown(node: &Node, account: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let mut looks = tokio::time::interval(Duration::from_millis(50));
    let found = tokio::time::timeout(4 * PATIENCE, async {
        loop {
            let shown = show(node, account).await;
            if fits(&shown) {
                return shown;
            }
            looks.tick().await;
        }
    });
    let Ok(shown) = found.await else { panic!("{}", show(node, account).await) };
    shown
}

fn unserved(account: &str) -> Value {
    json!({"channel": "rooms", "account_id": account, "served": false})
}

impl TestAdapter {
    /// Declares capabilities of the connection, or of one conversation.
    pub(crate) async fn redeclare(&mut self, conversation: Option<&str>, capabilities: Value) {
        let mut change = json!({"type": "capabilities", "capabilities": capabilities});
        if let Some(id) = conversation {
            change["conversation"] = self.place(id);
        }
        let answer = self.client.ask("c", change).await.expect("an answer");
        assert_eq!(answer["type"], "capabilities_set", "{answer}");
    }
}

/// Covers: BD-B4.
#[tokio::test]
async fn account_is_shown_by_any_node_of_the_fleet() {
    let dirs = directories();
    let (mut redis, [mut first, second]) = two_nodes_with(&dirs, &["--demo"]).await;
    for node in [&first, &second] {
        assert_eq!(show(node, "main").await, unserved("main"), "nobody has ever served it");
    }
    let text = json!({"level": 2, "max": 2000, "unit": "chars"});
    let mut adapter = TestAdapter::active(&first, "main", json!({"key": 1, "text": text})).await;
    let shown = show(&second, "main").await;
    assert_eq!((&shown["served"], &shown["paused"]), (&json!(true), &Value::Null), "{shown}");
    assert_eq!(shown["capabilities"], json!({"key": {"level": 1}, "text": text}), "{shown}");
    assert_eq!(show(&first, "main").await, shown, "each node tells the same");
    assert_eq!(show(&second, "other").await, unserved("other"), "another account");

    // The adapter changes what it can do, at first in one conversation only.
    adapter.redeclare(Some("hall"), json!({"typing": 2})).await;
    adapter.redeclare(None, json!({"create_conversation": 1})).await;
    adapter.redeclare(None, json!({"create_conversation": 2, "key": 2})).await;
    let latest = json!({"create_conversation": {"level": 2}, "key": {"level": 2}});
    let changed = await_shown(&second, "main", |shown| shown["capabilities"] == latest).await;
    let holder = |shown: &Value| [shown["holder_node_id"].clone(), shown["since"].clone()];
    assert_eq!(holder(&changed), holder(&shown), "the connection is the same");
    let url = format!("http://{}", second.http);
    let paused = run(dirs[1].path(), &["adapters", "pause", "rooms/main"], &[("TURNWAY_URL", &url)]).await;
    assert_eq!(paused.code, Some(0), "{}", paused.err);
    let shown = show(&second, "main").await;
    assert_eq!((&shown["served"], &shown["paused"]["reason"]), (&json!(true), &json!("operator")), "{shown}");
    assert_eq!(shown["capabilities"], latest, "{shown}");

    // The adapter's node dies. Its lease stays in the store, but is nobody's; the pause stays.
    first.kill().await;
    let shown = await_shown(&second, "main", |shown| shown["served"] == false).await;
    let known = [&shown["holder_node_id"], &shown["capabilities"], &shown["paused"]["reason"]];
    assert_eq!(known, [&Value::Null, &Value::Null, &json!("operator")], "{shown}");
    // Without the store nobody knows whether an adapter serves the account.
    redis.kill();
    let reply = Web::new(second.http, None).get("/v1/accounts/show?channel=rooms&account_id=main").await;
    reply.must_be(503, "store_unavailable");
}

/// Covers: BD-B4, S-06.
#[tokio::test]
async fn account_is_shown_while_its_adapter_is_connected() {
    let dir = tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let command = async |node: &Node, args: &[&str]| {
        let ended = run(dir.path(), args, &[("TURNWAY_URL", &format!("http://{}", node.http))]).await;
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.err);
        ended
    };
    let shown = command(&node, &["adapters", "show", "rooms/main"]).await;
    assert!(shown.err.contains("no adapter serves rooms/main"), "{}", shown.err);
    let adapter = TestAdapter::active(&node, "main", json!({"text": {"level": 2, "max": 9, "unit": "bytes"}})).await;
    let shown = command(&node, &["adapters", "show", "rooms/main"]).await;
    assert!(shown.out.contains("rooms/main") && shown.out.contains("text=2:9bytes"), "{}", shown.out);
    let shown = command(&node, &["adapters", "show", "rooms/main", "--json"]).await.json();
    assert_eq!(shown["served"], true, "{shown}");
    drop(adapter);
    await_shown(&node, "main", |shown| *shown == unserved("main")).await;
    // A lease of the time before a crash is nobody's.
    let _adapter = TestAdapter::active(&node, "main", json!({})).await;
    let shown = show(&node, "main").await;
    assert_eq!((&shown["served"], &shown["capabilities"]), (&json!(true), &json!({})), "{shown}");
    node.kill_and_restart().await;
    await_shown(&node, "main", |shown| *shown == unserved("main")).await;

    let mut operator = WebSocketClient::open(node.http).await.expect("a connection");
    operator = operator.greet_with(json!({"type": "hello"})).await.expect("an operator");
    let request = json!({"type": "show_account", "channel": "rooms", "account_id": "main"});
    let answer = operator.ask("r", request).await.expect("an answer");
    assert_eq!((&answer["type"], &answer["channel"]), (&json!("account"), &json!("rooms")), "{answer}");
    assert_eq!((&answer["served"], &answer["request_id"]), (&json!(false), &json!("r")), "{answer}");
    let web = Web::new(node.http, None);
    for query in ["", "?channel=rooms", "?channel=a/b&account_id=main", "?channel=rooms&account_id=%20"] {
        web.get(&format!("/v1/accounts/show{query}")).await.must_be(400, "invalid_message");
    }
    let ann = Web::new(node.http, Some("ann"));
    ann.get("/v1/accounts/show?channel=rooms&account_id=main").await.must_be(403, "forbidden");
}
