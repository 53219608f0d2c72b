//! Presses of buttons below answers. The answer is looked for in the sessions that the conversation has had, whose present
//! state says where it went and whether it was pressed; the store accepts one press of it.
use super::inbound::{
    ConversationSession, InboundResult, InboundSession, InboundTurn, PendingInbound, conversation_input,
};
use std::collections::BTreeMap;
use turnway_core::id::{LinkId, Principal, SessionKey, UserId};
use turnway_core::mutant::{self, Mutant};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::delivery::{AccountKey, ButtonPress, ButtonSet, InputOrigin};
use turnway_core::protocol::input::Content;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::session::{RecentDelivery, State};
use turnway_wire::channel::adapter::{
    IgnoreReason, InboundCommand, InboundDisposition, InboundEvent, InboundReceipt, PressedButton,
};

/// The presses whose answer is being looked for, by a number of this node. Bounded by the requests that each link may have.
#[derive(Debug, Default)]
pub(super) struct ButtonPresses {
    waiting: BTreeMap<u64, PendingPress>,
    last: u64,
}

/// A press whose answer is being looked for.
#[derive(Debug)]
pub(super) struct PendingPress {
    pending: PendingInbound,
    account: AccountKey,
    /// The sessions that are still to be asked, the next one last.
    sessions: Vec<ConversationSession>,
    /// The session that is being asked.
    asked: Option<(SessionKey, InboundSession)>,
}

/// The next step of a press.
#[derive(Debug)]
pub(super) enum PressStep {
    /// Read the present state of a session.
    Read {
        number: u64,
        link: LinkId,
        key: SessionKey,
    },
    Result(LinkId, Box<InboundResult>),
}

// === impl ButtonPresses ===

impl ButtonPresses {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Begins to look for the answer below which a button was pressed.
    pub(super) fn begin(&mut self, press: PendingPress) -> PressStep {
        self.look_in_next(press)
    }

    fn look_in_next(&mut self, mut press: PendingPress) -> PressStep {
        let link = press.pending.link;
        let Some(ConversationSession { id, kind }) = press.sessions.pop() else {
            let why = "no session of the conversation has sent this message lately";
            let refusal = Refusal::new(Code::NotFound, why);
            return PressStep::Result(link, Box::new(InboundResult::Refused(press.pending, refusal)));
        };
        let key = SessionKey { tenant: press.account.tenant.clone(), session: id };
        press.asked = Some((key.clone(), kind));
        self.last += 1;
        self.waiting.insert(self.last, press);
        PressStep::Read { number: self.last, link, key }
    }

    /// Uses the latest answers of a session that have buttons; `None` if nobody waits for them.
    pub(super) fn use_answers(
        &mut self,
        number: u64,
        answers: Result<Vec<RecentDelivery>, Refusal>,
    ) -> Option<PressStep> {
        let press = self.waiting.remove(&number)?;
        let link = press.pending.link;
        let answers = match answers {
            Ok(answers) => answers,
            Err(refusal) => {
                return Some(PressStep::Result(link, Box::new(InboundResult::Refused(press.pending, refusal))));
            }
        };
        let Some(answer) = answers.into_iter().find(|answer| press.is_below(answer)) else {
            return Some(self.look_in_next(press));
        };
        Some(PressStep::Result(link, Box::new(press.decide(answer))))
    }
}

/// Returns the latest answers of a session that have buttons.
pub(in crate::switchboard) fn answers_with_buttons(state: &State) -> Vec<RecentDelivery> {
    state.deliveries.recent.iter().filter(|answer| answer.buttons.is_some()).cloned().collect()
}

// === impl PendingPress ===

impl PendingPress {
    /// Creates a press in a conversation that has had these sessions, the present one last.
    pub(super) fn new(pending: PendingInbound, account: &AccountKey, sessions: Vec<ConversationSession>) -> Self {
        Self { pending, account: account.clone(), sessions, asked: None }
    }

    fn button(&self) -> Option<&PressedButton> {
        if let InboundEvent::Decision(button) = &self.pending.inbound.event { Some(button) } else { None }
    }

    /// Returns whether the pressed button is below an answer, by what the adapter says.
    fn is_below(&self, answer: &RecentDelivery) -> bool {
        let InboundCommand { conversation, message_id, .. } = &self.pending.inbound;
        match self.button().and_then(|button| button.delivery_id.as_ref()) {
            Some(delivery_id) => answer.delivery_id == *delivery_id,
            None => answer.conversation.is_same_place(conversation) && answer.external_ids.contains(message_id),
        }
    }

    /// Decides what follows from the press of a button below an answer.
    fn decide(self, answer: RecentDelivery) -> InboundResult {
        let is_its_place = answer.conversation.is_same_place(&self.pending.inbound.conversation);
        if !is_its_place && !planted(Planted::PressFromElsewhere) {
            let refusal = Refusal::new(Code::Forbidden, "the message with the button is in another conversation");
            return InboundResult::Refused(self.pending, refusal);
        }
        let set = answer.buttons.clone().unwrap_or_default();
        let (Some(button), Some(asked)) = (self.button().cloned(), self.asked.clone()) else {
            let receipt = self.pending.receipt(InboundDisposition::Ignored);
            return InboundResult::Done(receipt);
        };
        let Some(label) = set.get(&button.button_id).map(|it| it.label.reveal().to_owned()) else {
            let refusal = Refusal::new(Code::NotFound, "the message has no button with this id");
            return InboundResult::Refused(self.pending, refusal);
        };
        let is_decided = answer.decided_by.as_ref().is_some_and(|first| *first != button.press_id);
        if is_decided && !set.reusable {
            let receipt = self.pending.receipt(InboundDisposition::Ignored);
            return InboundResult::Done(InboundReceipt { reason: Some(IgnoreReason::Decided), ..receipt });
        }
        InboundResult::Turn(Box::new(self.turn(asked, &set, answer, (button, label))), None)
    }

    /// Returns the turn of the press, in the session that has sent the answer.
    fn turn(
        self,
        (key, session): (SessionKey, InboundSession),
        set: &ButtonSet,
        answer: RecentDelivery,
        (button, label): (PressedButton, String),
    ) -> InboundTurn {
        let user = UserId::of_account(&self.account.channel, &self.account.account);
        let delivery_id = answer.delivery_id;
        let origin = self.pending.origin();
        let counts = set.reusable || mutant::planted(Mutant::PressesRace);
        let inbox_id = origin.conversation.inbox_press_id(&delivery_id, counts.then_some(&button.press_id));
        let decision = ButtonPress { delivery_id, button_id: button.button_id, press_id: button.press_id };
        let origin = InputOrigin { decision: Some(Box::new(decision)), ..origin };
        let PendingInbound { link, inbound: InboundCommand { request_id, .. }, .. } = self.pending;
        let principal = Principal { tenant: key.tenant.clone(), user: user.clone(), operator: true, writes: true };
        let input = conversation_input(&key, user, inbox_id, Content::Text(label), origin, None);
        InboundTurn { link, request_id, key, principal, input, session, route: None }
    }
}
