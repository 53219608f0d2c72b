//! The client's reaction to silence on a connection: ping, second connection, and giving up. Used by the state
//! machine.
use crate::limits;
use std::time::Duration;

/// An action that a silence calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepaliveAction {
    Nothing,
    /// Send a ping.
    Ping,
    /// Try a second connection.
    DialSpare,
    /// Give the connection up.
    GiveUp,
}

/// The duration of the silence and the actions taken so far.
#[derive(Clone, Debug)]
pub(crate) struct Keepalive {
    /// True if the connection uses QUIC, which does not notice a dead gateway or a changed path.
    is_quic: bool,
    /// Silence after which a ping is sent, and after which the connection is lost, while no answer is awaited.
    idle: (Duration, Duration),
    since: Duration,
    stage: KeepaliveStage,
    /// Consecutive pongs with no other message in between.
    pongs: u32,
    /// Round-trip time of a ping.
    round_trip: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeepaliveStage {
    Quiet,
    /// A ping was sent.
    Pinged {
        at: Duration,
    },
    /// A ping was sent and a second connection is being tried.
    SpareDialled {
        at: Duration,
    },
}

// === impl Keepalive ===

impl Keepalive {
    pub(crate) fn new(is_quic: bool) -> Self {
        let idle = (limits::PING_AFTER, limits::IDLE_TIMEOUT);
        Self {
            is_quic,
            idle,
            since: Duration::ZERO,
            stage: KeepaliveStage::Quiet,
            pongs: 0,
            round_trip: Duration::ZERO,
        }
    }

    /// Creates the keepalive of an adapter: orders come unasked, so a dead node has to be noticed soon at any time. No
    /// second connection is tried, because it would take the lease from the first one.
    pub(crate) fn for_adapter() -> Self {
        Self { idle: (limits::ADAPTER_PING_AFTER, limits::ADAPTER_IDLE_TIMEOUT), ..Self::new(false) }
    }

    /// Records received data. Returns whether a second connection is being tried, which is then no longer needed.
    pub(crate) fn handle_bytes(&mut self, now: Duration) -> bool {
        let stage = std::mem::replace(&mut self.stage, KeepaliveStage::Quiet);
        self.since = now;
        match stage {
            KeepaliveStage::Quiet => false,
            KeepaliveStage::Pinged { at } | KeepaliveStage::SpareDialled { at } => {
                // The value decays by half at most, so that one quick pong does not make the next one seem late.
                self.round_trip = now.saturating_sub(at).max(self.round_trip / 2);
                matches!(stage, KeepaliveStage::SpareDialled { .. })
            }
        }
    }

    /// Records a received message: the pong to the client's ping, or any other.
    pub(crate) fn handle_message(&mut self, is_answer: bool) {
        self.pongs = if is_answer { self.pongs.saturating_add(1) } else { 0 };
    }

    /// Starts anew for a new connection.
    pub(crate) fn begin(&mut self, now: Duration) {
        (self.since, self.stage, self.pongs) = (now, KeepaliveStage::Quiet, 0);
    }

    /// Returns whether a second connection is being tried.
    pub(crate) fn has_spare(&self) -> bool {
        matches!(self.stage, KeepaliveStage::SpareDialled { .. })
    }

    /// Returns the time of the next action; `waits` tells whether an answer is awaited.
    pub(crate) fn deadline(&self, waits: bool) -> Duration {
        match self.stage {
            KeepaliveStage::Quiet => self.since + self.ping_after(waits),
            KeepaliveStage::Pinged { at } => at + self.spare_after(waits).unwrap_or_else(|| self.end_after(waits)),
            KeepaliveStage::SpareDialled { at } => at + self.end_after(waits),
        }
    }

    /// Returns the action that is due and counts it as done.
    pub(crate) fn take_due_action(&mut self, now: Duration, waits: bool) -> KeepaliveAction {
        if now < self.deadline(waits) {
            return KeepaliveAction::Nothing;
        }
        match self.stage {
            KeepaliveStage::Quiet => {
                self.stage = KeepaliveStage::Pinged { at: now };
                KeepaliveAction::Ping
            }
            KeepaliveStage::Pinged { at } if self.spare_after(waits).is_some() => {
                self.stage = KeepaliveStage::SpareDialled { at };
                KeepaliveAction::DialSpare
            }
            KeepaliveStage::Pinged { .. } | KeepaliveStage::SpareDialled { .. } => KeepaliveAction::GiveUp,
        }
    }

    fn ping_after(&self, waits: bool) -> Duration {
        match (waits, self.is_quic) {
            (false, _) => self.idle.0,
            (true, false) => limits::WAITING_PING_AFTER,
            (true, true) => {
                let grown = limits::QUIC_PING_AFTER.saturating_mul(1 << self.pongs.min(8));
                grown.min(limits::QUIC_PING_AFTER_MAX)
            }
        }
    }

    /// Returns the delay from the ping to the second connection.
    fn spare_after(&self, waits: bool) -> Option<Duration> {
        (self.is_quic && waits)
            .then(|| limits::QUIC_SPARE_AFTER.max(self.round_trip * 2).min(self.end_after(waits) / 2))
    }

    /// Returns the delay from the ping to giving the connection up.
    fn end_after(&self, waits: bool) -> Duration {
        let (ping_after, timeout) = self.idle;
        if waits { limits::WAITING_TIMEOUT - limits::WAITING_PING_AFTER } else { timeout - ping_after }
    }
}
