//! What a server is, and what it promises as it is set: looked at before
//! anybody is served (S-42), and by `guard` ever after.
use crate::config::Durability;
use crate::config::redis::RedisUrl;
use crate::redis::reach;
use crate::store::redis::OpenError;
use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, RedisError, cmd};
use std::collections::BTreeMap;
use std::time::Duration;

/// The first with functions.
const OLDEST: (u32, u32) = (7, 0);
type Version = (u32, u32, u32);

/// From the first of each up to the second, functions or blocking commands could be made to do what nobody
/// may (S-41). Of 7.0.15 a distribution may have a version of its own, which cannot be seen.
const UNSOUND: [(Version, Version); 3] =
    [((7, 0, 0), (7, 0, 15)), ((7, 2, 0), (7, 4, 3)), ((8, 0, 0), (8, 6, 3))];
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    version: String,
    /// Valkey calls itself a Redis of the version it began with.
    valkey: bool,
    settings: BTreeMap<String, String>,
    replicas: u32,
    /// Nobody had to say who asked.
    anonymous: bool,
    cluster: bool,
}

/// Refuses a server that would not keep the promise, and warns of what is unwise.
pub(super) async fn probe(url: &RedisUrl, wanted: Durability) -> Result<(), OpenError> {
    for warning in find(url).await?.check(wanted)? {
        tracing::warn!(redis = %url, "{warning}");
    }
    Ok(())
}

/// Whether a server still keeps the promise by itself. Of its replicas each answer is witness.
pub(super) async fn keeps(url: &RedisUrl, wanted: Durability) -> Result<(), OpenError> {
    find(url).await?.check(wanted.min(Durability::Fsync)).map(drop)
}

async fn find(url: &RedisUrl) -> Result<Found, OpenError> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_WITHIN));
    let mut connection = reach::connect(url, config).await?;
    let found = look(&mut connection).await.map_err(|error| match error.code() {
        Some("NOPERM") => OpenError::Unseen { error },
        _ => OpenError::Asked { error },
    })?;
    Ok(Found { anonymous: url.login.password.is_none(), ..found })
}

async fn look(connection: &mut MultiplexedConnection) -> Result<Found, RedisError> {
    let server: String = cmd("INFO").arg("server").query_async(connection).await?;
    let replication: String = cmd("INFO").arg("replication").query_async(connection).await?;
    let names = ["maxmemory-policy", "appendonly", "appendfsync", "min-replicas-to-write", "protected-mode"];
    let settings = cmd("CONFIG").arg("GET").arg(&names).query_async(connection).await?;
    let line = |text: &str, name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.unwrap_or_default().trim().to_owned()
    };
    let replicas = line(&replication, "connected_slaves").parse().unwrap_or_default();
    let (version, valkey) = (line(&server, "redis_version"), line(&server, "server_name") == "valkey");
    let cluster = line(&server, "redis_mode") == "cluster";
    Ok(Found { version, valkey, settings, replicas, anonymous: false, cluster })
}

impl Found {
    fn is(&self, setting: &str, value: &str) -> bool {
        self.settings.get(setting).is_some_and(|set| set == value)
    }

    fn version(&self) -> Version {
        let mut parts = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        (next(), next(), next())
    }

    /// What an answer of this server survives.
    fn gives(&self) -> Durability {
        match (self.is("appendonly", "yes"), self.is("appendfsync", "always")) {
            (false, _) => Durability::Mem,
            (true, false) => Durability::Os,
            (true, true) if self.replicas == 0 => Durability::Fsync,
            (true, true) => Durability::FsyncReplica,
        }
    }

    /// What to do for a level that is not given.
    fn missing(&self, wanted: Durability) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if wanted > Durability::Mem && !self.is("appendonly", "yes") {
            missing.push("set `appendonly yes`");
        }
        if wanted > Durability::Os && !self.is("appendfsync", "always") {
            missing.push("set `appendfsync always`");
        }
        if wanted > Durability::Fsync && self.replicas == 0 {
            missing.push("connect a replica");
        }
        missing
    }

    /// What is unwise, or why it cannot be used at all.
    fn check(&self, wanted: Durability) -> Result<Vec<String>, OpenError> {
        let (major, minor, _) = self.version();
        if (major, minor) < OLDEST {
            return Err(OpenError::TooOld { version: self.version.clone() });
        }
        if !self.is("maxmemory-policy", "noeviction") {
            return Err(OpenError::Evicts);
        }
        let missing = self.missing(wanted);
        if !missing.is_empty() {
            let (wanted, gives) = (wanted.word(), self.gives().word());
            return Err(OpenError::Level { wanted, gives, missing: missing.join(", ") });
        }
        let mut warnings = Vec::new();
        let version = self.version();
        if !self.valkey && UNSOUND.iter().any(|(from, to)| (*from..*to).contains(&version)) {
            let version = &self.version;
            warnings.push(format!(
                "Redis {version} has known holes; use 7.0.15 with Debian's patches, 7.4.3 or 8.6.3, or later"
            ));
        }
        if self.cluster {
            let what = "Redis Cluster is not supported; it works only while this server has all of its slots";
            warnings.push(what.into());
        }
        if self.is("protected-mode", "no") && self.anonymous {
            warnings.push("whoever reaches this Redis may do anything: set users, or a password".into());
        }
        if wanted == Durability::Os && self.is("appendfsync", "everysec") {
            let what = "with `appendfsync everysec` the death of the Redis process may lose its last two seconds; \
                        `appendfsync no` loses them only with the machine";
            warnings.push(what.to_owned());
        }
        if wanted == Durability::FsyncReplica && self.is("min-replicas-to-write", "0") {
            warnings.push(
                "set `min-replicas-to-write 1`, so that a primary that was cut off does not write on".into(),
            );
        }
        Ok(warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(version: &str, settings: &[(&str, &str)], replicas: u32) -> Found {
        let mut found = Found { version: version.into(), replicas, ..Found::default() };
        let usual = [("maxmemory-policy", "noeviction"), ("appendonly", "yes"), ("appendfsync", "always")];
        for (name, value) in usual.iter().chain(settings) {
            found.settings.insert((*name).to_owned(), (*value).to_owned());
        }
        found
    }

    /// Covers: S-41, S-42.
    #[test]
    fn a_level_is_given_or_refused_with_what_is_missing() {
        let everysec = [("appendfsync", "everysec")];
        let nothing = [("appendonly", "no"), ("appendfsync", "everysec")];
        let said = |found: Found, wanted| match found.check(wanted) {
            Ok(warnings) => warnings.join(";"),
            Err(error) => error.to_string(),
        };
        let sound = "7.0.15";
        assert_eq!(said(found(sound, &[], 0), Durability::Fsync), "");
        assert_eq!(said(found(sound, &nothing, 0), Durability::Mem), "");
        assert!(said(found(sound, &everysec, 0), Durability::Os).contains("two seconds"));
        assert_eq!(said(found(sound, &[("appendfsync", "no")], 0), Durability::Os), "");
        let refused = said(found(sound, &nothing, 0), Durability::Fsync);
        assert!(refused.contains("appendonly yes") && refused.contains("appendfsync always"), "{refused}");
        assert!(refused.contains("not fsync but mem"), "{refused}");
        let refused = said(found(sound, &everysec, 0), Durability::Fsync);
        assert!(!refused.contains("appendonly") && refused.contains("not fsync but os"), "{refused}");
        assert!(said(found(sound, &[], 0), Durability::FsyncReplica).contains("connect a replica"));
        assert_eq!(said(found("7.4.3", &[("min-replicas-to-write", "1")], 1), Durability::FsyncReplica), "");
        assert!(said(found("6.2.14", &[], 0), Durability::Mem).contains("6.2.14"));
        assert!(said(found("7.0.11", &[], 0), Durability::Fsync).contains("7.0.15"));
        for (version, warned) in
            [("7.2.4", true), ("7.4.2", true), ("7.4.3", false), ("8.0.0", true), ("8.6.3", false)]
        {
            let mut found = found(version, &[], 0);
            assert_eq!(said(found.clone(), Durability::Fsync).contains("holes"), warned, "{version}");
            found.valkey = true;
            assert_eq!(said(found, Durability::Fsync), "");
        }
        let mut open = found(sound, &[("protected-mode", "no")], 0);
        assert_eq!(said(open.clone(), Durability::Fsync), "");
        open.anonymous = true;
        assert!(said(open.clone(), Durability::Fsync).contains("anything"));
        (open.anonymous, open.cluster) = (false, true);
        assert!(said(open, Durability::Fsync).contains("Cluster"));
        let evicts = found(sound, &[("maxmemory-policy", "allkeys-lru")], 0);
        assert!(said(evicts, Durability::Mem).contains("noeviction"));
    }
}
