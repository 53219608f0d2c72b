//! The text of one run, assembled from pieces that may overlap. Used by the conversation.
use crate::event::{Failure, Note};
use crate::limits::TEXT_BYTES_MAX;
use crate::planted::{Planted, planted};

/// The text of an open run in its current attempt.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunText {
    pub(crate) agent: Option<String>,
    /// Number of the attempt; 0 before the run starts.
    pub(crate) attempt: u32,
    pub(crate) text: String,
    /// Bytes of reasoning received; the reasoning itself is not kept.
    pub(crate) reasoning: u64,
    /// Error that precedes a failed run's end.
    pub(crate) failure: Option<Failure>,
    /// Other messages without a position that precede the run's end: delivered with the end, or not at all.
    pub(crate) end_notes: Vec<Note>,
}

/// The result of adding a piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TextUpdate {
    /// The part of the piece that was new.
    New(String),
    /// The piece was known completely, or belongs to an earlier attempt.
    Known,
    /// Text is missing before the piece.
    Gap,
    /// The piece exceeds the limit.
    Full,
}

impl RunText {
    /// Adds a piece of the current attempt that begins `offset` bytes into the text.
    pub(crate) fn push(&mut self, offset: u64, piece: &str) -> TextUpdate {
        let have = self.text.len() as u64;
        if offset > have {
            return TextUpdate::Gap;
        }
        let Some(skip) = usize::try_from(have - offset).ok().filter(|skip| *skip < piece.len()) else {
            return TextUpdate::Known;
        };
        // A code point is never split, so pieces of one text always meet at a character boundary.
        let Some(new) = piece.get(skip..) else { return TextUpdate::Gap };
        if self.text.len() + new.len() > TEXT_BYTES_MAX && !planted(Planted::SdkTextUnbounded) {
            return TextUpdate::Full;
        }
        self.text.push_str(new);
        TextUpdate::New(new.to_owned())
    }

    /// Adds a piece of reasoning: an overlap is cut, a gap is ignored.
    pub(crate) fn push_reasoning(&mut self, offset: u64, piece: &str) -> Option<String> {
        let skip = usize::try_from(self.reasoning.saturating_sub(offset)).ok()?;
        let new = piece.get(skip..).filter(|new| !new.is_empty())?.to_owned();
        self.reasoning = offset.saturating_add(piece.len() as u64);
        Some(new)
    }

    /// Switches to another attempt, whose text is empty.
    pub(crate) fn restart(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.text.clear();
        self.reasoning = 0;
    }

    /// Drops the messages about an end that did not arrive; they will be repeated.
    pub(crate) fn forget_end(&mut self) {
        self.failure = None;
        self.end_notes.clear();
    }

    /// Cuts off provisional text that did not become part of the answer.
    pub(crate) fn truncate(&mut self, bytes: u64) {
        let mut end = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        self.text.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_overlaps_are_trimmed_and_gaps_detected() {
        let whole = "aé日🙂z";
        for have in (0..=whole.len()).filter(|n| whole.is_char_boundary(*n)) {
            for from in (0..=whole.len()).filter(|n| whole.is_char_boundary(*n)) {
                let mut run = RunText { text: whole[..have].to_owned(), ..RunText::default() };
                let took = run.push(from as u64, &whole[from..]);
                if from > have {
                    assert_eq!((took, run.text.as_str()), (TextUpdate::Gap, &whole[..have]));
                } else {
                    let new = whole[have..].to_owned();
                    assert_eq!(took, if new.is_empty() { TextUpdate::Known } else { TextUpdate::New(new) });
                    assert_eq!(run.text, whole);
                }
            }
        }
    }

    #[test]
    fn text_is_bounded_and_truncated_at_a_character_boundary() {
        let mut run = RunText::default();
        assert_eq!(run.push(0, &"x".repeat(TEXT_BYTES_MAX + 1)), TextUpdate::Full);
        assert_eq!(run.push(0, "aé"), TextUpdate::New("aé".to_owned()));
        run.truncate(2);
        assert_eq!(run.text, "a");
    }

    #[test]
    fn reasoning_overlaps_are_trimmed_and_gaps_skipped() {
        let mut run = RunText::default();
        assert_eq!(run.push_reasoning(0, "abc").as_deref(), Some("abc"));
        assert_eq!(run.push_reasoning(1, "bcd").as_deref(), Some("d"));
        assert_eq!(run.push_reasoning(0, "ab"), None);
        assert_eq!(run.push_reasoning(9, "x").as_deref(), Some("x"));
    }
}
