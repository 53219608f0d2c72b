//! Reads HTTP/3 frames (RFC 9114 §7) and the capsules in them (RFC 9297 §3), one at a time. Buffers grow with the bytes
//! that arrive, so that an announced but unsent frame costs no memory.
use super::fault::{self, Fault, Refusal};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};
use web_transport_proto::{Capsule, ConnectRequest, Frame, Setting, Settings, StreamUni, VarInt};

/// Maximum bytes of a request's fields, both encoded and as counted by RFC 9114 §4.2.2 (S-10).
pub const FIELDS_BYTES_MAX: u64 = 16 * 1024;
/// Maximum bytes of settings, which are a few numbers.
const SETTINGS_BYTES_MAX: u64 = 1024;
/// Maximum bytes of the capsule that closes a session: its code and a reason (draft-ietf-webtrans-http3 §5).
const LAST_WORDS_BYTES_MAX: u64 = 4 + 1024;
/// Type of the capsule that closes a session.
const CLOSE_SESSION: u64 = 0x2843;
/// Skipped bytes are read in steps of this size.
const STEP_BYTES: usize = 64;
/// Frame types of HTTP/2 that HTTP/3 forbids (RFC 9114 §7.2.8), and `PUSH_PROMISE`, which only servers send.
const NEVER: [u64; 5] = [0x02, 0x05, 0x06, 0x08, 0x09];
/// Settings of HTTP/2 that HTTP/3 forbids (RFC 9114 §7.2.4.1).
const NEVER_SET: [u32; 4] = [0x02, 0x03, 0x04, 0x05];
const CANCEL_PUSH: u64 = 0x03;
const GOAWAY: u64 = 0x07;
const MAX_PUSH_ID: u64 = 0x0d;
const DATA: u64 = Frame::DATA.0.into_inner();
const HEADERS: u64 = Frame::HEADERS.0.into_inner();
const SETTINGS: u64 = Frame::SETTINGS.0.into_inner();
/// A stream of a session begins with this number, in the place of a request's first frame type.
const OF_SESSION: u64 = Frame::WEBTRANSPORT.0.into_inner();

/// The reason why nothing more is read of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The stream ended within a frame or capsule.
    Short,
    /// The stream was reset, or the connection is gone.
    Reset,
}

/// The header of a frame or capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    kind: u64,
    length: u64,
}

/// The way in which a client ends its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Closed with this code.
    Code(u32),
    /// The stream or connection ended without a close.
    Lost,
}

// === impl Cut ===

impl From<io::Error> for Cut {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Short } else { Self::Reset }
    }
}

impl Cut {
    fn of_request(self) -> Refusal {
        match self {
            Self::Short => Fault { code: fault::FRAME_ERROR, why: "a request ends within a frame" }.into(),
            Self::Reset => Refusal::Gone,
        }
    }
}

/// Reads a variable-length integer, or `None` where the stream ends before it.
pub async fn number<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<u64>, Cut> {
    let mut bytes = [0; VarInt::MAX_SIZE];
    if stream.read(&mut bytes[..1]).await? == 0 {
        return Ok(None);
    }
    let size = 1 << (bytes[0] >> 6);
    stream.read_exact(&mut bytes[1..size]).await?;
    let number = VarInt::decode(&mut &bytes[..size]).map_err(|_| Cut::Short)?;
    Ok(Some(number.into_inner()))
}

async fn head<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<Head>, Cut> {
    let Some(kind) = number(stream).await? else { return Ok(None) };
    let length = number(stream).await?.ok_or(Cut::Short)?;
    Ok(Some(Head { kind, length }))
}

/// Reads a whole frame as encoded; `before` is put in front of it.
async fn whole<S: AsyncRead + Unpin>(stream: &mut S, head: Head, before: &[u8]) -> Result<Vec<u8>, Cut> {
    let mut bytes = before.to_vec();
    for number in [head.kind, head.length] {
        VarInt::from_u64(number).map_err(|_| Cut::Short)?.encode(&mut bytes);
    }
    let read = stream.take(head.length).read_to_end(&mut bytes).await?;
    if read as u64 == head.length { Ok(bytes) } else { Err(Cut::Short) }
}

/// Reads and discards bytes.
async fn skip<S: AsyncRead + Unpin>(stream: &mut S, mut length: u64) -> Result<(), Cut> {
    let mut bytes = [0; STEP_BYTES];
    while length > 0 {
        let step = usize::try_from(length).unwrap_or(STEP_BYTES).min(STEP_BYTES);
        match stream.read(&mut bytes[..step]).await? {
            0 => return Err(Cut::Short),
            read => length -= read as u64,
        }
    }
    Ok(())
}

/// Reads a request that could become a session.
pub async fn request<S: AsyncRead + Unpin>(stream: &mut S) -> Result<ConnectRequest, Refusal> {
    loop {
        let Some(head) = head(stream).await.map_err(Cut::of_request)? else {
            return Err(Fault { code: fault::REQUEST_INCOMPLETE, why: "a request without headers" }.into());
        };
        match head.kind {
            HEADERS if head.length > FIELDS_BYTES_MAX => {
                return Err(Refusal::Status(http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
            }
            HEADERS => {
                let bytes = whole(stream, head, b"").await.map_err(Cut::of_request)?;
                return Ok(ConnectRequest::decode(&mut &bytes[..])?);
            }
            OF_SESSION => {
                return Err(Fault { code: fault::FRAME_UNEXPECTED, why: "a stream of a session that does not exist yet" }.into());
            }
            DATA | SETTINGS | CANCEL_PUSH | GOAWAY | MAX_PUSH_ID => return Err(misplaced().into()),
            kind if NEVER.contains(&kind) => return Err(misplaced().into()),
            _ => skip(stream, head.length).await.map_err(Cut::of_request)?,
        }
    }
}

fn misplaced() -> Fault {
    Fault { code: fault::FRAME_UNEXPECTED, why: "unexpected frame" }
}

/// Reads the beginning of a control stream, which must be the settings.
pub async fn settings<S: AsyncRead + Unpin>(stream: &mut S) -> Result<(), Fault> {
    let closed = |_| Fault { code: fault::CLOSED_CRITICAL_STREAM, why: "the control stream was closed" };
    let head = head(stream).await.map_err(closed)?.ok_or(Cut::Short).map_err(closed)?;
    if head.kind != SETTINGS {
        return Err(Fault { code: fault::MISSING_SETTINGS, why: "the control stream does not begin with SETTINGS" });
    }
    if head.length > SETTINGS_BYTES_MAX {
        return Err(Fault { code: fault::EXCESSIVE_LOAD, why: "too many settings" });
    }
    let mut kind = Vec::new();
    StreamUni::CONTROL.encode(&mut kind);
    let bytes = whole(stream, head, &kind).await.map_err(closed)?;
    let no_settings = Fault { code: fault::SETTINGS_ERROR, why: "forbidden setting" };
    let settings = Settings::decode(&mut &bytes[..])
        .map_err(|_| Fault { code: fault::FRAME_ERROR, why: "malformed settings" })?;
    let is_never_set = |id: u32| settings.contains_key(&Setting(VarInt::from_u32(id)));
    if NEVER_SET.into_iter().any(is_never_set) { Err(no_settings) } else { Ok(()) }
}

/// Reads the rest of a control stream, whose frames are ignored, until it is a protocol error.
pub async fn control<S: AsyncRead + Unpin>(stream: &mut S) -> Fault {
    let closed = Fault { code: fault::CLOSED_CRITICAL_STREAM, why: "the control stream was closed" };
    loop {
        let Ok(Some(head)) = head(stream).await else { return closed };
        match head.kind {
            DATA | HEADERS | SETTINGS => return misplaced(),
            kind if NEVER.contains(&kind) => return misplaced(),
            CANCEL_PUSH => return Fault { code: fault::ID_ERROR, why: "CANCEL_PUSH without a push" },
            GOAWAY | MAX_PUSH_ID if head.length > VarInt::MAX_SIZE as u64 => {
                return Fault { code: fault::FRAME_ERROR, why: "the payload is longer than an integer" };
            }
            _ if skip(stream, head.length).await.is_err() => return closed,
            _ => {}
        }
    }
}

/// Reads the client's QPACK encoder stream. Our table has no capacity, so only setting its capacity to 0 is allowed.
pub async fn compressor<S: AsyncRead + Unpin>(stream: &mut S) -> Fault {
    const SET_TO_NOTHING: u8 = 0b0010_0000;
    loop {
        match stream.read_u8().await {
            Ok(SET_TO_NOTHING) => {}
            Ok(_) => return Fault { code: fault::QPACK_ENCODER_ERROR, why: "the QPACK table has no capacity" },
            Err(_) => return Fault { code: fault::CLOSED_CRITICAL_STREAM, why: "a QPACK stream was closed" },
        }
    }
}

/// Reads and discards the client's QPACK decoder stream, since we use no table.
pub async fn decompressor<S: AsyncRead + Unpin>(stream: &mut S) -> Fault {
    while skip(stream, u64::MAX).await.is_ok() {}
    Fault { code: fault::CLOSED_CRITICAL_STREAM, why: "a QPACK stream was closed" }
}

/// Reads the capsules behind a request, until its session ends.
pub async fn capsules<S: AsyncRead + Unpin>(stream: S) -> Result<Leave, Fault> {
    let mut data = Data { stream, left: 0, fault: None };
    match data.leave().await {
        Ok(leave) => Ok(leave),
        Err(cut) => match (data.fault, cut) {
            (Some(fault), _) => Err(fault),
            (None, Cut::Short) => Err(Fault { code: fault::MESSAGE_ERROR, why: "truncated capsule" }),
            (None, Cut::Reset) => Ok(Leave::Lost),
        },
    }
}

/// A reader of the `DATA` frames of a request, regardless of how its bytes are split into frames.
struct Data<S> {
    stream: S,
    /// Bytes that are missing of the frame at hand.
    left: u64,
    fault: Option<Fault>,
}

// === impl Data ===

impl<S: AsyncRead + Unpin> Data<S> {
    /// Reads until the session is closed, and ignores other capsules.
    async fn leave(&mut self) -> Result<Leave, Cut> {
        while let Some(first) = self.byte().await? {
            let head = Head {
                kind: self.number(first).await?,
                length: {
                    let first = self.byte().await?.ok_or(Cut::Short)?;
                    self.number(first).await?
                },
            };
            let is_last = head.kind == CLOSE_SESSION;
            if is_last && head.length > LAST_WORDS_BYTES_MAX {
                return Err(self.found(fault::MESSAGE_ERROR, "the close capsule is too long"));
            }
            let mut bytes = Vec::new();
            for _ in 0..head.length {
                let byte = self.byte().await?.ok_or(Cut::Short)?;
                if is_last {
                    bytes.push(byte);
                }
            }
            if is_last {
                return self.code(&bytes);
            }
        }
        // A stream that ends without a close capsule closes with code 0 (draft-ietf-webtrans-http3 §5).
        Ok(Leave::Code(0))
    }

    fn code(&mut self, bytes: &[u8]) -> Result<Leave, Cut> {
        let mut capsule = Vec::new();
        for number in [CLOSE_SESSION, bytes.len() as u64] {
            VarInt::from_u64(number).map_err(|_| Cut::Short)?.encode(&mut capsule);
        }
        capsule.extend_from_slice(bytes);
        match Capsule::decode(&mut &capsule[..]) {
            Ok(Capsule::CloseWebTransportSession { code, .. }) => Ok(Leave::Code(code)),
            Ok(Capsule::Grease { .. } | Capsule::Unknown { .. }) | Err(_) => {
                Err(self.found(fault::MESSAGE_ERROR, "malformed close capsule"))
            }
        }
    }

    fn found(&mut self, code: u32, why: &'static str) -> Cut {
        self.fault = Some(Fault { code, why });
        Cut::Short
    }

    async fn number(&mut self, first: u8) -> Result<u64, Cut> {
        let mut bytes = [first; VarInt::MAX_SIZE];
        let size = 1 << (first >> 6);
        for byte in &mut bytes[1..size] {
            *byte = self.byte().await?.ok_or(Cut::Short)?;
        }
        VarInt::decode(&mut &bytes[..size]).map(VarInt::into_inner).map_err(|_| Cut::Short)
    }

    /// Reads the next byte of data, or `None` where the stream ends between two frames.
    async fn byte(&mut self) -> Result<Option<u8>, Cut> {
        while self.left == 0 {
            let Some(head) = head(&mut self.stream).await? else { return Ok(None) };
            match head.kind {
                DATA => self.left = head.length,
                HEADERS | SETTINGS | CANCEL_PUSH | GOAWAY | MAX_PUSH_ID | OF_SESSION => {
                    return Err(self.found(fault::FRAME_UNEXPECTED, "unexpected frame"));
                }
                kind if NEVER.contains(&kind) => {
                    return Err(self.found(fault::FRAME_UNEXPECTED, "unexpected frame"));
                }
                _ => skip(&mut self.stream, head.length).await?,
            }
        }
        self.left -= 1;
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

    fn left(stream: &[u8]) -> Result<Leave, Fault> {
        capsules(stream).now_or_never().expect("all is there")
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
            assert_eq!(left(&stream), Ok(Leave::Code(4401)), "in steps of {step}");
        }
        assert_eq!(left(b""), Ok(Leave::Code(0)));
    }

    #[test]
    fn invalid_capsule_is_an_error() {
        let long = [&[0x68, 0x43, 0x44, 0x05][..], &[b'x'; 1029]].concat();
        let long = [&[0x00, 0x44, 0x09][..], &long].concat();
        for (stream, code) in [
            (frame(0, &[0x68, 0x43]), fault::MESSAGE_ERROR),
            (frame(0, &[0x68, 0x43, 2, 0, 0]), fault::MESSAGE_ERROR),
            (frame(0, &[0x68, 0x43, 5, 0, 0, 0, 0, 0xff]), fault::MESSAGE_ERROR),
            (long, fault::MESSAGE_ERROR),
            (frame(1, b"trailers"), fault::FRAME_UNEXPECTED),
            (frame(4, b""), fault::FRAME_UNEXPECTED),
            (frame(2, b""), fault::FRAME_UNEXPECTED),
        ] {
            assert_eq!(left(&stream).map_err(|fault| fault.code), Err(code), "{stream:x?}");
        }
    }

    /// Covers: S-04, S-10.
    #[test]
    fn oversized_h3_frame_is_refused_by_its_announced_length() {
        // Announces 16,385 bytes of fields and sends none.
        let announced = [0x01, 0x80, 0x00, 0x40, 0x01];
        let refused = request(&mut &announced[..]).now_or_never().expect("all is there").map(|_| ());
        assert_eq!(refused, Err(Refusal::Status(http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)));
        let settings = settings(&mut &[0x04, 0x44, 0x01][..]).now_or_never().expect("all is there");
        assert_eq!(settings.map_err(|fault| fault.code), Err(fault::EXCESSIVE_LOAD));
    }
}
