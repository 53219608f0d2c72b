//! The queue of frames published to this node and not yet decoded: bounded by count and bytes, because the socket's
//! callback, which fills it, must not block. Emptied by `receive`.
use super::heartbeat::Heartbeat;
use crate::metrics::{Direction, GapCause, LossReason, Metrics};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::codec::{self, BlobKind};

/// Maximum queued frames.
const FRAMES_MAX: usize = 4096;
/// Maximum queued bytes: as many as the Redis server buffers for a subscriber by default.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// A queue between the socket and the reader.
pub(super) struct BusInbox {
    queue: Mutex<InboxQueue>,
    wake: Notify,
    heartbeat: Arc<Heartbeat>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct InboxQueue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Why messages may have been missed, until the gap is returned once.
    lapse: Option<GapCause>,
}

/// The next item for the reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InboxItem {
    Frame(Vec<u8>),
    Gap(GapCause),
}

// === impl BusInbox ===

impl BusInbox {
    pub(super) fn new(heartbeat: Arc<Heartbeat>, metrics: Arc<Metrics>) -> Self {
        Self { queue: Mutex::default(), wake: Notify::new(), heartbeat, metrics }
    }

    /// Queues a frame, or handles a heartbeat. Never blocks.
    pub(super) fn push(&self, blob: Vec<u8>) {
        if codec::blob_kind(&blob) == Some(BlobKind::Heartbeat) {
            // Heartbeats of other nodes have unknown numbers and are ignored.
            let beat = codec::decode::<u64>(BlobKind::Heartbeat, &blob)
                .ok()
                .and_then(|number| self.heartbeat.record_return(number));
            beat.into_iter().for_each(|took| self.metrics.bus.record_heartbeat(took));
            return;
        }
        self.metrics.bus.record_frame(Direction::In, blob.len());
        let mut queue = self.queue();
        if queue.frames.len() >= FRAMES_MAX || queue.bytes + blob.len() > BYTES_MAX {
            queue.lapse = Some(GapCause::Overflow);
            self.metrics.bus.count_lost(LossReason::Inbox, 1);
        } else {
            queue.bytes += blob.len();
            queue.frames.push_back(blob);
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// Records that messages may have been missed.
    pub(super) fn record_gap(&self, why: GapCause) {
        self.queue().lapse = Some(why);
        self.wake.notify_one();
    }

    /// Waits for the next frame or gap. A gap comes after the frames received before it, so that none of their messages
    /// is read again.
    pub(super) async fn next(&self) -> InboxItem {
        loop {
            if let Some(next) = self.try_next() {
                return next;
            }
            self.wake.notified().await;
        }
    }

    fn try_next(&self) -> Option<InboxItem> {
        let mut queue = self.queue();
        if let Some(frame) = queue.frames.pop_front() {
            if !planted(Planted::BusInboxBytesKept) {
                queue.bytes -= frame.len();
            }
            return Some(InboxItem::Frame(frame));
        }
        queue.lapse.take().map(InboxItem::Gap)
    }

    /// Returns the heartbeat of this node.
    pub(super) fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    fn queue(&self) -> MutexGuard<'_, InboxQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use prometheus::Registry;

    fn inbox() -> BusInbox {
        let metrics = Metrics::register(&Registry::new()).expect("each family once");
        BusInbox::new(Arc::new(Heartbeat::new(Clock::start())), Arc::new(metrics))
    }

    /// Covers: G8.
    #[test]
    fn reading_a_frame_frees_its_bytes() {
        let inbox = inbox();
        let frame = vec![0; BYTES_MAX / 4];
        for n in 0..12 {
            inbox.push(frame.clone());
            assert_eq!(inbox.try_next(), Some(InboxItem::Frame(frame.clone())), "{n}");
            assert_eq!(inbox.try_next(), None, "{n}");
        }
    }

    /// Covers: G8, S-14.
    #[test]
    fn frames_over_the_byte_limit_become_a_gap() {
        let inbox = inbox();
        let frame = vec![0; BYTES_MAX / 4];
        (0..5).for_each(|_| inbox.push(frame.clone()));
        let read: Vec<InboxItem> = std::iter::from_fn(|| inbox.try_next()).collect();
        assert_eq!(read.len(), 5);
        assert_eq!(read.last(), Some(&InboxItem::Gap(GapCause::Overflow)));
    }
}
