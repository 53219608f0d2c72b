//! One connection, reconnected whenever it is lost. Used by `store::redis` and `bus::redis`.
use crate::config::redis::RedisUrl;
use crate::redis::connect::{self, ConnectError, ConnectTimeout};
use crate::signal::ReloadSignal;
use crate::supervise;
use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, ServerError, Value, cmd};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

/// Pause before the second try to connect; doubled before each later try …
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// … up to this maximum.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Pause between two health checks. A connection to a machine that is gone does not break by itself.
const HEALTH_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of a health check, after which the server is left and looked up again: a Sentinel may name another by then.
/// Longer than a fork or a slow fsync takes.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// … and this timeout if the last check took more than half of that: a server that far away is not gone.
const HEALTH_TIMEOUT_FAR: Duration = Duration::from_secs(4);

/// A callback for push messages of the server, including the notice of a lost connection. Must not block.
pub type PushHandler = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// The purpose of a connection.
#[derive(Clone)]
pub struct RedisConnectionOptions {
    /// A name for logs.
    pub name: &'static str,
    /// Timeout of a command.
    pub command_timeout: Duration,
    /// Channels subscribed to on each new connection before it is used; may be empty.
    pub channels: Vec<String>,
    /// Receives the messages of the channels.
    pub push_handler: Option<PushHandler>,
}

/// A reason why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisCommandError {
    /// There is no connection, so nothing was sent: the command was not executed.
    #[error("not connected")]
    NotSent,
    /// The command was sent, or may have been: it may have been executed.
    #[error("no answer")]
    Unanswered,
    /// The server answered with an error.
    #[error("{code}: {detail}")]
    Refused {
        /// The error's first word, such as `ERR` or `OOM`.
        code: String,
        /// The rest of the error.
        detail: String,
    },
}

/// An open connection.
#[derive(Clone)]
struct OpenConnection {
    connection: MultiplexedConnection,
    /// Notified when the connection must be replaced.
    reconnect: Arc<Notify>,
    /// Number of this connection, counted from 1.
    generation: u64,
}

/// One connection with one purpose, reconnected for ever. Clones share it; it closes with the last of them.
#[derive(Clone)]
pub struct RedisConnection {
    open: watch::Receiver<Option<OpenConnection>>,
    /// The server's error at the last try to connect; `None` after a success, or if the server answered nothing.
    last_error: watch::Receiver<Option<(String, String)>>,
    _task: Arc<RedisConnectionTask>,
}

struct RedisConnectionTask(AbortHandle);

impl Drop for RedisConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

// === impl RedisConnection ===

impl RedisConnection {
    /// Starts connecting at once, and reconnects for ever.
    pub fn open(url: RedisUrl, settings: RedisConnectionOptions, runtime: &Handle) -> Self {
        let ((shown, open), (refusing, last_error)) = (watch::channel(None), watch::channel(None));
        let kept = run(url, settings, shown, refusing);
        let task = supervise::spawn_required(runtime, "connection to Redis", kept);
        Self { open, last_error, _task: Arc::new(RedisConnectionTask(task.abort_handle())) }
    }

    /// Waits until there is a connection.
    pub async fn wait_connected(&self) {
        // The connection task lives as long as `self`.
        let _ = self.open.clone().wait_for(Option::is_some).await;
    }

    /// Waits until there is no connection.
    pub async fn wait_disconnected(&self) {
        let _ = self.open.clone().wait_for(Option::is_none).await;
    }

    /// Returns the number of the current connection, from 1; `None` if there is no connection. A new number means that
    /// push messages may have been missed.
    pub fn generation(&self) -> Option<u64> {
        self.open.borrow().as_ref().map(|open| open.generation)
    }

    /// Returns the first word and the rest of the server's error, if the last try to connect was refused.
    pub fn last_error(&self) -> Option<(String, String)> {
        self.last_error.borrow().clone()
    }

    /// Waits until [`Self::generation`] has changed since the last call on this clone.
    pub async fn wait_generation(&mut self) -> Option<u64> {
        let _ = self.open.changed().await;
        self.open.borrow_and_update().as_ref().map(|open| open.generation)
    }

    /// Drops the current connection, if there is one, and reconnects at once.
    pub fn reconnect(&self) {
        if let Some(open) = self.open.borrow().as_ref() {
            open.reconnect.notify_one();
        }
    }

    /// Sends a command. Fails at once if there is no connection; nothing is queued for later.
    pub async fn execute(&self, command: &Cmd) -> Result<Value, RedisCommandError> {
        let mut open = self.current()?;
        let answer = open.connection.send_packed_command(command).await;
        open.reconnect_if_demoted(check_value(answer))
    }

    /// Sends several commands in one pipeline, and returns a result for each.
    pub async fn execute_all(
        &self,
        commands: &Pipeline,
    ) -> Result<Vec<Result<Value, RedisCommandError>>, RedisCommandError> {
        let mut open = self.current()?;
        let values = open.connection.send_packed_commands(commands, 0, commands.len()).await;
        Ok(values
            .map_err(command_error)?
            .into_iter()
            .map(|value| open.reconnect_if_demoted(check_value(Ok(value))))
            .collect())
    }

    fn current(&self) -> Result<OpenConnection, RedisCommandError> {
        self.open.borrow().clone().ok_or(RedisCommandError::NotSent)
    }
}

// === impl OpenConnection ===

impl OpenConnection {
    /// Reconnects after `READONLY`: the server was demoted to a replica, so there must be another primary.
    fn reconnect_if_demoted(&self, result: Result<Value, RedisCommandError>) -> Result<Value, RedisCommandError> {
        if let Err(RedisCommandError::Refused { code, .. }) = &result
            && code == "READONLY"
        {
            self.reconnect.notify_one();
        }
        result
    }
}

// === impl RedisCommandError ===

fn check_value(result: Result<Value, RedisError>) -> Result<Value, RedisCommandError> {
    match result {
        Ok(Value::ServerError(error)) => Err(RedisCommandError::from(&error)),
        Ok(value) => Ok(value),
        Err(error) => Err(command_error(error)),
    }
}

/// Converts an error. Every error except an answer of the server leaves open whether the command was executed: the
/// connection may have been lost before or after.
fn command_error(error: RedisError) -> RedisCommandError {
    match error.into_server_errors().as_deref() {
        Some([(_, error), ..]) => RedisCommandError::from(error),
        Some([]) | None => RedisCommandError::Unanswered,
    }
}

impl From<&ServerError> for RedisCommandError {
    fn from(error: &ServerError) -> Self {
        let detail = error.details().unwrap_or_default().to_owned();
        Self::Refused { code: error.code().to_owned(), detail }
    }
}

// === the connection task ===

async fn run(
    url: RedisUrl,
    settings: RedisConnectionOptions,
    shown: watch::Sender<Option<OpenConnection>>,
    refused: watch::Sender<Option<(String, String)>>,
) {
    let mut turn = 0;
    let mut wait = Duration::ZERO;
    let mut is_reported = false;
    let mut patience = ConnectTimeout::default();
    let mut reload = url.login.password_file.as_ref().and_then(|_| ReloadSignal::listen().ok());
    loop {
        let lost = Arc::new(Notify::new());
        let greeted = connect_and_subscribe(&url, &settings, &lost, patience.next_timeout()).await;
        refused.send_replace(greeted.as_ref().err().and_then(|unreached| unreached.server_error()));
        match greeted {
            Ok(connection) => {
                (turn, wait, is_reported) = (turn + 1, Duration::ZERO, false);
                patience = ConnectTimeout::default();
                tracing::info!(line = settings.name, turn, "connected to Redis");
                let open =
                    OpenConnection { connection: connection.clone(), reconnect: Arc::clone(&lost), generation: turn };
                let _ = shown.send(Some(open));
                tokio::select! {
                    () = lost.notified() => tracing::warn!(line = settings.name, "lost the connection to Redis"),
                    () = wait_unhealthy(connection.clone()) => {
                        tracing::warn!(line = settings.name, "Redis does not answer; reconnecting");
                    }
                    () = reauthenticate(&url, &settings, connection, reload.as_mut()) => {}
                }
                let _ = shown.send(None);
            }
            // Logged once for each outage, which may be long.
            Err(error) if !is_reported => {
                is_reported = true;
                tracing::warn!(line = settings.name, %error, "cannot connect to Redis; retrying");
            }
            Err(error) => tracing::debug!(line = settings.name, %error, "cannot connect to Redis"),
        }
        sleep(jittered(wait)).await;
        wait = (wait * 2).clamp(RETRY_PAUSE, RETRY_PAUSE_MAX);
    }
}

async fn connect_and_subscribe(
    url: &RedisUrl,
    settings: &RedisConnectionOptions,
    lost: &Arc<Notify>,
    within: Duration,
) -> Result<MultiplexedConnection, ConnectError> {
    let rings = Arc::clone(lost);
    let hears = settings.push_handler.clone();
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(Some(settings.command_timeout.max(within)))
        .set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                rings.notify_one();
            }
            if let Some(hears) = &hears {
                hears(push);
            }
            Ok::<(), std::convert::Infallible>(())
        });
    let mut connection = connect::connect_within(url, config, within).await?;
    // A server that is still loading its data answers HELLO, and no other command.
    if let Err(error) = cmd("PING").query_async::<Value>(&mut connection).await
        && (error.code().is_none() || matches!(error.code(), Some("LOADING" | "MASTERDOWN")))
    {
        return Err(ConnectError::Setup { error });
    }
    for channel in &settings.channels {
        connection.subscribe(channel).await.map_err(|error| ConnectError::Setup { error })?;
    }
    connection.set_response_timeout(settings.command_timeout);
    Ok(connection)
}

/// Re-reads the password on `SIGHUP`, and logs in with it on the open connection. If the server refuses it, the
/// connection keeps its previous login. Never returns.
async fn reauthenticate(
    url: &RedisUrl,
    settings: &RedisConnectionOptions,
    mut connection: MultiplexedConnection,
    reload: Option<&mut ReloadSignal>,
) {
    let Some(reload) = reload else { return pending().await };
    loop {
        reload.recv().await;
        let line = settings.name;
        match connect::authenticate(&url.login, &mut connection).await {
            Ok(()) => {
                tracing::info!(line, "logged in to Redis again with the new content of store.password_file")
            }
            Err(error) => {
                let advice = "the open connection stays logged in, but the next one would be refused";
                let what = "cannot log in to Redis with the new content of store.password_file";
                tracing::error!(line, %error, "{what}: {advice}");
            }
        }
    }
}

/// Returns when the server has not answered a health check in time.
async fn wait_unhealthy(mut connection: MultiplexedConnection) {
    let ping = cmd("PING");
    // Connecting takes several round trips, so the first check may be as slow as any.
    let mut within = HEALTH_TIMEOUT_FAR;
    loop {
        // The connection's own timeout may be shorter than the check's.
        connection.set_response_timeout(within);
        let sent_at = Instant::now();
        match timeout(within, connection.send_packed_command(&ping)).await.map(check_value) {
            // An error also shows that the server is alive: one for a full disk, for example.
            Ok(Ok(_) | Err(RedisCommandError::Refused { .. })) => {
                let is_far = sent_at.elapsed() * 2 > HEALTH_TIMEOUT;
                within = if is_far { HEALTH_TIMEOUT_FAR } else { HEALTH_TIMEOUT };
                sleep(HEALTH_INTERVAL).await;
            }
            Ok(Err(RedisCommandError::Unanswered | RedisCommandError::NotSent)) | Err(_) => return,
        }
    }
}

/// Returns a random pause from half of `wait` up to `wait`, or up to 50 ms if `wait` is zero, so that nodes that lost
/// the same server do not all reconnect at the same moment.
fn jittered(wait: Duration) -> Duration {
    let chance = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
    if wait.is_zero() { RETRY_PAUSE.mul_f64(chance / 2.0) } else { wait.mul_f64(0.5 + chance / 2.0) }
}
