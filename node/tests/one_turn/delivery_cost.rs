//! The cost of a delivery at the owner of its session, in writes to the log, beside the same turn of a client.
use crate::conversations::{ADAPTER, lobby, send_message, serve_with};
use crate::fixture::{Fixture, connected, say};
use std::time::Duration;
use turnway_core::id::{DeliveryId, LinkId, MessageId, TenantId};
use turnway_node::switchboard::Input;
use turnway_wire::channel::adapter::{AdapterCapabilities, AdapterOutcome, DeliveredCommand};
use turnway_wire::channel::command::LinkCommand;

const CLIENT: LinkId = LinkId(9);

/// Returns the number of writes to logs so far.
fn appends(bench: &Fixture) -> u64 {
    bench.board.stats(bench.now).append_durations.count()
}

/// Answers the open turn, and lets everything that follows happen.
fn answer(bench: &mut Fixture) {
    bench.answer(&["hi"]);
    bench.run(Duration::from_secs(1));
}

/// Has the adapter report that the platform has the answer of the last turn.
fn confirm(bench: &mut Fixture) {
    let run_id = bench.invokes().next_back().expect("a turn").run_id.clone();
    let names = ["rooms", "main", "lobby"];
    let delivery_id = DeliveryId::derive(&TenantId::default_tenant(), &run_id, "final", &names);
    let external_id = MessageId::parse("x1").expect("a name");
    let outcome = AdapterOutcome::Sent { external_id, place: lobby() };
    let delivered = Box::new(DeliveredCommand { delivery_id, part: 1, outcome });
    bench.give(Input::Command { link: ADAPTER, command: LinkCommand::Delivered(delivered) });
    bench.run(Duration::from_secs(1));
}

/// The request of a delivery is written with the end of its turn, and its receipt by itself: one write more than the same
/// turn of a client.
///
/// Covers: BR-07.
#[test]
fn delivery_of_one_part_costs_one_write_more() {
    let mut bench = Fixture::new();
    serve_with(&mut bench, AdapterCapabilities::default());
    connected(&mut bench, CLIENT.0, "ann");
    // The first turn of each session opens it.
    bench.give(Input::Command { link: CLIENT, command: say("w1", "hi") });
    answer(&mut bench);
    send_message(&mut bench, "m1");
    answer(&mut bench);
    confirm(&mut bench);
    let before = appends(&bench);
    bench.give(Input::Command { link: CLIENT, command: say("w2", "hi") });
    bench.run(Duration::from_millis(100));
    answer(&mut bench);
    let of_client = appends(&bench) - before;
    send_message(&mut bench, "m2");
    answer(&mut bench);
    let requested = appends(&bench) - before - of_client;
    assert!(bench.take_shown(ADAPTER.0).iter().any(|line| line == "deliver 1 hi"));
    confirm(&mut bench);
    let of_conversation = appends(&bench) - before - of_client;
    assert_eq!(requested, of_client, "the request rides with the end of the turn");
    assert_eq!(of_conversation, of_client + 1, "the receipt");
}
