//! Durable turns per second of the embedded store: `cargo bench -p turnway-benches --bench store`. A turn is
//! an accept, an append of its first facts, and an append of the last ones that ends the input; each session
//! submits a step when the previous one is durable.
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use turnway::store::Store;
use turnway::store::embedded::{CommitDurability, EmbeddedOptions, EmbeddedStore};
use turnway_core::id::{
    Epoch, EventId, FenceToken, Holder, InboxPosition, ListenersVersion, MessageId, Nonce, OwnershipSnapshot,
    Principal, RunId, Seq, SessionId, SessionKey, TenantId, UserId,
};
use turnway_core::protocol::entry::{Entry, Fact, SessionFact};
use turnway_core::protocol::input::{Content, Input, Message, Role, Strategy};
use turnway_core::store::{Append, Op, Reply};
use turnway_core::time::{Millis, Mono, Now};

const WINDOW: Duration = Duration::from_secs(3);

struct Session {
    key: SessionKey,
    user: UserId,
    token: FenceToken,
    tail: Seq,
    turns: u64,
    input: Option<(InboxPosition, RunId)>,
    speaking: bool,
}

impl Session {
    fn new(n: usize) -> Self {
        let session = SessionId::parse(&format!("session-{n}")).expect("a name");
        let key = SessionKey { tenant: TenantId::default_tenant(), session };
        let user = UserId::local();
        Self { key, user, token: FenceToken::default(), tail: Seq(0), turns: 0, input: None, speaking: false }
    }

    fn claim(&self) -> Op {
        let holder = Holder::default();
        let nonce = Nonce(1);
        Op::Claim { key: self.key.clone(), holder, nonce, expect: OwnershipSnapshot::default(), floor: Epoch(0) }
    }

    fn accept(&self) -> Op {
        let message_id = MessageId::parse(&format!("message-{}", self.turns)).expect("a name");
        let input = Input {
            run_id: RunId::derive(&self.key, &self.user, &message_id),
            message_id,
            request_id: None,
            user: self.user.clone(),
            agent_id: None,
            message: Message { role: Role::User, content: Content::Text("x".repeat(200)) },
            history: None,
            replaces: None,
            strategy: Strategy::Enqueue,
            metadata: None,
            origin: None,
            traceparent: None,
        };
        let principal =
            Principal { tenant: self.key.tenant.clone(), user: self.user.clone(), operator: false, writes: true };
        let hash = input.body_hash();
        Op::Accept { key: self.key.clone(), principal, input: Arc::new(input), hash, route: None }
    }

    fn append(&self, facts: usize, ends: Vec<(InboxPosition, RunId)>) -> Op {
        let run_id = self.input.as_ref().map(|(_, run_id)| run_id.clone());
        let fact = Fact::Session(SessionFact::Notice { name: "x".repeat(120), request_id: None });
        let entry = Entry {
            id: EventId::new(Millis(1), u128::from(self.tail.0)),
            time: Millis(1_764_000_000_000),
            source: "turnway".into(),
            correlation_id: "x".into(),
            causation_id: None,
            traceparent: None,
            run_id,
            fact,
        };
        Op::Append(Box::new(Append {
            key: self.key.clone(),
            token: self.token,
            after: self.tail,
            facts: std::iter::repeat_n(Arc::new(entry), facts).collect(),
            ends,
            answers: Vec::new(),
            closed: None,
            annotations: Vec::new(),
            known_listeners: ListenersVersion(0),
        }))
    }

    /// Returns the next operation after an answer.
    fn next(&mut self, op: &Op, reply: Reply) -> Op {
        match (op, reply) {
            (_, Reply::Claimed(claimed)) => {
                self.token = claimed.token;
                self.accept()
            }
            (Op::Accept { input, .. }, Reply::Accepted(accepted)) => {
                self.input = Some((accepted.position, input.run_id.clone()));
                self.append(3, Vec::new())
            }
            (_, Reply::Appended { tail, .. }) => {
                self.tail = tail;
                self.speaking = !self.speaking;
                if self.speaking {
                    return self.append(2, self.input.clone().into_iter().collect());
                }
                self.turns += 1;
                self.accept()
            }
            (op, reply) => panic!("{op:?} was answered {reply:?}"),
        }
    }
}

fn measure(count: usize, durability: CommitDurability, two_phase: bool) {
    let dir = tempfile::tempdir().expect("a directory");
    let start = Instant::now();
    let clock = move || Now {
        mono: Mono(start.elapsed()),
        store: Millis(1_764_000_000_000 + start.elapsed().as_millis() as u64),
    };
    let mut options = EmbeddedOptions::new(Arc::new(clock), Arc::new(|fault| panic!("{fault}")));
    (options.durability, options.two_phase) = (durability, two_phase);
    let (sender, answers) = channel();
    let sink = Arc::new(move |op, result| drop(sender.send((op, result))));
    let store = EmbeddedStore::open(dir.path(), options, sink).expect("a store");
    let mut sessions: Vec<_> = (0..count).map(Session::new).collect();
    sessions.iter().for_each(|session| store.submit(session.claim()));
    let mut ops = 0u64;
    let mut waits = Vec::new();
    let mut asked: Vec<_> = vec![Instant::now(); count];
    let start = Instant::now();
    while start.elapsed() < WINDOW {
        let (op, result): (Op, _) = answers.recv().expect("an answer");
        let name = op.key().map(|key| key.session.as_str().trim_start_matches("session-").to_owned());
        let n: usize = name.and_then(|name| name.parse().ok()).expect("a session of ours");
        let next = sessions[n].next(&op, result.expect("a reply"));
        waits.push(asked[n].elapsed());
        asked[n] = Instant::now();
        store.submit(next);
        ops += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    waits.sort_unstable();
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
    let turns: u64 = sessions.iter().map(|session| session.turns).sum();
    eprintln!(
        "{count:>4} sessions, {durability:?}{}: {:>6.0} ops/s, {:>6.0} turns/s, p50 {:.2?}, p99 {:.2?}",
        if two_phase { ", two phases" } else { "" },
        ops as f64 / seconds,
        turns as f64 / seconds,
        at(0.5),
        at(0.99),
    );
}

fn main() {
    for count in [1, 64, 256] {
        measure(count, CommitDurability::Fsync, false);
    }
    measure(256, CommitDurability::Fsync, true);
    measure(256, CommitDurability::Os, false);
}
