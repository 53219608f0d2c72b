//! The files under `deploy/` are valid for the binary of the same commit.
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use turnway_tests::real::http;
use turnway_tests::real::node::{Node, binary};
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::WebSocketClient;

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name)
}

/// Returns the command lines of `compose.yaml`: each is a list on one line.
fn command_lines() -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(deploy("compose.yaml")).expect("the file");
    let lists = text.lines().filter_map(|line| line.trim().strip_prefix("command: "));
    lists.map(|list| serde_json::from_str(list).unwrap_or_else(|why| panic!("{why}: {list}"))).collect()
}

#[test]
fn example_configuration_is_accepted() {
    let file = deploy("turnway.toml");
    let check = Command::new(binary()).arg("check-config").arg("--config").arg(&file).output();
    let check = check.expect("the node's binary starts");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    // An invalid key is reported with its file.
    let text = std::fs::read_to_string(&file).expect("the example").replace("durability", "durable");
    let dir = tempfile::tempdir().expect("a directory");
    let wrong = dir.path().join("turnway.toml");
    std::fs::write(&wrong, text).expect("a file");
    let check = Command::new(binary()).arg("check-config").arg("--config").arg(&wrong).output();
    let check = check.expect("the node's binary starts");
    assert_eq!(check.status.code(), Some(64));
    let said = String::from_utf8_lossy(&check.stdout) + String::from_utf8_lossy(&check.stderr);
    assert!(said.contains("durable") && said.contains("turnway.toml"), "{said}");
}

/// Starts the fleet without containers and their host names: Redis has another address, and ports are free
/// ones.
#[tokio::test]
async fn compose_command_lines_start_a_fleet() {
    let lines = command_lines();
    let dir = tempfile::tempdir().expect("a directory");
    let [redis, nodes @ ..] = lines.as_slice() else { panic!("no command lines") };
    assert_eq!((redis[0].as_str(), nodes.len()), ("redis-server", 3));
    let settings: Vec<&str> = redis[1..].iter().map(String::as_str).collect();
    let redis = Redis::start(&dir.path().join("redis"), &settings);
    let mut fleet = Vec::new();
    for line in nodes {
        assert_eq!(line[0], "serve");
        let checked = Command::new(binary()).arg("check-config").args(&line[1..]).current_dir(dir.path()).output();
        let checked = checked.expect("the node's binary starts");
        assert!(checked.status.success(), "{line:?}: {}", String::from_utf8_lossy(&checked.stderr));
        let home = dir.path().join(value(line, "--node-name"));
        std::fs::create_dir_all(&home).expect("a directory");
        let rest: Vec<&str> = ["--demo", "--node-name", value(line, "--node-name")].to_vec();
        let known = rest.len() + ["serve", "--store", "…", "--listen", "…", "--admin", "…", "--quic", "…"].len();
        assert_eq!(line.len(), known, "an argument that this test does not hand on: {line:?}");
        assert_eq!(value(line, "--store"), "redis://redis:6379");
        fleet.push(Node::start_on(&redis.url(), &home, &rest).await);
    }
    let (_, text) = http::get(fleet[0].admin, "/v1/nodes").await.expect("it answers");
    let body: Value = serde_json::from_str(&text).expect("JSON");
    let mut names: Vec<_> = body["nodes"].as_array().expect("a list").iter().map(|node| &node["name"]).collect();
    names.sort_by_key(|name| name.to_string());
    assert_eq!(names, ["n1", "n2", "n3"]);
    let mut wire = WebSocketClient::hello(fleet[2].http, "ann", vec![]).await.expect("welcome");
    let (_, done) = wire.turn("s1", "echo", "m1", "hello").await.expect("a turn");
    assert_eq!(done["status"], "completed");
}

/// Compares HAProxy's default addresses with those of the compose file's nodes.
#[test]
fn haproxy_defaults_match_the_compose_nodes() {
    let front = std::fs::read_to_string(deploy("haproxy.cfg")).expect("the file");
    for (index, line) in command_lines()[1..].iter().enumerate() {
        let n = index + 1;
        assert_eq!(value(line, "--node-name"), format!("n{n}"));
        for (variable, flag) in [("NODE", "--listen"), ("ADMIN", "--admin")] {
            let known = format!("\"${{FLEET_{variable}{n}-{}}}\"", value(line, flag));
            assert!(front.contains(&known), "{known}");
        }
    }
}

fn value<'a>(line: &'a [String], flag: &str) -> &'a str {
    let at = line.iter().position(|word| word == flag).unwrap_or_else(|| panic!("no {flag} in {line:?}"));
    &line[at + 1]
}
