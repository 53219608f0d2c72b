//! Behaviour and texts of simulated agents: both follow from the message number, so no state is needed.
use std::fmt::Write as _;

/// Behaviour of an agent for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AgentBehaviour {
    /// Acknowledges, sends text, ends.
    Plain,
    /// The same, slowly.
    Slow,
    /// Sends nothing at all.
    Silent,
    /// Acknowledges, and sends nothing more.
    Mute,
    /// Sends text without an acknowledgement.
    Eager,
    /// Loses its connection in the middle of the text.
    Dies,
    /// Reports an error after some text.
    Errs,
    /// Cannot be reached.
    Away,
    /// Ends twice, and sends more.
    TwoEnds,
    /// Never acknowledges a cancel, and sends more.
    Stubborn,
    /// Sends more after a cancel, ends, and acknowledges late.
    Late,
    /// Sends much text.
    Flood,
    /// Sends more text than allowed.
    TooMuch,
    /// Reports states and reasoning.
    Thinker,
    /// Crashes the node that invoked it.
    Poison,
}

impl AgentBehaviour {
    /// Returns the behaviour for a message number and a random number below 100.
    pub(crate) fn of(n: u64, roll: u64) -> Self {
        match roll {
            0..34 => Self::Plain,
            34..48 => Self::Slow,
            48..52 => Self::Silent,
            52..55 => Self::Mute,
            55..60 => Self::Eager,
            60..65 => Self::Dies,
            65..69 => Self::Errs,
            69..72 => Self::Away,
            72..77 => Self::TwoEnds,
            77..82 => Self::Stubborn,
            82..87 => Self::Late,
            87..91 => Self::Flood,
            91..92 if n.is_multiple_of(2) => Self::TooMuch,
            91..97 => Self::Thinker,
            _ => Self::Poison,
        }
    }

    /// Returns the number of pieces of the whole answer, and the bytes of padding in each.
    fn size(self, n: u64, attempt: u32) -> (u64, usize) {
        match self {
            Self::Flood => (6 + n % 9, 30_000 + 2000 * (n % 11) as usize),
            Self::TooMuch => (90, 50_000),
            Self::Silent | Self::Mute | Self::Away => (0, 0),
            Self::Plain
            | Self::Slow
            | Self::Eager
            | Self::Dies
            | Self::Errs
            | Self::TwoEnds
            | Self::Stubborn
            | Self::Late
            | Self::Thinker
            | Self::Poison => (3 + (n * 7 + u64::from(attempt)) % 9, (n % 40) as usize),
        }
    }
}

/// States that an agent reports.
pub(crate) const STATES: [&str; 2] = ["reading", "tidying up"];

/// Returns the pieces of an answer; no two attempts send the same text.
pub(crate) fn pieces(n: u64, attempt: u32, manner: AgentBehaviour) -> Vec<String> {
    let (count, filling) = manner.size(n, attempt);
    let piece = |at: u64| {
        let mut text = String::with_capacity(filling + 24);
        // Writing to a string does not fail.
        let _ = write!(text, "<{n}.{attempt}.{at}ß");
        while text.len() < filling {
            text.push_str(if at.is_multiple_of(3) { "語 und mehr davon, " } else { "so much to say here, " });
        }
        text.push('>');
        text
    };
    (0..count).map(piece).collect()
}
