//! Time as values: the driver passes the current time to machines, which never read a clock.
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Monotonic time since the node started. For timers and leases; never stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mono(pub Duration);

/// Unix milliseconds by the store's clock. For facts, deadlines in facts, `ts` and expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

/// The two clock readings that every `handle_*` call is given. `mono` never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// For timers and leases.
    pub mono: Mono,
    /// For stored values: the store's clock as of its last reply, plus the time elapsed since.
    pub store: Millis,
}

/// The time at which a machine next wants to be woken, with a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    /// The earliest useful wake-up.
    pub at: Mono,
    /// A label for logs and metrics; no decision depends on the label.
    pub label: &'static str,
}

impl Now {
    /// Returns the monotonic time at which the store's clock will read `at`, but no later than `most` from now.
    /// `most` is the longest period for which such a deadline is ever set: a deadline further ahead was set by a
    /// clock that was wrong.
    pub fn mono_at(&self, at: Millis, most: Duration) -> Mono {
        self.mono + Duration::from_millis(at.0.saturating_sub(self.store.0)).min(most)
    }
}

impl Millis {
    /// Returns the time `wait` later.
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl std::ops::Add<Duration> for Mono {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(rhs))
    }
}

impl std::ops::Sub for Mono {
    type Output = Duration;
    fn sub(self, rhs: Self) -> Duration {
        self.0.saturating_sub(rhs.0)
    }
}

/// Serialisation of a time in the format of RFC 3339, which CloudEvents use.
pub(crate) mod rfc3339 {
    use super::Millis;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(at: &Millis, to: S) -> Result<S::Ok, S::Error> {
        let at = jiff::Timestamp::from_millisecond(i64::try_from(at.0).unwrap_or(0)).unwrap_or_default();
        to.collect_str(&at)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Millis, D::Error> {
        let text = String::deserialize(from)?;
        let at: jiff::Timestamp = text.parse().map_err(D::Error::custom)?;
        Ok(Millis(u64::try_from(at.as_millisecond()).map_err(D::Error::custom)?))
    }
}
