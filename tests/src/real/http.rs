//! Plain HTTP requests, as a metrics scraper or an operator sends them.
use super::PATIENCE;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// Sends a `GET`; returns the status and the body, or `None` if no connection is possible. A request without an
/// answer within [`PATIENCE`] fails the test.
pub async fn get(from: SocketAddr, path: &str) -> Option<(u16, String)> {
    let exchange = async {
        let stream = TokioIo::new(TcpStream::connect(from).await.ok()?);
        let (mut send, connection) = hyper::client::conn::http1::handshake(stream).await.ok()?;
        let connection = tokio::spawn(connection);
        let request = Request::get(path).header("host", from.to_string()).body(Empty::<Bytes>::new());
        let response = send.send_request(request.expect("a request")).await.ok()?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.ok()?.to_bytes();
        connection.abort();
        Some((status, String::from_utf8(body.to_vec()).expect("UTF-8")))
    };
    let answer = tokio::time::timeout(PATIENCE, exchange).await;
    answer.unwrap_or_else(|_| panic!("no answer from {from}{path}"))
}
