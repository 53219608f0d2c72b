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
    /// Requests that are being performed, as they came: one, or inputs behind a subscription.
    running: Vec<Running>,
    /// Requests that came after them. Bounded with the link's other requests (`Link::is_busy`).
    waiting: VecDeque<Command>,
}

/// A request that is being performed.
#[derive(Debug)]
struct Running {
    kind: AnswerKind,
    request_id: Option<RequestId>,
    /// The answer, where it is there before that of a request that came earlier.
    held: Option<Note>,
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
        Command::Close { session, .. } => Some((session, AnswerKind::Closed)),
        Command::Members { session, .. } => Some((session, AnswerKind::Members)),
        Command::Subscribe(subscribe) => Some((&subscribe.session, AnswerKind::Subscribed)),
        Command::Unsubscribe { session, .. } => Some((session, AnswerKind::Nothing)),
        // Cancelling what is in flight must not wait for it, but nothing can be cancelled before it was asked for: a run
        // id is known only from an answer.
        Command::Cancel { target: Target::Run(_) | Target::Session(_), .. }
        | Command::Decide { .. }
        | Command::Look { .. }
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

// === impl Lane ===

impl Lane {
    /// Requests that are not begun.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a request may be performed beside those that are. An input may: while a subscription reads the log, facts of
    /// a message that is said again may come, and `turn_accepted` has to be there before them (protocol.md §1.3).
    fn may_begin(&self, kind: AnswerKind) -> bool {
        let beside =
            |running: &Running| matches!(running.kind, AnswerKind::Subscribed | AnswerKind::Accepted);
        self.running.is_empty() || (kind == AnswerKind::Accepted && self.running.iter().all(beside))
    }

    /// Whether an answer must wait for `subscribed`: nothing of the session is shown before that.
    fn is_early(&self, at: usize) -> bool {
        self.running[..at].iter().any(|earlier| earlier.kind == AnswerKind::Subscribed)
    }

    /// Takes the first answer that was held back and need not be any more.
    fn release(&mut self) -> Option<Note> {
        let at =
            (0..self.running.len()).find(|at| self.running[*at].held.is_some() && !self.is_early(*at))?;
        self.running.remove(at).held
    }

    /// Finds the request that an answer is for.
    fn find(&self, kind: Option<AnswerKind>, request_id: Option<&RequestId>) -> Option<usize> {
        self.running.iter().position(|running| {
            let is_kind = kind.is_none_or(|kind| kind == running.kind);
            is_kind && running.held.is_none() && running.request_id.as_ref() == request_id
        })
    }
}

impl Links {
    /// Sends the answer of a request that keeps the order, or anything else; those behind it are due.
    pub(super) fn send(&mut self, outbox: &mut VecDeque<Output>, link: LinkId, note: Note) {
        let Some((session, kind, request_id)) = answered(&note) else {
            return self.send_apart(outbox, link, note);
        };
        let session = session.clone();
        let Some(lane) = self.lane(link, &session) else { return self.send_apart(outbox, link, note) };
        let Some(at) = lane.find(kind, request_id) else { return self.send_apart(outbox, link, note) };
        if lane.is_early(at) {
            lane.running[at].held = Some(note);
            return;
        }
        lane.running.remove(at);
        self.settled.push_back((link, session.clone()));
        self.send_apart(outbox, link, note);
        while let Some(held) = self.lane(link, &session).and_then(Lane::release) {
            self.send_apart(outbox, link, held);
        }
    }

    /// Ends a link's request about a session that has had its answer otherwise.
    pub(super) fn settle(&mut self, link: LinkId, session: &SessionId, request_id: Option<&RequestId>) {
        let Some(lane) = self.lane(link, session) else { return };
        if let Some(at) = lane.find(None, request_id) {
            lane.running.remove(at);
            self.settled.push_back((link, session.clone()));
        }
    }

    fn lane(&mut self, link: LinkId, session: &SessionId) -> Option<&mut Lane> {
        self.get_mut(link)?.lanes.iter_mut().find(|lane| lane.session == *session)
    }
}

impl Switchboard {
    /// Performs a link's request, or keeps it until those before it are answered.
    pub(super) fn say(&mut self, now: Now, link: LinkId, command: Command) {
        let Some(there) = self.links.get_mut(link) else { return };
        let is_busy = there.is_busy(&command);
        let Some((session, _)) = lane_of(&command) else {
            return self.perform(now, link, command, is_busy);
        };
        let session = session.clone();
        let lane = there.lanes.iter_mut().find(|lane| lane.session == session);
        if is_busy && (lane.is_some() || command.may_be_busy()) {
            return self.refuse_busy(link, command.request_id().cloned());
        }
        if let Some(lane) = lane {
            lane.waiting.push_back(command);
        } else {
            there.lanes.push(Lane {
                session: session.clone(),
                running: Vec::new(),
                waiting: [command].into(),
            });
        }
        self.links.settled.push_back((link, session));
    }

    /// Performs the requests whose predecessors have been answered meanwhile.
    pub(super) fn perform_settled(&mut self, now: Now) {
        while let Some((link, session)) = self.links.settled.pop_front() {
            while let Some(command) = self.next_in_lane(link, &session) {
                self.perform_in_order(now, link, command);
            }
        }
    }

    /// Takes the next request that may be performed; a lane with nothing in it ends.
    fn next_in_lane(&mut self, link: LinkId, session: &SessionId) -> Option<Command> {
        let there = self.links.get_mut(link)?;
        let at = there.lanes.iter().position(|lane| lane.session == *session)?;
        let lane = &mut there.lanes[at];
        let Some((_, kind)) = lane.waiting.front().and_then(lane_of) else {
            if lane.running.is_empty() {
                there.lanes.swap_remove(at);
                there.lanes.shrink_to_fit();
            }
            return None;
        };
        if !lane.may_begin(kind) {
            return None;
        }
        let command = lane.waiting.pop_front()?;
        lane.running.push(Running { kind, request_id: command.request_id().cloned(), held: None });
        Some(command)
    }

    fn perform_in_order(&mut self, now: Now, link: LinkId, command: Command) {
        let Some((session, kind)) = lane_of(&command) else { return };
        let (session, request_id) = (session.clone(), command.request_id().cloned());
        let is_refused = !self.is_permitted(link, &command);
        // It was let in when it came.
        self.perform(now, link, command, false);
        if is_refused || kind == AnswerKind::Nothing {
            self.links.settle(link, &session, request_id.as_ref());
        }
    }
}
