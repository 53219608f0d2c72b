//! The rights to files: of users, of operators, and of agents with the token of a run.
use super::{MIB, await_that, open_session};
use bytes::Bytes;
use serde_json::json;
use tempfile::tempdir;
use tokio::sync::mpsc;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::{Web, text_of};
use turnway_tests::real::wire::invoke;

/// Covers: PR-24, S-06.
#[tokio::test]
async fn foreign_session_has_no_files_and_takes_none() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    let bob = Web::new(node.http, Some("bob"));
    open_session(&ann, "s1").await;
    let path = ann.must_upload("s1", "image/png", &random_bytes(1, 1000)).await;
    let unknown = path.replace("/s1/", "/s2/");
    for path in [&path, &unknown] {
        bob.get(path).await.must_be(404, "not_found");
        bob.ask("DELETE", path, &[], "").await.must_be(404, "not_found");
    }
    for session in ["s1", "s2"] {
        bob.get(&format!("/v1/sessions/{session}/blobs")).await.must_be(404, "not_found");
        bob.upload(session, "image/png", &random_bytes(2, 10)).await.must_be(404, "not_found");
    }
    let [foreign, none] = [bob.get(&path).await.text, bob.get(&unknown).await.text];
    assert_eq!(foreign, none, "the two cases look the same");
    let operator = Web::new(node.http, None);
    assert_eq!(operator.download(&path).await.bytes.len(), 1000);
    assert_eq!(ann.json("/v1/sessions/s1/blobs").await["bytes"], 1000, "nothing was changed");
}

/// Covers: PR-24, PR-27.
#[tokio::test]
async fn agent_reads_files_of_its_session_with_its_run_token() {
    let (told, mut tokens) = mpsc::unbounded_channel();
    let agents = Agents::start(move |invocation| {
        let _ = told.send(invocation.token.clone());
        Reply::speak(|stream| async move { stream.hung_up().await })
    })
    .await;
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--agent", &agents.flag("held")]).await;
    let ann = Key::make(&node, &["--tenant", "acme", "--user", "ann"]).await;
    let mut wire = ann.hello(node.http, None).await.expect("let in");
    for session in ["s1", "s2"] {
        wire.ask(session, invoke(session, "held", "look at this")).await.expect("an answer");
    }
    let token = tokens.recv().await.expect("a token");
    let web = Web::new(node.http, None).key(&ann);
    let own = web.must_upload("s1", "image/png", &random_bytes(1, 300_000)).await;
    let other = web.must_upload("s2", "image/png", &random_bytes(2, 1000)).await;
    let agent = Web::new(node.http, None).bearer(&token);
    let file = agent.download(&own).await;
    assert!(file.status == 200 && file.bytes == random_bytes(1, 300_000), "{}", file.status);
    agent.get(&other).await.must_be(403, "forbidden");
    agent.ask("DELETE", &own, &[], "").await.must_be(403, "forbidden");
    let text = Bytes::from_static(b"mine");
    agent.upload("s2", "text/plain", &text).await.must_be(403, "forbidden");
    let path = agent.must_upload("s1", "text/plain", &text).await;
    assert_eq!(web.download(&path).await.bytes, text);
    // The run ends, and with it the token; the file stays.
    wire.ask("c", json!({"type": "cancel_run", "session_id": "s1"})).await.expect("an answer");
    await_that("the token is dead", async || agent.upload("s1", "text/plain", &text).await.status == 401).await;
    assert_eq!(web.download(&path).await.bytes, text);
}

/// Covers: PR-24, PR-27.
#[tokio::test]
async fn agent_answers_a_picture_with_another() {
    let (told, mut seen) = mpsc::unbounded_channel();
    let agents = Agents::start(move |invocation| {
        let told = told.clone();
        Reply::speak(move |stream| async move {
            let Some(url) = invocation.content[1]["image_url"]["url"].as_str() else {
                return stream.done().await;
            };
            let uri: http::Uri = url.parse().expect("a whole URL");
            let gateway = uri.authority().expect("the gateway").as_str().parse().expect("an address");
            let web = Web::new(gateway, None).bearer(&invocation.token);
            let picture = web.download(uri.path()).await.bytes;
            let path = web.must_upload(&invocation.session_id, "image/png", &random_bytes(2, MIB)).await;
            told.send((picture, web.upload("s2", "image/png", &random_bytes(2, 10)).await.status)).expect("the test");
            stream.delta(&format!("![another](http://{gateway}{path})")).await?;
            stream.done().await
        })
    })
    .await;
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--agent", &agents.flag("painter")]).await;
    let ann = Web::new(node.http, Some("ann"));
    ann.turn("s1", "painter", "open", "hello", None).await.rest().await;
    open_session(&ann, "s2").await;
    let picture = random_bytes(1, 5 * MIB + 7);
    let path = ann.must_upload("s1", "image/png", &picture).await;
    let content = json!([{"type": "text", "text": "another one"}, {"type": "image_url", "image_url": {"url": path}}]);
    let body = json!({"agent_id": "painter", "message": {"content": content}});
    let headers = [("content-type", "application/json"), ("idempotency-key", "k1")];
    let mut answer = ann.open("POST", "/v1/sessions/s1/turns", &headers, &body.to_string()).await;
    let events = answer.rest().await;
    let asked = timeout(PATIENCE, seen.recv()).await.expect("the agent reads the picture");
    let (got, beyond) = asked.expect("the agent was asked");
    assert!(got == picture, "{} of {} bytes", got.len(), picture.len());
    assert_eq!(beyond, 403, "the token of a run adds no file elsewhere");
    let text = text_of(&events, "");
    let target = text.split(['(', ')']).nth(1).expect("a reference");
    let uri: http::Uri = target.parse().expect("a URL");
    assert!(ann.download(uri.path()).await.bytes == random_bytes(2, MIB));
    // The log has the path, which every node serves.
    let facts = ann.facts("s1").await;
    let input = facts.iter().find(|fact| fact.to_string().contains("another one")).expect("the message");
    assert!(input.to_string().contains(&format!("\"{path}\"")), "{input}");
}
