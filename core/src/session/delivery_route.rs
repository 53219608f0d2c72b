//! Decisions on bindings of deliveries: the end of a task goes to the place that the router chooses, each part of it only
//! while the chosen binding stands, and a conversation that was made for a binding is bound. Called by `delivery_decide`.
use crate::id::{DeliveryId, RunId};
use crate::limits;
use crate::mutant::{self, Mutant};
use crate::planted::{Planted, planted};
use crate::protocol::binding::BindingId;
use crate::protocol::delivery::{DeliveryFailure, DeliveryRefused};
use crate::protocol::entry::{DeliveryFact, Fact};
use crate::protocol::route::{RouteAnswer, RouteQuestion, RouteReason};
use crate::protocol::task::TaskShow;
use crate::session::context::SessionContext;
use crate::session::delivery_decide::{self, DeliveryProgress, RequestedPlace};
use crate::session::delivery_state::{Deliveries, DeliveryPhase, OpenDelivery, OpenOrigin};
use crate::session::outbox::Output;
use crate::session::plan::{Plan, RecordContext};
use crate::time::Mono;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time after which a question without an answer is asked again: the node has lost it.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// The questions that this owner has asked, which is not in the log.
#[derive(Debug, Default)]
pub(super) struct RouteProgress {
    /// Ended tasks whose place is asked for.
    completions: BTreeMap<RunId, RouteWait>,
    /// Routed deliveries whose next part may be sent, or whose binding is asked for.
    standing: BTreeMap<DeliveryId, BindingStanding>,
    /// Conversations that are being bound, with the time at which that is asked for again.
    binding: BTreeMap<DeliveryId, Mono>,
}

#[derive(Clone, Copy, Debug)]
struct RouteWait {
    since: Mono,
    again_at: Mono,
}

#[derive(Clone, Copy, Debug)]
enum BindingStanding {
    /// The binding stood a moment ago.
    Confirmed,
    Asked {
        again_at: Mono,
    },
}

// === impl RouteProgress ===

impl RouteProgress {
    /// Forgets what is about deliveries and turns that have ended.
    pub(super) fn retain(&mut self, deliveries: &Deliveries) {
        self.completions.retain(|run_id, _| deliveries.origins.contains_key(run_id));
        self.standing.retain(|id, _| deliveries.is_pending(id));
        self.binding.retain(|id, _| deliveries.made(id).is_some());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.completions.is_empty() && self.standing.is_empty() && self.binding.is_empty()
    }

    /// Returns the time at which the end of a turn needs attention.
    pub(super) fn next_request_at(&self, run_id: &RunId) -> Mono {
        self.completions.get(run_id).map(|wait| wait.again_at).unwrap_or_default()
    }

    /// Returns the time before which no part of a delivery is sent, because its binding is asked for.
    pub(super) fn asks_until(&self, id: &DeliveryId) -> Mono {
        match self.standing.get(id) {
            Some(BindingStanding::Asked { again_at }) => *again_at,
            Some(BindingStanding::Confirmed) | None => Mono::default(),
        }
    }

    /// Returns the time at which a conversation is to be bound.
    pub(super) fn binds_at(&self, id: &DeliveryId) -> Mono {
        self.binding.get(id).copied().unwrap_or_default()
    }

    /// Records that the binding of a delivery stands, as the router has just found.
    pub(super) fn confirm(&mut self, id: DeliveryId) {
        self.standing.insert(id, BindingStanding::Confirmed);
    }
}

/// Returns whether the router chooses the place of a turn's delivery.
pub(super) fn is_routed(open: &OpenOrigin) -> bool {
    open.origin.task.is_some_and(|task| matches!(task.show, TaskShow::Bound | TaskShow::Both))
}

/// Asks for the place of an ended task, unless the answer is awaited.
pub(super) fn ask_place(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    (run_id, open): (&RunId, &OpenOrigin),
    plan: &mut Plan,
) {
    let now = context.now.mono;
    let wait = progress.routes.completions.entry(run_id.clone()).or_insert(RouteWait { since: now, again_at: now });
    if wait.again_at > now {
        return;
    }
    wait.again_at = now + ANSWER_WAIT;
    let requester = open.origin.conversation.clone();
    let fail_closed = !context.directory.channels.settings(&requester.channel).falls_back;
    plan.send_after(Output::Route(RouteQuestion::Completion { run_id: run_id.clone(), requester, fail_closed }));
}

/// Has the conversation that a delivery has made bound to the session.
pub(super) fn bind(context: &SessionContext, progress: &mut DeliveryProgress, id: &DeliveryId, plan: &mut Plan) {
    let Some((conversation, binding)) = context.state.deliveries.made(id) else { return };
    let question = RouteQuestion::Bind {
        delivery_id: id.clone(),
        conversation: conversation.clone(),
        binding: Arc::clone(binding),
    };
    progress.routes.binding.insert(id.clone(), context.now.mono + ANSWER_WAIT);
    plan.send_after(Output::Route(question));
}

/// Returns whether the next part of a delivery may be sent now. If not, its binding is asked for.
pub(super) fn may_send(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    (id, delivery): (&DeliveryId, &OpenDelivery),
    plan: &mut Plan,
) -> bool {
    let Some(generation) = delivery.generation.filter(|_| !planted(Planted::DeliveryStandingUnchecked)) else {
        return true;
    };
    let now = context.now.mono;
    match progress.routes.standing.get(id) {
        Some(BindingStanding::Confirmed) => {
            progress.routes.standing.remove(id);
            return true;
        }
        Some(BindingStanding::Asked { again_at }) if *again_at > now => return false,
        Some(BindingStanding::Asked { .. }) | None => {}
    }
    progress.routes.standing.insert(id.clone(), BindingStanding::Asked { again_at: now + ANSWER_WAIT });
    let conversation = delivery.conversation.clone();
    let question = RouteQuestion::Standing { delivery_id: id.clone(), conversation, generation };
    plan.send_after(Output::Route(question));
    false
}

/// Ends the deliveries that were routed by a binding, also one whose part waits for its adapter.
pub(super) fn end_routed(context: &SessionContext, binding_id: &BindingId, plan: &mut Plan) {
    let pending = context.state.deliveries.open.iter().filter(|(_, delivery)| delivery.phase == DeliveryPhase::Pending);
    let routed = pending.filter(|(_, delivery)| {
        let is_its = delivery.conversation.conversation_id == binding_id.conversation;
        is_its && delivery.generation == Some(binding_id.generation)
    });
    routed.for_each(|(id, _)| delivery_decide::fail(context, id, DeliveryFailure::Rebound, plan));
}

/// Handles the answer to the request to bind a conversation.
fn handle_bind_answer(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    (delivery_id, is_bound): (DeliveryId, Option<bool>),
    plan: &mut Plan,
) {
    if context.state.deliveries.made(&delivery_id).is_none() {
        return;
    }
    match is_bound {
        // The log gets the binding next; if not, the bind is repeated, and has no further effect.
        Some(true) => {}
        Some(false) => delivery_decide::fail(context, &delivery_id, DeliveryFailure::NotBound, plan),
        None => {
            let again_at = context.now.mono + limits::TASK_RETRY;
            progress.routes.binding.insert(delivery_id, again_at);
        }
    }
}

/// Handles the answer to a question.
pub(super) fn handle_answer(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    answer: RouteAnswer,
    plan: &mut Plan,
) {
    let now = context.now.mono;
    match answer {
        RouteAnswer::Standing { delivery_id, stands } => {
            let Some(BindingStanding::Asked { again_at }) = progress.routes.standing.get_mut(&delivery_id) else {
                return;
            };
            match stands {
                Some(true) => progress.routes.confirm(delivery_id),
                Some(false) => {
                    // An operator who has it sent again has it asked again.
                    progress.routes.standing.remove(&delivery_id);
                    delivery_decide::fail(context, &delivery_id, DeliveryFailure::Rebound, plan);
                }
                None => *again_at = now + limits::TASK_RETRY,
            }
        }
        RouteAnswer::Bind { delivery_id, is_bound } => {
            handle_bind_answer(context, progress, (delivery_id, is_bound), plan);
        }
        RouteAnswer::Completion { run_id, route, place } => {
            let Some(open) = context.state.deliveries.origins.get(&run_id).filter(|open| open.end.is_some()) else {
                return;
            };
            let is_unknown = route.reason == RouteReason::LookupUnavailable;
            if let Some(wait) = progress.routes.completions.get_mut(&run_id).filter(|_| is_unknown)
                && now - wait.since < limits::DELIVERY_AGE_MAX
            {
                wait.again_at = now + limits::TASK_RETRY;
                return;
            }
            let requester = open.origin.conversation.clone();
            let is_shown_there = open.origin.task.is_some_and(|task| task.show == TaskShow::Both);
            let mut places = Vec::new();
            match place {
                Some(_) if mutant::planted(Mutant::TaskEndsAtRequester) => {
                    places.push(RequestedPlace { conversation: requester.clone(), route: Some(route) });
                }
                Some(conversation) => places.push(RequestedPlace { conversation, route: Some(route) }),
                None => {
                    let refused = DeliveryRefused {
                        about_run: run_id.clone(),
                        reason: route.reason,
                        requester: requester.clone(),
                    };
                    plan.record(context, Fact::Delivery(DeliveryFact::Refused(refused)), RecordContext::run(&run_id));
                    if planted(Planted::TaskRefusedShown) {
                        places.push(RequestedPlace { conversation: requester.clone(), route: None });
                    }
                }
            }
            let is_its_place = places.iter().any(|to| to.conversation.is_same_place(&requester));
            if is_shown_there && !is_its_place {
                places.push(RequestedPlace { conversation: requester, route: None });
            }
            delivery_decide::request_at(context, progress, &run_id, places, plan);
        }
    }
}
