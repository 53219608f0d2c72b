//! Who is let in and who is not.
use super::label_values;
use super::workshop::Workshop;
use prometheus::{IntCounter, IntGauge};

/// What is said of credentials.
#[derive(Debug)]
pub struct AuthMetrics {
    denied: [IntCounter; Denial::NAMES.len()],
    limited: [IntCounter; Limited::NAMES.len()],
    told: [IntCounter; Told::NAMES.len()],
    keys: IntGauge,
    cut: IntCounter,
    refreshed: IntCounter,
    fetches: [IntCounter; Fetch::NAMES.len()],
    provider_keys: IntGauge,
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
    /// What became of telling other nodes how much of a shared rate was taken.
    pub Told {
        /// They know it, and this node of them.
        Answered = "answered",
        /// This node goes by its own rate.
        Unanswered = "unanswered",
    }
}

label_values! {
    /// Why somebody was not let in.
    pub Denial {
        /// It showed nothing.
        Nothing = "nothing",
        /// What it showed was unknown or wrong.
        Credential = "credential",
        /// What it showed was taken back, or has ended.
        Ended = "ended",
        /// Its token was none.
        TokenForm = "token_form",
        /// Its token was signed in a way that is not allowed.
        TokenAlgorithm = "token_algorithm",
        /// Its token named a key that is not known.
        TokenKey = "token_key",
        /// Its token was not signed by the key it named.
        TokenSignature = "token_signature",
        /// Its token was of or for somebody else, or did not say of whom.
        TokenClaims = "token_claims",
        /// Its token was over, or had not begun.
        TokenTime = "token_time",
        /// It named a user that the credential is not of.
        Other = "other_user",
        /// It named a user that could be none.
        Name = "name",
        /// Too many that were not good came from its address; it was not looked at.
        Locked = "locked",
        /// It wanted to be what nobody can be here.
        Role = "role",
    }
}

label_values! {
    /// How a fetch of a provider's keys went.
    pub Fetch {
        /// They are here.
        Ok = "ok",
        /// They are not.
        Failed = "failed",
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
            told: workshop.counters(
                "turnway_rate_shared_total",
                "How often other nodes were told what was taken of the rates they share, and this one of them.",
                "outcome",
                &Told::NAMES,
            )?,
            keys: workshop
                .gauge("turnway_auth_keys", "API keys that open something, as this node knows them.")?,
            cut: workshop.counter(
                "turnway_auth_cut_links_total",
                "Connections that were closed because their credential was taken back or is over.",
            )?,
            refreshed: workshop.counter(
                "turnway_auth_refreshed_total",
                "Tokens that took the place of another on an open connection.",
            )?,
            fetches: workshop.counters(
                "turnway_auth_jwks_fetches_total",
                "Fetches of the identity provider's keys.",
                "outcome",
                &Fetch::NAMES,
            )?,
            provider_keys: workshop.gauge(
                "turnway_auth_jwks_keys",
                "Keys of the identity provider that tokens are held against.",
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

    /// Other nodes were told of a rate, or could not be.
    pub fn told(&self, how: Told) {
        self.told[how as usize].inc();
    }

    /// So many keys are good.
    pub fn keys(&self, good: usize) {
        self.keys.set(i64::try_from(good).unwrap_or(i64::MAX));
    }

    /// A connection goes on with another token.
    pub fn refreshed(&self) {
        self.refreshed.inc();
    }

    /// A fetch of a provider's keys is over; so many are in use now, where that has changed.
    pub fn fetched(&self, how: Fetch, keys: Option<usize>) {
        self.fetches[how as usize].inc();
        if let Some(keys) = keys {
            self.provider_keys.set(i64::try_from(keys).unwrap_or(i64::MAX));
        }
    }

    /// So many connections were closed.
    pub fn cut(&self, links: usize) {
        self.cut.inc_by(links as u64);
    }
}
