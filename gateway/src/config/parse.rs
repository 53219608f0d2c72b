//! Parses the values of settings, and checks that they are consistent. No other module interprets their text.
use super::allowed_clients::{AllowedHosts, Origin};
use super::amount::{format_size, parse_size, parse_wait};
use super::auth::{AuthConfig, AuthMode, IssuerConfig, JwksSource, SignatureAlgorithm};
use super::blobs::{BlobSettings, parse_media_ranges};
use super::channel::parse_channels;
use super::key::SettingKey;
use super::mistake::{ConfigMistake, SettingLocation};
use super::model::{RecordCalls, parse_models};
use super::network::Networks;
use super::rate::{self, RateOverrides};
use super::raw::RawConfig;
use super::redis::{RedisLogin, RedisTls, RedisUrl};
use super::s3::{S3Draft, S3Url, parse_region};
use super::served_by::ServedBy;
use super::share::{self, UsageLimits};
use super::{Config, Durability, LogFormat, PerAddress, RateSettings, StoreConfig, TlsFiles};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use turnway_core::limits;
use turnway_core::share::Shares;

/// Ends the messages about stores that this release does not have.
const SUPPORTED_STORES: &str = "expected embedded:DIR, redis://HOST:PORT or memory:";
/// A smaller cache would read the pages of the file again and again.
const CACHE_BYTES_MIN: u64 = 1024 * 1024;

/// Parsed values with the places they came from; settings are applied in ascending precedence of their sources.
struct ConfigDraft {
    http: (SocketAddr, SettingLocation),
    quic: (Option<SocketAddr>, SettingLocation),
    webtransport: bool,
    quic_connections: usize,
    admin: (SocketAddr, SettingLocation),
    health: Option<SocketAddr>,
    health_metrics: bool,
    hosts: Option<AllowedHosts>,
    origins: Vec<Origin>,
    proxies: Networks,
    per_address: PerAddress,
    tls_cert: Option<(PathBuf, SettingLocation)>,
    tls_key: Option<(PathBuf, SettingLocation)>,
    auth: (AuthMode, SettingLocation),
    pepper: Option<(PathBuf, SettingLocation)>,
    lockout: bool,
    jwks: Option<JwksSource>,
    issuer: Option<String>,
    audience: Option<String>,
    algorithms: Vec<SignatureAlgorithm>,
    /// Rates that the operator has set.
    rates: RateOverrides,
    tools_served_by: ServedBy,
    holding: UsageLimits,
    store: (StoreUrl, SettingLocation),
    durability: Option<(Durability, SettingLocation)>,
    deployer: Option<(RedisLogin, SettingLocation)>,
    attest: Option<(Durability, SettingLocation)>,
    wait: Duration,
    /// Files of the Redis password and of TLS, by the key that names them.
    store_files: Vec<(SettingKey, PathBuf, SettingLocation)>,
    keep_facts: Option<u64>,
    max_age: Option<Duration>,
    cache_bytes: u64,
    reserve_bytes: u64,
    blobs: BlobSettings,
    /// The place of the bytes of files.
    s3: S3Draft,
    skew_max: Option<Duration>,
    node_name: Option<String>,
    node_url: Option<String>,
    default_agent: Option<(String, SettingLocation)>,
    demo: bool,
    log: LogFormat,
    llm_record: RecordCalls,
}

#[expect(clippy::large_enum_variant, reason = "there is one of it, made at the start")]
enum StoreUrl {
    Embedded(PathBuf),
    Memory,
    Redis(RedisUrl),
}

/// Parses all settings, including those that a source of higher precedence overrides, and reports every
/// mistake. The returned value is meaningful only if there is none.
pub(super) fn read(raw: &mut RawConfig) -> Config {
    let mut draft = ConfigDraft::default();
    for (key, text, location) in std::mem::take(&mut raw.settings) {
        if let Err(what) = draft.apply(key, &text, &location) {
            // The message does not repeat the value, because a URL may hold a password.
            raw.mistakes.push(ConfigMistake::for_key(key, &location, what));
        }
    }
    let store = draft.build_store(&mut raw.mistakes);
    let tls = draft.build_tls(&mut raw.mistakes);
    draft.check_listeners(&mut raw.mistakes);
    let auth = draft.build_auth(&mut raw.mistakes);
    draft.blobs.place = std::mem::take(&mut draft.s3).build(&mut raw.mistakes);
    let channels = parse_channels(&raw.channels, &mut raw.mistakes);
    let models = parse_models(std::mem::take(&mut raw.models), &mut raw.mistakes);
    Config {
        http: draft.http.0,
        quic: draft.quic.0,
        webtransport: draft.webtransport,
        quic_connections: draft.quic_connections,
        admin: draft.admin.0,
        health: draft.health,
        health_metrics: draft.health_metrics,
        hosts: draft.hosts.unwrap_or_default(),
        origins: draft.origins,
        proxies: draft.proxies,
        per_address: draft.per_address,
        tls,
        auth,
        rates: draft.rates.or_defaults(RateSettings::default_for(draft.auth.0)),
        models,
        llm_record: draft.llm_record,
        channels,
        tools_served_by: draft.tools_served_by,
        holding: draft.holding.for_auth_mode(draft.auth.0),
        store,
        keep_facts: draft.keep_facts,
        max_age: draft.max_age,
        blobs: draft.blobs,
        skew_max: draft.skew_max,
        node_name: draft.node_name.unwrap_or_else(host_name),
        node_url: draft.node_url,
        default_agent: draft.default_agent,
        demo: draft.demo,
        log: draft.log,
    }
}

// === impl ConfigDraft ===

/// Placeholder values; the table's defaults overwrite them, because they are the first settings.
impl Default for ConfigDraft {
    fn default() -> Self {
        let nowhere = || (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), SettingLocation::Default);
        Self {
            http: nowhere(),
            quic: (None, SettingLocation::Default),
            webtransport: true,
            quic_connections: 0,
            admin: nowhere(),
            health: None,
            health_metrics: false,
            hosts: None,
            origins: Vec::new(),
            proxies: Networks::default(),
            per_address: PerAddress::Default,
            tls_cert: None,
            tls_key: None,
            auth: (AuthMode::None, SettingLocation::Default),
            pepper: None,
            lockout: true,
            jwks: None,
            issuer: None,
            audience: None,
            algorithms: Vec::new(),
            rates: RateOverrides::default(),
            tools_served_by: ServedBy::default(),
            holding: UsageLimits::default(),
            store: (StoreUrl::Memory, SettingLocation::Default),
            durability: None,
            deployer: None,
            attest: None,
            wait: Duration::ZERO,
            store_files: Vec::new(),
            keep_facts: None,
            max_age: None,
            cache_bytes: 0,
            reserve_bytes: 0,
            blobs: BlobSettings::default(),
            s3: S3Draft::default(),
            skew_max: None,
            node_name: None,
            node_url: None,
            default_agent: None,
            demo: false,
            log: LogFormat::Auto,
            llm_record: RecordCalls::default(),
        }
    }
}

impl ConfigDraft {
    fn apply(&mut self, key: SettingKey, text: &str, location: &SettingLocation) -> Result<(), String> {
        match key {
            SettingKey::ListenHttp => self.http = (parse_address(text)?, location.clone()),
            SettingKey::ListenQuicConnections => self.quic_connections = parse_quic_connections(text)?,
            SettingKey::ListenAdmin => self.admin = (parse_address(text)?, location.clone()),
            SettingKey::ListenHealth => self.health = Some(parse_address(text)?),
            SettingKey::ListenHealthMetrics => self.health_metrics = parse_bool(text)?,
            SettingKey::ListenQuic if text == "off" => self.quic = (None, location.clone()),
            SettingKey::ListenQuic => self.quic = (Some(parse_address(text)?), location.clone()),
            SettingKey::ListenWebtransport => self.webtransport = parse_bool(text)?,
            SettingKey::ListenHosts => self.hosts = Some(AllowedHosts::parse(text)?),
            SettingKey::ListenOrigins => self.origins = Origin::parse_list(text)?,
            SettingKey::ListenProxies => self.proxies = Networks::parse(text)?,
            SettingKey::ListenPerAddress => self.per_address = parse_per_address(text)?,
            SettingKey::TlsCert => self.tls_cert = Some((parse_path(text)?, location.clone())),
            SettingKey::TlsKey => self.tls_key = Some((parse_path(text)?, location.clone())),
            SettingKey::StoreUrl => self.store = (parse_store_url(text)?, location.clone()),
            SettingKey::StoreDurability => self.durability = Some((parse_durability(text)?, location.clone())),
            SettingKey::StoreDeployer => self.deployer = Some((RedisLogin::parse(text)?, location.clone())),
            SettingKey::StoreAttest => self.attest = Some((parse_attested(text)?, location.clone())),
            SettingKey::StoreWait => self.wait = parse_wait(text).ok_or("expected a wait such as 30s, 2m or 0s")?,
            SettingKey::StorePasswordFile
            | SettingKey::StoreCa
            | SettingKey::StoreClientCert
            | SettingKey::StoreClientKey => {
                self.store_files.retain(|(named, _, _)| *named != key);
                self.store_files.push((key, parse_path(text)?, location.clone()));
            }
            SettingKey::StoreRetention => self.keep_facts = parse_retention(text)?,
            SettingKey::StoreMaxAge => self.max_age = parse_max_age(text)?,
            SettingKey::StoreCache => self.cache_bytes = parse_size_min(text, CACHE_BYTES_MIN)?,
            SettingKey::StoreReserve => self.reserve_bytes = parse_size_min(text, 0)?,
            SettingKey::BlobsMax => self.blobs.bytes_max = parse_blob_size(text)?,
            SettingKey::BlobsTypes => self.blobs.types = parse_media_ranges(text)?,
            SettingKey::BlobsUrl => self.s3.url = Some(S3Url::parse(text)?),
            SettingKey::BlobsRegion => self.s3.region = parse_region(text)?,
            SettingKey::BlobsCredentials => self.s3.credentials = Some((parse_path(text)?, location.clone())),
            SettingKey::StoreSkew => self.skew_max = parse_skew(text)?,
            SettingKey::AuthMode => self.auth = (AuthMode::parse(text)?, location.clone()),
            SettingKey::AuthJwks => self.jwks = Some(JwksSource::parse(text)?),
            SettingKey::AuthIssuer => self.issuer = Some(parse_text(text)?),
            SettingKey::AuthAudience => self.audience = Some(parse_text(text)?),
            SettingKey::AuthAlgorithms => self.algorithms = SignatureAlgorithm::parse_list(text)?,
            SettingKey::AuthLockout => self.lockout = parse_bool(text)?,
            SettingKey::AuthPepper => self.pepper = Some((parse_path(text)?, location.clone())),
            SettingKey::RateConnection => self.rates.connection = Some(rate::parse(text)?),
            SettingKey::RateKey => self.rates.key = Some(rate::parse(text)?),
            SettingKey::RateTenant => self.rates.tenant = Some(rate::parse(text)?),
            SettingKey::ToolsServedBy => {
                let read = ServedBy::parse(text);
                self.tools_served_by = read.ok_or_else(|| format!("expected {}", ServedBy::EXPECTED))?;
            }
            SettingKey::ShareTenant => self.shares().tenant = share::parse_fraction(text)?,
            SettingKey::ShareUser => self.shares().user = share::parse_fraction(text)?,
            SettingKey::LimitAttempts => self.holding.attempts = share::parse_cap(text, limits::ATTEMPTS_MAX)?,
            SettingKey::LimitSessions => self.holding.sessions = share::parse_cap(text, limits::SESSIONS_OWNED_MAX)?,
            SettingKey::LimitSubscriptions => {
                self.holding.subscriptions = share::parse_cap(text, limits::SUBSCRIPTIONS_MAX)?;
            }
            SettingKey::QuotaTenant => self.holding.quotas.tenant = share::parse_quota(text)?,
            SettingKey::QuotaUser => self.holding.quotas.user = share::parse_quota(text)?,
            SettingKey::NodeName => self.node_name = Some(parse_label(text)?),
            SettingKey::NodeUrl => self.node_url = Some(parse_origin(text)?),
            SettingKey::DefaultAgent => self.default_agent = Some((parse_label(text)?, location.clone())),
            SettingKey::Demo => self.demo = parse_bool(text)?,
            SettingKey::LlmRecord => self.llm_record = parse_record(text)?,
            SettingKey::Log => self.log = parse_log_format(text)?,
        }
        Ok(())
    }

    fn shares(&mut self) -> &mut Shares {
        self.holding.shares.get_or_insert_default()
    }

    fn build_store(&self, mistakes: &mut Vec<ConfigMistake>) -> StoreConfig {
        let wanted_level = self.durability.as_ref().map(|(level, _)| *level);
        let mut not_here =
            |key, location: &SettingLocation, what: String| mistakes.push(ConfigMistake::for_key(key, location, what));
        if let (Some((_, location)), false) = (&self.deployer, matches!(self.store.0, StoreUrl::Redis(_))) {
            not_here(SettingKey::StoreDeployer, location, "only valid with a Redis in store.url".to_owned());
        }
        if !matches!(self.store.0, StoreUrl::Redis(_)) {
            let what = || "only valid with a Redis in store.url".to_owned();
            self.attest.iter().for_each(|(_, location)| not_here(SettingKey::StoreAttest, location, what()));
            self.store_files.iter().for_each(|(key, _, location)| not_here(*key, location, what()));
        }
        match &self.store.0 {
            StoreUrl::Embedded(dir) => {
                if let Some((level @ Durability::FsyncReplica, location)) = &self.durability {
                    let level = level.as_str();
                    let what = format!("an embedded store gives fsync at most, not {level}: it has no replica");
                    not_here(SettingKey::StoreDurability, location, what);
                }
                let dir = dir.clone();
                let durability = wanted_level.unwrap_or_default();
                let cache_bytes = self.cache_bytes;
                let reserve_bytes = self.reserve_bytes;
                StoreConfig::Embedded { dir, durability, cache_bytes, reserve_bytes }
            }
            StoreUrl::Memory => {
                if let Some((level, location)) = self.durability.as_ref().filter(|(level, _)| *level > Durability::Mem)
                {
                    let what = format!("a store in memory gives mem, not {}", level.as_str());
                    not_here(SettingKey::StoreDurability, location, what);
                }
                StoreConfig::Memory
            }
            StoreUrl::Redis(url) => StoreConfig::Redis {
                url: self.with_files(url.clone(), mistakes),
                durability: wanted_level.unwrap_or_default(),
                deployer: self.deployer.as_ref().map(|(login, _)| login.clone()),
                attest: self.attest.as_ref().map(|(level, _)| *level),
                wait: self.wait,
            },
        }
    }

    /// Adds the files of the password and of TLS to a Redis address.
    fn with_files(&self, mut url: RedisUrl, mistakes: &mut Vec<ConfigMistake>) -> RedisUrl {
        let named = |of: SettingKey| self.store_files.iter().find(|(key, _, _)| *key == of);
        let path = |of: SettingKey| named(of).map(|(_, path, _)| path.clone());
        let mut wrong = |key: SettingKey, what: &str| {
            if let Some((_, _, location)) = named(key) {
                mistakes.push(ConfigMistake::for_key(key, location, what.to_owned()));
            }
        };
        if url.login.password.is_some() {
            wrong(SettingKey::StorePasswordFile, "store.url names a password as well");
        }
        url.login.password_file = path(SettingKey::StorePasswordFile);
        let client = match (path(SettingKey::StoreClientCert), path(SettingKey::StoreClientKey)) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (Some(_), None) => {
                wrong(SettingKey::StoreClientCert, "needs store.client_key as well");
                None
            }
            (None, Some(_)) => {
                wrong(SettingKey::StoreClientKey, "needs store.client_cert as well");
                None
            }
            (None, None) => None,
        };
        match &mut url.tls {
            Some(tls) => *tls = RedisTls { ca: path(SettingKey::StoreCa), client },
            None => [SettingKey::StoreCa, SettingKey::StoreClientCert, SettingKey::StoreClientKey]
                .into_iter()
                .for_each(|key| wrong(key, "needs TLS: a store.url that begins with rediss")),
        }
        url
    }

    /// Pairs certificate and key; each needs the other.
    fn build_tls(&self, mistakes: &mut Vec<ConfigMistake>) -> Option<TlsFiles> {
        let (alone, key, other) = match (&self.tls_cert, &self.tls_key) {
            (None, None) => return None,
            (Some(cert), Some(secret)) => return Some(TlsFiles { cert: cert.clone(), key: secret.clone() }),
            (Some((_, location)), None) => (location, SettingKey::TlsCert, SettingKey::TlsKey),
            (None, Some((_, location))) => (location, SettingKey::TlsKey, SettingKey::TlsCert),
        };
        mistakes.push(ConfigMistake::for_key(key, alone, format!("needs {other} as well")));
        None
    }

    /// Rejects listeners that would serve other machines without authentication. Operators are never
    /// authenticated, so their listener is always restricted to this machine.
    fn check_listeners(&self, mistakes: &mut Vec<ConfigMistake>) {
        let is_open = self.auth.0 == AuthMode::None;
        let clients = "without authentication (auth.mode = \"none\") a node serves this machine only";
        let operators = "operators are not authenticated, so their listener must be on this machine";
        for (key, address, location, is_open, why) in [
            (SettingKey::ListenHttp, Some(&self.http.0), &self.http.1, is_open, clients),
            (SettingKey::ListenQuic, self.quic.0.as_ref(), &self.quic.1, is_open, clients),
            (SettingKey::ListenAdmin, Some(&self.admin.0), &self.admin.1, true, operators),
        ] {
            if let Some(address) = address.filter(|address| is_open && !address.ip().is_loopback()) {
                mistakes.push(ConfigMistake::for_key(
                    key,
                    location,
                    format!("{address} is not a loopback address, and {why}"),
                ));
            }
        }
        let (address, location) = &self.http;
        if !is_open && !address.ip().is_loopback() && self.hosts.is_none() {
            let what = "needs listen.hosts: the host names that clients use for this node";
            mistakes.push(ConfigMistake::for_key(SettingKey::ListenHttp, location, what));
        }
    }

    fn build_auth(&self, mistakes: &mut Vec<ConfigMistake>) -> AuthConfig {
        let (mode, location) = &self.auth;
        let mut needs = |what: String| mistakes.push(ConfigMistake::for_key(SettingKey::AuthMode, location, what));
        if mode.takes_keys() && self.pepper.is_none() {
            needs("needs auth.pepper: a file with a secret, such as `openssl rand -hex 32` makes".to_owned());
        }
        let missing = [
            (SettingKey::AuthJwks, self.jwks.is_none()),
            (SettingKey::AuthIssuer, self.issuer.is_none()),
            (SettingKey::AuthAudience, self.audience.is_none()),
        ];
        for (key, _) in missing.into_iter().filter(|(_, is_missing)| *is_missing && mode.takes_tokens()) {
            needs(format!("needs {key}"));
        }
        let issuer = match (&self.issuer, &self.audience, &self.jwks) {
            (Some(name), Some(audience), Some(jwks)) if mode.takes_tokens() => Some(IssuerConfig {
                name: name.clone(),
                audience: audience.clone(),
                algorithms: self.algorithms.clone(),
                jwks: jwks.clone(),
            }),
            (_, _, _) => None,
        };
        AuthConfig { mode: *mode, pepper: self.pepper.clone(), issuer, lockout: self.lockout }
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let bad = "expected ADDRESS:PORT, such as 127.0.0.1:8080, [::1]:8080 or localhost:0";
    match text.strip_prefix("localhost:") {
        Some(port) => port.parse().map(|port| (IpAddr::from(Ipv4Addr::LOCALHOST), port).into()).map_err(|_| bad.into()),
        None => text.parse().map_err(|_| bad.into()),
    }
}

fn parse_quic_connections(text: &str) -> Result<usize, String> {
    let most = limits::QUIC_CONNECTIONS_MAX;
    let count = text.parse().ok().filter(|count| (1..=most).contains(count));
    count.ok_or_else(|| format!("expected a number of connections, from 1 to {most}"))
}

fn parse_per_address(text: &str) -> Result<PerAddress, String> {
    match text.parse() {
        Ok(most @ 1..) => Ok(PerAddress::Limit(most)),
        Err(_) if text == "off" => Ok(PerAddress::Off),
        Ok(_) | Err(_) => Err("expected a number of connections, or off".into()),
    }
}

fn parse_path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("expected a file's name".into()) } else { Ok(text.into()) }
}

fn parse_store_url(text: &str) -> Result<StoreUrl, String> {
    match text.split_once(':') {
        Some(("embedded", "")) => Err("embedded: needs a directory, such as embedded:./turnway-data".into()),
        Some(("embedded", dir)) => Ok(StoreUrl::Embedded(dir.into())),
        Some(("memory", "")) => Ok(StoreUrl::Memory),
        Some(("redis" | "rediss" | "redis+sentinel" | "rediss+sentinel", _)) => {
            RedisUrl::parse(text).map(StoreUrl::Redis)
        }
        Some(_) | None => Err(format!("unknown kind of store; {SUPPORTED_STORES}")),
    }
}

/// Returns the minimum number of facts kept of each session, or `None` to keep all for ever.
fn parse_retention(text: &str) -> Result<Option<u64>, String> {
    let bad = "expected keep (everything, for ever) or facts=N (at least the last N facts of each session)";
    match text.split_once('=') {
        None if text == "keep" => Ok(None),
        Some(("facts", count)) => count.parse().ok().filter(|count| *count > 0).map(Some).ok_or(bad.to_owned()),
        Some(_) | None => Err(bad.to_owned()),
    }
}

/// Returns the time that a session is kept after its last fact, or `None` to keep it for ever.
fn parse_max_age(text: &str) -> Result<Option<Duration>, String> {
    let bad = || "expected off, or a wait of a second or more such as 24h or 720h".to_owned();
    let wait = || parse_wait(text).filter(|wait| *wait >= Duration::from_secs(1)).ok_or_else(bad);
    if text == "off" { Ok(None) } else { wait().map(Some) }
}

/// Returns the maximum clock skew of a ready node, or `None` for no limit.
fn parse_skew(text: &str) -> Result<Option<Duration>, String> {
    let bad = || "expected off, or a wait of a second or more such as 10s, 2m or 1h".to_owned();
    let wait = || parse_wait(text).filter(|wait| *wait >= Duration::from_secs(1)).ok_or_else(bad);
    if text == "off" { Ok(None) } else { wait().map(Some) }
}

fn parse_size_min(text: &str, least: u64) -> Result<u64, String> {
    match parse_size(text) {
        Some(bytes) if bytes < least => Err(format!("expected at least {}", format_size(least))),
        Some(bytes) => Ok(bytes),
        None => Err("expected a size such as 512B, 64KiB, 8MiB or 2GiB".to_owned()),
    }
}

fn parse_blob_size(text: &str) -> Result<u64, String> {
    let bytes = parse_size_min(text, 0)?;
    let most = limits::BLOB_BYTES_MAX;
    if bytes > most { Err(format!("expected at most {}", format_size(most))) } else { Ok(bytes) }
}

fn parse_durability(text: &str) -> Result<Durability, String> {
    match text {
        "mem" => Ok(Durability::Mem),
        "os" => Ok(Durability::Os),
        "fsync" => Ok(Durability::Fsync),
        "fsync+replica" => Ok(Durability::FsyncReplica),
        _ => Err("expected mem, os, fsync or fsync+replica".into()),
    }
}

/// Parses a durability that the operator attests; `mem` needs no attestation.
fn parse_attested(text: &str) -> Result<Durability, String> {
    match parse_durability(text) {
        Ok(Durability::Mem) | Err(_) => Err("expected os, fsync or fsync+replica".into()),
        Ok(level) => Ok(level),
    }
}

/// Parses a boolean, also in the form that environments use (`1`, `0`).
pub(super) fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("expected true or false".into()),
    }
}

fn parse_record(text: &str) -> Result<RecordCalls, String> {
    match text {
        "before" => Ok(RecordCalls::Before),
        "after" => Ok(RecordCalls::After),
        _ => Err("expected before or after".into()),
    }
}

fn parse_log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "auto" => Ok(LogFormat::Auto),
        "pretty" => Ok(LogFormat::Pretty),
        "json" => Ok(LogFormat::Json),
        _ => Err("expected auto, pretty or json".into()),
    }
}

/// Parses a name given by another party, such as a token's issuer.
fn parse_text(text: &str) -> Result<String, String> {
    let fits = (1..=512).contains(&text.len()) && !text.chars().any(char::is_control);
    if fits { Ok(text.to_owned()) } else { Err("expected 1 to 512 printable characters".into()) }
}

fn parse_label(text: &str) -> Result<String, String> {
    let fits = (1..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic());
    if fits { Ok(text.to_owned()) } else { Err("expected 1 to 64 printable ASCII characters".into()) }
}

/// Parses a URL that is only a scheme and a host, perhaps with a port.
fn parse_origin(text: &str) -> Result<String, String> {
    let wrong = || "expected http://HOST[:PORT] or https://HOST[:PORT]".to_owned();
    let uri: http::Uri = text.parse().map_err(|_| wrong())?;
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_host = uri.authority().is_some_and(|host| !host.as_str().contains('@'));
    let origin = text.strip_suffix('/').unwrap_or(text);
    if is_web && has_host && uri.path() == "/" && uri.query().is_none() { Ok(origin.to_owned()) } else { Err(wrong()) }
}

/// Returns the machine's host name, or `node` if there is none: it is only a default label.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    parse_label(name.trim()).unwrap_or_else(|_| "node".to_owned())
}

#[cfg(test)]
mod tests;
