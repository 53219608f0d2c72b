//! The queue of messages that are not published yet: bounded by count and bytes, in case the server is slow or
//! unreachable. Filled by the driver, emptied by `publish`.
use crate::bus::AddressedMessage;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use turnway_core::planted::{Planted, planted};

/// Maximum queued messages; the switchboard sends some hundred at a time.
const MESSAGES_MAX: usize = 65_536;
/// Maximum queued bytes: what a busy node sends in some tenths of a second.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes taken in one batch, so that a single pipeline stays a small part of the queue.
const BATCH_BYTES: usize = 1024 * 1024;

/// A queue between the driver, which never blocks, and the publishing task.
#[derive(Default)]
pub(super) struct BusOutbox {
    queue: Mutex<OutboxQueue>,
    /// Notified when a message is queued.
    filled: Notify,
    /// Notified when the queue is empty and no batch is being published.
    emptied: Notify,
}

#[derive(Default)]
struct OutboxQueue {
    messages: VecDeque<AddressedMessage>,
    bytes: usize,
    /// Batches taken and not reported as done.
    in_flight: usize,
}

// === impl BusOutbox ===

impl BusOutbox {
    /// Queues the messages that fit; returns the number of messages dropped.
    pub(super) fn push(&self, messages: &mut Vec<AddressedMessage>) -> u64 {
        if messages.is_empty() {
            return 0;
        }
        let mut lost = 0;
        let mut queue = self.queue();
        for (to, message) in messages.drain(..) {
            let weight = message.weight();
            if queue.messages.len() >= MESSAGES_MAX || queue.bytes + weight > BYTES_MAX {
                lost += 1;
            } else {
                queue.bytes += weight;
                queue.messages.push_back((to, message));
            }
        }
        drop(queue);
        self.filled.notify_one();
        lost
    }

    /// Waits for messages, and takes a batch. The caller reports it with [`Self::done`] once it is published.
    /// Cancel-safe.
    pub(super) async fn take(&self) -> Vec<AddressedMessage> {
        loop {
            let messages = self.try_take();
            if !messages.is_empty() {
                return messages;
            }
            self.filled.notified().await;
        }
    }

    fn try_take(&self) -> Vec<AddressedMessage> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut queue = self.queue();
        while bytes < BATCH_BYTES
            && let Some((to, message)) = queue.messages.pop_front()
        {
            let weight = message.weight();
            let freed = if planted(Planted::BusOutboxBytesKept) { 0 } else { weight };
            (bytes, queue.bytes) = (bytes + weight, queue.bytes - freed);
            batch.push((to, message));
        }
        queue.in_flight += usize::from(!batch.is_empty());
        batch
    }

    /// Records that one batch was published, or has failed.
    pub(super) fn done(&self) {
        self.queue().in_flight -= 1;
        if self.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    /// Waits until the queue is empty and no batch is being published.
    pub(super) async fn wait_empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    fn is_empty(&self) -> bool {
        let queue = self.queue();
        queue.messages.is_empty() && queue.in_flight == 0
    }

    fn queue(&self) -> MutexGuard<'_, OutboxQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use turnway_core::id::{Cursor, NodeId, SessionId, SessionKey, TenantId};
    use turnway_wire::peer::PeerMessage;

    fn knocks(count: usize) -> Vec<AddressedMessage> {
        (0..count).map(|n| (NodeId(n as u128), PeerMessage::Probe)).collect()
    }

    /// Covers: G8.
    #[test]
    fn messages_over_the_limit_are_dropped_and_counted() {
        let outbox = BusOutbox::default();
        let mut messages = knocks(MESSAGES_MAX + 3);
        assert_eq!((outbox.push(&mut messages), messages.len()), (3, 0));
        assert_eq!(outbox.push(&mut knocks(1)), 1);
        let first = outbox.take().now_or_never().expect("something");
        assert_eq!(first[..2], knocks(2));
        assert!(first.len() < MESSAGES_MAX && outbox.push(&mut knocks(1)) == 0);
    }

    /// Covers: G8.
    #[test]
    fn taking_messages_frees_their_room() {
        let outbox = BusOutbox::default();
        let node = NodeId(1);
        let session =
            SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s").expect("a name") };
        let each = PeerMessage::Ack { logs: vec![(session.clone(), Cursor::default())] }.weight();
        let large = || PeerMessage::Ack { logs: vec![(session.clone(), Cursor::default()); BYTES_MAX / 4 / each] };
        for n in 0..40 {
            let mut messages = vec![(node, large())];
            assert_eq!(outbox.push(&mut messages), 0, "{n}");
            assert_eq!(outbox.take().now_or_never().map(|batch| batch.len()), Some(1), "{n}");
            outbox.done();
        }
    }

    #[test]
    fn outbox_is_empty_once_taken_messages_are_sent() {
        let outbox = BusOutbox::default();
        assert!(outbox.wait_empty().now_or_never().is_some() && outbox.take().now_or_never().is_none());
        outbox.push(&mut knocks(2));
        assert!(outbox.wait_empty().now_or_never().is_none());
        assert_eq!(outbox.take().now_or_never(), Some(knocks(2)));
        assert!(outbox.wait_empty().now_or_never().is_none());
        outbox.done();
        assert!(outbox.wait_empty().now_or_never().is_some());
    }
}
