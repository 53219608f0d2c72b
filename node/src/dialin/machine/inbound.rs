//! Handles the messages of the agent.
use super::super::DialInEvent;
use super::{DialInAttempt, DialInConnection, DialInProtocol};
use serde::Deserialize;
use std::borrow::Cow;
use std::sync::Arc;
use turnway_core::id::{MessageId, QualifiedRun, RequestId, RunId};
use turnway_core::limits::{self, AGENT_BODY_BYTES_MAX};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::agent::AgentFailure;
use turnway_core::time::Now;
use turnway_wire::agent::message::AgentMessage;
use turnway_wire::agent::{AttemptEvent, message, render};
use turnway_wire::channel::hello::Credential;
use turnway_wire::channel::json::fields::{self, required};
use turnway_wire::channel::json::malformed::MalformedReason;
use turnway_wire::channel::json::strict;

/// The agent's error code for a resumed run that the agent does not know.
const UNKNOWN_RUN_CODE: &str = "unknown_run";

/// The fields that route a message; the other fields are parsed by the message's handler.
#[derive(Deserialize)]
struct DialInRoutingFields<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    run_id: Option<Cow<'a, str>>,
    #[serde(default)]
    attempt: Option<u32>,
    #[serde(default, borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    message_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    request_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    token: Option<Cow<'a, str>>,
}

impl DialInProtocol {
    pub(super) fn handle_message(&mut self, now: Now, connection: &mut DialInConnection, text: &str) {
        let head = match parse_routing_fields(text) {
            Ok(head) => head,
            Err(flaw) => return handle_malformed(now, connection, &None, flaw.to_string()),
        };
        let request_id = head.request_id.as_deref().and_then(|id| RequestId::parse(id).ok());
        match &*head.kind {
            "input_ack" | "delta" | "state" | "action" | "handover_request" | "done" | "error" => {
                self.handle_event(now, connection, &head, text);
            }
            "cancel_ack" => self.handle_cancel_ack(connection, &head),
            "steer_ack" => self.handle_steer_ack(now, connection, &head, text),
            "subscribe" => self.handle_subscribe(now, connection, &request_id, text),
            "ping" => connection.pong(now, &request_id),
            "refresh" => match head.token {
                Some(token) => connection.request_refresh(request_id, Credential(token.into_owned())),
                None => {
                    handle_malformed(now, connection, &request_id, MalformedReason::MissingField("token").to_string())
                }
            },
            "hello" => handle_malformed(now, connection, &request_id, MalformedReason::RepeatedHello.to_string()),
            // A newer agent, or one that uses a client's message: not counted as malformed. The message proves that
            // the agent and the named run are alive.
            _ => {
                self.report_alive(connection, &head);
                connection.refuse_message(now, &request_id, "this message type is not supported from agents");
            }
        }
    }

    /// Handles an event of a run, which must have been ordered here and not have ended.
    fn handle_event(
        &mut self,
        now: Now,
        connection: &mut DialInConnection,
        head: &DialInRoutingFields<'_>,
        text: &str,
    ) {
        let Some((tenant, run_id)) = head.run_id.as_deref().and_then(|id| QualifiedRun::parse(id).ok()) else {
            return handle_malformed(now, connection, &None, MalformedReason::InvalidField("run_id").to_string());
        };
        let fits = |run: &&mut DialInAttempt| tenant.as_ref().is_none_or(|tenant| *tenant == run.tenant);
        let Some(run) = self.runs.get_mut(&run_id).filter(fits) else {
            if self.recently_dropped.contains(&run_id) {
                return;
            }
            let why = "unknown run: it was never ordered on this connection, or has ended";
            return handle_malformed(now, connection, &None, why.to_owned());
        };
        // The event belongs to an earlier attempt that this one has replaced.
        if head.attempt.is_some_and(|attempt| attempt != run.attempt) {
            return;
        }
        let attempt = run.attempt;
        run.bytes = if planted(Planted::DialinBodyUncounted) { 0 } else { run.bytes.saturating_add(text.len()) };
        let mut rest = None;
        let event = if run.bytes > AGENT_BODY_BYTES_MAX {
            AttemptEvent::Message(AgentMessage::Failed(AgentFailure::TooLarge))
        } else if head.kind == "input_ack" {
            AttemptEvent::Acked
        } else {
            let name = self.has_event_ids.then_some(head.id.as_deref());
            let of = QualifiedRun { tenant: run.tenant.clone(), run_id: run_id.clone() };
            let (before, message) = run.joiner.read(&head.kind, text, name, &of);
            rest = before.map(AttemptEvent::Message);
            AttemptEvent::Message(map_unknown_run(message, run.is_resumed))
        };
        // Any first message implies that the agent has received the input.
        let is_first = !std::mem::replace(&mut run.acked, true);
        if is_first && event != AttemptEvent::Acked {
            push_event(connection, &run_id, attempt, AttemptEvent::Acked);
        }
        let runs_on = match &event {
            AttemptEvent::Message(AgentMessage::Failed(AgentFailure::Reported { .. } | AgentFailure::NotKnown)) => {
                false
            }
            AttemptEvent::Message(AgentMessage::Failed(_)) => true,
            AttemptEvent::Acked | AttemptEvent::CancelAcked | AttemptEvent::Message(_) => false,
        };
        if runs_on {
            // The attempt failed at the gateway, and the agent does not know that.
            self.drop_attempt(now, connection, &run_id, attempt, true);
        } else if event.is_last() {
            self.runs.remove(&run_id);
        }
        let goes_on = !event.is_last();
        if let Some(rest) = rest {
            push_event(connection, &run_id, attempt, rest);
        }
        push_event(connection, &run_id, attempt, event);
        if is_first && goes_on && !self.subscribed_types.is_empty() {
            self.report_subscription(connection, &run_id, attempt);
        }
    }

    /// Returns the run that a message names, and its attempt, if it is a run of this connection in the expected state.
    fn named_attempt(
        &self,
        head: &DialInRoutingFields<'_>,
        is_expected: impl Fn(&DialInAttempt) -> bool,
    ) -> Option<(RunId, u32)> {
        let (tenant, run_id) = QualifiedRun::parse(head.run_id.as_deref()?).ok()?;
        let run = self.runs.get(&run_id)?;
        let fits = is_expected(run)
            && tenant.is_none_or(|tenant| tenant == run.tenant)
            && head.attempt.is_none_or(|attempt| attempt == run.attempt);
        fits.then_some((run_id, run.attempt))
    }

    /// Reports activity of the run that a message names, if it is a run of this connection.
    fn report_alive(&mut self, connection: &mut DialInConnection, head: &DialInRoutingFields<'_>) {
        if let Some((run_id, attempt)) = self.named_attempt(head, |run| run.acked && !run.cancelled) {
            push_event(connection, &run_id, attempt, AttemptEvent::Message(AgentMessage::Unknown));
        }
    }

    /// Sets the types of facts that the agent subscribes to, for present and future runs of this connection. A
    /// run's owner learns of the subscription after the run's first event, which is awaited.
    fn handle_subscribe(
        &mut self,
        now: Now,
        connection: &mut DialInConnection,
        request_id: &Option<RequestId>,
        text: &str,
    ) {
        let Ok(types) = message::parse_types(text) else {
            let why = format!("types: expected at most {} valid type patterns", limits::SUBSCRIBE_TYPES_MAX);
            return handle_malformed(now, connection, request_id, why);
        };
        self.subscribed_types = types;
        let runs = self.runs.iter().filter(|(_, run)| run.acked && !run.cancelled);
        let runs: Vec<_> = runs.map(|(run_id, run)| (run_id.clone(), run.attempt)).collect();
        runs.iter().for_each(|(run_id, attempt)| self.report_subscription(connection, run_id, *attempt));
        connection.write(now, render::subscribed(now.store, request_id, &self.subscribed_types));
    }

    /// Tells the run's owner about the subscription.
    fn report_subscription(&self, connection: &mut DialInConnection, run_id: &RunId, attempt: u32) {
        let types = Arc::clone(&self.subscribed_types);
        push_event(connection, run_id, attempt, AttemptEvent::Message(AgentMessage::Subscribe { types }));
    }

    /// Handles `cancel_ack`. An acknowledgement for a run that has just ended is ignored: the two crossed.
    fn handle_cancel_ack(&mut self, connection: &mut DialInConnection, head: &DialInRoutingFields<'_>) {
        if let Some((run_id, attempt)) = self.named_attempt(head, |run| run.cancelled) {
            self.runs.remove(&run_id);
            push_event(connection, &run_id, attempt, AttemptEvent::CancelAcked);
        }
    }

    /// Handles the answer to a steered input. The run may be omitted if only one run received an input with that
    /// message id: clients choose the ids, and ids of two sessions may be equal.
    fn handle_steer_ack(
        &self,
        now: Now,
        connection: &mut DialInConnection,
        head: &DialInRoutingFields<'_>,
        text: &str,
    ) {
        let Some(message_id) = head.message_id.as_deref().and_then(|id| MessageId::parse(id).ok()) else {
            return;
        };
        let of =
            |run_id: &RunId, run: &DialInAttempt| QualifiedRun { tenant: run.tenant.clone(), run_id: run_id.clone() };
        let fits = |(run_id, run): &(&RunId, &DialInAttempt)| {
            head.run_id.as_deref().is_none_or(|named| of(run_id, run).is_named(named))
                && head.attempt.is_none_or(|attempt| attempt == run.attempt)
                && run.steers.contains(&message_id)
        };
        let mut runs = self.runs.iter().filter(fits).map(|(run_id, run)| (of(run_id, run), run.attempt));
        let (Some((run, attempt)), others) = (runs.next(), runs.next()) else { return };
        if others.is_some() {
            let why = "run_id is required: several runs received an input with this message_id";
            return handle_malformed(now, connection, &None, why.to_owned());
        }
        // An unreadable answer counts as no answer.
        if let Ok(message) = message::parse(&head.kind, text, None, &run) {
            push_event(connection, &run.run_id, attempt, AttemptEvent::Message(message));
        }
    }
}

fn push_event(connection: &mut DialInConnection, run_id: &RunId, attempt: u32, event: AttemptEvent) {
    connection.push_event(DialInEvent::AttemptEvent { run_id: run_id.clone(), attempt, event });
}

/// Answers a malformed message; closes the connection after too many.
fn handle_malformed(now: Now, connection: &mut DialInConnection, request_id: &Option<RequestId>, why: String) {
    connection.refuse_message(now, request_id, why);
    let max = if planted(Planted::DialinBadForgiven) { usize::MAX } else { limits::BAD_MESSAGES_MAX };
    connection.count_malformed(now, max);
}

/// Parses the fields that route a message. Depth and number of values are checked by the handlers that keep values;
/// none are kept here.
fn parse_routing_fields(text: &str) -> Result<DialInRoutingFields<'_>, MalformedReason> {
    // Serde would also accept a JSON array with the fields in order.
    if !text.trim_ascii_start().starts_with('{') {
        return Err(MalformedReason::NotAnObject);
    }
    serde_json::from_str(text).map_err(|_| malformed_reason(text).err().unwrap_or(MalformedReason::NotJson))
}

/// Returns the reason why the routing fields cannot be parsed.
fn malformed_reason(text: &str) -> Result<(), MalformedReason> {
    let mut body = strict::object(text)?;
    required(fields::text(&mut body, "type")?, "type")?;
    for label in ["run_id", "id", "message_id", "request_id", "token"] {
        fields::text(&mut body, label)?;
    }
    fields::integer(&mut body, "attempt")?;
    Err(MalformedReason::InvalidField("type"))
}

/// Maps the error code `unknown_run` of a resumed run to [`AgentFailure::NotKnown`].
fn map_unknown_run(message: AgentMessage, goes_on: bool) -> AgentMessage {
    let is_unknown = matches!(
        &message,
        AgentMessage::Failed(AgentFailure::Reported { code, .. }) if code == UNKNOWN_RUN_CODE
    );
    if goes_on && is_unknown { AgentMessage::Failed(AgentFailure::NotKnown) } else { message }
}
