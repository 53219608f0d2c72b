//! Snapshots of version 10: version 9 with the inputs that are part of another turn, the places to which nothing is sent,
//! and the bindings that deliveries were routed by. Written only for a session that has some.
use super::version_9::{JsonText, StateVersion9};
use crate::id::{DeliveryId, RunId};
use crate::protocol::binding::Generation;
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
    generations: Vec<(DeliveryId, u64)>,
}

/// Returns whether a state has something that version 9 cannot hold.
pub(super) fn is_needed(state: &State) -> bool {
    let Deliveries { gathered, suppressed, open, origins: _ } = &state.deliveries;
    !gathered.is_empty() || !suppressed.is_empty() || open.values().any(|delivery| delivery.generation.is_some())
}

impl<'a> VersionedForm<'a> for StateVersion10<'a> {
    type Domain = State;

    fn borrow(state: &'a State) -> Self {
        let Deliveries { gathered, suppressed, open, origins: _ } = &state.deliveries;
        let routed = open.iter().filter_map(|(id, delivery)| Some((id.clone(), delivery.generation?.0)));
        Self {
            base: StateVersion9::borrow(state),
            gathered: gathered.iter().cloned().collect(),
            suppressed: suppressed.iter().cloned().map(JsonText).collect(),
            generations: routed.collect(),
        }
    }

    fn into_domain(self) -> State {
        let Self { base, gathered, suppressed, generations } = self;
        let mut state = base.into_domain();
        state.deliveries.gathered = gathered.into_iter().collect();
        state.deliveries.suppressed = suppressed.into_iter().map(|place| place.0).collect();
        for (id, generation) in generations {
            if let Some(delivery) = state.deliveries.open.get_mut(&id) {
                delivery.generation = Some(Generation(generation));
            }
        }
        state
    }
}
