//! Requests of a session that are kept and repeated until the gateway has answered them. Used by the conversation.
use crate::invoke::{Open, UserInput};
use crate::limits;
use crate::members::MemberChange;
use crate::planted::{Planted, planted};
use serde_json::{Value, json};
use std::time::Duration;

/// The schedule of a request that was refused temporarily, within a total time budget.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetrySchedule {
    pub(crate) due: Duration,
    first: Option<Duration>,
    tries: u32,
}

impl RetrySchedule {
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.due <= now
    }

    /// Schedules a repeat; returns false once the budget is spent.
    pub(crate) fn schedule(&mut self, now: Duration, after_ms: Option<u64>) -> bool {
        let first = *self.first.get_or_insert(now);
        if now.saturating_sub(first) >= limits::RETRY_BUDGET && !planted(Planted::SdkRetriesForEver) {
            return false;
        }
        let own = (limits::RETRY_BASE * (1 << self.tries.min(8))).min(limits::RETRY_MAX);
        let after_ms = after_ms.filter(|_| !planted(Planted::SdkRetryAfterIgnored));
        let named = after_ms.map(Duration::from_millis);
        self.tries += 1;
        self.due = now + named.unwrap_or(own).min(limits::RETRY_BUDGET);
        true
    }
}

/// Returns whether the client repeats a request that was refused with this code: nothing was stored, and the reason
/// is temporary.
pub(crate) fn is_temporary(code: &str) -> bool {
    matches!(code, "too_many_pending" | "store_unavailable" | "rate_limited" | "draining")
}

/// An input that is not known to have ended.
#[derive(Clone, Debug)]
pub(crate) struct PendingInvoke {
    pub(crate) invoke: UserInput,
    /// The encoded message; every repeat sends the same bytes.
    pub(crate) wire: String,
    /// True if the message was sent on the current connection.
    pub(crate) sent: bool,
    /// The run that answers the input, once the input is accepted.
    pub(crate) run: Option<String>,
    pub(crate) retry: RetrySchedule,
}

impl PendingInvoke {
    pub(crate) fn new(invoke: UserInput, wire: String) -> Self {
        Self { invoke, wire, sent: false, run: None, retry: RetrySchedule::default() }
    }
}

/// A request of a session other than an input.
#[derive(Clone, Debug)]
pub(crate) struct SessionRequest {
    pub(crate) kind: SessionRequestKind,
    pub(crate) request_id: String,
    /// True if the request was sent on the current connection.
    pub(crate) sent: bool,
    pub(crate) retry: RetrySchedule,
}

/// The kind of a request, with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionRequestKind {
    /// Answered by `session_opened`.
    Open(Open),
    /// Answered by `session_closed`.
    Close,
    /// Answered by the run's end; without a run, by any sign of a cancellation.
    Cancel { run: Option<String> },
    /// Answered by `handover`.
    Decide(Decision),
    /// Answered by `members`, or by the fact that nothing changed.
    Members(MemberChange),
}

/// A user's decision about a handover that an agent asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Id of the handover.
    pub handover: String,
    /// True if the user confirms the handover.
    pub confirm: bool,
}

impl SessionRequest {
    pub(crate) fn name(&self) -> &'static str {
        match &self.kind {
            SessionRequestKind::Open(_) => "session_open",
            SessionRequestKind::Close => "session_close",
            SessionRequestKind::Cancel { .. } => "cancel_run",
            SessionRequestKind::Decide(_) => "handover_decision",
            SessionRequestKind::Members(change) => change.name,
        }
    }

    pub(crate) fn is_change_of_members(&self) -> bool {
        matches!(self.kind, SessionRequestKind::Members(_))
    }

    pub(crate) fn to_wire(&self, session: &str) -> String {
        let mut body = json!({ "type": self.name(), "ts": 0, "request_id": self.request_id, "session_id": session });
        match &self.kind {
            SessionRequestKind::Open(open) => {
                if !open.agents.is_empty() {
                    body["agents"] = open.agents.clone().into();
                }
                if let Some(active) = &open.active_agent {
                    body["active_agent"] = active.clone().into();
                }
            }
            SessionRequestKind::Cancel { run: Some(run) } => body["run_id"] = Value::String(run.clone()),
            SessionRequestKind::Decide(Decision { handover, confirm }) => {
                body["handover_id"] = handover.clone().into();
                body["decision"] = if *confirm { "confirm" } else { "reject" }.into();
            }
            SessionRequestKind::Members(change) => change.write(&mut body),
            SessionRequestKind::Cancel { run: None } | SessionRequestKind::Close => {}
        }
        body.to_string()
    }
}
