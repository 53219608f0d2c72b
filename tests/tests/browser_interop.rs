//! A WebSocket client in a page of a real browser: Debian's Chromium.
//!
//! Covers: G-22, MP-A0, S-09.
use serde_json::{Value, json};
use std::path::Path;
use turnway_tests::real::chromium::{Chromium, ELSEWHERE, Page};
use turnway_tests::real::http::get;
use turnway_tests::real::node::Node;

/// Loads the page from host `from` and lets it connect to the node as host `by`. Returns the page's report
/// and the node's metrics.
async fn visit(dir: &Path, from: &str, by: &str) -> (Value, String) {
    let node = Node::start_on("memory:", dir, &["--demo"]).await;
    let mut page = Page::serve("page.html").await;
    let to = format!("ws://{by}:{}/v1/connect", node.http.port());
    // The text is "héllo 語".
    let url = format!("http://{from}:{}/?agent=echo&text=h%C3%A9llo%20%E8%AA%9E&node={to}", page.at.port());
    let browser = Chromium::show(dir, &url);
    let saw = page.report(&browser).await;
    let (status, counted) = get(node.admin, "/metrics").await.expect("metrics");
    assert_eq!(status, 200);
    browser.quit().await;
    (saw, counted)
}

/// Covers: G-22, MP-A0.
#[tokio::test]
async fn page_completes_a_turn_and_close_codes_match() {
    let dir = tempfile::tempdir().expect("a directory");
    let (saw, counted) = visit(dir.path(), "127.0.0.1", "127.0.0.1").await;
    let told = |code: u16, reason: &str| json!({"code": code, "reason": reason, "wasClean": true});
    let want = json!({
        "protocol": "turnway.v1",
        // The browser offers compression, and the node declines it.
        "extensions": "",
        "large": "large",
        "text": "héllo 語",
        "status": "completed",
        "closed": told(1000, "bye"),
        "binary": told(1003, saw["binary"]["reason"].as_str().expect("a reason")),
        "tooLarge": told(4413, saw["tooLarge"]["reason"].as_str().expect("a reason")),
    });
    assert_eq!(saw, want);
    for code in [1000, 1003, 4413] {
        let sample = format!("turnway_link_closes_total{{code=\"{code}\",transport=\"websocket\"}} 1\n");
        assert!(counted.contains(&sample), "{sample} is not in {counted}");
    }
}

/// Refuses a page of another origin, whether it names this machine or a host name of its own that resolves
/// here.
///
/// Covers: S-09.
#[tokio::test]
async fn page_of_another_origin_is_refused() {
    for (from, by) in [(ELSEWHERE, "127.0.0.1"), (ELSEWHERE, ELSEWHERE), ("127.0.0.1", ELSEWHERE)] {
        let dir = tempfile::tempdir().expect("a directory");
        let (saw, counted) = visit(dir.path(), from, by).await;
        assert_eq!(saw["error"], "no connection", "{from} to {by}: {saw}");
        // The metric shows that the node refused the handshake, not that the browser never connected.
        let refused = "turnway_link_handshakes_total{outcome=\"unwelcome\"} 1\n";
        assert!(counted.contains(refused), "{from} to {by}: {counted}");
    }
}
