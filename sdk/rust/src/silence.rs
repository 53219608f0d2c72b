//! The client's reaction to silence on a connection: ping, second connection, and giving up. Used by the state
//! machine.
use crate::limits;
use std::time::Duration;

/// An action that a silence calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Nothing,
    /// Send a ping.
    Ask,
    /// Try a second connection.
    Spare,
    /// Give the connection up.
    End,
}

/// The duration of the silence and the actions taken so far.
#[derive(Clone, Debug)]
pub(crate) struct Silence {
    /// Whether the connection uses QUIC, which does not notice a dead gateway or a changed path.
    is_quic: bool,
    since: Duration,
    stage: Stage,
    /// Consecutive pongs with no other message in between.
    answers: u32,
    /// Round-trip time of a ping.
    round: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Quiet,
    /// A ping was sent.
    Asked {
        at: Duration,
    },
    /// A ping was sent and a second connection is being tried.
    Spared {
        at: Duration,
    },
}

// === impl Silence ===

impl Silence {
    pub(crate) fn new(is_quic: bool) -> Self {
        Self { is_quic, since: Duration::ZERO, stage: Stage::Quiet, answers: 0, round: Duration::ZERO }
    }

    /// Records received data. Returns whether a second connection is being tried, which is then no longer needed.
    pub(crate) fn handle_bytes(&mut self, now: Duration) -> bool {
        let stage = std::mem::replace(&mut self.stage, Stage::Quiet);
        self.since = now;
        match stage {
            Stage::Quiet => false,
            Stage::Asked { at } | Stage::Spared { at } => {
                // The value decays by half at most, so that one quick pong does not make the next one seem late.
                self.round = now.saturating_sub(at).max(self.round / 2);
                matches!(stage, Stage::Spared { .. })
            }
        }
    }

    /// Records a received message: the pong to the client's ping, or any other.
    pub(crate) fn handle_message(&mut self, is_answer: bool) {
        self.answers = if is_answer { self.answers.saturating_add(1) } else { 0 };
    }

    /// Starts anew for a new connection.
    pub(crate) fn begin(&mut self, now: Duration) {
        (self.since, self.stage, self.answers) = (now, Stage::Quiet, 0);
    }

    /// Returns whether a second connection is being tried.
    pub(crate) fn is_spared(&self) -> bool {
        matches!(self.stage, Stage::Spared { .. })
    }

    /// Returns the time of the next action; `waits` tells whether an answer is awaited.
    pub(crate) fn deadline(&self, waits: bool) -> Duration {
        match self.stage {
            Stage::Quiet => self.since + self.ask_after(waits),
            Stage::Asked { at } => at + self.spare_after(waits).unwrap_or_else(|| end_after(waits)),
            Stage::Spared { at } => at + end_after(waits),
        }
    }

    /// Returns the action that is due and counts it as done.
    pub(crate) fn wish(&mut self, now: Duration, waits: bool) -> Wish {
        if now < self.deadline(waits) {
            return Wish::Nothing;
        }
        match self.stage {
            Stage::Quiet => {
                self.stage = Stage::Asked { at: now };
                Wish::Ask
            }
            Stage::Asked { at } if self.spare_after(waits).is_some() => {
                self.stage = Stage::Spared { at };
                Wish::Spare
            }
            Stage::Asked { .. } | Stage::Spared { .. } => Wish::End,
        }
    }

    fn ask_after(&self, waits: bool) -> Duration {
        match (waits, self.is_quic) {
            (false, _) => limits::PING_AFTER,
            (true, false) => limits::WAITING_PING_AFTER,
            (true, true) => {
                let grown = limits::QUIC_PING_AFTER.saturating_mul(1 << self.answers.min(8));
                grown.min(limits::QUIC_PING_AFTER_MAX)
            }
        }
    }

    /// Returns the delay from the ping to the second connection.
    fn spare_after(&self, waits: bool) -> Option<Duration> {
        (self.is_quic && waits)
            .then(|| limits::QUIC_SPARE_AFTER.max(self.round * 2).min(end_after(waits) / 2))
    }
}

/// Returns the delay from the ping to giving the connection up.
fn end_after(waits: bool) -> Duration {
    if waits {
        limits::WAITING_TIMEOUT - limits::WAITING_PING_AFTER
    } else {
        limits::IDLE_TIMEOUT - limits::PING_AFTER
    }
}
