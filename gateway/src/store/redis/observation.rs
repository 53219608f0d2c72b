//! Reads the ownership of many sessions with plain Redis commands, in a sixth of the functions' time. The parts read
//! of one session need not be of one moment, because a claim detects that. The clock is read first, so that no call
//! still relies on a registration that was old by then.
use crate::store::redis::answer::RedisAnswerReader;
use crate::store::redis::executor::{CallResult, OpExecutor};
use crate::store::redis::key;
use ::redis::{Pipeline, Value};
use turnway_core::id::{OwnershipSnapshot, SessionKey};

/// The ownership of a session, and the store's time at which it was read.
pub(super) struct ObservedOwnership {
    pub(super) ownership: OwnershipSnapshot,
    /// True if the session has no owner but waiting inputs.
    pub(super) has_unowned_input: bool,
    pub(super) read_at: u64,
}

impl OpExecutor {
    /// Reads the ownership of these sessions; `None` for a session whose data cannot be read, which is then skipped
    /// and must not block the others.
    pub(super) async fn observe(&self, sessions: &[&SessionKey]) -> CallResult<Vec<Option<ObservedOwnership>>> {
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = Pipeline::with_capacity(sessions.len() + 1);
        pipeline.cmd("TIME");
        for session in sessions {
            pipeline.cmd("HMGET").arg(key::head(session)).arg("n").arg("i").arg("e");
        }
        let mut answers = self.values(&pipeline).await?.into_iter();
        let time = RedisAnswerReader::from_value(answers.next().flatten().unwrap_or(Value::Nil))?.time_millis()?;
        let now = if self.clock.is_some() { self.now() } else { time };
        let sight = |answer| {
            Some(ObservedOwnership {
                ownership: RedisAnswerReader::from_value(answer).ok()?.stored_ownership().ok()?,
                has_unowned_input: false,
                read_at: now,
            })
        };
        let mut seen: Vec<Option<ObservedOwnership>> = answers.map(|answer| answer.and_then(sight)).collect();
        self.observe_inputs(sessions, &mut seen).await?;
        for (session, _) in sessions.iter().zip(&seen).filter(|(_, seen)| seen.is_none()) {
            tracing::warn!(%session, "the data of this session in Redis cannot be read; the session is skipped");
        }
        Ok(seen)
    }

    /// Reads whether the sessions without an owner have waiting inputs.
    async fn observe_inputs(&self, sessions: &[&SessionKey], seen: &mut [Option<ObservedOwnership>]) -> CallResult<()> {
        let free = |seen: &Option<ObservedOwnership>| seen.as_ref().is_some_and(|seen| seen.ownership.holder.is_none());
        let mut pipeline = Pipeline::new();
        for (session, _) in sessions.iter().zip(seen.iter()).filter(|(_, seen)| free(seen)) {
            pipeline.cmd("XLEN").arg(key::inbox(session)).cmd("XLEN").arg(key::control(session));
        }
        let lengths = self.values(&pipeline).await?;
        for (seen, lengths) in seen.iter_mut().filter(|seen| free(seen)).zip(lengths.chunks(2)) {
            if lengths.contains(&None) {
                *seen = None;
            } else if let Some(seen) = seen {
                seen.has_unowned_input = lengths.iter().flatten().any(|length| *length != Value::Int(0));
            }
        }
        Ok(())
    }
}
