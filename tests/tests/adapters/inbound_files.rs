//! Files that people attach to messages of a platform: the adapter adds them to the session of the conversation, and the
//! agent reads them.
use super::TestAdapter;
use super::fleet::{directories, two_nodes_with};
use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::tempdir;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

const PICTURE_BYTES: usize = 300_000;

/// Starts an agent that reads the file of the message that it gets, and answers with the file's length.
async fn viewer() -> (Agents, UnboundedReceiver<Bytes>) {
    let (told, seen) = mpsc::unbounded_channel();
    let agents = Agents::start(move |invocation| {
        let told = told.clone();
        Reply::speak(move |stream| async move {
            let content = &invocation.content;
            let Some(url) = content.get(1).and_then(|part| part["image_url"]["url"].as_str()) else {
                return stream.done().await;
            };
            let uri: http::Uri = url.parse().expect("a whole URL");
            let gateway = uri.authority().expect("the gateway").as_str().parse().expect("an address");
            let file = Web::new(gateway, None).bearer(&invocation.token).download(uri.path()).await;
            assert_eq!(file.status, 200, "{url}");
            stream.delta(&format!("{} bytes", file.bytes.len())).await?;
            told.send(file.bytes).expect("the test");
            stream.done().await
        })
    })
    .await;
    (agents, seen)
}

/// Returns the next file that the agent has read.
async fn next_seen(seen: &mut UnboundedReceiver<Bytes>) -> Bytes {
    timeout(PATIENCE, seen.recv()).await.expect("the agent reads the file").expect("the agent was asked")
}

/// Asks for the right to add files to the session of a conversation; returns the answer.
async fn prepare(adapter: &mut TestAdapter, conversation: &str) -> Value {
    let place = adapter.place(conversation);
    adapter.bring(json!({"type": "prepare_files", "request_id": "p", "conversation": place})).await
}

/// Does the same for a session that takes files; returns the session and a client with the token.
async fn must_prepare(adapter: &mut TestAdapter, node: &Node, conversation: &str) -> (String, Web) {
    let prepared = prepare(adapter, conversation).await;
    assert_eq!(prepared["type"], "files_prepared", "{prepared}");
    assert!(prepared["expires_ts"].as_u64() > prepared["ts"].as_u64(), "{prepared}");
    let token = prepared["file_token"].as_str().expect("a token");
    (prepared["session_id"].as_str().expect("a session").to_owned(), Web::new(node.http, None).bearer(token))
}

/// Returns a message of ann's with a picture.
fn with_picture(adapter: &TestAdapter, conversation: &str, id: &str, path: &str) -> Value {
    let mut message = adapter.message(conversation, id, "");
    message["message"]["content"] =
        json!([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": path}}]);
    message
}

/// Opens ann's session with this name, and binds the lobby to it.
async fn bind_lobby(adapter: &TestAdapter, node: &Node, session: &str) {
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    ann.ask("o", json!({"type": "session_open", "session_id": session})).await.expect("an answer");
    let bind = json!({"type": "bind", "session_id": session, "conversation": adapter.place("lobby")});
    let bound = operator(node).await.ask("b", bind).await.expect("an answer");
    assert_eq!(bound["type"], "bound", "{bound}");
}

pub(crate) async fn operator(node: &Node) -> WebSocketClient {
    let client = WebSocketClient::open(node.http).await.expect("a connection");
    client.greet_with(json!({"type": "hello"})).await.expect("an operator")
}

/// The first message of a conversation has a picture, which goes to another node than the message.
///
/// Covers: PR-24, BR-37.
#[tokio::test]
async fn file_of_a_message_reaches_the_agent_in_a_fleet() {
    let (agents, mut seen) = viewer().await;
    let dirs = directories();
    let (_redis, [first, second]) =
        two_nodes_with(&dirs, &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    let mut adapter = TestAdapter::active(&first, "main", json!({"key": 2})).await;
    let (session, web) = must_prepare(&mut adapter, &second, "lobby").await;
    let picture = random_bytes(7, PICTURE_BYTES);
    let path = web.must_upload(&session, "image/png", &picture).await;
    let message = with_picture(&adapter, "lobby", "m1", &path);
    let accepted = adapter.bring(message.clone()).await;
    assert_eq!((&accepted["disposition"], &accepted["session_id"]), (&json!("run"), &json!(session)), "{accepted}");
    let part = adapter.next_part().await;
    assert_eq!(part["text"], format!("{PICTURE_BYTES} bytes"), "{part}");
    assert!(next_seen(&mut seen).await == picture);
    // An adapter that has crashed does everything again.
    let (session, web) = must_prepare(&mut adapter, &second, "lobby").await;
    assert_eq!(web.must_upload(&session, "image/png", &picture).await, path);
    let again = adapter.bring(message).await;
    assert_eq!((&again["duplicate"], &again["run_id"]), (&json!(true), &accepted["run_id"]), "{again}");
    let files = Web::new(first.http, None).json(&format!("/v1/sessions/{session}/blobs")).await;
    assert_eq!(files["bytes"], PICTURE_BYTES, "{files}");
}

/// Connects an adapter with a key of its own.
async fn with_key(node: &Node) -> TestAdapter {
    let key = Key::make(node, &["--serves", "adapter:rooms/main"]).await;
    let hello = json!({
        "type": "hello", "role": "adapter", "channel": "rooms", "account_id": "main", "api_key": key.text,
    });
    let client = WebSocketClient::open(node.http).await.expect("a connection").greet_with(hello).await;
    let client = client.expect("it is admitted");
    let mut adapter = TestAdapter { client, deliveries: Vec::new(), account: "main".to_owned() };
    adapter.await_state("active").await;
    adapter
}

/// Covers: PR-24, S-06.
#[tokio::test]
async fn token_adds_files_to_one_session_and_reads_none() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--demo"]).await;
    let mut adapter = with_key(&node).await;
    let ann = Key::make(&node, &["--user", "ann"]).await;
    let mut operator =
        Key::make(&node, &["--scopes", "write,operator"]).await.hello(node.http, None).await.expect("let in");
    let mut wire = ann.hello(node.http, None).await.expect("let in");
    for session in ["s1", "s2"] {
        wire.ask(session, json!({"type": "session_open", "session_id": session})).await.expect("an answer");
    }
    let bind = json!({"type": "bind", "session_id": "s1", "conversation": adapter.place("lobby")});
    assert_eq!(operator.ask("b", bind).await.expect("an answer")["type"], "bound");
    let (session, web) = must_prepare(&mut adapter, &node, "lobby").await;
    assert_eq!(session, "s1", "the conversation's binding");
    let picture = random_bytes(1, 1000);
    let path = web.must_upload("s1", "image/png", &picture).await;
    let (other, _) = must_prepare(&mut adapter, &node, "attic").await;
    for reply in [
        web.upload(&other, "image/png", &picture).await,
        web.upload("s2", "image/png", &picture).await,
        web.get(&path).await,
        web.get("/v1/sessions/s1/blobs").await,
        web.get("/v1/sessions/s1").await,
        web.ask("DELETE", &path, &[], "").await,
    ] {
        reply.must_be(401, "unauthorized");
    }
    let owner = Web::new(node.http, None).key(&ann);
    assert!(owner.download(&path).await.bytes == picture, "the file is the session's");
}

/// Covers: PR-24, BD-I1.
#[tokio::test]
async fn message_with_files_elsewhere_is_to_be_prepared_again() {
    let (agents, mut seen) = viewer().await;
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let (own, web) = must_prepare(&mut adapter, &node, "lobby").await;
    let picture = random_bytes(3, 5000);
    let path = web.must_upload(&own, "image/png", &picture).await;
    let early = adapter.bring(with_picture(&adapter, "lobby", "m0", &path)).await;
    assert_eq!(early["session_id"], own.as_str(), "{early}");
    next_seen(&mut seen).await;
    bind_lobby(&adapter, &node, "s1").await;
    let refused = adapter.bring(with_picture(&adapter, "lobby", "m1", &path)).await;
    assert_eq!((&refused["code"], &refused["retryable"]), (&json!("busy"), &json!(true)), "{refused}");
    // A message that was accepted before stays accepted.
    let again = adapter.bring(with_picture(&adapter, "lobby", "m0", &path)).await;
    assert_eq!((&again["duplicate"], &again["session_id"]), (&json!(true), &json!(own)), "{again}");
    let (session, web) = must_prepare(&mut adapter, &node, "lobby").await;
    assert_eq!(session, "s1");
    let path = web.must_upload("s1", "image/png", &picture).await;
    let accepted = adapter.bring(with_picture(&adapter, "lobby", "m1", &path)).await;
    assert_eq!((&accepted["disposition"], &accepted["session_id"]), (&json!("run"), &json!("s1")), "{accepted}");
    assert!(next_seen(&mut seen).await == picture);
}

/// Covers: PR-24, S-55.
#[tokio::test]
async fn files_are_prepared_for_the_own_account_only() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let foreign = json!({"channel": "rooms", "account_id": "other", "conversation_id": "lobby"});
    let refused = adapter.bring(json!({"type": "prepare_files", "request_id": "p", "conversation": foreign})).await;
    assert_eq!((&refused["type"], &refused["code"]), (&json!("error"), &json!("forbidden")), "{refused}");
    let malformed = adapter.bring(json!({"type": "prepare_files", "request_id": "p"})).await;
    assert_eq!((&malformed["type"], &malformed["code"]), (&json!("error"), &json!("invalid_message")), "{malformed}");
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    let asked = json!({"type": "prepare_files", "conversation": adapter.place("lobby")});
    let stranger = ann.ask("p", asked).await.expect("an answer");
    assert_eq!((&stranger["type"], &stranger["code"]), (&json!("error"), &json!("forbidden")), "{stranger}");
}

/// Covers: PR-24, BD-I4.
#[tokio::test]
async fn files_open_the_own_session_and_leave_a_closed_one() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let picture = random_bytes(5, 100);
    let (own, web) = must_prepare(&mut adapter, &node, "lobby").await;
    web.must_upload(&own, "image/png", &picture).await;
    let closed = adapter.client.ask("c", json!({"type": "session_close", "session_id": own})).await;
    assert_eq!(closed.expect("an answer")["type"], "session_closed");
    web.upload(&own, "image/png", &random_bytes(6, 10)).await.must_be(409, "session_closed");
    let (again, web) = must_prepare(&mut adapter, &node, "lobby").await;
    assert_eq!(again, own, "as its next message, files open the session");
    web.must_upload(&own, "image/png", &random_bytes(6, 10)).await;
    // A session of a binding is left as soon as it is closed.
    bind_lobby(&adapter, &node, "s1").await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    let closed = ann.ask("c", json!({"type": "session_close", "session_id": "s1"})).await.expect("an answer");
    assert_eq!(closed["type"], "session_closed", "{closed}");
    let mut looks = tokio::time::interval(std::time::Duration::from_millis(50));
    let left = timeout(PATIENCE, async {
        loop {
            let prepared = prepare(&mut adapter, "lobby").await;
            if prepared["type"] == "files_prepared" {
                break prepared["session_id"].clone();
            }
            assert_eq!((&prepared["code"], &prepared["retryable"]), (&json!("busy"), &json!(true)), "{prepared}");
            looks.tick().await;
        }
    });
    assert_eq!(left.await.expect("the binding ends"), own.as_str());
    Web::new(node.http, None).ask("DELETE", &format!("/v1/sessions/{own}"), &[], "").await;
    let deleted = prepare(&mut adapter, "lobby").await;
    assert_eq!((&deleted["type"], &deleted["code"]), (&json!("error"), &json!("not_found")), "{deleted}");
}
