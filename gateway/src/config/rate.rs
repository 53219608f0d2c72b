//! Settings of request rates: per connection, credential and tenant.
use super::AuthMode;
use std::time::Duration;
use turnway_core::rate::Rate;

/// Maximum request rates; `None`: unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateSettings {
    /// Of one connection.
    pub connection: Option<Rate>,
    /// Of all clients with one credential.
    pub key: Option<Rate>,
    /// Of all clients of one tenant.
    pub tenant: Option<Rate>,
}

/// Rates that the operator has set; the outer `None` means not set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateOverrides {
    pub(super) connection: Option<Option<Rate>>,
    pub(super) key: Option<Option<Rate>>,
    pub(super) tenant: Option<Option<Rate>>,
}

/// Default requests per second of one connection: twice what a busy page sends in a second, more than a person
/// types.
const CONNECTION_DEFAULT: u32 = 100;
/// Default requests per second of one credential: enough for a program that acts for many people. A larger one
/// is known to the operator, who sets the rate.
const KEY_DEFAULT: u32 = 1000;

// === impl RateSettings ===

impl RateSettings {
    /// Returns the defaults for a mode of authentication. A node without authentication serves this machine
    /// only, so its rates are unlimited.
    pub(super) fn default_for(mode: AuthMode) -> Self {
        match mode {
            AuthMode::None => Self::default(),
            AuthMode::Keys | AuthMode::Jwt | AuthMode::KeysAndJwt => {
                let each_second = |count| Rate::new(count, Duration::from_secs(1));
                Self { connection: each_second(CONNECTION_DEFAULT), key: each_second(KEY_DEFAULT), tenant: None }
            }
        }
    }
}

// === impl RateOverrides ===

impl RateOverrides {
    pub(super) fn or_defaults(self, usual: RateSettings) -> RateSettings {
        RateSettings {
            connection: self.connection.unwrap_or(usual.connection),
            key: self.key.unwrap_or(usual.key),
            tenant: self.tenant.unwrap_or(usual.tenant),
        }
    }
}

/// Parses `100/s`, `600/m` or `off`.
pub(super) fn parse(text: &str) -> Result<Option<Rate>, String> {
    if text == "off" {
        return Ok(None);
    }
    let bad = "expected a number per second or per minute, such as 100/s or 600/m, or off";
    let (count, unit) = text.split_once('/').ok_or(bad)?;
    let period = match unit {
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        _ => return Err(bad.to_owned()),
    };
    let is_plain = count.bytes().all(|byte| byte.is_ascii_digit());
    let rate = count.parse().ok().filter(|_| is_plain).and_then(|count| Rate::new(count, period));
    rate.map(Some).ok_or_else(|| bad.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: S-17.
    #[test]
    fn rate_is_parsed_as_number_per_time() {
        assert_eq!(parse("off"), Ok(None));
        assert_eq!(parse("100/s"), Ok(Rate::new(100, Duration::from_secs(1))));
        assert_eq!(parse("600/m"), Ok(Rate::new(600, Duration::from_secs(60))));
        for bad in ["", "100", "/s", "0/s", "-1/s", "+1/s", "1.5/s", "100/h", "100 /s", "99999999999/s", "none"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
