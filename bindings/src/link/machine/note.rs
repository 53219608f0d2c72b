//! Handles notifications from the switchboard: order, rendering, and reports of written weight.
use super::{Link, Phase};
use crate::channel::json::render;
use crate::channel::note::Note;
use crate::link::order::Due;
use crate::link::{Aside, Beside, Output, Pace};
use turnway_core::id::{RunId, SessionId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Now;

impl Link {
    pub(super) fn handle_note(&mut self, now: Now, note: Note) {
        match &self.phase {
            Phase::Open => {}
            Phase::Fresh(_) | Phase::Asking(_) | Phase::Closed => return,
        }
        if let Note::GoAway { within, .. } = note {
            self.leave_at.get_or_insert(now.mono + within);
        }
        match &mut self.order {
            Some(order) => {
                let due = order.show(now, note);
                self.handle_due(now, due);
            }
            None => self.show(now, &note),
        }
    }

    /// Gives up the places of requests whose answers take too long.
    pub(super) fn pass_over(&mut self, now: Now) {
        if let Some(order) = &mut self.order {
            let due = order.pass_over(now);
            self.handle_due(now, due);
        }
    }

    fn handle_due(&mut self, now: Now, due: Due) {
        for note in due.notes {
            self.show(now, &note);
        }
        for command in due.commands {
            self.begin(command);
        }
        self.order.take_if(|order| order.is_empty());
    }

    /// Renders a notification.
    fn show(&mut self, now: Now, note: &Note) {
        match note {
            Note::Delta { session, run_id, attempt, .. } if self.asides => {
                let (outputs, weight) = (&mut self.outputs, note.weight());
                // A delta is rendered as one message, so its weight is reported once.
                render::render(now.store, self.durability, note, &mut |text| {
                    let (session, run_id, attempt) = (session.clone(), run_id.clone(), *attempt);
                    let aside = Aside { session, run_id, attempt, text, weight };
                    outputs.push_back(Output::Aside(Box::new(aside)));
                });
                return;
            }
            Note::Fact { .. }
            | Note::Delta { .. }
            | Note::Accepted(_)
            | Note::Subscribed { .. }
            | Note::Opened { .. }
            | Note::Closed { .. }
            | Note::Members(_)
            | Note::Handover(_)
            | Note::CancelTaken { .. }
            | Note::Printed { .. }
            | Note::Listed { .. }
            | Note::Deleted { .. }
            | Note::Found { .. }
            | Note::Refused { .. }
            | Note::GoAway { .. } => self.write_among(now, note),
        }
        self.unflushed += note.weight();
        // A notification may be rendered as no message, and then no flush follows.
        if self.unflushed_since.is_none() {
            self.handle_flushed();
        }
    }

    /// Writes a notification on the main stream.
    fn write_among(&mut self, now: Now, note: &Note) {
        let outputs = &mut self.outputs;
        let before = outputs.len();
        render::render(now.store, self.durability, note, &mut |text| outputs.push_back(Output::Write(text)));
        if self.outputs.len() > before {
            self.unflushed_since.get_or_insert(now.mono);
        }
        match note {
            Note::Fact { session, entry, .. } if entry.fact.is_terminal() => {
                self.no_more_aside(session, entry.run_id.as_ref());
            }
            // Offsets of later text start at this snapshot, so text must not overtake it.
            Note::Subscribed { snapshot, .. } => self.no_more_aside(&snapshot.session, None),
            Note::Fact { .. }
            | Note::Delta { .. }
            | Note::Accepted(_)
            | Note::Opened { .. }
            | Note::Closed { .. }
            | Note::Members(_)
            | Note::Handover(_)
            | Note::CancelTaken { .. }
            | Note::Printed { .. }
            | Note::Listed { .. }
            | Note::Deleted { .. }
            | Note::Found { .. }
            | Note::Refused { .. }
            | Note::GoAway { .. } => {}
        }
    }

    pub(super) fn handle_flushed(&mut self) {
        self.unflushed_since = None;
        let written = std::mem::take(&mut self.unflushed);
        self.report(written);
    }

    /// Handles progress of the side streams, which are flushed and stall separately from the main stream.
    pub(super) fn handle_beside(&mut self, now: Now, beside: Beside) {
        self.beside_since = match beside.pace {
            Pace::Flows | Pace::Fills => None,
            Pace::Creeps => Some(Box::new(now.mono)),
            Pace::Stands => self.beside_since.take().or_else(|| Some(Box::new(now.mono))),
        };
        self.fills = beside.pace != Pace::Flows;
        self.report(beside.written);
    }

    fn report(&mut self, written: usize) {
        self.unreported += written;
        let is_early = planted(Planted::CreditTwice);
        self.unreported += if is_early { written } else { 0 };
        let least = if self.fills { 1 } else { limits::LINK_REPORT_BYTES };
        if self.unreported >= least && matches!(self.phase, Phase::Open) {
            self.outputs.push_back(Output::Written(std::mem::take(&mut self.unreported)));
        }
    }

    pub(super) fn no_more_aside(&mut self, session: &SessionId, run_id: Option<&RunId>) {
        if self.asides {
            let (session, run_id) = (session.clone(), run_id.cloned());
            self.outputs.push_back(Output::NoMoreAside { session, run_id });
        }
    }
}
