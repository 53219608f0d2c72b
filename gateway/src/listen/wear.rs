//! When a codec has grown, and another one would do better.

/// The codec keeps buffers as large as the largest message that ever passed. After one of this size it
/// is exchanged at the next pause.
const LARGE_MESSAGE: usize = 8 * 1024;
/// After messages of this many bytes it is exchanged once the link is idle.
const SOME_BYTES: usize = 128;
/// An idle link's codec reads in small steps; after so many bytes the link is not idle any more.
const MANY_BYTES: usize = 4 * 1024;

/// What a codec's buffers have seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wear {
    bytes: usize,
    largest: usize,
    /// It was made for an idle link.
    is_small: bool,
}

// === impl Wear ===

impl Wear {
    /// Of a fresh codec, for an idle link or a busy one.
    pub(super) fn fresh(is_small: bool) -> Self {
        Self { is_small, ..Self::default() }
    }

    /// Whether another codec would do better.
    pub(super) fn is_due(self, is_idle: bool) -> bool {
        let is_tight = self.is_small && self.bytes >= MANY_BYTES;
        self.largest >= LARGE_MESSAGE || is_tight || (is_idle && self.bytes >= SOME_BYTES)
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.largest = self.largest.max(bytes);
    }
}
