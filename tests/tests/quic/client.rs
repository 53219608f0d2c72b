//! Tests the Rust client over QUIC, including answers that begin on one transport and end on another.
use super::node;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::tempdir;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use turnway_client::{Bookmark, Client, Event, Options, UserInput};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::command::run;

/// Pieces of one answer.
const PIECES: usize = 400;

fn piece(n: usize) -> String {
    format!("{n} {}\n", ["a", "ß", "語", "𝄞"][n % 4].repeat(1 + n % 300))
}

/// Starts an agent that sends one piece for each permit.
async fn gated() -> (Agents, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let agents = Agents::start({
        let gate = Arc::clone(&gate);
        move |_| {
            let gate = Arc::clone(&gate);
            Reply::speak(move |stream| async move {
                for n in 0..PIECES {
                    gate.acquire().await.expect("it stays").forget();
                    stream.delta(&piece(n)).await?;
                }
                stream.done().await
            })
        }
    })
    .await;
    (agents, gate)
}

async fn connect(url: String, dir: &Path) -> Client {
    let ca = fs::read(dir.join("pair/cert.pem")).expect("a certificate");
    let options = Options::new(url).user("ann").ca(ca);
    timeout(PATIENCE, Client::connect(options)).await.expect("in time").expect("it connects")
}

async fn next(client: &mut Client) -> Event {
    timeout(PATIENCE, client.next_event()).await.expect("in time").expect("it goes on")
}

/// Reads the answer up to `goal` bytes, then requests a bookmark and reads until the bookmark.
async fn read(client: &mut Client, session: &str, said: &mut String, goal: usize) -> Bookmark {
    while said.len() < goal {
        if let Event::Text { text, .. } = next(client).await {
            said.push_str(&text);
        }
    }
    client.session(session).bookmark().await.expect("asked");
    loop {
        let event = next(client).await;
        if let Event::Text { text, .. } = event {
            said.push_str(&text);
        } else if let Event::Bookmark(mark) = event {
            return *mark;
        }
    }
}

/// Covers: MP-A1, RX-21.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_resumes_on_another_transport() {
    let dir = tempdir().expect("a directory");
    let (agents, gate) = gated().await;
    let (node, quic, _) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let roads = [format!("quic://localhost:{}", quic.port()), format!("wss://localhost:{}", node.http.port())];
    for first in 0..2 {
        let session = format!("s{first}");
        let mut said = String::new();
        let mut client = connect(roads[first].clone(), dir.path()).await;
        client.session(&session).invoke(UserInput::text("go")).await.expect("said");
        for n in 0..8 {
            gate.add_permits(PIECES / 10);
            let goal = said.len() + 2000;
            let mark = read(&mut client, &session, &mut said, goal).await;
            // Text between the bookmark and this point is lost with the connection.
            drop(client);
            client = connect(roads[(first + n + 1) % 2].clone(), dir.path()).await;
            client.resume(mark).await.expect("resumed");
        }
        gate.add_permits(PIECES - 8 * (PIECES / 10));
        let done = loop {
            let event = next(&mut client).await;
            if let Event::Text { text, .. } = event {
                said.push_str(&text);
            } else if let Event::Done(done) = event {
                break done;
            }
        };
        let whole: String = (0..PIECES).map(piece).collect();
        assert!(done.complete && done.text == whole, "{} of {} bytes", done.text.len(), whole.len());
        assert!(said == whole, "{} of {} bytes were told", said.len(), whole.len());
        client.close().await;
    }
}

/// Twenty sessions receive answers at once, each on streams of its own; every `done` comes after its text.
///
/// Covers: MP-A1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn done_events_follow_their_text() {
    let dir = tempdir().expect("a directory");
    let (agents, gate) = gated().await;
    gate.add_permits(1_000_000);
    let (_node, quic, _) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let mut client = connect(format!("quic://{quic}"), dir.path()).await;
    for turn in 0..40 {
        client.session(format!("s{}", turn % 20)).invoke(UserInput::text("go")).await.expect("said");
    }
    let whole: String = (0..PIECES).map(piece).collect();
    let mut ended = 0;
    while ended < 40 {
        let event = next(&mut client).await;
        if let Event::Done(done) = event {
            assert!(done.complete && done.text == whole, "{} of {} bytes", done.text.len(), whole.len());
            ended += 1;
        } else if let Event::Disconnected { reason, .. } = event {
            panic!("{reason}");
        }
    }
}

/// A client notices that its node is down and reconnects after the restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_reconnects_after_a_node_restart() {
    let dir = tempdir().expect("a directory");
    let (mut node, quic, _) = node(&dir, &["--demo"]).await;
    let mut client = connect(format!("quic://{quic}"), dir.path()).await;
    client.session("s1").invoke(UserInput::text("before")).await.expect("said");
    while !matches!(next(&mut client).await, Event::Done(_)) {}
    assert_eq!(node.terminate().await, Some(0));
    node.restart().await;
    let begun = std::time::Instant::now();
    while !matches!(next(&mut client).await, Event::Connected { .. }) {}
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    client.session("s1").invoke(UserInput::text("after")).await.expect("said");
    while !matches!(next(&mut client).await, Event::Done(_)) {}
}

/// `turnway chat` over QUIC, with a trusted and with an untrusted certificate.
#[tokio::test]
async fn chat_command_works_over_quic() {
    let dir = tempdir().expect("a directory");
    let (_node, quic, _) = node(&dir, &["--demo"]).await;
    let url = format!("quic://{quic}");
    let ca = dir.path().join("pair/cert.pem");
    let args = ["chat", "--json", "--url", &url];
    let trusting = [("SSL_CERT_FILE", ca.to_str().expect("UTF-8"))];
    let output = run(dir.path(), &args, &trusting).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let stranger = run(dir.path(), &args, &[]).await;
    assert!(stranger.code == Some(69) && stranger.err.contains("UnknownIssuer"), "{stranger:?}");
}
