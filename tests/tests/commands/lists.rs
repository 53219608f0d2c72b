//! `turnway sessions` and `turnway agents`: lists of a gateway's sessions and agents.
use serde_json::{Value, json};
use turnway_tests::real::command::{Ended, run};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;

async fn ask(node: &Node, args: &[&str]) -> Ended {
    let dir = tempfile::tempdir().expect("a directory");
    // The URL of the WebSocket endpoint is accepted too.
    run(dir.path(), args, &[("TURNWAY_URL", &format!("ws://{}/v1/connect", node.http))]).await
}

fn names(listed: &Value) -> Vec<&str> {
    let sessions = listed["sessions"].as_array().expect("a list");
    sessions.iter().map(|session| session["session_id"].as_str().expect("a name")).collect()
}

#[tokio::test]
async fn sessions_are_listed_newest_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let none = ask(&node, &["sessions"]).await;
    assert_eq!((none.code, none.out.as_str()), (Some(0), "SESSION  USER  STATE  CREATED  FACTS  OPEN\n"));
    for (user, session) in [("ann", "s1"), ("bob", "a-longer-name"), ("ann", "s3")] {
        let mut wire = WebSocketClient::hello(node.http, user, vec![]).await.expect("welcome");
        wire.turn(session, "echo", "m1", "hello").await.expect("a turn");
    }
    let listed = ask(&node, &["sessions", "--json"]).await;
    assert_eq!((listed.code, listed.err.as_str()), (Some(0), ""));
    assert_eq!(names(&listed.json()), ["s3", "a-longer-name", "s1"]);
    assert_eq!(listed.json()["next"], Value::Null);
    assert_eq!(names(&ask(&node, &["sessions", "--json", "--user", "ann"]).await.json()), ["s3", "s1"]);
    let two = ask(&node, &["sessions", "--json", "--limit", "2"]).await.json();
    assert_eq!(names(&two), ["s3", "a-longer-name"]);
    assert!(two["next"].is_string());

    let output = ask(&node, &["sessions"]).await;
    let lines: Vec<Vec<&str>> = output.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["SESSION", "USER", "STATE", "CREATED", "FACTS", "OPEN"]);
    assert_eq!(
        (lines[2][..3].to_vec(), lines[2][4..].to_vec()),
        (vec!["a-longer-name", "bob", "open"], vec!["8", "0"])
    );
    assert!(lines[1][3].starts_with("20") && lines[1][3].ends_with('Z'), "a date where nobody looks: {}", output.out);
    let columns = |line: &str| line.find("open").or(line.find("STATE"));
    let stands: Vec<_> = output.out.lines().map(columns).collect();
    assert!(stands.windows(2).all(|pair| pair[0] == pair[1]), "{}", output.out);
    assert_eq!(ask(&node, &["sessions", "--limit", "0"]).await.code, Some(64));
}

#[tokio::test]
async fn sessions_beyond_one_page_are_listed() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    for n in 0..230 {
        let open = json!({"type": "session_open", "session_id": format!("s{n:03}")});
        wire.ask(&format!("o{n}"), open).await.expect("opened");
    }
    let listed = ask(&node, &["sessions", "--json", "--limit", "1000"]).await.json();
    let mut names = names(&listed);
    assert_eq!(names.len(), 230);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 230);
}

#[tokio::test]
async fn agents_are_listed_with_their_capabilities() {
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["--demo", "--agent", "helper=http://127.0.0.1:1/base,cancel=true"];
    let node = Node::start(dir.path(), &args).await;
    let listed = ask(&node, &["agents", "--json"]).await;
    assert_eq!((listed.code, listed.err.as_str()), (Some(0), ""));
    let told = listed.json();
    let helper = told["agents"].as_array().expect("a list").iter().find(|agent| agent["agent_id"] == "helper");
    let helper = helper.expect("it is configured");
    assert_eq!((&helper["kind"], &helper["default"]), (&json!("http"), &json!(true)), "{helper}");

    let told = ask(&node, &["agents"]).await;
    let line = |name: &str| {
        let line = told.out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{}", told.out));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("AGENT"), ["AGENT", "KIND", "DEFAULT", "HEALTH", "CAN", "ENDPOINT"]);
    assert_eq!(line("helper"), ["helper", "http", "yes", "healthy", "cancel", "http://127.0.0.1:1/base"]);
    assert_eq!(line("echo"), ["echo", "builtin", "healthy", "cancel"]);
    // Only operators see the endpoint of an agent.
    let public = ask(&node, &["agents", "--user", "ann"]).await;
    assert!(!public.out.contains("127.0.0.1"), "{}", public.out);
}
