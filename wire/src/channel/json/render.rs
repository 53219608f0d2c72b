//! Renders notifications to a link as JSON texts.
//! A fact may be one message, two or three, or none: see `FactKind::messages`. Only the last message carries `seq` and
//! `epoch`, so a client that disconnects between them asks for the fact again.
pub mod account;
mod adapter;
pub mod binding;
pub mod delivery;
mod handover;
mod members;
mod process_output;
mod signal;

use crate::channel::PROTOCOL;
use crate::channel::json::frame::{
    self, AttemptPayload, DeltaPayload, DonePayload, EmptyPayload, ErrorDetailPayload, ErrorPayload, EventPayload,
    GatheredPayload, GoAwayPayload, MessageFrame, PlainFactPayload, RawFactPayload, RefreshedPayload,
    SessionOpenedPayload, SnapshotPayload, StatePayload, StreamDeltaPayload, SubscribedPayload, TurnAcceptedPayload,
    UserMessagePayload, WelcomeLimits, WelcomePayload,
};
use crate::channel::notification::{AcceptedTurn, CommandReply, Notification, SessionStateSnapshot};
use serde::Serialize;
use std::time::Duration;
use turnway_core::protocol::chunk::TextChunk;

use turnway_core::id::{AgentId, Epoch, NodeId, RequestId, RunId, Seq, SessionId};
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{StopReason, TextKind};
use turnway_core::protocol::entry::{
    ActionFact, DeliveryFact, Entry, Fact, InputFact, ModelFact, RunFact, SessionFact,
};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::Millis;

/// Renders one notification; `to` is called with each message in order.
pub fn render(ts: Millis, durability: &str, note: &Notification, to: &mut dyn FnMut(String)) {
    match note {
        Notification::Fact { session, seq, epoch, entry, requested } => {
            // History keeps its times: a fact's `ts` is the time of the decision, not of the delivery.
            let run_id = entry.run_id.as_ref();
            let position = (*seq, *epoch);
            write_fact(&mut FactWriter { ts: entry.time, session, run_id, position, sink: to }, entry, *requested);
        }
        Notification::Chunk { session, chunk } => to(render_chunk(ts, session, chunk)),
        Notification::ProcessOutput { session, run_id, output: printed } => {
            to(process_output::render_process_output(ts, session, run_id, printed))
        }
        Notification::Reply(CommandReply::TurnAccepted(accepted)) => to(turn_accepted(ts, durability, accepted)),
        Notification::Reply(CommandReply::Subscribed { request_id, snapshot, reset }) => {
            let body = SubscribedPayload::new(snapshot, *reset);
            let session_id = Some(&snapshot.session);
            let seq = Some(snapshot.seq);
            let epoch = Some(snapshot.epoch);
            let frame = MessageFrame { session_id, seq, epoch, ..reply_frame(ts, "subscribed", request_id, body) };
            to(frame.text(snapshot.weight()));
        }
        Notification::Reply(CommandReply::Opened { request_id, snapshot }) => {
            to(render_opened(ts, request_id, snapshot));
        }
        Notification::Reply(CommandReply::Performed { kind, request_id, session }) => {
            let frame =
                MessageFrame { session_id: Some(session), ..reply_frame(ts, kind, request_id, EmptyPayload {}) };
            to(frame.text(160));
        }
        Notification::Reply(CommandReply::Members(members)) => to(members::render_members_reply(ts, members)),
        Notification::Reply(CommandReply::Handover(decided)) => to(handover::render_decision_reply(ts, decided)),
        Notification::Deliver(message) => to(adapter::render_deliver(ts, message)),
        Notification::Signal(signal) => to(signal::render_signal(ts, signal)),
        Notification::AdapterState(state) => to(adapter::render_adapter_state(ts, state)),
        Notification::LimitReached(refusal) => to(render_error(ts, &None, refusal)),
        Notification::Reply(CommandReply::InboundAccepted(it)) => to(adapter::render_inbound_accepted(ts, it)),
        Notification::Reply(CommandReply::MessageAccepted(sent)) => to(delivery::render_message_accepted(ts, sent)),
        Notification::Reply(CommandReply::ChildRequested(child)) => to(binding::render_child_requested(ts, child)),
        Notification::Reply(CommandReply::FilesPrepared(files)) => to(adapter::render_files_prepared(ts, files)),
        Notification::Reply(CommandReply::CapabilitiesSet { request_id }) => {
            to(reply_frame(ts, "capabilities_set", request_id, EmptyPayload {}).text(96));
        }
        Notification::Reply(CommandReply::Binding { request_id, reply }) => {
            to(binding::render_binding_reply(ts, request_id, reply));
        }
        Notification::Reply(CommandReply::Account { request_id, reply }) => {
            to(account::render_account_reply(ts, request_id, reply));
        }
        Notification::Reply(CommandReply::DeliveryList(reply)) => to(delivery::render_delivery_list(ts, reply)),
        // Facts already report the cancellation.
        Notification::Reply(CommandReply::CancelAccepted { .. }) => {}
        // Only HTTP requests and the node itself can ask for these.
        Notification::Reply(
            CommandReply::SessionList { .. }
            | CommandReply::Stored
            | CommandReply::RunLocation { .. }
            | CommandReply::Deleted { .. }
            | CommandReply::Blobs(_),
        ) => {}
        Notification::Reply(CommandReply::Refused { request_id, session, run_id, refusal }) => {
            let frame = reply_frame(ts, "error", request_id, error_payload(refusal));
            to(MessageFrame { session_id: session.as_ref(), run_id: run_id.as_ref(), ..frame }.text(256));
        }
        Notification::GoAway { reason, within, jitter } => to(render_go_away(ts, reason, *within, *jitter)),
    }
}

/// Renders the request to connect elsewhere.
fn render_go_away(ts: Millis, reason: &'static str, within: Duration, jitter: Duration) -> String {
    let body = GoAwayPayload { reason, reconnect_within_ms: millis(within), jitter_ms: millis(jitter) };
    reply_frame(ts, "go_away", &None, body).text(128)
}

/// Renders the answer to `session_open`, without a log position: the snapshot may be ahead of the facts that this link has
/// been shown.
fn render_opened(ts: Millis, request_id: &Option<RequestId>, snapshot: &SessionStateSnapshot) -> String {
    let active_agent = snapshot.active_agent.as_ref();
    let body =
        SessionOpenedPayload { agents: &snapshot.agents, active_agent, snapshot: Some(SnapshotPayload::new(snapshot)) };
    let frame = reply_frame(ts, "session_opened", request_id, body);
    MessageFrame { session_id: Some(&snapshot.session), ..frame }.text(snapshot.weight())
}

/// Renders a `delta` message.
fn render_chunk(ts: Millis, session_id: &SessionId, chunk: &TextChunk) -> String {
    let TextChunk { run_id, attempt, offset, kind, text } = chunk;
    let text_kind = match kind {
        TextKind::Text => None,
        TextKind::Reasoning => Some(*kind),
    };
    let attempt = *attempt;
    let offset = *offset;
    let text = text.reveal();
    DeltaPayload { kind: "delta", ts, session_id, run_id, attempt, offset, text, text_kind }.text()
}

/// Renders an `error` about the connection or about one of its messages.
pub fn render_error(ts: Millis, request_id: &Option<RequestId>, refusal: &Refusal) -> String {
    reply_frame(ts, "error", request_id, error_payload(refusal)).text(256)
}

/// Renders a session's present state, as `subscribed` and `session_opened` carry it.
pub fn snapshot(snapshot: &SessionStateSnapshot) -> String {
    frame::to_json(&SnapshotPayload::new(snapshot), snapshot.weight())
}

/// Renders a `pong` message.
pub fn pong(ts: Millis, request_id: &Option<RequestId>) -> String {
    reply_frame(ts, "pong", request_id, EmptyPayload {}).text(64)
}

/// Renders `refreshed`: the new token was accepted.
pub fn refreshed(ts: Millis, request_id: &Option<RequestId>, expires: Millis) -> String {
    reply_frame(ts, "refreshed", request_id, RefreshedPayload { expires_ts: expires.0 }).text(96)
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
    let limits = WelcomeLimits {
        max_message_bytes: limits::MESSAGE_BYTES_MAX,
        max_json_depth: limits::JSON_DEPTH_MAX,
        max_json_values: limits::JSON_NODES_MAX,
        max_subscriptions: limits::LINK_SUBSCRIPTIONS_MAX,
        max_requests: limits::LINK_REQUESTS_MAX,
        max_waiting_inputs: limits::INBOX_INPUTS_MAX - 1,
    };
    let node_id = node.to_string();
    let heartbeat_ms = millis(heartbeat);
    let protocol = PROTOCOL;
    let expires_ts = expires.map(|at| at.0);
    let body = WelcomePayload { connection_id, node_id, protocol, heartbeat_ms, limits, resume_window_ms, expires_ts };
    reply_frame(ts, "welcome", &None, body).text(512)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the frame of a message to one link, without a log position.
pub fn reply_frame<'a, B: Serialize>(
    ts: Millis,
    kind: &'static str,
    request_id: &'a Option<RequestId>,
    body: B,
) -> MessageFrame<'a, B> {
    let request_id = request_id.as_ref();
    MessageFrame { kind, ts, request_id, session_id: None, run_id: None, body, seq: None, epoch: None }
}

fn turn_accepted(ts: Millis, durability: &str, accepted: &AcceptedTurn) -> String {
    let AcceptedTurn { request_id, session, run_id, message_id, duplicate } = accepted;
    let body = TurnAcceptedPayload { turn_id: run_id, message_id, duplicate: *duplicate, durability };
    let frame = reply_frame(ts, "turn_accepted", request_id, body);
    MessageFrame { session_id: Some(session), run_id: Some(run_id), ..frame }.text(512)
}

/// Returns the body of `error` for a refusal.
fn error_payload(refusal: &Refusal) -> ErrorPayload<'_> {
    let Refusal { code, message, retry_after_ms } = refusal;
    let code = *code;
    let retry_after_ms = *retry_after_ms;
    ErrorPayload { code, message, retryable: code.retryable(), retry_after_ms, detail: None, terminal: None }
}

/// Writes the messages of one fact.
struct FactWriter<'a, 't> {
    ts: Millis,
    session: &'a SessionId,
    run_id: Option<&'a RunId>,
    position: (Seq, Epoch),
    sink: &'t mut dyn FnMut(String),
}

impl<'a> FactWriter<'a, '_> {
    fn frame<B: Serialize>(
        &self,
        kind: &'static str,
        request_id: Option<&'a RequestId>,
        body: B,
    ) -> MessageFrame<'a, B> {
        let ts = self.ts;
        let session_id = Some(self.session);
        let run_id = self.run_id;
        MessageFrame { kind, ts, request_id, session_id, run_id, body, seq: None, epoch: None }
    }
    /// Writes a message that is followed by another message of the same fact.
    fn write_leading_message<B: Serialize>(&mut self, kind: &'static str, body: B) {
        let text = self.frame(kind, None, body).text(320);
        (self.sink)(text);
    }
    /// Writes the fact's only or last message, which carries the log position.
    fn write_final_message<B: Serialize>(
        &mut self,
        kind: &'static str,
        request_id: &'a Option<RequestId>,
        room: usize,
        body: B,
    ) {
        let seq = Some(self.position.0);
        let epoch = Some(self.position.1);
        let text = MessageFrame { seq, epoch, ..self.frame(kind, request_id.as_ref(), body) }.text(room);
        (self.sink)(text);
    }
    fn write_event(&mut self, event: EventPayload<'a>) {
        self.write_final_message("event", &None, 320, event);
    }
    fn write_error(
        &mut self,
        code: Code,
        message: &str,
        terminal: bool,
        delay_and_detail: (Option<u64>, ErrorDetailPayload<'_>),
    ) {
        let (retryable, terminal, (retry_after_ms, detail)) = (code.retryable(), Some(terminal), delay_and_detail);
        let detail = (detail.agent_code.is_some() || detail.agent_body.is_some()).then_some(detail);
        self.write_leading_message(
            "error",
            ErrorPayload { code, message, retryable, retry_after_ms, detail, terminal },
        );
    }
    fn write_done(&mut self, done: DonePayload<'a>) {
        self.write_final_message("done", &None, 320, done);
    }
}

/// Writes the messages of a fact as its row in the table of its family lists them. A fact without messages is written
/// only if it is `requested`.
fn write_fact<'a>(tell: &mut FactWriter<'a, '_>, entry: &'a Entry, requested: bool) {
    if entry.fact.is_on_request() && !requested {
        return;
    }
    if let Some((kind, name)) = entry.fact.kind().and_then(|kind| kind.plain_message()) {
        // A fact has string keys and finite numbers only, so it always serialises.
        let mut fact = serde_json::to_value(&entry.fact).unwrap_or_default();
        let body = PlainFactPayload { name, data: fact["data"].take() };
        return tell.write_final_message(kind, &None, entry.weight(), body);
    }
    match &entry.fact {
        Fact::Session(fact) => write_session_fact(tell, fact),
        Fact::Member(fact) => members::write_member_change(tell, fact),
        Fact::Handover(fact) => handover::write_handover(tell, fact),
        Fact::Action(fact) => write_action_fact(tell, entry, fact),
        // Their rows are plain.
        Fact::Binding(_) => {}
        Fact::Delivery(DeliveryFact::Requested(requested)) => write_raw_fact(tell, entry, requested),
        Fact::Delivery(DeliveryFact::Attempted(attempted)) => write_raw_fact(tell, entry, attempted),
        Fact::Delivery(
            DeliveryFact::Sent(_)
            | DeliveryFact::Held(_)
            | DeliveryFact::Failed(_)
            | DeliveryFact::Refused(_)
            | DeliveryFact::Redriven(_),
        ) => {}
        Fact::Model(ModelFact::Started(started)) => write_raw_fact(tell, entry, started),
        Fact::Model(ModelFact::Ended(ended)) => write_raw_fact(tell, entry, ended),
        Fact::Input(fact) => write_input_fact(tell, entry, fact),
        Fact::Run(fact) => write_run_fact(tell, entry, fact),
        Fact::Unknown(fact) => write_raw_fact(tell, entry, &fact.data),
    }
}

/// Writes a fact of the session itself that is not plain.
fn write_session_fact<'a>(tell: &mut FactWriter<'a, '_>, fact: &'a SessionFact) {
    if let SessionFact::Opened { agents, active_agent, request_id, user: _ } = fact {
        let body = SessionOpenedPayload { agents, active_agent: Some(active_agent), snapshot: None };
        tell.write_final_message("session_opened", request_id, 320, body);
    }
    if let SessionFact::Notice { name, request_id } = fact {
        members::write_notice(tell, name, request_id);
    }
}

fn write_action_fact<'a>(tell: &mut FactWriter<'a, '_>, entry: &'a Entry, fact: &'a ActionFact) {
    match fact {
        ActionFact::Requested(requested) => write_raw_fact(tell, entry, requested),
        ActionFact::Invoked(invoked) => write_tool_event(tell, entry, invoked),
        ActionFact::Ended(ended) => write_tool_event(tell, entry, ended),
        ActionFact::ProcessSpawned(reported)
        | ActionFact::ProcessProgress(reported)
        | ActionFact::ProcessExited(reported)
        | ActionFact::ProcessCanceled(reported) => write_raw_fact(tell, entry, reported),
        ActionFact::SystemEvent(reported) => write_raw_fact(tell, entry, reported),
    }
}

fn write_run_fact<'a>(tell: &mut FactWriter<'a, '_>, entry: &'a Entry, fact: &'a RunFact) {
    match fact {
        RunFact::Started { agent_id, attempt, request_id, deadline_ms: _, resumable: _ } => {
            tell.write_final_message("run_started", request_id, 320, AttemptPayload { agent_id, attempt: *attempt });
        }
        RunFact::Restarted { agent_id, attempt, reason, resumable: _ } => {
            write_attempt_event(tell, "RUN_RESTARTED", Some(agent_id), *attempt, Some(reason));
        }
        RunFact::Resumed { agent_id, attempt, reason } => {
            write_attempt_event(tell, "RUN_RESUMED", Some(agent_id), *attempt, Some(reason));
        }
        RunFact::AgentStarted { agent_id, attempt } => {
            write_attempt_event(tell, "AGENT_STARTED", Some(agent_id), *attempt, None);
        }
        RunFact::TextDelta { attempt, offset, text, mark: _ } => {
            let data = StreamDeltaPayload { attempt: *attempt, offset: *offset, text: text.reveal() };
            write_raw_fact(tell, entry, data);
        }
        RunFact::AgentDone { agent_id, attempt } => {
            write_raw_fact(tell, entry, AttemptPayload { agent_id, attempt: *attempt });
        }
        RunFact::State { scope, state, detail, mark: _ } => {
            let body = StatePayload { scope: *scope, state, detail: detail.as_ref() };
            tell.write_final_message("state", &None, 320, body);
        }
        RunFact::Suspended { attempt, reason } => {
            write_attempt_event(tell, "RUN_SUSPENDED", None, *attempt, Some(reason))
        }
        RunFact::Cancelling { reason, deadline_ms, request_id } => {
            let reason = Some(&**reason);
            let deadline_ts = Some(*deadline_ms);
            let body = EventPayload { name: "CANCEL_SENT", reason, deadline_ts, ..EventPayload::default() };
            tell.write_final_message("event", request_id, 320, body);
        }
        RunFact::Done { .. } | RunFact::Failed { .. } | RunFact::Cancelled { .. } => write_run_end(tell, fact),
    }
}

/// Writes an input, its admission, or the agent's answer to a steered input.
fn write_input_fact<'a>(tell: &mut FactWriter<'a, '_>, entry: &'a Entry, fact: &'a InputFact) {
    match fact {
        InputFact::UserMessage { message_id, request_id, user, message, agent_id, .. } => {
            let content = &message.content;
            let agent_id = agent_id.as_ref();
            let body = UserMessagePayload { role: "user", message, content, message_id, user_id: user, agent_id };
            tell.write_final_message("message", request_id, 2 * entry.weight(), body);
        }
        InputFact::Admitted { agent_id, strategy, position, host_run_id, replaces } => {
            tell.write_event(EventPayload {
                name: "TURN_ADMITTED",
                agent_id: Some(agent_id),
                strategy: Some(*strategy),
                position: *position,
                host_run_id: host_run_id.as_ref(),
                replaces: replaces.as_ref(),
                ..EventPayload::default()
            });
        }
        InputFact::Gathered { host_run_id } => write_raw_fact(tell, entry, GatheredPayload { host_run_id }),
        InputFact::SteerAcked { agent_id, host_run_id, attempt, outcome } => {
            tell.write_event(EventPayload {
                name: "STEER_ACK",
                agent_id: Some(agent_id),
                host_run_id: Some(host_run_id),
                attempt: Some(*attempt),
                outcome: Some(*outcome),
                ..EventPayload::default()
            });
        }
    }
}

/// Writes an event about an attempt whose owner node was lost.
fn write_attempt_event<'a>(
    tell: &mut FactWriter<'a, '_>,
    name: &'a str,
    agent_id: Option<&'a AgentId>,
    attempt: u32,
    reason: Option<&'a str>,
) {
    let attempt = Some(attempt);
    tell.write_event(EventPayload { name, agent_id, attempt, reason, ..EventPayload::default() });
}

/// Writes the end of a run: exactly one `done`.
fn write_run_end<'a>(tell: &mut FactWriter<'a, '_>, fact: &'a RunFact) {
    let done = |status, stop_reason, text_bytes: &u64, attempt: &u32| DonePayload {
        status,
        stop_reason,
        text_bytes: *text_bytes,
        attempt: *attempt,
        usage: None,
        host_run_id: None,
    };
    if let RunFact::Done { attempt, stop_reason, text_bytes, usage, host_run_id, text_sha256: _ } = fact {
        let usage = usage.as_ref();
        let host_run_id = host_run_id.as_ref();
        tell.write_done(DonePayload { usage, host_run_id, ..done("completed", *stop_reason, text_bytes, attempt) });
    }
    if let RunFact::Failed { attempt, code, message, agent_code, retry_after_ms, agent_body, text_bytes } = fact {
        let late = matches!(code, Code::RouteTimeout | Code::AgentTimeout);
        let stop = if late { StopReason::Timeout } else { StopReason::Error };
        let agent_code = agent_code.as_deref();
        let agent_body = agent_body.as_ref().map(Private::reveal);
        let detail = ErrorDetailPayload { agent_code, agent_body, ..ErrorDetailPayload::default() };
        tell.write_error(*code, message, true, (*retry_after_ms, detail));
        tell.write_done(done("failed", stop, text_bytes, attempt));
    }
    if let RunFact::Cancelled { attempt, reason, forced, text_bytes } = fact {
        if *forced {
            let message = "the agent did not acknowledge the cancel in time";
            tell.write_error(Code::CancelTimeout, message, false, (None, ErrorDetailPayload::default()));
        }
        tell.write_leading_message(
            "event",
            EventPayload { name: "CANCELED", reason: Some(reason), ..EventPayload::default() },
        );
        tell.write_done(done("cancelled", StopReason::Cancelled, text_bytes, attempt));
    }
}

/// Writes a tool call or its result as stored in the fact.
fn write_tool_event<'a, D: Serialize>(tell: &mut FactWriter<'a, '_>, entry: &'a Entry, data: D) {
    tell.write_final_message("tool_event", &None, entry.weight(), RawFactPayload { name: entry.fact.name(), data });
}

/// Writes a fact that is shown only on request.
fn write_raw_fact<'a, D: Serialize>(tell: &mut FactWriter<'a, '_>, entry: &'a Entry, data: D) {
    tell.write_final_message("event", &None, entry.weight(), RawFactPayload { name: entry.fact.name(), data });
}

#[cfg(test)]
mod tests;
