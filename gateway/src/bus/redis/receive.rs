//! Receives messages published to this node, passes them from the socket to the driver, and reports a gap when messages may
//! have been missed. Runs as tasks of `bus::redis`.
use super::inbox::{BusInbox, InboxItem};
use crate::bus::{BusEvent, BusEventSender};
use crate::metrics::{Direction, GapCause, LossReason, Metrics};
use crate::redis::{PushHandler, RedisConnection};
use ::redis::{PushInfo, PushKind, Value};
use std::sync::Arc;
use turnway_core::protocol::codec::CodecError;
use turnway_wire::peer::frame::PeerFrame;

/// Returns the callback that takes messages from the socket.
pub(super) fn push_handler(inbox: Arc<BusInbox>) -> PushHandler {
    Arc::new(move |PushInfo { kind, mut data }| {
        // Both channels are for this node, so the channel name does not matter.
        if kind == PushKind::Message
            && let Some(Value::BulkString(blob)) = data.pop()
        {
            inbox.push(blob);
        }
    })
}

/// Reports a gap for every subscription after the first: messages may have been missed before it.
pub(super) async fn report_gaps(mut connection: RedisConnection, inbox: Arc<BusInbox>) {
    let mut known = 0;
    loop {
        match connection.generation() {
            Some(turn) if turn > known => {
                let deaf = inbox.heartbeat().reset();
                if turn > 1 {
                    inbox.record_gap(if deaf { GapCause::Deaf } else { GapCause::Broken });
                }
                known = turn;
            }
            Some(_) | None => {
                connection.wait_generation().await;
            }
        }
    }
}

/// Decodes frames and passes them on, as fast as the driver takes them.
pub(super) async fn forward_frames(inbox: Arc<BusInbox>, events: BusEventSender, metrics: Arc<Metrics>) {
    loop {
        let event = match inbox.next().await {
            InboxItem::Frame(blob) => match PeerFrame::decode(&blob) {
                Ok(frame) => {
                    frame.messages.iter().for_each(|message| metrics.bus.count_message(Direction::In, message));
                    BusEvent::Frame(frame)
                }
                Err(error) => {
                    count_unreadable(&metrics, error);
                    continue;
                }
            },
            InboxItem::Gap(why) => {
                metrics.bus.count_gap(why);
                tracing::warn!(?why, "messages of other nodes may have been missed; reading state again");
                BusEvent::Gap
            }
        };
        events.send(event).await;
    }
}

fn count_unreadable(metrics: &Metrics, error: CodecError) {
    let why = match error {
        CodecError::Version(_) => LossReason::Version,
        CodecError::Framing | CodecError::TooLarge | CodecError::Body => LossReason::Unreadable,
    };
    metrics.bus.count_lost(why, 1);
    tracing::debug!(?error, "cannot decode a frame");
}
