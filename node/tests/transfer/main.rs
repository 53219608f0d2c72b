//! Transfer of a session from a leaving node to another: the session has one owner at each moment, and some
//! node continues it whichever message is lost.
#[path = "../scene/scene.rs"]
mod scene;

use scene::{accept, board, input};
use std::collections::VecDeque;
use std::time::Duration;
use turnway_core::id::{Epoch, NodeId, OwnershipSnapshot, RunId, SessionKey};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::{AgentEvent, AgentPolicy, Order, StopReason};
use turnway_core::protocol::entry::{Fact, RunFact};
use turnway_core::store::{ModelStore, Reply};
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::switchboard::{Input, Output, Switchboard};
use turnway_wire::peer::PeerMessage;

/// Index of the leaving node; the other one stays.
const LEAVES: usize = 0;
const STAYS: usize = 1;

/// Message of the transfer that a test loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Nothing,
    Question,
    Answer,
    Word,
}

/// Two nodes on one store, which answers at once.
struct TwoNodes {
    boards: Vec<Switchboard>,
    model: ModelStore,
    now: Now,
    lost: Lost,
    words: VecDeque<(NodeId, NodeId, PeerMessage)>,
    /// Invoked runs, with the index of the invoking node.
    orders: Vec<(usize, RunId)>,
    ops: Vec<&'static str>,
    gone: bool,
}

fn key() -> SessionKey {
    scene::key("s1")
}

fn node(at: usize) -> NodeId {
    NodeId(at as u128 + 1)
}

impl TwoNodes {
    /// Starts one of two turns at the leaving node, with the other one queued there.
    fn with_two_turns(lost: Lost) -> Self {
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
        let words = VecDeque::new();
        let orders = Vec::new();
        let ops = Vec::new();
        let boards =
            vec![board(node(LEAVES), 1, AgentPolicy::default()), board(node(STAYS), 2, AgentPolicy::default())];
        let model = ModelStore::new(false);
        let mut two = Self { boards, model, now, lost, words, orders, ops, gone: false };
        two.wait(Duration::ZERO);
        for name in ["m1", "m2"] {
            let reply = two.model.apply(two.now, &accept(&key(), &input(&key(), name)));
            assert!(matches!(reply, Reply::Accepted(_)), "{reply:?}");
        }
        // The hand-off also makes the other node known.
        let adopt = PeerMessage::HandOff { key: key(), released: OwnershipSnapshot::default() };
        two.give(LEAVES, Input::Peer { from: node(STAYS), message: adopt });
        assert_eq!(two.orders.len(), 1, "one turn has begun");
        two.boards[LEAVES].handle_input(two.now, Input::Drain);
        two.settle();
        two
    }

    /// Ends the running turn.
    fn end_turn(&mut self) {
        let (_, run_id) = self.orders[0].clone();
        let epoch = self.model.session(&key()).expect("a session").token.epoch;
        let events = vec![AgentEvent::Done { stop: StopReason::EndTurn, usage: None }];
        self.give(LEAVES, Input::Agent { key: key(), run_id, attempt: 1, epoch, events });
    }

    fn give(&mut self, at: usize, input: Input) {
        self.boards[at].handle_input(self.now, input);
        self.settle();
    }

    /// Advances time for both nodes.
    fn wait(&mut self, time: Duration) {
        self.now = Now { mono: self.now.mono + time, store: self.now.store.after(time) };
        for board in &mut self.boards {
            board.handle_timeout(self.now);
        }
        self.settle();
    }

    /// Handles outputs and messages until there are none.
    fn settle(&mut self) {
        loop {
            let mut still = true;
            for at in [LEAVES, STAYS] {
                while let Some(output) = self.boards[at].poll_output() {
                    still = false;
                    self.perform(at, output);
                }
            }
            while let Some((from, to, words)) = self.words.pop_front() {
                still = false;
                let at = usize::from(to == node(STAYS));
                self.boards[at].handle_input(self.now, Input::Peer { from, message: words });
            }
            if still {
                return;
            }
        }
    }

    fn perform(&mut self, at: usize, output: Output) {
        match output {
            Output::Store(op) => {
                self.ops.push(op.name());
                let result = Ok(self.model.apply(self.now, &op));
                self.boards[at].handle_input(self.now, Input::Stored { op, result });
            }
            Output::Publish { to, message: words } => {
                let lost = match self.lost {
                    Lost::Nothing => false,
                    Lost::Question => matches!(words, PeerMessage::Reserve { .. }),
                    Lost::Answer => matches!(words, PeerMessage::Reserved { .. }),
                    Lost::Word => matches!(words, PeerMessage::HandOff { .. }),
                };
                if !lost {
                    self.words.push_back((node(at), to, words));
                }
            }
            Output::Order(Order::Invoke(invoke)) => self.orders.push((at, invoke.run_id.clone())),
            Output::Exit => self.gone = true,
            Output::Order(_) | Output::Tool(_) | Output::Notify { .. } => {}
        }
    }

    fn owner(&self) -> Option<NodeId> {
        self.model.session(&key()).and_then(|slot| slot.holder).map(|holder| holder.node)
    }

    /// Asserts that the second turn has started at the other node under a later epoch, and that the leaving
    /// node has left.
    fn assert_continued(&self, before: Epoch) {
        assert_eq!(self.orders.get(1..), Some(&[(STAYS, input(&key(), "m2").run_id.clone())][..]), "{:?}", self.ops);
        let slot = self.model.session(&key()).expect("a session");
        assert!(slot.token.epoch > before, "{:?}", slot.token);
        let ended = slot.log.iter().filter(|(_, entry)| matches!(entry.fact, Fact::Run(RunFact::Done { .. }))).count();
        assert_eq!((self.owner(), ended, self.gone), (Some(node(STAYS)), 1, true));
    }
}

/// Moves a session with queued work from owner to owner in one store operation.
///
/// Covers: G9, I9.
#[test]
fn queued_work_is_transferred_to_another_node() {
    let mut two = TwoNodes::with_two_turns(Lost::Nothing);
    assert_eq!(two.owner(), Some(node(LEAVES)), "its turn still runs");
    let before = two.model.session(&key()).expect("a session").token.epoch;
    two.end_turn();
    two.assert_continued(before);
    assert!(two.ops.contains(&"transfer") && !two.ops.contains(&"release"), "{:?}", two.ops);
    assert_eq!(two.boards[LEAVES].stats(two.now).transferred, 1);
}

/// Releases and offers the session when the reservation is not answered.
///
/// Covers: G9, I9.
#[test]
fn session_without_a_reservation_is_released() {
    for lost in [Lost::Question, Lost::Answer] {
        let mut two = TwoNodes::with_two_turns(lost);
        let before = two.model.session(&key()).expect("a session").token.epoch;
        two.end_turn();
        assert_eq!(two.owner(), Some(node(LEAVES)), "{lost:?}: it waits for an answer");
        two.wait(limits::RESERVE_TIMEOUT);
        // The node that reserved the session claims it as offered, as any other node could.
        two.assert_continued(before);
        assert!(two.ops.contains(&"release") && !two.ops.contains(&"transfer"), "{lost:?}: {:?}", two.ops);
    }
}

/// Loses the notice to the new owner, which then reads the ownership by itself.
///
/// Covers: G9, I9.
#[test]
fn reserving_node_discovers_its_ownership_without_notice() {
    let mut two = TwoNodes::with_two_turns(Lost::Word);
    let before = two.model.session(&key()).expect("a session").token.epoch;
    two.end_turn();
    assert_eq!((two.owner(), two.orders.len()), (Some(node(STAYS)), 1), "{:?}", two.ops);
    two.wait(limits::RESERVED_CHECK_INTERVAL);
    two.assert_continued(before);
}

/// Ignores an answer that arrives after the release, and one that names another node.
///
/// Covers: G1, I1.
#[test]
fn late_or_foreign_reservation_changes_nothing() {
    let mut two = TwoNodes::with_two_turns(Lost::Question);
    two.end_turn();
    let slot = two.model.session(&key()).expect("a session");
    let epoch = slot.token.epoch;
    let mut holder = slot.holder.expect("somebody");
    let nonce = slot.token.nonce;
    holder.node = NodeId(7);
    let other = PeerMessage::Reserved { key: key(), epoch, holder, nonce };
    two.give(LEAVES, Input::Peer { from: node(STAYS), message: other });
    assert_eq!(two.owner(), Some(node(LEAVES)), "nobody reserves for others");
    two.wait(limits::RESERVE_TIMEOUT);
    holder.node = node(STAYS);
    two.give(
        LEAVES,
        Input::Peer { from: node(STAYS), message: PeerMessage::Reserved { key: key(), epoch, holder, nonce } },
    );
    two.assert_continued(epoch);
    assert!(!two.ops.contains(&"transfer"), "{:?}", two.ops);
}
