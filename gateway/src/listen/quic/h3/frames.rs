//! Reads HTTP/3 frames (RFC 9114 §7) and the capsules in them (RFC 9297 §3), one at a time. Buffers grow with the bytes
//! that arrive, so that an announced but unsent frame costs no memory.
use super::error::{self, H3Error, H3Refusal};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};
use web_transport_proto::{Capsule, ConnectRequest, Frame, Setting, Settings, StreamUni, VarInt};

/// Maximum bytes of a request's fields, both encoded and as counted by RFC 9114 §4.2.2 (S-10).
pub const FIELDS_BYTES_MAX: u64 = 16 * 1024;
/// Maximum bytes of settings, which are a few numbers.
const SETTINGS_BYTES_MAX: u64 = 1024;
/// Maximum bytes of the capsule that closes a session: its code and a reason (draft-ietf-webtrans-http3 §5).
const CLOSE_CAPSULE_BYTES_MAX: u64 = 4 + 1024;
/// Type of the capsule that closes a session.
const CLOSE_SESSION: u64 = 0x2843;
/// Skipped bytes are read in steps of this size.
const SKIP_BYTES: usize = 64;
/// Frame types of HTTP/2 that HTTP/3 forbids (RFC 9114 §7.2.8), and `PUSH_PROMISE`, which only servers send.
const FORBIDDEN_FRAMES: [u64; 5] = [0x02, 0x05, 0x06, 0x08, 0x09];
/// Settings of HTTP/2 that HTTP/3 forbids (RFC 9114 §7.2.4.1).
const FORBIDDEN_SETTINGS: [u32; 4] = [0x02, 0x03, 0x04, 0x05];
const CANCEL_PUSH: u64 = 0x03;
const GOAWAY: u64 = 0x07;
const MAX_PUSH_ID: u64 = 0x0d;
const DATA: u64 = Frame::DATA.0.into_inner();
const HEADERS: u64 = Frame::HEADERS.0.into_inner();
const SETTINGS: u64 = Frame::SETTINGS.0.into_inner();
/// A stream of a session begins with this number, in the place of a request's first frame type.
const WEBTRANSPORT_STREAM: u64 = Frame::WEBTRANSPORT.0.into_inner();

/// The reason why nothing more is read of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum H3ReadError {
    /// The stream ended within a frame or capsule.
    Truncated,
    /// The stream was reset, or the connection is gone.
    Reset,
}

/// The header of a frame or capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct H3FrameHeader {
    kind: u64,
    length: u64,
}

/// The way in which a client ends its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionClose {
    /// Closed with this code.
    Code(u32),
    /// The stream or connection ended without a close.
    Lost,
}

// === impl H3ReadError ===

impl From<io::Error> for H3ReadError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Truncated } else { Self::Reset }
    }
}

impl H3ReadError {
    fn into_refusal(self) -> H3Refusal {
        match self {
            Self::Truncated => H3Error { code: error::FRAME_ERROR, why: "a request ends within a frame" }.into(),
            Self::Reset => H3Refusal::Gone,
        }
    }
}

/// Reads a variable-length integer, or `None` where the stream ends before it.
pub async fn read_varint<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<u64>, H3ReadError> {
    let mut bytes = [0; VarInt::MAX_SIZE];
    if stream.read(&mut bytes[..1]).await? == 0 {
        return Ok(None);
    }
    let size = 1 << (bytes[0] >> 6);
    stream.read_exact(&mut bytes[1..size]).await?;
    let number = VarInt::decode(&mut &bytes[..size]).map_err(|_| H3ReadError::Truncated)?;
    Ok(Some(number.into_inner()))
}

async fn read_header<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<H3FrameHeader>, H3ReadError> {
    let Some(kind) = read_varint(stream).await? else { return Ok(None) };
    let length = read_varint(stream).await?.ok_or(H3ReadError::Truncated)?;
    Ok(Some(H3FrameHeader { kind, length }))
}

/// Reads a whole frame as encoded; `before` is put in front of it.
async fn read_frame<S: AsyncRead + Unpin>(
    stream: &mut S,
    head: H3FrameHeader,
    before: &[u8],
) -> Result<Vec<u8>, H3ReadError> {
    let mut bytes = before.to_vec();
    for number in [head.kind, head.length] {
        VarInt::from_u64(number).map_err(|_| H3ReadError::Truncated)?.encode(&mut bytes);
    }
    let read = stream.take(head.length).read_to_end(&mut bytes).await?;
    if read as u64 == head.length { Ok(bytes) } else { Err(H3ReadError::Truncated) }
}

/// Reads and discards bytes.
async fn skip<S: AsyncRead + Unpin>(stream: &mut S, mut length: u64) -> Result<(), H3ReadError> {
    let mut bytes = [0; SKIP_BYTES];
    while length > 0 {
        let step = usize::try_from(length).unwrap_or(SKIP_BYTES).min(SKIP_BYTES);
        match stream.read(&mut bytes[..step]).await? {
            0 => return Err(H3ReadError::Truncated),
            read => length -= read as u64,
        }
    }
    Ok(())
}

/// Reads a request that could become a session.
pub async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> Result<ConnectRequest, H3Refusal> {
    loop {
        let Some(head) = read_header(stream).await.map_err(H3ReadError::into_refusal)? else {
            return Err(H3Error { code: error::REQUEST_INCOMPLETE, why: "a request without headers" }.into());
        };
        match head.kind {
            HEADERS if head.length > FIELDS_BYTES_MAX => {
                return Err(H3Refusal::Status(http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
            }
            HEADERS => {
                let bytes = read_frame(stream, head, b"").await.map_err(H3ReadError::into_refusal)?;
                return Ok(ConnectRequest::decode(&mut &bytes[..])?);
            }
            WEBTRANSPORT_STREAM => {
                let why = "a WebTransport stream before its session";
                return Err(H3Error { code: error::FRAME_UNEXPECTED, why }.into());
            }
            DATA | SETTINGS | CANCEL_PUSH | GOAWAY | MAX_PUSH_ID => return Err(unexpected_frame().into()),
            kind if FORBIDDEN_FRAMES.contains(&kind) => return Err(unexpected_frame().into()),
            _ => skip(stream, head.length).await.map_err(H3ReadError::into_refusal)?,
        }
    }
}

fn unexpected_frame() -> H3Error {
    H3Error { code: error::FRAME_UNEXPECTED, why: "unexpected frame" }
}

/// Reads the beginning of a control stream, which must be the settings.
pub async fn read_settings<S: AsyncRead + Unpin>(stream: &mut S) -> Result<(), H3Error> {
    let closed = |_| H3Error { code: error::CLOSED_CRITICAL_STREAM, why: "the control stream was closed" };
    let head = read_header(stream).await.map_err(closed)?.ok_or(H3ReadError::Truncated).map_err(closed)?;
    if head.kind != SETTINGS {
        return Err(H3Error { code: error::MISSING_SETTINGS, why: "the control stream does not begin with SETTINGS" });
    }
    if head.length > SETTINGS_BYTES_MAX {
        return Err(H3Error { code: error::EXCESSIVE_LOAD, why: "too many settings" });
    }
    let mut kind = Vec::new();
    StreamUni::CONTROL.encode(&mut kind);
    let bytes = read_frame(stream, head, &kind).await.map_err(closed)?;
    let no_settings = H3Error { code: error::SETTINGS_ERROR, why: "forbidden setting" };
    let settings = Settings::decode(&mut &bytes[..])
        .map_err(|_| H3Error { code: error::FRAME_ERROR, why: "malformed settings" })?;
    let is_never_set = |id: u32| settings.contains_key(&Setting(VarInt::from_u32(id)));
    if FORBIDDEN_SETTINGS.into_iter().any(is_never_set) { Err(no_settings) } else { Ok(()) }
}

/// Reads the rest of a control stream, whose frames are ignored, until it is a protocol error.
pub async fn read_control<S: AsyncRead + Unpin>(stream: &mut S) -> H3Error {
    let closed = H3Error { code: error::CLOSED_CRITICAL_STREAM, why: "the control stream was closed" };
    loop {
        let Ok(Some(head)) = read_header(stream).await else { return closed };
        match head.kind {
            DATA | HEADERS | SETTINGS => return unexpected_frame(),
            kind if FORBIDDEN_FRAMES.contains(&kind) => return unexpected_frame(),
            CANCEL_PUSH => return H3Error { code: error::ID_ERROR, why: "CANCEL_PUSH without a push" },
            GOAWAY | MAX_PUSH_ID if head.length > VarInt::MAX_SIZE as u64 => {
                return H3Error { code: error::FRAME_ERROR, why: "the payload is longer than an integer" };
            }
            _ if skip(stream, head.length).await.is_err() => return closed,
            _ => {}
        }
    }
}

/// Reads the client's QPACK encoder stream. Our table has no capacity, so only setting its capacity to 0 is allowed.
pub async fn read_qpack_encoder<S: AsyncRead + Unpin>(stream: &mut S) -> H3Error {
    const SET_TO_NOTHING: u8 = 0b0010_0000;
    loop {
        match stream.read_u8().await {
            Ok(SET_TO_NOTHING) => {}
            Ok(_) => {
                return H3Error { code: error::QPACK_ENCODER_ERROR, why: "the QPACK table has no capacity" };
            }
            Err(_) => {
                return H3Error { code: error::CLOSED_CRITICAL_STREAM, why: "a QPACK stream was closed" };
            }
        }
    }
}

/// Reads and discards the client's QPACK decoder stream, since we use no table.
pub async fn read_qpack_decoder<S: AsyncRead + Unpin>(stream: &mut S) -> H3Error {
    while skip(stream, u64::MAX).await.is_ok() {}
    H3Error { code: error::CLOSED_CRITICAL_STREAM, why: "a QPACK stream was closed" }
}

/// Reads the capsules behind a request, until its session ends.
pub async fn read_capsules<S: AsyncRead + Unpin>(stream: S) -> Result<SessionClose, H3Error> {
    let mut data = H3DataReader { stream, remaining: 0, error: None };
    match data.read_close().await {
        Ok(leave) => Ok(leave),
        Err(cut) => match (data.error, cut) {
            (Some(fault), _) => Err(fault),
            (None, H3ReadError::Truncated) => Err(H3Error { code: error::MESSAGE_ERROR, why: "truncated capsule" }),
            (None, H3ReadError::Reset) => Ok(SessionClose::Lost),
        },
    }
}

/// A reader of the `DATA` frames of a request, regardless of how its bytes are split into frames.
struct H3DataReader<S> {
    stream: S,
    /// Bytes that are missing of the frame at hand.
    remaining: u64,
    error: Option<H3Error>,
}

// === impl H3DataReader ===

impl<S: AsyncRead + Unpin> H3DataReader<S> {
    /// Reads until the session is closed, and ignores other capsules.
    async fn read_close(&mut self) -> Result<SessionClose, H3ReadError> {
        while let Some(first) = self.next_byte().await? {
            let head = H3FrameHeader {
                kind: self.read_varint(first).await?,
                length: {
                    let first = self.next_byte().await?.ok_or(H3ReadError::Truncated)?;
                    self.read_varint(first).await?
                },
            };
            let is_last = head.kind == CLOSE_SESSION;
            if is_last && head.length > CLOSE_CAPSULE_BYTES_MAX {
                return Err(self.fail(error::MESSAGE_ERROR, "the close capsule is too long"));
            }
            let mut bytes = Vec::new();
            for _ in 0..head.length {
                let byte = self.next_byte().await?.ok_or(H3ReadError::Truncated)?;
                if is_last {
                    bytes.push(byte);
                }
            }
            if is_last {
                return self.parse_close(&bytes);
            }
        }
        // A stream that ends without a close capsule closes with code 0 (draft-ietf-webtrans-http3 §5).
        Ok(SessionClose::Code(0))
    }

    fn parse_close(&mut self, bytes: &[u8]) -> Result<SessionClose, H3ReadError> {
        let mut capsule = Vec::new();
        for number in [CLOSE_SESSION, bytes.len() as u64] {
            VarInt::from_u64(number).map_err(|_| H3ReadError::Truncated)?.encode(&mut capsule);
        }
        capsule.extend_from_slice(bytes);
        match Capsule::decode(&mut &capsule[..]) {
            Ok(Capsule::CloseWebTransportSession { code, .. }) => Ok(SessionClose::Code(code)),
            Ok(Capsule::Grease { .. } | Capsule::Unknown { .. }) | Err(_) => {
                Err(self.fail(error::MESSAGE_ERROR, "malformed close capsule"))
            }
        }
    }

    fn fail(&mut self, code: u32, why: &'static str) -> H3ReadError {
        self.error = Some(H3Error { code, why });
        H3ReadError::Truncated
    }

    async fn read_varint(&mut self, first: u8) -> Result<u64, H3ReadError> {
        let mut bytes = [first; VarInt::MAX_SIZE];
        let size = 1 << (first >> 6);
        for byte in &mut bytes[1..size] {
            *byte = self.next_byte().await?.ok_or(H3ReadError::Truncated)?;
        }
        VarInt::decode(&mut &bytes[..size]).map(VarInt::into_inner).map_err(|_| H3ReadError::Truncated)
    }

    /// Reads the next byte of data, or `None` where the stream ends between two frames.
    async fn next_byte(&mut self) -> Result<Option<u8>, H3ReadError> {
        while self.remaining == 0 {
            let Some(head) = read_header(&mut self.stream).await? else { return Ok(None) };
            match head.kind {
                DATA => self.remaining = head.length,
                HEADERS | SETTINGS | CANCEL_PUSH | GOAWAY | MAX_PUSH_ID | WEBTRANSPORT_STREAM => {
                    return Err(self.fail(error::FRAME_UNEXPECTED, "unexpected frame"));
                }
                kind if FORBIDDEN_FRAMES.contains(&kind) => {
                    return Err(self.fail(error::FRAME_UNEXPECTED, "unexpected frame"));
                }
                _ => skip(&mut self.stream, head.length).await?,
            }
        }
        self.remaining -= 1;
        Ok(Some(self.stream.read_u8().await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind, u8::try_from(body.len()).expect("short")][..], body].concat()
    }

    fn left(stream: &[u8]) -> Result<SessionClose, H3Error> {
        read_capsules(stream).now_or_never().expect("all is there")
    }

    #[test]
    fn close_capsule_is_read_from_any_fragmentation() {
        let words = [&[0x68, 0x43, 7][..], &4401_u32.to_be_bytes(), b"bye"].concat();
        for step in 1..=words.len() {
            // An irrelevant capsule, irrelevant frames, and the close capsule in pieces.
            let mut stream = frame(0, &[0x17, 2, b'?', b'?']);
            for piece in words.chunks(step) {
                stream.extend(frame(0x21, b"of no concern"));
                stream.extend(frame(0, piece));
            }
            assert_eq!(left(&stream), Ok(SessionClose::Code(4401)), "in steps of {step}");
        }
        assert_eq!(left(b""), Ok(SessionClose::Code(0)));
    }

    #[test]
    fn invalid_capsule_is_an_error() {
        let long = [&[0x68, 0x43, 0x44, 0x05][..], &[b'x'; 1029]].concat();
        let long = [&[0x00, 0x44, 0x09][..], &long].concat();
        for (stream, code) in [
            (frame(0, &[0x68, 0x43]), error::MESSAGE_ERROR),
            (frame(0, &[0x68, 0x43, 2, 0, 0]), error::MESSAGE_ERROR),
            (frame(0, &[0x68, 0x43, 5, 0, 0, 0, 0, 0xff]), error::MESSAGE_ERROR),
            (long, error::MESSAGE_ERROR),
            (frame(1, b"trailers"), error::FRAME_UNEXPECTED),
            (frame(4, b""), error::FRAME_UNEXPECTED),
            (frame(2, b""), error::FRAME_UNEXPECTED),
        ] {
            assert_eq!(left(&stream).map_err(|fault| fault.code), Err(code), "{stream:x?}");
        }
    }

    /// Covers: S-04, S-10.
    #[test]
    fn oversized_h3_frame_is_refused_by_its_announced_length() {
        // Announces 16,385 bytes of fields and sends none.
        let announced = [0x01, 0x80, 0x00, 0x40, 0x01];
        let refused = read_request(&mut &announced[..]).now_or_never().expect("all is there").map(|_| ());
        assert_eq!(refused, Err(H3Refusal::Status(http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)));
        let settings = read_settings(&mut &[0x04, 0x44, 0x01][..]).now_or_never().expect("all is there");
        assert_eq!(settings.map_err(|fault| fault.code), Err(error::EXCESSIVE_LOAD));
    }
}
