//! Lists of sessions. An entry is written before its session is created, so an entry whose session was never created,
//! or was created by another node at the same moment, does not count. Called by the executor.
use crate::store::redis::call::RedisCall;
use crate::store::redis::executor::{CallResult, OpExecutor};
use crate::store::redis::key;
use turnway_core::id::{Seq, SessionId, SessionKey, TenantId, UserId};
use turnway_core::protocol::annotation::Annotations;
use turnway_core::store::{CreationKey, Reply, SessionSummary};
use turnway_core::time::Millis;

/// Entries in one page; for each entry the server reads the session.
const PAGE_ENTRIES_MAX: usize = 256;
/// Milliseconds within which a session is created after its entry, or gets a new entry; an older entry without a
/// session will never get one.
pub(super) const REGISTRATION_FRESH_MS: u64 = 60_000;

/// A page of a list, newest sessions first.
pub(super) struct IndexPage {
    /// The server's time in milliseconds.
    pub(super) now: u64,
    pub(super) entries: Vec<String>,
}

/// The listed properties of a session.
struct ListedSession {
    user: UserId,
    born: u64,
    closed: bool,
    tail: Seq,
    pending: u32,
    annotations: Annotations,
}

impl OpExecutor {
    /// Returns the tenants that have or had sessions, in no particular order.
    pub(super) async fn tenants(&self) -> CallResult<Vec<TenantId>> {
        let mut answer = self.call(RedisCall::read_only("tenants", [key::TENANTS])).await?;
        let mut tenants = Vec::new();
        while !answer.is_at_end() {
            tenants.extend(TenantId::parse(&answer.text()?).ok());
        }
        Ok(tenants)
    }

    pub(super) async fn add_to_lists(&self, session: &SessionKey, user: &UserId) -> CallResult<u64> {
        let tenant = &session.tenant;
        let settled = self.registrations().is_tenant_recorded(tenant);
        if !settled {
            self.call(RedisCall::write("settle", [key::TENANTS]).text(tenant.as_str())).await?;
            self.registrations().record_tenant(tenant);
        }
        let keys = [key::index(tenant, None), key::index(tenant, Some(user))];
        let call = RedisCall::write("enter", keys).number(self.now()).text(session.session.as_str());
        self.call(call).await?.number()
    }

    pub(super) async fn sessions(
        &self,
        tenant: &TenantId,
        user: Option<&UserId>,
        before: Option<&CreationKey>,
        limit: u32,
    ) -> CallResult<Reply> {
        let index = key::index(tenant, user);
        let limit = limit as usize;
        let mut from = before.map(format_entry);
        let mut sessions = Vec::new();
        loop {
            let count = limit.saturating_add(1).saturating_sub(sessions.len()).min(PAGE_ENTRIES_MAX);
            let page = self.read_page(&index, from.as_deref(), count).await?;
            let over = page.entries.len() < count;
            from = page.entries.last().cloned();
            self.summarise(tenant, &index, page, &mut sessions).await?;
            if over || sessions.len() > limit {
                break;
            }
        }
        let more = sessions.len() > limit;
        sessions.truncate(limit);
        Ok(Reply::Sessions { sessions, more })
    }

    pub(super) async fn read_page(&self, index: &str, before: Option<&str>, count: usize) -> CallResult<IndexPage> {
        let before = before.map_or_else(|| "+".to_owned(), |line| format!("({line}"));
        let call = RedisCall::read_only("lines", [index]).number(self.now()).text(&before);
        let mut answer = self.call(call.number(count as u64)).await?;
        let now = answer.number()?;
        let mut list = answer.list()?;
        let mut lines = Vec::new();
        while !list.is_at_end() {
            lines.push(list.text()?);
        }
        Ok(IndexPage { now, entries: lines })
    }

    async fn summarise(
        &self,
        tenant: &TenantId,
        index: &str,
        page: IndexPage,
        into: &mut Vec<SessionSummary>,
    ) -> CallResult<()> {
        let births: Vec<(String, CreationKey)> =
            page.entries.into_iter().filter_map(|line| parse_entry(&line).map(|birth| (line, birth))).collect();
        let mut stale = Vec::new();
        for ((line, birth), head) in births.iter().zip(self.read_listed(tenant, &births).await?) {
            match head {
                Some(head) if head.born == birth.at.0 => into.push(SessionSummary {
                    birth: birth.clone(),
                    user: head.user,
                    closed: head.closed,
                    tail: head.tail,
                    pending: head.pending,
                    annotations: head.annotations,
                }),
                None if page.now < birth.at.0.saturating_add(2 * REGISTRATION_FRESH_MS) => {}
                Some(_) | None => stale.push(line.clone()),
            }
        }
        let erase = |line: String| RedisCall::write("erase", [index]).text(&line);
        // A stale entry that remains is found again by the next listing.
        let _ = self.calls(stale.into_iter().map(erase).collect()).await;
        Ok(())
    }

    async fn read_listed(
        &self,
        tenant: &TenantId,
        births: &[(String, CreationKey)],
    ) -> CallResult<Vec<Option<ListedSession>>> {
        let call = |(_, birth): &(String, CreationKey)| {
            let session = SessionKey { tenant: tenant.clone(), session: birth.session.clone() };
            RedisCall::read_only("summary", [key::head(&session), key::inbox(&session)])
        };
        let mut heads = Vec::with_capacity(births.len());
        for mut answer in self.calls(births.iter().map(call).collect()).await? {
            if answer.is_at_end() {
                heads.push(None);
                continue;
            }
            let user = UserId::parse(&answer.text()?).ok();
            let born = answer.number()?;
            let closed = answer.flag()?;
            let tail = Seq(answer.number()?);
            let pending = u32::try_from(answer.number()?).unwrap_or(u32::MAX);
            let mut annotations = Annotations::new();
            while !answer.is_at_end() {
                annotations.insert(answer.text()?, answer.text()?.into());
            }
            heads.push(user.map(|user| ListedSession { user, born, closed, tail, pending, annotations }));
        }
        Ok(heads)
    }
}

/// Formats a list entry so that entries sort by creation: 16 digits, then the session id.
pub(super) fn format_entry(birth: &CreationKey) -> String {
    format!("{:016}{}", birth.at.0, birth.session)
}

/// Parses a list entry.
pub(super) fn parse_entry(line: &str) -> Option<CreationKey> {
    let (at, session) = line.split_at_checked(16)?;
    Some(CreationKey { at: Millis(at.parse().ok()?), session: SessionId::parse(session).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_lines_sort_by_creation() {
        let birth = |at, name| CreationKey { at: Millis(at), session: SessionId::parse(name).expect("a name") };
        let mut births = [birth(1_764_000_000_000, "s-1"), birth(9, "z"), birth(9, "Z"), birth(10, "a")];
        births.sort();
        let lines: Vec<String> = births.iter().map(format_entry).collect();
        assert!(lines.is_sorted(), "{lines:?}");
        assert!(lines.iter().zip(&births).all(|(line, birth)| parse_entry(line).as_ref() == Some(birth)));
    }
}
