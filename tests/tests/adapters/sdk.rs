//! Adapters on the Rust SDK, in the test's own process, at real nodes: both transports, the lease, refusals, and the
//! end.
use super::await_recorded;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::tempdir;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use turnway_client::ClientError;
use turnway_client::adapter::{
    Adapter, AdapterHandle, AdapterOptions, AdapterStatus, ChannelCapabilities, Disposition, PartOrder, Platform,
    PlatformEvent, PlatformFailure, SentPart,
};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;
use turnway_tests::real::tls::Pair;

/// A platform that is a channel. Each part waits for a permit.
struct Recorder {
    parts: mpsc::UnboundedSender<PartOrder>,
    gate: Arc<Semaphore>,
    /// True if the next part makes the platform panic.
    panics: Arc<AtomicBool>,
}

impl Platform for Recorder {
    fn capabilities(&self) -> ChannelCapabilities {
        ChannelCapabilities::default().key()
    }

    async fn send(&self, part: PartOrder) -> Result<SentPart, PlatformFailure> {
        let place = part.conversation_id.clone();
        self.parts.send(part)?;
        assert!(!self.panics.swap(false, Ordering::Relaxed), "a bug of the platform's author");
        self.gate.acquire().await?.forget();
        Ok(SentPart::new("x1", place))
    }
}

/// An adapter in a task of its own.
struct RunningAdapter {
    handle: AdapterHandle,
    parts: mpsc::UnboundedReceiver<PartOrder>,
    gate: Arc<Semaphore>,
    panics: Arc<AtomicBool>,
    task: JoinHandle<Result<(), ClientError>>,
}

impl RunningAdapter {
    fn start(options: &AdapterOptions) -> Self {
        let (sender, parts) = mpsc::unbounded_channel();
        let gate = Arc::new(Semaphore::new(0));
        let panics = Arc::new(AtomicBool::new(false));
        let platform = Recorder { parts: sender, gate: Arc::clone(&gate), panics: Arc::clone(&panics) };
        let adapter = Adapter::new(platform, options).expect("valid options");
        let handle = adapter.handle();
        Self { handle, parts, gate, panics, task: tokio::spawn(adapter.run()) }
    }

    async fn active(options: &AdapterOptions) -> Self {
        let adapter = Self::start(options);
        timeout(PATIENCE, adapter.handle.wait_active()).await.expect("in time").expect("active");
        adapter
    }

    /// Brings a message; returns its session.
    async fn bring(&self, id: &str) -> String {
        let event = PlatformEvent::message("lobby", id, "ann", "hello there");
        let settled = timeout(PATIENCE, self.handle.forward(event)).await.expect("in time").expect("an answer");
        assert_eq!(settled.disposition(), &Disposition::Run, "{settled:?}");
        settled.session_id().expect("a session").to_owned()
    }

    async fn next_part(&mut self) -> PartOrder {
        timeout(PATIENCE, self.parts.recv()).await.expect("in time").expect("a part")
    }

    /// Waits until the adapter has ended.
    async fn end(self) -> Result<(), ClientError> {
        timeout(PATIENCE, self.task).await.expect("in time").expect("no panic")
    }
}

fn options_of(node: &Node, account: &str) -> AdapterOptions {
    AdapterOptions::new(format!("ws://{}", node.http), "rooms", account)
}

/// Covers: BD-B5, BD-I4, BR-26.
#[tokio::test]
async fn sdk_adapter_over_quic_brings_and_delivers() {
    let dir = tempdir().expect("a directory");
    let pair = Pair::make(dir.path(), "pair").await;
    let args = [&["--demo", "--quic", "127.0.0.1:0"][..], &pair.flags()].concat();
    let node = Node::start(dir.path(), &args).await;
    let to = node.quic.expect("it speaks QUIC");
    let ca = std::fs::read(pair.ca()).expect("a certificate");
    let options = AdapterOptions::new(format!("quic://{to}"), "rooms", "main").ca(ca);
    let mut adapter = RunningAdapter::active(&options).await;
    adapter.gate.add_permits(1);
    let session = adapter.bring("m1").await;
    let part = adapter.next_part().await;
    assert_eq!((part.reply_to.as_deref(), part.conversation_id.as_str()), (Some("m1"), "lobby"), "{part:?}");
    assert!(part.text.contains("hello there"), "{part:?}");
    // A conversation gets one delivery at a time, so the second one shows that the first has its receipt.
    assert_eq!(adapter.bring("m2").await, session);
    assert_eq!(adapter.next_part().await.reply_to.as_deref(), Some("m2"));
}

/// Covers: BR-37.
#[tokio::test]
async fn second_sdk_adapter_takes_over_from_a_stopped_one() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let first = RunningAdapter::active(&options_of(&node, "main").instance_id("a")).await;
    let mut second = RunningAdapter::start(&options_of(&node, "main").instance_id("b"));
    first.bring("m1").await;
    assert_ne!(second.handle.status(), AdapterStatus::Active);
    first.handle.stop().await;
    // The order of the first answer is open, and its platform has no permit: the adapter waits for it, but not for
    // ever.
    first.gate.add_permits(1);
    assert_eq!(first.end().await, Ok(()));
    timeout(PATIENCE, second.handle.wait_active()).await.expect("in time").expect("active");
    second.gate.add_permits(2);
    second.bring("m2").await;
    while second.next_part().await.reply_to.as_deref() != Some("m2") {}
}

#[tokio::test]
async fn stopped_sdk_adapter_reports_its_open_order() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = RunningAdapter::active(&options_of(&node, "main")).await;
    let session = adapter.bring("m1").await;
    adapter.next_part().await;
    adapter.handle.stop().await;
    let handle = adapter.handle.clone();
    adapter.gate.add_permits(1);
    assert_eq!(adapter.end().await, Ok(()));
    let late = handle.forward(PlatformEvent::message("lobby", "m2", "ann", "too late")).await;
    assert_eq!(late, Err(ClientError::Closed));
    await_recorded(&node, &session, &["delivery.requested null", "delivery.sent 1"]).await;
}

/// Covers: BR-37.
#[tokio::test]
async fn sdk_adapter_with_a_foreign_bot_id_ends_with_the_reason() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let holder = RunningAdapter::active(&options_of(&node, "main").platform_bot_id("bot-1")).await;
    let other = RunningAdapter::start(&options_of(&node, "other").platform_bot_id("bot-1"));
    let handle = other.handle.clone();
    let error = other.end().await.expect_err("refused");
    assert!(error.to_string().contains("bot_id_in_use"), "{error}");
    assert_eq!(handle.status(), AdapterStatus::Ended);
    assert_eq!(holder.handle.status(), AdapterStatus::Active);
}

/// Covers: BR-08.
#[tokio::test]
async fn panic_of_a_platform_is_unknown_and_the_part_repeated() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = RunningAdapter::active(&options_of(&node, "main")).await;
    adapter.panics.store(true, Ordering::Relaxed);
    adapter.gate.add_permits(1);
    adapter.bring("m1").await;
    let first = adapter.next_part().await;
    let second = adapter.next_part().await;
    assert_eq!((first.attempt, second.attempt), (1, 2));
    assert_eq!(first.key, second.key, "the platform shows the part once");
    assert_eq!(adapter.handle.status(), AdapterStatus::Active);
}
