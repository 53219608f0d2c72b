//! What a gateway says to a tool runner, and what it is told: results until they were read, and nothing done twice.
use super::io::Output;
use super::machine::{Known, State, Toolbox};
use super::process::Why;
use super::record::Outcome;
use super::words::{self, Asked, Told};
use crate::runner::words::UNKNOWN_ACTION;
use std::time::Duration;
use turnway_core::id::EventId;
use turnway_core::limits;
use turnway_core::time::Now;

// === impl Toolbox ===

impl Toolbox {
    pub(super) fn heard(&mut self, now: Now, told: Told) {
        match told {
            Told::Execute(asked) => self.execute(now, &asked),
            Told::Signal { action_id } => {
                self.stop(now, action_id, Why::Canceled);
                self.effects();
            }
            Told::Query { action_id } => self.answer(now, action_id),
            Told::Pong => {
                self.asked.clear();
                self.say(now);
            }
            Told::Welcome | Told::Error { .. } | Told::GoAway | Told::Other => {}
        }
    }

    /// What is known is not done again: what has become of it is said instead (EV-N5, EV-N6).
    fn execute(&mut self, now: Now, asked: &Asked) {
        let id = asked.action_id;
        if self.known.contains_key(&id) {
            return self.answer(now, id);
        }
        let age = Duration::from_millis(asked.ts.0.saturating_sub(asked_at(id)));
        let refused = if age > limits::TOOLBOX_AGE_MAX {
            Outcome::failed(UNKNOWN_ACTION, "it was asked for too long ago to be begun")
        } else if !self.has_room(asked.ts.0) {
            Outcome::failed("busy", "too much was asked for in a short time")
        } else {
            return self.begin(now, asked);
        };
        self.output(Output::Say(words::result(now.store, id, &refused)));
    }

    fn answer(&mut self, now: Now, id: EventId) {
        match self.known.get(&id).map(|known| &known.state) {
            None => {
                let unknown = Outcome::failed(UNKNOWN_ACTION, "this runner does not know of it");
                self.output(Output::Say(words::result(now.store, id, &unknown)));
            }
            Some(State::Running(process)) => {
                let pid = process.pid;
                self.output(Output::Say(words::invoked(now.store, id, pid)));
            }
            Some(State::Ended(outcome)) if self.said.contains(&id) || self.asked.contains(&id) => {
                let again = words::result(now.store, id, outcome);
                self.output(Output::Say(again));
            }
            Some(State::Ended(_)) => {
                self.unsaid.insert(id);
                self.say(now);
            }
        }
    }

    /// Results are said as far as the gateway reads them, and it is asked now and then how far that is.
    pub(super) fn say(&mut self, now: Now) {
        while self.connected && self.said.len() + self.asked.len() < limits::RESULTS_UNREAD_MAX {
            let Some(id) = self.unsaid.pop_first() else { break };
            let Some(Known { state: State::Ended(outcome), .. }) = self.known.get(&id) else { continue };
            self.outputs.push_back(Output::Say(words::result(now.store, id, outcome)));
            self.said.insert(id);
        }
        if self.connected && self.asked.is_empty() && !self.said.is_empty() {
            self.asked = std::mem::take(&mut self.said);
            self.outputs.push_back(Output::Say(words::ping(now.store)));
        }
    }

    // --- what is forgotten ---

    /// Whether one more may be known, at this time of the gateway. What ended long ago is forgotten for it.
    fn has_room(&mut self, ts: u64) -> bool {
        if self.known.len() < limits::TOOLBOX_KNOWN_MAX {
            return true;
        }
        let keep = u64::try_from(limits::TOOLBOX_KNOWN_MIN.as_millis()).unwrap_or(u64::MAX);
        // Names begin with their time: the first are the oldest.
        let old =
            self.known.iter().find(|(_, known)| matches!(known.state, State::Ended(_))).map(|(id, _)| *id);
        let Some(old) = old.filter(|id| asked_at(*id).saturating_add(keep) < ts) else { return false };
        self.forget(old);
        true
    }

    /// A journal may have more than is kept, of an earlier release for example.
    pub(super) fn known_within(&mut self, max: usize) {
        while self.known.len() > max {
            let Some(old) = self.known.keys().next().copied() else { return };
            self.forget(old);
        }
    }

    fn forget(&mut self, id: EventId) {
        self.known.remove(&id);
        self.unsaid.remove(&id);
        self.said.remove(&id);
        self.asked.remove(&id);
    }
}

/// When an action was asked for, as its name says (RFC 9562 §5.7), in milliseconds.
fn asked_at(id: EventId) -> u64 {
    u64::try_from(id.0.as_u128() >> 80).unwrap_or(u64::MAX)
}
