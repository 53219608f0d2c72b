//! Assignment of actions by the runners' tenants and credentials, and stops of actions.
use super::*;
use std::sync::Arc;
use turnway_core::id::{MessageId, RunId, SessionId, TenantId, UserId};
use turnway_core::private::Private;
use turnway_core::protocol::action::OutputEncoding;

fn reach(tenant: &str) -> TenantScope {
    if tenant == "*" { TenantScope::AllTenants } else { TenantScope::Tenant(TenantId::parse(tenant).expect("a name")) }
}

fn identity(tenant: &str, credential: &str) -> ServerIdentity {
    ServerIdentity { tenants: reach(tenant), credential: Some(credential.into()) }
}

fn id(name: &str) -> RunnerId {
    RunnerId::parse(name).expect("a name")
}

fn tool() -> ToolName {
    ToolName::parse("t").expect("a name")
}

fn key(tenant: &str) -> SessionKey {
    let tenant = TenantId::parse(tenant).expect("a name");
    SessionKey { tenant, session: SessionId::parse("s1").expect("a name") }
}

fn action(n: u128) -> EventId {
    EventId::new(Millis(1), n << 64)
}

/// A pool with a clock.
#[derive(Default)]
struct Scene {
    shop: RunnerPool,
    now: Now,
}

impl Scene {
    fn tell(&mut self, input: Input) -> Vec<Output> {
        self.shop.handle_input(self.now, input);
        std::iter::from_fn(|| self.shop.poll_output()).collect()
    }

    fn comes(&mut self, connection: RunnerConnectionId, runner: &str, identity: ServerIdentity) -> Vec<Output> {
        assert_eq!(self.shop.check_admission(&id(runner), &identity), Ok(()));
        self.tell(Input::RunnerConnected { connection, runner: id(runner), identity, tools: vec![tool()] })
    }

    fn ordered(&mut self, n: u128, tenant: &str) -> Vec<Output> {
        let key = key(tenant);
        let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse("m").expect("a name"));
        let execute = ToolExecution {
            key,
            run_id,
            action_id: action(n),
            tool: tool(),
            args: Private("{}".to_owned()),
            deadline: Millis(60_000),
            runner: None,
        };
        self.tell(Input::Order(ToolOrder::Execute(Box::new(execute))))
    }

    fn queried(&mut self, n: u128, tenant: &str, runner: Option<&str>) -> Vec<Output> {
        let key = key(tenant);
        let action_id = action(n);
        let tool = tool();
        let runner = runner.map(id);
        self.tell(Input::Order(ToolOrder::Query { key, action_id, tool, runner, deadline: Millis(60_000) }))
    }

    fn stopped(&mut self, n: u128) -> Vec<Output> {
        self.tell(Input::Order(ToolOrder::Signal { action_id: action(n), signal: "KILL", runner: None }))
    }

    fn lost(&mut self, connection: RunnerConnectionId) -> Vec<Output> {
        self.tell(Input::RunnerDisconnected { connection })
    }

    fn ended(&mut self, connection: RunnerConnectionId, n: u128) -> Vec<Output> {
        let message = FromRunner::Result { action_id: action(n).into(), ok: true, result: None, error: None };
        self.tell(Input::Message { connection, message })
    }

    /// Advances time to the pool's next deadline.
    fn wait(&mut self) -> Vec<Output> {
        self.now.mono = self.shop.poll_timeout().expect("a deadline").at;
        self.shop.handle_timeout(self.now);
        std::iter::from_fn(|| self.shop.poll_output()).collect()
    }
}

/// Returns the expected messages that stop action `n` of the tenant `acme`, one to each connection.
fn stops(n: u128, connections: &[RunnerConnectionId]) -> Vec<Output> {
    let message = ToRunner::Signal { key: key("acme"), action_id: action(n), signal: "KILL" };
    connections.iter().map(|&connection| Output::Send { connection, message: message.clone() }).collect()
}

/// Returns the connections that receive a message.
fn told(outputs: &[Output]) -> Vec<RunnerConnectionId> {
    let to = |output: &Output| match output {
        Output::Send { connection, .. } => Some(*connection),
        Output::Report { .. } => None,
    };
    outputs.iter().filter_map(to).collect()
}

/// Covers: S-06, S-07.
#[test]
fn action_is_sent_to_a_runner_of_its_tenant() {
    let mut scene = Scene::default();
    scene.comes(1, "r", identity("evil", "k1"));
    assert!(told(&scene.ordered(1, "acme")).is_empty(), "it waits for one of its own");
    assert_eq!(told(&scene.comes(2, "r", identity("acme", "k2"))), [2]);
    assert_eq!(told(&scene.ordered(2, "evil")), [1]);
    // A runner for all tenants is as suitable as the tenant's own.
    scene.comes(3, "all", identity("*", "k3"));
    assert_eq!(told(&scene.ordered(3, "acme")), [3], "it has less to do");
    assert_eq!(told(&scene.ordered(4, "other")), [3]);
}

/// Covers: S-06, S-07.
#[test]
fn query_after_takeover_stays_in_the_sessions_tenant() {
    let mut scene = Scene::default();
    for (connection, tenant) in [(1, "evil"), (2, "acme"), (3, "*")] {
        scene.comes(connection, "r", identity(tenant, "k"));
    }
    assert_eq!(told(&scene.queried(1, "acme", Some("r"))), [2, 3]);
    assert_eq!(told(&scene.queried(2, "acme", None)), [2, 3]);
    assert_eq!(told(&scene.queried(3, "evil", Some("r"))), [1, 3]);
    assert!(told(&scene.queried(4, "acme", Some("other"))).is_empty());
    // A runner that connects later is queried by the same rule: about actions assigned to its id, and about actions
    // with an unknown runner.
    assert!(told(&scene.comes(4, "other", identity("evil", "k4"))).is_empty());
    assert_eq!(told(&scene.comes(5, "other", identity("acme", "k5"))), [5, 5]);
}

/// Covers: S-07.
#[test]
fn runner_id_is_reserved_while_results_are_pending() {
    let mut scene = Scene::default();
    let first = identity("acme", "k1");
    let second = identity("acme", "k2");
    scene.comes(1, "r", first.clone());
    assert_eq!(scene.shop.check_admission(&id("r"), &second), Err(RunnerRefusal::IdInUse));
    assert_eq!(scene.shop.check_admission(&id("other"), &second), Ok(()));
    assert_eq!(scene.shop.check_admission(&id("r"), &identity("evil", "k2")), Ok(()), "ids are of one tenant");
    assert_eq!(scene.shop.check_admission(&id("r"), &identity("*", "k2")), Ok(()));
    assert_eq!(told(&scene.ordered(1, "acme")), [1]);
    scene.tell(Input::RunnerDisconnected { connection: 1 });
    assert_eq!(scene.shop.check_admission(&id("r"), &second), Err(RunnerRefusal::IdInUse));
    // Another runner of the tenant does not receive the action, whatever its id.
    assert!(told(&scene.comes(2, "other", second.clone())).is_empty());
    assert_eq!(told(&scene.comes(3, "r", first)), [3], "it is asked what has become of it");
    let message = FromRunner::Result { action_id: action(1).into(), ok: true, result: None, error: None };
    let reports = scene.tell(Input::Message { connection: 3, message });
    assert_eq!(reports.len(), 2, "it has begun and ended");
    scene.tell(Input::RunnerDisconnected { connection: 3 });
    assert_eq!(scene.shop.check_admission(&id("r"), &second), Ok(()));
}

/// Covers: S-17, G8.
#[test]
fn omitted_output_is_marked() {
    let mut scene = Scene::default();
    scene.comes(1, "r", identity("acme", "k"));
    scene.ordered(1, "acme");
    let mut offset = 0;
    let mut print = |scene: &mut Scene| {
        let data = Private(Arc::from("x".repeat(limits::OUTPUT_CHUNK_BYTES_MAX)));
        let stream = OutputStream::Stdout;
        let encoding = OutputEncoding::Utf8;
        let truncated = false;
        let printed = ProcessOutput { action_id: action(1), stream, offset, data, encoding, truncated };
        offset += limits::OUTPUT_CHUNK_BYTES_MAX as u64;
        let message = FromRunner::Chunk { session: None, printed: Box::new(printed) };
        let outputs = scene.tell(Input::Message { connection: 1, message });
        outputs.into_iter().find_map(|output| match output {
            Output::Report { report: ToolReport::Output(printed), .. } => Some(printed.truncated),
            Output::Report { .. } | Output::Send { .. } => None,
        })
    };
    let shown = std::iter::from_fn(|| print(&mut scene)).take(1000).inspect(|cut| assert!(!cut)).count() as u64;
    assert_eq!(shown, limits::NODE_OUTPUT_BYTES_PER_SECOND / limits::OUTPUT_CHUNK_BYTES_MAX as u64);
    scene.now.mono = scene.now.mono + Duration::from_secs(2);
    assert_eq!((print(&mut scene), print(&mut scene)), (Some(true), Some(false)), "once");
}

#[test]
fn runners_of_one_tenant_are_bounded() {
    let mut scene = Scene::default();
    let most = limits::RUNNERS_OF_TENANT_MAX as u64;
    for n in 0..most {
        scene.comes(n, &format!("r{n}"), identity("evil", "k"));
    }
    assert_eq!(scene.shop.check_admission(&id("more"), &identity("evil", "k")), Err(RunnerRefusal::LimitReached));
    for n in most..limits::RUNNERS_MAX as u64 {
        scene.comes(n, &format!("r{n}"), identity("*", "k"));
    }
    assert_eq!(scene.shop.check_admission(&id("more"), &identity("acme", "k")), Err(RunnerRefusal::LimitReached));
}

#[test]
fn stop_reaches_the_runner_of_the_action_once() {
    let mut scene = Scene::default();
    scene.comes(1, "r", identity("acme", "k"));
    assert_eq!(told(&scene.ordered(1, "acme")), [1]);
    scene.comes(2, "other", identity("acme", "k"));
    assert_eq!(scene.stopped(1), stops(1, &[1]));
    assert_eq!(scene.stopped(1), [], "an order may arrive twice");
    assert_eq!(scene.ended(1, 1), [], "the session expects no report any more");
    assert_eq!(scene.stopped(7), [], "nobody has this action");
}

#[test]
fn stop_of_a_queried_action_reaches_all_queried_runners() {
    let mut scene = Scene::default();
    for (connection, runner, tenant) in [(1, "r1", "acme"), (2, "r2", "evil"), (3, "r3", "*")] {
        scene.comes(connection, runner, identity(tenant, "k"));
    }
    assert_eq!(told(&scene.queried(1, "acme", None)), [1, 3]);
    assert_eq!(scene.stopped(1), stops(1, &[1, 3]));
    assert_eq!(scene.ended(3, 1), []);
    // A runner that connects later may be the one that has the action.
    assert_eq!(scene.comes(4, "r4", identity("evil", "k")), []);
    assert_eq!(scene.comes(5, "r5", identity("acme", "k")), stops(1, &[5]));
}

#[test]
fn stop_of_a_waiting_action_withdraws_it() {
    let mut scene = Scene::default();
    assert_eq!(scene.ordered(1, "acme"), []);
    assert_eq!(scene.stopped(1), []);
    assert_eq!(scene.comes(1, "r", identity("acme", "k")), [], "it is given to no runner");
    assert_eq!(scene.shop.poll_timeout(), None);
}

/// The connection may have been lost before the stop was written, or before the pool noticed.
#[test]
fn stop_is_repeated_when_its_runner_connects_again() {
    let mut scene = Scene::default();
    let who = identity("acme", "k");
    scene.comes(1, "r", who.clone());
    assert_eq!(told(&scene.ordered(1, "acme")), [1]);
    assert_eq!(scene.lost(1), []);
    assert_eq!(scene.stopped(1), [], "its runner is away");
    assert_eq!(scene.comes(2, "other", who.clone()), [], "another runner has no part in it");
    assert_eq!(scene.comes(3, "r", who.clone()), stops(1, &[3]));
    // The pool notices the loss of the old connection after the new one was opened.
    assert_eq!(scene.comes(4, "r", who.clone()), stops(1, &[4]));
    assert_eq!(scene.lost(3), stops(1, &[4]));
    // After the wait the stop is forgotten, without a report.
    assert_eq!(scene.wait(), []);
    assert_eq!(scene.shop.poll_timeout(), None);
    assert_eq!(scene.lost(4), []);
    assert_eq!(scene.comes(5, "r", who), []);
}

/// No result of a stopped action is expected, so the action reserves no id; its stop goes to its own runner only.
#[test]
fn stopped_action_does_not_reserve_its_runner_id() {
    let mut scene = Scene::default();
    scene.comes(1, "r", identity("acme", "k1"));
    scene.ordered(1, "acme");
    scene.lost(1);
    assert_eq!(scene.shop.check_admission(&id("r"), &identity("acme", "k2")), Err(RunnerRefusal::IdInUse));
    scene.stopped(1);
    assert_eq!(scene.comes(2, "r", identity("acme", "k2")), []);
    assert_eq!(scene.lost(2), []);
}

/// Covers: S-06.
#[test]
fn repeated_stop_stays_in_the_actions_tenant() {
    let mut scene = Scene::default();
    assert_eq!(scene.queried(1, "acme", Some("r")), []);
    assert_eq!(scene.stopped(1), []);
    let evil = identity("evil", "k");
    assert_eq!(scene.comes(1, "r", evil.clone()), []);
    assert_eq!(scene.comes(2, "r", evil), []);
    assert_eq!(scene.lost(1), [], "ids are of one tenant");
}

#[test]
fn stopped_actions_make_room_for_others() {
    let mut scene = Scene::default();
    let most = limits::NODE_ACTIONS_MAX as u128;
    assert_eq!(scene.queried(most, "acme", Some("r")), []);
    for n in 0..most - 1 {
        assert_eq!(scene.ordered(n, "acme"), []);
    }
    let refused = scene.ordered(most + 1, "acme");
    assert!(matches!(refused[..], [Output::Report { report: ToolReport::NoRunner, .. }]), "{refused:?}");
    assert_eq!(scene.stopped(most), []);
    assert_eq!(scene.ordered(most + 1, "acme"), []);
    let refused = scene.ordered(most + 2, "acme");
    assert!(matches!(refused[..], [Output::Report { report: ToolReport::NoRunner, .. }]), "{refused:?}");
}
