//! `turnway nodes` at a node that does not share its store.
use serde_json::json;
use std::time::Duration;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::command::run;
use turnway_tests::real::http;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;

#[tokio::test]
async fn single_node_lists_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--node-name", "alone"]).await;
    let admin = format!("http://{}", node.admin);
    let args = ["nodes", "--json", "--admin", &admin];
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    wire.turn("s1", "echo", "m1", "hello").await.expect("a turn");
    // The node updates its load figures four times a second.
    let counted = async {
        loop {
            let told = run(dir.path(), &args, &[]).await;
            assert_eq!((told.code, told.err.as_str()), (Some(0), ""));
            if told.json()["nodes"][0]["load"]["links"] == 1 {
                return told.json();
            }
        }
    };
    let told = timeout(PATIENCE, counted).await.expect("it is counted");
    assert_eq!(told["nodes"].as_array().map(Vec::len), Some(1), "{told}");
    let own = &told["nodes"][0];
    for (key, value) in [
        ("node_id", json!(node.id)),
        ("name", json!("alone")),
        ("address", json!(node.http.to_string())),
        ("phase", json!("serving")),
        ("release", json!(env!("CARGO_PKG_VERSION"))),
        ("answering", json!(true)),
        ("seen_ago_ms", json!(0)),
    ] {
        assert_eq!(own[key], value, "{key}: {own}");
    }
    assert_eq!(own["load"].get("bus_lag_us"), None, "there is no bus: {own}");

    let seen = run(dir.path(), &["nodes"], &[("TURNWAY_ADMIN", &admin)]).await;
    let lines: Vec<Vec<&str>> = seen.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((seen.code, lines.len()), (Some(0), 2), "{seen:?}");
    assert_eq!(lines[0][..4], ["NAME", "PHASE", "ADDRESS", "OWNS"]);
    assert_eq!(lines[1][..3], ["alone", "serving", &node.http.to_string()]);
    assert_eq!(lines[1].last(), Some(&node.id.as_str()));

    let lost = run(dir.path(), &["nodes", "--json", "--admin", "http://127.0.0.1:1"], &[]).await;
    assert_eq!((lost.code, lost.error()["code"].as_str()), (Some(69), Some("unavailable")));
    // The clients' listener does not list the nodes.
    assert_eq!(http::get(node.http, "/v1/nodes").await.map(|(status, _)| status), Some(404));
    let at_clients = run(dir.path(), &["nodes", "--admin", &format!("http://{}", node.http)], &[]).await;
    assert_eq!(at_clients.code, Some(1), "{at_clients:?}");
}

#[tokio::test]
async fn draining_node_reports_its_phase_and_load() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    let asked = json!({"type": "agent_invoke", "request_id": "r1", "session_id": "s1", "agent_id": "counter",
        "message": {"role": "user", "content": "count to 20 every 100ms"}});
    wire.say(asked).await.expect("said");
    while wire.next().await.expect("it goes on")["type"] != "delta" {}
    node.signal("-TERM").await;
    let leaving = async {
        loop {
            let (status, text) = http::get(node.admin, "/v1/nodes").await.expect("operators are served");
            let body: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(status, 200);
            let own = &body["nodes"][0];
            // The node updates its load figures with a delay.
            if own["phase"] == "draining" && own["load"]["open_turns"] == 1 {
                return own["load"].clone();
            }
        }
    };
    let load = timeout(Duration::from_secs(5), leaving).await.expect("while the turn runs");
    assert_eq!((&load["sessions_owned"], &load["links"]), (&json!(1), &json!(1)), "{load}");
    assert_eq!(node.exit().await, Some(0));
}
