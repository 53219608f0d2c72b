//! Cases of the opening handshake (RFC 6455 §4.2): requests that a server must refuse, and its answers to the
//! others.
use crate::case::Bench;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// Answer to `KEY`, from the RFC's example (§1.3).
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// One handshake request with the expected answer.
pub(crate) struct Handshake {
    pub(crate) name: String,
    line: String,
    /// All headers except the host.
    headers: Vec<(String, String)>,
    /// Allowed status codes; 0 stands for a connection that is closed without an answer.
    status: &'static [u16],
    /// Header that the answer must have, in lower case.
    with: Option<&'static str>,
}

impl Handshake {
    /// Creates a valid handshake, to be changed by the other methods.
    fn right(name: impl Into<String>) -> Self {
        let headers = [
            ("upgrade", "websocket"),
            ("connection", "Upgrade"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", KEY),
        ];
        Self {
            name: name.into(),
            line: "GET /v1/connect HTTP/1.1".into(),
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            status: &[101],
            with: None,
        }
    }
    fn line(self, line: impl Into<String>) -> Self {
        Self { line: line.into(), ..self }
    }
    fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self
    }
    fn also(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
    fn instead(self, name: &str, value: &str) -> Self {
        self.without(name).also(name, value)
    }
    fn is(self, status: &'static [u16]) -> Self {
        Self { status, ..self }
    }
    fn with(self, header: &'static str) -> Self {
        Self { with: Some(header), ..self }
    }
}

pub(crate) fn all() -> Vec<Handshake> {
    let mut all =
        vec![Handshake::right("right"), Handshake::right("with a query").line("GET /v1/connect?a=b HTTP/1.1")];
    line(&mut all);
    upgrade(&mut all);
    version(&mut all);
    key(&mut all);
    extras(&mut all);
    all
}

/// §4.2.1 1: a GET of HTTP/1.1 or later.
fn line(all: &mut Vec<Handshake>) {
    for method in ["POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "get"] {
        let one = Handshake::right(format!("method {method}")).line(format!("{method} /v1/connect HTTP/1.1"));
        all.push(one.is(&[405, 426]));
    }
    for version in ["HTTP/1.0", "HTTP/0.9", "HTTP/9.9", "http/1.1", "HTTP/1.1x", ""] {
        let one = Handshake::right(format!("HTTP version {version}")).line(format!("GET /v1/connect {version}"));
        all.push(one.is(&[400, 426, 505, 0]));
    }
    all.push(Handshake::right("elsewhere").line("GET /v1/connect/x HTTP/1.1").is(&[404]));
}

/// §4.2.1 3, 4: `Upgrade: websocket` and `Connection: Upgrade`, in any case and among other values.
fn upgrade(all: &mut Vec<Handshake>) {
    for value in ["websocket", "WebSocket", "WEBSOCKET", "h2c, websocket", "websocket,foo"] {
        all.push(Handshake::right(format!("upgrade: {value}")).instead("upgrade", value));
    }
    for value in ["", "web socket", "websockets", "h2c", "\"websocket\"", "websocket;x"] {
        let one = Handshake::right(format!("upgrade: {value}")).instead("upgrade", value);
        all.push(one.is(&[400, 426]));
    }
    for value in ["Upgrade", "upgrade", "UPGRADE", "keep-alive, Upgrade", "Upgrade,keep-alive", "a ,\tUpgrade"] {
        all.push(Handshake::right(format!("connection: {value}")).instead("connection", value));
    }
    for value in ["", "keep-alive", "close", "upgraded", "Up grade"] {
        let one = Handshake::right(format!("connection: {value}")).instead("connection", value);
        all.push(one.is(&[400, 426]));
    }
    for name in ["upgrade", "connection"] {
        let one = Handshake::right(format!("no {name}")).without(name).is(&[400, 426]);
        all.push(one.with("upgrade: websocket"));
    }
    let one = Handshake::right("connection twice").also("connection", "keep-alive");
    all.push(one);
}

/// §4.2.1 6, §4.4: version 13; another version is answered with the supported one.
fn version(all: &mut Vec<Handshake>) {
    for value in ["0", "7", "8", "12", "14", "25", "255", "256", "013", "13, 8", "8, 13", "+13", "13.0", "", "x"] {
        let one = Handshake::right(format!("version {value}")).instead("sec-websocket-version", value);
        all.push(one.is(&[426]).with("sec-websocket-version: 13"));
    }
    let one = Handshake::right("no version").without("sec-websocket-version").is(&[426]);
    all.push(one.with("sec-websocket-version: 13"));
    for value in ["13", "8"] {
        let one = Handshake::right(format!("another version {value}")).also("sec-websocket-version", value);
        all.push(one.is(&[400, 426]));
    }
}

/// §4.2.1 5, §11.3.1: 16 bytes in base64, once.
fn key(all: &mut Vec<Handshake>) {
    for key in ["AAAAAAAAAAAAAAAAAAAAAA==", "/////////////////////w==", "+/+/+/+/+/+/+/+/+/+/+g=="] {
        all.push(Handshake::right(format!("key {key}")).instead("sec-websocket-key", key));
    }
    for key in [
        "",
        "x",
        "dGhlIHNhbXBsZSBub25jZQ",
        "dGhlIHNhbXBsZSBub25jZQ=",
        "dGhlIHNhbXBsZSBub25jZQ===",
        "dGhlIHNhbXBsZSBub25jZXg=",
        "dGhlIHNhbXBsZSBub25jZXh4",
        "dGhlIHNhbXBsZSBub25j",
        "dGhlIHNhbXBsZSBub25j!!==",
        "dGhlIHNhbXBs_SBub25jZQ==",
        "dGhl IHNhbXBsZSBub25jZ==",
        "========================",
        "dGhlIHNhbXBsZSBub25jZQ==, dGhlIHNhbXBsZSBub25jZQ==",
    ] {
        let one = Handshake::right(format!("key {key}")).instead("sec-websocket-key", key);
        all.push(one.is(&[400]));
    }
    all.push(Handshake::right("no key").without("sec-websocket-key").is(&[400]));
    for key in [KEY, "AAAAAAAAAAAAAAAAAAAAAA=="] {
        all.push(Handshake::right(format!("another key {key}")).also("sec-websocket-key", key).is(&[400]));
    }
}

/// §4.2.2: the chosen subprotocol is one that was offered, and no extension is used; and headers that do not belong
/// here.
fn extras(all: &mut Vec<Handshake>) {
    let protocol = "sec-websocket-protocol";
    for value in ["turnway.v1", "chat, turnway.v1", "turnway.v1,chat", "TURNWAY.V1"] {
        let one = Handshake::right(format!("protocol {value}")).also(protocol, value);
        all.push(if value == "TURNWAY.V1" { one } else { one.with("sec-websocket-protocol: turnway.v1") });
    }
    let one = Handshake::right("two lines of protocols").also(protocol, "chat").also(protocol, "turnway.v1");
    all.push(one.with("sec-websocket-protocol: turnway.v1"));
    all.push(Handshake::right("a protocol of others").also(protocol, "chat, superchat"));
    for value in ["permessage-deflate", "permessage-deflate; client_max_window_bits, x-webkit-deflate-frame"] {
        all.push(Handshake::right(format!("extensions {value}")).also("sec-websocket-extensions", value));
    }
    for (name, value) in [("content-length", "5"), ("transfer-encoding", "chunked")] {
        all.push(Handshake::right(format!("a body: {name}")).also(name, value).is(&[400]));
    }
    all.push(Handshake::right("an empty body").also("content-length", "0"));
    all.push(Handshake::right("another host").also("host", "other.example").is(&[400, 403]));
    all.push(Handshake::right("a page from elsewhere").also("origin", "https://evil.example").is(&[403]));
    all.push(Handshake::right("a header without a colon").also("x y", "z").is(&[400, 0]));
    for bad in ["a\0b", "a\rb"] {
        all.push(Handshake::right(format!("a header of {bad:?}")).also("x", bad).is(&[400, 0]));
    }
}

impl Handshake {
    /// Performs the handshake and checks the answer.
    pub(crate) async fn run(&self, bench: &Bench) {
        let to = bench.node.http;
        let headers = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let head = format!("{}\r\nhost: {to}\r\n{}\r\n", self.line, headers.collect::<String>());
        let mut stream = TcpStream::connect(to).await.expect("a listener");
        stream.write_all(head.as_bytes()).await.expect("written");
        let name = &self.name;
        let mut answer = Vec::new();
        while !answer.windows(4).any(|four| four == b"\r\n\r\n") {
            let read = timeout(PATIENCE, stream.read_buf(&mut answer)).await;
            if matches!(read.unwrap_or_else(|_| panic!("{name}: no answer")), Ok(0) | Err(_)) {
                break;
            }
        }
        let answer = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        assert!(self.status.contains(&status), "{name}: {answer}");
        let has = |line: &str| answer.contains(&format!("\r\n{line}\r\n"));
        if let Some(header) = self.with {
            assert!(has(header), "{name}: no {header}: {answer}");
        }
        if status == 101 {
            assert!(has("upgrade: websocket") && has("connection: upgrade"), "{name}: {answer}");
            assert!(answer.contains("\r\nsec-websocket-accept: "), "{name}: {answer}");
            assert!(!answer.contains("sec-websocket-extensions"), "§4.2.2 5: {name}: {answer}");
            let chosen = answer.contains("sec-websocket-protocol");
            assert_eq!(chosen, self.with.is_some_and(|it| it.contains("protocol")), "{name}: {answer}");
        } else {
            assert!(!answer.contains("sec-websocket-accept"), "{name}: {answer}");
        }
    }
}

/// Checks the accept header of the RFC's example (§4.2.2 5).
pub(crate) async fn the_key_is_answered(bench: &Bench) {
    let to = bench.node.http;
    let mut stream = TcpStream::connect(to).await.expect("a listener");
    let head = format!(
        "GET /v1/connect HTTP/1.1\r\nhost: {to}\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: {KEY}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        timeout(PATIENCE, stream.read_buf(&mut answer)).await.expect("in time").expect("an answer");
    }
    let answer = String::from_utf8(answer).expect("ASCII");
    assert!(answer.contains(&format!(" {ACCEPT}\r\n")), "{answer}");
}
