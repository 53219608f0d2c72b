//! The simulated cluster: time, nodes, scheduled events, and the inputs and outputs of the machines.
use super::agents::Streams;
use super::check::StoreRecord;
use super::clients::{Act, Client};
use super::faults::Faults;
use super::fixtures;
use super::index;
use super::links::Connection;
use super::platform::{self, Platform};
use super::steering::Answer;
use super::tool_runner::{Step, ToolRunner};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::clock::{ClockReading, WallClock};
use turnway_core::id::{LinkId, NodeId};
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::rng::Rng;
use turnway_core::store::{ModelStore, Op, Reply, StoreError};
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::runner::pool::RunnerPool;
use turnway_node::switchboard::{Capacity, Config, Input, Output, Switchboard};
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::peer::PeerMessage;

/// Virtual time zero, by the store's clock; and more outputs than any one input may cause.
const DAWN_MS: u64 = 1_760_000_000_000;
const OUTPUTS_MAX: usize = 20_000;

/// A connection: the process that accepted it, and its link id there.
pub(crate) type LineId = (NodeId, LinkId);

/// A scheduled event.
#[derive(Clone, Debug)]
pub(crate) enum ScheduledEvent {
    /// An operation reaches the store. A ghost is a late copy without a waiting sender, with the number of the
    /// store's losses when it was sent.
    Store { node_id: NodeId, op: Op, ghost: Option<u32>, stamp: Option<Millis> },
    /// A step around an operation in flight, with registration in the indexes.
    Index(Box<index::Step>),
    /// An answer reaches its node.
    Answer { node_id: NodeId, op: Op, result: Result<Reply, StoreError> },
    /// A peer message reaches a node.
    Mail { to: NodeId, from: NodeId, words: PeerMessage },
    /// The bus reports that a message had no receiver.
    Unheard { node_id: NodeId, node: NodeId },
    /// A node is told that it may have missed messages.
    Gap { node_id: NodeId },
    /// An event between nodes and their tool runner.
    Tool(Box<Step>),
    /// An event around the chat platform.
    Platform(Box<platform::Step>),
    /// An agent's stream sends its next event.
    Agent { stream: u64 },
    /// An agent answers a steering message.
    Steered { answer: Box<Answer> },
    /// A node crashes.
    Crash { node_id: NodeId },
    /// A node is drained.
    Leave { node_id: NodeId },
    /// A draining node learns of possible successors.
    Successors { node_id: NodeId },
    /// A node notices that a link is gone.
    HangUp { line: LineId },
    /// A slow link reads more.
    Flush { line: LineId },
    /// A link reports the bytes that it has written.
    Report { line: LineId },
    /// A client acts.
    Client { client: usize, act: Act },
}

/// One process and its surroundings.
pub(crate) struct Node {
    pub(crate) node_id: NodeId,
    board: Switchboard,
    pub(crate) tools: RunnerPool,
    born: Mono,
    /// Rate of the node's clock, per thousand.
    rate: u64,
    /// The node's wall clock, set from the store's clock.
    wall: WallClock,
    pub(crate) paused_until: Mono,
    pub(crate) cut_until: Mono,
    pub(crate) deaf_until: Mono,
    pub(crate) links: u64,
    frozen: Vec<Input>,
}

impl Node {
    fn mono(&self, now: Mono) -> Mono {
        let age = u64::try_from((now - self.born).as_nanos()).unwrap_or(u64::MAX);
        Mono(Duration::from_nanos(age * self.rate / 1000))
    }
    fn clock(&self, now: Mono) -> Now {
        let mono = self.mono(now);
        Now { mono, store: self.wall.at(mono) }
    }
    /// Returns the node's next deadline, in the world's time.
    fn due(&self) -> Option<Mono> {
        let tools = self.tools.poll_timeout().map(|due| due.at);
        let at = self.board.poll_timeout().map(|due| due.at).into_iter().chain(tools).min()?;
        let nanos = u64::try_from(at.0.as_nanos()).unwrap_or(u64::MAX / 1000);
        let age = (u128::from(nanos) * 1000).div_ceil(u128::from(self.rate));
        let due = self.born + Duration::from_nanos(u64::try_from(age).unwrap_or(u64::MAX));
        Some(due.max(self.paused_until))
    }
}

/// Counters of a world.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Inputs and wake-ups of nodes.
    pub steps: u64,
    /// Number of store operations.
    pub ops: u64,
    /// Peer messages published.
    pub peer_messages: u64,
    /// Messages to clients.
    pub client_messages: u64,
    /// Turns that ended.
    pub turns: u64,
    /// Parts that stand in rooms.
    pub posts: u64,
    /// Runs of tasks.
    pub tasks: u64,
    /// Messages of rooms that are part of the turn of another one.
    pub gathered: u64,
    /// Presses of buttons that became turns.
    pub presses: u64,
    /// Crashes, pauses, cuts, outages, drains, clock jumps and lost writes.
    pub faults: u64,
}

/// The simulated cluster.
pub struct World {
    pub(crate) rng: Rng,
    pub(crate) now: Mono,
    /// Milliseconds by which the store's clock is ahead.
    pub(crate) ahead_ms: u64,
    /// Number of times that the store has lost writes.
    pub(crate) forgotten: u32,
    pub(crate) faults: Faults,
    pub(crate) rewinds: bool,
    /// True if the store publishes offers to owners by itself, as Redis does.
    pub(crate) rings: bool,
    /// True if some turns have an agent that can resume.
    pub(crate) lasting: bool,
    /// True if agents request handovers.
    pub(crate) handovers: bool,
    /// True if agents request actions.
    pub(crate) actions: bool,
    /// True if people write in rooms of a platform with adapters.
    pub(crate) channels: bool,
    /// True if agents give tasks in turns that came from rooms.
    pub(crate) tasks: bool,
    /// True if messages of rooms are gathered.
    pub(crate) debounce: bool,
    /// True if agents put buttons below answers to rooms.
    pub(crate) buttons: bool,
    /// True if the sweep uses separate indexes.
    pub(crate) indexed: bool,
    pub(crate) nodes: Vec<Node>,
    pub(crate) model: ModelStore,
    pub(crate) index: index::Index,
    pub(crate) registrations: BTreeMap<NodeId, index::RegistrationCache>,
    /// Pairs of nodes that lose each other's messages, and until when.
    pub(crate) splits: BTreeMap<(NodeId, NodeId), Mono>,
    /// Time of the store's last restart.
    pub(crate) restarted_at: Option<Mono>,
    pub(crate) outage_until: Mono,
    pub(crate) slow_until: Mono,
    /// Minimum latency of the store in milliseconds, in each direction.
    pub(crate) far_ms: u64,
    pub(crate) clients: Vec<Client>,
    pub(crate) sayings: BTreeMap<u64, fixtures::PlannedMessage>,
    pub(crate) lines: BTreeMap<LineId, Connection>,
    pub(crate) streams: Streams,
    pub(crate) hands: ToolRunner,
    pub(crate) platform: Platform,
    pub(crate) ledger: StoreRecord,
    pub(crate) requests: u64,
    directory: Arc<AgentDirectory>,
    agenda: BTreeMap<(Mono, u64), ScheduledEvent>,
    order: u64,
    node_count: u64,
    trace: bool,
    /// Digest of all events, if requested.
    pub digest: Option<u64>,
    pub tally: Counters,
}

struct Fnv(u64);

impl fmt::Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

impl World {
    /// Creates a world from a seed. `SIM_TRACE` prints all events.
    pub fn new(seed: u64, nodes: usize, faults: Faults) -> Self {
        let rewinds = faults.rewind > 0;
        let directory = fixtures::directory_with(fixtures::rooms(&faults));
        let mut this = Self {
            rng: Rng::from_number(seed),
            now: Mono(Duration::from_secs(1)),
            ahead_ms: 0,
            forgotten: 0,
            faults,
            rewinds,
            rings: !seed.is_multiple_of(3),
            lasting: faults.lasting,
            handovers: faults.handovers,
            actions: faults.actions,
            channels: faults.channels,
            tasks: faults.tasks,
            debounce: faults.debounce,
            buttons: faults.buttons,
            indexed: faults.indexed,
            nodes: Vec::new(),
            model: ModelStore::new(rewinds),
            index: index::Index::default(),
            registrations: BTreeMap::new(),
            splits: BTreeMap::new(),
            restarted_at: None,
            outage_until: Mono::default(),
            slow_until: Mono::default(),
            far_ms: 0,
            clients: Vec::new(),
            sayings: BTreeMap::new(),
            lines: BTreeMap::new(),
            streams: Streams::default(),
            hands: ToolRunner::default(),
            platform: Platform::default(),
            ledger: StoreRecord::new(Arc::clone(&directory), rewinds),
            requests: 0,
            directory,
            agenda: BTreeMap::new(),
            order: 0,
            node_count: 0,
            trace: std::env::var_os("SIM_TRACE").is_some(),
            digest: None,
            tally: Counters::default(),
        };
        for _ in 0..nodes {
            let node = this.start_node();
            this.connect_runner(node.node_id);
            this.nodes.push(node);
            this.announce_level(this.nodes.len() - 1);
        }
        this
    }

    fn start_node(&mut self) -> Node {
        self.node_count += 1;
        let node_id = NodeId(u128::from(self.node_count));
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        let board = Switchboard::new(Config {
            node: node_id,
            directory: Arc::clone(&self.directory),
            seed,
            single_node: false,
            keep_facts: Some(self.faults.keep).filter(|keep| *keep > 0),
            max_age: None,
            capacity: Capacity::default(),
        });
        let wrong_by = self.rng.below(4000);
        let never = Mono::default();
        let reading = |time| ClockReading { time, after: never, before: never };
        // The system's clock is wrong by hours, and the store reports its time before anything else happens.
        let mut wall = WallClock::provisional(reading(Millis(self.store_clock().0 + 10_000_000 - wrong_by * 5000)));
        wall.observe(reading(Millis(self.store_clock().0 + 2000 - wrong_by)));
        Node {
            node_id,
            board,
            tools: RunnerPool::default(),
            born: self.now,
            rate: 996 + self.rng.below(9),
            wall,
            paused_until: never,
            cut_until: never,
            deaf_until: never,
            links: 0,
            frozen: Vec::new(),
        }
    }

    /// Returns the reading of the store's clock.
    pub(crate) fn store_clock(&self) -> Millis {
        Millis(DAWN_MS + self.ahead_ms).after(self.now.0)
    }

    /// Returns both clocks as the store gets them.
    pub(crate) fn store_now(&self) -> Now {
        Now { mono: self.now, store: self.store_clock() }
    }

    /// Schedules an event after a random wait from a range.
    pub(crate) fn later(&mut self, ms_min: u64, ms_max: u64, happening: ScheduledEvent) {
        let wait = Duration::from_millis(ms_min + self.rng.below(ms_max.saturating_sub(ms_min) + 1));
        self.order += 1;
        self.agenda.insert((self.now + wait, self.order), happening);
    }

    /// Returns the index of a process, if it still runs.
    pub(crate) fn at(&self, node_id: NodeId) -> Option<usize> {
        self.nodes.iter().position(|node| node.node_id == node_id)
    }

    /// Picks a random node.
    pub(crate) fn somewhere(&mut self) -> usize {
        self.rng.below(self.nodes.len() as u64) as usize
    }

    pub(crate) fn say(&mut self, what: fmt::Arguments<'_>) {
        if self.trace {
            eprintln!("{:>9.3} {what}", self.now.0.as_secs_f64());
        }
        if let Some(digest) = &mut self.digest {
            let mut hash = Fnv(*digest);
            // Hashing does not fail.
            let _ = write!(hash, "{:?} {what}", self.now);
            *digest = hash.0;
        }
    }

    /// Gives a node an input, and handles the outputs.
    pub(crate) fn give(&mut self, at: usize, input: Input) {
        self.tally.steps += 1;
        if self.trace || self.digest.is_some() {
            let node_id = self.nodes[at].node_id.0;
            self.say(format_args!("n{node_id} <- {input:?}"));
        }
        // Inputs from a pause come first, also for a node that resumes at this very moment.
        if self.nodes[at].paused_until > self.now || !self.nodes[at].frozen.is_empty() {
            self.nodes[at].frozen.push(input);
            return;
        }
        self.take(at, input);
    }

    fn take(&mut self, at: usize, input: Input) {
        let node = &mut self.nodes[at];
        let mono = node.mono(self.now);
        if let Input::Stored { op: Op::Renew { sent, .. }, result: Ok(Reply::Renewed { clock, .. }) } = &input {
            node.wall.observe(ClockReading { time: *clock, after: *sent, before: mono });
        }
        if let Input::Command { link, command } = &input
            && let (Some(line), Some(id)) = (self.lines.get_mut(&(node.node_id, *link)), command.request_id())
        {
            line.noticed.insert(id.clone());
            if let LinkCommand::Unsubscribe { session, .. } = command {
                line.follows.remove(session);
                // A client that unsubscribes before its subscribe was answered waits for no answer.
                let joins = |ask: &LinkCommand| matches!(ask, LinkCommand::Subscribe(ask) if ask.session == *session);
                let noticed = &line.noticed;
                line.asks.retain(|id, ask| !(joins(ask) && noticed.contains(id)));
            }
        }
        let now = node.clock(self.now);
        node.board.handle_input(now, input);
        self.drain(at);
    }

    fn drain(&mut self, at: usize) {
        let node_id = self.nodes[at].node_id;
        let mut outputs = Vec::new();
        while let Some(output) = self.nodes[at].board.poll_output() {
            outputs.push(output);
            assert!(outputs.len() < OUTPUTS_MAX, "G8: outputs end within a bound");
        }
        for output in outputs {
            if self.trace {
                self.say(format_args!("n{} -> {output:?}", node_id.0));
            }
            match output {
                Output::Store(op) => self.ask_store(node_id, op),
                Output::Publish { to, message: words } => self.publish(at, to, words),
                Output::Order(order) => self.order(at, order),
                Output::Tool(order) => self.tool_order(at, order),
                Output::Notify { link, notification: note } => self.show((node_id, link), note),
                Output::Exit => self.later(0, 0, ScheduledEvent::Crash { node_id }),
            }
        }
    }

    fn happen(&mut self, happening: ScheduledEvent) {
        match happening {
            ScheduledEvent::Store { node_id, op, ghost, stamp } => self.reach_store(node_id, op, ghost, stamp),
            ScheduledEvent::Index(step) => self.index_step(*step),
            ScheduledEvent::Answer { node_id, op, result } => {
                if self.indexed {
                    self.book_answer(node_id, &op, &result);
                }
                self.give_to(node_id, Input::Stored { op, result });
            }
            ScheduledEvent::Mail { to, from, words } => self.give_to(to, Input::Peer { from, message: words }),
            ScheduledEvent::Unheard { node_id, node } => self.give_to(node_id, Input::PublishFailed { to: node }),
            ScheduledEvent::Gap { node_id } => self.give_to(node_id, Input::MessagesMissed),
            ScheduledEvent::Tool(step) => self.step(*step),
            ScheduledEvent::Platform(step) => self.platform_step(*step),
            ScheduledEvent::Agent { stream } => self.send_next_event(stream),
            ScheduledEvent::Steered { answer } => self.steered(*answer),
            ScheduledEvent::Crash { node_id } => {
                if let Some(at) = self.at(node_id) {
                    self.crash(at);
                }
            }
            ScheduledEvent::Leave { node_id } => self.leave(node_id),
            ScheduledEvent::Successors { node_id } => {
                let others = self.nodes.iter().map(|node| node.node_id).filter(|node| *node != node_id);
                self.give_to(node_id, Input::Successors(others.collect()));
            }
            ScheduledEvent::HangUp { line } => self.hang_up(line),
            ScheduledEvent::Flush { line } => self.flush(line),
            ScheduledEvent::Report { line } => self.report(line),
            ScheduledEvent::Client { client, act } => self.act(client, act),
        }
    }

    /// Returns the time of a node's own clock, which is faster or slower than the world's.
    pub(crate) fn mono_of(&self, node_id: NodeId) -> Mono {
        self.at(node_id).map_or(self.now, |at| self.nodes[at].mono(self.now))
    }

    pub(crate) fn give_to(&mut self, node_id: NodeId, input: Input) {
        if let Some(at) = self.at(node_id) {
            self.give(at, input);
        }
    }

    /// Crashes a process; another starts in its place, under another id.
    pub(crate) fn crash(&mut self, at: usize) {
        let node_id = self.nodes[at].node_id;
        self.say(format_args!("n{} dies", node_id.0));
        self.tally.faults += 1;
        self.orphan(at, 100, 2000);
        self.lines.retain(|line, _| line.0 != node_id);
        self.streams.cut_off(node_id);
        self.hands.cut_off(node_id);
        self.registrations.remove(&node_id);
        self.nodes[at] = self.start_node();
        self.connect_runner(self.nodes[at].node_id);
        self.announce_level(at);
    }

    /// Returns a node's clocks.
    pub(crate) fn clock_of(&mut self, at: usize) -> Now {
        self.nodes[at].clock(self.now)
    }

    fn wake(&mut self) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].paused_until > self.now {
                continue;
            }
            for input in std::mem::take(&mut self.nodes[at].frozen) {
                self.take(at, input);
            }
            if self.nodes[at].due().is_some_and(|due| due <= self.now) {
                let now = self.nodes[at].clock(self.now);
                self.nodes[at].board.handle_timeout(now);
                self.tally.steps += 1;
                self.drain(at);
                self.wake_tools(at);
                let next = self.nodes[at].board.poll_timeout();
                assert!(next.is_none_or(|due| due.at > now.mono), "progress: a deadline moves on: {next:?} at {now:?}");
            }
        }
    }

    fn next(&self) -> Option<Mono> {
        let mail = self.agenda.first_key_value().map(|((at, _), _)| *at);
        let timers = self.nodes.iter().filter_map(Node::due);
        let thaw = self.nodes.iter().filter(|n| !n.frozen.is_empty()).map(|n| n.paused_until);
        timers.chain(mail).chain(thaw).min()
    }

    /// Lets time pass until nothing is due before `until`.
    pub fn run(&mut self, until: Mono) {
        while let Some(next) = self.next().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            while let Some(first) = self.agenda.first_entry().filter(|first| first.key().0 <= self.now) {
                let happening = first.remove();
                self.happen(happening);
            }
            self.wake();
            self.apply_random_fault();
        }
        self.now = self.now.max(until);
    }

    /// Lets seconds pass.
    pub fn pass(&mut self, seconds: u64) {
        self.run(self.now + Duration::from_secs(seconds));
    }
}
