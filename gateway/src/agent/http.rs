//! Agents over HTTP: one `POST {endpoint}/invoke` for each attempt, answered by SSE (protocol.md §2), or `GET
//! {endpoint}/runs/{run_id}/events` if an attempt continues under another owner. Called by `execution` and `pipelined`.
use crate::agent::attempt::AttemptTask;
use crate::agent::deliver::deliver;
use crate::agent::health::AgentHealth;
use crate::agent::request::{self, FullRequest, RequestIds};
use crate::agent::sse::{AgentMessage, SseEvents};
use crate::config::base_url::BaseUrl;
use crate::outbound::client::{OutboundClient, OutboundError};
use http::uri::InvalidUri;
use http::{HeaderValue, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::client::legacy;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use turnway_core::id::QualifiedRun;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, ErrorResponse};

/// The URLs of an HTTP agent. Any address is allowed, because the operator configured it (S-27).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpEndpoint {
    /// `POST`: starts an attempt.
    pub invoke: Uri,
    /// `POST`: cancels an attempt.
    pub cancel: Uri,
    /// `POST`: passes another input to a running attempt.
    pub steer: Uri,
    /// `POST`: tells a running attempt about its actions and subscribed facts.
    pub event: Uri,
    /// `GET`: whether the agent is reachable.
    pub health: Uri,
}

/// One HTTP agent.
#[derive(Clone)]
pub(super) struct HttpAgent {
    pub(super) client: OutboundClient,
    pub(super) endpoint: HttpEndpoint,
    /// True if the agent takes `POST {endpoint}/cancel`.
    pub(super) supports_cancel: bool,
    /// True if the agent's events have ids, and the agent can send the events after one.
    pub(super) resumes: bool,
    /// Timeout of one try to deliver a cancel request.
    pub(super) cancel_timeout: Duration,
    pub(super) health: Arc<AgentHealth>,
    /// Counts events of unknown types, of all agents.
    pub(super) unknown_events: Arc<AtomicU64>,
}

/// The end of an attempt, and the response if its rest is to be read. Boxed, so that the task of a builtin agent does
/// not have its size.
pub(super) type AttemptEnd = (AgentEvent, Option<Box<SseEvents>>);

// === impl HttpEndpoint ===

impl HttpEndpoint {
    /// Parses an agent's base URL; the paths of the protocol are appended to it.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let base = BaseUrl::parse(url)?;
        let at = |path: &str| base.join(path);
        let invoke = at("invoke")?;
        let cancel = at("cancel")?;
        let steer = at("steer")?;
        let event = at("event")?;
        let health = at("health")?;
        Ok(Self { invoke, cancel, steer, event, health })
    }

    /// Returns the URL (`GET`) of a run's events, all of them or those after `Last-Event-ID`.
    pub fn events(&self, run: &QualifiedRun) -> Result<Uri, InvalidUri> {
        format!("{}/runs/{run}/events", self.base()).parse()
    }

    /// Returns the base URL, without a slash at its end.
    pub fn base(&self) -> String {
        self.invoke.to_string().trim_end_matches("/invoke").to_owned()
    }

    /// Returns whether the agent needs TLS.
    pub fn is_https(&self) -> bool {
        self.invoke.scheme_str() == Some("https")
    }
}

// === impl HttpAgent ===

impl HttpAgent {
    /// Asks the agent to stop an attempt that another request, or no request, reads from. The answer is ignored.
    pub(super) fn stop(&self, names: RequestIds, auth: HeaderValue) {
        if let Ok(request) = request::cancel(&names, &self.endpoint, &request::trace_of(None), auth) {
            self.send(request);
        }
    }

    fn send(&self, request: FullRequest) {
        let wait = limits::AGENT_CONNECT_TIMEOUT.saturating_add(self.cancel_timeout);
        let client = self.client.clone();
        tokio::spawn(async move { tokio::time::timeout(wait, deliver(&client, &request, wait)).await });
    }
}

/// Yields of the task to wait for bytes that arrived with the head: hyper's connection task hands them over one turn
/// after it was asked for them, and one turn after it has read them.
const BODY_YIELDS_MAX: usize = 3;

/// Runs one attempt to its end. Dropping the future closes the request.
pub(super) async fn run(attempt: &mut AttemptTask, agent: &HttpAgent, auth: HeaderValue) -> AttemptEnd {
    let trace = request::trace_of(attempt.invoke.traceparent.as_deref());
    let Ok(invoke) = request::invoke(&attempt.invoke, &agent.endpoint, &trace, auth.clone()) else {
        return failed(AgentFailure::Broken("the request could not be built".to_owned()));
    };
    let is_begun = AtomicBool::new(false);
    let control = attempt.control();
    let goes_on = attempt.invoke.resume.is_some();
    let names = RequestIds::of(&attempt.invoke);
    {
        let talk = read_answer(attempt, agent, invoke, &is_begun);
        tokio::pin!(talk);
        tokio::select! {
            biased;
            () = control.wait_cancelled() => {}
            end = &mut talk => return end,
        }
        // An agent that got no request has nothing to stop, unless another owner sent one.
        let is_sent = is_begun.load(Ordering::Acquire) || goes_on && !planted(Planted::ResumedNotCancelled);
        if agent.supports_cancel && is_sent {
            // Sent by a separate task, because the request may outlast the stream. Its answer does not matter: the end
            // of the stream is the CANCEL_ACK, and the session runtime times out an agent that never ends it.
            if let Ok(cancel) = request::cancel(&names, &agent.endpoint, &trace, auth) {
                agent.send(cancel);
            }
            let (_, events) = talk.await;
            return (AgentEvent::CancelAcked, events);
        }
    }
    (AgentEvent::CancelAcked, None)
}

async fn read_answer(
    attempt: &mut AttemptTask,
    agent: &HttpAgent,
    request: FullRequest,
    is_begun: &AtomicBool,
) -> AttemptEnd {
    let response = match agent.client.send_tracking_start(request, is_begun).await {
        Ok(response) => {
            agent.health.mark_reachable();
            response
        }
        Err(OutboundError::Unreachable(why)) => {
            agent.health.mark_unreachable(&agent.client);
            return failed(AgentFailure::Unavailable(why.to_owned()));
        }
        Err(OutboundError::Failed(error)) => return failed(read_failure(&error)),
    };
    if let Err(wrong) = check(&response, attempt.invoke.resume.is_some()) {
        return failed(wrong.failure(response, &agent.client).await);
    }
    let mut events = SseEvents::new(response.into_body(), agent.resumes);
    let run = QualifiedRun::of(&attempt.invoke.key, &attempt.invoke.run_id);
    let mut first = first_event_with_head(events.next(&run)).await;
    attempt.report(AgentEvent::Acked).await;
    loop {
        let message = match first.take() {
            Some(message) => message,
            None => events.next(&run).await,
        };
        match message {
            AgentMessage::Delta { kind, text, id } => attempt.report_text(kind, text, id).await,
            AgentMessage::State { state, detail, id } => attempt.report(AgentEvent::State { state, detail, id }).await,
            AgentMessage::Steered { message_id, outcome } => {
                attempt.report(AgentEvent::Steered { message_id, outcome }).await
            }
            AgentMessage::Handover { request, id } => attempt.report(AgentEvent::Handover { request, id }).await,
            AgentMessage::Action { request, id } => attempt.report(AgentEvent::Action { request, id }).await,
            AgentMessage::Subscribe { types } => attempt.report(AgentEvent::Subscribed(types)).await,
            AgentMessage::Unknown => {
                agent.unknown_events.fetch_add(1, Ordering::Relaxed);
                attempt.report_alive().await;
            }
            AgentMessage::Alive => attempt.report_alive().await,
            AgentMessage::Done { stop, usage } => {
                return (AgentEvent::Done { stop, usage }, Some(Box::new(events)));
            }
            // The agent ends the response properly after an error event, so its connection may be used again.
            AgentMessage::Failed(failure @ AgentFailure::Reported { .. }) => {
                return (AgentEvent::Failed(failure), Some(Box::new(events)));
            }
            AgentMessage::Failed(failure) => return failed(failure),
        }
    }
}

/// Returns the first event if it arrived together with the head of the response: the acknowledgement is then reported
/// in one batch with it, and costs one disk sync instead of two. Cancel-safe: an event that has not arrived is read
/// later.
async fn first_event_with_head(next: impl Future<Output = AgentMessage>) -> Option<AgentMessage> {
    let mut next = std::pin::pin!(next);
    for _ in 0..BODY_YIELDS_MAX {
        tokio::select! {
            biased;
            message = &mut next => return Some(message),
            () = tokio::task::yield_now() => {}
        }
    }
    None
}

/// Returns the failure for a response that could not be read.
fn read_failure(error: &legacy::Error) -> AgentFailure {
    let source = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    match source {
        Some(source) if source.is_parse_too_large() => AgentFailure::HeadTooLarge,
        Some(source) if source.is_parse() => AgentFailure::Broken("not HTTP".to_owned()),
        // The agent may have died while it answered. This counts as no connection, and the request may be repeated,
        // because the run id is its idempotency key.
        Some(_) | None => AgentFailure::Unavailable("the connection to the agent was lost".to_owned()),
    }
}

/// A reason why a response is not read as an event stream.
enum ResponseError {
    /// The failure is known from the head of the response.
    Failure(AgentFailure),
    /// The response is an error, or another page; its body may say more.
    ErrorResponse { why: String, is_away: bool },
}

/// Checks that the response is an event stream: status 200 only, because other success statuses mean something else
/// (202 has begun something, 206 has a part of it). Redirects are not followed (S-27).
fn check(response: &Response<Incoming>, goes_on: bool) -> Result<(), ResponseError> {
    let status = response.status();
    let answer = |why, is_away| Err(ResponseError::ErrorResponse { why, is_away });
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND | StatusCode::GONE if goes_on => {
            return Err(ResponseError::Failure(AgentFailure::NotKnown));
        }
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            return answer(format!("status {}", status.as_u16()), true);
        }
        _ => return answer(format!("status {}", status.as_u16()), false),
    }
    let header = |name| response.headers().get(name).map(HeaderValue::as_bytes);
    let is_sse = header(header::CONTENT_TYPE).is_some_and(|value| {
        let kind = value.split(|byte| *byte == b';').next().unwrap_or_default();
        kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
    });
    if !is_sse {
        return answer("status 200, but the response is not an event stream".to_owned(), false);
    }
    let broken = |why: &str| Err(ResponseError::Failure(AgentFailure::Broken(why.to_owned())));
    if is_compressed(response) {
        return broken("the response is compressed, which was not requested");
    }
    let announced = hyper::body::Body::size_hint(response.body()).lower();
    if announced > limits::AGENT_BODY_BYTES_MAX as u64 {
        return Err(ResponseError::Failure(AgentFailure::TooLarge));
    }
    Ok(())
}

fn is_compressed(response: &Response<Incoming>) -> bool {
    let encoding = response.headers().get(header::CONTENT_ENCODING);
    encoding.is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
}

// === impl ResponseError ===

impl ResponseError {
    /// Returns the failure, with the error text of the response.
    async fn failure(self, response: Response<Incoming>, client: &OutboundClient) -> AgentFailure {
        let is_busy = matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let (why, is_away) = match self {
            Self::Failure(failure) => return failure,
            Self::ErrorResponse { why, is_away } => (why, is_away),
        };
        let wait = client.retry_after(response.headers());
        let wait = wait.filter(|_| !planted(Planted::AgentRetryAfterIgnored));
        let retry_after_ms = wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        let body = if is_compressed(&response) { None } else { read_error_body(response.into_body()).await };
        AgentFailure::Answered(Box::new(ErrorResponse { why, is_away, is_busy, retry_after_ms, body }))
    }
}

/// Reads the beginning of an error's body, as far as it arrives within [`limits::AGENT_ERROR_WAIT`].
async fn read_error_body(mut body: Incoming) -> Option<Private<String>> {
    let mut bytes = Vec::new();
    let read = async {
        while bytes.len() <= limits::AGENT_ERROR_BYTES_MAX
            && let Some(Ok(frame)) = body.frame().await
        {
            let data = frame.data_ref().map_or(&[][..], |data| data);
            // One extra byte shows that the body was cut.
            let bytes_left = limits::AGENT_ERROR_BYTES_MAX + 1 - bytes.len();
            bytes.extend_from_slice(&data[..data.len().min(bytes_left)]);
        }
    };
    let _ = tokio::time::timeout(limits::AGENT_ERROR_WAIT, read).await;
    error_text(&bytes)
}

/// Decodes an error's body: invalid UTF-8 is replaced, and a character cut at the limit is dropped.
fn error_text(bytes: &[u8]) -> Option<Private<String>> {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    if text.len() > limits::AGENT_ERROR_BYTES_MAX {
        text.truncate(text.floor_char_boundary(limits::AGENT_ERROR_BYTES_MAX));
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        text.truncate(whole);
    }
    (!text.trim().is_empty()).then_some(Private(text))
}

fn failed(failure: AgentFailure) -> AttemptEnd {
    (AgentEvent::Failed(failure), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_body_is_truncated_at_a_character_boundary() {
        let max = limits::AGENT_ERROR_BYTES_MAX;
        let cut = |bytes: &[u8]| error_text(bytes).map(|text| text.0);
        assert_eq!(cut(b"no such model"), Some("no such model".to_owned()));
        assert_eq!(cut(b" \r\n"), None);
        assert_eq!(cut(b"caf\xe9"), Some("caf\u{fffd}".to_owned()));
        let long = "x".repeat(max - 1) + "\u{e9}\u{e9}";
        assert_eq!(cut(&long.as_bytes()[..=max]), Some("x".repeat(max - 1)));
        let bytes = vec![0xff; max + 1];
        assert!(cut(&bytes).is_none_or(|text| text.len() <= max));
    }
}
