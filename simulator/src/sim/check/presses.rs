//! Checks what is promised of buttons: the first press of an answer is one input of the session that has sent the answer,
//! whichever nodes it was brought to, and later presses lead to nothing; where each press counts, each is one input.
use crate::sim::buttons::{self, PressAnswer};
use crate::sim::fixtures;
use crate::sim::world::World;
use std::collections::BTreeMap;
use turnway_core::id::{DeliveryId, RequestId, RunId, SessionKey};
use turnway_core::protocol::delivery::ButtonPress;
use turnway_core::protocol::input::Input;
use turnway_core::protocol::refusal::Code;

/// The presses that a store has accepted, by their answers, with the turns that they led to.
#[derive(Debug, Default)]
pub(crate) struct PressRecord(BTreeMap<DeliveryId, BTreeMap<RequestId, RunId>>);

impl World {
    /// Checks the input of a press, which the store has accepted.
    pub(super) fn check_press(&mut self, key: &SessionKey, input: &Input, press: &ButtonPress) {
        let place = input.origin.as_ref().map(|origin| &origin.conversation);
        let history = self.history_of(key);
        let answer = history.deliveries.get(&press.delivery_id).map(|it| &it.requested);
        let answer = answer.unwrap_or_else(|| panic!("a press is an input of the session of its answer: {press:?}"));
        assert_eq!(place, Some(&answer.conversation), "G7: a press counts in the room of its answer: {press:?}");
        let label = answer.buttons.as_ref().and_then(|set| set.get(&press.button_id)).map(|it| it.label.reveal());
        let text = input.message.content.plain_text();
        assert!(label.is_some_and(|label| *label == text), "a press says what is on its button: {press:?}");
        let known = self.platform.pressed.0.entry(press.delivery_id.clone()).or_default();
        let counts = known.is_empty() || buttons::is_reusable(fixtures::number(&input.message));
        assert!(counts, "BD-I4: the first press of an answer counts alone: {press:?} after {known:?}");
        let other = known.insert(press.press_id.clone(), input.run_id.clone());
        assert_eq!(other, None, "BD-I4: a press is one input: {press:?}");
    }

    /// Checks the answer to a press.
    pub(crate) fn check_press_answer(&self, n: usize, answer: &PressAnswer) {
        if self.rewinds {
            return;
        }
        let push = &self.platform.presses[n];
        let known = self.platform.pressed.0.get(&push.delivery_id);
        let mine = known.and_then(|known| known.get(&buttons::press_id(n)));
        let is_true = match answer {
            PressAnswer::Turn(run_id) => mine == Some(run_id),
            PressAnswer::Decided => mine.is_none() && known.is_some(),
            PressAnswer::Refused(_) => mine.is_none(),
        };
        assert!(is_true, "BD-I4: a press is answered by what became of it: {answer:?} to {push:?}, not {known:?}");
    }

    /// Checks the refusal of a press: a room that nobody has bound knows its latest answers.
    pub(crate) fn check_press_refusal(&self, n: usize, code: Code) {
        let push = &self.platform.presses[n];
        let tenant = crate::sim::platform::tenant();
        let key = SessionKey { tenant: tenant.clone(), session: push.place.own_session(&tenant) };
        let is_plain = self.platform.bindings.generations(&push.place.key(&tenant)).is_empty();
        let is_there = self.model.session(&key).is_some_and(|slot| !slot.deleted);
        let is_asked = code == Code::NotFound && push.is_named();
        if self.rewinds || !is_plain || !is_there || !is_asked {
            return;
        }
        let state = self.ledger.chronicles.get(&key).map(|chronicle| chronicle.state(turnway_core::id::Seq(u64::MAX)));
        let is_known = |state: &turnway_core::session::State| {
            state.deliveries.recent.iter().any(|recent| recent.delivery_id == push.delivery_id)
        };
        assert!(!state.as_ref().is_some_and(is_known), "BD-I4: the answer to a press is found: {push:?}");
    }

    /// Returns the reason why presses have not settled.
    pub(super) fn unpressed_reason(&self) -> Option<String> {
        let push = self.platform.presses.iter().find(|push| push.answer.is_none())?;
        Some(format!("G9: a press is answered: {push:?}"))
    }

    /// Checks that each answer with a press that was not refused has an input.
    pub(super) fn check_presses(&self) {
        for push in &self.platform.presses {
            let counts = push.answer.as_ref().is_some_and(|answer| !matches!(answer, PressAnswer::Refused(_)));
            let has_input = self.platform.pressed.0.contains_key(&push.delivery_id);
            assert!(!counts || has_input, "BD-I4: the first press of an answer is an input: {push:?}");
        }
    }
}
