//! Handles the messages of the agent.
use super::super::{Output, Word, render, said};
use super::{DialIn, Run};
use crate::channel::hello::Credential;
use crate::channel::json::fields::{self, required};
use crate::channel::json::malformed::Flaw;
use crate::channel::json::render as shown;
use crate::channel::json::strict;
use serde::Deserialize;
use std::borrow::Cow;
use std::sync::Arc;
use turnway_core::id::{MessageId, QualifiedRun, RequestId, RunId};
use turnway_core::limits::{self, AGENT_BODY_BYTES_MAX, MESSAGE_BYTES_MAX};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::agent::AgentFailure;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::Now;

/// The agent's error code for a resumed run that the agent does not know.
const UNKNOWN_RUN: &str = "unknown_run";

/// The fields that route a message; the other fields are parsed by the message's handler.
#[derive(Deserialize)]
struct Head<'a> {
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

impl DialIn {
    pub(super) fn handle_text(&mut self, now: Now, text: &str) {
        self.heard = now.mono;
        // The transport enforces the same limit; this check does not rely on it.
        if text.len() > MESSAGE_BYTES_MAX {
            return self.too_large(now);
        }
        let head = match head(text) {
            Ok(head) => head,
            Err(flaw) => return self.handle_bad(now, &None, flaw.to_string()),
        };
        let request_id = head.request_id.as_deref().and_then(|id| RequestId::parse(id).ok());
        match &*head.kind {
            "input_ack" | "delta" | "state" | "action" | "handover_request" | "done" | "error" => {
                self.handle_event(now, &head, text);
            }
            "cancel_ack" => self.handle_cancel_ack(&head),
            "steer_ack" => self.handle_steer_ack(now, &head, text),
            "subscribe" => self.handle_subscribe(now, &request_id, text),
            "ping" => self.write(now, shown::pong(now.store, &request_id)),
            "refresh" => match head.token {
                Some(token) => {
                    let token = Credential(token.into_owned());
                    self.outputs.push_back(Output::Refresh { request_id, token });
                }
                None => self.handle_bad(now, &request_id, Flaw::Missing("token").to_string()),
            },
            "hello" => self.handle_bad(now, &request_id, Flaw::HelloAgain.to_string()),
            // A newer agent, or one that uses a client's message: not counted as malformed. The message proves that
            // the agent and the named run are alive.
            _ => {
                self.alive(&head);
                let why = "this message type is not supported from agents";
                self.refuse(now, &request_id, Refusal::new(Code::InvalidMessage, why));
            }
        }
    }

    /// Handles an event of a run, which must have been ordered here and not have ended.
    fn handle_event(&mut self, now: Now, head: &Head<'_>, text: &str) {
        let Some((tenant, run_id)) = head.run_id.as_deref().and_then(|id| QualifiedRun::parse(id).ok())
        else {
            return self.handle_bad(now, &None, Flaw::Wrong("run_id").to_string());
        };
        let fits = |run: &&mut Run| tenant.as_ref().is_none_or(|tenant| *tenant == run.tenant);
        let Some(run) = self.runs.get_mut(&run_id).filter(fits) else {
            if self.forgiven.contains(&run_id) {
                return;
            }
            let why = "unknown run: it was never ordered on this connection, or has ended";
            return self.handle_bad(now, &None, why.to_owned());
        };
        // The event belongs to an earlier attempt that this one has replaced.
        if head.attempt.is_some_and(|attempt| attempt != run.attempt) {
            return;
        }
        let attempt = run.attempt;
        run.bytes =
            if planted(Planted::DialinBodyUncounted) { 0 } else { run.bytes.saturating_add(text.len()) };
        let mut rest = None;
        let word = if run.bytes > AGENT_BODY_BYTES_MAX {
            Word::Said(said::Said::Failed(AgentFailure::TooLarge))
        } else if head.kind == "input_ack" {
            Word::Acked
        } else {
            let name = self.named.then_some(head.id.as_deref());
            let of = QualifiedRun { tenant: run.tenant.clone(), run_id: run_id.clone() };
            let (before, said) = run.joiner.read(&head.kind, text, name, &of);
            rest = before.map(Word::Said);
            Word::Said(understood(said, run.goes_on))
        };
        // Any first message implies that the agent has received the input.
        let is_first = !std::mem::replace(&mut run.acked, true);
        if is_first && word != Word::Acked {
            self.word(&run_id, attempt, Word::Acked);
        }
        let runs_on = match &word {
            Word::Said(said::Said::Failed(AgentFailure::Reported { .. } | AgentFailure::NotKnown)) => false,
            Word::Said(said::Said::Failed(_)) => true,
            Word::Acked | Word::CancelAcked | Word::Said(_) => false,
        };
        if runs_on {
            // The attempt failed at the gateway, and the agent does not know that.
            self.let_go(now, &run_id, attempt, true);
        } else if word.is_last() {
            self.runs.remove(&run_id);
        }
        let goes_on = !word.is_last();
        if let Some(rest) = rest {
            self.word(&run_id, attempt, rest);
        }
        self.word(&run_id, attempt, word);
        if is_first && goes_on && !self.types.is_empty() {
            self.subscribe(&run_id, attempt);
        }
    }

    /// Reports activity of the run that a message names, if it is a run of this connection.
    fn alive(&mut self, head: &Head<'_>) {
        let Some(run_id) = head.run_id.as_deref().and_then(|id| RunId::parse(id).ok()) else { return };
        let fits = |run: &&Run| {
            run.acked && !run.cancelled && head.attempt.is_none_or(|attempt| attempt == run.attempt)
        };
        if let Some(attempt) = self.runs.get(&run_id).filter(fits).map(|run| run.attempt) {
            self.word(&run_id, attempt, Word::Said(said::Said::Unknown));
        }
    }

    /// Sets the types of facts that the agent subscribes to, for present and future runs of this connection. A
    /// run's owner learns of the subscription after the run's first event, which is awaited.
    fn handle_subscribe(&mut self, now: Now, request_id: &Option<RequestId>, text: &str) {
        let Ok(types) = said::types(text) else {
            let why = format!("types: expected at most {} valid type patterns", limits::SUBSCRIBE_TYPES_MAX);
            return self.handle_bad(now, request_id, why);
        };
        self.types = types;
        let runs = self.runs.iter().filter(|(_, run)| run.acked && !run.cancelled);
        let runs: Vec<_> = runs.map(|(run_id, run)| (run_id.clone(), run.attempt)).collect();
        runs.iter().for_each(|(run_id, attempt)| self.subscribe(run_id, *attempt));
        self.write(now, render::subscribed(now.store, request_id, &self.types));
    }

    /// Tells the run's owner about the subscription.
    fn subscribe(&mut self, run_id: &RunId, attempt: u32) {
        let types = Arc::clone(&self.types);
        self.word(run_id, attempt, Word::Said(said::Said::Subscribe { types }));
    }

    /// Handles `cancel_ack`. An acknowledgement for a run that has just ended is ignored: the two crossed.
    fn handle_cancel_ack(&mut self, head: &Head<'_>) {
        let Some((tenant, run_id)) = head.run_id.as_deref().and_then(|id| QualifiedRun::parse(id).ok())
        else {
            return;
        };
        let fits = |run: &&Run| {
            run.cancelled
                && tenant.as_ref().is_none_or(|tenant| *tenant == run.tenant)
                && head.attempt.is_none_or(|attempt| attempt == run.attempt)
        };
        if let Some(attempt) = self.runs.get(&run_id).filter(fits).map(|run| run.attempt) {
            self.runs.remove(&run_id);
            self.word(&run_id, attempt, Word::CancelAcked);
        }
    }

    /// Handles the answer to a steered input. The run may be omitted if only one run received an input with that
    /// message id: clients choose the ids, and ids of two sessions may be equal.
    fn handle_steer_ack(&mut self, now: Now, head: &Head<'_>, text: &str) {
        let Some(message_id) = head.message_id.as_deref().and_then(|id| MessageId::parse(id).ok()) else {
            return;
        };
        let of =
            |run_id: &RunId, run: &Run| QualifiedRun { tenant: run.tenant.clone(), run_id: run_id.clone() };
        let fits = |(run_id, run): &(&RunId, &Run)| {
            head.run_id.as_deref().is_none_or(|named| of(run_id, run).is_named(named))
                && head.attempt.is_none_or(|attempt| attempt == run.attempt)
                && run.steers.contains(&message_id)
        };
        let mut runs = self.runs.iter().filter(fits).map(|(run_id, run)| (of(run_id, run), run.attempt));
        let (Some((run, attempt)), others) = (runs.next(), runs.next()) else { return };
        if others.is_some() {
            let why = "run_id is required: several runs received an input with this message_id";
            return self.handle_bad(now, &None, why.to_owned());
        }
        // An unreadable answer counts as no answer.
        if let Ok(said) = said::read(&head.kind, text, None, &run) {
            self.word(&run.run_id, attempt, Word::Said(said));
        }
    }

    fn word(&mut self, run_id: &RunId, attempt: u32, word: Word) {
        self.outputs.push_back(Output::Word { run_id: run_id.clone(), attempt, word });
    }

    /// Answers a malformed message; closes the connection after too many.
    fn handle_bad(&mut self, now: Now, request_id: &Option<RequestId>, why: String) {
        self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, why));
        self.bad.retain(|at| now.mono - *at < limits::BAD_MESSAGES_WINDOW);
        self.bad.push(now.mono);
        if self.bad.len() >= limits::BAD_MESSAGES_MAX && !planted(Planted::DialinBadForgiven) {
            self.close(4400, "too many malformed messages");
        }
    }
}

/// Parses the fields that route a message. Depth and number of values are checked by the handlers that keep values;
/// none are kept here.
fn head(text: &str) -> Result<Head<'_>, Flaw> {
    // Serde would also accept a JSON array with the fields in order.
    if !text.trim_ascii_start().starts_with('{') {
        return Err(Flaw::NotAnObject);
    }
    serde_json::from_str(text).map_err(|_| flaw(text).err().unwrap_or(Flaw::NotJson))
}

/// Returns the reason why the routing fields cannot be parsed.
fn flaw(text: &str) -> Result<(), Flaw> {
    let mut body = strict::object(text)?;
    required(fields::text(&mut body, "type")?, "type")?;
    for label in ["run_id", "id", "message_id", "request_id", "token"] {
        fields::text(&mut body, label)?;
    }
    fields::integer(&mut body, "attempt")?;
    Err(Flaw::Wrong("type"))
}

/// Maps the error code `unknown_run` of a resumed run to [`AgentFailure::NotKnown`].
fn understood(said: said::Said, goes_on: bool) -> said::Said {
    let is_unknown =
        matches!(&said, said::Said::Failed(AgentFailure::Reported { code, .. }) if code == UNKNOWN_RUN);
    if goes_on && is_unknown { said::Said::Failed(AgentFailure::NotKnown) } else { said }
}
