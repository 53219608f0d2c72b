//! A session's cursor in the log: subscribing, resets, repairs, and progress. Called by the message handlers.
use crate::conversation::{SessionTracker, SubscriptionState};
use crate::event::{ClientSnapshot, Event, LogCursor, OpenRun};
use crate::frame::IncomingMessage;
use crate::invoke::Start;
use crate::limits;
use crate::output::Outbound;
use crate::planted::{Planted, planted};
use crate::requests::RetrySchedule;
use crate::text::RunText;
use serde_json::json;
use std::time::Duration;

impl SessionTracker {
    /// Handles the answer to `subscribe`.
    pub(crate) fn handle_subscribed(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        let reset = frame.flag("reset");
        let request_id = frame.text("request_id");
        let expected = match &self.subscription {
            SubscriptionState::Requested(requested) => request_id.is_none_or(|id| id == requested),
            // A log can lose facts under an active subscription.
            SubscriptionState::Subscribed => reset && request_id.is_none(),
            SubscriptionState::Unsubscribed | SubscriptionState::SubscribeByInput | SubscriptionState::Due(_) => false,
        };
        if !expected {
            return;
        }
        let snapshot = self.snapshot_of(frame);
        let end = LogCursor { seq: frame.number("seq").unwrap_or(snapshot.seq), epoch: snapshot.epoch };
        if reset {
            let reason = frame.string("reason").unwrap_or_else(|| "trimmed".to_owned());
            return self.reset(reason, Some(snapshot), fx);
        }
        self.subscription = SubscriptionState::Subscribed;
        self.retry = RetrySchedule::default();
        match (self.cursor, self.start.take()) {
            (None, Some(Start::Beginning)) => self.cursor = Some(LogCursor { seq: 0, epoch: None }),
            (None, Some(Start::Now | Start::After(_)) | None) => {
                self.cursor = Some(end);
                self.track_runs(&snapshot.runs);
            }
            (Some(_), _) => {}
        }
        self.catch_up_to = Some(end.seq);
        fx.emit(Event::Subscribed { session: self.id.clone(), snapshot: Box::new(snapshot) });
        self.check_goal(fx);
    }

    /// Drops the state of the session and starts from the snapshot, or from nothing.
    pub(crate) fn reset(&mut self, reason: String, snapshot: Option<ClientSnapshot>, fx: &mut Outbound) {
        self.runs.clear();
        self.ended.clear();
        self.start = None;
        self.catch_up_to = None;
        self.repairs = 0;
        self.cursor = snapshot.as_ref().map(|snapshot| LogCursor { seq: snapshot.seq, epoch: snapshot.epoch });
        for input in &mut self.inputs {
            input.sent = false;
        }
        self.subscription = match &snapshot {
            None => SubscriptionState::Unsubscribed,
            Some(snapshot) if self.inputs.is_empty() => {
                self.track_runs(&snapshot.runs);
                SubscriptionState::Subscribed
            }
            Some(_) => {
                // An input to a subscribed session moves no cursor, so unsubscribe first.
                fx.send(json!({ "type": "unsubscribe", "ts": 0, "session_id": self.id }).to_string());
                SubscriptionState::SubscribeByInput
            }
        };
        fx.emit(Event::Reset { session: self.id.clone(), reason, snapshot: snapshot.map(Box::new) });
    }

    fn track_runs(&mut self, runs: &[OpenRun]) {
        for open in runs {
            // A known run keeps its text.
            if let Some(run) = self.open_run(&open.run_id).filter(|run| run.attempt == 0) {
                run.restart(open.attempt);
                run.agent.clone_from(&open.agent_id);
            }
        }
    }

    /// Marks the session as subscribed without a cursor: the first accepted input subscribed this link.
    pub(crate) fn subscribed_by_input(&mut self) {
        match self.subscription {
            SubscriptionState::Unsubscribed | SubscriptionState::SubscribeByInput => {
                self.subscription = SubscriptionState::Subscribed;
                self.cursor = None;
            }
            SubscriptionState::Due(_) | SubscriptionState::Requested(_) | SubscriptionState::Subscribed => {}
        }
    }

    /// Moves the cursor to a fact that was delivered.
    pub(crate) fn advance(&mut self, seq: u64, epoch: Option<u64>, fx: &mut Outbound) {
        self.cursor = Some(LogCursor { seq, epoch });
        self.repairs = 0;
        self.check_goal(fx);
    }

    fn check_goal(&mut self, fx: &mut Outbound) {
        if let (Some(goal), Some(cursor)) = (self.catch_up_to, self.cursor)
            && cursor.seq >= goal
        {
            self.catch_up_to = None;
            fx.emit(Event::CaughtUp { session: self.id.clone(), seq: cursor.seq });
        }
    }

    /// Requests everything after the cursor again; returns false after too many attempts without progress.
    pub(crate) fn repair(&mut self, now: Duration) -> bool {
        if self.repairs >= limits::REPAIRS_MAX && !planted(Planted::SdkRepairsForEver) {
            return false;
        }
        let wait = repair_delay(self.repairs);
        self.repairs += 1;
        self.runs.values_mut().for_each(RunText::forget_end);
        self.subscription = SubscriptionState::Due(now + wait);
        true
    }

    /// Schedules another attempt at a subscription that was refused temporarily; returns false once the budget is
    /// spent.
    pub(crate) fn schedule_subscribe(&mut self, now: Duration, after_ms: Option<u64>) -> bool {
        let again = self.retry.schedule(now, after_ms);
        if again {
            self.subscription = SubscriptionState::Due(self.retry.due);
        }
        again
    }

    /// Stops subscribing on this connection; an input may still subscribe.
    pub(crate) fn give_up_subscription(&mut self) {
        self.subscription = SubscriptionState::Unsubscribed;
        self.start = None;
        // Refused patterns would invalidate the next `hello`.
        self.types.clear();
        self.cursor = self.cursor.filter(|cursor| cursor.seq > 0);
    }

    /// Subscribes from the snapshot in the answer to `session_open`.
    pub(crate) fn follow(&mut self, snapshot: &ClientSnapshot, now: Duration) {
        self.cursor = Some(LogCursor { seq: snapshot.seq, epoch: snapshot.epoch });
        self.track_runs(&snapshot.runs);
        self.subscription = SubscriptionState::Due(now);
    }

    pub(crate) fn snapshot_of(&self, frame: &IncomingMessage) -> ClientSnapshot {
        let value = frame.get("snapshot").cloned().unwrap_or_default();
        let mut snapshot: ClientSnapshot = serde_json::from_value(value).unwrap_or_default();
        if snapshot.session_id.is_empty() {
            snapshot.session_id.clone_from(&self.id);
        }
        if snapshot.seq == 0 {
            snapshot.seq = frame.number("seq").unwrap_or(0);
            snapshot.epoch = snapshot.epoch.or(frame.number("epoch"));
        }
        snapshot
    }

    pub(crate) fn is_ended(&self, run: &str) -> bool {
        self.ended.iter().any(|ended| ended == run)
    }

    pub(crate) fn remember_end(&mut self, run: &str) {
        if self.ended.len() >= limits::ENDED_RUNS_MAX && !planted(Planted::SdkEndsUnbounded) {
            self.ended.pop_front();
        }
        self.ended.push_back(run.to_owned());
    }
}

/// Returns the delay before a repair, by the number of repairs before it since the last progress.
fn repair_delay(repairs: u32) -> Duration {
    match repairs.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => limits::REPAIR_BASE.saturating_mul(1 << doublings.min(16)),
    }
}
