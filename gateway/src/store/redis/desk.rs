//! Where ops become calls: what all of them share.
use crate::redis::refusal::Complaint;
use crate::redis::{Line, Missed};
use crate::store::embedded::Clock;
use crate::store::redis::answer::Answer;
use crate::store::redis::book::Book;
use crate::store::redis::call::{Call, Trouble, is_unknown_function};
use crate::store::redis::guard::Guard;
use crate::store::redis::health::Health;
use crate::store::redis::library::Library;
use crate::store::redis::quota::Bounds;
use crate::store::redis::registrar::Registrar;
use crate::store::redis::replicas::Replicas;
use ::redis::{Cmd, Pipeline, Value};
use futures_util::FutureExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;
use turnway_core::store::{Op, Refused, Reply};
use turnway_core::time::Mono;

/// What an op comes to.
pub(super) type Done<T> = Result<T, Trouble>;

/// Times an op registers and is told to register again. Once is usual; twice, if the server's clock was
/// set forward in between.
pub(super) const REGISTERS_MAX: usize = 3;

/// What all ops share.
pub(super) struct Desk {
    pub(super) commands: Line,
    /// Of their own, so that nothing big stands before a renewal.
    pub(super) leases: Line,
    pub(super) library: Library,
    /// Whether what is written is kept.
    pub(super) guard: Guard,
    /// Where an answer has to wait for them.
    pub(super) replicas: Option<Replicas>,
    /// A test's time instead of the server's.
    pub(super) clock: Option<Clock>,
    pub(super) began: Instant,
    pub(super) book: Mutex<Book>,
    /// What is to be registered and waits for what else is.
    pub(super) registrar: Registrar,
    /// Whether the last call was answered: each kind of trouble is told once.
    pub(super) well: AtomicBool,
    /// What the server says against being used.
    pub(super) health: Arc<Health>,
    /// How many bytes tenants and users may keep.
    pub(super) quotas: Arc<Bounds>,
}

impl Desk {
    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        book.turn(self.commands.turn());
        book
    }

    /// A test's time, or 0: the server's.
    pub(super) fn now(&self) -> u64 {
        self.clock.as_ref().map_or(0, |clock| clock().store.0)
    }

    /// A test's time, or since this process began to use the store.
    pub(super) fn mono(&self) -> Mono {
        self.clock.as_ref().map_or_else(|| Mono(self.began.elapsed()), |clock| clock().mono)
    }

    /// Whether all that an op needs is there.
    pub(super) fn is_connected(&self, op: &Op) -> bool {
        if is_about_leases(op) {
            return self.leases.turn().is_some();
        }
        let waits = || self.replicas.as_ref().is_none_or(|replicas| replicas.line().turn().is_some());
        self.commands.turn().is_some() && (!is_kept(op) || (self.guard.is_good() && waits()))
    }

    // === calling ===

    pub(super) async fn call(&self, call: Call) -> Done<Answer> {
        self.call_on(&self.commands, call).await
    }

    pub(super) async fn call_on(&self, line: &Line, call: Call) -> Done<Answer> {
        let command = call.command();
        let mut result = line.ask(command).await;
        if let Err(Missed::Refused { code, detail }) = &result
            && is_unknown_function(code, detail)
        {
            // In a box: it hardly ever happens, and every call would have its size.
            result = Box::pin(self.bring_and_ask(line, command, result)).await;
        }
        self.heard(result)
    }

    async fn bring_and_ask(
        &self,
        line: &Line,
        command: &Cmd,
        refused: Result<Value, Missed>,
    ) -> Result<Value, Missed> {
        if self.library.bring().await { line.ask(command).await } else { refused }
    }

    /// Several calls in one go.
    pub(super) async fn calls(&self, calls: Vec<Call>) -> Done<Vec<Answer>> {
        self.calls_on(&self.commands, calls).await
    }

    pub(super) async fn calls_on(&self, line: &Line, calls: Vec<Call>) -> Done<Vec<Answer>> {
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(call.into_command());
        }
        let values = self.values_on(line, &pipeline).await?;
        values.into_iter().map(|value| self.heard(value)).collect()
    }

    /// What Redis says to commands of its own, one after the other: for what needs no rule of ours. A key of another kind
    /// than ours is no reason to give up the others: none for those.
    pub(super) async fn values(&self, commands: &Pipeline) -> Done<Vec<Option<Value>>> {
        let values = self.values_on(&self.commands, commands).await?;
        let there = |value| match value {
            Ok(value) => Ok(Some(value)),
            Err(Missed::Refused { code, .. }) if code == "WRONGTYPE" => Ok(None),
            Err(missed) => Err(self.trouble(&missed)),
        };
        values.into_iter().map(there).collect()
    }

    async fn values_on(&self, line: &Line, commands: &Pipeline) -> Done<Vec<Result<Value, Missed>>> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        line.ask_all(commands).await.map_err(|missed| self.trouble(&missed))
    }

    fn heard(&self, result: Result<Value, Missed>) -> Done<Answer> {
        match result {
            Ok(value) => {
                self.well.store(true, Ordering::Relaxed);
                Answer::of(value)
            }
            Err(missed) => Err(self.trouble(&missed)),
        }
    }

    fn trouble(&self, missed: &Missed) -> Trouble {
        if self.well.swap(false, Ordering::Relaxed) {
            tracing::warn!(%missed, "Redis did not do as asked");
        }
        if let Missed::Refused { code, detail } = missed {
            self.health.refused(code, detail);
        }
        missed.into()
    }

    /// Waits until what was answered lies where it was promised to.
    pub(super) async fn kept(&self) -> Done<()> {
        match &self.replicas {
            Some(replicas) => replicas.have_it().await,
            None => Ok(()),
        }
    }

    // === performing ===

    /// Each in a box of its own: without, every op would have the size of all of them, and thousands may be under way.
    pub(super) async fn perform(&self, op: &Op) -> Done<Reply> {
        // What would fail in the middle of a function, nobody knows how far. Whoever asks now is better told at once.
        if matches!(op, Op::Accept { .. } | Op::Control { .. }) && self.health.has(Complaint::Forbidden) {
            return Ok(Reply::Refused(Refused::Forbidden));
        }
        let reply = match op {
            Op::Accept { key, principal, input, hash } => {
                self.accept(key, principal, input, *hash).boxed().await
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
            Op::Open { key } => self.open(key).boxed().await,
            Op::Read { key, after, limit } => self.read(key, *after, *limit).boxed().await,
            Op::Inbox { key, after, control_after, .. } => {
                self.inbox(key, *after, *control_after).boxed().await
            }
            Op::Keep(keep) => self.keep(keep).boxed().await,
            Op::Trim { key, token, upto } => self.trim(key, *token, *upto).boxed().await,
            Op::Find { key, principal, run_id, .. } => self.find(key, principal, run_id).boxed().await,
            Op::Delete { key, principal, .. } => self.delete(key, principal).boxed().await,
            Op::Sessions { tenant, user, before, limit, .. } => {
                self.sessions(tenant, user.as_ref(), before.as_ref(), *limit).boxed().await
            }
            Op::Idle { from, before, limit } => self.idle(from.as_ref(), *before, *limit).boxed().await,
            Op::Forget { key, before } => self.forget(key, *before).boxed().await,
            Op::Sweep { limit } => self.sweep(*limit).boxed().await,
            Op::Get { name } => self.get(name).boxed().await,
            Op::Put { name, expect, value } => self.put(name, *expect, value.as_deref()).boxed().await,
            Op::Expire { key, before_ms } => self.expire(key, *before_ms).boxed().await,
        };
        match reply {
            // Somebody asks for these, and is told why they are refused.
            Err(trouble) if matches!(op, Op::Accept { .. } | Op::Control { .. }) => match trouble {
                Trouble::Full => Ok(Reply::Refused(Refused::Full)),
                Trouble::ReadOnly => Ok(Reply::Refused(Refused::ReadOnly)),
                Trouble::Forbidden => Ok(Reply::Refused(Refused::Forbidden)),
                Trouble::NotDone | Trouble::Doubt => Err(trouble),
            },
            reply => reply,
        }
    }
}

/// Ops whose answer says that something is as durable as was promised.
fn is_kept(op: &Op) -> bool {
    matches!(
        op,
        Op::Accept { .. }
            | Op::Control { .. }
            | Op::Append(_)
            | Op::Put { .. }
            | Op::Delete { .. }
            | Op::Forget { .. }
    )
}

/// Ops that go over the leases' line.
fn is_about_leases(op: &Op) -> bool {
    matches!(op, Op::Renew { .. } | Op::Retire { .. })
}
