//! A cache of what this process has written to the sweep indexes, so that writes are not repeated. A forgotten entry
//! costs a repeated call; an entry that Redis has lost is detected by the functions, which check a registration's
//! age. Used by claims, inputs, releases and sweeps.
use crate::store::redis::key::NO_HOLDER;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use turnway_core::id::{Holder, SessionKey, TenantId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Mono;

/// Maximum cached registrations: one for each session that this node owns or has just accepted an input for. A
/// registration that is not cached is made again.
const REGISTERED_MAX: usize = 65_536;
/// Maximum cached incarnations: this node's own, and a few to which sessions were transferred.
const ENROLLED_MAX: usize = 64;
/// Minimum number of registrations for which a sweep skips a prefix of them.
const SKIP_MIN: usize = 64;
/// Consecutive sweeps that skip the settled registrations while sweeps find sessions that are due.
const SKIP_SWEEPS: u32 = 32;
/// Consecutive sweeps that skip them while sweeps find nothing, a few seconds' worth: a node that took over many
/// sessions a moment ago would otherwise check all of them each time, until their old registrations are removed.
const SKIP_IDLE_SWEEPS: u32 = 4;
/// Maximum claims remembered between full sweeps: as many as those sweeps find.
const CLAIMED_MAX: usize = SKIP_SWEEPS as usize * limits::SWEEP_SESSIONS_MAX as usize;
/// Age at which registrations of released sessions are removed: no call in flight relies on a registration that is
/// older than a minute, with a small margin.
const RELEASED_TTL: Duration = Duration::from_secs(61);
/// Maximum cached tenants.
const TENANTS_MAX: usize = 16_384;

/// The registration of a session under an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) stamp: u64,
    /// Number of the connection and era at the time of writing: a write before either changed may be lost.
    generation: u64,
    /// True if the session is known to be owned by that incarnation.
    is_owned: bool,
}

/// A released session: time of release by this process's clock, holder and session of the remaining registration, and
/// the registration's stamp.
pub(super) type ReleasedSession = (Mono, Holder, SessionKey, u64);

/// The cached registrations and the state of this node's sweeps.
#[derive(Debug)]
pub(super) struct RegistrationCache {
    /// The holder under which this node registers the sessions that it accepts inputs for.
    own_holder: Holder,
    era: Option<u64>,
    connection: Option<u64>,
    /// Number of changes of era and connection so far.
    generation: u64,
    registrations: BTreeMap<(SessionKey, Holder), Registration>,
    /// The claims in flight, with the previous holder: a sweep skips these sessions until the claim is answered. One
    /// for each claim op in flight, of which the store takes no more than [`limits::STORE_QUEUE_MAX`].
    pending_claims: BTreeSet<(SessionKey, Holder)>,
    enrolled: BTreeSet<Holder>,
    tenants: BTreeSet<TenantId>,
    /// The released sessions, the earliest first. A release that finds no room keeps its registration until this
    /// incarnation is dead, and is removed then.
    released: VecDeque<ReleasedSession>,
    walk: WalkPosition,
    scan: ScanProgress,
}

/// The oldest registrations of dead incarnations that need no new owner, as found by consecutive sweeps. Without this
/// state a node that takes over many sessions would check those that it already has in every sweep.
#[derive(Clone, Debug, Default)]
struct ScanProgress {
    positions: BTreeMap<Holder, ScanPosition>,
    sweeps: u32,
    /// Consecutive sweeps that found nothing due.
    idle_sweeps: u32,
    /// Number of resets, each because a settled registration may need a new owner after all.
    generation: u64,
    /// The claims answered since the last full sweep: sessions and the incarnation that held them before, which never
    /// holds them again. Claims of sessions without a holder are left out, because a session can lose its holder
    /// again.
    answered_claims: BTreeSet<(SessionKey, Holder)>,
}

/// A position in an incarnation's registrations: the stamp, and the number of registrations with that stamp up to
/// here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScanPosition {
    pub(super) stamp: u64,
    pub(super) count: usize,
    /// Number of registrations up to here.
    total: usize,
}

/// The position of the slow walk through all sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct WalkPosition {
    /// Tenants still to walk through; the last one is the current one.
    pub(super) tenants: Vec<TenantId>,
    /// The last list entry seen of the current tenant, if its walk has begun.
    pub(super) entry: Option<String>,
}

impl Default for RegistrationCache {
    fn default() -> Self {
        Self {
            own_holder: NO_HOLDER,
            era: None,
            connection: None,
            generation: 0,
            registrations: BTreeMap::new(),
            pending_claims: BTreeSet::new(),
            enrolled: BTreeSet::new(),
            tenants: BTreeSet::new(),
            released: VecDeque::new(),
            walk: WalkPosition::default(),
            scan: ScanProgress::default(),
        }
    }
}

impl ScanProgress {
    /// Returns whether the last sweep found sessions that are due.
    fn found_due(&self) -> bool {
        self.sweeps > 0 && self.idle_sweeps == 0
    }
}

impl ScanPosition {
    /// Returns the position after one more registration with this stamp.
    pub(super) fn next(self, stamp: u64) -> Self {
        let count = if stamp == self.stamp { self.count + 1 } else { 1 };
        Self { stamp, count, total: self.total + 1 }
    }
}

impl RegistrationCache {
    pub(super) fn own_holder(&self) -> Holder {
        self.own_holder
    }

    /// Sets the current connection. A restarted server may have lost its last writes, so a new connection invalidates
    /// the cache.
    pub(super) fn set_connection(&mut self, turn: Option<u64>) {
        if turn.is_some() && self.connection != turn && !planted(Planted::RedisTrustsNewServer) {
            self.connection = turn;
            self.invalidate();
        }
    }

    /// Sets the holder under which this node has a lease, and the store's era. A new era invalidates the cache.
    pub(super) fn set_lease(&mut self, me: Holder, era: u64) {
        self.own_holder = me;
        if self.era != Some(era) {
            self.era = Some(era);
            self.invalidate();
        }
    }

    /// Marks all earlier writes as possibly lost. Registrations of sessions that are not owned are still checked.
    fn invalidate(&mut self) {
        self.generation += 1;
        self.reset_scan();
        self.enrolled.clear();
        self.tenants.clear();
    }

    /// Removes the registrations of an incarnation whose lease ended. Other nodes sweep them once they find it dead.
    pub(super) fn clear_lease(&mut self, me: Holder) {
        if self.own_holder == me {
            self.own_holder = NO_HOLDER;
        }
        self.registrations.retain(|(_, holder), _| *holder != me);
    }

    // === sessions ===

    /// Returns the stamp of a registration, if it is cached and its write is not in doubt.
    pub(super) fn stamp(&self, session: &SessionKey, holder: Holder) -> Option<u64> {
        let registration = self.registrations.get(&(session.clone(), holder))?;
        (registration.generation == self.generation).then_some(registration.stamp)
    }

    /// Returns whether this process looks after a registration, even if its write is in doubt.
    pub(super) fn contains(&self, session: &SessionKey, holder: Holder) -> bool {
        self.registrations.contains_key(&(session.clone(), holder))
    }

    pub(super) fn register(&mut self, session: &SessionKey, holder: Holder, stamp: u64) {
        let full = self.registrations.len() >= REGISTERED_MAX;
        let written = self.generation;
        let key = (session.clone(), holder);
        self.scan.answered_claims.remove(&key);
        if let Some(registration) = self.registrations.get_mut(&key) {
            (registration.stamp, registration.generation) = (stamp, written);
        } else if !full {
            self.registrations.insert(key, Registration { stamp, generation: written, is_owned: false });
        }
    }

    /// Records that this node claims a session from its holder.
    pub(super) fn begin_claim(&mut self, session: &SessionKey, from: Holder) {
        self.pending_claims.insert((session.clone(), from));
    }

    /// Records the answer to a claim. If the new owner is not known, the next sweep checks all registrations again.
    pub(super) fn finish_claim(&mut self, session: &SessionKey, from: Holder, is_known: bool) {
        let claim = (session.clone(), from);
        self.pending_claims.remove(&claim);
        if !is_known {
            self.reset_scan();
        } else if self.is_other_incarnation(from)
            && self.scan.found_due()
            && self.scan.answered_claims.len() < CLAIMED_MAX
        {
            // A node that needs the session under the old holder again has to register it anew.
            self.registrations.remove(&claim);
            self.scan.answered_claims.insert(claim);
        }
    }

    /// Returns whether a holder is neither this node, which looks after its own registrations, nor the placeholder
    /// for unowned sessions.
    fn is_other_incarnation(&self, from: Holder) -> bool {
        from != NO_HOLDER && from != self.own_holder
    }

    /// Returns whether a sweep can skip a session registered by this incarnation: a claim from it is in flight, or
    /// was answered since the last full sweep.
    pub(super) fn is_claimed(&self, session: &SessionKey, from: Holder) -> bool {
        if self.pending_claims.is_empty() && self.scan.answered_claims.is_empty() {
            return false;
        }
        let claim = (session.clone(), from);
        self.pending_claims.contains(&claim) || self.scan.answered_claims.contains(&claim)
    }

    /// Marks a registration as owned by its incarnation.
    pub(super) fn mark_owned(&mut self, session: &SessionKey, holder: Holder) {
        if let Some(registration) = self.registrations.get_mut(&(session.clone(), holder)) {
            registration.is_owned = true;
        }
    }

    /// Removes and returns all registrations of a session.
    pub(super) fn take_session(&mut self, session: &SessionKey) -> Vec<(Holder, Registration)> {
        let first = (session.clone(), Holder::default());
        let of = |key: &(SessionKey, Holder)| key.0 == *session;
        let keys: Vec<_> = self.registrations.range(first..).map(|(key, _)| key.clone()).take_while(of).collect();
        keys.into_iter()
            .filter_map(|key| self.registrations.remove(&key).map(|registration| (key.1, registration)))
            .collect()
    }

    /// Restores registrations that were removed for a release that did not happen, so that a sweep checks them: only
    /// this process looks after its own registrations. Registrations made meanwhile stay.
    pub(super) fn restore_session(&mut self, session: &SessionKey, registrations: Vec<(Holder, Registration)>) {
        if planted(Planted::RedisFencedReleaseForgets) {
            return;
        }
        for (holder, registration) in registrations {
            let registration = Registration { is_owned: false, ..registration };
            if self.registrations.len() < REGISTERED_MAX {
                self.registrations.entry((session.clone(), holder)).or_insert(registration);
            }
        }
    }

    /// Records that a session was released with nothing waiting in it.
    pub(super) fn push_released(&mut self, now: Mono, session: &SessionKey, holder: Holder, stamp: u64) {
        if self.released.len() < REGISTERED_MAX {
            self.released.push_back((now, holder, session.clone(), stamp));
        }
    }

    /// Removes and returns the sessions that were released long enough ago.
    pub(super) fn take_released(&mut self, now: Mono, max: usize) -> Vec<ReleasedSession> {
        let old = |at: Mono| now - at >= RELEASED_TTL && !planted(Planted::RedisLeftNeverCleared);
        let count = self.released.iter().take(max).take_while(|(at, ..)| old(*at)).count();
        self.released.drain(..count).collect()
    }

    /// Restores released sessions that could not be checked.
    pub(super) fn restore_released(&mut self, left: Vec<ReleasedSession>) {
        left.into_iter().rev().for_each(|left| self.released.push_front(left));
    }

    /// Removes a registration, unless it was made anew.
    pub(super) fn remove(&mut self, session: &SessionKey, holder: Holder, stamp: u64) {
        let key = (session.clone(), holder);
        if self.registrations.get(&key).is_some_and(|registration| registration.stamp == stamp) {
            self.registrations.remove(&key);
        }
    }

    /// Returns registrations whose session is not known to be owned by the registering incarnation.
    pub(super) fn unowned(&self, max: usize) -> Vec<(Holder, SessionKey, u64)> {
        let unheld = self.registrations.iter().filter(|(_, registration)| !registration.is_owned);
        unheld.take(max).map(|((key, holder), registration)| (*holder, key.clone(), registration.stamp)).collect()
    }

    // === tenants, incarnations, and sweeps ===

    pub(super) fn is_enrolled(&self, holder: Holder) -> bool {
        // Sweeps always check the registrations without a holder.
        holder == NO_HOLDER || self.enrolled.contains(&holder)
    }

    pub(super) fn enroll(&mut self, holder: Holder) {
        if self.enrolled.len() >= ENROLLED_MAX {
            self.enrolled.clear();
        }
        self.enrolled.insert(holder);
    }

    pub(super) fn is_tenant_recorded(&self, tenant: &TenantId) -> bool {
        self.tenants.contains(tenant)
    }

    pub(super) fn record_tenant(&mut self, tenant: &TenantId) {
        if self.tenants.len() >= TENANTS_MAX {
            self.tenants.clear();
        }
        self.tenants.insert(tenant.clone());
    }

    pub(super) fn walk(&mut self) -> &mut WalkPosition {
        &mut self.walk
    }

    /// Returns the position at which a check of an incarnation's registrations begins. A few settled registrations
    /// are checked again rather than skipped.
    pub(super) fn scan_start(&self, holder: Holder) -> ScanPosition {
        let upto = self.scan.positions.get(&holder).copied();
        upto.filter(|upto| upto.total >= SKIP_MIN).unwrap_or_default()
    }

    fn reset_scan(&mut self) {
        self.scan = ScanProgress { generation: self.scan.generation + 1, ..ScanProgress::default() };
    }

    pub(super) fn scan_generation(&self) -> u64 {
        self.scan.generation
    }

    /// Records how far an incarnation's registrations are settled, unless the state was reset meanwhile.
    pub(super) fn advance_scan(&mut self, holder: Holder, upto: ScanPosition, doubts: u64) {
        if self.scan.generation == doubts {
            self.scan.positions.insert(holder, upto);
        }
    }

    /// Records the end of a sweep. Now and then all registrations are checked again, and sooner when nothing is due:
    /// a call that was in flight for long may still change a settled registration.
    pub(super) fn finish_sweep(&mut self, due: bool) {
        let settled = &mut self.scan;
        settled.sweeps += 1;
        settled.idle_sweeps = if due { 0 } else { settled.idle_sweeps + 1 };
        if settled.sweeps >= SKIP_SWEEPS || settled.idle_sweeps >= SKIP_IDLE_SWEEPS {
            *settled = ScanProgress { generation: settled.generation, ..ScanProgress::default() };
        }
    }
}

#[cfg(test)]
mod tests;
