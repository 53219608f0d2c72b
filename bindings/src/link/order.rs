//! Keeps answers in order: requests of one connection about one session are answered in the order of arrival.
use crate::channel::command::Command;
use crate::channel::note::Note;
use std::collections::VecDeque;
use turnway_core::id::{RequestId, SessionId};
use turnway_core::limits::{ANSWER_ORDER_PATIENCE, LINK_ASKS_MAX, MESSAGE_BYTES_MAX};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::entry::Fact;
use turnway_core::time::{Mono, Now};

/// Unanswered requests of one connection, by session. Empty most of the time.
///
/// Consecutive turns are sent at once; an answer that comes too early is held back, together with the session's
/// later notifications. Any other request is sent once the earlier ones are answered, and blocks the later ones.
/// `cancel_run` and `handover_decision` are not ordered, because they end what other requests wait for.
#[derive(Debug, Default)]
pub(super) struct Order {
    lanes: Vec<Lane>,
}

/// Requests about one session.
#[derive(Debug)]
struct Lane {
    session: SessionId,
    /// Sent and unanswered, in order of arrival.
    begun: VecDeque<Begun>,
    /// Not sent, in order of arrival.
    waiting: VecDeque<Waiting>,
    /// An answer that came too early, and the notifications after it; released once the earlier requests are
    /// answered.
    held: VecDeque<Note>,
}

/// A request that was sent and is not answered.
#[derive(Debug)]
struct Begun {
    kind: Kind,
    request_id: Option<RequestId>,
    since: Mono,
}

/// A request that is not sent yet.
#[derive(Debug)]
struct Waiting {
    command: Command,
    bytes: usize,
}

/// Kinds of requests that are kept in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Open,
    Close,
    Subscribe,
    Members,
    Invoke,
    /// Has no answer.
    Unsubscribe,
}

/// Notifications and requests that are ready.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Due {
    /// Shown first, in this order.
    pub(super) notes: Vec<Note>,
    /// Sent afterwards, in this order.
    pub(super) commands: Vec<Command>,
}

/// The error for a request beyond the connection's limit of waiting requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany {
    pub(super) request_id: Option<RequestId>,
}

/// Returns a request's session and kind if the request is kept in order.
fn place(command: &Command) -> Option<(&SessionId, Kind)> {
    match command {
        Command::Open { session, .. } => Some((session.as_ref()?, Kind::Open)),
        Command::Invoke(invoke) => Some((invoke.session.as_ref()?, Kind::Invoke)),
        Command::Close { session, .. } => Some((session, Kind::Close)),
        Command::Members { session, .. } => Some((session, Kind::Members)),
        Command::Subscribe(subscribe) => Some((&subscribe.session, Kind::Subscribe)),
        Command::Unsubscribe { session, .. } => Some((session, Kind::Unsubscribe)),
        Command::Cancel { .. }
        | Command::Decide { .. }
        | Command::Look { .. }
        | Command::List { .. }
        | Command::Delete { .. }
        | Command::Find { .. } => None,
    }
}

// === impl Order ===

impl Order {
    /// Returns whether no request is unanswered or waiting.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Adds a request of `bytes` bytes; returns the request if it must be sent at once.
    pub(super) fn ask(
        &mut self,
        now: Now,
        command: Command,
        bytes: usize,
    ) -> Result<Option<Command>, TooMany> {
        let Some((session, kind)) = place(&command) else { return Ok(Some(command)) };
        let lane = self.lanes.iter().position(|lane| lane.session == *session);
        if lane.is_none_or(|at| self.lanes[at].waiting.is_empty() && self.lanes[at].has_room_for(kind)) {
            if kind != Kind::Unsubscribe {
                let session = session.clone();
                let at = lane.unwrap_or_else(|| self.add(session));
                self.lanes[at].expect_answer(now, kind, &command);
            }
            return Ok(Some(command));
        }
        let all = || self.lanes.iter().flat_map(|lane| &lane.waiting);
        let waiting_bytes: usize = all().map(|waiting| waiting.bytes).sum();
        let is_full = all().count() >= LINK_ASKS_MAX || waiting_bytes + bytes > MESSAGE_BYTES_MAX;
        if is_full && !planted(Planted::OrderUnbounded) {
            return Err(TooMany { request_id: command.request_id().cloned() });
        }
        if let Some(at) = lane {
            self.lanes[at].waiting.push_back(Waiting { command, bytes });
        }
        Ok(None)
    }

    fn add(&mut self, session: SessionId) -> usize {
        // Most connections have requests about one session at a time.
        self.lanes.reserve_exact(1);
        let (begun, waiting, held) = Default::default();
        self.lanes.push(Lane { session, begun, waiting, held });
        self.lanes.len() - 1
    }

    /// Passes on a notification, or holds it back.
    pub(super) fn show(&mut self, now: Now, note: Note) -> Due {
        let mut due = Due::default();
        match self.lane_of(&note) {
            Some(at) => {
                self.lanes[at].show(note, &mut due);
                self.go_on(now, at, &mut due);
            }
            None => due.notes.push(note),
        }
        due
    }

    /// Sends the requests of a lane that no earlier request blocks any more.
    fn go_on(&mut self, now: Now, at: usize, due: &mut Due) {
        let lane = &mut self.lanes[at];
        lane.begin(now, due);
        if lane.begun.is_empty() && lane.waiting.is_empty() {
            due.notes.extend(self.lanes.swap_remove(at).held);
            self.lanes.shrink_to_fit();
        }
    }

    /// Returns the lane that a notification belongs to.
    fn lane_of(&self, note: &Note) -> Option<usize> {
        let session = session_of(note);
        if let Note::Refused { request_id, session: None, .. } = note {
            let asked = |lane: &Lane| lane.begun.iter().any(|begun| begun.request_id == *request_id);
            return self.lanes.iter().position(asked);
        }
        self.lanes.iter().position(|lane| Some(&lane.session) == session)
    }

    /// Returns the time at which the next request loses its place in the order.
    pub(super) fn due_at(&self) -> Option<Mono> {
        let first = self.lanes.iter().filter_map(|lane| lane.begun.front());
        let first = first.filter(|_| !planted(Planted::OrderNeverPassesOver));
        first.map(|begun| begun.since + ANSWER_ORDER_PATIENCE).min()
    }

    /// Gives up the places of requests whose answers take too long; their answers are shown whenever they arrive.
    pub(super) fn pass_over(&mut self, now: Now) -> Due {
        let mut due = Due::default();
        for at in (0..self.lanes.len()).rev() {
            let lane = &mut self.lanes[at];
            let before = lane.begun.len();
            while lane.begun.front().is_some_and(|begun| begun.since + ANSWER_ORDER_PATIENCE <= now.mono) {
                lane.begun.pop_front();
                lane.release(&mut due);
            }
            if lane.begun.len() < before {
                self.go_on(now, at, &mut due);
            }
        }
        due
    }
}

// === impl Lane ===

impl Lane {
    /// Returns whether a request may be sent now. Turns may overlap other turns; every other request is sent alone.
    fn has_room_for(&self, kind: Kind) -> bool {
        let is_turn = |kind: Kind| kind == Kind::Invoke;
        let are_turns = || is_turn(kind) && self.begun.iter().all(|begun| is_turn(begun.kind));
        self.begun.is_empty() || are_turns() || planted(Planted::OrderOvertaken)
    }

    /// Records that a request is sent and that its answer is expected in this place.
    fn expect_answer(&mut self, now: Now, kind: Kind, command: &Command) {
        if kind != Kind::Unsubscribe {
            self.begun.push_back(Begun { kind, request_id: command.request_id().cloned(), since: now.mono });
        }
    }

    fn begin(&mut self, now: Now, due: &mut Due) {
        while let Some((_, kind)) = self.waiting.front().and_then(|waiting| place(&waiting.command))
            && self.has_room_for(kind)
            && let Some(Waiting { command, .. }) = self.waiting.pop_front()
        {
            self.expect_answer(now, kind, &command);
            due.commands.push(command);
        }
    }

    fn show(&mut self, note: Note, due: &mut Due) {
        match self.answered_by(&note) {
            Some(0) => {
                if !planted(Planted::OrderPlaceKept) {
                    self.begun.pop_front();
                }
                due.notes.push(note);
                self.release(due);
            }
            Some(at) if planted(Planted::OrderAnswersCross) => {
                drop(self.begun.remove(at));
                due.notes.push(note);
            }
            Some(_) => self.held.push_back(note),
            None if self.held.is_empty() || overtakes(&note) => due.notes.push(note),
            None => self.held.push_back(note),
        }
    }

    /// Releases held notifications up to the first that answers a request behind an unanswered one.
    fn release(&mut self, due: &mut Due) {
        // The answers of requests that are now first precede all other held notifications.
        while let Some(at) = self.held.iter().position(|note| self.answered_by(note) == Some(0)) {
            self.begun.pop_front();
            due.notes.extend(self.held.remove(at));
        }
        while let Some(note) = self.held.front()
            && self.answered_by(note).is_none()
        {
            due.notes.extend(self.held.pop_front());
        }
    }

    /// Returns the index of the request that a notification answers.
    fn answered_by(&self, note: &Note) -> Option<usize> {
        self.begun.iter().position(|begun| begun.is_answered_by(note))
    }
}

// === impl Begun ===

impl Begun {
    fn is_answered_by(&self, note: &Note) -> bool {
        let (kind, request_id) = match note {
            Note::Opened { request_id, .. } => (Kind::Open, request_id),
            Note::Subscribed { request_id, .. } => (Kind::Subscribe, request_id),
            Note::Members(members) => (Kind::Members, &members.request_id),
            Note::Accepted(accepted) => (Kind::Invoke, &accepted.request_id),
            Note::Closed { request_id, .. } => (Kind::Close, request_id),
            Note::Refused { request_id, .. } => (self.kind, request_id),
            // A subscribed link receives this fact instead of an answer.
            Note::Fact { entry, .. } => {
                let Fact::SessionClosed { request_id } = &entry.fact else { return false };
                (Kind::Close, request_id)
            }
            Note::Delta { .. }
            | Note::Printed { .. }
            | Note::Handover(_)
            | Note::CancelTaken { .. }
            | Note::Listed { .. }
            | Note::Deleted { .. }
            | Note::Found { .. }
            | Note::GoAway { .. } => return false,
        };
        self.kind == kind && self.request_id == *request_id
    }
}

/// Returns the session that a notification is about, if any.
fn session_of(note: &Note) -> Option<&SessionId> {
    match note {
        Note::Fact { session, .. }
        | Note::Delta { session, .. }
        | Note::Printed { session, .. }
        | Note::Closed { session, .. }
        | Note::CancelTaken { session, .. } => Some(session),
        Note::Accepted(accepted) => Some(&accepted.session),
        Note::Subscribed { snapshot, .. } | Note::Opened { snapshot, .. } => Some(&snapshot.session),
        Note::Members(members) => Some(&members.session),
        Note::Handover(decided) => Some(&decided.session),
        Note::Refused { session, .. } => session.as_ref(),
        Note::Listed { .. } | Note::Deleted { .. } | Note::Found { .. } | Note::GoAway { .. } => None,
    }
}

/// Returns whether a notification may answer a request that is not kept in order.
fn overtakes(note: &Note) -> bool {
    matches!(note, Note::Handover(_) | Note::CancelTaken { .. } | Note::Refused { .. })
}
