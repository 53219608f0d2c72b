//! Fuzz targets for bytes of unauthenticated sockets: request heads, PROXY headers, WebSocket frames and HTTP/3
//! streams.
use crate::sockets::read_only_socket::ReadOnlySocket;
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::Empty;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::tungstenite::error::{Error, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocket};
use turnway::auth::host_policy::HostPolicy;
use turnway::config::{AllowedHosts, Origin};
use turnway::listen::frame_guard::FrameTracker;
use turnway::listen::proxy_protocol::read_client_address;
use turnway::listen::quic::h3::frames::{self, SessionClose};
use turnway::listen::upgrade::{check_handshake, websocket_config};

mod read_only_socket;

/// Capacity of the pipe between both ends.
const PIPE_BYTES: usize = 64 * 1024;

/// A node that allows further host names and origins besides those of its own machine.
static RULES: LazyLock<HostPolicy> = LazyLock::new(|| HostPolicy {
    is_local: true,
    hosts: AllowedHosts::parse("gateway.example.com, [2001:db8::1]:8443").expect("names"),
    origins: Origin::parse_list("https://app.example.com, http://[2001:db8::2]:81").expect("origins"),
});

/// Reads a connection's bytes to their end as requests, and checks each as a handshake. Returns the number of
/// handshakes, and of requests that may be answered.
pub fn request_head(bytes: &[u8]) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let understood = AtomicUsize::new(0);
    let good = &understood;
    runtime.block_on(async {
        let (mut client, server) = tokio::io::duplex(PIPE_BYTES);
        let service = service_fn(|request: Request<hyper::body::Incoming>| async move {
            let welcome = RULES.check(request.uri(), request.headers()).is_ok();
            if let Ok(accept) = check_handshake(&request) {
                assert_eq!(accept.len(), 28, "20 bytes in base64");
                good.fetch_add(1, Relaxed);
            }
            good.fetch_add(usize::from(welcome), Relaxed);
            let status = if welcome { 200 } else { 403 };
            Ok::<_, Infallible>(Response::builder().status(status).body(Empty::<Bytes>::new()).expect("a response"))
        });
        let serve = http1::Builder::new()
            .max_header_size(16 * 1024)
            .max_buf_size(16 * 1024)
            .max_headers(64)
            // The bytes end here with the last request, whereas a node's clients wait for their answers.
            .half_close(true)
            .serve_connection(TokioIo::new(server), service);
        let speak = async {
            let _ = client.write_all(&bytes[..bytes.len().min(PIPE_BYTES)]).await;
            let _ = client.shutdown().await;
            let _ = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
        };
        let (_, ()) = tokio::join!(serve, speak);
    });
    understood.into_inner()
}

/// Reads a browser's HTTP/3 stream, whose kind the first byte gives. Returns 1 for a request that could become
/// a session, for settings, and for a close capsule.
pub fn http3(bytes: &[u8]) -> usize {
    let Some((kind, mut stream)) = bytes.split_first() else { return 0 };
    let there = "bytes that are there need not be awaited";
    match kind % 4 {
        0 => {
            let asked = frames::read_request(&mut stream).now_or_never().expect(there);
            if let Ok(asked) = &asked {
                let fields = asked.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32);
                assert!(fields.sum::<usize>() <= 16 * 1024, "more than is read of any request");
            }
            usize::from(asked.is_ok())
        }
        1 => {
            let settled = frames::read_settings(&mut stream).now_or_never().expect(there);
            if settled.is_ok() {
                let fault = frames::read_control(&mut stream).now_or_never().expect(there);
                assert!((0x100..0x111).contains(&fault.code), "a control stream may not end");
            }
            usize::from(settled.is_ok())
        }
        2 => usize::from(frames::read_qpack_encoder(&mut stream).now_or_never().expect(there).code == 0x104),
        _ => {
            let left = frames::read_capsules(stream).now_or_never().expect(there);
            usize::from(matches!(left, Ok(SessionClose::Code(_))))
        }
    }
}

/// Reads a PROXY header. Asserts that no byte after it is taken, and that the address is the one that the line
/// names.
pub fn proxy_header(bytes: &[u8]) -> usize {
    let mut left = bytes;
    let said = read_client_address(&mut left).now_or_never().expect("bytes that are there need not be awaited");
    let taken = &bytes[..bytes.len() - left.len()];
    match said {
        Ok(caller) => {
            if let (Some(address), b'P') = (caller, taken[0]) {
                assert!(taken.ends_with(b"\r\n") && taken.len() <= 107, "{address}: {} bytes", taken.len());
                let line = String::from_utf8_lossy(taken);
                let word = line.split(' ').nth(2).and_then(|word| word.parse::<IpAddr>().ok());
                assert_eq!(word, Some(address));
            }
            1
        }
        Err(_) => 0,
    }
}

/// Checks a client's frames in steps of the size given by the first byte. Asserts that the result does not
/// depend on the steps, and that passed frames break no rule of the codec.
pub fn websocket_frames(bytes: &[u8]) -> usize {
    let Some((&step, bytes)) = bytes.split_first() else { return 0 };
    let whole = FrameTracker::default().track(bytes);
    let mut seen = FrameTracker::default();
    let mut cut = None;
    let mut good = 0;
    for chunk in bytes.chunks(usize::from(step).max(1)) {
        if let Err((before, breach)) = seen.track(chunk) {
            (cut, good) = (Some(breach), good + before);
            break;
        }
        good += chunk.len();
    }
    assert_eq!(whole.err().map(|(_, breach)| breach), cut, "in steps of {step}");
    if let Err((before, _)) = whole {
        assert!(before <= good, "{before} bytes are good at once, {good} in steps");
    }
    let mut socket = WebSocket::from_raw_socket(ReadOnlySocket(&bytes[..good]), Role::Server, Some(websocket_config()));
    for count in 0.. {
        match socket.read() {
            Ok(Message::Close(_)) => return count + 1,
            Ok(_) => {}
            // The end of the bytes, or an invalid close frame, whose contents are not checked before.
            Err(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake | ProtocolError::InvalidCloseSequence)) => {
                return count;
            }
            Err(Error::Protocol(broken)) => panic!("the seam has let pass: {broken}"),
            Err(_) => return count,
        }
    }
    unreachable!("there are more messages than bytes")
}
