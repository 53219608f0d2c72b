//! Who is let in and who is not.
use super::label_values;
use super::workshop::Workshop;
use prometheus::{IntCounter, IntGauge};

/// What is said of credentials.
#[derive(Debug)]
pub struct AuthMetrics {
    denied: [IntCounter; Denial::NAMES.len()],
    limited: [IntCounter; Limited::NAMES.len()],
    keys: IntGauge,
    cut: IntCounter,
}

label_values! {
    /// Whose rate a request was over.
    pub Limited {
        /// Its connection's.
        Connection = "connection",
        /// That of everybody with its credential.
        Key = "key",
        /// That of its tenant.
        Tenant = "tenant",
    }
}

label_values! {
    /// Why somebody was not let in.
    pub Denial {
        /// It showed nothing.
        Nothing = "nothing",
        /// What it showed was unknown, wrong, revoked or over.
        Credential = "credential",
        /// It named a user that the credential is not of.
        Other = "other_user",
        /// It named a user that could be none.
        Name = "name",
        /// It wanted to be what nobody can be here.
        Role = "role",
    }
}

// === impl AuthMetrics ===

impl AuthMetrics {
    pub(super) fn register(workshop: &mut Workshop<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            denied: workshop.counters(
                "turnway_auth_denied_total",
                "Connections and requests that were not let in.",
                "reason",
                &Denial::NAMES,
            )?,
            limited: workshop.counters(
                "turnway_rate_limited_total",
                "Requests that were refused for now, because there were too many.",
                "whose",
                &Limited::NAMES,
            )?,
            keys: workshop
                .gauge("turnway_auth_keys", "API keys that open something, as this node knows them.")?,
            cut: workshop.counter(
                "turnway_auth_cut_links_total",
                "Connections that were closed because their credential was taken back or is over.",
            )?,
        })
    }

    /// Somebody was not let in.
    pub fn denied(&self, why: Denial) {
        self.denied[why as usize].inc();
    }

    /// A request was refused for now.
    pub fn limited(&self, whose: Limited) {
        self.limited[whose as usize].inc();
    }

    /// So many keys are good.
    pub fn keys(&self, good: usize) {
        self.keys.set(i64::try_from(good).unwrap_or(i64::MAX));
    }

    /// So many connections were closed.
    pub fn cut(&self, links: usize) {
        self.cut.inc_by(links as u64);
    }
}
