//! Addresses of a Redis: `redis://`, `rediss://` with TLS, `redis+sentinel://` and `rediss+sentinel://`.
use std::fmt;
use std::path::PathBuf;
use turnway_core::private::Private;

/// Default port of Redis.
const REDIS_PORT: u16 = 6379;
/// Default port of a Sentinel.
const SENTINEL_PORT: u16 = 26379;
/// Maximum Sentinels of one fleet; three or five are usual.
const SENTINELS_MAX: usize = 16;

/// Credentials for a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisLogin {
    /// Redis user; without a name Redis assumes `default`.
    pub user: Option<String>,
    pub password: Option<Private<String>>,
    /// File with the password, read at each connection.
    pub password_file: Option<PathBuf>,
}

/// Files for TLS, in PEM, each read at each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// Certificates of accepted authorities; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// Client certificate with its chain, and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Host name and port of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisHost {
    /// Name or IP address.
    pub name: String,
    pub port: u16,
}

/// The way to find the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisEndpoint {
    /// A fixed server.
    Direct(RedisHost),
    /// The primary that one of these Sentinels names.
    Sentinel {
        /// Sentinels, asked one after another.
        sentinels: Vec<RedisHost>,
        /// Name of the primary at the Sentinels.
        master: String,
        /// Credentials for the Sentinels.
        login: RedisLogin,
    },
}

/// A Redis and how to connect to it. Prints without passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    pub endpoint: RedisEndpoint,
    /// TLS files, also for the Sentinels; `None`: no TLS.
    pub tls: Option<RedisTls>,
    pub login: RedisLogin,
    /// Number of the database.
    pub db: u32,
}

// === impl RedisLogin ===

impl RedisLogin {
    /// Parses `USER:PASSWORD`, `:PASSWORD` or `USER`, percent-encoded.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (user, Some(Private(percent_decode(password)?))),
            None => (text, None),
        };
        let user = if user.is_empty() { None } else { Some(percent_decode(user)?) };
        Ok(Self { user, password, password_file: None })
    }
}

// === impl RedisUrl ===

impl RedisUrl {
    /// Parses `redis[s]://[USER:PASSWORD@]HOST[:PORT][/DB]` or
    /// `redis[s]+sentinel://[USER:PASSWORD@]HOST[:PORT],…/MASTER[?db=N&sentinel_user=…&sentinel_password=…]`.
    /// An error repeats nothing of the URL, because a password may be in it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("expected redis://HOST:PORT")?;
        let (tls, sentinel) = match scheme {
            "redis" => (false, false),
            "rediss" => (true, false),
            "redis+sentinel" => (false, true),
            "rediss+sentinel" => (true, true),
            _ => return Err("expected redis://, rediss://, redis+sentinel:// or rediss+sentinel://".into()),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (rest, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match rest.rsplit_once('@') {
            Some((login, hosts)) => (RedisLogin::parse(login)?, hosts),
            None => (RedisLogin::default(), rest),
        };
        let mut query_options = RedisUrlQuery::parse(query)?;
        let endpoint = if sentinel {
            if path.is_empty() || path.contains('/') {
                return Err("expected the primary's name after the Sentinels: redis+sentinel://HOST:PORT/NAME".into());
            }
            let sentinels =
                hosts.split(',').map(|text| parse_host(text, SENTINEL_PORT)).collect::<Result<Vec<_>, _>>()?;
            if sentinels.len() > SENTINELS_MAX {
                return Err(format!("at most {SENTINELS_MAX} Sentinels"));
            }
            let login = std::mem::take(&mut query_options.sentinel);
            RedisEndpoint::Sentinel { sentinels, master: percent_decode(path)?, login }
        } else {
            if !path.is_empty() {
                query_options.db = parse_database(path)?;
            }
            if query_options.sentinel != RedisLogin::default() {
                return Err("sentinel_user and sentinel_password are for redis+sentinel://".into());
            }
            RedisEndpoint::Direct(parse_host(hosts, REDIS_PORT)?)
        };
        Ok(Self { endpoint, tls: tls.then(RedisTls::default), login, db: query_options.db })
    }
}

impl fmt::Display for RedisUrl {
    /// Leaves out user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls.is_some() { "rediss" } else { "redis" })?;
        match &self.endpoint {
            RedisEndpoint::Direct(host) => write!(f, "://{host}")?,
            RedisEndpoint::Sentinel { sentinels, master, .. } => {
                let hosts: Vec<_> = sentinels.iter().map(ToString::to_string).collect();
                write!(f, "+sentinel://{}/{master}", hosts.join(","))?;
            }
        }
        match (&self.endpoint, self.db) {
            (_, 0) => Ok(()),
            (RedisEndpoint::Direct(_), db) => write!(f, "/{db}"),
            (RedisEndpoint::Sentinel { .. }, db) => write!(f, "?db={db}"),
        }
    }
}

impl fmt::Display for RedisHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// The query part of a URL.
#[derive(Default)]
struct RedisUrlQuery {
    db: u32,
    sentinel: RedisLogin,
}

impl RedisUrlQuery {
    fn parse(query: &str) -> Result<Self, String> {
        let mut overrides = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("db", value) => overrides.db = parse_database(value)?,
                ("sentinel_user", value) => overrides.sentinel.user = Some(percent_decode(value)?),
                ("sentinel_password", value) => overrides.sentinel.password = Some(Private(percent_decode(value)?)),
                _ => return Err("expected ?db=N, sentinel_user=… or sentinel_password=…".into()),
            }
        }
        Ok(overrides)
    }
}

fn parse_database(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "expected the number of a database".to_owned())
}

fn parse_host(text: &str, port: u16) -> Result<RedisHost, String> {
    let bad = || "expected HOST or HOST:PORT; an IPv6 address in brackets".to_owned();
    let (name, rest) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(bad)?,
        None => text.find(':').map_or((text, ""), |at| text.split_at(at)),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().map_err(|_| bad())?,
        None if rest.is_empty() => port,
        None => return Err(bad()),
    };
    let fits = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:%".contains(&b));
    if fits { Ok(RedisHost { name: name.to_owned(), port }) } else { Err(bad()) }
}

/// Decodes percent-encoding (RFC 3986 §2.1).
fn percent_decode(text: &str) -> Result<String, String> {
    let bad = || "expected percent-encoded UTF-8: two hexadecimal digits after each %".to_owned();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next().ok_or_else(bad)?, rest.next().ok_or_else(bad)?];
        let digits = std::str::from_utf8(&digits).map_err(|_| bad())?;
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(text: &str) -> RedisUrl {
        RedisUrl::parse(text).expect("a URL")
    }

    #[test]
    fn redis_url_is_parsed_and_shown_without_its_password() {
        let shown = [
            ("redis://localhost", "redis://localhost:6379"),
            ("redis://h:1/3", "redis://h:1/3"),
            ("redis://h?db=3", "redis://h:6379/3"),
            ("rediss://ann:hunter2@redis.example:6380", "rediss://redis.example:6380"),
            ("redis://:hunter2@[::1]:7", "redis://[::1]:7"),
            ("redis+sentinel://a:1,b/main", "redis+sentinel://a:1,b:26379/main"),
            (
                "rediss+sentinel://u:hunter2@a,b,c/main?db=2&sentinel_user=s&sentinel_password=hunter2",
                "rediss+sentinel://a:26379,b:26379,c:26379/main?db=2",
            ),
        ];
        for (text, shows) in shown {
            let url = good(text);
            assert_eq!(url.to_string(), shows);
            assert!(!format!("{url:?}").contains("hunter2"), "{url:?}");
        }
        let url = good("redis://a%3Ab:p%40%2Fw@h");
        assert_eq!(url.login.user.as_deref(), Some("a:b"));
        assert_eq!(url.login.password.as_ref().map(Private::reveal), Some("p@/w"));
        let RedisEndpoint::Sentinel { login, .. } = good("redis+sentinel://u@a/m?sentinel_user=s").endpoint else {
            panic!()
        };
        assert_eq!((login.user.as_deref(), login.password), (Some("s"), None));
    }

    #[test]
    fn invalid_redis_url_error_does_not_repeat_the_url() {
        let wrong = [
            "redis",
            "http://h",
            "redis://",
            "redis://hunter2@",
            "redis://h:x",
            "redis://h:70000",
            "redis://h/a",
            "redis://h?x=hunter2",
            "redis://a b",
            "redis://h,i",
            "redis://u:%zz@h",
            "redis://u:%4@h",
            "redis+sentinel://h",
            "redis+sentinel://h/a/b",
            "redis://h?sentinel_user=x",
            "redis://[::1",
            "redis://u:%+1@h",
        ];
        for text in wrong {
            let mistake = RedisUrl::parse(text).expect_err(text);
            assert!(!mistake.contains("hunter2"), "{mistake}");
        }
    }
}
