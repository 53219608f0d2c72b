//! Handles notifications from the switchboard: order, rendering, and reports of written weight.
use super::auth::TOO_MANY_CONNECTIONS;
use super::{Link, LinkPhase};
use crate::link::answer_order::ReadyItems;
use crate::link::{LinkEvent, SideStreamPace, SideStreamProgress, SideStreamText};
use turnway_core::id::{RunId, SessionId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::Code;
use turnway_core::time::Now;
use turnway_wire::channel::close_code;
use turnway_wire::channel::json::render;
use turnway_wire::channel::notification::{CommandReply, Notification};

impl Link {
    pub(super) fn handle_notification(&mut self, now: Now, note: Notification) {
        match &self.phase {
            LinkPhase::Open => {}
            LinkPhase::AwaitingHello(_) | LinkPhase::Authenticating(_) => return,
        }
        if let Notification::GoAway { within, .. } = note {
            self.leave_at.get_or_insert_with(|| Box::new(now.mono + within));
        }
        match &mut self.answer_order {
            Some(order) => {
                let due = order.push_notification(now, note);
                self.release_due(now, due);
            }
            None => self.push_notification(now, &note),
        }
    }

    /// Gives up the places of requests whose answers take too long.
    pub(super) fn expire_answers(&mut self, now: Now) {
        if let Some(order) = &mut self.answer_order {
            let due = order.expire(now);
            self.release_due(now, due);
        }
    }

    fn release_due(&mut self, now: Now, due: ReadyItems) {
        for note in due.notes {
            self.push_notification(now, &note);
        }
        for command in due.commands {
            self.send_command(command);
        }
        self.answer_order.take_if(|order| order.is_empty());
    }

    /// Renders a notification.
    fn push_notification(&mut self, now: Now, note: &Notification) {
        match note {
            Notification::Chunk { session, chunk } if self.side_streams => {
                let connection = &mut self.connection;
                let weight = note.weight();
                // A delta is rendered as one message, so its weight is reported once.
                render::render(now.store, self.durability, note, &mut |text| {
                    let session = session.clone();
                    let run_id = chunk.run_id.clone();
                    let attempt = chunk.attempt;
                    let side_text = SideStreamText { session, run_id, attempt, text, weight };
                    connection.push_event(LinkEvent::WriteSideStream(Box::new(side_text)));
                });
                return;
            }
            Notification::Fact { .. }
            | Notification::Chunk { .. }
            | Notification::Reply(_)
            | Notification::ProcessOutput { .. }
            | Notification::Deliver(_)
            | Notification::Signal(_)
            | Notification::AdapterState(_)
            | Notification::LimitReached(_)
            | Notification::GoAway { .. } => self.write_main_stream(now, note),
        }
        self.unflushed += note.weight();
        // A notification may be rendered as no message, and then no flush follows.
        if self.connection.unflushed_since().is_none() {
            self.handle_flushed();
        }
    }

    /// Writes a notification on the main stream.
    fn write_main_stream(&mut self, now: Now, note: &Notification) {
        render::render(now.store, self.durability, note, &mut |text| self.connection.write(now, text));
        match note {
            Notification::Fact { session, entry, .. } if entry.fact.is_terminal() => {
                self.end_side_streams(session, entry.run_id.as_ref());
            }
            // Offsets of later text start at this snapshot, so text must not overtake it.
            Notification::Reply(CommandReply::Subscribed { snapshot, .. }) => {
                self.end_side_streams(&snapshot.session, None)
            }
            Notification::LimitReached(refusal) if refusal.code == Code::BotIdInUse => {
                self.connection.close(close_code::REPLACED, "another account acts as the platform_bot_id");
            }
            Notification::LimitReached(_) => {
                self.connection.close(close_code::RATE_LIMITED, TOO_MANY_CONNECTIONS);
            }
            Notification::Fact { .. }
            | Notification::Chunk { .. }
            | Notification::Reply(_)
            | Notification::ProcessOutput { .. }
            | Notification::Deliver(_)
            | Notification::Signal(_)
            | Notification::AdapterState(_)
            | Notification::GoAway { .. } => {}
        }
    }

    pub(super) fn handle_flushed(&mut self) {
        self.connection.record_flush();
        let written = std::mem::take(&mut self.unflushed);
        self.report_written(written);
    }

    /// Handles progress of the side streams, which are flushed and stall separately from the main stream.
    pub(super) fn handle_side_streams(&mut self, now: Now, progress: SideStreamProgress) {
        self.side_stall_since = match progress.pace {
            SideStreamPace::Draining | SideStreamPace::Filling => None,
            SideStreamPace::Slow => Some(Box::new(now.mono)),
            SideStreamPace::Stalled => self.side_stall_since.take().or_else(|| Some(Box::new(now.mono))),
        };
        self.report_at_once = progress.pace != SideStreamPace::Draining;
        self.report_written(progress.written);
    }

    fn report_written(&mut self, written: usize) {
        self.unreported += written;
        let is_early = planted(Planted::CreditTwice);
        self.unreported += if is_early { written } else { 0 };
        let least = if self.report_at_once { 1 } else { limits::LINK_REPORT_BYTES };
        if self.unreported >= least && matches!(self.phase, LinkPhase::Open) {
            let written = std::mem::take(&mut self.unreported);
            self.connection.push_event(LinkEvent::Written(written));
        }
    }

    pub(super) fn end_side_streams(&mut self, session: &SessionId, run_id: Option<&RunId>) {
        if self.side_streams {
            let session = session.clone();
            let run_id = run_id.cloned();
            self.connection.push_event(LinkEvent::EndSideStreams { session, run_id });
        }
    }
}
