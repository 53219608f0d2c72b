//! Supervises tasks that run as long as the process: a task that panics is restarted, or ends the node, so that no task
//! disappears unnoticed. State is global, because a task's panic concerns the whole process.
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Pause before a task is restarted for the first time, and the maximum: a task that panics at once must not fill the
/// log.
const BACKOFF: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Running time after which a task counts as healthy again.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// Panics by task name. Names come from calls in the source, so their number is bounded.
static PANICS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// The task whose failure ends the node.
static FAILED_TASK: LazyLock<watch::Sender<Option<&'static str>>> = LazyLock::new(|| watch::Sender::new(None));

/// Spawns a task that the node cannot run without: its panic ends the node.
pub fn spawn_required(
    runtime: &Handle,
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    runtime.spawn(run_required(name, task))
}

/// Runs a task that the node cannot run without, as part of another task.
pub async fn run_required(name: &'static str, task: impl Future<Output = ()>) {
    if AssertUnwindSafe(task).catch_unwind().await.is_err() {
        record_panic(name, "the node cannot run without it and exits");
        fail_node(name);
    }
}

/// Runs a task that others wait for. Returns whether it panicked, so that they can be told.
pub async fn run_caught(name: &'static str, task: impl Future<Output = ()>) -> bool {
    let is_caught = AssertUnwindSafe(task).catch_unwind().await.is_err();
    if is_caught {
        record_panic(name, "its waiters are notified");
    }
    is_caught
}

/// Ends the node, because a task failed that the node cannot run without.
pub fn fail_node(name: &'static str) {
    FAILED_TASK.send_if_modified(|ended| {
        let is_first = ended.is_none();
        ended.get_or_insert(name);
        is_first
    });
}

/// Waits until the node must end; returns the name of the failed task. Cancel-safe.
pub async fn wait_failed() -> &'static str {
    // The sender lives as long as the process, so the wait cannot fail.
    let name = FAILED_TASK.subscribe().wait_for(Option::is_some).await.ok().and_then(|name| *name);
    name.unwrap_or_default()
}

/// Runs a task, and restarts it after a panic. Returns when the task returns.
pub async fn run_restarting<F: Future<Output = ()>>(name: &'static str, mut task: impl FnMut() -> F) {
    let mut wait = BACKOFF;
    loop {
        let began = Instant::now();
        // The task is created anew; its shared state is behind locks that are also taken when poisoned.
        let run = AssertUnwindSafe(async { task().await });
        if run.catch_unwind().await.is_ok() {
            return;
        }
        record_panic(name, "it is restarted");
        if began.elapsed() >= HEALTHY_AFTER {
            wait = BACKOFF;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(BACKOFF_MAX);
    }
}

/// Returns how often each task has panicked.
pub fn panics() -> BTreeMap<&'static str, u64> {
    counts().clone()
}

fn record_panic(task: &'static str, then: &str) {
    *counts().entry(task).or_default() += 1;
    tracing::error!(task, then, "a task panicked");
}

fn counts() -> MutexGuard<'static, BTreeMap<&'static str, u64>> {
    PANICS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn panicking_task_is_restarted() {
        let begun = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let task = move || {
            let nth = count.fetch_add(1, Ordering::SeqCst);
            async move { assert!(nth >= 2, "injected") }
        };
        let began = Instant::now();
        run_restarting("test_restarted", task).await;
        assert_eq!(begun.load(Ordering::SeqCst), 3);
        assert_eq!(panics().get("test_restarted"), Some(&2));
        assert!(began.elapsed() >= BACKOFF * (1 + 2), "each time later");
    }

    #[tokio::test]
    async fn panicking_essential_task_ends_the_node() {
        let runtime = Handle::current();
        spawn_required(&runtime, "test_well", async {}).await.expect("it ends");
        assert!(wait_failed().now_or_never().is_none(), "to return is no panic");
        drop(spawn_required(&runtime, "test_needed", async { panic!("injected") }));
        assert_eq!(wait_failed().await, "test_needed");
        assert_eq!(panics().get("test_needed"), Some(&1));
    }

    /// The socket outlives the task: a client that connects in between waits, and is served.
    #[tokio::test]
    async fn listener_survives_a_panic_of_its_acceptor() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        socket.set_nonblocking(true).expect("set");
        let address = socket.local_addr().expect("bound");
        let socket = Arc::new(socket);
        let begun = Arc::new(AtomicUsize::new(0));
        let accept = move || {
            let socket = Arc::clone(&socket);
            let nth = begun.fetch_add(1, Ordering::SeqCst);
            async move {
                let listener = tokio::net::TcpListener::from_std(socket.try_clone().expect("a clone"));
                let (mut stream, _) = listener.expect("listens").accept().await.expect("accepted");
                assert!(nth > 0, "injected");
                tokio::io::AsyncWriteExt::write_all(&mut stream, b"served").await.expect("written");
            }
        };
        let serving = tokio::spawn(run_restarting("test_acceptor", accept));
        let mut first = tokio::net::TcpStream::connect(address).await.expect("connected");
        let mut text = String::new();
        // The panic closes the connection, not the listener.
        let _ = first.read_to_string(&mut text).await;
        assert_eq!(text, "");
        let mut second = tokio::net::TcpStream::connect(address).await.expect("connected");
        second.read_to_string(&mut text).await.expect("read");
        assert_eq!(text, "served");
        serving.await.expect("it ends");
    }
}
