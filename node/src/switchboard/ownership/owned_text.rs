//! Text of owned sessions for the nodes that lack it.
use super::owned_session::OwnedSession;
use crate::switchboard::sink::EffectSink;
use std::sync::Arc;
use turnway_core::id::{NodeId, RunId, SessionKey};
use turnway_core::private::Private;
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::chunk::TextChunk;
use turnway_wire::peer::PeerMessage;

/// Maximum bytes of text in one message: the kept text of an answer may exceed what a frame or a link accepts.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// Cuts a text between code points, with the number of bytes before each piece. An empty text is one piece, which
/// reports that there is no further text.
fn pieces(text: &str) -> impl Iterator<Item = (u64, &str)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        if from >= text.len() && from > 0 {
            return None;
        }
        let upto = text.floor_char_boundary(from + PIECE_BYTES_MAX);
        let piece = (from as u64, &text[from..upto]);
        from = upto.max(1);
        Some(piece)
    })
}

impl OwnedSession {
    /// Sends text of a run to a node that lacks it.
    pub(super) fn send_text(
        &self,
        to: NodeId,
        key: &SessionKey,
        run_id: &RunId,
        attempt: u32,
        offset: u64,
        sink: &mut EffectSink,
    ) {
        let epoch = self.epoch();
        let Some((offset, text)) = self.runtime.text_since(run_id, attempt, offset) else { return };
        for (skip, piece) in pieces(text.reveal()) {
            let run_id = run_id.clone();
            let text = Private(Arc::from(piece));
            let chunk = TextChunk { run_id, attempt, offset: offset + skip, kind: TextKind::Text, text };
            sink.send_peer(to, PeerMessage::Chunk { key: key.clone(), epoch, chunk });
        }
    }
}
