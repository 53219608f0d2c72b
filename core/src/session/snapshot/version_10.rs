//! Snapshots of version 10: version 9 with the inputs that are part of another turn, the places to which nothing is sent,
//! the bindings that deliveries were routed by, the turns of clients that conversations mirror, the latest answers, their
//! buttons, changes of messages, and conversations that are made for bindings. Written only for a session with some.
use super::version_9::{JsonText, StateVersion9};
use crate::id::{DeliveryId, RunId};
use crate::private::Private;
use crate::protocol::binding::{Generation, PlannedBinding};
use crate::protocol::conversation::ConversationRef;
use crate::protocol::delivery::{ButtonSet, MessageChange};
use crate::protocol::versioned::VersionedForm;
use crate::session::delivery_state::{
    Deliveries, DeliveryPhase, MirrorBinding, MirroredTurn, OpenDelivery, RecentDelivery,
};
use crate::session::state::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The version in the header of these snapshots.
pub(super) const VERSION: u8 = 10;

/// The form of a [`State`].
#[derive(Serialize, Deserialize)]
pub(super) struct StateVersion10<'a> {
    base: StateVersion9<'a>,
    gathered: Vec<RunId>,
    suppressed: Vec<JsonText<ConversationRef>>,
    generations: Vec<(DeliveryId, u64)>,
    mirrors: Vec<MirrorBindingVersion10>,
    mirrored: Vec<(RunId, MirroredTurnVersion10)>,
    recent: Vec<JsonText<RecentDelivery>>,
    /// Buttons of deliveries that are not sent.
    buttons: Vec<(DeliveryId, JsonText<Arc<ButtonSet>>)>,
    /// Buttons of turns that have not ended.
    turn_buttons: Vec<(RunId, JsonText<Arc<ButtonSet>>)>,
    /// Changes of messages that are not sent.
    changes: Vec<(DeliveryId, JsonText<Arc<MessageChange>>)>,
    /// Conversations that are to be made, or are made, and then bound.
    creations: Vec<(DeliveryId, JsonText<CreationVersion10>)>,
}

/// The binding of a conversation that an [`OpenDelivery`] makes.
#[derive(Serialize, Deserialize)]
struct CreationVersion10 {
    binding: Arc<PlannedBinding>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    made: Option<ConversationRef>,
}

/// The form of a [`MirrorBinding`].
#[derive(Serialize, Deserialize)]
struct MirrorBindingVersion10 {
    conversation: JsonText<ConversationRef>,
    generation: u64,
}

/// The form of a [`MirroredTurn`].
#[derive(Serialize, Deserialize)]
struct MirroredTurnVersion10 {
    answer: Private<String>,
    cut_bytes: u64,
    places: Option<Vec<MirrorBindingVersion10>>,
}

/// Returns whether a state has something that version 9 cannot hold.
pub(super) fn is_needed(state: &State) -> bool {
    let Deliveries { gathered, suppressed, open, origins, mirrors, mirrored, recent } = &state.deliveries;
    let is_newer = |delivery: &OpenDelivery| {
        let is_creation = delivery.binding.is_some();
        is_creation || delivery.generation.is_some() || delivery.buttons.is_some() || delivery.change.is_some()
    };
    let has_mirrors = !mirrors.is_empty() || !mirrored.is_empty();
    has_mirrors
        || !(gathered.is_empty() && suppressed.is_empty() && recent.is_empty())
        || open.values().any(|delivery| is_newer(delivery))
        || origins.values().any(|open| open.buttons.is_some())
}

impl<'a> VersionedForm<'a> for StateVersion10<'a> {
    type Domain = State;

    fn borrow(state: &'a State) -> Self {
        let Deliveries { gathered, suppressed, open, origins, mirrors, mirrored, recent } = &state.deliveries;
        let buttons = open.iter().filter_map(|(id, delivery)| Some((id.clone(), JsonText(delivery.buttons.clone()?))));
        let turns = origins.iter().filter_map(|(run_id, open)| Some((run_id.clone(), JsonText(open.buttons.clone()?))));
        let changes = open.iter().filter_map(|(id, delivery)| Some((id.clone(), JsonText(delivery.change.clone()?))));
        let creations = open.iter().filter_map(|(id, delivery)| {
            let creation = CreationVersion10 { binding: delivery.binding.clone()?, made: delivery.made.clone() };
            Some((id.clone(), JsonText(creation)))
        });
        let routed = open.iter().filter_map(|(id, delivery)| Some((id.clone(), delivery.generation?.0)));
        Self {
            base: StateVersion9::borrow(state),
            gathered: gathered.iter().cloned().collect(),
            suppressed: suppressed.iter().cloned().map(JsonText).collect(),
            generations: routed.collect(),
            mirrors: mirrors.iter().map(MirrorBindingVersion10::borrow).collect(),
            mirrored: mirrored.iter().map(|(id, turn)| (id.clone(), MirroredTurnVersion10::borrow(turn))).collect(),
            recent: recent.iter().cloned().map(JsonText).collect(),
            buttons: buttons.collect(),
            turn_buttons: turns.collect(),
            changes: changes.collect(),
            creations: creations.collect(),
        }
    }

    fn into_domain(self) -> State {
        let Self {
            base,
            gathered,
            suppressed,
            generations,
            mirrors,
            mirrored,
            recent,
            buttons,
            turn_buttons,
            changes,
            creations,
        } = self;
        let mut state = base.into_domain();
        state.deliveries.gathered = gathered.into_iter().collect();
        state.deliveries.suppressed = suppressed.into_iter().map(|place| place.0).collect();
        state.deliveries.mirrors = mirrors.into_iter().map(MirrorBindingVersion10::into_domain).collect();
        let turn = |(id, turn): (RunId, MirroredTurnVersion10)| (id, Box::new(turn.into_domain()));
        state.deliveries.mirrored = mirrored.into_iter().map(turn).collect();
        for (id, generation) in generations {
            if let Some(delivery) = state.deliveries.open.get_mut(&id) {
                delivery.generation = Some(Generation(generation));
            }
        }
        state.deliveries.recent = recent.into_iter().map(|recent| recent.0).collect();
        for (id, set) in buttons {
            if let Some(delivery) = state.deliveries.open.get_mut(&id) {
                delivery.buttons = Some(set.0);
            }
        }
        for (id, change) in changes {
            if let Some(delivery) = state.deliveries.open.get_mut(&id) {
                delivery.change = Some(change.0);
            }
        }
        for (id, creation) in creations {
            if let Some(delivery) = state.deliveries.open.get_mut(&id) {
                let CreationVersion10 { binding, made } = creation.0;
                if made.is_some() && delivery.phase == DeliveryPhase::Pending {
                    delivery.phase = DeliveryPhase::Made;
                }
                (delivery.binding, delivery.made) = (Some(binding), made);
            }
        }
        for (run_id, set) in turn_buttons {
            if let Some(open) = state.deliveries.origins.get_mut(&run_id) {
                open.buttons = Some(set.0);
            }
        }
        state
    }
}

impl VersionedForm<'_> for MirrorBindingVersion10 {
    type Domain = MirrorBinding;

    fn borrow(mirror: &MirrorBinding) -> Self {
        let MirrorBinding { conversation, generation } = mirror;
        Self { conversation: JsonText(conversation.clone()), generation: generation.0 }
    }

    fn into_domain(self) -> MirrorBinding {
        let Self { conversation, generation } = self;
        MirrorBinding { conversation: conversation.0, generation: Generation(generation) }
    }
}

impl VersionedForm<'_> for MirroredTurnVersion10 {
    type Domain = MirroredTurn;

    fn borrow(turn: &MirroredTurn) -> Self {
        let MirroredTurn { answer, cut_bytes, places } = turn;
        let places = places.as_ref().map(|places| places.iter().map(MirrorBindingVersion10::borrow).collect());
        Self { answer: answer.clone(), cut_bytes: *cut_bytes, places }
    }

    fn into_domain(self) -> MirroredTurn {
        let Self { answer, cut_bytes, places } = self;
        let places = places.map(|places| places.into_iter().map(MirrorBindingVersion10::into_domain).collect());
        MirroredTurn { answer, cut_bytes, places }
    }
}
