//! Records the calls of runs in the logs of their sessions, through a writer that `http` gives to the node at its start. A
//! call ends once in the journal, however it ends.
use crate::config::RecordCalls;
use crate::metrics::Metrics;
use crate::run_token::TokenRun;
use std::fmt;
use std::sync::{Arc, OnceLock};
use tokio::sync::oneshot;
use turnway_core::id::EventId;
use turnway_core::protocol::model_call::{ModelCallEnd, ModelCallStart};

/// A writer of calls into the logs of sessions.
pub trait CallWriter: fmt::Debug + Send + Sync {
    /// Begins to record a call. Fails if too many calls are being recorded.
    fn write(&self, report: CallReport) -> Result<(), CallUnrecorded>;
}

/// A call that is to be recorded.
#[derive(Debug)]
pub struct CallReport {
    pub run: TokenRun,
    pub start: ModelCallStart,
    /// Gets the news that the beginning is durable.
    pub started: oneshot::Sender<Result<(), CallUnrecorded>>,
    /// Has the end, once there is one.
    pub ended: oneshot::Receiver<ModelCallEnd>,
}

/// A call of a run cannot be recorded now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the call of a model cannot be recorded")]
pub struct CallUnrecorded;

/// The journal of a node. Clones share it.
#[derive(Clone, Debug)]
pub struct CallJournal {
    writer: Arc<OnceLock<Arc<dyn CallWriter>>>,
    record: RecordCalls,
    metrics: Arc<Metrics>,
}

/// The record of one call.
#[derive(Debug)]
pub(super) struct CallEntry {
    pub(super) call_id: EventId,
    /// Takes the end.
    pub(super) ended: oneshot::Sender<ModelCallEnd>,
}

// === impl CallJournal ===

impl CallJournal {
    /// Creates a journal without a writer: it records nothing.
    pub fn new(record: RecordCalls, metrics: Arc<Metrics>) -> Self {
        Self { writer: Arc::default(), record, metrics }
    }

    /// Sets the writer; only the first one counts.
    pub fn set_writer(&self, writer: Arc<dyn CallWriter>) {
        _ = self.writer.set(writer);
    }

    /// Counts a beginning or an end that is not recorded.
    pub fn count_unrecorded(&self) {
        self.metrics.models.count_unrecorded();
    }

    /// Records the beginning of a call of a run. With [`RecordCalls::Before`], waits until it is durable.
    pub(super) async fn begin(
        &self,
        run: &TokenRun,
        start: ModelCallStart,
    ) -> Result<Option<CallEntry>, CallUnrecorded> {
        let Some(writer) = self.writer.get() else { return Ok(None) };
        let (started, is_durable) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        let call_id = start.call_id;
        writer.write(CallReport { run: run.clone(), start, started, ended: end })?;
        if self.record == RecordCalls::Before {
            is_durable.await.unwrap_or(Err(CallUnrecorded))?;
        }
        Ok(Some(CallEntry { call_id, ended }))
    }
}
