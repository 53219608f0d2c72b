//! A reader's position in one turn: the `id:` of its last event.
use std::fmt;
use turnway_core::id::{Epoch, RunId, Seq};

/// Letters of a run's id in a cursor, so that a cursor of another turn is detected.
const TAG_BYTES: usize = 8;
/// Exclusive upper bound of numbers on the wire.
const NUMBER_END: u64 = 1 << 53;
/// Maximum bytes of a cursor: four numbers and a tag.
const CURSOR_BYTES_MAX: usize = 96;

/// A position in one turn: the last fact and the last byte of text that a reader has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnCursor {
    /// The last fact that the reader has; 0: none.
    pub seq: Seq,
    /// The epoch of that fact.
    pub epoch: Epoch,
    /// The attempt of the reader's text; 0: no text.
    pub attempt: u32,
    /// UTF-8 bytes of that attempt's text.
    pub offset: u64,
    /// The last letters of the run's id.
    tag: String,
}

/// The error for a text that is not a cursor of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTurnCursor;

impl fmt::Display for InvalidTurnCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a valid event id of this server")
    }
}

impl std::error::Error for InvalidTurnCursor {}

// === impl TurnCursor ===

impl TurnCursor {
    /// Returns the position before the first event of a turn.
    pub fn start(run_id: &RunId) -> Self {
        Self { tag: run_tag(run_id).to_owned(), ..Self::default() }
    }

    /// Parses the output of [`fmt::Display`].
    pub fn parse(text: &str) -> Result<Self, InvalidTurnCursor> {
        if text.len() > CURSOR_BYTES_MAX {
            return Err(InvalidTurnCursor);
        }
        let parts: Vec<&str> = text.split('-').collect();
        let [seq, epoch, attempt, offset, tag] = parts[..] else { return Err(InvalidTurnCursor) };
        let letters = |b: u8| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b);
        if tag.len() != TAG_BYTES || !tag.bytes().all(letters) {
            return Err(InvalidTurnCursor);
        }
        Ok(Self {
            seq: Seq(parse_number(seq)?),
            epoch: Epoch(parse_number(epoch)?),
            attempt: u32::try_from(parse_number(attempt)?).map_err(|_| InvalidTurnCursor)?,
            offset: parse_number(offset)?,
            tag: tag.to_owned(),
        })
    }

    /// Returns whether the cursor belongs to the turn.
    pub fn belongs_to(&self, run_id: &RunId) -> bool {
        self.tag == run_tag(run_id)
    }

    /// Returns whether the reader has the fact. If the store lost acknowledged facts, the rewritten facts have a
    /// later epoch, and the reader has not seen them.
    pub(super) fn covers(&self, seq: Seq, epoch: Epoch) -> bool {
        seq <= self.seq && epoch <= self.epoch
    }
}

impl fmt::Display for TurnCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seq, epoch, attempt, offset, tag } = self;
        write!(f, "{}-{}-{attempt}-{offset}-{tag}", seq.0, epoch.0)
    }
}

fn run_tag(run_id: &RunId) -> &str {
    let name = run_id.as_str();
    name.get(name.len().saturating_sub(TAG_BYTES)..).unwrap_or_default()
}

/// Parses a number in canonical form: digits only, without leading zeros.
pub(super) fn parse_number(text: &str) -> Result<u64, InvalidTurnCursor> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    let number = text.parse().ok().filter(|number| plain && *number < NUMBER_END);
    number.ok_or(InvalidTurnCursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips_and_other_text_is_rejected() {
        let run_id = RunId::parse(&format!("s1.{}", "a2".repeat(13))).expect("a run");
        let cursor =
            TurnCursor { seq: Seq(7), epoch: Epoch(1 << 52), attempt: 2, offset: 99, ..TurnCursor::start(&run_id) };
        let text = cursor.to_string();
        assert_eq!(text, "7-4503599627370496-2-99-a2a2a2a2");
        assert_eq!(TurnCursor::parse(&text), Ok(cursor.clone()));
        assert!(cursor.belongs_to(&run_id));
        assert!(!cursor.belongs_to(&RunId::parse(&format!("s1.{}", "b2".repeat(13))).expect("a run")));
        for bad in [
            "",
            "7",
            "7-1-2-99",
            "7-1-2-99-a2a2a2a2-",
            "7-1-2-99-A2A2A2A2",
            "7-1-2-99-a2a2a2",
            "-7-1-2-99-a2a2a2a2",
            "+7-1-2-99-a2a2a2a2",
            "07-1-2-99-a2a2a2a2",
            "7-1-4294967296-99-a2a2a2a2",
            "7-1-2-9007199254740992-a2a2a2a2",
            "7-1-2- 99-a2a2a2a2",
            &format!("7-1-2-{}-a2a2a2a2", "9".repeat(100)),
        ] {
            assert_eq!(TurnCursor::parse(bad), Err(InvalidTurnCursor), "{bad:?}");
        }
    }
}
