//! The text of one run, put together from pieces that may overlap.
use crate::event::{Failure, Note};
use crate::limits::TEXT_BYTES_MAX;
use crate::planted::{Planted, planted};

/// What an open run has said so far, in its present attempt.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunText {
    pub(crate) agent: Option<String>,
    /// 0: it has not started.
    pub(crate) attempt: u32,
    pub(crate) text: String,
    /// Bytes of reasoning seen; it is not kept.
    pub(crate) reasoning: u64,
    /// The error that precedes a failed run's end.
    pub(crate) failure: Option<Failure>,
    /// What else precedes it and has no place of its own: told with the end, or not at all.
    pub(crate) last_words: Vec<Note>,
}

/// What became of a piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Took {
    /// This much of it was new.
    New(String),
    /// All of it was known, or it is of an attempt that is over.
    Nothing,
    /// There is text missing before it.
    Hole,
    /// There is no room for it.
    Full,
}

impl RunText {
    /// Takes text of the present attempt that begins `offset` bytes into it.
    pub(crate) fn take(&mut self, offset: u64, piece: &str) -> Took {
        let have = self.text.len() as u64;
        if offset > have {
            return Took::Hole;
        }
        let Some(skip) = usize::try_from(have - offset).ok().filter(|skip| *skip < piece.len()) else {
            return Took::Nothing;
        };
        // A code point is never split, so pieces of one text always meet at a boundary.
        let Some(new) = piece.get(skip..) else { return Took::Hole };
        if self.text.len() + new.len() > TEXT_BYTES_MAX && !planted(Planted::SdkTextUnbounded) {
            return Took::Full;
        }
        self.text.push_str(new);
        Took::New(new.to_owned())
    }

    /// Takes reasoning: an overlap is cut, a hole is nobody's loss.
    pub(crate) fn take_reasoning(&mut self, offset: u64, piece: &str) -> Option<String> {
        let skip = usize::try_from(self.reasoning.saturating_sub(offset)).ok()?;
        let new = piece.get(skip..).filter(|new| !new.is_empty())?.to_owned();
        self.reasoning = offset.saturating_add(piece.len() as u64);
        Some(new)
    }

    /// Goes over to another attempt, whose text starts from nothing.
    pub(crate) fn restart(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.text.clear();
        self.reasoning = 0;
    }

    /// Forgets what was said of an end that did not come; it will be said again.
    pub(crate) fn forget_end(&mut self) {
        self.failure = None;
        self.last_words.clear();
    }

    /// Cuts what is provisional and did not become part of the answer.
    pub(crate) fn cut(&mut self, bytes: u64) {
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
    fn overlaps_are_cut_at_every_byte_and_holes_are_seen() {
        let whole = "aé日🙂z";
        for have in (0..=whole.len()).filter(|n| whole.is_char_boundary(*n)) {
            for from in (0..=whole.len()).filter(|n| whole.is_char_boundary(*n)) {
                let mut run = RunText { text: whole[..have].to_owned(), ..RunText::default() };
                let took = run.take(from as u64, &whole[from..]);
                if from > have {
                    assert_eq!((took, run.text.as_str()), (Took::Hole, &whole[..have]));
                } else {
                    let new = whole[have..].to_owned();
                    assert_eq!(took, if new.is_empty() { Took::Nothing } else { Took::New(new) });
                    assert_eq!(run.text, whole);
                }
            }
        }
    }

    #[test]
    fn text_is_bounded_and_cut_at_a_boundary() {
        let mut run = RunText::default();
        assert_eq!(run.take(0, &"x".repeat(TEXT_BYTES_MAX + 1)), Took::Full);
        assert_eq!(run.take(0, "aé"), Took::New("aé".to_owned()));
        run.cut(2);
        assert_eq!(run.text, "a");
    }

    #[test]
    fn reasoning_overlaps_are_cut_and_holes_skipped() {
        let mut run = RunText::default();
        assert_eq!(run.take_reasoning(0, "abc").as_deref(), Some("abc"));
        assert_eq!(run.take_reasoning(1, "bcd").as_deref(), Some("d"));
        assert_eq!(run.take_reasoning(0, "ab"), None);
        assert_eq!(run.take_reasoning(9, "x").as_deref(), Some("x"));
    }
}
