//! A node's lease with a distant store: every operation takes a round trip, and the first lease takes two.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::NodeId;
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::rng::Rng;
use turnway_core::store::{ModelStore, Op};
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::switchboard::{Capacity, Config, Input, Output, Switchboard};

/// Maximum number of renewals in flight: one each half second, during a lease.
const UNDER_WAY_MAX: usize = 8;

/// An operation on its way to the store, or its answer on the way back.
enum InFlight {
    Op(Op),
    Answer(Input),
}

/// One node and its distant store.
struct Fixture {
    board: Switchboard,
    model: ModelStore,
    now: Now,
    mail: BTreeMap<(Mono, u64), InFlight>,
    posted: u64,
    renewals: usize,
    renewals_max: usize,
    /// Delay of one direction.
    way: fn(Mono, &mut Rng) -> Duration,
    rng: Rng,
}

impl Fixture {
    fn new(way: fn(Mono, &mut Rng) -> Duration) -> Self {
        let directory = Arc::new(AgentDirectory::default());
        let config = Config {
            node: NodeId(1),
            directory,
            seed: [3; 32],
            single_node: false,
            keep_facts: None,
            max_age: None,
            capacity: Capacity::default(),
        };
        Self {
            board: Switchboard::new(config),
            model: ModelStore::new(false),
            now: Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) },
            mail: BTreeMap::new(),
            posted: 0,
            renewals: 0,
            renewals_max: 0,
            way,
            rng: Rng::from_seed([5; 32]),
        }
    }

    fn post(&mut self, ways: u32, mail: InFlight) {
        let way = (self.way)(self.now.mono, &mut self.rng);
        self.posted += 1;
        self.mail.insert((self.now.mono + way * ways, self.posted), mail);
    }

    fn drain(&mut self) {
        while let Some(output) = self.board.poll_output() {
            if let Output::Store(op) = output {
                if matches!(op, Op::Renew { .. }) {
                    self.renewals += 1;
                    self.renewals_max = self.renewals_max.max(self.renewals);
                }
                // The first lease is preceded by an enrolment: there, back, and there again.
                let ways = if matches!(op, Op::Renew { fresh: true, .. }) { 3 } else { 1 };
                self.post(ways, InFlight::Op(op));
            }
        }
    }

    /// Advances time and returns the time without a lease.
    fn pass(&mut self, wait: Duration) -> Duration {
        let end = self.now.mono + wait;
        let mut without = Duration::ZERO;
        while self.now.mono < end {
            let step = Duration::from_millis(5);
            self.now = Now { mono: self.now.mono + step, store: self.now.store.after(step) };
            while let Some(first) = self.mail.first_entry().filter(|first| first.key().0 <= self.now.mono) {
                match first.remove() {
                    InFlight::Op(op) => {
                        let result = Ok(self.model.apply(self.now, &op));
                        self.post(1, InFlight::Answer(Input::Stored { op, result }));
                    }
                    InFlight::Answer(input) => {
                        self.renewals -= usize::from(matches!(&input, Input::Stored { op: Op::Renew { .. }, .. }));
                        self.board.handle_input(self.now, input);
                        self.drain();
                    }
                }
            }
            self.board.handle_timeout(self.now);
            self.drain();
            if !self.board.is_leased(self.now) {
                without += step;
            }
        }
        without
    }
}

/// Waits for the first lease, then a minute, and returns the time without a lease.
fn time_without_lease(way: fn(Mono, &mut Rng) -> Duration) -> Duration {
    let mut far = Fixture::new(way);
    far.pass(Duration::from_secs(8));
    assert!(far.board.is_leased(far.now), "a lease is had in time");
    let without = far.pass(Duration::from_secs(60));
    assert!(far.renewals_max <= UNDER_WAY_MAX, "{} renewals under way", far.renewals_max);
    without
}

/// Covers: G9.
#[test]
fn lease_is_held_at_any_round_trip_below_its_ttl() {
    let ways: [fn(Mono, &mut Rng) -> Duration; 5] = [
        |_, _| Duration::from_millis(5),
        |_, _| Duration::from_millis(160),
        |_, _| Duration::from_millis(260),
        |_, _| Duration::from_millis(400),
        |_, _| Duration::from_secs(1),
    ];
    for way in ways {
        assert_eq!(time_without_lease(way), Duration::ZERO);
    }
}

/// Covers: G9.
#[test]
fn lease_is_held_while_round_trips_vary_and_grow() {
    assert_eq!(time_without_lease(|_, rng| Duration::from_millis(100 + rng.below(700))), Duration::ZERO);
    let grows = |now: Mono, _: &mut Rng| now.0 / 72 + Duration::from_millis(1);
    assert_eq!(time_without_lease(grows), Duration::ZERO);
}

/// Covers: G1.
#[test]
fn lease_is_invalid_if_its_answer_comes_after_its_ttl() {
    let mut far = Fixture::new(|_, _| Duration::from_secs(2));
    let without = far.pass(Duration::from_secs(60));
    assert_eq!(without, Duration::from_secs(60));
    assert!(far.renewals_max <= 2 * UNDER_WAY_MAX, "{} renewals under way", far.renewals_max);
}
