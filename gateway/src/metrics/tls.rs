//! TLS with clients: how it begins, and how long the certificate will do.
use super::label_values;
use super::workshop::Workshop;
use prometheus::{IntCounter, IntGauge};
use turnway_core::time::Millis;

/// What is said of certificates and handshakes. Without TLS all of it stays 0.
#[derive(Debug)]
pub struct TlsMetrics {
    handshakes: [IntCounter; Greeting::NAMES.len()],
    end: IntGauge,
    reloads: IntCounter,
    failures: IntCounter,
    stale: IntGauge,
}

label_values! {
    /// How a TLS handshake ended.
    pub Greeting {
        /// The connection is a safe one.
        Done = "done",
        /// The two could not agree, or the client left.
        Failed = "failed",
        /// It was not done in time.
        Late = "late",
        /// The client did not speak TLS at all.
        Plain = "plain",
    }
}

// === impl TlsMetrics ===

impl TlsMetrics {
    pub(super) fn register(workshop: &mut Workshop<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            handshakes: workshop.counters(
                "turnway_tls_handshakes_total",
                "TLS handshakes with clients.",
                "outcome",
                &Greeting::NAMES,
            )?,
            end: workshop.gauge(
                "turnway_tls_certificate_end_seconds",
                "When the certificate in use ends, or the first of those that vouch for it: seconds since 1970; \
                 0 without TLS.",
            )?,
            reloads: workshop.counter(
                "turnway_tls_reloads_total",
                "How often the certificate's files were read again, and taken.",
            )?,
            failures: workshop.counter(
                "turnway_tls_reload_failures_total",
                "How often they were read again, and not taken: the certificate from before stays in use.",
            )?,
            stale: workshop.gauge(
                "turnway_tls_certificate_stale",
                "1 while the certificate in use is not the one in its file, because that is broken.",
            )?,
        })
    }

    /// A handshake ended like this.
    pub fn greeted(&self, how: Greeting) {
        self.handshakes[how as usize].inc();
    }

    /// A certificate that ends then is in use, and is the one in its file.
    pub fn shows(&self, end: Millis) {
        self.end.set(i64::try_from(end.0 / 1000).unwrap_or(i64::MAX));
        self.stale.set(0);
    }

    /// The files were read again.
    pub fn reloaded(&self) {
        self.reloads.inc();
    }

    /// They were, and what is in them cannot be used.
    pub fn not_reloaded(&self) {
        self.failures.inc();
        self.stale.set(1);
    }

    /// How often that was.
    pub fn refused(&self) -> u64 {
        self.failures.get()
    }
}
