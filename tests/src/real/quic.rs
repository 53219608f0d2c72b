//! A raw client over QUIC: says exactly what a test wants said, and reads each stream when it is told to.
use super::PATIENCE;
use super::tls::Trust;
use super::wire::{Gone, invoke};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, ReadExactError, RecvStream, SendStream,
    TransportConfig,
};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use tokio::time::timeout;

/// One connection to a node, its control stream open.
#[derive(Debug)]
pub struct Line {
    /// The client's end, which can move.
    pub endpoint: Endpoint,
    /// The connection under the streams.
    pub connection: Connection,
    to: SendStream,
    from: RecvStream,
}

/// A stream of the server's own: one attempt's text.
#[derive(Debug)]
pub struct Lane {
    /// What it began with.
    pub head: Value,
    from: RecvStream,
}

/// How a client connects.
pub fn config(trust: &Trust, alpn: &[u8], transport: TransportConfig) -> ClientConfig {
    let mut tls = (*trust.0).clone();
    tls.alpn_protocols = vec![alpn.to_vec()];
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("TLS 1.3")));
    config.transport_config(Arc::new(transport));
    config
}

/// A port of this machine's own.
pub fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")
}

/// A client's end, for any number of connections.
pub fn endpoint() -> Endpoint {
    Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).expect("a port")
}

impl Line {
    /// Connects and says nothing.
    pub async fn open(to: SocketAddr, trust: &Trust) -> Result<Self, Gone> {
        Self::open_as(to, trust, TransportConfig::default()).await
    }

    /// The same, granting the server what this says.
    pub async fn open_as(to: SocketAddr, trust: &Trust, transport: TransportConfig) -> Result<Self, Gone> {
        Self::open_from(&endpoint(), to, config(trust, b"turnway/1", transport)).await
    }

    /// The same, from an end that may have other connections.
    pub async fn open_from(from: &Endpoint, to: SocketAddr, config: ClientConfig) -> Result<Self, Gone> {
        let connecting = from.connect_with(config, to, "localhost").expect("a good address");
        let connection = timeout(PATIENCE, connecting).await.expect("it answers").map_err(gone)?;
        let (to, stream) = connection.open_bi().await.map_err(gone)?;
        Ok(Self { endpoint: from.clone(), connection, to, from: stream })
    }

    /// Connects, says `hello` as this user with these `subscribe` bodies to resume, and reads `welcome`.
    pub async fn hello(to: SocketAddr, trust: &Trust, user: &str, resume: Vec<Value>) -> Result<Self, Gone> {
        let hello = json!({"type": "hello", "user_id": user, "resume": resume});
        Self::open(to, trust).await?.greet_with(hello).await
    }

    /// Says this `hello`, and reads `welcome`. Who is not let in is [`Gone::Closed`].
    pub async fn greet_with(mut self, hello: Value) -> Result<Self, Gone> {
        self.say(&hello).await?;
        let welcome = self.next().await?;
        if welcome["type"] == "error" {
            assert_eq!(welcome["code"], "unauthorized", "{welcome}");
            return Err(self.gone().await);
        }
        assert_eq!(welcome["type"], "welcome", "{welcome}");
        Ok(self)
    }

    /// Sends one message.
    pub async fn say(&mut self, message: &Value) -> Result<(), Gone> {
        let text = message.to_string();
        let length = u32::try_from(text.len()).expect("short").to_be_bytes();
        self.bytes(&[&length[..], text.as_bytes()].concat()).await
    }

    /// Sends any bytes at all.
    pub async fn bytes(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        self.to.write_all(bytes).await.map_err(|why| Gone::Broken(why.to_string()))
    }

    /// Says nothing more.
    pub fn finish(&mut self) {
        self.to.finish().expect("it is open");
    }

    /// The next message of the control stream. A silence longer than [`PATIENCE`] fails the test.
    pub async fn next(&mut self) -> Result<Value, Gone> {
        match read(&mut self.from).await {
            Ok(Some(message)) => Ok(message),
            // The reason comes behind it.
            Ok(None) => Err(self.gone().await),
            Err(gone) => Err(gone),
        }
    }

    /// Waits until the connection is over; how it ended.
    pub async fn gone(&self) -> Gone {
        let ended = timeout(PATIENCE, self.connection.closed()).await;
        gone(ended.expect("the node closes in time"))
    }

    /// Reads on to the first message of the control stream that fits.
    pub async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Result<Value, Gone> {
        loop {
            let message = self.next().await?;
            if fits(&message) {
                return Ok(message);
            }
        }
    }

    /// Asks with a request id of its own and reads on to the first message that echoes it.
    pub async fn ask(&mut self, request_id: &str, mut message: Value) -> Result<Value, Gone> {
        message["request_id"] = request_id.into();
        self.say(&message).await?;
        self.until(|answer| answer["request_id"] == request_id).await
    }

    /// The next stream that the server opens.
    pub async fn lane(&self) -> Result<Lane, Gone> {
        let accepted = timeout(PATIENCE, self.connection.accept_uni()).await;
        let mut from = accepted.expect("the node opens a stream in time").map_err(gone)?;
        let head = read(&mut from).await?.expect("a stream begins with its head");
        assert_eq!(head["type"], "stream", "{head}");
        Ok(Lane { head, from })
    }

    /// Runs one turn to its `done`; the text of its one stream, checked for gaps, and the `done`.
    pub async fn turn(
        &mut self,
        session: &str,
        agent: &str,
        id: &str,
        text: &str,
    ) -> Result<(String, Value), Gone> {
        let accepted = self.ask(id, invoke(session, agent, text)).await?;
        assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
        let run = accepted["run_id"].clone();
        let mut lane = self.lane().await?;
        assert_eq!((&lane.head["run_id"], &lane.head["session_id"]), (&run, &session.into()));
        // Side by side, each read to its end: one that is given up halfway leaves half a message behind.
        let from = &mut self.from;
        let done = async {
            loop {
                let message = read(from).await?.expect("the control stream stays");
                if message["type"] == "done" && message["run_id"] == run {
                    return Ok::<_, Gone>(message);
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

impl Lane {
    /// The next message; none: the stream has ended.
    pub async fn next(&mut self) -> Result<Option<Value>, Gone> {
        let message = read(&mut self.from).await?;
        if let Some(message) = &message {
            assert_eq!(message["type"], "delta", "{message}");
            assert_eq!(
                (&message["run_id"], &message["attempt"]),
                (&self.head["run_id"], &self.head["attempt"])
            );
        }
        Ok(message)
    }

    /// All there is of it, behind what is there already.
    pub async fn rest(&mut self, said: &mut String) -> Result<(), Gone> {
        while let Some(piece) = self.next().await? {
            take(said, &piece);
        }
        Ok(())
    }

    /// Wants nothing more of it.
    pub fn stop(&mut self) {
        self.from.stop(0u32.into()).expect("it is open");
    }
}

/// Puts a piece behind what is there, which it must follow.
pub fn take(said: &mut String, piece: &Value) {
    assert_eq!(piece["offset"], said.len(), "a gap or a repeat in the text: {piece}");
    said.push_str(piece["text"].as_str().expect("text"));
}

/// One message; none: the stream has ended where it may.
async fn read(from: &mut RecvStream) -> Result<Option<Value>, Gone> {
    let mut length = [0; 4];
    let Ok(read) = timeout(PATIENCE, from.read_exact(&mut length)).await else {
        panic!("the node said nothing for {PATIENCE:?}");
    };
    match read {
        Ok(()) => {}
        Err(ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(ReadExactError::FinishedEarly(_)) => panic!("the node ends a stream within a length"),
        Err(ReadExactError::ReadError(quinn::ReadError::ConnectionLost(why))) => return Err(gone(why)),
        Err(ReadExactError::ReadError(why)) => return Err(Gone::Broken(why.to_string())),
    }
    let mut text = vec![0; u32::from_be_bytes(length) as usize];
    let whole = timeout(PATIENCE, from.read_exact(&mut text)).await.expect("all of a message comes");
    whole.map_err(|why| Gone::Broken(why.to_string()))?;
    Ok(Some(serde_json::from_slice(&text).expect("the node speaks JSON")))
}

fn gone(why: ConnectionError) -> Gone {
    match why {
        ConnectionError::ApplicationClosed(close) => {
            Gone::Closed(u16::try_from(close.error_code.into_inner()).expect("a close code"))
        }
        other @ (ConnectionError::VersionMismatch
        | ConnectionError::TransportError(_)
        | ConnectionError::ConnectionClosed(_)
        | ConnectionError::Reset
        | ConnectionError::TimedOut
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted) => Gone::Broken(other.to_string()),
    }
}
