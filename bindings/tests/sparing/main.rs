//! What need not be written, or said, by itself: it goes with what comes next.
#[path = "../scene/scene.rs"]
mod scene;

use scene::{accept, board, input};
use std::sync::Arc;
use std::time::Duration;
use turnway_bindings::peer::{Item, Words};
use turnway_bindings::switchboard::{Input, Output, Switchboard};
use turnway_core::id::{Epoch, Holder, Life, NodeId, Nonce, Seen, SessionKey, Stamp};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::{AgentEvent, AgentPolicy, Invoke, Order, StopReason};
use turnway_core::protocol::entry::Fact;
use turnway_core::protocol::input::{Input as Said, Strategy};
use turnway_core::protocol::steer::Steer;
use turnway_core::store::{Op, Reply, Shelf};
use turnway_core::time::{Millis, Mono, Now};

const OWNER: NodeId = NodeId(1);
const EDGE: NodeId = NodeId(2);

/// An owner and its store, which answers at once; somebody listens at the edge.
struct Owner {
    board: Switchboard,
    shelf: Shelf,
    now: Now,
    /// What it told the edge.
    told: Vec<Words>,
    /// What it asked its agent.
    asked: Vec<Invoke>,
    /// The facts of each append.
    appends: Vec<Vec<Fact>>,
    /// What it handed its agent on the way.
    steers: Vec<Steer>,
}

fn key() -> SessionKey {
    scene::key("s1")
}

impl Owner {
    /// Its first turn has begun, and somebody listens at the edge.
    fn with_a_turn() -> Self {
        let mut owner = Self::unfollowed();
        owner.listen();
        owner
    }

    /// Its first turn has begun, and nobody listens.
    fn unfollowed() -> Self {
        let mut owner = Self::new(AgentPolicy::default());
        owner.take(Seen::default());
        owner
    }

    /// It owns nothing, and there is a session with something in it.
    fn new(policy: AgentPolicy) -> Self {
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
        let (told, asked, appends, steers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (board, shelf) = (board(OWNER, 7, policy), Shelf::new(true));
        let mut owner = Self { board, shelf, now, told, asked, appends, steers };
        owner.wait(Duration::ZERO);
        let reply = owner.shelf.apply(now, &accept(&key(), &input(&key(), "m1")));
        assert!(matches!(reply, Reply::Accepted(_)), "{reply:?}");
        owner
    }

    /// It takes the session, and its first turn begins.
    fn take(&mut self, free: Seen) {
        self.give(Input::Peer { from: EDGE, words: Words::Adopt { key: key(), free } });
        assert_eq!(self.asked.len(), 1);
        self.appends.clear();
    }

    /// It was the edge's, with somebody there, until that died.
    fn heir() -> Self {
        let mut owner = Self::new(AgentPolicy::default());
        let holder = Holder { node: EDGE, life: Life(1) };
        let (expect, floor) = (Seen::default(), Epoch(0));
        let claim = Op::Claim { key: key(), holder, nonce: Nonce(1), expect, floor };
        let Reply::Claimed(claimed) = owner.shelf.apply(owner.now, &claim) else { panic!("not claimed") };
        owner.register_edge();
        owner.take(Seen { holder: Some(holder), epoch: claimed.token.epoch });
        owner
    }

    /// The store knows that somebody listens at the edge.
    fn register_edge(&mut self) {
        let reply = self.shelf.apply(self.now, &Op::Listen { key: key(), node: EDGE, stamp: Stamp(1) });
        assert!(matches!(reply, Reply::Listening { .. }), "{reply:?}");
    }

    /// Somebody listens at the edge.
    fn listen(&mut self) {
        self.register_edge();
        self.give(Input::Peer { from: EDGE, words: Words::Hello { key: key(), stamp: Stamp(1) } });
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

    /// Until it wants nothing more.
    fn settle(&mut self) {
        while let Some(output) = self.board.poll_output() {
            match output {
                Output::Store(op) => {
                    if let Op::Append(append) = &op {
                        self.appends.push(append.facts.iter().map(|entry| entry.fact.clone()).collect());
                    }
                    let result = Ok(self.shelf.apply(self.now, &op));
                    self.board.handle_input(self.now, Input::Stored { op, result });
                }
                Output::Publish { to, words } => {
                    assert_eq!(to, EDGE);
                    self.told.push(words);
                }
                Output::Order(Order::Invoke(invoke)) => self.asked.push(invoke),
                Output::Order(Order::Steer(steer)) => self.steers.push(*steer),
                Output::Order(_) | Output::Tool(_) | Output::Send { .. } | Output::Exit => {}
            }
        }
    }

    /// The agent of the last turn reports.
    fn report(&mut self, events: Vec<AgentEvent>) {
        let Invoke { key, run_id, attempt, epoch, .. } = self.asked.last().expect("a turn").clone();
        self.give(Input::Agent { key, run_id, attempt, epoch, events });
    }

    fn done(&mut self) {
        self.report(vec![AgentEvent::Done { stop: StopReason::EndTurn, usage: None }]);
    }

    /// The edge has accepted it, and rings.
    fn ring(&mut self, input: &Arc<Said>) {
        let Reply::Accepted(accepted) = self.shelf.apply(self.now, &accept(&key(), input)) else {
            panic!("it is not accepted");
        };
        let item = Item::Input { place: accepted.place, prev: accepted.prev, input: Arc::clone(input) };
        let words = Words::Bell { key: key(), owner: accepted.owner, item };
        self.give(Input::Peer { from: EDGE, words });
    }

    /// Since this was last asked: whether the edge was told that an input is taken, and that its turn has begun.
    fn told_of(&mut self, input: &Said) -> (bool, bool) {
        let told = std::mem::take(&mut self.told);
        let is_taken =
            |words: &Words| matches!(words, Words::Taken { run_id, .. } if *run_id == input.run_id);
        let begins = |words: &Words| {
            let Words::Facts { facts, .. } = words else { return false };
            facts.iter().any(|(_, entry)| {
                matches!(entry.fact, Fact::RunStarted { .. }) && entry.run_id.as_ref() == Some(&input.run_id)
            })
        };
        (told.iter().any(is_taken), told.iter().any(begins))
    }
}

fn is_receipt(fact: &Fact) -> bool {
    matches!(fact, Fact::AgentInvokeStarted { .. })
}

/// Covers: SR-A11.
#[test]
fn a_receipt_is_written_with_the_end_of_a_short_turn() {
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
fn a_receipt_waits_no_longer_than_a_moment() {
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
fn a_receipt_of_a_turn_that_nobody_follows_waits_as_long_as_text() {
    let mut owner = Owner::unfollowed();
    owner.report(vec![AgentEvent::Acked]);
    owner.wait(limits::FACT_WAIT_UNFOLLOWED - Duration::from_millis(1));
    assert!(owner.appends.is_empty(), "{:?}", owner.appends);
    owner.wait(Duration::from_millis(1));
    let [facts] = &owner.appends[..] else { panic!("one append: {:?}", owner.appends) };
    assert!(facts.iter().all(is_receipt), "{facts:?}");
}

/// What steers a turn goes out when it is known to have begun.
///
/// Covers: SR-A11, ST-7.
#[test]
fn a_receipt_that_something_waits_for_is_written_soon() {
    let mut owner = Owner::new(AgentPolicy { steer: true, ..AgentPolicy::default() });
    owner.take(Seen::default());
    let more = Said { strategy: Strategy::Steer, ..(*input(&key(), "m2")).clone() };
    owner.ring(&Arc::new(more));
    assert!(owner.steers.is_empty(), "it is not known to have begun");
    owner.report(vec![AgentEvent::Acked]);
    owner.wait(limits::FACT_WAIT);
    let [steer] = &owner.steers[..] else { panic!("one: {:?}", owner.steers) };
    assert_eq!(steer.message_id.as_str(), "m2");
}

/// Who had the session is among those who listen, and most likely dead.
///
/// Covers: SR-A11.
#[test]
fn a_receipt_does_not_hurry_for_the_node_that_had_the_session() {
    let mut owner = Owner::heir();
    owner.report(vec![AgentEvent::Acked]);
    owner.wait(limits::FACT_WAIT_UNFOLLOWED - Duration::from_millis(1));
    assert!(owner.appends.is_empty(), "{:?}", owner.appends);
    // It has only slept.
    owner.give(Input::Peer { from: EDGE, words: Words::Hello { key: key(), stamp: Stamp(2) } });
    owner.wait(Duration::from_millis(1));
    assert_eq!(owner.appends.len(), 1);
}

/// Covers: SR-A11.
#[test]
fn a_receipt_is_written_soon_for_who_comes_later() {
    let mut owner = Owner::unfollowed();
    owner.report(vec![AgentEvent::Acked]);
    owner.wait(limits::FACT_WAIT_UNFOLLOWED / 2);
    owner.listen();
    owner.wait(limits::FACT_WAIT);
    let [facts] = &owner.appends[..] else { panic!("one append: {:?}", owner.appends) };
    assert!(facts.iter().all(is_receipt), "{facts:?}");
}

/// Covers: SR-A11, G-14.
#[test]
fn a_node_that_leaves_writes_at_once_what_could_wait() {
    let mut owner = Owner::unfollowed();
    owner.report(vec![AgentEvent::Acked]);
    owner.give(Input::Drain);
    let [facts] = &owner.appends[..] else { panic!("one append: {:?}", owner.appends) };
    assert!(facts.iter().all(is_receipt), "{facts:?}");
}

/// Covers: G9.
#[test]
fn a_turn_that_begins_at_once_needs_no_other_word_that_it_is_taken() {
    let mut owner = Owner::with_a_turn();
    owner.done();
    let (next, later) = (input(&key(), "m2"), input(&key(), "m3"));
    owner.told.clear();
    owner.ring(&next);
    assert_eq!(owner.told_of(&next), (false, true));
    // That fact may be lost: then it is rung again.
    owner.ring(&next);
    assert_eq!(owner.told_of(&next), (true, false));
    owner.ring(&later);
    assert_eq!(owner.told_of(&later), (true, false), "it waits for its turn");
    owner.done();
    assert_eq!(owner.told_of(&later), (false, true));
}
