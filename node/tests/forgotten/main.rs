//! An owner whose store loses entries that it had acknowledged.
#[path = "../scene/scene.rs"]
mod scene;

use scene::{accept, ann, board, input};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{ControlId, InboxPosition, ListenStamp, NodeId, OwnershipSnapshot, RunId, SessionKey};
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::AgentPolicy;
use turnway_core::protocol::entry::{Fact, RunFact};
use turnway_core::protocol::input::{ControlEntry, ControlRequest};
use turnway_core::store::{Acceptance, ModelStore, Op, Reply};
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::switchboard::{Input, Output, Switchboard};
use turnway_wire::peer::{OfferedEntry, PeerMessage};

const ME: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);

/// One node and its store, which answers at once.
struct Pair {
    board: Switchboard,
    model: ModelStore,
    now: Now,
    /// Messages that the node sent to peers.
    sent: Vec<PeerMessage>,
    claims: usize,
    /// Sessions whose state the node has read.
    reads: Vec<SessionKey>,
}

fn key() -> SessionKey {
    scene::key("s1")
}

fn cancel(run_id: &RunId) -> Arc<ControlEntry> {
    let id = ControlId::parse(&format!("cancel:{run_id}")).expect("a name");
    let what = ControlRequest::Cancel { run_id: Some(run_id.clone()) };
    Arc::new(ControlEntry { id, user: ann().user, request_id: None, what })
}

impl Pair {
    fn new() -> Self {
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
        let board = board(ME, 7, AgentPolicy::default());
        let model = ModelStore::new(true);
        let mut pair = Self { board, model, now, sent: Vec::new(), claims: 0, reads: Vec::new() };
        pair.board.handle_timeout(now);
        pair.settle();
        pair
    }

    /// Handles outputs until there are none.
    fn settle(&mut self) {
        while let Some(output) = self.board.poll_output() {
            match output {
                Output::Store(op) => {
                    self.claims += usize::from(matches!(op, Op::Claim { .. }));
                    if let Op::ReadView { key } = &op {
                        self.reads.push(key.clone());
                    }
                    let result = Ok(self.model.apply(self.now, &op));
                    self.board.handle_input(self.now, Input::Stored { op, result });
                }
                Output::Publish { message: words, .. } => self.sent.push(words),
                Output::Order(_) | Output::Tool(_) | Output::Notify { .. } | Output::Exit => {}
            }
        }
    }

    fn handle_peer(&mut self, words: PeerMessage) {
        self.board.handle_input(self.now, Input::Peer { from: OTHER, message: words });
        self.settle();
    }

    fn apply(&mut self, op: &Op) -> Acceptance {
        let reply = self.model.apply(self.now, op);
        let Reply::Accepted(accepted) = reply else { panic!("{reply:?}") };
        accepted
    }

    fn offer(&mut self, accepted: &Acceptance, item: impl Fn(InboxPosition, InboxPosition) -> OfferedEntry) {
        let item = item(accepted.position, accepted.prev);
        self.handle_peer(PeerMessage::Offer { key: key(), owner: accepted.owner, item });
    }

    fn facts(&mut self) -> Vec<Fact> {
        let Reply::View(view) = self.model.apply(self.now, &Op::ReadView { key: key() }) else {
            panic!("no view");
        };
        view.facts.into_iter().map(|(_, entry)| entry.fact.clone()).collect()
    }
}

/// Sends a cancel before its input, lets the store lose both before the owner reads them, and resends both: a
/// missing entry does not count as ended, and the turn is cancelled.
///
/// Covers: ST-14, G3.
#[test]
fn entries_lost_by_the_store_are_not_taken_for_ended() {
    let mut pair = Pair::new();
    let first = input(&key(), "m1");
    let later = input(&key(), "m2");
    pair.apply(&accept(&key(), &first));
    pair.handle_peer(PeerMessage::HandOff { key: key(), released: OwnershipSnapshot::default() });
    assert!(pair.facts().iter().any(|fact| matches!(fact, Fact::Run(RunFact::Started { .. }))), "{:?}", pair.facts());
    let claims = pair.claims;

    let asked = cancel(&later.run_id);
    let op = Op::Control { key: key(), principal: ann(), control: Arc::clone(&asked), create: false };
    pair.apply(&accept(&key(), &later));
    let lost = pair.apply(&op);
    pair.model.rewind(2);
    pair.offer(&lost, |place, prev| OfferedEntry::Control { position: place, prev, control: Arc::clone(&asked) });
    let answered = |words: &PeerMessage| matches!(words, PeerMessage::ControlAnswered { .. });
    assert!(!pair.sent.iter().any(answered), "nobody is told that it is done: {:?}", pair.sent);
    assert_eq!(pair.claims, claims + 1, "it begins again from what the store has");

    let again = pair.apply(&accept(&key(), &later));
    pair.offer(&again, |place, prev| OfferedEntry::Input { position: place, prev, input: Arc::clone(&later) });
    let again = pair.apply(&op);
    pair.offer(&again, |place, prev| OfferedEntry::Control { position: place, prev, control: Arc::clone(&asked) });
    let cancelled =
        pair.facts().into_iter().filter(|fact| matches!(fact, Fact::Run(RunFact::Cancelled { .. }))).count();
    assert_eq!(cancelled, 1, "{:?}", pair.facts());
    assert!(pair.sent.iter().any(answered));
}

/// A node that takes another one for the owner follows what the store says or said: that other node looks there.
///
/// Covers: G9.
#[test]
fn subscription_at_a_node_without_the_session_reads_the_store() {
    let mut pair = Pair::new();
    pair.handle_peer(PeerMessage::Subscribed { key: key(), stamp: ListenStamp(1) });
    assert_eq!(pair.reads, [key()]);
}
