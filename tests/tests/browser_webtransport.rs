//! A WebTransport client (HTTP/3) in a page of a real browser: Debian's Chromium.
//!
//! Covers: G-22, MP-A1, RX-21, S-09.
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::chromium::{APART, Chromium, Page};
use turnway_tests::real::command::run;
use turnway_tests::real::http::get;
use turnway_tests::real::node::Node;
use turnway_tests::real::python::{Running, script};

/// Characters of every UTF-8 width, with which `agent_plain.py` begins and ends its answers.
const WIDE: &str = "aß語𝄞 ";
/// Text of the input, repeated so often that the client can leave the answer three times.
const SAID: &str = "über 語 und zurück. ";
const TIMES: usize = 12;

/// Loads the page from host `from`, with the hash of a node certificate valid for so many days. Returns the
/// page's report and the node's metrics once they contain `sample`: a page may report before the node has
/// counted the end of the connection.
async fn visit(dir: &Path, from: &str, days: &str, sample: &str) -> (Value, String) {
    // A node with an embedded store reads the certificate for its QUIC listener from here.
    let made = run(dir, &["dev-cert", "data/quic", "--json", "--days", days], &[]).await;
    let hash = made.json()["sha256"].as_str().expect("a hash").to_owned();
    let mut agent = Running::start(script("agent_plain.py", &["10"]));
    let line = agent.line().await;
    let flag = format!("plain=http://127.0.0.1:{},on_owner_loss=retry", &line["listening ".len()..]);
    let node = Node::start(dir, &["--quic", "127.0.0.1:0", "--agent", &flag]).await;
    let mut page = Page::serve("webtransport.html").await;
    let h3 = node.quic.expect("it speaks QUIC").port();
    let ws = node.http.port();
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let url = format!(
        "http://{from}:{at}/?h3=https://127.0.0.1:{h3}/v1/connect&hash={hash}&node=ws://127.0.0.1:{ws}/v1/connect&agent=plain\
         &text={text}&bytes={bytes}",
        at = page.at.port(),
        hash = encoded(&hash),
        text = encoded(&SAID.repeat(TIMES)),
        bytes = answer().len(),
    );
    let browser = Chromium::show(dir, &url);
    let saw = page.report(&browser).await;
    let mut counted = String::new();
    let asked_at = Instant::now();
    while !counted.contains(sample) {
        assert!(asked_at.elapsed() < PATIENCE, "{sample} is not in {counted}; the page saw {saw}");
        let (status, text) = get(node.admin, "/metrics").await.expect("metrics");
        assert_eq!(status, 200);
        counted = text;
    }
    browser.quit().await;
    (saw, counted)
}

/// Returns the metric line for connections that ended with this code.
fn closed(code: &str, count: u32) -> String {
    format!("turnway_link_closes_total{{code=\"{code}\",transport=\"webtransport\"}} {count}\n")
}

fn answer() -> String {
    format!("{wide}{said}{wide}", wide = WIDE.repeat(20), said = SAID.repeat(TIMES))
}

/// Covers: G-22, MP-A1, RX-21.
#[tokio::test]
async fn page_switches_transports_within_an_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let (saw, counted) = visit(dir.path(), "127.0.0.1", "13", &closed("4401", 1)).await;
    let whole = |lanes: u32| json!({"text": answer(), "status": "completed", "lanes": lanes});
    // The browser decides which errors reach a page whose session ends at once; the node's metrics below are
    // exact.
    let refused = saw["refused"].as_object().unwrap_or_else(|| panic!("{saw}"));
    for (field, told) in [("code", json!("unauthorized")), ("closeCode", json!(4401))] {
        assert!(refused[field] == told || refused[field].is_null(), "{saw}");
    }
    // Two of the four parts were on streams of their own.
    assert_eq!((&saw["session"], &saw["socket"]), (&whole(2), &whole(2)), "{saw}");
    for (code, count) in [("1000", 4), ("4401", 1)] {
        let sample = closed(code, count);
        assert!(counted.contains(&sample), "{sample} is not in {counted}");
    }
}

/// Refuses a page of another origin, by the node and not by the browser.
///
/// Covers: S-09.
#[tokio::test]
async fn page_of_another_origin_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = "turnway_link_handshakes_total{outcome=\"unwelcome\"} 1\n";
    let (saw, _) = visit(dir.path(), APART, "13", refused).await;
    assert!(saw["error"].is_string(), "{saw}");
}

/// Fails the TLS handshake for a certificate valid longer than two weeks: browsers accept no hash of such a
/// one.
#[tokio::test]
async fn certificate_of_14_days_is_refused_by_the_browser() {
    let dir = tempfile::tempdir().expect("a directory");
    let failed = "turnway_tls_handshakes_total{outcome=\"failed\"} 1\n";
    let (saw, _) = visit(dir.path(), "127.0.0.1", "14", failed).await;
    assert!(saw["error"].is_string(), "{saw}");
}
