//! A raw WebSocket client that sends exactly what a test specifies.
use super::PATIENCE;
use super::documented;
use super::tls::Trust;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, client_async_tls_with_config};

/// End of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// Close frame with this code.
    Closed(u16),
    /// The connection broke, or could not be made.
    Broken(String),
}

/// One WebSocket connection to a node.
#[derive(Debug)]
pub struct WebSocketClient {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl WebSocketClient {
    /// Connects without sending a message.
    pub async fn open(to: SocketAddr) -> Result<Self, ConnectionEnd> {
        let stream = TcpStream::connect(to).await.map_err(|why| ConnectionEnd::Broken(why.to_string()))?;
        Self::over(to, stream, None).await
    }

    /// The same over TLS, by the name of this machine.
    pub async fn open_tls(to: SocketAddr, trust: &Trust) -> Result<Self, ConnectionEnd> {
        let stream = TcpStream::connect(to).await.map_err(|why| ConnectionEnd::Broken(why.to_string()))?;
        // With Nagle's algorithm the end of the handshake and the request wait for each other, 40 ms each time.
        stream.set_nodelay(true).map_err(|why| ConnectionEnd::Broken(why.to_string()))?;
        Self::over(to, stream, Some(trust)).await
    }

    /// Returns the certificate that the server has shown.
    pub fn certificate(&self) -> Option<Vec<u8>> {
        let MaybeTlsStream::Rustls(stream) = self.socket.get_ref() else { return None };
        Some(stream.get_ref().1.peer_certificates()?.first()?.to_vec())
    }

    /// The same, with the smallest receive buffer that the system allows.
    pub async fn open_with_small_buffer(to: SocketAddr) -> Result<Self, ConnectionEnd> {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a small buffer");
        let stream = socket.connect(to).await.map_err(|why| ConnectionEnd::Broken(why.to_string()))?;
        Self::over(to, stream, None).await
    }

    async fn over(to: SocketAddr, stream: TcpStream, trust: Option<&Trust>) -> Result<Self, ConnectionEnd> {
        let broken = |why: &dyn std::fmt::Display| ConnectionEnd::Broken(why.to_string());
        let url = match trust {
            None => format!("ws://{to}/v1/connect"),
            Some(_) => format!("wss://localhost:{}/v1/connect", to.port()),
        };
        let tls = trust.map(|trust| Connector::Rustls(trust.0.clone()));
        let mut request: Request = url.into_client_request().map_err(|why| broken(&why))?;
        let protocol = HeaderValue::from_static("turnway.v1");
        request.headers_mut().insert("sec-websocket-protocol", protocol);
        let opened = client_async_tls_with_config(request, stream, None, tls);
        let (socket, _) = opened.await.map_err(|why| broken(&why))?;
        Ok(Self { socket })
    }

    /// Connects, sends `hello` as this user with these `subscribe` bodies to resume, and reads `welcome`.
    pub async fn hello(to: SocketAddr, user: &str, resume: Vec<Value>) -> Result<Self, ConnectionEnd> {
        Self::open(to).await?.greet(user, resume).await
    }

    /// Sends `hello`, and reads `welcome`.
    pub async fn greet(self, user: &str, resume: Vec<Value>) -> Result<Self, ConnectionEnd> {
        self.greet_with(json!({"type": "hello", "user_id": user, "resume": resume})).await
    }

    /// Sends this `hello`, and reads `welcome`. A refused client gets [`ConnectionEnd::Closed`].
    pub async fn greet_with(mut self, hello: Value) -> Result<Self, ConnectionEnd> {
        self.say(hello.clone()).await?;
        let welcome = self.next().await?;
        if welcome["type"] == "error" {
            assert_eq!(welcome["code"], "unauthorized", "{welcome}");
            return Err(self.until(|_| false).await.err().unwrap_or(ConnectionEnd::Closed(0)));
        }
        assert_eq!(welcome["type"], "welcome", "{welcome}");
        documented::assert_accepted_by_node(&hello);
        Ok(self)
    }

    /// Sends one message.
    pub async fn say(&mut self, message: Value) -> Result<(), ConnectionEnd> {
        self.frame(Message::text(message.to_string())).await
    }

    /// Sends any frame.
    pub async fn frame(&mut self, frame: Message) -> Result<(), ConnectionEnd> {
        self.socket.send(frame).await.map_err(|why| ConnectionEnd::Broken(why.to_string()))
    }

    /// Returns the next message. A silence longer than [`PATIENCE`] fails the test.
    pub async fn next(&mut self) -> Result<Value, ConnectionEnd> {
        // A WebSocket ping does not extend the time limit.
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let Ok(frame) = tokio::time::timeout_at(end, self.socket.next()).await else {
                panic!("the node said nothing for {PATIENCE:?}");
            };
            match frame {
                Some(Ok(Message::Text(text))) => {
                    let message = serde_json::from_str(&text).expect("the node speaks JSON");
                    documented::assert_sent_by_node(&message);
                    return Ok(message);
                }
                Some(Ok(Message::Close(close))) => {
                    return Err(ConnectionEnd::Closed(close.map_or(1005, |frame| frame.code.into())));
                }
                Some(Ok(Message::Binary(_))) => panic!("the node never sends binary"),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Err(why)) => return Err(ConnectionEnd::Broken(why.to_string())),
                None => return Err(ConnectionEnd::Broken("end of stream".to_owned())),
            }
        }
    }

    /// Reads to the first message that fits.
    pub async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Result<Value, ConnectionEnd> {
        loop {
            let message = self.next().await?;
            if fits(&message) {
                return Ok(message);
            }
        }
    }

    /// Sends a request with this request id and reads to the first message that echoes the id: the answer comes
    /// before any fact that the request causes.
    pub async fn ask(&mut self, request_id: &str, mut message: Value) -> Result<Value, ConnectionEnd> {
        message["request_id"] = request_id.into();
        self.say(message.clone()).await?;
        let answer = self.until(|answer| answer["request_id"] == request_id).await?;
        if answer["type"] != "error" {
            documented::assert_accepted_by_node(&message);
        }
        Ok(answer)
    }

    /// Runs one turn to its `done`; returns the answer's text, checked for gaps, and the `done`.
    pub async fn turn(
        &mut self,
        session: &str,
        agent: &str,
        id: &str,
        text: &str,
    ) -> Result<(String, Value), ConnectionEnd> {
        let accepted = self.ask(id, invoke(session, agent, text)).await?;
        assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
        let run = accepted["run_id"].clone();
        let mut said = String::new();
        let mut attempt = Value::Null;
        loop {
            let message = self.next().await?;
            if message["run_id"] != run {
                continue;
            }
            if message["type"] == "delta" && message["kind"] != "reasoning" {
                if message["attempt"] != attempt {
                    said.clear();
                    attempt = message["attempt"].clone();
                }
                assert_eq!(message["offset"], said.len(), "a gap or a repeat in the text");
                said.push_str(message["text"].as_str().expect("text"));
            }
            if message["type"] == "done" {
                return Ok((said, message));
            }
        }
    }
}

/// Builds an `agent_invoke` without its request id.
pub fn invoke(session: &str, agent: &str, text: &str) -> Value {
    json!({
        "type": "agent_invoke", "session_id": session, "agent_id": agent,
        "message": {"role": "user", "content": text},
    })
}
