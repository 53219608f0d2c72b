//! Tests tool runners that serve several tenants, as state machines: the gateway's [`RunnerPool`] and the runner's
//! [`ToolExecutor`], with the messages between them, under random requests of tenants with equal session, run and
//! argument ids.
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use turnway_core::id::{
    EventId, MessageId, QualifiedAction, QualifiedSession, RunId, RunnerId, SessionId, SessionKey, TenantId, ToolName,
    UserId,
};
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::action::{ToolExecution, ToolOrder, ToolReport};
use turnway_core::rng::Rng;
use turnway_core::time::{Millis, Now};
use turnway_node::runner::pool::{self, RunnerPool};
use turnway_tool_executor::journal::JournalRecord;
use turnway_tool_executor::messages::GatewayMessage;
use turnway_tool_executor::process::{ExitStatus, Signal};
use turnway_tool_executor::programs::{AllowedPrograms, CommandWord, Program};
use turnway_tool_executor::tools::TOOLS;
use turnway_tool_executor::{self, ToolExecutor};
use turnway_wire::channel::service::ServerIdentity;
use turnway_wire::runner::FromRunner;

const TENANTS: [&str; 3] = ["default", "acme", "evil"];
const SEEDS: u64 = 64;
const STEPS: u64 = 120;

fn key(tenant: &str) -> SessionKey {
    let tenant = TenantId::parse(tenant);
    let session = SessionId::parse("support-42");
    SessionKey { tenant: tenant.expect("a tenant"), session: session.expect("a session") }
}

fn allowed() -> AllowedPrograms {
    let program = Program {
        path: "/bin/sleep".to_owned(),
        words: vec![CommandWord::parse("60")],
        args: BTreeMap::new(),
        cwd: "/".to_owned(),
        env: BTreeMap::new(),
        time_limit: Duration::from_secs(3600),
        max_parallel: 1000,
    };
    AllowedPrograms::from([("sleep".to_owned(), program)])
}

/// A gateway and a runner that are connected, and the expected state of their processes.
struct World {
    now: Now,
    shop: RunnerPool,
    toolbox: ToolExecutor,
    rng: Rng,
    journal: Vec<JournalRecord>,
    /// Session and tool of each action.
    actions: BTreeMap<EventId, (SessionKey, &'static str)>,
    /// Processes that were started.
    processes: BTreeSet<EventId>,
    /// Process of each kill by its own session.
    kills: BTreeMap<EventId, EventId>,
    /// Results of the ended actions.
    ended: BTreeMap<EventId, Value>,
}

impl World {
    fn new(seed: u64) -> Self {
        let now = Now { mono: Now::default().mono, store: Millis(1_764_000_000_000) };
        let mut world = Self {
            now,
            shop: RunnerPool::default(),
            toolbox: ToolExecutor::new(allowed(), Vec::new()),
            rng: Rng::from_number(seed),
            journal: Vec::new(),
            actions: BTreeMap::new(),
            processes: BTreeSet::new(),
            kills: BTreeMap::new(),
            ended: BTreeMap::new(),
        };
        world.connect();
        world
    }

    fn connect(&mut self) {
        self.toolbox.handle_input(self.now, turnway_tool_executor::Input::Opened(0));
        let tools = TOOLS.iter().map(|tool| ToolName::parse(tool).expect("a tool")).collect();
        let runner = RunnerId::parse("box").expect("a name");
        self.shop.handle_input(
            self.now,
            pool::Input::RunnerConnected { connection: 1, runner, tools, identity: ServerIdentity::local() },
        );
        self.drain();
    }

    /// Replaces the runner by a new one with the same journal: all running processes have ended.
    fn restart(&mut self) {
        self.shop.handle_input(self.now, pool::Input::RunnerDisconnected { connection: 1 });
        let lines: Vec<String> =
            self.journal.iter().map(|record| serde_json::to_string(record).expect("a line")).collect();
        let records = lines.iter().map(|line| serde_json::from_str(line).expect("a record")).collect();
        self.toolbox = ToolExecutor::new(allowed(), records);
        self.connect();
    }

    fn ask(&mut self, key: &SessionKey, tool: &'static str, args: &Value) -> EventId {
        self.now.store.0 += 1;
        let action_id = EventId::new(self.now.store, self.rng.next_u128());
        self.actions.insert(action_id, (key.clone(), tool));
        let execute = ToolExecution {
            key: key.clone(),
            run_id: RunId::derive(key, &UserId::local(), &MessageId::parse("m1").expect("a name")),
            action_id,
            tool: ToolName::parse(tool).expect("a tool"),
            args: Private(args.to_string()),
            deadline: self.now.store.after(Duration::from_secs(3000)),
            runner: None,
        };
        let order = ToolOrder::Execute(Box::new(execute));
        self.shop.handle_input(self.now, pool::Input::Order(order));
        self.drain();
        action_id
    }

    fn step(&mut self) {
        let key = key(TENANTS[self.rng.below(3) as usize]);
        let processes: Vec<EventId> = self.processes.iter().copied().collect();
        let about = processes.get(self.rng.below(processes.len() as u64) as usize).copied();
        match (self.rng.below(12), about) {
            (0..4, _) | (_, None) => {
                let id = self.ask(&key, "process.spawn", &json!({"program": "sleep"}));
                assert!(self.processes.contains(&id), "each is started once");
            }
            (4..6, _) => self.list(&key),
            (6..8, Some(about)) => {
                let args = json!({"process_id": self.named(about)});
                let id = self.ask(&key, "process.status", &args);
                assert_eq!(self.ended[&id]["ok"], json!(self.is_own(&key, about)), "{}", self.ended[&id]);
            }
            (8..10, Some(about)) => self.kill(&key, about),
            (10, Some(about)) => {
                let query = pool::Input::Order(ToolOrder::Query {
                    key: self.actions[&about].0.clone(),
                    action_id: about,
                    tool: ToolName::parse("process.spawn").expect("a tool"),
                    runner: None,
                    deadline: self.now.store.after(Duration::from_secs(3000)),
                });
                self.shop.handle_input(self.now, query);
                self.drain();
            }
            (_, Some(_)) => self.restart(),
        }
    }

    /// Returns a name of a process: the bare id, or the id qualified with its session.
    fn named(&mut self, id: EventId) -> String {
        let owner = self.actions[&id].0.clone();
        match self.rng.below(2) {
            0 => id.to_string(),
            _ => QualifiedAction::of(&owner, id).to_string(),
        }
    }

    fn is_own(&self, key: &SessionKey, process: EventId) -> bool {
        self.actions[&process].0 == *key
    }

    /// A session is told of its own running processes, and of no others.
    fn list(&mut self, key: &SessionKey) {
        let id = self.ask(key, "process.status", &json!({}));
        let running = self.ended[&id]["result"]["running"].as_array().expect("a list").clone();
        let told: BTreeSet<String> =
            running.iter().map(|process| process["process_id"].as_str().expect("an id").to_owned()).collect();
        let own = self.processes.iter().filter(|id| self.is_own(key, **id) && !self.ended.contains_key(id));
        assert_eq!(told, own.map(EventId::to_string).collect());
    }

    /// A process can be ended by its own session only.
    fn kill(&mut self, key: &SessionKey, about: EventId) {
        let is_own = self.is_own(key, about);
        let ran = !self.ended.contains_key(&about);
        let args = json!({"process_id": self.named(about)});
        let id = self.ask(key, "process.kill", &args);
        assert_eq!(self.ended[&id]["ok"], json!(is_own), "{}", self.ended[&id]);
        assert_eq!(self.ended.contains_key(&about), is_own || !ran, "only its own session ends a process");
        if is_own {
            assert_eq!(self.ended[&id]["result"]["process_id"], json!(about), "the log has the bare id");
            self.kills.insert(id, about);
        }
    }

    /// Passes all messages between the two machines, as text.
    fn drain(&mut self) {
        loop {
            if let Some(output) = self.shop.poll_output() {
                self.hear(output);
            } else if let Some(output) = self.toolbox.poll_output() {
                self.perform(output);
            } else {
                return;
            }
        }
    }

    fn hear(&mut self, output: pool::Output) {
        match output {
            pool::Output::Send { message: word, .. } => {
                let text = word.to_json(self.now.store);
                let told = GatewayMessage::parse(&text).expect("a runner understands it");
                if let GatewayMessage::Execute(asked) = &told {
                    let owner = &self.actions[&asked.action_id].0;
                    assert_eq!(asked.session, QualifiedSession::from(owner), "{text}");
                    let body: Value = serde_json::from_str(&text).expect("JSON");
                    for name in ["run_id", "action_id"].map(|name| body[name].as_str().unwrap_or_default()) {
                        assert!(owner.tenant.is_default() || name.starts_with(&format!("{}.", asked.session)));
                    }
                }
                self.toolbox.handle_input(self.now, turnway_tool_executor::Input::Received(0, told));
            }
            pool::Output::Report { key, action_id, report } => {
                let (owner, tool) = &self.actions[&action_id];
                assert_eq!(key, *owner, "reports go to the session that has asked");
                if let ToolReport::Ended { ok, result, .. } = report {
                    let result = serde_json::to_value(result).expect("JSON");
                    let text = result.to_string();
                    assert!(!text.contains('~'), "clients see the bare ids: {tool} {text}");
                    self.ended.insert(action_id, json!({"ok": ok, "result": result}));
                }
            }
        }
    }

    fn perform(&mut self, output: turnway_tool_executor::Output) {
        match output {
            turnway_tool_executor::Output::Record(record) => self.journal.push(record),
            turnway_tool_executor::Output::Spawn { action_id, .. } => {
                assert!(self.processes.insert(action_id), "nothing is begun twice");
                let spawned = turnway_tool_executor::Input::Spawned { action_id, pid: Some(7) };
                self.toolbox.handle_input(self.now, spawned);
            }
            turnway_tool_executor::Output::Signal { action_id, signal } => {
                assert_eq!(signal, Signal::Term);
                let exited = turnway_tool_executor::Input::Exited { action_id, how: ExitStatus::Signal(15) };
                self.toolbox.handle_input(self.now, exited);
            }
            turnway_tool_executor::Output::Send(_, text) => {
                let body: Value = serde_json::from_str(&text).expect("JSON");
                let kind = body["type"].as_str().expect("a type");
                if kind == "ping" {
                    return self
                        .toolbox
                        .handle_input(self.now, turnway_tool_executor::Input::Received(0, GatewayMessage::Pong));
                }
                let word = FromRunner::parse(kind, &text).expect("a runner's").expect("well said");
                self.shop.handle_input(self.now, pool::Input::Message { connection: 1, message: word });
            }
            turnway_tool_executor::Output::SendIfRoom(..)
            | turnway_tool_executor::Output::KillLeftovers(_)
            | turnway_tool_executor::Output::Finished => {}
        }
    }
}

/// Covers: LN-EV9.
#[test]
fn tenants_with_equal_ids_share_no_process() {
    let mut kills = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        kills += world.kills.len();
    }
    assert!(kills > 100, "kills were tried: {kills}");
}

/// The journal of an earlier release has bare session ids: its record of an action is still reported, for any
/// tenant.
#[test]
fn journal_of_an_earlier_release_is_read() {
    let mut world = World::new(1);
    let line = |id: EventId| {
        format!(
            r#"{{"t":"ended","id":"{id}","session":"support-42","program":"sleep","outcome":{{"ok":true,"result":{{"n":1}}}}}}"#
        )
    };
    let id = EventId::new(world.now.store, 7);
    world.actions.insert(id, (key("acme"), "process.spawn"));
    world.toolbox = ToolExecutor::new(allowed(), vec![serde_json::from_str(&line(id)).expect("a record")]);
    let tool = ToolName::parse("process.spawn").expect("a tool");
    let deadline = world.now.store.after(Duration::from_secs(60));
    let query = ToolOrder::Query { key: key("acme"), action_id: id, tool, runner: None, deadline };
    world.shop.handle_input(world.now, pool::Input::Order(query));
    world.connect();
    assert_eq!(world.ended.get(&id), Some(&json!({"ok": true, "result": {"n": 1}})));
}
