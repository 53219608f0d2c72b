//! Simulated agents that request handovers, valid or not, and users that confirm, reject or ignore them.
use super::clients::{Act, Kind};
use super::fixtures;
use super::world::{ScheduledEvent, World};
use turnway_core::id::EventId;
use turnway_core::private::Private;
use turnway_core::protocol::agent::AgentEvent;
use turnway_core::protocol::entry::{Entry, Fact, HandoverFact};
use turnway_core::protocol::handover::HandoverRequest;
use turnway_core::protocol::input::ControlRequest;
use turnway_wire::channel::command::LinkCommand;

fn wish(n: u64) -> AgentEvent {
    let known = fixtures::AGENTS.iter().map(|(name, _)| *name).chain([fixtures::STRANGER, "nobody"]);
    let name = known.into_iter().nth((n / 2 % 6) as usize).unwrap_or("nobody");
    let reason = Private(format!("for {n}"));
    let request = HandoverRequest { to: fixtures::agent(name), reason, summary: Private(format!("all about {n}")) };
    AgentEvent::Handover { request: Box::new(request), id: None }
}

/// Adds handover requests to an agent's events: once, twice, before any other event, or after the last one.
pub(crate) fn asks(n: u64, mut says: Vec<AgentEvent>) -> Vec<AgentEvent> {
    let middle = says.len() / 2;
    match n % 6 {
        0 | 1 => says.insert(middle, wish(n)),
        2 if middle > 0 => {
            says.insert(middle, wish(n));
            says.insert(1, wish(n + 2));
        }
        3 => says.insert(0, wish(n)),
        4 => says.push(wish(n)),
        _ => {}
    }
    says
}

impl World {
    /// Lets a client react to a handover request.
    pub(crate) fn prompted(&mut self, client: usize, entry: &Entry) {
        let Fact::Handover(HandoverFact::Requested(asked)) = &entry.fact else { return };
        if matches!(self.clients[client].kind, Kind::Leaver | Kind::Prober) {
            return;
        }
        let id = asked.handover_id;
        let decides: &[bool] = match self.rng.below(8) {
            0..=2 => &[true],
            3 => &[false],
            4 => &[true, false],
            5 => &[false, true, true],
            _ => &[],
        };
        for confirm in decides {
            let act = Act::Decide(id, *confirm);
            self.later(50, 7000, ScheduledEvent::Client { client, act });
        }
    }

    pub(crate) fn decide(&mut self, id: usize, handover_id: EventId, confirm: bool) {
        let line = self.line_of(id);
        let request_id = self.request(id, Act::Decide(handover_id, confirm));
        let session = self.clients[id].key.session.clone();
        let request = ControlRequest::Handover { handover_id, confirm };
        self.say_on(line, LinkCommand::Control { request_id, session, request });
    }
}
