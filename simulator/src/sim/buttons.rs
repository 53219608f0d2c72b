//! Buttons in the simulated world: agents put them below answers to rooms, and several people press the buttons of one
//! answer at about the same time. Adapters bring each press until it is answered, and sometimes again.
use super::platform::{self, Brought, Post};
use super::tasks::STEP;
use super::world::{ScheduledEvent, World};
use serde_json::json;
use turnway_core::id::{AgentEventId, DeliveryId, MessageId, RequestId, RunId, ToolName};
use turnway_core::protocol::action::{ActionRequest, ActionSpec};
use turnway_core::protocol::agent::AgentEvent;
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::json::Json;
use turnway_core::protocol::message_action::BUTTONS_TOOL;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_wire::channel::adapter::{IgnoreReason, InboundDisposition, InboundEvent, InboundReceipt, PressedButton};

/// The difference between the number of a message and that of the press of the first button below its answer.
const PRESS: u64 = 100_000;
/// The buttons below an answer.
const BUTTONS: [&str; 2] = ["yes", "no"];
/// The number of times that a press is brought whose message no session knows.
const TRIES_MAX: u32 = 4;

/// A press of a button.
#[derive(Debug)]
pub(crate) struct ButtonPush {
    account: usize,
    pub(crate) delivery_id: DeliveryId,
    pub(crate) place: ConversationRef,
    external_id: MessageId,
    button: &'static str,
    /// The adapter names the delivery; otherwise only the message.
    names_delivery: bool,
    tries: u32,
    pub(crate) answer: Option<PressAnswer>,
}

/// The gateway's answer to a press.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PressAnswer {
    Turn(RunId),
    /// Another press of the answer came first.
    Decided,
    /// The answer is not known, or takes no presses any more.
    Refused(Code),
}

/// Returns whether the answer to a message has buttons.
fn has_buttons(n: u64) -> bool {
    n > STEP && n < PRESS && n % 4 == 1
}

/// Returns whether every press of the buttons counts that belong to the input with this number.
pub(crate) fn is_reusable(n: u64) -> bool {
    (n % PRESS).is_multiple_of(5)
}

/// Returns whether an input with this number is the press of a button. Several presses may have one number.
pub(crate) fn is_press(n: u64) -> bool {
    n > PRESS
}

/// Returns the platform's id of a press.
pub(crate) fn press_id(n: usize) -> RequestId {
    RequestId::parse(&format!("press{n}")).expect("a name")
}

impl ButtonPush {
    /// Returns whether the adapter names the delivery of the button.
    pub(crate) fn is_named(&self) -> bool {
        self.names_delivery
    }
}

impl World {
    /// Adds buttons to the events with which an agent answers a message.
    pub(super) fn with_buttons(&mut self, n: u64, mut says: Vec<AgentEvent>) -> Vec<AgentEvent> {
        if !has_buttons(n) || says.first() != Some(&AgentEvent::Acked) {
            return says;
        }
        let mut buttons = Vec::new();
        for (at, id) in (1..).zip(BUTTONS) {
            let pressed = at * PRESS + n;
            self.plan_turn(pressed, n);
            buttons.push(json!({ "id": id, "label": format!("{pressed} {id}") }));
        }
        let args = json!({ "buttons": buttons, "reusable": is_reusable(n) });
        let tool = ToolName::parse(BUTTONS_TOOL).expect("a tool's name");
        let what = ActionSpec::ToolCall { tool, args: Json(args) };
        let name = AgentEventId::parse("buttons").ok();
        says.insert(1, AgentEvent::Action { request: Box::new(ActionRequest { name, what, timeout: None }), id: None });
        says
    }

    /// Lets people press the buttons of a message that has just appeared in its room.
    pub(super) fn press_buttons(&mut self, post: &Post) {
        let first = self.rng.below(2500);
        for _ in 0..1 + self.rng.below(3) {
            let n = self.platform.presses.len();
            let button = BUTTONS[self.rng.below(2) as usize];
            self.platform.presses.push(ButtonPush {
                account: post.account,
                delivery_id: post.delivery_id.clone(),
                place: post.place.clone(),
                external_id: post.external_id.clone(),
                button,
                names_delivery: !n.is_multiple_of(4),
                tries: 0,
                answer: None,
            });
            self.later(first, first + 400, ScheduledEvent::Platform(Box::new(platform::Step::BringPress { n })));
        }
    }

    /// Brings a press on any connection of its account. It is brought again until it was answered, and sometimes after.
    pub(super) fn bring_press(&mut self, n: usize) {
        let push = &self.platform.presses[n];
        let account = push.account;
        let is_answered = push.answer.is_some();
        let press = PressedButton {
            press_id: press_id(n),
            button_id: push.button.to_owned(),
            delivery_id: push.names_delivery.then(|| push.delivery_id.clone()),
        };
        let message_id = push.external_id.clone();
        let place = push.place.clone();
        if is_answered && !self.rng.chance(20) {
            return;
        }
        self.later(2000, 6000, ScheduledEvent::Platform(Box::new(platform::Step::BringPress { n })));
        let Some(line) = self.line_of_account(account) else { return };
        self.give_inbound(line, Brought::Press(n), message_id, place, InboundEvent::Decision(Box::new(press)));
    }

    /// Handles the receipt of a press.
    pub(super) fn was_pressed(&mut self, n: usize, receipt: &InboundReceipt) {
        let answer = match (receipt.disposition, &receipt.run_id) {
            (InboundDisposition::Run, Some(run_id)) => PressAnswer::Turn(run_id.clone()),
            (InboundDisposition::Ignored, None) if receipt.reason == Some(IgnoreReason::Decided) => {
                PressAnswer::Decided
            }
            (InboundDisposition::Run | InboundDisposition::Ignored | InboundDisposition::Recorded, _) => {
                panic!("a press is a turn, or comes too late: {receipt:?}")
            }
        };
        self.check_press_answer(n, &answer);
        self.platform.presses[n].answer = Some(answer);
    }

    /// Handles the refusal of a press.
    pub(super) fn press_was_refused(&mut self, request_id: &RequestId, refusal: &Refusal) {
        let Some(Brought::Press(n)) = self.platform.take_press(request_id) else { return };
        let push = &mut self.platform.presses[n];
        push.tries += 1;
        // The receipt of the message may not be recorded yet.
        let is_early = !push.names_delivery && refusal.code == Code::NotFound && push.tries < TRIES_MAX;
        if refusal.code.retryable() || is_early || push.answer.is_some() {
            return;
        }
        push.answer = Some(PressAnswer::Refused(refusal.code));
        self.check_press_refusal(n, refusal.code);
    }
}
