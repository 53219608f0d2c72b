//! Agents that are models: sends an input with the conversation before it to an upstream, and reports the answer. Called by
//! `execution`.
use crate::agent::attempt::AttemptTask;
use crate::agent::conversation::{ConversationError, EarlierMessage, ModelAccess, newest_within};
use crate::agent::directory::{ModelEndpoint, SystemPrompt};
use crate::models::answer::{AnswerOutcome, AnswerStep};
use crate::models::budget::BudgetAccount;
use crate::models::headers::for_upstream;
use crate::models::open_call::{CallFailure, OpenCall};
use crate::models::{ModelCall, Models};
use crate::run_token::TokenRun;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use serde_json::{Map, Value, json};
use std::sync::{Arc, OnceLock};
use tokio::time::timeout;
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, Invoke, StopReason, TextKind};
use turnway_core::protocol::history::History;
use turnway_core::protocol::json::Json;
use turnway_wire::model::{
    CallFormat, CallRequest, CallRequestError, ChatEnd, ChatFinish, ChatPiece, ChatReader, TokenUsage,
};

/// An agent that is a model.
#[derive(Debug)]
pub(super) struct ModelAgent {
    pub(super) endpoint: ModelEndpoint,
    /// Set before the first attempt.
    pub(super) access: Arc<OnceLock<ModelAccess>>,
}

/// Asks the model, and returns how the attempt ended. Dropping the future closes the call.
pub(super) async fn run(attempt: &mut AttemptTask, agent: &ModelAgent) -> AgentEvent {
    let control = attempt.control();
    let talk = async {
        match answer(attempt, agent).await {
            Ok(end) => end,
            Err(failure) => AgentEvent::Failed(failure),
        }
    };
    tokio::select! {
        biased;
        () = control.wait_cancelled() => AgentEvent::CancelAcked,
        end = talk => end,
    }
}

async fn answer(attempt: &mut AttemptTask, agent: &ModelAgent) -> Result<AgentEvent, AgentFailure> {
    let Some(access) = agent.access.get() else {
        return Err(AgentFailure::Unavailable("the node has not started".to_owned()));
    };
    let request = request(&attempt.invoke, &agent.endpoint, access).await?;
    let mut call = open(&access.models, request).await?;
    attempt.report(AgentEvent::Acked).await;
    let mut reader = ChatReader::default();
    loop {
        let mut pieces = Vec::new();
        let step = call.answer.next().await;
        match &step {
            AnswerStep::Bytes(bytes) => reader.push(bytes, &mut pieces),
            AnswerStep::End(_) => reader.finish(&mut pieces),
        }
        if pieces.is_empty() {
            attempt.report_alive().await;
        }
        for piece in pieces {
            match piece {
                ChatPiece::Text(text) => attempt.report_text(TextKind::Text, text, None).await,
                ChatPiece::Reasoning(text) => attempt.report_text(TextKind::Reasoning, text, None).await,
            }
        }
        let outcome = match step {
            AnswerStep::End(outcome) => Some(outcome),
            AnswerStep::Bytes(_) if reader.is_done() => last_step(&mut call).await,
            AnswerStep::Bytes(_) if matches!(reader.end(), ChatEnd::Error(_)) => Some(AnswerOutcome::Error),
            AnswerStep::Bytes(_) => continue,
        };
        call.record_end(outcome.unwrap_or(AnswerOutcome::Complete));
        return end_of(&reader, outcome);
    }
}

/// Reads to the end of the body after the last event, so that the connection can be used again. Returns nothing if the end
/// does not come.
async fn last_step(call: &mut OpenCall) -> Option<AnswerOutcome> {
    let end = async {
        loop {
            if let AnswerStep::End(outcome) = call.answer.next().await {
                return outcome;
            }
        }
    };
    timeout(limits::MODEL_AGENT_END_WAIT, end).await.ok()
}

/// Returns the end of an attempt whose answer has ended.
fn end_of(reader: &ChatReader, outcome: Option<AnswerOutcome>) -> Result<AgentEvent, AgentFailure> {
    let stop = match reader.end() {
        ChatEnd::Finished(ChatFinish::Stop) => StopReason::EndTurn,
        ChatEnd::Finished(ChatFinish::Length) => StopReason::MaxTokens,
        ChatEnd::Finished(ChatFinish::ContentFilter) => StopReason::Refusal,
        ChatEnd::Finished(ChatFinish::ToolCalls) => {
            return Err(model_failure("the model wants to call tools, which are not supported", None));
        }
        ChatEnd::Error(message) => return Err(model_failure("the model reported an error", Some(message))),
        ChatEnd::Open if outcome == Some(AnswerOutcome::TimedOut) => {
            return Err(model_failure("the model's upstream paused for too long", None));
        }
        ChatEnd::Open => return Err(model_failure("the model's upstream ended the answer before its end", None)),
    };
    Ok(AgentEvent::Done { stop, usage: usage_of(reader.usage()) })
}

/// Returns the known counts of an answer.
fn usage_of(usage: TokenUsage) -> Option<Json> {
    let counts = [
        ("input_tokens", usage.input),
        ("cached_input_tokens", usage.cached_input),
        ("output_tokens", usage.output),
        ("reasoning_tokens", usage.reasoning),
    ];
    let known: Map<String, Value> =
        counts.into_iter().filter_map(|(name, count)| Some((name.to_owned(), count?.into()))).collect();
    (!known.is_empty()).then_some(Json(Value::Object(known)))
}

/// Sends the call, and checks that its answer is a stream.
async fn open(models: &Models, request: ModelCall) -> Result<OpenCall, AgentFailure> {
    let mut call = models.open(&request).await.map_err(call_failure)?;
    let status = call.answer.status();
    if !status.is_success() {
        let body = timeout(limits::MODEL_AGENT_ERROR_WAIT, read_error(&mut call)).await.unwrap_or_default();
        call.record_end(AnswerOutcome::Refused);
        return Err(model_failure(&format!("the model's upstream answered with status {}", status.as_u16()), body));
    }
    if !call.answer.takes_events() {
        call.record_end(AnswerOutcome::Error);
        return Err(model_failure("the model's upstream did not answer with an event stream", None));
    }
    Ok(call)
}

/// Reads the beginning of an error's body.
async fn read_error(call: &mut OpenCall) -> Option<String> {
    let mut bytes = Vec::new();
    while bytes.len() < limits::AGENT_ERROR_BYTES_MAX
        && let AnswerStep::Bytes(more) = call.answer.next().await
    {
        bytes.extend_from_slice(&more);
    }
    bytes.truncate(limits::AGENT_ERROR_BYTES_MAX);
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    let text = text[..text.floor_char_boundary(limits::AGENT_ERROR_BYTES_MAX)].to_owned();
    (!text.is_empty()).then_some(text)
}

fn call_failure(failure: CallFailure) -> AgentFailure {
    match failure {
        CallFailure::Unrecorded => AgentFailure::Unavailable("the call of the model could not be recorded".to_owned()),
        CallFailure::Budget(refusal) => model_failure(&refusal.to_string(), None),
        CallFailure::Busy => AgentFailure::Unavailable("the model has as many calls as it may have".to_owned()),
        CallFailure::Unreachable => AgentFailure::Unavailable("no upstream of the model can be reached".to_owned()),
        CallFailure::Unauthorized => model_failure("the model's upstream refuses the key of the provider", None),
        CallFailure::Broken => model_failure("the connection to the model's upstream broke before an answer", None),
        CallFailure::TimedOut => model_failure("the model's upstream did not answer in time", None),
    }
}

fn model_failure(why: &str, body: Option<String>) -> AgentFailure {
    AgentFailure::Model { why: why.to_owned(), body: body.map(Private) }
}

/// Builds the call of an input. Equal attempts get equal bytes.
async fn request(invoke: &Invoke, endpoint: &ModelEndpoint, access: &ModelAccess) -> Result<ModelCall, AgentFailure> {
    let earlier = earlier_messages(invoke, endpoint, access).await?;
    let body = body(invoke, endpoint, earlier);
    let call = CallRequest::parse(CallFormat::ChatCompletions, &body).map_err(|error| {
        let is_too_large = matches!(error, CallRequestError::BodyTooLarge { .. });
        let broken = || AgentFailure::Broken("the call of the model could not be built".to_owned());
        if is_too_large { AgentFailure::TooLarge } else { broken() }
    })?;
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
    let headers = for_upstream(&headers);
    let run = Some(TokenRun::of(invoke));
    let accounts = BudgetAccount::of_run(&invoke.key.tenant, &invoke.user, &invoke.agent_id);
    Ok(ModelCall { format: CallFormat::ChatCompletions, call, body, headers, query: None, run, accounts })
}

/// Returns the messages before the input: those that its client sent along, else those of the session.
async fn earlier_messages(
    invoke: &Invoke,
    endpoint: &ModelEndpoint,
    access: &ModelAccess,
) -> Result<Vec<Value>, AgentFailure> {
    let run = TokenRun::of(invoke);
    let unavailable = |error: ConversationError| AgentFailure::Unavailable(error.to_string());
    let parse = |text: &[u8]| {
        serde_json::from_slice::<Vec<Value>>(text)
            .map_err(|_| AgentFailure::Broken("the earlier messages are no JSON array".to_owned()))
    };
    match &invoke.history {
        Some(History::Inline(Private(text))) => parse(text.as_bytes()),
        Some(History::File { sha256 }) => {
            parse(&access.conversations.read_file(run, *sha256).await.map_err(unavailable)?)
        }
        None if endpoint.context_tokens == 0 => Ok(Vec::new()),
        None => {
            let messages = access.conversations.read_before(run).await.map_err(unavailable)?;
            Ok(newest_within(messages, endpoint.context_tokens).into_iter().map(EarlierMessage::into_value).collect())
        }
    }
}

fn body(invoke: &Invoke, endpoint: &ModelEndpoint, earlier: Vec<Value>) -> Bytes {
    let mut messages = Vec::with_capacity(earlier.len() + 3);
    let own = endpoint.system.as_ref().map(|SystemPrompt(text)| text.reveal() as &str);
    let of_plugins = invoke.system_prompt.as_ref().map(|text| text.reveal() as &str);
    messages.extend([own, of_plugins].into_iter().flatten().map(|text| message("system", text)));
    messages.extend(earlier);
    messages.push(message("user", &invoke.message.content.plain_text()));
    let mut call = json!({
        "model": endpoint.model,
        "messages": messages,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    if let Some(most) = endpoint.max_output {
        call["max_completion_tokens"] = most.into();
    }
    call.to_string().into()
}

fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}
