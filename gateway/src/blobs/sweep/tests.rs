//! Tests of the sweep of all sessions, with a store that answers from a list.
use super::*;
use crate::blobs::memory::MemoryBodies;
use crate::links::{CommandReceiver, command_channel};
use bytes::Bytes;
use std::collections::BTreeMap;
use tokio::time::Instant;
use turnway_core::id::{BlobHash, BodyId, SessionId, TenantId};
use turnway_core::protocol::refusal::Refusal;
use turnway_core::store::blob::{BlobOutcome, BlobReply, StoredBlob};
use turnway_core::time::Millis;
use turnway_node::switchboard::Input;

/// The store's answer about one session.
#[derive(Clone)]
enum StoreAnswer {
    Named(BodyId),
    Refused(Code),
}

fn key(session: &str) -> SessionKey {
    SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse(session).expect("a session") }
}

fn table_of(body: BodyId) -> BlobTable {
    let blob = StoredBlob { body, bytes: 1, media_type: "text/plain".to_owned(), created_at: Millis(1) };
    BlobTable { blobs: BTreeMap::from([(BlobHash([7; 32]), blob)]), uploads: BTreeMap::new() }
}

/// Answers the sweeper's questions, and says when each was asked.
async fn answer_all(
    mut commands: CommandReceiver,
    links: Arc<LinkRegistry>,
    answers: BTreeMap<SessionKey, StoreAnswer>,
    asked: mpsc::Sender<(Instant, String)>,
) {
    let mut inputs = Vec::new();
    while commands.take(&mut inputs, 1).await > 0 {
        for input in inputs.drain(..) {
            let Input::Command { link, command: LinkCommand::Blob { session, action } } = input else { continue };
            assert_eq!(action, BlobAction::Tend);
            asked.send((Instant::now(), session.as_str().to_owned())).await.expect("the test");
            let reply = match answers.get(&key(session.as_str())).expect("a known session").clone() {
                StoreAnswer::Named(body) => {
                    let reply = BlobReply { outcome: BlobOutcome::Applied, table: table_of(body), dropped: vec![] };
                    CommandReply::Blobs(Box::new(reply))
                }
                StoreAnswer::Refused(code) => {
                    let refusal = Refusal::new(code, "refused");
                    CommandReply::Refused { request_id: None, session: None, run_id: None, refusal }
                }
            };
            links.send(link, Notification::Reply(reply));
        }
    }
}

/// Starts to sweep two bodies of each session; returns them, the sweeper's requests, and what it asks the store.
async fn start(
    answers: BTreeMap<SessionKey, StoreAnswer>,
    interval: Duration,
) -> (MemoryBodies, SweepRequests, mpsc::Receiver<(Instant, String)>) {
    let memory = MemoryBodies::default();
    let bodies = BodyStore::Memory(memory.clone());
    for session in answers.keys() {
        for body in [BodyId(1), BodyId(2)] {
            let mut writer = bodies.begin(session, body, 1).await.expect("a writer");
            writer.write(Bytes::from_static(b"x")).await.expect("room");
            writer.finish().await.expect("stored");
        }
    }
    let links = Arc::new(LinkRegistry::new(None, 16, 16, 16));
    let (commands, receiver) = command_channel();
    let (told, asked) = mpsc::channel(64);
    tokio::spawn(answer_all(receiver, Arc::clone(&links), answers, told));
    let requests = BodySweeper { bodies, links, commands, interval }.start(&Handle::current());
    (memory, requests, asked)
}

/// Covers: PR-24.
#[tokio::test]
async fn sweep_removes_what_no_session_names() {
    let answers = BTreeMap::from([
        (key("deleted"), StoreAnswer::Refused(Code::NotFound)),
        (key("kept"), StoreAnswer::Named(BodyId(1))),
        (key("unavailable"), StoreAnswer::Refused(Code::StoreUnavailable)),
    ]);
    let started = Instant::now();
    let interval = Duration::from_millis(100);
    let (bodies, _requests, mut asked) = start(answers, interval).await;
    let expected = ["deleted", "kept", "unavailable"];
    for sweep in 1..=2 {
        // A session without bytes is not asked about.
        for expected in &expected[usize::from(sweep == 2)..] {
            let (at, session) = asked.recv().await.expect("the sweep asks");
            assert_eq!(session, *expected, "sweep {sweep}");
            assert!(at - started >= interval * sweep, "sweep {sweep} after {:?}", at - started);
        }
    }
    for (session, left) in [("deleted", vec![]), ("kept", vec![1]), ("unavailable", vec![1, 2])] {
        assert_eq!(bodies.bodies(&key(session)), left.into_iter().map(BodyId).collect::<Vec<_>>(), "{session}");
    }
}

/// Covers: PR-24.
#[tokio::test]
async fn one_session_is_swept_on_request() {
    let deleted = StoreAnswer::Refused(Code::NotFound);
    let answers = BTreeMap::from([(key("a"), deleted.clone()), (key("b"), deleted)]);
    let (bodies, requests, mut asked) = start(answers, Duration::from_secs(3600)).await;
    requests.request(key("b"));
    requests.request(key("b"));
    requests.request(key("a"));
    for expected in ["b", "a"] {
        assert_eq!(
            asked.recv().await.expect("the sweep asks").1,
            expected,
            "a session without bytes is not asked about"
        );
    }
    assert!(bodies.bodies(&key("b")).is_empty());
}
