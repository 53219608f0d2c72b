//! Decides when a link's WebSocket codec should be replaced because its buffers have grown.

/// The codec keeps buffers as large as the largest message. After one of this size it is replaced at the next pause.
const LARGE_MESSAGE: usize = 8 * 1024;
/// After this many bytes the codec is replaced once the link is idle.
const IDLE_REPLACE_BYTES: usize = 128;
/// An idle link's codec reads in small steps; after this many bytes the link counts as busy again.
const BUSY_BYTES: usize = 4 * 1024;

/// The traffic through a codec's buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BufferPressure {
    bytes: usize,
    largest: usize,
    /// The codec was created for an idle link.
    is_small: bool,
}

// === impl BufferPressure ===

impl BufferPressure {
    /// Creates the counter of a new codec, for an idle link or a busy one.
    pub(super) fn for_new_codec(is_small: bool) -> Self {
        Self { is_small, ..Self::default() }
    }

    /// Returns true if the codec should be replaced.
    pub(super) fn needs_replacement(self, is_idle: bool) -> bool {
        let is_tight = self.is_small && self.bytes >= BUSY_BYTES;
        self.largest >= LARGE_MESSAGE || is_tight || (is_idle && self.bytes >= IDLE_REPLACE_BYTES)
    }

    pub(super) fn record(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.largest = self.largest.max(bytes);
    }
}
