//! Directed situations that random scenarios meet too rarely, and measurements.
use super::behaviour::AgentBehaviour;
use super::clients::{Act, Kind};
use super::faults::Faults;
use super::fixtures;
use super::world::{ScheduledEvent, World};
use std::time::Duration;
use turnway_core::protocol::entry::{Fact, RunFact};
use turnway_core::protocol::input::Strategy;

/// Counts store operations and peer messages in one idle minute, after each session has had a turn and while each
/// has a subscriber.
pub fn idle_minute(sessions: u64) -> (u64, u64) {
    let mut world = World::new(7, 5, Faults::default());
    // One minute is too short to start very many sessions, because the operations in flight are limited.
    let begin_ms = 3000 + sessions;
    for n in 0..sessions {
        let key = fixtures::key("default", &format!("s{n}"));
        let client = world.client(Kind::Talker, &key, fixtures::user("ann", "default", false));
        let at = world.rng.below(begin_ms);
        world.later(at, at, ScheduledEvent::Client { client, act: Act::Connect });
        world.schedule_message(client, n + 1, AgentBehaviour::Plain, Strategy::Enqueue, (at + 3000, at + 6000));
    }
    world.pass(60 + begin_ms / 1000);
    let unrest = world.unsettled_reason();
    assert!(unrest.is_none(), "G9: everything has ended: {unrest:?}");
    let before = (world.tally.ops, world.tally.peer_messages);
    world.pass(60);
    (world.tally.ops - before.0, world.tally.peer_messages - before.1)
}

/// Failure of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerFailure {
    /// The owner and its subscription are gone at once.
    Crash,
    /// The owner is paused for long: its inbox still receives messages, and its lease expires.
    Sleep,
}

/// Fails an owner in the middle of a turn that is followed at another node; returns milliseconds until the next
/// attempt.
pub fn failover_ms(seed: u64, blow: OwnerFailure) -> Option<u64> {
    let mut world = World::new(seed, 5, Faults::default());
    let key = fixtures::key("default", "s1");
    let user = fixtures::user("ann", "default", false);
    let talker = world.client(Kind::Talker, &key, user.clone());
    let watcher = world.client(Kind::Watcher, &key, user);
    world.pass(8);
    world.schedule_message(talker, 40, AgentBehaviour::Slow, Strategy::Enqueue, (0, 1));
    world.later(400, 401, ScheduledEvent::Client { client: watcher, act: Act::Connect });
    world.sayings.get_mut(&40)?.agent_id = Some(fixtures::agent("again"));
    world.pass(2);
    let holder = world.model.session(&key)?.holder?;
    let watched = world.clients[watcher].line.is_some_and(|(node, _)| node != holder.node);
    let open = world.ledger.chronicles.get(&key).is_some_and(|chronicle| chronicle.active.is_some());
    if !watched || !open {
        return None;
    }
    let at = world.at(holder.node)?;
    match blow {
        OwnerFailure::Crash => world.crash(at),
        OwnerFailure::Sleep => world.nodes[at].paused_until = world.now + Duration::from_secs(60),
    }
    let died = world.now;
    for _ in 0..2000 {
        world.run(world.now + Duration::from_millis(10));
        let log = &world.ledger.chronicles.get(&key)?.log;
        if log.iter().any(|(_, entry)| matches!(entry.fact, Fact::Run(RunFact::Restarted { .. }))) {
            return u64::try_from((world.now - died).as_millis()).ok();
        }
    }
    panic!("G9: a turn whose owner died goes on elsewhere (seed {seed})");
}

/// Way in which an owner ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerExit {
    /// The owner is gone at once.
    Crash,
    /// The owner is drained.
    Leave,
}

/// Ends an owner in the middle of an answer that the agent can resume and that is followed at another node; returns
/// milliseconds until the attempt continues. The attempt must be the same, and complete.
pub fn resume_ms(seed: u64, how: OwnerExit, age_s: u64) -> Option<u64> {
    let mut world = World::new(seed, 5, Faults::default().with_resumable_agent());
    let key = fixtures::key("default", "s1");
    let user = fixtures::user("ann", "default", false);
    let talker = world.client(Kind::Talker, &key, user.clone());
    let watcher = world.client(Kind::Watcher, &key, user);
    world.pass(age_s);
    world.schedule_message(talker, 40, AgentBehaviour::Slow, Strategy::Enqueue, (0, 1));
    world.sayings.get_mut(&40)?.agent_id = Some(fixtures::agent("lasting"));
    world.later(400, 401, ScheduledEvent::Client { client: watcher, act: Act::Connect });
    world.pass(2);
    let holder = world.model.session(&key)?.holder?;
    let watched = world.clients[watcher].line.is_some_and(|(node, _)| node != holder.node);
    let open = world.ledger.chronicles.get(&key).is_some_and(|chronicle| chronicle.active.is_some());
    if !watched || !open {
        return None;
    }
    let at = world.at(holder.node)?;
    match how {
        OwnerExit::Crash => world.crash(at),
        OwnerExit::Leave => world.later(0, 0, ScheduledEvent::Leave { node_id: holder.node }),
    }
    let gone = world.now;
    let mut wait = None;
    while wait.is_none() {
        world.run(world.now + Duration::from_millis(10));
        let log = &world.ledger.chronicles.get(&key)?.log;
        let goes_on = log.iter().any(|(_, entry)| matches!(entry.fact, Fact::Run(RunFact::Resumed { .. })));
        wait = goes_on.then(|| u64::try_from((world.now - gone).as_millis()).ok()).flatten();
        assert!(world.now - gone < Duration::from_secs(20), "G9: it goes on elsewhere (seed {seed})");
    }
    world.come_to_rest(60);
    let run_id = world.sayings[&40].run_id.clone();
    let turn = world.ledger.chronicles.get(&key).and_then(|chronicle| chronicle.stories.get(&run_id));
    let end = turn.and_then(|turn| turn.ended.clone());
    assert!(end.is_some_and(|end| end.done && end.attempt == 1), "G3: it is the same attempt (seed {seed})");
    wait
}

/// Store latency exceeds the renewal period from the start: a node must still own the session, and its turn must
/// end.
pub fn far_store(seed: u64) {
    let mut world = World::new(seed, 3, Faults::default());
    world.far_ms = 300;
    let key = fixtures::key("default", "s1");
    let talker = world.client(Kind::Talker, &key, fixtures::user("ann", "default", false));
    world.later(0, 100, ScheduledEvent::Client { client: talker, act: Act::Connect });
    world.schedule_message(talker, 1, AgentBehaviour::Plain, Strategy::Enqueue, (200, 300));
    world.pass(30);
    let run_id = world.sayings[&1].run_id.clone();
    let turn = world.ledger.chronicles.get(&key).and_then(|chronicle| chronicle.stories.get(&run_id));
    assert!(turn.is_some_and(|turn| turn.ended.is_some()), "G9: no turn ends at a far store (seed {seed})");
    world.far_ms = 0;
    world.heal();
    world.come_to_rest(super::scenario::REST_S);
}

/// Agents are busy and send `Retry-After`, for turns that may be retried: each turn ends, and some complete.
pub fn busy_agent(seed: u64) {
    let mut world = World::new(seed, 3, Faults::default());
    let key = fixtures::key("default", "s1");
    let talker = world.client(Kind::Talker, &key, fixtures::user("ann", "default", false));
    world.later(0, 100, ScheduledEvent::Client { client: talker, act: Act::Connect });
    for n in 1..=8 {
        world.schedule_message(talker, n, AgentBehaviour::Away, Strategy::Enqueue, (200, 300));
        if let Some(saying) = world.sayings.get_mut(&n) {
            saying.agent_id = Some(fixtures::agent(fixtures::AGENTS[0].0));
        }
    }
    world.pass(60);
    let stories = world.ledger.chronicles.get(&key).map(|chronicle| &chronicle.stories);
    let ends: Vec<_> = stories.into_iter().flatten().filter_map(|(_, turn)| turn.ended.as_ref()).collect();
    let done = ends.iter().filter(|end| end.done && end.attempt == 2).count();
    let given_up = ends.iter().filter(|end| !end.done && end.attempt == 3).count();
    assert_eq!((ends.len(), done, given_up), (8, 3, 3), "G3: busy agents are asked again (seed {seed})");
    world.heal();
    world.come_to_rest(super::scenario::REST_S);
}

/// Lease grants have late copies; then a node with a subscriber loses the store and the other nodes for longer than
/// its lease, and such a copy may arrive before the node is back.
pub fn late_grant(seed: u64) {
    let mut world = World::new(seed, 3, Faults { unknown: 100, ..Faults::default() });
    world.run(world.now + Duration::from_millis(200));
    world.faults = Faults::default();
    let key = fixtures::key("default", "s1");
    let user = fixtures::user("ann", "default", false);
    let talker = world.client(Kind::Talker, &key, user.clone());
    let watcher = world.client(Kind::Watcher, &key, user);
    world.later(0, 100, ScheduledEvent::Client { client: talker, act: Act::Connect });
    for n in 1..=30 {
        world.schedule_message(talker, n, AgentBehaviour::Plain, Strategy::Enqueue, (400 * n, 400 * n + 300));
    }
    world.later(600, 700, ScheduledEvent::Client { client: watcher, act: Act::Connect });
    world.pass(2);
    let apart = world.clients[watcher].line.and_then(|(node, _)| world.at(node));
    if let Some(at) = apart {
        let until = world.now + Duration::from_millis(7500);
        world.nodes[at].cut_until = until;
        world.deafen(at, until);
    }
    world.pass(20);
    world.heal();
    world.come_to_rest(super::scenario::REST_S);
}

/// A client sends two messages and disconnects; then the owner is drained while the session has no subscribers and
/// half of all messages are lost, the hand-over messages included.
pub fn handed_over_unheard(seed: u64) {
    let mut world = World::new(seed, 3, Faults::default().with_resumable_agent());
    let key = fixtures::key("default", "s1");
    let leaver = world.client(Kind::Leaver, &key, fixtures::user("ann", "default", false));
    world.pass(6);
    world.schedule_message(leaver, 1, AgentBehaviour::Slow, Strategy::Enqueue, (0, 100));
    world.schedule_message(leaver, 2, AgentBehaviour::Plain, Strategy::Enqueue, (200, 300));
    world.pass(2);
    if let Some(holder) = world.model.session(&key).and_then(|slot| slot.holder) {
        world.faults.drop = 50;
        world.leave(holder.node);
    }
    world.pass(20);
    world.heal();
    world.come_to_rest(super::scenario::REST_S);
}

/// A session with more turns than one snapshot holds facts, some of them waiting when the snapshot is taken.
pub fn long_session(seed: u64) {
    let faults = Faults { crash: 3, hangup: 10, drop: 10, ..Faults::default() };
    let mut world = World::new(seed, 3, faults);
    let key = fixtures::key("default", "s1");
    let user = fixtures::user("ann", "default", false);
    let talker = world.client(Kind::Talker, &key, user.clone());
    world.client(Kind::Watcher, &key, user);
    world.later(0, 100, ScheduledEvent::Client { client: talker, act: Act::Open });
    for n in 1..=120 {
        let manner = if n % 4 == 0 { AgentBehaviour::Thinker } else { AgentBehaviour::Plain };
        world.schedule_message(talker, n, manner, Strategy::Enqueue, (1000 * n, 1000 * n + 1500));
    }
    world.pass(150);
    world.heal();
    world.come_to_rest(super::scenario::REST_S);
}

/// A waiting turn is cancelled: it ends at once, without ever having begun.
pub fn cancel_while_waiting(seed: u64) {
    let mut world = World::new(seed, 3, Faults::default());
    let key = fixtures::key("default", "s1");
    let talker = world.client(Kind::Talker, &key, fixtures::user("ann", "default", false));
    world.pass(6);
    world.later(0, 10, ScheduledEvent::Client { client: talker, act: Act::Open });
    world.schedule_message(talker, 1, AgentBehaviour::Slow, Strategy::Enqueue, (200, 300));
    world.schedule_message(talker, 2, AgentBehaviour::Plain, Strategy::Enqueue, (700, 800));
    for n in [1, 2] {
        if let Some(saying) = world.sayings.get_mut(&n) {
            saying.agent_id = None;
        }
    }
    world.later(1200, 1300, ScheduledEvent::Client { client: talker, act: Act::Cancel(2) });
    world.pass(super::scenario::REST_S / 4);
    world.come_to_rest(60);
    let run_id = world.sayings[&2].run_id.clone();
    let turn = world.ledger.chronicles.get(&key).and_then(|chronicle| chronicle.stories.get(&run_id));
    let never = turn.is_some_and(|turn| turn.attempt == 0 && turn.ended.is_some());
    assert!(never, "G3: a cancelled turn that waits never begins: {turn:?}");
}
