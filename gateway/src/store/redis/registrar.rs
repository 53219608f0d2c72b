//! Writes sessions into the indexes that sweeps read, before anything that a sweep has to find. Registrations made at
//! the same time share one call, because a node that takes over another node's sessions registers hundreds at once.
use crate::redis::RedisConnection;
use crate::store::redis::call::{RedisCall, RedisCallError};
use crate::store::redis::executor::{CallResult, OpExecutor};
use crate::store::redis::key;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::oneshot;
use turnway_core::id::{Holder, SessionKey};
use turnway_core::limits;

/// Maximum sessions in one call: each takes about 2 us, during which the server answers no other call.
const BATCH_MAX: usize = limits::SWEEP_SESSIONS_MAX as usize;

/// A session and the channel for its registration's stamp.
type RegistrationRequest = (SessionKey, oneshot::Sender<CallResult<u64>>);

/// Pending registrations by incarnation. Their number has no bound of its own: each belongs to one op, and the store
/// takes no more than [`limits::STORE_QUEUE_MAX`] ops.
#[derive(Debug, Default)]
pub(super) struct Registrar(Mutex<BTreeMap<Holder, Vec<RegistrationRequest>>>);

/// The duty of the first request to send all requests that accumulate. If it is dropped before, the accumulated
/// requests fail as not performed, and the next request is the first again.
struct BatchDuty<'a> {
    registrar: &'a Registrar,
    holder: Holder,
    is_over: bool,
}

// === impl Registrar ===

impl Registrar {
    /// Adds a request; returns the duty to send if the request is the first.
    fn push(&self, holder: Holder, request: RegistrationRequest) -> Option<BatchDuty<'_>> {
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = requests.entry(holder).or_default();
        requests.push(request);
        (requests.len() == 1).then(|| BatchDuty { registrar: self, holder, is_over: false })
    }

    fn take(&self, holder: Holder) -> Vec<RegistrationRequest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&holder).unwrap_or_default()
    }
}

// === impl BatchDuty ===

impl BatchDuty<'_> {
    fn take(mut self) -> Vec<RegistrationRequest> {
        self.is_over = true;
        self.registrar.take(self.holder)
    }
}

impl Drop for BatchDuty<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            drop(self.registrar.take(self.holder));
        }
    }
}

// === impl OpExecutor ===

impl OpExecutor {
    /// Registers a session under an incarnation and returns the registration's stamp. Nothing that a sweep has to
    /// find may be sent before the registration is answered.
    pub(super) async fn register(&self, session: &SessionKey, holder: Holder) -> CallResult<u64> {
        let (reply_sender, reply) = oneshot::channel();
        if let Some(turn) = self.registrar.push(holder, (session.clone(), reply_sender)) {
            // Lets ops that start at the same moment add their requests.
            tokio::task::yield_now().await;
            self.register_all(holder, turn.take()).await;
        }
        // The request that had the duty to send was dropped.
        reply.await.unwrap_or(Err(RedisCallError::NotPerformed))
    }

    async fn register_all(&self, holder: Holder, mut requests: Vec<RegistrationRequest>) {
        while !requests.is_empty() {
            let rest = requests.split_off(requests.len().min(BATCH_MAX));
            let sessions: Vec<&SessionKey> = requests.iter().map(|(session, _)| session).collect();
            let stamps = self.register_some(holder, &sessions).await;
            for (n, (_, tell)) in requests.into_iter().enumerate() {
                let stamp = match &stamps {
                    Ok(stamps) => stamps.get(n).copied().ok_or(RedisCallError::Unknown),
                    Err(error) => Err(*error),
                };
                // The receiver may have been dropped.
                let _ = tell.send(stamp);
            }
            requests = rest;
        }
    }

    async fn register_some(&self, holder: Holder, sessions: &[&SessionKey]) -> CallResult<Vec<u64>> {
        if !self.registrations().is_enrolled(holder) {
            self.enroll(&self.commands, holder).await?;
        }
        let call = RedisCall::write("register", [key::registered(holder)]).number(self.now());
        let call = sessions.iter().fold(call, |call, session| call.text(&session.to_string()));
        let mut answer = self.call(call).await?;
        let stamps = sessions.iter().map(|_| answer.number()).collect::<CallResult<Vec<u64>>>()?;
        let mut registrations = self.registrations();
        sessions.iter().zip(&stamps).for_each(|(session, stamp)| registrations.register(session, holder, *stamp));
        Ok(stamps)
    }

    /// Makes an incarnation known to sweeps.
    pub(super) async fn enroll(&self, connection: &RedisConnection, holder: Holder) -> CallResult<u64> {
        let call = RedisCall::write("enroll", [key::INCARNATIONS]).number(self.now()).text(&key::incarnation(holder));
        let stamp = self.call_on(connection, call).await?.number()?;
        self.registrations().enroll(holder);
        Ok(stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::{SessionId, TenantId};

    #[test]
    fn dropped_registration_turn_wakes_the_waiters() {
        let key = || SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s").expect("a name") };
        let registrar = Registrar::default();
        let holder = Holder::default();
        let first = oneshot::channel();
        let second = oneshot::channel();
        let third = oneshot::channel();
        let turn = registrar.push(holder, (key(), first.0)).expect("the first");
        assert!(registrar.push(holder, (key(), second.0)).is_none());
        drop(turn);
        let mut waits = second.1;
        assert_eq!(waits.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let turn = registrar.push(holder, (key(), third.0)).expect("the first again");
        assert_eq!(turn.take().len(), 1);
        assert!(registrar.take(holder).is_empty());
    }
}
