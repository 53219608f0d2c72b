//! Checks I6: turns begin in the order of their inputs, and a replacement takes the position of the input that it
//! replaces.
use super::ledger::SessionRecord;
use super::turn::TurnRecord;
use turnway_core::id::{InboxPosition, RunId};
use turnway_core::protocol::entry::{Entry, Fact, InputFact};
use turnway_core::store::StoredSession;

impl SessionRecord {
    /// Applies a fact that may move an input to the position of another.
    pub(super) fn take_of_place(&mut self, run_id: &RunId, entry: &Entry, slot: Option<&StoredSession>) {
        let Fact::Input(InputFact::Admitted { replaces: Some(old), .. }) = &entry.fact else { return };
        let position = self.replaced(run_id, old, slot);
        if let Some(turn) = self.stories.get_mut(run_id) {
            turn.position = position;
        }
    }

    /// Returns the position of the replaced input, which must have ended, and which no agent may have received.
    fn replaced(&self, run_id: &RunId, old: &RunId, slot: Option<&StoredSession>) -> Option<InboxPosition> {
        let Some(turn) = self.stories.get(old) else {
            assert!(self.rewinds, "ST-6: what is replaced has been said: {old} by {run_id}");
            return None;
        };
        let ended = turn.ended.as_ref().is_some_and(|end| !end.done);
        assert!(ended && turn.attempt == 0, "ST-6: what is replaced is never asked: {old} by {run_id}");
        assert!(!turn.was_handed(), "ST-6: what an agent knows of is not replaced: {old} by {run_id}");
        turn.position.or_else(|| slot?.accepted_messages.get(old).map(|taken| taken.position))
    }

    /// Checks that turns begin in the order of their inputs, except that an interrupt begins next, and after it a
    /// steering message that a run did not accept. (I6)
    pub(super) fn begins_in_order(&self, run_id: &RunId, slot: Option<&StoredSession>) {
        assert!(self.active.is_none(), "G3: one turn at a time: {run_id} beside {:?}", self.active);
        let Some(slot) = slot.filter(|_| !self.rewinds) else { return };
        let Some((position, _)) = slot.inbox.iter().find(|(_, input)| input.run_id == *run_id) else {
            return;
        };
        let rank = |run_id: &RunId| self.stories.get(run_id).map_or(2, TurnRecord::rank);
        let stands_at = |run_id: &RunId, position| {
            let turn = self.stories.get(run_id);
            turn.and_then(|turn| turn.position).unwrap_or(position)
        };
        let mine = rank(run_id);
        for (other, input) in slot.inbox.iter().filter(|(other, _)| *other != position) {
            let hosted = self.stories.get(&input.run_id).is_some_and(|turn| turn.guest.host.is_some());
            let theirs = rank(&input.run_id);
            assert!(
                hosted || mine <= theirs,
                "I6: an interrupt begins next, and then what came back: {run_id} before {}",
                input.run_id
            );
            let first = stands_at(run_id, *position) < stands_at(&input.run_id, *other);
            assert!(
                hosted || mine == 0 || mine != theirs || first,
                "I6: turns begin in the order of their inputs: {run_id} before {}",
                input.run_id
            );
        }
    }
}
