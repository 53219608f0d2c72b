//! Live text: pieces of running answers, and requests to the owner for missing text.
use super::sub::{Mode, Post};
use super::{Switchboard, Timer, feed::Stage};
use crate::peer::{Chunk, Words};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{Epoch, NodeId, RunId, SessionKey};
use turnway_core::private::Private;
use turnway_core::protocol::action::Printed;
use turnway_core::protocol::agent::TextKind;
use turnway_core::time::Now;

/// Time between two requests for missing text: the request or its answer may be lost.
const WANT: Duration = Duration::from_millis(250);

/// Maximum bytes of text in one message: the kept text of an answer may exceed what a frame or a link accepts.
const PIECE_BYTES: usize = 64 * 1024;

/// Cuts a text between code points, with the number of bytes before each piece. An empty text is one piece, which
/// reports that there is no further text.
fn pieces(text: &str) -> impl Iterator<Item = (u64, &str)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        if from >= text.len() && from > 0 {
            return None;
        }
        let upto = text.floor_char_boundary(from + PIECE_BYTES);
        let piece = (from as u64, &text[from..upto]);
        from = upto.max(1);
        Some(piece)
    })
}

impl Switchboard {
    /// Handles a piece of an answer from an owner here or at another node.
    pub(super) fn chunk(&mut self, now: Now, key: &SessionKey, epoch: Epoch, chunk: &Chunk) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        if feed.stage != Stage::Live || epoch < feed.epoch {
            return;
        }
        feed.epoch = epoch;
        let post = &mut Post { links: &mut self.links, outbox: &mut self.outbox, stats: &mut self.stats };
        for (link, sub) in feed.subs.iter_mut().filter(|(_, sub)| sub.mode == Mode::Live) {
            sub.show_chunk(post, *link, key, chunk);
        }
        let gap = feed.subs.values().any(|sub| sub.mode == Mode::Live && sub.lacks_before(chunk));
        let want = Timer::Want(key.clone());
        if !feed.lacks_text() {
            self.timers.clear(&want);
        } else if gap && self.timers.at(&want).is_none() {
            // The owner's messages arrive in order, so text missing before this piece is lost.
            self.timers.set(want, now.mono);
        } else {
            self.timers.set_earlier(want, now.mono + WANT);
        }
    }

    /// Shows a piece of process output to links that subscribe to it and have capacity. Lost pieces are not
    /// repeated.
    pub(super) fn printed(&mut self, key: &SessionKey, epoch: Epoch, run_id: &RunId, printed: &Printed) {
        let Some(feed) = self.feeds.get(key) else { return };
        if feed.stage != Stage::Live || epoch < feed.epoch {
            return;
        }
        let post = &mut Post { links: &mut self.links, outbox: &mut self.outbox, stats: &mut self.stats };
        for (link, sub) in feed.subs.iter().filter(|(_, sub)| sub.mode == Mode::Live) {
            sub.show_printed(post, *link, key, run_id, printed);
        }
    }

    /// Schedules a request to the owner, because a link may lack text.
    pub(super) fn lack_text(&mut self, key: &SessionKey) {
        let Some(feed) = self.feeds.get(key) else { return };
        if feed.lacks_text() {
            self.timers.set(Timer::Want(key.clone()), turnway_core::time::Mono::default());
        }
    }

    /// Requests the text from the smallest offset that any link here has.
    pub(super) fn want(&mut self, now: Now, key: &SessionKey) {
        let Some(feed) = self.feeds.get(key).filter(|feed| feed.stage == Stage::Live) else { return };
        let Some(run_id) = feed.state.running.clone() else { return };
        let Some(run) = feed.state.runs.get(&run_id) else { return };
        let (attempt, owner) = (run.attempt, feed.owner.holder);
        let live = feed.subs.values().filter(|sub| sub.mode == Mode::Live);
        let lacking =
            live.filter_map(|sub| sub.texts.get(&run_id)).filter(|pos| pos.attempt == attempt && !pos.sure);
        let Some(offset) = lacking.map(|pos| pos.offset).min() else { return };
        self.timers.set(Timer::Want(key.clone()), now.mono + WANT);
        let Some(holder) = owner else { return };
        self.tell(now, holder.node, Words::Want { key: key.clone(), run_id, attempt, offset });
    }

    /// Sends text of an owned session's run to a node that lacks it.
    pub(super) fn wanted(
        &mut self,
        now: Now,
        from: NodeId,
        key: &SessionKey,
        run_id: &RunId,
        attempt: u32,
        offset: u64,
    ) {
        let Some(owned) = self.seats.get(key).and_then(super::seat::Seat::owned) else { return };
        let epoch = owned.token.epoch;
        let Some((offset, text)) = owned.runtime.text_since(run_id, attempt, offset) else { return };
        for (skip, piece) in pieces(text.reveal()) {
            let (run_id, text) = (run_id.clone(), Private(Arc::from(piece)));
            let chunk = Chunk { run_id, attempt, offset: offset + skip, kind: TextKind::Text, text };
            self.tell(now, from, Words::Chunk { key: key.clone(), epoch, chunk });
        }
    }
}
