//! Opens a connection to the primary of a URL: finds it by its address or by asking Sentinels, and logs in. Called by
//! `redis::connection` and `store::redis`.
use crate::config::redis::{RedisEndpoint, RedisHost, RedisLogin, RedisUrl};
use ::redis::aio::MultiplexedConnection;
use ::redis::io::tcp::TcpSettings;
use ::redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisError, TlsCertificates, Value, cmd,
};
use std::path::{Path, PathBuf};
use std::time::Duration;
use turnway_core::private::Private;

/// Timeout of the connection and of the greeting, each, at the first try; doubled at each further try, for distant
/// servers.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum of that timeout: a server that takes longer cannot keep a node's lease.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(8);
/// Commands queued in front of the socket; beyond that, a caller waits for the socket.
const PIPELINE_MAX: usize = 1024;

/// A reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The server cannot be reached, or refused the connection.
    #[error("{host}: {error}")]
    Server { host: RedisHost, error: RedisError },
    /// The server is not a primary, so it accepts no writes.
    #[error("{host}: this is a replica, not a primary")]
    Replica { host: RedisHost },
    /// The server accepted the login and refused a command that the connection needs first.
    #[error("{error}")]
    Setup { error: RedisError },
    /// A file for the login or for TLS cannot be read.
    #[error("{setting}: {}: {error}", path.display())]
    File {
        /// The setting that names the file.
        setting: &'static str,
        path: PathBuf,
        error: std::io::Error,
    },
    /// No Sentinel knows the address of the primary.
    #[error("no Sentinel knows the primary `{master}`; the last answer: {last}")]
    Sentinels {
        /// The name of the primary at the Sentinels.
        master: String,
        /// The error of the last Sentinel that was asked.
        last: String,
    },
}

/// The timeout for connecting, doubled with each try, for distant servers.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectTimeout(u32);

impl ConnectTimeout {
    /// Returns the timeout of the next try.
    pub fn next_timeout(&mut self) -> Duration {
        let within = (CONNECT_TIMEOUT * 2_u32.pow(self.0)).min(CONNECT_TIMEOUT_MAX);
        self.0 = (self.0 + 1).min(3);
        within
    }
}

impl ConnectError {
    /// Returns the first word and the rest of the server's error, if the server answered with one.
    pub fn server_error(&self) -> Option<(String, String)> {
        let (Self::Server { error, .. } | Self::Setup { error }) = self else { return None };
        Some((error.code()?.to_owned(), error.detail().unwrap_or_default().to_owned()))
    }

    /// Returns whether a later try may succeed: the server is unreachable, loads its data, or is no primary yet. A
    /// refused login or certificate needs an operator.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Server { error, .. } | Self::Setup { error } => match error.code() {
                Some(code) => matches!(code, "LOADING" | "MASTERDOWN" | "OOM" | "BUSY" | "MISCONF"),
                // TLS errors about certificates, and about peers that do not speak TLS, contain these words.
                None => {
                    let text = error.to_string();
                    error.is_io_error() && !text.contains("ertificate") && !text.contains("corrupt message")
                }
            },
            Self::Replica { .. } | Self::Sentinels { .. } => true,
            Self::File { .. } => false,
        }
    }
}

/// Opens a connection to the primary, over RESP3.
pub async fn connect(url: &RedisUrl, config: AsyncConnectionConfig) -> Result<MultiplexedConnection, ConnectError> {
    connect_within(url, config, CONNECT_TIMEOUT).await
}

/// Opens a connection as [`connect`] does, with this timeout for the connection and its greeting.
pub async fn connect_within(
    url: &RedisUrl,
    config: AsyncConnectionConfig,
    within: Duration,
) -> Result<MultiplexedConnection, ConnectError> {
    let tls = RedisTlsCertificates::read(url)?;
    let login = load_password(&url.login)?;
    let host = find_primary(url, tls.as_ref(), within).await?;
    let config = config.set_connection_timeout(Some(within)).set_pipeline_buffer_size(PIPELINE_MAX);
    let opened = async {
        let mut connection = open(&host, tls.as_ref(), &login, url.db, &config).await?;
        // A Sentinel may not know yet that its primary was demoted. HELLO reports the role to every user; ROLE and INFO
        // need rights that a node does not have.
        let hello = cmd("HELLO").query_async::<Value>(&mut connection).await?;
        Ok((connection, is_primary(&hello)))
    };
    match opened.await {
        Ok((connection, true)) => Ok(connection),
        Ok((_, false)) => Err(ConnectError::Replica { host }),
        Err(error) => Err(ConnectError::Server { host, error }),
    }
}

/// Logs in on an open connection, with the password as its file has it now.
pub async fn authenticate(login: &RedisLogin, connection: &mut MultiplexedConnection) -> Result<(), ConnectError> {
    let RedisLogin { user, password: Some(Private(password)), .. } = load_password(login)? else {
        return Ok(());
    };
    let mut auth = cmd("AUTH");
    if let Some(user) = user {
        auth.arg(user);
    }
    let done = auth.arg(password).query_async::<Value>(connection).await;
    done.map(|_| ()).map_err(|error| ConnectError::Setup { error })
}

/// Returns a login with its password. A password in a file is read for each connection, so that it can be changed
/// without notifying the node.
fn load_password(login: &RedisLogin) -> Result<RedisLogin, ConnectError> {
    let Some(path) = &login.password_file else { return Ok(login.clone()) };
    let text = read("store.password_file", path)?;
    let password = String::from_utf8_lossy(&text).trim_end_matches(['\r', '\n']).to_owned();
    Ok(RedisLogin { password: Some(Private(password)), ..login.clone() })
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, ConnectError> {
    std::fs::read(path).map_err(|error| ConnectError::File { setting, path: path.to_owned(), error })
}

/// The TLS certificates besides the system's. The files are read for each connection, so that they can be replaced.
struct RedisTlsCertificates(TlsCertificates);

impl RedisTlsCertificates {
    /// Reads the files; returns `None` without TLS.
    fn read(url: &RedisUrl) -> Result<Option<Self>, ConnectError> {
        let Some(files) = &url.tls else { return Ok(None) };
        let root_cert = files.ca.as_deref().map(|path| read("store.ca", path)).transpose()?;
        let client_tls = match &files.client {
            Some((cert, key)) => Some(ClientTlsConfig {
                client_cert: read("store.client_cert", cert)?,
                client_key: read("store.client_key", key)?,
            }),
            None => None,
        };
        Ok(Some(Self(TlsCertificates { client_tls, root_cert })))
    }
}

async fn find_primary(
    url: &RedisUrl,
    tls: Option<&RedisTlsCertificates>,
    within: Duration,
) -> Result<RedisHost, ConnectError> {
    let (sentinels, master, login) = match &url.endpoint {
        RedisEndpoint::Direct(host) => return Ok(host.clone()),
        RedisEndpoint::Sentinel { sentinels, master, login } => (sentinels, master, login),
    };
    let mut last = String::new();
    for sentinel in sentinels {
        match ask_sentinel(sentinel, tls, login, master, within).await {
            Ok(Some((name, port))) => return Ok(RedisHost { name, port }),
            Ok(None) => last = format!("{sentinel}: no such primary"),
            Err(error) => last = format!("{sentinel}: {error}"),
        }
    }
    Err(ConnectError::Sentinels { master: master.clone(), last })
}

async fn ask_sentinel(
    sentinel: &RedisHost,
    tls: Option<&RedisTlsCertificates>,
    login: &RedisLogin,
    master: &str,
    within: Duration,
) -> Result<Option<(String, u16)>, RedisError> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(within)).set_response_timeout(Some(within));
    let mut connection = open(sentinel, tls, login, 0, &config).await?;
    cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master).query_async(&mut connection).await
}

async fn open(
    host: &RedisHost,
    tls: Option<&RedisTlsCertificates>,
    login: &RedisLogin,
    db: u32,
    config: &AsyncConnectionConfig,
) -> Result<MultiplexedConnection, RedisError> {
    let info = connection_info(host, tls.is_some(), login, db)?;
    let client = match tls {
        Some(RedisTlsCertificates(files)) => Client::build_with_tls(info, files.clone())?,
        None => Client::open(info)?,
    };
    client.get_multiplexed_async_connection_with_config(config).await
}

fn connection_info(host: &RedisHost, tls: bool, login: &RedisLogin, db: u32) -> Result<ConnectionInfo, RedisError> {
    let name = host.name.clone();
    let port = host.port;
    let address = if tls {
        ConnectionAddr::TcpTls { host: name, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(name, port)
    };
    // CLIENT SETINFO does not exist in Redis 7.0, and would need one more right.
    let mut settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
    settings = settings.set_db(i64::from(db));
    if let Some(user) = &login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password.reveal());
    }
    let tcp = TcpSettings::default().set_nodelay(true);
    Ok(address.into_connection_info()?.set_redis_settings(settings).set_tcp_settings(tcp))
}

/// Returns whether the map that `HELLO` answers has the `role` `master`, not `replica`.
fn is_primary(hello: &Value) -> bool {
    let Value::Map(pairs) = hello else { return false };
    pairs.iter().any(|(key, value)| is_text(key, "role") && is_text(value, "master"))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the rest is no text")]
fn is_text(value: &Value, text: &str) -> bool {
    match value {
        Value::BulkString(bytes) => bytes == text.as_bytes(),
        Value::SimpleString(reply) | Value::VerbatimString { text: reply, .. } => reply == text,
        _ => false,
    }
}
