//! Live text at the edge: pieces of running answers, and requests to the owner for missing text.
use super::feed::{Feed, FeedStage};
use super::subscription::SubscriptionMode;
use crate::switchboard::sink::{EffectSink, Timer};
use std::time::Duration;
use turnway_core::id::{Epoch, RunId, SessionKey};
use turnway_core::protocol::action::ProcessOutput;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::time::Now;
use turnway_wire::peer::PeerMessage;

/// Time between two requests for missing text: the request or its answer may be lost.
const FETCH_TEXT_RETRY: Duration = Duration::from_millis(250);

impl Feed {
    /// Handles a piece of an answer from an owner here or at another node.
    pub(super) fn handle_chunk(
        &mut self,
        now: Now,
        key: &SessionKey,
        epoch: Epoch,
        chunk: &TextChunk,
        sink: &mut EffectSink,
    ) {
        if self.stage != FeedStage::Live || epoch < self.epoch {
            return;
        }
        self.epoch = epoch;
        for (link, sub) in self.subs.iter_mut().filter(|(_, sub)| sub.mode == SubscriptionMode::Live) {
            sub.show_chunk(sink, *link, key, chunk);
        }
        let gap = self.subs.values().any(|sub| sub.mode == SubscriptionMode::Live && sub.lacks_before(chunk));
        let want = Timer::FetchText(key.clone());
        if !self.lacks_text() {
            sink.timers.clear(&want);
        } else if gap && sink.timers.due_at(&want).is_none() {
            // The owner's messages arrive in order, so text missing before this piece is lost.
            sink.timers.set(want, now.mono);
        } else {
            sink.timers.set_earlier(want, now.mono + FETCH_TEXT_RETRY);
        }
    }

    /// Shows a piece of process output to links that subscribe to it and have capacity. Lost pieces are not
    /// repeated.
    pub(super) fn handle_process_output(
        &self,
        key: &SessionKey,
        epoch: Epoch,
        run_id: &RunId,
        printed: &ProcessOutput,
        sink: &mut EffectSink,
    ) {
        if self.stage != FeedStage::Live || epoch < self.epoch {
            return;
        }
        for (link, sub) in self.subs.iter().filter(|(_, sub)| sub.mode == SubscriptionMode::Live) {
            sub.show_process_output(sink, *link, key, run_id, printed);
        }
    }

    /// Requests the text from the smallest offset that any link here has.
    pub(super) fn fetch_text(&self, now: Now, key: &SessionKey, sink: &mut EffectSink) {
        if self.stage != FeedStage::Live {
            return;
        }
        let Some(run_id) = self.state.running.clone() else { return };
        let Some(run) = self.state.runs.get(&run_id) else { return };
        let attempt = run.attempt;
        let owner = self.owner.holder;
        let live = self.subs.values().filter(|sub| sub.mode == SubscriptionMode::Live);
        let lacking =
            live.filter_map(|sub| sub.texts.get(&run_id)).filter(|pos| pos.attempt == attempt && !pos.is_current);
        let Some(offset) = lacking.map(|pos| pos.offset).min() else { return };
        sink.timers.set(Timer::FetchText(key.clone()), now.mono + FETCH_TEXT_RETRY);
        let Some(holder) = owner else { return };
        sink.send_peer(holder.node, PeerMessage::FetchText { key: key.clone(), run_id, attempt, offset });
    }
}
