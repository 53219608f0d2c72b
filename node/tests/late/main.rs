//! Clients that subscribe at the moment when a turn begins receive all of it at once, not at the next poll.
#[path = "../scene/scene.rs"]
mod scene;

use scene::{accept, ann, board, input, key};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{Cursor, LinkId, NodeId, OwnershipSnapshot, Seq};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, AgentPolicy, Invoke, Order, StopReason, TextKind};
use turnway_core::protocol::entry::{Fact, RunFact};
use turnway_core::protocol::input::Input as Said;
use turnway_core::store::{ModelStore, Op, Reply};
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::switchboard::{Input, Output, Switchboard};
use turnway_wire::channel::command::{LinkCommand, SubscribeCommand};
use turnway_wire::channel::notification::{CommandReply, Notification};
use turnway_wire::peer::{OfferedEntry, PeerMessage};

const OWNER: NodeId = NodeId(1);
const EDGE: NodeId = NodeId(2);
const LINK: LinkId = LinkId(1);

/// An owner node and an edge node with a client. Messages and answers take no time unless held back.
struct Fleet {
    nodes: [(NodeId, Switchboard); 2],
    model: ModelStore,
    now: Now,
    asked: Vec<Invoke>,
    shown: Vec<Notification>,
    /// True while answers to the edge node's reads of the session state are held back; then those answers.
    is_slow: bool,
    late: Vec<Input>,
    /// Number of the next chunks to the edge node that are lost.
    lose: usize,
    /// True while peer messages and log pages to the edge node are held back; then those items.
    is_far: bool,
    pages: Vec<Input>,
    words: Vec<PeerMessage>,
}

impl Fleet {
    /// Creates a session with an owner and a completed turn.
    fn new() -> Self {
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
        let nodes = [(OWNER, board(OWNER, 7, AgentPolicy::default())), (EDGE, board(EDGE, 9, AgentPolicy::default()))];
        let model = ModelStore::new(true);
        let asked = Vec::new();
        let shown = Vec::new();
        let late = Vec::new();
        let pages = Vec::new();
        let words = Vec::new();
        let is_slow = false;
        let is_far = false;
        let lose = 0;
        let mut fleet = Self { nodes, model, now, asked, shown, is_slow, late, lose, is_far, pages, words };
        fleet.settle();
        let reply = fleet.model.apply(now, &accept(&key("s"), &input(&key("s"), "m1")));
        assert!(matches!(reply, Reply::Accepted(_)), "{reply:?}");
        let words = PeerMessage::HandOff { key: key("s"), released: OwnershipSnapshot::default() };
        fleet.give(OWNER, Input::Peer { from: EDGE, message: words });
        fleet.report(vec![AgentEvent::Done { stop: StopReason::EndTurn, usage: None }]);
        fleet
    }

    fn give(&mut self, to: NodeId, input: Input) {
        self.handle(to, input);
        self.settle();
    }

    /// Handles everything that is possible at this moment.
    fn settle(&mut self) {
        let mut is_quiet = false;
        while !is_quiet {
            is_quiet = true;
            for n in 0..self.nodes.len() {
                let (node, board) = &mut self.nodes[n];
                let node = *node;
                let now = self.now;
                board.handle_timeout(now);
                while let Some(output) = self.nodes[n].1.poll_output() {
                    is_quiet = false;
                    self.perform(node, output);
                }
            }
        }
    }

    fn perform(&mut self, node: NodeId, output: Output) {
        match output {
            Output::Store(op) => {
                let result = Ok(self.model.apply(self.now, &op));
                let looks = node == EDGE && matches!(op, Op::ReadView { .. });
                let reads = node == EDGE && matches!(op, Op::Read { .. });
                let answer = Input::Stored { op, result };
                if looks && self.is_slow {
                    self.late.push(answer);
                } else if reads && self.is_far {
                    self.pages.push(answer);
                } else {
                    self.handle(node, answer);
                }
            }
            Output::Publish { to, message: words } => {
                let is_lost = to == EDGE && self.lose > 0 && matches!(words, PeerMessage::Chunk { .. });
                self.lose -= usize::from(is_lost);
                if to == EDGE && self.is_far {
                    self.words.push(words);
                } else if !is_lost {
                    self.handle(to, Input::Peer { from: node, message: words });
                }
            }
            Output::Order(Order::Invoke(invoke)) => self.asked.push(invoke),
            Output::Notify { notification: note, .. } => self.shown.push(note),
            Output::Order(_) | Output::Tool(_) | Output::Exit => {}
        }
    }

    /// Passes an input to a node, unless it is the third one, which does not exist.
    fn handle(&mut self, to: NodeId, input: Input) {
        if let Some((_, board)) = self.nodes.iter_mut().find(|(node, _)| *node == to) {
            board.handle_input(self.now, input);
        }
    }

    /// Reports events of the last turn's agent.
    fn report(&mut self, events: Vec<AgentEvent>) {
        let Invoke { key, run_id, attempt, epoch, .. } = self.asked.last().expect("a turn").clone();
        self.give(OWNER, Input::Agent { key, run_id, attempt, epoch, events });
    }

    fn say(&mut self, text: &str) {
        let text = Private(text.to_owned());
        self.report(vec![AgentEvent::Delta { kind: TextKind::Text, text, id: None }]);
        // Text that follows soon is batched for this time.
        let wait = limits::DELTA_WAIT;
        self.now = Now { mono: self.now.mono + wait, store: self.now.store.after(wait) };
        self.settle();
    }

    /// Connects a client that subscribes from now on.
    fn watch(&mut self) {
        self.connect(LINK, None);
    }

    /// Connects a client that subscribes from this cursor, or from now on.
    fn connect(&mut self, link: LinkId, seen: Option<Cursor>) {
        self.give(EDGE, Input::Connect { link, principal: ann() });
        let subscribe = SubscribeCommand {
            request_id: None,
            session: key("s").session,
            after_seq: seen.map(|at| at.seq),
            after_epoch: seen.map(|at| at.epoch),
            runs: Vec::new(),
            types: Vec::new(),
        };
        self.give(EDGE, Input::Command { link, command: LinkCommand::Subscribe(subscribe) });
    }

    /// Accepts another client's input through a third node.
    fn begin(&mut self, input: &Arc<Said>) {
        let Reply::Accepted(accepted) = self.model.apply(self.now, &accept(&key("s"), input)) else {
            panic!("it is not accepted");
        };
        let item = OfferedEntry::Input { position: accepted.position, prev: accepted.prev, input: Arc::clone(input) };
        let words = PeerMessage::Offer { key: key("s"), owner: accepted.owner, item };
        let turns = self.asked.len();
        self.give(OWNER, Input::Peer { from: NodeId(3), message: words });
        assert_eq!(self.asked.len(), turns + 1, "its turn begins");
    }

    /// Delivers the held answers, and holds later ones back or not.
    fn deliver_held(&mut self, is_slow: bool) {
        self.is_slow = is_slow;
        for answer in std::mem::take(&mut self.late) {
            self.give(EDGE, answer);
        }
    }

    /// Returns whether a client's subscription was confirmed at this position.
    fn is_subscribed_at(&self, seq: Seq) -> bool {
        let at = |note: &Notification| matches!(note, Notification::Reply(CommandReply::Subscribed { snapshot, .. }) if snapshot.seq == seq);
        self.shown.iter().any(at)
    }

    /// Returns whether the client received the start of a turn, and the turn's text.
    fn seen(&self, input: &Said) -> (bool, String) {
        let begins = |note: &Notification| {
            matches!(note, Notification::Fact { entry, .. }
            if matches!(entry.fact, Fact::Run(RunFact::Started { .. })) && entry.run_id.as_ref() == Some(&input.run_id))
        };
        let text = |note: &Notification| {
            let Notification::Chunk { chunk, .. } = note else { return None };
            (chunk.run_id == input.run_id).then(|| chunk.text.reveal().to_string())
        };
        (self.shown.iter().any(begins), self.shown.iter().filter_map(text).collect())
    }
}

/// Covers: G9.
#[test]
fn events_during_the_state_read_are_recovered_at_once() {
    let mut fleet = Fleet::new();
    fleet.is_slow = true;
    fleet.watch();
    // The first read checks access; the second reads the state after the store has registered this node.
    fleet.deliver_held(true);
    assert_eq!(fleet.late.len(), 1);
    let turn = input(&key("s"), "m2");
    fleet.begin(&turn);
    fleet.say("It begins");
    fleet.deliver_held(false);
    assert_eq!(fleet.seen(&turn), (true, "It begins".to_owned()));
}

/// Covers: G9.
#[test]
fn lost_chunk_is_requested_with_the_next_one() {
    let mut fleet = Fleet::new();
    fleet.watch();
    let turn = input(&key("s"), "m2");
    fleet.begin(&turn);
    fleet.say("It begins");
    fleet.lose = 1;
    fleet.say(" and");
    assert_eq!((fleet.lose, fleet.seen(&turn)), (0, (true, "It begins".to_owned())));
    fleet.say(" goes on");
    assert_eq!(fleet.seen(&turn), (true, "It begins and goes on".to_owned()));
}

/// Resubscribes with a cursor ahead of the node. The node reads the log, but the owner's message arrives
/// before the page: then the page contains nothing new and must still complete the subscription.
///
/// Covers: G9.
#[test]
fn resubscribe_ahead_of_a_stale_node_succeeds() {
    let mut fleet = Fleet::new();
    fleet.watch();
    fleet.is_far = true;
    // So many turns that the start of the log is only in a snapshot, and a node behind it cannot continue
    // from its own state.
    for n in 0..limits::SNAPSHOT_FACTS / 2 {
        fleet.begin(&input(&key("s"), &format!("t{n}")));
        fleet.report(vec![AgentEvent::Done { stop: StopReason::EndTurn, usage: None }]);
    }
    let Reply::View(view) = fleet.model.apply(fleet.now, &Op::ReadView { key: key("s") }) else { panic!("no view") };
    assert!(view.snapshot.is_some());
    fleet.connect(LinkId(2), Some(view.tail));
    assert!(!fleet.is_subscribed_at(view.tail.seq) && !fleet.pages.is_empty(), "it waits for the page");
    fleet.is_far = false;
    for words in std::mem::take(&mut fleet.words) {
        fleet.give(EDGE, Input::Peer { from: OWNER, message: words });
    }
    for page in std::mem::take(&mut fleet.pages) {
        fleet.give(EDGE, page);
    }
    assert!(fleet.is_subscribed_at(view.tail.seq));
}
