//! One node, its store and an agent in one call stack, without faults.
mod conversations;
mod delivery_cost;
mod fixture;
mod lease_reads;
mod rebuild;
mod signals;
mod stats;

use fixture::{Fixture, connected, key, say, session, subscribe, user};
use std::time::Duration;
use turnway_core::id::{BlobHash, LinkId, Principal, SessionId, TenantId};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, Order, StopReason, TextKind};
use turnway_core::protocol::entry::{FACT_LEVEL, LOWEST_FACT_LEVEL};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::ControlRequest;
use turnway_core::protocol::json::Json;
use turnway_core::store::StoreError;
use turnway_node::switchboard::{Input, Output};
use turnway_wire::channel::command::{CancelTarget, LinkCommand};

/// Covers: SR-S1, SR-S14, MP-B10, EV-A3, ST-4, ST-5, MP-A4, MP-A11, MP-B2, MP-B11, MP-F2, SR-S3, SR-A1, SR-A5,
/// SR-A6, SR-A11, SR-G4, SR-G7, MP-F1, MP-F3, LN-EV15, LN-EV19, RX-22.
#[test]
fn turn_is_accepted_answered_and_released() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    bench.answer(&["he", "llo"]);
    bench.run(Duration::from_millis(100));
    let expected = [
        "accepted false",
        "2 user.message",
        "3 turn.admitted",
        "4 run.started",
        "5 agent.invoke.started",
        "delta 0 he",
        "delta 2 llo",
        "9 run.done",
    ];
    let seen: Vec<String> = bench.take_shown(1);
    assert_eq!(seen, expected);
    // Another link of the same user receives the same from the beginning, including text.
    connected(&mut bench, 2, "ann");
    bench.give(Input::Command { link: LinkId(2), command: subscribe(Some(0)) });
    let seen = bench.take_shown(2);
    assert_eq!(seen.first().map(String::as_str), Some("subscribed 9 None"));
    assert!(seen.contains(&"delta 0 he".to_owned()) && seen.contains(&"delta 2 llo".to_owned()), "{seen:?}");
    // Another user is answered as for an unknown session.
    connected(&mut bench, 3, "bob");
    bench.give(Input::Command { link: LinkId(3), command: subscribe(Some(0)) });
    bench.give(Input::Command { link: LinkId(3), command: say("m1", "hi") });
    assert_eq!(bench.take_shown(3), ["refused not_found", "refused not_found"]);
    // The same message again is the same turn.
    bench.give(Input::Command { link: LinkId(2), command: say("m1", "hi") });
    bench.give(Input::Command { link: LinkId(2), command: say("m1", "other") });
    assert_eq!(bench.take_shown(2), ["accepted true", "refused idempotency_conflict"]);
    // An idle session is released.
    bench.run(Duration::from_secs(5));
    let key = turnway_core::id::SessionKey { tenant: TenantId::default_tenant(), session: session() };
    assert_eq!(bench.model.session(&key).and_then(|slot| slot.holder), None);
}

/// Covers: S-48, LN-EV19.
#[test]
fn input_too_large_for_a_fact_is_refused() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    // Names take the remaining bytes.
    for (bytes, expected) in [(64 * 1024, "refused too_large"), (63 * 1024, "accepted false")] {
        let text = "x".repeat(bytes);
        bench.give(Input::Command { link: LinkId(1), command: say("m1", &text) });
        assert_eq!(bench.take_shown(1).first().map(String::as_str), Some(expected), "{bytes}");
    }
    // A value may also grow when serialised: a number may take five times its original length.
    let LinkCommand::Invoke(mut invoke) = say("m2", "hi") else { panic!("an invoke") };
    invoke.metadata = Some(Json(vec![1e15; 5_000].into()));
    bench.give(Input::Command { link: LinkId(1), command: LinkCommand::Invoke(invoke) });
    assert_eq!(bench.take_shown(1).last().map(String::as_str), Some("refused too_large"));
}

/// Covers: SR-S5, MP-B10, SR-T4, SR-C1, SR-C4, SR-C9, ST-12, RX-6, ST-14, BD-M7: a cancel passes what waits.
#[test]
fn cancel_stops_the_running_turn_and_starts_the_next() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "one") });
    bench.give(Input::Command { link: LinkId(1), command: say("m2", "two") });
    bench.report(AgentEvent::Acked);
    bench.report(AgentEvent::Delta { kind: TextKind::Text, text: Private("so".to_owned()), id: None });
    bench.take_shown(1);
    bench.give(Input::Command {
        link: LinkId(1),
        command: LinkCommand::Cancel {
            request_id: None,
            target: CancelTarget::Session(session()),
            wants_receipt: false,
        },
    });
    bench.report(AgentEvent::Delta { kind: TextKind::Text, text: Private(" late".to_owned()), id: None });
    bench.report(AgentEvent::CancelAcked);
    let seen = bench.take_shown(1);
    assert_eq!(seen, ["9 run.cancelling", "10 run.cancelled", "11 run.started"], "{seen:?}");
    bench.answer(&["two"]);
    assert_eq!(bench.take_shown(1).last().map(String::as_str), Some("15 run.done"));
    bench.give(Input::Command {
        link: LinkId(1),
        command: LinkCommand::Cancel {
            request_id: None,
            target: CancelTarget::Session(session()),
            wants_receipt: false,
        },
    });
    assert_eq!(bench.take_shown(1), ["16 session.notice"]);
}

/// Covers: SR-S5, SR-S13, SR-S14, SR-K6, SR-K7, SR-H1, SR-H2, SR-H6, LN-SR2.
#[test]
fn close_cancels_the_running_turn_first() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    let open = LinkCommand::Open { request_id: None, session: Some(session()), agents: Vec::new(), active: None };
    bench.give(Input::Command { link: LinkId(1), command: open.clone() });
    assert_eq!(bench.take_shown(1), ["opened 1"]);
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "one") });
    bench.give(Input::Command { link: LinkId(1), command: say("m2", "two") });
    bench.report(AgentEvent::Acked);
    bench.run(limits::FACT_WAIT);
    bench.take_shown(1);
    bench.give(Input::Command {
        link: LinkId(1),
        command: LinkCommand::Control { request_id: None, session: session(), request: ControlRequest::Close },
    });
    assert_eq!(bench.take_shown(1), ["8 session.closing", "9 run.failed", "10 run.cancelling"]);
    bench.run(Duration::from_secs(3));
    assert_eq!(bench.take_shown(1), ["11 run.cancelled", "12 session.closed"]);
    bench.give(Input::Command { link: LinkId(1), command: say("m3", "three") });
    assert_eq!(bench.take_shown(1), ["refused session_closed"]);
    bench.give(Input::Command { link: LinkId(1), command: open });
    assert_eq!(bench.take_shown(1), ["13 session.opened", "opened 13"]);
}

/// Covers: G8 (a slow link's cursor stands still, and nothing is missing afterwards).
#[test]
fn slow_link_receives_everything_later() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    bench.report(AgentEvent::Acked);
    let piece = "x".repeat(4096);
    for _ in 0..200 {
        bench.report(AgentEvent::Delta { kind: TextKind::Text, text: Private(piece.clone()), id: None });
    }
    bench.report(AgentEvent::Done { stop: StopReason::EndTurn, usage: None });
    let mut seen = bench.take_shown(1);
    assert!(!seen.iter().any(|line| line.ends_with("run.done")), "it was held back");
    for _ in 0..40 {
        bench.give(Input::Written { link: LinkId(1), weight: 64 * 1024 });
        seen.extend(bench.take_shown(1));
    }
    let mut text = String::new();
    for delta in seen.iter().filter_map(|line| line.strip_prefix("delta ")) {
        let (offset, piece) = delta.split_once(' ').expect("an offset");
        assert_eq!(offset, text.len().to_string());
        text.push_str(piece);
    }
    assert_eq!(text.len(), 200 * 4096);
    assert!(seen.last().is_some_and(|line| line.ends_with("run.done")), "{:?}", seen.last());
}

/// Covers: G8 (who does not take one session's text has the others, and misses nothing of that one).
#[test]
fn held_session_does_not_block_other_links() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    connected(&mut bench, 2, "ann");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    // The session exists only now.
    bench.give(Input::Command { link: LinkId(2), command: subscribe(None) });
    bench.report(AgentEvent::Acked);
    bench.take_shown(1);
    let hold = |is_held| Input::PauseSession { link: LinkId(1), session: session(), is_paused: is_held };
    bench.give(hold(true));
    bench.answer(&["he", "llo"]);
    bench.run(Duration::from_millis(100));
    assert_eq!(bench.take_shown(1), [""; 0]);
    assert!(bench.take_shown(2).last().is_some_and(|line| line.ends_with("run.done")), "others are not concerned");
    bench.give(hold(false));
    let seen = bench.take_shown(1);
    let text: Vec<&str> = seen.iter().filter_map(|line| line.strip_prefix("delta ")).collect();
    assert!(text == ["0 hello"] || text == ["0 he", "2 llo"], "{seen:?}");
    assert!(seen.last().is_some_and(|line| line.ends_with("run.done")), "{seen:?}");
    // Holding a session without a subscription has no effect.
    let other = SessionId::parse("other").expect("an id");
    bench.give(Input::PauseSession { link: LinkId(1), session: other, is_paused: true });
    bench.give(hold(false));
    assert_eq!(bench.take_shown(1), [""; 0]);
}

/// Covers: S-17: who has asked for more than may wait can stop all of it.
#[test]
fn cancel_is_not_limited_with_pending_requests() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    bench.waits = true;
    for n in 0..=limits::LINK_REQUESTS_MAX {
        bench.give(Input::Command { link: LinkId(1), command: say(&format!("m{n}"), "hi") });
    }
    assert_eq!(bench.take_shown(1), ["refused rate_limited"], "the last of them");
    let cancel =
        || LinkCommand::Cancel { request_id: None, target: CancelTarget::Session(session()), wants_receipt: false };
    for _ in 0..limits::LINK_CANCELS_MAX {
        bench.give(Input::Command { link: LinkId(1), command: cancel() });
    }
    assert_eq!(bench.take_shown(1), [""; 0]);
    bench.give(Input::Command { link: LinkId(1), command: cancel() });
    assert_eq!(bench.take_shown(1), ["refused rate_limited"], "there is an end to that too");
}

/// Covers: SR-K7, SR-K6, SR-H5, SR-H6, SR-S13, RX-25: a session that cannot be opened is an answer like any
/// other.
#[test]
fn open_without_agents_is_refused() {
    let mut bench = Fixture::without_agents();
    connected(&mut bench, 1, "ann");
    let open = LinkCommand::Open { request_id: None, session: Some(session()), agents: Vec::new(), active: None };
    bench.give(Input::Command { link: LinkId(1), command: open });
    assert_eq!(bench.take_shown(1), ["refused SESSION_OPEN_FAILED"]);
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    let seen = bench.take_shown(1);
    assert!(seen.last().is_some_and(|line| line.ends_with("run.failed")), "{seen:?}");
}

/// A node of an earlier release would give the agent no earlier messages, or none of the input.
///
/// Covers: PR-24.
#[test]
fn history_in_a_file_waits_until_every_node_reads_it() {
    let mut node = Fixture::new();
    connected(&mut node, 1, "ann");
    let told = || {
        let LinkCommand::Invoke(mut invoke) = say("m1", "hi") else { panic!("an input") };
        invoke.history = Some(History::File { sha256: BlobHash([7; 32]) });
        LinkCommand::Invoke(invoke)
    };
    node.give(Input::FactLevel(LOWEST_FACT_LEVEL));
    node.give(Input::Command { link: LinkId(1), command: told() });
    assert_eq!(node.take_shown(1), ["refused fleet_upgrading"]);
    assert!(node.model.session(&key()).is_none());
    node.give(Input::FactLevel(FACT_LEVEL));
    node.give(Input::Command { link: LinkId(1), command: told() });
    node.answer(&["hello"]);
    node.run(Duration::from_millis(100));
    assert!(node.take_shown(1).last().is_some_and(|line| line.ends_with("run.done")));
}

/// A request that leads to a fact of a later level is refused while a node of an earlier release lives.
#[test]
fn label_is_refused_until_every_node_knows_its_fact() {
    let mut node = Fixture::new();
    connected(&mut node, 1, "ann");
    node.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    node.answer(&["hello"]);
    node.run(Duration::from_millis(100));
    node.take_shown(1);
    let label = || LinkCommand::Control {
        request_id: None,
        session: session(),
        request: ControlRequest::Label { label: Private("blue".to_owned()) },
    };
    let facts = |node: &Fixture| node.model.session(&key()).map(|slot| slot.log_tail().seq.0);
    let before = facts(&node);
    node.give(Input::FactLevel(LOWEST_FACT_LEVEL));
    node.give(Input::Command { link: LinkId(1), command: label() });
    assert_eq!(node.take_shown(1), ["refused fleet_upgrading"]);
    assert_eq!(facts(&node), before);
    node.give(Input::FactLevel(FACT_LEVEL));
    node.give(Input::Command { link: LinkId(1), command: label() });
    node.run(Duration::from_millis(100));
    assert_eq!(facts(&node), before.map(|seq| seq + 1));
}

#[test]
fn draining_node_lets_running_turns_end() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    bench.give(Input::Drain);
    bench.answer(&["bye"]);
    assert_eq!(bench.take_shown(1).last().map(String::as_str), Some("8 run.done"));
    assert!(bench.gone);
}

/// Covers: S-06, G8: a stranger who asks again and again delays nobody and piles up nothing.
#[test]
fn foreign_requests_do_not_delay_the_owners() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    bench.answer(&["ho"]);
    bench.give(Input::Disconnect { link: LinkId(1) });
    connected(&mut bench, 2, "ann");
    connected(&mut bench, 3, "bob");
    // Bob's requests arrive while each answer is still in flight, and Ann's between them.
    for link in [3, 3, 2, 3, 3] {
        bench.board.handle_input(bench.now, Input::Command { link: LinkId(link), command: subscribe(Some(0)) });
        while let Some(output) = bench.board.poll_output() {
            if let Output::Store(op) = output {
                let reply = bench.model.apply(bench.now, &op);
                bench.inputs.push_back(Input::Stored { op, result: Ok(reply) });
            }
        }
    }
    bench.run(Duration::from_millis(1));
    bench.give(Input::Written { link: LinkId(2), weight: 0 });
    assert_eq!(bench.take_shown(2).first().map(String::as_str), Some("subscribed 8 None"));
    assert!(bench.take_shown(3).iter().all(|line| line == "refused not_found"));
}

/// Covers: SR-C1, G9: whoever presses stop and leaves at once has still pressed stop.
#[test]
fn cancel_survives_its_link() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    connected(&mut bench, 2, "ann");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    bench.report(AgentEvent::Acked);
    let stop = LinkCommand::Cancel { request_id: None, target: CancelTarget::Session(session()), wants_receipt: false };
    bench.board.handle_input(bench.now, Input::Command { link: LinkId(2), command: stop });
    let mut ops = Vec::new();
    while let Some(output) = bench.board.poll_output() {
        if let Output::Store(op) = output {
            ops.push(op);
        }
    }
    bench.give(Input::Disconnect { link: LinkId(2) });
    for op in ops {
        let reply = bench.model.apply(bench.now, &op);
        bench.give(Input::Stored { op, result: Ok(reply) });
    }
    assert!(bench.orders.iter().any(|order| matches!(order, Order::Cancel { .. })));
}

/// Covers: SR-S13, SR-K6, SR-H6: who closes what is closed already is answered too.
#[test]
fn repeated_close_is_answered() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    bench.answer(&["ho"]);
    bench.take_shown(1);
    let close = LinkCommand::Control { request_id: None, session: session(), request: ControlRequest::Close };
    bench.give(Input::Command { link: LinkId(1), command: close.clone() });
    assert_eq!(bench.take_shown(1), ["9 session.closing", "10 session.closed"]);
    bench.give(Input::Command { link: LinkId(1), command: close });
    assert_eq!(bench.take_shown(1), ["session_closed"]);
}

/// Covers: S-06: a foreign cancel of the same run does not spoil its owner's.
#[test]
fn foreign_cancel_does_not_affect_the_owners() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    connected(&mut bench, 3, "bob");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    bench.report(AgentEvent::Acked);
    bench.run(limits::FACT_WAIT);
    bench.take_shown(1);
    let run_id = bench.invokes().next().map(|invoke| invoke.run_id.clone());
    let stop = LinkCommand::Cancel {
        request_id: None,
        target: CancelTarget::Run(run_id.expect("an order")),
        wants_receipt: false,
    };
    for link in [3, 1] {
        bench.board.handle_input(bench.now, Input::Command { link: LinkId(link), command: stop.clone() });
    }
    bench.drain();
    bench.give(Input::Written { link: LinkId(1), weight: 0 });
    assert_eq!(bench.take_shown(1), ["6 run.cancelling"]);
    assert_eq!(bench.take_shown(3), ["refused not_found"]);
}

/// Covers: MP-D12, S-06, RX-23: looking, listing and finding leave nothing behind, and strangers learn nothing.
#[test]
fn reads_leave_no_state_behind() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    connected(&mut bench, 3, "bob");
    let operator = Principal { operator: true, ..user("local") };
    bench.give(Input::Connect { link: LinkId(4), principal: operator });
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    bench.report(AgentEvent::Acked);
    bench.run(limits::FACT_WAIT);
    let run_id = bench.invokes().next().map(|invoke| invoke.run_id.clone());
    let find = LinkCommand::FindRun { run_id: run_id.clone().expect("an order") };
    let look = LinkCommand::GetSnapshot { request_id: None, session: session() };
    let nobody = SessionId::parse("nobody").expect("a name");
    let unknown = LinkCommand::GetSnapshot { request_id: None, session: nobody };
    let list = LinkCommand::List { before: None, limit: 9 };
    let feeds = bench.board.stats(bench.now).feeds;
    bench.take_shown(1);
    for (link, command, answer) in [
        (1, &look, "opened 5"),
        (1, &find, "found 0 None"),
        (1, &list, "listed s1 false"),
        (3, &look, "refused not_found"),
        (3, &unknown, "refused not_found"),
        (3, &find, "refused not_found"),
        (3, &list, "listed  false"),
        (4, &look, "opened 5"),
        (4, &find, "found 0 None"),
        (4, &list, "listed s1 false"),
    ] {
        bench.give(Input::Command { link: LinkId(link), command: command.clone() });
        assert_eq!(bench.take_shown(link), [answer], "{link} {command:?}");
    }
    let stats = bench.board.stats(bench.now);
    assert_eq!((stats.feeds, stats.requests), (feeds, 0));
    // A client without a subscription is told that the cancel was accepted, and may then ask where the run
    // ended.
    let stop = LinkCommand::Cancel {
        request_id: None,
        target: CancelTarget::Run(run_id.expect("an order")),
        wants_receipt: true,
    };
    bench.give(Input::Command { link: LinkId(4), command: stop });
    assert_eq!(bench.take_shown(4), ["cancel taken"]);
    bench.report(AgentEvent::CancelAcked);
    bench.give(Input::Command { link: LinkId(4), command: find });
    assert_eq!(bench.take_shown(4), ["found 0 Some(7)"]);
}

#[test]
fn failed_read_is_not_retried() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    bench.board.handle_input(
        bench.now,
        Input::Command { link: LinkId(1), command: LinkCommand::List { before: None, limit: 9 } },
    );
    let Some(Output::Store(op)) = bench.board.poll_output() else { panic!("a question") };
    bench.give(Input::Stored { op, result: Err(StoreError::Unknown) });
    assert_eq!(bench.take_shown(1), ["refused store_unavailable"]);
}
