//! A connection to a server, by WebSocket or by QUIC as the URL says, with the same interface. Lean, because a
//! load has fifteen thousand of them.
mod quic;
mod websocket;

use crate::error::{ANSWER_TIMEOUT, ConnectionFailure};
use crate::record::{Count, Measure};
use crate::run::Run;
use crate::target::Target;
use crate::wire::{self, Limits, ServerMessage};
use futures_util::FutureExt;
use quic::Quic;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Utf8Bytes;
use websocket::WebSocket;

/// Timeout of an orderly close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of connections from which the size of their buffers matters.
const MANY_CONNECTIONS: usize = 1000;
/// Read buffer of a connection: long answers come in pieces of 4 KiB and more.
const READ_BYTES: usize = 8 * 1024;
/// Read buffer if there are many connections.
const READ_BYTES_IF_MANY: usize = 1024;
/// Maximum size of a message: an answer that was missed is sent as one message.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Subprotocol of a node's WebSocket. A bare server has none and must not be offered one.
const PROTOCOL: &str = "turnway.v1";

/// A connection of a run, which counts its traffic.
#[derive(Debug)]
pub struct ServerConnection {
    transport: Transport,
    run: Rc<Run>,
}

/// The transport of a connection, boxed because connections are moved often.
#[derive(Debug)]
enum Transport {
    WebSocket(Box<WebSocket>),
    Quic(Box<Quic>),
}

// === impl ServerConnection ===

impl ServerConnection {
    /// Opens the n-th connection to a bare server, ready for a message.
    pub async fn connect_bare(run: &Rc<Run>, n: usize) -> Result<Self, ConnectionFailure> {
        Self::connect(run, run.target(), n, None).await
    }

    async fn connect(
        run: &Rc<Run>,
        at: &Target,
        n: usize,
        protocol: Option<&'static str>,
    ) -> Result<Self, ConnectionFailure> {
        let read = if run.load().connections > MANY_CONNECTIONS { READ_BYTES_IF_MANY } else { READ_BYTES };
        let road = timeout(ANSWER_TIMEOUT, dial(run, at, n, protocol, read))
            .await
            .map_err(|_| ConnectionFailure::TimedOut)??;
        Ok(Self { transport: road, run: Rc::clone(run) })
    }

    /// Opens the n-th connection as this user, with `subscribe` bodies to resume, and waits for `welcome`.
    pub async fn connect_as(
        run: &Rc<Run>,
        n: usize,
        user: &str,
        resume: &str,
    ) -> Result<(Self, Limits), ConnectionFailure> {
        Self::connect_as_at(run, run.target(), n, user, resume).await
    }

    /// Opens such a connection to another node.
    pub async fn connect_as_at(
        run: &Rc<Run>,
        at: &Target,
        n: usize,
        user: &str,
        resume: &str,
    ) -> Result<(Self, Limits), ConnectionFailure> {
        let since = Instant::now();
        let mut line = Self::connect(run, at, n, Some(PROTOCOL)).await?;
        line.queue(wire::hello(user, run.api_key(), resume)).await?;
        line.flush().await?;
        let text = line.next_in_time().await?;
        let message = ServerMessage::parse(&text).unwrap_or_default();
        let limits = message.limits.filter(|_| message.kind == "welcome");
        let limits = limits.ok_or_else(|| ConnectionFailure::Denied(message.error_text()))?;
        run.record_duration(Measure::Connect, since.elapsed());
        Ok((line, limits))
    }

    /// Returns the next message. Cancel safe.
    pub async fn next(&mut self) -> Result<Utf8Bytes, ConnectionFailure> {
        let text = match &mut self.transport {
            Transport::WebSocket(socket) => socket.next().await,
            Transport::Quic(quic) => quic.next().await,
        }?;
        self.run.count(Count::MessagesIn, 1);
        self.run.count(Count::BytesIn, text.len() as u64);
        Ok(text)
    }

    /// Returns the next message if it has already arrived.
    pub fn next_now(&mut self) -> Option<Result<Utf8Bytes, ConnectionFailure>> {
        self.next().now_or_never()
    }

    /// Returns the next message, or fails after [`ANSWER_TIMEOUT`].
    pub async fn next_in_time(&mut self) -> Result<Utf8Bytes, ConnectionFailure> {
        timeout(ANSWER_TIMEOUT, self.next()).await.map_err(|_| ConnectionFailure::TimedOut)?
    }

    /// Queues a message until the next flush.
    pub async fn queue(&mut self, text: String) -> Result<(), ConnectionFailure> {
        self.run.count(Count::MessagesOut, 1);
        self.run.count(Count::BytesOut, text.len() as u64);
        match &mut self.transport {
            Transport::WebSocket(socket) => socket.queue(text).await,
            Transport::Quic(quic) => quic.queue(&text),
        }
    }

    /// Sends all queued messages.
    pub async fn flush(&mut self) -> Result<(), ConnectionFailure> {
        match &mut self.transport {
            Transport::WebSocket(socket) => socket.flush().await,
            Transport::Quic(quic) => quic.flush().await,
        }
    }

    /// Closes the connection in order, and waits only briefly for the server.
    pub async fn close(self) {
        match self.transport {
            Transport::WebSocket(mut socket) => _ = timeout(CLOSE_TIMEOUT, socket.close()).await,
            Transport::Quic(mut quic) => {
                let _ = timeout(CLOSE_TIMEOUT, quic.finish()).await;
                quic.close().await;
            }
        }
    }
}

/// Connects by the transport that the URL names.
async fn dial(
    run: &Run,
    at: &Target,
    n: usize,
    protocol: Option<&'static str>,
    read: usize,
) -> Result<Transport, ConnectionFailure> {
    let Some(name) = at.quic_name() else {
        return Ok(Transport::WebSocket(Box::new(WebSocket::open(at, n, protocol, read).await?)));
    };
    let connecting = run.udp().connect(at.address, name, at.source(n));
    let connecting = connecting.map_err(|why| ConnectionFailure::Unreachable(format!("{}: {why}", at.url)))?;
    Ok(Transport::Quic(Box::new(Quic::open(connecting, &at.url).await?)))
}
