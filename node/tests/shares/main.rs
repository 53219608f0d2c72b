//! Fair shares of one node: its switchboard, a store and agents in one call stack, and clients of two
//! tenants.
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{AgentId, LinkId, MessageId, NodeId, Principal, SessionId, TenantId, UserId};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::{AgentDirectory, AgentEvent, AgentPolicy, Invoke as Asked, Order, StopReason};
use turnway_core::protocol::input::{Content, ControlRequest, Message, Role, Strategy};
use turnway_core::protocol::refusal::Code;
use turnway_core::rng::Rng;
use turnway_core::share::Shares;
use turnway_core::store::{ModelStore, Op};
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::switchboard::{Capacity, Config, Input, Output, Switchboard};
use turnway_wire::channel::command::{CancelTarget, InvokeCommand, LinkCommand, SubscribeCommand};
use turnway_wire::channel::notification::{CommandReply, Notification};

const EVE: LinkId = LinkId(1);
const ANN: LinkId = LinkId(2);

/// One node with simulated time.
struct Fixture {
    board: Switchboard,
    model: ModelStore,
    now: Now,
    inputs: VecDeque<Input>,
    /// Unanswered invocations, in order.
    asked: Vec<Asked>,
    refused: Vec<(LinkId, Code, Option<u64>)>,
    /// Number of inbox reads.
    reads: usize,
}

impl Fixture {
    fn new(capacity: Capacity) -> Self {
        let agent = |id| AgentId::parse(id).expect("a name");
        let local = AgentPolicy { is_local: true, ..AgentPolicy::default() };
        let agents = BTreeMap::from([(agent("slow"), AgentPolicy::default()), (agent("echo"), local)]);
        let board = Switchboard::new(Config {
            node: NodeId(7),
            directory: Arc::new(AgentDirectory { agents, default: Some(agent("slow")), ..AgentDirectory::default() }),
            seed: [3; 32],
            single_node: true,
            keep_facts: None,
            max_age: None,
            capacity: Capacity { shares: Some(Shares::default()), ..capacity },
        });
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
        let mut bench = Self {
            board,
            model: ModelStore::new(false),
            now,
            inputs: VecDeque::new(),
            asked: Vec::new(),
            refused: Vec::new(),
            reads: 0,
        };
        bench.run(Duration::from_millis(1));
        for (link, tenant, user) in [(EVE, "evil", "eve"), (ANN, "acme", "ann")] {
            let tenant = TenantId::parse(tenant).expect("a name");
            let user = UserId::parse(user).expect("a name");
            let principal = Principal { tenant, user, operator: false, writes: true };
            bench.give(Input::Connect { link, principal });
        }
        bench
    }

    fn give(&mut self, input: Input) {
        self.inputs.push_back(input);
        while let Some(input) = self.inputs.pop_front() {
            self.board.handle_input(self.now, input);
            self.drain();
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.board.poll_output() {
            match output {
                Output::Store(op) => {
                    self.reads += usize::from(matches!(op, Op::Inbox { .. }));
                    let result = Ok(self.model.apply(self.now, &op));
                    self.inputs.push_back(Input::Stored { op, result });
                }
                Output::Publish { to, .. } => self.inputs.push_back(Input::PublishFailed { to }),
                Output::Order(Order::Invoke(invoke)) => self.asked.push(invoke),
                Output::Notify { link, notification: Notification::Reply(CommandReply::Refused { refusal, .. }) } => {
                    self.refused.push((link, refusal.code, refusal.retry_after_ms));
                }
                Output::Order(_) | Output::Tool(_) | Output::Notify { .. } | Output::Exit => {}
            }
        }
    }

    fn run(&mut self, wait: Duration) {
        let until = self.now.mono + wait;
        while let Some(next) = self.board.poll_timeout().map(|due| due.at).filter(|at| *at <= until) {
            let passed = next - self.now.mono;
            self.now = Now { mono: self.now.mono + passed, store: self.now.store.after(passed) };
            self.board.handle_timeout(self.now);
            self.drain();
            while let Some(input) = self.inputs.pop_front() {
                self.board.handle_input(self.now, input);
                self.drain();
            }
        }
        let passed = until - self.now.mono;
        self.now = Now { mono: until, store: self.now.store.after(passed) };
    }

    fn say(&mut self, link: LinkId, session: &str, message: &str, text: &str, agent: Option<&str>) {
        let command = LinkCommand::Invoke(Box::new(InvokeCommand {
            request_id: None,
            session: Some(SessionId::parse(session).expect("a name")),
            agent_id: agent.map(|agent| AgentId::parse(agent).expect("a name")),
            message: Message { role: Role::User, content: Content::Text(text.to_owned()) },
            history: None,
            replaces: None,
            message_id: Some(MessageId::parse(message).expect("a name")),
            strategy: Some(Strategy::Enqueue),
            metadata: None,
            traceparent: None,
        }));
        self.give(Input::Command { link, command });
    }

    /// Ends the turn that was invoked first.
    fn answer(&mut self) -> Asked {
        let invoke = self.asked.remove(0);
        let events = vec![AgentEvent::Acked, AgentEvent::Done { stop: StopReason::EndTurn, usage: None }];
        let key = invoke.key.clone();
        let run_id = invoke.run_id.clone();
        self.give(Input::Agent { key, run_id, attempt: invoke.attempt, epoch: invoke.epoch, events });
        self.run(Duration::from_millis(10));
        invoke
    }

    fn asked_of(&self, tenant: &str) -> usize {
        self.asked.iter().filter(|invoke| invoke.key.tenant.as_str() == tenant).count()
    }

    /// Disconnects all links and returns what is still held after everything has ended.
    fn held_when_quiet(&mut self) -> ([u64; 4], u64) {
        for link in [EVE, ANN] {
            self.give(Input::Disconnect { link });
        }
        self.run(Duration::from_secs(10));
        let stats = self.board.stats(self.now);
        (stats.held.0, stats.permits_waiting)
    }
}

fn attempts(attempts: u64) -> Capacity {
    Capacity { attempts, ..Capacity::default() }
}

/// Covers: S-17.
#[test]
fn turns_over_a_users_share_wait_while_others_start() {
    let mut bench = Fixture::new(attempts(16));
    for n in 0..20 {
        bench.say(EVE, &format!("e{n}"), "m", "hi", None);
    }
    assert_eq!(bench.asked_of("evil"), 9, "three quarters of three quarters");
    assert_eq!(bench.board.stats(bench.now).permits_waiting, 11);
    bench.say(ANN, "a", "m", "hi", None);
    assert_eq!(bench.asked_of("acme"), 1, "a turn of another tenant begins at once");
    let first = bench.answer();
    assert_eq!((first.key.tenant.as_str(), bench.asked_of("evil")), ("evil", 9), "the next has its place");
    while !bench.asked.is_empty() {
        bench.answer();
    }
    assert_eq!(bench.refused, [], "no turn was refused");
    assert_eq!(bench.held_when_quiet(), ([0; 4], 0));
}

/// Covers: S-17.
#[test]
fn permits_alternate_between_waiting_tenants() {
    let mut bench = Fixture::new(attempts(1));
    bench.say(EVE, "e0", "m", "hi", None);
    for n in 1..4 {
        bench.say(EVE, &format!("e{n}"), "m", "hi", None);
    }
    for n in 0..3 {
        bench.say(ANN, &format!("a{n}"), "m", "hi", None);
    }
    let order: Vec<String> = (0..7).map(|_| bench.answer().key.tenant.as_str().to_owned()).collect();
    let changes = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes >= 5, "{order:?}");
    assert_eq!(bench.held_when_quiet(), ([0; 4], 0));
}

#[test]
fn session_with_a_queue_does_not_overtake_others() {
    let mut bench = Fixture::new(attempts(1));
    for n in 0..3 {
        bench.say(EVE, "e", &format!("m{n}"), "hi", None);
    }
    bench.say(ANN, "a", "m", "hi", None);
    bench.answer();
    assert_eq!(bench.asked_of("acme"), 1, "the session asks anew for each of its turns");
}

#[test]
fn local_agents_need_no_permit() {
    let mut bench = Fixture::new(attempts(1));
    bench.say(EVE, "e0", "m", "hi", None);
    bench.say(EVE, "e1", "m", "hi", Some("echo"));
    assert_eq!(bench.asked.len(), 2);
}

/// Covers: S-48.
#[test]
fn content_of_waiting_inputs_is_read_when_they_start() {
    let mut bench = Fixture::new(Capacity::default());
    let text = |n: usize| format!("{n}").repeat(20_000);
    for n in 0..5 {
        bench.say(EVE, "e", &format!("m{n}"), &text(n), None);
    }
    let before = bench.reads;
    for n in 0..5 {
        let invoke = bench.answer();
        assert_eq!(invoke.message.content, Content::Text(text(n)), "input {n} is whole");
    }
    assert!(bench.reads >= before + 4, "their contents were in the store");
    assert_eq!(bench.held_when_quiet(), ([0; 4], 0));
}

#[test]
fn small_waiting_inputs_need_no_second_read() {
    let mut bench = Fixture::new(Capacity::default());
    for n in 0..5 {
        bench.say(EVE, "e", &format!("m{n}"), "hi", None);
    }
    let before = bench.reads;
    for _ in 0..5 {
        bench.answer();
    }
    assert_eq!(bench.reads, before);
}

#[test]
fn running_inputs_share_the_content_memory() {
    let content_bytes = 160 * 1024;
    let mut bench = Fixture::new(Capacity { content_bytes, ..Capacity::default() });
    for n in 0..8 {
        bench.say(EVE, &format!("e{n}"), "m", &"x".repeat(20 * 1024), None);
    }
    assert_eq!(bench.asked_of("evil"), 4, "nine sixteenths of the bytes");
    bench.say(ANN, "a", "m", &"x".repeat(20 * 1024), None);
    assert_eq!(bench.asked_of("acme"), 1);
    while !bench.asked.is_empty() {
        bench.answer();
    }
    assert_eq!(bench.held_when_quiet(), ([0; 4], 0));
}

/// Covers: S-17.
#[test]
fn session_over_the_share_is_refused() {
    let mut bench = Fixture::new(Capacity { sessions: 16, ..Capacity::default() });
    for n in 0..10 {
        bench.say(EVE, &format!("e{n}"), "m", "hi", None);
    }
    let retry = u64::try_from(limits::SHARE_RETRY_AFTER.as_millis()).ok();
    assert_eq!(bench.refused, [(EVE, Code::OverShare, retry)]);
    bench.say(EVE, "e0", "m2", "hi", None);
    bench.say(ANN, "a", "m", "hi", None);
    assert_eq!(bench.refused.len(), 1, "an open session takes more, and another tenant has room");
    assert_eq!(bench.asked_of("acme"), 1);
}

/// Covers: S-17.
#[test]
fn subscriptions_over_the_share_are_refused() {
    let mut bench = Fixture::new(Capacity { subscriptions: 16, ..Capacity::default() });
    let subscribe = |n: usize| {
        LinkCommand::Subscribe(SubscribeCommand {
            request_id: None,
            session: SessionId::parse(&format!("s{n}")).expect("a name"),
            after_seq: None,
            after_epoch: None,
            runs: Vec::new(),
            types: Vec::new(),
        })
    };
    for n in 0..12 {
        bench.say(EVE, &format!("s{n}"), "m", "hi", Some("echo"));
    }
    let over = |bench: &Fixture, link| {
        bench.refused.iter().filter(|(by, code, _)| (*by, *code) == (link, Code::OverShare)).count()
    };
    assert_eq!(over(&bench, EVE), 3, "nine sixteenths of the subscriptions");
    bench.give(Input::Command { link: EVE, command: subscribe(20) });
    assert_eq!(over(&bench, EVE), 4);
    bench.say(ANN, "a", "m", "hi", Some("echo"));
    assert_eq!(over(&bench, ANN), 0);
    while !bench.asked.is_empty() {
        bench.answer();
    }
    assert_eq!(bench.held_when_quiet(), ([0; 4], 0));
}

/// Runs random inputs, answers, cancels and closes on a node with few permits, and then lets everything end.
#[test]
fn random_loads_release_all_shares() {
    for number in 0..40 {
        let mut rng = Rng::from_number(number);
        let capacity = Capacity { attempts: 3, content_bytes: 100_000, ..Capacity::default() };
        let mut bench = Fixture::new(capacity);
        for step in 0..150 {
            let (link, name) = if rng.below(2) == 0 { (EVE, "e") } else { (ANN, "a") };
            let session = format!("{name}{}", rng.below(5));
            let id = SessionId::parse(&session).expect("a name");
            match rng.below(12) {
                0..=5 => {
                    let text = if rng.below(2) == 0 { "hi".to_owned() } else { "x".repeat(20_000) };
                    bench.say(link, &session, &format!("m{step}"), &text, None);
                }
                6..=8 if !bench.asked.is_empty() => drop(bench.answer()),
                9 => {
                    let request_id = None;
                    let target = CancelTarget::Session(id);
                    let command = LinkCommand::Cancel { request_id, target, wants_receipt: false };
                    bench.give(Input::Command { link, command });
                }
                10 if rng.below(4) == 0 => {
                    bench.give(Input::Command {
                        link,
                        command: LinkCommand::Control { request_id: None, session: id, request: ControlRequest::Close },
                    });
                }
                _ => bench.run(Duration::from_millis(rng.below(3_000))),
            }
            let held = bench.board.stats(bench.now).held.0;
            assert!(held[0] <= 3 && held[1] <= 100_000, "{number}, {step}: {held:?}");
        }
        for _ in 0..400 {
            if bench.asked.is_empty() {
                bench.run(Duration::from_secs(3));
            } else {
                bench.answer();
            }
        }
        let stats = bench.board.stats(bench.now);
        assert_eq!((stats.open_turns, stats.permits_waiting), (0, 0), "{number}: every turn has ended");
        assert_eq!(bench.held_when_quiet(), ([0; 4], 0), "{number}");
    }
}
