//! Bindings of conversations on both stores, at a large number: `cargo bench -p turnway-benches --bench bindings --
//! [COUNT [REDIS_URL]]`. Latency is measured one op after the other, beside the cheapest op of the same store; rates with
//! 256 ops in flight. Expiry is what the upkeep of a node does with the store, without the logs of sessions.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use turnway::config::redis::RedisUrl;
use turnway::store::embedded::{EmbeddedOptions, EmbeddedStore};
use turnway::store::redis::{RedisStore, RedisStoreOptions};
use turnway::store::{AnswerSink, Store};
use turnway_core::id::{MessageId, Nonce, Principal, RunId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::limits::{DUE_BINDINGS_MAX, SESSION_BINDINGS_MAX};
use turnway_core::protocol::binding::{ExpiryRules, Generation, TargetKind, UnbindReason};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::input::{Content, Input, Message, Role, Strategy};
use turnway_core::rng::Rng;
use turnway_core::store::binding::{BindingAction, BindingRow, NewBinding, UnnamedFields};
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply, StoreError};
use turnway_core::time::{Millis, Mono, Now};

/// Ops in flight where a rate is measured.
const ABREAST: usize = 256;
/// Samples of a latency, and changes of a rate.
const SAMPLES: usize = 50_000;
/// Bindings that expire at one time.
const EXPIRING: usize = 100_000;

/// A store with its answers.
struct Bench {
    store: Box<dyn Store>,
    answers: Receiver<(Op, Result<Reply, StoreError>)>,
    name: &'static str,
}

fn session_key(n: usize) -> SessionKey {
    let session = SessionId::parse(&format!("session-{n}")).expect("a name");
    SessionKey { tenant: TenantId::default_tenant(), session }
}

fn principal() -> Principal {
    Principal { tenant: TenantId::default_tenant(), user: UserId::local(), operator: true, writes: true }
}

/// Returns an op that creates a session.
fn create(n: usize) -> Op {
    let key = session_key(n);
    let principal = principal();
    let message_id = MessageId::parse("m").expect("a name");
    let input = Input {
        run_id: RunId::derive(&key, &principal.user, &message_id),
        message_id,
        request_id: None,
        user: principal.user.clone(),
        agent_id: None,
        message: Message { role: Role::User, content: Content::Text("hello".to_owned()) },
        history: None,
        replaces: None,
        strategy: Strategy::Enqueue,
        metadata: None,
        origin: None,
        traceparent: None,
    };
    let hash = input.body_hash();
    Op::Accept { key, principal, input: Arc::new(input), hash }
}

fn conversation(n: usize) -> ConversationRef {
    ConversationRef::without_parent("rooms", "main", &format!("thread-{n}")).expect("a reference")
}

fn change(n: usize, action: BindingAction) -> Op {
    ConversationOp::Change { key: conversation(n).key(&TenantId::default_tenant()), action }.into()
}

fn bind(n: usize, expiry: ExpiryRules) -> Op {
    let new = NewBinding {
        conversation: conversation(n),
        session: session_key(n / SESSION_BINDINGS_MAX).session,
        principal: principal(),
        target_kind: TargetKind::Session,
        expected: None,
        expiry,
        metadata: BTreeMap::new(),
        unnamed: UnnamedFields::default(),
        nonce: Nonce(n as u128 + 1),
    };
    change(n, BindingAction::Bind(Box::new(new)))
}

/// Returns the row of a reply.
fn row_of(reply: Reply) -> Option<Box<BindingRow>> {
    let Reply::Conversation(ConversationReply::Row { row, .. }) = reply else { panic!("{reply:?}") };
    row
}

impl Bench {
    fn ask(&self, op: Op) -> Reply {
        self.store.submit(op);
        self.answers.recv().expect("an answer").1.expect("a reply")
    }

    /// Performs ops, many at a time; `next` may add one for each reply. Returns the time it took.
    fn perform(&self, ops: impl Iterator<Item = Op>, mut next: impl FnMut(Op, Reply) -> Option<Op>) -> Duration {
        let mut ops = ops.peekable();
        let start = Instant::now();
        let mut in_flight = 0;
        loop {
            while in_flight < ABREAST
                && let Some(op) = ops.next()
            {
                self.store.submit(op);
                in_flight += 1;
            }
            if in_flight == 0 {
                return start.elapsed();
            }
            let (op, result) = self.answers.recv().expect("an answer");
            match next(op, result.expect("a reply")) {
                Some(more) => self.store.submit(more),
                None => in_flight -= 1,
            }
        }
    }

    fn rate(&self, what: &str, count: usize, ops: impl Iterator<Item = Op>) {
        let took = self.perform(ops, |_, _| None);
        eprintln!("{}: {what}: {:.0}/s", self.name, count as f64 / took.as_secs_f64());
    }

    /// Measures an op, one after the other. Returns the p99.
    fn latency(&self, what: &str, op: impl Fn(usize) -> Op) -> Duration {
        let mut took: Vec<Duration> = (0..SAMPLES)
            .map(|n| {
                let op = op(n);
                let start = Instant::now();
                self.ask(op);
                start.elapsed()
            })
            .collect();
        took.sort_unstable();
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
        eprintln!("{}: {what}: p50 {:.1?}, p99 {:.1?}", self.name, at(0.5), at(0.99));
        at(0.99)
    }

    /// Has the log of each session record what was changed, as far as the rows go.
    fn settle(&self, numbers: impl Iterator<Item = usize>) {
        self.perform(numbers.map(|n| change(n, BindingAction::Resolve)), |op, reply| settle_next(&op, row_of(reply)));
    }

    fn run(&self, count: usize) {
        let sessions = count.div_ceil(SESSION_BINDINGS_MAX);
        self.perform((0..sessions).map(create), |_, _| None);
        self.rate("bind", count, (0..count).map(|n| bind(n, ExpiryRules::default())));
        self.settle(0..count);
        let random = |n: usize| Rng::from_number(n as u64).below(count as u64) as usize;
        let bare = self.latency("the cheapest op (a named value that is not there)", |_| Op::Get { name: "x".into() });
        let resolve = self.latency("resolve", |n| change(random(n), BindingAction::Resolve));
        eprintln!(
            "{}: resolve beside the cheapest op, p99: x {:.2}",
            self.name,
            resolve.as_secs_f64() / bare.as_secs_f64()
        );
        let looked_up = (0..SAMPLES).map(|n| change(random(n), BindingAction::Resolve));
        self.rate("resolve, 256 at a time", SAMPLES, looked_up);
        self.unbind(SAMPLES.min(count));
        self.expire(count, EXPIRING.min(count));
    }

    fn unbind(&self, count: usize) {
        let mut generations = vec![Generation::default(); count];
        for (n, generation) in generations.iter_mut().enumerate() {
            let row = row_of(self.ask(change(n, BindingAction::Resolve))).expect("a row");
            *generation = row.generation;
        }
        let reason = UnbindReason::Manual;
        let ops = generations.iter().enumerate();
        let ops = ops.map(|(n, generation)| change(n, BindingAction::Unbind { generation: *generation, reason }));
        self.rate("unbind", count, ops);
        self.settle(0..count);
        self.rate("bind again", count, (0..count).map(|n| bind(n, ExpiryRules::default())));
        self.settle(0..count);
    }

    /// Lets bindings expire among many that do not, as a node's upkeep ends them.
    fn expire(&self, count: usize, expiring: usize) {
        let soon = ExpiryRules { max_age: Some(1), ..ExpiryRules::default() };
        let first = count;
        let sessions = first / SESSION_BINDINGS_MAX..=(first + expiring) / SESSION_BINDINGS_MAX;
        self.perform(sessions.map(create), |_, _| None);
        self.perform((first..first + expiring).map(|n| bind(n, soon)), |_, _| None);
        self.settle(first..first + expiring);
        let start = Instant::now();
        let mut ended = 0;
        while ended < expiring {
            let found = self.ask(ConversationOp::FindDue { limit: DUE_BINDINGS_MAX }.into());
            let Reply::Conversation(ConversationReply::Due(due)) = found else { panic!("{found:?}") };
            let tend = |key| ConversationOp::Change { key, action: BindingAction::Tend }.into();
            self.perform(due.into_iter().map(tend), |op, reply| {
                let next = settle_next(&op, row_of(reply));
                ended += usize::from(next.is_none());
                next
            });
        }
        eprintln!("{}: {expiring} bindings of {} expired: {:.1?}", self.name, count + expiring, start.elapsed());
    }
}

/// Returns the op that settles the oldest report of a row.
fn settle_next(op: &Op, row: Option<Box<BindingRow>>) -> Option<Op> {
    let Op::Conversation { op: ConversationOp::Change { key, .. }, .. } = op else { return None };
    let row = row?;
    let report = row.reports.front()?;
    let action = BindingAction::Settle { generation: report.binding.generation, is_end: report.ended.is_some() };
    Some(ConversationOp::Change { key: key.clone(), action }.into())
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let count = arguments.next().map_or(1_000_000, |count| count.parse().expect("a number of bindings"));
    let redis = arguments.next();
    let sink = || -> (AnswerSink, _) {
        let (sender, answers) = channel();
        (Arc::new(move |op, result| drop(sender.send((op, result)))), answers)
    };
    let dir = tempfile::tempdir().expect("a directory");
    let start = Instant::now();
    let clock = move || Now {
        mono: Mono(start.elapsed()),
        store: Millis(1_764_000_000_000 + start.elapsed().as_millis() as u64),
    };
    let options = EmbeddedOptions::new(Arc::new(clock), Arc::new(|fault| panic!("{fault}")));
    let (answer, answers) = sink();
    let store = EmbeddedStore::open(dir.path(), options, answer).expect("a store");
    Bench { store: Box::new(store), answers, name: "embedded" }.run(count);
    if let Some(url) = redis {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let url = RedisUrl::parse(&url).expect("a URL");
        let (answer, answers) = sink();
        let opened = runtime.block_on(RedisStore::open(url, RedisStoreOptions::default(), answer));
        Bench { store: Box::new(opened.expect("a store")), answers, name: "redis" }.run(count);
    }
}
