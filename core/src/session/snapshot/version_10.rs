//! Snapshots of version 10: version 9 with the inputs that are part of another turn, and the places to which nothing is
//! sent. Written only for a session that has some, so that a release before them can read the snapshots of all others.
use super::version_9::{JsonText, StateVersion9};
use crate::id::RunId;
use crate::protocol::conversation::ConversationRef;
use crate::protocol::versioned::VersionedForm;
use crate::session::delivery_state::Deliveries;
use crate::session::state::State;
use serde::{Deserialize, Serialize};

/// The version in the header of these snapshots.
pub(super) const VERSION: u8 = 10;

/// The form of a [`State`].
#[derive(Serialize, Deserialize)]
pub(super) struct StateVersion10<'a> {
    base: StateVersion9<'a>,
    gathered: Vec<RunId>,
    suppressed: Vec<JsonText<ConversationRef>>,
}

impl<'a> VersionedForm<'a> for StateVersion10<'a> {
    type Domain = State;

    fn borrow(state: &'a State) -> Self {
        let Deliveries { gathered, suppressed, origins: _, open: _ } = &state.deliveries;
        Self {
            base: StateVersion9::borrow(state),
            gathered: gathered.iter().cloned().collect(),
            suppressed: suppressed.iter().cloned().map(JsonText).collect(),
        }
    }

    fn into_domain(self) -> State {
        let Self { base, gathered, suppressed } = self;
        let mut state = base.into_domain();
        state.deliveries.gathered = gathered.into_iter().collect();
        state.deliveries.suppressed = suppressed.into_iter().map(|place| place.0).collect();
        state
    }
}
