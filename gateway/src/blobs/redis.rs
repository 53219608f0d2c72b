//! Bodies in Redis: a hash for each, with a field for each part, beside the keys of its session. A body ends by itself an
//! hour after its last part, until the step that makes it a blob keeps it; the functions of the store delete it.
use super::{BodyError, PART_BYTES};
use crate::clock::Clock;
use crate::redis::{RedisCommandError, RedisConnection};
use ::redis::{Pipeline, Value, cmd};
use bytes::{Buf, Bytes, BytesMut};
use std::time::Duration;
use turnway_core::id::{BodyId, SessionKey};

/// The time for which a body without a blob is kept: longer than its upload may take.
const UNNAMED_KEPT: Duration = Duration::from_secs(60 * 60);

/// Bodies in Redis.
#[derive(Clone)]
pub struct RedisBodies {
    /// A connection of their own, so that no other command waits behind a large part.
    connection: RedisConnection,
    clock: Clock,
}

/// A body that is being stored.
pub struct RedisWriter {
    bodies: RedisBodies,
    key: String,
    part: BytesMut,
    parts: u64,
}

/// A body that is being read.
pub struct RedisReader {
    bodies: RedisBodies,
    key: String,
    parts: u64,
}

// === impl RedisBodies ===

impl RedisBodies {
    /// Stores bodies over this connection.
    pub fn new(connection: RedisConnection, clock: Clock) -> Self {
        Self { connection, clock }
    }

    pub(super) fn begin(&self, session: &SessionKey, body: BodyId) -> RedisWriter {
        RedisWriter { bodies: self.clone(), key: key(session, body), part: BytesMut::new(), parts: 0 }
    }

    pub(super) async fn open(&self, session: &SessionKey, body: BodyId) -> Result<RedisReader, BodyError> {
        let key = key(session, body);
        let parts = self.connection.execute(cmd("HLEN").arg(&key)).await?;
        if parts == Value::Int(0) {
            return Err(BodyError::Missing);
        }
        Ok(RedisReader { bodies: self.clone(), key, parts: 0 })
    }
}

/// Returns the key of a body, which the functions of the store know, too.
fn key(session: &SessionKey, body: BodyId) -> String {
    format!("ix:{{{session}}}:blob:{body}")
}

// === impl RedisWriter ===

impl RedisWriter {
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), BodyError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = PART_BYTES - self.part.len();
            let taken = rest.len().min(room);
            self.part.extend_from_slice(&rest[..taken]);
            rest.advance(taken);
            if self.part.len() == PART_BYTES {
                self.send_part().await?;
            }
        }
        Ok(())
    }

    pub(super) async fn finish(mut self) -> Result<(), BodyError> {
        // An empty body has one empty part, so that it is there.
        if self.parts == 0 || !self.part.is_empty() { self.send_part().await } else { Ok(()) }
    }

    async fn send_part(&mut self) -> Result<(), BodyError> {
        let part = self.part.split();
        let until = self.bodies.clock.now().store.after(UNNAMED_KEPT);
        let mut commands = Pipeline::with_capacity(2);
        commands.cmd("HSET").arg(&self.key).arg(self.parts).arg(&*part);
        commands.cmd("PEXPIREAT").arg(&self.key).arg(until.0);
        for answer in self.bodies.connection.execute_all(&commands).await? {
            answer?;
        }
        self.parts += 1;
        Ok(())
    }
}

// === impl RedisReader ===

impl RedisReader {
    pub(super) async fn next_part(&mut self) -> Result<Option<Bytes>, BodyError> {
        let part = self.bodies.connection.execute(cmd("HGET").arg(&self.key).arg(self.parts)).await?;
        self.parts += 1;
        let Value::BulkString(part) = part else { return Ok(None) };
        Ok((!part.is_empty()).then(|| part.into()))
    }
}

impl From<RedisCommandError> for BodyError {
    fn from(error: RedisCommandError) -> Self {
        match &error {
            RedisCommandError::Refused { code, .. } if code == "OOM" => Self::Full,
            RedisCommandError::NotSent | RedisCommandError::Unanswered | RedisCommandError::Refused { .. } => {
                Self::Redis(error)
            }
        }
    }
}

impl std::fmt::Debug for RedisBodies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisBodies").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RedisWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisWriter").field("parts", &self.parts).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RedisReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisReader").field("parts", &self.parts).finish_non_exhaustive()
    }
}
