//! How TLS begins on a connection, or why it does not.
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

/// From the connection to the end of the handshake (S-15).
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// For whoever spoke no TLS to hear so.
const FAREWELL: Duration = Duration::from_secs(1);
/// A record of a handshake begins with it, and no line of HTTP does (RFC 8446 §5.1).
const HANDSHAKE: u8 = 22;
/// What is said to whoever speaks HTTP where TLS is spoken: the most common mistake of all.
const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\
    content-length: 29\r\n\r\nTLS is spoken here: https://\n";

/// Shakes hands, and tells how it ended.
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

/// Says what is wrong. Closing at once, with what was asked unread, would take the words back.
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
    // What follows is the dearest step of a connection's life, and what it reads is there.
    if let Some(turnstile) = turnstile {
        turnstile.pass().await;
    }
    let shaken = TlsAcceptor::from(shown.now()).accept(Socket::new(stream)).await;
    shaken.map(|stream| Pipe::Tls(Box::new(stream))).map_err(|error| {
        tracing::debug!(%error, "a TLS handshake failed");
        Greeting::Failed
    })
}
