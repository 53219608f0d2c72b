//! A connection to a server, by WebSocket or by QUIC as the URL says, with the same interface. Lean, because a
//! load has fifteen thousand of them.
mod quic;
mod websocket;

use crate::record::{Count, Measure};
use crate::run::Run;
use crate::target::Target;
use crate::trouble::{Lost, PATIENCE};
use crate::wire::{self, Heard, Limits};
use futures_util::FutureExt;
use quic::Quic;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Utf8Bytes;
use websocket::WebSocket;

/// Timeout of an orderly close.
const FAREWELL: Duration = Duration::from_secs(1);
/// Number of connections from which the size of their buffers matters.
const CROWD: usize = 1000;
/// Read buffer of a connection: long answers come in pieces of 4 KiB and more.
const READ_BYTES: usize = 8 * 1024;
/// Read buffer if there are many connections.
const READ_BYTES_IN_A_CROWD: usize = 1024;
/// Maximum size of a message: an answer that was missed is sent as one message.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Subprotocol of a node's WebSocket. A bare server has none and must not be offered one.
const PROTOCOL: &str = "turnway.v1";

/// A connection of a run, which counts its traffic.
#[derive(Debug)]
pub struct Line {
    road: Road,
    run: Rc<Run>,
}

/// The transport of a connection, boxed because connections are moved often.
#[derive(Debug)]
enum Road {
    WebSocket(Box<WebSocket>),
    Quic(Box<Quic>),
}

// === impl Line ===

impl Line {
    /// Opens the n-th connection to a bare server, ready for a message.
    pub async fn open(run: &Rc<Run>, n: usize) -> Result<Self, Lost> {
        Self::open_for(run, run.target(), n, None).await
    }

    async fn open_for(
        run: &Rc<Run>,
        at: &Target,
        n: usize,
        protocol: Option<&'static str>,
    ) -> Result<Self, Lost> {
        let read = if run.load().connections > CROWD { READ_BYTES_IN_A_CROWD } else { READ_BYTES };
        let road = timeout(PATIENCE, dial(run, at, n, protocol, read)).await.map_err(|_| Lost::Silent)??;
        Ok(Self { road, run: Rc::clone(run) })
    }

    /// Opens the n-th connection as this user, with `subscribe` bodies to resume, and waits for `welcome`.
    pub async fn hello(run: &Rc<Run>, n: usize, user: &str, resume: &str) -> Result<(Self, Limits), Lost> {
        Self::hello_at(run, run.target(), n, user, resume).await
    }

    /// Opens such a connection to another node.
    pub async fn hello_at(
        run: &Rc<Run>,
        at: &Target,
        n: usize,
        user: &str,
        resume: &str,
    ) -> Result<(Self, Limits), Lost> {
        let since = Instant::now();
        let mut line = Self::open_for(run, at, n, Some(PROTOCOL)).await?;
        line.feed(wire::hello(user, run.api_key(), resume)).await?;
        line.flush().await?;
        let text = line.answer().await?;
        let heard = Heard::parse(&text).unwrap_or_default();
        let limits = heard.limits.filter(|_| heard.kind == "welcome");
        let limits = limits.ok_or_else(|| Lost::Denied(heard.why()))?;
        run.took(Measure::Connect, since.elapsed());
        Ok((line, limits))
    }

    /// Returns the next message. Cancel safe.
    pub async fn next(&mut self) -> Result<Utf8Bytes, Lost> {
        let text = match &mut self.road {
            Road::WebSocket(socket) => socket.next().await,
            Road::Quic(quic) => quic.next().await,
        }?;
        self.run.count(Count::MessagesIn, 1);
        self.run.count(Count::BytesIn, text.len() as u64);
        Ok(text)
    }

    /// Returns the next message if it has already arrived.
    pub fn next_now(&mut self) -> Option<Result<Utf8Bytes, Lost>> {
        self.next().now_or_never()
    }

    /// Returns the next message, or fails after [`PATIENCE`].
    pub async fn answer(&mut self) -> Result<Utf8Bytes, Lost> {
        timeout(PATIENCE, self.next()).await.map_err(|_| Lost::Silent)?
    }

    /// Queues a message until the next flush.
    pub async fn feed(&mut self, text: String) -> Result<(), Lost> {
        self.run.count(Count::MessagesOut, 1);
        self.run.count(Count::BytesOut, text.len() as u64);
        match &mut self.road {
            Road::WebSocket(socket) => socket.feed(text).await,
            Road::Quic(quic) => quic.feed(&text),
        }
    }

    /// Sends all queued messages.
    pub async fn flush(&mut self) -> Result<(), Lost> {
        match &mut self.road {
            Road::WebSocket(socket) => socket.flush().await,
            Road::Quic(quic) => quic.flush().await,
        }
    }

    /// Closes the connection in order, and waits only briefly for the server.
    pub async fn close(self) {
        match self.road {
            Road::WebSocket(mut socket) => _ = timeout(FAREWELL, socket.close()).await,
            Road::Quic(mut quic) => {
                let _ = timeout(FAREWELL, quic.take_leave()).await;
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
) -> Result<Road, Lost> {
    let Some(name) = at.quic_name() else {
        return Ok(Road::WebSocket(Box::new(WebSocket::open(at, n, protocol, read).await?)));
    };
    let connecting = run.udp().connect(at.address, name, at.source(n));
    let connecting = connecting.map_err(|why| Lost::Unreachable(format!("{}: {why}", at.url)))?;
    Ok(Road::Quic(Box::new(Quic::open(connecting, &at.url).await?)))
}
