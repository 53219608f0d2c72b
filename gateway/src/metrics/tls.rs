//! Metrics of TLS with clients: handshakes and the certificate.
use super::family::FamilyBuilder;
use super::label_values;
use prometheus::{IntCounter, IntGauge};
use turnway_core::time::Millis;

/// The metrics of certificates and handshakes. All stay at 0 without TLS.
#[derive(Debug)]
pub struct TlsMetrics {
    handshakes: [IntCounter; TlsHandshakeOutcome::NAMES.len()],
    end: IntGauge,
    reloads: IntCounter,
    failures: IntCounter,
    stale: IntGauge,
}

label_values! {
    /// The outcome of a TLS handshake.
    pub TlsHandshakeOutcome {
        Done = "done",
        /// Client and server could not agree, or the client left.
        Failed = "failed",
        /// The handshake timed out.
        Late = "late",
        /// The client did not speak TLS.
        Plain = "plain",
    }
}

// === impl TlsMetrics ===

impl TlsMetrics {
    pub(super) fn register(workshop: &mut FamilyBuilder<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            handshakes: workshop.counters(
                "turnway_tls_handshakes_total",
                "TLS handshakes with clients.",
                "outcome",
                &TlsHandshakeOutcome::NAMES,
            )?,
            end: workshop.gauge(
                "turnway_tls_certificate_end_seconds",
                "Expiry of the certificate in use, or of its chain if earlier: seconds since 1970; 0 without TLS.",
            )?,
            reloads: workshop.counter("turnway_tls_reloads_total", "Successful reloads of the certificate's files.")?,
            failures: workshop.counter(
                "turnway_tls_reload_failures_total",
                "Failed reloads of the certificate's files; the previous certificate stays in use.",
            )?,
            stale: workshop.gauge(
                "turnway_tls_certificate_stale",
                "1 while the certificate's file is invalid and an older certificate is in use.",
            )?,
        })
    }

    /// Counts the outcome of a handshake.
    pub fn count_handshake(&self, how: TlsHandshakeOutcome) {
        self.handshakes[how as usize].inc();
    }

    /// Sets the end of the certificate in use, which is the one in its file.
    pub fn set_certificate_end(&self, end: Millis) {
        self.end.set(i64::try_from(end.0 / 1000).unwrap_or(i64::MAX));
        self.stale.set(0);
    }

    /// Counts a successful reload of the certificate's files.
    pub fn count_reload(&self) {
        self.reloads.inc();
    }

    /// Counts a failed reload: the files cannot be used, and the earlier certificate stays in use.
    pub fn count_reload_failure(&self) {
        self.failures.inc();
        self.stale.set(1);
    }

    /// Returns the number of failed reloads.
    pub fn reload_failures(&self) -> u64 {
        self.failures.get()
    }
}
