//! From a URL to an open connection to the primary.
use crate::config::redis::{Host, Login, Place, RedisUrl};
use ::redis::aio::MultiplexedConnection;
use ::redis::io::tcp::TcpSettings;
use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, Value, cmd,
};
use std::time::Duration;

/// For the connection and the greeting, each.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Commands between a line and its socket: past it whoever asks waits for the socket.
const PIPELINE_MAX: usize = 1024;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Unreached {
    /// The server, or the way to it.
    #[error("{host}: {error}")]
    Server {
        /// Which.
        host: Host,
        /// What is wrong.
        error: RedisError,
    },
    /// What answers is no primary, so nothing can be written there.
    #[error("{host}: this is a replica, not a primary")]
    Replica {
        /// Which.
        host: Host,
    },
    /// No Sentinel knows where the primary is.
    #[error("no Sentinel knows the primary `{master}`; the last said: {last}")]
    Sentinels {
        /// How it is called.
        master: String,
        /// From the last one that was asked.
        last: String,
    },
}

/// Opens a connection to the primary, by RESP3.
pub async fn connect(
    url: &RedisUrl,
    config: AsyncConnectionConfig,
) -> Result<MultiplexedConnection, Unreached> {
    let host = find(url).await?;
    let config = config.set_connection_timeout(Some(CONNECT_WITHIN)).set_pipeline_buffer_size(PIPELINE_MAX);
    let opened = async {
        let mut connection = open(&host, url.tls, &url.login, url.db, &config).await?;
        // A Sentinel may not know yet that its primary was deposed. HELLO says it to everybody; ROLE and
        // INFO need rights that a node does not have.
        let hello = cmd("HELLO").query_async::<Value>(&mut connection).await?;
        Ok((connection, is_primary(&hello)))
    };
    match opened.await {
        Ok((connection, true)) => Ok(connection),
        Ok((_, false)) => Err(Unreached::Replica { host }),
        Err(error) => Err(Unreached::Server { host, error }),
    }
}

async fn find(url: &RedisUrl) -> Result<Host, Unreached> {
    let (sentinels, master, login) = match &url.place {
        Place::At(host) => return Ok(host.clone()),
        Place::Sentinel { sentinels, master, login } => (sentinels, master, login),
    };
    let mut last = String::new();
    for sentinel in sentinels {
        match ask(sentinel, url.tls, login, master).await {
            Ok(Some((name, port))) => return Ok(Host { name, port }),
            Ok(None) => last = format!("{sentinel}: no such primary"),
            Err(error) => last = format!("{sentinel}: {error}"),
        }
    }
    Err(Unreached::Sentinels { master: master.clone(), last })
}

async fn ask(
    sentinel: &Host,
    tls: bool,
    login: &Login,
    master: &str,
) -> Result<Option<(String, u16)>, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_WITHIN))
        .set_response_timeout(Some(CONNECT_WITHIN));
    let mut connection = open(sentinel, tls, login, 0, &config).await?;
    cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master).query_async(&mut connection).await
}

async fn open(
    host: &Host,
    tls: bool,
    login: &Login,
    db: u32,
    config: &AsyncConnectionConfig,
) -> Result<MultiplexedConnection, RedisError> {
    let client = Client::open(info(host, tls, login, db)?)?;
    client.get_multiplexed_async_connection_with_config(config).await
}

fn info(host: &Host, tls: bool, login: &Login, db: u32) -> Result<ConnectionInfo, RedisError> {
    let (name, port) = (host.name.clone(), host.port);
    let address = if tls {
        ConnectionAddr::TcpTls { host: name, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(name, port)
    };
    // CLIENT SETINFO is unknown to Redis 7.0, and one more right to give.
    let mut settings =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
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

/// `HELLO` answers a map: `role` is `master`, or `replica`.
fn is_primary(hello: &Value) -> bool {
    let Value::Map(pairs) = hello else { return false };
    pairs.iter().any(|(key, value)| is_text(key, "role") && is_text(value, "master"))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the rest is no text")]
fn is_text(value: &Value, text: &str) -> bool {
    match value {
        Value::BulkString(bytes) => bytes == text.as_bytes(),
        Value::SimpleString(said) | Value::VerbatimString { text: said, .. } => said == text,
        _ => false,
    }
}
