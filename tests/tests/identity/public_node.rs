//! A public node: its host names, and the origins of pages that may connect.
use std::net::SocketAddr;
use tempfile::tempdir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use turnway_tests::real::command::run;
use turnway_tests::real::identity::{Key, pepper};
use turnway_tests::real::node::Node;
use turnway_tests::real::tls::{Pair, Trust};

/// Returns the status of a request with exactly these headers.
async fn status(to: SocketAddr, path: &str, headers: &str) -> u16 {
    let mut stream = TcpStream::connect(to).await.expect("a listener");
    let request = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// Covers: S-09, S-45.
#[tokio::test]
async fn public_listener_requires_authentication_and_host_names() {
    let dir = tempdir().expect("a directory");
    let pepper = pepper(dir.path());
    let keys = ["--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
    let any = ["--listen", "0.0.0.0:0"];
    for (args, said) in [
        (any.to_vec(), "listen.http: 0.0.0.0:0 is not a loopback address, and without authentication"),
        ([&any[..], &["--hosts", "gw.example.com"]].concat(), "is not a loopback address"),
        ([&any[..], &keys].concat(), "listen.http: needs listen.hosts"),
        ([&keys[..], &["--admin", "0.0.0.0:0"]].concat(), "listen.admin: 0.0.0.0:0 is not a loopback address"),
        (["--auth", "keys"].to_vec(), "auth.mode: needs auth.pepper"),
        (["--auth", "keys", "--auth-pepper", "nobody"].to_vec(), "auth.pepper: nobody: No such file"),
        (["--auth", "oauth"].to_vec(), "auth.mode: expected none, keys, jwt or keys+jwt"),
        (["--auth", "jwt"].to_vec(), "auth.mode: needs auth.jwks"),
        (["--auth", "jwt"].to_vec(), "auth.mode: needs auth.issuer"),
        (["--auth", "keys+jwt"].to_vec(), "auth.mode: needs auth.pepper"),
        (["--auth", "jwt", "--auth-jwks", "http://id.example.com/"].to_vec(), "auth.jwks: expected https://"),
        (["--origins", "https://App.example.com"].to_vec(), "listen.origins: expected origins as browsers"),
    ] {
        let ended = run(dir.path(), &[&["serve", "--store", "memory:"][..], &args].concat(), &[]).await;
        assert_eq!((ended.code, ended.out.as_str()), (Some(64), ""), "{args:?}: {ended:?}");
        assert!(ended.err.contains(said), "{said} is not in {}", ended.err);
    }
}

/// Covers: S-09.
#[tokio::test]
async fn public_node_accepts_only_its_hosts_and_listed_origins() {
    let dir = tempdir().expect("a directory");
    let pepper = pepper(dir.path());
    let flags = ["--demo", "--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
    let names = ["--hosts", "gw.example.com,localhost", "--origins", "https://app.example.com"];
    let node = Node::start_public(dir.path(), &[&flags[..], &names].concat()).await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let key = format!("authorization: Bearer {}\r\n", key.text);
    for (headers, expected) in [
        ("host: gw.example.com\r\n", 200),
        ("host: GW.example.com:443\r\n", 200),
        ("host: 0.0.0.0\r\n", 403),
        ("host: 127.0.0.1\r\n", 403),
        ("host: evil.example\r\n", 403),
        ("", 400),
        ("host: gw.example.com\r\norigin: https://app.example.com\r\n", 200),
        ("host: gw.example.com\r\norigin: https://evil.example\r\n", 403),
        ("host: gw.example.com\r\norigin: http://localhost:3000\r\n", 403),
        ("host: gw.example.com\r\norigin: null\r\n", 403),
    ] {
        let got = status(node.http, "/v1/sessions", &format!("{headers}{key}")).await;
        assert!(got == expected || (expected == 400 && got == 403), "{headers}: {got}");
    }
    // A page of an origin that is not listed gets no answer and no WebSocket, whatever else the request
    // contains.
    let host = "host: gw.example.com\r\n";
    let upgrade = "upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    assert!(STRANGERS.len() >= 30);
    for origin in STRANGERS {
        let page = format!("{host}origin: {origin}\r\n");
        assert_eq!(status(node.http, "/v1/sessions", &format!("{page}{key}")).await, 403, "{origin:?}");
        assert_eq!(status(node.http, "/v1/connect", &format!("{page}{upgrade}")).await, 403, "{origin:?}");
    }
    let twice = "origin: https://app.example.com\r\norigin: https://app.example.com\r\n";
    assert_eq!(status(node.http, "/v1/sessions", &format!("{host}{twice}{key}")).await, 403);
}

/// Origins that are not listed, some of which resemble the listed one.
const STRANGERS: [&str; 36] = [
    "",
    "null",
    "NULL",
    "*",
    "https://",
    "app.example.com",
    "//app.example.com",
    "http://app.example.com",
    "wss://app.example.com",
    "HTTPS://app.example.com",
    "https://APP.example.com",
    "https:app.example.com",
    "https:/app.example.com",
    "https:///app.example.com",
    "https://app.example.com/",
    "https://app.example.com.",
    "https://app.example.com:443",
    "https://app.example.com:",
    "https://app.example.com:8443",
    "https://app.example.com:0443",
    "https://example.com",
    "https://a.app.example.com",
    "https://xapp.example.com",
    "https://app.example.com.evil.example",
    "https://app.example.comevil",
    "https://evil.example/app.example.com",
    "https://evil.example?https://app.example.com",
    "https://evil.example#https://app.example.com",
    "https://app.example.com@evil.example",
    "https://user@app.example.com",
    "https://app.example.com https://evil.example",
    "https://app.example.com,https://evil.example",
    "https://app%2eexample.com",
    "https://app.\u{e9}xample.com",
    "https://gw.example.com",
    "file://app.example.com",
];

/// Combines keys, TLS and a host name on all addresses of the machine.
///
/// Covers: S-09, S-25.
#[tokio::test]
async fn public_tls_node_serves_clients_with_a_key() {
    let dir = tempdir().expect("a directory");
    let pepper = pepper(dir.path());
    let pair = Pair::make(dir.path(), "pair").await;
    let flags = ["--demo", "--hosts", "localhost", "--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
    let node = Node::start_public(dir.path(), &[&flags[..], &pair.flags()].concat()).await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let trust = Trust::of([&pair]);
    let hello = serde_json::json!({"type": "hello", "api_key": key.text});
    let wire = trust.open(node.http).await.expect("open").greet_with(hello).await;
    let (said, _) = wire.expect("let in").turn("s1", "echo", "m1", "hello").await.expect("a turn");
    assert_eq!(said, "hello");
    let url = format!("https://localhost:{}", node.http.port());
    let env = [("SSL_CERT_FILE", pair.ca()), ("TURNWAY_API_KEY", key.text.as_str())];
    let listed = run(dir.path(), &["sessions", "--json", "--url", &url], &env).await;
    assert!(listed.code == Some(0) && listed.out.contains("\"s1\""), "{listed:?}");
    let stranger = run(dir.path(), &["sessions", "--json", "--url", &url], &env[..1]).await;
    assert_eq!((stranger.code, &stranger.error()["code"]), (Some(1), &"unauthorized".into()));
}
