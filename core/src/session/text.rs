//! The live text of one attempt: which part is recorded, which is shown, and which must stay in memory.
use crate::id::Seq;
use crate::limits;
use crate::private::Private;
use crate::protocol::json::json_prefix_len;
use crate::session::text_hash::TextHash;
use crate::time::{Mono, Now};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// Bytes of a text fact besides its text: attempt, offset, a mark, names and quotes.
const FACT_OVERHEAD_BYTES: usize = 512;

/// The text of one attempt. Offsets are UTF-8 bytes from its beginning.
#[derive(Clone, Default)]
pub(super) struct AttemptText {
    /// The text from `kept_from` on, which is not yet durable.
    kept: String,
    kept_from: u64,
    /// End of the recorded part.
    saved: u64,
    /// End of the shown part.
    shown: u64,
    /// Positions of checkpoints that are not yet durable, with the ends of their text.
    pending: VecDeque<(Seq, u64)>,
    hash: TextHash,
    /// Time until which text is collected after some was shown.
    collect_until: Mono,
    /// Time at which unrecorded text is recorded.
    pub(super) save_at: Option<Mono>,
    /// Bytes of reasoning shown in addition.
    pub(super) reasoning: u64,
}

impl fmt::Debug for AttemptText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttemptText({} of {} recorded, {} shown)", self.saved, self.len(), self.shown)
    }
}

impl AttemptText {
    /// Creates the text of an attempt of which `bytes` bytes are recorded.
    pub(super) fn recorded(bytes: u64, hash: TextHash) -> Self {
        Self { kept_from: bytes, saved: bytes, shown: bytes, hash, ..Self::default() }
    }

    pub(super) fn len(&self) -> u64 {
        self.kept_from + self.kept.len() as u64
    }

    /// Appends a piece; returns whether it should be shown at once: it is the first after a pause, or enough is
    /// collected (protocol.md §1.4).
    pub(super) fn push(&mut self, now: Now, piece: &str) -> bool {
        self.kept.push_str(piece);
        self.hash.update(piece.as_bytes());
        self.save_at.get_or_insert(now.mono + limits::CHECKPOINT_WAIT);
        self.collect_until <= now.mono || self.len() - self.shown >= limits::DELTA_BYTES as u64
    }

    /// Returns the time at which collected text is shown; `None` if there is none, so that an answer sent word by
    /// word needs no timer for each word.
    pub(super) fn show_due(&self) -> Option<Mono> {
        (self.shown.max(self.kept_from) < self.len()).then_some(self.collect_until)
    }

    fn slice_from(&self, offset: u64) -> Arc<str> {
        let skip = usize::try_from(offset.saturating_sub(self.kept_from)).unwrap_or(usize::MAX);
        self.kept.get(skip..).unwrap_or_default().into()
    }

    /// Returns the text that was not shown yet, with its offset.
    pub(super) fn take_unshown(&mut self, now: Now) -> Option<(u64, Private<Arc<str>>)> {
        // Text that was recorded before it was shown has been shown as a fact, and is no longer kept.
        let offset = self.shown.max(self.kept_from);
        if offset >= self.len() {
            return None;
        }
        self.shown = self.len();
        self.collect_until = now.mono + limits::DELTA_WAIT;
        Some((offset, Private(self.slice_from(offset))))
    }

    /// Returns whether a checkpoint is due by the amount of unrecorded text.
    pub(super) fn is_save_due(&self) -> bool {
        self.len() - self.saved >= limits::CHECKPOINT_BYTES as u64
    }

    /// Returns the next part to record, at most one checkpoint, without splitting a code point.
    pub(super) fn next_unsaved(&self) -> Option<(u64, String)> {
        let skip = usize::try_from(self.saved - self.kept_from).ok()?;
        let rest = self.kept.get(skip..).filter(|rest| !rest.is_empty())?;
        let stretch = &rest[..rest.floor_char_boundary(limits::CHECKPOINT_BYTES)];
        // Control characters take six bytes each as JSON.
        let end = json_prefix_len(stretch, limits::FACT_DATA_BYTES_MAX - FACT_OVERHEAD_BYTES);
        Some((self.saved, stretch[..end].to_owned()))
    }

    /// Marks a part as recorded at a position of the log.
    pub(super) fn mark_saved(&mut self, now: Now, at: Seq, bytes: u64) {
        self.saved += bytes;
        self.pending.push_back((at, self.saved));
        self.save_at = (self.saved < self.len()).then_some(now.mono + limits::CHECKPOINT_WAIT);
    }

    /// Drops text that is durable in the log up to `durable`. Returns the end of that text, if further than before.
    pub(super) fn mark_durable(&mut self, durable: Seq) -> Option<u64> {
        let mut upto = None;
        while let Some((_, end)) = self.pending.front().copied().filter(|(at, _)| *at <= durable) {
            self.pending.pop_front();
            upto = Some(end);
        }
        let upto = upto?;
        let drop = usize::try_from(upto - self.kept_from).ok().filter(|drop| self.kept.is_char_boundary(*drop))?;
        self.kept.drain(..drop);
        self.kept_from = upto;
        Some(upto)
    }

    /// Returns whether a part is recorded and not durable yet.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the text from an offset on, or from the first kept byte if that is later.
    pub(super) fn since(&self, offset: u64) -> (u64, Private<Arc<str>>) {
        let offset = offset.max(self.kept_from);
        (offset, Private(self.slice_from(offset)))
    }

    /// Returns the SHA-256 of the whole text, hex.
    pub(super) fn sha256(&self) -> String {
        self.hash.hex()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Millis;

    #[test]
    fn only_pending_text_has_a_deadline() {
        let at = |ms| Now { mono: Mono(std::time::Duration::from_millis(ms)), store: Millis(1) };
        let mut text = AttemptText::default();
        assert!(text.push(at(1), "one "));
        assert!(text.take_unshown(at(1)).is_some() && text.show_due().is_none());
        assert!(text.push(at(21), "two "), "the time to gather is over");
        text.take_unshown(at(21));
        assert!(!text.push(at(30), "three "));
        assert_eq!(text.show_due(), Some(at(41).mono));
        assert!(text.take_unshown(at(41)).is_some() && text.show_due().is_none());
    }

    /// Covers: G5, RX-2.
    #[test]
    fn text_recorded_before_delivery_keeps_its_offset() {
        let now = Now { mono: Mono::default(), store: Millis(1) };
        let mut text = AttemptText::default();
        assert!(text.push(now, "one "));
        let shown =
            |text: &mut AttemptText| text.take_unshown(now).map(|(offset, piece)| (offset, piece.reveal().to_owned()));
        assert_eq!(shown(&mut text), Some((0, "one ".to_owned())));
        // The text is collected, recorded and durable before its time to be shown.
        assert!(!text.push(now, "two "));
        let (offset, stretch) = text.next_unsaved().expect("something is unrecorded");
        assert_eq!((offset, stretch.as_str()), (0, "one two "));
        text.mark_saved(now, Seq(1), 8);
        assert_eq!(text.mark_durable(Seq(1)), Some(8));
        text.push(now, "three");
        assert_eq!(shown(&mut text), Some((8, "three".to_owned())));
        assert_eq!(shown(&mut text), None);
    }
}
