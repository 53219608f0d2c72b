//! What has been asked of the gateway and is kept until it is answered, to be asked again.
use crate::invoke::{Invoke, Open};
use crate::limits;
use crate::members::MemberChange;
use crate::planted::{Planted, planted};
use serde_json::{Value, json};
use std::time::Duration;

/// When to repeat what was refused "for now", within a budget.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retry {
    pub(crate) due: Duration,
    first: Option<Duration>,
    tries: u32,
}

impl Retry {
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.due <= now
    }

    /// Plans a repeat; false once the budget is spent.
    pub(crate) fn again(&mut self, now: Duration, after_ms: Option<u64>) -> bool {
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

/// Whether the client repeats a request refused with this code by itself: nothing was stored, and
/// the reason passes.
pub(crate) fn passes(code: &str) -> bool {
    matches!(code, "too_many_pending" | "store_unavailable" | "rate_limited" | "draining")
}

/// An input that is not known to have ended.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) invoke: Invoke,
    /// The message; the same bytes each time.
    pub(crate) wire: String,
    /// Said on this connection.
    pub(crate) sent: bool,
    /// The run that answers it, once it is accepted.
    pub(crate) run: Option<String>,
    pub(crate) retry: Retry,
}

impl Pending {
    pub(crate) fn new(invoke: Invoke, wire: String) -> Self {
        Self { invoke, wire, sent: false, run: None, retry: Retry::default() }
    }
}

/// Another request of a session.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) kind: AskKind,
    pub(crate) request_id: String,
    /// Said on this connection.
    pub(crate) sent: bool,
    pub(crate) retry: Retry,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AskKind {
    /// Answered by `session_opened`.
    Open(Open),
    /// Answered by `session_closed`.
    Close,
    /// Answered by the run's end; with no run, by any sign of a cancel.
    Cancel { run: Option<String> },
    /// Answered by `handover`.
    Decide(Decision),
    /// Answered by `members`, or by the fact that nothing has changed.
    Members(MemberChange),
}

/// What somebody makes of a handover that an agent has asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Which.
    pub handover: String,
    /// Whether they agree.
    pub confirm: bool,
}

impl Ask {
    pub(crate) fn name(&self) -> &'static str {
        match &self.kind {
            AskKind::Open(_) => "session_open",
            AskKind::Close => "session_close",
            AskKind::Cancel { .. } => "cancel_run",
            AskKind::Decide(_) => "handover_decision",
            AskKind::Members(change) => change.name,
        }
    }

    pub(crate) fn is_change_of_members(&self) -> bool {
        matches!(self.kind, AskKind::Members(_))
    }

    pub(crate) fn to_wire(&self, session: &str) -> String {
        let mut body =
            json!({ "type": self.name(), "ts": 0, "request_id": self.request_id, "session_id": session });
        match &self.kind {
            AskKind::Open(open) => {
                if !open.agents.is_empty() {
                    body["agents"] = open.agents.clone().into();
                }
                if let Some(active) = &open.active_agent {
                    body["active_agent"] = active.clone().into();
                }
            }
            AskKind::Cancel { run: Some(run) } => body["run_id"] = Value::String(run.clone()),
            AskKind::Decide(Decision { handover, confirm }) => {
                body["handover_id"] = handover.clone().into();
                body["decision"] = if *confirm { "confirm" } else { "reject" }.into();
            }
            AskKind::Members(change) => change.write(&mut body),
            AskKind::Cancel { run: None } | AskKind::Close => {}
        }
        body.to_string()
    }
}
