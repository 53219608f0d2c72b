//! Types of the table of settings, which the parser, the environment, the flags, `default-config` and
//! `config-doc` all read. The rows are in `settings`.
pub use super::settings::SETTINGS;
use std::fmt;

/// The key of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettingKey {
    DefaultAgent,
    Demo,
    Log,
    ListenHttp,
    ListenQuic,
    ListenWebtransport,
    ListenQuicConnections,
    ListenAdmin,
    ListenHealth,
    ListenHealthMetrics,
    ListenHosts,
    ListenOrigins,
    ListenProxies,
    ListenPerAddress,
    TlsCert,
    TlsKey,
    StoreUrl,
    StoreDurability,
    StoreDeployer,
    StoreAttest,
    StoreWait,
    StorePasswordFile,
    StoreCa,
    StoreClientCert,
    StoreClientKey,
    StoreRetention,
    StoreMaxAge,
    StoreCache,
    StoreReserve,
    StoreSkew,
    BlobsMax,
    BlobsTypes,
    BlobsUrl,
    BlobsRegion,
    BlobsCredentials,
    AuthMode,
    AuthPepper,
    AuthLockout,
    AuthJwks,
    AuthIssuer,
    AuthAudience,
    AuthAlgorithms,
    RateConnection,
    RateKey,
    RateTenant,
    ToolsServedBy,
    ShareTenant,
    ShareUser,
    LimitAttempts,
    LimitSessions,
    LimitSubscriptions,
    LlmRecord,
    QuotaTenant,
    QuotaUser,
    NodeName,
    NodeUrl,
}

/// The syntax of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    /// `true` or `false`.
    Switch,
    /// A string, or a list of strings, which are joined with `|`.
    List,
    /// A string with a number of bytes, such as `"64KiB"`.
    Size,
}

/// The value of a setting that no source sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// A constant, as it would be written.
    Fixed(&'static str),
    /// A value that is determined when the node starts.
    Computed {
        /// Description for people.
        how: &'static str,
        /// A valid value.
        example: &'static str,
    },
}

/// One row of the table of settings.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub key: SettingKey,
    /// Name in the file: section and key.
    pub name: &'static str,
    pub kind: ValueKind,
    /// Placeholder for the value, such as `ADDR`.
    pub form: &'static str,
    /// Command-line flag; not every setting has one.
    pub flag: Option<&'static str>,
    pub default: DefaultValue,
    /// Description, one sentence or more.
    pub doc: &'static str,
}

// === impl SettingKey ===

impl SettingKey {
    /// Returns the key's row.
    pub fn setting(self) -> &'static Setting {
        // The rows are in the order of the variants; a test checks that.
        &SETTINGS[self as usize]
    }

    /// Returns the name in the file: section and key.
    pub fn name(self) -> &'static str {
        self.setting().name
    }

    /// Returns the key with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        SETTINGS.iter().find(|setting| setting.name == name).map(|setting| setting.key)
    }
}

impl fmt::Display for SettingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl Setting ===

impl Setting {
    /// Returns the section, empty if there is none, and the name within the section.
    pub fn section_and_name(&self) -> (&'static str, &'static str) {
        self.name.split_once('.').unwrap_or(("", self.name))
    }

    /// Returns the environment variable: `TURNWAY_<SECTION>_<KEY>`.
    pub fn env(&self) -> String {
        format!("TURNWAY_{}", self.name.replace('.', "_").to_ascii_uppercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn setting_names_are_unique() {
        for (at, setting) in SETTINGS.iter().enumerate() {
            assert_eq!(setting.key as usize, at);
            assert_eq!(SettingKey::from_name(setting.name), Some(setting.key));
        }
        let names: BTreeSet<String> = SETTINGS.iter().map(Setting::env).collect();
        let flags: BTreeSet<_> = SETTINGS.iter().filter_map(|setting| setting.flag).collect();
        assert_eq!(names.len(), SETTINGS.len());
        assert_eq!(flags.len(), SETTINGS.iter().filter(|setting| setting.flag.is_some()).count());
    }

    #[test]
    fn settings_of_one_section_are_contiguous() {
        let sections: Vec<_> = SETTINGS.iter().map(|setting| setting.section_and_name().0).collect();
        let mut seen = Vec::new();
        for section in sections {
            if seen.last() != Some(&section) {
                assert!(!seen.contains(&section), "{section} in two places");
                seen.push(section);
            }
        }
        assert_eq!(seen.first(), Some(&""));
    }
}
