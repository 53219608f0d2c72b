//! Files in sessions: uploads and downloads over HTTP on each store, rights, limits, and what is left after crashes.
mod crashes;
mod load;
mod rights;
mod room;
mod s3;
mod s3_faults;
mod transfers;

use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::web::Web;

pub(crate) const MIB: usize = 1024 * 1024;

/// Opens a session by a turn of the agent `echo`.
pub(crate) async fn open_session(web: &Web, session: &str) {
    let events = web.turn(session, "echo", &format!("open-{session}"), "hello", None).await.rest().await;
    assert_eq!(events.last().map(|event| &event.data["type"]), Some(&json!("done")));
}

/// Returns the files below a directory.
pub(crate) fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Makes a directory for a part of a test.
pub(crate) fn made(directory: PathBuf) -> PathBuf {
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}

/// Waits until something is so.
pub(crate) async fn await_that(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    let mut looks = interval(Duration::from_millis(20));
    let waited = timeout(PATIENCE, async {
        loop {
            looks.tick().await;
            if is_so().await {
                return;
            }
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}: not within {:?}", started.elapsed()));
}
