//! Tests the store on Redis as managed services offer it: without `CONFIG`, with little of `INFO`, and with client
//! certificates.
use crate::refusals::until_ready;
use redis::Value;
use serde_json::{Value as Json, json};
use std::path::Path;
use tempfile::tempdir;
use turnway_tests::real::command::run;
use turnway_tests::real::http::get;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::{Redis, free_port};
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Returns the durability of an input that the node reports to its client and to operators.
async fn durability(node: &Node, session: &str) -> (Json, Json) {
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    let accepted = wire.ask(session, invoke(session, "echo", "hello")).await.expect("accepted");
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    let (_, nodes) = get(node.admin, "/v1/nodes").await.expect("it answers");
    let nodes: Json = serde_json::from_str(&nodes).expect("JSON");
    (accepted["durability"].clone(), nodes["nodes"][0]["durability"].clone())
}

/// Covers: S-42.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_config_uses_shown_or_attested_durability() {
    let dir = tempdir().expect("a directory");
    let args = ["--appendonly", "yes", "--appendfsync", "always", "--rename-command", "CONFIG", ""];
    let server = Redis::start(&dir.path().join("redis"), &args);
    for (config, level, attested) in
        [("durability = \"mem\"", "mem", false), ("", "os", false), ("attest = \"fsync\"", "fsync", true)]
    {
        std::fs::write(dir.path().join("turnway.toml"), format!("[store]\n{config}\n")).expect("a file");
        let node = Node::start_on(&server.url(), dir.path(), &["--demo"]).await;
        until_ready(node.admin, 200, "true").await;
        let (told, shown) = durability(&node, &format!("s-{level}")).await;
        assert_eq!((&told, &shown["level"]), (&json!(level), &json!(level)));
        assert_eq!(shown["attested"], json!(attested));
        let (_, metrics) = get(node.admin, "/metrics").await.expect("it answers");
        assert!(metrics.contains(&format!("turnway_store_attested {}\n", u8::from(attested))));
        let log = std::fs::read_to_string(dir.path().join("stderr.log")).expect("a log");
        assert_eq!(level != "mem", log.contains("store.attest"), "{log}");
    }
}

/// Covers: S-40, S-42.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_without_config_and_info_suffices_for_mem_durability() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    let rules = ["on", ">pw", "+@all", "-config", "-info", "-client", "~*", "&*"];
    let _: Value = server.command(&[&["ACL", "SETUSER", "app"], &rules[..]].concat());
    let url = format!("redis://app:pw@127.0.0.1:{}", server.port);
    let node = Node::start_on(&url, dir.path(), &["--demo", "--durability", "mem"]).await;
    until_ready(node.admin, 200, "true").await;
    assert_eq!(durability(&node, "s1").await.0, "mem");
}

/// Covers: S-42.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_is_sent_if_the_server_requires_one() {
    let dir = tempdir().expect("a directory");
    let tls = Path::new(env!("CARGO_MANIFEST_DIR")).join("tls");
    let file = |name: &str| tls.join(name).display().to_string();
    let port = free_port().to_string();
    let ca = file("ca.pem");
    let own = file("server.pem");
    let secret = file("server.key");
    // A self-signed client certificate, and a server that trusts it.
    let client = rcgen::generate_simple_self_signed(["node".to_owned()]).expect("a certificate");
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let cert = write("client.pem", client.cert.pem());
    let key = write("client.key", client.signing_key.serialize_pem());
    let both = std::fs::read_to_string(&ca).expect("a file") + &client.cert.pem();
    let both = write("both.pem", both);
    let args = ["--tls-port", &port, "--tls-auth-clients", "yes"];
    let files = ["--tls-ca-cert-file", &both, "--tls-cert-file", &own, "--tls-key-file", &secret];
    let _server = Redis::start(&dir.path().join("redis"), &[&args[..], &files].concat());
    let url = format!("rediss://localhost:{port}");
    let config = |files: &str| {
        let text = format!("[store]\nca = {ca:?}\ndurability = \"mem\"\nwait = \"0s\"\n{files}");
        std::fs::write(dir.path().join("turnway.toml"), text).expect("a file");
    };
    config("");
    let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--quic", "off", "--store", &url];
    let stranger = run(dir.path(), &args, &[]).await;
    assert_eq!(stranger.code, Some(69), "{stranger:?}");
    config(&format!("client_cert = {cert:?}\nclient_key = {key:?}\n"));
    let node = Node::start_on(&url, dir.path(), &["--demo"]).await;
    until_ready(node.admin, 200, "true").await;
    assert_eq!(durability(&node, "s1").await.0, "mem");
}
