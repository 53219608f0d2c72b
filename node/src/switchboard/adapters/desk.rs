//! The parts that the adapter of one account is to send: which are on their way, and what became of the latest. The desk
//! knows whether a part was given to the adapter since the account's adapter is connected here.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use turnway_core::id::{DeliveryId, LinkId, NodeId, SessionKey};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::planted::{self as bug, Planted};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{
    DeliveryErrorClass, DeliveryKind, DeliveryOrder, DeliveryOutcome, DeliveryReport, MisplacedPart,
};
use turnway_core::time::{Millis, Mono, Now};
use turnway_wire::channel::adapter::{AdapterOutcome, DeliverMessage, DeliveredCommand};

#[cfg(test)]
mod tests;

/// A part of a delivery.
type PartId = (DeliveryId, u32);

/// The desk of one account.
#[derive(Debug, Default)]
pub(super) struct AdapterDesk {
    parts: BTreeMap<PartId, DeskPart>,
    /// Parts with an outcome, the oldest first, with the number of that outcome; bounded by
    /// [`limits::ADAPTER_OUTCOMES_MAX`].
    done: VecDeque<(PartId, u64)>,
    outcomes: u64,
    /// Orders that wait for the adapter's answers to earlier ones; bounded by [`limits::ADAPTER_QUEUE_MAX`].
    queue: VecDeque<ReceivedOrder>,
    /// Parts without an answer, by the time at which it is given up.
    in_flight: BTreeSet<(Mono, PartId)>,
    /// Every part that was requested since this time, by the store's clock, and given to the adapter is known here.
    known_since: Millis,
}

/// A part that was given to the adapter.
#[derive(Debug)]
struct DeskPart {
    attempt: u32,
    /// The node that wants to know what became of it.
    from: NodeId,
    key: SessionKey,
    requested_at: Millis,
    kind: DeliveryKind,
    conversation: ConversationRef,
    /// Another connection may have sent the part since, so that only a receipt still tells what became of it.
    is_outdated: bool,
    state: PartState,
}

#[derive(Debug)]
enum PartState {
    InFlight {
        link: LinkId,
        until: Mono,
    },
    /// The outcome, and its number.
    Done(DeliveryOutcome, u64),
}

/// An order, and the node of the session's owner that gave it.
#[derive(Debug)]
pub(super) struct ReceivedOrder {
    pub(super) from: NodeId,
    pub(super) order: Arc<DeliveryOrder>,
    /// The adapter has declared that it carries out orders of this kind.
    pub(super) is_supported: bool,
    /// The adapter has declared that it sends files there.
    pub(super) takes_files: bool,
}

/// The connection that sends for the account.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendingLink {
    pub(super) link: LinkId,
    pub(super) recognises_key: bool,
    pub(super) creates_conversations: bool,
}

/// An effect of an event at the desk.
#[derive(Debug)]
pub(super) enum DeskEffect {
    /// Give a part to the adapter.
    Send { link: LinkId, message: DeliverMessage },
    /// Tell the session's owner what became of a part.
    Report { to: NodeId, key: SessionKey, report: DeliveryReport },
}

// === impl AdapterDesk ===

impl AdapterDesk {
    /// Creates the desk of an account whose adapter is active from now on. Nodes read the store's clock with a small
    /// difference, so what was requested a moment later counts as earlier.
    pub(super) fn new(now: Now) -> Self {
        Self { known_since: now.store.after(limits::CLOCK_AGREEMENT), ..Self::default() }
    }

    /// Records that another connection may have sent parts until now.
    pub(super) fn set_known_since(&mut self, now: Now) {
        if !planted(Mutant::DeskAlwaysKnew) {
            self.known_since = self.known_since.max(now.store.after(limits::CLOCK_AGREEMENT));
            self.parts.values_mut().for_each(|part| part.is_outdated = true);
        }
    }

    /// Returns the number of parts that wait or are on their way.
    pub(super) fn open_count(&self) -> usize {
        self.in_flight.len() + self.queue.len()
    }

    /// Returns the time at which the adapter's oldest missing answer is given up.
    pub(super) fn next_expiry(&self) -> Option<Mono> {
        self.in_flight.first().map(|(until, _)| *until)
    }

    /// Handles an order of a session's owner.
    pub(super) fn accept(
        &mut self,
        now: Now,
        received: ReceivedOrder,
        link: SendingLink,
        effects: &mut Vec<DeskEffect>,
    ) {
        let order = &received.order;
        let id = (order.delivery_id.clone(), order.part);
        if let Some(part) = self.parts.get_mut(&id) {
            part.from = received.from;
            // An operator's decision to send it again counts as another request.
            let is_again = order.requested_at > part.requested_at;
            match &part.state {
                PartState::InFlight { .. } => return,
                PartState::Done(outcome, _) if !is_again => {
                    let is_sent = matches!(outcome, DeliveryOutcome::Sent { .. });
                    if is_sent || !part.is_outdated && order.attempt <= part.attempt {
                        return effects.push(report(&id, part, order.attempt, outcome.clone()));
                    }
                }
                PartState::Done(..) => {}
            }
        }
        self.enqueue(received);
        self.send_queued(now, link, effects);
    }

    fn enqueue(&mut self, received: ReceivedOrder) {
        let order = &received.order;
        let is_same = |queued: &DeliveryOrder| queued.delivery_id == order.delivery_id && queued.part == order.part;
        self.queue.retain(|queued| !is_same(&queued.order) || queued.order.attempt > order.attempt);
        // An order that finds no room comes again.
        if !self.queue.iter().any(|queued| is_same(&queued.order)) && self.queue.len() < limits::ADAPTER_QUEUE_MAX {
            self.queue.push_back(received);
        }
    }

    /// Gives the adapter as many parts as it may have at a time.
    pub(super) fn send_queued(&mut self, now: Now, link: SendingLink, effects: &mut Vec<DeskEffect>) {
        while self.in_flight.len() < limits::ADAPTER_IN_FLIGHT_MAX {
            let Some(received) = self.queue.pop_front() else { return };
            if received.order.deadline > now.store {
                self.send(now, received, link, effects);
            }
        }
    }

    /// Gives the adapter a part, unless somebody else may have sent it and nobody would recognise that.
    fn send(&mut self, now: Now, received: ReceivedOrder, link: SendingLink, effects: &mut Vec<DeskEffect>) {
        let ReceivedOrder { from, order, is_supported, takes_files } = received;
        let id = (order.delivery_id.clone(), order.part);
        let known = self.parts.get(&id);
        if known.is_some_and(|part| matches!(part.state, PartState::InFlight { .. })) {
            return;
        }
        // A request of the future was made before the store's clock went back: its time proves nothing.
        let is_of_future = order.requested_at > now.store.after(limits::CLOCK_AGREEMENT);
        let is_old = order.requested_at < self.known_since || is_of_future;
        let is_known = known.is_some_and(|part| !part.is_outdated);
        let is_doubtful = !is_known && order.may_be_sent && is_old;
        if is_doubtful && !may_repeat(order.kind, link.recognises_key) && !planted(Mutant::DoubtfulPartSent) {
            let outcome = DeliveryOutcome::Unknown { may_repeat: false };
            let report = DeliveryReport { delivery_id: id.0, part: id.1, attempt: order.attempt, outcome };
            return effects.push(DeskEffect::Report { to: from, key: order.key.clone(), report });
        }
        let refusal = if order.kind == DeliveryKind::Conversation && !link.creates_conversations {
            Some(DeliveryOutcome::Rejected { class: DeliveryErrorClass::Invalid, retry_after_ms: None })
        } else {
            (!is_supported).then_some(DeliveryOutcome::NotSupported)
        };
        if let Some(outcome) = refusal {
            let report = DeliveryReport { delivery_id: id.0, part: id.1, attempt: order.attempt, outcome };
            return effects.push(DeskEffect::Report { to: from, key: order.key.clone(), report });
        }
        let until = now.mono + limits::ADAPTER_ANSWER_TIMEOUT;
        let state = PartState::InFlight { link: link.link, until };
        self.in_flight.insert((until, id.clone()));
        let part = DeskPart {
            attempt: order.attempt,
            from,
            key: order.key.clone(),
            requested_at: order.requested_at,
            kind: order.kind,
            conversation: order.conversation.clone(),
            is_outdated: false,
            state,
        };
        self.parts.insert(id, part);
        let attempt = if is_doubtful { order.attempt.max(2) } else { order.attempt };
        let message = DeliverMessage { order, attempt, takes_files, file_token: None };
        effects.push(DeskEffect::Send { link: link.link, message });
    }

    /// Drops the orders that wait: their owners repeat them, to whoever sends for the account then.
    pub(super) fn drop_queue(&mut self) {
        self.queue.clear();
    }

    /// Handles an adapter's report. A receipt counts whenever it comes, every other outcome only once.
    pub(super) fn handle_delivered(
        &mut self,
        link: LinkId,
        delivered: DeliveredCommand,
        recognises_key: bool,
        effects: &mut Vec<DeskEffect>,
    ) {
        let DeliveredCommand { delivery_id, part, outcome } = delivered;
        let id = (delivery_id, part);
        let Some(known) = self.parts.get(&id) else { return };
        if known.counts(link, &outcome) {
            let outcome = match outcome {
                AdapterOutcome::Sent { external_id, place } => DeliveryOutcome::Sent { external_id, place },
                AdapterOutcome::NotSent => DeliveryOutcome::NotSent,
                AdapterOutcome::Unknown => {
                    DeliveryOutcome::Unknown { may_repeat: may_repeat(known.kind, recognises_key) }
                }
                AdapterOutcome::Rejected { class, retry_after_ms } => {
                    DeliveryOutcome::Rejected { class, retry_after_ms }
                }
            };
            self.finish(&id, outcome, effects);
        }
    }

    /// Returns the part that a receipt shows to be in the wrong place, if the receipt counts.
    pub(super) fn misplaced_part(&self, link: LinkId, delivered: &DeliveredCommand) -> Option<MisplacedPart> {
        let AdapterOutcome::Sent { external_id, place } = &delivered.outcome else { return None };
        let known = self.parts.get(&(delivered.delivery_id.clone(), delivered.part))?;
        let is_misplaced = !known.kind.is_at_its_place(&known.conversation, external_id, place);
        (is_misplaced && known.counts(link, &delivered.outcome)).then(|| MisplacedPart {
            session_id: known.key.session.clone(),
            delivery_id: delivered.delivery_id.clone(),
            part: delivered.part,
            conversation: known.conversation.clone(),
            place: place.clone(),
        })
    }

    /// Gives up the answers that are overdue, and those of a connection that was lost.
    pub(super) fn give_up(
        &mut self,
        now: Now,
        lost: Option<LinkId>,
        recognises_key: bool,
        effects: &mut Vec<DeskEffect>,
    ) {
        let is_of_lost = |id: &PartId| {
            let state = self.parts.get(id).map(|part| &part.state);
            matches!(state, Some(PartState::InFlight { link, .. }) if Some(*link) == lost)
        };
        let over = self.in_flight.iter().filter(|(until, id)| *until <= now.mono || lost.is_some() && is_of_lost(id));
        let over: Vec<PartId> = over.map(|(_, id)| id.clone()).collect();
        for id in over {
            let recognises_key = self.parts.get(&id).is_some_and(|part| may_repeat(part.kind, recognises_key));
            let outcome = if planted(Mutant::LostPartUnsent) {
                DeliveryOutcome::NotSent
            } else {
                DeliveryOutcome::Unknown { may_repeat: recognises_key }
            };
            self.finish(&id, outcome, effects);
        }
    }

    fn finish(&mut self, id: &PartId, outcome: DeliveryOutcome, effects: &mut Vec<DeskEffect>) {
        let Some(part) = self.parts.get_mut(id) else { return };
        if let PartState::InFlight { until, .. } = part.state {
            self.in_flight.remove(&(until, id.clone()));
        }
        self.outcomes += 1;
        part.state = PartState::Done(outcome.clone(), self.outcomes);
        effects.push(report(id, part, part.attempt, outcome));
        self.done.push_back((id.clone(), self.outcomes));
        while self.done.len() > limits::ADAPTER_OUTCOMES_MAX {
            let Some((oldest, number)) = self.done.pop_front() else { return };
            self.forget(&oldest, number);
        }
    }

    /// Forgets a part, unless it has another outcome since: what was requested up to then may have been sent.
    fn forget(&mut self, id: &PartId, number: u64) {
        if self.parts.get(id).is_some_and(|part| matches!(part.state, PartState::Done(_, at) if at == number))
            && let Some(part) = self.parts.remove(id)
        {
            self.known_since = self.known_since.max(Millis(part.requested_at.0 + 1));
        }
    }
}

impl DeskPart {
    /// Returns whether an adapter's report about the part is used.
    fn counts(&self, link: LinkId, outcome: &AdapterOutcome) -> bool {
        let is_receipt = matches!(outcome, AdapterOutcome::Sent { .. });
        match &self.state {
            PartState::InFlight { link: at, .. } => *at == link,
            PartState::Done(known, _) => is_receipt && !matches!(known, DeliveryOutcome::Sent { .. }),
        }
    }
}

/// Returns whether a part that may have been sent is sent again: its repetition changes nothing, or is recognised.
fn may_repeat(kind: DeliveryKind, recognises_key: bool) -> bool {
    recognises_key || kind.is_change() && !bug::planted(Planted::UnknownChangeHeld)
}

fn report(id: &PartId, part: &DeskPart, attempt: u32, outcome: DeliveryOutcome) -> DeskEffect {
    let report = DeliveryReport { delivery_id: id.0.clone(), part: id.1, attempt, outcome };
    DeskEffect::Report { to: part.from, key: part.key.clone(), report }
}
