//! Checks G8 and G9 once the world has settled.
use super::turn::TurnRecord;
use crate::sim::world::{Node, World};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{RunId, Seq, SessionKey};
use turnway_core::protocol::entry::{Entry, Fact, RunFact};
use turnway_core::protocol::input::ControlRequest;
use turnway_core::store::StoredSession;

/// Limit of store operations in one scenario: about four times the number of the busiest.
const OPS_MAX: u64 = 60_000;
/// Time within which a resumed node finds out what it has missed.
const AWAKE: Duration = Duration::from_secs(5);
/// Limit of peer messages in one scenario.
const WORDS_MAX: u64 = 60_000;

impl World {
    /// Returns the reason why the world has not settled; `None` if it has.
    pub(crate) fn unsettled_reason(&self) -> Option<String> {
        let sleeps = |node: &Node| node.paused_until + AWAKE > self.now;
        if let Some(node) = self.nodes.iter().find(|node| sleeps(node)) {
            return Some(format!("nobody sleeps: n{}", node.node_id.0));
        }
        for (key, slot) in self.model.sessions().filter(|(key, _)| !self.bereft(key)) {
            if let Some(input) = slot.inbox.values().next() {
                return Some(format!("G9: what was accepted ends: {key} {}", input.run_id));
            }
            if let Some(control) = slot.control.values().next() {
                return Some(format!("G9: what was asked is answered: {key} {:?}", control.what));
            }
            if let Some(holder) = slot.holder.filter(|_| !self.rewinds) {
                return Some(format!("G8: what is idle is released: {key} by n{}", holder.node.0));
            }
            let unsettled = self.ledger.chronicles.get(key).and_then(|c| c.company.unsettled());
            if let Some(agent) = unsettled.filter(|_| !self.rewinds) {
                return Some(format!("G9: a change of members ends: {key} {agent}"));
            }
            let undecided = self.ledger.chronicles.get(key).and_then(|c| c.handed.undecided());
            if let Some(id) = undecided.filter(|_| !self.rewinds) {
                return Some(format!("G9: a handover ends: {key} {id}"));
            }
            let acts = self.ledger.chronicles.get(key).and_then(|c| c.acted.open());
            if let Some(id) = acts.filter(|_| !self.rewinds) {
                return Some(format!("G9: an action ends: {key} {id}"));
            }
            let open = self.ledger.chronicles.get(key).and_then(|c| c.active.as_ref());
            if let Some(open) = open.filter(|_| !self.rewinds) {
                return Some(format!("G9: what was begun ends: {key} {open}"));
            }
        }
        let undelivered = || self.undelivered_reason().filter(|_| !self.rewinds);
        (0..self.clients.len()).find_map(|client| self.unserved(client)).or_else(undelivered)
    }

    /// Returns whether the store has lost an accept whose turn had begun: only a resend by the client can help
    /// then.
    fn bereft(&self, key: &SessionKey) -> bool {
        let (Some(slot), Some(chronicle)) = (self.model.session(key), self.ledger.chronicles.get(key)) else {
            return false;
        };
        let lies = |run_id: &RunId| slot.inbox.values().any(|input| input.run_id == *run_id);
        let orphan = |(run_id, turn): (&RunId, &TurnRecord)| turn.ended.is_none() && !lies(run_id);
        self.rewinds && chronicle.stories.iter().any(orphan)
    }

    fn unserved(&self, id: usize) -> Option<String> {
        let client = &self.clients[id];
        if client.leaves() || self.bereft(&client.key) {
            return None;
        }
        for n in &client.said {
            let saying = &self.sayings[n];
            if !client.ended.contains(&saying.run_id) && !client.given_up.contains(n) {
                return Some(format!("G9: a client that stays hears the end of m{n}: c{id}"));
            }
        }
        let line = client.line.and_then(|line| self.lines.get(&line))?;
        if let Some(ask) = line.asks.values().find(|ask| must_be_answered(ask)) {
            return Some(format!("G9: every request is answered: c{id} {ask:?}"));
        }
        let Some(upto) = line.follows.get(&client.key.session).and_then(|follow| follow.upto()) else {
            let watcher = client.watches() && self.model.session(&client.key).is_some_and(|s| s.user.is_some());
            return watcher.then(|| format!("G9: who subscribes is subscribed: c{id}"));
        };
        let log = self.ledger.chronicles.get(&client.key).map_or(&[][..], |chronicle| &chronicle.log);
        let shown = |(_, entry): &(_, Arc<Entry>)| {
            !matches!(entry.fact, Fact::Run(RunFact::TextDelta { .. } | RunFact::AgentDone { .. }))
        };
        let end = log.iter().rposition(shown).map_or(0, |at| at as u64 + 1);
        let behind = upto.0 < end && !self.rewinds;
        behind.then(|| format!("G9: a link sees the whole log: c{id} saw {upto:?} of {end} of {}", client.key))
    }

    /// Checks everything that must hold once the world has settled.
    pub(crate) fn check_settled(&self) {
        if let Some(why) = self.unsettled_reason() {
            panic!("{why}");
        }
        // Of a deleted session nothing is left to compare.
        for (key, slot) in self.model.sessions().filter(|(_, slot)| !slot.deleted) {
            self.check_log(key, slot);
        }
        for (id, client) in self.clients.iter().enumerate().filter(|(_, c)| !self.rewinds && !c.leaves()) {
            self.check_client(id, client);
        }
        if !self.rewinds {
            self.check_actions();
            self.check_rooms();
            self.check_tasks();
            self.check_prompts();
            self.check_presses();
            self.platform.bindings.check_settled(&self.ledger, &self.model);
        }
        let left = self.streams.left().filter(|_| !self.rewinds);
        assert!(left.is_none(), "G8: no request to an agent outlives its turn: {left:?}");
        let ops = self.tally.ops;
        let words = self.tally.peer_messages;
        assert!(ops < OPS_MAX && words < WORDS_MAX, "G8: no storms: {ops} store operations, {words} words");
    }

    fn check_log(&self, key: &SessionKey, slot: &StoredSession) {
        let Some(chronicle) = self.ledger.chronicles.get(key) else {
            assert!(slot.log.is_empty(), "G1: every fact was written by an append: {key}");
            return;
        };
        let kept = chronicle.log.iter().skip(slot.floor.0 as usize);
        assert!(kept.eq(slot.log.iter()), "G6: what was written stays as it was: {key}");
        let epoch = chronicle.log.last().map(|(token, _)| token.epoch).unwrap_or_default();
        assert!(epoch <= slot.token.epoch, "G1: the log is not ahead of the fence: {key}");
        let state = chronicle.state(Seq(u64::MAX));
        assert!(self.rewinds || state.runs.is_empty(), "G9: no turn is open by the log: {key}");
        for run_id in slot.accepted_messages.keys().filter(|_| !self.rewinds) {
            let ended = chronicle.stories.get(run_id).is_some_and(|turn| turn.ended.is_some());
            assert!(ended, "G9: every accepted turn ends: {run_id}");
        }
    }

    fn check_client(&self, id: usize, client: &crate::sim::clients::Client) {
        let Some(chronicle) = self.ledger.chronicles.get(&client.key) else { return };
        for (seq, (epoch, entry)) in &client.facts {
            let same = chronicle.fact(*seq).is_some_and(|(at, fact)| at == *epoch && fact == entry);
            assert!(same, "G6: what a client was shown is in the log for ever: c{id} {seq:?}");
        }
        for (run_id, end) in client.facts.values().filter_map(|(_, entry)| {
            let run_id = entry.run_id.as_ref()?;
            chronicle.stories.get(run_id)?.ended.as_ref().filter(|end| end.done).map(|end| (run_id, end))
        }) {
            let text = client.texts.get(&(run_id.clone(), end.attempt));
            let Some(text) =
                text.filter(|_| client.watches() && client.ended.contains(run_id) && !client.torn.contains(run_id))
            else {
                continue;
            };
            let n = chronicle.stories[run_id].n;
            let answer = self.ledger.known_answer(n, end.attempt).map(|answer| &**answer);
            assert!(
                answer == Some(text.as_str()),
                "G6: who joins the deltas has the text: {run_id} at c{id} ({:?}) has {} of {}",
                client.kind,
                text.len(),
                end.text_bytes
            );
        }
    }
}

/// Returns whether a request must get an answer of its own.
fn must_be_answered(ask: &turnway_wire::channel::command::LinkCommand) -> bool {
    use turnway_wire::channel::command::LinkCommand;
    match ask {
        LinkCommand::Open { .. }
        | LinkCommand::Subscribe(_)
        | LinkCommand::Invoke(_)
        | LinkCommand::GetSnapshot { .. }
        | LinkCommand::ListDeliveries { .. }
        | LinkCommand::List { .. }
        | LinkCommand::Binding { .. }
        | LinkCommand::Account { .. }
        | LinkCommand::Send(_)
        | LinkCommand::BindChild(_)
        | LinkCommand::Inbound(_)
        | LinkCommand::PrepareFiles(_)
        | LinkCommand::Capabilities(_)
        | LinkCommand::Blob { .. }
        | LinkCommand::FindRun { .. } => true,
        LinkCommand::Control { request, .. } => *request != ControlRequest::Close,
        LinkCommand::Delete { .. }
        | LinkCommand::Unsubscribe { .. }
        | LinkCommand::Delivered(_)
        | LinkCommand::Cancel { .. } => false,
    }
}
