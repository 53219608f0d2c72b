//! Lists of sessions. An entry is written before its session is created, so an entry whose session was never created,
//! or was created by another node at the same moment, does not count. Called by the executor.
use crate::store::redis::call::Call;
use crate::store::redis::desk::{Desk, Done};
use crate::store::redis::key;
use turnway_core::id::{Seq, SessionId, SessionKey, TenantId, UserId};
use turnway_core::store::{Birth, Reply, Summary};
use turnway_core::time::Millis;

/// Entries in one page; for each entry the server reads the session.
const PAGE_LINES: usize = 256;
/// Milliseconds within which a session is created after its entry, or gets a new entry; an older entry without a
/// session will never get one.
pub(super) const FRESH_MS: u64 = 60_000;

/// A page of a list, newest sessions first.
pub(super) struct Page {
    /// The server's time in milliseconds.
    pub(super) now: u64,
    pub(super) lines: Vec<String>,
}

/// The listed properties of a session.
struct Head {
    user: UserId,
    born: u64,
    closed: bool,
    tail: Seq,
    pending: u32,
}

impl Desk {
    /// Returns the tenants that have or had sessions, in no particular order.
    pub(super) async fn tenants(&self) -> Done<Vec<TenantId>> {
        let mut answer = self.call(Call::look("tenants", [key::TENANTS])).await?;
        let mut tenants = Vec::new();
        while !answer.is_over() {
            tenants.extend(TenantId::parse(&answer.text()?).ok());
        }
        Ok(tenants)
    }

    pub(super) async fn enter(&self, session: &SessionKey, user: &UserId) -> Done<u64> {
        let tenant = &session.tenant;
        let settled = self.book().is_settled(tenant);
        if !settled {
            self.call(Call::to("settle", [key::TENANTS]).text(tenant.as_str())).await?;
            self.book().settle(tenant);
        }
        let keys = [key::index(tenant, None), key::index(tenant, Some(user))];
        let call = Call::to("enter", keys).number(self.now()).text(session.session.as_str());
        self.call(call).await?.number()
    }

    pub(super) async fn sessions(
        &self,
        tenant: &TenantId,
        user: Option<&UserId>,
        before: Option<&Birth>,
        limit: u32,
    ) -> Done<Reply> {
        let (index, limit) = (key::index(tenant, user), limit as usize);
        let mut from = before.map(line);
        let mut sessions = Vec::new();
        loop {
            let count = limit.saturating_add(1).saturating_sub(sessions.len()).min(PAGE_LINES);
            let page = self.page(&index, from.as_deref(), count).await?;
            let over = page.lines.len() < count;
            from = page.lines.last().cloned();
            self.summarise(tenant, &index, page, &mut sessions).await?;
            if over || sessions.len() > limit {
                break;
            }
        }
        let more = sessions.len() > limit;
        sessions.truncate(limit);
        Ok(Reply::Sessions { sessions, more })
    }

    pub(super) async fn page(&self, index: &str, before: Option<&str>, count: usize) -> Done<Page> {
        let before = before.map_or_else(|| "+".to_owned(), |line| format!("({line}"));
        let call = Call::look("lines", [index]).number(self.now()).text(&before);
        let mut answer = self.call(call.number(count as u64)).await?;
        let (now, mut list) = (answer.number()?, answer.list()?);
        let mut lines = Vec::new();
        while !list.is_over() {
            lines.push(list.text()?);
        }
        Ok(Page { now, lines })
    }

    async fn summarise(
        &self,
        tenant: &TenantId,
        index: &str,
        page: Page,
        into: &mut Vec<Summary>,
    ) -> Done<()> {
        let births: Vec<(String, Birth)> =
            page.lines.into_iter().filter_map(|line| read(&line).map(|birth| (line, birth))).collect();
        let mut stale = Vec::new();
        for ((line, birth), head) in births.iter().zip(self.heads(tenant, &births).await?) {
            match head {
                Some(head) if head.born == birth.at.0 => into.push(Summary {
                    birth: birth.clone(),
                    user: head.user,
                    closed: head.closed,
                    tail: head.tail,
                    pending: head.pending,
                }),
                None if page.now < birth.at.0.saturating_add(2 * FRESH_MS) => {}
                Some(_) | None => stale.push(line.clone()),
            }
        }
        let erase = |line: String| Call::to("erase", [index]).text(&line);
        // A stale entry that remains is found again by the next listing.
        let _ = self.calls(stale.into_iter().map(erase).collect()).await;
        Ok(())
    }

    async fn heads(&self, tenant: &TenantId, births: &[(String, Birth)]) -> Done<Vec<Option<Head>>> {
        let call = |(_, birth): &(String, Birth)| {
            let session = SessionKey { tenant: tenant.clone(), session: birth.session.clone() };
            Call::look("summary", [key::own(&session), key::inbox(&session)])
        };
        let mut heads = Vec::with_capacity(births.len());
        for mut answer in self.calls(births.iter().map(call).collect()).await? {
            if answer.is_over() {
                heads.push(None);
                continue;
            }
            let user = UserId::parse(&answer.text()?).ok();
            let (born, closed, tail) = (answer.number()?, answer.flag()?, Seq(answer.number()?));
            let pending = u32::try_from(answer.number()?).unwrap_or(u32::MAX);
            heads.push(user.map(|user| Head { user, born, closed, tail, pending }));
        }
        Ok(heads)
    }
}

/// Formats a list entry so that entries sort by creation: 16 digits, then the session id.
pub(super) fn line(birth: &Birth) -> String {
    format!("{:016}{}", birth.at.0, birth.session)
}

/// Parses a list entry.
pub(super) fn read(line: &str) -> Option<Birth> {
    let (at, session) = line.split_at_checked(16)?;
    Some(Birth { at: Millis(at.parse().ok()?), session: SessionId::parse(session).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_lines_sort_by_creation() {
        let birth = |at, name| Birth { at: Millis(at), session: SessionId::parse(name).expect("a name") };
        let mut births = [birth(1_764_000_000_000, "s-1"), birth(9, "z"), birth(9, "Z"), birth(10, "a")];
        births.sort();
        let lines: Vec<String> = births.iter().map(line).collect();
        assert!(lines.is_sorted(), "{lines:?}");
        assert!(lines.iter().zip(&births).all(|(line, birth)| read(line).as_ref() == Some(birth)));
    }
}
