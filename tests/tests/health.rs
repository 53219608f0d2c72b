//! `listen.health`: the listener for load balancers and remote probes, and the only paths that it serves.
//!
//! Covers: S-46.
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;

fn free_port() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
    let port = listener.local_addr().expect("its address").port();
    (Ipv4Addr::LOCALHOST, port).into()
}

#[tokio::test]
async fn health_listener_serves_only_health_paths() {
    for with_metrics in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let at = free_port();
        let health = format!("0.0.0.0:{}", at.port());
        let config = dir.path().join("turnway.toml");
        std::fs::write(&config, format!("[listen]\nhealth_metrics = {with_metrics}\n")).expect("a file");
        let mut node = Node::start(dir.path(), &["--demo", "--health", &health]).await;
        let web = Web::new(at, None);
        for (method, path, status) in [
            ("GET", "/livez", 200),
            ("HEAD", "/livez", 200),
            ("GET", "/readyz", 200),
            ("POST", "/readyz", 405),
            ("GET", "/metrics", if with_metrics { 200 } else { 404 }),
            ("POST", "/drain", 404),
            ("GET", "/drain", 404),
            ("GET", "/v1/nodes", 404),
            ("GET", "/v1/keys", 404),
            ("POST", "/v1/keys", 404),
            ("PUT", "/v1/budgets", 404),
            ("GET", "/v1/budgets", 404),
            ("POST", "/v1/store/backup", 404),
            ("GET", "/v1/sessions", 404),
            ("GET", "/", 404),
        ] {
            let reply = web.ask(method, path, &[], "").await;
            assert_eq!(reply.status, status, "{method} {path}: {}", reply.text);
            assert!(path == "/metrics" || !reply.text.contains(&node.id), "{path}: {}", reply.text);
        }
        let ready = web.get("/readyz").await;
        assert_eq!(ready.json(), serde_json::json!({"ready": true}));
        // A web page of another origin cannot read the answer.
        assert_eq!(web.ask("GET", "/readyz", &[("origin", "https://evil.example")], "").await.status, 403);
        node.terminate().await;
    }
}
