use super::open_session;
use bytes::Bytes;
use tempfile::tempdir;
use tokio::sync::mpsc;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
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
    agent.upload("s1", "text/plain", &Bytes::from_static(b"mine")).await.must_be(403, "forbidden");
}
