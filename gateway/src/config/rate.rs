//! How often may be asked, as operators write it.
use super::AuthMode;
use std::time::Duration;
use turnway_core::rate::Rate;

/// How often one connection, one credential and one tenant may ask; none: as often as it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Of one connection.
    pub connection: Option<Rate>,
    /// Of everybody with one credential.
    pub key: Option<Rate>,
    /// Of everybody of one tenant.
    pub tenant: Option<Rate>,
}

/// What somebody has said of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub(super) connection: Option<Option<Rate>>,
    pub(super) key: Option<Option<Rate>>,
    pub(super) tenant: Option<Option<Rate>>,
}

/// A second of a busy page, twice over: nobody types so fast.
const CONNECTION: u32 = 100;
/// A program that speaks for many people; one that does more is known, and has this set.
const KEY: u32 = 1000;

// === impl Rates ===

impl Rates {
    /// What holds where nothing is said: where nobody is asked who they are, only this machine is served.
    pub(super) fn usual(mode: AuthMode) -> Self {
        match mode {
            AuthMode::None => Self::default(),
            AuthMode::Keys | AuthMode::Jwt | AuthMode::KeysAndJwt => {
                let each_second = |count| Rate::new(count, Duration::from_secs(1));
                Self { connection: each_second(CONNECTION), key: each_second(KEY), tenant: None }
            }
        }
    }
}

// === impl Asked ===

impl Asked {
    pub(super) fn or(self, usual: Rates) -> Rates {
        Rates {
            connection: self.connection.unwrap_or(usual.connection),
            key: self.key.unwrap_or(usual.key),
            tenant: self.tenant.unwrap_or(usual.tenant),
        }
    }
}

/// `100/s`, `600/m` or `off`.
pub(super) fn parse(text: &str) -> Result<Option<Rate>, String> {
    if text == "off" {
        return Ok(None);
    }
    let bad = "expected so many a second or a minute, such as 100/s or 600/m, or off";
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
    fn a_rate_has_a_number_and_a_time() {
        assert_eq!(parse("off"), Ok(None));
        assert_eq!(parse("100/s"), Ok(Rate::new(100, Duration::from_secs(1))));
        assert_eq!(parse("600/m"), Ok(Rate::new(600, Duration::from_secs(60))));
        for bad in
            ["", "100", "/s", "0/s", "-1/s", "+1/s", "1.5/s", "100/h", "100 /s", "99999999999/s", "none"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
