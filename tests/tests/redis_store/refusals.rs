//! Tests errors of Redis that make the store unusable: they are reported at startup, at run time, to clients, and
//! by `/readyz`.
use redis::Value;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;
use tempfile::tempdir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::command::run;
use turnway_tests::real::http::get;
use turnway_tests::real::node::{Node, binary};
use turnway_tests::real::redis::{Redis, free_port};
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Configuration with the lowest durability and without a startup wait.
const NOW: &str = "[store]\ndurability = \"mem\"\nwait = \"0s\"\n";

/// Waits until `/readyz` answers with this status and text.
pub(crate) async fn until_ready(admin: SocketAddr, status: u16, says: &str) -> String {
    let mut again = interval(Duration::from_millis(20));
    let answered = async {
        loop {
            again.tick().await;
            if let Some((code, body)) = get(admin, "/readyz").await
                && code == status
                && body.contains(says)
            {
                return body;
            }
        }
    };
    timeout(PATIENCE, answered).await.unwrap_or_else(|_| panic!("never {status} {says}"))
}

fn user(server: &Redis, rules: &[&str]) {
    let _: Value = server.command(&[&["ACL", "SETUSER", "app"], rules].concat());
}

fn grant_all(server: &Redis) -> String {
    user(server, &["reset"]);
    user(server, &["on", ">pw", "+@all", "~*", "&*"]);
    format!("redis://app:pw@127.0.0.1:{}", server.port)
}

async fn refusal(wire: &mut WebSocketClient, id: &str) -> String {
    let answer = wire.ask(id, invoke(id, "echo", "hello")).await.expect("an answer");
    assert_eq!(answer["code"], "store_unavailable", "{answer}");
    assert!(answer["retry_after_ms"].is_u64(), "{answer}");
    answer["message"].as_str().expect("a text").to_owned()
}

/// Covers: S-40, S-42.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_right_is_named_at_startup() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    std::fs::write(dir.path().join("turnway.toml"), NOW).expect("a file");
    let url = grant_all(&server);
    // This start loads the functions, so that afterwards only the revoked right is missing.
    drop(Node::start_on(&url, dir.path(), &["--demo"]).await);
    for (taken, named) in [
        (&["-xadd"][..], "`+xadd`"),
        (&["-fcall"], "`+fcall`"),
        (&["-subscribe"], "`+subscribe`"),
        (&["resetchannels"], "`&inbox:*`"),
        (&["resetkeys", "~own:*", "~mark:*"], "`~in:*`"),
    ] {
        grant_all(&server);
        user(&server, taken);
        let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--quic", "off", "--store", &url];
        let ended = run(dir.path(), &args, &[]).await;
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert!(ended.err.contains(named) && ended.err.contains("NOPERM"), "{named}: {}", ended.err);
    }
}

/// Covers: S-46.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_right_is_reported_until_it_is_granted_again() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    let url = grant_all(&server);
    let node = Node::start_on(&url, dir.path(), &["--demo", "--durability", "mem"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    wire.ask("r1", invoke("s1", "echo", "hello")).await.expect("accepted");
    for (n, rule) in ["-fcall", "-xadd", "-hset"].into_iter().enumerate() {
        user(&server, &[rule]);
        // The outcome of a request in flight at that moment is unknown, so the client must resend.
        let first = refusal(&mut wire, &format!("first-{n}")).await;
        assert!(!first.contains("the store is unavailable; try again"), "{first}");
        until_ready(node.admin, 503, "store_forbidden").await;
        let said = refusal(&mut wire, &format!("then-{n}")).await;
        assert!(said.contains("denies access"), "{said}");
        grant_all(&server);
        until_ready(node.admin, 200, "true").await;
        let answer =
            wire.ask(&format!("back-{n}"), invoke(&format!("again-{n}"), "echo", "x")).await.expect("an answer");
        assert_eq!(answer["type"], "turn_accepted", "{answer}");
    }
}

/// Covers: S-46.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_on_a_full_redis_starts_and_reports_it() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    let args = ["--demo", "--durability", "mem"];
    let first = Node::start_on(&server.url(), dir.path(), &args).await;
    let _: Value = server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    until_ready(first.admin, 503, "store_full").await;
    let other = tempdir().expect("a directory");
    let second = Node::start_on(&server.url(), other.path(), &args).await;
    until_ready(second.admin, 503, "store_full").await;
    let mut wire = WebSocketClient::hello(second.http, "ann", vec![]).await.expect("it serves what it can");
    let said = refusal(&mut wire, "r1").await;
    assert!(said.contains("the store is full"), "{said}");
    let _: Value = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    for node in [&first, &second] {
        until_ready(node.admin, 200, "true").await;
    }
    let answer = wire.ask("r2", invoke("s2", "echo", "x")).await.expect("an answer");
    assert_eq!(answer["type"], "turn_accepted", "{answer}");
}

/// A node waits at startup for a server that is down, and reports this in `/readyz`.
///
/// Covers: S-46.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn startup_waits_for_an_unreachable_redis() {
    let dir = tempdir().expect("a directory");
    let mut server = Redis::start(&dir.path().join("redis"), &[]);
    server.kill();
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let url = server.url();
    let at = admin.to_string();
    let args = ["serve", "--demo", "--listen", "127.0.0.1:0", "--quic", "off", "--durability", "mem"];
    let mut node = Command::new(binary())
        .args(args)
        .args(["--admin", &at, "--store", &url])
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the node's binary starts");
    let body = until_ready(admin, 503, "store_away").await;
    assert!(body.contains("starting"), "{body}");
    assert_eq!(get(admin, "/livez").await.expect("it answers").0, 200);
    server.restart();
    let mut lines = BufReader::new(node.stdout.take().expect("piped")).lines();
    let ready = timeout(PATIENCE, lines.next_line()).await.expect("in time").expect("a line");
    assert!(ready.is_some_and(|line| line.starts_with("turnway ready ")));
    until_ready(admin, 200, "true").await;
}

/// Waits until a node has logged this many lines with a text.
async fn until_logged(node: &Node, says: &str, count: usize) {
    let mut again = interval(Duration::from_millis(20));
    let logged = async {
        while node.log().lines().filter(|line| line.contains(says)).count() < count {
            again.tick().await;
        }
    };
    timeout(PATIENCE, logged).await.unwrap_or_else(|_| panic!("{says}: {}", node.log()));
}

/// Covers: S-46.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_reloads_the_redis_password() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    grant_all(&server);
    let file = dir.path().join("password");
    std::fs::write(&file, "pw\n").expect("a file");
    let config = format!("[store]\npassword_file = {:?}\n", file.display().to_string());
    std::fs::write(dir.path().join("turnway.toml"), config).expect("a file");
    let url = format!("redis://app@127.0.0.1:{}", server.port);
    let mut node = Node::start_on(&url, dir.path(), &["--demo", "--durability", "mem"]).await;
    until_ready(node.admin, 200, "true").await;
    // Connections for commands, leases, and both directions of the bus.
    let lines = 4;
    std::fs::write(&file, "wrong\n").expect("a file");
    node.signal("-HUP").await;
    until_logged(&node, "cannot log in to Redis with the new content of store.password_file", lines).await;
    let refused: Vec<Vec<Value>> = server.command(&["ACL", "LOG"]);
    assert!(!refused.is_empty(), "it was tried");
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("a link");
    assert_eq!(ann.turn("s1", "echo", "m1", "still here").await.expect("a turn").0, "still here");
    user(&server, &["<pw", ">other"]);
    std::fs::write(&file, "other\n").expect("a file");
    node.signal("-HUP").await;
    until_logged(&node, "logged in to Redis again", lines).await;
    assert_eq!(ann.turn("s1", "echo", "m2", "and here").await.expect("a turn").0, "and here");
    assert!(!node.log().contains("there is nothing to reload"));
    node.must_run();
}

/// Covers: S-46.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_password_is_read_again_after_a_refused_login() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    grant_all(&server);
    let file = dir.path().join("password");
    std::fs::write(&file, "pw\n").expect("a file");
    let config = format!("[store]\npassword_file = {:?}\n", file.display().to_string());
    std::fs::write(dir.path().join("turnway.toml"), config).expect("a file");
    let url = format!("redis://app@127.0.0.1:{}", server.port);
    let node = Node::start_on(&url, dir.path(), &["--demo", "--durability", "mem"]).await;
    until_ready(node.admin, 200, "true").await;
    user(&server, &["<pw", ">other"]);
    let _: Value = server.command(&["CLIENT", "KILL", "USER", "app"]);
    until_ready(node.admin, 503, "store_forbidden").await;
    std::fs::write(&file, "other\n").expect("a file");
    until_ready(node.admin, 200, "true").await;
}
