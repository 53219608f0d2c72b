//! Metrics of authentication, rate limits and the identity provider's keys.
use super::family::FamilyBuilder;
use super::label_values;
use prometheus::{IntCounter, IntGauge};

/// The metrics of authentication.
#[derive(Debug)]
pub struct AuthMetrics {
    denied: [IntCounter; DenialReason::NAMES.len()],
    limited: [IntCounter; RateScope::NAMES.len()],
    rate_exchanges: [IntCounter; RateExchange::NAMES.len()],
    keys: IntGauge,
    closed_links: IntCounter,
    refreshed: IntCounter,
    fetches: [IntCounter; FetchOutcome::NAMES.len()],
    provider_keys: IntGauge,
}

label_values! {
    /// The scope of the rate that a request exceeded.
    pub RateScope {
        Connection = "connection",
        /// All clients with the same credential.
        Key = "key",
        Tenant = "tenant",
    }
}

label_values! {
    /// The outcome of exchanging the use of a shared rate with other nodes.
    pub RateExchange {
        /// The other nodes have answered with their own use.
        Answered = "answered",
        /// No answer: this node applies its own rate alone.
        Unanswered = "unanswered",
    }
}

label_values! {
    /// The reason why a client was denied.
    pub DenialReason {
        Nothing = "nothing",
        /// An unknown or wrong credential.
        Credential = "credential",
        /// A revoked or expired credential.
        Ended = "ended",
        /// Not a token.
        TokenForm = "token_form",
        /// A token whose signature algorithm is not allowed.
        TokenAlgorithm = "token_algorithm",
        /// A token that names an unknown key.
        TokenKey = "token_key",
        /// A token whose signature does not verify with the key that it names.
        TokenSignature = "token_signature",
        /// A token with a wrong issuer or audience, or without a subject.
        TokenClaims = "token_claims",
        /// An expired token, or one that is not valid yet.
        TokenTime = "token_time",
        /// A user named in the request that the credential may not act as.
        Other = "other_user",
        /// An invalid user name in the request.
        Name = "name",
        /// The address is locked out after too many bad credentials; the credential was not checked.
        Locked = "locked",
        /// A role that the client cannot have here.
        Role = "role",
    }
}

label_values! {
    /// The outcome of fetching the provider's keys.
    pub FetchOutcome {
        Ok = "ok",
        Failed = "failed",
    }
}

// === impl AuthMetrics ===

impl AuthMetrics {
    pub(super) fn register(workshop: &mut FamilyBuilder<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            denied: workshop.counters(
                "turnway_auth_denied_total",
                "Connections and requests that were denied.",
                "reason",
                &DenialReason::NAMES,
            )?,
            limited: workshop.counters(
                "turnway_rate_limited_total",
                "Requests that were refused for now, because there were too many.",
                "whose",
                &RateScope::NAMES,
            )?,
            rate_exchanges: workshop.counters(
                "turnway_rate_shared_total",
                "Exchanges with other nodes about the use of shared rates.",
                "outcome",
                &RateExchange::NAMES,
            )?,
            keys: workshop.gauge("turnway_auth_keys", "Valid API keys known to this node.")?,
            closed_links: workshop.counter(
                "turnway_auth_cut_links_total",
                "Connections that were closed because their credential was revoked or has expired.",
            )?,
            refreshed: workshop
                .counter("turnway_auth_refreshed_total", "Tokens that replaced another one on an open connection.")?,
            fetches: workshop.counters(
                "turnway_auth_jwks_fetches_total",
                "Fetches of the identity provider's keys.",
                "outcome",
                &FetchOutcome::NAMES,
            )?,
            provider_keys: workshop
                .gauge("turnway_auth_jwks_keys", "Keys of the identity provider that tokens are verified with.")?,
        })
    }

    /// Counts a denied connection or request.
    pub fn count_denied(&self, why: DenialReason) {
        self.denied[why as usize].inc();
    }

    /// Counts a request that was refused because of a rate.
    pub fn count_rate_limited(&self, whose: RateScope) {
        self.limited[whose as usize].inc();
    }

    /// Counts an exchange of the use of a shared rate.
    pub fn count_rate_exchange(&self, how: RateExchange) {
        self.rate_exchanges[how as usize].inc();
    }

    /// Sets the number of valid API keys.
    pub fn set_keys(&self, good: usize) {
        self.keys.set(i64::try_from(good).unwrap_or(i64::MAX));
    }

    /// Counts a token that replaced another on an open connection.
    pub fn count_refreshed(&self) {
        self.refreshed.inc();
    }

    /// Records a fetch of the provider's keys, and the number of keys in use if the fetch changed it.
    pub fn record_fetch(&self, how: FetchOutcome, keys: Option<usize>) {
        self.fetches[how as usize].inc();
        if let Some(keys) = keys {
            self.provider_keys.set(i64::try_from(keys).unwrap_or(i64::MAX));
        }
    }

    /// Counts connections that were closed because their credential was revoked or has expired.
    pub fn count_closed_links(&self, links: usize) {
        self.closed_links.inc_by(links as u64);
    }
}
