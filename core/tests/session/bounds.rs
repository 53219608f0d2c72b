//! Bounds on the facts of a session, whatever its agent sends.
use crate::BEGUN;
use crate::script::{Script, check};
use turnway_core::limits;
use turnway_core::protocol::agent::OnOwnerLoss;
use turnway_core::protocol::entry::{Entry, Fact, RunFact};
use turnway_core::session::State;

/// Returns the bytes of a fact's `data` as JSON.
fn data_bytes(entry: &Entry) -> usize {
    let fact = serde_json::to_value(&entry.fact).expect("a fact serialises");
    fact["data"].to_string().len()
}

/// Covers: S-48. Control characters take six times their bytes where they are written down.
#[test]
fn text_checkpoints_fit_a_fact() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    for step in ["say m1", "ack", "murmur 40000", "text x", "done"] {
        world.step(step);
    }
    let stretches = world.log.iter().filter_map(|(_, entry)| {
        let Fact::Run(RunFact::TextDelta { text, .. }) = &entry.fact else { return None };
        Some((text.reveal().len(), data_bytes(entry)))
    });
    let stretches: Vec<_> = stretches.collect();
    assert_eq!(stretches.iter().map(|(text, _)| text).sum::<usize>(), 40_001);
    assert!(stretches.iter().all(|(_, data)| *data <= limits::FACT_DATA_BYTES_MAX), "{stretches:?}");
    assert!(stretches.len() <= 5 && stretches[0].0 > 10_000, "{stretches:?}");
    assert!(world.record.iter().any(|word| word == "done(40001)"), "{:?}", world.record);
}

/// Covers: S-48. An agent that says more at once than a fact may hold has failed; what it said before stays.
#[test]
fn oversized_agent_event_fails_the_run() {
    for step in ["state 65536", "done 65536"] {
        check(
            &format!("say m1; ack; text hi; {step}; done"),
            &format!("{BEGUN} agent.invoke.started 0'hi' stretch(0+2) failed(too_large) DROP"),
        );
    }
    let mut world = Script::new(OnOwnerLoss::Retry);
    for step in ["say m1", "ack", "state 65000", "done 65000"] {
        world.step(step);
    }
    assert!(world.record.iter().any(|word| word == "done(0)"), "{:?}", world.record);
    assert!(world.log.iter().all(|(_, entry)| data_bytes(entry) <= limits::FACT_DATA_BYTES_MAX));
}

/// Compares the state after one turn and after five hundred: ended turns leave nothing in it.
#[test]
fn ended_turns_leave_nothing_in_the_state() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    let mut turns = |count: u32, from: u32| {
        for n in from..from + count {
            for step in [&format!("say m{n}"), "ack", "text hi", "done"] {
                world.step(step);
            }
        }
        let state = State::from_facts(world.log.iter().map(|(epoch, entry)| (*epoch, &**entry)));
        assert!(!state.has_open_turn() && state.waiting.is_empty() && state.running.is_none());
        state.to_snapshot().expect("a state").len()
    };
    // Sequence numbers grow by a digit or two.
    assert!(turns(1, 1000) + 16 >= turns(499, 1001));
}
