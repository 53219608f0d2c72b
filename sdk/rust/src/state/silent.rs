//! Reactions of the state machine to a silent gateway: pings, the second connection, and giving up.
use super::{ClientState, Phase};
use crate::conversation::Conversation;
use crate::event::Event;
use crate::frame::Frame;
use crate::limits;
use crate::silence::Wish;
use serde_json::json;
use std::time::Duration;

impl ClientState {
    /// Handles the first message on the second connection. Returns true if the second connection replaces the first
    /// one; otherwise the second one is to be dropped.
    pub fn handle_spare(&mut self, now: Duration, text: &str) -> bool {
        let is_welcome = Frame::parse(text).is_some_and(|frame| frame.kind() == "welcome");
        if !is_welcome || !self.silence.is_spared() || !matches!(self.phase, Phase::Ready { .. }) {
            return false;
        }
        self.set_now(now);
        self.end_connection();
        let reason = "this connection is silent, and a second connection was accepted".to_owned();
        self.fx.tell(Event::Disconnected { reason, code: None, retry_in: Some(Duration::ZERO) });
        self.silence.begin(now);
        self.phase = Phase::Greeting { until: now + limits::WELCOME_TIMEOUT };
        self.handle_text(now, text);
        true
    }

    pub(super) fn handle_silence(&mut self) {
        match self.silence.wish(self.fx.now, self.is_waiting()) {
            Wish::Nothing => {}
            Wish::Ask => self.fx.send(json!({ "type": "ping", "ts": 0 }).to_string()),
            Wish::Spare => self.fx.spare(self.hello.message().to_string()),
            Wish::End => return self.hang_up("the gateway does not answer pings"),
        }
        self.pump();
    }

    /// Returns whether any session awaits an answer of the gateway.
    pub(super) fn is_waiting(&self) -> bool {
        self.conversations.values().any(Conversation::is_waiting)
    }
}
