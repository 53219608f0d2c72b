//! A QUIC connection: one control stream for ordered messages, and one stream of the gateway for each attempt's text.
//! Streams have no mutual order; each text stream begins with the number of control messages that precede it
//! (`after`) and is held until those were received. Used through `transport`.
use crate::limits;
use crate::output::Lost;
use crate::transport::Received;
use crate::trust::TrustedRoots;
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

/// Bytes of the length prefix.
const LENGTH_BYTES: usize = 4;
/// Step in which the buffer of a message grows, in bytes.
const STEP_BYTES: usize = 16 * 1024;

type Accepting = Pin<Box<dyn Future<Output = Result<RecvStream, ConnectionError>> + Send>>;

/// A QUIC connection and the partly received messages on it.
pub(crate) struct QuicConnection {
    endpoint: Endpoint,
    connection: Connection,
    to: SendStream,
    control: MessageReader,
    /// Number of control messages received.
    control_count: u64,
    text_streams: Vec<AttemptTextStream>,
    accepting: Accepting,
    /// Number of acknowledgements received at the last liveness check.
    acks_seen: u64,
}

/// The stream with the text of one attempt.
struct AttemptTextStream {
    reader: MessageReader,
    /// Number of control messages that precede the stream; none until its header arrived.
    after: Option<u64>,
}

/// The header of a text stream.
#[derive(Deserialize)]
struct AttemptTextHeader {
    #[serde(default)]
    after: u64,
}

/// A reader that assembles messages: length prefix, then JSON.
struct MessageReader {
    from: RecvStream,
    length: [u8; LENGTH_BYTES],
    have: usize,
    body: Vec<u8>,
    read: usize,
}

/// The reason why nothing more is read from a stream.
enum StreamReadEnd {
    /// The stream has ended.
    End,
    /// The stream ended within a message, or its data is not a message.
    Broken,
    /// The connection is lost.
    Lost(ConnectionError),
}

fn lost(reason: impl ToString) -> Lost {
    Lost { code: None, reason: reason.to_string(), refused: false }
}

fn config(trust: &TrustedRoots) -> Result<ClientConfig, Lost> {
    let tls = QuicClientConfig::try_from(trust.quic_config()).map_err(lost)?;
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

// === impl QuicConnection ===

impl QuicConnection {
    /// Connects to `host:port`, trying each of its addresses.
    pub(crate) async fn dial(to: &str, trust: &TrustedRoots) -> Result<Self, Lost> {
        let host = to.rsplit_once(':').map_or(to, |(host, _)| host);
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let config = config(trust)?;
        let mut failed = lost("the host has no address");
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
        // Each connection has its own endpoint, so that a changed network does not prevent a new connection.
        let endpoint = Endpoint::client(any).map_err(lost)?;
        let connecting = endpoint.connect_with(config.clone(), address, name).map_err(lost)?;
        let connection = connecting.await.map_err(|error| lost_of(&error))?;
        let (to, from) = connection.open_bi().await.map_err(|error| lost_of(&error))?;
        let control = MessageReader::new(from);
        let accepting = accept(&connection);
        Ok(Self {
            endpoint,
            connection,
            to,
            control,
            control_count: 0,
            text_streams: Vec::new(),
            accepting,
            acks_seen: 0,
        })
    }

    /// Receives the next message; if `waits`, none of the control stream. Cancel-safe.
    pub(crate) async fn recv(&mut self, waits: bool) -> Received {
        poll_fn(|cx| self.poll(waits, cx)).await
    }

    fn poll(&mut self, waits: bool, cx: &mut Context<'_>) -> Poll<Received> {
        while let Poll::Ready(accepted) = self.accepting.as_mut().poll(cx) {
            match accepted {
                Ok(from) => self.text_streams.push(AttemptTextStream { reader: MessageReader::new(from), after: None }),
                // Data received before the end is still to be read.
                Err(_) => self.accepting = Box::pin(std::future::pending()),
            }
            if self.connection.close_reason().is_none() {
                self.accepting = accept(&self.connection);
            }
        }
        // Text streams come first: the end of a run is delivered after its text.
        let control_count = self.control_count;
        let mut n = 0;
        while n < self.text_streams.len() {
            match self.text_streams[n].poll(control_count, cx) {
                Poll::Ready(Ok(text)) => {
                    // The other streams get their turn.
                    let lane = self.text_streams.remove(n);
                    self.text_streams.push(lane);
                    return Poll::Ready(Received::UnorderedText(text));
                }
                Poll::Ready(Err(_)) => drop(self.text_streams.remove(n)),
                Poll::Pending => n += 1,
            }
        }
        if waits && self.connection.close_reason().is_none() {
            return Poll::Pending;
        }
        let received = match ready!(self.control.poll(cx)) {
            Ok(text) => {
                self.control_count += 1;
                Received::Text(text)
            }
            Err(StreamReadEnd::Lost(error)) => Received::Lost(lost_of(&error)),
            Err(StreamReadEnd::Broken) => Received::Lost(lost("the gateway sent an invalid message")),
            // The close reason has arrived or will arrive; it wakes the task that waits for a stream.
            Err(StreamReadEnd::End) => match self.connection.close_reason() {
                Some(error) => Received::Lost(lost_of(&error)),
                None => return Poll::Pending,
            },
        };
        Poll::Ready(received)
    }

    /// Writes a message.
    pub(crate) async fn send(&mut self, text: &str) -> Result<(), String> {
        let length = u32::try_from(text.len()).map_err(|error| error.to_string())?;
        let whole = [&length.to_be_bytes()[..], text.as_bytes()].concat();
        self.to.write_all(&whole).await.map_err(|error| error.to_string())
    }

    /// Returns whether the gateway has acknowledged anything since the last call.
    pub(crate) fn has_new_acks(&mut self) -> bool {
        let now = self.connection.stats().frame_rx.acks;
        std::mem::replace(&mut self.acks_seen, now) < now
    }

    /// Closes the connection without waiting.
    pub(crate) fn abort(&self) {
        self.connection.close(VarInt::from_u32(1000), b"");
    }

    /// Closes the connection after the sent messages are delivered.
    pub(crate) async fn close(mut self) {
        // The last request is delivered before the end.
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

fn lost_of(error: &ConnectionError) -> Lost {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason).into_owned();
            let reason = if reason.is_empty() { "the gateway closed the connection".to_owned() } else { reason };
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

// === impl AttemptTextStream ===

impl AttemptTextStream {
    fn poll(&mut self, control_count: u64, cx: &mut Context<'_>) -> Poll<Result<String, StreamReadEnd>> {
        if self.after.is_none() {
            let head = match ready!(self.reader.poll(cx)) {
                Ok(head) => head,
                Err(stop) => return Poll::Ready(Err(stop)),
            };
            let Ok(AttemptTextHeader { after }) = serde_json::from_str(&head) else {
                return Poll::Ready(Err(StreamReadEnd::Broken));
            };
            self.after = Some(after);
        }
        // The stream is polled again after a control message was received.
        if self.after.is_some_and(|after| after > control_count) { Poll::Pending } else { self.reader.poll(cx) }
    }
}

// === impl MessageReader ===

impl MessageReader {
    fn new(from: RecvStream) -> Self {
        Self { from, length: [0; LENGTH_BYTES], have: 0, body: Vec::new(), read: 0 }
    }

    /// Reads a whole message.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<String, StreamReadEnd>> {
        loop {
            let whole = u32::from_be_bytes(self.length) as usize;
            if self.have == LENGTH_BYTES && self.read == whole {
                (self.have, self.read) = (0, 0);
                let text = String::from_utf8(std::mem::take(&mut self.body));
                return Poll::Ready(text.map_err(|_| StreamReadEnd::Broken));
            }
            let buffer = if self.have < LENGTH_BYTES {
                &mut self.length[self.have..]
            } else if whole > limits::INCOMING_BYTES_MAX {
                return Poll::Ready(Err(StreamReadEnd::Broken));
            } else {
                if self.read == self.body.len() {
                    self.body.resize(whole.min(self.read + STEP_BYTES), 0);
                }
                &mut self.body[self.read..]
            };
            let count = match ready!(self.from.poll_read(cx, buffer)) {
                Ok(0) if self.have == 0 => return Poll::Ready(Err(StreamReadEnd::End)),
                Ok(0) | Err(ReadError::Reset(_)) => return Poll::Ready(Err(StreamReadEnd::Broken)),
                Ok(count) => count,
                Err(ReadError::ConnectionLost(error)) => return Poll::Ready(Err(StreamReadEnd::Lost(error))),
                Err(ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected) => {
                    return Poll::Ready(Err(StreamReadEnd::End));
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
