//! Checks of a server and its settings before any op is served (S-42), and repeatedly by the monitor. Managed servers
//! hide their settings (`CONFIG`) and some hide `INFO`; the operator may attest the hidden guarantees
//! (`store.attest`).
use crate::config::Durability;
use crate::config::redis::RedisUrl;
use crate::redis::connect;
use crate::store::redis::RedisOpenError;
use crate::store::redis::quota::ServerMemory;
use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Cmd, FromRedisValue, RedisError, cmd};
use std::collections::BTreeMap;
use std::time::Duration;

/// First version with functions.
const MIN_VERSION: (u32, u32) = (7, 0);
type RedisVersion = (u32, u32, u32);

/// Ranges of versions, the end excluded, in which functions or blocking commands allow what must not be possible
/// (S-41). Distributions may patch 7.0.15 without a visible sign.
const VULNERABLE_VERSIONS: [(RedisVersion, RedisVersion); 3] =
    [((7, 0, 0), (7, 0, 15)), ((7, 2, 0), (7, 4, 3)), ((8, 0, 0), (8, 6, 3))];
/// Timeout of a command: longer than the longest round trip at which a node can hold a lease.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(4);
/// The settings that are read.
const SETTINGS: [&str; 6] =
    ["maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "min-replicas-to-write", "protected-mode"];

/// The properties of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ServerInfo {
    /// Empty if hidden.
    version: String,
    /// The server's error if the settings are hidden; none if they are visible.
    hidden_reason: Option<String>,
    /// Valkey reports the Redis version that it was forked from.
    valkey: bool,
    settings: BTreeMap<String, String>,
    /// None if hidden.
    replicas: Option<u32>,
    /// True if the connection needed no credentials.
    anonymous: bool,
    cluster: bool,
    /// Memory in use, in bytes; none if hidden.
    used_memory: Option<u64>,
}

/// The guarantees of a server, as far as they can be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerGuarantees {
    /// Durability of a reply.
    pub(super) level: Durability,
    /// True if the durability is only attested by the operator.
    pub(super) attested: bool,
    /// The server's memory usage and bound.
    pub(super) memory: ServerMemory,
}

/// Rejects a server that cannot keep the required durability, and logs warnings. If the settings are hidden, the
/// level is the visible or attested one, up to the required one.
pub(super) async fn probe(
    url: &RedisUrl,
    wanted: Durability,
    attest: Option<Durability>,
    within: Duration,
) -> Result<ServerGuarantees, RedisOpenError> {
    let found = inspect_server(url, within).await?;
    let (given, warnings) = found.guarantees(wanted, attest)?;
    for warning in warnings {
        tracing::warn!(redis = %url, "{warning}");
    }
    Ok(given)
}

/// Returns the server's memory if the server by itself still keeps the required durability. Replication is confirmed
/// by each answer to `WAIT`.
pub(super) async fn recheck(
    url: &RedisUrl,
    wanted: Durability,
    attest: Option<Durability>,
) -> Result<ServerMemory, RedisOpenError> {
    let wanted = wanted.min(Durability::Fsync);
    let (given, _) = inspect_server(url, COMMAND_TIMEOUT).await?.guarantees(wanted, attest)?;
    if given.level >= wanted {
        return Ok(given.memory);
    }
    Err(RedisOpenError::Level {
        wanted: wanted.as_str(),
        gives: given.level.as_str(),
        missing: "its settings are no longer visible".to_owned(),
    })
}

async fn inspect_server(url: &RedisUrl, within: Duration) -> Result<ServerInfo, RedisOpenError> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(COMMAND_TIMEOUT));
    let mut connection = connect::connect_within(url, config, within).await?;
    let found = read_server_info(&mut connection).await.map_err(|error| RedisOpenError::Command { error })?;
    let anonymous = url.login.password.is_none() && url.login.password_file.is_none();
    Ok(ServerInfo { anonymous, ..found })
}

/// Runs a command that may be forbidden or unsupported; the inner error then says that the value is hidden. Temporary
/// errors of the server are returned as errors.
async fn query_if_visible<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
) -> Result<Result<T, String>, RedisError> {
    match command.query_async(connection).await {
        Ok(shown) => Ok(Ok(shown)),
        Err(error) => match error.code() {
            None | Some("LOADING" | "MASTERDOWN" | "BUSY" | "NOAUTH") => Err(error),
            Some(code) => Ok(Err(format!("{code} {}", error.detail().unwrap_or_default()))),
        },
    }
}

async fn read_server_info(connection: &mut MultiplexedConnection) -> Result<ServerInfo, RedisError> {
    let mut texts = Vec::new();
    for section in ["server", "replication", "memory", "persistence"] {
        texts.push(query_if_visible::<String>(connection, cmd("INFO").arg(section)).await?.unwrap_or_default());
    }
    let info = texts.join("\n");
    let settings =
        query_if_visible::<BTreeMap<String, String>>(connection, cmd("CONFIG").arg("GET").arg(&SETTINGS)).await?;
    Ok(ServerInfo::read(&info, settings))
}

impl ServerInfo {
    /// Combines the answers to `INFO` and `CONFIG`. A server may also hide single settings.
    fn read(info: &str, settings: Result<BTreeMap<String, String>, String>) -> Self {
        let line = |name: &str| {
            let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            found.map(|value| value.trim().to_owned())
        };
        let (mut settings, mut hidden_reason) = match settings {
            Ok(settings) => (settings, None),
            Err(reason) => (BTreeMap::new(), Some(reason)),
        };
        if hidden_reason.is_none() && !(settings.contains_key("appendonly") && settings.contains_key("appendfsync")) {
            hidden_reason = Some("it shows neither `appendonly` nor `appendfsync`".to_owned());
        }
        let aof = line("aof_enabled").map(|on| if on == "1" { "yes" } else { "no" }.to_owned());
        let memory = ("maxmemory", line("maxmemory"));
        for (name, value) in [("maxmemory-policy", line("maxmemory_policy")), ("appendonly", aof), memory] {
            if let Some(value) = value {
                settings.entry(name.to_owned()).or_insert(value);
            }
        }
        Self {
            version: line("redis_version").unwrap_or_default(),
            hidden_reason,
            valkey: line("server_name").is_some_and(|name| name == "valkey"),
            settings,
            replicas: line("connected_slaves").and_then(|count| count.parse().ok()),
            anonymous: false,
            cluster: line("redis_mode").is_some_and(|mode| mode == "cluster"),
            used_memory: line("used_memory").and_then(|bytes| bytes.parse().ok()),
        }
    }

    fn has_setting(&self, setting: &str, value: &str) -> bool {
        self.settings.get(setting).is_some_and(|set| set == value)
    }

    fn version(&self) -> RedisVersion {
        let mut parts = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        (next(), next(), next())
    }

    /// Returns the durability that the visible settings give.
    fn visible_durability(&self) -> Durability {
        match (self.has_setting("appendonly", "yes"), self.has_setting("appendfsync", "always")) {
            (false, _) => Durability::Mem,
            (true, false) => Durability::Os,
            (true, true) if self.replicas.unwrap_or_default() == 0 => Durability::Fsync,
            (true, true) => Durability::FsyncReplica,
        }
    }

    /// Returns the guarantees up to those required, with warnings; fails if the server cannot be used.
    fn guarantees(
        &self,
        wanted: Durability,
        attest: Option<Durability>,
    ) -> Result<(ServerGuarantees, Vec<String>), RedisOpenError> {
        let Some(reason) = &self.hidden_reason else {
            let mut warnings = self.check(wanted)?;
            if attest.is_some() {
                warnings.push("store.attest is not needed: the settings of this Redis are visible".to_owned());
            }
            return Ok((ServerGuarantees { level: wanted, attested: false, memory: self.memory() }, warnings));
        };
        let shown = self.visible_durability();
        let level = attest.unwrap_or(shown).max(shown).min(wanted);
        let attested = level > shown;
        let mut warnings = self.check(level.min(shown))?;
        if level > Durability::Fsync && self.replicas == Some(0) {
            let wanted = level.as_str();
            let gives = Durability::Fsync.as_str();
            return Err(RedisOpenError::Level { wanted, gives, missing: "connect a replica".to_owned() });
        }
        if level < wanted {
            warnings.push(format!(
                "the settings of this Redis cannot be seen ({reason}), so not {} is promised but {}: say in \
                 store.attest what it keeps, or name in store.deployer a user who may see them",
                wanted.as_str(),
                level.as_str()
            ));
        }
        if attested {
            let level = level.as_str();
            warnings.push(format!(
                "the durability {level} of this Redis is only attested (store.attest), because its settings are not \
                 visible: {reason}"
            ));
        }
        Ok((ServerGuarantees { level, attested, memory: self.memory() }, warnings))
    }

    /// Returns the memory usage and bound; a bound of 0 means that there is none.
    fn memory(&self) -> ServerMemory {
        let most = self.settings.get("maxmemory").and_then(|bytes| bytes.parse().ok());
        ServerMemory { used: self.used_memory, max: most.filter(|bytes| *bytes > 0) }
    }

    /// Returns the changes that the required durability needs.
    fn missing_settings(&self, wanted: Durability) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if wanted > Durability::Mem && !self.has_setting("appendonly", "yes") {
            missing.push("set `appendonly yes`");
        }
        if wanted > Durability::Os && !self.has_setting("appendfsync", "always") {
            missing.push("set `appendfsync always`");
        }
        if wanted > Durability::Fsync && self.replicas.unwrap_or_default() == 0 {
            missing.push("connect a replica");
        }
        missing
    }

    /// Returns warnings; fails if the server cannot be used.
    fn check(&self, wanted: Durability) -> Result<Vec<String>, RedisOpenError> {
        let (major, minor, _) = self.version();
        if !self.version.is_empty() && (major, minor) < MIN_VERSION {
            return Err(RedisOpenError::TooOld { version: self.version.clone() });
        }
        let mut warnings = Vec::new();
        match self.settings.get("maxmemory-policy") {
            Some(policy) if policy != "noeviction" => return Err(RedisOpenError::EvictionEnabled),
            Some(_) => {}
            None => warnings.push(
                "whether Redis forgets sessions where memory runs out cannot be seen: it must be set to \
                 `maxmemory-policy noeviction`"
                    .to_owned(),
            ),
        }
        let missing = self.missing_settings(wanted);
        if !missing.is_empty() {
            let wanted = wanted.as_str();
            let gives = self.visible_durability().as_str();
            return Err(RedisOpenError::Level { wanted, gives, missing: missing.join(", ") });
        }
        let version = self.version();
        if !self.valkey && VULNERABLE_VERSIONS.iter().any(|(from, to)| (*from..*to).contains(&version)) {
            let version = &self.version;
            warnings.push(format!(
                "Redis {version} has known security holes; use 7.0.15 with Debian's patches, 7.4.3 or 8.6.3, or later"
            ));
        }
        if self.cluster {
            let what = "Redis Cluster is not supported; it works only while this server has all of its slots";
            warnings.push(what.into());
        }
        if self.has_setting("protected-mode", "no") && self.anonymous {
            warnings.push("anyone who can reach this Redis may do anything: set users or a password".into());
        }
        if wanted == Durability::Os && self.has_setting("appendfsync", "everysec") {
            let what = "with `appendfsync everysec` the death of the Redis process may lose its last two seconds; \
                        `appendfsync no` loses them only with the machine";
            warnings.push(what.to_owned());
        }
        if wanted == Durability::FsyncReplica && self.has_setting("min-replicas-to-write", "0") {
            let what = "set `min-replicas-to-write 1`, so that a disconnected primary stops accepting writes";
            warnings.push(what.to_owned());
        }
        Ok(warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(version: &str, settings: &[(&str, &str)], replicas: u32) -> ServerInfo {
        let mut found = ServerInfo { version: version.into(), replicas: Some(replicas), ..ServerInfo::default() };
        let usual = [("maxmemory-policy", "noeviction"), ("appendonly", "yes"), ("appendfsync", "always")];
        for (name, value) in usual.iter().chain(settings) {
            found.settings.insert((*name).to_owned(), (*value).to_owned());
        }
        found
    }

    /// Covers: S-41, S-42.
    #[test]
    fn durability_level_is_met_or_refused_with_the_missing_parts() {
        let everysec = [("appendfsync", "everysec")];
        let nothing = [("appendonly", "no"), ("appendfsync", "everysec")];
        let outcome = |found: ServerInfo, wanted| match found.check(wanted) {
            Ok(warnings) => warnings.join(";"),
            Err(error) => error.to_string(),
        };
        let sound = "7.0.15";
        assert_eq!(outcome(found(sound, &[], 0), Durability::Fsync), "");
        assert_eq!(outcome(found(sound, &nothing, 0), Durability::Mem), "");
        assert!(outcome(found(sound, &everysec, 0), Durability::Os).contains("two seconds"));
        assert_eq!(outcome(found(sound, &[("appendfsync", "no")], 0), Durability::Os), "");
        let refused = outcome(found(sound, &nothing, 0), Durability::Fsync);
        assert!(refused.contains("appendonly yes") && refused.contains("appendfsync always"), "{refused}");
        assert!(refused.contains("durability mem, not fsync"), "{refused}");
        let refused = outcome(found(sound, &everysec, 0), Durability::Fsync);
        assert!(!refused.contains("appendonly") && refused.contains("durability os, not fsync"), "{refused}");
        assert!(outcome(found(sound, &[], 0), Durability::FsyncReplica).contains("connect a replica"));
        assert_eq!(outcome(found("7.4.3", &[("min-replicas-to-write", "1")], 1), Durability::FsyncReplica), "");
        assert!(outcome(found("6.2.14", &[], 0), Durability::Mem).contains("6.2.14"));
        assert!(outcome(found("7.0.11", &[], 0), Durability::Fsync).contains("7.0.15"));
        for (version, warned) in [("7.2.4", true), ("7.4.2", true), ("7.4.3", false), ("8.0.0", true), ("8.6.3", false)]
        {
            let mut found = found(version, &[], 0);
            assert_eq!(outcome(found.clone(), Durability::Fsync).contains("holes"), warned, "{version}");
            found.valkey = true;
            assert_eq!(outcome(found, Durability::Fsync), "");
        }
        let mut open = found(sound, &[("protected-mode", "no")], 0);
        assert_eq!(outcome(open.clone(), Durability::Fsync), "");
        open.anonymous = true;
        assert!(outcome(open.clone(), Durability::Fsync).contains("anything"));
        (open.anonymous, open.cluster) = (false, true);
        assert!(outcome(open, Durability::Fsync).contains("Cluster"));
        assert!(outcome(ServerInfo::default(), Durability::Mem).contains("noeviction"));
        let evicts = found(sound, &[("maxmemory-policy", "allkeys-lru")], 0);
        assert!(outcome(evicts, Durability::Mem).contains("noeviction"));
    }

    const INFO: &str = "redis_version:7.0.15\r\nconnected_slaves:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";

    fn hidden(info: &str) -> ServerInfo {
        ServerInfo::read(info, Err("ERR unknown command 'CONFIG'".to_owned()))
    }

    fn given(found: &ServerInfo, wanted: Durability, attest: Option<Durability>) -> (Durability, bool, String) {
        let (given, warnings) = found.guarantees(wanted, attest).expect("it can be used");
        (given.level, given.attested, warnings.join(";"))
    }

    /// Covers: S-42.
    #[test]
    fn level_without_config_is_shown_or_attested() {
        let found = hidden(INFO);
        assert_eq!(given(&found, Durability::Mem, None), (Durability::Mem, false, String::new()));
        let (level, attested, warnings) = given(&found, Durability::Fsync, None);
        assert_eq!((level, attested), (Durability::Os, false));
        assert!(warnings.contains("store.attest") && warnings.contains("unknown command 'CONFIG'"), "{warnings}");
        let (level, attested, warnings) = given(&found, Durability::Fsync, Some(Durability::Fsync));
        assert_eq!((level, attested), (Durability::Fsync, true));
        assert!(warnings.contains("attested"), "{warnings}");
        let off = hidden(&INFO.replace("aof_enabled:1", "aof_enabled:0"));
        assert_eq!(given(&off, Durability::Fsync, None).0, Durability::Mem);
        assert_eq!(given(&off, Durability::Os, Some(Durability::Fsync)).0, Durability::Os);
    }

    /// Covers: S-42.
    #[test]
    fn attested_replica_must_be_connected_if_visible() {
        let all = Some(Durability::FsyncReplica);
        let refused = hidden(INFO).guarantees(Durability::FsyncReplica, all).expect_err("there is none");
        assert!(refused.to_string().contains("connect a replica"), "{refused}");
        let unseen = hidden("maxmemory_policy:noeviction");
        assert_eq!(given(&unseen, Durability::FsyncReplica, all).0, Durability::FsyncReplica);
    }

    /// Covers: S-42.
    #[test]
    fn server_without_info_is_used_at_level_mem_with_a_warning() {
        let (level, _, warnings) = given(&hidden(""), Durability::Mem, None);
        assert!(level == Durability::Mem && warnings.contains("noeviction"), "{warnings}");
        let evicts = hidden("maxmemory_policy:volatile-lru").guarantees(Durability::Mem, Some(Durability::Fsync));
        assert!(matches!(evicts, Err(RedisOpenError::EvictionEnabled)), "nobody can attest that away");
    }

    #[test]
    fn memory_limit_is_known_if_set_and_visible() {
        let memory = |found: &ServerInfo| found.guarantees(Durability::Mem, None).expect("it can be used").0.memory;
        assert_eq!(memory(&found("7.0.15", &[("maxmemory", "1000")], 0)).max, Some(1000));
        assert_eq!(memory(&found("7.0.15", &[("maxmemory", "0")], 0)).max, None);
        let shown = memory(&hidden(&format!("{INFO}used_memory:3\r\nmaxmemory:5\r\n")));
        assert_eq!(shown, ServerMemory { used: Some(3), max: Some(5) });
        assert_eq!(memory(&hidden(INFO)), ServerMemory::default());
    }

    /// Covers: S-42.
    #[test]
    fn visible_settings_override_attested_ones() {
        let everysec = found("7.0.15", &[("appendfsync", "everysec")], 0);
        assert!(everysec.guarantees(Durability::Fsync, Some(Durability::Fsync)).is_err());
    }
}
