//! The queue of frames published to this node and not yet decoded: bounded by count and bytes, because the socket's
//! callback, which fills it, must not block. Emptied by `receive`.
use super::pulse::Pulse;
use crate::metrics::{Direction, Lapse, Loss, Metrics};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::codec::{self, Kind};

/// Maximum queued frames.
const FRAMES_MAX: usize = 4096;
/// Maximum queued bytes: as many as the Redis server buffers for a subscriber by default.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// A queue between the socket and the reader.
pub(super) struct Inbox {
    queue: Mutex<Queue>,
    bell: Notify,
    pulse: Arc<Pulse>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Why messages may have been missed, until the gap is returned once.
    lapse: Option<Lapse>,
}

/// The next item for the reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Frame(Vec<u8>),
    Gap(Lapse),
}

// === impl Inbox ===

impl Inbox {
    pub(super) fn new(pulse: Arc<Pulse>, metrics: Arc<Metrics>) -> Self {
        Self { queue: Mutex::default(), bell: Notify::new(), pulse, metrics }
    }

    /// Queues a frame, or handles a heartbeat. Never blocks.
    pub(super) fn take(&self, blob: Vec<u8>) {
        if codec::kind(&blob) == Some(Kind::Beat) {
            // Heartbeats of other nodes have unknown numbers and are ignored.
            let beat =
                codec::decode::<u64>(Kind::Beat, &blob).ok().and_then(|number| self.pulse.heard(number));
            beat.into_iter().for_each(|took| self.metrics.bus.beat(took));
            return;
        }
        self.metrics.bus.passed(Direction::In, blob.len());
        let mut queue = self.queue();
        if queue.frames.len() >= FRAMES_MAX || queue.bytes + blob.len() > BYTES_MAX {
            queue.lapse = Some(Lapse::Overflow);
            self.metrics.bus.lost(Loss::Inbox, 1);
        } else {
            queue.bytes += blob.len();
            queue.frames.push_back(blob);
        }
        drop(queue);
        self.bell.notify_one();
    }

    /// Records that messages may have been missed.
    pub(super) fn lapsed(&self, why: Lapse) {
        self.queue().lapse = Some(why);
        self.bell.notify_one();
    }

    /// Waits for the next frame or gap. A gap comes after the frames received before it, so that none of their messages
    /// is read again.
    pub(super) async fn next(&self) -> Next {
        loop {
            if let Some(next) = self.try_next() {
                return next;
            }
            self.bell.notified().await;
        }
    }

    fn try_next(&self) -> Option<Next> {
        let mut queue = self.queue();
        if let Some(frame) = queue.frames.pop_front() {
            if !planted(Planted::BusInboxBytesKept) {
                queue.bytes -= frame.len();
            }
            return Some(Next::Frame(frame));
        }
        queue.lapse.take().map(Next::Gap)
    }

    /// Returns the heartbeat of this node.
    pub(super) fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use prometheus::Registry;

    fn inbox() -> Inbox {
        let metrics = Metrics::register(&Registry::new()).expect("each family once");
        Inbox::new(Arc::new(Pulse::new(Clock::start())), Arc::new(metrics))
    }

    /// Covers: G8.
    #[test]
    fn reading_a_frame_frees_its_bytes() {
        let inbox = inbox();
        let frame = vec![0; BYTES_MAX / 4];
        for n in 0..12 {
            inbox.take(frame.clone());
            assert_eq!(inbox.try_next(), Some(Next::Frame(frame.clone())), "{n}");
            assert_eq!(inbox.try_next(), None, "{n}");
        }
    }

    /// Covers: G8, S-14.
    #[test]
    fn frames_over_the_byte_limit_become_a_gap() {
        let inbox = inbox();
        let frame = vec![0; BYTES_MAX / 4];
        (0..5).for_each(|_| inbox.take(frame.clone()));
        let read: Vec<Next> = std::iter::from_fn(|| inbox.try_next()).collect();
        assert_eq!(read.len(), 5);
        assert_eq!(read.last(), Some(&Next::Gap(Lapse::Overflow)));
    }
}
