//! Applies the facts of deliveries to the state. Called by `apply`.
use crate::protocol::delivery::DeliveryFailure;
use crate::protocol::entry::{BindingFact, DeliveryFact};
use crate::session::delivery_state::DeliveryPhase;
use crate::session::state::State;
use crate::time::Millis;

/// Applies a fact about a binding: the store has the bindings, and the session keeps those that mirror its turns,
/// and the conversations that are to be bound.
pub(super) fn apply_binding(state: &mut State, fact: &BindingFact) {
    if let BindingFact::Bound(bound) = fact {
        state.deliveries.mark_bound(&bound.conversation);
    }
    match fact {
        BindingFact::Bound(bound) if bound.mirror == Some(true) => {
            state.deliveries.add_mirror(&bound.conversation, bound.binding_id.generation);
        }
        BindingFact::Bound(_) => {}
        BindingFact::Ended(ended) => {
            state.deliveries.remove_mirror(&ended.conversation, ended.binding_id.generation);
        }
    }
}

/// Applies a fact of a delivery.
pub(super) fn apply(state: &mut State, time: Millis, fact: &DeliveryFact) {
    let seq = state.tail.seq;
    let deliveries = &mut state.deliveries;
    match fact {
        DeliveryFact::Requested(requested) => deliveries.add(seq, time, requested),
        DeliveryFact::Attempted(attempted) => deliveries.count_attempt(&attempted.delivery_id, attempted.attempt),
        DeliveryFact::Sent(sent) => {
            deliveries.lift_suppression_of(&sent.delivery_id);
            deliveries.record_external_id(sent);
            deliveries.forget_deleted(sent);
            deliveries.mark_sent(sent);
        }
        DeliveryFact::Held(held) => deliveries.set_phase(&held.delivery_id, DeliveryPhase::Held),
        DeliveryFact::Failed(failed) if failed.reason == DeliveryFailure::Dropped => {
            deliveries.remove(&failed.delivery_id);
        }
        DeliveryFact::Failed(failed) => {
            if failed.reason.concerns_place() {
                deliveries.suppress_place_of(&failed.delivery_id);
            }
            deliveries.set_phase(&failed.delivery_id, DeliveryPhase::Failed(failed.reason));
        }
        DeliveryFact::Refused(refused) => deliveries.forget_origin(&refused.about_run),
        DeliveryFact::Redriven(redriven) => {
            deliveries.lift_suppression_of(&redriven.delivery_id);
            deliveries.restart(&redriven.delivery_id, time);
        }
    }
}
