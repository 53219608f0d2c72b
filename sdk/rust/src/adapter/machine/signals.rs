//! Typing and previews: in order within a conversation, never repeated, and dropped rather than queued without bound.
//! The gateway expects no answer to signals.
use crate::adapter::order::SignalOrder;
use crate::adapter::output::{AdapterEffects, AdapterWork, WorkResult};
use crate::limits;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The signals of an account. Each conversation has a lane, and one signal of a lane is performed at a time.
#[derive(Debug, Default)]
pub(crate) struct SignalLanes {
    /// Lanes by the id of their conversation.
    lanes: BTreeMap<String, SignalLane>,
    /// Conversations by the task of their running signal.
    running: BTreeMap<u64, String>,
}

/// The signals of a conversation. A lane exists while one of its signals runs.
#[derive(Debug)]
struct SignalLane {
    waiting: VecDeque<SignalOrder>,
    until: Duration,
}

// === impl SignalLanes ===

impl SignalLanes {
    /// Takes a signal. A newer one of the same kind replaces the one that waits, and a removal drops the preview.
    pub(crate) fn take(&mut self, signal: SignalOrder, fx: &mut AdapterEffects) {
        let conversation = signal.conversation_id().to_owned();
        if let Some(lane) = self.lanes.get_mut(&conversation) {
            return lane.push(signal);
        }
        if self.lanes.len() >= limits::SIGNAL_LANES_MAX {
            tracing::warn!("signals of too many conversations wait: one is dropped");
            return;
        }
        self.lanes
            .insert(conversation.clone(), SignalLane { waiting: VecDeque::from([signal]), until: Duration::ZERO });
        self.start_next(conversation, fx);
    }

    /// Takes the result of a signal. Returns the result if the task is no signal.
    pub(crate) fn handle_finished(
        &mut self,
        task: u64,
        result: WorkResult,
        fx: &mut AdapterEffects,
    ) -> Option<WorkResult> {
        let Some(conversation) = self.running.remove(&task) else { return Some(result) };
        if let WorkResult::Shown(Err(failure)) = &result {
            tracing::info!(%failure, "a signal was not shown");
        }
        self.start_next(conversation, fx);
        None
    }

    /// Returns the time of the next action.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.lanes.values().map(|lane| lane.until).min()
    }

    /// Gives up signals that took too long.
    pub(crate) fn handle_timeout(&mut self, fx: &mut AdapterEffects) {
        let is_late =
            |conversation: &String| self.lanes.get(conversation).is_none_or(|lane| lane.until <= fx.now.elapsed);
        let late: Vec<u64> =
            self.running.iter().filter(|(_, conversation)| is_late(conversation)).map(|(task, _)| *task).collect();
        for task in late {
            fx.abandon(task);
            if let Some(conversation) = self.running.remove(&task) {
                self.start_next(conversation, fx);
            }
        }
    }

    fn start_next(&mut self, conversation: String, fx: &mut AdapterEffects) {
        let Some(lane) = self.lanes.get_mut(&conversation) else { return };
        let Some(signal) = lane.waiting.pop_front() else {
            self.lanes.remove(&conversation);
            return;
        };
        lane.until = fx.now.elapsed + limits::SIGNAL_TIMEOUT;
        let task = fx.start(AdapterWork::Signal(signal));
        self.running.insert(task, conversation);
    }
}

// === impl SignalLane ===

impl SignalLane {
    fn push(&mut self, signal: SignalOrder) {
        if let SignalOrder::DeletePreview { key, .. } = &signal {
            self.waiting.retain(|other| !matches!(other, SignalOrder::Preview(preview) if preview.key == *key));
        }
        match self.waiting.iter_mut().find(|other| is_same_subject(other, &signal)) {
            Some(other) => *other = signal,
            None => self.waiting.push_back(signal),
        }
        if self.waiting.len() > limits::SIGNALS_MAX {
            self.waiting.pop_front();
        }
    }
}

/// Returns whether the later one of two signals makes the earlier one worthless.
fn is_same_subject(one: &SignalOrder, other: &SignalOrder) -> bool {
    match (one, other) {
        (SignalOrder::Typing { .. }, SignalOrder::Typing { .. }) => true,
        (SignalOrder::Preview(one), SignalOrder::Preview(other)) => one.key == other.key,
        (SignalOrder::DeletePreview { key: one, .. }, SignalOrder::DeletePreview { key: other, .. }) => one == other,
        (SignalOrder::Typing { .. } | SignalOrder::Preview(_) | SignalOrder::DeletePreview { .. }, _) => false,
    }
}
