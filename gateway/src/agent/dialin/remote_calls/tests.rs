//! Tests that the end of a call between nodes wakes a drain and updates the gauge.
use super::super::pool::{AgentConnectionPool, PoolRegistration};
use super::*;
use crate::bus::RemoteCallHandler;
use crate::config::ServedBy;
use prometheus::{Encoder, Registry, TextEncoder};
use tokio::time::timeout;
use turnway_core::id::{Epoch, MessageId, RunId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::protocol::input::{Content, Message, Role};
use turnway_wire::channel::service::TenantScope;

const HERE: NodeId = NodeId(1);
const PEER: NodeId = NodeId(2);
/// Far more than the node needs to give up a call of a node that is gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// A bus that loses every message.
struct LossyBus;

impl Bus for LossyBus {
    fn publish(&self, messages: &mut Vec<AddressedMessage>) {
        messages.clear();
    }
}

/// A node with one agent that has dialled in.
struct Scene {
    lines: RemoteCalls,
    metrics: Registry,
    _connection: PoolRegistration,
}

impl Scene {
    fn new() -> Self {
        let registry = Registry::new();
        let metrics = Arc::new(Metrics::register(&registry).expect("each family once"));
        let lines = RemoteCalls::new(HERE, &Handle::current(), Clock::start(), Arc::clone(&metrics));
        lines.join(Arc::new(LossyBus));
        let gauge = metrics.agents.connection_gauge("a");
        let pool = AgentConnectionPool::new(agent(), ServedBy::default(), false, gauge, lines.clone());
        let agents = AgentRegistry::new(BTreeMap::from([(agent(), Arc::new(pool))]), &lines);
        let connection = agents.register(&agent(), DialInCapabilities::default(), TenantScope::AllTenants);
        Self { lines, metrics: registry, _connection: connection.expect("accepted") }
    }

    /// Returns the gauge's value for a direction.
    fn gauge(&self, direction: &str) -> String {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.metrics.gather(), &mut text).expect("text");
        let text = String::from_utf8(text).expect("UTF-8");
        let name = format!("turnway_agent_remote_attempts{{direction=\"{direction}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.expect("a gauge").to_owned()
    }

    /// Lets the peer start a call, which is placed at the agent's connection.
    fn accept(&self) {
        let order = Arc::new(Order::Invoke(invoke()));
        self.lines.handle_message(PEER, RemoteMessage::Order { call: 1, n: 0, order });
        assert_eq!((self.lines.calls(), self.lines.lock_state().incoming.len()), ((0, 1), 1));
        assert_eq!(self.gauge("in"), "1");
    }

    fn assert_idle(&self) {
        let state = self.lines.lock_state();
        assert_eq!((state.outgoing.len(), state.incoming.len(), state.attempts.call_counts()), (0, 0, (0, 0)));
        drop(state);
        assert_eq!([self.gauge("out"), self.gauge("in")], ["0", "0"]);
    }
}

fn agent() -> AgentId {
    AgentId::parse("a").expect("a name")
}

fn invoke() -> Invoke {
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
    let user = UserId::local();
    Invoke {
        run_id: RunId::derive(&key, &user, &MessageId::parse("m1").expect("a name")),
        key,
        attempt: 1,
        epoch: Epoch(1),
        agent_id: agent(),
        user,
        message: Message { role: Role::User, content: Content::Text("hi".to_owned()) },
        history: None,
        origin: None,
        traceparent: None,
        handover: None,
        actions: None,
        system_prompt: None,
        run_token: None,
        messages_url: None,
        resume: None,
    }
}

/// The peer is gone, so only the timer can end the call: no later input would notify the drain.
#[tokio::test]
async fn drain_is_told_when_the_timer_ends_the_last_call() {
    let scene = Scene::new();
    scene.accept();
    let mut now = scene.lines.0.clock.now();
    for _ in 0..limits::REMOTE_UNDELIVERED_COUNTS_MAX {
        scene.lines.lock_state().attempts.handle_input(now, Input::NodeUnreachable(PEER));
        now.mono = now.mono + limits::REMOTE_COUNT_INTERVAL;
    }
    // First polled here, before the timer's task has run: the call is still open.
    timeout(PATIENCE, scene.lines.wait_idle()).await.expect("the drain is told");
    scene.assert_idle();
}

#[tokio::test]
async fn drain_is_told_when_the_peer_abandons_the_last_call() {
    let scene = Scene::new();
    scene.accept();
    let lines = scene.lines.clone();
    let abandon = async { lines.handle_message(PEER, RemoteMessage::Abandoned { call: 1 }) };
    let (told, ()) = tokio::join!(timeout(PATIENCE, scene.lines.wait_idle()), abandon);
    told.expect("the drain is told");
    scene.assert_idle();
}

#[tokio::test]
async fn dropped_dial_leaves_no_call() {
    let scene = Scene::new();
    let invoke = invoke();
    let mut dial = Box::pin(scene.lines.dial(PEER, &invoke));
    tokio::select! {
        biased;
        _ = &mut dial => panic!("nobody has answered"),
        () = std::future::ready(()) => {}
    }
    assert_eq!((scene.lines.calls(), scene.gauge("out")), ((1, 0), "1".to_owned()));
    drop(dial);
    scene.assert_idle();
}
