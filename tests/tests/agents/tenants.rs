//! Agents that serve several tenants: sessions with equal ids have different names in every request to an
//! agent.
use crate::world::{Call, World, order};
use serde_json::{Value, json};
use std::sync::Arc;
use turnway_core::id::{Epoch, EventId, MessageId, RunId, Seq, TenantId};
use turnway_core::protocol::action::{ActionSpec, FactDelivery, ProcessReported};
use turnway_core::protocol::agent::{AgentEvent, Invoke, Order};
use turnway_core::protocol::entry::{ActionFact, Entry, Fact};
use turnway_core::protocol::steer::{Steer, SteerOutcome};
use turnway_core::time::Millis;

const ID: &str = "0190f4a0-0000-7000-8000-000000000001";

/// Returns the order of tenant `default` as an order of another tenant.
fn order_of(tenant: &str, message: &str) -> Invoke {
    let mut order = order("a", message, "hi");
    order.key.tenant = TenantId::parse(tenant).expect("a tenant");
    order.run_id = RunId::derive(&order.key, &order.user, &MessageId::parse(message).expect("a name"));
    order
}

/// Asserts that a request names the order's session and run with this prefix, in headers and body.
#[track_caller]
fn check(call: &Call, order: &Invoke, prefix: &str) -> Value {
    let session = format!("{prefix}s1");
    let run = format!("{prefix}{}", order.run_id);
    assert_eq!((call.header("x-session-id"), call.header("x-run-id")), (&*session, &*run));
    assert_eq!(call.header("x-tenant-id"), order.key.tenant.as_str());
    let body: Value = serde_json::from_slice(&call.body).expect("JSON");
    assert_eq!((&body["session_id"], &body["run_id"]), (&json!(session), &json!(run)));
    body
}

#[tokio::test]
async fn requests_qualify_sessions_and_runs_by_tenant() {
    let mut world = World::new(",cancel=true").await;
    for (tenant, prefix) in [("default", ""), ("acme", "acme~")] {
        let ask = order_of(tenant, "m1");
        world.invoke(ask.clone());
        let call = world.call().await;
        let body = check(&call, &ask, prefix);
        assert_eq!(body["context"]["tenant"], tenant);
        assert_eq!(call.header("idempotency-key"), format!("{prefix}{}", ask.run_id));
        let stream = call.stream();
        world.expect(&ask, AgentEvent::Acked).await;

        world.agents.perform(Order::News(Box::new(news(&ask))));
        let call = world.call().await;
        let body = check(&call, &ask, prefix);
        let action = if prefix.is_empty() { ID.to_owned() } else { format!("{prefix}s1.{ID}") };
        assert_eq!(call.header("idempotency-key"), action);
        let event = &body["event"];
        assert_eq!((&event["id"], &event["session_id"]), (&json!(action), &json!(format!("{prefix}s1"))));
        assert_eq!((&event["data"]["action_id"], &event["data"]["process_id"]), (&json!(action), &json!(action)));
        call.reply(200, "text/plain", "");

        let steer = steer(&ask);
        world.agents.perform(Order::Steer(Box::new(steer.clone())));
        let call = world.call().await;
        assert_eq!(check(&call, &ask, prefix)["context"]["tenant"], tenant);
        assert_eq!(call.header("idempotency-key"), format!("{prefix}{}", steer.turn_id));
        call.reply(200, "application/json", r#"{"outcome":"refused"}"#);
        let message_id = steer.message_id;
        world.expect(&ask, AgentEvent::Steered { message_id, outcome: SteerOutcome::Refused }).await;

        world.cancel(&ask);
        let call = world.call().await;
        assert_eq!(call.head.uri.path(), "/base/cancel");
        check(&call, &ask, prefix);
        call.reply(202, "text/plain", "");
        stream.done().await;
        world.expect(&ask, AgentEvent::CancelAcked).await;
    }
}

/// Acknowledges a cancel of an ended attempt to its own session, and to no session of another tenant.
#[tokio::test]
async fn cancel_of_an_ended_attempt_is_acknowledged_to_its_tenant() {
    let mut world = World::new("").await;
    let ask = order_of("acme", "m1");
    world.cancel(&ask);
    // `expect` also checks the session key of the report.
    world.expect(&ask, AgentEvent::CancelAcked).await;
}

#[tokio::test]
async fn stop_and_resume_requests_name_the_tenant() {
    let mut world = World::new(",cancel=true,on_owner_loss=resume").await;
    let mut ask = order_of("acme", "m1");
    let tenant = ask.key.tenant.clone();
    let agent_id = ask.agent_id.clone();
    let run_id = ask.run_id.clone();
    world.agents.perform(Order::Stop { tenant, agent_id, run_id, attempt: 1, epoch: Epoch(9) });
    let call = world.call().await;
    assert_eq!(call.head.uri.path(), "/base/cancel");
    check(&call, &ask, "acme~");
    call.reply(404, "text/plain", "");

    ask.resume = Some(turnway_core::protocol::agent::Resume { after: None, saved: 0 });
    world.invoke(ask.clone());
    let call = world.call().await;
    assert_eq!(call.head.uri.path(), format!("/base/runs/acme~{}/events", ask.run_id));
    assert_eq!((call.header("x-session-id"), call.header("x-tenant-id")), ("acme~s1", "acme"));
}

/// Accepts an agent's names of its run and processes in plain and qualified form, and rejects a name of
/// another tenant.
#[tokio::test]
async fn plain_and_qualified_names_in_answers_are_checked() {
    for (run, process, is_own) in [
        ("{run}", ID.to_owned(), true),
        ("acme~{run}", format!("acme~s1.{ID}"), true),
        ("evil~{run}", format!("acme~s1.{ID}"), false),
        ("default~{run}", format!("acme~s1.{ID}"), false),
    ] {
        let mut world = World::new("").await;
        let ask = order_of("acme", "m1");
        let (stream, _) = world.begin(&ask).await;
        let args = json!({"tool": "process.kill", "args": {"process_id": process}});
        stream.send(format!("event: action\ndata: {args}\n\n")).await;
        let AgentEvent::Action { request, .. } = world.event(&ask).await else { panic!("an action") };
        let ActionSpec::ToolCall { args, .. } = &request.what else { panic!("a tool") };
        assert_eq!(serde_json::to_value(args).expect("JSON"), json!({ "process_id": ID }));
        let delta = json!({"text": "hi", "run_id": run.replace("{run}", ask.run_id.as_str())});
        stream.send(format!("event: delta\ndata: {delta}\n\n")).await;
        let event = world.event(&ask).await;
        assert_eq!(matches!(event, AgentEvent::Delta { .. }), is_own, "{run}: {event:?}");
    }
}

fn news(of: &Invoke) -> FactDelivery {
    let action_id = EventId::parse(ID).expect("an id");
    let told = ProcessReported { action_id, process_id: action_id, pid: None, abnormal_exit: false, data: None };
    let entry = Entry {
        id: action_id,
        time: Millis(5),
        source: Arc::from("turnway"),
        correlation_id: Arc::from(of.run_id.as_str()),
        causation_id: None,
        traceparent: None,
        run_id: Some(of.run_id.clone()),
        fact: Fact::Action(ActionFact::ProcessSpawned(told)),
    };
    FactDelivery {
        key: of.key.clone(),
        run_id: of.run_id.clone(),
        attempt: of.attempt,
        agent_id: of.agent_id.clone(),
        seq: Seq(4),
        epoch: of.epoch,
        entry: Arc::new(entry),
    }
}

fn steer(of: &Invoke) -> Steer {
    let message_id = MessageId::parse("m2").expect("a name");
    Steer {
        key: of.key.clone(),
        run_id: of.run_id.clone(),
        attempt: of.attempt,
        epoch: of.epoch,
        agent_id: of.agent_id.clone(),
        turn_id: RunId::derive(&of.key, &of.user, &message_id),
        user: of.user.clone(),
        message_id,
        message: of.message.clone(),
        actions: None,
        traceparent: None,
    }
}
