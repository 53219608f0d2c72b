//! Invalid credentials, one after the other from one address.
use serde_json::json;
use std::net::SocketAddr;
use tempfile::tempdir;
use turnway_core::limits;
use turnway_tests::real::http::get;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient};

async fn guess(to: SocketAddr) -> Result<(), ConnectionEnd> {
    let hello = json!({"type": "hello", "api_key": "twk_aaaaaaaaaa_aaaaaaaaaaaaaaaaaaaaaaaaaa"});
    WebSocketClient::open(to).await?.greet_with(hello).await.map(drop)
}

/// Covers: S-05.
#[tokio::test]
async fn repeated_invalid_keys_lock_the_address() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--demo", "--per-address", "50"]).await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let mut inside = key.hello(node.http, None).await.expect("let in");
    // WebSocket and HTTP count together; a request without a credential is no guess.
    for n in 0..limits::AUTH_FAILURES_MAX {
        assert_eq!(Web::new(node.http, None).get("/v1/sessions").await.status, 401);
        if n % 2 == 0 {
            assert_eq!(guess(node.http).await, Err(ConnectionEnd::Closed(4401)));
        } else {
            let bad = [("authorization", "Bearer twk_aaaaaaaaaa_aaaaaaaaaaaaaaaaaaaaaaaaaa")];
            let reply = Web::new(node.http, None).ask("GET", "/v1/sessions", &bad, "").await;
            assert_eq!(reply.status, 401);
        }
    }
    assert!(matches!(guess(node.http).await, Err(ConnectionEnd::Broken(_))), "it is not even opened");
    let reply = Web::new(node.http, None).key(&key).get("/v1/sessions").await;
    reply.must_be(429, "rate_limited");
    let seconds: u64 = reply.headers["retry-after"].to_str().ok().and_then(|text| text.parse().ok()).expect("a time");
    assert!((200..=limits::AUTH_LOCK.as_secs()).contains(&seconds), "{seconds}");
    // Connections that were authenticated before stay open.
    inside.turn("s1", "echo", "m1", "hello").await.expect("a turn");
    let (_, metrics) = get(node.admin, "/metrics").await.expect("metrics");
    let count = limits::AUTH_FAILURES_MAX;
    assert!(metrics.contains(&format!("turnway_auth_denied_total{{reason=\"credential\"}} {count}\n")), "{metrics}");
    assert!(metrics.contains("turnway_auth_denied_total{reason=\"locked\"} 2\n"), "{metrics}");
}

/// Refuses a revoked key, an expired key, and a valid key with another user's name on every transport that
/// shares the lockout, without counting them as guesses.
///
/// Covers: S-05.
#[tokio::test]
async fn revoked_and_expired_keys_do_not_lock_the_address() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--demo", "--per-address", "50"]).await;
    let good = Key::make(&node, &["--user", "ann"]).await;
    let gone = Key::make(&node, &["--user", "old"]).await;
    let over = Key::make(&node, &["--user", "tmp", "--lasts", "1s"]).await;
    gone.revoke(&node).await;
    while Web::new(node.http, None).key(&over).get("/v1/sessions").await.status != 401 {}
    for _ in 0..=limits::AUTH_FAILURES_MAX {
        for key in [&gone, &over] {
            assert_eq!(Web::new(node.http, None).key(key).get("/v1/sessions").await.status, 401);
            assert_eq!(Web::new(node.http, None).key(key).get("/v1/models").await.status, 401);
            assert!(matches!(key.hello(node.http, None).await, Err(ConnectionEnd::Closed(4401))));
        }
        assert_eq!(Web::new(node.http, Some("bob")).key(&good).get("/v1/sessions").await.status, 401);
        assert!(matches!(good.hello(node.http, Some("bob")).await, Err(ConnectionEnd::Closed(4401))));
    }
    assert_eq!(Web::new(node.http, None).key(&good).get("/v1/sessions").await.status, 200);
    good.hello(node.http, None).await.expect("let in");
    let (_, metrics) = get(node.admin, "/metrics").await.expect("metrics");
    assert!(metrics.contains("turnway_auth_denied_total{reason=\"locked\"} 0\n"), "{metrics}");
}

/// Exempts programs of this machine, because a local program could read the keys anyway, but not pages in its
/// browsers.
///
/// Covers: S-05.
#[tokio::test]
async fn local_programs_are_exempt_from_lockout_but_not_pages() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--demo"]).await;
    let page = format!("http://{}", node.http);
    let with = |page: Option<String>| async move {
        let mut headers = vec![("authorization", "Bearer twk_aaaaaaaaaa_aaaaaaaaaaaaaaaaaaaaaaaaaa")];
        headers.extend(page.as_deref().map(|page| ("origin", page)));
        Web::new(node.http, None).ask("GET", "/v1/sessions", &headers, "").await.status
    };
    for _ in 0..=limits::AUTH_FAILURES_MAX {
        assert_eq!(with(None).await, 401);
    }
    for _ in 0..limits::AUTH_FAILURES_MAX {
        assert_eq!(with(Some(page.clone())).await, 401);
    }
    assert_eq!(with(Some(page)).await, 429);
    assert_eq!(with(None).await, 401);
}
