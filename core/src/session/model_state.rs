//! State of the calls of models that runs have open, derived from the log alone. `model_apply` and `run_apply` change it.
use crate::id::{AgentId, EventId, RunId};
use crate::limits;
use crate::time::Millis;
use std::collections::BTreeMap;
use std::time::Duration;

/// A session's open calls of models, as recorded in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelCalls {
    /// Calls that have begun and not ended.
    pub open: BTreeMap<EventId, OpenModelCall>,
    /// Open runs with an open call, and the time since which they have had one. The time of such a run stands still.
    pub calling_since: BTreeMap<RunId, Millis>,
}

/// A call that has begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenModelCall {
    pub run_id: RunId,
    /// The agent of the run.
    pub agent: Option<AgentId>,
    pub model: String,
    pub began: Millis,
    /// Time at which the call counts as lost.
    pub deadline: Millis,
}

// === impl ModelCalls ===

impl ModelCalls {
    /// Returns whether no call is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.calling_since.is_empty()
    }

    /// Returns whether the time of a run stands still.
    pub(super) fn is_calling(&self, run_id: &RunId) -> bool {
        self.calling_since.contains_key(run_id)
    }

    /// Returns the time for which a run has had a call open, up to a time; zero if none is open.
    pub(super) fn time_calling(&self, run_id: &RunId, now: Millis) -> Duration {
        let since = self.calling_since.get(run_id).copied().unwrap_or(now);
        Duration::from_millis(now.0.saturating_sub(since.0))
    }

    /// Returns the time at which the next call counts as lost.
    pub(super) fn next_deadline(&self) -> Option<Millis> {
        self.open.values().map(|call| call.deadline).min()
    }

    /// Adds a call; `is_run_open` tells whether its run goes on.
    pub(super) fn begin(&mut self, call_id: EventId, call: OpenModelCall, is_run_open: bool) {
        if is_run_open {
            self.calling_since.entry(call.run_id.clone()).or_insert(call.began);
        }
        self.open.insert(call_id, call);
    }

    /// Removes a call. Returns its run, and for how long the run's time stood still, if it goes on now.
    pub(super) fn end(&mut self, call_id: &EventId, now: Millis) -> Option<(RunId, Duration)> {
        let run_id = self.open.remove(call_id)?.run_id;
        if self.open.values().any(|call| call.run_id == run_id) {
            return None;
        }
        let since = self.calling_since.remove(&run_id)?;
        Some((run_id, Duration::from_millis(now.0.saturating_sub(since.0))))
    }

    /// Handles the end of a run, which stops its calls: their ends are reported soon, or not at all.
    pub(super) fn finish_run(&mut self, run_id: &RunId, now: Millis) {
        self.calling_since.remove(run_id);
        let latest = now.after(limits::MODEL_CALL_REPORT_WAIT);
        let own = self.open.values_mut().filter(|call| call.run_id == *run_id);
        own.for_each(|call| call.deadline = call.deadline.min(latest));
    }
}
