//! Takeover of a dead node's sessions: number of rounds and duration in simulated time, in which every
//! message to and from the store takes a configured time.
#[path = "../scene/scene.rs"]
mod scene;

use scene::{accept, board, input};
use std::collections::BTreeMap;
use std::time::Duration;
use turnway_core::id::{Epoch, Holder, LeaseId, NodeId, Nonce, OwnershipSnapshot, SessionKey};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::AgentPolicy;
use turnway_core::store::{ModelStore, Op, Reply, StoreError};
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::switchboard::{Input, Output, Switchboard};

const MILLI: Duration = Duration::from_millis(1);
/// Number of sessions with an open turn.
const SESSIONS: usize = 10_000;
/// Maximum duration, counted from the moment when the death is detected.
const WITHIN: Duration = Duration::from_secs(2);
const DEAD: Holder = Holder { node: NodeId(99), life: LeaseId(99) };

/// A message in flight.
enum InFlight {
    Asked(usize, Op),
    Given(usize, Input),
}

/// Nodes, and counts of their store operations.
struct Fleet {
    boards: Vec<Option<Switchboard>>,
    model: ModelStore,
    now: Now,
    mail: BTreeMap<(Mono, u64), InFlight>,
    sent: u64,
    sweeps: usize,
    claims: usize,
    held: usize,
    /// Unanswered claims of each node, and their maximum.
    under_way: Vec<usize>,
    most: usize,
    /// Delay of every message.
    way: Duration,
    /// True if some answers to claims are lost.
    lossy: bool,
}

fn key(n: usize) -> SessionKey {
    scene::key(&format!("s{n}"))
}

fn node(at: usize) -> Switchboard {
    board(NodeId(at as u128 + 1), u8::try_from(at).expect("a few"), AgentPolicy::default())
}

impl Fleet {
    fn new(nodes: usize) -> Self {
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
        Self {
            boards: (0..nodes).map(|at| Some(node(at))).collect(),
            model: ModelStore::new(false),
            now,
            mail: BTreeMap::new(),
            sent: 0,
            sweeps: 0,
            claims: 0,
            held: 0,
            under_way: vec![0; nodes],
            most: 0,
            way: MILLI,
            lossy: false,
        }
    }

    /// Gives sessions with one input each to a node that is about to die.
    fn add_dead_owner(&mut self, sessions: usize) {
        let ttl = limits::LEASE;
        let sent = self.now.mono;
        self.model.apply(self.now, &Op::Renew { holder: DEAD, ttl, fresh: true, sent });
        for n in 0..sessions {
            self.model.apply(self.now, &accept(&key(n), &input(&key(n), "m1")));
            let expect = OwnershipSnapshot::default();
            let floor = Epoch(0);
            let claim = Op::Claim { key: key(n), holder: DEAD, nonce: Nonce(n as u128), expect, floor };
            let reply = self.model.apply(self.now, &claim);
            assert!(matches!(reply, Reply::Claimed(_)), "{reply:?}");
        }
    }

    fn post(&mut self, mail: InFlight) {
        self.sent += 1;
        self.mail.insert((self.now.mono + self.way, self.sent), mail);
    }

    fn drain(&mut self, node: usize) {
        let Some(board) = &mut self.boards[node] else { return };
        let outputs: Vec<Output> = std::iter::from_fn(|| board.poll_output()).collect();
        for output in outputs {
            match output {
                Output::Store(op) => {
                    if matches!(op, Op::Claim { .. }) {
                        self.under_way[node] += 1;
                        self.most = self.most.max(self.under_way[node]);
                    }
                    self.post(InFlight::Asked(node, op));
                }
                Output::Publish { to, message: words } => {
                    let from = NodeId(node as u128 + 1);
                    let there = (0..self.boards.len()).find(|there| NodeId(*there as u128 + 1) == to);
                    match there.filter(|there| self.boards[*there].is_some()) {
                        Some(there) => self.post(InFlight::Given(there, Input::Peer { from, message: words })),
                        None => self.post(InFlight::Given(node, Input::PublishFailed { to })),
                    }
                }
                Output::Order(_) | Output::Tool(_) | Output::Notify { .. } | Output::Exit => {}
            }
        }
    }

    fn deliver(&mut self, mail: InFlight) {
        match mail {
            InFlight::Asked(node, op) => {
                let reply = self.model.apply(self.now, &op);
                self.sweeps += usize::from(matches!(op, Op::Sweep { .. }));
                self.claims += usize::from(matches!(op, Op::Claim { .. }));
                self.held += usize::from(matches!(reply, Reply::OwnershipConflict { .. }));
                let lost = self.lossy && self.sent.is_multiple_of(50) && matches!(op, Op::Claim { .. });
                let result = if lost { Err(StoreError::Unknown) } else { Ok(reply) };
                self.post(InFlight::Given(node, Input::Stored { op, result }));
            }
            InFlight::Given(node, input) => {
                if matches!(input, Input::Stored { op: Op::Claim { .. }, .. }) {
                    self.under_way[node] -= 1;
                }
                if let Some(board) = &mut self.boards[node] {
                    board.handle_input(self.now, input);
                }
                self.drain(node);
            }
        }
    }

    /// Advances time until a condition holds or the time is over.
    fn pass(&mut self, wait: Duration, until: impl Fn(&Self) -> bool) {
        let end = self.now.mono + wait;
        while !until(self) {
            let timers = self.boards.iter().flatten().filter_map(|board| Some(board.poll_timeout()?.at));
            let next = timers.chain(self.mail.keys().next().map(|(at, _)| *at)).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            let passed = next.max(self.now.mono) - self.now.mono;
            self.now = Now { mono: self.now.mono + passed, store: self.now.store.after(passed) };
            while let Some(first) = self.mail.first_entry().filter(|first| first.key().0 <= self.now.mono) {
                let mail = first.remove();
                self.deliver(mail);
            }
            for node in 0..self.boards.len() {
                if let Some(board) = &mut self.boards[node] {
                    board.handle_timeout(self.now);
                }
                self.drain(node);
            }
        }
    }

    fn owned(&self, by: Option<NodeId>) -> usize {
        let held = self.model.sessions().filter_map(|(_, slot)| slot.holder);
        held.filter(|holder| holder.node != DEAD.node && by.is_none_or(|by| by == holder.node)).count()
    }

    /// Returns the time from the first claim until the dead node owns no session.
    fn take_over_all(&mut self, sessions: usize) -> Duration {
        self.pass(Duration::from_secs(20), |fleet| fleet.claims > 0);
        let begin = self.now.mono;
        self.pass(Duration::from_secs(60), |fleet| fleet.owned(None) == sessions);
        assert_eq!(self.owned(None), sessions);
        self.now.mono - begin
    }

    fn report(&self, what: &str, took: Duration) {
        eprintln!(
            "{what}: {took:?}; {} sweeps, {} claims, {} of them too late, at most {} at a time",
            self.sweeps, self.claims, self.held, self.most
        );
    }
}

/// Covers: G9.
#[test]
fn sessions_of_a_dead_node_are_claimed_page_by_page() {
    let mut fleet = Fleet::new(1);
    fleet.add_dead_owner(SESSIONS);
    let died = fleet.now.mono;
    let took = fleet.take_over_all(SESSIONS);
    fleet.report("10,000 sessions, one node", took);
    assert!(took < WITHIN, "{took:?}");
    let page = limits::SWEEP_SESSIONS_MAX as usize;
    // A few sweeps before the death is detected; after that each page is a full one.
    assert!(fleet.sweeps <= 2 * SESSIONS / page + 20, "{} sweeps", fleet.sweeps);
    assert_eq!((fleet.claims, fleet.held), (SESSIONS, 0));
    assert!(fleet.most <= page, "{} claims at a time", fleet.most);
    // A lease of 3 s, the pause between two sweeps in normal operation, and the second sweep.
    assert!(fleet.now.mono - died < Duration::from_secs(8) + WITHIN, "{:?}", fleet.now.mono - died);
}

/// Covers: G9.
#[test]
fn concurrent_takeovers_share_the_sessions() {
    let mut fleet = Fleet::new(3);
    // Slow enough that the other nodes start before the first is done.
    fleet.way = 10 * MILLI;
    fleet.add_dead_owner(SESSIONS);
    let took = fleet.take_over_all(SESSIONS);
    fleet.report("10,000 sessions, three nodes, slow ways", took);
    let each: Vec<usize> = (1..=3).map(|node| fleet.owned(Some(NodeId(node)))).collect();
    eprintln!("each took {each:?}");
    assert!(took < WITHIN, "{took:?}");
    // The nodes notice each other by lost claims: about a page each for the two later ones, and few after
    // that.
    let pages = 2 * limits::SWEEP_SESSIONS_MAX as usize;
    assert!(fleet.held <= pages + SESSIONS / 50, "{} claims came too late", fleet.held);
}

/// Covers: G9.
#[test]
fn takeover_tolerates_lost_answers_and_another_death() {
    let mut fleet = Fleet::new(3);
    fleet.lossy = true;
    fleet.add_dead_owner(SESSIONS);
    fleet.pass(Duration::from_secs(20), |fleet| fleet.owned(None) > SESSIONS / 2);
    let begin = fleet.now.mono;
    // Its claimed sessions must be taken over in turn.
    fleet.boards[0] = None;
    fleet.pass(Duration::from_secs(60), |fleet| fleet.owned(None) == SESSIONS && fleet.owned(Some(NodeId(1))) == 0);
    let took = fleet.now.mono - begin;
    fleet.report("10,000 sessions, three nodes, one of which dies", took);
    assert_eq!((fleet.owned(None), fleet.owned(Some(NodeId(1)))), (SESSIONS, 0));
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// Sweeps at a fixed interval without deaths, whatever the number of sessions.
#[test]
fn sweeps_run_at_a_fixed_interval_without_deaths() {
    let mut counts = Vec::new();
    for sessions in [0, 2000] {
        let mut fleet = Fleet::new(2);
        fleet.add_dead_owner(sessions);
        fleet.take_over_all(sessions);
        fleet.pass(Duration::from_secs(20), |_| false);
        fleet.sweeps = 0;
        fleet.pass(Duration::from_secs(60), |_| false);
        counts.push(fleet.sweeps);
    }
    eprintln!("sweeps of two nodes in a minute without deaths: {counts:?}");
    let most = 2 * usize::try_from(60_000 / limits::SWEEP_INTERVAL.as_millis()).expect("few");
    assert!(counts.iter().all(|sweeps| *sweeps <= most), "{counts:?}");
}
