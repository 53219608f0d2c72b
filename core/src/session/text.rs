//! The live text of one attempt: what is recorded of it, what is shown, and what must be kept.
use crate::id::Seq;
use crate::limits;
use crate::private::Private;
use crate::protocol::json::text_within;
use crate::session::digest::TextHash;
use crate::time::{Mono, Now};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// What a stretch's fact says besides its text: attempt, offset, a mark, names and quotes.
const FRAME_BYTES: usize = 512;

/// One attempt's text. Offsets are UTF-8 bytes from its beginning.
#[derive(Clone, Default)]
pub(super) struct Text {
    /// The text from `kept_from` on: what is not yet durable.
    kept: String,
    kept_from: u64,
    /// Recorded up to here.
    saved: u64,
    /// Shown up to here.
    shown: u64,
    /// Recorded but not yet durable: places of checkpoints, and how far they go.
    unsettled: VecDeque<(Seq, u64)>,
    hash: TextHash,
    /// Until when text is gathered, after some was shown.
    gathers_until: Mono,
    /// When unrecorded text is recorded.
    pub(super) save_at: Option<Mono>,
    /// Bytes of reasoning shown beside it.
    pub(super) reasoning: u64,
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Text({} of {} recorded, {} shown)", self.saved, self.len(), self.shown)
    }
}

impl Text {
    /// The text of an attempt of which so much is recorded.
    pub(super) fn recorded(bytes: u64, hash: TextHash) -> Self {
        Self { kept_from: bytes, saved: bytes, shown: bytes, hash, ..Self::default() }
    }

    pub(super) fn len(&self) -> u64 {
        self.kept_from + self.kept.len() as u64
    }

    /// Takes the next piece; says whether it should be shown at once: a first byte after a pause, or
    /// enough of them (protocol.md §1.4).
    pub(super) fn push(&mut self, now: Now, piece: &str) -> bool {
        self.kept.push_str(piece);
        self.hash.update(piece.as_bytes());
        self.save_at.get_or_insert(now.mono + limits::CHECKPOINT_WAIT);
        self.gathers_until <= now.mono || self.len() - self.shown >= limits::DELTA_BYTES as u64
    }

    /// When gathered text is shown; never, where there is none: an answer that is said word by word needs no
    /// timer for each word.
    pub(super) fn show_at(&self) -> Option<Mono> {
        (self.shown.max(self.kept_from) < self.len()).then_some(self.gathers_until)
    }

    fn from(&self, offset: u64) -> Arc<str> {
        let skip = usize::try_from(offset.saturating_sub(self.kept_from)).unwrap_or(usize::MAX);
        self.kept.get(skip..).unwrap_or_default().into()
    }

    /// What was not shown yet, with its offset.
    pub(super) fn show(&mut self, now: Now) -> Option<(u64, Private<Arc<str>>)> {
        // What was recorded before it was shown is shown as a fact, and is not kept any more.
        let offset = self.shown.max(self.kept_from);
        if offset >= self.len() {
            return None;
        }
        self.shown = self.len();
        self.gathers_until = now.mono + limits::DELTA_WAIT;
        Some((offset, Private(self.from(offset))))
    }

    /// Whether enough is unrecorded.
    pub(super) fn is_save_due(&self) -> bool {
        self.len() - self.saved >= limits::CHECKPOINT_BYTES as u64
    }

    /// The next stretch to record, of at most one checkpoint's size, never splitting a code point.
    pub(super) fn unsaved(&self) -> Option<(u64, String)> {
        let skip = usize::try_from(self.saved - self.kept_from).ok()?;
        let rest = self.kept.get(skip..).filter(|rest| !rest.is_empty())?;
        let stretch = &rest[..rest.floor_char_boundary(limits::CHECKPOINT_BYTES)];
        // Control characters take six bytes each where they are written down.
        let end = text_within(stretch, limits::FACT_DATA_BYTES_MAX - FRAME_BYTES);
        Some((self.saved, stretch[..end].to_owned()))
    }

    /// That stretch was recorded at this place.
    pub(super) fn saved(&mut self, now: Now, at: Seq, bytes: u64) {
        self.saved += bytes;
        self.unsettled.push_back((at, self.saved));
        self.save_at = (self.saved < self.len()).then_some(now.mono + limits::CHECKPOINT_WAIT);
    }

    /// The log is durable up to here: what it has need not be kept. How far that goes, if further
    /// than before.
    pub(super) fn settle(&mut self, durable: Seq) -> Option<u64> {
        let mut upto = None;
        while let Some((_, end)) = self.unsettled.front().copied().filter(|(at, _)| *at <= durable) {
            self.unsettled.pop_front();
            upto = Some(end);
        }
        let upto = upto?;
        let drop =
            usize::try_from(upto - self.kept_from).ok().filter(|drop| self.kept.is_char_boundary(*drop))?;
        self.kept.drain(..drop);
        self.kept_from = upto;
        Some(upto)
    }

    /// Whether some of it is recorded and not durable yet.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// The text from an offset on, or from the first that is kept if that is later.
    pub(super) fn since(&self, offset: u64) -> (u64, Private<Arc<str>>) {
        let offset = offset.max(self.kept_from);
        (offset, Private(self.from(offset)))
    }

    /// Of all of it, hex.
    pub(super) fn sha256(&self) -> String {
        self.hash.hex()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Millis;

    #[test]
    fn only_text_that_waits_has_a_time() {
        let at = |ms| Now { mono: Mono(std::time::Duration::from_millis(ms)), store: Millis(1) };
        let mut text = Text::default();
        assert!(text.push(at(1), "one "));
        assert!(text.show(at(1)).is_some() && text.show_at().is_none());
        assert!(text.push(at(21), "two "), "the time to gather is over");
        text.show(at(21));
        assert!(!text.push(at(30), "three "));
        assert_eq!(text.show_at(), Some(at(41).mono));
        assert!(text.show(at(41)).is_some() && text.show_at().is_none());
    }

    /// Covers: G5, RX-2.
    #[test]
    fn text_that_was_recorded_before_it_was_shown_moves_nothing() {
        let now = Now { mono: Mono::default(), store: Millis(1) };
        let mut text = Text::default();
        assert!(text.push(now, "one "));
        let shown =
            |text: &mut Text| text.show(now).map(|(offset, piece)| (offset, piece.reveal().to_owned()));
        assert_eq!(shown(&mut text), Some((0, "one ".to_owned())));
        // Gathered, recorded and durable before its time to be shown has come.
        assert!(!text.push(now, "two "));
        let (offset, stretch) = text.unsaved().expect("something is unrecorded");
        assert_eq!((offset, stretch.as_str()), (0, "one two "));
        text.saved(now, Seq(1), 8);
        assert_eq!(text.settle(Seq(1)), Some(8));
        text.push(now, "three");
        assert_eq!(shown(&mut text), Some((8, "three".to_owned())));
        assert_eq!(shown(&mut text), None);
    }
}
