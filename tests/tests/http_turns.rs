//! Turns over HTTP: idempotent inputs, streamed answers, and resume at the byte.
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::watch;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::{Event, Web, text_of};

/// Characters of every UTF-8 width, so that a cut within a character shows.
const WORDS: &str = "ab é ✓ 𝄞 日本語 straße 🌍 ";

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Starts an agent that sends `first` words, and the rest when the returned sender allows.
async fn slow(first: usize, all: usize) -> (Agents, watch::Sender<bool>) {
    let (go, wait) = watch::channel(false);
    let agents = Agents::start(move |_| {
        let mut wait = wait.clone();
        Reply::speak(async move |stream| {
            for n in 0..all {
                if n == first {
                    // The wait also ends with the test.
                    let _gone = wait.wait_for(|go| *go).await.is_err();
                }
                stream.delta(WORDS).await?;
            }
            stream.done().await
        })
    })
    .await;
    (agents, go)
}

fn kinds(events: &[Event]) -> Vec<&str> {
    events.iter().filter_map(|event| event.data["type"].as_str()).collect()
}

/// Covers: MP-C14, MP-F1, ST-35.
#[tokio::test]
async fn repeated_turn_request_returns_the_same_turn() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    let mut stream = ann.turn("s1", "echo", "m1", WORDS, None).await;
    assert_eq!((stream.status, &stream.headers["content-type"]), (200, &"text/event-stream".parse().expect("a value")));
    let events = stream.rest().await;
    let said = kinds(&events);
    assert_eq!(&said[..4], ["turn_accepted", "message", "event", "run_started"]);
    assert_eq!(said.last(), Some(&"done"));
    assert_eq!(text_of(&events, ""), WORDS);
    let run_id = events[0].data["run_id"].clone();
    assert!(events.iter().all(|event| event.data["run_id"] == run_id), "of this turn and of no other");
    // A repeated request returns the same turn, and the agent is not invoked again.
    let again = ann.turn("s1", "echo", "m1", WORDS, None).await.rest().await;
    assert_eq!((&again[0].data["duplicate"], &again[0].data["run_id"]), (&true.into(), &run_id));
    assert_eq!((text_of(&again, ""), again.last()), (WORDS.to_owned(), events.last()));
    let other = ann.turn("s1", "echo", "m1", "something else", None).await;
    other.reply().await.must_be(409, "idempotency_conflict");
    // The body may contain the message id too, if equal.
    let headers = [("content-type", "application/json"), ("idempotency-key", "m1")];
    let body = r#"{"agent_id":"echo","message":{"content":"hi","message_id":"m2"}}"#;
    ann.ask("POST", "/v1/sessions/s1/turns", &headers, body).await.must_be(400, "invalid_message");
    assert_eq!(ann.ask("POST", "/v1/sessions/s1/turns", &headers[..1], body).await.status, 200);
}

/// Covers: ST-2, RX-21, RX-2.
#[tokio::test]
async fn resumed_stream_continues_at_the_byte() {
    let (dir, (agents, go)) = (directory(), slow(20, 40).await);
    let node = Node::start(dir.path(), &["--agent", &agents.flag("slow")]).await;
    let ann = Web::new(node.http, Some("ann"));
    // Half of the answer is sent, and no more arrives while clients reconnect.
    let mut first = ann.turn("s1", "slow", "m1", "hi", None).await;
    let half = WORDS.len() * 20;
    let mut seen = Vec::new();
    while text_of(&seen, "").len() < half {
        seen.push(first.next().await.expect("more"));
    }
    drop(first);
    let places: Vec<usize> = (0..seen.len()).filter(|n| seen[*n].id.is_some()).collect();
    for n in places.iter().copied().step_by(places.len().div_ceil(12)) {
        let had = text_of(&seen[..=n], "");
        let mut stream = ann.turn("s1", "slow", "m1", "hi", seen[n].id.as_deref()).await;
        let mut more = vec![stream.next().await.expect("accepted")];
        assert_eq!((&more[0].data["type"], &more[0].data["duplicate"]), (&"turn_accepted".into(), &true.into()));
        while text_of(&more, &had).len() < half {
            more.push(stream.next().await.expect("more"));
        }
        assert_eq!(text_of(&more, &had), WORDS.repeat(20), "after event {n}");
    }
    go.send(true).expect("the agent waits");
    let whole = ann.turn("s1", "slow", "m1", "hi", None).await.rest().await;
    assert_eq!(text_of(&whole, ""), WORDS.repeat(40));
    // A finished turn can be resumed too, and a client that has everything gets the end again.
    for n in (0..whole.len()).filter(|n| whole[*n].id.is_some()) {
        let rest = ann.turn("s1", "slow", "m1", "hi", whole[n].id.as_deref()).await.rest().await;
        assert_eq!(text_of(&rest, &text_of(&whole[..=n], "")), WORDS.repeat(40), "after event {n}");
        assert_eq!(rest.last(), whole.last(), "after event {n}");
    }
    assert_eq!(agents.journal().len(), 1, "the agent was asked once");
}

/// Covers: G-04, ST-2.
#[tokio::test]
async fn turn_is_retried_and_resumable_after_a_crash() {
    let (dir, (agents, go)) = (directory(), slow(20, 40).await);
    let flag = format!("{},on_owner_loss=retry", agents.flag("slow"));
    let mut node = Node::start(dir.path(), &["--agent", &flag]).await;
    let ann = Web::new(node.http, Some("ann"));
    let mut first = ann.turn("s1", "slow", "m1", "hi", None).await;
    let mut seen = Vec::new();
    while text_of(&seen, "").len() < WORDS.len() * 20 {
        seen.push(first.next().await.expect("more"));
    }
    drop(first);
    node.kill_and_restart().await;
    let last = seen.iter().rev().find_map(|event| event.id.clone());
    let mut stream = ann.turn("s1", "slow", "m1", "hi", last.as_deref()).await;
    let restarted = stream.until(|event| event.data["name"] == "RUN_RESTARTED").await;
    assert_eq!(restarted.data["attempt"], 2);
    go.send(true).expect("the agent waits");
    let rest = stream.rest().await;
    let done = rest.last().expect("an end");
    assert_eq!((&done.data["type"], &done.data["attempt"]), (&"done".into(), &2.into()));
    assert_eq!(text_of(&rest, ""), WORDS.repeat(40));
}

/// Covers: G8, LN-MP4.
#[tokio::test]
async fn client_that_does_not_read_uses_bounded_memory() {
    let dir = directory();
    let piece = "x".repeat(32 * 1024);
    let agents = Agents::start(move |_| {
        let piece = piece.clone();
        Reply::speak(async move |stream| {
            for _ in 0..100 {
                stream.delta(&piece).await?;
            }
            stream.done().await
        })
    })
    .await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("much")]).await;
    let ann = Web::new(node.http, Some("ann"));
    // Warm-up: as many turns with clients that read, for the store's cache and other one-time allocations.
    for n in 0..32 {
        ann.turn(&format!("r{n}"), "much", "m1", "hi", None).await.rest().await;
    }
    let before = node.resident_kib();
    // 3 MiB of text for each client, and none of them reads.
    let mut deaf = Vec::new();
    for n in 0..32 {
        deaf.push(ann.turn(&format!("s{n}"), "much", "m1", "hi", None).await);
    }
    for n in 0..32 {
        // The turns end nevertheless.
        ann.turn(&format!("s{n}"), "much", "m1", "hi", None).await.until(|event| event.data["type"] == "done").await;
    }
    let grown = node.resident_kib().saturating_sub(before);
    assert!(grown < 48 * 1024, "{grown} KiB more with 96 MiB unread");
    let mut one = deaf.swap_remove(7);
    assert_eq!(text_of(&one.rest().await, "").len(), 100 * 32 * 1024, "who reads at last gets all of it");
}

/// Covers: ST-20.
#[tokio::test]
async fn disconnect_does_not_cancel_the_turn() {
    let (dir, (agents, go)) = (directory(), slow(1, 2).await);
    let node = Node::start(dir.path(), &["--agent", &agents.flag("slow")]).await;
    let ann = Web::new(node.http, Some("ann"));
    let mut stream = ann.turn("s1", "slow", "m1", "hi", None).await;
    stream.until(|event| event.data["type"] == "delta").await;
    drop(stream);
    // The node notices the disconnect, and the turn is not affected.
    while ann.json("/").await["links"] != 0 {
        tokio::task::yield_now().await;
    }
    go.send(true).expect("the agent waits");
    let end = ann.turn("s1", "slow", "m1", "hi", None).await.rest().await;
    assert_eq!(end.last().map(|event| &event.data["status"]), Some(&"completed".into()));
    assert_eq!(text_of(&end, ""), WORDS.repeat(2));
}

/// Covers: ST-6, ST-10, LN-TP1.
#[tokio::test]
async fn refused_turns_are_problems_and_queued_turns_stream() {
    let (dir, (agents, go)) = (directory(), slow(0, 1).await);
    let node = Node::start(dir.path(), &["--agent", &agents.flag("slow")]).await;
    let ann = Web::new(node.http, Some("ann"));
    let _open = ann.turn("s1", "slow", "m1", "hi", None).await;
    let headers = [("content-type", "application/json")];
    let body = r#"{"agent_id":"slow","strategy":"reject","message":{"content":"hi"}}"#;
    let busy = ann.ask("POST", "/v1/sessions/s1/turns", &headers, body).await;
    busy.must_be(409, "busy");
    assert!(busy.headers.contains_key("retry-after"));
    let mut waiting = Vec::new();
    for n in 0..20 {
        waiting.push(ann.turn("s1", "slow", &format!("w{n}"), "hi", None).await);
    }
    let full = ann.turn("s1", "slow", "w20", "hi", None).await.reply().await;
    full.must_be(429, "too_many_pending");
    assert!(full.headers.contains_key("retry-after"));
    let mut last = waiting.pop().expect("the last");
    let queued = last.until(|event| event.data["name"] == "TURN_ADMITTED").await;
    assert_eq!((&queued.data["strategy"], &queued.data["position"]), (&"queued".into(), &20.into()));
    go.send(true).expect("the agent waits");
    let rest = last.rest().await;
    assert_eq!(kinds(&rest).last(), Some(&"done"));
    // While the turn was queued, its stream showed no other turn.
    assert!(rest.iter().all(|event| event.data["run_id"] == queued.data["run_id"]));
}

/// Sends comments during a silent answer, because a proxy would take the connection for dead.
#[tokio::test]
async fn silent_answer_is_kept_alive_with_comments() {
    let (dir, (agents, go)) = (directory(), slow(0, 1).await);
    let node = Node::start(dir.path(), &["--agent", &agents.flag("slow")]).await;
    let ann = Web::new(node.http, Some("ann"));
    let mut stream = ann.turn("s1", "slow", "m1", "hi", None).await;
    stream.until(|event| event.data["name"] == "AGENT_STARTED").await;
    stream.comment().await;
    go.send(true).expect("the agent waits");
    assert_eq!(kinds(&stream.rest().await).last(), Some(&"done"));
}

/// Covers: G-14.
#[tokio::test]
async fn draining_node_sends_go_away_and_lets_turns_end() {
    let (dir, (agents, go)) = (directory(), slow(1, 2).await);
    let mut node = Node::start(dir.path(), &["--agent", &agents.flag("slow")]).await;
    let ann = Web::new(node.http, Some("ann"));
    let mut stream = ann.turn("s1", "slow", "m1", "hi", None).await;
    stream.until(|event| event.data["type"] == "delta").await;
    let accept = [("accept", "text/event-stream")];
    let mut log = ann.open("GET", "/v1/sessions/s1/events", &accept, "").await;
    node.signal("-TERM").await;
    let leaving = stream.until(|event| event.data["type"] == "go_away").await;
    assert_eq!(leaving.id, None);
    log.until(|event| event.name.as_deref() == Some("go_away")).await;
    go.send(true).expect("the agent waits");
    let rest = stream.rest().await;
    assert_eq!(kinds(&rest).last(), Some(&"done"));
    let last = log.rest().await.pop().expect("the end of the turn");
    assert_eq!(last.data["type"], "run.done");
    let left = tokio::time::timeout(Duration::from_secs(30), node.exit()).await;
    assert_eq!(left.expect("in time"), Some(0));
}
