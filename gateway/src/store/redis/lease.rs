//! Ops on leases, which decide by the server's clock which incarnations of nodes are alive. Called by the executor.
use crate::store::redis::call::{Call, Trouble};
use crate::store::redis::desk::{Desk, Done};
use crate::store::redis::key;
use std::time::Duration;
use tokio::time::Instant;
use turnway_core::id::{Holder, NodeId};
use turnway_core::store::Reply;
use turnway_core::time::Millis;

impl Desk {
    pub(super) async fn renew(&self, holder: Holder, ttl: Duration, fresh: bool) -> Done<Reply> {
        // An incarnation is enrolled for sweeps before it can own anything.
        let enrolled = match fresh {
            true => self.enroll(&self.leases, holder).await.map_err(|_| Trouble::NotDone)?,
            false => 0,
        };
        let renew = Call::to("renew", [key::node(holder.node)])
            .number(self.now())
            .name(holder.life.0)
            .number(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
            .flag(fresh)
            .number(enrolled);
        // A new number each time: a wiped data set must not get its former id.
        let mut chance = [0; 16];
        getrandom::fill(&mut chance).map_err(|_| Trouble::NotDone)?;
        let realm = Call::to("realm", [key::REALM]).name(u128::from_be_bytes(chance));
        let asked = Instant::now();
        let answers = self.calls_on(&self.leases, vec![renew, realm]).await;
        self.health.renewal_took(asked.elapsed());
        let [mut renewed, mut realm] = <[_; 2]>::try_from(answers?).map_err(|_| Trouble::Doubt)?;
        match renewed.text()?.as_str() {
            "OK" => {
                let clock = Millis(renewed.number()?);
                let era = era(&realm.text()?, &realm.text()?);
                self.book().live(holder, era);
                Ok(Reply::Renewed { era, clock })
            }
            "LOST" => {
                self.book().die(holder);
                Ok(Reply::Lost)
            }
            _ => Err(Trouble::NotDone),
        }
    }

    pub(super) async fn retire(&self, holder: Holder) -> Done<Reply> {
        self.book().die(holder);
        self.call_on(&self.leases, Call::to("retire", [key::node(holder.node)]).name(holder.life.0)).await?;
        Ok(Reply::Done)
    }

    pub(super) async fn lease(&self, node: NodeId) -> Done<Reply> {
        let mut answer = self.call(self.lease_of(node)).await?;
        let left = if answer.is_over() { None } else { Some(Duration::from_millis(answer.number()?)) };
        Ok(Reply::Leased { left })
    }

    pub(super) fn lease_of(&self, node: NodeId) -> Call {
        Call::look("lease", [key::node(node)]).number(self.now())
    }
}

/// Combines two random numbers into an era. Either changes when data was lost or exchanged, or when the server
/// process restarted and may have lost its last writes.
fn era(realm: &str, run: &str) -> u64 {
    let half = |text: &str| u64::from_str_radix(text.get(..16).unwrap_or(text), 16).unwrap_or_default();
    half(realm) ^ half(run)
}
