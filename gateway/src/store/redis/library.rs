//! The library of functions: loads it into a server that has none or an older one of the same major version. Called
//! at start, and when the functions are missing.
use crate::config::redis::RedisUrl;
use crate::redis::connect::{self, ConnectError};
use crate::redis::server_error::{ServerCondition, classify};
use crate::store::redis::call::is_unknown_function;
use crate::store::redis::key;
use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Pipeline, RedisError, Value, cmd};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// The source of this release's functions.
pub(super) const SOURCE: &str = include_str!("turnway.lua");
/// `VERSION` of [`SOURCE`]; it only grows within a major version.
pub(super) const VERSION: u64 = 13;
/// Timeout of one command while loading: compiling the library takes some milliseconds, and a round trip to a usable
/// server up to two seconds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(4);
/// Delay before another attempt when missing functions could not be loaded.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum attempts: other nodes may load at the same time, each of them once.
const ATTEMPTS_MAX: usize = 5;

/// The reason why the functions are not available.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// No connection could be established.
    #[error(transparent)]
    Unreached(#[from] ConnectError),
    /// The user may not load functions.
    #[error(
        "the functions of Turnway are not there, and this user may not load them: {0}; name in store.deployer a user \
         who may, such as that of deploy/redis-users.acl: it is needed once for each release"
    )]
    Forbidden(RedisError),
    /// Any other error of the server.
    #[error("the functions of Turnway cannot be loaded: {0}")]
    Failed(#[from] RedisError),
    /// Other nodes keep loading the functions concurrently.
    #[error("other nodes keep loading the functions of Turnway; try again")]
    Busy,
}

/// The loader of the functions, which runs one load at a time.
pub(super) struct LibraryLoader {
    url: RedisUrl,
    load_lock: Arc<Mutex<()>>,
}

impl LibraryLoader {
    /// Creates a loader that logs in as `url` says.
    pub(super) fn new(url: RedisUrl) -> Self {
        Self { url, load_lock: Arc::default() }
    }

    /// Loads the functions if they are missing; returns whether they are available. Only one caller loads: the others
    /// fail at once, since nothing of their op was done.
    pub(super) async fn ensure_loaded(&self) -> bool {
        let Ok(turn) = Arc::clone(&self.load_lock).try_lock_owned() else { return false };
        match load_if_missing(&self.url, COMMAND_TIMEOUT).await {
            Ok(loaded) => {
                if loaded {
                    tracing::warn!(version = VERSION, "the functions were missing on the server and were loaded");
                }
                true
            }
            Err(error) => {
                tracing::error!(%error, "the functions are missing on the server and could not be loaded");
                tokio::spawn(async move {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                    drop(turn);
                });
                false
            }
        }
    }
}

/// Loads the library if it is missing or older than this release's; returns whether it was loaded.
pub(super) async fn load_if_missing(url: &RedisUrl, within: Duration) -> Result<bool, LibraryError> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(COMMAND_TIMEOUT));
    let mut connection = connect::connect_within(url, config, within).await?;
    for _ in 0..ATTEMPTS_MAX {
        if loaded_version(&mut connection).await?.is_some_and(|version| version >= VERSION) {
            return Ok(false);
        }
        if load(&mut connection).await? {
            return Ok(true);
        }
    }
    Err(LibraryError::Busy)
}

/// Returns the version of the library on the server.
pub(super) async fn loaded_version(connection: &mut MultiplexedConnection) -> Result<Option<u64>, RedisError> {
    let answer = cmd("FCALL_RO").arg("turnway1_version").arg(0).query_async::<Vec<u64>>(connection).await;
    match answer {
        Ok(version) => Ok(version.first().copied()),
        Err(error) if is_unknown_function(error.code().unwrap_or_default(), error.detail().unwrap_or_default()) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns the source to load.
#[cfg(not(feature = "planted"))]
fn source() -> &'static str {
    SOURCE
}

/// Returns the source to load, with the planted bug.
#[cfg(feature = "planted")]
fn source() -> String {
    super::planted::with_planted_bug(SOURCE)
}

/// Loads the library unless another node loaded one since the check: an older release must not replace a newer one.
async fn load(connection: &mut MultiplexedConnection) -> Result<bool, LibraryError> {
    let forbidden = |error: RedisError| match error.code() {
        Some(code) if classify(code, error.detail().unwrap_or_default()) == Some(ServerCondition::Forbidden) => {
            LibraryError::Forbidden(error)
        }
        _ => LibraryError::Failed(error),
    };
    cmd("WATCH").arg(key::LIBRARY).query_async::<Value>(connection).await.map_err(forbidden)?;
    if loaded_version(connection).await?.is_some_and(|version| version >= VERSION) {
        cmd("UNWATCH").query_async::<Value>(connection).await?;
        return Ok(false);
    }
    let mut transaction = Pipeline::new();
    transaction.atomic().cmd("INCR").arg(key::LIBRARY);
    transaction.cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(source());
    let done = transaction.query_async::<Option<(u64, String)>>(connection).await;
    done.map(|loaded| loaded.is_some()).map_err(forbidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_source_contains_its_version() {
        assert!(SOURCE.starts_with("#!lua name=turnway1\n"));
        assert!(SOURCE.contains(&format!("\nlocal VERSION = {VERSION}\n")));
    }

    #[test]
    fn library_and_model_share_the_uncounted_bytes_limit() {
        let most = turnway_core::limits::UNCOUNTED_BYTES_MAX;
        assert!(SOURCE.contains(&format!("\nlocal UNCOUNTED_MOST = {most}\n")));
    }

    /// Covers: S-41.
    #[test]
    fn library_raises_no_errors_from_user_input() {
        // The one error of its own is a constant text.
        let rest =
            SOURCE.replacen("error_reply('NOPERM this user lacks the right to a command of this function')", "", 1);
        assert!(!rest.contains("error_reply") && !rest.contains("error(") && !rest.contains("loadstring"));
    }
}
