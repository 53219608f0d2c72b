//! Performs the TLS handshake of a TCP connection, and answers plain HTTP with a hint. Called by the listener.
use super::pipe::Pipe;
use super::turnstile::Turnstile;
use crate::metrics::Greeting;
use crate::socket::Socket;
use crate::tls::Shown;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Longest time from accept to the end of the handshake (S-15).
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for a client that sent no TLS to read the answer.
const FAREWELL: Duration = Duration::from_secs(1);
/// Content type of a TLS handshake record; no HTTP request line begins with it (RFC 8446 §5.1).
const HANDSHAKE: u8 = 22;
/// The answer to HTTP on a TLS port, the most common client mistake.
const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\
    content-length: 37\r\n\r\nThis port requires TLS: use https://\n";

/// Performs the handshake. Also returns the outcome for metrics.
pub(super) async fn greet(
    stream: TcpStream,
    shown: &Shown,
    turnstile: Option<&Turnstile>,
) -> (Option<Pipe>, Greeting) {
    match timeout(HANDSHAKE_TIMEOUT, shake(stream, shown, turnstile)).await {
        Ok(Ok(pipe)) => (Some(pipe), Greeting::Done),
        Ok(Err(how)) => (None, how),
        Err(_) => (None, Greeting::Late),
    }
}

/// Sends the hint and reads until the client closes: closing with unread bytes would reset the connection and lose the
/// answer.
async fn refuse(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(PLAIN).await?;
    stream.shutdown().await?;
    let mut unread = [0; 512];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

async fn shake(
    mut stream: TcpStream,
    shown: &Shown,
    turnstile: Option<&Turnstile>,
) -> Result<Pipe, Greeting> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(1) if first == [HANDSHAKE] => {}
        Ok(1) => {
            let _ = timeout(FAREWELL, refuse(&mut stream)).await;
            return Err(Greeting::Plain);
        }
        Ok(_) | Err(_) => return Err(Greeting::Failed),
    }
    // The handshake is the most expensive step of a connection, and its input has arrived.
    if let Some(turnstile) = turnstile {
        turnstile.pass().await;
    }
    let shaken = TlsAcceptor::from(shown.now()).accept(Socket::new(stream)).await;
    shaken.map(|stream| Pipe::Tls(Box::new(stream))).map_err(|error| {
        tracing::debug!(%error, "a TLS handshake failed");
        Greeting::Failed
    })
}
