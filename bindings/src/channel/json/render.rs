//! Renders notifications to a link as JSON texts.
//! A fact may be one message, two or three, or none: see [`SHOWN`]. Only the last message carries `seq` and
//! `epoch`, so a client that disconnects between them asks for the fact again.
mod handover;
mod members;
mod printed;

use crate::channel::json::frame::{
    self, Attempt, Bare, Delta, Detail, Done, Event, Frame, GoAway, Limits, Opened, Raw, Refreshed, Said,
    Snapshot, State, StreamDelta, Subscribed, Trouble, TurnAccepted, Welcome,
};
use crate::channel::note::{Accepted, Note, SnapshotNote};
use serde::Serialize;
use std::time::Duration;

use turnway_core::id::{AgentId, Epoch, NodeId, RequestId, RunId, Seq, SessionId};
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{StopReason, TextKind};
use turnway_core::protocol::entry::{Entry, Fact};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::Millis;

/// Every fact and the messages it is rendered as, in order. A message in parentheses is conditional; `event` is
/// followed by its name. A notice named after an error code is rendered as `error`: a request failed. A fact
/// without messages is sent as an `event` of its own type to a link whose `types` match it.
pub const SHOWN: &[(&str, &str)] = &[
    ("session.opened", "session_opened"),
    ("session.closing", "event SESSION_CLOSING"),
    ("session.closed", "session_closed"),
    ("session.notice", "event <its name>"),
    ("agent.switched", "event ACTIVE_AGENT_CHANGED"),
    ("agent.adding", "event ADDING_AGENT"),
    ("agent.added", "event AGENT_ADDED"),
    ("agent.add_failed", "error"),
    ("agent.removing", "event AGENT_REMOVING"),
    ("agent.removed", "event AGENT_REMOVED"),
    ("agent.remove_failed", "error"),
    ("handover.requested", "handover_prompt"),
    ("handover.confirmed", "event HANDOVER_CONFIRMED"),
    ("handover.rejected", "event HANDOVER_REJECTED"),
    ("agent.action", ""),
    ("tool.invoke", "tool_event tool.invoke"),
    ("tool.result", "tool_event tool.result"),
    ("process.spawned", ""),
    ("process.progress", ""),
    ("process.exited", ""),
    ("process.canceled", ""),
    ("system.event", ""),
    ("user.message", "message"),
    ("turn.admitted", "event TURN_ADMITTED"),
    ("agent.steer.acked", "event STEER_ACK"),
    ("run.started", "run_started"),
    ("run.restarted", "event RUN_RESTARTED"),
    ("run.resumed", "event RUN_RESUMED"),
    ("agent.invoke.started", "event AGENT_STARTED"),
    ("agent.stream.delta", ""),
    ("agent.invoke.done", ""),
    ("run.state", "state"),
    ("run.suspended", "event RUN_SUSPENDED"),
    ("run.cancelling", "event CANCEL_SENT"),
    ("run.done", "done"),
    ("run.failed", "error, done"),
    ("run.cancelled", "(error,) event CANCELED, done"),
];

/// Renders one notification; `to` is called with each message in order.
pub fn render(ts: Millis, durability: &str, note: &Note, to: &mut dyn FnMut(String)) {
    match note {
        Note::Fact { session, seq, epoch, entry, asked } => {
            // History keeps its times: a fact's `ts` is the time of the decision, not of the delivery.
            let (ts, run_id, place) = (entry.time, entry.run_id.as_ref(), (*seq, *epoch));
            fact(&mut Teller { ts, session, run_id, place, to }, entry, *asked);
        }
        Note::Delta { session, run_id, attempt, offset, kind, text } => {
            let text_kind = match kind {
                TextKind::Text => None,
                TextKind::Reasoning => Some(*kind),
            };
            let (attempt, offset, text) = (*attempt, *offset, text.reveal());
            let session_id = session;
            to(Delta { kind: "delta", ts, session_id, run_id, attempt, offset, text, text_kind }.text());
        }
        Note::Printed { session, run_id, printed } => to(printed::told(ts, session, run_id, printed)),
        Note::Accepted(accepted) => to(turn_accepted(ts, durability, accepted)),
        Note::Subscribed { request_id, snapshot, reset } => {
            let body = Subscribed::new(snapshot, *reset);
            let (session_id, seq, epoch) =
                (Some(&snapshot.session), Some(snapshot.seq), Some(snapshot.epoch));
            let frame = Frame { session_id, seq, epoch, ..answer(ts, "subscribed", request_id, body) };
            to(frame.text(snapshot.weight()));
        }
        Note::Opened { request_id, snapshot } => {
            let active_agent = snapshot.active_agent.as_ref();
            let body =
                Opened { agents: &snapshot.agents, active_agent, snapshot: Some(Snapshot::new(snapshot)) };
            // Without a log position: the snapshot may be ahead of the facts that this link has been shown.
            let session_id = Some(&snapshot.session);
            let frame = Frame { session_id, ..answer(ts, "session_opened", request_id, body) };
            to(frame.text(snapshot.weight()));
        }
        Note::Closed { request_id, session } => {
            let frame =
                Frame { session_id: Some(session), ..answer(ts, "session_closed", request_id, Bare {}) };
            to(frame.text(160));
        }
        Note::Members(members) => to(members::told(ts, members)),
        Note::Handover(decided) => to(handover::told(ts, decided)),
        // Facts already report the cancellation.
        Note::CancelTaken { .. } => {}
        // Only HTTP requests can ask for these.
        Note::Listed { .. } | Note::Found { .. } | Note::Deleted { .. } => {}
        Note::Refused { request_id, session, run_id, refusal } => {
            let (session_id, run_id) = (session.as_ref(), run_id.as_ref());
            let frame = Frame { session_id, run_id, ..answer(ts, "error", request_id, trouble(refusal)) };
            to(frame.text(256));
        }
        Note::GoAway { reason, within, jitter } => {
            let (reconnect_within_ms, jitter_ms) = (millis(*within), millis(*jitter));
            to(answer(ts, "go_away", &None, GoAway { reason, reconnect_within_ms, jitter_ms }).text(128));
        }
    }
}

/// Renders an `error` about the connection or about one of its messages.
pub fn refused(ts: Millis, request_id: &Option<RequestId>, refusal: &Refusal) -> String {
    answer(ts, "error", request_id, trouble(refusal)).text(256)
}

/// Renders a session's present state, as `subscribed` and `session_opened` carry it.
pub fn snapshot(snapshot: &SnapshotNote) -> String {
    frame::json(&Snapshot::new(snapshot), snapshot.weight())
}

/// Renders `pong`.
pub fn pong(ts: Millis, request_id: &Option<RequestId>) -> String {
    answer(ts, "pong", request_id, Bare {}).text(64)
}

/// Renders `refreshed`: the new token was accepted.
pub fn refreshed(ts: Millis, request_id: &Option<RequestId>, expires: Millis) -> String {
    answer(ts, "refreshed", request_id, Refreshed { expires_ts: expires.0 }).text(96)
}

/// Renders `welcome`: the node, the connection id, and the limits in force.
pub fn welcome(
    ts: Millis,
    node: NodeId,
    connection_id: &str,
    heartbeat: Duration,
    resume_window_ms: u64,
    expires: Option<Millis>,
) -> String {
    let limits = Limits {
        max_message_bytes: limits::MESSAGE_BYTES_MAX,
        max_json_depth: limits::JSON_DEPTH_MAX,
        max_json_values: limits::JSON_NODES_MAX,
        max_subscriptions: limits::LINK_SUBSCRIPTIONS_MAX,
        max_requests: limits::LINK_ASKS_MAX,
        max_waiting_inputs: limits::INBOX_INPUTS_MAX - 1,
    };
    let (node_id, heartbeat_ms) = (node.to_string(), millis(heartbeat));
    let protocol = "turnway.v1";
    let expires_ts = expires.map(|at| at.0);
    let body =
        Welcome { connection_id, node_id, protocol, heartbeat_ms, limits, resume_window_ms, expires_ts };
    answer(ts, "welcome", &None, body).text(512)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the frame of a message to one link, without a log position.
pub(crate) fn answer<'a, B: Serialize>(
    ts: Millis,
    kind: &'static str,
    request_id: &'a Option<RequestId>,
    body: B,
) -> Frame<'a, B> {
    let request_id = request_id.as_ref();
    Frame { kind, ts, request_id, session_id: None, run_id: None, body, seq: None, epoch: None }
}

fn turn_accepted(ts: Millis, durability: &str, accepted: &Accepted) -> String {
    let Accepted { request_id, session, run_id, message_id, duplicate } = accepted;
    let body = TurnAccepted { turn_id: run_id, message_id, duplicate: *duplicate, durability };
    let frame = answer(ts, "turn_accepted", request_id, body);
    Frame { session_id: Some(session), run_id: Some(run_id), ..frame }.text(512)
}

/// Returns the body of `error` for a refusal.
fn trouble(refusal: &Refusal) -> Trouble<'_> {
    let Refusal { code, message, retry_after_ms } = refusal;
    let (code, retry_after_ms) = (*code, *retry_after_ms);
    Trouble { code, message, retryable: code.retryable(), retry_after_ms, detail: None, terminal: None }
}

/// Writes the messages of one fact.
struct Teller<'a, 't> {
    ts: Millis,
    session: &'a SessionId,
    run_id: Option<&'a RunId>,
    place: (Seq, Epoch),
    to: &'t mut dyn FnMut(String),
}

impl<'a> Teller<'a, '_> {
    fn frame<B: Serialize>(
        &self,
        kind: &'static str,
        request_id: Option<&'a RequestId>,
        body: B,
    ) -> Frame<'a, B> {
        let (ts, session_id, run_id) = (self.ts, Some(self.session), self.run_id);
        Frame { kind, ts, request_id, session_id, run_id, body, seq: None, epoch: None }
    }
    /// Writes a message that is followed by another message of the same fact.
    fn first<B: Serialize>(&mut self, kind: &'static str, body: B) {
        let text = self.frame(kind, None, body).text(320);
        (self.to)(text);
    }
    /// Writes the fact's only or last message, which carries the log position.
    fn last<B: Serialize>(
        &mut self,
        kind: &'static str,
        request_id: &'a Option<RequestId>,
        room: usize,
        body: B,
    ) {
        let (seq, epoch) = (Some(self.place.0), Some(self.place.1));
        let text = Frame { seq, epoch, ..self.frame(kind, request_id.as_ref(), body) }.text(room);
        (self.to)(text);
    }
    fn event(&mut self, event: Event<'a>) {
        self.last("event", &None, 320, event);
    }
    fn error(&mut self, code: Code, message: &str, terminal: bool, told: (Option<u64>, Detail<'_>)) {
        let (retryable, terminal, (retry_after_ms, detail)) = (code.retryable(), Some(terminal), told);
        let detail = (detail.agent_code.is_some() || detail.agent_body.is_some()).then_some(detail);
        self.first("error", Trouble { code, message, retryable, retry_after_ms, detail, terminal });
    }
    fn done(&mut self, done: Done<'a>) {
        self.last("done", &None, 320, done);
    }
}

/// Writes the messages of a fact as listed in [`SHOWN`].
fn fact<'a>(tell: &mut Teller<'a, '_>, entry: &'a Entry, asked: bool) {
    match &entry.fact {
        Fact::SessionOpened { agents, active_agent, request_id, user: _ } => {
            let body = Opened { agents, active_agent: Some(active_agent), snapshot: None };
            tell.last("session_opened", request_id, 320, body);
        }
        Fact::SessionClosing { request_id } => {
            tell.last("event", request_id, 256, Event { name: "SESSION_CLOSING", ..Event::default() });
        }
        Fact::SessionClosed { request_id } => tell.last("session_closed", request_id, 256, Bare {}),
        Fact::SessionNotice { name, request_id } => members::notice(tell, name, request_id),
        Fact::AgentSwitched { .. }
        | Fact::AgentAdding(_)
        | Fact::AgentAdded(_)
        | Fact::AgentAddFailed(_)
        | Fact::AgentRemoving(_)
        | Fact::AgentRemoved(_)
        | Fact::AgentRemoveFailed(_) => members::fact(tell, &entry.fact),
        Fact::HandoverRequested(_) | Fact::HandoverConfirmed(_) | Fact::HandoverRejected(_) => {
            handover::fact(tell, &entry.fact);
        }
        Fact::AgentAction(asked_for) => raw(tell, entry, asked, asked_for),
        Fact::ToolInvoke(invoked) => tool(tell, entry, invoked),
        Fact::ToolResult(ended) => tool(tell, entry, ended),
        Fact::ProcessSpawned(told)
        | Fact::ProcessProgress(told)
        | Fact::ProcessExited(told)
        | Fact::ProcessCanceled(told) => raw(tell, entry, asked, told),
        Fact::SystemEvent(told) => raw(tell, entry, asked, told),
        Fact::UserMessage { .. } => said(tell, entry),
        Fact::TurnAdmitted { .. } | Fact::AgentSteerAcked { .. } => admission(tell, &entry.fact),
        Fact::RunStarted { agent_id, attempt, request_id, deadline_ms: _, resumable: _ } => {
            tell.last("run_started", request_id, 320, Attempt { agent_id, attempt: *attempt });
        }
        Fact::RunRestarted { agent_id, attempt, reason, resumable: _ } => {
            moved(tell, "RUN_RESTARTED", Some(agent_id), *attempt, reason);
        }
        Fact::RunResumed { agent_id, attempt, reason } => {
            moved(tell, "RUN_RESUMED", Some(agent_id), *attempt, reason);
        }
        Fact::AgentInvokeStarted { agent_id, attempt } => {
            let (agent_id, attempt) = (Some(agent_id), Some(*attempt));
            tell.event(Event { name: "AGENT_STARTED", agent_id, attempt, ..Event::default() });
        }
        Fact::AgentStreamDelta { attempt, offset, text, mark: _ } => {
            let data = StreamDelta { attempt: *attempt, offset: *offset, text: text.reveal() };
            raw(tell, entry, asked, data);
        }
        Fact::AgentInvokeDone { agent_id, attempt } => {
            raw(tell, entry, asked, Attempt { agent_id, attempt: *attempt });
        }
        Fact::RunState { scope, state, detail, mark: _ } => {
            tell.last("state", &None, 320, State { scope: *scope, state, detail: detail.as_ref() });
        }
        Fact::RunSuspended { attempt, reason } => moved(tell, "RUN_SUSPENDED", None, *attempt, reason),
        Fact::RunCancelling { reason, deadline_ms, request_id } => {
            let (reason, deadline_ts) = (Some(&**reason), Some(*deadline_ms));
            let body = Event { name: "CANCEL_SENT", reason, deadline_ts, ..Event::default() };
            tell.last("event", request_id, 320, body);
        }
        Fact::RunDone { .. } | Fact::RunFailed { .. } | Fact::RunCancelled { .. } => end(tell, &entry.fact),
    }
}

fn said<'a>(tell: &mut Teller<'a, '_>, entry: &'a Entry) {
    if let Fact::UserMessage { message_id, request_id, user, message, agent_id, .. } = &entry.fact {
        let (content, agent_id) = (&message.content, agent_id.as_ref());
        let body = Said { role: "user", message, content, message_id, user_id: user, agent_id };
        tell.last("message", request_id, 2 * entry.weight(), body);
    }
}

/// Writes the admission of an input, or the agent's answer to a steered input.
fn admission<'a>(tell: &mut Teller<'a, '_>, fact: &'a Fact) {
    if let Fact::TurnAdmitted { agent_id, strategy, position, host_run_id, replaces } = fact {
        let (agent_id, strategy, position) = (Some(agent_id), Some(*strategy), *position);
        let (name, host_run_id, replaces) = ("TURN_ADMITTED", host_run_id.as_ref(), replaces.as_ref());
        tell.event(Event { name, agent_id, strategy, position, host_run_id, replaces, ..Event::default() });
    }
    if let Fact::AgentSteerAcked { agent_id, host_run_id, attempt, outcome } = fact {
        let (agent_id, host_run_id) = (Some(agent_id), Some(host_run_id));
        let (name, attempt, outcome) = ("STEER_ACK", Some(*attempt), Some(*outcome));
        tell.event(Event { name, agent_id, host_run_id, attempt, outcome, ..Event::default() });
    }
}

/// Writes an event about an attempt whose owner node was lost.
fn moved<'a>(
    tell: &mut Teller<'a, '_>,
    name: &'a str,
    agent_id: Option<&'a AgentId>,
    attempt: u32,
    reason: &'a str,
) {
    let (attempt, reason) = (Some(attempt), Some(reason));
    tell.event(Event { name, agent_id, attempt, reason, ..Event::default() });
}

/// Writes the end of a run: exactly one `done`.
fn end<'a>(tell: &mut Teller<'a, '_>, fact: &'a Fact) {
    let done = |status, stop_reason, text_bytes: &u64, attempt: &u32| Done {
        status,
        stop_reason,
        text_bytes: *text_bytes,
        attempt: *attempt,
        usage: None,
        host_run_id: None,
    };
    if let Fact::RunDone { attempt, stop_reason, text_bytes, usage, host_run_id, text_sha256: _ } = fact {
        let (usage, host_run_id) = (usage.as_ref(), host_run_id.as_ref());
        tell.done(Done { usage, host_run_id, ..done("completed", *stop_reason, text_bytes, attempt) });
    }
    if let Fact::RunFailed { attempt, code, message, agent_code, retry_after_ms, agent_body, text_bytes } =
        fact
    {
        let late = matches!(code, Code::RouteTimeout | Code::AgentTimeout);
        let stop = if late { StopReason::Timeout } else { StopReason::Error };
        let (agent_code, agent_body) = (agent_code.as_deref(), agent_body.as_ref().map(Private::reveal));
        let detail = Detail { agent_code, agent_body, ..Detail::default() };
        tell.error(*code, message, true, (*retry_after_ms, detail));
        tell.done(done("failed", stop, text_bytes, attempt));
    }
    if let Fact::RunCancelled { attempt, reason, forced, text_bytes } = fact {
        if *forced {
            let message = "the agent did not acknowledge the cancel in time";
            tell.error(Code::CancelTimeout, message, false, (None, Detail::default()));
        }
        tell.first("event", Event { name: "CANCELED", reason: Some(reason), ..Event::default() });
        tell.done(done("cancelled", StopReason::Cancelled, text_bytes, attempt));
    }
}

/// Writes a tool call or its result as stored in the fact.
fn tool<'a, D: Serialize>(tell: &mut Teller<'a, '_>, entry: &'a Entry, data: D) {
    tell.last("tool_event", &None, entry.weight(), Raw { name: entry.fact.name(), data });
}

/// Writes a fact that is shown only on request.
fn raw<'a, D: Serialize>(tell: &mut Teller<'a, '_>, entry: &'a Entry, asked: bool, data: D) {
    if asked {
        tell.last("event", &None, entry.weight(), Raw { name: entry.fact.name(), data });
    }
}

#[cfg(test)]
mod tests;
