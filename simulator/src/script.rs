//! Random but meaningful store operations: those of a few nodes on a few sessions, with late copies, wrong
//! positions, unknown users and old tokens among them.
mod blobs;
mod conversations;
mod known;

use blobs::KnownUploads;
pub use blobs::blob_reads;
use conversations::KnownConversations;
pub use conversations::binding_reads;
use known::Known;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{
    AgentId, ControlId, Cursor, Epoch, EventId, FenceToken, Holder, InboxPosition, LeaseId, LinkId, ListenStamp,
    ListenersVersion, MessageId, NodeId, Nonce, Principal, RunId, Seq, SessionId, SessionKey, TenantId, UserId,
};
use turnway_core::private::Private;
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::annotation::Annotation;
use turnway_core::protocol::entry::{Entry, Fact, RunFact, SessionFact};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::{Content, ControlEntry, ControlRequest, Input, Message, Role, Strategy};
use turnway_core::rng::Rng;
use turnway_core::store::{Append, CreationKey, Op, OpTicket, Reply, RouteVersion, SnapshotWrite};
use turnway_core::time::{Millis, Mono, Now};

/// Number of versions of the binding of the one conversation.
const ROUTE_VERSIONS: u64 = 40;

/// Emphasis of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emphasis {
    /// No kind of operation is preferred.
    Even,
    /// Many inputs and controls, so that inboxes fill.
    Crowded,
    /// Large texts, so that byte limits are reached.
    Heavy,
    /// Many subscriber nodes.
    Public,
    /// Many changes of few bindings of conversations.
    Bound,
    /// Inputs of some 100 KiB that end soon, so that the bytes of an inbox reach their limit and return again and
    /// again.
    Bulky,
}

/// A source of operations that learns from the answers.
#[derive(Clone, Debug)]
pub struct Script {
    rng: Rng,
    mood: Emphasis,
    keys: Vec<SessionKey>,
    known: Vec<Known>,
    conversations: KnownConversations,
    uploads: KnownUploads,
    past: Vec<Op>,
    lives: Vec<Holder>,
    runs: Vec<RunId>,
    controls: Vec<ControlId>,
    count: u64,
    leases: bool,
}

/// Unwraps names that are well-formed by construction.
fn name<T, E: std::fmt::Debug>(parsed: Result<T, E>) -> T {
    parsed.expect("a well-formed name")
}

impl Script {
    /// Creates a script for a seed, with any emphasis but [`Emphasis::Bulky`]. Without `leases` the script never asks
    /// for a lease and never expires an id.
    pub fn new(seed: u64, leases: bool) -> Self {
        let mut rng = Rng::from_number(seed);
        let mood = match rng.below(8) {
            0 => Emphasis::Crowded,
            1 => Emphasis::Heavy,
            2 => Emphasis::Public,
            3 => Emphasis::Bound,
            _ => Emphasis::Even,
        };
        Self::in_mood(mood, rng, leases)
    }

    /// Creates a script for a seed, with emphasis [`Emphasis::Bulky`].
    pub fn bulky(seed: u64, leases: bool) -> Self {
        Self::in_mood(Emphasis::Bulky, Rng::from_number(seed), leases)
    }

    /// Creates a script for a seed, with emphasis [`Emphasis::Bound`].
    pub fn bound(seed: u64) -> Self {
        Self::in_mood(Emphasis::Bound, Rng::from_number(seed), false)
    }

    fn in_mood(mood: Emphasis, mut rng: Rng, leases: bool) -> Self {
        // Names that sort differently by session than by concatenation.
        let keys = [("a", "s"), ("a-b", "s"), ("a", "s-1"), ("a", "S")];
        let key = |(tenant, session): (&str, &str)| SessionKey {
            tenant: name(TenantId::parse(tenant)),
            session: name(SessionId::parse(session)),
        };
        let count = match mood {
            Emphasis::Even => 2 + rng.below(3) as usize,
            Emphasis::Crowded | Emphasis::Heavy | Emphasis::Bound => 2,
            Emphasis::Public | Emphasis::Bulky => 1,
        };
        let keys: Vec<_> = keys.into_iter().take(count).map(key).collect();
        let lives = (0..3).map(|n| Holder { node: NodeId(n % 2), life: LeaseId(n) }).collect();
        let known = vec![Known::default(); keys.len()];
        let conversations = KnownConversations::default();
        let uploads = KnownUploads::default();
        let past = Vec::new();
        Self {
            rng,
            mood,
            keys,
            known,
            conversations,
            uploads,
            past,
            lives,
            runs: Vec::new(),
            controls: Vec::new(),
            count: 0,
            leases,
        }
    }

    /// Returns the emphasis of this sequence.
    pub fn mood(&self) -> Emphasis {
        self.mood
    }
    /// Returns the sessions of this sequence.
    pub fn keys(&self) -> &[SessionKey] {
        &self.keys
    }
    /// Returns the random numbers, for the caller.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Returns the next operation.
    pub fn next(&mut self, now: Now) -> Op {
        self.count += 1;
        let op = if !self.past.is_empty() && self.rng.chance(12) {
            let late = self.rng.below(self.past.len() as u64) as usize;
            self.past[late].clone()
        } else {
            self.fresh(now)
        };
        if self.past.len() < 64 {
            self.past.push(op.clone());
        } else {
            let forgotten = self.rng.below(64) as usize;
            self.past[forgotten] = op.clone();
        }
        op
    }

    /// Returns the relative frequency of each kind of operation.
    fn shares(&self, n: usize) -> [(u64, char); 21] {
        let more = |mood, share| if self.mood == mood { share } else { 0 };
        [
            (16 + more(Emphasis::Crowded, 30) + more(Emphasis::Bulky, 60), 'a'),
            (6 + more(Emphasis::Crowded, 40), 'c'),
            (if self.known[n].fenced { 60 } else { 6 }, 'o'),
            (
                if self.mood == Emphasis::Crowded { 6 } else { 24 }
                    + more(Emphasis::Heavy, 30)
                    + more(Emphasis::Bulky, 60),
                '+',
            ),
            (4, 'r'),
            (3, 't'),
            (4 + more(Emphasis::Public, 60), 'l'),
            (3, 'u'),
            (4, 'v'),
            (5, 'f'),
            (3, 'i'),
            (4, 'k'),
            (3, 'm'),
            (3, 's'),
            (4, 'g'),
            (if self.leases { 10 } else { 0 }, 'e'),
            (4, 'n'),
            (4, 'w'),
            (2 + more(Emphasis::Bound, 300), 'b'),
            (4, 'p'),
            // With frequent deletions an inbox would never fill.
            (if matches!(self.mood, Emphasis::Crowded | Emphasis::Bulky) { 0 } else { 2 }, 'd'),
        ]
    }

    fn fresh(&mut self, now: Now) -> Op {
        let n = self.rng.below(self.keys.len() as u64) as usize;
        let key = self.keys[n].clone();
        let shares = self.shares(n);
        let mut at = self.rng.below(shares.iter().map(|(share, _)| share).sum());
        let kind = shares.iter().find(|(share, _)| {
            let hit = at < *share;
            at = at.saturating_sub(*share);
            hit
        });
        match kind.map_or('s', |(_, kind)| *kind) {
            'a' => self.accept(key),
            'c' => self.control(n, key),
            'o' => self.claim(n, key),
            '+' => self.append(now, n, key),
            'r' => Op::Release { token: self.token(n), tail: self.tail(n), drain: self.rng.chance(60), key },
            't' => {
                let to = self.holder();
                let nonce = Nonce(self.rng.next_u128());
                Op::Transfer { token: self.token(n), tail: self.tail(n), to, nonce, key }
            }
            'l' => Op::Listen { node: self.node(), stamp: self.stamp(), key },
            'u' => Op::Unlisten { node: self.node(), stamp: self.stamp(), key },
            'v' => Op::ReadView { key },
            'f' => self.read(n, key),
            'i' => {
                let token = self.token(n);
                let after = self.some_place(&self.known[n].inputs.iter().map(|(p, _)| *p).collect::<Vec<_>>());
                let control_after = self.some_place(&self.known[n].controls.clone());
                Op::Inbox { key, token, after, control_after }
            }
            'k' => self.keep(n, key),
            'm' => Op::Trim { token: self.token(n), upto: self.tail(n), key },
            'g' => self.value(),
            'b' => {
                let user = self.user();
                let principal = self.principal(&key, user);
                self.conversations.next(&mut self.rng, now, key, principal)
            }
            'p' => {
                let user = self.user();
                let principal = self.principal(&key, user);
                self.uploads.next(&mut self.rng, key, principal)
            }
            'e' => self.lease(key, now),
            'n' => self.sessions(now, key.tenant),
            'd' => {
                let user = self.user();
                let principal = self.principal(&key, user);
                let link = LinkId(self.count);
                Op::Delete { key, principal, link }
            }
            'w' => {
                let user = self.user();
                let run = self.rng.below(self.runs.len() as u64) as usize;
                let principal = self.principal(&key, user);
                let link = LinkId(self.count);
                let run_id = self.runs.get(run).cloned().or_else(|| self.ghost(n));
                if self.count.is_multiple_of(4) {
                    return self.find_control(key, principal);
                }
                let fence = self.count.is_multiple_of(3).then(|| self.route(&key));
                run_id.map_or(Op::Sweep { limit: 1 }, |run_id| Op::Find { key, principal, run_id, link, fence })
            }
            _ => Op::Sweep { limit: self.rng.below(5) as u32 },
        }
    }

    fn read(&mut self, n: usize, key: SessionKey) -> Op {
        let after = self.tail(n).0.saturating_sub(self.rng.below(40));
        let limit = self.rng.below(30);
        let limit = if self.mood == Emphasis::Heavy { 256 } else { limit as u32 };
        Op::Read { key, after: Seq(after), limit }
    }

    // === parts of operations ===

    fn user(&mut self) -> UserId {
        let user = if self.rng.chance(92) { "ann" } else { "bob" };
        name(UserId::parse(user))
    }
    fn principal(&mut self, key: &SessionKey, user: UserId) -> Principal {
        Principal { tenant: key.tenant.clone(), user, operator: self.rng.chance(3), writes: true }
    }
    fn holder(&mut self) -> Holder {
        let n = self.rng.below(self.lives.len() as u64) as usize;
        self.lives[n]
    }
    fn node(&mut self) -> NodeId {
        let nodes = if self.mood == Emphasis::Public { 400 } else { 4 };
        NodeId(u128::from(self.rng.below(nodes)))
    }
    fn stamp(&mut self) -> ListenStamp {
        ListenStamp(self.count.saturating_sub(self.rng.below(20)))
    }
    /// Mostly the newest token, sometimes an old or an unknown one.
    fn token(&mut self, n: usize) -> FenceToken {
        let old = self.rng.below(self.known[n].tokens.len() as u64) as usize;
        let tokens = &self.known[n].tokens;
        let some = if self.rng.chance(90) { tokens.last() } else { tokens.get(old) };
        some.copied().unwrap_or_default()
    }
    fn tail(&mut self, n: usize) -> Seq {
        let tail = self.known[n].tail.seq.0;
        match self.rng.below(20) {
            0 => Seq(tail + 1),
            1 => Seq(tail.saturating_sub(1)),
            2 => Seq(self.rng.below(tail + 1)),
            _ => Seq(tail),
        }
    }
    fn some_place(&mut self, places: &[InboxPosition]) -> InboxPosition {
        let n = self.rng.below(2 * places.len() as u64 + 1) as usize;
        places.get(n).copied().unwrap_or_default()
    }
    fn text(&mut self) -> String {
        let bytes = if self.mood == Emphasis::Heavy { 30_000 + self.rng.below(33_000) } else { self.rng.below(300) };
        "höh \"\\\n".repeat(bytes as usize / 8)
    }

    // === larger operations ===

    fn accept(&mut self, key: SessionKey) -> Op {
        let user = self.user();
        // Few names, so that messages repeat, also with another body.
        let named = format!("m{}", if self.rng.chance(85) { self.count } else { self.rng.below(self.count) });
        let message_id = name(MessageId::parse(&named));
        let strategies = [Strategy::Enqueue, Strategy::Interrupt, Strategy::Reject];
        let text = match self.mood {
            Emphasis::Bulky => "höh ".repeat(18_000 + self.rng.below(5_000) as usize),
            Emphasis::Heavy => self.text(),
            Emphasis::Even | Emphasis::Crowded | Emphasis::Public | Emphasis::Bound if self.rng.chance(50) => {
                self.text()
            }
            Emphasis::Even | Emphasis::Crowded | Emphasis::Public | Emphasis::Bound => String::new(),
        };
        let input = Input {
            run_id: RunId::derive(&key, &user, &message_id),
            message_id,
            request_id: None,
            user: user.clone(),
            agent_id: None,
            history: (self.mood != Emphasis::Bulky && self.rng.chance(20)).then(|| said_before(&text)),
            message: Message { role: Role::User, content: Content::Text(text) },
            strategy: if self.mood == Emphasis::Bulky || self.rng.chance(80) {
                strategies[0]
            } else {
                strategies[self.rng.below(3) as usize]
            },
            // Derived from the count, not from the random numbers, so that seeds keep their meaning.
            replaces: self.count.is_multiple_of(10).then(|| RunId::derive(&key, &user, &name(MessageId::parse("m1")))),
            metadata: None,
            origin: None,
            traceparent: None,
        };
        self.runs.push(input.run_id.clone());
        let principal = self.principal(&key, user);
        let hash = input.body_hash();
        let route = self.count.is_multiple_of(4).then(|| self.route(&key));
        Op::Accept { key, principal, input: Arc::new(input), hash, route }
    }

    /// Returns a version of the binding of the one conversation, derived from the count like what an input replaces.
    fn route(&self, key: &SessionKey) -> RouteVersion {
        route(key, self.count % ROUTE_VERSIONS)
    }

    /// Looks one of the latest control entries up, which may be another session's, or one that never existed.
    fn find_control(&mut self, key: SessionKey, principal: Principal) -> Op {
        let known: Vec<&ControlId> = self.controls.iter().rev().take(8).collect();
        let id = known.get(self.rng.below(9) as usize).copied().cloned();
        let id = id.unwrap_or_else(|| name(ControlId::parse("none")));
        Op::FindControl { key, principal, id, ticket: OpTicket(self.count) }
    }

    fn control(&mut self, n: usize, key: SessionKey) -> Op {
        let user = self.user();
        let run = self.rng.below(self.runs.len() as u64) as usize;
        let what = match self.rng.below(5) {
            4 => ControlRequest::Remove { agent_id: name(AgentId::parse("a")), reason: None },
            0 => ControlRequest::Open { agents: Vec::new(), active: None },
            1 => ControlRequest::Close,
            2 => ControlRequest::Cancel { run_id: None },
            // A run of this session, of another one, or one that never existed.
            _ => ControlRequest::Cancel { run_id: self.runs.get(run).cloned().or_else(|| self.ghost(n)) },
        };
        let id = name(ControlId::parse(&format!("c{}", self.count - self.rng.below(self.count.min(2)))));
        self.controls.push(id.clone());
        let control = Arc::new(ControlEntry { id, user: user.clone(), request_id: None, what });
        Op::Control { principal: self.principal(&key, user), control, create: self.rng.chance(50), key }
    }

    fn ghost(&self, n: usize) -> Option<RunId> {
        let user = name(UserId::parse("ann"));
        let message = name(MessageId::parse("ghost"));
        Some(RunId::derive(&self.keys[n], &user, &message))
    }

    fn claim(&mut self, n: usize, key: SessionKey) -> Op {
        let mut expect = self.known[n].seen;
        if self.rng.chance(10) {
            expect.epoch.0 += 1;
        }
        let floor = Epoch(expect.epoch.0 + self.rng.below(3));
        Op::Claim { key, holder: self.holder(), nonce: Nonce(self.rng.next_u128()), expect, floor }
    }

    fn fact(&mut self, now: Now) -> Arc<Entry> {
        let fact = match self.rng.below(5) {
            0 => Fact::Session(SessionFact::Notice { name: "NO_ACTIVE_SPEAKING".to_owned(), request_id: None }),
            1 => Fact::Run(RunFact::Done {
                attempt: 1,
                stop_reason: StopReason::EndTurn,
                text_bytes: self.count,
                text_sha256: String::new(),
                usage: None,
                host_run_id: None,
            }),
            _ => {
                Fact::Run(RunFact::TextDelta { attempt: 1, offset: self.count, text: Private(self.text()), mark: None })
            }
        };
        Arc::new(Entry {
            id: EventId::new(now.store, self.rng.next_u128()),
            time: now.store,
            source: "turnway".into(),
            correlation_id: "x".into(),
            causation_id: None,
            traceparent: None,
            run_id: self.runs.last().cloned(),
            fact,
        })
    }

    /// Returns an input to end. Some inputs stay known and are ended again; some are named after another run.
    fn end(&mut self, n: usize) -> Option<(InboxPosition, RunId)> {
        let inputs = &mut self.known[n].inputs;
        let at = self.rng.below(inputs.len() as u64) as usize;
        if at >= inputs.len() {
            return None;
        }
        let (position, run) = if self.rng.chance(80) { inputs.remove(at) } else { inputs[at].clone() };
        let other = self.rng.below(self.runs.len() as u64) as usize;
        let other = self.runs.get(other).filter(|_| self.rng.chance(10)).cloned();
        Some((position, other.unwrap_or(run)))
    }

    fn append(&mut self, now: Now, n: usize, key: SessionKey) -> Op {
        let facts: Vec<_> = (0..self.rng.below(5)).map(|_| self.fact(now)).collect();
        let ends = if self.mood == Emphasis::Bulky { 5 } else { 3 };
        let ends = (0..self.rng.below(ends)).filter_map(|_| self.end(n)).collect();
        let controls = self.known[n].controls.clone();
        let answers = controls.into_iter().filter(|_| self.rng.chance(20)).collect();
        let closed = match self.rng.below(16) {
            0 if self.mood != Emphasis::Bulky => Some(true),
            0..4 => Some(false),
            _ => None,
        };
        let annotations = self.annotations();
        let known = ListenersVersion(self.known[n].version.0 + u64::from(self.rng.chance(10)));
        let token = self.token(n);
        let after = self.tail(n);
        Op::Append(Box::new(Append {
            key,
            token,
            after,
            facts,
            ends,
            answers,
            closed,
            annotations,
            known_listeners: known,
        }))
    }

    /// Returns changes of annotations, mostly none.
    fn annotations(&mut self) -> Vec<Annotation> {
        let count = self.rng.below(20).saturating_sub(17);
        let change = |at: u64| Annotation {
            name: ["label", "a: \n'"][at as usize % 2],
            text: (at < 4).then(|| Private(["blue", "\u{e9} \"x\" 1"][at as usize / 2].to_owned())),
        };
        (0..count).map(|_| change(self.rng.below(6))).collect()
    }

    /// Returns a claim that wins, if the last known state of the session still holds.
    pub fn claim_of(&mut self, n: usize) -> Op {
        let key = self.keys[n].clone();
        let expect = self.known[n].seen;
        let nonce = Nonce(self.rng.next_u128());
        Op::Claim { key, holder: self.lives[0], nonce, expect, floor: expect.epoch }
    }

    /// Returns a write that ends every input of a claimed session, and opens the session.
    pub fn end_of_all(&mut self, n: usize) -> Op {
        let known = &mut self.known[n];
        let token = known.tokens.last().copied().unwrap_or_default();
        let after = known.tail.seq;
        let ends = std::mem::take(&mut known.inputs);
        let version = known.version;
        let key = self.keys[n].clone();
        let answers = known.controls.clone();
        let closed = Some(false);
        Op::Append(Box::new(Append {
            key,
            token,
            after,
            facts: Vec::new(),
            ends,
            answers,
            closed,
            annotations: Vec::new(),
            known_listeners: version,
        }))
    }

    /// Returns a new input of exactly this weight.
    pub fn input_of(&mut self, n: usize, weight: usize) -> Op {
        self.count += 1;
        let key = self.keys[n].clone();
        let mut input = plain_input(&key, &format!("m{}", self.count));
        input.message.content = Content::Text("x".repeat(weight.saturating_sub(input.weight())));
        accept_plain(key, input, None)
    }

    fn keep(&mut self, n: usize, key: SessionKey) -> Op {
        let at = Cursor { seq: self.tail(n), epoch: self.known[n].tail.epoch };
        let state = self.text().into_bytes().into();
        Op::WriteSnapshot(Box::new(SnapshotWrite { key, token: self.token(n), at, state }))
    }

    fn sessions(&mut self, now: Now, tenant: TenantId) -> Op {
        let user = self.rng.chance(50).then(|| self.user());
        let before = self.rng.chance(40).then(|| {
            let session = self.keys[self.rng.below(self.keys.len() as u64) as usize].session.clone();
            CreationKey { at: Millis(now.store.0 - self.rng.below(2_000)), session }
        });
        let limit = if self.rng.chance(50) { 100 } else { self.rng.below(3) as u32 };
        Op::ListSessions { tenant, user, before, limit, link: LinkId(self.count) }
    }

    fn value(&mut self) -> Op {
        let named = format!("conv/{}", self.rng.below(3));
        if self.rng.chance(30) {
            return Op::Get { name: named };
        }
        let value = self.rng.chance(80).then(|| self.text().into_bytes());
        Op::Put { name: named, expect: self.rng.below(3), value }
    }

    fn lease(&mut self, key: SessionKey, now: Now) -> Op {
        match self.rng.below(8) {
            0 => Op::Retire { holder: self.holder() },
            1 | 2 => Op::Lease { node: self.node(), sent: Mono::default() },
            3 | 4 => Op::Expire { key, before_ms: now.store.0.saturating_sub(self.rng.below(50)) },
            _ => {
                let ttl = Duration::from_millis(self.rng.below(5000));
                Op::Renew { holder: self.holder(), ttl, fresh: self.rng.chance(50), sent: Mono(Duration::ZERO) }
            }
        }
    }

    /// Learns from an answer.
    pub fn learn(&mut self, op: &Op, reply: &Reply) {
        self.conversations.learn(op, reply);
        let key = op.key().and_then(|key| self.keys.iter().position(|known| known == key));
        if let Some(n) = key {
            self.known[n].learn(op, reply);
        }
    }
}

/// Returns a version of the binding of the one conversation.
fn route(key: &SessionKey, version: u64) -> RouteVersion {
    let place = RunId::derive(key, &name(UserId::parse("ann")), &name(MessageId::parse("place")));
    RouteVersion { place, version }
}

/// Returns an input of one user without content.
fn plain_input(key: &SessionKey, message_id: &str) -> Input {
    let user = name(UserId::parse("ann"));
    let message_id = name(MessageId::parse(message_id));
    Input {
        run_id: RunId::derive(key, &user, &message_id),
        message_id,
        request_id: None,
        user,
        agent_id: None,
        history: None,
        message: Message { role: Role::User, content: Content::Text(String::new()) },
        strategy: Strategy::Enqueue,
        replaces: None,
        metadata: None,
        origin: None,
        traceparent: None,
    }
}

fn accept_plain(key: SessionKey, input: Input, route: Option<RouteVersion>) -> Op {
    let principal = Principal { tenant: key.tenant.clone(), user: input.user.clone(), operator: true, writes: true };
    let hash = input.body_hash();
    Op::Accept { key, principal, input: Arc::new(input), hash, route }
}

/// Returns ops whose answers tell which versions of the conversation's binding each session still accepts: one input that
/// each version leads there, the oldest first. They change the sessions.
pub fn fence_probes(keys: &[SessionKey]) -> Vec<Op> {
    let probe = |key: &SessionKey, version| {
        accept_plain(key.clone(), plain_input(key, "fence-probe"), Some(route(key, version)))
    };
    keys.iter().flat_map(|key| (0..ROUTE_VERSIONS).map(|version| probe(key, version))).collect()
}

/// Returns list operations for each tenant and each of its users.
pub fn lists(keys: &[SessionKey]) -> Vec<Op> {
    let users = [None, Some("ann"), Some("bob")].map(|user| user.map(|user| name(UserId::parse(user))));
    let list = |tenant: &TenantId, user: &Option<UserId>| {
        let tenant = tenant.clone();
        let user = user.clone();
        let limit = u32::MAX;
        let link = LinkId(0);
        Op::ListSessions { tenant, user, before: None, limit, link }
    };
    keys.iter().flat_map(|key| users.iter().map(move |user| list(&key.tenant, user))).collect()
}

/// Time at which every script starts.
pub const START_TIME: Now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };

fn said_before(text: &str) -> History {
    History::from_messages(&[serde_json::json!({ "role": "user", "content": text })]).expect("short enough")
}
