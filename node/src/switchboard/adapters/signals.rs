//! The signals of this node's turns to the conversations that they came from: that an answer is being written, and the
//! answer so far. Nothing here is stored or repeated; a turn's own delivery ends its signals.
use super::orders::{OrderEffect, OutgoingOrders};
use std::collections::BTreeMap;
use std::time::Duration;
use turnway_core::id::{DeliveryId, MessageId, NodeId, SessionKey};
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{TextLimit, preview_text};
use turnway_core::protocol::signal::{ConversationSignal, Preview, SignalKind};
use turnway_core::time::{Mono, Now};

/// An event of a turn that came from a conversation, at the session's owner. The turn is named by its preview.
#[derive(Debug)]
pub(in crate::switchboard) enum TurnEvent {
    /// The turn runs from now on, or is found running by a new owner.
    Began(Box<BegunTurn>),
    /// A piece of the turn's text.
    Text(TextChunk),
    /// The turn does not run any more.
    Ended(TurnEnding),
    /// An earlier owner may have shown a preview of an answer that is being delivered.
    Inherited(ConversationRef),
    /// The conversation has the whole answer.
    Delivered,
    /// The answer was not delivered, and may never be.
    Undelivered,
}

/// A turn that runs.
#[derive(Debug)]
pub(in crate::switchboard) struct BegunTurn {
    pub(in crate::switchboard) conversation: ConversationRef,
    /// The message that is being answered.
    pub(in crate::switchboard) message_id: MessageId,
    pub(in crate::switchboard) text_limit: TextLimit,
    pub(in crate::switchboard) attempt: u32,
    /// The recorded beginning of the attempt's text, and the number of recorded bytes.
    pub(in crate::switchboard) recorded: (Private<String>, u64),
    /// An earlier owner may have shown a preview.
    pub(in crate::switchboard) is_inherited: bool,
}

/// The end of a turn, as far as its conversation is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switchboard) enum TurnEnding {
    /// Nothing is delivered.
    Silent,
    /// The answer is on its way.
    Delivering,
    /// The answer is not sent, and may never be.
    Undelivered,
}

/// The turns of conversations that this node's sessions run, and those whose answer is being delivered.
#[derive(Debug, Default)]
pub(super) struct TurnSignals {
    /// Each session has one running turn, and at most [`limits::DELIVERIES_OPEN_MAX`] open deliveries.
    turns: BTreeMap<(SessionKey, DeliveryId), SignalledTurn>,
}

#[derive(Debug)]
struct SignalledTurn {
    conversation: ConversationRef,
    /// The platform may show a preview.
    may_be_shown: bool,
    /// Absent once the turn has ended.
    running: Option<Box<RunningTurn>>,
}

#[derive(Debug)]
struct RunningTurn {
    message_id: MessageId,
    text_limit: TextLimit,
    attempt: u32,
    /// The beginning of the attempt's text: as much as a preview can show.
    text: String,
    /// Bytes of the attempt's text.
    end: u64,
    /// The time of the first piece that no preview has shown.
    unshown_since: Option<Mono>,
    /// Further text changes no preview.
    is_full: bool,
    /// The adapter shows no previews there.
    is_unwanted: bool,
    last_preview: Option<Mono>,
    next_typing: Mono,
}

/// An effect of a turn's signals.
#[derive(Debug)]
pub(super) enum SignalEffect {
    /// Send a signal to the node of the account's adapter.
    Send { to: NodeId, signal: ConversationSignal },
    /// Look for the adapter.
    LookUp(OrderEffect),
}

// === impl TurnSignals ===

impl TurnSignals {
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Returns the next time at which a signal is due; a signal whose adapter is unknown has been due for a while.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        self.turns.values().filter_map(|turn| turn.running.as_ref()).map(|running| running.next_due()).min()
    }

    /// Handles an event of a turn.
    pub(super) fn handle_event(
        &mut self,
        now: Now,
        turn: (SessionKey, DeliveryId),
        event: TurnEvent,
        orders: &mut OutgoingOrders,
        effects: &mut Vec<SignalEffect>,
    ) {
        match event {
            TurnEvent::Began(begun) => {
                self.turns.insert(turn.clone(), SignalledTurn::begin(now, *begun));
                self.send_due(now, &turn, orders, effects);
            }
            TurnEvent::Text(chunk) => {
                let running = self.turns.get_mut(&turn).and_then(|known| known.running.as_mut());
                if running.is_some_and(|running| running.append(now, &chunk)) {
                    self.send_due(now, &turn, orders, effects);
                }
            }
            TurnEvent::Ended(ending) => self.end(turn, ending, orders, effects),
            TurnEvent::Inherited(conversation) => {
                self.turns.insert(turn, SignalledTurn { conversation, may_be_shown: true, running: None });
            }
            TurnEvent::Delivered => self.remove(&turn, true, orders, effects),
            TurnEvent::Undelivered => self.remove(&turn, false, orders, effects),
        }
    }

    /// Ends the typing signal of a turn, and forgets a turn without a delivery on its way.
    fn end(
        &mut self,
        turn: (SessionKey, DeliveryId),
        ending: TurnEnding,
        orders: &mut OutgoingOrders,
        effects: &mut Vec<SignalEffect>,
    ) {
        let Some(known) = self.turns.get_mut(&turn) else { return };
        if known.running.take().is_some() {
            let signal = known.signal(&turn.0, SignalKind::Typing { is_on: false });
            send(signal, orders, effects);
        }
        match ending {
            TurnEnding::Delivering if known.may_be_shown => {}
            TurnEnding::Delivering | TurnEnding::Undelivered => self.remove(&turn, false, orders, effects),
            TurnEnding::Silent => self.remove(&turn, true, orders, effects),
        }
    }

    /// Forgets a turn. `is_outdated`: its preview must not stay.
    fn remove(
        &mut self,
        turn: &(SessionKey, DeliveryId),
        is_outdated: bool,
        orders: &mut OutgoingOrders,
        effects: &mut Vec<SignalEffect>,
    ) {
        let Some(known) = self.turns.remove(turn) else { return };
        if known.running.is_some() {
            let signal = known.signal(&turn.0, SignalKind::Typing { is_on: false });
            send(signal, orders, effects);
        }
        if is_outdated && known.may_be_shown {
            let signal = known.signal(&turn.0, SignalKind::RemovePreview { preview_id: turn.1.clone() });
            send(signal, orders, effects);
        }
    }

    /// Records that an adapter shows no previews in a conversation.
    pub(super) fn handle_unwanted(&mut self, key: &SessionKey, preview_id: &DeliveryId) {
        if let Some(known) = self.turns.get_mut(&(key.clone(), preview_id.clone())) {
            known.may_be_shown = false;
            known.running.iter_mut().for_each(|running| running.is_unwanted = true);
        }
    }

    /// Forgets the turns of a session that this node does not own any more.
    pub(super) fn forget_session(&mut self, session: &SessionKey) {
        let first = (session.clone(), DeliveryId::first());
        let of_session = self.turns.range(first..).map(|(turn, _)| turn).take_while(|turn| turn.0 == *session);
        let turns: Vec<(SessionKey, DeliveryId)> = of_session.cloned().collect();
        turns.iter().for_each(|turn| drop(self.turns.remove(turn)));
    }

    /// Sends the signals that are due.
    pub(super) fn send_all_due(&mut self, now: Now, orders: &mut OutgoingOrders, effects: &mut Vec<SignalEffect>) {
        let is_due = |turn: &SignalledTurn| turn.running.as_ref().is_some_and(|running| running.next_due() <= now.mono);
        let due = self.turns.iter().filter(|(_, turn)| is_due(turn)).map(|(turn, _)| turn.clone());
        for turn in due.collect::<Vec<_>>() {
            self.send_due(now, &turn, orders, effects);
        }
    }

    /// Sends the signals of a turn that are due, unless a delivery to its conversation is on its way.
    fn send_due(
        &mut self,
        now: Now,
        turn: &(SessionKey, DeliveryId),
        orders: &mut OutgoingOrders,
        effects: &mut Vec<SignalEffect>,
    ) {
        let (key, preview_id) = turn;
        let Some(known) = self.turns.get_mut(turn) else { return };
        let Some(running) = known.running.as_mut().filter(|running| running.next_due() <= now.mono) else { return };
        if orders.has_message_to(key, &known.conversation) {
            return running.postpone(now);
        }
        let is_typing_due = running.next_typing <= now.mono;
        let is_preview_due = running.preview_due().is_some_and(|at| at <= now.mono);
        let mut looks = Vec::new();
        let located = orders.locate(now, &known.signal(key, SignalKind::Typing { is_on: true }).account(), &mut looks);
        effects.extend(looks.into_iter().map(SignalEffect::LookUp));
        let (Some(to), Some(running)) = (located, known.running.as_mut()) else { return };
        let preview = if is_preview_due { running.preview(now, preview_id) } else { None };
        if is_typing_due {
            running.next_typing = now.mono + limits::TYPING_REPEAT;
            effects.push(SignalEffect::Send { to, signal: known.signal(key, SignalKind::Typing { is_on: true }) });
        }
        if let Some(preview) = preview {
            known.may_be_shown = true;
            effects.push(SignalEffect::Send { to, signal: known.signal(key, SignalKind::Preview(Box::new(preview))) });
        }
    }
}

/// Sends a signal, if the node of the account's adapter is known: signals are not kept.
fn send(signal: ConversationSignal, orders: &mut OutgoingOrders, effects: &mut Vec<SignalEffect>) {
    let account = signal.account();
    if let Some(to) = orders.node_of(&account) {
        effects.push(SignalEffect::Send { to, signal });
    }
    orders.release(&account);
}

impl SignalledTurn {
    fn begin(now: Now, begun: BegunTurn) -> Self {
        let BegunTurn { conversation, message_id, text_limit, attempt, recorded, is_inherited } = begun;
        let (Private(text), end) = recorded;
        let mut running = RunningTurn {
            message_id,
            text_limit,
            attempt,
            text: String::new(),
            end,
            unshown_since: None,
            is_full: false,
            is_unwanted: false,
            last_preview: None,
            next_typing: now.mono,
        };
        running.keep(now, &text);
        Self { conversation, may_be_shown: is_inherited, running: Some(Box::new(running)) }
    }

    fn signal(&self, key: &SessionKey, kind: SignalKind) -> ConversationSignal {
        ConversationSignal { key: key.clone(), conversation: self.conversation.clone(), kind }
    }
}

impl RunningTurn {
    /// Appends a piece of text; returns whether a preview is due. A piece behind a gap is of no use.
    fn append(&mut self, now: Now, chunk: &TextChunk) -> bool {
        if chunk.kind == TextKind::Reasoning || chunk.attempt < self.attempt {
            return false;
        }
        if chunk.attempt > self.attempt {
            self.attempt = chunk.attempt;
            (self.text, self.end) = (String::new(), 0);
            (self.unshown_since, self.is_full) = (None, false);
        }
        let piece = chunk.text.reveal();
        let known = self.end.checked_sub(chunk.offset).and_then(|known| usize::try_from(known).ok());
        let Some(new) = known.and_then(|known| piece.get(known..)) else { return false };
        self.end += new.len() as u64;
        self.keep(now, new);
        self.preview_due().is_some_and(|at| at <= now.mono)
    }

    /// Keeps text, as much as a preview can show: a character takes at most four bytes.
    fn keep(&mut self, now: Now, text: &str) {
        let most = (self.text_limit.max as usize).clamp(64, limits::DELIVERY_TEXT_BYTES_MAX / 4) * 4;
        let room = most.saturating_sub(self.text.len());
        let kept = &text[..text.floor_char_boundary(room)];
        if !kept.is_empty() {
            self.text.push_str(kept);
            self.unshown_since.get_or_insert(now.mono);
        }
    }

    /// Returns the time of the next preview, if the text has changed since the last one. A short beginning waits for more.
    fn preview_due(&self) -> Option<Mono> {
        let since = self.unshown_since.filter(|_| !self.is_full && !self.is_unwanted)?;
        let is_short = self.text.len() < limits::PREVIEW_BYTES_MIN;
        let hold = if is_short { limits::PREVIEW_FIRST_WAIT } else { Duration::ZERO };
        let paced = self.last_preview.map_or(Mono::default(), |last| last + limits::PREVIEW_INTERVAL);
        Some((since + hold).max(paced))
    }

    fn next_due(&self) -> Mono {
        self.preview_due().map_or(self.next_typing, |at| at.min(self.next_typing))
    }

    /// Lets the signals that are due wait for a moment.
    fn postpone(&mut self, now: Now) {
        self.next_typing = self.next_typing.max(now.mono + limits::PREVIEW_INTERVAL);
        self.last_preview = Some(now.mono);
    }

    /// Returns the next preview; `None` if nothing is to be seen yet.
    fn preview(&mut self, now: Now, preview_id: &DeliveryId) -> Option<Preview> {
        let TextLimit { max, unit } = self.text_limit;
        let shown = preview_text(&self.text, max as usize, unit);
        (self.unshown_since, self.is_full) = (None, shown.is_cut);
        self.last_preview = Some(now.mono);
        (!shown.text.is_empty()).then(|| Preview {
            preview_id: preview_id.clone(),
            reply_to: self.message_id.clone(),
            text: Private(shown.text),
            deadline: now.store.after(limits::PREVIEW_AGE_MAX),
        })
    }
}
