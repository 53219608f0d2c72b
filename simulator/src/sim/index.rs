//! Simulated indexes for the sweep, apart from the sessions as in Redis: one for each life of a node and one
//! without an owner. Each entry is written before the operation that the sweep must find. The model store performs the
//! operations; this file has the steps around them, and loses index entries.
use super::world::{ScheduledEvent, World};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use turnway_core::id::{Holder, LeaseId, NodeId, SessionKey};
use turnway_core::mutant::{Mutant, planted};
use turnway_core::store::{Op, Reply, StoreError, StoredSession};
use turnway_core::time::Millis;

/// Maximum age of an entry on which an operation may rely; older entries may be removed. The product uses a minute;
/// the pauses, late copies and clock jumps of a simulation are all shorter and would show no error.
const FRESH: Duration = Duration::from_secs(4);
/// Holder of entries that belong to no life of a node.
const NOBODY: Holder = Holder { node: NodeId(0), life: LeaseId(0) };

/// An index entry: holder, session, and time.
pub(crate) type Line = (Holder, SessionKey, Millis);

/// Indexes of all lives of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Index {
    lines: BTreeMap<(Holder, SessionKey), Millis>,
    /// Previous value of each write.
    journal: Vec<((Holder, SessionKey), Option<Millis>)>,
    /// True if the store has lost writes or its clock was set back: sessions that no index contains are then found
    /// by a walk through all sessions.
    pub(crate) doubtful: bool,
    /// Position of that walk.
    walked: usize,
}

/// One process's cache of its registrations.
#[derive(Debug, Default)]
pub(crate) struct RegistrationCache {
    me: Option<Holder>,
    era: u64,
    /// Time and era of each registration; an entry from before the present era may be lost.
    lines: BTreeMap<(SessionKey, Holder), (Millis, u64)>,
    /// Sessions known to be held by that life.
    held: BTreeSet<(SessionKey, Holder)>,
    /// Sessions being released, with their own entry until then.
    parting: BTreeMap<SessionKey, Millis>,
    /// Entries of released sessions, to be checked once no operation can rely on them.
    left: Vec<Line>,
}

/// A step around an operation in flight.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A session must be registered before this operation is sent.
    Register { node_id: NodeId, op: Op, by: Holder },
    /// The session was registered; its node sends the operation.
    Registered { node_id: NodeId, op: Op, by: Holder, stamp: Millis },
    /// A sweep checks the registered sessions, and some others (`passing`) that the next sweep will not visit.
    Look { node_id: NodeId, op: Op, lines: Vec<Line>, passing: Vec<Line> },
    /// Unneeded entries are removed.
    Clear { lines: Vec<Line> },
}

fn is_open(slot: &StoredSession) -> bool {
    !slot.inbox.is_empty() || !slot.control.is_empty()
}

// === impl Index ===

impl Index {
    fn write(&mut self, line: (Holder, SessionKey), stamp: Option<Millis>) {
        let before = match stamp {
            Some(stamp) => self.lines.insert(line.clone(), stamp),
            None => self.lines.remove(&line),
        };
        self.journal.push((line, before));
    }

    fn register(&mut self, now: Millis, by: Holder, key: &SessionKey) -> Millis {
        let line = (by, key.clone());
        let after = self.lines.get(&line).map_or(0, |known| known.0 + 1);
        let stamp = Millis(now.0.max(after));
        self.write(line, Some(stamp));
        stamp
    }

    fn clear(&mut self, (by, key, stamp): &Line) {
        let line = (*by, key.clone());
        if self.lines.get(&line) == Some(stamp) {
            self.write(line, None);
        }
    }

    /// Loses the last writes of the indexes, independently of the sessions.
    pub(crate) fn forget(&mut self, writes: u64) {
        self.doubtful = true;
        for _ in 0..writes {
            let Some((line, before)) = self.journal.pop() else { break };
            match before {
                Some(stamp) => drop(self.lines.insert(line, stamp)),
                None => drop(self.lines.remove(&line)),
            }
        }
    }

    fn has(&self, key: &SessionKey, by: Option<Holder>) -> bool {
        match by {
            Some(by) => self.lines.contains_key(&(by, key.clone())),
            None => self.lines.keys().any(|(_, session)| session == key),
        }
    }
}

// === impl RegistrationCache ===

impl RegistrationCache {
    fn me(&self) -> Holder {
        self.me.unwrap_or(NOBODY)
    }

    fn stamp(&self, key: &SessionKey, by: Holder) -> Option<Millis> {
        let line = self.lines.get(&(key.clone(), by));
        line.filter(|(_, era)| *era == self.era).map(|(stamp, _)| *stamp)
    }

    /// Learns from an answer.
    fn learn(&mut self, op: &Op, result: &Result<Reply, StoreError>) {
        match (op, result) {
            (Op::Renew { holder, .. }, Ok(Reply::Renewed { era, .. })) => {
                (self.me, self.era) = (Some(*holder), *era);
            }
            (Op::Renew { holder, .. }, Ok(Reply::LeaseLost)) => {
                self.me = self.me.filter(|me| me != holder);
                self.lines.retain(|(_, by), _| by != holder);
                self.held.retain(|(_, by)| by != holder);
            }
            (Op::Claim { key, holder, .. }, Ok(Reply::Claimed(_))) => {
                self.held.insert((key.clone(), *holder));
            }
            _ => {}
        }
    }

    /// Forgets a session that is being released: a later claim here must register it again.
    fn part(&mut self, key: &SessionKey) {
        if let Some((own, _)) = self.lines.get(&(key.clone(), self.me())) {
            self.parting.insert(key.clone(), *own);
        }
        self.lines.retain(|(session, _), _| session != key);
        self.held.retain(|(session, _)| session != key);
    }
}

// === impl World ===

impl World {
    /// Sends an operation, or first the registration that it needs.
    pub(crate) fn send_registered(&mut self, node_id: NodeId, op: Op) {
        let cache = self.registrations.entry(node_id).or_default();
        let by = if let Op::Claim { key, holder, .. } = &op {
            let lacks = cache.stamp(key, *holder).is_none() && !planted(Mutant::ClaimUnlisted);
            lacks.then_some(*holder)
        } else if let Op::Transfer { to, .. } = &op {
            Some(*to)
        } else {
            matches!(op, Op::Release { drain: true, .. }).then_some(NOBODY)
        };
        match by {
            Some(by) => self.schedule_step(Step::Register { node_id, op, by }),
            None => self.send_out(node_id, op, None),
        }
    }

    /// Sends an operation to its session, with the registration stamp on which it relies.
    fn send_out(&mut self, node_id: NodeId, op: Op, registered: Option<Millis>) {
        let cache = self.registrations.entry(node_id).or_default();
        let stamp = if let Op::Claim { key, holder, .. } = &op {
            cache.stamp(key, *holder)
        } else if let Op::Accept { key, .. } | Op::Control { key, .. } = &op {
            cache.stamp(key, cache.me())
        } else {
            if let Op::Release { key, .. } = &op {
                cache.part(key);
            }
            registered
        };
        self.send(node_id, op, stamp);
    }

    fn schedule_step(&mut self, step: Step) {
        self.under_way(ScheduledEvent::Index(Box::new(step)));
    }

    pub(crate) fn index_step(&mut self, step: Step) {
        match step {
            Step::Register { node_id, op, by } => self.register(node_id, op, by),
            Step::Registered { node_id, op, by, stamp } => self.registered(node_id, op, by, stamp),
            Step::Look { node_id, op, lines, passing } => self.look_through(node_id, op, lines, passing),
            Step::Clear { lines } => {
                self.say(format_args!("of the indexes is cleared: {lines:?}"));
                lines.iter().for_each(|line| self.index.clear(line));
                self.check_index();
            }
        }
    }

    fn register(&mut self, node_id: NodeId, op: Op, by: Holder) {
        let Some(key) = op.key().cloned() else { return };
        if self.is_away(node_id) {
            return self.answer(node_id, op, Err(StoreError::Unavailable));
        }
        self.tally.ops += 1;
        let stamp = self.index.register(self.store_clock(), by, &key);
        self.say(format_args!("n{} registers {key} by {by:?} at {stamp:?}", node_id.0));
        if self.rng.chance(self.faults.unknown) {
            // The operation was not sent, so it did not happen.
            return self.answer(node_id, op, Err(StoreError::Unavailable));
        }
        self.schedule_step(Step::Registered { node_id, op, by, stamp });
    }

    fn registered(&mut self, node_id: NodeId, op: Op, by: Holder, stamp: Millis) {
        let Some(at) = self.at(node_id) else { return };
        let wakes = self.nodes[at].paused_until;
        if wakes > self.now {
            let wait = u64::try_from((wakes - self.now).as_millis()).unwrap_or(0) + 1;
            let again = Step::Registered { node_id, op, by, stamp };
            return self.later(wait, wait, ScheduledEvent::Index(Box::new(again)));
        }
        let cache = self.registrations.entry(node_id).or_default();
        // After a transfer the entry belongs to the receiving life.
        if let (Some(key), false) = (op.key(), matches!(op, Op::Transfer { .. })) {
            cache.lines.insert((key.clone(), by), (stamp, cache.era));
        }
        self.send_out(node_id, op, Some(stamp));
    }

    fn is_fresh(&self, stamp: Option<Millis>) -> bool {
        let fresh = |stamp: Millis| stamp.after(FRESH) >= self.store_clock();
        stamp.is_some_and(|stamp| fresh(stamp) || planted(Mutant::IndexStale))
    }

    /// Returns whether an operation that has reached its session must be refused, because the registration on which
    /// it relies may be gone.
    pub(crate) fn lacks_line(&self, op: &Op, stamp: Option<Millis>) -> bool {
        let is_free = |key| self.model.session(key).is_none_or(|slot| slot.holder.is_none());
        let leans = if let Op::Accept { key, .. } | Op::Control { key, .. } = op {
            is_free(key)
        } else {
            let claims = matches!(op, Op::Claim { .. }) && !planted(Mutant::ClaimUnlisted);
            claims || matches!(op, Op::Transfer { .. } | Op::Release { drain: true, .. })
        };
        leans && !self.is_fresh(stamp)
    }

    /// Sends a refused operation back to its node, which first registers the session under its present life.
    pub(crate) fn send_back(&mut self, node_id: NodeId, op: Op) {
        let me = self.registrations.entry(node_id).or_default().me();
        if matches!(op, Op::Transfer { .. } | Op::Release { .. }) {
            return self.answer(node_id, op, Err(StoreError::Unavailable));
        }
        let by = if let Op::Claim { holder, .. } = &op { *holder } else { me };
        if self.at(node_id).is_some() {
            self.schedule_step(Step::Register { node_id, op, by });
        }
    }

    /// Handles a performed operation: collects entries that are no longer needed, and checks that all others exist.
    pub(crate) fn performed(&mut self, node_id: NodeId, op: &Op, was: Option<Holder>, reply: &Reply) {
        if let (Op::Release { key, .. }, Reply::Released, Some(holder)) = (op, reply, was)
            && let Some(cache) = self.registrations.get_mut(&node_id)
            && let Some(stamp) = cache.parting.get(key).copied()
        {
            let line = (holder, key.clone(), stamp);
            if planted(Mutant::ReleaseClearsYoung) {
                self.schedule_step(Step::Clear { lines: vec![line] });
            } else {
                cache.left.push(line);
            }
        }
        self.check_index();
    }

    pub(crate) fn book_answer(&mut self, node_id: NodeId, op: &Op, result: &Result<Reply, StoreError>) {
        self.registrations.entry(node_id).or_default().learn(op, result);
    }

    // === sweeping ===

    /// Collects the entries of lives without a lease, those without an owner, those that this node has registered
    /// and does not hold, and one further session if the store has lost writes.
    pub(crate) fn sweep_indexes(&mut self, node_id: NodeId, op: Op) {
        let now = self.now;
        let gone = |by: Holder| by == NOBODY || !self.model.is_leased(now, by);
        let lines = self.index.lines.iter().map(|((by, key), stamp)| (*by, key.clone(), *stamp));
        let mut lines: Vec<Line> = lines.filter(|(by, ..)| gone(*by)).collect();
        let clock = self.store_clock();
        let mut passing = Vec::new();
        if let Some(cache) = self.registrations.get_mut(&node_id) {
            passing.extend(cache.left.extract_if(.., |(.., stamp)| stamp.after(FRESH) < clock));
            let unheld = cache.lines.iter().filter(|(line, _)| !cache.held.contains(line));
            lines.extend(unheld.map(|((key, by), (stamp, _))| (*by, key.clone(), *stamp)));
        }
        if self.index.doubtful {
            let count = self.model.sessions().count().max(1);
            self.index.walked = (self.index.walked + 1) % count;
            let next = self.model.sessions().nth(self.index.walked).map(|(key, _)| key.clone());
            passing.extend(next.map(|key| (NOBODY, key, Millis(u64::MAX))));
        }
        self.schedule_step(Step::Look { node_id, op, lines, passing });
    }

    fn look_through(&mut self, node_id: NodeId, op: Op, lines: Vec<Line>, passing: Vec<Line>) {
        if self.is_away(node_id) {
            let left = passing.into_iter().filter(|(.., stamp)| stamp.0 < u64::MAX);
            self.registrations.entry(node_id).or_default().left.extend(left);
            return self.answer(node_id, op, Err(StoreError::Unavailable));
        }
        let Op::Sweep { limit } = op else { return self.answer(node_id, op, Err(StoreError::Unknown)) };
        let now = self.now;
        let clock = self.store_clock();
        let mut due = BTreeMap::new();
        let mut idle = Vec::new();
        let lines = lines.into_iter().map(|line| (line, false));
        let passing = passing.into_iter().map(|line| (line, true));
        for ((by, key, stamp), in_passing) in lines.chain(passing) {
            let slot = self.model.session(&key);
            let holder = slot.and_then(|slot| slot.holder);
            let open = slot.is_some_and(is_open);
            let is_due = holder.map_or(open, |holder| !self.model.is_leased(now, holder));
            let is_old = stamp.0 < u64::MAX && stamp.after(FRESH) < clock || planted(Mutant::IndexClearsYoung);
            if is_due {
                // A claim checks the session again.
                if in_passing {
                    self.index.register(clock, NOBODY, &key);
                }
                due.extend(slot.map(|slot| (key.clone(), slot.ownership())));
            } else if holder == Some(by) {
                self.registrations.entry(node_id).or_default().held.insert((key, by));
            } else if is_old {
                idle.push((by, key, stamp));
            }
        }
        let cache = self.registrations.entry(node_id).or_default();
        for (by, key, stamp) in &idle {
            let line = (key.clone(), *by);
            if cache.lines.get(&line).is_some_and(|(known, _)| known == stamp) {
                cache.lines.remove(&line);
            }
        }
        self.schedule_step(Step::Clear { lines: idle });
        let sessions = due.into_iter().take(limit as usize).collect();
        self.answer(node_id, op, Ok(Reply::Unowned { sessions }));
    }

    /// Checks that a sweep would find every session that it has to find. (I3, I9)
    fn check_index(&self) {
        if self.index.doubtful {
            return;
        }
        for (key, slot) in self.model.sessions() {
            let found = match slot.holder {
                Some(holder) => self.index.has(key, Some(holder)),
                None => !is_open(slot) || self.index.has(key, None),
            };
            assert!(found, "G9: a sweep finds what is to be looked after: {key} by {:?}", slot.holder);
        }
    }
}
