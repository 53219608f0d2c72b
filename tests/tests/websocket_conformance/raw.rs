//! A WebSocket client that can break every rule: frames are raw bytes, and nothing is checked on the way out.
//! Received frames are checked against what RFC 6455 lets a server send.
use serde_json::json;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;

/// FIN bit and opcode of each frame type.
pub(crate) const TEXT: u8 = 0x81;
pub(crate) const BINARY: u8 = 0x82;
pub(crate) const CLOSE: u8 = 0x88;
pub(crate) const PING: u8 = 0x89;
pub(crate) const PONG: u8 = 0x8a;
/// Last fragment of a message.
pub(crate) const LAST: u8 = 0x80;
/// Fragments that are not the last: the first of a text message, the first of a binary message, and any in the
/// middle.
pub(crate) const TEXT_BEGINS: u8 = 0x01;
pub(crate) const BINARY_BEGINS: u8 = 0x02;
pub(crate) const GOES_ON: u8 = 0x00;

/// Mask of RFC 6455's own example (§5.7).
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
/// Bytes; the largest frame that a node sends is far below this.
const SERVER_FRAME_MAX: u64 = 1024 * 1024;

/// Builds a valid frame with this first byte.
pub(crate) fn frame(first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    masked(first, payload, MASK)
}

/// Builds a valid frame with this mask.
pub(crate) fn masked(first: u8, payload: impl AsRef<[u8]>, mask: [u8; 4]) -> Vec<u8> {
    let payload = payload.as_ref();
    let length = payload.len() as u64;
    let width = if length < 126 { 0 } else { width_of(length) };
    [header(first, length, width, Some(mask)), blur(payload, mask)].concat()
}

/// Builds a frame whose length field has this many bytes: 2 or 8.
pub(crate) fn widened(first: u8, payload: impl AsRef<[u8]>, width: usize) -> Vec<u8> {
    let payload = payload.as_ref();
    [header(first, payload.len() as u64, width, Some(MASK)), blur(payload, MASK)].concat()
}

/// Builds a frame whose header claims another length than the payload has.
pub(crate) fn claiming(first: u8, length: u64, payload: impl AsRef<[u8]>) -> Vec<u8> {
    [header(first, length, width_of(length), Some(MASK)), blur(payload.as_ref(), MASK)].concat()
}

/// Builds an unmasked frame, which only a server may send.
pub(crate) fn unmasked(first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let payload = payload.as_ref();
    [header(first, payload.len() as u64, width_of(payload.len() as u64), None), payload.to_vec()].concat()
}

/// Builds a close frame.
pub(crate) fn close(code: u16, reason: impl AsRef<[u8]>) -> Vec<u8> {
    frame(CLOSE, [&code.to_be_bytes(), reason.as_ref()].concat())
}

fn width_of(length: u64) -> usize {
    match length {
        0..126 => 0,
        126..65_536 => 2,
        _ => 8,
    }
}

fn header(first: u8, length: u64, width: usize, mask: Option<[u8; 4]>) -> Vec<u8> {
    let short = match width {
        0 => u8::try_from(length).expect("it fits"),
        2 => 126,
        _ => 127,
    };
    let bit = if mask.is_some() { 0x80 } else { 0 };
    let mut bytes = vec![first, bit | short];
    bytes.extend(&length.to_be_bytes()[8 - width..]);
    bytes.extend(mask.into_iter().flatten());
    bytes
}

fn blur(payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect()
}

/// A frame or event from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Text(String),
    Ping,
    Pong(Vec<u8>),
    /// Code (`None` for an empty body) and reason.
    Close(Option<u16>, String),
    /// The server closed TCP cleanly.
    End,
    /// The connection was reset.
    Reset,
}

/// A connection after its handshake.
pub(crate) struct Raw {
    stream: TcpStream,
    read: Vec<u8>,
}

// === impl Raw ===

impl Raw {
    /// Connects and performs the handshake.
    pub(crate) async fn open(to: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(to).await.expect("a listener");
        stream.set_nodelay(true).expect("a socket");
        let head = format!(
            "GET /v1/connect HTTP/1.1\r\nhost: {to}\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("written");
        let mut raw = Self { stream, read: Vec::new() };
        let end = loop {
            if let Some(at) = raw.read.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(raw.more().await.is_none(), "no handshake: {:?}", raw.read);
        };
        let head: Vec<u8> = raw.read.drain(..end).collect();
        assert!(head.starts_with(b"HTTP/1.1 101 "), "no handshake: {:?}", String::from_utf8_lossy(&head));
        raw
    }

    /// Sends `hello`, and reads `welcome`.
    pub(crate) async fn greet(&mut self) {
        self.write(&frame(TEXT, json!({"type": "hello", "user_id": "odd"}).to_string())).await;
        let welcome = self.next().await;
        assert!(matches!(&welcome, Received::Text(text) if text.contains("\"welcome\"")), "{welcome:?}");
    }

    /// Writes bytes; an error is ignored, because the node may have closed the connection.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let _ = timeout(PATIENCE, self.stream.write_all(bytes)).await.expect("the node reads");
    }

    /// Returns the next frame, which must be one that a server may send, or the end.
    pub(crate) async fn next(&mut self) -> Received {
        loop {
            if let Some((got, used)) = take(&self.read) {
                self.read.drain(..used);
                return got;
            }
            if let Some(end) = self.more().await {
                assert!(self.read.is_empty(), "half a frame at the end: {:?}", self.read);
                return end;
            }
        }
    }

    /// Reads more bytes; returns the end of the connection if there are none.
    async fn more(&mut self) -> Option<Received> {
        let read = timeout(PATIENCE, self.stream.read_buf(&mut self.read)).await;
        match read.unwrap_or_else(|_| panic!("the node said nothing for {PATIENCE:?}")) {
            Ok(0) => Some(Received::End),
            Ok(_) => None,
            Err(_) => Some(Received::Reset),
        }
    }
}

/// Parses the first frame of the bytes read; `None` while it is incomplete.
fn take(read: &[u8]) -> Option<(Received, usize)> {
    let (&first, &second) = (read.first()?, read.get(1)?);
    assert_eq!(second & 0x80, 0, "§5.1: a server must not mask");
    let (begin, length) = match second {
        126 => (4, u64::from(u16::from_be_bytes(read.get(2..4)?.try_into().expect("two")))),
        127 => (10, u64::from_be_bytes(read.get(2..10)?.try_into().expect("eight"))),
        short => (2, u64::from(short)),
    };
    assert_eq!(begin, 2 + width_of(length), "§5.2: the fewest bytes for a length of {length}");
    assert!(length < SERVER_FRAME_MAX, "a frame of {length} bytes");
    let end = begin + usize::try_from(length).expect("small");
    let payload = read.get(begin..end)?.to_vec();
    assert!(first & 0x08 == 0 || length <= 125, "§5.5: a control frame of {length} bytes");
    let got = match first {
        TEXT => Received::Text(String::from_utf8(payload).expect("§5.6: text is UTF-8")),
        PING => Received::Ping,
        PONG => Received::Pong(payload),
        CLOSE => closing(&payload),
        other => panic!("§5.2: a node sends no frame that begins with {other:#04x}"),
    };
    Some((got, end))
}

fn closing(body: &[u8]) -> Received {
    if body.is_empty() {
        return Received::Close(None, String::new());
    }
    assert_ne!(body.len(), 1, "§5.5.1: a code has two bytes");
    let code = u16::from_be_bytes([body[0], body[1]]);
    let may_be_sent = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
    assert!(may_be_sent, "§7.4.1: {code} must not be in a frame");
    let reason = String::from_utf8(body[2..].to_vec()).expect("§5.5.1: a reason is UTF-8");
    Received::Close(Some(code), reason)
}
