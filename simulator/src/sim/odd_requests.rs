//! Client requests other than messages: odd cursors, member changes, and requests for other users' sessions.
use super::clients::Act;
use super::fixtures;
use super::world::World;
use turnway_core::id::{Epoch, EventId, Seq};
use turnway_core::protocol::input::ControlRequest;
use turnway_core::time::Millis;
use turnway_wire::channel::command::{CancelTarget, LinkCommand, SubscribeCommand};

impl World {
    /// Subscribes again: from now on, from the beginning, with a stale offset, or with a cursor that never existed.
    pub(crate) fn resubscribe(&mut self, id: usize, way: u64) {
        let line = self.line_of(id);
        let request_id = self.request(id, Act::Resubscribe(way));
        let client = &mut self.clients[id];
        client.looked = way % 4 == 1;
        let watches = client.watches();
        let (after_seq, after_epoch) = match way % 4 {
            0 if !watches => (None, None),
            1 => (Some(Seq(0)), None),
            2 if !watches => (Some(Seq(client.have.seq.0.max(1))), Some(Epoch(7))),
            _ => (Some(client.have.seq), None),
        };
        let mut runs = client.text_cursors();
        if way.is_multiple_of(3) || after_seq == Some(Seq(0)) {
            runs.clear();
            // Text that is sent again may be cut off in the middle, and the client has then lost the earlier text.
            let torn = client.texts.keys().map(|(run, _)| run);
            client.torn.extend(torn.cloned());
            client.texts.retain(|(run, _), _| client.ended.contains(run));
        }
        let session = client.key.session.clone();
        let ask = SubscribeCommand { request_id, session, after_seq, after_epoch, runs, types: Vec::new() };
        self.say_on(line, LinkCommand::Subscribe(ask));
    }

    /// Requests a member change, also with an agent that does not exist.
    pub(crate) fn change_members(&mut self, id: usize, way: u64) {
        let line = self.line_of(id);
        let request_id = self.request(id, Act::Members(way));
        let session = self.clients[id].key.session.clone();
        self.say_on(line, LinkCommand::Control { request_id, session, request: wish(way) });
    }

    /// Sends a request for another user's session, or for one that does not exist.
    pub(crate) fn probe(&mut self, id: usize, way: u64) {
        let line = self.line_of(id);
        let request_id = self.request(id, Act::Probe(way));
        let key = self.clients[id].key.clone();
        let taken = !self.rewinds && self.model.session(&key).is_some_and(|slot| slot.user.is_some());
        let session = if way % 16 < 8 { key.session.clone() } else { fixtures::key("default", "nobody").session };
        let theirs = self.sayings.values().find(|saying| self.clients[saying.client].key == key);
        let run_id = theirs.map(|saying| saying.run_id.clone());
        let command = match (way % 8, run_id) {
            (0 | 1, _) => LinkCommand::Subscribe(SubscribeCommand {
                request_id,
                session,
                after_seq: Some(Seq(0)),
                after_epoch: None,
                runs: Vec::new(),
                types: Vec::new(),
            }),
            (2, _) => LinkCommand::Cancel { request_id, target: CancelTarget::Session(session), wants_receipt: false },
            (3, Some(run_id)) => {
                LinkCommand::Cancel { request_id, target: CancelTarget::Run(run_id), wants_receipt: false }
            }
            (4, _) if way.is_multiple_of(3) => LinkCommand::Control { request_id, session, request: wish(way / 16) },
            (4, _) if way % 3 == 1 => {
                let handover_id = EventId::new(Millis(way % 97), u128::from(way));
                let request = ControlRequest::Handover { handover_id, confirm: way.is_multiple_of(2) };
                LinkCommand::Control { request_id, session, request }
            }
            (4, _) => LinkCommand::Control { request_id, session, request: ControlRequest::Close },
            (5, _) if taken => {
                LinkCommand::Open { request_id, session: Some(key.session), agents: Vec::new(), active: None }
            }
            (6 | 7, Some(_)) if taken => {
                let Some((n, theirs)) = self.sayings.iter().find(|(_, s)| self.clients[s.client].key == key) else {
                    return;
                };
                let Some(request_id) = request_id else { return };
                LinkCommand::Invoke(Box::new(theirs.invoke(*n, request_id, &key.session, true)))
            }
            _ => LinkCommand::Unsubscribe { request_id, session },
        };
        self.say_on(line, command);
    }
}

/// Returns a member change, by number.
pub(crate) fn wish(way: u64) -> ControlRequest {
    let known = fixtures::AGENTS.iter().map(|(name, _)| *name).chain([fixtures::STRANGER, "nobody"]);
    let name = known.into_iter().nth((way / 7 % 6) as usize).unwrap_or("nobody");
    let agent_id = fixtures::agent(name);
    let reason = None;
    match way % 7 {
        0 | 1 => ControlRequest::Switch { agent_id, reason },
        2 | 3 => ControlRequest::Invite { agent_id, reason, activate: way.is_multiple_of(2) },
        _ => ControlRequest::Remove { agent_id, reason },
    }
}
