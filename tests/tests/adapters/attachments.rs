//! Files with answers, on a real node: an agent names a file of its session, and the adapter reads it with the token that
//! comes with the part.
use super::{TestAdapter, await_recorded};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use tempfile::{TempDir, tempdir};
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;

const PICTURE_BYTES: usize = 300_000;

/// Starts a node whose agent draws: it uploads a picture, and answers with it.
async fn drawing_node(dir: &TempDir, capabilities: Value) -> (Agents, Node, TestAdapter) {
    let address: Arc<OnceLock<SocketAddr>> = Arc::default();
    let of_agent = Arc::clone(&address);
    let agents = Agents::start(move |invocation| {
        let gateway = *of_agent.get().expect("the node runs");
        Reply::speak(move |stream| async move {
            let web = Web::new(gateway, None).bearer(&invocation.token);
            let path = web.must_upload(&invocation.session_id, "image/png", &random_bytes(9, PICTURE_BYTES)).await;
            stream.delta(&format!("Here it is:\n\n![a cat](http://{gateway}{path})\n")).await?;
            stream.done().await
        })
    })
    .await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    address.set(node.http).expect("one node");
    let adapter = TestAdapter::active(&node, "main", capabilities).await;
    (agents, node, adapter)
}

/// Covers: PR-24, BD-D1.
#[tokio::test]
async fn attachment_is_read_with_the_token_of_its_delivery() {
    let dir = tempdir().expect("a directory");
    let (_agents, node, mut adapter) = drawing_node(&dir, json!({"key": 2, "attachments": 2})).await;
    let accepted = adapter.bring_message("lobby", "m1", "draw a cat").await;
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    let part = adapter.next_part().await;
    assert_eq!(part["text"], "Here it is:", "{part}");
    let files = part["attachments"].as_array().expect("attachments");
    let file = &files[0];
    assert_eq!((files.len(), &file["name"], &file["inline"]), (1, &json!("a cat"), &json!(true)), "{part}");
    let path = file["url"].as_str().expect("a path");
    assert_eq!(path, format!("/v1/sessions/{session}/blobs/{}", file["sha256"].as_str().expect("a hash")));
    let token = part["file_token"].as_str().expect("a token");
    let read = Web::new(node.http, None).bearer(token).download(path).await;
    assert!(read.status == 200 && read.bytes == random_bytes(9, PICTURE_BYTES), "{}", read.status);
    adapter.confirm(&part, "x1").await;
    await_recorded(&node, &session, &["delivery.requested null", "delivery.sent 1"]).await;
    // The token opens files of this session, and only as a whole credential.
    let ann = Web::new(node.http, Some("ann"));
    ann.turn("s1", "a", "k", "draw", None).await.rest().await;
    let others = ann.json("/v1/sessions/s1/blobs").await;
    let other = others["blobs"][0]["url"].as_str().expect("a path");
    let bearer = Web::new(node.http, None).bearer(token);
    bearer.get(other).await.must_be(401, "unauthorized");
    let forged = Web::new(node.http, None).bearer(&format!("{token}A"));
    forged.get(path).await.must_be(401, "unauthorized");
}

/// Covers: PR-24, BD-D1.
#[tokio::test]
async fn file_is_named_where_the_adapter_sends_none() {
    let dir = tempdir().expect("a directory");
    let (_agents, _node, mut adapter) = drawing_node(&dir, json!({"key": 2})).await;
    adapter.bring_message("lobby", "m1", "draw a cat").await;
    let part = adapter.next_part().await;
    assert_eq!(part["text"], "Here it is:\n\na cat", "{part}");
    assert!(part.get("attachments").is_none() && part.get("file_token").is_none(), "{part}");
}

/// A conversation may differ from its connection.
#[tokio::test]
async fn attachments_follow_the_capabilities_of_the_conversation() {
    let dir = tempdir().expect("a directory");
    let (_agents, _node, mut adapter) = drawing_node(&dir, json!({"key": 2, "attachments": 2})).await;
    let place = adapter.place("lobby");
    let declared =
        json!({"type": "capabilities", "request_id": "c", "conversation": place, "capabilities": {"attachments": 0}});
    adapter.client.say(declared).await.expect("it is sent");
    adapter.bring_message("lobby", "m1", "draw a cat").await;
    let part = adapter.next_part().await;
    assert!(part.get("attachments").is_none(), "{part}");
    adapter.bring_message("attic", "m2", "draw a cat").await;
    let part = adapter.next_part().await;
    assert_eq!(part["attachments"].as_array().map(Vec::len), Some(1), "{part}");
}
