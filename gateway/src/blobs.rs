//! The bytes of blobs: stored while they are uploaded, read in parts, deleted. Which bytes belong to a blob stands in the
//! table of its session ([`turnway_core::store::blob`]); nothing here decides about it. Called by `http::blobs`.
mod files;
mod memory;
mod redis;
pub mod s3;
pub mod sweep;

pub use self::files::FileBodies;
pub use self::memory::MemoryBodies;
pub use self::redis::RedisBodies;
pub use self::s3::S3Bodies;

use bytes::Bytes;
use std::io;
use turnway_core::id::{BodyId, SessionKey};

/// Bytes of one part of a body in memory: a system call or a command for each is cheap, and a hundred transfers at a time
/// take 25 MiB.
pub const PART_BYTES: usize = 256 * 1024;

/// A place where bodies are stored, each under the key of its session and a name of its own.
#[derive(Clone, Debug)]
pub enum BodyStore {
    Files(FileBodies),
    Memory(MemoryBodies),
    Redis(RedisBodies),
    S3(S3Bodies),
}

/// A body that is being stored. Dropped before its end, it is removed if that is possible at once.
#[derive(Debug)]
pub enum BodyWriter {
    Files(files::FileWriter),
    Memory(memory::MemoryWriter),
    Redis(redis::RedisWriter),
    S3(s3::S3Writer),
}

/// A stored body that is being read, part by part.
#[derive(Debug)]
pub enum BodyReader {
    Files(files::FileReader),
    Memory(memory::MemoryReader),
    Redis(redis::RedisReader),
    S3(s3::S3Reader),
}

/// The reason why bytes could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// No bytes are stored under the name.
    #[error("the bytes are not there")]
    Missing,
    /// There is no room for more.
    #[error("there is no room for more bytes")]
    Full,
    #[error("a file: {0}")]
    File(io::Error),
    /// Redis cannot be reached, or refuses.
    #[error("Redis: {0}")]
    Redis(crate::redis::RedisCommandError),
    /// The S3-compatible store cannot be reached, or refuses.
    #[error("the store of blobs.url: {0}")]
    S3(s3::S3Error),
}

// === impl BodyStore ===

impl BodyStore {
    /// Returns whether [`Self::begin`] must be told the exact length of a body.
    pub fn needs_length(&self) -> bool {
        match self {
            Self::Files(_) | Self::Memory(_) | Self::Redis(_) => false,
            Self::S3(_) => true,
        }
    }

    /// Begins to store a body of at most this many bytes, or exactly so many if [`Self::needs_length`].
    pub async fn begin(&self, session: &SessionKey, body: BodyId, bytes: u64) -> Result<BodyWriter, BodyError> {
        Ok(match self {
            Self::Files(files) => BodyWriter::Files(files.begin(session, body).await?),
            Self::Memory(memory) => BodyWriter::Memory(memory.begin(session, body)),
            Self::Redis(redis) => BodyWriter::Redis(redis.begin(session, body)),
            Self::S3(s3) => BodyWriter::S3(s3.begin(session, body, bytes)),
        })
    }

    /// Opens a stored body.
    pub async fn open(&self, session: &SessionKey, body: BodyId) -> Result<BodyReader, BodyError> {
        Ok(match self {
            Self::Files(files) => BodyReader::Files(files.open(session, body).await?),
            Self::Memory(memory) => BodyReader::Memory(memory.open(session, body)?),
            Self::Redis(redis) => BodyReader::Redis(redis.open(session, body).await?),
            Self::S3(s3) => BodyReader::S3(s3.open(session, body).await?),
        })
    }

    /// Deletes bodies; ones that are not there are ignored. A failure is logged: what is left is garbage, which the sweep
    /// removes.
    pub async fn delete(&self, session: &SessionKey, bodies: &[BodyId]) {
        for body in bodies {
            let deleted = match self {
                Self::Files(files) => files.delete(session, *body).await,
                Self::Memory(memory) => {
                    memory.delete(session, *body);
                    Ok(())
                }
                // The store deletes them in the step that stops naming them.
                Self::Redis(_) => Ok(()),
                Self::S3(s3) => s3.delete(session, *body).await,
            };
            if let Err(error) = deleted {
                tracing::warn!(%error, %body, "the bytes of a blob could not be deleted");
            }
        }
    }

    /// Returns the sessions with bodies; of very many a part, and the next ones at the next call. None where no body can be
    /// left behind.
    pub async fn sessions(&self) -> Result<Vec<SessionKey>, BodyError> {
        match self {
            Self::Files(files) => files.sessions().await,
            Self::Memory(memory) => Ok(memory.sessions()),
            Self::Redis(_) => Ok(Vec::new()),
            Self::S3(s3) => s3.sessions().await,
        }
    }

    /// Returns the bodies of a session.
    pub async fn bodies(&self, session: &SessionKey) -> Result<Vec<BodyId>, BodyError> {
        match self {
            Self::Files(files) => files.bodies(session).await,
            Self::Memory(memory) => Ok(memory.bodies(session)),
            Self::Redis(_) => Ok(Vec::new()),
            Self::S3(s3) => s3.bodies(session).await,
        }
    }
}

// === impl BodyWriter ===

impl BodyWriter {
    /// Stores the next bytes.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), BodyError> {
        match self {
            Self::Files(writer) => writer.write(&bytes).await,
            Self::Memory(writer) => {
                writer.write(bytes);
                Ok(())
            }
            Self::Redis(writer) => writer.write(&bytes).await,
            Self::S3(writer) => writer.write(bytes).await,
        }
    }

    /// Ends the body. When this returns, the bytes are stored as durably as the store promises.
    pub async fn finish(self) -> Result<(), BodyError> {
        match self {
            Self::Files(writer) => writer.finish().await,
            Self::Memory(writer) => {
                writer.finish();
                Ok(())
            }
            Self::Redis(writer) => writer.finish().await,
            Self::S3(writer) => writer.finish().await,
        }
    }
}

// === impl BodyReader ===

impl BodyReader {
    /// Returns the next part; none at the end.
    pub async fn next_part(&mut self) -> Result<Option<Bytes>, BodyError> {
        match self {
            Self::Files(reader) => reader.next_part().await,
            Self::Memory(reader) => Ok(reader.next_part()),
            Self::Redis(reader) => reader.next_part().await,
            Self::S3(reader) => reader.next_part().await,
        }
    }
}

// === impl BodyError ===

impl From<io::Error> for BodyError {
    fn from(error: io::Error) -> Self {
        let kind = error.kind();
        if kind == io::ErrorKind::NotFound {
            Self::Missing
        } else if matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            Self::Full
        } else {
            Self::File(error)
        }
    }
}

#[cfg(test)]
mod tests;
