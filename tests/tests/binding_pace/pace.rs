//! The measurements: a store is filled with bindings, which are looked up, ended and made again in rounds; some expire.
//! Each step also checks what the store answers.
use crate::bare_redis::{BareRedis, OWN_CALLS_MAX};
use crate::figures::Figures;
use crate::ops::{
    SESSION_CONVERSATIONS, bind, changed_key, create_session, number_of, read_controls, resolve, row_of, settle, unbind,
};
use crate::store_client::StoreClient;
use crate::upkeep::{SEARCH_NAMES, Upkeep, searches_max};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};
use turnway::store::embedded::Engine;
use turnway_core::limits::BINDING_IDLE_TIMEOUT;
use turnway_core::protocol::binding::{ExpiryRules, Generation, UnbindReason};
use turnway_core::protocol::conversation::ConversationKey;
use turnway_core::protocol::input::ControlRequest;
use turnway_core::rng::Rng;
use turnway_core::store::binding::BindingRow;
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply};
use turnway_tests::real::{amount, quantile};

/// Expiring bindings, and changes and look-ups of all rounds, for this many stored bindings.
const EXPIRING_SHARE: usize = 10;
const SAMPLES_SHARE: usize = 20;
/// Calls of functions that an op needs: a look-up reads the row. A bind also reads the session and its list, writes the
/// list, and writes the row; an unbind reads and writes the row and writes the list.
const RESOLVE_CALLS: u64 = 1;
const BIND_CALLS: u64 = 5;
const UNBIND_CALLS: u64 = 3;

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Bindings that are stored while everything is measured.
    pub(crate) count: usize,
    /// Further bindings, all of which expire.
    pub(crate) expiring: usize,
    /// Changes and look-ups of a round.
    pub(crate) samples: usize,
    pub(crate) rounds: usize,
}

/// A store in the measurement.
pub(crate) struct Pace {
    pub(crate) store: StoreClient,
    /// The server of the store and bare calls of it; `None` for the embedded store.
    pub(crate) redis: Option<BareRedis>,
    pub(crate) figures: Figures,
    pub(crate) sizes: Sizes,
    /// The generation of each stored binding.
    generations: Vec<Generation>,
    last_nonce: u128,
}

impl Sizes {
    pub(crate) fn from_environment() -> Self {
        let count = amount("BINDING_PACE_COUNT", 20_000);
        let rounds = amount("BINDING_PACE_ROUNDS", 1);
        let samples = (count / SAMPLES_SHARE).max(1);
        Self { count, expiring: (count / EXPIRING_SHARE).max(1), samples, rounds }
    }
}

impl Pace {
    pub(crate) fn new(store: StoreClient, redis: Option<BareRedis>, sizes: Sizes) -> Self {
        let generations = vec![Generation::default(); sizes.count + sizes.expiring];
        Self { store, redis, figures: Figures::default(), sizes, generations, last_nonce: 0 }
    }

    /// Stores the bindings; `stored_bytes` measures the store before and after.
    pub(crate) async fn fill(&mut self, stored_bytes: impl Fn(Option<&BareRedis>) -> u64) {
        let all = 0..self.sizes.count;
        self.create_sessions(all.clone()).await;
        let before = stored_bytes(self.redis.as_ref());
        let lasting = ExpiryRules { idle_timeout: Some(millis(BINDING_IDLE_TIMEOUT)), ..ExpiryRules::default() };
        let took = self.bind(all.clone(), lasting).await;
        self.figures.add("bind while the store is filled, per second", rate(all.len(), took));
        self.settle(all.clone()).await;
        let grown = stored_bytes(self.redis.as_ref()).saturating_sub(before);
        self.figures.add("bytes of a binding", grown as f64 / all.len() as f64);
    }

    async fn create_sessions(&mut self, conversations: Range<usize>) {
        let ops = conversations.step_by(SESSION_CONVERSATIONS).map(create_session);
        self.store
            .pour(ops, |_, reply| {
                assert!(matches!(reply, Reply::Accepted(_)), "{reply:?}");
                None
            })
            .await;
    }

    /// Returns ops that bind conversations, each with a nonce of its own.
    fn binds<T: Iterator<Item = usize>>(
        &mut self,
        numbers: T,
        expiry: ExpiryRules,
    ) -> impl Iterator<Item = Op> + use<T> {
        let first = self.last_nonce + 1;
        self.last_nonce += u128::try_from(self.generations.len()).expect("a number");
        numbers.zip(first..).map(move |(number, nonce)| bind(number, expiry, nonce))
    }

    async fn bind(&mut self, numbers: impl Iterator<Item = usize>, expiry: ExpiryRules) -> Duration {
        let ops = self.binds(numbers, expiry);
        let generations = &mut self.generations;
        self.store
            .pour(ops, |op, reply| {
                let number = number_of(changed_key(&op));
                generations[number] = bound(&row_of(reply));
                None
            })
            .await
    }

    /// Takes the reports from rows, without the logs of the sessions.
    async fn settle(&mut self, numbers: impl Iterator<Item = usize>) {
        let next = |op: Op, reply| settle(number_of(changed_key(&op)), &row_of(reply));
        self.store.pour(numbers.map(resolve), next).await;
    }

    /// Measures one round at all operations.
    pub(crate) async fn measure_round(&mut self, round: usize) {
        self.measure_latency(round).await;
        let step = self.sizes.count / self.sizes.samples;
        let sample = || (round % step..).step_by(step).take(self.sizes.samples);
        let numbers: Vec<usize> = sample().filter(|number| *number < self.sizes.count).collect();
        if let Some(redis) = &self.redis {
            self.figures.add("bare GET, 256 in flight, per second", redis.get_rate(numbers.len()).await);
            self.figures.add("bare SET, 256 in flight, per second", redis.set_rate(numbers.len()).await);
        }
        self.begin_count();
        let took = self.store.pour(numbers.iter().copied().map(resolve), |_, _| None).await;
        self.add_rate("resolve", "GET", numbers.len(), took, RESOLVE_CALLS);
        self.measure_changes(&numbers).await;
        self.measure_recorded_changes(&numbers).await;
    }

    /// Measures look-ups one after the other, each beside the cheapest call of the same store.
    async fn measure_latency(&mut self, round: usize) {
        let mut rng = Rng::from_number(round as u64);
        let mut looked_up = Vec::new();
        let mut bare = Vec::new();
        let mut function = Vec::new();
        let mut again = Vec::new();
        for _ in 0..self.sizes.samples {
            let number = rng.below(self.sizes.count as u64) as usize;
            let op = resolve(number);
            let start = Instant::now();
            let reply = self.store.ask(op).await;
            looked_up.push(start.elapsed());
            assert_eq!(bound(&row_of(reply)), self.generations[number], "{number}");
            match &self.redis {
                Some(redis) => {
                    bare.push(redis.get().await);
                    function.push(redis.call().await);
                }
                None => {
                    let start = Instant::now();
                    let reply = self.store.ask(resolve(number)).await;
                    again.push(start.elapsed());
                    assert_eq!(bound(&row_of(reply)), self.generations[number], "{number}");
                    let op = Op::Get { name: "none".to_owned() };
                    let start = Instant::now();
                    self.store.ask(op).await;
                    bare.push(start.elapsed());
                }
            }
        }
        let cheapest = if self.redis.is_some() { "bare GET" } else { "the cheapest op" };
        for (quantile_name, rank) in [("p50", 0.5), ("p99", 0.99)] {
            let took = quantile(&mut looked_up, rank).as_secs_f64();
            let bare = quantile(&mut bare, rank).as_secs_f64();
            self.figures.add(&format!("resolve, {quantile_name} µs"), took * 1e6);
            self.figures.add(&format!("{cheapest}, {quantile_name} µs"), bare * 1e6);
            self.figures.add(&format!("resolve / {cheapest}, {quantile_name}"), took / bare);
            if self.redis.is_none() {
                let again = quantile(&mut again, rank).as_secs_f64();
                self.figures.add(&format!("resolve of a cached row, {quantile_name} µs"), again * 1e6);
            } else {
                let function = quantile(&mut function, rank).as_secs_f64();
                self.figures.add(&format!("bare function that does nothing, {quantile_name} µs"), function * 1e6);
            }
        }
    }

    /// Measures look-ups in the engine of the embedded store, without its thread.
    pub(crate) fn measure_engine_round(&mut self, round: usize, engine: &mut Engine) {
        let mut rng = Rng::from_number(round as u64);
        let mut took = Vec::new();
        for _ in 0..self.sizes.samples {
            let number = rng.below(self.sizes.count as u64) as usize;
            let ops = vec![resolve(number)];
            let mut found = None;
            let start = Instant::now();
            engine.perform(ops, &mut |_, result| found = Some(result)).expect("no fault");
            took.push(start.elapsed());
            let reply = found.expect("an answer").expect("a reply");
            assert_eq!(bound(&row_of(reply)), self.generations[number], "{number}");
        }
        for (name, rank) in [("p50", 0.5), ("p99", 0.99)] {
            let took = quantile(&mut took, rank).as_secs_f64();
            self.figures.add(&format!("resolve in the engine alone, {name} µs"), took * 1e6);
        }
    }

    /// Measures unbinds and binds, up to the answer that a client gets.
    async fn measure_changes(&mut self, numbers: &[usize]) {
        self.begin_count();
        let generations = &self.generations;
        let ops = numbers.iter().map(|number| unbind(*number, generations[*number]));
        let took = self.store.pour(ops, |op, reply| {
            let number = number_of(changed_key(&op));
            assert_eq!(ended(&row_of(reply)), (generations[number], UnbindReason::Manual));
            None
        });
        let took = took.await;
        self.add_rate("unbind", "SET", numbers.len(), took, UNBIND_CALLS);
        self.settle(numbers.iter().copied()).await;
        self.begin_count();
        let took = self.bind(numbers.iter().copied(), ExpiryRules::default()).await;
        self.add_rate("bind", "SET", numbers.len(), took, BIND_CALLS);
        self.settle(numbers.iter().copied()).await;
    }

    /// Measures unbinds and binds with the entries for the logs of the sessions, as one node does it all.
    async fn measure_recorded_changes(&mut self, numbers: &[usize]) {
        let mut upkeep = Upkeep::new();
        let generations = &self.generations;
        let ops = numbers.iter().map(|number| unbind(*number, generations[*number]));
        let took = upkeep.change_and_record(&mut self.store, ops, |_, _| {}).await;
        self.figures.add("unbind with its entry for the log, per second", rate(numbers.len(), took));
        let ops: Vec<Op> = self.binds(numbers.iter().copied(), ExpiryRules::default()).collect();
        let generations = &mut self.generations;
        let changed = |number: usize, reply: &Reply| generations[number] = bound(&row_of(reply.clone()));
        let took = upkeep.change_and_record(&mut self.store, ops.into_iter(), changed).await;
        self.figures.add("bind with its entry for the log, per second", rate(numbers.len(), took));
        let counts = upkeep.counts;
        let changes = 2 * numbers.len();
        assert_eq!((counts.recorded, counts.settled, counts.searches), (changes, changes, 0), "{counts:?}");
    }

    /// Lets bindings expire among many that do not, as the upkeep of one node ends them.
    pub(crate) async fn expire(&mut self) {
        let Sizes { count, expiring, .. } = self.sizes;
        // Sessions of their own.
        let first = count.next_multiple_of(SESSION_CONVERSATIONS);
        let numbers = first..first + expiring;
        self.generations.resize(numbers.end, Generation::default());
        self.create_sessions(numbers.clone()).await;
        let (nothing, took) = self.search().await;
        assert_eq!(nothing, 0, "nothing is due");
        self.figures.add("search for due rows that finds none, µs", took.as_secs_f64() * 1e6);
        let soon = ExpiryRules { max_age: Some(1), ..ExpiryRules::default() };
        self.bind(numbers.clone(), soon).await;
        self.settle(numbers.clone()).await;
        let (some, took) = self.search().await;
        assert_eq!(some, SEARCH_NAMES.min(expiring));
        self.figures.add("search for due rows that finds 256, µs", took.as_secs_f64() * 1e6);
        self.begin_count();
        let mut upkeep = Upkeep::new();
        let took = upkeep.run_until_settled(&mut self.store, expiring).await;
        self.figures.add("expired bindings, per second", rate(expiring, took));
        self.figures.add("expiry of 100,000, seconds", took.as_secs_f64() * 1e5 / expiring as f64);
        let counts = upkeep.counts;
        assert_eq!((counts.tended, counts.recorded, counts.settled), (expiring, expiring, expiring), "{counts:?}");
        assert!(counts.searches <= searches_max(took) && counts.found <= counts.searches * SEARCH_NAMES, "{counts:?}");
        self.figures.add("searches for 100,000", counts.searches as f64 * 1e5 / expiring as f64);
        if let Some(redis) = &self.redis {
            let server = redis.counts();
            server.assert_no_scan();
            // One for each bucket, of at most 256 names.
            let ranges = 16 * counts.searches as u64;
            assert!(server.calls("zrange") <= ranges + OWN_CALLS_MAX, "{counts:?}: {server:?}");
            let set = self.figures.median("bare SET, 256 in flight, per second");
            self.figures.add("bare SETs in the time of an expiry", set * took.as_secs_f64() / expiring as f64);
        }
        self.check_expired(numbers).await;
    }

    /// Returns the number of rows that are due, at most 256, and the time of the search.
    async fn search(&mut self) -> (usize, Duration) {
        let start = Instant::now();
        let limit = u32::try_from(SEARCH_NAMES).expect("a number");
        let reply = self.store.ask(ConversationOp::FindDue { limit }.into()).await;
        let took = start.elapsed();
        let Reply::Conversation(ConversationReply::Due(due)) = reply else { panic!("{reply:?}") };
        (due.len(), took)
    }

    /// Checks that each of the expired bindings has ended once, and no other.
    async fn check_expired(&mut self, expired: Range<usize>) {
        let generations = &self.generations;
        self.store
            .pour((0..self.sizes.count).chain(expired.clone()).map(resolve), |op, reply| {
                let number = number_of(changed_key(&op));
                let row = row_of(reply);
                assert!(row.reports.is_empty(), "{row:?}");
                match expired.contains(&number) {
                    false => assert_eq!(bound(&row), generations[number]),
                    true => assert_eq!(ended(&row), (generations[number], UnbindReason::MaxAgeExpired)),
                }
                None
            })
            .await;
        let mut ends: BTreeMap<ConversationKey, usize> = BTreeMap::new();
        let sessions = expired.clone().step_by(SESSION_CONVERSATIONS).map(read_controls);
        self.store
            .pour(sessions, |op, reply| {
                let tenant = &op.key().expect("a session").tenant;
                let Reply::Inbox(contents) = reply else { panic!("{reply:?}") };
                for (_, control) in contents.controls {
                    let ControlRequest::RecordBindingEnd { ended, .. } = &control.what else { panic!("{control:?}") };
                    assert_eq!(ended.reason, UnbindReason::MaxAgeExpired);
                    *ends.entry(ended.conversation.key(tenant)).or_default() += 1;
                }
                None
            })
            .await;
        assert!(ends.values().all(|entries| *entries == 1), "an end was recorded twice");
        assert_eq!(ends.len(), expired.len(), "each end was recorded");
        assert_eq!(self.search().await.0, 0, "nothing is left to do");
    }

    fn begin_count(&self) {
        if let Some(redis) = &self.redis {
            redis.reset_counts();
        }
    }

    /// Adds the rate of an op, and on Redis its share of the rate of a bare command and its calls since
    /// [`Self::begin_count`].
    fn add_rate(&mut self, what: &str, bare: &str, count: usize, took: Duration, calls_max: u64) {
        let measured = rate(count, took);
        self.figures.add(&format!("{what}, 256 in flight, per second"), measured);
        let Some(redis) = &self.redis else { return };
        let bare_rate = self.figures.last(&format!("bare {bare}, 256 in flight, per second"));
        self.figures.add(&format!("bare {bare} / {what}, rate"), bare_rate / measured);
        let server = redis.counts();
        server.assert_no_scan();
        let (calls, micros) = server.functions();
        assert!(calls <= calls_max * count as u64 + OWN_CALLS_MAX, "{what}: {calls} calls for {count}");
        self.figures.add(&format!("{what}: calls of functions"), calls as f64 / count as f64);
        self.figures.add(&format!("{what}: the server's time of a call, µs"), micros);
    }
}

/// Returns the generation of a row's active binding.
fn bound(row: &BindingRow) -> Generation {
    row.active().unwrap_or_else(|| panic!("not bound: {row:?}")).generation
}

/// Returns the generation of a row's last binding, and the reason for its end.
fn ended(row: &BindingRow) -> (Generation, UnbindReason) {
    assert!(row.active().is_none(), "still bound: {row:?}");
    let last = row.last_ended.as_ref().unwrap_or_else(|| panic!("never bound: {row:?}"));
    (last.binding.generation, last.reason)
}

fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("a number")
}
