//! A node's statistics: counts and durations match the events.
use crate::fixture::{Fixture, connected, say, session, subscribe};
use std::time::Duration;
use turnway_core::id::LinkId;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, StopReason, TextKind};
use turnway_core::protocol::input::Strategy;
use turnway_core::protocol::refusal::Code;
use turnway_core::store::{ModelStore, StoreError};
use turnway_node::switchboard::{DurationHistogram, Input, SubscriptionStart, SwitchboardStats, TurnResult};
use turnway_wire::channel::command::{CancelTarget, LinkCommand};

const MILLI: Duration = Duration::from_millis(1);

fn stats(bench: &Fixture) -> SwitchboardStats {
    bench.board.stats(bench.now)
}

fn ended(stats: &SwitchboardStats, outcome: TurnResult, strategy: Strategy) -> u64 {
    stats.ended.0[outcome as usize * Strategy::ALL.len() + strategy as usize]
}

fn one(took: Duration) -> DurationHistogram {
    let mut spread = DurationHistogram::default();
    spread.buckets[DurationHistogram::BOUNDS.partition_point(|bound| *bound < took)] = 1;
    spread.sum = took;
    spread
}

fn interrupt(message: &str) -> LinkCommand {
    let LinkCommand::Invoke(mut invoke) = say(message, "instead") else { unreachable!("it says something") };
    invoke.strategy = Some(Strategy::Interrupt);
    LinkCommand::Invoke(invoke)
}

#[test]
fn turn_is_timed_from_arrival_to_end() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    bench.report(AgentEvent::Acked);
    bench.run(40 * MILLI);
    let reasoning = TextKind::Reasoning;
    let text = TextKind::Text;
    bench.report(AgentEvent::Delta { kind: reasoning, text: Private("hm".to_owned()), id: None });
    bench.run(20 * MILLI);
    bench.report(AgentEvent::Delta { kind: text, text: Private("so".to_owned()), id: None });
    let open = stats(&bench);
    assert_eq!((open.open_turns, open.waiting_turns, open.oldest_turn), (1, 0, 60 * MILLI));
    assert_eq!(open.first_delta_durations, one(40 * MILLI), "what is shown first counts, and once");
    bench.run(240 * MILLI);
    bench.report(AgentEvent::Done { stop: StopReason::EndTurn, usage: None });
    let done = stats(&bench);
    assert_eq!(done.turn_durations[TurnResult::Completed as usize], one(300 * MILLI));
    assert_eq!((done.first_delta_durations, done.accept_durations.count()), (open.first_delta_durations, 1));
    assert_eq!(ended(&done, TurnResult::Completed, Strategy::Enqueue), 1);
    assert_eq!((done.ended.0.iter().sum::<u64>(), done.failed.0.iter().sum::<u64>()), (1, 0));
    assert_eq!((done.open_turns, done.oldest_turn), (0, Duration::ZERO));
    assert_eq!((done.claims, done.takeovers, done.claim_durations.count()), (1, 0, 1));
    assert!(done.append_durations.count() > 0 && done.facts >= 6);
}

/// Covers: MP-M6.
#[test]
fn turns_are_counted_by_outcome_strategy_and_code() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    for message in ["m1", "m2", "m3"] {
        bench.give(Input::Command { link: LinkId(1), command: say(message, "hi") });
    }
    let waiting = stats(&bench);
    assert_eq!((waiting.open_turns, waiting.waiting_turns, waiting.waiting_turns_max), (3, 2, 2));
    bench.report(AgentEvent::Failed(AgentFailure::Unavailable("gone".to_owned())));
    bench.report(AgentEvent::Acked);
    bench.give(Input::Command { link: LinkId(1), command: interrupt("m4") });
    bench.report(AgentEvent::CancelAcked);
    let cancel =
        LinkCommand::Cancel { request_id: None, target: CancelTarget::Session(session()), wants_receipt: false };
    bench.give(Input::Command { link: LinkId(1), command: cancel });
    bench.answer(&["well"]);
    let stats = stats(&bench);
    assert_eq!(ended(&stats, TurnResult::Failed, Strategy::Enqueue), 1);
    assert_eq!(stats.failed.0[Code::AgentUnavailable as usize], 1);
    assert_eq!(stats.failed.0.iter().sum::<u64>(), 1);
    let cancelled: u64 = Strategy::ALL.iter().map(|how| ended(&stats, TurnResult::Cancelled, *how)).sum();
    assert!(cancelled >= 2 && ended(&stats, TurnResult::Cancelled, Strategy::Interrupt) <= 1, "{stats:?}");
    let all: u64 = stats.turn_durations.iter().map(DurationHistogram::count).sum();
    assert_eq!(all, stats.ended.0.iter().sum::<u64>());
}

#[test]
fn subscriptions_are_counted_by_start() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    bench.answer(&["well"]);
    let begun = |bench: &mut Fixture, link, after| {
        let before = stats(bench).subscribed;
        connected(bench, link, "ann");
        bench.give(Input::Command { link: LinkId(link), command: subscribe(after) });
        let after = stats(bench).subscribed;
        let added =
            after.0.iter().zip(before.0).zip(SubscriptionStart::NAMES).filter(|((after, before), _)| *after > before);
        added.map(|(_, name)| name).collect::<Vec<_>>()
    };
    assert_eq!(begun(&mut bench, 2, None), ["present"]);
    assert_eq!(begun(&mut bench, 3, Some(1)), ["behind"]);
    assert_eq!(begun(&mut bench, 4, Some(8)), ["level"]);
    assert_eq!(begun(&mut bench, 5, Some(900)), ["regressed"]);
    connected(&mut bench, 6, "bob");
    bench.give(Input::Command { link: LinkId(6), command: subscribe(None) });
    assert_eq!(stats(&bench).refused.0[Code::NotFound as usize], 1);
}

/// Measures the acceptance as the link waits for it, however often the store is retried.
#[test]
fn acceptance_is_timed_at_the_edge() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    let quick = stats(&bench).accept_durations;
    assert_eq!(quick, one(Duration::ZERO));
    bench.trouble = Some(StoreError::Unknown);
    bench.give(Input::Command { link: LinkId(1), command: say("m2", "hi") });
    assert_eq!(stats(&bench).accept_durations, quick, "it is not accepted yet");
    bench.trouble = None;
    bench.run(Duration::from_secs(2));
    let slow = stats(&bench).accept_durations;
    assert!(slow.count() == 2 && slow.sum >= 300 * MILLI && slow.sum <= 600 * MILLI, "{slow:?}");
}

/// Counts a takeover when a process claims what another one left.
#[test]
fn claim_over_a_dead_holder_counts_as_takeover() {
    let mut bench = Fixture::new();
    connected(&mut bench, 1, "ann");
    bench.give(Input::Command { link: LinkId(1), command: say("m1", "hi") });
    bench.report(AgentEvent::Acked);
    let model = std::mem::replace(&mut bench.model, ModelStore::new(false));
    let mut next = Fixture::with(8, model, bench.now);
    next.run(Duration::from_secs(10));
    let stats = stats(&next);
    assert_eq!((stats.claims, stats.takeovers, stats.restarts), (1, 1, 1));
}
