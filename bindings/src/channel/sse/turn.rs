//! Filters a session's notifications for one turn, from the reader's position to the turn's end.
use super::cursor::Cursor;
use super::event;
use crate::channel::json::render::render;
use crate::channel::note::{Accepted, Note};
use std::sync::Arc;
use turnway_core::id::RunId;
use turnway_core::private::Private;
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::entry::Fact;
use turnway_core::time::Millis;

/// One reader of one turn.
#[derive(Debug)]
pub struct Turn {
    run_id: RunId,
    durability: &'static str,
    /// The reader's position when it connected.
    had: Cursor,
    /// The reader's present position.
    at: Cursor,
    is_over: bool,
}

impl Turn {
    /// Starts with `turn_accepted`. `resume` is the reader's position; a position in another turn is ignored.
    pub fn begin(
        ts: Millis,
        durability: &'static str,
        accepted: Accepted,
        resume: Option<Cursor>,
        to: &mut String,
    ) -> Self {
        let run_id = accepted.run_id.clone();
        let had = resume.filter(|cursor| cursor.is_of(&run_id)).unwrap_or_else(|| Cursor::start(&run_id));
        let (at, is_over) = (had.clone(), false);
        let turn = Self { run_id, durability, had, at, is_over };
        turn.write(ts, &Note::Accepted(Box::new(accepted)), false, to);
        turn
    }

    /// Returns whether no further event can follow.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Appends the events of a notification that the reader lacks, if any.
    pub fn show(&mut self, ts: Millis, note: &Note, to: &mut String) {
        match note {
            Note::Fact { seq, epoch, entry, .. } => {
                if entry.run_id.as_ref() != Some(&self.run_id) {
                    return;
                }
                // The turn's end is repeated even if the reader has it, so that a reader never waits for an end
                // that has passed.
                self.is_over = entry.fact.is_terminal();
                if self.had.covers(*seq, *epoch) && !self.is_over {
                    return;
                }
                if let Fact::RunStarted { attempt, .. } | Fact::RunRestarted { attempt, .. } = &entry.fact {
                    (self.at.attempt, self.at.offset) = (*attempt, 0);
                }
                (self.at.seq, self.at.epoch) = (*seq, *epoch);
                self.write(ts, note, true, to);
            }
            Note::Delta { run_id, kind, .. } if *run_id == self.run_id => match kind {
                TextKind::Text => self.show_text(ts, note, to),
                TextKind::Reasoning => self.write(ts, note, false, to),
            },
            Note::Subscribed { snapshot, reset: Some(_), .. } => {
                // The facts up to here have been trimmed. If the turn has ended, its end has been trimmed too.
                self.is_over = !snapshot.runs.iter().any(|run| run.run_id == self.run_id);
                self.write(ts, note, false, to);
            }
            Note::Refused { .. } => {
                // The session cannot be followed from this node any more.
                self.is_over = true;
                self.write(ts, note, false, to);
            }
            Note::GoAway { .. } => self.write(ts, note, false, to),
            Note::Delta { .. }
            | Note::Subscribed { reset: None, .. }
            | Note::Accepted(_)
            | Note::Opened { .. }
            | Note::Closed { .. }
            | Note::Members(_)
            | Note::Handover(_)
            | Note::CancelTaken { .. }
            | Note::Printed { .. }
            | Note::Listed { .. }
            | Note::Deleted { .. }
            | Note::Found { .. } => {}
        }
    }

    /// Appends the part of a piece of text that lies beyond the reader's position; never splits a code point.
    fn show_text(&mut self, ts: Millis, note: &Note, to: &mut String) {
        let Note::Delta { session, run_id, attempt, offset, kind, text } = note else { return };
        let end = offset + text.reveal().len() as u64;
        if *attempt < self.at.attempt || (*attempt == self.at.attempt && end <= self.at.offset) {
            return;
        }
        let had = if *attempt == self.at.attempt { self.at.offset } else { 0 };
        let skip = usize::try_from(had.saturating_sub(*offset)).unwrap_or(usize::MAX);
        (self.at.attempt, self.at.offset) = (*attempt, end);
        if skip == 0 {
            return self.write(ts, note, true, to);
        }
        let skip = text.reveal().floor_char_boundary(skip);
        let rest = Private(Arc::from(text.reveal().get(skip..).unwrap_or_default()));
        let (session, run_id) = (session.clone(), run_id.clone());
        let (attempt, offset, kind) = (*attempt, offset + skip as u64, *kind);
        self.write(ts, &Note::Delta { session, run_id, attempt, offset, kind, text: rest }, true, to);
    }

    /// Appends a notification. Only the last message of a notification carries the new position.
    fn write(&self, ts: Millis, note: &Note, moves: bool, to: &mut String) {
        let mut texts = Vec::with_capacity(1);
        render(ts, self.durability, note, &mut |text| texts.push(text));
        let last = texts.len();
        let id = moves.then(|| self.at.to_string());
        for (n, text) in (1..).zip(texts) {
            event(to, id.as_deref().filter(|_| n == last), &text);
        }
    }
}

#[cfg(test)]
mod tests;
