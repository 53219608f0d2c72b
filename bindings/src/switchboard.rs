//! The state machine of one node: routes client commands, owns sessions, and delivers notifications. Performs no
//! IO; the gateway's driver performs its outputs.
mod aging;
mod append;
mod ask;
mod deliver;
mod drain;
mod ears;
mod errand;
mod feed;
mod holdings;
mod host;
mod io;
mod join;
mod lease;
mod link;
mod look;
mod read;
mod rebuild;
mod reclaim;
mod ring;
mod seat;
mod spread;
mod stats;
mod sub;
mod takeover;
mod text;
mod transfer;
mod view;

pub use errand::MEMBER_NAMES;
pub use holdings::{Capacity, Held, refusal_of};
pub use io::{Input, Output};
pub use spread::Spread;
pub use stats::{Outcome, Start, Stats, Tally};

use crate::channel::note::Note;
use crate::peer::Words;
use ask::{Ask, AskKey, What};
use feed::Feed;
use lease::{Lease, Suspect};
use link::Links;
use seat::Seat;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{EventId, LinkId, NodeId, RequestId, Seen, SessionKey, Stamp};
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::Directory;
use turnway_core::rng::Rng;
use turnway_core::session::Input as Told;
use turnway_core::store::{Op, Refused, Reply, StoreError};
use turnway_core::time::{Deadline, Mono, Now};
use turnway_core::timers::Timers;
use view::Viewing;

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The id of one start of one process.
    pub node: NodeId,
    /// The known agents.
    pub directory: Arc<Directory>,
    /// From the system, or from a simulation.
    pub seed: [u8; 32],
    /// No other node can share the store (the embedded store), so the lease of a lost owner need not expire first.
    pub alone: bool,
    /// Minimum number of facts kept for each session; `None`: all facts, forever.
    pub keep_facts: Option<u64>,
    /// Time that a session is kept after its last fact; `None`: forever.
    pub max_age: Option<Duration>,
    /// Limits of what users may hold on this node.
    pub capacity: Capacity,
}

/// The router, the edge, the host of session runtimes, and the delivery of one node.
///
/// - Client requests: modules `links`, `requests`, `offers`; reads of states and lists: `queries`.
/// - Subscribed sessions and the position of each link: `feed`, `subscription`, `log_reads`, `deliver`, `text`.
/// - Owned sessions: `ownership`, `owned_session`, `append`, `subscribers`.
/// - The node's own lease, and suspicions of other nodes: `lease`; sessions of dead nodes: `takeover`; shutdown:
///   `drain`, `transfer`.
#[derive(Debug)]
pub struct Switchboard {
    me: NodeId,
    alone: bool,
    keep_facts: Option<u64>,
    aging: aging::Aging,
    directory: Arc<Directory>,
    rng: Rng,
    lease: Lease,
    suspects: BTreeMap<NodeId, Suspect>,
    /// Owner nodes without a lease at the last check, and the time of the first such check.
    lapsed: BTreeMap<NodeId, Mono>,
    takeover: takeover::Takeover,
    /// Nodes that have sent a message to this node.
    peers: BTreeSet<NodeId>,
    seats: BTreeMap<SessionKey, Seat>,
    /// Sessions that the store assigns to this node and that this node does not have: given up while the lease had
    /// lapsed.
    owed: BTreeMap<SessionKey, Seen>,
    asks: BTreeMap<AskKey, Ask>,
    asks_of: BTreeMap<SessionKey, BTreeSet<AskKey>>,
    feeds: BTreeMap<SessionKey, Box<Feed>>,
    /// Links that wait for a session's present state.
    views: BTreeMap<SessionKey, Vec<Waiting>>,
    views_made: u64,
    rebuilds: BTreeMap<SessionKey, Vec<rebuild::Rebuild>>,
    viewing: BTreeMap<SessionKey, Viewing>,
    links: Links,
    holdings: holdings::Holdings,
    stamp: Stamp,
    timers: Timers<Timer>,
    repeats: BTreeMap<u64, Op>,
    repeat: u64,
    drain: Option<drain::Drain>,
    /// Tasks of sessions, by the name of the stored object.
    errands: BTreeMap<String, errand::Out>,
    stats: Stats,
    outbox: VecDeque<Output>,
}

/// A link that waits for a session's present state.
#[derive(Debug)]
struct Waiting {
    link: LinkId,
    request_id: Option<RequestId>,
    /// See [`Switchboard::view_number`].
    asked: u64,
    purpose: Purpose,
}

/// The reason for waiting for a session's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The link has opened the session.
    Open,
    /// The link reads the state without side effects.
    Look,
    /// The link has changed the members.
    Members,
    Handover(EventId),
}

/// Every timer of the switchboard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Renew,
    Sweep,
    Age,
    Beacon,
    Knock,
    Drain,
    Suspect(NodeId),
    Ring(AskKey),
    Read(SessionKey),
    Want(SessionKey),
    Seat(SessionKey),
    Write(SessionKey),
    Linger(SessionKey),
    Reserve(SessionKey),
    Repeat(u64),
}

impl Switchboard {
    /// Creates a node that owns nothing yet. The node requests its lease at its first timeout.
    pub fn new(config: Config) -> Self {
        let mut rng = Rng::from_seed(config.seed);
        let lease = Lease::new(config.node, &mut rng);
        let mut timers = Timers::default();
        timers.set(Timer::Renew, Mono::default());
        timers.set(Timer::Sweep, Mono::default());
        if config.max_age.is_some() {
            timers.set(Timer::Age, Mono::default());
        }
        Self {
            me: config.node,
            alone: config.alone,
            keep_facts: config.keep_facts,
            aging: aging::Aging::new(config.max_age),
            directory: config.directory,
            rng,
            lease,
            suspects: BTreeMap::new(),
            lapsed: BTreeMap::new(),
            takeover: takeover::Takeover::default(),
            peers: BTreeSet::new(),
            seats: BTreeMap::new(),
            owed: BTreeMap::new(),
            asks: BTreeMap::new(),
            asks_of: BTreeMap::new(),
            feeds: BTreeMap::new(),
            views: BTreeMap::new(),
            views_made: 0,
            rebuilds: BTreeMap::new(),
            viewing: BTreeMap::new(),
            links: Links::new(config.capacity),
            holdings: holdings::Holdings::new(config.capacity),
            stamp: Stamp(0),
            timers,
            repeats: BTreeMap::new(),
            repeat: 0,
            drain: None,
            errands: BTreeMap::new(),
            stats: Stats::default(),
            outbox: VecDeque::new(),
        }
    }

    fn store(&mut self, op: Op) {
        self.outbox.push_back(Output::Store(op));
    }

    fn note(&mut self, link: LinkId, note: Note) {
        self.links.send(&mut self.outbox, link, note);
    }

    /// Sends a message to a node, which may be this one.
    fn tell(&mut self, now: Now, to: NodeId, words: Words) {
        if to == self.me {
            self.peer(now, to, words);
        } else {
            self.outbox.push_back(Output::Publish { to, words });
        }
    }

    fn peer(&mut self, now: Now, from: NodeId, words: Words) {
        if from != self.me {
            self.peers.insert(from);
        }
        match words {
            Words::Bell { key, owner, item } => self.bell(now, from, &key, owner, item),
            Words::Taken { run_id, .. } => self.taken(&run_id),
            Words::Answered { control, shown, .. } => self.answered(&control, shown),
            Words::NotMine { key, owner } => self.not_mine(now, &key, owner),
            Words::Hello { key, stamp } => self.hello(now, &key, from, stamp),
            Words::Facts { key, owner, after, facts } => {
                self.facts(now, &key, after, &facts);
                self.watch(now, &key, owner);
            }
            Words::Chunk { key, epoch, chunk } => self.chunk(now, &key, epoch, &chunk),
            Words::Want { key, run_id, attempt, offset } => {
                self.wanted(now, from, &key, &run_id, attempt, offset)
            }
            Words::Beacon { logs } => self.beacon(now, from, logs),
            Words::Have { logs } => self.have(now, from, &logs),
            Words::Adopt { key, free } => self.adopt(now, from, &key, free),
            Words::Printed { key, epoch, run_id, printed } => self.printed(&key, epoch, &run_id, &printed),
            Words::Reserve { key, epoch } => self.reserve(now, from, &key, epoch),
            Words::Reserved { key, epoch, holder, nonce } => {
                self.reserved(from, &key, epoch, (holder, nonce))
            }
            Words::Knock | Words::Trunk(_) => {}
        }
    }

    fn stored(&mut self, now: Now, op: Op, result: Result<Reply, StoreError>) {
        match (op, result) {
            (Op::Renew { holder, fresh, sent, .. }, result) => self.renewed(now, holder, fresh, sent, result),
            (Op::Lease { node, sent }, Ok(Reply::Leased { left })) => self.leased(now, node, sent, left),
            (Op::Lease { node, .. }, _) => self.unsuspect(node),
            (Op::Sweep { .. }, result) => self.swept(now, result),
            (Op::Retire { .. }, _) => {}
            (Op::Idle { before, .. }, result) => self.aged(now, before, result),
            (Op::Forget { .. }, result) => self.forgotten_for_age(&result),
            (Op::Accept { key, input, hash, .. }, result) => {
                let ask_key = AskKey::Input(input.run_id.clone(), hash);
                self.accepted(now, &ask_key, &key, What::Input(input), result);
            }
            (Op::Control { key, principal, control, create }, result) => {
                let ask_key = AskKey::Control(control.id.clone(), principal);
                self.accepted(now, &ask_key, &key, What::Control { control, create }, result);
            }
            (Op::Sessions { link, .. }, result) => self.listed(link, result),
            (Op::Delete { key, link, .. }, result) => self.deleted(link, &key, result),
            (Op::Find { run_id, link, .. }, result) => self.found(link, run_id, result),
            (Op::Get { name }, result) => self.fetched(now, name, result),
            (Op::Put { name, .. }, result) => self.put_away(now, name, result),
            (op, Err(StoreError::Unknown | StoreError::Unavailable)) => self.again(now, op),
            (op, Ok(reply)) => self.replied(now, op, reply),
        }
    }

    /// Handles replies of ops that are repeated until they succeed.
    fn replied(&mut self, now: Now, op: Op, reply: Reply) {
        match (op, reply) {
            (Op::Claim { key, holder, nonce, expect, .. }, reply) => {
                self.claimed(now, &key, (holder, nonce), expect, reply);
            }
            (Op::Append(append), reply) => self.appended(now, &append.key, append.token, reply),
            (Op::Release { key, token, drain, .. }, reply) => self.released(now, &key, token, drain, &reply),
            (Op::Transfer { key, token, to, .. }, reply) => self.transferred(now, &key, token, to, &reply),
            (Op::Open { key }, Reply::View(view)) => self.viewed(now, &key, *view),
            (Op::Read { key, after, .. }, Reply::Heard(heard)) => self.heard(now, &key, after, &heard),
            (Op::Keep(keep), Reply::Done) => self.kept(now, &keep.key, keep.token, keep.at.seq),
            (Op::Inbox { key, token, after, control_after }, Reply::Waiting(inputs)) => {
                self.inbox_read(now, &key, token, (after, control_after), inputs);
            }
            (Op::Listen { key, stamp, .. }, Reply::Listening { owner, .. }) => {
                self.listening(now, &key, stamp, owner);
            }
            (
                Op::Open { key } | Op::Read { key, .. } | Op::Listen { key, .. },
                Reply::Refused(Refused::Damaged),
            ) => self.closed_off(&key),
            (Op::Listen { key, .. }, Reply::Refused(_)) => self.unheard_of(&key),
            // The owner's session was closed off because of damaged records.
            (Op::Inbox { key, token, .. }, Reply::Refused(_) | Reply::Fenced) => {
                self.abandon(now, &key, token);
            }
            (
                Op::Listen { .. }
                | Op::Unlisten { .. }
                | Op::Open { .. }
                | Op::Read { .. }
                | Op::Inbox { .. }
                | Op::Keep(_)
                | Op::Trim { .. }
                | Op::Expire { .. }
                | Op::Get { .. }
                | Op::Put { .. }
                | Op::Renew { .. }
                | Op::Retire { .. }
                | Op::Lease { .. }
                | Op::Accept { .. }
                | Op::Control { .. }
                | Op::Find { .. }
                | Op::Delete { .. }
                | Op::Idle { .. }
                | Op::Forget { .. }
                | Op::Sessions { .. }
                | Op::Sweep { .. },
                _,
            ) => {}
        }
    }

    /// Repeats an op later; every op is idempotent, so an unknown outcome is harmless.
    fn again(&mut self, now: Now, op: Op) {
        self.stats.store_retries += 1;
        self.repeat += 1;
        let wait = self.jitter(turnway_core::limits::STORE_RETRY);
        self.repeats.insert(self.repeat, op);
        self.timers.set(Timer::Repeat(self.repeat), now.mono + wait);
    }

    fn due(&mut self, now: Now, timer: Timer) {
        match timer {
            Timer::Renew => self.renew(now),
            Timer::Sweep => self.sweep(now),
            Timer::Age => self.age(now),
            Timer::Beacon => self.beacons(now),
            Timer::Knock => self.knock(now),
            Timer::Drain => self.drain_over(now),
            Timer::Suspect(node) => self.suspect(now, node),
            Timer::Ring(ask) => self.ring(now, &ask),
            Timer::Read(key) => self.catch_up(&key),
            Timer::Want(key) => self.want(now, &key),
            Timer::Seat(key) => self.seat_due(now, &key),
            Timer::Write(key) | Timer::Linger(key) => self.pump(now, &key),
            Timer::Reserve(key) => self.reserve_due(&key),
            Timer::Repeat(number) => {
                if let Some(op) = self.repeats.remove(&number) {
                    self.store(op);
                }
            }
        }
    }
}

impl Machine for Switchboard {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        if self.is_gone() {
            return;
        }
        match input {
            Input::Connect { link, principal } => self.connect(link, principal),
            Input::Disconnect { link } => self.disconnect(link),
            Input::Say { link, command } => self.say(now, link, command),
            Input::Written { link, weight } => self.written(link, weight),
            Input::Hold { link, session, is_held } => self.hold(link, session, is_held),
            Input::Peer { from, words } => self.peer(now, from, words),
            Input::Unheard { to } => self.unheard(now, to),
            Input::Gap => self.relisten(),
            Input::Stored { op, result } => self.stored(now, op, result),
            Input::Agent { key, run_id, attempt, epoch, events } => {
                let told = |event| Told::Agent { run_id: run_id.clone(), attempt, epoch, event };
                self.reported(now, &key, events.into_iter().map(told));
            }
            Input::Tool { key, action_id, report } => self.tool(now, &key, action_id, report),
            Input::Drain => self.begin_drain(now),
            Input::Heirs(heirs) => self.hand_over(now, heirs),
        }
        self.serve_waiting(now);
        self.leave();
    }

    fn handle_timeout(&mut self, now: Now) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            if self.is_gone() {
                return;
            }
            self.due(now, timer);
        }
        self.serve_waiting(now);
        self.leave();
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        if self.is_gone() { None } else { self.timers.next("switchboard") }
    }
}
