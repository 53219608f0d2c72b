//! `turnway store …`: check, backup and restore of a data directory.
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use turnway_tests::real::command::{Ended, run};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Creates a stopped node's data with one session of two turns.
async fn data(dir: &Path) -> PathBuf {
    let mut node = Node::start(dir, &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    for n in ["1", "2"] {
        wire.turn("s1", "echo", n, &format!("turn {n}")).await.expect("a turn");
    }
    drop(wire);
    assert_eq!(node.terminate().await, Some(0));
    dir.join("data")
}

async fn store(args: &[&str]) -> Ended {
    run(directory().path(), &[&["store"], args].concat(), &[]).await
}

async fn log(node: &Node) -> Vec<Value> {
    let url = format!("ws://{}", node.http);
    run(directory().path(), &["replay", "s1", "--json", "--url", &url], &[]).await.lines()
}

fn name(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn bytes(dir: &Path) -> Vec<u8> {
    std::fs::read(dir.join("turnway.redb")).expect("read")
}

#[tokio::test]
async fn backup_restores_the_same_log() {
    let dir = directory();
    let safe = directory();
    let data = data(dir.path()).await;
    let backup = safe.path().join("monday");
    let before = bytes(&data);
    let made = store(&["backup", name(&data), name(&backup), "--json"]).await;
    assert_eq!((made.code, made.err.as_str()), (Some(0), ""));
    let found = made.json();
    assert_eq!((&found["ok"], &found["sessions"], &found["damages"]), (&json!(true), &json!(1), &json!(0)));
    assert!(bytes(&data) == before, "the original was written");

    // The original node runs a third turn, which the backup does not contain.
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let whole = log(&node).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    let (_, late) = wire.turn("s1", "echo", "3", "turn 3").await.expect("a turn");
    node.kill().await;

    let again = directory();
    let restored = again.path().join("data");
    let made = store(&["restore", name(&backup), name(&restored)]).await;
    assert_eq!((made.code, made.err.as_str()), (Some(0), ""));
    assert!(made.out.starts_with(&format!("{}: restored", restored.display())), "{}", made.out);
    let node = Node::start(again.path(), &["--demo"]).await;
    assert_eq!(log(&node).await, whole);
    // A client with a cursor beyond the backup gets a reset, also once the log is as long as before.
    for turn in ["another 3", "another 4"] {
        let cursor = json!({"session_id": "s1", "after_seq": late["seq"], "after_epoch": late["epoch"]});
        let mut wire = WebSocketClient::hello(node.http, "ann", vec![cursor]).await.expect("welcome");
        let subscribed = wire.until(|message| message["type"] == "subscribed").await.expect("answered");
        assert_eq!((&subscribed["reset"], &subscribed["reason"]), (&json!(true), &json!("regressed")));
        wire.turn("s1", "echo", turn, turn).await.expect("a turn");
    }
}

#[tokio::test]
async fn store_commands_refuse_existing_targets_and_open_stores() {
    let dir = directory();
    let safe = directory();
    let data = data(dir.path()).await;
    let backup = safe.path().join("monday");
    assert_eq!(store(&["backup", name(&data), name(&backup)]).await.code, Some(0));
    let before = (bytes(&data), bytes(&backup));
    for args in [["restore", name(&backup), name(&data)], ["backup", name(&data), name(&backup)]] {
        let refused = store(&args).await;
        assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{args:?}");
        assert!(refused.err.contains("not empty"), "{}", refused.err);
    }
    for args in [&["check", "nowhere"][..], &["backup", "nowhere", "there"], &["restore", "nowhere", "there"]] {
        let missing = store(&[args, &["--json"]].concat()).await;
        assert_eq!((missing.code, missing.error()["code"].as_str()), (Some(69), Some("unavailable")), "{args:?}");
    }
    let node = Node::start(dir.path(), &["--demo"]).await;
    let there = safe.path().join("there");
    for args in [&["check", name(&data)][..], &["backup", name(&data), name(&there)]] {
        let busy = store(args).await;
        assert_eq!((busy.code, busy.out.as_str()), (Some(69), ""), "{args:?}");
        assert!(busy.err.contains("another process") && busy.err.contains("stop the node"), "{}", busy.err);
    }
    drop(node);
    assert!(!there.exists());
    assert!(bytes(&backup) == before.1);
}

#[tokio::test]
async fn check_does_not_write_the_store() {
    let dir = directory();
    let data = data(dir.path()).await;
    let check = store(&["check", name(&data)]).await;
    assert_eq!((check.code, check.err.as_str()), (Some(0), ""));
    let lines: Vec<&str> = check.out.lines().collect();
    assert_eq!(lines[0], format!("{}: no damage found", data.display()));
    let counts: Vec<Vec<&str>> = lines[1..].iter().map(|line| line.split_whitespace().take(2).collect()).collect();
    assert_eq!(counts[..3], [["sessions", "1"], ["facts", "15"], ["waiting", "0"]], "{}", check.out);
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{}", check.out);

    // After a crash, the check reads the file as the next start would recover it, but does not write it.
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    wire.turn("s1", "echo", "3", "turn 3").await.expect("a turn");
    node.kill().await;
    let before = bytes(&data);
    let check = store(&["check", name(&data), "--json"]).await;
    let found = check.json();
    assert_eq!((check.code, &found["ok"], &found["unclosed"]), (Some(0), &json!(true), &json!(true)), "{found}");
    assert!(bytes(&data) == before, "the file was written");
}

#[tokio::test]
async fn check_finds_a_flipped_bit() {
    let dir = directory();
    let data = data(dir.path()).await;
    let mut turned = bytes(&data);
    // Unused pages contain the text too, so all occurrences are flipped.
    let said = turned.windows(6).enumerate().filter(|(_, window)| *window == b"turn 2");
    let places: Vec<usize> = said.map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "what was said");
    for at in places {
        turned[at] ^= 1;
    }
    std::fs::write(data.join("turnway.redb"), &turned).expect("written");
    let check = store(&["check", name(&data)]).await;
    assert_eq!((check.code, check.err.as_str()), (Some(1), ""));
    assert!(check.out.contains(": DAMAGED in ") && check.out.contains("\n  - "), "{}", check.out);
    assert!(!check.out.contains("turn 2") && !check.out.contains("uurn"), "content is not shown");
    let found = store(&["check", name(&data), "--json"]).await.json();
    assert_eq!(found["ok"], false);
    assert_eq!(found["complaints"].as_array().map(Vec::len), found["damages"].as_u64().map(|n| n as usize));
    let safe = directory();
    // The backup leaves the damaged session out, and reports that.
    let backup = store(&["backup", name(&data), name(&safe.path().join("x")), "--json"]).await;
    let made = backup.json();
    assert_eq!((backup.code, &made["ok"]), (Some(1), &json!(false)), "{made}");
    assert_eq!((&made["left_out"], &made["damages"], &made["sessions"]), (&json!(1), &json!(0), &json!(0)));
}

#[tokio::test]
async fn running_node_is_backed_up() {
    let dir = directory();
    let safe = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    wire.turn("s1", "echo", "1", "before").await.expect("a turn");
    let before = log(&node).await;
    let admin = format!("http://{}", node.admin);
    let backup = safe.path().join("monday");
    let made = store(&["backup", "--admin", &admin, name(&backup)]).await;
    assert_eq!((made.code, made.err.as_str()), (Some(0), ""));
    assert!(made.out.starts_with(&format!("{}: backed up", backup.display())), "{}", made.out);
    wire.turn("s1", "echo", "2", "afterwards").await.expect("a turn");
    let check = store(&["check", name(&backup), "--json"]).await.json();
    assert_eq!((&check["ok"], &check["facts"]), (&json!(true), &json!(before.len())));

    let again = store(&["backup", "--admin", &admin, name(&backup), "--json"]).await;
    assert_eq!((again.code, again.error()["code"].as_str()), (Some(1), Some("invalid_message")));
    for wrong in [&["backup", "one"][..], &["backup", "--admin", &admin, "one", "two"]] {
        assert_eq!(store(wrong).await.code, Some(64), "{wrong:?}");
    }
    assert_eq!(store(&["backup", "--admin", "http://127.0.0.1:1", "x"]).await.code, Some(69));

    let again = directory();
    assert_eq!(store(&["restore", name(&backup), name(&again.path().join("data"))]).await.code, Some(0));
    let restored = Node::start(again.path(), &["--demo"]).await;
    assert_eq!(log(&restored).await, before);
}

#[tokio::test]
async fn memory_store_backup_is_refused() {
    let dir = directory();
    let safe = directory();
    std::fs::write(dir.path().join("turnway.toml"), "[store]\nurl = \"memory:\"\n").expect("a file");
    // The harness always passes a store on disk, and two stores are an error, so this test starts the binary
    // itself.
    let mut child = tokio::process::Command::new(turnway_tests::real::node::binary())
        .args(["serve", "--demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--quic", "off"])
        .current_dir(dir.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("it runs");
    let mut out = BufReader::new(child.stdout.take().expect("piped")).lines();
    let ready = out.next_line().await.expect("read").expect("a ready line");
    let admin = ready.split(' ').find_map(|part| part.strip_prefix("admin=")).expect("an address");
    let there = safe.path().join("there");
    let output = store(&["backup", "--admin", &format!("http://{admin}"), name(&there)]).await;
    assert!(output.code == Some(1) && output.err.contains("in memory"), "{output:?}");
    assert!(!there.exists());
}
