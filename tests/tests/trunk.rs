//! Tests remote attempts between nodes (protocol.md §1.6) as state machines, on a bus that loses, duplicates and
//! delays messages: every message arrives once and in order, or both nodes notice that the call is lost.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use turnway_core::id::{AgentId, Epoch, MessageId, NodeId, RunId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentFailure, Invoke, Order, StopReason, TextKind};
use turnway_core::protocol::input::{Content, Message, Role};
use turnway_core::rng::Rng;
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::remote_attempts::{Input, Output, RemoteAttempts, RemoteCallId};
use turnway_simulator::laws::{Step, laws};
use turnway_wire::agent::AttemptEvent;
use turnway_wire::agent::message::AgentMessage;
use turnway_wire::channel::hello::DialInCapabilities;
use turnway_wire::peer::PeerMessage;
use turnway_wire::peer::remote::{ALL_NODES, AgentCapacity, RemoteMessage};

const OWNER: NodeId = NodeId(1);
const HOME: NodeId = NodeId(2);
/// Step of the simulated time.
const TICK: Duration = Duration::from_millis(50);

fn agent() -> AgentId {
    AgentId::parse("a").expect("a name")
}

fn key() -> SessionKey {
    SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") }
}

fn run(call: u64) -> RunId {
    RunId::derive(&key(), &UserId::local(), &MessageId::parse(&format!("m{call}")).expect("a name"))
}

fn invoke(call: u64) -> Box<Invoke> {
    Box::new(Invoke {
        key: key(),
        run_id: run(call),
        attempt: 1,
        epoch: Epoch(7),
        agent_id: agent(),
        user: UserId::local(),
        message: Message { role: Role::User, content: Content::Text("hello".to_owned()) },
        history: None,
        origin: None,
        traceparent: None,
        handover: None,
        actions: None,
        system_prompt: None,
        run_token: None,
        messages_url: None,
        resume: None,
    })
}

fn cancel(call: u64) -> Box<Order> {
    Box::new(Order::Cancel { tenant: TenantId::default_tenant(), run_id: run(call), attempt: 1, epoch: Epoch(7) })
}

fn text(n: u64) -> AttemptEvent {
    AttemptEvent::Message(AgentMessage::Delta { kind: TextKind::Text, text: format!("{n}."), id: None })
}

fn done() -> AttemptEvent {
    AttemptEvent::Message(AgentMessage::Done { stop: StopReason::EndTurn, usage: None })
}

fn one(has_room: bool) -> AgentCapacity {
    AgentCapacity { connections: 1, open: 0, has_room }
}

// === simulated pair of nodes ===

/// Faults of the bus between the two nodes.
#[derive(Clone, Copy)]
struct Bus {
    /// Lost messages per thousand.
    lost: u64,
    /// Duplicated messages per thousand.
    doubled: u64,
    /// Longest delay in ticks; delayed messages may overtake each other.
    late: u64,
}

const GOOD: Bus = Bus { lost: 0, doubled: 0, late: 0 };

struct World {
    now: Mono,
    rng: Rng,
    bus: Bus,
    /// No message passes, not even a node's messages to itself.
    away: bool,
    /// A node that is gone and receives nothing.
    gone: Option<NodeId>,
    nodes: BTreeMap<NodeId, RemoteAttempts>,
    mail: VecDeque<(u64, NodeId, NodeId, RemoteMessage)>,
    tick: u64,
    /// State of each agent at the remote node.
    agents: BTreeMap<RemoteCallId, Agent>,
    /// Messages that the owner's attempts have received.
    heard: BTreeMap<u64, Heard>,
    rings: u64,
    /// Attempts take none of their waiting messages.
    stuck: bool,
}

#[derive(Default)]
struct Agent {
    said: u64,
    passed: u64,
    cancelled: u32,
    over: bool,
    hung: bool,
}

#[derive(Default)]
struct Heard {
    text: String,
    placed: u32,
    ends: Vec<&'static str>,
    waiting: u64,
}

impl World {
    fn new(seed: u64, bus: Bus) -> Self {
        let nodes = [OWNER, HOME].map(|node| (node, RemoteAttempts::new(node))).into_iter().collect();
        let agents = BTreeMap::new();
        let heard = BTreeMap::new();
        let messages = VecDeque::new();
        let now = Mono(Duration::from_secs(1000));
        let rng = Rng::from_number(seed);
        Self {
            now,
            rng,
            bus,
            away: false,
            gone: None,
            nodes,
            mail: messages,
            tick: 0,
            agents,
            heard,
            rings: 0,
            stuck: false,
        }
    }

    fn time(&self) -> Now {
        Now { mono: self.now, store: Millis(1_000_000) }
    }

    fn tell(&mut self, node: NodeId, input: Input) {
        if self.gone == Some(node) {
            return;
        }
        let now = self.time();
        self.nodes.get_mut(&node).expect("a node").handle_input(now, input);
        self.drain(node);
    }

    fn drain(&mut self, node: NodeId) {
        let mut answers = Vec::new();
        while let Some(output) = self.nodes.get_mut(&node).expect("a node").poll_output() {
            match output {
                Output::Publish { to: ALL_NODES, message: PeerMessage::RemoteAttempt(words) } => {
                    for to in [OWNER, HOME] {
                        self.post(node, to, &words);
                    }
                }
                Output::Publish { to, message: PeerMessage::RemoteAttempt(words) } => self.post(node, to, &words),
                Output::Publish { message: words, .. } => panic!("{words:?}"),
                Output::Assigned(call, _) => self.heard(call).placed += 1,
                Output::NoCapacity(call) => self.heard(call).ends.push("refused"),
                Output::ConnectionLost(call) => self.heard(call).ends.push("lost"),
                Output::Event(call, word) => {
                    let heard = self.heard(call);
                    match word {
                        AttemptEvent::Message(AgentMessage::Delta { text, .. }) => heard.text.push_str(&text),
                        word @ (AttemptEvent::Acked | AttemptEvent::CancelAcked | AttemptEvent::Message(_)) => {
                            heard.ends.push(if word.is_last() { "done" } else { "else" })
                        }
                    }
                    heard.waiting += 1;
                }
                Output::FindConnection(call, invoke) => {
                    self.rings += 1;
                    assert_eq!(invoke.run_id, run(call.1));
                    assert!(self.agents.insert(call, Agent::default()).is_none(), "begun twice");
                    answers.push(Input::Assigned(call, DialInCapabilities::default()));
                }
                Output::Order(call, _) => self.agents.get_mut(&call).expect("placed").cancelled += 1,
                Output::Credit(call, words) => self.agents.get_mut(&call).expect("placed").passed += words,
                Output::Abandoned(call) => self.agents.get_mut(&call).into_iter().for_each(|it| it.hung = true),
                Output::Stop(_) | Output::AgentAvailable(_) => {}
            }
        }
        for answer in answers {
            self.tell(node, answer);
        }
    }

    fn heard(&mut self, call: u64) -> &mut Heard {
        self.heard.get_mut(&call).expect("a call of the owner")
    }

    fn chance(&mut self, of_thousand: u64) -> bool {
        self.rng.below(1000) < of_thousand
    }

    fn post(&mut self, from: NodeId, to: NodeId, words: &RemoteMessage) {
        if self.gone == Some(to) {
            return self.tell(from, Input::NodeUnreachable(to));
        }
        if self.away || self.chance(self.bus.lost) {
            return;
        }
        let copies = 1 + u64::from(self.chance(self.bus.doubled));
        for _ in 0..copies {
            let at = self.tick + 1 + self.rng.below(self.bus.late + 1);
            self.mail.push_back((at, from, to, words.clone()));
        }
    }

    /// Advances one tick: messages arrive, attempts take waiting messages, timers fire.
    fn pass(&mut self) {
        self.tick += 1;
        self.now = self.now + TICK;
        let (due, later): (VecDeque<_>, _) = self.mail.drain(..).partition(|(at, ..)| *at <= self.tick);
        self.mail = later;
        for (_, from, to, words) in due {
            self.tell(to, Input::Peer(from, words));
        }
        let heard = self.heard.iter_mut().filter(|_| !self.stuck);
        let waiting = heard.map(|(call, it)| (*call, std::mem::take(&mut it.waiting)));
        for (call, words) in waiting.collect::<Vec<_>>() {
            (0..words).for_each(|_| self.tell(OWNER, Input::EventDelivered(call)));
            // An attempt that has taken the last message hangs up.
            if self.heard[&call].ends == ["done"] {
                self.tell(OWNER, Input::Abandon(call));
            }
        }
        let now = self.time();
        for node in [OWNER, HOME] {
            let due = self.nodes[&node].poll_timeout().is_some_and(|due| due.at <= self.now);
            if due && self.gone != Some(node) {
                self.nodes.get_mut(&node).expect("a node").handle_timeout(now);
                self.drain(node);
            }
        }
    }

    fn begin(&mut self, call: u64) {
        self.heard.insert(call, Heard::default());
        self.tell(OWNER, Input::Begin { call, to: HOME, invoke: invoke(call) });
    }

    /// Makes each agent send text as long as there is room, up to this many messages, and then `done`.
    fn speak(&mut self, words: u64) {
        for call in self.agents.keys().copied().collect::<Vec<_>>() {
            loop {
                let agent = self.agents.get_mut(&call).expect("an agent");
                // The placement confirmation is the first message that is passed on.
                let waiting = agent.said + 1 - agent.passed;
                if agent.over || agent.hung || waiting >= limits::REMOTE_QUEUE_MAX as u64 {
                    break;
                }
                let word = if agent.said < words { text(agent.said) } else { done() };
                agent.said += 1;
                agent.over = word.is_last();
                self.tell(HOME, Input::Event(call, word));
            }
        }
    }

    fn calls(&self) -> [(usize, usize); 2] {
        [OWNER, HOME].map(|node| self.nodes[&node].call_counts())
    }
}

fn whole(words: u64) -> String {
    (0..words).map(|n| format!("{n}.")).collect()
}

/// Covers: MP-F1, G3: whatever a bus does to words, each arrives once and in its order.
#[test]
fn messages_survive_loss_duplication_and_delay() {
    for seed in 0..300 {
        let bus = Bus { lost: 150, doubled: 100, late: seed % 3 };
        let mut world = World::new(seed, bus);
        (1..=4).for_each(|call| world.begin(call));
        for _ in 0..2000 {
            world.speak(100);
            world.pass();
        }
        for (call, heard) in &world.heard {
            assert_eq!((heard.text.as_str(), &heard.ends[..]), (whole(100).as_str(), &["done"][..]), "{seed}: {call}");
        }
        assert_eq!((world.rings, world.calls()), (4, [(0, 0), (0, 0)]), "{seed}: something is left");
    }
}

/// Covers: MP-F1: a cancel is an order like any other; nothing is placed twice.
#[test]
fn orders_survive_loss_duplication_and_delay() {
    for seed in 0..300 {
        let mut world = World::new(seed, Bus { lost: 300, doubled: 200, late: 2 });
        world.begin(1);
        world.tell(OWNER, Input::Order(1, cancel(1)));
        (0..400).for_each(|_| world.pass());
        let agent = &world.agents[&(OWNER, 1)];
        assert_eq!((agent.cancelled, world.heard[&1].placed, world.rings), (1, 1, 1), "{seed}");
    }
}

/// Covers: MP-F1, G9: while Redis is away nobody is given up, and what was said meanwhile is said again.
#[test]
fn call_survives_an_outage_of_a_minute() {
    let mut world = World::new(1, GOOD);
    world.begin(1);
    (0..10).for_each(|_| world.pass());
    world.speak(200);
    (0..4).for_each(|_| world.pass());
    world.away = true;
    for _ in 0..1200 {
        world.speak(200);
        world.pass();
    }
    assert!(world.heard[&1].ends.is_empty());
    world.away = false;
    for _ in 0..400 {
        world.speak(200);
        world.pass();
    }
    assert_eq!((world.heard[&1].text.as_str(), &world.heard[&1].ends[..]), (whole(200).as_str(), &["done"][..]));
}

/// Covers: G3: of a node that is gone the other one hears within two seconds, whichever it is.
#[test]
fn call_to_a_node_that_is_gone_is_lost() {
    for gone in [OWNER, HOME] {
        let mut world = World::new(1, GOOD);
        world.begin(1);
        (0..10).for_each(|_| world.pass());
        world.agents.get_mut(&(OWNER, 1)).expect("placed").said += 1;
        world.tell(HOME, Input::Event((OWNER, 1), text(0)));
        (0..2).for_each(|_| world.pass());
        world.gone = Some(gone);
        (0..40).for_each(|_| world.pass());
        let lost = world.heard[&1].ends == ["lost"];
        let hung = world.agents[&(OWNER, 1)].hung;
        assert_eq!((lost, hung), (gone == HOME, gone == OWNER));
        let stays = if gone == OWNER { HOME } else { OWNER };
        assert_eq!(world.nodes[&stays].call_counts(), (0, 0));
    }
}

/// Covers: G3: a node that sleeps is given up after a while, and what it then still says is not listened to.
#[test]
fn call_to_a_silent_node_is_lost() {
    let mut world = World::new(1, GOOD);
    world.begin(1);
    (0..10).for_each(|_| world.pass());
    // The node's messages are lost, while messages to the node arrive.
    world.bus.lost = 1000;
    let mut own = world.time().mono;
    for _ in 0..130 {
        world.pass();
        let heard = Input::Peer(OWNER, RemoteMessage::Progress { outgoing: vec![], incoming: vec![] });
        if world.now - own >= limits::REMOTE_COUNT_INTERVAL {
            own = world.now;
            world.tell(OWNER, heard);
        }
    }
    assert_eq!(world.heard[&1].ends, ["lost"]);
    world.bus.lost = 0;
    (0..40).for_each(|_| world.pass());
    assert_eq!((world.calls(), world.agents[&(OWNER, 1)].hung), ([(0, 0), (0, 0)], true));
}

/// Covers: S-48, G8: what is not passed on stops what is said.
#[test]
fn unread_messages_are_limited_to_the_window() {
    let mut world = World::new(1, GOOD);
    world.begin(1);
    (0..10).for_each(|_| world.pass());
    world.stuck = true;
    for _ in 0..100 {
        world.speak(1000);
        world.pass();
    }
    let said = world.agents[&(OWNER, 1)].said;
    assert_eq!(said, limits::REMOTE_QUEUE_MAX as u64);
    world.stuck = false;
    for _ in 0..1000 {
        world.speak(1000);
        world.pass();
    }
    assert_eq!((world.heard[&1].text.as_str(), &world.heard[&1].ends[..]), (whole(1000).as_str(), &["done"][..]));
}

/// Covers: MP-F1: one without room refuses, one that nobody has is asked for, one that leaves is not counted on.
#[test]
fn nodes_announce_the_agents_they_serve() {
    let mut world = World::new(1, GOOD);
    let best = |world: &World| world.nodes[&OWNER].least_loaded_node(world.time(), &agent(), &BTreeSet::new());
    world.tell(OWNER, Input::AgentWanted);
    assert_eq!(best(&world), None);
    world.tell(HOME, Input::Capacity(agent(), one(true)));
    world.pass();
    assert_eq!(best(&world), Some(HOME));
    world.tell(HOME, Input::Capacity(agent(), one(false)));
    world.pass();
    assert_eq!(best(&world), None);
    world.tell(HOME, Input::Capacity(agent(), one(true)));
    // The announcement is repeated; without repetition it expires.
    (0..300).for_each(|_| world.pass());
    assert_eq!(best(&world), Some(HOME));
    world.tell(HOME, Input::Draining);
    world.pass();
    assert_eq!((best(&world), world.nodes[&OWNER].other_nodes(world.time(), &agent()).len()), (None, 1));
    world.tell(HOME, Input::Capacity(agent(), AgentCapacity::default()));
    world.pass();
    assert!(world.nodes[&OWNER].other_nodes(world.time(), &agent()).is_empty());
}

/// The laws of a machine, over a call of each kind.
#[test]
fn remote_attempts_satisfy_the_machine_laws() {
    let peer = |words| Input::Peer(HOME, words);
    let order = |n, order: Order| peer(RemoteMessage::Order { call: 5, n, order: std::sync::Arc::new(order) });
    let script = [
        Input::Capacity(agent(), one(true)),
        Input::Begin { call: 1, to: HOME, invoke: invoke(1) },
        order(0, Order::Invoke(*invoke(5))),
        Input::Assigned((HOME, 5), DialInCapabilities::default()),
        order(1, *cancel(5)),
        Input::Event((HOME, 5), text(0)),
        Input::NodeUnreachable(HOME),
        Input::MessagesMissed,
        Input::Peer(OWNER, RemoteMessage::ListAgents),
        peer(RemoteMessage::GivenUp { call: 1 }),
        Input::Event((HOME, 5), AttemptEvent::Message(AgentMessage::Failed(AgentFailure::TooLarge))),
        peer(RemoteMessage::Abandoned { call: 5 }),
        Input::Draining,
    ];
    let wait = Duration::from_millis(700);
    let script: Vec<_> = script.into_iter().map(|input| Step { after: wait, input: Some(input) }).collect();
    let outputs = laws(|_| RemoteAttempts::new(OWNER), &script, 16, |output| format!("{output:?}"));
    let ended =
        outputs.iter().filter(|output| output.contains(" ConnectionLost(") || output.contains(" Abandoned((")).count();
    assert_eq!(ended, 2, "{outputs:?}");
}

/// An order too large for a frame ends its call with the reason, instead of being repeated for the whole run.
///
/// Covers: S-14.
#[test]
fn order_too_large_for_a_frame_ends_its_call() {
    let mut trunk = RemoteAttempts::new(OWNER);
    let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1) };
    let mut large = invoke(1);
    large.message.content = Content::Text("\u{1}".repeat(limits::FRAME_BYTES_MAX / 6));
    trunk.handle_input(now, Input::Begin { call: 1, to: HOME, invoke: large });
    let told: Vec<Output> = std::iter::from_fn(|| trunk.poll_output()).collect();
    let failed = AttemptEvent::Message(AgentMessage::Failed(AgentFailure::TooLarge));
    let hung = PeerMessage::RemoteAttempt(RemoteMessage::Abandoned { call: 1 });
    let expected = [
        Output::Publish { to: HOME, message: hung },
        Output::Assigned(1, DialInCapabilities::default()),
        Output::Event(1, failed),
        Output::ConnectionLost(1),
    ];
    assert_eq!((told.as_slice(), trunk.call_counts()), (expected.as_slice(), (0, 0)));
    // An order that just fits is sent, and fits a frame.
    let mut fits = invoke(2);
    fits.message.content = Content::Text("x".repeat(limits::FRAME_BYTES_MAX - 2000));
    trunk.handle_input(now, Input::Begin { call: 2, to: HOME, invoke: fits });
    let mut packer = turnway_wire::peer::frame::FramePacker::new(OWNER);
    while let Some(output) = trunk.poll_output() {
        let Output::Publish { message: words, .. } = output else { panic!("{output:?}") };
        packer.add(words);
    }
    assert_eq!((packer.finish().1, trunk.call_counts()), (0, (1, 0)));
}

/// Message text must not appear in debug output (S-38).
#[test]
fn debug_output_contains_no_message_text() {
    let mut trunk = RemoteAttempts::new(OWNER);
    let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1) };
    let said = RemoteMessage::Event {
        call: 1,
        n: 0,
        event: turnway_wire::peer::remote::RemoteEvent::Text {
            kind: TextKind::Text,
            text: Private("canary".into()),
            id: None,
        },
    };
    let text = AttemptEvent::Message(AgentMessage::Delta { kind: TextKind::Text, text: "canary".to_owned(), id: None });
    trunk.handle_input(now, Input::Begin { call: 1, to: HOME, invoke: invoke(1) });
    trunk.handle_input(now, Input::Peer(HOME, said.clone()));
    let input = Input::Event((OWNER, 1), text);
    let outputs: Vec<Output> = std::iter::from_fn(|| trunk.poll_output()).collect();
    assert!(outputs.iter().any(|output| matches!(output, Output::Event(1, _))));
    let printed = format!("{said:?} {trunk:?} {input:?} {outputs:?}");
    assert!(!printed.contains("canary"), "{printed}");
}
