//! Settings of shares, caps and quotas of what tenants and users hold.
use super::AuthMode;
use super::amount::parse_size;
use turnway_core::limits;
use turnway_core::share::{Fraction, Shares};
use turnway_core::store::quota::{Quota, Quotas};

/// Limits of what tenants and users may hold of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageLimits {
    /// Shares of tenants and users; `None` if clients are not authenticated and so count as one user.
    pub shares: Option<Shares>,
    /// Maximum simultaneous attempts at agents outside this process.
    pub attempts: u64,
    /// Maximum sessions owned at a time.
    pub sessions: u64,
    /// Maximum subscriptions of all connections.
    pub subscriptions: u64,
    /// Quotas of stored bytes.
    pub quotas: Quotas,
}

impl UsageLimits {
    /// Returns the limits for a node with this mode of authentication.
    pub(super) fn for_auth_mode(self, mode: AuthMode) -> Self {
        if mode != AuthMode::None {
            return self;
        }
        // Without authentication all clients are one user, so a share would keep back room that nobody else
        // needs. A quota given in bytes applies all the same.
        let absolute = |quota| if matches!(quota, Quota::Part(_)) { Quota::Off } else { quota };
        let quotas = Quotas { tenant: absolute(self.quotas.tenant), user: absolute(self.quotas.user) };
        Self { shares: None, quotas, ..self }
    }
}

impl Default for UsageLimits {
    fn default() -> Self {
        Self {
            shares: Some(Shares::default()),
            attempts: limits::ATTEMPTS_MAX,
            sessions: limits::SESSIONS_OWNED_MAX,
            subscriptions: limits::SUBSCRIPTIONS_MAX,
            quotas: Quotas::OFF,
        }
    }
}

/// Parses a fraction such as `0.75`, with at most three decimals.
pub(super) fn parse_fraction(text: &str) -> Result<Fraction, String> {
    let bad = || "expected a fraction from 0.001 to 1, such as 0.75".to_owned();
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.chars().all(|letter| letter.is_ascii_digit());
    if whole.len() != 1 || decimals.len() > 3 || !is_number(whole) || !is_number(decimals) {
        return Err(bad());
    }
    let thousandths = format!("{whole}{decimals:0<3}").parse().map_err(|_| bad())?;
    Fraction::of_thousandths(thousandths).ok_or_else(bad)
}

/// Parses a quota of stored bytes: a fraction, a size, or `off`.
pub(super) fn parse_quota(text: &str) -> Result<Quota, String> {
    match (text, parse_fraction(text), parse_size(text)) {
        ("off", ..) => Ok(Quota::Off),
        (_, Ok(part), _) => Ok(Quota::Part(part)),
        (_, Err(_), Some(bytes)) => Ok(Quota::Bytes(bytes)),
        (_, Err(_), None) => Err("expected a fraction such as 0.25, a size such as 8GiB, or off".to_owned()),
    }
}

/// Parses a number from 1 to `most`.
pub(super) fn parse_cap(text: &str, most: u64) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| (1..=most).contains(count));
    count.ok_or_else(|| format!("expected a number from 1 to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fraction_is_parsed_to_three_decimals() {
        for (text, part) in [("0.75", 750), ("1", 1000), ("1.0", 1000), ("0.001", 1), ("0.5", 500)] {
            assert_eq!(parse_fraction(text).map(|fraction| fraction.part(1000)), Ok(part), "{text}");
        }
        for text in ["0", "0.0", "1.001", "2", "75%", ".75", "-0.5", "0.7501", "", "0,75", "10"] {
            assert!(parse_fraction(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_are_off_without_authentication() {
        assert_eq!(UsageLimits::default().for_auth_mode(AuthMode::None).shares, None);
        assert_eq!(UsageLimits::default().for_auth_mode(AuthMode::Keys).shares, Some(Shares::default()));
    }
}
