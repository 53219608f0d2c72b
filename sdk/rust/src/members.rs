//! Members of a session: what an application asks about them, and the gateway's answers. Called by the session's
//! client; keeps no list of members.
use crate::conversation::SessionTracker;
use crate::event::{Event, FactPosition, Members};
use crate::frame::IncomingMessage;
use crate::output::Outbound;
use crate::refusals::failure_of;
use serde_json::Value;

/// A change of a session's members, for [`crate::Session::change_members`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberChange {
    /// Type of the message.
    pub(crate) name: &'static str,
    agent: String,
    is_active: bool,
    reason: Option<String>,
}

// === impl MemberChange ===

impl MemberChange {
    fn new(name: &'static str, agent: impl Into<String>) -> Self {
        Self { name, agent: agent.into(), is_active: false, reason: None }
    }
    /// Makes a member the one that answers messages without an addressee.
    pub fn switch(agent: impl Into<String>) -> Self {
        Self::new("switch_agent", agent)
    }
    /// Makes an agent a member. Inviting a member has no effect.
    pub fn invite(agent: impl Into<String>) -> Self {
        Self::new("invite_agent", agent)
    }
    /// Removes a member from the session; if it is answering, its turn is cancelled first.
    pub fn remove(agent: impl Into<String>) -> Self {
        Self::new("remove_agent", agent)
    }
    /// With [`MemberChange::invite`]: makes the agent also answer messages without an addressee.
    #[must_use]
    pub fn active(mut self) -> Self {
        self.is_active = self.name == "invite_agent";
        self
    }
    /// Adds a line for people, at most 1 KiB.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Adds the fields of the message to its body.
    pub(crate) fn write(&self, body: &mut Value) {
        body["agent_id"] = self.agent.clone().into();
        if self.is_active {
            body["active"] = true.into();
        }
        if let Some(reason) = &self.reason {
            body["reason"] = reason.clone().into();
        }
    }
}

// === impl Members ===

impl Members {
    /// Reads the members; values that are not names are left out.
    fn read(session: &str, frame: &IncomingMessage) -> Self {
        let agents = frame.get("agents").and_then(Value::as_array).into_iter().flatten();
        Self {
            session: session.to_owned(),
            agents: agents.filter_map(Value::as_str).map(str::to_owned).collect(),
            active_agent: frame.string("active_agent"),
        }
    }
}

// === impl SessionTracker ===

impl SessionTracker {
    /// Handles the answer to a change of members; ignores one that is not awaited.
    pub(crate) fn handle_members(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        if self.answer_change(frame).is_some() {
            fx.emit(Event::Members(Members::read(&self.id, frame)));
        }
    }

    /// Handles an `error` that is a fact. The failure of this client's own request is reported as an error, that of
    /// another client as a note.
    pub(crate) fn handle_failed_change(
        &mut self,
        position: Option<FactPosition>,
        frame: &IncomingMessage,
        fx: &mut Outbound,
    ) {
        let Some(name) = self.answer_change(frame) else { return self.handle_note(position, frame, fx) };
        let mut failure = failure_of(frame);
        failure.session = Some(self.id.clone());
        failure.request_type = name.to_owned();
        fx.emit(Event::Error(Box::new(failure)));
    }

    /// Removes the change of members that a message answers; returns the name of its request.
    fn answer_change(&mut self, frame: &IncomingMessage) -> Option<&'static str> {
        let id = frame.text("request_id")?;
        let at = self.requests.iter().position(|ask| ask.request_id == id && ask.is_change_of_members())?;
        Some(self.requests.remove(at).name())
    }
}
