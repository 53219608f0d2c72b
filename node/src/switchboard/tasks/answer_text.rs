//! The text of a task's answer, as far as its action's result has room.
use turnway_core::limits;

/// The beginning of an answer; pieces may come twice, live and recorded.
#[derive(Debug, Default)]
pub(super) struct AnswerText {
    attempt: u32,
    text: String,
    /// Bytes of the whole answer as far as it is known.
    bytes: u64,
}

impl AnswerText {
    /// Adds a piece of an attempt's text. A later attempt begins anew.
    pub(super) fn add(&mut self, attempt: u32, offset: u64, piece: &str) {
        if attempt > self.attempt {
            *self = Self { attempt, ..Self::default() };
        }
        let end = offset + piece.len() as u64;
        // A piece of an earlier attempt, one that is known, or one behind a gap, which is recorded later.
        if attempt < self.attempt || end <= self.bytes || offset > self.bytes {
            return;
        }
        let known = usize::try_from(self.bytes - offset).unwrap_or(usize::MAX);
        let fresh = piece.get(known..).unwrap_or_default();
        let is_whole = self.text.len() as u64 == self.bytes;
        let room = limits::TASK_RESULT_BYTES_MAX.saturating_sub(self.text.len());
        if is_whole {
            self.text.push_str(&fresh[..fresh.floor_char_boundary(room)]);
        }
        self.bytes = end;
    }

    /// Returns the text, and whether the answer has more.
    pub(super) fn get(&self) -> (&str, bool) {
        (&self.text, self.text.len() as u64 != self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_once_and_cut() {
        let mut text = AnswerText::default();
        text.add(1, 0, "ab");
        text.add(1, 0, "abc");
        text.add(1, 1, "bc");
        text.add(1, 9, "behind a gap");
        assert_eq!(text.get(), ("abc", false));
        text.add(2, 0, "é");
        text.add(1, 3, "late");
        assert_eq!(text.get(), ("é", false));
        text.add(2, 2, &"x".repeat(limits::TASK_RESULT_BYTES_MAX));
        text.add(2, 2 + limits::TASK_RESULT_BYTES_MAX as u64, "y");
        let (kept, is_cut) = text.get();
        assert!(kept.len() == limits::TASK_RESULT_BYTES_MAX && is_cut && !kept.contains('y'));
    }
}
