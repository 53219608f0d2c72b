//! A raw QUIC client that sends exactly what a test specifies, and reads each stream only on demand.
mod one_at_a_time;

use super::PATIENCE;
use super::documented;
use super::tls::Trust;
use super::wire::{ConnectionEnd, invoke};
use one_at_a_time::OneAtATime;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, ReadExactError, RecvStream, SendStream,
    TransportConfig,
};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use tokio::time::timeout;

/// One connection to a node, with its control stream open.
#[derive(Debug)]
pub struct QuicConnection {
    /// The client's endpoint, which can move to another port.
    pub endpoint: Endpoint,
    /// Connection of all streams.
    pub connection: Connection,
    to: SendStream,
    from: RecvStream,
}

/// A stream opened by the server, with the text of one attempt.
#[derive(Debug)]
pub struct TextStream {
    /// First message of the stream.
    pub head: Value,
    from: RecvStream,
}

/// Creates a client configuration.
pub fn config(trust: &Trust, alpn: &[u8], transport: TransportConfig) -> ClientConfig {
    let mut tls = (*trust.0).clone();
    tls.alpn_protocols = vec![alpn.to_vec()];
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("TLS 1.3")));
    config.transport_config(Arc::new(transport));
    config
}

/// Binds a free loopback port.
pub fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")
}

/// Creates a client endpoint for any number of connections.
pub fn endpoint() -> Endpoint {
    let runtime = quinn::default_runtime().expect("a test runs in tokio");
    let socket = Arc::new(OneAtATime::new(runtime.wrap_udp_socket(socket()).expect("a socket")));
    Endpoint::new_with_abstract_socket(EndpointConfig::default(), None, socket, runtime).expect("a port")
}

impl QuicConnection {
    /// Connects without sending a message.
    pub async fn open(to: SocketAddr, trust: &Trust) -> Result<Self, ConnectionEnd> {
        Self::open_as(to, trust, TransportConfig::default()).await
    }

    /// The same, with these transport limits.
    pub async fn open_as(to: SocketAddr, trust: &Trust, transport: TransportConfig) -> Result<Self, ConnectionEnd> {
        Self::open_from(&endpoint(), to, config(trust, b"turnway/1", transport)).await
    }

    /// The same, from an endpoint that may have other connections.
    pub async fn open_from(from: &Endpoint, to: SocketAddr, config: ClientConfig) -> Result<Self, ConnectionEnd> {
        let connecting = from.connect_with(config, to, "localhost").expect("a good address");
        let connection = timeout(PATIENCE, connecting).await.expect("it answers").map_err(gone)?;
        let (to, stream) = connection.open_bi().await.map_err(gone)?;
        Ok(Self { endpoint: from.clone(), connection, to, from: stream })
    }

    /// Connects, sends `hello` as this user with these `subscribe` bodies to resume, and reads `welcome`.
    pub async fn hello(to: SocketAddr, trust: &Trust, user: &str, resume: Vec<Value>) -> Result<Self, ConnectionEnd> {
        let hello = json!({"type": "hello", "user_id": user, "resume": resume});
        Self::open(to, trust).await?.greet_with(hello).await
    }

    /// Sends this `hello`, and reads `welcome`. A refused client gets [`ConnectionEnd::Closed`].
    pub async fn greet_with(mut self, hello: Value) -> Result<Self, ConnectionEnd> {
        self.say(&hello).await?;
        let welcome = self.next().await?;
        if welcome["type"] == "error" {
            assert_eq!(welcome["code"], "unauthorized", "{welcome}");
            return Err(self.gone().await);
        }
        assert_eq!(welcome["type"], "welcome", "{welcome}");
        documented::assert_accepted_by_node(&hello);
        Ok(self)
    }

    /// Sends one message.
    pub async fn say(&mut self, message: &Value) -> Result<(), ConnectionEnd> {
        let text = message.to_string();
        let length = u32::try_from(text.len()).expect("short").to_be_bytes();
        self.bytes(&[&length[..], text.as_bytes()].concat()).await
    }

    /// Sends raw bytes.
    pub async fn bytes(&mut self, bytes: &[u8]) -> Result<(), ConnectionEnd> {
        self.to.write_all(bytes).await.map_err(|why| ConnectionEnd::Broken(why.to_string()))
    }

    /// Ends the sending side of the control stream.
    pub fn finish(&mut self) {
        self.to.finish().expect("it is open");
    }

    /// Returns the next message of the control stream. A silence longer than [`PATIENCE`] fails the test.
    pub async fn next(&mut self) -> Result<Value, ConnectionEnd> {
        match read(&mut self.from).await {
            Ok(Some(message)) => Ok(message),
            // The close reason follows the end of the stream.
            Ok(None) => Err(self.gone().await),
            Err(gone) => Err(gone),
        }
    }

    /// Waits until the connection has ended; returns the reason.
    pub async fn gone(&self) -> ConnectionEnd {
        let ended = timeout(PATIENCE, self.connection.closed()).await;
        gone(ended.expect("the node closes in time"))
    }

    /// Reads to the first message of the control stream that fits.
    pub async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Result<Value, ConnectionEnd> {
        loop {
            let message = self.next().await?;
            if fits(&message) {
                return Ok(message);
            }
        }
    }

    /// Sends a request with this request id, and reads to the first message that echoes the id.
    pub async fn ask(&mut self, request_id: &str, mut message: Value) -> Result<Value, ConnectionEnd> {
        message["request_id"] = request_id.into();
        self.say(&message).await?;
        let answer = self.until(|answer| answer["request_id"] == request_id).await?;
        if answer["type"] != "error" {
            documented::assert_accepted_by_node(&message);
        }
        Ok(answer)
    }

    /// Accepts the next stream that the server opens. Cancelled, it loses a stream whose head it was reading.
    pub async fn accept_text_stream(&self) -> Result<TextStream, ConnectionEnd> {
        let accepted = timeout(PATIENCE, self.connection.accept_uni()).await;
        TextStream::begin(accepted.expect("the node opens a stream in time").map_err(gone)?).await
    }

    /// Runs one turn to its `done`; returns the text of its single stream, checked for gaps, and the `done`.
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
        let mut lane = self.accept_text_stream().await?;
        assert_eq!((&lane.head["run_id"], &lane.head["session_id"]), (&run, &session.into()));
        // Both streams are read to their end at the same time: a cancelled read would lose part of a message.
        let from = &mut self.from;
        let done = async {
            loop {
                let message = read(from).await?.expect("the control stream stays");
                if message["type"] == "done" && message["run_id"] == run {
                    return Ok::<_, ConnectionEnd>(message);
                }
            }
        };
        let said = async {
            let mut said = String::new();
            lane.rest(&mut said).await.map(|()| said)
        };
        let (done, said) = tokio::try_join!(done, said)?;
        assert_eq!(done["text_bytes"], said.len(), "{done}");
        Ok((said, done))
    }
}

impl TextStream {
    /// Reads the head of an accepted stream.
    pub async fn begin(mut from: RecvStream) -> Result<Self, ConnectionEnd> {
        let head = read(&mut from).await?.expect("a stream begins with its head");
        assert_eq!(head["type"], "stream", "{head}");
        Ok(Self { head, from })
    }

    /// Returns the next message; `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<Value>, ConnectionEnd> {
        let message = read(&mut self.from).await?;
        if let Some(message) = &message {
            assert_eq!(message["type"], "delta", "{message}");
            assert_eq!((&message["run_id"], &message["attempt"]), (&self.head["run_id"], &self.head["attempt"]));
        }
        Ok(message)
    }

    /// Appends the rest of the stream to the text so far.
    pub async fn rest(&mut self, said: &mut String) -> Result<(), ConnectionEnd> {
        while let Some(piece) = self.next().await? {
            take(said, &piece);
        }
        Ok(())
    }

    /// Asks the server to stop sending this stream.
    pub fn stop(&mut self) {
        self.from.stop(0u32.into()).expect("it is open");
    }
}

/// Appends a piece of text, which must follow the text so far.
pub fn take(said: &mut String, piece: &Value) {
    assert_eq!(piece["offset"], said.len(), "a gap or a repeat in the text: {piece}");
    said.push_str(piece["text"].as_str().expect("text"));
}

/// Reads one message; `None` if the stream has ended between two messages.
async fn read(from: &mut RecvStream) -> Result<Option<Value>, ConnectionEnd> {
    let mut length = [0; 4];
    let Ok(read) = timeout(PATIENCE, from.read_exact(&mut length)).await else {
        panic!("the node said nothing for {PATIENCE:?}");
    };
    match read {
        Ok(()) => {}
        Err(ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(ReadExactError::FinishedEarly(_)) => panic!("the node ends a stream within a length"),
        Err(ReadExactError::ReadError(quinn::ReadError::ConnectionLost(why))) => return Err(gone(why)),
        Err(ReadExactError::ReadError(why)) => return Err(ConnectionEnd::Broken(why.to_string())),
    }
    let mut text = vec![0; u32::from_be_bytes(length) as usize];
    let whole = timeout(PATIENCE, from.read_exact(&mut text)).await.expect("all of a message comes");
    whole.map_err(|why| ConnectionEnd::Broken(why.to_string()))?;
    let message = serde_json::from_slice(&text).expect("the node speaks JSON");
    documented::assert_sent_by_node(&message);
    Ok(Some(message))
}

fn gone(why: ConnectionError) -> ConnectionEnd {
    match why {
        ConnectionError::ApplicationClosed(close) => {
            ConnectionEnd::Closed(u16::try_from(close.error_code.into_inner()).expect("a close code"))
        }
        other @ (ConnectionError::VersionMismatch
        | ConnectionError::TransportError(_)
        | ConnectionError::ConnectionClosed(_)
        | ConnectionError::Reset
        | ConnectionError::TimedOut
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted) => ConnectionEnd::Broken(other.to_string()),
    }
}
