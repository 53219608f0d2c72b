//! Live text: pieces of running answers, and requests to the owner for missing text.
use super::subscription::SubscriptionMode;
use super::{Switchboard, Timer, feed::FeedStage};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{Epoch, NodeId, RunId, SessionKey};
use turnway_core::private::Private;
use turnway_core::protocol::action::ProcessOutput;
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::time::Now;
use turnway_wire::peer::PeerMessage;

/// Time between two requests for missing text: the request or its answer may be lost.
const FETCH_TEXT_RETRY: Duration = Duration::from_millis(250);

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

impl Switchboard {
    /// Handles a piece of an answer from an owner here or at another node.
    pub(super) fn handle_chunk(&mut self, now: Now, key: &SessionKey, epoch: Epoch, chunk: &TextChunk) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        if feed.stage != FeedStage::Live || epoch < feed.epoch {
            return;
        }
        feed.epoch = epoch;
        let sink = &mut self.sink;
        for (link, sub) in feed.subs.iter_mut().filter(|(_, sub)| sub.mode == SubscriptionMode::Live) {
            sub.show_chunk(sink, *link, key, chunk);
        }
        let gap = feed.subs.values().any(|sub| sub.mode == SubscriptionMode::Live && sub.lacks_before(chunk));
        let want = Timer::FetchText(key.clone());
        if !feed.lacks_text() {
            self.sink.timers.clear(&want);
        } else if gap && self.sink.timers.due_at(&want).is_none() {
            // The owner's messages arrive in order, so text missing before this piece is lost.
            self.sink.timers.set(want, now.mono);
        } else {
            self.sink.timers.set_earlier(want, now.mono + FETCH_TEXT_RETRY);
        }
    }

    /// Shows a piece of process output to links that subscribe to it and have capacity. Lost pieces are not
    /// repeated.
    pub(super) fn handle_process_output(
        &mut self,
        key: &SessionKey,
        epoch: Epoch,
        run_id: &RunId,
        printed: &ProcessOutput,
    ) {
        let Some(feed) = self.feeds.get(key) else { return };
        if feed.stage != FeedStage::Live || epoch < feed.epoch {
            return;
        }
        let sink = &mut self.sink;
        for (link, sub) in feed.subs.iter().filter(|(_, sub)| sub.mode == SubscriptionMode::Live) {
            sub.show_process_output(sink, *link, key, run_id, printed);
        }
    }

    /// Schedules a request to the owner, because a link may lack text.
    pub(super) fn schedule_text_fetch(&mut self, key: &SessionKey) {
        let Some(feed) = self.feeds.get(key) else { return };
        if feed.lacks_text() {
            self.sink.timers.set(Timer::FetchText(key.clone()), turnway_core::time::Mono::default());
        }
    }

    /// Requests the text from the smallest offset that any link here has.
    pub(super) fn fetch_text(&mut self, now: Now, key: &SessionKey) {
        let Some(feed) = self.feeds.get(key).filter(|feed| feed.stage == FeedStage::Live) else { return };
        let Some(run_id) = feed.state.running.clone() else { return };
        let Some(run) = feed.state.runs.get(&run_id) else { return };
        let attempt = run.attempt;
        let owner = feed.owner.holder;
        let live = feed.subs.values().filter(|sub| sub.mode == SubscriptionMode::Live);
        let lacking =
            live.filter_map(|sub| sub.texts.get(&run_id)).filter(|pos| pos.attempt == attempt && !pos.is_current);
        let Some(offset) = lacking.map(|pos| pos.offset).min() else { return };
        self.sink.timers.set(Timer::FetchText(key.clone()), now.mono + FETCH_TEXT_RETRY);
        let Some(holder) = owner else { return };
        self.send_peer(now, holder.node, PeerMessage::FetchText { key: key.clone(), run_id, attempt, offset });
    }

    /// Sends text of an owned session's run to a node that lacks it.
    pub(super) fn handle_fetch_text(
        &mut self,
        now: Now,
        from: NodeId,
        key: &SessionKey,
        run_id: &RunId,
        attempt: u32,
        offset: u64,
    ) {
        let Some(owned) = self.owned_sessions.get(key).and_then(super::owned_session::SessionOwnership::owned) else {
            return;
        };
        let epoch = owned.token.epoch;
        let Some((offset, text)) = owned.runtime.text_since(run_id, attempt, offset) else { return };
        for (skip, piece) in pieces(text.reveal()) {
            let run_id = run_id.clone();
            let text = Private(Arc::from(piece));
            let chunk = TextChunk { run_id, attempt, offset: offset + skip, kind: TextKind::Text, text };
            self.send_peer(now, from, PeerMessage::Chunk { key: key.clone(), epoch, chunk });
        }
    }
}
