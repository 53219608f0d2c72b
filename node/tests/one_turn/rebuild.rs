//! A snapshot that this release cannot read: the state is rebuilt from the log, if the log still has all facts.
use crate::fixture::{Fixture, connected, key, say, session, subscribe};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{LinkId, Seq};
use turnway_core::limits::READ_FACTS_MAX;
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::Order;
use turnway_core::store::{Op, Reply, SnapshotWrite};
use turnway_node::switchboard::Input;
use turnway_wire::channel::command::LinkCommand;

/// A snapshot of version 200.
const LATER_SNAPSHOT: &[u8] = b"TWS\xc8 of a later release";

/// Returns another node on the store of a session that has one ended turn and an unreadable snapshot at its end.
fn node_beside_unreadable_snapshot(is_trimmed: bool) -> Fixture {
    node_after_turns(1, is_trimmed)
}

/// Returns another node on the store of a session that has ended turns and an unreadable snapshot at its end.
fn node_after_turns(turns: usize, is_trimmed: bool) -> Fixture {
    let mut first = Fixture::new();
    connected(&mut first, 1, "ann");
    for turn in 1..=turns {
        first.give(Input::Command { link: LinkId(1), command: say(&format!("m{turn}"), "hi") });
        first.answer(&["he", "llo"]);
        first.run(Duration::from_millis(100));
    }
    let slot = first.model.session(&key()).expect("the session");
    let token = slot.token;
    let at = slot.log_tail();
    let write = SnapshotWrite { key: key(), token, at, state: Arc::from(LATER_SNAPSHOT) };
    let mut ops = vec![Op::WriteSnapshot(Box::new(write))];
    if is_trimmed {
        ops.push(Op::Trim { key: key(), token, upto: at.seq });
    }
    for op in ops {
        assert_eq!(first.model.apply(first.now, &op), Reply::Done);
    }
    // The first node dies, and its lease ends.
    first.now.mono = first.now.mono + Duration::from_secs(10);
    first.now.store = first.now.store.after(Duration::from_secs(10));
    let mut second = Fixture::with(8, first.model, first.now);
    second.run(Duration::from_millis(1));
    connected(&mut second, 2, "ann");
    second
}

/// A link that asks for the session's state.
fn ask_state(node: &mut Fixture, link: u64) {
    let command = LinkCommand::GetSnapshot { request_id: None, session: session() };
    node.board.handle_input(node.now, Input::Command { link: LinkId(link), command });
    node.drain();
}

/// Answers the reads of snapshots, while the reads of the log wait.
fn answer_views(node: &mut Fixture) {
    let is_view = |input: &Input| matches!(input, Input::Stored { op: Op::ReadView { .. }, .. });
    while let Some(at) = node.inputs.iter().position(is_view) {
        let Some(view) = node.inputs.remove(at) else { return };
        node.board.handle_input(node.now, view);
        node.drain();
    }
}

/// Many clients ask for the state of a session whose log has several pages, while the node also claims it. A page that
/// every rebuild used to answer with a read of its own made the reads multiply, until the store did nothing else.
///
/// Covers: RX-3, S-17.
#[test]
fn waiting_rebuilds_of_a_session_share_one_reading_of_the_log() {
    let mut node = node_after_turns(120, false);
    let facts = node.model.session(&key()).expect("the session").log_tail().seq.0;
    let pages = usize::try_from(facts.div_ceil(u64::from(READ_FACTS_MAX))).expect("few");
    assert!(pages > 3, "{facts} facts");
    for link in 10..20 {
        connected(&mut node, link, "ann");
    }
    let before = node.pages_read;
    for link in 10..20 {
        ask_state(&mut node, link);
        answer_views(&mut node);
    }
    node.give(Input::Command { link: LinkId(2), command: say("more", "again") });
    node.run(Duration::from_secs(10));
    for link in 10..20 {
        assert_eq!(node.take_shown(link), [format!("opened {facts}")], "{link}");
    }
    assert_eq!(invoked(&node), 1, "the node owns the session");
    // One reading for those that came together, one for the owner, and one for the sender's subscription.
    let read = node.pages_read - before;
    assert!(read <= 3 * pages + 3, "{read} reads of {pages} pages");
}

fn invoked(node: &Fixture) -> usize {
    node.orders.iter().filter(|order| matches!(order, Order::Invoke(_))).count()
}

/// Covers: RX-3.
#[test]
fn unreadable_snapshot_is_rebuilt_from_the_log() {
    let mut node = node_beside_unreadable_snapshot(false);
    node.give(Input::Command { link: LinkId(2), command: subscribe(Some(0)) });
    let shown = node.take_shown(2);
    assert_eq!(shown.first().map(String::as_str), Some("subscribed 9 None"));
    assert!(shown.contains(&"9 run.done".to_owned()), "{shown:?}");
    // For a subscription, and for an owner.
    node.give(Input::Command { link: LinkId(2), command: say("m2", "again") });
    node.run(Duration::from_secs(10));
    assert_eq!(invoked(&node), 1, "{:?}", node.orders);
    node.answer(&["yes"]);
    node.run(Duration::from_millis(100));
    let shown = node.take_shown(2);
    assert!(shown.contains(&"10 user.message".to_owned()), "the turn follows the first one: {shown:?}");
    let stats = node.board.stats(node.now);
    assert!(stats.snapshots_unreadable >= 2 && stats.abandoned == 0, "{stats:?}");
}

/// The facts before the snapshot are gone, so only a release that reads it can own the session.
///
/// Covers: RX-3.
#[test]
fn unreadable_snapshot_of_a_trimmed_log_blocks_ownership() {
    let mut node = node_beside_unreadable_snapshot(true);
    node.give(Input::Command { link: LinkId(2), command: say("m2", "again") });
    node.run(Duration::from_secs(10));
    assert_eq!(invoked(&node), 0, "{:?}", node.orders);
    let stats = node.board.stats(node.now);
    assert!(stats.snapshots_unreadable > 0 && stats.abandoned > 0, "{stats:?}");
    assert_eq!(node.model.session(&key()).expect("the session").log_tail().seq, Seq(9), "nothing was written");
}
