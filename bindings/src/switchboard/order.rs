//! Order of requests: what a link asks of a session behind a `session_open` that it has not seen answered waits for that answer.
//! Cancels and decisions overtake, for they end what others wait for. Called where a link asks and where it is answered.
use super::Switchboard;
use super::io::Output;
use super::link::Links;
use crate::channel::command::Command;
use crate::channel::note::Note;
use std::collections::VecDeque;
use turnway_core::id::{LinkId, RequestId, SessionId};
use turnway_core::time::Now;

/// The opening of a session that a link waits for, and its requests about that session that came after it.
#[derive(Debug)]
pub(super) struct Lane {
    session: SessionId,
    /// Of the opening.
    request_id: Option<RequestId>,
    /// Bounded with the link's other requests (`Link::is_busy`).
    waiting: VecDeque<Command>,
}

/// Returns the session that a request is about, if it waits for that session's opening.
fn session_of(command: &Command) -> Option<&SessionId> {
    match command {
        Command::Open { session, .. } => session.as_ref(),
        Command::Invoke(invoke) => invoke.session.as_ref(),
        Command::Close { session, .. }
        | Command::Members { session, .. }
        | Command::Unsubscribe { session, .. } => Some(session),
        Command::Subscribe(subscribe) => Some(&subscribe.session),
        Command::Cancel { .. }
        | Command::Decide { .. }
        | Command::Look { .. }
        | Command::List { .. }
        | Command::Delete { .. }
        | Command::Find { .. } => None,
    }
}

/// Returns the session and the request of an opening that a note may answer.
fn answered(note: &Note) -> Option<(&SessionId, Option<&RequestId>)> {
    match note {
        Note::Opened { request_id, snapshot } => Some((&snapshot.session, request_id.as_ref())),
        Note::Refused { request_id, session, .. } => Some((session.as_ref()?, request_id.as_ref())),
        Note::Accepted(_)
        | Note::Subscribed { .. }
        | Note::Members(_)
        | Note::Closed { .. }
        | Note::Fact { .. }
        | Note::Delta { .. }
        | Note::Printed { .. }
        | Note::Handover(_)
        | Note::CancelTaken { .. }
        | Note::Listed { .. }
        | Note::Found { .. }
        | Note::Deleted { .. }
        | Note::GoAway { .. } => None,
    }
}

// === impl Lane ===

impl Lane {
    /// Requests that are not begun.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl Links {
    /// Sends the answer of an opening, or anything else; what waits for that opening is due.
    pub(super) fn send(&mut self, outbox: &mut VecDeque<Output>, link: LinkId, note: Note) {
        if let Some((session, request_id)) = answered(&note) {
            let lanes = self.get(link).map_or(&[][..], |there| &there.lanes);
            let is_opening = |lane: &Lane| lane.session == *session && lane.request_id.as_ref() == request_id;
            if lanes.iter().any(is_opening) {
                self.settled.push_back((link, session.clone()));
            }
        }
        self.send_apart(outbox, link, note);
    }
}

impl Switchboard {
    /// Performs a link's request, or keeps it until the opening before it is answered.
    pub(super) fn say(&mut self, now: Now, link: LinkId, command: Command) {
        let Some(there) = self.links.get_mut(link) else { return };
        let is_busy = there.is_busy(&command);
        let Some(session) = session_of(&command) else { return self.perform(now, link, command, is_busy) };
        match there.lanes.iter_mut().find(|lane| lane.session == *session) {
            Some(_) if is_busy => self.refuse_busy(link, command.request_id().cloned()),
            Some(lane) => lane.waiting.push_back(command),
            None => self.begin(now, link, command, is_busy),
        }
    }

    /// Performs a request; an opening holds up what comes after it.
    fn begin(&mut self, now: Now, link: LinkId, command: Command, is_busy: bool) {
        let is_refused = !self.is_permitted(link, &command) || (is_busy && command.may_be_busy());
        if let Command::Open { session: Some(session), request_id, .. } = &command
            && !is_refused
            && let Some(there) = self.links.get_mut(link)
        {
            let (session, request_id) = (session.clone(), request_id.clone());
            there.lanes.push(Lane { session, request_id, waiting: VecDeque::new() });
        }
        self.perform(now, link, command, is_busy);
    }

    /// Performs what has waited for openings that have been answered meanwhile.
    pub(super) fn perform_settled(&mut self, now: Now) {
        while let Some((link, session)) = self.links.settled.pop_front() {
            let Some(there) = self.links.get_mut(link) else { continue };
            let Some(at) = there.lanes.iter().position(|lane| lane.session == session) else { continue };
            let Lane { waiting, .. } = there.lanes.swap_remove(at);
            there.lanes.shrink_to_fit();
            // Each was let in when it came; another opening among them holds up the rest again.
            for command in waiting {
                let there = self.links.get_mut(link);
                let lane =
                    there.and_then(|there| there.lanes.iter_mut().find(|lane| lane.session == session));
                match lane {
                    Some(lane) => lane.waiting.push_back(command),
                    None => self.begin(now, link, command, false),
                }
            }
        }
    }
}
