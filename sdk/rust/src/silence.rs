//! How long nothing has come, and what is to be done about it.
use crate::limits;
use std::time::Duration;

/// What a silence asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Nothing yet.
    Nothing,
    /// To ask whether anybody is there.
    Ask,
    /// Another connection beside this one.
    Spare,
    /// To give the connection up.
    End,
}

/// Since when nothing has come, and what was done about it.
#[derive(Clone, Debug)]
pub(crate) struct Silence {
    /// The connection is one of QUIC: it hears nothing of a gateway that died, or of a way that leads elsewhere now.
    is_quic: bool,
    since: Duration,
    stage: Stage,
    /// Answers to our questions in a row, with nothing else between them.
    answers: u32,
    /// How long such an answer takes.
    round: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Quiet,
    /// It was asked whether anybody is there.
    Asked {
        at: Duration,
    },
    /// And another connection is tried.
    Spared {
        at: Duration,
    },
}

// === impl Silence ===

impl Silence {
    pub(crate) fn new(is_quic: bool) -> Self {
        Self { is_quic, since: Duration::ZERO, stage: Stage::Quiet, answers: 0, round: Duration::ZERO }
    }

    /// Something came. Whether another connection is tried, which is not needed any more.
    pub(crate) fn handle_bytes(&mut self, now: Duration) -> bool {
        let stage = std::mem::replace(&mut self.stage, Stage::Quiet);
        self.since = now;
        match stage {
            Stage::Quiet => false,
            Stage::Asked { at } | Stage::Spared { at } => {
                // One that was quick by chance does not make the next one late.
                self.round = now.saturating_sub(at).max(self.round / 2);
                matches!(stage, Stage::Spared { .. })
            }
        }
    }

    /// What came was a message: the answer to our question, or something that was worth saying.
    pub(crate) fn handle_message(&mut self, is_answer: bool) {
        self.answers = if is_answer { self.answers.saturating_add(1) } else { 0 };
    }

    /// A new connection.
    pub(crate) fn begin(&mut self, now: Duration) {
        (self.since, self.stage, self.answers) = (now, Stage::Quiet, 0);
    }

    /// Whether another connection is tried.
    pub(crate) fn is_spared(&self) -> bool {
        matches!(self.stage, Stage::Spared { .. })
    }

    /// When it next wishes something, where something is awaited or is not.
    pub(crate) fn deadline(&self, waits: bool) -> Duration {
        match self.stage {
            Stage::Quiet => self.since + self.ask_after(waits),
            Stage::Asked { at } => at + self.spare_after(waits).unwrap_or_else(|| end_after(waits)),
            Stage::Spared { at } => at + end_after(waits),
        }
    }

    /// What is to be done now; it counts as done.
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

    /// From the question.
    fn spare_after(&self, waits: bool) -> Option<Duration> {
        (self.is_quic && waits)
            .then(|| limits::QUIC_SPARE_AFTER.max(self.round * 2).min(end_after(waits) / 2))
    }
}

/// From the question.
fn end_after(waits: bool) -> Duration {
    if waits {
        limits::WAITING_TIMEOUT - limits::WAITING_PING_AFTER
    } else {
        limits::IDLE_TIMEOUT - limits::PING_AFTER
    }
}
