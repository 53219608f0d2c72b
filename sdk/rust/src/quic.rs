//! A connection of QUIC: one stream for what is in order, and one of the gateway's own for each attempt's text.
//!
//! Streams are in no order among each other. Each of the gateway's begins with how many messages of the control
//! stream come before it (`after`), and waits here until they were taken.
use crate::fx::Lost;
use crate::limits;
use crate::road::Heard;
use crate::trust::Trust;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, IdleTimeout, ReadError, RecvStream, SendStream,
    TransportConfig, VarInt,
};
use serde::Deserialize;
use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Bytes of a length.
const LENGTH_BYTES: usize = 4;
/// A message's room grows in steps of this.
const STEP_BYTES: usize = 16 * 1024;

type Accepting = Pin<Box<dyn Future<Output = Result<RecvStream, ConnectionError>> + Send>>;

/// A connection, and the messages that are under way on it.
pub(crate) struct Quic {
    endpoint: Endpoint,
    connection: Connection,
    to: SendStream,
    control: Reader,
    /// Messages of it that were taken.
    taken: u64,
    lanes: Vec<Lane>,
    accepting: Accepting,
    /// Acknowledgements that had come when it was last asked whether it lives.
    lived: u64,
}

/// The text of one attempt.
struct Lane {
    reader: Reader,
    /// Which messages come before it; none: its head is not here yet.
    after: Option<u64>,
}

/// What a lane begins with.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    after: u64,
}

/// Puts messages together: length, and JSON.
struct Reader {
    from: RecvStream,
    length: [u8; LENGTH_BYTES],
    have: usize,
    body: Vec<u8>,
    read: usize,
}

/// Why nothing more is read of a stream.
enum Stop {
    /// It has ended.
    End,
    /// It ends within a message, or what is in it is none.
    Broken,
    /// The connection is gone.
    Lost(ConnectionError),
}

fn lost(reason: impl ToString) -> Lost {
    Lost { code: None, reason: reason.to_string(), refused: false }
}

fn config(trust: &Trust) -> Result<ClientConfig, Lost> {
    let tls = QuicClientConfig::try_from(trust.quic()).map_err(lost)?;
    let mut transport = TransportConfig::default();
    let idle = u32::try_from(limits::IDLE_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(limits::STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(limits::STREAM_BYTES_MAX))
        .receive_window(VarInt::from_u32(limits::STREAMS_BYTES_MAX))
        .send_window(limits::SEND_BYTES_MAX)
        .datagram_receive_buffer_size(None);
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

// === impl Quic ===

impl Quic {
    /// Connects to `host:port`, trying each of its addresses.
    pub(crate) async fn dial(to: &str, trust: &Trust) -> Result<Self, Lost> {
        let host = to.rsplit_once(':').map_or(to, |(host, _)| host);
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let config = config(trust)?;
        let mut failed = lost("there is no such host");
        for address in tokio::net::lookup_host(to).await.map_err(lost)? {
            match Self::connect(address, name, &config).await {
                Ok(quic) => return Ok(quic),
                Err(why) => failed = why,
            }
        }
        Err(failed)
    }

    async fn connect(address: SocketAddr, name: &str, config: &ClientConfig) -> Result<Self, Lost> {
        let any = if address.is_ipv4() {
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
        } else {
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
        };
        // Of its own for each connection: a network that has changed is no obstacle then.
        let endpoint = Endpoint::client(any).map_err(lost)?;
        let connecting = endpoint.connect_with(config.clone(), address, name).map_err(lost)?;
        let connection = connecting.await.map_err(|error| gone(&error))?;
        let (to, from) = connection.open_bi().await.map_err(|error| gone(&error))?;
        let (control, accepting) = (Reader::new(from), accept(&connection));
        Ok(Self { endpoint, connection, to, control, taken: 0, lanes: Vec::new(), accepting, lived: 0 })
    }

    /// What comes next; of the control stream nothing, if it `waits`. Safe to drop and to ask again.
    pub(crate) async fn hear(&mut self, waits: bool) -> Heard {
        poll_fn(|cx| self.poll(waits, cx)).await
    }

    fn poll(&mut self, waits: bool, cx: &mut Context<'_>) -> Poll<Heard> {
        while let Poll::Ready(accepted) = self.accepting.as_mut().poll(cx) {
            match accepted {
                Ok(from) => self.lanes.push(Lane { reader: Reader::new(from), after: None }),
                // What has come before the end is still to be read.
                Err(_) => self.accepting = Box::pin(std::future::pending()),
            }
            if self.connection.close_reason().is_none() {
                self.accepting = accept(&self.connection);
            }
        }
        // Text first: the end of a run is told after it.
        let taken = self.taken;
        let mut n = 0;
        while n < self.lanes.len() {
            match self.lanes[n].poll(taken, cx) {
                Poll::Ready(Ok(text)) => {
                    // The others have their turn.
                    let lane = self.lanes.remove(n);
                    self.lanes.push(lane);
                    return Poll::Ready(Heard::Aside(text));
                }
                Poll::Ready(Err(_)) => drop(self.lanes.remove(n)),
                Poll::Pending => n += 1,
            }
        }
        if waits && self.connection.close_reason().is_none() {
            return Poll::Pending;
        }
        let heard = match ready!(self.control.poll(cx)) {
            Ok(text) => {
                self.taken += 1;
                Heard::Text(text)
            }
            Err(Stop::Lost(error)) => Heard::Lost(gone(&error)),
            Err(Stop::Broken) => Heard::Lost(lost("what the gateway says is no message")),
            // The reason is on its way, or here; whoever waits for a stream is woken by it.
            Err(Stop::End) => match self.connection.close_reason() {
                Some(error) => Heard::Lost(gone(&error)),
                None => return Poll::Pending,
            },
        };
        Poll::Ready(heard)
    }

    /// Writes a message.
    pub(crate) async fn feed(&mut self, text: &str) -> Result<(), String> {
        let length = u32::try_from(text.len()).map_err(|error| error.to_string())?;
        let whole = [&length.to_be_bytes()[..], text.as_bytes()].concat();
        self.to.write_all(&whole).await.map_err(|error| error.to_string())
    }

    /// Whether the other end has acknowledged anything since this was last asked.
    pub(crate) fn lives(&mut self) -> bool {
        let now = self.connection.stats().frame_rx.acks;
        std::mem::replace(&mut self.lived, now) < now
    }

    /// Says that it ends, and waits for nothing.
    pub(crate) fn leave(&self) {
        self.connection.close(VarInt::from_u32(1000), b"");
    }

    /// Says goodbye, and sees that it is on its way.
    pub(crate) async fn close(mut self) {
        // What was asked last is heard before the end.
        if self.to.finish().is_ok() {
            let _ = self.to.stopped().await;
        }
        self.connection.close(VarInt::from_u32(1000), b"");
        self.endpoint.wait_idle().await;
    }
}

fn accept(connection: &Connection) -> Accepting {
    let connection = connection.clone();
    Box::pin(async move { connection.accept_uni().await })
}

fn gone(error: &ConnectionError) -> Lost {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason).into_owned();
            let reason =
                if reason.is_empty() { "the gateway closed the connection".to_owned() } else { reason };
            Lost { code: u16::try_from(close.error_code.into_inner()).ok(), reason, refused: false }
        }
        ConnectionError::VersionMismatch
        | ConnectionError::TransportError(_)
        | ConnectionError::ConnectionClosed(_)
        | ConnectionError::Reset
        | ConnectionError::TimedOut
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted => lost(error),
    }
}

// === impl Lane ===

impl Lane {
    fn poll(&mut self, taken: u64, cx: &mut Context<'_>) -> Poll<Result<String, Stop>> {
        if self.after.is_none() {
            let head = match ready!(self.reader.poll(cx)) {
                Ok(head) => head,
                Err(stop) => return Poll::Ready(Err(stop)),
            };
            let Ok(Head { after }) = serde_json::from_str(&head) else {
                return Poll::Ready(Err(Stop::Broken));
            };
            self.after = Some(after);
        }
        // It is looked at again when a message of the control stream was taken.
        if self.after.is_some_and(|after| after > taken) { Poll::Pending } else { self.reader.poll(cx) }
    }
}

// === impl Reader ===

impl Reader {
    fn new(from: RecvStream) -> Self {
        Self { from, length: [0; LENGTH_BYTES], have: 0, body: Vec::new(), read: 0 }
    }

    /// A whole message.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<String, Stop>> {
        loop {
            let whole = u32::from_be_bytes(self.length) as usize;
            if self.have == LENGTH_BYTES && self.read == whole {
                (self.have, self.read) = (0, 0);
                let text = String::from_utf8(std::mem::take(&mut self.body));
                return Poll::Ready(text.map_err(|_| Stop::Broken));
            }
            let room = if self.have < LENGTH_BYTES {
                &mut self.length[self.have..]
            } else if whole > limits::INCOMING_BYTES_MAX {
                return Poll::Ready(Err(Stop::Broken));
            } else {
                if self.read == self.body.len() {
                    self.body.resize(whole.min(self.read + STEP_BYTES), 0);
                }
                &mut self.body[self.read..]
            };
            let count = match ready!(self.from.poll_read(cx, room)) {
                Ok(0) if self.have == 0 => return Poll::Ready(Err(Stop::End)),
                Ok(0) | Err(ReadError::Reset(_)) => return Poll::Ready(Err(Stop::Broken)),
                Ok(count) => count,
                Err(ReadError::ConnectionLost(error)) => return Poll::Ready(Err(Stop::Lost(error))),
                Err(ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected) => {
                    return Poll::Ready(Err(Stop::End));
                }
            };
            if self.have < LENGTH_BYTES {
                self.have += count;
            } else {
                self.read += count;
            }
        }
    }
}
