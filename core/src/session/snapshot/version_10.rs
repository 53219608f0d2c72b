//! Snapshots of version 10: version 9 with the bindings that deliveries were routed by. Written only for a session that has
//! such deliveries.
use super::version_9::StateVersion9;
use crate::id::DeliveryId;
use crate::protocol::binding::Generation;
use crate::protocol::versioned::VersionedForm;
use crate::session::state::State;
use serde::{Deserialize, Serialize};

/// The version in the header of these snapshots.
pub(super) const VERSION: u8 = 10;

/// The form of a [`State`].
#[derive(Serialize, Deserialize)]
pub(super) struct StateVersion10<'a> {
    base: StateVersion9<'a>,
    generations: Vec<(DeliveryId, u64)>,
}

/// Returns whether a state has something that version 9 cannot hold.
pub(super) fn is_needed(state: &State) -> bool {
    state.deliveries.open.values().any(|delivery| delivery.generation.is_some())
}

impl<'a> VersionedForm<'a> for StateVersion10<'a> {
    type Domain = State;

    fn borrow(state: &'a State) -> Self {
        let routed = state.deliveries.open.iter().filter_map(|(id, open)| Some((id.clone(), open.generation?.0)));
        Self { base: StateVersion9::borrow(state), generations: routed.collect() }
    }

    fn into_domain(self) -> State {
        let mut state = self.base.into_domain();
        for (id, generation) in self.generations {
            if let Some(delivery) = state.deliveries.open.get_mut(&id) {
                delivery.generation = Some(Generation(generation));
            }
        }
        state
    }
}
