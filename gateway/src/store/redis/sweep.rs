//! The sweep, which finds sessions that need a new owner, in three ways: registrations of dead incarnations and those
//! without a holder; this node's own registrations that it does not own or has released; and a slow walk through all
//! sessions, which finds those that the indexes have lost. Called by the executor.
use crate::store::redis::book::Upto;
use crate::store::redis::call::Call;
use crate::store::redis::desk::{Desk, Done};
use crate::store::redis::key::{self, NOBODY};
use crate::store::redis::listing::{self, FRESH_MS};
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{Holder, Seen, SessionKey};
use turnway_core::store::Reply;

/// Bounds on the registrations read in one call; in between, as many as the caller asks for.
const PAGE_MIN: usize = 64;
const PAGE_MAX: usize = 512;
/// Maximum own registrations without ownership that one sweep checks.
const UNHELD_MAX: usize = 256;
/// Maximum released sessions that one sweep checks: as many as a busy node releases between two sweeps.
const LEFT_MAX: usize = 2048;
/// Sessions that the slow walk passes in one sweep: 100,000 sessions take a node less than two hours.
const WALK: usize = 24;

/// The results of one sweep.
#[derive(Default)]
struct Round {
    leased: BTreeMap<Holder, bool>,
    due: BTreeMap<SessionKey, Seen>,
    /// Number of resets of the settled positions when the sweep began.
    doubts: u64,
}

/// A range of an incarnation's registrations: from a stamp on, at an offset.
struct Page {
    by: Holder,
    from: u64,
    offset: usize,
    count: usize,
    /// Registrations that need no new owner, as long as none before them is due.
    settled: Option<Upto>,
}

/// The result of checking some registrations.
#[derive(Default)]
struct Examined {
    cleared: usize,
    /// Stamps of the settled registrations before the first that is due.
    settled: Vec<u64>,
    /// Whether no registration is due.
    all_settled: bool,
    /// Due sessions that were kept and not found before.
    due: Vec<SessionKey>,
}

/// The amount of registrations to check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// The first ones, until so many are due: in index order, so that none is skipped forever. Sessions that this
    /// node has claimed or is claiming from the registering incarnation are skipped: they have an owner, or all
    /// registrations are checked again ([`Book::claimed`](crate::store::redis::book::Book::claimed)).
    Until(usize),
    /// Every registration.
    AtAll,
}

/// A registration: holder, session, and stamp.
struct Line {
    by: Holder,
    session: SessionKey,
    stamp: u64,
}

impl Desk {
    pub(super) async fn sweep(&self, limit: u32) -> Done<Reply> {
        let limit = limit as usize;
        // A few due sessions are sorted by name, so that all stores give the same answer.
        let most = limit.max(PAGE_MIN);
        let mut round = Round { doubts: self.book().doubts(), ..Round::default() };
        let mut lives = vec![(NOBODY, u64::MAX)];
        let mut enrolled = self.call(Call::look("enrolled", [key::LIVES])).await?;
        while !enrolled.is_over() {
            let (life, stamp) = (enrolled.text()?, enrolled.number()?);
            lives.extend(key::read_life(&life).map(|holder| (holder, stamp)));
        }
        let page = |by: &Holder| {
            let (settled, count) = (self.book().settled(*by), limit.clamp(PAGE_MIN, PAGE_MAX));
            Page { by: *by, from: settled.stamp, offset: settled.count, count, settled: Some(settled) }
        };
        let pages: Vec<Page> = lives.iter().map(|(by, _)| page(by)).collect();
        let first = self.orphans(&pages, &mut round).await?;
        for ((page, (holder, enrolled)), lines) in pages.into_iter().zip(lives).zip(first) {
            let Some(lines) = lines.filter(|_| round.due.len() < most) else { continue };
            if lines.is_empty() && page.from == 0 && holder != NOBODY {
                self.strike(holder, enrolled).await?;
            }
            self.look_through(page, lines, most, &mut round).await?;
        }
        // If very many sessions are due already, those come first.
        if round.due.len() < most {
            self.look_at_own(&mut round).await?;
        }
        if round.due.len() < limit.max(WALK) {
            self.walk_on(&mut round).await?;
        }
        self.book().swept(!round.due.is_empty());
        Ok(Reply::Work { sessions: round.due.into_iter().take(limit).collect() })
    }

    /// Checks the sessions that this node registered and does not own, or has released.
    async fn look_at_own(&self, round: &mut Round) -> Done<()> {
        let line = |(by, session, stamp)| Line { by, session, stamp };
        let unheld = self.book().unheld(UNHELD_MAX).into_iter().map(line).collect();
        self.examine(unheld, Look::AtAll, round).await?;
        let left = self.book().left(self.mono(), LEFT_MAX);
        let lines = left.iter().cloned().map(|(_, by, session, stamp)| line((by, session, stamp))).collect();
        let looked = self.look_in_passing(lines, round).await;
        if looked.is_err() {
            self.book().leave_again(left);
        }
        looked
    }

    /// Checks sessions that the next sweep may not visit. Claiming needs two visits, so each due session is
    /// registered without a holder, where every sweep finds it.
    async fn look_in_passing(&self, lines: Vec<Line>, round: &mut Round) -> Done<()> {
        let due = self.examine(lines, Look::AtAll, round).await?.due;
        let registers = due.iter().map(|session| self.register(session, NOBODY));
        futures_util::future::try_join_all(registers).await.map(drop)
    }

    /// Returns a page of each incarnation's registrations; none of an incarnation that is alive.
    async fn orphans(&self, pages: &[Page], round: &mut Round) -> Done<Vec<Option<Vec<Line>>>> {
        let call = |page: &Page| {
            Call::look("orphans", [key::node(page.by.node), key::registered(page.by)])
                .number(self.now())
                .name(page.by.life.0)
                .number(page.from)
                .number(page.offset as u64)
                .number(page.count as u64)
        };
        let answers = self.calls(pages.iter().map(call).collect()).await?;
        let mut found = Vec::with_capacity(pages.len());
        for (page, mut answer) in pages.iter().zip(answers) {
            let (by, leased) = (page.by, answer.flag()?);
            round.leased.insert(by, leased);
            let (mut list, mut lines) = (answer.list()?, Vec::new());
            while !list.is_over() {
                let (session, stamp) = (list.text()?, list.number()?);
                lines.extend(key::read_session(&session).map(|session| Line { by, session, stamp }));
            }
            found.push((!leased).then_some(lines));
        }
        Ok(found)
    }

    /// Checks the rest of a dead incarnation's registrations, until enough sessions are due. Checked registrations
    /// are removed or settled, so the next sweep begins with the remaining ones.
    async fn look_through(
        &self,
        mut page: Page,
        mut lines: Vec<Line>,
        most: usize,
        round: &mut Round,
    ) -> Done<()> {
        loop {
            let count = lines.len();
            let seen = self.examine(lines, Look::Until(most), round).await?;
            if let Some(settled) = page.settled {
                let settled = seen.settled.iter().fold(settled, |settled, stamp| settled.and(*stamp));
                self.book().settle_upto(page.by, settled, round.doubts);
                page.settled = Some(settled).filter(|_| seen.all_settled);
            }
            page.offset += count - seen.cleared;
            if count < page.count || round.due.len() >= most {
                return Ok(());
            }
            match self.orphans(std::slice::from_ref(&page), round).await?.pop().flatten() {
                Some(more) => lines = more,
                None => return Ok(()),
            }
        }
    }

    /// Checks sessions, keeps those that are due, and removes registrations that are no longer needed: old ones of a
    /// session that neither is held by the registering incarnation nor has waiting inputs without an owner.
    async fn examine(&self, lines: Vec<Line>, how: Look, round: &mut Round) -> Done<Examined> {
        let needed: Vec<bool> = {
            let book = self.book();
            lines.iter().map(|line| how == Look::AtAll || !book.is_claimed(&line.session, line.by)).collect()
        };
        let needed_lines = lines.iter().zip(&needed).filter(|(_, needed)| **needed);
        let seen = self.see(&needed_lines.map(|(line, _)| &line.session).collect::<Vec<_>>()).await?;
        self.learn(seen.iter().flatten().filter_map(|seen| seen.by.holder).collect(), round).await?;
        let mut seen = seen.into_iter();
        let (mut idle, mut examined) = (Vec::new(), Examined { all_settled: true, ..Examined::default() });
        for (line, needed) in lines.into_iter().zip(needed) {
            // The session is skipped, or its data cannot be read.
            let Some(seen) = needed.then(|| seen.next()).flatten().flatten() else {
                if examined.all_settled {
                    examined.settled.push(line.stamp);
                }
                continue;
            };
            let due = match seen.by.holder {
                None => seen.is_left,
                Some(holder) => !round.is_leased(holder),
            };
            let old = line.stamp.saturating_add(FRESH_MS) < seen.now;
            examined.all_settled &= !due;
            if examined.all_settled && (seen.by.holder == Some(line.by) || !old) {
                examined.settled.push(line.stamp);
            }
            if due {
                let kept = how.has_room(round.due.len());
                if kept && round.due.insert(line.session.clone(), seen.by).is_none() {
                    examined.due.push(line.session);
                }
            } else if seen.by.holder == Some(line.by) {
                self.book().hold(&line.session, line.by);
            } else if old {
                idle.push(line);
            }
        }
        examined.cleared = idle.len();
        self.clear(idle).await;
        Ok(examined)
    }

    /// Reads which of these holders have a lease, unless already known.
    async fn learn(&self, holders: BTreeSet<Holder>, round: &mut Round) -> Done<()> {
        let unknown: Vec<Holder> = holders.into_iter().filter(|h| !round.leased.contains_key(h)).collect();
        let call = |holder: &Holder| {
            Call::look("leased", [key::node(holder.node)]).number(self.now()).name(holder.life.0)
        };
        for (holder, mut answer) in unknown.iter().zip(self.calls(unknown.iter().map(call).collect()).await?)
        {
            round.leased.insert(*holder, answer.flag()?);
        }
        Ok(())
    }

    async fn clear(&self, lines: Vec<Line>) {
        let call = |line: &Line| {
            let call = Call::to("unregister", [key::registered(line.by)]);
            call.text(&line.session.to_string()).number(line.stamp)
        };
        // A registration that remains is found again.
        let _ = self.calls(lines.iter().map(call).collect()).await;
        let mut book = self.book();
        lines.iter().for_each(|line| book.strike(&line.session, line.by, line.stamp));
    }

    /// Removes a dead incarnation without registrations, unless it was enrolled recently.
    async fn strike(&self, holder: Holder, enrolled: u64) -> Done<()> {
        let call = Call::to("strike", [key::LIVES]).number(self.now());
        self.call(call.text(&key::life(holder)).number(enrolled)).await.map(drop)
    }

    // === the slow walk ===

    async fn walk_on(&self, round: &mut Round) -> Done<()> {
        let mut walk = self.book().walk().clone();
        if walk.tenants.is_empty() {
            walk.tenants = self.tenants().await?;
        }
        let Some(tenant) = walk.tenants.last().cloned() else { return Ok(()) };
        let page = self.page(&key::index(&tenant, None), walk.line.as_deref(), WALK).await?;
        walk.line = page.lines.last().cloned();
        if page.lines.len() < WALK {
            walk.tenants.pop();
            walk.line = None;
        }
        let births = page.lines.iter().filter_map(|line| listing::read(line));
        let lines = births.map(|birth| {
            let session = SessionKey { tenant: tenant.clone(), session: birth.session };
            Line { by: NOBODY, session, stamp: u64::MAX }
        });
        self.look_in_passing(lines.collect(), round).await?;
        // On an error above, the walk stays where it was.
        *self.book().walk() = walk;
        Ok(())
    }
}

impl Look {
    fn has_room(self, due: usize) -> bool {
        match self {
            Self::Until(most) => due < most,
            Self::AtAll => true,
        }
    }
}

impl Round {
    fn is_leased(&self, holder: Holder) -> bool {
        self.leased.get(&holder).copied().unwrap_or(false)
    }
}
