//! Ops on leases, which decide by the server's clock which incarnations of nodes are alive. Called by the executor.
use crate::store::redis::call::{RedisCall, RedisCallError};
use crate::store::redis::executor::{CallResult, OpExecutor};
use crate::store::redis::key;
use std::time::Duration;
use tokio::time::Instant;
use turnway_core::id::{Holder, NodeId};
use turnway_core::store::Reply;
use turnway_core::time::Millis;

impl OpExecutor {
    pub(super) async fn renew(&self, holder: Holder, ttl: Duration, fresh: bool) -> CallResult<Reply> {
        // An incarnation is enrolled for sweeps before it can own anything.
        let enrolled = match fresh {
            true => self.enroll(&self.leases, holder).await.map_err(|_| RedisCallError::NotPerformed)?,
            false => 0,
        };
        let renew = RedisCall::write("renew", [key::node(holder.node)])
            .number(self.now())
            .hex_id(holder.life.0)
            .number(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
            .flag(fresh)
            .number(enrolled);
        // A new number each time: a wiped data set must not get its former id.
        let mut chance = [0; 16];
        getrandom::fill(&mut chance).map_err(|_| RedisCallError::NotPerformed)?;
        let realm = RedisCall::write("realm", [key::REALM]).hex_id(u128::from_be_bytes(chance));
        let sent_at = Instant::now();
        let answers = self.calls_on(&self.leases, vec![renew, realm]).await;
        self.health.record_renewal(sent_at.elapsed());
        let [mut renewed, mut realm] = <[_; 2]>::try_from(answers?).map_err(|_| RedisCallError::Unknown)?;
        match renewed.text()?.as_str() {
            "OK" => {
                let clock = Millis(renewed.number()?);
                let era = era(&realm.text()?, &realm.text()?);
                self.registrations().set_lease(holder, era);
                Ok(Reply::Renewed { era, clock })
            }
            "LOST" => {
                self.registrations().clear_lease(holder);
                Ok(Reply::LeaseLost)
            }
            _ => Err(RedisCallError::NotPerformed),
        }
    }

    pub(super) async fn retire(&self, holder: Holder) -> CallResult<Reply> {
        self.registrations().clear_lease(holder);
        self.call_on(&self.leases, RedisCall::write("retire", [key::node(holder.node)]).hex_id(holder.life.0)).await?;
        Ok(Reply::Done)
    }

    pub(super) async fn lease(&self, node: NodeId) -> CallResult<Reply> {
        let mut answer = self.call(self.lease_of(node)).await?;
        let left = if answer.is_at_end() { None } else { Some(Duration::from_millis(answer.number()?)) };
        Ok(Reply::Leased { left })
    }

    pub(super) fn lease_of(&self, node: NodeId) -> RedisCall {
        RedisCall::read_only("lease", [key::node(node)]).number(self.now())
    }
}

/// Combines two random numbers into an era. Either changes when data was lost or exchanged, or when the server
/// process restarted and may have lost its last writes.
fn era(realm: &str, run: &str) -> u64 {
    let half = |text: &str| u64::from_str_radix(text.get(..16).unwrap_or(text), 16).unwrap_or_default();
    half(realm) ^ half(run)
}
