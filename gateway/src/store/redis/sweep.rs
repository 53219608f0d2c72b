//! The sweep, which finds sessions that need a new owner, in three ways: registrations of dead incarnations and those
//! without a holder; this node's own registrations that it does not own or has released; and a slow walk through all
//! sessions, which finds those that the indexes have lost. Called by the executor.
use crate::store::redis::call::RedisCall;
use crate::store::redis::executor::{CallResult, OpExecutor};
use crate::store::redis::key::{self, NO_HOLDER};
use crate::store::redis::listing::{self, REGISTRATION_FRESH_MS};
use crate::store::redis::registration_cache::ScanPosition;
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{Holder, OwnershipSnapshot, SessionKey};
use turnway_core::store::Reply;

/// Bounds on the registrations read in one call; in between, as many as the caller asks for.
const PAGE_MIN: usize = 64;
const PAGE_MAX: usize = 512;
/// Maximum own registrations without ownership that one sweep checks.
const UNOWNED_MAX: usize = 256;
/// Maximum released sessions that one sweep checks: as many as a busy node releases between two sweeps.
const RELEASED_MAX: usize = 2048;
/// Sessions that the slow walk passes in one sweep: 100,000 sessions take a node less than two hours.
const WALK_MAX: usize = 24;

/// The results of one sweep.
#[derive(Default)]
struct SweepRound {
    leased: BTreeMap<Holder, bool>,
    due: BTreeMap<SessionKey, OwnershipSnapshot>,
    /// Number of resets of the settled positions when the sweep began.
    scan_generation: u64,
}

/// A range of an incarnation's registrations: from a stamp on, at an offset.
struct RegistrationPage {
    holder: Holder,
    from: u64,
    offset: usize,
    count: usize,
    /// Registrations that need no new owner, as long as none before them is due.
    settled: Option<ScanPosition>,
}

/// The result of checking some registrations.
#[derive(Default)]
struct PageResult {
    cleared: usize,
    /// Stamps of the settled registrations before the first that is due.
    settled: Vec<u64>,
    /// True if no registration is due.
    all_settled: bool,
    /// Due sessions that were kept and not found before.
    due: Vec<SessionKey>,
}

/// The amount of registrations to check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScanMode {
    /// The first ones, until so many are due: in index order, so that none is skipped forever. Sessions that this
    /// node has claimed or is claiming from the registering incarnation are skipped: they have an owner, or all
    /// registrations are checked again (`RegistrationCache::finish_claim`).
    Limited(usize),
    All,
}

/// A registration: holder, session, and stamp.
struct IndexedRegistration {
    holder: Holder,
    session: SessionKey,
    stamp: u64,
}

impl OpExecutor {
    pub(super) async fn sweep(&self, limit: u32) -> CallResult<Reply> {
        let limit = limit as usize;
        // A few due sessions are sorted by name, so that all stores give the same answer.
        let most = limit.max(PAGE_MIN);
        let mut round = SweepRound { scan_generation: self.registrations().scan_generation(), ..SweepRound::default() };
        let mut lives = vec![(NO_HOLDER, u64::MAX)];
        let mut enrolled = self.call(RedisCall::read_only("enrolled", [key::INCARNATIONS])).await?;
        while !enrolled.is_at_end() {
            let life = enrolled.text()?;
            let stamp = enrolled.number()?;
            lives.extend(key::parse_incarnation(&life).map(|holder| (holder, stamp)));
        }
        let page = |by: &Holder| {
            let settled = self.registrations().scan_start(*by);
            let count = limit.clamp(PAGE_MIN, PAGE_MAX);
            RegistrationPage { holder: *by, from: settled.stamp, offset: settled.count, count, settled: Some(settled) }
        };
        let pages: Vec<RegistrationPage> = lives.iter().map(|(by, _)| page(by)).collect();
        let first = self.orphans(&pages, &mut round).await?;
        for ((page, (holder, enrolled)), registrations) in pages.into_iter().zip(lives).zip(first) {
            let Some(registrations) = registrations.filter(|_| round.due.len() < most) else { continue };
            if registrations.is_empty() && page.from == 0 && holder != NO_HOLDER {
                self.remove_incarnation(holder, enrolled).await?;
            }
            self.scan_page(page, registrations, most, &mut round).await?;
        }
        // If very many sessions are due already, those come first.
        if round.due.len() < most {
            self.examine_own(&mut round).await?;
        }
        if round.due.len() < limit.max(WALK_MAX) {
            self.advance_walk(&mut round).await?;
        }
        self.registrations().finish_sweep(!round.due.is_empty());
        Ok(Reply::Unowned { sessions: round.due.into_iter().take(limit).collect() })
    }

    /// Checks the sessions that this node registered and does not own, or has released.
    async fn examine_own(&self, round: &mut SweepRound) -> CallResult<()> {
        let registration = |(by, session, stamp)| IndexedRegistration { holder: by, session, stamp };
        let unheld = self.registrations().unowned(UNOWNED_MAX).into_iter().map(registration).collect();
        self.examine(unheld, ScanMode::All, round).await?;
        let left = self.registrations().take_released(self.mono(), RELEASED_MAX);
        let registrations =
            left.iter().cloned().map(|(_, by, session, stamp)| registration((by, session, stamp))).collect();
        let looked = self.examine_and_register(registrations, round).await;
        if looked.is_err() {
            self.registrations().restore_released(left);
        }
        looked
    }

    /// Checks sessions that the next sweep may not visit. Claiming needs two visits, so each due session is
    /// registered without a holder, where every sweep finds it.
    async fn examine_and_register(
        &self,
        registrations: Vec<IndexedRegistration>,
        round: &mut SweepRound,
    ) -> CallResult<()> {
        let due = self.examine(registrations, ScanMode::All, round).await?.due;
        let registers = due.iter().map(|session| self.register(session, NO_HOLDER));
        futures_util::future::try_join_all(registers).await.map(drop)
    }

    /// Returns a page of each incarnation's registrations; none of an incarnation that is alive.
    async fn orphans(
        &self,
        pages: &[RegistrationPage],
        round: &mut SweepRound,
    ) -> CallResult<Vec<Option<Vec<IndexedRegistration>>>> {
        let call = |page: &RegistrationPage| {
            RedisCall::read_only("orphans", [key::node(page.holder.node), key::registered(page.holder)])
                .number(self.now())
                .hex_id(page.holder.life.0)
                .number(page.from)
                .number(page.offset as u64)
                .number(page.count as u64)
        };
        let answers = self.calls(pages.iter().map(call).collect()).await?;
        let mut found = Vec::with_capacity(pages.len());
        for (page, mut answer) in pages.iter().zip(answers) {
            let by = page.holder;
            let leased = answer.flag()?;
            round.leased.insert(by, leased);
            let mut list = answer.list()?;
            let mut registrations = Vec::new();
            while !list.is_at_end() {
                let session = list.text()?;
                let stamp = list.number()?;
                registrations.extend(key::parse_session(&session).map(|session| IndexedRegistration {
                    holder: by,
                    session,
                    stamp,
                }));
            }
            found.push((!leased).then_some(registrations));
        }
        Ok(found)
    }

    /// Checks the rest of a dead incarnation's registrations, until enough sessions are due. Checked registrations
    /// are removed or settled, so the next sweep begins with the remaining ones.
    async fn scan_page(
        &self,
        mut page: RegistrationPage,
        mut registrations: Vec<IndexedRegistration>,
        most: usize,
        round: &mut SweepRound,
    ) -> CallResult<()> {
        loop {
            let count = registrations.len();
            let seen = self.examine(registrations, ScanMode::Limited(most), round).await?;
            if let Some(settled) = page.settled {
                let settled = seen.settled.iter().fold(settled, |settled, stamp| settled.next(*stamp));
                self.registrations().advance_scan(page.holder, settled, round.scan_generation);
                page.settled = Some(settled).filter(|_| seen.all_settled);
            }
            page.offset += count - seen.cleared;
            if count < page.count || round.due.len() >= most {
                return Ok(());
            }
            match self.orphans(std::slice::from_ref(&page), round).await?.pop().flatten() {
                Some(more) => registrations = more,
                None => return Ok(()),
            }
        }
    }

    /// Checks sessions, keeps those that are due, and removes registrations that are no longer needed: old ones of a
    /// session that neither is held by the registering incarnation nor has waiting inputs without an owner.
    async fn examine(
        &self,
        registrations: Vec<IndexedRegistration>,
        how: ScanMode,
        round: &mut SweepRound,
    ) -> CallResult<PageResult> {
        let needed: Vec<bool> = {
            let known = self.registrations();
            registrations
                .iter()
                .map(|registration| {
                    how == ScanMode::All || !known.is_claimed(&registration.session, registration.holder)
                })
                .collect()
        };
        let needed_registrations = registrations.iter().zip(&needed).filter(|(_, needed)| **needed);
        let seen = self
            .observe(&needed_registrations.map(|(registration, _)| &registration.session).collect::<Vec<_>>())
            .await?;
        self.load_leases(seen.iter().flatten().filter_map(|seen| seen.ownership.holder).collect(), round).await?;
        let mut seen = seen.into_iter();
        let mut idle = Vec::new();
        let mut examined = PageResult { all_settled: true, ..PageResult::default() };
        for (registration, needed) in registrations.into_iter().zip(needed) {
            // The session is skipped, or its data cannot be read.
            let Some(seen) = needed.then(|| seen.next()).flatten().flatten() else {
                if examined.all_settled {
                    examined.settled.push(registration.stamp);
                }
                continue;
            };
            let due = match seen.ownership.holder {
                None => seen.has_unowned_input,
                Some(holder) => !round.is_leased(holder),
            };
            let old = registration.stamp.saturating_add(REGISTRATION_FRESH_MS) < seen.read_at;
            examined.all_settled &= !due;
            if examined.all_settled && (seen.ownership.holder == Some(registration.holder) || !old) {
                examined.settled.push(registration.stamp);
            }
            if due {
                let kept = how.has_room(round.due.len());
                if kept && round.due.insert(registration.session.clone(), seen.ownership).is_none() {
                    examined.due.push(registration.session);
                }
            } else if seen.ownership.holder == Some(registration.holder) {
                self.registrations().mark_owned(&registration.session, registration.holder);
            } else if old {
                idle.push(registration);
            }
        }
        examined.cleared = idle.len();
        self.unregister(idle).await;
        Ok(examined)
    }

    /// Reads which of these holders have a lease, unless already known.
    async fn load_leases(&self, holders: BTreeSet<Holder>, round: &mut SweepRound) -> CallResult<()> {
        let unknown: Vec<Holder> = holders.into_iter().filter(|h| !round.leased.contains_key(h)).collect();
        let call = |holder: &Holder| {
            RedisCall::read_only("leased", [key::node(holder.node)]).number(self.now()).hex_id(holder.life.0)
        };
        for (holder, mut answer) in unknown.iter().zip(self.calls(unknown.iter().map(call).collect()).await?) {
            round.leased.insert(*holder, answer.flag()?);
        }
        Ok(())
    }

    async fn unregister(&self, registrations: Vec<IndexedRegistration>) {
        let call = |registration: &IndexedRegistration| {
            let call = RedisCall::write("unregister", [key::registered(registration.holder)]);
            call.text(&registration.session.to_string()).number(registration.stamp)
        };
        // A registration that remains is found again.
        let _ = self.calls(registrations.iter().map(call).collect()).await;
        let mut known = self.registrations();
        registrations
            .iter()
            .for_each(|registration| known.remove(&registration.session, registration.holder, registration.stamp));
    }

    /// Removes a dead incarnation without registrations, unless it was enrolled recently.
    async fn remove_incarnation(&self, holder: Holder, enrolled: u64) -> CallResult<()> {
        let call = RedisCall::write("strike", [key::INCARNATIONS]).number(self.now());
        self.call(call.text(&key::incarnation(holder)).number(enrolled)).await.map(drop)
    }

    // === the slow walk ===

    async fn advance_walk(&self, round: &mut SweepRound) -> CallResult<()> {
        let mut walk = self.registrations().walk().clone();
        if walk.tenants.is_empty() {
            walk.tenants = self.tenants().await?;
        }
        let Some(tenant) = walk.tenants.last().cloned() else { return Ok(()) };
        let page = self.read_page(&key::index(&tenant, None), walk.entry.as_deref(), WALK_MAX).await?;
        walk.entry = page.entries.last().cloned();
        if page.entries.len() < WALK_MAX {
            walk.tenants.pop();
            walk.entry = None;
        }
        let births = page.entries.iter().filter_map(|registration| listing::parse_entry(registration));
        let registrations = births.map(|birth| {
            let session = SessionKey { tenant: tenant.clone(), session: birth.session };
            IndexedRegistration { holder: NO_HOLDER, session, stamp: u64::MAX }
        });
        self.examine_and_register(registrations.collect(), round).await?;
        // On an error above, the walk stays where it was.
        *self.registrations().walk() = walk;
        Ok(())
    }
}

impl ScanMode {
    fn has_room(self, due: usize) -> bool {
        match self {
            Self::Limited(most) => due < most,
            Self::All => true,
        }
    }
}

impl SweepRound {
    fn is_leased(&self, holder: Holder) -> bool {
        self.leased.get(&holder).copied().unwrap_or(false)
    }
}
