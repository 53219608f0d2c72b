//! What an HTTP agent is sent (protocol.md §2).
use crate::agent::http::HttpEndpoint;
use bytes::Bytes;
use http::{HeaderValue, Request, Uri, header};
use http_body_util::Full;
use serde::Serialize;
use serde_json::value::RawValue;
use turnway_core::id::{AgentId, RunId, SessionId, UserId};
use turnway_core::protocol::agent::Invoke;
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::Message;
use turnway_core::protocol::trace::is_traceparent;

/// A request with its whole body.
pub(super) type Post = Request<Full<Bytes>>;

/// Why there is no request to send; neither can happen with ids that were parsed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoRequest {
    /// A header or a URI that cannot be.
    #[error(transparent)]
    Http(#[from] http::Error),
    /// A body that cannot be written.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// The body of `POST {endpoint}/invoke`.
#[derive(Serialize)]
struct InvokeBody<'a> {
    agent_id: &'a AgentId,
    session_id: &'a SessionId,
    run_id: &'a RunId,
    input_message: &'a Message,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<&'a RawValue>,
    context: Context<'a>,
}

/// What is known around the input.
#[derive(Serialize)]
struct Context<'a> {
    user_id: &'a UserId,
}

/// The body of `POST {endpoint}/cancel`.
#[derive(Serialize)]
struct CancelBody<'a> {
    run_id: &'a RunId,
    session_id: &'a SessionId,
    attempt: u32,
}

/// The request that starts an attempt and the one that stops it, under the same names and the same token.
pub(super) fn both(
    invoke: &Invoke,
    endpoint: &HttpEndpoint,
    auth: HeaderValue,
) -> Result<(Post, Post), NoRequest> {
    let trace = invoke
        .traceparent
        .as_deref()
        .filter(|text| is_traceparent(text))
        .map_or_else(traceparent, str::to_owned);
    let body = InvokeBody {
        agent_id: &invoke.agent_id,
        session_id: &invoke.key.session,
        run_id: &invoke.run_id,
        input_message: &invoke.message,
        messages: invoke.history.as_ref().map(messages).transpose()?,
        context: Context { user_id: &invoke.user },
    };
    let start = post(invoke, &endpoint.invoke, &trace, auth.clone(), &body)?;
    let body =
        CancelBody { run_id: &invoke.run_id, session_id: &invoke.key.session, attempt: invoke.attempt };
    let stop = post(invoke, &endpoint.cancel, &trace, auth, &body)?;
    Ok((start, stop))
}

/// The earlier messages, as they lie in the inbox.
fn messages(history: &History) -> serde_json::Result<&RawValue> {
    serde_json::from_str(history.reveal())
}

fn post(
    invoke: &Invoke,
    uri: &Uri,
    trace: &str,
    auth: HeaderValue,
    body: &impl Serialize,
) -> Result<Post, NoRequest> {
    let body = serde_json::to_vec(body)?;
    Ok(Request::post(uri.clone())
        .header("traceparent", trace)
        .header("x-session-id", invoke.key.session.as_str())
        .header("x-run-id", invoke.run_id.as_str())
        .header("x-run-attempt", invoke.attempt)
        .header("x-owner-epoch", invoke.epoch.0)
        .header("idempotency-key", invoke.run_id.as_str())
        .header(header::AUTHORIZATION, auth)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "text/event-stream")
        .body(Full::from(body))?)
}

/// A trace of its own, not sampled: nobody asked for one.
fn traceparent() -> String {
    let mut ids = [1u8; 24];
    // Without randomness the ids stay what they are: a trace is no secret and no key.
    let _ = getrandom::fill(&mut ids);
    let (trace, parent) = ids.split_at(16);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("00-{}-{}-00", hex(trace), hex(parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: MP-G1, ST-42.
    #[test]
    fn a_trace_of_its_own_is_one_and_new() {
        assert!(is_traceparent(&traceparent()));
        assert_ne!(traceparent(), traceparent());
    }
}
