//! Decisions on deliveries: the end of a turn that came from a conversation requests one, and each is sent part by part,
//! in the order of its place, until the platform has it or an operator has to decide.
use crate::id::{DeliveryId, InboxPosition, MessageId, RunId};
use crate::limits;
use crate::mutant::{self, Mutant};
use crate::planted::{Planted, planted};
use crate::private::Private;
use crate::protocol::conversation::ConversationRef;
use crate::protocol::delivery::{
    ButtonDisplay, DeliveryAttempted, DeliveryErrorClass, DeliveryFailed, DeliveryFailure, DeliveryHeld, DeliveryKind,
    DeliveryOrder, DeliveryOutcome, DeliveryRedriven, DeliveryReport, DeliveryRequested, DeliverySent, split_text,
};
use crate::protocol::entry::{DeliveryFact, Fact};
use crate::protocol::input::{ControlEntry, ControlRequest};
use crate::protocol::refusal::Code;
use crate::protocol::route::DeliveryRoute;
use crate::session::command::{ActionCommand, DeliveryFactCommand};
use crate::session::context::SessionContext;
use crate::session::delivery_route::{self, RouteProgress};
use crate::session::delivery_state::{Deliveries, DeliveryPhase, OpenDelivery, OpenOrigin, OriginEnd};
use crate::session::delivery_unasked;
use crate::session::outbox::Output;
use crate::session::plan::{Plan, RecordContext};
use crate::session::task_decide;
use crate::time::{Deadline, Millis, Mono};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The level of facts since which `delivery.failed` has the reason `suppressed`.
const SUPPRESSION_LEVEL: u32 = 4;
/// The level of facts since which sessions remember their latest answers.
const RECENT_LEVEL: u32 = 4;

/// This owner's part of the deliveries, which is not in the log.
#[derive(Debug, Default)]
pub(super) struct DeliveryProgress {
    /// The steps of deliveries that this owner has requested or tried. A delivery without a step may have been tried by
    /// an earlier owner.
    steps: BTreeMap<DeliveryId, DeliveryStep>,
    /// The questions about places.
    pub(super) routes: RouteProgress,
}

/// A place that the end of a turn is delivered to.
#[derive(Debug)]
pub(super) struct RequestedPlace {
    pub(super) conversation: ConversationRef,
    pub(super) route: Option<DeliveryRoute>,
}

/// The progress of a delivery's next part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeliveryStep {
    /// Nobody has tried the part.
    Untried,
    /// An order was given; its outcome is awaited.
    InFlight { attempt: u32, until: Mono },
    /// The last attempt has an outcome; the next one begins at this time. The part may have been sent, or not.
    Waiting { until: Mono, may_be_sent: bool },
}

// === impl DeliveryProgress ===

impl DeliveryProgress {
    /// Returns the next time at which an attempt begins or an order is given up. An owner that has only read a delivery in
    /// the log sends it at once.
    pub(super) fn poll_timeout(&self, deliveries: &Deliveries) -> Option<Deadline> {
        let ended = deliveries.origins.iter().filter(|(_, open)| open.end.is_some());
        let owed = ended.map(|(run_id, _)| self.routes.next_request_at(run_id));
        let times = first_of_each_place(deliveries).into_iter().map(|(id, _)| self.next_step_at(id));
        let binds = made(deliveries).map(|id| self.routes.binds_at(id));
        times.chain(owed).chain(binds).min().map(|at| Deadline { at, label: "delivery" })
    }

    fn next_step_at(&self, id: &DeliveryId) -> Mono {
        match self.steps.get(id) {
            None | Some(DeliveryStep::Untried) => self.routes.asks_until(id),
            Some(DeliveryStep::InFlight { until, .. }) => *until,
            Some(DeliveryStep::Waiting { until, .. }) => self.routes.asks_until(id).max(*until),
        }
    }
}

/// Decides on a command about deliveries.
pub(super) fn decide(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    command: DeliveryFactCommand,
    plan: &mut Plan,
) {
    match command {
        DeliveryFactCommand::Take((position, control)) => {
            if let ControlRequest::SendMessage { send } = &control.what {
                return delivery_unasked::request_message(context, progress, (position, &control), send, plan);
            }
            if let ControlRequest::CreateConversation { creation } = &control.what {
                return delivery_unasked::request_creation(context, progress, (position, &control), creation, plan);
            }
            settle_by_operator(context, progress, position, control, plan)
        }
        DeliveryFactCommand::Change { action_id, requested } => {
            delivery_unasked::request_change(context, progress, action_id, *requested, plan);
        }
        DeliveryFactCommand::Request(run_id) => request(context, progress, &run_id, plan),
        DeliveryFactCommand::RequestConversation(action_id) => {
            if let Some((id, parent)) = task_decide::request_conversation(context, action_id, plan) {
                start_or_fail(context, progress, (id, &parent), plan);
            }
        }
        DeliveryFactCommand::Send(id) => send_next_part(context, progress, &id, plan),
        DeliveryFactCommand::Bind(id) => delivery_route::bind(context, progress, &id, plan),
        DeliveryFactCommand::Drop(id) => {
            if context.state.deliveries.open.get(&id).is_some_and(|delivery| !delivery.has_failed()) {
                fail(context, &id, DeliveryFailure::Dropped, plan);
            }
        }
        DeliveryFactCommand::Farewell(ended) => delivery_unasked::request_farewell(context, progress, &ended, plan),
        DeliveryFactCommand::Mirror(run_id) => delivery_unasked::request_mirrors(context, progress, &run_id, plan),
        DeliveryFactCommand::EndRouted(binding_id) => delivery_route::end_routed(context, &binding_id, plan),
    }
}

/// Requests the deliveries of ended turns, and sends what is due.
pub(super) fn settle_all(context: &SessionContext, progress: &mut DeliveryProgress, plan: &mut Plan) {
    if context.state.deliveries.is_empty() && progress.steps.is_empty() && progress.routes.is_empty() {
        return;
    }
    progress.routes.retain(&context.state.deliveries);
    progress.steps.retain(|id, step| {
        let is_pending = context.state.deliveries.is_pending(id);
        if !is_pending && matches!(step, DeliveryStep::InFlight { .. }) && !planted(Planted::DeliveryDropNotWithdrawn) {
            // An operator has dropped the delivery, or a receipt of an earlier attempt has ended it.
            plan.send(Output::WithdrawDelivery(id.clone()));
        }
        is_pending
    });
    let ended = context.state.deliveries.origins.iter().filter(|(_, open)| open.end.is_some());
    for (run_id, open) in ended {
        if delivery_route::is_routed(open) {
            delivery_route::ask_place(context, progress, (run_id, open), plan);
        } else {
            plan.delivery(DeliveryFactCommand::Request(run_id.clone()));
        }
    }
    for run_id in context.state.deliveries.mirrored_ends() {
        plan.delivery(DeliveryFactCommand::Mirror(run_id.clone()));
    }
    for id in made(&context.state.deliveries).filter(|id| progress.routes.binds_at(id) <= context.now.mono) {
        plan.delivery(DeliveryFactCommand::Bind(id.clone()));
    }
    for id in due(context, progress) {
        plan.delivery(DeliveryFactCommand::Send(id));
    }
}

/// Returns what an answer says about its end that found no room.
pub(super) fn cut_notice(cut_bytes: u64) -> String {
    if cut_bytes > 0 {
        format!("\n\n({cut_bytes} more bytes of the answer are in the session.)")
    } else {
        String::new()
    }
}

/// Returns the names of a place from which the id of a delivery to it is derived.
pub(super) fn names_of(place: &ConversationRef) -> [&str; 3] {
    [place.channel.as_str(), place.account_id.as_str(), place.conversation_id.as_str()]
}

/// Makes the request of a turn's delivery to a place.
fn requested(context: &SessionContext, run_id: &RunId, open: &OpenOrigin, to: RequestedPlace) -> DeliveryRequested {
    let OpenOrigin { origin, answer, cut_bytes, end, buttons } = open;
    let is_task = origin.task.is_some();
    let mut text = match end {
        Some(OriginEnd::Failed { message }) if is_task => format!("The task failed: {}", message.reveal()),
        Some(OriginEnd::Failed { message }) => format!("The turn failed: {}", message.reveal()),
        Some(OriginEnd::Answered) | None => answer.reveal().to_owned(),
    };
    let has_failed = matches!(end, Some(OriginEnd::Failed { .. }));
    if !has_failed {
        text.push_str(&cut_notice(*cut_bytes));
    }
    let kind = match (is_task, has_failed) {
        (true, _) => DeliveryKind::TaskCompletion,
        (false, true) => DeliveryKind::Notice,
        (false, false) => DeliveryKind::Final,
    };
    let set = buttons.as_ref().filter(|_| !has_failed);
    let display = ButtonDisplay::of_level(origin.buttons);
    if let Some(set) = set.filter(|_| display == ButtonDisplay::Text) {
        set.append_as_text(&mut text);
    }
    let limit = origin.text_limit;
    let parts = split_text(&text, limit.max as usize, limit.unit);
    let RequestedPlace { conversation: place, route } = to;
    let mut others = context.state.deliveries.origins.values().map(|open| &open.origin.conversation);
    let is_bad = mutant::planted(Mutant::AnswerElsewhere);
    let place = others.find(|other| is_bad && **other != place).cloned().unwrap_or(place);
    DeliveryRequested {
        delivery_id: DeliveryId::derive(&context.key.tenant, run_id, kind.as_str(), &names_of(&place)),
        kind,
        // A message of another conversation cannot be answered there.
        reply_to: place.is_same_place(&origin.conversation).then(|| origin.message_id.clone()),
        conversation: place,
        about_run: Some(run_id.clone()),
        route,
        generation: None,
        buttons: set.filter(|_| display == ButtonDisplay::Native).cloned(),
        change: None,
        binding: None,
        text_limit: (context.fact_level >= RECENT_LEVEL && kind != DeliveryKind::Notice).then_some(limit),
        parts: parts.into_iter().map(Private).collect(),
    }
}

/// Requests the delivery of an ended turn to the conversation that it came from.
fn request(context: &SessionContext, progress: &mut DeliveryProgress, run_id: &RunId, plan: &mut Plan) {
    let open = context.state.deliveries.origins.get(run_id);
    let Some(conversation) = open.map(|open| open.origin.conversation.clone()) else { return };
    request_at(context, progress, run_id, vec![RequestedPlace { conversation, route: None }], plan);
}

/// Requests the deliveries of an ended turn.
pub(super) fn request_at(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    run_id: &RunId,
    places: Vec<RequestedPlace>,
    plan: &mut Plan,
) {
    let Some(open) = context.state.deliveries.origins.get(run_id).filter(|open| open.end.is_some()) else { return };
    for place in places {
        let is_bound = place.route.is_some_and(|route| route.generation.is_some());
        let requested = requested(context, run_id, open, place);
        let id = requested.delivery_id.clone();
        let place = requested.conversation.clone();
        plan.record(context, Fact::Delivery(DeliveryFact::Requested(requested)), RecordContext::run(run_id));
        let mut waiting = context.state.deliveries.open.values().filter(|it| it.phase == DeliveryPhase::Pending);
        if is_bound && !waiting.any(|earlier| earlier.conversation.is_same_place(&place)) {
            // It is sent at once, so the binding need not be asked for again.
            progress.routes.confirm(id.clone());
        }
        start_or_fail(context, progress, (id, &place), plan);
    }
}

/// Has a requested delivery sent. If too many are open, or nothing is sent to the place, it fails at once, and is kept for
/// an operator.
pub(super) fn start_or_fail(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    (id, place): (DeliveryId, &ConversationRef),
    plan: &mut Plan,
) {
    let deliveries = &context.state.deliveries;
    let failure = if deliveries.is_full() {
        Some(DeliveryFailure::TooMany)
    } else {
        is_suppressed(context, place).then_some(DeliveryFailure::Suppressed)
    };
    if let Some(reason) = failure {
        let undelivered = deliveries.undelivered_after(&id, Some(DeliveryPhase::Failed(reason)));
        let failed = DeliveryFailed { delivery_id: id, part: 1, reason, undelivered };
        plan.record(context, Fact::Delivery(DeliveryFact::Failed(failed)), RecordContext::default());
    } else {
        progress.steps.insert(id, DeliveryStep::Untried);
    }
}

/// Returns whether a delivery to a place fails without an attempt. A node that does not know the reason could not read the
/// fact of the failure.
pub(super) fn is_suppressed(context: &SessionContext, place: &ConversationRef) -> bool {
    context.fact_level >= SUPPRESSION_LEVEL && context.state.deliveries.is_suppressed(place)
}

/// Returns the deliveries whose conversations are to be bound.
fn made(deliveries: &Deliveries) -> impl Iterator<Item = &DeliveryId> {
    deliveries.open.keys().filter(|id| deliveries.made(id).is_some())
}

/// Returns the deliveries whose next part is due.
fn due(context: &SessionContext, progress: &DeliveryProgress) -> Vec<DeliveryId> {
    let first = first_of_each_place(&context.state.deliveries).into_iter();
    let due = first.filter(|(id, _)| progress.next_step_at(id) <= context.now.mono);
    due.map(|(id, _)| id.clone()).collect()
}

/// Returns the pending deliveries that no earlier one to the same place holds back.
fn first_of_each_place(deliveries: &Deliveries) -> Vec<(&DeliveryId, &OpenDelivery)> {
    let pending = deliveries.open.iter().filter(|(_, delivery)| delivery.phase == DeliveryPhase::Pending);
    let mut pending: Vec<(&DeliveryId, &OpenDelivery)> = pending.map(|(id, delivery)| (id, &**delivery)).collect();
    pending.sort_by_key(|(_, delivery)| delivery.seq);
    let mut places = BTreeSet::new();
    pending.retain(|(_, delivery)| {
        // The parent is no part of the place.
        let ConversationRef { channel, account_id, conversation_id, .. } = &delivery.conversation;
        // A conversation that the platform is slow to make holds no message back.
        let is_message = delivery.kind != DeliveryKind::Conversation;
        places.insert((channel, account_id, conversation_id, is_message))
            || planted(Planted::DeliveryLanesCross)
            || mutant::planted(Mutant::DeliveryOvertakes)
    });
    pending
}

/// Begins an attempt at the next part of a delivery, or ends the delivery if its budgets are used up.
fn send_next_part(context: &SessionContext, progress: &mut DeliveryProgress, id: &DeliveryId, plan: &mut Plan) {
    let Some(delivery) = context.state.deliveries.open.get(id) else { return };
    let age = limits::DELIVERY_AGE_MAX * if planted(Planted::DeliveryAgeDoubled) { 2 } else { 1 };
    let deadline = delivery.requested_at.after(age);
    let Some(left) = deadline.0.checked_sub(context.now.store.0).filter(|left| *left > 0) else {
        return fail(context, id, DeliveryFailure::TooOld, plan);
    };
    let (attempt, is_new, may_be_sent) = match progress.steps.get(id) {
        Some(DeliveryStep::Untried) => (1, false, false),
        // An earlier owner may have given the order of the last recorded attempt.
        None => (delivery.attempts + 1, false, !mutant::planted(Mutant::DeliverySentBlindly)),
        Some(DeliveryStep::Waiting { may_be_sent, .. }) => (delivery.attempts + 2, true, *may_be_sent),
        // Its order has no answer at its deadline: the delivery is too old.
        Some(DeliveryStep::InFlight { .. }) => return fail(context, id, DeliveryFailure::TooOld, plan),
    };
    if is_suppressed(context, &delivery.conversation) {
        return fail(context, id, DeliveryFailure::Suppressed, plan);
    }
    if attempt > limits::DELIVERY_ATTEMPTS_MAX && !planted(Planted::DeliveryAttemptsUnbounded) {
        return fail(context, id, DeliveryFailure::TooManyAttempts, plan);
    }
    if !delivery_route::may_send(context, progress, (id, delivery), plan) {
        return;
    }
    if is_new && !planted(Planted::DeliveryAttemptUnrecorded) {
        let part = delivery.next_part();
        let attempted = DeliveryAttempted { delivery_id: id.clone(), part, attempt };
        plan.record(context, Fact::Delivery(DeliveryFact::Attempted(attempted)), RecordContext::default());
    }
    let until = context.now.mono + Duration::from_millis(left);
    progress.steps.insert(id.clone(), DeliveryStep::InFlight { attempt, until });
    let order = order(context, (id, delivery), attempt, deadline, may_be_sent);
    plan.send_after(Output::Deliver(Arc::new(order)));
}

fn order(
    context: &SessionContext,
    (id, delivery): (&DeliveryId, &OpenDelivery),
    attempt: u32,
    deadline: Millis,
    may_be_sent: bool,
) -> DeliveryOrder {
    let text = Private(delivery.next_text().to_owned());
    DeliveryOrder {
        key: context.key.clone(),
        delivery_id: id.clone(),
        attempt,
        part: delivery.next_part(),
        parts: delivery.part_count(),
        kind: delivery.kind,
        conversation: delivery.conversation.clone(),
        reply_to: delivery.reply_to.clone(),
        text,
        buttons: delivery.buttons.clone().filter(|_| delivery.next_part() == delivery.part_count()),
        change: delivery.change.clone(),
        requested_at: delivery.requested_at,
        deadline,
        may_be_sent,
    }
}

/// Handles what became of an attempt. A receipt counts whenever it comes; every other outcome only for the present
/// attempt.
pub(super) fn handle_report(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    report: DeliveryReport,
    plan: &mut Plan,
) {
    let DeliveryReport { delivery_id: id, part, attempt, outcome } = report;
    let is_next = |delivery: &OpenDelivery| {
        delivery.next_part() == part || planted(Planted::DeliveryAnyPartReceipted) && delivery.next_part() > part
    };
    let Some(delivery) = context.state.deliveries.open.get(&id).filter(|it| is_next(it)) else { return };
    let is_present =
        matches!(progress.steps.get(&id), Some(DeliveryStep::InFlight { attempt: at, .. }) if *at == attempt);
    match outcome {
        DeliveryOutcome::Sent { .. } if !is_present && planted(Planted::DeliveryLateReceiptLost) => {}
        DeliveryOutcome::Sent { external_id, place } => {
            handle_receipt(context, progress, (&id, delivery), external_id, &place, plan);
        }
        _ if !is_present && !planted(Planted::DeliveryLateRefusalCounts) => {}
        DeliveryOutcome::NotSent => {
            let may_be_sent = planted(Planted::DeliveryProofIgnored);
            wait(context, progress, (&id, attempt), (Duration::ZERO, may_be_sent), plan)
        }
        DeliveryOutcome::Unknown { may_repeat } if may_repeat || planted(Planted::DeliveryUnknownResent) => {
            let may_be_sent = !planted(Planted::DeliveryDoubtForgotten);
            wait(context, progress, (&id, attempt), (Duration::ZERO, may_be_sent), plan)
        }
        DeliveryOutcome::Unknown { .. } => {
            progress.steps.remove(&id);
            let undelivered = context.state.deliveries.undelivered_after(&id, Some(DeliveryPhase::Held));
            let held = DeliveryHeld { delivery_id: id, part, undelivered };
            plan.record(context, Fact::Delivery(DeliveryFact::Held(held)), RecordContext::default());
        }
        DeliveryOutcome::NotSupported => {
            progress.steps.remove(&id);
            fail(context, &id, DeliveryFailure::NotSupported, plan);
        }
        DeliveryOutcome::Rejected { class, retry_after_ms } => match DeliveryFailure::of_class(class) {
            Some(reason) if !planted(Planted::DeliveryRefusalRetried) => {
                progress.steps.remove(&id);
                fail(context, &id, reason, plan);
            }
            Some(_) | None => {
                let is_auth = class == DeliveryErrorClass::Auth && !planted(Planted::DeliveryAuthRetriedSoon);
                let least = if is_auth { limits::DELIVERY_AUTH_RETRY } else { Duration::ZERO };
                let retry_after_ms = retry_after_ms.filter(|_| !planted(Planted::DeliveryRetryAfterIgnored));
                let asked = Duration::from_millis(retry_after_ms.unwrap_or_default());
                let least = least.max(asked.min(limits::DELIVERY_AGE_MAX));
                wait(context, progress, (&id, attempt), (least, false), plan);
            }
        },
    }
}

/// Records the receipt of a part. A part that the platform has at another place ends the delivery: what follows would go
/// there as well.
fn handle_receipt(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    (id, delivery): (&DeliveryId, &OpenDelivery),
    external_id: MessageId,
    place: &ConversationRef,
    plan: &mut Plan,
) {
    let is_checked = !planted(Planted::DeliveryPlaceUnchecked) && !mutant::planted(Mutant::ReceiptAnywhere);
    if is_checked && !delivery.kind.is_at_its_place(&delivery.conversation, &external_id, place) {
        if delivery.has_failed() {
            // The receipt has come twice, or late.
            return;
        }
        progress.steps.remove(id);
        return fail(context, id, DeliveryFailure::Misplaced, plan);
    }
    let was_settled = delivery.phase != DeliveryPhase::Pending;
    let sent = DeliverySent {
        delivery_id: id.clone(),
        part: delivery.next_part(),
        parts: delivery.part_count(),
        external_id,
        undelivered: was_settled.then(|| context.state.deliveries.undelivered_after(id, None)),
    };
    plan.record(context, Fact::Delivery(DeliveryFact::Sent(sent)), RecordContext::default());
    progress.steps.insert(id.clone(), DeliveryStep::Untried);
    if delivery.kind == DeliveryKind::Conversation {
        plan.action(ActionCommand::StartTask { delivery_id: id.clone(), place: place.clone() });
    }
}

/// Lets the next attempt wait: at least a given time, and longer with each attempt.
fn wait(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    (id, attempt): (&DeliveryId, u32),
    (least, may_be_sent): (Duration, bool),
    plan: &mut Plan,
) {
    let doubled = limits::DELIVERY_RETRY.saturating_mul(1 << attempt.min(16).saturating_sub(1));
    let wait = plan.spread(doubled.min(limits::DELIVERY_RETRY_MAX)).max(least);
    progress.steps.insert(id.clone(), DeliveryStep::Waiting { until: context.now.mono + wait, may_be_sent });
}

/// Ends a delivery that has not ended.
pub(super) fn fail(context: &SessionContext, id: &DeliveryId, reason: DeliveryFailure, plan: &mut Plan) {
    let Some(delivery) = context.state.deliveries.open.get(id).filter(|delivery| !delivery.has_failed()) else {
        return;
    };
    // A dropped delivery is not kept.
    let phase = (reason != DeliveryFailure::Dropped).then_some(DeliveryPhase::Failed(reason));
    let undelivered = context.state.deliveries.undelivered_after(id, phase);
    let part = delivery.next_part().min(delivery.part_count().max(1));
    let failed = DeliveryFailed { delivery_id: id.clone(), part, reason, undelivered };
    plan.record(context, Fact::Delivery(DeliveryFact::Failed(failed)), RecordContext::default());
}

/// Performs an operator's decision on a delivery: send it again, whatever became of it, or drop it.
fn settle_by_operator(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    position: InboxPosition,
    control: Arc<ControlEntry>,
    plan: &mut Plan,
) {
    let ControlRequest::SettleDelivery { delivery_id, again } = &control.what else {
        return plan.answer_without_fact(position, &control);
    };
    let open = context.state.deliveries.open.get(delivery_id);
    // Nobody would use the conversation of a task that has ended, and nobody wants an earlier text back.
    let is_wanted = |delivery: &OpenDelivery| {
        let is_used = delivery.kind != DeliveryKind::Conversation || delivery.binding.is_some();
        let is_awaited = || task_decide::awaiting(context, delivery_id).is_some();
        !again || (is_used || is_awaited()) && !context.state.deliveries.is_outdated(delivery)
    };
    let is_settled = |delivery: &OpenDelivery| match delivery.phase {
        DeliveryPhase::Pending | DeliveryPhase::Made => planted(Planted::DeliveryRedrivesPending),
        DeliveryPhase::Held | DeliveryPhase::Failed(_) => true,
    };
    let Some(delivery) = open.filter(|delivery| is_wanted(delivery) && (!again || is_settled(delivery))) else {
        return plan.answer_with_notice(context, Code::NotFound.as_str(), position, &control);
    };
    let delivery_id = delivery_id.clone();
    let undelivered = context.state.deliveries.undelivered_after(&delivery_id, None);
    let fact = if *again {
        progress.steps.insert(delivery_id.clone(), DeliveryStep::Untried);
        DeliveryFact::Redriven(DeliveryRedriven { delivery_id, undelivered })
    } else {
        let part = delivery.next_part().min(delivery.part_count().max(1));
        DeliveryFact::Failed(DeliveryFailed { delivery_id, part, reason: DeliveryFailure::Dropped, undelivered })
    };
    plan.record(context, Fact::Delivery(fact), RecordContext { answers: Some(position), ..RecordContext::default() });
    plan.answer_with_fact(&control);
}
