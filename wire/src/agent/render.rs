//! Renders messages to an agent that has dialed in (protocol.md §1.6).
use crate::agent::context::{EventEnvelope, InputContext};
use crate::channel::json::render::reply_frame;
use serde::Serialize;
use serde_json::value::RawValue;
use turnway_core::id::{
    AgentEventId, AgentId, Epoch, MessageId, QualifiedRun, QualifiedSession, RequestId, RunId, Seq, SessionKey,
    TenantId,
};
use turnway_core::protocol::action::FactDelivery;
use turnway_core::protocol::agent::{EventMark, Invoke};
use turnway_core::protocol::input::Message;
use turnway_core::protocol::pattern::Pattern;
use turnway_core::protocol::steer::Steer;
use turnway_core::time::Millis;

/// The fields of every order.
#[derive(Serialize)]
struct OrderFrame<B: Serialize> {
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
struct DialInInvokeBody<'a> {
    epoch: Epoch,
    agent_id: &'a AgentId,
    input_message: &'a Message,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_url: Option<&'a str>,
    context: InputContext<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resume: Option<DialInResumeBody<'a>>,
}

/// The request to continue an attempt after an event.
#[derive(Serialize)]
struct DialInResumeBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    last_event_id: Option<&'a AgentEventId>,
}

#[derive(Serialize)]
struct DialInSteerBody<'a> {
    message_id: &'a MessageId,
    message: &'a Message,
    turn_id: QualifiedRun,
    context: InputContext<'a>,
}

#[derive(Serialize)]
struct DialInEventBody<'a> {
    name: &'a str,
    seq: Seq,
    epoch: Epoch,
    event: EventEnvelope<'a>,
}

#[derive(Serialize)]
struct SubscribedTypes<'a> {
    types: &'a [Pattern],
}

#[derive(Serialize)]
struct NoBody {}

/// Renders an `invoke` message.
pub fn invoke(ts: Millis, invoke: &Invoke) -> String {
    let Invoke { key, run_id, attempt, epoch, agent_id, message, .. } = invoke;
    let after = |mark: &'_ EventMark| mark.event_id.clone();
    let last = invoke.resume.as_ref().and_then(|resume| resume.after.as_ref()).map(after);
    let body = DialInInvokeBody {
        epoch: *epoch,
        agent_id,
        input_message: message,
        // The stored history was validated when it entered the inbox, so it can be written unchanged.
        messages: invoke.history.as_ref().and_then(|history| serde_json::from_str(history.inline()?).ok()),
        messages_url: invoke.messages_url.as_deref(),
        context: InputContext::for_invoke(invoke),
        traceparent: invoke.traceparent.as_deref(),
        run_token: invoke.run_token.as_ref().map(|token| token.reveal()),
        resume: invoke.resume.as_ref().map(|_| DialInResumeBody { last_event_id: last.as_ref() }),
    };
    frame("invoke", ts, (key, run_id, *attempt), body)
}

/// Renders a `cancel` message.
pub fn cancel(ts: Millis, tenant: &TenantId, run_id: &RunId, attempt: u32) -> String {
    let key = SessionKey { tenant: tenant.clone(), session: run_id.session() };
    frame("cancel", ts, (&key, run_id, attempt), NoBody {})
}

/// Renders a `steer` message.
pub fn steer(ts: Millis, steer: &Steer) -> String {
    let Steer { key, run_id, attempt, turn_id, message_id, message, .. } = steer;
    let turn_id = QualifiedRun::of(key, turn_id);
    let context = InputContext::for_steer(steer);
    let body = DialInSteerBody { message_id, message, turn_id, context };
    frame("steer", ts, (key, run_id, *attempt), body)
}

/// Renders `event`: a fact about the agent's own action, or of a subscribed type, with its log position.
pub fn event(ts: Millis, delivery: &FactDelivery) -> String {
    let FactDelivery { key, run_id, attempt, seq, epoch, entry, .. } = delivery;
    let body =
        DialInEventBody { name: entry.fact.name(), seq: *seq, epoch: *epoch, event: EventEnvelope::new(delivery) };
    frame("event", ts, (key, run_id, *attempt), body)
}

/// Renders `subscribed`, the confirmation of a subscription to facts.
pub fn subscribed(ts: Millis, request_id: &Option<RequestId>, types: &[Pattern]) -> String {
    reply_frame(ts, "subscribed", request_id, SubscribedTypes { types }).text(64 + 32 * types.len())
}

fn frame(kind: &'static str, ts: Millis, of: (&SessionKey, &RunId, u32), body: impl Serialize) -> String {
    let (key, run_id, attempt) = of;
    let session_id = QualifiedSession::from(key);
    let run_id = QualifiedRun::of(key, run_id);
    // Messages have string keys and finite numbers only, so they always serialise.
    serde_json::to_string(&OrderFrame { kind, ts, session_id, run_id, attempt, body }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use turnway_core::id::{BlobHash, SessionId, UserId};
    use turnway_core::protocol::history::History;
    use turnway_core::protocol::input::{Content, Role};

    fn order(history: Option<History>, messages_url: Option<&str>) -> Value {
        let session = SessionId::parse("s1").expect("a name");
        let key = SessionKey { tenant: TenantId::default_tenant(), session };
        let message_id = MessageId::parse("m1").expect("a name");
        let user = UserId::local();
        let invoke = Invoke {
            run_id: RunId::derive(&key, &user, &message_id),
            key,
            attempt: 1,
            epoch: Epoch(7),
            agent_id: AgentId::parse("a").expect("a name"),
            user,
            message: Message { role: Role::User, content: Content::Text("hi".to_owned()) },
            history,
            messages_url: messages_url.map(Box::from),
            origin: None,
            traceparent: None,
            handover: None,
            actions: None,
            system_prompt: None,
            run_token: None,
            resume: None,
        };
        serde_json::from_str(&super::invoke(Millis(1), &invoke)).expect("JSON")
    }

    /// Covers: PR-24, MP-G3.
    #[test]
    fn invoke_has_earlier_messages_or_their_url() {
        let short = History::from_messages(&[json!({"role": "user", "content": "a"})]).expect("short");
        let order_of_short = order(Some(short), None);
        assert_eq!(order_of_short["messages"], json!([{"role": "user", "content": "a"}]));
        assert_eq!(order_of_short.get("messages_url"), None);
        let url = "http://gw:1/v1/sessions/s1/blobs/07";
        let order_of_long = order(Some(History::File { sha256: BlobHash([7; 32]) }), Some(url));
        assert_eq!((order_of_long.get("messages"), &order_of_long["messages_url"]), (None, &json!(url)));
        let order_of_none = order(None, None);
        assert_eq!((order_of_none.get("messages"), order_of_none.get("messages_url")), (None, None));
    }
}
