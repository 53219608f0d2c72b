//! A line in a file for each attempt at a turn: the session, how it ended, and how many bytes were said.
//!
//! It shows that `save_state` is called once however an attempt ends, and what it is told.
use futures_util::FutureExt;
use std::path::PathBuf;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use turnway_pipeline::{HookError, HookFuture, Plugin, Turn};

/// Keeps no words, only how it went.
#[derive(Debug)]
pub(crate) struct Diary(PathBuf);

// === impl Diary ===

impl Diary {
    /// In this file, which is made where there is none.
    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }
}

impl Plugin for Diary {
    fn name(&self) -> &'static str {
        "diary"
    }

    fn keeps_text(&self) -> bool {
        true
    }

    fn save_state<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, ()> {
        let how = turn.failure.as_ref().map_or("fine", |failure| failure.code());
        let line = format!("{} {how} {}\n", turn.session_id, turn.output.len());
        async move {
            let told = |why: std::io::Error| HookError::new("diary", why.to_string());
            let mut file = File::options().create(true).append(true).open(&self.0).await.map_err(told)?;
            file.write_all(line.as_bytes()).await.map_err(told)?;
            file.flush().await.map_err(told)
        }
        .boxed()
    }
}
