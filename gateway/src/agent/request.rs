//! The HTTP requests to an agent (protocol.md §2). Builds them only; sending is up to the caller. Called by `http`,
//! `steer` and `news`.
use crate::agent::http::HttpEndpoint;
use bytes::Bytes;
use http::{HeaderValue, Request, Uri, header};
use http_body_util::Full;
use serde::Serialize;
use serde_json::value::RawValue;
use turnway_core::id::{
    AgentId, Epoch, MessageId, QualifiedAction, QualifiedRun, QualifiedSession, RunId, Seq, SessionKey, TenantId,
};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::action::FactDelivery;
use turnway_core::protocol::agent::{Invoke, Resume};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::Message;
use turnway_core::protocol::steer::Steer;
use turnway_core::protocol::trace::is_traceparent;
use turnway_wire::agent::context::{EventEnvelope, InputContext};

/// A request with its complete body.
pub(super) type FullRequest = Request<Full<Bytes>>;

/// A reason why a request could not be built; none can occur with ids that were parsed.
#[derive(Debug, thiserror::Error)]
pub(super) enum BuildRequestError {
    /// A header or a URI is invalid.
    #[error(transparent)]
    Http(#[from] http::Error),
    /// A URI is invalid.
    #[error(transparent)]
    Uri(#[from] http::uri::InvalidUri),
    /// The body cannot be serialised.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// The ids that every request about an attempt carries. They are qualified with the tenant, because an agent serves all
/// tenants.
#[derive(Clone, Debug)]
pub(super) struct RequestIds {
    tenant: TenantId,
    session: QualifiedSession,
    run: QualifiedRun,
    attempt: u32,
    epoch: Epoch,
}

/// The body of `POST {endpoint}/invoke`.
#[derive(Serialize)]
struct HttpInvokeBody<'a> {
    agent_id: &'a AgentId,
    session_id: &'a QualifiedSession,
    run_id: &'a QualifiedRun,
    input_message: &'a Message,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_url: Option<&'a str>,
    context: InputContext<'a>,
}

/// The body of `POST {endpoint}/cancel`.
#[derive(Serialize)]
struct HttpCancelBody<'a> {
    run_id: &'a QualifiedRun,
    session_id: &'a QualifiedSession,
    attempt: u32,
}

/// The body of `POST {endpoint}/steer`.
#[derive(Serialize)]
struct HttpSteerBody<'a> {
    run_id: &'a QualifiedRun,
    session_id: &'a QualifiedSession,
    attempt: u32,
    message_id: &'a MessageId,
    message: &'a Message,
    context: InputContext<'a>,
}

/// The body of `POST {endpoint}/event`.
#[derive(Serialize)]
struct HttpEventBody<'a> {
    run_id: &'a QualifiedRun,
    session_id: &'a QualifiedSession,
    attempt: u32,
    name: &'a str,
    seq: Seq,
    event: EventEnvelope<'a>,
}

// === impl RequestIds ===

impl RequestIds {
    /// Returns the ids of this attempt.
    pub(super) fn new(key: &SessionKey, run_id: &RunId, attempt: u32, epoch: Epoch) -> Self {
        let session = QualifiedSession::from(key);
        let run = QualifiedRun::of(key, run_id);
        Self { tenant: key.tenant.clone(), session, run, attempt, epoch }
    }

    /// Returns the ids of the attempt that an order starts.
    pub(super) fn of(invoke: &Invoke) -> Self {
        let Invoke { key, run_id, attempt, epoch, .. } = invoke;
        Self::new(key, run_id, *attempt, *epoch)
    }

    fn add_headers(&self, request: http::request::Builder, trace: &str, auth: HeaderValue) -> http::request::Builder {
        request
            .header("traceparent", trace)
            .header("x-tenant-id", self.tenant.as_str())
            .header("x-session-id", self.session.to_string())
            .header("x-run-id", self.run.to_string())
            .header("x-run-attempt", self.attempt)
            .header("x-owner-epoch", self.epoch.0)
            .header(header::AUTHORIZATION, auth)
            .header(header::ACCEPT, "text/event-stream")
    }

    fn build_post(
        &self,
        uri: &Uri,
        trace: &str,
        auth: HeaderValue,
        body: &impl Serialize,
    ) -> Result<FullRequest, BuildRequestError> {
        let body = serde_json::to_vec(body)?;
        Ok(self
            .add_headers(Request::post(uri.clone()), trace, auth)
            .header("idempotency-key", self.run.to_string())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(body))?)
    }
}

/// Builds the request that starts an attempt, or that asks for the rest of a run's events.
pub(super) fn invoke(
    invoke: &Invoke,
    endpoint: &HttpEndpoint,
    trace: &str,
    auth: HeaderValue,
) -> Result<FullRequest, BuildRequestError> {
    let names = RequestIds::of(invoke);
    if let Some(resume) = &invoke.resume {
        return build_resume(&names, resume, endpoint, trace, auth);
    }
    let body = HttpInvokeBody {
        agent_id: &invoke.agent_id,
        session_id: &names.session,
        run_id: &names.run,
        input_message: &invoke.message,
        messages: invoke.history.as_ref().and_then(History::inline).map(serde_json::from_str).transpose()?,
        messages_url: invoke.messages_url.as_deref(),
        context: InputContext::for_invoke(invoke),
    };
    names.build_post(&endpoint.invoke, trace, auth, &body)
}

/// Builds the request that stops an attempt.
pub(super) fn cancel(
    names: &RequestIds,
    endpoint: &HttpEndpoint,
    trace: &str,
    auth: HeaderValue,
) -> Result<FullRequest, BuildRequestError> {
    let body = HttpCancelBody { run_id: &names.run, session_id: &names.session, attempt: names.attempt };
    names.build_post(&endpoint.cancel, trace, auth, &body)
}

/// Builds the request that passes another input to a running agent. Its idempotency key is the id of the turn that the
/// input would open.
pub(super) fn steer(
    steer: &Steer,
    endpoint: &HttpEndpoint,
    auth: HeaderValue,
) -> Result<FullRequest, BuildRequestError> {
    let Steer { key, run_id, attempt, epoch, message_id, message, .. } = steer;
    let names = RequestIds::new(key, run_id, *attempt, *epoch);
    let session_id = &names.session;
    let run_id = &names.run;
    let attempt = names.attempt;
    let trace = trace_of(steer.traceparent.as_deref());
    let context = InputContext::for_steer(steer);
    let body = HttpSteerBody { run_id, session_id, attempt, message_id, message, context };
    let mut request = names.build_post(&endpoint.steer, &trace, auth, &body)?;
    if planted(Planted::SteerWithRunKey) {
        return Ok(request);
    }
    // With the run's id as key, every input of the run would count as a repeat.
    let name = HeaderValue::try_from(QualifiedRun::of(key, &steer.turn_id).to_string()).map_err(http::Error::from)?;
    request.headers_mut().insert("idempotency-key", name);
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    Ok(request)
}

/// Builds the request that tells a running agent the result of an action, or a fact of a type it has subscribed to.
pub(super) fn news(
    delivery: &FactDelivery,
    endpoint: &HttpEndpoint,
    auth: HeaderValue,
) -> Result<FullRequest, BuildRequestError> {
    let FactDelivery { key, run_id, attempt, seq, epoch, entry, .. } = delivery;
    let names = RequestIds::new(key, run_id, *attempt, *epoch);
    let session_id = &names.session;
    let run_id = &names.run;
    let attempt = names.attempt;
    let name = entry.fact.name();
    let event = EventEnvelope::new(delivery);
    let body = HttpEventBody { run_id, session_id, attempt, name, seq: *seq, event };
    let trace = trace_of(entry.traceparent.as_deref());
    let mut request = names.build_post(&endpoint.event, &trace, auth, &body)?;
    if planted(Planted::NewsWithRunKey) {
        return Ok(request);
    }
    // With the run's id as key, every notification of the run would count as a repeat.
    let id = HeaderValue::try_from(QualifiedAction::of(key, entry.id).to_string()).map_err(http::Error::from)?;
    request.headers_mut().insert("idempotency-key", id);
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    Ok(request)
}

/// Builds the request for the events after the last recorded one, or for all events if none is recorded.
fn build_resume(
    names: &RequestIds,
    resume: &Resume,
    endpoint: &HttpEndpoint,
    trace: &str,
    auth: HeaderValue,
) -> Result<FullRequest, BuildRequestError> {
    let mut request = names.add_headers(Request::get(endpoint.events(&names.run)?), trace, auth);
    if let Some(mark) = &resume.after {
        request = request.header("last-event-id", mark.event_id.as_str());
    }
    Ok(request.body(Full::default())?)
}

/// Returns the given trace context, or a new one if there is none or it is invalid.
pub(super) fn trace_of(given: Option<&str>) -> String {
    given.filter(|text| is_traceparent(text)).map_or_else(new_traceparent, str::to_owned)
}

/// Creates a trace context that is not sampled, because no client asked for tracing.
fn new_traceparent() -> String {
    let mut ids = [1u8; 24];
    // Without randomness the ids keep their constant value: a trace id is neither a secret nor a key.
    let _ = getrandom::fill(&mut ids);
    let number = |bytes: &[u8]| bytes.iter().fold(0u128, |number, byte| (number << 8) | u128::from(*byte));
    let (trace, parent) = ids.split_at(16);
    format!("00-{:032x}-{:016x}-00", number(trace), number(parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: MP-G1, ST-42.
    #[test]
    fn generated_traceparent_is_valid_and_unique() {
        assert!(is_traceparent(&new_traceparent()));
        assert_ne!(new_traceparent(), new_traceparent());
    }
}
