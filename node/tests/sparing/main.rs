//! Facts and messages that need no write or message of their own and are combined with the next.
#[path = "../scene/scene.rs"]
mod scene;

use scene::{accept, board, input};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{Epoch, Holder, LeaseId, ListenStamp, NodeId, Nonce, OwnershipSnapshot, SessionKey};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::{AgentEvent, AgentPolicy, Invoke, Order, StopReason};
use turnway_core::protocol::entry::{Fact, RunFact};
use turnway_core::protocol::input::{Input as Said, Strategy};
use turnway_core::protocol::steer::Steer;
use turnway_core::store::{ModelStore, Op, Reply};
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::switchboard::{Input, Output, Switchboard};
use turnway_wire::peer::{OfferedEntry, PeerMessage};

const OWNER: NodeId = NodeId(1);
const EDGE: NodeId = NodeId(2);

/// An owner and its store, which answers at once, with a subscriber at the edge node.
struct Owner {
    board: Switchboard,
    model: ModelStore,
    now: Now,
    /// Messages sent to the edge node.
    sent: Vec<PeerMessage>,
    /// Invocations of the agent.
    asked: Vec<Invoke>,
    /// The facts of each append.
    appends: Vec<Vec<Fact>>,
    /// Steers sent to the agent.
    steers: Vec<Steer>,
}

fn key() -> SessionKey {
    scene::key("s1")
}

impl Owner {
    /// Creates an owner with a started turn and a subscriber.
    fn with_a_turn() -> Self {
        let mut owner = Self::unfollowed();
        owner.listen();
        owner
    }

    /// Creates an owner with a started turn and no subscriber.
    fn unfollowed() -> Self {
        let mut owner = Self::new(AgentPolicy::default());
        owner.take(OwnershipSnapshot::default());
        owner
    }

    /// Creates a node that owns nothing, and a session with one input.
    fn new(policy: AgentPolicy) -> Self {
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
        let told = Vec::new();
        let asked = Vec::new();
        let appends = Vec::new();
        let steers = Vec::new();
        let board = board(OWNER, 7, policy);
        let model = ModelStore::new(true);
        let mut owner = Self { board, model, now, sent: told, asked, appends, steers };
        owner.wait(Duration::ZERO);
        let reply = owner.model.apply(now, &accept(&key(), &input(&key(), "m1")));
        assert!(matches!(reply, Reply::Accepted(_)), "{reply:?}");
        owner
    }

    /// Lets the node claim the session and start its first turn.
    fn take(&mut self, free: OwnershipSnapshot) {
        self.give(Input::Peer { from: EDGE, message: PeerMessage::HandOff { key: key(), released: free } });
        assert_eq!(self.asked.len(), 1);
        self.appends.clear();
    }

    /// Creates an owner that took the session over from the edge node, which had a subscriber and died.
    fn successor() -> Self {
        let mut owner = Self::new(AgentPolicy::default());
        let holder = Holder { node: EDGE, life: LeaseId(1) };
        let expect = OwnershipSnapshot::default();
        let floor = Epoch(0);
        let claim = Op::Claim { key: key(), holder, nonce: Nonce(1), expect, floor };
        let Reply::Claimed(claimed) = owner.model.apply(owner.now, &claim) else { panic!("not claimed") };
        owner.register_edge();
        owner.take(OwnershipSnapshot { holder: Some(holder), epoch: claimed.token.epoch });
        owner
    }

    /// Registers the edge node as a subscriber in the store.
    fn register_edge(&mut self) {
        let reply = self.model.apply(self.now, &Op::Listen { key: key(), node: EDGE, stamp: ListenStamp(1) });
        assert!(matches!(reply, Reply::Listening { .. }), "{reply:?}");
    }

    /// Subscribes the edge node.
    fn listen(&mut self) {
        self.register_edge();
        self.give(Input::Peer { from: EDGE, message: PeerMessage::Subscribed { key: key(), stamp: ListenStamp(1) } });
    }

    fn give(&mut self, input: Input) {
        self.board.handle_input(self.now, input);
        self.settle();
    }

    fn wait(&mut self, time: Duration) {
        self.now = Now { mono: self.now.mono + time, store: self.now.store.after(time) };
        self.board.handle_timeout(self.now);
        self.settle();
    }

    /// Handles outputs until there are none.
    fn settle(&mut self) {
        while let Some(output) = self.board.poll_output() {
            match output {
                Output::Store(op) => {
                    if let Op::Append(append) = &op {
                        self.appends.push(append.facts.iter().map(|entry| entry.fact.clone()).collect());
                    }
                    let result = Ok(self.model.apply(self.now, &op));
                    self.board.handle_input(self.now, Input::Stored { op, result });
                }
                Output::Publish { to, message: words } => {
                    assert_eq!(to, EDGE);
                    self.sent.push(words);
                }
                Output::Order(Order::Invoke(invoke)) => self.asked.push(invoke),
                Output::Order(Order::Steer(steer)) => self.steers.push(*steer),
                Output::Order(_) | Output::Tool(_) | Output::Notify { .. } | Output::Exit => {}
            }
        }
    }

    /// Reports events of the last turn's agent.
    fn report(&mut self, events: Vec<AgentEvent>) {
        let Invoke { key, run_id, attempt, epoch, .. } = self.asked.last().expect("a turn").clone();
        self.give(Input::Agent { key, run_id, attempt, epoch, events });
    }

    fn done(&mut self) {
        self.report(vec![AgentEvent::Done { stop: StopReason::EndTurn, usage: None }]);
    }

    /// Accepts an input at the edge node and offers it to the owner.
    fn offer(&mut self, input: &Arc<Said>) {
        let Reply::Accepted(accepted) = self.model.apply(self.now, &accept(&key(), input)) else {
            panic!("it is not accepted");
        };
        let item = OfferedEntry::Input { position: accepted.position, prev: accepted.prev, input: Arc::clone(input) };
        let words = PeerMessage::Offer { key: key(), owner: accepted.owner, item };
        self.give(Input::Peer { from: EDGE, message: words });
    }

    /// Returns whether, since the last call, the edge node was told that an input is taken, and that its turn
    /// has begun.
    fn take_notices(&mut self, input: &Said) -> (bool, bool) {
        let told = std::mem::take(&mut self.sent);
        let is_taken =
            |words: &PeerMessage| matches!(words, PeerMessage::InputAccepted { run_id, .. } if *run_id == input.run_id);
        let begins = |words: &PeerMessage| {
            let PeerMessage::Facts { facts, .. } = words else { return false };
            facts.iter().any(|(_, entry)| {
                matches!(entry.fact, Fact::Run(RunFact::Started { .. })) && entry.run_id.as_ref() == Some(&input.run_id)
            })
        };
        (told.iter().any(is_taken), told.iter().any(begins))
    }
}

fn is_receipt(fact: &Fact) -> bool {
    matches!(fact, Fact::Run(RunFact::AgentStarted { .. }))
}

/// Covers: SR-A11.
#[test]
fn acknowledgement_is_written_with_the_end_of_a_short_turn() {
    let mut owner = Owner::with_a_turn();
    owner.report(vec![AgentEvent::Acked]);
    assert!(owner.appends.is_empty(), "{:?}", owner.appends);
    owner.done();
    let [facts] = &owner.appends[..] else { panic!("one append: {:?}", owner.appends) };
    assert!(is_receipt(&facts[0]) && facts.last().is_some_and(Fact::is_terminal), "{facts:?}");
    owner.wait(limits::FACT_WAIT);
    assert_eq!(owner.appends.len(), 1, "nothing is left of it");
}

/// Covers: SR-A11.
#[test]
fn acknowledgement_is_written_after_the_maximum_wait() {
    let mut owner = Owner::with_a_turn();
    owner.report(vec![AgentEvent::Acked]);
    owner.wait(limits::FACT_WAIT - Duration::from_millis(1));
    assert!(owner.appends.is_empty(), "{:?}", owner.appends);
    owner.wait(Duration::from_millis(1));
    let [facts] = &owner.appends[..] else { panic!("one append: {:?}", owner.appends) };
    assert!(facts.iter().all(is_receipt), "{facts:?}");
    owner.done();
    assert_eq!(owner.appends.len(), 2);
}

/// Covers: SR-A11.
#[test]
fn acknowledgement_without_subscribers_waits_longer() {
    let mut owner = Owner::unfollowed();
    owner.report(vec![AgentEvent::Acked]);
    owner.wait(limits::FACT_WAIT_UNSUBSCRIBED - Duration::from_millis(1));
    assert!(owner.appends.is_empty(), "{:?}", owner.appends);
    owner.wait(Duration::from_millis(1));
    let [facts] = &owner.appends[..] else { panic!("one append: {:?}", owner.appends) };
    assert!(facts.iter().all(is_receipt), "{facts:?}");
}

/// Writes the acknowledgement soon when a steer waits for it: a steer is sent once the turn is known to have
/// begun.
///
/// Covers: SR-A11, ST-7.
#[test]
fn acknowledgement_that_a_steer_needs_is_written_soon() {
    let mut owner = Owner::new(AgentPolicy { steer: true, ..AgentPolicy::default() });
    owner.take(OwnershipSnapshot::default());
    let more = Said { strategy: Strategy::Steer, ..(*input(&key(), "m2")).clone() };
    owner.offer(&Arc::new(more));
    assert!(owner.steers.is_empty(), "it is not known to have begun");
    owner.report(vec![AgentEvent::Acked]);
    owner.wait(limits::FACT_WAIT);
    let [steer] = &owner.steers[..] else { panic!("one: {:?}", owner.steers) };
    assert_eq!(steer.message_id.as_str(), "m2");
}

/// Does not count the previous owner, most likely dead, as a subscriber to hurry for.
///
/// Covers: SR-A11.
#[test]
fn acknowledgement_does_not_hurry_for_the_previous_owner() {
    let mut owner = Owner::successor();
    owner.report(vec![AgentEvent::Acked]);
    owner.wait(limits::FACT_WAIT_UNSUBSCRIBED - Duration::from_millis(1));
    assert!(owner.appends.is_empty(), "{:?}", owner.appends);
    // The previous owner was only suspended.
    owner.give(Input::Peer { from: EDGE, message: PeerMessage::Subscribed { key: key(), stamp: ListenStamp(2) } });
    owner.wait(Duration::from_millis(1));
    assert_eq!(owner.appends.len(), 1);
}

/// Covers: SR-A11.
#[test]
fn acknowledgement_is_written_soon_for_a_new_subscriber() {
    let mut owner = Owner::unfollowed();
    owner.report(vec![AgentEvent::Acked]);
    owner.wait(limits::FACT_WAIT_UNSUBSCRIBED / 2);
    owner.listen();
    owner.wait(limits::FACT_WAIT);
    let [facts] = &owner.appends[..] else { panic!("one append: {:?}", owner.appends) };
    assert!(facts.iter().all(is_receipt), "{facts:?}");
}

/// Covers: SR-A11, G-14.
#[test]
fn draining_node_writes_pending_facts_at_once() {
    let mut owner = Owner::unfollowed();
    owner.report(vec![AgentEvent::Acked]);
    owner.give(Input::Drain);
    let [facts] = &owner.appends[..] else { panic!("one append: {:?}", owner.appends) };
    assert!(facts.iter().all(is_receipt), "{facts:?}");
}

/// Covers: G9.
#[test]
fn turn_that_starts_at_once_needs_no_taken_message() {
    let mut owner = Owner::with_a_turn();
    owner.done();
    let next = input(&key(), "m2");
    let later = input(&key(), "m3");
    owner.sent.clear();
    owner.offer(&next);
    assert_eq!(owner.take_notices(&next), (false, true));
    // The fact may be lost; then the input is offered again.
    owner.offer(&next);
    assert_eq!(owner.take_notices(&next), (true, false));
    owner.offer(&later);
    assert_eq!(owner.take_notices(&later), (true, false), "it waits for its turn");
    owner.done();
    assert_eq!(owner.take_notices(&later), (false, true));
}
