//! Messages from gateways and their answers: repeats results until they are read, and performs no action twice. A
//! gateway that requests or queries an action owns its session and receives its reports from then on.
use crate::io::{GatewayIndex, Output};
use crate::journal::ToolOutcome;
use crate::machine::{ActionState, KnownAction, ToolExecutor, UnreadResults};
use crate::messages::{self, ExecuteMessage, GatewayMessage};
use crate::process::ProcessStopCause;
use std::time::Duration;
use turnway_core::id::{EventId, QualifiedAction, SessionKey};
use turnway_core::limits;
use turnway_core::time::Now;
use turnway_wire::runner::UNKNOWN_ACTION_CODE;

// === impl ToolExecutor ===

impl ToolExecutor {
    pub(super) fn handle_message(&mut self, now: Now, gate: GatewayIndex, message: GatewayMessage) {
        match message {
            GatewayMessage::Execute(request) => {
                self.owner_gateways.insert(request.action_id, gate);
                self.execute(now, gate, &request);
                self.drop_owner_if_unknown(request.action_id);
            }
            GatewayMessage::Signal { action_id } if self.is_known(&action_id) => {
                self.stop(now, action_id.id, ProcessStopCause::Canceled);
                self.flush_effects();
            }
            GatewayMessage::Query { action_id } if self.is_known(&action_id) => {
                self.owner_gateways.insert(action_id.id, gate);
                self.report_state(now, gate, action_id.id);
                self.drop_owner_if_unknown(action_id.id);
            }
            GatewayMessage::Query { action_id } => {
                let unknown = ToolOutcome::failure(UNKNOWN_ACTION_CODE, "the action is unknown to this runner");
                self.push_output(Output::Send(gate, messages::result(now.store, &action_id, &unknown)));
            }
            GatewayMessage::Signal { .. } => {}
            GatewayMessage::Pong => {
                self.gateways.get_mut(&gate).into_iter().for_each(|unread| unread.awaiting_pong.clear());
                self.send_results(now);
            }
            GatewayMessage::Welcome
            | GatewayMessage::Error { .. }
            | GatewayMessage::GoAway
            | GatewayMessage::UnknownType => {}
        }
    }

    /// Performs a requested action; a known action is not repeated, its state is reported instead (EV-N5, EV-N6).
    fn execute(&mut self, now: Now, gate: GatewayIndex, request: &ExecuteMessage) {
        let id = request.action_id;
        let name = QualifiedAction::of(request.session.key(), id);
        if self.is_known(&name) {
            return self.report_state(now, gate, id);
        }
        let age = Duration::from_millis(request.ts.0.saturating_sub(created_at(id)));
        let refused = if self.actions.contains_key(&id) {
            ToolOutcome::failure(UNKNOWN_ACTION_CODE, "the action id is in use by another session")
        } else if age > limits::TOOL_EXECUTOR_REQUEST_AGE_MAX {
            ToolOutcome::failure(UNKNOWN_ACTION_CODE, "the request is too old to be started")
        } else if !self.has_room(request.ts.0) {
            ToolOutcome::failure("busy", "too many actions in a short time; try again later")
        } else {
            return self.begin(now, request);
        };
        self.push_output(Output::Send(gate, messages::result(now.store, &name, &refused)));
    }

    /// Returns whether the executor knows an action, as one of the named session if a session is named. Journals of
    /// earlier releases contain plain session ids for all tenants; such actions match any tenant.
    fn is_known(&self, action: &QualifiedAction) -> bool {
        self.actions.get(&action.id).is_some_and(|known| {
            let key = known.session.key();
            let is_bare = |named: &SessionKey| key.tenant.is_default() && key.session == named.session;
            action.session.as_ref().is_none_or(|named| named == key || is_bare(named))
        })
    }

    /// Reports the state of a known action.
    fn report_state(&mut self, now: Now, gate: GatewayIndex, id: EventId) {
        match self.actions.get(&id).map(|known| &known.state) {
            None => {}
            Some(ActionState::Running(process)) => {
                let pid = process.pid;
                self.push_output(Output::Send(gate, messages::invoked(now.store, &self.qualified_id(id), pid)));
            }
            Some(ActionState::Ended(outcome)) if self.gateways.get(&gate).is_some_and(|unread| unread.contains(id)) => {
                let again = messages::result(now.store, &self.qualified_id(id), outcome);
                self.push_output(Output::Send(gate, again));
            }
            Some(ActionState::Ended(_)) => {
                self.unsent_results.insert(id);
                self.send_results(now);
            }
        }
    }

    /// Sends results up to the limit of unread ones per gateway, and sends a ping to learn which results have been
    /// read.
    pub(super) fn send_results(&mut self, now: Now) {
        let known = &self.actions;
        let whom = &self.owner_gateways;
        let unsaid = &mut self.unsent_results;
        for (gate, unread) in &mut self.gateways {
            while unread.sent.len() + unread.awaiting_pong.len() < limits::RESULTS_UNACKED_MAX {
                // A result that no gateway has asked for since the start is sent to any connected gateway.
                let mut its = unsaid.iter().filter(|id| whom.get(id).is_none_or(|whom| whom == gate));
                let Some(id) = its.next().copied() else { break };
                unsaid.remove(&id);
                let Some(KnownAction { session, state: ActionState::Ended(outcome), .. }) = known.get(&id) else {
                    continue;
                };
                let name = QualifiedAction::of(session.key(), id);
                self.outputs.push_back(Output::Send(*gate, messages::result(now.store, &name, outcome)));
                unread.sent.insert(id);
            }
            if unread.awaiting_pong.is_empty() && !unread.sent.is_empty() {
                unread.awaiting_pong = std::mem::take(&mut unread.sent);
                self.outputs.push_back(Output::Send(*gate, messages::ping(now.store)));
            }
        }
    }

    /// Handles the loss of a gateway: results that it may not have read are sent again.
    pub(super) fn gateway_closed(&mut self, gate: GatewayIndex) {
        if let Some(mut gone) = self.gateways.remove(&gate) {
            self.unsent_results.append(&mut gone.sent);
            self.unsent_results.append(&mut gone.awaiting_pong);
        }
    }

    /// Returns the gateway that receives an action's reports, if it is connected.
    pub(super) fn owner_gateway(&self, id: EventId) -> Option<GatewayIndex> {
        self.owner_gateways.get(&id).copied().filter(|gate| self.gateways.contains_key(gate))
    }

    /// Returns whether a gateway is connected that an action's result can be sent to.
    pub(super) fn has_receiver(&self, id: EventId) -> bool {
        match self.owner_gateways.get(&id) {
            Some(gate) => self.gateways.contains_key(gate),
            None => !self.gateways.is_empty(),
        }
    }

    // --- memory limits ---

    /// Returns whether one more action may be remembered at this gateway time; drops the oldest ended action if it
    /// is old enough.
    fn has_room(&mut self, ts: u64) -> bool {
        if self.actions.len() < limits::TOOL_EXECUTOR_ACTIONS_KEPT_MAX {
            return true;
        }
        let keep = u64::try_from(limits::TOOL_EXECUTOR_ACTIONS_KEPT_MIN.as_millis()).unwrap_or(u64::MAX);
        // Ids begin with their creation time, so the first ids are the oldest.
        let old =
            self.actions.iter().find(|(_, known)| matches!(known.state, ActionState::Ended(_))).map(|(id, _)| *id);
        let Some(old) = old.filter(|id| created_at(*id).saturating_add(keep) < ts) else { return false };
        self.forget(old);
        true
    }

    /// Drops the oldest actions over the limit; a journal of an earlier release may hold more.
    pub(super) fn drop_excess(&mut self, max: usize) {
        while self.actions.len() > max {
            let Some(old) = self.actions.keys().next().copied() else { return };
            self.forget(old);
        }
    }

    fn forget(&mut self, id: EventId) {
        self.actions.remove(&id);
        self.unsent_results.remove(&id);
        self.owner_gateways.remove(&id);
        for unread in self.gateways.values_mut() {
            unread.sent.remove(&id);
            unread.awaiting_pong.remove(&id);
        }
    }

    /// Drops the gateway of an action that is not remembered.
    fn drop_owner_if_unknown(&mut self, id: EventId) {
        if !self.actions.contains_key(&id) {
            self.owner_gateways.remove(&id);
        }
    }
}

impl UnreadResults {
    fn contains(&self, id: EventId) -> bool {
        self.sent.contains(&id) || self.awaiting_pong.contains(&id)
    }
}

/// Returns the creation time of an action from its UUIDv7 (RFC 9562 §5.7), in Unix milliseconds.
fn created_at(id: EventId) -> u64 {
    u64::try_from(id.0.as_u128() >> 80).unwrap_or(u64::MAX)
}
