//! Fixture: a switchboard, its store and an agent in one call stack, and short descriptions of what clients
//! receive.
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{AgentId, LinkId, MessageId, NodeId, Principal, Seq, SessionId, SessionKey, TenantId, UserId};
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentDirectory, AgentEvent, AgentPolicy, Invoke, Order, StopReason, TextKind};
use turnway_core::protocol::input::{Content, Message, Role};
use turnway_core::protocol::signal::SignalKind;
use turnway_core::store::{ModelStore, Op, StoreError};
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::switchboard::{Capacity, Config, Input, Output, Switchboard};
use turnway_wire::channel::command::{InvokeCommand, LinkCommand, SubscribeCommand};
use turnway_wire::channel::notification::{CommandReply, Notification};

/// One node with simulated time.
pub(crate) struct Fixture {
    pub(crate) board: Switchboard,
    pub(crate) model: ModelStore,
    pub(crate) now: Now,
    pub(crate) shown: Vec<(LinkId, String)>,
    pub(crate) orders: Vec<Order>,
    pub(crate) inputs: VecDeque<Input>,
    pub(crate) gone: bool,
    /// Error that the store returns instead of performing an operation.
    pub(crate) trouble: Option<StoreError>,
    /// The same for entries of the control lane only.
    pub(crate) control_trouble: Option<StoreError>,
    /// The store does not answer.
    pub(crate) waits: bool,
    /// Inputs on their way to the store arrive later.
    pub(crate) holds_inputs: bool,
    pub(crate) held: Vec<Op>,
    /// Pages of logs that the node has read.
    pub(crate) pages_read: usize,
}

pub(crate) fn user(name: &str) -> Principal {
    let user = UserId::parse(name).expect("a name");
    Principal { tenant: TenantId::default_tenant(), user, operator: false, writes: true }
}

pub(crate) fn session() -> SessionId {
    SessionId::parse("s1").expect("a name")
}

pub(crate) fn key() -> SessionKey {
    SessionKey { tenant: TenantId::default_tenant(), session: session() }
}

pub(crate) fn say(message: &str, text: &str) -> LinkCommand {
    LinkCommand::Invoke(Box::new(InvokeCommand {
        request_id: None,
        session: Some(session()),
        agent_id: None,
        message: Message { role: Role::User, content: Content::Text(text.to_owned()) },
        history: None,
        replaces: None,
        message_id: Some(MessageId::parse(message).expect("a name")),
        strategy: None,
        metadata: None,
        traceparent: None,
    }))
}

pub(crate) fn subscribe(after: Option<u64>) -> LinkCommand {
    let after_seq = after.map(Seq);
    let runs = Vec::new();
    let types = Vec::new();
    LinkCommand::Subscribe(SubscribeCommand {
        request_id: None,
        session: session(),
        after_seq,
        after_epoch: None,
        runs,
        types,
    })
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
        let mut bench = Self::with(7, ModelStore::new(false), now);
        bench.run(Duration::from_millis(1));
        bench
    }

    /// Creates a node without agents.
    pub(crate) fn without_agents() -> Self {
        let nobody = AgentDirectory::default();
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
        let mut bench = Self::knowing(nobody, 7, ModelStore::new(false), now);
        bench.run(Duration::from_millis(1));
        bench
    }

    /// Creates a node on a store that others may have used before.
    pub(crate) fn with(node: u128, model: ModelStore, now: Now) -> Self {
        let echo = AgentId::parse("echo").expect("a name");
        let agents = BTreeMap::from([(echo.clone(), AgentPolicy::default())]);
        Self::knowing(AgentDirectory { agents, default: Some(echo), ..AgentDirectory::default() }, node, model, now)
    }

    /// Creates a node that keeps few facts of each session.
    pub(crate) fn trimming(node: u128, model: ModelStore, now: Now) -> Self {
        let echo = AgentId::parse("echo").expect("a name");
        let agents = BTreeMap::from([(echo.clone(), AgentPolicy::default())]);
        let directory = AgentDirectory { agents, default: Some(echo), ..AgentDirectory::default() };
        Self::keeping(Some(4), directory, node, model, now)
    }

    fn knowing(directory: AgentDirectory, node: u128, model: ModelStore, now: Now) -> Self {
        Self::keeping(None, directory, node, model, now)
    }

    fn keeping(keep_facts: Option<u64>, directory: AgentDirectory, node: u128, model: ModelStore, now: Now) -> Self {
        let directory = Arc::new(directory);
        let board = Switchboard::new(Config {
            node: NodeId(node),
            directory,
            seed: [3; 32],
            single_node: true,
            keep_facts,
            max_age: None,
            capacity: Capacity::default(),
        });
        let shown = Vec::new();
        let orders = Vec::new();
        let inputs = VecDeque::new();
        Self {
            board,
            model,
            now,
            shown,
            orders,
            inputs,
            gone: false,
            trouble: None,
            control_trouble: None,
            waits: false,
            holds_inputs: false,
            held: Vec::new(),
            pages_read: 0,
        }
    }

    pub(crate) fn give(&mut self, input: Input) {
        self.inputs.push_back(input);
        while let Some(input) = self.inputs.pop_front() {
            self.board.handle_input(self.now, input);
            self.drain();
        }
    }

    pub(crate) fn drain(&mut self) {
        while let Some(output) = self.board.poll_output() {
            match output {
                Output::Store(_) if self.waits => {}
                Output::Store(op @ Op::Accept { .. }) if self.holds_inputs => self.held.push(op),
                Output::Store(op) => {
                    self.pages_read += usize::from(matches!(op, Op::Read { .. }));
                    let control_trouble = self.control_trouble.filter(|_| matches!(op, Op::Control { .. }));
                    let result = match self.trouble.or(control_trouble) {
                        Some(trouble) => Err(trouble),
                        None => Ok(self.model.apply(self.now, &op)),
                    };
                    self.inputs.push_back(Input::Stored { op, result });
                }
                Output::Publish { to, .. } => self.inputs.push_back(Input::PublishFailed { to }),
                Output::Order(order) => self.orders.push(order),
                Output::Tool(_) => {}
                Output::Notify { link, notification: note } => self.shown.push((link, describe(&note))),
                Output::Exit => self.gone = true,
            }
        }
    }

    pub(crate) fn run(&mut self, wait: Duration) {
        let until = self.now.mono + wait;
        while let Some(next) = self.board.poll_timeout().map(|d| d.at).filter(|at| *at <= until) {
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

    /// Returns the orders that began attempts, in their order.
    pub(crate) fn invokes(&self) -> impl DoubleEndedIterator<Item = &Invoke> {
        self.orders.iter().filter_map(|order| match order {
            Order::Invoke(invoke) => Some(invoke),
            Order::Cancel { .. }
            | Order::Steer(_)
            | Order::Drop { .. }
            | Order::Stop { .. }
            | Order::News(_)
            | Order::Credit { .. } => None,
        })
    }

    pub(crate) fn report(&mut self, event: AgentEvent) {
        let invoke = self.invokes().next_back().expect("an order").clone();
        let key = invoke.key;
        let run_id = invoke.run_id;
        let attempt = invoke.attempt;
        let epoch = invoke.epoch;
        self.give(Input::Agent { key, run_id, attempt, epoch, events: vec![event] });
    }

    pub(crate) fn answer(&mut self, pieces: &[&str]) {
        self.report(AgentEvent::Acked);
        for piece in pieces {
            self.report(AgentEvent::Delta { kind: TextKind::Text, text: Private((*piece).to_owned()), id: None });
        }
        self.report(AgentEvent::Done { stop: StopReason::EndTurn, usage: None });
    }

    pub(crate) fn take_shown(&mut self, link: u64) -> Vec<String> {
        let (mine, others) = std::mem::take(&mut self.shown).into_iter().partition(|(to, _)| *to == LinkId(link));
        self.shown = others;
        let mine: Vec<(LinkId, String)> = mine;
        mine.into_iter().map(|(_, line)| line).collect()
    }
}

pub(crate) fn describe(note: &Notification) -> String {
    match note {
        Notification::Fact { seq, entry, .. } => format!("{} {}", seq.0, entry.fact.name()),
        Notification::Chunk { chunk, .. } => format!("delta {} {}", chunk.offset, chunk.text.reveal()),
        Notification::Reply(CommandReply::TurnAccepted(accepted)) => format!("accepted {}", accepted.duplicate),
        Notification::Reply(CommandReply::Subscribed { snapshot, reset, .. }) => {
            format!("subscribed {} {reset:?}", snapshot.seq.0)
        }
        Notification::Reply(CommandReply::Opened { snapshot, .. }) => format!("opened {}", snapshot.seq.0),
        Notification::Reply(CommandReply::Performed { kind, .. }) => (*kind).to_owned(),
        Notification::Reply(CommandReply::Members(members)) => {
            let agents: Vec<&str> = members.agents.iter().map(AgentId::as_str).collect();
            format!("members {}", agents.join(" "))
        }
        Notification::Reply(CommandReply::Handover(decided)) => format!("handover {:?}", decided.standing),
        Notification::Reply(CommandReply::CancelAccepted { .. }) => "cancel taken".to_owned(),
        Notification::Reply(CommandReply::Stored) => "stored".to_owned(),
        Notification::Reply(CommandReply::MessageAccepted(accepted)) => format!("sent {}", accepted.message_id),
        Notification::Reply(CommandReply::ChildRequested(child)) => format!("child {}", child.creation_id),
        Notification::ProcessOutput { output: printed, .. } => format!("printed {}", printed.data.reveal()),
        Notification::Reply(CommandReply::SessionList { sessions, more }) => {
            let names: Vec<&str> = sessions.iter().map(|listed| listed.birth.session.as_str()).collect();
            format!("listed {} {more}", names.join(" "))
        }
        Notification::Reply(CommandReply::Deleted { .. }) => "deleted".to_owned(),
        Notification::Reply(CommandReply::Blobs(reply)) => format!("blobs {:?}", reply.outcome),
        Notification::Reply(CommandReply::RunLocation { after, ended, .. }) => {
            format!("found {} {:?}", after.seq.0, ended.map(|seq| seq.0))
        }
        Notification::Reply(CommandReply::Refused { refusal, .. }) => format!("refused {}", refusal.code.as_str()),
        Notification::Reply(CommandReply::Binding { reply, .. }) => format!("binding {reply:?}"),
        Notification::Reply(CommandReply::InboundAccepted(receipt)) => {
            format!("inbound {:?} {}", receipt.disposition, receipt.duplicate)
        }
        Notification::Reply(CommandReply::FilesPrepared(files)) => format!("files {}", files.key.session),
        Notification::Reply(CommandReply::CapabilitiesSet { .. }) => "capabilities".to_owned(),
        Notification::Reply(CommandReply::Account { reply, .. }) => format!("account {reply:?}"),
        Notification::Reply(CommandReply::DeliveryList(reply)) => format!("deliveries {}", reply.deliveries.len()),
        Notification::Deliver(message) => format!("deliver {} {}", message.order.part, message.order.text.reveal()),
        Notification::Signal(signal) => match &signal.kind {
            SignalKind::Typing { is_on } => format!("typing {is_on}"),
            SignalKind::Preview(preview) => format!("preview {}", preview.text.reveal()),
            SignalKind::RemovePreview { .. } => "remove preview".to_owned(),
        },
        Notification::AdapterState(state) => {
            let paused = if state.pause.is_some() { ", paused" } else { "" };
            format!("active {}{paused}", state.is_active)
        }
        Notification::LimitReached(refusal) => format!("closed {}", refusal.code.as_str()),
        Notification::GoAway { .. } => "go_away".to_owned(),
    }
}

pub(crate) fn connected(bench: &mut Fixture, link: u64, name: &str) {
    bench.give(Input::Connect { link: LinkId(link), principal: user(name) });
}
