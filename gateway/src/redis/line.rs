//! One connection, reconnected whenever it is lost. Used by `store::redis` and `bus::redis`.
use crate::config::redis::RedisUrl;
use crate::redis::reach::{self, Patience, Unreached};
use crate::signal::Reload;
use crate::supervise;
use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, ServerError, Value, cmd,
};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

/// Pause before the second try to connect; doubled before each later try …
const RETRY: Duration = Duration::from_millis(100);
/// … up to this maximum.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Pause between two health checks. A connection to a machine that is gone does not break by itself.
const WATCH: Duration = Duration::from_millis(500);
/// Timeout of a health check, after which the server is left and looked up again: a Sentinel may name another by then.
/// Longer than a fork or a slow fsync takes.
const WATCH_WITHIN: Duration = Duration::from_secs(2);
/// … and this timeout if the last check took more than half of that: a server that far away is not gone.
const WATCH_WITHIN_FAR: Duration = Duration::from_secs(4);

/// A callback for push messages of the server, including the notice of a lost connection. Must not block.
pub type Hears = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// The purpose of a connection.
#[derive(Clone)]
pub struct Settings {
    /// A name for logs.
    pub name: &'static str,
    /// Timeout of a command.
    pub answer_within: Duration,
    /// Channels subscribed to on each new connection before it is used; may be empty.
    pub channels: Vec<String>,
    /// Receives the messages of the channels.
    pub hears: Option<Hears>,
}

/// A reason why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missed {
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
struct Open {
    connection: MultiplexedConnection,
    /// Notified when the connection must be replaced.
    lost: Arc<Notify>,
    /// Number of this connection, counted from 1.
    turn: u64,
}

/// One connection with one purpose, reconnected for ever. Clones share it; it closes with the last of them.
#[derive(Clone)]
pub struct Line {
    open: watch::Receiver<Option<Open>>,
    /// The server's error at the last try to connect; `None` after a success, or if the server answered nothing.
    refused: watch::Receiver<Option<(String, String)>>,
    _keeper: Arc<Keeper>,
}

struct Keeper(AbortHandle);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

// === impl Line ===

impl Line {
    /// Starts connecting at once, and reconnects for ever.
    pub fn open(url: RedisUrl, settings: Settings, runtime: &Handle) -> Self {
        let ((shown, open), (refusing, refused)) = (watch::channel(None), watch::channel(None));
        let kept = keep(url, settings, shown, refusing);
        let task = supervise::need(runtime, "connection to Redis", kept);
        Self { open, refused, _keeper: Arc::new(Keeper(task.abort_handle())) }
    }

    /// Waits until there is a connection.
    pub async fn ready(&self) {
        // The keeper task lives as long as `self`.
        let _ = self.open.clone().wait_for(Option::is_some).await;
    }

    /// Waits until there is no connection.
    pub async fn gone(&self) {
        let _ = self.open.clone().wait_for(Option::is_none).await;
    }

    /// Returns the number of the current connection, from 1; `None` if there is no connection. A new number means that
    /// push messages may have been missed.
    pub fn turn(&self) -> Option<u64> {
        self.open.borrow().as_ref().map(|open| open.turn)
    }

    /// Returns the first word and the rest of the server's error, if the last try to connect was refused.
    pub fn refusal(&self) -> Option<(String, String)> {
        self.refused.borrow().clone()
    }

    /// Waits until [`Self::turn`] has changed since the last call on this clone.
    pub async fn turned(&mut self) -> Option<u64> {
        let _ = self.open.changed().await;
        self.open.borrow_and_update().as_ref().map(|open| open.turn)
    }

    /// Drops the current connection, if there is one, and reconnects at once.
    pub fn renew(&self) {
        if let Some(open) = self.open.borrow().as_ref() {
            open.lost.notify_one();
        }
    }

    /// Sends a command. Fails at once if there is no connection; nothing is queued for later.
    pub async fn ask(&self, command: &Cmd) -> Result<Value, Missed> {
        let mut open = self.current()?;
        let answer = open.connection.send_packed_command(command).await;
        open.judge(heard(answer))
    }

    /// Sends several commands in one pipeline, and returns a result for each.
    pub async fn ask_all(&self, commands: &Pipeline) -> Result<Vec<Result<Value, Missed>>, Missed> {
        let mut open = self.current()?;
        let values = open.connection.send_packed_commands(commands, 0, commands.len()).await;
        Ok(values.map_err(missed)?.into_iter().map(|value| open.judge(heard(Ok(value)))).collect())
    }

    fn current(&self) -> Result<Open, Missed> {
        self.open.borrow().clone().ok_or(Missed::NotSent)
    }
}

// === impl Open ===

impl Open {
    /// Reconnects after `READONLY`: the server was demoted to a replica, so there must be another primary.
    fn judge(&self, result: Result<Value, Missed>) -> Result<Value, Missed> {
        if let Err(Missed::Refused { code, .. }) = &result
            && code == "READONLY"
        {
            self.lost.notify_one();
        }
        result
    }
}

// === impl Missed ===

fn heard(result: Result<Value, RedisError>) -> Result<Value, Missed> {
    match result {
        Ok(Value::ServerError(error)) => Err(Missed::from(&error)),
        Ok(value) => Ok(value),
        Err(error) => Err(missed(error)),
    }
}

/// Converts an error. Every error except an answer of the server leaves open whether the command was executed: the
/// connection may have been lost before or after.
fn missed(error: RedisError) -> Missed {
    match error.into_server_errors().as_deref() {
        Some([(_, error), ..]) => Missed::from(error),
        Some([]) | None => Missed::Unanswered,
    }
}

impl From<&ServerError> for Missed {
    fn from(error: &ServerError) -> Self {
        let detail = error.details().unwrap_or_default().to_owned();
        Self::Refused { code: error.code().to_owned(), detail }
    }
}

// === the keeper ===

async fn keep(
    url: RedisUrl,
    settings: Settings,
    shown: watch::Sender<Option<Open>>,
    refused: watch::Sender<Option<(String, String)>>,
) {
    let (mut turn, mut wait, mut told) = (0, Duration::ZERO, false);
    let mut patience = Patience::default();
    let mut reload = url.login.password_file.as_ref().and_then(|_| Reload::listen().ok());
    loop {
        let lost = Arc::new(Notify::new());
        let greeted = greet(&url, &settings, &lost, patience.next_wait()).await;
        refused.send_replace(greeted.as_ref().err().and_then(|unreached| unreached.said()));
        match greeted {
            Ok(connection) => {
                (turn, wait, told) = (turn + 1, Duration::ZERO, false);
                patience = Patience::default();
                tracing::info!(line = settings.name, turn, "connected to Redis");
                let open = Open { connection: connection.clone(), lost: Arc::clone(&lost), turn };
                let _ = shown.send(Some(open));
                tokio::select! {
                    () = lost.notified() => tracing::warn!(line = settings.name, "lost the connection to Redis"),
                    () = silent(connection.clone()) => tracing::warn!(line = settings.name, "Redis does not answer; reconnecting"),
                    () = log_in_again(&url, &settings, connection, reload.as_mut()) => {}
                }
                let _ = shown.send(None);
            }
            // Logged once for each outage, which may be long.
            Err(error) if !told => {
                told = true;
                tracing::warn!(line = settings.name, %error, "cannot connect to Redis; retrying");
            }
            Err(error) => tracing::debug!(line = settings.name, %error, "cannot connect to Redis"),
        }
        sleep(jittered(wait)).await;
        wait = (wait * 2).clamp(RETRY, RETRY_MAX);
    }
}

async fn greet(
    url: &RedisUrl,
    settings: &Settings,
    lost: &Arc<Notify>,
    within: Duration,
) -> Result<MultiplexedConnection, Unreached> {
    let (rings, hears) = (Arc::clone(lost), settings.hears.clone());
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(Some(settings.answer_within.max(within)))
        .set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                rings.notify_one();
            }
            if let Some(hears) = &hears {
                hears(push);
            }
            Ok::<(), std::convert::Infallible>(())
        });
    let mut connection = reach::connect_within(url, config, within).await?;
    // A server that is still loading its data answers HELLO, and no other command.
    if let Err(error) = cmd("PING").query_async::<Value>(&mut connection).await
        && (error.code().is_none() || matches!(error.code(), Some("LOADING" | "MASTERDOWN")))
    {
        return Err(Unreached::Greeting { error });
    }
    for channel in &settings.channels {
        connection.subscribe(channel).await.map_err(|error| Unreached::Greeting { error })?;
    }
    connection.set_response_timeout(settings.answer_within);
    Ok(connection)
}

/// Re-reads the password on `SIGHUP`, and logs in with it on the open connection. If the server refuses it, the
/// connection keeps its previous login. Never returns.
async fn log_in_again(
    url: &RedisUrl,
    settings: &Settings,
    mut connection: MultiplexedConnection,
    reload: Option<&mut Reload>,
) {
    let Some(reload) = reload else { return pending().await };
    loop {
        reload.asked().await;
        let line = settings.name;
        match reach::log_in(&url.login, &mut connection).await {
            Ok(()) => tracing::info!(line, "logged in to Redis again with the new content of store.password_file"),
            Err(error) => {
                let advice = "the open connection stays logged in, but the next one would be refused";
                tracing::error!(line, %error, "Redis refuses the new content of store.password_file: {advice}");
            }
        }
    }
}

/// Returns when the server has not answered a health check in time.
async fn silent(mut connection: MultiplexedConnection) {
    let ping = cmd("PING");
    // Connecting takes several round trips, so the first check may be as slow as any.
    let mut within = WATCH_WITHIN_FAR;
    loop {
        // The connection's own timeout may be shorter than the check's.
        connection.set_response_timeout(within);
        let asked = Instant::now();
        match timeout(within, connection.send_packed_command(&ping)).await.map(heard) {
            // An error also shows that the server is alive: one for a full disk, for example.
            Ok(Ok(_) | Err(Missed::Refused { .. })) => {
                let is_far = asked.elapsed() * 2 > WATCH_WITHIN;
                within = if is_far { WATCH_WITHIN_FAR } else { WATCH_WITHIN };
                sleep(WATCH).await;
            }
            Ok(Err(Missed::Unanswered | Missed::NotSent)) | Err(_) => return,
        }
    }
}

/// Returns a random pause from half of `wait` up to `wait`, or up to 50 ms if `wait` is zero, so that nodes that lost
/// the same server do not all reconnect at the same moment.
fn jittered(wait: Duration) -> Duration {
    let chance = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
    if wait.is_zero() { RETRY.mul_f64(chance / 2.0) } else { wait.mul_f64(0.5 + chance / 2.0) }
}
