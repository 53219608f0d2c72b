//! Filters a session's notifications for one turn, from the reader's position to the turn's end.
use super::cursor::TurnCursor;
use super::push_event;
use crate::channel::json::render::render;
use crate::channel::notification::{AcceptedTurn, CommandReply, Notification};
use turnway_core::id::{RunId, SessionId};
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::entry::{Fact, RunFact};
use turnway_core::time::Millis;

/// One reader of one turn.
#[derive(Debug)]
pub struct TurnStream {
    run_id: RunId,
    durability: &'static str,
    /// The reader's position when it connected.
    resumed_at: TurnCursor,
    /// The reader's present position.
    position: TurnCursor,
    is_over: bool,
}

impl TurnStream {
    /// Starts with `turn_accepted`. `resume` is the reader's position; a position in another turn is ignored.
    pub fn begin(
        ts: Millis,
        durability: &'static str,
        accepted: AcceptedTurn,
        resume: Option<TurnCursor>,
        to: &mut String,
    ) -> Self {
        let run_id = accepted.run_id.clone();
        let had = resume.filter(|cursor| cursor.belongs_to(&run_id)).unwrap_or_else(|| TurnCursor::start(&run_id));
        let at = had.clone();
        let is_over = false;
        let turn = Self { run_id, durability, resumed_at: had, position: at, is_over };
        turn.push_rendered(ts, &Notification::Reply(CommandReply::TurnAccepted(Box::new(accepted))), false, to);
        turn
    }

    /// Returns whether no further event can follow.
    pub fn is_finished(&self) -> bool {
        self.is_over
    }

    /// Appends the events of a notification that the reader lacks, if any.
    pub fn push(&mut self, ts: Millis, note: &Notification, to: &mut String) {
        match note {
            Notification::Fact { seq, epoch, entry, .. } => {
                if entry.run_id.as_ref() != Some(&self.run_id) {
                    return;
                }
                // The turn's end is repeated even if the reader has it, so that a reader never waits for an end
                // that has passed.
                self.is_over = entry.fact.is_terminal();
                if self.resumed_at.covers(*seq, *epoch) && !self.is_over {
                    return;
                }
                if let Fact::Run(RunFact::Started { attempt, .. } | RunFact::Restarted { attempt, .. }) = &entry.fact {
                    (self.position.attempt, self.position.offset) = (*attempt, 0);
                }
                (self.position.seq, self.position.epoch) = (*seq, *epoch);
                self.push_rendered(ts, note, true, to);
            }
            Notification::Chunk { session, chunk } if chunk.run_id == self.run_id => match chunk.kind {
                TextKind::Text => self.push_text(ts, session, chunk, to),
                TextKind::Reasoning => self.push_rendered(ts, note, false, to),
            },
            Notification::Reply(CommandReply::Subscribed { snapshot, reset: Some(_), .. }) => {
                // The facts up to here have been trimmed. If the turn has ended, its end has been trimmed too.
                self.is_over = !snapshot.runs.iter().any(|run| run.run_id == self.run_id);
                self.push_rendered(ts, note, false, to);
            }
            Notification::Reply(CommandReply::Refused { .. }) => {
                // The session cannot be followed from this node any more.
                self.is_over = true;
                self.push_rendered(ts, note, false, to);
            }
            Notification::GoAway { .. } => self.push_rendered(ts, note, false, to),
            Notification::Chunk { .. }
            | Notification::Reply(_)
            | Notification::ProcessOutput { .. }
            | Notification::Deliver(_)
            | Notification::Signal(_)
            | Notification::AdapterState(_)
            | Notification::LimitReached(_) => {}
        }
    }

    /// Appends the part of a piece of text that lies beyond the reader's position; never splits a code point.
    fn push_text(&mut self, ts: Millis, session: &SessionId, chunk: &TextChunk, to: &mut String) {
        let is_same = chunk.attempt == self.position.attempt;
        if chunk.attempt < self.position.attempt || (is_same && chunk.end() <= self.position.offset) {
            return;
        }
        let chunk = chunk.after(if is_same { self.position.offset } else { 0 });
        (self.position.attempt, self.position.offset) = (chunk.attempt, chunk.end());
        self.push_rendered(ts, &Notification::Chunk { session: session.clone(), chunk }, true, to);
    }

    /// Appends a notification. Only the last message of a notification carries the new position.
    fn push_rendered(&self, ts: Millis, note: &Notification, moves: bool, to: &mut String) {
        let mut texts = Vec::with_capacity(1);
        render(ts, self.durability, note, &mut |text| texts.push(text));
        let last = texts.len();
        let id = moves.then(|| self.position.to_string());
        for (n, text) in (1..).zip(texts) {
            push_event(to, id.as_deref().filter(|_| n == last), &text);
        }
    }
}

#[cfg(test)]
mod tests;
