//! Performs the TLS handshake of a TCP connection, and answers plain HTTP with a hint. Called by the listener.
use super::churn_limiter::ChurnLimiter;
use super::maybe_tls::MaybeTlsStream;
use crate::metrics::TlsHandshakeOutcome;
use crate::socket::WatchedSocket;
use crate::tls::TlsConfigWatch;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Longest time from accept to the end of the handshake (S-15).
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for a client that sent no TLS to read the answer.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Content type of a TLS handshake record; no HTTP request line begins with it (RFC 8446 §5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// The answer to HTTP on a TLS port, the most common client mistake.
const PLAIN_HTTP_ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\
    content-length: 37\r\n\r\nThis port requires TLS: use https://\n";

/// Performs the handshake. Also returns the outcome for metrics.
pub(super) async fn accept_tls(
    stream: TcpStream,
    shown: &TlsConfigWatch,
    turnstile: Option<&ChurnLimiter>,
) -> (Option<MaybeTlsStream>, TlsHandshakeOutcome) {
    match timeout(HANDSHAKE_TIMEOUT, handshake(stream, shown, turnstile)).await {
        Ok(Ok(pipe)) => (Some(pipe), TlsHandshakeOutcome::Done),
        Ok(Err(how)) => (None, how),
        Err(_) => (None, TlsHandshakeOutcome::Late),
    }
}

/// Sends the hint and reads until the client closes: closing with unread bytes would reset the connection and lose the
/// answer.
async fn answer_plain_http(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(PLAIN_HTTP_ANSWER).await?;
    stream.shutdown().await?;
    let mut unread = [0; 512];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

async fn handshake(
    mut stream: TcpStream,
    shown: &TlsConfigWatch,
    turnstile: Option<&ChurnLimiter>,
) -> Result<MaybeTlsStream, TlsHandshakeOutcome> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(1) if first == [HANDSHAKE_RECORD] => {}
        Ok(1) => {
            let _ = timeout(REFUSAL_TIMEOUT, answer_plain_http(&mut stream)).await;
            return Err(TlsHandshakeOutcome::Plain);
        }
        Ok(_) | Err(_) => return Err(TlsHandshakeOutcome::Failed),
    }
    // The handshake is the most expensive step of a connection, and its input has arrived.
    if let Some(turnstile) = turnstile {
        turnstile.wait_turn().await;
    }
    let shaken = TlsAcceptor::from(shown.tcp_config()).accept(WatchedSocket::new(stream)).await;
    shaken.map(|stream| MaybeTlsStream::Tls(Box::new(stream))).map_err(|error| {
        tracing::debug!(%error, "a TLS handshake failed");
        TlsHandshakeOutcome::Failed
    })
}
