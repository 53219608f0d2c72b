//! Reactions of the state machine to a silent gateway: pings, the second connection, and giving up.
use super::{ClientState, ConnectionPhase};
use crate::conversation::SessionTracker;
use crate::event::Event;
use crate::frame::IncomingMessage;
use crate::keepalive::KeepaliveAction;
use crate::limits;
use serde_json::json;
use std::time::Duration;

impl ClientState {
    /// Handles the first message on the second connection. Returns true if the second connection replaces the first
    /// one; otherwise the second one is to be dropped.
    pub fn handle_spare(&mut self, now: Duration, text: &str) -> bool {
        let is_welcome = IncomingMessage::parse(text).is_some_and(|frame| frame.kind() == "welcome");
        if !is_welcome || !self.keepalive.has_spare() || !matches!(self.phase, ConnectionPhase::Ready { .. }) {
            return false;
        }
        self.set_now(now);
        self.end_connection();
        let reason = "this connection is silent, and a second connection was accepted".to_owned();
        self.out.emit(Event::Disconnected { reason, code: None, retry_in: Some(Duration::ZERO) });
        self.keepalive.begin(now);
        self.phase = ConnectionPhase::Greeting { until: now + limits::WELCOME_TIMEOUT };
        self.handle_text(now, text);
        true
    }

    pub(super) fn handle_silence(&mut self) {
        match self.keepalive.take_due_action(self.out.now, self.awaits_answer()) {
            KeepaliveAction::Nothing => {}
            KeepaliveAction::Ping => self.out.send(json!({ "type": "ping", "ts": 0 }).to_string()),
            KeepaliveAction::DialSpare => self.out.dial_spare(self.hello.message().to_string()),
            KeepaliveAction::GiveUp => return self.hang_up("the gateway does not answer pings"),
        }
        self.send_due();
    }

    /// Returns whether any session awaits an answer of the gateway.
    pub(super) fn awaits_answer(&self) -> bool {
        self.sessions.values().any(SessionTracker::awaits_answer)
    }
}
