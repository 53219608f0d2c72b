//! Calls of models in the simulated world: nodes report them to the owners of their runs, and crash before they report an end.
use super::behaviour::AgentBehaviour;
use super::clients::{Act, Kind};
use super::faults::Faults;
use super::fixtures;
use super::world::{LineId, ScheduledEvent, World};
use std::time::Duration;
use turnway_core::id::{EventId, RunId, SessionKey};
use turnway_core::protocol::entry::{Fact, ModelFact};
use turnway_core::protocol::input::{ControlRequest, Strategy};
use turnway_core::protocol::model_call::{ModelCallEnd, ModelCallStart, RecordedCallOutcome, RecordedTokens};
use turnway_core::time::Millis;
use turnway_node::switchboard::Input;
use turnway_wire::channel::command::LinkCommand;

/// Seconds after which a call whose end is not reported counts as lost.
const CALL_TIMEOUT_S: u64 = 40;

/// A silent agent waits for a model for longer than its silence limit and its run's time, while owners and the nodes of its
/// calls crash: the run goes on as long as a call is open, and each call ends once.
pub fn model_calls(seed: u64) {
    // Nodes of a world with channels know that all others know these facts.
    let mut world = World::new(seed, 3, Faults::default().channels());
    let key = fixtures::key("default", "s1");
    let talker = world.client(Kind::Talker, &key, fixtures::user("ann", "default", false));
    world.later(0, 100, ScheduledEvent::Client { client: talker, act: Act::Connect });
    for (n, at) in [(1, 200), (2, 300)] {
        world.schedule_message(talker, n, AgentBehaviour::Mute, Strategy::Enqueue, (at, at));
        if let Some(saying) = world.sayings.get_mut(&n) {
            saying.agent_id = Some(fixtures::agent(fixtures::AGENTS[0].0));
        }
    }
    reported_call(&mut world, &key, seed);
    lost_call(&mut world, &key, seed);
    world.heal();
    world.come_to_rest(super::scenario::REST_S);
    let outcomes: Vec<_> = [1, 2].map(|n| outcomes(&world, &key, call_id(n))).concat();
    let expected = [RecordedCallOutcome::Complete, RecordedCallOutcome::Lost];
    assert_eq!(outcomes, expected, "each call ends once (seed {seed})");
}

/// The run of the first message makes a call of 30 seconds, during which its owner crashes in half of the worlds.
fn reported_call(world: &mut World, key: &SessionKey, seed: u64) {
    let run_id = world.sayings[&1].run_id.clone();
    wait_until_running(world, key, &run_id, seed);
    let line = world.connect_operator();
    report(world, line, key, start(&run_id, 1));
    world.pass(5);
    if seed.is_multiple_of(2) {
        crash_owner(world, key, line);
    }
    world.pass(25);
    let goes_on = !has_ended(world, key, &run_id);
    assert!(goes_on, "a run goes on while it waits for a model (seed {seed}): {:?}", facts(world, key));
    let complete = end(1, RecordedCallOutcome::Complete);
    report(world, line, key, ControlRequest::EndModelCall { end: Box::new(complete) });
    world.pass(2);
    // Another end of a call that has ended changes nothing.
    let again = end(1, RecordedCallOutcome::Failed);
    report(world, line, key, ControlRequest::EndModelCall { end: Box::new(again) });
    assert!(!has_ended(world, key, &run_id), "the silence of an agent counts from the end of its call (seed {seed})");
    let is_over = |world: &World| has_ended(world, key, &run_id);
    assert!(passes_until(world, is_over), "the silence of an agent counts again (seed {seed})");
}

/// The run of the second message makes a call at a node that crashes.
fn lost_call(world: &mut World, key: &SessionKey, seed: u64) {
    let run_id = world.sayings[&2].run_id.clone();
    wait_until_running(world, key, &run_id, seed);
    let line = world.connect_operator();
    report(world, line, key, start(&run_id, 2));
    world.pass(1);
    let at = world.at(line.0).expect("the node has not crashed");
    world.crash(at);
    world.pass(CALL_TIMEOUT_S / 2);
    assert!(!has_ended(world, key, &run_id), "nobody knows yet that the call is lost (seed {seed})");
    world.pass(CALL_TIMEOUT_S);
    assert!(has_ended(world, key, &run_id), "a lost call ends, and then its run (seed {seed})");
}

/// Passes time until a run is the one that its session answers.
fn wait_until_running(world: &mut World, key: &SessionKey, run_id: &RunId, seed: u64) {
    let is_running = |world: &World| {
        let active = world.ledger.chronicles.get(key).and_then(|chronicle| chronicle.active.as_ref());
        active == Some(run_id)
    };
    assert!(passes_until(world, is_running), "G9: the run begins (seed {seed})");
}

/// Passes time until a condition holds; returns false if it does not hold within 20 seconds.
fn passes_until(world: &mut World, holds: impl Fn(&World) -> bool) -> bool {
    for _ in 0..200 {
        if holds(world) {
            return true;
        }
        world.run(world.now + Duration::from_millis(100));
    }
    false
}

/// Crashes the owner of a session, unless it has this connection.
fn crash_owner(world: &mut World, key: &SessionKey, line: LineId) {
    let holder = world.model.session(key).and_then(|session| session.holder);
    let owner = holder.filter(|holder| holder.node != line.0).and_then(|holder| world.at(holder.node));
    owner.into_iter().for_each(|at| world.crash(at));
}

fn report(world: &mut World, line: LineId, key: &SessionKey, request: ControlRequest) {
    let session = key.session.clone();
    let command = LinkCommand::Control { request_id: None, session, request };
    world.give_to(line.0, Input::Command { link: line.1, command });
}

fn call_id(n: u64) -> EventId {
    EventId::new(Millis(n), u128::from(n))
}

fn start(run_id: &RunId, n: u64) -> ControlRequest {
    let start = ModelCallStart {
        call_id: call_id(n),
        run_id: run_id.clone(),
        model: "gpt".to_owned(),
        format: "chat/completions".to_owned(),
        timeout_ms: CALL_TIMEOUT_S * 1000,
    };
    ControlRequest::StartModelCall { start: Box::new(start) }
}

fn end(n: u64, outcome: RecordedCallOutcome) -> ModelCallEnd {
    ModelCallEnd {
        call_id: call_id(n),
        outcome,
        upstream: Some("gpt".to_owned()),
        attempts: 1,
        status: Some(200),
        latency_ms: 30_000,
        first_byte_ms: Some(5),
        first_token_ms: Some(6),
        usage: RecordedTokens { input: Some(7), output: Some(8), ..RecordedTokens::default() },
        cost: None,
    }
}

/// Returns the types of the facts of a session.
fn facts<'a>(world: &'a World, key: &SessionKey) -> Vec<&'a str> {
    let log = world.ledger.chronicles.get(key).map(|chronicle| &chronicle.log);
    log.into_iter().flatten().map(|(_, entry)| entry.fact.name()).collect()
}

fn has_ended(world: &World, key: &SessionKey, run_id: &RunId) -> bool {
    let turn = world.ledger.chronicles.get(key).and_then(|chronicle| chronicle.stories.get(run_id));
    turn.is_some_and(|turn| turn.ended.is_some())
}

/// Returns the recorded ends of a call whose beginning is recorded.
fn outcomes(world: &World, key: &SessionKey, call_id: EventId) -> Vec<RecordedCallOutcome> {
    let log = world.ledger.chronicles.get(key).map(|chronicle| &chronicle.log);
    let facts = || log.into_iter().flatten().map(|(_, entry)| &entry.fact);
    let is_begun =
        |fact: &&Fact| matches!(fact, Fact::Model(ModelFact::Started(started)) if started.call_id == call_id);
    assert_eq!(facts().filter(is_begun).count(), 1, "each call begins once");
    facts()
        .filter_map(|fact| {
            let Fact::Model(ModelFact::Ended(ended)) = fact else { return None };
            (ended.end.call_id == call_id).then_some(ended.end.outcome)
        })
        .collect()
}
