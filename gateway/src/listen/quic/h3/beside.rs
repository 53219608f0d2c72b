//! Reads HTTP/3's own unidirectional streams: settings and the QPACK tables (RFC 9114 §6.2). They only have to be
//! present and well-formed; every other unidirectional stream of a client is refused.
use super::fault::{self, Fault};
use super::frames;
use crate::listen::quic::fence::Kept;
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
pub(super) struct Beside {
    streams: BoxFuture<'static, Fault>,
    is_over: bool,
}

/// The outcome of a step on a stream.
enum Step {
    /// The stream has announced its type.
    Begun(Kind, Kept<RecvStream>),
    /// The stream ended before it announced its type.
    Nothing,
    Fault(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Control,
    Compressor,
    Decompressor,
    /// Only servers may open it.
    Push,
    Other,
}

// === impl Beside ===

impl Beside {
    /// Starts reading. Also returns a receiver that completes when the client's settings have arrived.
    pub(super) fn begin(connection: Connection) -> (Self, oneshot::Receiver<()>) {
        let (settled, is_settled) = oneshot::channel();
        (Self { streams: tend(connection, settled).boxed(), is_over: false }, is_settled)
    }
}

impl Future for Beside {
    type Output = Fault;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Fault> {
        if self.is_over {
            return Poll::Pending;
        }
        let polled = self.streams.poll_unpin(cx);
        self.is_over = polled.is_ready();
        polled
    }
}

async fn tend(connection: Connection, settled: oneshot::Sender<()>) -> Fault {
    let mut steps = FuturesUnordered::new();
    let (mut settled, mut kinds, mut unwanted) = (Some(settled), Vec::new(), 0);
    loop {
        let step = tokio::select! {
            accepted = connection.accept_uni() => match accepted {
                Ok(stream) => {
                    steps.push(begin(Kept::new(stream)).boxed());
                    continue;
                }
                // The code that reads the request reports the connection's end.
                Err(_) => return pending().await,
            },
            Some(step) = steps.next() => step,
        };
        let (kind, stream) = match step {
            Step::Begun(kind, stream) => (kind, stream),
            Step::Nothing => continue,
            Step::Fault(fault) => return fault,
        };
        if kind != Kind::Other && kinds.contains(&kind) {
            return ended(&connection, fault::STREAM_CREATION_ERROR, "a critical stream was opened twice");
        }
        kinds.push(kind);
        match kind {
            Kind::Control => steps.push(control(stream, connection.clone(), settled.take()).boxed()),
            Kind::Compressor => steps.push(compressor(stream, connection.clone()).boxed()),
            Kind::Decompressor => steps.push(decompressor(stream, connection.clone()).boxed()),
            Kind::Push => return ended(&connection, fault::STREAM_CREATION_ERROR, "clients must not open push streams"),
            Kind::Other => {
                kinds.pop();
                unwanted += 1;
                if unwanted > UNWANTED_MAX {
                    return ended(&connection, fault::EXCESSIVE_LOAD, "too many unknown streams");
                }
                refuse(stream);
            }
        }
    }
}

fn refuse(mut stream: Kept<RecvStream>) {
    // Fails only if the stream has already ended.
    let _ = stream.stop(VarInt::from_u32(fault::STREAM_CREATION_ERROR));
}

async fn begin(mut stream: Kept<RecvStream>) -> Step {
    let Ok(Some(kind)) = frames::number(&mut stream).await else { return Step::Nothing };
    let is = |named: StreamUni| named.0.into_inner() == kind;
    let kinds = [
        (StreamUni::CONTROL, Kind::Control),
        (StreamUni::QPACK_ENCODER, Kind::Compressor),
        (StreamUni::QPACK_DECODER, Kind::Decompressor),
        (StreamUni::PUSH, Kind::Push),
    ];
    let kind = kinds.into_iter().find(|(named, _)| is(*named)).map_or(Kind::Other, |(_, kind)| kind);
    Step::Begun(kind, stream)
}

async fn control(
    mut stream: Kept<RecvStream>,
    connection: Connection,
    settled: Option<oneshot::Sender<()>>,
) -> Step {
    if let Err(Fault { code, why }) = frames::settings(&mut stream).await {
        return Step::Fault(ended(&connection, code, why));
    }
    if let Some(settled) = settled {
        // Fails only if the waiting side was dropped.
        let _ = settled.send(());
    }
    let Fault { code, why } = frames::control(&mut stream).await;
    Step::Fault(ended(&connection, code, why))
}

async fn compressor(mut stream: Kept<RecvStream>, connection: Connection) -> Step {
    let Fault { code, why } = frames::compressor(&mut stream).await;
    Step::Fault(ended(&connection, code, why))
}

async fn decompressor(mut stream: Kept<RecvStream>, connection: Connection) -> Step {
    let Fault { code, why } = frames::decompressor(&mut stream).await;
    Step::Fault(ended(&connection, code, why))
}

/// Closes the connection before the streams are dropped.
fn ended(connection: &Connection, code: u32, why: &'static str) -> Fault {
    let fault = Fault { code, why };
    fault.end(connection);
    fault
}
