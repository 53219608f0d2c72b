//! Order of answers: a link's requests about one session are performed one after the other, in the order they came.
//! Cancels and decisions overtake, for they end what others wait for. Called where a link asks and where it is answered.
use super::Switchboard;
use super::io::Output;
use super::link::Links;
use crate::channel::command::{Command, Target};
use crate::channel::note::Note;
use std::collections::VecDeque;
use turnway_core::id::{LinkId, RequestId, SessionId};
use turnway_core::time::Now;

/// The requests of one link about one session that are not answered yet.
#[derive(Debug)]
pub(super) struct Lane {
    session: SessionId,
    /// The request that is being performed.
    current: Expected,
    /// Whether it is answered, and the next one due.
    is_settled: bool,
    /// Requests that came after it. Bounded with the link's other requests (`Link::is_busy`).
    waiting: VecDeque<Command>,
}

/// The answer that a request waits for.
#[derive(Debug)]
struct Expected {
    kind: AnswerKind,
    request_id: Option<RequestId>,
}

/// Kinds of answers; any of them may be a refusal instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerKind {
    Opened,
    Closed,
    Members,
    Subscribed,
    Accepted,
    /// The request has no answer.
    Nothing,
}

/// Returns the session whose requests a command must not overtake; none for what overtakes or is about no session yet.
fn lane_of(command: &Command) -> Option<(&SessionId, AnswerKind)> {
    match command {
        Command::Open { session, .. } => Some((session.as_ref()?, AnswerKind::Opened)),
        Command::Invoke(invoke) => Some((invoke.session.as_ref()?, AnswerKind::Accepted)),
        Command::Look { session, .. } => Some((session, AnswerKind::Opened)),
        Command::Close { session, .. } => Some((session, AnswerKind::Closed)),
        Command::Members { session, .. } => Some((session, AnswerKind::Members)),
        Command::Subscribe(subscribe) => Some((&subscribe.session, AnswerKind::Subscribed)),
        Command::Unsubscribe { session, .. } => Some((session, AnswerKind::Nothing)),
        // Cancelling what is in flight must not wait for it, but nothing can be cancelled before it was asked for: a run
        // id is known only from an answer.
        Command::Cancel { target: Target::Run(_) | Target::Session(_), .. }
        | Command::Decide { .. }
        | Command::List { .. }
        | Command::Delete { .. }
        | Command::Find { .. } => None,
    }
}

/// Returns the session and the request that a note answers, if it answers one that keeps the order.
fn answered(note: &Note) -> Option<(&SessionId, Option<AnswerKind>, Option<&RequestId>)> {
    let (session, kind, request_id) = match note {
        Note::Accepted(accepted) => (&accepted.session, AnswerKind::Accepted, &accepted.request_id),
        Note::Subscribed { request_id, snapshot, .. } => {
            (&snapshot.session, AnswerKind::Subscribed, request_id)
        }
        Note::Opened { request_id, snapshot } => (&snapshot.session, AnswerKind::Opened, request_id),
        Note::Members(members) => (&members.session, AnswerKind::Members, &members.request_id),
        Note::Closed { request_id, session } => (session, AnswerKind::Closed, request_id),
        Note::Refused { request_id, session, .. } => {
            return Some((session.as_ref()?, None, request_id.as_ref()));
        }
        Note::Fact { .. }
        | Note::Delta { .. }
        | Note::Printed { .. }
        | Note::Handover(_)
        | Note::CancelTaken { .. }
        | Note::Listed { .. }
        | Note::Found { .. }
        | Note::Deleted { .. }
        | Note::GoAway { .. } => return None,
    };
    Some((session, Some(kind), request_id.as_ref()))
}

impl Lane {
    /// Requests that are not begun.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl Links {
    /// Sends the answer of a request that keeps the order, or anything else; the next request of its session is due.
    pub(super) fn send(&mut self, outbox: &mut VecDeque<Output>, link: LinkId, note: Note) {
        if let Some((session, kind, request_id)) = answered(&note) {
            let lanes = self.get(link).map_or(&[][..], |there| &there.lanes);
            let settles = |lane: &Lane| {
                let is_kind = kind.is_none_or(|kind| kind == lane.current.kind);
                lane.session == *session && is_kind && lane.current.request_id.as_ref() == request_id
            };
            if lanes.iter().any(settles) {
                self.settle(link, &session.clone());
            }
        }
        self.send_apart(outbox, link, note);
    }

    /// Marks a link's present request about a session as answered.
    pub(super) fn settle(&mut self, link: LinkId, session: &SessionId) {
        let lanes = self.get_mut(link).map(|there| there.lanes.iter_mut());
        let lane = lanes.and_then(|mut lanes| lanes.find(|lane| lane.session == *session));
        if let Some(lane) = lane.filter(|lane| !lane.is_settled) {
            lane.is_settled = true;
            self.settled.push_back((link, session.clone()));
        }
    }
}

impl Switchboard {
    /// Performs a link's request, or keeps it until those before it are answered.
    pub(super) fn say(&mut self, now: Now, link: LinkId, command: Command) {
        let Some(there) = self.links.get_mut(link) else { return };
        let is_busy = there.is_busy(&command);
        let Some((session, kind)) = lane_of(&command) else {
            return self.perform(now, link, command, is_busy);
        };
        let lane = there.lanes.iter_mut().find(|lane| lane.session == *session);
        match lane {
            Some(_) if is_busy => self.refuse_busy(link, command.request_id().cloned()),
            Some(lane) => lane.waiting.push_back(command),
            None => {
                let current = Expected { kind, request_id: command.request_id().cloned() };
                let lane =
                    Lane { session: session.clone(), current, is_settled: false, waiting: VecDeque::new() };
                there.lanes.push(lane);
                self.perform_in_order(now, link, command, is_busy);
            }
        }
    }

    /// Performs the requests whose predecessors have been answered meanwhile.
    pub(super) fn perform_settled(&mut self, now: Now) {
        while let Some((link, session)) = self.links.settled.pop_front() {
            let Some(there) = self.links.get_mut(link) else { continue };
            let Some(at) = there.lanes.iter().position(|lane| lane.session == session) else { continue };
            let lane = &mut there.lanes[at];
            let next = lane.waiting.pop_front();
            let Some((command, kind)) = next.and_then(|command| {
                let (_, kind) = lane_of(&command)?;
                Some((command, kind))
            }) else {
                there.lanes.swap_remove(at);
                there.lanes.shrink_to_fit();
                continue;
            };
            lane.is_settled = false;
            lane.current = Expected { kind, request_id: command.request_id().cloned() };
            // It was let in when it came.
            self.perform_in_order(now, link, command, false);
        }
    }

    fn perform_in_order(&mut self, now: Now, link: LinkId, command: Command, is_busy: bool) {
        let lane = lane_of(&command).map(|(session, kind)| (session.clone(), kind));
        let is_refused = !self.is_permitted(link, &command) || (is_busy && command.may_be_busy());
        self.perform(now, link, command, is_busy);
        if let Some((session, kind)) = lane
            && (is_refused || kind == AnswerKind::Nothing)
        {
            self.links.settle(link, &session);
        }
    }
}
