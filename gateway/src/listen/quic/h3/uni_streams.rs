//! Reads HTTP/3's own unidirectional streams: settings and the QPACK tables (RFC 9114 §6.2). They only have to be
//! present and well-formed; every other unidirectional stream of a client is refused.
use super::error::{self, H3Error};
use super::frames;
use crate::listen::quic::panic_isolation::CatchDropPanic;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use quinn::{Connection, RecvStream, VarInt};
use std::future::{Future, pending};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::oneshot;
use web_transport_proto::StreamUni;

/// Maximum refused streams of one connection; each is answered with an error code.
const UNWANTED_MAX: u32 = 16;

/// All unidirectional streams as one future, which yields the protocol error for which the connection was closed. The
/// streams are kept until then: dropping one tells the client that it is not wanted.
pub(super) struct H3UniStreams {
    streams: BoxFuture<'static, H3Error>,
    is_over: bool,
}

/// The outcome of a step on a stream.
enum H3StreamStep {
    /// The stream has announced its type.
    Identified(H3StreamKind, CatchDropPanic<RecvStream>),
    /// The stream ended before it announced its type.
    Ended,
    Fault(H3Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum H3StreamKind {
    Control,
    QpackEncoder,
    QpackDecoder,
    /// Only servers may open it.
    Push,
    Other,
}

// === impl H3UniStreams ===

impl H3UniStreams {
    /// Starts reading. Also returns a receiver that completes when the client's settings have arrived.
    pub(super) fn start(connection: Connection) -> (Self, oneshot::Receiver<()>) {
        let (settled, is_settled) = oneshot::channel();
        (Self { streams: read_streams(connection, settled).boxed(), is_over: false }, is_settled)
    }
}

impl Future for H3UniStreams {
    type Output = H3Error;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<H3Error> {
        if self.is_over {
            return Poll::Pending;
        }
        let polled = self.streams.poll_unpin(cx);
        self.is_over = polled.is_ready();
        polled
    }
}

async fn read_streams(connection: Connection, settled: oneshot::Sender<()>) -> H3Error {
    let mut steps = FuturesUnordered::new();
    let mut settled = Some(settled);
    let mut kinds = Vec::new();
    let mut unwanted = 0;
    loop {
        let step = tokio::select! {
            accepted = connection.accept_uni() => match accepted {
                Ok(stream) => {
                    steps.push(read_kind(CatchDropPanic::new(stream)).boxed());
                    continue;
                }
                // The code that reads the request reports the connection's end.
                Err(_) => return pending().await,
            },
            Some(step) = steps.next() => step,
        };
        let (kind, stream) = match step {
            H3StreamStep::Identified(kind, stream) => (kind, stream),
            H3StreamStep::Ended => continue,
            H3StreamStep::Fault(fault) => return fault,
        };
        if kind != H3StreamKind::Other && kinds.contains(&kind) {
            return close_with(&connection, error::STREAM_CREATION_ERROR, "a critical stream was opened twice");
        }
        kinds.push(kind);
        match kind {
            H3StreamKind::Control => steps.push(read_control(stream, connection.clone(), settled.take()).boxed()),
            H3StreamKind::QpackEncoder => steps.push(read_qpack_encoder(stream, connection.clone()).boxed()),
            H3StreamKind::QpackDecoder => steps.push(read_qpack_decoder(stream, connection.clone()).boxed()),
            H3StreamKind::Push => {
                return close_with(&connection, error::STREAM_CREATION_ERROR, "clients must not open push streams");
            }
            H3StreamKind::Other => {
                kinds.pop();
                unwanted += 1;
                if unwanted > UNWANTED_MAX {
                    return close_with(&connection, error::EXCESSIVE_LOAD, "too many unknown streams");
                }
                refuse(stream);
            }
        }
    }
}

fn refuse(mut stream: CatchDropPanic<RecvStream>) {
    // Fails only if the stream has already ended.
    let _ = stream.stop(VarInt::from_u32(error::STREAM_CREATION_ERROR));
}

async fn read_kind(mut stream: CatchDropPanic<RecvStream>) -> H3StreamStep {
    let Ok(Some(kind)) = frames::read_varint(&mut stream).await else { return H3StreamStep::Ended };
    let is = |named: StreamUni| named.0.into_inner() == kind;
    let kinds = [
        (StreamUni::CONTROL, H3StreamKind::Control),
        (StreamUni::QPACK_ENCODER, H3StreamKind::QpackEncoder),
        (StreamUni::QPACK_DECODER, H3StreamKind::QpackDecoder),
        (StreamUni::PUSH, H3StreamKind::Push),
    ];
    let kind = kinds.into_iter().find(|(named, _)| is(*named)).map_or(H3StreamKind::Other, |(_, kind)| kind);
    H3StreamStep::Identified(kind, stream)
}

async fn read_control(
    mut stream: CatchDropPanic<RecvStream>,
    connection: Connection,
    settled: Option<oneshot::Sender<()>>,
) -> H3StreamStep {
    if let Err(H3Error { code, why }) = frames::read_settings(&mut stream).await {
        return H3StreamStep::Fault(close_with(&connection, code, why));
    }
    if let Some(settled) = settled {
        // Fails only if the waiting side was dropped.
        let _ = settled.send(());
    }
    let H3Error { code, why } = frames::read_control(&mut stream).await;
    H3StreamStep::Fault(close_with(&connection, code, why))
}

async fn read_qpack_encoder(mut stream: CatchDropPanic<RecvStream>, connection: Connection) -> H3StreamStep {
    let H3Error { code, why } = frames::read_qpack_encoder(&mut stream).await;
    H3StreamStep::Fault(close_with(&connection, code, why))
}

async fn read_qpack_decoder(mut stream: CatchDropPanic<RecvStream>, connection: Connection) -> H3StreamStep {
    let H3Error { code, why } = frames::read_qpack_decoder(&mut stream).await;
    H3StreamStep::Fault(close_with(&connection, code, why))
}

/// Closes the connection before the streams are dropped.
fn close_with(connection: &Connection, code: u32, why: &'static str) -> H3Error {
    let fault = H3Error { code, why };
    fault.close(connection);
    fault
}
