//! Receives messages published to this node, and passes them from the socket to the driver. Runs as tasks of
//! `bus::redis`.
use super::inbox::{Inbox, Next};
use crate::bus::{Heard, Mouth};
use crate::metrics::{Direction, Lapse, Loss, Metrics};
use crate::redis::{Hears, Line};
use ::redis::{PushInfo, PushKind, Value};
use std::sync::Arc;
use turnway_bindings::peer::frame::Frame;
use turnway_core::protocol::codec::CodecError;

/// Returns the callback that takes messages from the socket.
pub(super) fn hears(inbox: Arc<Inbox>) -> Hears {
    Arc::new(move |PushInfo { kind, mut data }| {
        // Both channels are for this node, so the channel name does not matter.
        if kind == PushKind::Message
            && let Some(Value::BulkString(blob)) = data.pop()
        {
            inbox.take(blob);
        }
    })
}

/// Reports a gap for every subscription after the first: messages may have been missed before it.
pub(super) async fn watch(mut line: Line, inbox: Arc<Inbox>) {
    let mut known = 0;
    loop {
        match line.turn() {
            Some(turn) if turn > known => {
                let deaf = inbox.pulse().forget();
                if turn > 1 {
                    inbox.lapsed(if deaf { Lapse::Deaf } else { Lapse::Broken });
                }
                known = turn;
            }
            Some(_) | None => {
                line.turned().await;
            }
        }
    }
}

/// Decodes frames and passes them on, as fast as the driver takes them.
pub(super) async fn read(inbox: Arc<Inbox>, mouth: Mouth, metrics: Arc<Metrics>) {
    loop {
        let heard = match inbox.next().await {
            Next::Frame(blob) => match Frame::read(&blob) {
                Ok(frame) => {
                    frame.words.iter().for_each(|words| metrics.bus.said(Direction::In, words));
                    Heard::Frame(frame)
                }
                Err(error) => {
                    refuse(&metrics, error);
                    continue;
                }
            },
            Next::Gap(why) => {
                metrics.bus.lapsed(why);
                tracing::warn!(?why, "messages of other nodes may have been missed; reading state again");
                Heard::Gap
            }
        };
        mouth.send(heard).await;
    }
}

fn refuse(metrics: &Metrics, error: CodecError) {
    let why = match error {
        CodecError::Version(_) => Loss::Version,
        CodecError::Framing | CodecError::TooLarge | CodecError::Body => Loss::Unreadable,
    };
    metrics.bus.lost(why, 1);
    tracing::debug!(?error, "cannot decode a frame");
}
