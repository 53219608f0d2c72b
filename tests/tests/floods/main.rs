//! Floods of connections: many at a time, slow, oversized, or from one address.
//!
//! Covers: S-04, S-05, S-10, S-15, S-16, S-49.
mod addresses;
mod credentials;
mod hello_size;
mod idle;
mod payloads;

use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;

/// Connects from this address of the machine and sends these bytes.
async fn call(from: [u8; 4], to: SocketAddr, said: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((from, 0).into()).expect("an address of this machine");
    let mut stream = timeout(PATIENCE, socket.connect(to)).await.expect("in time").expect("a listener");
    // The node may have refused and closed the connection already.
    let _ = stream.write_all(said).await;
    stream
}

/// Reads to the end of the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it hangs up");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Reads the head of the next answer on a connection that stays open; empty if there is none.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match timeout(PATIENCE, stream.read(&mut byte)).await.expect("in time") {
            Ok(1) => head.push(byte[0]),
            Ok(_) | Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}
