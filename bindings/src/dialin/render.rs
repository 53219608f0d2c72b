//! Renders messages to an agent that has dialed in (protocol.md §1.6).
use crate::channel::json::render::answer;
use crate::dialin::context::{Context, EventEnvelope};
use serde::Serialize;
use serde_json::value::RawValue;
use turnway_core::id::{
    AgentId, Epoch, MessageId, QualifiedRun, QualifiedSession, RequestId, RunId, SaidId, Seq, SessionKey,
    TenantId,
};
use turnway_core::protocol::action::News;
use turnway_core::protocol::agent::{Invoke, Mark};
use turnway_core::protocol::input::Message;
use turnway_core::protocol::pattern::Pattern;
use turnway_core::protocol::steer::Steer;
use turnway_core::time::Millis;

/// The fields of every order.
#[derive(Serialize)]
struct Frame<B: Serialize> {
    #[serde(rename = "type")]
    kind: &'static str,
    ts: Millis,
    session_id: QualifiedSession,
    run_id: QualifiedRun,
    attempt: u32,
    #[serde(flatten)]
    body: B,
}

#[derive(Serialize)]
struct InvokeBody<'a> {
    epoch: Epoch,
    agent_id: &'a AgentId,
    input_message: &'a Message,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<&'a RawValue>,
    context: Context<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resume: Option<ResumeBody<'a>>,
}

/// The request to continue an attempt after an event.
#[derive(Serialize)]
struct ResumeBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    last_event_id: Option<&'a SaidId>,
}

#[derive(Serialize)]
struct SteerBody<'a> {
    message_id: &'a MessageId,
    message: &'a Message,
    turn_id: QualifiedRun,
    context: Context<'a>,
}

#[derive(Serialize)]
struct EventBody<'a> {
    name: &'static str,
    seq: Seq,
    epoch: Epoch,
    event: EventEnvelope<'a>,
}

#[derive(Serialize)]
struct Types<'a> {
    types: &'a [Pattern],
}

#[derive(Serialize)]
struct Bare {}

/// Renders `invoke`.
pub(super) fn invoke(ts: Millis, invoke: &Invoke) -> String {
    let Invoke { key, run_id, attempt, epoch, agent_id, message, .. } = invoke;
    let after = |mark: &'_ Mark| mark.event_id.clone();
    let last = invoke.resume.as_ref().and_then(|resume| resume.after.as_ref()).map(after);
    let body = InvokeBody {
        epoch: *epoch,
        agent_id,
        input_message: message,
        // The stored history was validated when it entered the inbox, so it can be written unchanged.
        messages: invoke.history.as_ref().and_then(|history| serde_json::from_str(history.reveal()).ok()),
        context: Context::of(invoke),
        traceparent: invoke.traceparent.as_deref(),
        resume: invoke.resume.as_ref().map(|_| ResumeBody { last_event_id: last.as_ref() }),
    };
    frame("invoke", ts, (key, run_id, *attempt), body)
}

/// Renders `cancel`.
pub(super) fn cancel(ts: Millis, tenant: &TenantId, run_id: &RunId, attempt: u32) -> String {
    let key = SessionKey { tenant: tenant.clone(), session: run_id.session() };
    frame("cancel", ts, (&key, run_id, attempt), Bare {})
}

/// Renders `steer`.
pub(super) fn steer(ts: Millis, steer: &Steer) -> String {
    let Steer { key, run_id, attempt, turn_id, message_id, message, .. } = steer;
    let (turn_id, context) = (QualifiedRun::of(key, turn_id), Context::on_the_way(steer));
    let body = SteerBody { message_id, message, turn_id, context };
    frame("steer", ts, (key, run_id, *attempt), body)
}

/// Renders `event`: a fact about the agent's own action, or of a subscribed type, with its log position.
pub(super) fn news(ts: Millis, news: &News) -> String {
    let News { key, run_id, attempt, seq, epoch, entry, .. } = news;
    let body =
        EventBody { name: entry.fact.name(), seq: *seq, epoch: *epoch, event: EventEnvelope::of(news) };
    frame("event", ts, (key, run_id, *attempt), body)
}

/// Renders `subscribed`, the confirmation of a subscription to facts.
pub(super) fn subscribed(ts: Millis, request_id: &Option<RequestId>, types: &[Pattern]) -> String {
    answer(ts, "subscribed", request_id, Types { types }).text(64 + 32 * types.len())
}

fn frame(kind: &'static str, ts: Millis, of: (&SessionKey, &RunId, u32), body: impl Serialize) -> String {
    let (key, run_id, attempt) = of;
    let (session_id, run_id) = (QualifiedSession::from(key), QualifiedRun::of(key, run_id));
    // Messages have string keys and finite numbers only, so they always serialise.
    serde_json::to_string(&Frame { kind, ts, session_id, run_id, attempt, body }).unwrap_or_default()
}
