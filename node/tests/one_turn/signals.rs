//! Typing signals and previews of turns that came from a conversation, in simulated time.
use crate::conversations::{ADAPTER, lobby, own_session, send_message, serve_with};
use crate::fixture::{Fixture, connected, say};
use std::collections::BTreeMap;
use std::time::Duration;
use turnway_core::id::{LinkId, MessageId, NodeId};
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, StopReason, TextKind};
use turnway_core::protocol::entry::{DeliveryFact, Fact};
use turnway_core::protocol::input::ControlRequest;
use turnway_core::protocol::signal::{ConversationSignal, Preview, SignalKind, preview_id};
use turnway_core::store::ModelStore;
use turnway_node::switchboard::Input;
use turnway_wire::channel::adapter::{AdapterCapabilities, AdapterOutcome, Capability, DeliveredCommand};
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::peer::PeerMessage;

const SECOND: Duration = Duration::from_secs(1);
/// A text that is long enough for a preview at once.
const LINE: &str = "A line of an answer that is as long as the first preview of an answer has to be, or longer.";

fn able(levels: &[(&str, i8)]) -> AdapterCapabilities {
    let level = |level| Capability { level, max: None, unit: None };
    AdapterCapabilities(BTreeMap::from_iter(levels.iter().map(|(name, it)| ((*name).to_owned(), level(*it)))))
}

/// Connects an adapter with these capabilities, and begins a turn.
fn begun(levels: &[(&str, i8)]) -> Fixture {
    let mut bench = Fixture::new();
    serve_with(&mut bench, able(levels));
    bench.run(Duration::from_millis(100));
    bench.take_shown(ADAPTER.0);
    send_message(&mut bench, "m1");
    bench.report(AgentEvent::Acked);
    bench
}

fn write(bench: &mut Fixture, text: &str) {
    bench.report(AgentEvent::Delta { kind: TextKind::Text, text: Private(text.to_owned()), id: None });
}

fn finish(bench: &mut Fixture) {
    bench.report(AgentEvent::Done { stop: StopReason::EndTurn, usage: None });
    bench.run(Duration::from_millis(200));
}

/// Returns the signals and parts that the adapter was given since the last look.
fn given(bench: &mut Fixture) -> Vec<String> {
    let mut shown = bench.take_shown(ADAPTER.0);
    shown.retain(|line| ["typing", "preview", "remove", "deliver"].iter().any(|kind| line.starts_with(kind)));
    shown
}

/// Reports the outcome of the only part that is on its way.
fn report_part(bench: &mut Fixture, outcome: AdapterOutcome) {
    let session = bench.model.session(&own_session()).expect("the session");
    let requested = session.log.iter().rev().find_map(|(_, entry)| {
        let Fact::Delivery(DeliveryFact::Requested(requested)) = &entry.fact else { return None };
        Some(requested.delivery_id.clone())
    });
    let delivery_id = requested.expect("a delivery");
    let delivered = Box::new(DeliveredCommand { delivery_id, part: 1, outcome });
    bench.give(Input::Command { link: ADAPTER, command: LinkCommand::Delivered(delivered) });
    bench.run(Duration::from_millis(200));
}

fn sent() -> AdapterOutcome {
    AdapterOutcome::Sent { external_id: MessageId::parse("x1").expect("a name"), place: lobby() }
}

/// Covers: BD-T4, BR-36.
#[test]
fn typing_lasts_as_long_as_the_turn_and_is_repeated() {
    let mut bench = begun(&[("typing", 1)]);
    bench.run(SECOND);
    assert_eq!(given(&mut bench), ["typing true"]);
    bench.run(limits::TYPING_REPEAT * 2 + SECOND);
    assert_eq!(given(&mut bench), ["typing true"; 2]);
    write(&mut bench, LINE);
    finish(&mut bench);
    assert_eq!(given(&mut bench), ["typing false".to_owned(), format!("deliver 1 {LINE}")]);
    bench.run(limits::TYPING_REPEAT * 3);
    assert_eq!(given(&mut bench), [""; 0], "nothing while the answer is on its way");
    report_part(&mut bench, sent());
    assert_eq!(given(&mut bench), [""; 0], "there was no preview");
}

/// Covers: BD-T4, BR-36.
#[test]
fn previews_are_paced_and_removed_after_the_receipt() {
    let mut bench = begun(&[("preview", 1)]);
    write(&mut bench, "short");
    bench.run(limits::PREVIEW_FIRST_WAIT / 2);
    assert_eq!(given(&mut bench), [""; 0], "a short beginning waits");
    write(&mut bench, LINE);
    bench.run(Duration::from_millis(100));
    assert_eq!(given(&mut bench), [format!("preview short{LINE}")]);
    for n in 0..30 {
        write(&mut bench, &format!(" {n}"));
        bench.run(Duration::from_millis(100));
    }
    let previews = given(&mut bench).len();
    assert!((2..=3).contains(&previews), "{previews} previews in 3 s");
    finish(&mut bench);
    let end = given(&mut bench);
    assert!(matches!(&end[..], [only] if only.starts_with("deliver 1 short")), "{end:?}");
    bench.run(SECOND * 5);
    assert_eq!(given(&mut bench), [""; 0], "no preview follows the answer, and its preview stays until the receipt");
    report_part(&mut bench, sent());
    assert_eq!(given(&mut bench), ["remove preview"]);
}

/// Covers: BD-T4.
#[test]
fn short_beginning_is_shown_after_a_while_and_a_full_one_once() {
    let mut bench = begun(&[("preview", 1)]);
    write(&mut bench, "short `code");
    bench.run(limits::PREVIEW_FIRST_WAIT + SECOND);
    assert_eq!(given(&mut bench), ["preview short `code`"]);
    write(&mut bench, &" word".repeat(500));
    bench.run(SECOND * 3);
    let full = given(&mut bench);
    assert_eq!(full.len(), 1, "{full:?}");
    write(&mut bench, &" word".repeat(500));
    bench.run(SECOND * 3);
    assert_eq!(given(&mut bench), [""; 0], "more text would look the same");
}

/// Covers: BD-T4.
#[test]
fn preview_of_a_turn_without_an_answer_is_removed() {
    let mut bench = begun(&[("preview", 1), ("typing", 1)]);
    write(&mut bench, LINE);
    bench.run(SECOND);
    assert_eq!(given(&mut bench), ["typing true".to_owned(), format!("preview {LINE}")]);
    let request = ControlRequest::Cancel { run_id: None };
    let command = LinkCommand::Control { request_id: None, session: own_session().session, request };
    bench.give(Input::Command { link: ADAPTER, command });
    bench.report(AgentEvent::CancelAcked);
    bench.run(SECOND);
    assert_eq!(given(&mut bench), ["typing false", "remove preview"]);
}

/// Covers: BD-T4.
#[test]
fn preview_stays_if_the_answer_is_never_sent() {
    let mut bench = begun(&[("preview", 1)]);
    write(&mut bench, LINE);
    bench.run(SECOND);
    finish(&mut bench);
    assert_eq!(given(&mut bench).len(), 2);
    report_part(&mut bench, AdapterOutcome::Unknown);
    bench.run(SECOND * 5);
    assert_eq!(given(&mut bench), [""; 0], "the delivery is held, and the preview is all that people have");
}

/// Covers: BR-36.
#[test]
fn undeclared_signals_are_not_sent() {
    let mut bench = begun(&[("typing", 0), ("preview", -1)]);
    write(&mut bench, LINE);
    bench.run(SECOND * 10);
    assert_eq!(given(&mut bench), [""; 0]);
    finish(&mut bench);
    assert_eq!(given(&mut bench), [format!("deliver 1 {LINE}")]);
    report_part(&mut bench, sent());
    assert_eq!(given(&mut bench), [""; 0]);
}

/// A turn of a plain client is shown to no conversation.
#[test]
fn turns_of_clients_send_no_signals() {
    let mut bench = Fixture::new();
    serve_with(&mut bench, able(&[("typing", 1), ("preview", 1)]));
    connected(&mut bench, 2, "ann");
    bench.give(Input::Command { link: LinkId(2), command: say("m1", "hi") });
    bench.answer(&[LINE]);
    bench.run(SECOND * 10);
    assert_eq!(given(&mut bench), [""; 0]);
}

/// A message between nodes that is late: the answer was given to the adapter before.
///
/// Covers: BD-T4.
#[test]
fn preview_that_comes_after_the_answer_is_dropped() {
    let mut bench = begun(&[("preview", 1)]);
    let late = |text: &str, bench: &Fixture| {
        let key = own_session();
        let reply_to = MessageId::parse("m1").expect("a name");
        let preview_id = preview_id(&key, &lobby(), &reply_to);
        let deadline = bench.now.store.after(limits::PREVIEW_AGE_MAX);
        let preview = Preview { preview_id, reply_to, text: Private(text.to_owned()), deadline };
        let kind = SignalKind::Preview(Box::new(preview));
        let signal = ConversationSignal { key, conversation: lobby(), kind };
        Input::Peer { from: NodeId(9), message: PeerMessage::Signal { signal: signal.into() } }
    };
    let early = late("early", &bench);
    bench.give(early);
    assert_eq!(given(&mut bench), ["preview early"]);
    write(&mut bench, LINE);
    finish(&mut bench);
    given(&mut bench);
    let again = late("late", &bench);
    bench.give(again);
    assert_eq!(given(&mut bench), [""; 0]);
}

/// The next owner does not know whether there is a preview, so it has it removed.
///
/// Covers: BD-T4.
#[test]
fn new_owner_removes_the_preview_of_the_one_before() {
    let mut bench = begun(&[("preview", 1)]);
    write(&mut bench, LINE);
    finish(&mut bench);
    bench.run(SECOND * 2);
    let now = turnway_core::time::Now { store: bench.now.store.after(SECOND * 60), ..bench.now };
    let model = std::mem::replace(&mut bench.model, ModelStore::new(false));
    let mut next = Fixture::with(8, model, now);
    serve_with(&mut next, able(&[("preview", 1), ("key", 1)]));
    next.run(SECOND * 30);
    let orders = given(&mut next);
    assert!(matches!(&orders[..], [only] if only.starts_with("deliver 1")), "{orders:?}");
    report_part(&mut next, sent());
    assert_eq!(given(&mut next), ["remove preview"]);
}
