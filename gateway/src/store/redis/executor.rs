//! The execution of ops on Redis: sends an op's calls and maps their answers to a reply. The ops themselves are in
//! sibling modules. Called by the store.
use crate::redis::server_error::ServerCondition;
use crate::redis::{RedisCommandError, RedisConnection};
use crate::store::embedded::ClockFn;
use crate::store::redis::answer::RedisAnswerReader;
use crate::store::redis::blobs::RedisBlobs;
use crate::store::redis::call::{RedisCall, RedisCallError, is_unknown_function};
use crate::store::redis::conversations::RedisConversations;
use crate::store::redis::health::StoreHealth;
use crate::store::redis::library::LibraryLoader;
use crate::store::redis::monitor::DurabilityMonitor;
use crate::store::redis::quota::QuotaBounds;
use crate::store::redis::registrar::Registrar;
use crate::store::redis::registration_cache::RegistrationCache;
use crate::store::redis::replicas::Replicas;
use ::redis::{Cmd, Pipeline, Value};
use futures_util::FutureExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;
use turnway_core::store::{ConversationOp, Op, Reply, StoreRefusal};
use turnway_core::time::Mono;

/// The result of an op or of a part of it.
pub(super) type CallResult<T> = Result<T, RedisCallError>;

/// Maximum attempts of an op that the functions ask to register the session again. Once is usual; twice if the
/// server's clock was set forward in between.
pub(super) const REGISTER_ATTEMPTS_MAX: usize = 3;

/// The state that all ops share.
pub(super) struct OpExecutor {
    pub(super) commands: RedisConnection,
    /// A separate connection, so that no large command delays a renewal.
    pub(super) leases: RedisConnection,
    pub(super) library: LibraryLoader,
    /// Monitors whether the server keeps the required durability.
    pub(super) monitor: DurabilityMonitor,
    /// Present if replies have to wait for replicas.
    pub(super) replicas: Option<Replicas>,
    /// A test's clock, used instead of the server's.
    pub(super) clock: Option<ClockFn>,
    pub(super) started_at: Instant,
    pub(super) registrations: Mutex<RegistrationCache>,
    /// Combines registrations that are made at the same time into one call.
    pub(super) registrar: Registrar,
    /// True if the last call was answered, so that only the first of consecutive failures is logged.
    pub(super) is_answering: AtomicBool,
    /// Problems that the server reported.
    pub(super) health: Arc<StoreHealth>,
    /// Quotas on the bytes stored for tenants and users.
    pub(super) quotas: Arc<QuotaBounds>,
}

impl OpExecutor {
    pub(super) fn registrations(&self) -> MutexGuard<'_, RegistrationCache> {
        let mut registrations = self.registrations.lock().unwrap_or_else(PoisonError::into_inner);
        registrations.set_connection(self.commands.generation());
        registrations
    }

    /// Returns a test's time, or 0 for the server's own time.
    pub(super) fn now(&self) -> u64 {
        self.clock.as_ref().map_or(0, |clock| clock().store.0)
    }

    /// Returns a test's monotonic time, or the time since this process opened the store.
    pub(super) fn mono(&self) -> Mono {
        self.clock.as_ref().map_or_else(|| Mono(self.started_at.elapsed()), |clock| clock().mono)
    }

    /// Returns whether the connections and guarantees that an op needs are available.
    pub(super) fn is_connected(&self, op: &Op) -> bool {
        if is_about_leases(op) {
            return self.leases.generation().is_some();
        }
        let waits = || self.replicas.as_ref().is_none_or(|replicas| replicas.line().generation().is_some());
        self.commands.generation().is_some() && (!is_durable_write(op) || (self.monitor.is_good() && waits()))
    }

    // === calling ===

    pub(super) async fn call(&self, call: RedisCall) -> CallResult<RedisAnswerReader> {
        self.call_on(&self.commands, call).await
    }

    pub(super) async fn call_on(&self, connection: &RedisConnection, call: RedisCall) -> CallResult<RedisAnswerReader> {
        let command = call.command();
        let mut result = connection.execute(command).await;
        if let Err(RedisCommandError::Refused { code, detail }) = &result
            && is_unknown_function(code, detail)
        {
            // Boxed, because the case is rare and would enlarge the future of every call.
            result = Box::pin(self.load_and_retry(connection, command, result)).await;
        }
        self.check_answer(result)
    }

    async fn load_and_retry(
        &self,
        connection: &RedisConnection,
        command: &Cmd,
        refused: Result<Value, RedisCommandError>,
    ) -> Result<Value, RedisCommandError> {
        if self.library.ensure_loaded().await { connection.execute(command).await } else { refused }
    }

    /// Performs several calls in one round trip.
    pub(super) async fn calls(&self, calls: Vec<RedisCall>) -> CallResult<Vec<RedisAnswerReader>> {
        self.calls_on(&self.commands, calls).await
    }

    pub(super) async fn calls_on(
        &self,
        connection: &RedisConnection,
        calls: Vec<RedisCall>,
    ) -> CallResult<Vec<RedisAnswerReader>> {
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(call.into_command());
        }
        let values = self.values_on(connection, &pipeline).await?;
        values.into_iter().map(|value| self.check_answer(value)).collect()
    }

    /// Performs plain Redis commands in one round trip. The value is `None` for a key of a foreign type, which must
    /// not fail the other commands.
    pub(super) async fn values(&self, commands: &Pipeline) -> CallResult<Vec<Option<Value>>> {
        let values = self.values_on(&self.commands, commands).await?;
        let there = |value| match value {
            Ok(value) => Ok(Some(value)),
            Err(RedisCommandError::Refused { code, .. }) if code == "WRONGTYPE" => Ok(None),
            Err(missed) => Err(self.record_error(&missed)),
        };
        values.into_iter().map(there).collect()
    }

    async fn values_on(
        &self,
        connection: &RedisConnection,
        commands: &Pipeline,
    ) -> CallResult<Vec<Result<Value, RedisCommandError>>> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        connection.execute_all(commands).await.map_err(|missed| self.record_error(&missed))
    }

    fn check_answer(&self, result: Result<Value, RedisCommandError>) -> CallResult<RedisAnswerReader> {
        match result {
            Ok(value) => {
                self.is_answering.store(true, Ordering::Relaxed);
                RedisAnswerReader::from_value(value)
            }
            Err(missed) => Err(self.record_error(&missed)),
        }
    }

    fn record_error(&self, missed: &RedisCommandError) -> RedisCallError {
        if self.is_answering.swap(false, Ordering::Relaxed) {
            tracing::warn!(%missed, "a command to Redis failed");
        }
        if let RedisCommandError::Refused { code, detail } = missed {
            self.health.record_refusal(code, detail);
        }
        missed.into()
    }

    /// Waits until the answered writes are replicated, if the store requires that.
    pub(super) async fn wait_replicated(&self) -> CallResult<()> {
        match &self.replicas {
            Some(replicas) => replicas.wait_replicated().await,
            None => Ok(()),
        }
    }

    // === performing ===

    /// Performs an op. Each branch is boxed: otherwise every op's future would be as large as the largest, and
    /// thousands may be in flight.
    pub(super) async fn perform(&self, op: &Op) -> CallResult<Reply> {
        // A right that is known to be missing would fail the function midway with an unknown outcome, so the op is
        // refused early.
        if matches!(op, Op::Accept { .. } | Op::Control { .. }) && self.health.has(ServerCondition::Forbidden) {
            return Ok(Reply::Refused(StoreRefusal::Forbidden));
        }
        let reply = match op {
            Op::Accept { key, principal, input, hash, route } => {
                self.accept(key, principal, (input, *hash), route.as_ref()).boxed().await
            }
            Op::Append(append) => self.append(append).boxed().await,
            Op::Renew { holder, ttl, fresh, .. } => self.renew(*holder, *ttl, *fresh).boxed().await,
            Op::Retire { holder } => self.retire(*holder).boxed().await,
            Op::Lease { node, .. } => self.lease(*node).boxed().await,
            Op::Control { key, principal, control, create } => {
                self.control(key, principal, control, *create).boxed().await
            }
            Op::Claim { key, holder, nonce, expect, floor } => {
                self.claim(key, *holder, *nonce, *expect, *floor).boxed().await
            }
            Op::Release { key, token, tail, drain } => self.release(key, *token, *tail, *drain).boxed().await,
            Op::Transfer { key, token, tail, to, nonce } => {
                self.transfer(key, *token, *tail, *to, *nonce).boxed().await
            }
            Op::Listen { key, node, stamp } => self.listen(key, *node, *stamp).boxed().await,
            Op::Unlisten { key, node, stamp } => self.unlisten(key, *node, *stamp).boxed().await,
            Op::ReadView { key } => self.open(key).boxed().await,
            Op::Read { key, after, limit } => self.read(key, *after, *limit).boxed().await,
            Op::Inbox { key, after, control_after, .. } => self.inbox(key, *after, *control_after).boxed().await,
            Op::WriteSnapshot(keep) => self.keep(keep).boxed().await,
            Op::Trim { key, token, upto } => self.trim(key, *token, *upto).boxed().await,
            Op::Find { key, principal, run_id, fence, .. } => {
                self.find(key, principal, (run_id, fence.as_ref())).boxed().await
            }
            Op::FindControl { key, principal, id, .. } => self.find_control(key, principal, id).boxed().await,
            Op::Delete { key, principal, .. } => self.delete(key, principal).boxed().await,
            Op::ListSessions { tenant, user, before, limit, .. } => {
                self.sessions(tenant, user.as_ref(), before.as_ref(), *limit).boxed().await
            }
            Op::ScanIdle { from, before, limit } => self.idle(from.as_ref(), *before, *limit).boxed().await,
            Op::DeleteIdle { key, before } => self.forget(key, *before).boxed().await,
            Op::Sweep { limit } => self.sweep(*limit).boxed().await,
            Op::Get { name } => self.get(name).boxed().await,
            Op::Put { name, expect, value } => self.put(name, *expect, value.as_deref()).boxed().await,
            Op::Conversation { op, .. } => RedisConversations::new(self).perform(op).boxed().await,
            Op::Blob { key, principal, action, .. } => {
                RedisBlobs::new(self).perform(key, principal, action).boxed().await
            }
            Op::Expire { key, before_ms } => self.expire(key, *before_ms).boxed().await,
        };
        match reply {
            // A client waits for these ops, so a refusal with its reason is the reply.
            Err(error) if is_awaited_by_a_client(op) => match error {
                RedisCallError::Full => Ok(Reply::Refused(StoreRefusal::Full)),
                RedisCallError::ReadOnly => Ok(Reply::Refused(StoreRefusal::ReadOnly)),
                RedisCallError::Forbidden => Ok(Reply::Refused(StoreRefusal::Forbidden)),
                RedisCallError::NotPerformed | RedisCallError::Unknown => Err(error),
            },
            reply => reply,
        }
    }
}

/// Returns whether a client waits for the op's reply.
fn is_awaited_by_a_client(op: &Op) -> bool {
    matches!(
        op,
        Op::Accept { .. }
            | Op::Control { .. }
            | Op::Blob { .. }
            | Op::Conversation { op: ConversationOp::Change { .. }, .. }
    )
}

/// Returns whether a reply to the op promises durability.
fn is_durable_write(op: &Op) -> bool {
    matches!(
        op,
        Op::Accept { .. }
            | Op::Control { .. }
            | Op::Append(_)
            | Op::Put { .. }
            | Op::Find { fence: Some(_), .. }
            | Op::Conversation { op: ConversationOp::Change { .. }, .. }
            | Op::Delete { .. }
            | Op::DeleteIdle { .. }
    ) || matches!(op, Op::Blob { action, .. } if !action.is_read())
}

/// Returns whether the op uses the connection for leases.
fn is_about_leases(op: &Op) -> bool {
    matches!(op, Op::Renew { .. } | Op::Retire { .. })
}
