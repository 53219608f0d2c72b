//! Tells the part for adapters how the turns of an owned session go that came from a conversation. A session without
//! such turns costs nothing here.
use super::owned_session::OwnedSession;
use crate::switchboard::adapters::signals::{BegunTurn, TurnEnding, TurnEvent};
use crate::switchboard::effect::AdaptersCommand;
use crate::switchboard::sink::EffectSink;
use turnway_core::id::{DeliveryId, RunId, SessionKey};
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{DeliveryKind, InputOrigin};
use turnway_core::protocol::entry::DeliveryFact;
use turnway_core::protocol::signal::preview_id;
use turnway_core::session::{DeliveryPhase, OpenDelivery, State};

/// The running turn of a session, if it came from a conversation.
#[derive(Debug)]
pub(super) struct ConversationTurn {
    run_id: RunId,
    preview_id: DeliveryId,
    origin: InputOrigin,
}

impl OwnedSession {
    /// Follows the session's running turn, after facts have become durable.
    pub(super) fn follow_conversation_turn(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        self.follow(key, false, sink);
    }

    /// Begins to follow the turns of a session that another node may have owned.
    pub(super) fn inherit_conversation_turns(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        if self.durable.deliveries.is_empty() {
            return;
        }
        let pending = self.durable.deliveries.open.values().filter(|it| it.phase == DeliveryPhase::Pending);
        for (id, conversation) in pending.filter_map(|delivery| preview_of(key, delivery)) {
            push(key, id, TurnEvent::Inherited(conversation.clone()), sink);
        }
        let origins = self.durable.deliveries.origins.values().filter(|open| open.origin.task.is_none());
        let ended = origins.filter(|open| open.end.is_some());
        for InputOrigin { conversation, message_id, .. } in ended.map(|open| &open.origin) {
            let id = preview_id(key, conversation, message_id);
            push(key, id, TurnEvent::Inherited(conversation.clone()), sink);
        }
        self.follow(key, true, sink);
    }

    fn follow(&mut self, key: &SessionKey, is_inherited: bool, sink: &mut EffectSink) {
        let state = &self.durable;
        if state.deliveries.is_empty() && self.conversation_turn.is_none() {
            return;
        }
        if let Some(turn) = self.conversation_turn.take_if(|turn| state.running.as_ref() != Some(&turn.run_id)) {
            let ending = ending_of(state, &turn);
            push(key, turn.preview_id, TurnEvent::Ended(ending), sink);
        }
        let Some(run_id) = state.running.as_ref().filter(|_| self.conversation_turn.is_none()) else { return };
        let Some((open, run)) = state.deliveries.origins.get(run_id).zip(state.runs.get(run_id)) else { return };
        if open.origin.task.is_some() {
            // The place of its end is not known before the router is asked.
            return;
        }
        let InputOrigin { conversation, message_id, text_limit, .. } = &open.origin;
        let begun = BegunTurn {
            conversation: conversation.clone(),
            message_id: message_id.clone(),
            text_limit: *text_limit,
            attempt: run.attempt,
            recorded: (open.answer.clone(), run.saved),
            is_inherited,
        };
        let preview_id = preview_id(key, conversation, message_id);
        push(key, preview_id.clone(), TurnEvent::Began(Box::new(begun)), sink);
        let origin = open.origin.clone();
        self.conversation_turn = Some(Box::new(ConversationTurn { run_id: run_id.clone(), preview_id, origin }));
    }

    /// Hands on a piece of the running turn's text.
    pub(super) fn show_to_conversation(&self, key: &SessionKey, chunk: &TextChunk, sink: &mut EffectSink) {
        if let Some(turn) = self.conversation_turn.as_ref().filter(|turn| turn.run_id == chunk.run_id) {
            push(key, turn.preview_id.clone(), TurnEvent::Text(chunk.clone()), sink);
        }
    }

    /// Reports what became of a delivery, before its fact is applied.
    pub(super) fn follow_delivery(&self, key: &SessionKey, fact: &DeliveryFact, sink: &mut EffectSink) {
        let (id, event) = match fact {
            DeliveryFact::Sent(sent) if sent.part == sent.parts => (&sent.delivery_id, TurnEvent::Delivered),
            DeliveryFact::Held(held) => (&held.delivery_id, TurnEvent::Undelivered),
            DeliveryFact::Failed(failed) => (&failed.delivery_id, TurnEvent::Undelivered),
            DeliveryFact::Sent(_)
            | DeliveryFact::Requested(_)
            | DeliveryFact::Attempted(_)
            | DeliveryFact::Refused(_)
            | DeliveryFact::Redriven(_) => return,
        };
        let open = self.durable.deliveries.open.get(id);
        if let Some((preview_id, _)) = open.and_then(|delivery| preview_of(key, delivery)) {
            push(key, preview_id, event, sink);
        }
    }
}

/// Returns what follows for the conversation from the end of its turn.
fn ending_of(state: &State, turn: &ConversationTurn) -> TurnEnding {
    if state.deliveries.origins.contains_key(&turn.run_id) {
        return TurnEnding::Delivering;
    }
    let InputOrigin { conversation, message_id, .. } = &turn.origin;
    let is_its = |delivery: &&OpenDelivery| {
        delivery.kind != DeliveryKind::Conversation
            && delivery.reply_to.as_ref() == Some(message_id)
            && delivery.conversation.is_same_place(conversation)
    };
    match state.deliveries.open.values().map(|delivery| &**delivery).find(is_its) {
        Some(delivery) if delivery.phase == DeliveryPhase::Pending => TurnEnding::Delivering,
        Some(_) => TurnEnding::Undelivered,
        None => TurnEnding::Silent,
    }
}

/// Returns the preview of the answer that a delivery brings, with its place.
fn preview_of<'a>(key: &SessionKey, delivery: &'a OpenDelivery) -> Option<(DeliveryId, &'a ConversationRef)> {
    let message_id = delivery.reply_to.as_ref().filter(|_| delivery.kind != DeliveryKind::Conversation)?;
    Some((preview_id(key, &delivery.conversation, message_id), &delivery.conversation))
}

fn push(key: &SessionKey, preview_id: DeliveryId, event: TurnEvent, sink: &mut EffectSink) {
    sink.push(AdaptersCommand::Turn { turn: (key.clone(), preview_id), event });
}
