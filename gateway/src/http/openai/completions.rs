//! Serves `POST /v1/chat/completions`: a turn, answered in OpenAI's format. A call that names neither itself nor a
//! session is cancelled when its connection ends. A call with either name continues, since its client can return to it.
use crate::auth::{AuthProof, AuthenticatedClient};
use crate::http::models::{self, ModelCallError, ParsedCall};
use crate::http::openai::OpenAiResult;
use crate::http::openai::call_body::CallBody;
use crate::http::openai::call_files::{self, CallFiles};
use crate::http::openai::error::OpenAiError;
use crate::http::problem::HttpProblem;
use crate::http::request_link::{LinkClosed, RequestFailure, RequestLink};
use crate::http::stream::{self, NoteRenderer};
use crate::http::{HttpContext, request_parts, run_scope};
use crate::phase::NodePhase;
use crate::response::{self, Body};
use crate::shared_secret::SecretUnavailable;
use crate::socket::ClientWatch;
use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{EventId, MessageId, RunId, SessionId};
use turnway_core::limits::STORE_RETRY_AFTER;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::Millis;
use turnway_wire::channel::command::{CancelTarget, LinkCommand};
use turnway_wire::channel::notification::{AcceptedTurn, CommandReply, Notification};
use turnway_wire::channel::openai::model;
use turnway_wire::channel::openai::{ChatCall, ChatCallIds, ChatCollector, ChatError, ChatResponseHead, ChatStream};
use turnway_wire::model::{CallFormat, CallRequestError};

/// Header of the session to continue; also sent with every answer.
const SESSION: &str = "x-session-id";
/// Header with the id of a call that may be repeated.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Header of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";
/// Header by which OpenAI clients identify an answer; its value is the run id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest wait of a streamed answer for the first text before its status is sent, so that an early failure gets an
/// error status. An unavailable agent is known at once, and no client waits long for the headers.
const FIRST_TEXT_WAIT: Duration = Duration::from_secs(2);

/// The response options of a call.
struct CompletionOptions {
    stream: bool,
    include_usage: bool,
    head: ChatResponseHead,
    run_id: RunId,
    /// True if the call has an idempotency key and may be repeated.
    named: bool,
}

pub(super) async fn create(
    State(context): State<Arc<HttpContext>>,
    watch: Option<Extension<ClientWatch>>,
    headers: HeaderMap,
    uri: Uri,
    body: Body,
) -> OpenAiResult {
    let format = CallFormat::ChatCompletions;
    let admitted = context.admit(&headers).await.map_err(|problem| OpenAiError::from(problem).with_unread_body())?;
    let body = CallBody::read(&context, &admitted, &headers, body).await?;
    let watch = watch.map(|Extension(watch)| watch);
    let body = match body.parse_model_call(format).await {
        (Ok(call), body) if !model::is_agent_name(call.model()) && !context.models.is_empty() => {
            let call = ParsedCall { format, call, body };
            let relayed = models::relay_call(context, admitted, watch, &headers, &uri, call).await;
            return Ok(relayed.unwrap_or_else(|error| error.into_response(format)));
        }
        // The reasons of other mistakes are those of the agents' API.
        (Err(error @ CallRequestError::ForbiddenMember { .. }), _) => {
            return Ok(ModelCallError::from(error).into_response(format));
        }
        (Ok(_) | Err(_), body) => body,
    };
    if matches!(admitted.proof, AuthProof::Run(_)) && !planted(Planted::RunTokenUnscoped) {
        return Err(HttpProblem::from(run_scope::refusal()).into());
    }
    answer_turn(context, admitted, watch, headers, body).await
}

/// Answers a call of an agent, which is a turn.
async fn answer_turn(
    context: Arc<HttpContext>,
    admitted: AuthenticatedClient,
    watch: Option<ClientWatch>,
    headers: HeaderMap,
    body: CallBody,
) -> OpenAiResult {
    let now = context.clock.now().store;
    let key = parse_header(&headers, IDEMPOTENCY_KEY, MessageId::parse)?;
    let session = parse_header(&headers, SESSION, SessionId::parse)?;
    let named = key.is_some();
    // Until the call is known to be accepted, a repeat is harmless if the call has a name, or if it ends with its
    // connection.
    let repeatable = named || session.is_none();
    let name = resolve_name(&context, &admitted, session, key, new_event_id(now)?).await?;
    let (call, room) = body.parse(&name).await?;
    if !context.directory.agents.contains_key(&call.agent) {
        return Err(ChatError::model_not_found().into());
    }
    if context.life.phase() >= NodePhase::Draining {
        return Err(HttpProblem::draining().into());
    }
    let wanted = CompletionOptions {
        stream: call.stream,
        include_usage: call.include_usage,
        head: ChatResponseHead::new(&name.run_id, &call.agent, now),
        run_id: name.run_id.clone(),
        named,
    };
    let trace = request_parts::header(&headers, TRACEPARENT).ok().flatten().map(str::to_owned);
    let mut link = RequestLink::open(Arc::clone(&context), admitted.clone()).await?;
    link.set_watch(watch);
    let accepted = match ask(&mut link, &admitted, &name, call, trace).await? {
        Ok(accepted) => accepted,
        Err(why) => {
            if matches!(why, RequestFailure::Refused(_)) {
                link.complete();
            }
            return Err(OpenAiError::unanswered(why, repeatable));
        }
    };
    // The files are stored, and the message is on disk.
    drop(room);
    let answer = if wanted.stream {
        respond_streamed(link, admitted, wanted, &accepted).await
    } else {
        respond_whole(link, wanted).await
    };
    // A failed turn is identified too.
    let mut response = answer.unwrap_or_else(OpenAiError::into_response);
    for (header, text) in
        [(HeaderName::from_static(SESSION), name.session.as_str()), (REQUEST_ID, name.run_id.as_str())]
    {
        // Session ids and run ids are always valid header values.
        if let Ok(value) = HeaderValue::from_str(text) {
            response.headers_mut().insert(header, value);
        }
    }
    Ok(response)
}

/// Stores the files of a call, then asks its agent. If the call is refused, its files are taken back.
async fn ask(
    link: &mut RequestLink,
    client: &AuthenticatedClient,
    name: &ChatCallIds,
    mut call: ChatCall,
    trace: Option<String>,
) -> Result<Result<AcceptedTurn, RequestFailure>, OpenAiError> {
    call_files::check(link.context(), &call)?;
    let mut files = CallFiles::store(&link.context_handle(), client, name, &mut call).await?;
    if name.unrepeatable {
        let target = CancelTarget::Run(name.run_id.clone());
        link.on_hang_up(LinkCommand::Cancel { request_id: None, target, wants_receipt: false });
    }
    // From now on a message may name the files.
    files.keep();
    let accepted = link.invoke(call.into_command(name, trace)).await;
    if let Err(RequestFailure::Refused(_)) = &accepted {
        files.take_back().await;
    }
    Ok(accepted)
}

/// Determines the session and the turn of a call. The naming secret is needed only if the call names no session.
async fn resolve_name(
    context: &HttpContext,
    admitted: &AuthenticatedClient,
    session: Option<SessionId>,
    call: Option<MessageId>,
    fresh: EventId,
) -> Result<ChatCallIds, OpenAiError> {
    let principal = &admitted.principal;
    if let Some(session) = session {
        return Ok(ChatCallIds::in_session(principal, session, call, fresh));
    }
    let key = context.call_names.key().await.map_err(|why| OpenAiError::from(naming_error(&why)))?;
    Ok(ChatCallIds::without_session(principal, call, fresh, |call| key.session_of(principal, call)))
}

/// Returns the error of a call that cannot be named. Only a store that does not answer is worth a repetition.
fn naming_error(why: &SecretUnavailable) -> ChatError {
    match why {
        SecretUnavailable::Store(_) => {
            tracing::warn!(%why, "cannot derive the session of a call");
            let refusal = Refusal::new(Code::StoreUnavailable, "the store is unavailable");
            ChatError::from(&refusal.retry_after(STORE_RETRY_AFTER))
        }
        SecretUnavailable::Randomness | SecretUnavailable::Unreadable => {
            tracing::error!(%why, "cannot derive the session of a call");
            ChatError::new(Code::InternalError, why.to_string())
        }
    }
}

/// Returns a new id, for a call that did not name itself.
fn new_event_id(now: Millis) -> Result<EventId, OpenAiError> {
    let mut chance = [0; 16];
    getrandom::fill(&mut chance)
        .map_err(|_| ChatError::new(Code::InternalError, "the system provides no randomness"))?;
    Ok(EventId::new(now, u128::from_be_bytes(chance)))
}

/// Parses a header as a name, if present.
fn parse_header<T, E: std::fmt::Display>(
    headers: &HeaderMap,
    name: &'static str,
    parse: fn(&str) -> Result<T, E>,
) -> Result<Option<T>, OpenAiError> {
    let text = request_parts::header(headers, name)?;
    let parsed = text.map(|text| parse(text).map_err(|why| ChatError::invalid_field(name, format!("{name}: {why}"))));
    Ok(parsed.transpose()?)
}

async fn respond_whole(mut link: RequestLink, wanted: CompletionOptions) -> OpenAiResult {
    let mut whole = ChatCollector::new(wanted.head, wanted.run_id);
    let watch = link.watch().filter(|_| link.has_hang_up_command());
    let hung_up = async move {
        match watch {
            Some(watch) => watch.wait_hung_up().await,
            None => std::future::pending().await,
        }
    };
    let mut hung_up = std::pin::pin!(hung_up);
    loop {
        match whole.response() {
            None => {
                let received = tokio::select! {
                    biased;
                    received = link.next_note() => received,
                    // The client has disconnected, so this error is sent to no one.
                    () = hung_up.as_mut() => Err(LinkClosed::Draining),
                };
                whole.push(&received.map_err(|parted| link_closed(parted, wanted.named))?);
            }
            Some(answer) => {
                link.complete();
                return Ok(response::build(StatusCode::OK, "application/json", answer?));
            }
        }
    }
}

async fn respond_streamed(
    mut link: RequestLink,
    admitted: AuthenticatedClient,
    wanted: CompletionOptions,
    accepted: &AcceptedTurn,
) -> OpenAiResult {
    let CompletionOptions { include_usage, head, run_id, named, .. } = wanted;
    let mut chunks = ChatStream::new(head.clone(), run_id.clone(), 0, include_usage);
    if accepted.duplicate {
        chunks = match current_attempt(&link, admitted, accepted).await? {
            Some(attempt) => ChatStream::new(head, run_id, attempt, include_usage),
            None => chunks.hold_until_end(),
        };
    }
    let mut first = String::new();
    let begun = tokio::time::timeout(FIRST_TEXT_WAIT, async {
        while !chunks.has_begun() && !chunks.is_finished() {
            let note = link.next_note().await?;
            chunks.push(&note, &mut first);
        }
        Ok::<_, LinkClosed>(())
    });
    match begun.await {
        Ok(begun) => begun.map_err(|parted| link_closed(parted, named))?,
        Err(_) => chunks.send_first_chunk(&mut first),
    }
    if chunks.is_finished() {
        link.complete();
    }
    match chunks.error_before_start() {
        Some(error) => Err(error.clone().into()),
        None => Ok(stream::event_stream(link, chunks, first)),
    }
}

/// Returns the error for a link that ended after the turn was accepted and before its end.
fn link_closed(parted: LinkClosed, named: bool) -> OpenAiError {
    OpenAiError::unanswered(RequestFailure::LinkClosed(parted), named)
}

/// Returns the present attempt of an open turn. Text of earlier attempts is not sent again: a client that repeats a
/// call has discarded what it had.
async fn current_attempt(
    link: &RequestLink,
    admitted: AuthenticatedClient,
    accepted: &AcceptedTurn,
) -> Result<Option<u32>, OpenAiError> {
    let mut look = RequestLink::open(link.context_handle(), admitted).await?;
    look.send(LinkCommand::GetSnapshot { request_id: None, session: accepted.session.clone() }).await?;
    let snapshot = look.wait_for(|note| match note {
        Notification::Reply(CommandReply::Opened { snapshot, .. }) => Some(snapshot),
        Notification::Fact { .. }
        | Notification::Chunk { .. }
        | Notification::Reply(_)
        | Notification::ProcessOutput { .. }
        | Notification::Deliver(_)
        | Notification::Signal(_)
        | Notification::AdapterState(_)
        | Notification::LimitReached(_)
        | Notification::GoAway { .. } => None,
    });
    let snapshot = snapshot.await.map_err(|why| OpenAiError::unanswered(why, true))?;
    Ok(snapshot.runs.iter().find(|run| run.run_id == accepted.run_id).map(|run| run.attempt))
}

impl NoteRenderer for ChatStream {
    fn show(&mut self, _: Millis, note: &Notification, to: &mut String) {
        ChatStream::push(self, note, to);
    }
    fn is_over(&self) -> bool {
        ChatStream::is_finished(self)
    }
    fn render_close(&mut self, parted: LinkClosed, to: &mut String) {
        let OpenAiError { trouble: error, .. } = parted.into();
        ChatStream::abort(self, error, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::store::StoreError;

    #[test]
    fn call_is_worth_repeating_only_if_the_store_did_not_answer() {
        let busy = naming_error(&SecretUnavailable::Store(StoreError::Unavailable));
        assert_eq!((busy.status, busy.retry_after), (503, Some(STORE_RETRY_AFTER)));
        for why in [SecretUnavailable::Randomness, SecretUnavailable::Unreadable] {
            let broken = naming_error(&why);
            assert_eq!((broken.status, broken.retry_after), (500, None));
        }
    }
}
