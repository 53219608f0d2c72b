//! State of deliveries to conversations: turns that came from a conversation, and messages that are not sent yet.
//! `delivery_apply`, `input_apply` and `run_apply` change it.
use crate::id::{DeliveryId, MessageId, RequestId, RunId, Seq};
use crate::limits;
use crate::planted::{Planted, planted};
use crate::private::Private;
use crate::protocol::binding::{Generation, PlannedBinding};
use crate::protocol::conversation::ConversationRef;
use crate::protocol::delivery::{
    ButtonPress, ButtonSet, DeliveryFailure, DeliveryKind, DeliveryRequested, DeliverySent, InputOrigin, MessageChange,
    TextLimit,
};
use crate::protocol::task::TaskShow;
use crate::shrink::Shrink;
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A session's deliveries, as recorded in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deliveries {
    /// Turns that came from a conversation, until their delivery is requested.
    pub origins: BTreeMap<RunId, Box<OpenOrigin>>,
    /// Turns among them that are part of an earlier one.
    pub gathered: BTreeSet<RunId>,
    /// Deliveries that were requested and not sent. The failed ones among them are the latest
    /// [`limits::DELIVERIES_FAILED_KEPT_MAX`].
    pub open: BTreeMap<DeliveryId, Box<OpenDelivery>>,
    /// Places to which nothing is sent, because an earlier delivery failed there for good, until somebody writes there or
    /// an operator has a delivery sent there again. The oldest first, at most [`limits::SUPPRESSED_PLACES_MAX`].
    pub suppressed: Vec<ConversationRef>,
    /// Bindings whose conversations get the answers of clients' turns, the oldest first, at most
    /// [`limits::MIRRORS_MAX`].
    pub mirrors: Vec<MirrorBinding>,
    /// Turns of clients that began while there were mirrors, until their deliveries are requested.
    pub mirrored: BTreeMap<RunId, Box<MirroredTurn>>,
    /// The latest answers, the oldest first, at most [`limits::RECENT_DELIVERIES_MAX`].
    pub recent: Vec<RecentDelivery>,
}

/// A binding whose conversation mirrors the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorBinding {
    pub conversation: ConversationRef,
    pub generation: Generation,
}

/// A turn that came from no conversation, and whose answer conversations are to get as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirroredTurn {
    /// The recorded text of the latest attempt, at most [`limits::DELIVERY_TEXT_BYTES_MAX`] bytes.
    pub answer: Private<String>,
    /// Bytes of the answer that found no room.
    pub cut_bytes: u64,
    /// The bindings at the end of the turn whose deliveries are not requested yet; `None`: it has not ended.
    pub places: Option<Vec<MirrorBinding>>,
}

/// An answer to a conversation, sent or not, which people and agents may refer to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentDelivery {
    pub delivery_id: DeliveryId,
    /// The run whose answer it is.
    pub about_run: RunId,
    /// The message that it answers, if that one is in the same conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<MessageId>,
    pub conversation: ConversationRef,
    /// The version of the binding that it was routed by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// The length of one message there.
    pub text_limit: TextLimit,
    /// The number of its messages.
    pub parts: u32,
    /// The platform's ids of the messages that were sent.
    pub external_ids: Vec<MessageId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buttons: Option<Arc<ButtonSet>>,
    /// The press that was accepted first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<RequestId>,
    /// The request of its latest edit: an earlier one is not sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited_by: Option<Seq>,
}

/// A turn that came from a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOrigin {
    pub origin: InputOrigin,
    /// The recorded text of the latest attempt, at most [`limits::DELIVERY_TEXT_BYTES_MAX`] bytes.
    pub answer: Private<String>,
    /// Bytes of the answer that found no room.
    pub cut_bytes: u64,
    /// The end of the turn, whose delivery is to be requested.
    pub end: Option<OriginEnd>,
    /// The buttons that the agent wants below the answer.
    pub buttons: Option<Arc<ButtonSet>>,
}

/// The end of a turn that leads to a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginEnd {
    Answered,
    Failed { message: Private<String> },
}

/// A requested delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDelivery {
    /// Position of its request: deliveries to one place are sent in this order.
    pub seq: Seq,
    pub requested_at: Millis,
    pub kind: DeliveryKind,
    pub conversation: ConversationRef,
    pub reply_to: Option<MessageId>,
    /// The version of the binding that the router chose: the delivery is sent only while that binding stands.
    pub generation: Option<Generation>,
    /// The buttons below the last part.
    pub buttons: Option<Arc<ButtonSet>>,
    /// The change of a message, if the delivery is no message.
    pub change: Option<Arc<MessageChange>>,
    /// The binding that the new conversation is to get.
    pub binding: Option<Arc<PlannedBinding>>,
    /// The conversation that the platform has made, if it is to be bound.
    pub made: Option<ConversationRef>,
    pub parts: Vec<Private<String>>,
    /// Number of parts that the platform has.
    pub sent: u32,
    /// Recorded attempts at the next part, without the first one.
    pub attempts: u32,
    pub phase: DeliveryPhase,
}

/// The phase of a delivery that is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryPhase {
    /// It is being sent, or waits for that.
    Pending,
    /// The platform has made the conversation, which is to be bound.
    Made,
    /// Nobody knows whether its next part was sent; an operator decides.
    Held,
    /// It has ended.
    Failed(DeliveryFailure),
}

// === impl Deliveries ===

impl Deliveries {
    /// Returns whether nothing came from a conversation and nothing is to be sent to one, whatever was sent before.
    pub fn is_empty(&self) -> bool {
        let Self { origins, gathered, open, suppressed, mirrors, mirrored, recent: _ } = self;
        let has_mirrors = !mirrors.is_empty() || !mirrored.is_empty();
        origins.is_empty() && gathered.is_empty() && open.is_empty() && suppressed.is_empty() && !has_mirrors
    }

    /// Returns whether a delivery waits to be sent or is on its way.
    pub(super) fn is_pending(&self, id: &DeliveryId) -> bool {
        self.open.get(id).is_some_and(|delivery| delivery.phase == DeliveryPhase::Pending)
    }

    /// Returns the conversation that a delivery has made, and the binding that it is to get; `None`: nothing is to be
    /// bound.
    pub(super) fn made(&self, id: &DeliveryId) -> Option<(&ConversationRef, &Arc<PlannedBinding>)> {
        let delivery = self.open.get(id).filter(|delivery| delivery.phase == DeliveryPhase::Made)?;
        Some((delivery.made.as_ref()?, delivery.binding.as_ref()?))
    }

    /// Returns whether an owner has to send something, to have something bound, or to request a delivery.
    pub(super) fn are_due(&self) -> bool {
        self.open.values().any(|delivery| matches!(delivery.phase, DeliveryPhase::Pending | DeliveryPhase::Made))
            || self.origins.values().any(|origin| origin.end.is_some())
            || self.mirrored_ends().next().is_some()
    }

    /// Returns the number of deliveries that are held, or have failed and are kept, after one of them gets another phase;
    /// `None`: it is not kept.
    pub(super) fn undelivered_after(&self, id: &DeliveryId, phase: Option<DeliveryPhase>) -> u32 {
        let others = self.open.iter().filter(|(other, _)| *other != id).map(|(_, delivery)| delivery.phase);
        let phases = || others.clone().chain(phase);
        let held = phases().filter(|phase| *phase == DeliveryPhase::Held).count();
        let failed = phases().filter(|phase| matches!(phase, DeliveryPhase::Failed(_))).count();
        u32::try_from(held + failed.min(limits::DELIVERIES_FAILED_KEPT_MAX)).unwrap_or(u32::MAX)
    }

    /// Returns whether no further delivery is kept until it can be sent.
    pub(super) fn is_full(&self) -> bool {
        let waiting = || self.open.values().filter(|delivery| !delivery.has_failed());
        let bytes: usize = waiting().map(|delivery| delivery.bytes()).sum();
        waiting().count() >= limits::DELIVERIES_OPEN_MAX || bytes >= limits::DELIVERIES_OPEN_BYTES_MAX
    }

    pub(super) fn add_origin(&mut self, run_id: &RunId, origin: &InputOrigin) {
        let open =
            OpenOrigin { origin: origin.clone(), answer: Private::default(), cut_bytes: 0, end: None, buttons: None };
        self.origins.insert(run_id.clone(), Box::new(open));
    }

    /// Makes a turn part of another, which from now on answers the message of the first. The first keeps the origin that
    /// the other had, in case that its own message is deleted.
    pub(super) fn gather(&mut self, run_id: &RunId, host: &RunId) {
        if let (Some(mut gathered), Some(open)) = (self.origins.remove(run_id), self.origins.get_mut(host)) {
            std::mem::swap(&mut gathered.origin, &mut open.origin);
            self.origins.insert(run_id.clone(), gathered);
        }
        self.gathered.insert(run_id.clone());
    }

    /// Has the turn that answers the message of a gathered turn, or the gathered turn that keeps its origin, go back to the
    /// message before, because the gathered turn is cancelled.
    pub(super) fn replace_origin(&mut self, run_id: &RunId, holder: &RunId) {
        let before = self.origins.get(run_id).map(|open| open.origin.clone());
        if let (Some(before), Some(open)) = (before, self.origins.get_mut(holder)) {
            open.origin = before;
        }
    }

    /// Has a conversation mirror the turns of clients that begin from now on.
    pub(super) fn add_mirror(&mut self, conversation: &ConversationRef, generation: Generation) {
        self.mirrors.retain(|mirror| !mirror.conversation.is_same_place(conversation));
        if self.mirrors.len() < limits::MIRRORS_MAX {
            self.mirrors.push(MirrorBinding { conversation: conversation.clone(), generation });
        }
    }

    /// Forgets a mirror whose binding has ended, also under another id that the platform has given its conversation.
    pub(super) fn remove_mirror(&mut self, conversation: &ConversationRef, generation: Generation) {
        let is_its = |mirror: &MirrorBinding| mirror.generation == generation;
        let is_there = |mirror: &MirrorBinding| is_its(mirror) && mirror.conversation.is_same_place(conversation);
        let is_known = self.mirrors.iter().any(is_there);
        let is_moved = |mirror: &MirrorBinding| is_its(mirror) && mirror.conversation.is_same_account(conversation);
        self.mirrors.retain(|mirror| if is_known { !is_there(mirror) } else { !is_moved(mirror) });
    }

    /// Keeps the answer of a client's turn, if a conversation mirrors it.
    pub(super) fn begin_mirrored(&mut self, run_id: &RunId) {
        if !self.mirrors.is_empty() {
            self.mirrored.insert(run_id.clone(), Box::default());
        }
    }

    /// Returns the ended turns whose deliveries to mirrors are to be requested.
    pub(super) fn mirrored_ends(&self) -> impl Iterator<Item = &RunId> {
        self.mirrored.iter().filter(|(_, turn)| turn.places.is_some()).map(|(run_id, _)| run_id)
    }

    /// Freezes the mirrors that get the answer of a turn, which has ended; not answered, they get nothing.
    fn end_mirrored(&mut self, run_id: &RunId, is_answered: bool) {
        let Some(turn) = self.mirrored.get_mut(run_id) else { return };
        let is_silent = turn.answer.reveal().trim().is_empty();
        turn.places = Some(self.mirrors.clone());
        if !is_answered || is_silent || self.mirrors.is_empty() {
            self.forget_mirrored(run_id);
        }
    }

    /// Records that the delivery of a turn to a mirror is requested.
    fn take_mirrored(&mut self, run_id: &RunId, place: &ConversationRef) {
        let Some(places) = self.mirrored.get_mut(run_id).and_then(|turn| turn.places.as_mut()) else { return };
        places.retain(|mirror| !mirror.conversation.is_same_place(place));
        if places.is_empty() {
            self.forget_mirrored(run_id);
        }
    }

    fn forget_mirrored(&mut self, run_id: &RunId) {
        self.mirrored.remove(run_id);
        self.mirrored.shrink_if_empty();
    }

    /// Starts the answer of a turn from the beginning.
    pub(super) fn start_answer(&mut self, run_id: &RunId) {
        if let Some(turn) = self.mirrored.get_mut(run_id) {
            (turn.answer, turn.cut_bytes) = (Private::default(), 0);
        }
        if let Some(open) = self.origins.get_mut(run_id) {
            (open.answer, open.cut_bytes) = (Private::default(), 0);
        }
    }

    /// Appends recorded text to the answer of a turn.
    pub(super) fn append_answer(&mut self, run_id: &RunId, text: &str) {
        if let Some(turn) = self.mirrored.get_mut(run_id) {
            append_within_limit((&mut turn.answer, &mut turn.cut_bytes), text);
        }
        if let Some(open) = self.origins.get_mut(run_id) {
            append_within_limit((&mut open.answer, &mut open.cut_bytes), text);
        }
    }

    /// Records the end of a turn; `None`: it leads to no delivery.
    pub(super) fn end_origin(&mut self, run_id: &RunId, end: Option<OriginEnd>) {
        self.gathered.remove(run_id);
        self.gathered.shrink_if_empty();
        self.end_mirrored(run_id, end == Some(OriginEnd::Answered));
        let Some(open) = self.origins.get_mut(run_id) else { return };
        // An agent that says nothing is told to nobody, and nor is a task that is to be shown nowhere.
        let is_silent = open.answer.reveal().trim().is_empty();
        let is_hidden = open.origin.task.is_some_and(|task| task.show == TaskShow::None);
        open.end = end.filter(|end| !is_hidden && (*end != OriginEnd::Answered || !is_silent));
        if open.end.is_none() {
            self.forget_origin(run_id);
        }
    }

    /// Forgets the end of a turn, whose delivery is requested or refused.
    pub(super) fn forget_origin(&mut self, run_id: &RunId) {
        self.origins.remove(run_id);
        self.origins.shrink_if_empty();
    }

    /// Adds a requested delivery. Without parts, nothing is to be sent.
    pub(super) fn add(&mut self, seq: Seq, requested_at: Millis, requested: &DeliveryRequested) {
        if let Some(run_id) = requested.about_run.as_ref().filter(|_| requested.kind.is_message()) {
            self.forget_origin(run_id);
            self.take_mirrored(run_id, &requested.conversation);
        }
        self.remember(requested);
        self.record_edit(seq, requested);
        let DeliveryRequested { delivery_id, kind, conversation, reply_to, parts, route, .. } = requested;
        let delivery = OpenDelivery {
            seq,
            requested_at,
            kind: *kind,
            conversation: conversation.clone(),
            reply_to: reply_to.clone(),
            generation: requested.generation.or_else(|| route.and_then(|route| route.generation)),
            buttons: requested.buttons.clone(),
            change: requested.change.clone(),
            binding: requested.binding.clone(),
            made: None,
            parts: parts.clone(),
            sent: 0,
            attempts: 0,
            phase: DeliveryPhase::Pending,
        };
        self.open.insert(delivery_id.clone(), Box::new(delivery));
    }

    /// Remembers an answer; the oldest ones are forgotten past the limits.
    fn remember(&mut self, requested: &DeliveryRequested) {
        let (Some(text_limit), Some(about_run)) = (requested.text_limit, &requested.about_run) else { return };
        self.recent.push(RecentDelivery {
            delivery_id: requested.delivery_id.clone(),
            about_run: about_run.clone(),
            reply_to: requested.reply_to.clone(),
            conversation: requested.conversation.clone(),
            generation: requested.generation.or_else(|| requested.route.and_then(|route| route.generation)),
            text_limit,
            parts: u32::try_from(requested.parts.len()).unwrap_or(u32::MAX),
            external_ids: Vec::new(),
            buttons: requested.buttons.clone(),
            decided_by: None,
            edited_by: None,
        });
        let bytes_of = |recent: &RecentDelivery| recent.buttons.as_ref().map_or(0, |buttons| buttons.bytes());
        let mut bytes: usize = self.recent.iter().map(bytes_of).sum();
        while self.recent.len() > limits::RECENT_DELIVERIES_MAX || bytes > limits::RECENT_BUTTONS_BYTES_MAX {
            bytes -= bytes_of(&self.recent.remove(0));
        }
    }

    /// Records that the text of an answer is to be another one.
    fn record_edit(&mut self, seq: Seq, requested: &DeliveryRequested) {
        let DeliveryRequested { kind: DeliveryKind::Edit, conversation, change: Some(change), .. } = requested else {
            return;
        };
        let edited = self.recent.iter_mut().find(|recent| recent.has_one_of(conversation, change));
        edited.into_iter().for_each(|recent| recent.edited_by = Some(seq));
    }

    /// Returns whether a later edit has taken the place of this one, or its answer is forgotten.
    pub(super) fn is_outdated(&self, delivery: &OpenDelivery) -> bool {
        let Some(change) = delivery.change.as_ref().filter(|_| delivery.kind == DeliveryKind::Edit) else {
            return false;
        };
        let edited = self.recent.iter().find(|recent| recent.has_one_of(&delivery.conversation, change));
        edited.is_none_or(|recent| recent.edited_by != Some(delivery.seq)) && !planted(Planted::OldEditRedriven)
    }

    /// Returns whether an answer is being deleted.
    pub(super) fn is_being_deleted(&self, answer: &RecentDelivery) -> bool {
        let deletions = self.open.values().filter(|it| it.kind == DeliveryKind::Delete && !it.has_failed());
        let mut changes = deletions.filter_map(|it| Some((&it.conversation, it.change.as_ref()?)));
        changes.any(|(place, change)| answer.has_one_of(place, change))
    }

    /// Forgets an answer whose last message was deleted: nothing of it can be changed any more.
    pub(super) fn forget_deleted(&mut self, sent: &DeliverySent) {
        let open = self.open.get(&sent.delivery_id).filter(|it| it.kind == DeliveryKind::Delete);
        let Some((place, change)) = open.and_then(|it| Some((&it.conversation, it.change.as_ref()?))) else { return };
        if sent.part >= sent.parts {
            self.recent.retain(|recent| !recent.has_one_of(place, change));
        }
    }

    /// Sets the buttons that the answer of a turn is to have.
    pub(super) fn set_buttons(&mut self, run_id: &RunId, set: ButtonSet) {
        if let Some(open) = self.origins.get_mut(run_id) {
            open.buttons = (!set.buttons.is_empty()).then(|| Arc::new(set));
        }
    }

    /// Records the press of a button.
    pub(super) fn record_decision(&mut self, decision: &ButtonPress) {
        let recent = self.recent.iter_mut().find(|recent| recent.delivery_id == decision.delivery_id);
        if let Some(recent) = recent.filter(|recent| recent.decided_by.is_none()) {
            recent.decided_by = Some(decision.press_id.clone());
        }
    }

    /// Records the platform's id of a part of an answer.
    pub(super) fn record_external_id(&mut self, sent: &DeliverySent) {
        let recent = self.recent.iter_mut().find(|recent| recent.delivery_id == sent.delivery_id);
        // A receipt that an operator's retry repeats changes nothing.
        if let Some(recent) = recent.filter(|recent| recent.external_ids.len() + 1 == sent.part as usize) {
            recent.external_ids.push(sent.external_id.clone());
        }
    }

    /// Records an attempt at the next part.
    pub(super) fn count_attempt(&mut self, id: &DeliveryId, attempt: u32) {
        self.open.get_mut(id).into_iter().for_each(|delivery| delivery.attempts = attempt.saturating_sub(1));
    }

    /// Records that the platform has a part. A delivery with all its parts has ended, unless it has made a conversation
    /// that is to be bound.
    pub(super) fn mark_sent(&mut self, sent: &DeliverySent) {
        let id = &sent.delivery_id;
        let Some(delivery) = self.open.get_mut(id) else { return };
        (delivery.sent, delivery.attempts) = (delivery.sent.max(sent.part), 0);
        delivery.phase = DeliveryPhase::Pending;
        delivery.made = delivery.binding.as_ref().and_then(|_| delivery.conversation.child(&sent.external_id));
        if delivery.made.is_some() && !planted(Planted::MadeConversationForgotten) {
            delivery.phase = DeliveryPhase::Made;
        } else if delivery.is_sent() {
            self.open.remove(id);
            self.open.shrink_if_empty();
        }
    }

    pub(super) fn set_phase(&mut self, id: &DeliveryId, phase: DeliveryPhase) {
        self.open.get_mut(id).into_iter().for_each(|delivery| delivery.phase = phase);
        let failed = self.open.iter().filter(|(_, delivery)| delivery.has_failed());
        let oldest = failed.clone().min_by_key(|(_, delivery)| delivery.seq).map(|(id, _)| id.clone());
        if failed.count() > limits::DELIVERIES_FAILED_KEPT_MAX {
            oldest.iter().for_each(|oldest| drop(self.open.remove(oldest)));
        }
    }

    /// Sends nothing more to the place of a delivery.
    pub(super) fn suppress_place_of(&mut self, id: &DeliveryId) {
        let Some(place) = self.message_place(id) else { return };
        self.lift_suppression(&place);
        self.suppressed.push(place);
        if self.suppressed.len() > limits::SUPPRESSED_PLACES_MAX {
            self.suppressed.remove(0);
        }
    }

    /// Sends to the place of a delivery again.
    pub(super) fn lift_suppression_of(&mut self, id: &DeliveryId) {
        if let Some(place) = self.message_place(id) {
            self.lift_suppression(&place);
        }
    }

    /// Returns the place of a delivery, if it is a message: a conversation that was not made, or a message that cannot be
    /// changed any more, says nothing of further messages.
    fn message_place(&self, id: &DeliveryId) -> Option<ConversationRef> {
        let is_any = planted(Planted::ChangeSuppressesPlace);
        let delivery = self.open.get(id).filter(|delivery| is_any || delivery.kind.is_message())?;
        Some(delivery.conversation.clone())
    }

    /// Sends to a place again.
    pub(super) fn lift_suppression(&mut self, place: &ConversationRef) {
        self.suppressed.retain(|other| !other.is_same_place(place));
    }

    /// Returns whether nothing is sent to a place.
    pub(super) fn is_suppressed(&self, place: &ConversationRef) -> bool {
        self.suppressed.iter().any(|other| other.is_same_place(place)) && !planted(Planted::SuppressedPlacesTried)
    }

    /// Removes a delivery that an operator has dropped.
    pub(super) fn remove(&mut self, id: &DeliveryId) {
        self.open.remove(id);
        self.open.shrink_if_empty();
    }

    /// Ends the delivery that has made a conversation, which is bound now.
    pub(super) fn mark_bound(&mut self, conversation: &ConversationRef) {
        let is_it = |delivery: &OpenDelivery| delivery.made.as_ref().is_some_and(|it| it.is_same_place(conversation));
        self.open.retain(|_, delivery| !is_it(delivery));
        self.open.shrink_if_empty();
    }

    /// Starts a held or failed delivery again, with its budgets of attempts and age.
    pub(super) fn restart(&mut self, id: &DeliveryId, at: Millis) {
        if let Some(delivery) = self.open.get_mut(id) {
            let at = if planted(Planted::DeliveryRedriveKeepsAge) { delivery.requested_at } else { at };
            let phase = if delivery.made.is_some() { DeliveryPhase::Made } else { DeliveryPhase::Pending };
            (delivery.phase, delivery.attempts, delivery.requested_at) = (phase, 0, at);
            if planted(Planted::DeliveryRedriveRestarts) {
                delivery.sent = 0;
            }
        }
    }
}

/// Appends text to an answer, and counts the bytes that find no room.
fn append_within_limit((answer, cut_bytes): (&mut Private<String>, &mut u64), text: &str) {
    let room = limits::DELIVERY_TEXT_BYTES_MAX.saturating_sub(answer.0.len());
    // Text after a cut would have a hole before it.
    let taken = if *cut_bytes > 0 { 0 } else { text.floor_char_boundary(room) };
    answer.0.push_str(&text[..taken]);
    *cut_bytes += (text.len() - taken) as u64;
}

impl RecentDelivery {
    /// Returns whether the platform has all messages of the answer.
    pub(super) fn is_sent(&self) -> bool {
        self.external_ids.len() == self.parts as usize
    }

    /// Returns whether a change in a conversation concerns a message of the answer.
    fn has_one_of(&self, place: &ConversationRef, change: &MessageChange) -> bool {
        self.conversation.is_same_place(place) && change.targets.iter().any(|it| self.external_ids.contains(it))
    }
}

impl OpenDelivery {
    /// Returns the number of the part that is sent next, from 1.
    pub fn next_part(&self) -> u32 {
        self.sent + 1
    }

    /// Returns the text of that part.
    pub fn next_text(&self) -> &str {
        self.parts.get(self.sent as usize).map_or("", |part| part.reveal())
    }

    /// Returns whether the delivery has ended without being sent.
    pub fn has_failed(&self) -> bool {
        matches!(self.phase, DeliveryPhase::Failed(_))
    }

    /// Returns the number of parts.
    pub fn part_count(&self) -> u32 {
        u32::try_from(self.parts.len()).unwrap_or(u32::MAX)
    }

    fn bytes(&self) -> usize {
        let buttons = self.buttons.as_ref().map_or(0, |buttons| buttons.bytes());
        let change = self.change.as_ref().map_or(0, |change| change.bytes());
        let binding = self.binding.as_ref().map_or(0, |binding| binding.bytes());
        buttons + change + binding + self.parts.iter().map(|part| part.reveal().len()).sum::<usize>()
    }

    fn is_sent(&self) -> bool {
        self.sent >= self.part_count() || self.sent > 0 && planted(Planted::DeliveryEndsAtFirstPart)
    }
}
