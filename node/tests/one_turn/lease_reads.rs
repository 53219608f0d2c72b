//! Reads and writes of an account's value in the store while nobody serves the account.
use crate::conversations::{lobby, own_session};
use crate::fixture::Fixture;
use std::sync::Arc;
use turnway_core::id::{DeliveryId, NodeId};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::delivery::{DeliveryKind, DeliveryOrder};
use turnway_core::store::{Op, Reply};
use turnway_node::switchboard::{Input, Output};
use turnway_wire::peer::PeerMessage;

fn order(n: usize, bench: &Fixture) -> Input {
    let letter = |digit: usize| char::from(b'a' + u8::try_from(digit % 26).expect("a digit"));
    let name: String = (0..26).map(|place| if place < 2 { letter(n / 26_usize.pow(place)) } else { 'x' }).collect();
    let order = DeliveryOrder {
        key: own_session(),
        delivery_id: DeliveryId::parse(&name).expect("an id"),
        attempt: 1,
        part: 1,
        parts: 1,
        kind: DeliveryKind::Notice,
        conversation: lobby(),
        reply_to: None,
        text: Private("hello".to_owned()),
        buttons: None,
        change: None,
        requested_at: bench.now.store,
        deadline: bench.now.store.after(limits::DELIVERY_AGE_MAX),
        may_be_sent: false,
    };
    Input::Peer { from: NodeId(9), message: PeerMessage::Deliver { order: Arc::new(order) } }
}

/// Gives many orders for an account without an adapter; returns the reads that they lead to, and the refusals.
fn refuse_orders(bench: &mut Fixture) -> (Vec<Op>, usize) {
    let mut reads = Vec::new();
    let mut refused = 0;
    for n in 0..limits::ACCOUNT_ORDERS_SENT_MAX {
        let input = order(n, bench);
        bench.board.handle_input(bench.now, input);
        while let Some(output) = bench.board.poll_output() {
            match output {
                Output::Store(op @ Op::Get { .. }) => reads.push(op),
                Output::Publish { message: PeerMessage::NoAdapter { .. }, .. } => refused += 1,
                Output::Store(_)
                | Output::Publish { .. }
                | Output::Order(_)
                | Output::Tool(_)
                | Output::Notify { .. }
                | Output::Exit => {}
            }
        }
    }
    (reads, refused)
}

/// A node that is asked for an account which it does not serve, by each order of another node, reads the account's value
/// once at a time.
///
/// Covers: BR-37, G8.
#[test]
fn orders_without_an_adapter_lead_to_one_read_at_a_time() {
    let mut bench = Fixture::new();
    let (reads, refused) = refuse_orders(&mut bench);
    assert_eq!((reads.len(), refused), (1, limits::ACCOUNT_ORDERS_SENT_MAX));
    let absent = Ok(Reply::Value { version: 0, value: None });
    bench.give(Input::Stored { op: reads[0].clone(), result: absent });
    assert_eq!(refuse_orders(&mut bench).0.len(), 1, "the next read follows the answer");
}
