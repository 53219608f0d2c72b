//! Writes the calls of models that runs make into the logs of their sessions, over links of the node's own: each call has a
//! task that records its beginning and then its end, at whichever node owns the session. Used by `models` through
//! [`CallWriter`].
use crate::http::HttpContext;
use crate::http::request_link::{RequestFailure, RequestLink};
use crate::models::journal::{CallReport, CallUnrecorded, CallWriter};
use crate::run_token::TokenRun;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use turnway_core::id::{Principal, SessionId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::input::ControlRequest;
use turnway_core::protocol::model_call::{ModelCallEnd, RecordedCallOutcome};
use turnway_core::protocol::refusal::Code;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::notification::{CommandReply, Notification};

/// First wait before a report is sent again; it doubles each time.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// Longest wait before a report is sent again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The writer of a node.
pub struct SessionCallWriter {
    /// The context holds the models, which hold this.
    context: Weak<HttpContext>,
    /// Bounds the calls that are being recorded.
    places: Arc<Semaphore>,
}

/// The reports of one call.
struct CallReports {
    context: Arc<HttpContext>,
    link: RequestLink,
    session: SessionId,
}

/// The reason why a report has no effect.
enum ReportFailure {
    /// The session was deleted, or a node of an earlier release is running: the call has no record.
    NotRecorded,
    /// The store was away for too long.
    Unavailable,
}

// === impl SessionCallWriter ===

impl SessionCallWriter {
    /// Creates a writer with the parts of this context.
    pub fn new(context: &Arc<HttpContext>) -> Self {
        let places = Arc::new(Semaphore::new(limits::MODEL_CALLS_MAX * 2));
        Self { context: Arc::downgrade(context), places }
    }
}

impl CallWriter for SessionCallWriter {
    fn write(&self, report: CallReport) -> Result<(), CallUnrecorded> {
        let context = self.context.upgrade().ok_or(CallUnrecorded)?;
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| CallUnrecorded)?;
        tokio::spawn(record(context, report, place));
        Ok(())
    }
}

impl fmt::Debug for SessionCallWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionCallWriter").finish_non_exhaustive()
    }
}

/// Records a call from its beginning to its end.
async fn record(context: Arc<HttpContext>, report: CallReport, _place: OwnedSemaphorePermit) {
    let CallReport { run, start, started, ended } = report;
    let call_id = start.call_id;
    let began = context.clock.mono();
    let Ok(mut reports) = CallReports::open(Arc::clone(&context), &run).await else {
        _ = started.send(Err(CallUnrecorded));
        return;
    };
    let begun = reports.send(ControlRequest::StartModelCall { start: Box::new(start) }).await;
    match begun {
        Ok(()) => _ = started.send(Ok(())),
        Err(ReportFailure::NotRecorded) => {
            _ = started.send(Ok(()));
            return;
        }
        Err(ReportFailure::Unavailable) => {
            context.models.journal().count_unrecorded();
            _ = started.send(Err(CallUnrecorded));
        }
    }
    // A caller may leave, and the store may refuse a call, while the beginning is on its way: it may be recorded all the same.
    let took = || u64::try_from((context.clock.mono() - began).as_millis()).unwrap_or(u64::MAX);
    let unmade = |_| ModelCallEnd::without_attempt(call_id, RecordedCallOutcome::Cancelled, took());
    let end = ended.await.unwrap_or_else(unmade);
    if planted(Planted::CallEndUnreported) {
        return;
    }
    if let Err(ReportFailure::Unavailable) = reports.send(ControlRequest::EndModelCall { end: Box::new(end) }).await {
        context.models.journal().count_unrecorded();
    }
}

// === impl CallReports ===

impl CallReports {
    async fn open(context: Arc<HttpContext>, run: &TokenRun) -> Result<Self, CallUnrecorded> {
        let principal = Principal { writes: true, ..run.principal() };
        let link = RequestLink::open_internal(Arc::clone(&context), principal).await.map_err(|_| CallUnrecorded)?;
        Ok(Self { context, link, session: run.run_id.session() })
    }

    /// Sends a report until it is durable. A repeated report has the name of the first one, so that it counts once.
    async fn send(&mut self, request: ControlRequest) -> Result<(), ReportFailure> {
        let deadline = self.context.clock.mono() + limits::MODEL_CALL_REPORT_WAIT;
        let mut pause = RETRY_FIRST;
        loop {
            let wait = match self.try_send(request.clone()).await {
                Ok(()) => return Ok(()),
                Err(RequestFailure::LinkClosed(_)) => return Err(ReportFailure::Unavailable),
                Err(RequestFailure::Refused(refusal)) if is_final(refusal.code) => {
                    return Err(ReportFailure::NotRecorded);
                }
                Err(RequestFailure::Refused(refusal)) => refusal.retry_after_ms.map(Duration::from_millis),
                Err(RequestFailure::TimedOut) => None,
            };
            let wait = wait.unwrap_or(pause).min(RETRY_MAX);
            if self.context.clock.mono() + wait >= deadline {
                return Err(ReportFailure::Unavailable);
            }
            tokio::time::sleep(wait).await;
            pause *= 2;
        }
    }

    async fn try_send(&mut self, request: ControlRequest) -> Result<(), RequestFailure> {
        let session = self.session.clone();
        self.link.send(LinkCommand::Control { request_id: None, session, request }).await?;
        let stored = |note| matches!(note, Notification::Reply(CommandReply::Stored)).then_some(());
        self.link.wait_for(stored).await
    }
}

/// Returns whether a refusal stays the same however often the report is sent.
fn is_final(code: Code) -> bool {
    matches!(code, Code::NotFound | Code::FleetUpgrading)
}
