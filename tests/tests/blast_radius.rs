//! Containment of damage: one session's records, the data file, and requests from foreign web pages.
use ::http::Request;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::TcpStream;
use turnway::admin::ROUTES;
use turnway_tests::real::command::{Ended, run};
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{WebSocketClient, invoke};
use turnway_tests::real::{PATIENCE, http};

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

async fn turnway(args: &[&str]) -> Ended {
    run(directory().path(), args, &[]).await
}

/// Sends a request with these headers and returns its status and body.
async fn send(to: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let stream = TokioIo::new(TcpStream::connect(to).await.expect("connected"));
    let (mut send, connection) = hyper::client::conn::http1::handshake(stream).await.expect("spoken");
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header("host", to.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = send.send_request(request.body(Full::<Bytes>::default()).expect("a request")).await;
    let response = response.expect("an answer");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, String::from_utf8(body.to_vec()).expect("UTF-8"))
}

/// Creates the data of a stopped or killed node in which one session is damaged.
async fn damaged(dir: &Path, is_killed: bool) -> PathBuf {
    let mut node = Node::start(dir, &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    for n in 0..8 {
        wire.turn(&format!("good{n}"), "echo", "m", &"filler ".repeat(100)).await.expect("a turn");
    }
    wire.turn("bad", "echo", "m", &"MARKER ".repeat(200)).await.expect("a turn");
    drop(wire);
    if is_killed {
        node.kill().await;
    } else {
        assert_eq!(node.terminate().await, Some(0));
    }
    let data = dir.join("data");
    let mut bytes = std::fs::read(data.join("turnway.redb")).expect("read");
    let places: Vec<usize> = bytes.windows(6).enumerate().filter(|(_, at)| at == b"MARKER").map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| bytes[at] ^= 1);
    std::fs::write(data.join("turnway.redb"), bytes).expect("written");
    data
}

async fn messages(node: &Node, session: &str) -> (u16, String) {
    let path = format!("/v1/sessions/{session}/messages");
    send(node.http, "GET", &path, &[("x-user-id", "ann")]).await
}

/// Covers: G-19.
#[tokio::test]
async fn damaged_session_does_not_affect_other_sessions() {
    for is_killed in [false, true] {
        let dir = directory();
        let data = damaged(dir.path(), is_killed).await;
        // The second start finds the session that the first start has quarantined.
        for _ in 0..2 {
            let mut node = Node::start(dir.path(), &["--demo"]).await;
            let (status, body) = messages(&node, "bad").await;
            let problem: Value = serde_json::from_str(&body).expect("JSON");
            assert_eq!((status, problem["code"].as_str()), (500, Some("store_damaged")), "{body}");
            for n in 0..8 {
                let (status, body) = messages(&node, &format!("good{n}")).await;
                assert!(status == 200 && body.contains("filler"), "{status} {body}");
            }
            let web = Web::new(node.http, Some("ann"));
            web.ask("DELETE", "/v1/sessions/bad", &[], "").await.must_be(500, "store_damaged");
            let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
            let turn = format!("m-{}", node.id);
            wire.turn("good3", "echo", &turn, "more").await.expect("a turn in a session beside it");
            for request in [invoke("bad", "echo", "again"), json!({"type": "subscribe", "session_id": "bad"})] {
                let answer = wire.ask("q", request).await.expect("an answer");
                assert_eq!((&answer["type"], &answer["code"]), (&json!("error"), &json!("store_damaged")));
            }
            assert_eq!(http::get(node.admin, "/readyz").await.expect("an answer").0, 200);
            let (_, nodes) = http::get(node.admin, "/v1/nodes").await.expect("an answer");
            let nodes: Value = serde_json::from_str(&nodes).expect("JSON");
            assert_eq!(nodes["nodes"][0]["damaged_sessions"], 1);
            let (_, metrics) = http::get(node.admin, "/metrics").await.expect("an answer");
            assert!(metrics.contains("\nturnway_store_damaged_sessions 1\n"));
            assert!(node.log().contains("a session is quarantined") || node.log().contains("are quarantined"));
            assert_eq!(node.terminate().await, Some(0));
        }
        let checked = turnway(&["store", "check", text(&data)]).await;
        assert!(checked.code == Some(1) && checked.out.contains("quarantined"), "{checked:?}");
        let copy = dir.path().join("copy");
        let saved = dir.path().join("saved");
        let made = turnway(&["store", "backup", text(&data), text(&copy)]).await;
        assert!(made.code == Some(1) && made.out.contains("1 damaged sessions were omitted"), "{made:?}");
        let made = turnway(&["store", "check", text(&data), "--salvage", text(&saved)]).await;
        assert!(made.code == Some(0) && made.out.contains("were omitted"), "{made:?}");
        let made = turnway(&["store", "check", text(&data), "--repair"]).await;
        assert!(made.code == Some(0) && made.out.contains("repaired"), "{made:?}");
        for whole in [&data, &copy, &saved] {
            let checked = turnway(&["store", "check", text(whole), "--json"]).await;
            assert_eq!((checked.code, &checked.json()["sessions"]), (Some(0), &json!(8)), "{checked:?}");
        }
    }
}

/// Closes the store on an orderly stop although detached tasks hold it.
#[tokio::test]
async fn orderly_stop_closes_the_store() {
    let dir = directory();
    let mut node = guarded(&dir, &["--demo"]).await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let mut wire = key.hello(node.http, Some("ann")).await.expect("welcome");
    wire.turn("s1", "echo", "1", "hello").await.expect("a turn");
    // The connection stays open until the node stops.
    assert_eq!(node.terminate().await, Some(0));
    let checked = turnway(&["store", "check", text(&dir.path().join("data")), "--json"]).await;
    let found = checked.json();
    assert_eq!((&found["ok"], &found["unclosed"]), (&json!(true), &json!(false)), "{found}");
}

/// Covers: G-19.
#[tokio::test]
async fn removed_data_file_makes_the_node_unready() {
    let dir = directory();
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    wire.turn("s1", "echo", "1", "hello").await.expect("a turn");
    std::fs::remove_file(dir.path().join("data/turnway.redb")).expect("removed");
    let began = Instant::now();
    let reason = loop {
        let (status, body) = http::get(node.admin, "/readyz").await.expect("an answer");
        if status == 503 {
            break body;
        }
        assert!(began.elapsed() < PATIENCE, "never unready");
        tokio::task::yield_now().await;
    };
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(reason.contains("store_damaged"), "{reason}");
    let answer = wire.ask("q", invoke("s2", "echo", "late")).await.expect("an answer");
    assert_eq!((&answer["type"], &answer["code"]), (&json!("error"), &json!("store_unavailable")), "{answer}");
    node.must_run();
    assert_eq!(node.terminate().await, Some(69));
}

/// Iterates over the router's own table of routes, so that a new route is tested without a change here.
///
/// Covers: S-45.
#[tokio::test]
async fn cross_origin_requests_to_admin_are_rejected() {
    let dir = directory();
    let mut node = guarded(&dir, &["--demo"]).await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let own = format!("http://{}", node.admin);
    let changes = || ROUTES.iter().filter(|route| route.method != "GET");
    assert!(changes().count() >= 4);
    for route in changes() {
        let path = route.path.replace("{key_id}", &key.id);
        for origin in ["http://localhost:3000", "http://evil.example", "null"] {
            for kind in ["text/plain", "application/x-www-form-urlencoded", "application/json"] {
                let headers = [("origin", origin), ("content-type", kind)];
                let (status, body) = send(node.admin, route.method, &path, &headers).await;
                assert_eq!(status, 403, "{path} {origin} {kind}: {body}");
            }
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
            for headers in [&[("content-type", kind)][..], &[("content-type", kind), ("origin", &own)]] {
                let (status, body) = send(node.admin, route.method, &path, headers).await;
                assert_eq!(status, 415, "{path} {headers:?}: {body}");
            }
        }
        let json = ("content-type", "application/json");
        for site in ["cross-site", "same-site"] {
            let headers = [json, ("sec-fetch-site", site)];
            assert_eq!(send(node.admin, route.method, &path, &headers).await.0, 403, "{path} {site}");
        }
    }
    // No rejected request had an effect: the key works, and the node serves.
    drop(key.hello(node.http, Some("ann")).await.expect("the key is good"));
    assert_eq!(http::get(node.admin, "/readyz").await.expect("an answer").0, 200);
    // Requests of an operator's programs and of the node's own page are performed.
    let path = format!("/v1/keys/{}:revoke", key.id);
    assert_eq!(send(node.admin, "POST", &path, &[]).await.0, 200);
    let page = [("origin", own.as_str()), ("content-type", "application/json"), ("sec-fetch-site", "same-origin")];
    assert_eq!(send(node.admin, "POST", "/drain", &page).await.0, 202);
    assert_eq!(node.exit().await, Some(0));
}

#[tokio::test]
async fn probe_reports_readiness_by_exit_code() {
    let dir = directory();
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let admin = format!("http://{}", node.admin);
    for args in [&["--admin", &admin][..], &["--url", &admin, "--ready"], &["--admin", &admin, "--live"]] {
        let probed = turnway(&[&["probe"], args].concat()).await;
        assert_eq!((probed.code, probed.err.as_str()), (Some(0), ""), "{args:?}");
    }
    std::fs::remove_file(dir.path().join("data/turnway.redb")).expect("removed");
    let began = Instant::now();
    loop {
        let probed = turnway(&["probe", "--admin", &admin, "--json"]).await;
        if probed.code == Some(1) {
            assert_eq!(probed.json()["reasons"], serde_json::json!(["store_damaged"]));
            break;
        }
        assert!(began.elapsed() < PATIENCE, "never unready: {probed:?}");
    }
    assert_eq!(turnway(&["probe", "--admin", &admin, "--live"]).await.code, Some(0), "it lives all the same");
    node.kill().await;
    assert_eq!(turnway(&["probe", "--admin", &admin]).await.code, Some(69));
}

#[tokio::test]
async fn drain_wait_returns_after_the_node_has_left() {
    let dir = directory();
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let admin = format!("http://{}", node.admin);
    let drained = turnway(&["drain", "--admin", &admin, "--wait", "--timeout", "30", "--json"]).await;
    assert_eq!((drained.code, &drained.json()["phase"]), (Some(0), &json!("left")), "{drained:?}");
    assert_eq!(node.exit().await, Some(0));
    // The store was closed before the node reported that it had left.
    let checked = turnway(&["store", "check", text(&dir.path().join("data")), "--json"]).await;
    assert_eq!(checked.json()["unclosed"], false);
    assert_eq!(turnway(&["drain", "--admin", &admin]).await.code, Some(69));
    assert_eq!(turnway(&["drain", "--admin", &admin, "--timeout", "3"]).await.code, Some(64), "without --wait");
}

/// Keeps a node draining with a turn that does not end.
#[tokio::test]
async fn drain_wait_reports_a_timeout() {
    let dir = directory();
    let agents = turnway_tests::real::agent::Agents::start(|_| {
        turnway_tests::real::agent::Reply::speak(|stream| async move { stream.hung_up().await })
    })
    .await;
    let flag = agents.flag("ada");
    let mut node = Node::start(dir.path(), &["--agent", &flag]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    wire.say(invoke("s1", "ada", "hello")).await.expect("said");
    wire.until(|message| message["type"] == "run_started").await.expect("it runs");
    let admin = format!("http://{}", node.admin);
    let late = turnway(&["drain", "--admin", &admin, "--wait", "--timeout", "1"]).await;
    assert_eq!(late.code, Some(1), "{late:?}");
    assert!(late.out.starts_with("still draining"), "{late:?}");
    node.kill().await;
}
