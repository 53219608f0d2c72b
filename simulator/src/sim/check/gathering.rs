//! Checks BD-M8: a message of a room is in exactly one turn, alone or gathered, whichever owner asks the agent; and the
//! answer of each turn is requested for its place.
use crate::sim::buttons::is_press;
use crate::sim::fixtures;
use crate::sim::world::World;
use turnway_core::id::{RunId, SessionKey};
use turnway_core::protocol::agent::Invoke;
use turnway_core::protocol::entry::{Entry, Fact, InputFact};

/// Returns the input that a fact makes part of a turn.
fn follower<'a>(entry: &'a Entry, host: &RunId) -> Option<&'a RunId> {
    let Fact::Input(InputFact::Gathered { host_run_id }) = &entry.fact else { return None };
    entry.run_id.as_ref().filter(|_| host_run_id == host)
}

impl World {
    /// Checks what an agent is asked in a turn: its message, and those that the turn has taken along, in their order.
    pub(crate) fn check_prompt(&mut self, invoke: &Invoke) {
        let Invoke { key, run_id, message, .. } = invoke;
        let Some(chronicle) = self.ledger.chronicles.get(key).filter(|_| !self.rewinds) else { return };
        let Some(host) = chronicle.stories.get(run_id) else { return };
        let followers = chronicle.log.iter().filter_map(|(_, entry)| follower(entry, run_id));
        let turns = followers.filter_map(|run_id| chronicle.stories.get(run_id));
        // An input that is cancelled leaves the turn, unless its agent was asked before.
        let kept: Vec<(u64, bool)> = turns.map(|turn| (turn.n, turn.ended.is_some())).collect();
        let asked = fixtures::numbers(message);
        let mut rest = asked.iter();
        assert_eq!(rest.next(), Some(&host.n), "BD-M8: a turn begins with its message: {run_id} {asked:?}");
        let mut next = rest.next();
        for (n, has_ended) in &kept {
            if next == Some(n) {
                next = rest.next();
            } else {
                assert!(has_ended, "BD-M8: gathered messages are asked: m{n} of {run_id}, not {asked:?} of {kept:?}");
            }
        }
        assert_eq!(next, None, "BD-M8: a turn has no messages but those that it has gathered: {run_id} {kept:?}");
        for n in asked.into_iter().filter(|n| !is_press(*n)) {
            let known = self.ledger.prompts.entry((key.clone(), n)).or_insert_with(|| run_id.clone());
            assert_eq!(known, run_id, "BD-M8: a message is in one turn: m{n} of {key}");
        }
    }

    /// Checks that each accepted message of a room was asked in its turn, if that was completed, and that the answers of
    /// completed turns were requested for their places.
    pub(super) fn check_prompts(&self) {
        let is_there = |key: &SessionKey| self.model.session(key).is_none_or(|slot| !slot.deleted);
        for (key, chronicle) in self.ledger.chronicles.iter().filter(|(key, _)| is_there(key)) {
            let history = self.history_of(key);
            for (run_id, origin) in &history.origins {
                let Some(turn) = chronicle.stories.get(run_id) else { continue };
                let host = if turn.guest.is_gathered { turn.guest.host.as_ref() } else { None };
                let host = host.unwrap_or(run_id);
                let is_done = |run_id| chronicle.stories.get(run_id).and_then(|turn| turn.ended.as_ref());
                let Some(end) = is_done(host).filter(|end| end.done) else { continue };
                // A cancel may take a gathered message out of its turn before the agent is asked.
                let is_cancelled = turn.cancelling;
                let asked = self.ledger.prompts.get(&(key.clone(), turn.n));
                let is_asked = asked == Some(host) || is_press(turn.n);
                assert!(is_asked || is_cancelled, "BD-M8: a message is asked: m{} of {key}", turn.n);
                let is_answer = host == run_id && origin.task.is_none() && end.text_bytes > 0;
                let is_sent = !is_answer || history.has_answer(run_id);
                assert!(is_sent, "BD-S1: an answer is requested: {run_id} of {key}");
            }
        }
    }

    /// Counts the runs of tasks, the gathered messages and the presses of the logs.
    pub(crate) fn count_origins(&mut self) {
        let mut counts = [0; 3];
        for (_, entry) in self.ledger.chronicles.values().flat_map(|chronicle| &chronicle.log) {
            let Fact::Input(fact) = &entry.fact else { continue };
            if let InputFact::UserMessage { origin: Some(origin), .. } = fact {
                counts[0] += u64::from(origin.task.is_some());
                counts[2] += u64::from(origin.decision.is_some());
            } else {
                counts[1] += u64::from(matches!(fact, InputFact::Gathered { .. }));
            }
        }
        [self.tally.tasks, self.tally.gathered, self.tally.presses] = counts;
    }
}
