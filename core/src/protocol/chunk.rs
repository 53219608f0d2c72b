//! A piece of an answer on its way from the agent to the readers: the one shape of it in outputs, frames and
//! notifications.
use crate::id::RunId;
use crate::private::Private;
use crate::protocol::agent::TextKind;
use std::sync::Arc;

/// A piece of an answer; provisional until the end of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextChunk {
    pub run_id: RunId,
    pub attempt: u32,
    /// UTF-8 bytes that precede the piece in this attempt's text of this kind.
    pub offset: u64,
    pub kind: TextKind,
    /// Never splits a code point.
    pub text: Private<Arc<str>>,
}

impl TextChunk {
    /// Returns the offset of the text after the piece.
    pub fn end(&self) -> u64 {
        self.offset + self.text.reveal().len() as u64
    }

    /// Returns the piece without the text before an offset. An offset inside a code point is never the end of a piece:
    /// a reader that names one has cut its text wrongly, and gets the whole code point again.
    pub fn after(&self, offset: u64) -> Self {
        let skip = usize::try_from(offset.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let skip = self.text.reveal().floor_char_boundary(skip);
        let text = if skip == 0 { self.text.clone() } else { Private(Arc::from(&self.text.reveal()[skip..])) };
        Self { run_id: self.run_id.clone(), offset: self.offset + skip as u64, text, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{MessageId, SessionId, SessionKey, TenantId, UserId};

    #[test]
    fn rest_of_a_piece_never_splits_a_code_point() {
        let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s").expect("a name") };
        let user = UserId::parse("ann").expect("a name");
        let run_id = RunId::derive(&key, &user, &MessageId::parse("m").expect("a name"));
        let text = Private(Arc::from("aéb"));
        let chunk = TextChunk { run_id, attempt: 2, offset: 10, kind: TextKind::Text, text };
        assert_eq!(chunk.end(), 14);
        for (offset, at, rest) in
            [(0, 10, "aéb"), (10, 10, "aéb"), (11, 11, "éb"), (12, 11, "éb"), (13, 13, "b"), (14, 14, ""), (99, 14, "")]
        {
            let after = chunk.after(offset);
            assert_eq!((after.offset, after.text.reveal(), after.end()), (at, rest, 14), "{offset}");
        }
    }
}
