//! What nobody owns that lives.
//!
//! Three nets, one below the other: what dead incarnations registered (and what is registered under
//! nobody's name); what this node registered and did not come to own, or has released; and a slow walk through all
//! sessions, which finds what the indexes have lost.
use crate::store::redis::book::Upto;
use crate::store::redis::call::Call;
use crate::store::redis::desk::{Desk, Done};
use crate::store::redis::key::{self, NOBODY};
use crate::store::redis::listing::{self, FRESH_MS};
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{Holder, Seen, SessionKey};
use turnway_core::store::Reply;

/// Registrations looked at in one go: as many as are asked for, within these.
const PAGE_MIN: usize = 64;
const PAGE_MAX: usize = 512;
/// Of this node's own registrations without ownership, so many are looked at in one sweep.
const UNHELD_MAX: usize = 256;
/// Of what it released a minute ago, so many: as many as a node releases between two sweeps on its best day.
const LEFT_MAX: usize = 2048;
/// Sessions that one sweep walks past: 100,000 take a node less than two hours.
const WALK: usize = 24;

/// What one sweep has found out.
#[derive(Default)]
struct Round {
    leased: BTreeMap<Holder, bool>,
    due: BTreeMap<SessionKey, Seen>,
    /// How often what is settled had been doubted when it began.
    doubts: u64,
}

/// A part of what an incarnation registered: from a time on, and further by a count.
struct Page {
    by: Holder,
    from: u64,
    offset: usize,
    count: usize,
    /// What needs nobody, as long as nothing due has come up.
    settled: Option<Upto>,
}

/// What became of some registrations.
#[derive(Default)]
struct Examined {
    cleared: usize,
    /// When those were made that come before anything due, and stay.
    settled: Vec<u64>,
    /// Whether none is due.
    all_settled: bool,
    /// What is due and was kept, and had not been found before.
    due: Vec<SessionKey>,
}

/// How a part of the registrations is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Until so many are due: those that come first, however they are called, so that none is passed over again and again.
    /// What this node has claimed from whoever registered it, or is claiming, needs no look: it is somebody's, or all is
    /// looked at again ([`Book::claimed`](crate::store::redis::book::Book::claimed)).
    Until(usize),
    /// Each of them.
    AtAll,
}

/// A registration: by whom, of what, and when.
struct Line {
    by: Holder,
    session: SessionKey,
    stamp: u64,
}

impl Desk {
    pub(super) async fn sweep(&self, limit: u32) -> Done<Reply> {
        let limit = limit as usize;
        // Of a few, those that come first by name, as any store answers.
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
        // Where very much is due already, that comes first.
        if round.due.len() < most {
            self.look_at_own(&mut round).await?;
        }
        if round.due.len() < limit.max(WALK) {
            self.walk_on(&mut round).await?;
        }
        self.book().swept(!round.due.is_empty());
        Ok(Reply::Work { sessions: round.due.into_iter().take(limit).collect() })
    }

    /// What this node registered and does not hold, or has released.
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

    /// Looks at what the next sweep does not come by. Whoever claims looks twice: what is due is registered under nobody's
    /// name, so that from now on every sweep finds it.
    async fn look_in_passing(&self, lines: Vec<Line>, round: &mut Round) -> Done<()> {
        let due = self.examine(lines, Look::AtAll, round).await?.due;
        let registers = due.iter().map(|session| self.register(session, NOBODY));
        futures_util::future::try_join_all(registers).await.map(drop)
    }

    /// What incarnations registered, a page of each; none of one that lives.
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

    /// The rest of a dead incarnation's registrations, until there is enough to do. What is done there is
    /// cleared away or passed over, so the next sweep begins with what is left.
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

    /// Looks at sessions, keeps those that are due, and clears registrations away that nobody needs: old
    /// ones of what is neither held by whoever registered it nor left lying.
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
            // Neither what needs no look, nor what cannot be read.
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

    /// Which of these live, as far as it is not known yet.
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
        // What stays is found again.
        let _ = self.calls(lines.iter().map(call).collect()).await;
        let mut book = self.book();
        lines.iter().for_each(|line| book.strike(&line.session, line.by, line.stamp));
    }

    /// Forgets a dead incarnation that has nothing left, unless it is a young one.
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
        // What could not be looked at is come by again.
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
