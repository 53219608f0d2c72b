//! Metrics of client connections.
use super::family::{FamilyBuilder, LazyChildren};
use super::label_values;
use prometheus::{IntCounter, IntGauge};
use turnway_core::planted::{Planted, planted};

/// The metrics of client connections.
#[derive(Debug)]
pub struct LinkMetrics {
    open: [IntGauge; Transport::NAMES.len()],
    handshakes: [IntCounter; HandshakeOutcome::NAMES.len()],
    closes: LazyChildren<IntCounter>,
    messages: [IntCounter; Direction::NAMES.len()],
    bytes: [IntCounter; Direction::NAMES.len()],
    quic_restarts: IntCounter,
    held: [IntGauge; LinkResource::NAMES.len()],
    capacity: [IntGauge; LinkResource::NAMES.len()],
    over: [IntCounter; LinkResource::NAMES.len()],
}

label_values! {
    /// A resource whose use is counted for each user, in the order of `links::Pool::ALL`.
    #[expect(dead_code, reason = "a pool has its number")]
    LinkResource {
        /// Connections over TCP, each of which is a file descriptor.
        Tcp = "tcp",
        /// Connections over QUIC, including WebTransport.
        Quic = "quic",
        /// HTTP requests that read pages of a list or a log.
        Reads = "reads",
        /// HTTP requests that transfer a blob.
        Blobs = "blobs",
        /// Bytes of long calls of OpenAI clients that are in memory.
        Calls = "call_bytes",
        /// Open calls of models.
        Models = "model_calls",
    }
}

label_values! {
    /// The outcome of a connection's handshake.
    pub HandshakeOutcome {
        /// The connection became a link of a principal.
        Admitted = "admitted",
        /// The credential in `hello` was denied.
        Denied = "denied",
        /// The gateway closed the connection before it was admitted: no valid `hello`.
        Refused = "refused",
        /// The client left before it was admitted.
        Abandoned = "abandoned",
        /// The origin or host name is not allowed.
        Unwelcome = "unwelcome",
        /// Not a handshake of WebSocket or WebTransport.
        Malformed = "malformed",
        /// The process had no room for it.
        Full = "full",
        /// Too many connections from the address.
        Crowded = "crowded",
        /// The client had to validate its address first (QUIC).
        Doubted = "doubted",
        /// A proxy did not name the client's address.
        Unnamed = "unnamed",
    }
}

label_values! {
    /// The direction of a message, seen from the gateway.
    pub Direction {
        In = "in",
        Out = "out",
    }
}

label_values! {
    /// The transport of a connection.
    pub Transport {
        WebSocket = "websocket",
        Quic = "quic",
        /// HTTP/3 over QUIC.
        WebTransport = "webtransport",
    }
}

/// Known close codes; any other code counts as the last entry.
const CODES: [&str; 17] = [
    "1000", "1001", "1002", "1003", "1005", "1006", "1007", "1011", "4400", "4401", "4403", "4408", "4413", "4429",
    "4503", "4508", "other",
];

fn code_index(code: u16) -> usize {
    let known = [1000, 1001, 1002, 1003, 1005, 1006, 1007, 1011, 4400, 4401, 4403, 4408, 4413, 4429, 4503, 4508];
    known.iter().position(|known| *known == code).unwrap_or(known.len())
}

// === impl LinkMetrics ===

impl LinkMetrics {
    pub(super) fn register(workshop: &mut FamilyBuilder<'_>) -> prometheus::Result<Self> {
        let closes = workshop.counter_grid(
            "turnway_link_closes_total",
            "Closed connections by close code; 1006 if there was none.",
            &[("transport", &Transport::NAMES), ("code", &CODES)],
        )?;
        // Creates the row at 0: a rate over a series that was never seen at 0 misses its beginning.
        for transport in 0..Transport::NAMES.len() {
            closes.child(transport, 0);
        }
        Ok(Self {
            closes,
            open: workshop.gauges(
                "turnway_link_connections",
                "Open connections of clients.",
                "transport",
                &Transport::NAMES,
            )?,
            handshakes: workshop.counters(
                "turnway_link_handshakes_total",
                "Handshakes of connections by outcome.",
                "outcome",
                &HandshakeOutcome::NAMES,
            )?,
            messages: workshop.counters(
                "turnway_link_messages_total",
                "Messages of and to clients.",
                "direction",
                &Direction::NAMES,
            )?,
            bytes: workshop.counters(
                "turnway_link_bytes_total",
                "Bytes of these messages.",
                "direction",
                &Direction::NAMES,
            )?,
            quic_restarts: workshop
                .counter("turnway_quic_breaks_total", "Restarts of the QUIC listener after a failure of its socket.")?,
            held: workshop.gauges(
                "turnway_link_held",
                "Links that are admitted now, requests, and bytes of long calls, counted for their users.",
                "resource",
                &LinkResource::NAMES,
            )?,
            capacity: workshop.gauges(
                "turnway_link_capacity",
                "Maximum of each resource.",
                "resource",
                &LinkResource::NAMES,
            )?,
            over: workshop.counters(
                "turnway_link_over_total",
                "Links and requests that were refused because a limit or a share was reached.",
                "resource",
                &LinkResource::NAMES,
            )?,
        })
    }

    /// Sets the use, the capacity and the refusals of each resource, in the order of `links::Pool::ALL`.
    pub fn set_usage(&self, by: [(u64, u64, u64); LinkResource::NAMES.len()]) {
        for (n, (held, capacity, refused)) in by.into_iter().enumerate() {
            self.held[n].set(i64::try_from(held).unwrap_or(i64::MAX));
            self.capacity[n].set(i64::try_from(capacity).unwrap_or(i64::MAX));
            self.over[n].inc_by(refused.saturating_sub(self.over[n].get()));
        }
    }

    /// Records an opened connection.
    pub fn record_opened(&self, how: Transport) {
        self.open[how as usize].inc();
    }

    /// Records a closed connection with its close code (1006: none).
    pub fn record_closed(&self, how: Transport, code: u16) {
        if !planted(Planted::LinkGaugeKept) {
            self.open[how as usize].dec();
        }
        if let Some(counter) = self.closes.child(how as usize, code_index(code)) {
            counter.inc();
        }
    }

    /// Counts the outcome of a handshake.
    pub fn count_handshake(&self, how: HandshakeOutcome) {
        self.handshakes[how as usize].inc();
    }

    /// Counts a failure of the QUIC socket, after which all its clients have to reconnect.
    pub fn count_quic_restart(&self) {
        self.quic_restarts.inc();
    }

    /// Records a message that was sent or received.
    pub fn record_message(&self, direction: Direction, bytes: usize) {
        self.messages[direction as usize].inc();
        self.bytes[direction as usize].inc_by(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_close_code_has_a_counter() {
        for (n, name) in CODES.iter().enumerate() {
            assert_eq!(code_index(name.parse().unwrap_or(12345)), n, "{name}");
        }
    }
}
