//! The feed of a platform's updates: read only while the adapter is active, and the offset behind them. The offset that
//! is saved never passes an update without a final answer.
use crate::adapter::event::{PlatformEvent, PlatformUpdate};
use crate::adapter::output::{AdapterEffects, AdapterWork, WorkResult};
use crate::backoff::{Backoff, SplitMix};
use crate::limits;
use crate::planted::{Planted, planted};
use std::collections::VecDeque;
use std::time::Duration;

/// The updates that were read, in the order of the platform, until each has its final answer.
#[derive(Debug)]
pub(crate) struct UpdateFeed {
    phase: FeedPhase,
    entries: VecDeque<FeedEntry>,
    /// Offset behind the answered updates that is to be saved.
    unsaved: Option<String>,
    /// Task that saves an offset.
    saving: Option<u64>,
    /// Readings that have failed in a row.
    failures: u32,
    rng: SplitMix,
}

#[derive(Debug)]
enum FeedPhase {
    /// The adapter does not serve the account, or has no feed.
    Inactive,
    /// Begins behind the saved offset, once this time has come.
    Waiting { until: Duration },
    /// The saved offset is being read.
    Loading { task: u64 },
    /// Reads behind this offset, from this time on.
    Ready { after: Option<String>, from: Duration },
    /// The platform has been asked.
    Reading { task: u64, after: Option<String>, started: Duration },
}

#[derive(Debug)]
struct FeedEntry {
    offset: String,
    state: EntryState,
}

#[derive(Debug, PartialEq)]
enum EntryState {
    /// Not handed over yet.
    Read(Box<PlatformEvent>),
    /// On its way to the gateway, under this number.
    Forwarded(u64),
    Settled,
}

// === impl UpdateFeed ===

impl UpdateFeed {
    pub(crate) fn new(random: u64) -> Self {
        Self {
            phase: FeedPhase::Inactive,
            entries: VecDeque::new(),
            unsaved: None,
            saving: None,
            failures: 0,
            rng: SplitMix::from_seed(random),
        }
    }

    /// Begins or ends reading. Updates without an answer are read again later.
    pub(crate) fn set_active(&mut self, is_active: bool, fx: &mut AdapterEffects) {
        match (&self.phase, is_active) {
            (FeedPhase::Inactive, true) => {
                self.phase = FeedPhase::Waiting { until: fx.now.elapsed };
                self.proceed(fx);
            }
            (FeedPhase::Inactive, false) => {}
            (
                FeedPhase::Waiting { .. }
                | FeedPhase::Loading { .. }
                | FeedPhase::Ready { .. }
                | FeedPhase::Reading { .. },
                true,
            ) => {}
            (FeedPhase::Waiting { .. } | FeedPhase::Ready { .. }, false) => self.drop_updates(FeedPhase::Inactive),
            (FeedPhase::Loading { task } | FeedPhase::Reading { task, .. }, false) => {
                fx.abandon(*task);
                self.drop_updates(FeedPhase::Inactive);
            }
        }
    }

    /// Returns the next event to forward, with its new number.
    pub(crate) fn next_event(&mut self, fx: &mut AdapterEffects) -> Option<(u64, PlatformEvent)> {
        let is_on_its_way = |entry: &&FeedEntry| matches!(entry.state, EntryState::Forwarded(_));
        if self.entries.iter().filter(is_on_its_way).count() >= limits::FEED_WINDOW_MAX {
            return None;
        }
        let is_read = |entry: &&mut FeedEntry| matches!(entry.state, EntryState::Read(_));
        let entry = self.entries.iter_mut().find(is_read)?;
        let id = fx.next_id();
        match std::mem::replace(&mut entry.state, EntryState::Forwarded(id)) {
            EntryState::Read(event) => Some((id, *event)),
            EntryState::Forwarded(_) | EntryState::Settled => None,
        }
    }

    /// Takes the final answer to an event, and saves the offset behind the answered updates at the beginning.
    pub(crate) fn handle_settled(&mut self, id: u64, fx: &mut AdapterEffects) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.state == EntryState::Forwarded(id)) {
            entry.state = EntryState::Settled;
        }
        self.advance(fx);
        self.proceed(fx);
    }

    /// Takes the result of reading or saving. Returns true if updates that were forwarded are void: they are read again
    /// behind the saved offset.
    pub(crate) fn handle_finished(&mut self, task: u64, result: WorkResult, fx: &mut AdapterEffects) -> bool {
        if self.saving == Some(task) {
            self.saving = None;
            return self.handle_saved(result, fx);
        }
        match &self.phase {
            FeedPhase::Loading { task: own } if *own == task => match result.into_offset() {
                Ok(after) => {
                    self.phase = FeedPhase::Ready { after, from: fx.now.elapsed };
                    self.proceed(fx);
                    false
                }
                Err(reason) => self.handle_failure(&reason, fx),
            },
            FeedPhase::Reading { task: own, after, started } if *own == task => match result.into_updates() {
                Ok(updates) => {
                    let after = after.clone();
                    let started = *started;
                    self.handle_updates(updates, after, started, fx);
                    false
                }
                Err(reason) => self.handle_failure(&reason, fx),
            },
            FeedPhase::Inactive
            | FeedPhase::Waiting { .. }
            | FeedPhase::Loading { .. }
            | FeedPhase::Ready { .. }
            | FeedPhase::Reading { .. } => false,
        }
    }

    /// Returns the time of the next action.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.phase {
            FeedPhase::Waiting { until } if self.saving.is_none() => Some(until),
            FeedPhase::Ready { from, .. } if self.has_room() => Some(from),
            FeedPhase::Inactive
            | FeedPhase::Waiting { .. }
            | FeedPhase::Loading { .. }
            | FeedPhase::Ready { .. }
            | FeedPhase::Reading { .. } => None,
        }
    }

    /// Starts the next step of reading, once its time has come.
    pub(crate) fn proceed(&mut self, fx: &mut AdapterEffects) {
        match &mut self.phase {
            // The offset that is being saved is the one to begin behind.
            FeedPhase::Waiting { until } if *until <= fx.now.elapsed && self.saving.is_none() => {
                self.phase = FeedPhase::Loading { task: fx.start(AdapterWork::ReadOffset) };
            }
            FeedPhase::Ready { after, from }
                if *from <= fx.now.elapsed && self.entries.len() < limits::FEED_WINDOW_MAX =>
            {
                let after = after.take();
                let task = fx.start(AdapterWork::ReadUpdates { after: after.clone() });
                self.phase = FeedPhase::Reading { task, after, started: fx.now.elapsed };
            }
            FeedPhase::Inactive
            | FeedPhase::Waiting { .. }
            | FeedPhase::Loading { .. }
            | FeedPhase::Ready { .. }
            | FeedPhase::Reading { .. } => {}
        }
    }

    fn has_room(&self) -> bool {
        self.entries.len() < limits::FEED_WINDOW_MAX
    }

    fn handle_updates(
        &mut self,
        mut updates: Vec<PlatformUpdate>,
        after: Option<String>,
        started: Duration,
        fx: &mut AdapterEffects,
    ) {
        // Updates that are left out are read again behind the last one that is taken.
        updates.truncate(limits::UPDATES_MAX);
        self.failures = 0;
        // A platform that answers at once, and has nothing, is not asked in a loop.
        let is_empty = updates.is_empty();
        let from = if is_empty { started + limits::EMPTY_READ_INTERVAL } else { fx.now.elapsed };
        let after = updates.last().map(|update| update.offset.clone()).or(after);
        self.entries.extend(updates.into_iter().map(|PlatformUpdate { offset, event }| {
            let state = event.map_or(EntryState::Settled, |event| EntryState::Read(Box::new(event)));
            FeedEntry { offset, state }
        }));
        self.phase = FeedPhase::Ready { after, from };
        self.advance(fx);
        self.proceed(fx);
    }

    fn handle_saved(&mut self, result: WorkResult, fx: &mut AdapterEffects) -> bool {
        match result.into_saved() {
            Ok(()) => {
                self.save(fx);
                self.proceed(fx);
                false
            }
            Err(reason) => {
                self.unsaved = None;
                match self.phase {
                    FeedPhase::Reading { task, .. } | FeedPhase::Loading { task } => fx.abandon(task),
                    FeedPhase::Waiting { .. } | FeedPhase::Ready { .. } => {}
                    FeedPhase::Inactive => return false,
                }
                self.handle_failure(&reason, fx)
            }
        }
    }

    /// Begins again behind the saved offset, after a wait.
    fn handle_failure(&mut self, reason: &str, fx: &AdapterEffects) -> bool {
        tracing::warn!(reason, "reading from the platform has failed, and begins again behind the saved offset");
        let backoff = Backoff { base: limits::FEED_RETRY_BASE, max: limits::INBOUND_RETRY_MAX };
        let wait = backoff.delay(self.failures, &mut self.rng);
        self.failures = self.failures.saturating_add(1);
        self.drop_updates(FeedPhase::Waiting { until: fx.now.elapsed + wait });
        true
    }

    fn drop_updates(&mut self, phase: FeedPhase) {
        self.entries.clear();
        self.phase = phase;
    }

    fn advance(&mut self, fx: &mut AdapterEffects) {
        let is_done = |state: &EntryState| *state == EntryState::Settled || planted(Planted::SdkOffsetSavedEarly);
        while let Some(entry) = self.entries.pop_front_if(|entry| is_done(&entry.state)) {
            self.unsaved = Some(entry.offset);
        }
        self.save(fx);
    }

    fn save(&mut self, fx: &mut AdapterEffects) {
        if self.saving.is_none()
            && let Some(offset) = self.unsaved.take()
        {
            self.saving = Some(fx.start(AdapterWork::SaveOffset(offset)));
        }
    }
}
