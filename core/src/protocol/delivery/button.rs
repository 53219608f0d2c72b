//! Buttons below an answer in a conversation: an agent sets them with an action of its turn, and what somebody presses
//! becomes an input of the session.
use crate::id::{DeliveryId, RequestId};
use crate::limits;
use crate::private::Private;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The buttons of one message, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ButtonSet {
    pub buttons: Vec<Button>,
    /// Every press is an input; otherwise only the first one is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reusable: bool,
}

/// A button below a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Button {
    /// The agent's name for the button; the press has it.
    pub id: String,
    pub label: Private<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub style: Option<ButtonStyle>,
}

/// The look of a button, as far as the platform can show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ButtonStyle {
    Primary,
    Secondary,
    Success,
    Danger,
}

/// The way in which an adapter shows buttons in a conversation, by the level of its capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ButtonDisplay {
    /// The adapter refuses them, so the agent is refused.
    Rejected,
    /// They are left out.
    Dropped,
    /// Their labels are lines below the answer.
    Text,
    Native,
}

/// A button that somebody has pressed, as the origin of an input records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ButtonPress {
    /// The delivery that the button belongs to.
    pub delivery_id: DeliveryId,
    pub button_id: String,
    /// The platform's id of the press: the same press may be reported again.
    pub press_id: RequestId,
}

// === impl ButtonStyle ===

impl ButtonStyle {
    /// All styles, for the schema.
    pub const ALL: [Self; 4] = [Self::Primary, Self::Secondary, Self::Success, Self::Danger];

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Secondary => "secondary",
            Self::Success => "success",
            Self::Danger => "danger",
        }
    }
}

// === impl ButtonDisplay ===

impl ButtonDisplay {
    /// Returns the display for a level; an adapter that declares none has level 0.
    pub fn of_level(level: Option<i8>) -> Self {
        match level.unwrap_or_default() {
            ..=-2 => Self::Rejected,
            -1 => Self::Dropped,
            0 => Self::Text,
            1.. => Self::Native,
        }
    }

    /// Returns the name in the result of the agent's action.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Dropped => "dropped",
            Self::Text => "text",
            Self::Native => "buttons",
        }
    }
}

// === impl ButtonSet ===

impl ButtonSet {
    /// Checks the number, the ids and the labels; an empty set is one that takes earlier buttons back.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.buttons.len() > limits::BUTTONS_MAX {
            return Err("a message has at most 25 buttons");
        }
        if !self.buttons.iter().all(|button| Self::is_button_id(&button.id)) {
            return Err("the `id` of a button has 1 to 32 visible ASCII characters");
        }
        let is_label = |label: &str| {
            let count = label.chars().count();
            // A press is an input with the label as its text, and a text that begins with a comma may be a command.
            !label.trim().is_empty()
                && !label.trim_start().starts_with(',')
                && count <= limits::BUTTON_LABEL_CHARACTERS_MAX
                && !label.chars().any(char::is_control)
        };
        if !self.buttons.iter().all(|button| is_label(button.label.reveal())) {
            return Err("the `label` of a button is one line of 1 to 80 characters that does not begin with a comma");
        }
        let is_repeated = |at: usize| self.buttons[..at].iter().any(|other| other.id == self.buttons[at].id);
        if (1..self.buttons.len()).any(is_repeated) {
            return Err("two buttons have the same `id`");
        }
        Ok(())
    }

    /// Returns whether a text may be the id of a button.
    pub fn is_button_id(text: &str) -> bool {
        (1..=limits::BUTTON_ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    }

    /// Returns the button with an id.
    pub fn get(&self, id: &str) -> Option<&Button> {
        self.buttons.iter().find(|button| button.id == id)
    }

    /// Appends the labels as numbered lines to an answer.
    pub fn append_as_text(&self, text: &mut String) {
        text.push('\n');
        for (at, button) in self.buttons.iter().enumerate() {
            // Writing to a text does not fail.
            _ = write!(text, "\n{}. {}", at + 1, button.label.reveal());
        }
    }

    /// Returns the bytes of ids and labels.
    pub fn bytes(&self) -> usize {
        self.buttons.iter().map(|button| button.id.len() + button.label.reveal().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> ButtonSet {
        let button = |(id, label): &(&str, &str)| Button {
            id: (*id).to_owned(),
            label: (*label).to_owned().into(),
            style: None,
        };
        ButtonSet { buttons: pairs.iter().map(button).collect(), reusable: false }
    }

    #[test]
    fn buttons_are_refused_past_their_limits() {
        let long_id = "i".repeat(limits::BUTTON_ID_BYTES_MAX);
        let long_label = "ü".repeat(limits::BUTTON_LABEL_CHARACTERS_MAX);
        assert_eq!(set(&[(&long_id, &long_label), ("b", "B")]).check(), Ok(()));
        assert_eq!(set(&[]).check(), Ok(()));
        let longer_id = format!("{long_id}i");
        let longer_label = format!("{long_label}x");
        let ids = [("", "A"), ("a b", "A"), ("é", "A"), (&longer_id, "A")];
        for bad in ids.into_iter().chain([("a", ""), ("a", " "), ("a", "A\nB"), ("a", " ,cancel")]) {
            assert!(set(&[bad]).check().is_err(), "{bad:?}");
        }
        assert!(set(&[("a", &longer_label)]).check().is_err());
        assert!(set(&[("a", "A"), ("b", "B"), ("a", "C")]).check().is_err());
        let ids: Vec<String> = (0..=limits::BUTTONS_MAX).map(|n| n.to_string()).collect();
        let many: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), "A")).collect();
        assert_eq!(set(&many[1..]).check(), Ok(()));
        assert!(set(&many).check().is_err());
    }

    /// Covers: BR-36.
    #[test]
    fn buttons_without_the_capability_are_numbered_lines() {
        let mut text = "Go on?".to_owned();
        set(&[("y", "Yes"), ("n", "No")]).append_as_text(&mut text);
        assert_eq!(text, "Go on?\n\n1. Yes\n2. No");
        let levels = [None, Some(-2), Some(-1), Some(0), Some(1), Some(2)].map(ButtonDisplay::of_level);
        let expected = ["text", "rejected", "dropped", "text", "buttons", "buttons"];
        assert_eq!(levels.map(ButtonDisplay::as_str), expected);
    }
}
