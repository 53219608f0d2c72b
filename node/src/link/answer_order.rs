//! Keeps answers in order: requests of one connection about one session are answered in the order of arrival.
use std::collections::VecDeque;
use turnway_core::id::{RequestId, SessionId};
use turnway_core::limits::{ANSWER_ORDER_TIMEOUT, LINK_REQUESTS_MAX, MESSAGE_BYTES_MAX};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::entry::{Fact, SessionFact};
use turnway_core::time::{Mono, Now};
use turnway_wire::channel::command::{CommandTarget, LinkCommand, OrderedKind};
use turnway_wire::channel::notification::{CommandReply, Notification};

/// Unanswered requests of one connection, by session. Empty most of the time.
///
/// Consecutive turns are sent at once; an answer that comes too early is held back, together with the session's
/// later notifications. Any other request is sent once the earlier ones are answered, and blocks the later ones.
/// `cancel_run` and `handover_decision` are not ordered, because they end what other requests wait for.
#[derive(Debug, Default)]
pub(super) struct AnswerOrder {
    lanes: Vec<SessionLane>,
}

/// Requests about one session.
#[derive(Debug)]
struct SessionLane {
    session: SessionId,
    /// Sent and unanswered, in order of arrival.
    sent: VecDeque<SentRequest>,
    /// Not sent, in order of arrival.
    waiting: VecDeque<QueuedRequest>,
    /// An answer that came too early, and the notifications after it; released once the earlier requests are
    /// answered.
    held: VecDeque<Notification>,
}

/// A request that was sent and is not answered.
#[derive(Debug)]
struct SentRequest {
    kind: OrderedKind,
    request_id: Option<RequestId>,
    since: Mono,
}

/// A request that is not sent yet.
#[derive(Debug)]
struct QueuedRequest {
    command: LinkCommand,
    bytes: usize,
}

/// Notifications and requests that are ready.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ReadyItems {
    /// Shown first, in this order.
    pub(super) notes: Vec<Notification>,
    /// Sent afterwards, in this order.
    pub(super) commands: Vec<LinkCommand>,
}

/// The error for a request beyond the connection's limit of waiting requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyQueued {
    pub(super) request_id: Option<RequestId>,
}

/// Returns a request's session and kind if the request is kept in order.
fn ordered_kind(command: &LinkCommand) -> Option<(&SessionId, OrderedKind)> {
    let order = command.kind().order?;
    let CommandTarget::Session(session) = command.target() else { return None };
    Some((session, order))
}

// === impl AnswerOrder ===

impl AnswerOrder {
    /// Returns whether no request is unanswered or waiting.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Adds a request of `bytes` bytes; returns the request if it must be sent at once.
    pub(super) fn push_request(
        &mut self,
        now: Now,
        command: LinkCommand,
        bytes: usize,
    ) -> Result<Option<LinkCommand>, TooManyQueued> {
        let Some((session, kind)) = ordered_kind(&command) else { return Ok(Some(command)) };
        let lane = self.lanes.iter().position(|lane| lane.session == *session);
        if lane.is_none_or(|at| self.lanes[at].waiting.is_empty() && self.lanes[at].may_send(kind)) {
            if kind != OrderedKind::Unsubscribe {
                let session = session.clone();
                let at = lane.unwrap_or_else(|| self.add_lane(session));
                self.lanes[at].expect_answer(now, kind, &command);
            }
            return Ok(Some(command));
        }
        let all = || self.lanes.iter().flat_map(|lane| &lane.waiting);
        let waiting_bytes: usize = all().map(|waiting| waiting.bytes).sum();
        let is_full = all().count() >= LINK_REQUESTS_MAX || waiting_bytes + bytes > MESSAGE_BYTES_MAX;
        if is_full && !planted(Planted::OrderUnbounded) {
            return Err(TooManyQueued { request_id: command.request_id().cloned() });
        }
        if let Some(at) = lane {
            self.lanes[at].waiting.push_back(QueuedRequest { command, bytes });
        }
        Ok(None)
    }

    fn add_lane(&mut self, session: SessionId) -> usize {
        // Most connections have requests about one session at a time.
        self.lanes.reserve_exact(1);
        let (begun, waiting, held) = Default::default();
        self.lanes.push(SessionLane { session, sent: begun, waiting, held });
        self.lanes.len() - 1
    }

    /// Passes on a notification, or holds it back.
    pub(super) fn push_notification(&mut self, now: Now, note: Notification) -> ReadyItems {
        let mut due = ReadyItems::default();
        match self.lane_of(&note) {
            Some(at) => {
                self.lanes[at].push_notification(note, &mut due);
                self.advance(now, at, &mut due);
            }
            None => due.notes.push(note),
        }
        due
    }

    /// Sends the requests of a lane that no earlier request blocks any more.
    fn advance(&mut self, now: Now, at: usize, due: &mut ReadyItems) {
        let lane = &mut self.lanes[at];
        lane.send_ready(now, due);
        if lane.sent.is_empty() && lane.waiting.is_empty() {
            due.notes.extend(self.lanes.swap_remove(at).held);
            self.lanes.shrink_to_fit();
        }
    }

    /// Returns the lane that a notification belongs to.
    fn lane_of(&self, note: &Notification) -> Option<usize> {
        let session = session_of(note);
        if let Notification::Reply(CommandReply::Refused { request_id, session: None, .. }) = note {
            let was_sent = |lane: &SessionLane| lane.sent.iter().any(|begun| begun.request_id == *request_id);
            return self.lanes.iter().position(was_sent);
        }
        self.lanes.iter().position(|lane| Some(&lane.session) == session)
    }

    /// Returns the time at which the next request loses its place in the order.
    pub(super) fn next_expiry(&self) -> Option<Mono> {
        let first = self.lanes.iter().filter_map(|lane| lane.sent.front());
        let first = first.filter(|_| !planted(Planted::OrderNeverPassesOver));
        first.map(|begun| begun.since + ANSWER_ORDER_TIMEOUT).min()
    }

    /// Gives up the places of requests whose answers take too long; their answers are shown whenever they arrive.
    pub(super) fn expire(&mut self, now: Now) -> ReadyItems {
        let mut due = ReadyItems::default();
        for at in (0..self.lanes.len()).rev() {
            let lane = &mut self.lanes[at];
            let before = lane.sent.len();
            while lane.sent.front().is_some_and(|begun| begun.since + ANSWER_ORDER_TIMEOUT <= now.mono) {
                lane.sent.pop_front();
                lane.release(&mut due);
            }
            if lane.sent.len() < before {
                self.advance(now, at, &mut due);
            }
        }
        due
    }
}

// === impl SessionLane ===

impl SessionLane {
    /// Returns whether a request may be sent now. Turns may overlap other turns; every other request is sent alone.
    fn may_send(&self, kind: OrderedKind) -> bool {
        let is_turn = |kind: OrderedKind| kind == OrderedKind::Invoke;
        let are_turns = || is_turn(kind) && self.sent.iter().all(|begun| is_turn(begun.kind));
        self.sent.is_empty() || are_turns() || planted(Planted::OrderOvertaken)
    }

    /// Records that a request is sent and that its answer is expected in this place.
    fn expect_answer(&mut self, now: Now, kind: OrderedKind, command: &LinkCommand) {
        if kind != OrderedKind::Unsubscribe {
            self.sent.push_back(SentRequest { kind, request_id: command.request_id().cloned(), since: now.mono });
        }
    }

    fn send_ready(&mut self, now: Now, due: &mut ReadyItems) {
        while let Some((_, kind)) = self.waiting.front().and_then(|waiting| ordered_kind(&waiting.command))
            && self.may_send(kind)
            && let Some(QueuedRequest { command, .. }) = self.waiting.pop_front()
        {
            self.expect_answer(now, kind, &command);
            due.commands.push(command);
        }
    }

    fn push_notification(&mut self, note: Notification, due: &mut ReadyItems) {
        match self.answered_by(&note) {
            Some(0) => {
                if !planted(Planted::OrderPlaceKept) {
                    self.sent.pop_front();
                }
                due.notes.push(note);
                self.release(due);
            }
            Some(at) if planted(Planted::OrderAnswersCross) => {
                drop(self.sent.remove(at));
                due.notes.push(note);
            }
            Some(_) => self.held.push_back(note),
            None if self.held.is_empty() || may_overtake(&note) => due.notes.push(note),
            None => self.held.push_back(note),
        }
    }

    /// Releases held notifications up to the first that answers a request behind an unanswered one.
    fn release(&mut self, due: &mut ReadyItems) {
        // The answers of requests that are now first precede all other held notifications.
        while let Some(at) = self.held.iter().position(|note| self.answered_by(note) == Some(0)) {
            self.sent.pop_front();
            due.notes.extend(self.held.remove(at));
        }
        while let Some(note) = self.held.front()
            && self.answered_by(note).is_none()
        {
            due.notes.extend(self.held.pop_front());
        }
    }

    /// Returns the index of the request that a notification answers.
    fn answered_by(&self, note: &Notification) -> Option<usize> {
        self.sent.iter().position(|begun| begun.is_answered_by(note))
    }
}

// === impl SentRequest ===

impl SentRequest {
    fn is_answered_by(&self, note: &Notification) -> bool {
        let (kind, request_id) = match note {
            Notification::Reply(CommandReply::Opened { request_id, .. }) => (OrderedKind::Open, request_id),
            Notification::Reply(CommandReply::Subscribed { request_id, .. }) => (OrderedKind::Subscribe, request_id),
            Notification::Reply(CommandReply::Members(members)) => (OrderedKind::Members, &members.request_id),
            Notification::Reply(CommandReply::TurnAccepted(accepted)) => (OrderedKind::Invoke, &accepted.request_id),
            Notification::Reply(CommandReply::Performed { kind, request_id, .. }) => {
                (OrderedKind::Performed(kind), request_id)
            }
            Notification::Reply(CommandReply::Refused { request_id, .. }) => (self.kind, request_id),
            // A subscribed link receives this fact instead of an answer.
            Notification::Fact { entry, .. } => {
                let Fact::Session(SessionFact::Closed { request_id }) = &entry.fact else { return false };
                (OrderedKind::Performed("session_closed"), request_id)
            }
            Notification::Chunk { .. }
            | Notification::ProcessOutput { .. }
            | Notification::Reply(_)
            | Notification::Deliver(_)
            | Notification::Signal(_)
            | Notification::AdapterState(_)
            | Notification::LimitReached(_)
            | Notification::GoAway { .. } => return false,
        };
        self.kind == kind && self.request_id == *request_id
    }
}

/// Returns the session that a notification is about, if any.
fn session_of(note: &Notification) -> Option<&SessionId> {
    match note {
        Notification::Fact { session, .. }
        | Notification::Chunk { session, .. }
        | Notification::ProcessOutput { session, .. }
        | Notification::Reply(CommandReply::Performed { session, .. } | CommandReply::CancelAccepted { session, .. }) => {
            Some(session)
        }
        Notification::Reply(CommandReply::TurnAccepted(accepted)) => Some(&accepted.session),
        Notification::Reply(CommandReply::MessageAccepted(accepted)) => Some(&accepted.session),
        Notification::Reply(CommandReply::ChildRequested(child)) => Some(&child.session),
        Notification::Reply(CommandReply::Subscribed { snapshot, .. } | CommandReply::Opened { snapshot, .. }) => {
            Some(&snapshot.session)
        }
        Notification::Reply(CommandReply::Members(members)) => Some(&members.session),
        Notification::Reply(CommandReply::Handover(decided)) => Some(&decided.session),
        Notification::Reply(CommandReply::Refused { session, .. }) => session.as_ref(),
        Notification::Reply(_)
        | Notification::Deliver(_)
        | Notification::Signal(_)
        | Notification::AdapterState(_)
        | Notification::LimitReached(_)
        | Notification::GoAway { .. } => None,
    }
}

/// Returns whether a notification may answer a request that is not kept in order.
fn may_overtake(note: &Notification) -> bool {
    matches!(
        note,
        Notification::Reply(
            CommandReply::Handover(_) | CommandReply::CancelAccepted { .. } | CommandReply::Refused { .. }
        )
    )
}
