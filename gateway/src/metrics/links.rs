//! Connections of clients.
use super::add;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// What is counted of links.
#[derive(Debug)]
pub struct LinkMetrics {
    websockets: IntGauge,
    handshakes: IntCounterVec,
    closes: IntCounterVec,
    messages_in: IntCounter,
    messages_out: IntCounter,
    bytes_in: IntCounter,
    bytes_out: IntCounter,
}

/// How the beginning of a connection went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// It became a link of a principal.
    Admitted,
    /// The door refused its hello.
    Denied,
    /// We closed it before it was admitted: no hello, or no good one.
    Refused,
    /// It left before it was admitted.
    Abandoned,
    /// It came from a page or by a name that is not welcome.
    Unwelcome,
    /// It was not a WebSocket handshake.
    Malformed,
    /// The process had no room for it.
    Full,
}

/// Seen from the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From clients.
    In,
    /// To clients.
    Out,
}

/// The close codes there are; any other one counts as `other`.
const CODES: [(u16, &str); 15] = [
    (1000, "1000"),
    (1001, "1001"),
    (1002, "1002"),
    (1003, "1003"),
    (1005, "1005"),
    (1006, "1006"),
    (1007, "1007"),
    (1011, "1011"),
    (4400, "4400"),
    (4401, "4401"),
    (4403, "4403"),
    (4408, "4408"),
    (4413, "4413"),
    (4503, "4503"),
    (4508, "4508"),
];

// === impl LinkMetrics ===

impl LinkMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let connections = Opts::new("turnway_link_connections", "Open connections of clients.");
        let connections = add(registry, IntGaugeVec::new(connections, &["transport"])?)?;
        let handshakes = Opts::new("turnway_link_handshakes_total", "How connections began.");
        let closes = Opts::new("turnway_link_closes_total", "How connections ended, by close code.");
        let messages = Opts::new("turnway_link_messages_total", "Messages of and to clients.");
        let messages = add(registry, IntCounterVec::new(messages, &["direction"])?)?;
        let bytes = Opts::new("turnway_link_bytes_total", "Bytes of these messages.");
        let bytes = add(registry, IntCounterVec::new(bytes, &["direction"])?)?;
        Ok(Self {
            websockets: connections.with_label_values(&["websocket"]),
            handshakes: add(registry, IntCounterVec::new(handshakes, &["outcome"])?)?,
            closes: add(registry, IntCounterVec::new(closes, &["code"])?)?,
            messages_in: messages.with_label_values(&["in"]),
            messages_out: messages.with_label_values(&["out"]),
            bytes_in: bytes.with_label_values(&["in"]),
            bytes_out: bytes.with_label_values(&["out"]),
        })
    }

    /// A WebSocket was opened.
    pub fn opened(&self) {
        self.websockets.inc();
    }

    /// It was closed, with this code (1006: without any).
    pub fn closed(&self, code: u16) {
        self.websockets.dec();
        let name = CODES.iter().find(|(known, _)| *known == code).map_or("other", |(_, name)| name);
        self.closes.with_label_values(&[name]).inc();
    }

    /// A connection began like this.
    pub fn began(&self, how: Handshake) {
        let outcome = match how {
            Handshake::Admitted => "admitted",
            Handshake::Denied => "denied",
            Handshake::Refused => "refused",
            Handshake::Abandoned => "abandoned",
            Handshake::Unwelcome => "unwelcome",
            Handshake::Malformed => "malformed",
            Handshake::Full => "full",
        };
        self.handshakes.with_label_values(&[outcome]).inc();
    }

    /// A message of this size passed.
    pub fn passed(&self, direction: Direction, bytes: usize) {
        let (messages, sum) = match direction {
            Direction::In => (&self.messages_in, &self.bytes_in),
            Direction::Out => (&self.messages_out, &self.bytes_out),
        };
        messages.inc();
        sum.inc_by(bytes as u64);
    }
}
