//! Connections that only take up room: many at a time, and from whom.
//!
//! Covers: S-04, S-05, S-10, S-15, S-16, S-49.
mod addresses;
mod bombs;
mod guesses;
mod idle;
mod strangers;

use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;

/// A connection from this address of this machine, with these bytes said.
async fn call(from: [u8; 4], to: SocketAddr, said: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((from, 0).into()).expect("an address of this machine");
    let mut stream = timeout(PATIENCE, socket.connect(to)).await.expect("in time").expect("a listener");
    // Whoever is not wanted may be gone already.
    let _ = stream.write_all(said).await;
    stream
}

/// All that comes until the other end hangs up.
async fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it hangs up");
    String::from_utf8_lossy(&answer).into_owned()
}

/// The head of the next answer, on a connection that stays; empty where there is none.
async fn head(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        match timeout(PATIENCE, stream.read(&mut byte)).await.expect("in time") {
            Ok(1) => head.push(byte[0]),
            Ok(_) | Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}
