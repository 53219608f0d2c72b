//! What a connection makes of what its agent says.
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

/// By which an agent says that it does not know of a run that it is to go on with.
const UNKNOWN_RUN: &str = "unknown_run";

/// What a message is about; the rest of it is read where it is known what it is.
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
        // The transport stops reading there; should one not, this does.
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
            // A newer agent, or one that takes itself for a client: no sign of a broken one. It is alive, and so is the
            // run that it names.
            _ => {
                self.alive(&head);
                let why = "not a message that an agent may send to this release";
                self.refuse(now, &request_id, Refusal::new(Code::InvalidMessage, why));
            }
        }
    }

    /// Something of a run: it must be one that it was ordered here and has not ended.
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
            let why = "no run of this connection: it was never ordered here, or has ended";
            return self.handle_bad(now, &None, why.to_owned());
        };
        // Of an attempt that has given way to this one.
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
        // Whatever it says first, it has the input.
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
            // It has failed without knowing it.
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

    /// Reports a sign of life of the run that a message names, if that is one of this connection.
    fn alive(&mut self, head: &Head<'_>) {
        let Some(run_id) = head.run_id.as_deref().and_then(|id| RunId::parse(id).ok()) else { return };
        let fits = |run: &&Run| {
            run.acked && !run.cancelled && head.attempt.is_none_or(|attempt| attempt == run.attempt)
        };
        if let Some(attempt) = self.runs.get(&run_id).filter(fits).map(|run| run.attempt) {
            self.word(&run_id, attempt, Word::Said(said::Said::Unknown));
        }
    }

    /// What it wants to be told of, in each run that it has and will have over this connection: whoever owns a run hears of
    /// that after its first word, which is waited for.
    fn handle_subscribe(&mut self, now: Now, request_id: &Option<RequestId>, text: &str) {
        let Ok(types) = said::types(text) else {
            let why = format!("types: at most {} patterns of names", limits::SUBSCRIBE_TYPES_MAX);
            return self.handle_bad(now, request_id, why);
        };
        self.types = types;
        let runs = self.runs.iter().filter(|(_, run)| run.acked && !run.cancelled);
        let runs: Vec<_> = runs.map(|(run_id, run)| (run_id.clone(), run.attempt)).collect();
        runs.iter().for_each(|(run_id, attempt)| self.subscribe(run_id, *attempt));
        self.write(now, render::subscribed(now.store, request_id, &self.types));
    }

    /// Whoever owns the run is to tell of that.
    fn subscribe(&mut self, run_id: &RunId, attempt: u32) {
        let types = Arc::clone(&self.types);
        self.word(run_id, attempt, Word::Said(said::Said::Subscribe { types }));
    }

    /// That of a run which has just ended crossed its end.
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

    /// Takes the answer to an input that was handed over. The run need not be named where one run alone was handed an input
    /// of that name: clients choose the names, and those of two sessions may be equal.
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
            let why = "run_id is missing: several runs were handed an input of this message_id";
            return self.handle_bad(now, &None, why.to_owned());
        }
        // One that cannot be read has not answered.
        if let Ok(said) = said::read(&head.kind, text, None, &run) {
            self.word(&run.run_id, attempt, Word::Said(said));
        }
    }

    fn word(&mut self, run_id: &RunId, attempt: u32, word: Word) {
        self.outputs.push_back(Output::Word { run_id: run_id.clone(), attempt, word });
    }

    /// Answers what is no message, until there is too much of it.
    fn handle_bad(&mut self, now: Now, request_id: &Option<RequestId>, why: String) {
        self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, why));
        self.bad.retain(|at| now.mono - *at < limits::BAD_MESSAGES_WINDOW);
        self.bad.push(now.mono);
        if self.bad.len() >= limits::BAD_MESSAGES_MAX && !planted(Planted::DialinBadForgiven) {
            self.close(4400, "too many bad messages");
        }
    }
}

/// Reads what a message is about. Its depth and its values are bounded where they are kept: here none are.
fn head(text: &str) -> Result<Head<'_>, Flaw> {
    // A list could stand for the fields in their order.
    if !text.trim_ascii_start().starts_with('{') {
        return Err(Flaw::NotAnObject);
    }
    serde_json::from_str(text).map_err(|_| flaw(text).err().unwrap_or(Flaw::NotJson))
}

/// Names what is wrong with a message whose head cannot be read.
fn flaw(text: &str) -> Result<(), Flaw> {
    let mut body = strict::object(text)?;
    required(fields::text(&mut body, "type")?, "type")?;
    for label in ["run_id", "id", "message_id", "request_id", "token"] {
        fields::text(&mut body, label)?;
    }
    fields::integer(&mut body, "attempt")?;
    Err(Flaw::Wrong("type"))
}

/// Of a run that goes on there is one error more: that nobody knows of it.
fn understood(said: said::Said, goes_on: bool) -> said::Said {
    let is_unknown =
        matches!(&said, said::Said::Failed(AgentFailure::Reported { code, .. }) if code == UNKNOWN_RUN);
    if goes_on && is_unknown { said::Said::Failed(AgentFailure::NotKnown) } else { said }
}
