//! Ops on idle sessions: the walk through the session lists of all tenants, and the deletion of one idle session.
//! Called by the executor.
use crate::store::redis::call::{RedisCall, RedisCallError};
use crate::store::redis::executor::{CallResult, OpExecutor};
use crate::store::redis::key;
use crate::store::redis::listing;
use turnway_core::id::{SessionKey, TenantId, UserId};
use turnway_core::store::{CreationKey, IdleCursor, Reply, StoreRefusal};
use turnway_core::time::Millis;

impl OpExecutor {
    /// Checks the next sessions. Each tenant counts as one session, so that very many tenants are walked through in
    /// steps.
    pub(super) async fn idle(&self, from: Option<&IdleCursor>, before: Millis, limit: u32) -> CallResult<Reply> {
        let mut sessions = Vec::new();
        let mut left = limit as usize;
        let mut cursor = from.cloned();
        for tenant in self.tenants_from(from).await? {
            let after = cursor.take().filter(|cursor| cursor.tenant == tenant).and_then(|cursor| cursor.after);
            if left == 0 {
                return Ok(Reply::Idle { sessions, next: Some(IdleCursor { tenant, after: None }) });
            }
            let births = self.list_births(&tenant, after.as_ref(), left).await?;
            let is_full = births.len() == left;
            let last = births.last().cloned();
            left = left.saturating_sub(births.len().max(1));
            self.collect_idle(&tenant, births, before, &mut sessions).await?;
            if is_full {
                return Ok(Reply::Idle { sessions, next: Some(IdleCursor { tenant, after: last }) });
            }
        }
        Ok(Reply::Idle { sessions, next: None })
    }

    async fn tenants_from(&self, from: Option<&IdleCursor>) -> CallResult<Vec<TenantId>> {
        let mut tenants = self.tenants().await?;
        tenants.retain(|tenant| from.is_none_or(|cursor| *tenant >= cursor.tenant));
        tenants.sort();
        Ok(tenants)
    }

    async fn list_births(
        &self,
        tenant: &TenantId,
        after: Option<&CreationKey>,
        count: usize,
    ) -> CallResult<Vec<CreationKey>> {
        let after = after.map_or_else(|| "-".to_owned(), |birth| format!("({}", listing::format_entry(birth)));
        let call = RedisCall::read_only("walk", [key::index(tenant, None)]).text(&after).number(count as u64);
        let mut answer = self.call(call).await?;
        let mut births = Vec::new();
        while !answer.is_at_end() {
            births.extend(listing::parse_entry(&answer.text()?));
        }
        Ok(births)
    }

    async fn collect_idle(
        &self,
        tenant: &TenantId,
        births: Vec<CreationKey>,
        before: Millis,
        into: &mut Vec<SessionKey>,
    ) -> CallResult<()> {
        let keys = births.into_iter().map(|birth| SessionKey { tenant: tenant.clone(), session: birth.session });
        let keys: Vec<SessionKey> = keys.collect();
        let call = |session: &SessionKey| {
            let keys = [key::head(session), key::inbox(session), key::control(session)];
            RedisCall::read_only("idle", keys).number(before.0)
        };
        let answers = self.calls(keys.iter().map(call).collect()).await?;
        for (session, mut answer) in keys.into_iter().zip(answers) {
            if answer.flag()? {
                into.push(session);
            }
        }
        Ok(())
    }

    /// Deletes an idle session and removes it from the lists.
    pub(super) async fn forget(&self, session: &SessionKey, before: Millis) -> CallResult<Reply> {
        let call = RedisCall::write("forget", key::session_keys(session)).number(before.0);
        let mut answer = self.call(call).await?;
        match answer.text()?.as_str() {
            "OK" => {
                let user = answer.text()?;
                let born = answer.number()?;
                self.remove_from_lists(session, &user, born).await;
                Ok(Reply::Done)
            }
            "BUSY" => Ok(Reply::Refused(StoreRefusal::Busy)),
            "NOT_FOUND" => Ok(Reply::Refused(StoreRefusal::NotFound)),
            _ => Err(RedisCallError::Unknown),
        }
    }

    /// Removes a session from the lists of its tenant and its user. If that fails, the next listing finds the entry
    /// stale.
    async fn remove_from_lists(&self, session: &SessionKey, user: &str, born: u64) {
        let line = listing::format_entry(&CreationKey { at: Millis(born), session: session.session.clone() });
        let user = UserId::parse(user).ok();
        let indexes = [Some(None), user.as_ref().map(Some)].into_iter().flatten();
        let erase = |user| RedisCall::write("erase", [key::index(&session.tenant, user)]).text(&line);
        let _ = self.calls(indexes.map(erase).collect()).await;
    }
}
