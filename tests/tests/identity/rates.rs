//! Rate limits of one node, and the requests that are not limited with the others.
use serde_json::json;
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use tokio::time::{Instant, interval, timeout};
use tokio_tungstenite::tungstenite::Message;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};
use turnway_tests::real::{PATIENCE, figure, quantile};

/// Maximum time of a cancel during a flood (S-17, G-17).
const CANCELLED_WITHIN: Duration = Duration::from_millis(100);

async fn node(dir: &TempDir, rates: &str) -> Node {
    let file = dir.path().join("turnway.toml");
    std::fs::write(&file, format!("demo = true\n[rate]\n{rates}\n")).expect("a file");
    guarded(dir, &["--config", file.to_str().expect("UTF-8")]).await
}

/// Sends `count` requests, and returns the number of successes and the retry times of the refusals.
async fn flood(wire: &mut WebSocketClient, count: usize) -> (usize, Vec<u64>) {
    for n in 0..count {
        // Each opens a session of its own: one that is another user's would be refused for that.
        let ask = json!({"type": "session_open", "request_id": format!("f{n}")});
        wire.say(ask).await.expect("it is said");
    }
    let mut good = 0;
    let mut waits = Vec::new();
    for _ in 0..count {
        let fits = |m: &serde_json::Value| m["request_id"].as_str().is_some_and(|id| id.starts_with('f'));
        let message = wire.until(fits).await.expect("an answer to each");
        match message["code"].as_str() {
            None => good += 1,
            Some(code) => {
                assert_eq!((code, &message["retryable"]), ("rate_limited", &json!(true)), "{message}");
                waits.push(message["retry_after_ms"].as_u64().expect("a time"));
            }
        }
    }
    (good, waits)
}

/// Covers: S-17.
#[tokio::test]
async fn request_over_the_rate_gets_a_retry_time() {
    let dir = tempdir().expect("a directory");
    let node = node(&dir, "connection = \"20/s\"\nkey = \"off\"").await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let mut wire = key.hello(node.http, None).await.expect("let in");
    let begun = Instant::now();
    let (good, waits) = flood(&mut wire, 60).await;
    let meanwhile = begun.elapsed().as_millis() as usize / 50 + 1;
    assert!((40..=40 + meanwhile).contains(&good), "{good} of 60 in {:?}", begun.elapsed());
    assert!(waits.iter().all(|wait| (1..=50).contains(wait)), "{waits:?}");
    // Another connection has a budget of its own.
    let mut other = key.hello(node.http, None).await.expect("let in");
    assert_eq!(flood(&mut other, 30).await.0, 30);
    // A refused request succeeds after the given time.
    tokio::time::timeout(Duration::from_secs(20), async {
        let mut again = interval(Duration::from_millis(60));
        loop {
            again.tick().await;
            let answer = wire.ask("again", invoke("s1", "echo", "hello")).await.expect("an answer");
            if answer["type"] == "turn_accepted" {
                break;
            }
            assert_eq!(answer["code"], "rate_limited", "{answer}");
        }
    })
    .await
    .expect("it is taken");
    let metrics = turnway_tests::real::http::get(node.admin, "/metrics").await.expect("metrics").1;
    let line = "turnway_rate_limited_total{whose=\"connection\"} ";
    let counted = metrics.lines().find_map(|text| text.strip_prefix(line)).expect("it is counted");
    assert!(counted.parse::<f64>().expect("a count") >= waits.len() as f64, "{counted}");
}

/// Covers: S-17.
#[tokio::test]
async fn keys_of_one_tenant_share_its_rate() {
    let dir = tempdir().expect("a directory");
    let node = node(&dir, "connection = \"off\"\nkey = \"off\"\ntenant = \"10/s\"").await;
    let ann = Key::make(&node, &["--user", "ann"]).await;
    let bob = Key::make(&node, &["--user", "bob"]).await;
    let mut one = ann.hello(node.http, None).await.expect("let in");
    let mut two = bob.hello(node.http, None).await.expect("let in");
    let begun = Instant::now();
    let (first, _) = flood(&mut one, 40).await;
    let (second, _) = flood(&mut two, 40).await;
    let meanwhile = begun.elapsed().as_millis() as usize / 100 + 1;
    assert!((20..=20 + meanwhile).contains(&(first + second)), "{first} and {second} in {:?}", begun.elapsed());
}

/// Answers pings of both kinds and unknown messages within the rate, without using the rate of other
/// requests, and closes the connection over the rate, because a refusal would cost as much as the answer.
///
/// Covers: S-17.
#[tokio::test]
async fn flood_of_pings_or_unknown_messages_is_closed() {
    let dir = tempdir().expect("a directory");
    let node = node(&dir, "connection = \"20/s\"\nkey = \"off\"").await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let ping = || Message::Ping(b"so it is".to_vec().into());
    let said = |kind: &str| Message::text(json!({"type": kind, "request_id": "r"}).to_string());
    for (frame, answer) in [
        (ping(), None),
        (said("ping"), Some("pong")),
        (said("tool_result"), Some("error")),
        (said("huh"), Some("error")),
    ] {
        let mut wire = key.hello(node.http, None).await.expect("let in");
        for _ in 0..30 {
            wire.frame(frame.clone()).await.expect("it is said");
            if let Some(answer) = answer {
                assert_eq!(wire.next().await.expect("an answer")["type"], answer);
            }
        }
        assert!(flood(&mut wire, 20).await.0 == 20, "work has its own bucket");
        for _ in 0..200 {
            // The node may have closed the connection already.
            let _ = wire.frame(frame.clone()).await;
        }
        assert_eq!(wire.until(|_| false).await, Err(ConnectionEnd::Closed(4429)), "{frame:?}");
    }
    // Other connections of the key are not limited by that.
    let mut other = key.hello(node.http, None).await.expect("let in");
    assert_eq!(other.ask("p", json!({"type": "ping"})).await.expect("an answer")["type"], "pong");
}

/// Covers: S-17.
#[tokio::test]
async fn connections_of_one_key_share_its_rate() {
    let dir = tempdir().expect("a directory");
    let node = node(&dir, "connection = \"off\"\nkey = \"2/s\"").await;
    let ann = Key::make(&node, &["--user", "ann"]).await;
    let bob = Key::make(&node, &["--user", "bob"]).await;
    let mut taken = 0;
    for _ in 0..3 {
        let mut wire = ann.hello(node.http, None).await.expect("let in");
        taken += flood(&mut wire, 5).await.0;
    }
    assert!((5..15).contains(&taken), "{taken} of 15");
    // HTTP requests count too, and get a `Retry-After` header.
    let web = Web::new(node.http, None).key(&ann);
    let mut refused = None;
    for _ in 0..50 {
        let reply = web.get("/v1/sessions").await;
        if reply.status != 200 {
            refused = Some(reply);
            break;
        }
    }
    let refused = refused.expect("one of fifty comes too early");
    refused.must_be(429, "rate_limited");
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(Web::new(node.http, None).key(&bob).get("/v1/sessions").await.status, 200);
}

/// Cancels a run and resumes an answer while the same key floods the node with inputs.
///
/// Covers: S-17, G-17.
#[tokio::test]
async fn flood_of_inputs_does_not_delay_cancel_or_resume() {
    let dir = tempdir().expect("a directory");
    let node = node(&dir, "connection = \"50/s\"\nkey = \"100/s\"\ntenant = \"1000/s\"").await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let mut times = Vec::new();
    for round in 0..20 {
        let session = format!("s{round}");
        let mut wire = key.hello(node.http, None).await.expect("let in");
        // The flood of the previous round has used up the key's rate.
        let run = loop {
            let ask = invoke(&session, "counter", "count to 10000 every 20ms");
            let answer = wire.ask("turn", ask).await.expect("an answer");
            match answer["run_id"].as_str() {
                Some(run) => break run.to_owned(),
                None => assert_eq!(answer["code"], "rate_limited", "{answer}"),
            }
        };
        wire.until(|m| m["type"] == "delta").await.expect("an answer has begun");
        for n in 0..300 {
            let mut ask = invoke(&session, "echo", "more");
            ask["request_id"] = format!("flood-{n}").into();
            wire.say(ask).await.expect("it is said");
        }
        let mut other =
            key.resume(node.http, None, vec![json!({"session_id": session, "after_seq": 0})]).await.expect("let in");
        other.until(|m| m["type"] == "subscribed").await.expect("it goes on");
        let asked_at = Instant::now();
        wire.say(json!({"type": "cancel_run", "run_id": run, "request_id": "stop"})).await.expect("it is said");
        let ends = other.until(|m| m["type"] == "done" && m["run_id"] == *run);
        let Ok(done) = timeout(PATIENCE, ends).await else {
            // The answer to the cancel is among the answers to the flood.
            let last = wire.until(|m| m["request_id"] == "stop" || m["name"] == "CANCEL_SENT").await;
            panic!("round {round}: no end; {last:?}");
        };
        let done = done.expect("its end");
        assert_eq!(done["status"], "cancelled", "{done}");
        times.push(asked_at.elapsed());
    }
    let slowest = quantile(&mut times, 1.0);
    figure("cancel behind 300 inputs of the same connection until its end elsewhere, p50 / max", {
        format!("{:?} / {slowest:?}", quantile(&mut times, 0.5))
    });
    // A pause of the machine may lengthen one or two of twenty rounds.
    let usual = quantile(&mut times, 0.9);
    assert!(usual <= CANCELLED_WITHIN, "{usual:?}, at most {slowest:?}");
}
