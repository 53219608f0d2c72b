//! The owner's part of the control lane, which is not in the log. `session_decide` and `input_decide` use it.
use crate::id::RunId;
use crate::session::command::PlacedControl;
use std::collections::{BTreeMap, VecDeque};

/// Control entries that are not answered.
#[derive(Debug, Default)]
pub(super) struct ControlLane {
    /// Entries that were not handled, in order; entries wait here only while the session is closing.
    pub(super) waiting: VecDeque<PlacedControl>,
    /// The close in progress.
    pub(super) close: Option<PlacedControl>,
    /// Cancels of turns that are not known (yet).
    pub(super) early_cancels: BTreeMap<RunId, PlacedControl>,
}

impl ControlLane {
    /// Returns whether no entry waits and no close is in progress; cancels of unknown turns do not count.
    pub(super) fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.close.is_none()
    }
}
