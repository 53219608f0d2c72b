//! Many uploads at a time: their memory, and what they do to an answer that streams beside them.
use super::{MIB, made, open_session};
use bytes::Bytes;
use futures_util::future::join_all;
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::tempdir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::{PATIENCE, amount, figure, quantile};

/// Most memory that the uploads may take, KiB.
const GROWTH_KIB_MAX: u64 = 64 * 1024;
/// Bytes that a client sends at a time, and the pause between them: 16 MiB in 16 seconds, as by a line of 8 Mbit/s.
const PART_BYTES: usize = 128 * 1024;
const PART_PAUSE: Duration = Duration::from_millis(125);
/// Deltas of the answer beside the uploads: one each 10 ms.
const DELTAS: usize = 1200;
/// Longest addition to the 99th percentile that is no slowdown: a pause of a small machine.
const PAUSE_OF_MACHINE: Duration = Duration::from_millis(5);

/// Starts an agent whose deltas say when they were sent, in microseconds since `started`.
async fn teller(started: Instant) -> Agents {
    Agents::start(move |_| {
        Reply::speak(move |stream| async move {
            let mut pace = interval(Duration::from_millis(10));
            for _ in 0..DELTAS {
                pace.tick().await;
                stream.delta(&format!("{} ", started.elapsed().as_micros())).await?;
            }
            stream.done().await
        })
    })
    .await
}

/// Reads an answer of the teller from a bare socket, because a client that validates each event is slower than the node;
/// returns the ages of its deltas on arrival.
async fn ages_of_an_answer(node: SocketAddr, key: &str, started: Instant) -> Vec<Duration> {
    let body = r#"{"agent_id": "teller", "message": {"content": "go"}}"#;
    let head = format!(
        "POST /v1/sessions/others-{key}/turns HTTP/1.1\r\nhost: localhost\r\nx-user-id: reader\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut socket = TcpStream::connect(node).await.expect("the node listens");
    socket.write_all(format!("{head}{body}").as_bytes()).await.expect("it reads");
    let mut read = Vec::new();
    let mut ages = Vec::new();
    while ages.len() < DELTAS {
        let bytes = timeout(PATIENCE, socket.read_buf(&mut read)).await.expect("in time").expect("the node speaks");
        assert!(bytes > 0, "the answer ended early: {}", String::from_utf8_lossy(&read));
        let now = started.elapsed();
        while let Some(end) = read.windows(2).position(|bytes| bytes == b"\n\n") {
            let event = String::from_utf8_lossy(&read[..end]).into_owned();
            read.drain(..end + 2);
            let text = event.split_once("\"text\":\"").and_then(|(_, rest)| rest.split('"').next());
            for sent in text.unwrap_or_default().split_whitespace() {
                ages.push(now.saturating_sub(Duration::from_micros(sent.parse().expect("a time"))));
            }
        }
    }
    ages
}

/// Uploads a file at the pace of a common line.
async fn upload_slowly(web: &Web, session: &str, bytes: &Bytes) {
    let upload = web.begin_upload(session, Some(bytes.len())).await;
    let mut pace = interval(PART_PAUSE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for at in (0..bytes.len()).step_by(PART_BYTES) {
        pace.tick().await;
        assert!(upload.send(bytes.slice(at..bytes.len().min(at + PART_BYTES))).await, "the node reads");
    }
    let reply = upload.finish().await.expect("an answer");
    assert_eq!(reply.status, 201, "{}", reply.text);
}

/// Covers: PR-24, S-48.
#[tokio::test]
async fn uploads_at_a_time_leave_memory_and_others_alone() {
    let started = Instant::now();
    let agents = teller(started).await;
    let dir = tempdir().expect("a directory");
    let store = format!("embedded:{}", made(dir.path().join("data")).display());
    let node = Node::start_on(&store, dir.path(), &["--demo", "--agent", &agents.flag("teller")]).await;
    let count = amount("BLOB_UPLOADS", 20);
    let users: Vec<Web> = (0..count).map(|number| Web::new(node.http, Some(&format!("user-{number}")))).collect();
    let names: Vec<String> = (0..count).map(|number| format!("s{number}")).collect();
    for (user, name) in users.iter().zip(&names) {
        open_session(user, name).await;
    }
    let bytes = random_bytes(1, 16 * MIB);
    users[0].must_upload("s0", "image/png", &bytes.slice(..MIB)).await;
    let mut calm = ages_of_an_answer(node.http, "calm", started).await;
    let before = node.resident_kib();
    let uploads = join_all(users.iter().zip(&names).map(|(user, name)| upload_slowly(user, name, &bytes)));
    let mut looks = interval(Duration::from_millis(20));
    let mut peak = before;
    let work = async { tokio::join!(uploads, ages_of_an_answer(node.http, "busy", started)).1 };
    tokio::pin!(work);
    let mut busy = loop {
        tokio::select! {
            ages = &mut work => break ages,
            _ = looks.tick() => peak = peak.max(node.resident_kib()),
        }
    };
    let grown = peak.saturating_sub(before);
    let of = |ages: &mut [Duration]| (quantile(ages, 0.5), quantile(ages, 0.99));
    let (calm_half, calm_most) = of(&mut calm);
    let (busy_half, busy_most) = of(&mut busy);
    figure(&format!("growth during {count} uploads of 16 MiB, KiB"), grown);
    figure("age of deltas before them, p50 / p99", format!("{calm_half:.1?} / {calm_most:.1?}"));
    figure("age of deltas beside them, p50 / p99", format!("{busy_half:.1?} / {busy_most:.1?}"));
    assert!(grown < GROWTH_KIB_MAX, "{grown} KiB for {count} uploads");
    let allowed = (calm_most * 3 / 2).max(calm_most + PAUSE_OF_MACHINE);
    assert!(busy_most <= allowed, "{busy_most:?} beside the uploads, {calm_most:?} before");
}
