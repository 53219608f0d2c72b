//! Messages from gateways and their answers: repeats results until they are read, and performs no action twice. A
//! gateway that requests or queries an action owns its session and receives its reports from then on.
use super::io::{Gate, Output};
use super::machine::{Known, State, Toolbox, Unread};
use super::process::Why;
use super::record::Outcome;
use super::words::{self, Asked, Told};
use crate::runner::words::UNKNOWN_ACTION;
use std::time::Duration;
use turnway_core::id::{EventId, QualifiedAction, SessionKey};
use turnway_core::limits;
use turnway_core::time::Now;

// === impl Toolbox ===

impl Toolbox {
    pub(super) fn heard(&mut self, now: Now, gate: Gate, told: Told) {
        match told {
            Told::Execute(asked) => {
                self.whom.insert(asked.action_id, gate);
                self.execute(now, gate, &asked);
                self.keep_known(asked.action_id);
            }
            Told::Signal { action_id } if self.is_known(&action_id) => {
                self.stop(now, action_id.id, Why::Canceled);
                self.effects();
            }
            Told::Query { action_id } if self.is_known(&action_id) => {
                self.whom.insert(action_id.id, gate);
                self.answer(now, gate, action_id.id);
                self.keep_known(action_id.id);
            }
            Told::Query { action_id } => {
                let unknown = Outcome::failed(UNKNOWN_ACTION, "the action is unknown to this runner");
                self.output(Output::Say(gate, words::result(now.store, &action_id, &unknown)));
            }
            Told::Signal { .. } => {}
            Told::Pong => {
                self.gates.get_mut(&gate).into_iter().for_each(|unread| unread.asked.clear());
                self.say(now);
            }
            Told::Welcome | Told::Error { .. } | Told::GoAway | Told::Other => {}
        }
    }

    /// Performs a requested action; a known action is not repeated, its state is reported instead (EV-N5, EV-N6).
    fn execute(&mut self, now: Now, gate: Gate, asked: &Asked) {
        let id = asked.action_id;
        let name = QualifiedAction::of(asked.session.key(), id);
        if self.is_known(&name) {
            return self.answer(now, gate, id);
        }
        let age = Duration::from_millis(asked.ts.0.saturating_sub(asked_at(id)));
        let refused = if self.known.contains_key(&id) {
            Outcome::failed(UNKNOWN_ACTION, "the action id is in use by another session")
        } else if age > limits::TOOLBOX_AGE_MAX {
            Outcome::failed(UNKNOWN_ACTION, "the request is too old to be started")
        } else if !self.has_room(asked.ts.0) {
            Outcome::failed("busy", "too many actions in a short time; try again later")
        } else {
            return self.begin(now, asked);
        };
        self.output(Output::Say(gate, words::result(now.store, &name, &refused)));
    }

    /// Returns whether the executor knows an action, as one of the named session if a session is named. Journals of
    /// earlier releases contain plain session ids for all tenants; such actions match any tenant.
    fn is_known(&self, action: &QualifiedAction) -> bool {
        self.known.get(&action.id).is_some_and(|known| {
            let key = known.session.key();
            let is_bare = |named: &SessionKey| key.tenant.is_default() && key.session == named.session;
            action.session.as_ref().is_none_or(|named| named == key || is_bare(named))
        })
    }

    /// Reports the state of a known action.
    fn answer(&mut self, now: Now, gate: Gate, id: EventId) {
        match self.known.get(&id).map(|known| &known.state) {
            None => {}
            Some(State::Running(process)) => {
                let pid = process.pid;
                self.output(Output::Say(gate, words::invoked(now.store, &self.name(id), pid)));
            }
            Some(State::Ended(outcome)) if self.gates.get(&gate).is_some_and(|unread| unread.has(id)) => {
                let again = words::result(now.store, &self.name(id), outcome);
                self.output(Output::Say(gate, again));
            }
            Some(State::Ended(_)) => {
                self.unsaid.insert(id);
                self.say(now);
            }
        }
    }

    /// Sends results up to the limit of unread ones per gateway, and sends a ping to learn which results have been
    /// read.
    pub(super) fn say(&mut self, now: Now) {
        let (known, whom, unsaid) = (&self.known, &self.whom, &mut self.unsaid);
        for (gate, unread) in &mut self.gates {
            while unread.said.len() + unread.asked.len() < limits::RESULTS_UNREAD_MAX {
                // A result that no gateway has asked for since the start is sent to any connected gateway.
                let mut its = unsaid.iter().filter(|id| whom.get(id).is_none_or(|whom| whom == gate));
                let Some(id) = its.next().copied() else { break };
                unsaid.remove(&id);
                let Some(Known { session, state: State::Ended(outcome), .. }) = known.get(&id) else {
                    continue;
                };
                let name = QualifiedAction::of(session.key(), id);
                self.outputs.push_back(Output::Say(*gate, words::result(now.store, &name, outcome)));
                unread.said.insert(id);
            }
            if unread.asked.is_empty() && !unread.said.is_empty() {
                unread.asked = std::mem::take(&mut unread.said);
                self.outputs.push_back(Output::Say(*gate, words::ping(now.store)));
            }
        }
    }

    /// Handles the loss of a gateway: results that it may not have read are sent again.
    pub(super) fn closed(&mut self, gate: Gate) {
        if let Some(mut gone) = self.gates.remove(&gate) {
            self.unsaid.append(&mut gone.said);
            self.unsaid.append(&mut gone.asked);
        }
    }

    /// Returns the gateway that receives an action's reports, if it is connected.
    pub(super) fn asker(&self, id: EventId) -> Option<Gate> {
        self.whom.get(&id).copied().filter(|gate| self.gates.contains_key(gate))
    }

    /// Returns whether a gateway is connected that an action's result can be sent to.
    pub(super) fn may_hear(&self, id: EventId) -> bool {
        match self.whom.get(&id) {
            Some(gate) => self.gates.contains_key(gate),
            None => !self.gates.is_empty(),
        }
    }

    // --- memory limits ---

    /// Returns whether one more action may be remembered at this gateway time; drops the oldest ended action if it
    /// is old enough.
    fn has_room(&mut self, ts: u64) -> bool {
        if self.known.len() < limits::TOOLBOX_KNOWN_MAX {
            return true;
        }
        let keep = u64::try_from(limits::TOOLBOX_KNOWN_MIN.as_millis()).unwrap_or(u64::MAX);
        // Ids begin with their creation time, so the first ids are the oldest.
        let old =
            self.known.iter().find(|(_, known)| matches!(known.state, State::Ended(_))).map(|(id, _)| *id);
        let Some(old) = old.filter(|id| asked_at(*id).saturating_add(keep) < ts) else { return false };
        self.forget(old);
        true
    }

    /// Drops the oldest actions over the limit; a journal of an earlier release may hold more.
    pub(super) fn known_within(&mut self, max: usize) {
        while self.known.len() > max {
            let Some(old) = self.known.keys().next().copied() else { return };
            self.forget(old);
        }
    }

    fn forget(&mut self, id: EventId) {
        self.known.remove(&id);
        self.unsaid.remove(&id);
        self.whom.remove(&id);
        for unread in self.gates.values_mut() {
            unread.said.remove(&id);
            unread.asked.remove(&id);
        }
    }

    /// Drops the gateway of an action that is not remembered.
    fn keep_known(&mut self, id: EventId) {
        if !self.known.contains_key(&id) {
            self.whom.remove(&id);
        }
    }
}

impl Unread {
    fn has(&self, id: EventId) -> bool {
        self.said.contains(&id) || self.asked.contains(&id)
    }
}

/// Returns the creation time of an action from its UUIDv7 (RFC 9562 §5.7), in Unix milliseconds.
fn asked_at(id: EventId) -> u64 {
    u64::try_from(id.0.as_u128() >> 80).unwrap_or(u64::MAX)
}
