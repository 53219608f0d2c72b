//! The state of a session, and how facts refer to each other.
use crate::script::{Script, agent, run};
use turnway_core::id::{EventId, RunId};
use turnway_core::protocol::agent::OnOwnerLoss;
use turnway_core::protocol::entry::Entry;
use turnway_core::session::{RunPhase, SessionPhase, State};

fn after(world: &mut Script, steps: &str) -> State {
    steps.split("; ").for_each(|step| world.step(step));
    world.runtime.state().clone()
}

/// Changes members and the active agent, turns in flight, and transactions only where expected.
///
/// Covers: SR-P2, SR-T3, SR-T4, SR-T14.
#[test]
fn members_runs_and_phase_change_independently() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    let m1 = run("m1");
    let idle = after(&mut world, "open a b");
    let members = (vec![agent("a"), agent("b")], Some(agent("a")));
    assert_eq!((idle.agents.clone(), idle.active.clone()), members);
    assert!(idle.runs.is_empty() && idle.speaking().is_none() && idle.phase == SessionPhase::Open);

    let routed = after(&mut world, "say m1");
    assert_eq!(routed.runs.get(&m1).map(|run| run.phase.clone()), Some(RunPhase::Routing));
    assert_eq!(routed.speaking(), None, "nobody speaks before the receipt");
    let speaking = after(&mut world, "ack; text hi");
    assert_eq!((speaking.speaking(), speaking.runs.len()), (Some(&agent("a")), 1));
    // A running agent can be interrupted: a cancel finds its run, and during the cancel no agent counts as
    // running.
    let cancelling = after(&mut world, "cancel");
    let phase = cancelling.runs.get(&m1).map(|run| run.phase.clone());
    assert!(matches!(phase, Some(RunPhase::Cancelling { reason, .. }) if reason == "user"));
    assert_eq!(cancelling.speaking(), None);
    let cancelled = after(&mut world, "cancel-ack");
    for state in [&routed, &speaking, &cancelling, &cancelled] {
        assert_eq!((state.agents.clone(), state.active.clone()), members);
        assert_eq!(state.phase, SessionPhase::Open);
    }
    assert!(cancelled.runs.is_empty() && cancelled.running.is_none());
    let closing = after(&mut world, "say m2; ack; close");
    assert_eq!((closing.phase, closing.agents.clone()), (SessionPhase::Closing, members.0));
}

/// Covers: EV-C4, EV-C5, EV-T1, EV-T3, LN-EV2, SR-T13.
#[test]
fn facts_have_correlation_and_causation_ids() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    after(&mut world, "say m1; ack; text hi; crash; ack; cancel m1; cancel-ack; close");
    let entries: Vec<&Entry> = world.log.iter().map(|(_, entry)| &**entry).collect();
    let ids: std::collections::BTreeSet<EventId> = entries.iter().map(|entry| entry.id).collect();
    assert_eq!(ids.len(), entries.len(), "each fact has an id of its own");
    let (m1, mut cause): (RunId, Option<EventId>) = (run("m1"), None);
    let mut chain = Vec::new();
    for entry in entries {
        if entry.run_id.is_none() {
            assert_eq!(&*entry.correlation_id, entry.id.to_string(), "{}", entry.fact.name());
            continue;
        }
        assert_eq!((entry.run_id.as_ref(), &*entry.correlation_id), (Some(&m1), m1.as_str()));
        assert_eq!(entry.causation_id, cause, "{}", entry.fact.name());
        chain.push(entry.fact.name());
        if matches!(entry.fact.name(), "user.message" | "run.started" | "run.restarted") {
            cause = Some(entry.id);
        }
    }
    let wanted = [
        "user.message",
        "turn.admitted",
        "run.started",
        "agent.invoke.started",
        "run.restarted",
        "agent.invoke.started",
        "run.cancelling",
        "run.cancelled",
    ];
    assert_eq!(chain, wanted);
}

/// Forgets the results of actions when the session closes: its next turns are not told of them.
///
/// Covers: EV-R3.
#[test]
fn closed_session_forgets_the_results_of_actions() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    // The action outlives its run, so its result waits for the agent's next run.
    let waiting = after(&mut world, "say m1; ack; act t; done; tool begun; tool ok");
    assert_eq!(waiting.actions.ended.len(), 1);
    let closed = after(&mut world, "close");
    assert_eq!((closed.phase, closed.actions.ended.len()), (SessionPhase::Closed, 0));
}
