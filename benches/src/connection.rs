//! One connection to a server, as lean as fifteen thousand of them must be: by WebSocket or by QUIC, as the URL says,
//! and nobody above has to know which.
//!
//! - `websocket`, `quic`: the two.
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

/// Saying goodbye is a courtesy.
const FAREWELL: Duration = Duration::from_secs(1);
/// Past so many connections their buffers count.
const CROWD: usize = 1000;
/// What a connection reads at a time: long answers come in pieces of 4 KiB and more.
const READ_BYTES: usize = 8 * 1024;
/// The same where there are many connections.
const READ_BYTES_IN_A_CROWD: usize = 1024;
/// A server sends no more in one message: a whole answer that was missed is one.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What nodes speak over a WebSocket; a bare server speaks nothing, and must not be offered it.
const PROTOCOL: &str = "turnway.v1";

/// A connection that belongs to a run, which counts what passes.
#[derive(Debug)]
pub struct Line {
    road: Road,
    run: Rc<Run>,
}

/// What carries it. On the heap: lines are handed around.
#[derive(Debug)]
enum Road {
    WebSocket(Box<WebSocket>),
    Quic(Box<Quic>),
}

// === impl Line ===

impl Line {
    /// The n-th connection to a bare server, which is ready for a message.
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

    /// The n-th connection, of this user, with these `subscribe` bodies to resume, welcomed.
    pub async fn hello(run: &Rc<Run>, n: usize, user: &str, resume: &str) -> Result<(Self, Limits), Lost> {
        Self::hello_at(run, run.target(), n, user, resume).await
    }

    /// The same to another node.
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

    /// The next message. Safe to drop and to ask again.
    pub async fn next(&mut self) -> Result<Utf8Bytes, Lost> {
        let text = match &mut self.road {
            Road::WebSocket(socket) => socket.next().await,
            Road::Quic(quic) => quic.next().await,
        }?;
        self.run.count(Count::MessagesIn, 1);
        self.run.count(Count::BytesIn, text.len() as u64);
        Ok(text)
    }

    /// The next message, if it is there already.
    pub fn next_now(&mut self) -> Option<Result<Utf8Bytes, Lost>> {
        self.next().now_or_never()
    }

    /// The next message; it must come soon.
    pub async fn answer(&mut self) -> Result<Utf8Bytes, Lost> {
        timeout(PATIENCE, self.next()).await.map_err(|_| Lost::Silent)?
    }

    /// Says something, once it is flushed.
    pub async fn feed(&mut self, text: String) -> Result<(), Lost> {
        self.run.count(Count::MessagesOut, 1);
        self.run.count(Count::BytesOut, text.len() as u64);
        match &mut self.road {
            Road::WebSocket(socket) => socket.feed(text).await,
            Road::Quic(quic) => quic.feed(&text),
        }
    }

    /// Sends what was said.
    pub async fn flush(&mut self) -> Result<(), Lost> {
        match &mut self.road {
            Road::WebSocket(socket) => socket.flush().await,
            Road::Quic(quic) => quic.flush().await,
        }
    }

    /// Says goodbye, and does not wait long for the answer.
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

/// By the road that the URL names.
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
