//! One conformance case: bytes to send, frames that must arrive, and the end of the connection.
use crate::raw::{PING, Raw, Received, TEXT, frame};
use serde_json::{Value, json};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;

/// A ping payload that no case uses.
const STILL_THERE: &[u8] = b"still there?";

/// A case of the conformance tables.
pub(crate) struct Case {
    /// Category number and subject of the case.
    pub(crate) name: String,
    /// True if the case runs after `hello`.
    greeted: bool,
    steps: Vec<Step>,
    end: End,
}

enum Step {
    Send(Vec<u8>),
    Hear(Expected),
}

/// A frame or message that must arrive.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    /// Answer to a ping with this payload.
    Pong(Vec<u8>),
    /// Pongs, of which this one is the last; earlier ones may be omitted (§5.5.3).
    PongsTo(Vec<u8>),
    /// Message `pong` with this request id.
    Answer(String),
    /// Message `error` with this code.
    Error(&'static str),
}

/// State of the connection after the case.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// Open, and served as before.
    Open,
    /// Closed with this code, any reason, and then the end of TCP.
    Closed(u16),
    /// Closed with exactly this code and reason, and then the end of TCP.
    ClosedSaying(u16, String),
    /// Closed with an empty close frame, and then the end of TCP.
    ClosedBare,
}

/// Returns a message that is answered with `pong` and this id.
pub(crate) fn ask(id: &str) -> String {
    json!({"type": "ping", "request_id": id}).to_string()
}

/// Returns the same message, padded to this many bytes.
pub(crate) fn ask_of(id: &str, bytes: usize) -> String {
    let asked = ask(id);
    assert!(asked.len() <= bytes, "{bytes} bytes are too few");
    asked.clone() + &" ".repeat(bytes - asked.len())
}

pub(crate) fn answer(id: &str) -> Expected {
    Expected::Answer(id.to_owned())
}

/// Splits bytes into chunks of this size.
pub(crate) fn chopped(bytes: &[u8], step: usize) -> Vec<Vec<u8>> {
    bytes.chunks(step).map(<[u8]>::to_vec).collect()
}

// === impl Case ===

impl Case {
    /// Creates a case that writes these parts after `hello`, expects no answer, and leaves the connection open.
    pub(crate) fn new(name: impl Into<String>, sent: Vec<Vec<u8>>) -> Self {
        let steps = sent.into_iter().map(Step::Send).collect();
        Self { name: name.into(), greeted: true, steps, end: End::Open }
    }

    /// Runs the case before `hello` instead.
    pub(crate) fn before_hello(self) -> Self {
        Self { greeted: false, ..self }
    }

    pub(crate) fn expects(mut self, heard: impl IntoIterator<Item = Expected>) -> Self {
        self.steps.extend(heard.into_iter().map(Step::Hear));
        self
    }

    /// Sends more bytes once the expected frames have arrived.
    pub(crate) fn then_sends(mut self, sent: Vec<u8>) -> Self {
        self.steps.push(Step::Send(sent));
        self
    }

    pub(crate) fn ends(self, end: End) -> Self {
        Self { end, ..self }
    }

    /// Expects that the node closes the connection with this code.
    pub(crate) fn closed_with(self, code: u16) -> Self {
        self.ends(End::Closed(code))
    }

    /// Runs the case against a node.
    async fn run(&self, node: &Node) {
        let mut raw = Raw::open(node.http).await;
        if self.greeted {
            raw.greet().await;
        }
        for step in &self.steps {
            match step {
                Step::Send(bytes) => raw.write(bytes).await,
                Step::Hear(heard) => self.hear(&mut raw, heard).await,
            }
        }
        match &self.end {
            End::Open => self.is_open(&mut raw).await,
            End::Closed(code) => {
                let got = self.next(&mut raw).await;
                assert!(matches!(&got, Received::Close(Some(with), _) if with == code), "{}: {got:?}", self.name);
            }
            End::ClosedSaying(code, reason) => {
                let expected = Received::Close(Some(*code), reason.clone());
                assert_eq!(self.next(&mut raw).await, expected, "{}", self.name);
            }
            End::ClosedBare => {
                assert_eq!(self.next(&mut raw).await, Received::Close(None, String::new()), "{}", self.name);
            }
        }
        // §5.5.1: no frame follows a close frame; §7.1.1: the server closes TCP cleanly.
        if !matches!(self.end, End::Open) {
            assert_eq!(raw.next().await, Received::End, "{}: after the close frame", self.name);
        }
    }

    async fn hear(&self, raw: &mut Raw, heard: &Expected) {
        let name = &self.name;
        match heard {
            Expected::Pong(payload) => {
                assert_eq!(self.next(raw).await, Received::Pong(payload.clone()), "{name}")
            }
            Expected::PongsTo(last) => loop {
                let got = self.next(raw).await;
                let Received::Pong(payload) = got else { panic!("{name}: {got:?} instead of a pong") };
                if payload == *last {
                    return;
                }
            },
            Expected::Answer(id) => {
                let said = self.message(raw).await;
                let is_it = said["type"] == "pong" && said["request_id"] == id.as_str();
                assert!(is_it, "{name}: {said} instead of a pong for {id}");
            }
            Expected::Error(code) => {
                let said = self.message(raw).await;
                assert!(said["type"] == "error" && said["code"] == *code, "{name}: {said}, not {code}");
            }
        }
    }

    /// Asserts that a WebSocket ping and a `ping` message are answered.
    async fn is_open(&self, raw: &mut Raw) {
        raw.write(&frame(PING, STILL_THERE)).await;
        raw.write(&frame(TEXT, ask("still-there"))).await;
        assert_eq!(self.next(raw).await, Received::Pong(STILL_THERE.to_vec()), "{}: not open any more", self.name);
        if self.greeted {
            self.hear(raw, &answer("still-there")).await;
        } else {
            self.hear(raw, &Expected::Error("unauthorized")).await;
        }
    }

    async fn message(&self, raw: &mut Raw) -> Value {
        let got = self.next(raw).await;
        let Received::Text(text) = got else { panic!("{}: {got:?} instead of a message", self.name) };
        serde_json::from_str(&text).expect("the node speaks JSON")
    }

    /// Returns the next frame that is not a heartbeat.
    async fn next(&self, raw: &mut Raw) -> Received {
        loop {
            match raw.next().await {
                Received::Ping => {}
                got @ (Received::Text(_)
                | Received::Pong(_)
                | Received::Close(..)
                | Received::End
                | Received::Reset) => return got,
            }
        }
    }
}

/// A node, and a well-behaved client on another connection.
pub(crate) struct Bench {
    pub(crate) node: Node,
    bystander: WebSocketClient,
    turns: u32,
    _dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) async fn set_up() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
        let bystander = WebSocketClient::hello(node.http, "bystander", vec![]).await.expect("it connects");
        Self { node, bystander, turns: 0, _dir: dir }
    }

    /// Asserts that the node runs and that the other client completes a turn on its old connection.
    pub(crate) async fn others_are_served(&mut self, after: &str) {
        self.turns += 1;
        let id = format!("b{}", self.turns);
        let turn = self.bystander.turn("beside", "echo", &id, "hi").await;
        let (text, done) = turn.unwrap_or_else(|gone| panic!("after {after}: {gone:?}"));
        assert_eq!((text.as_str(), &done["status"]), ("hi", &json!("completed")), "after {after}");
        self.node.must_run();
    }
}

/// Runs the cases of a category; after each case the node must run and serve other clients.
pub(crate) async fn hold(cases: Vec<Case>) {
    let mut bench = Bench::set_up().await;
    for case in cases {
        case.run(&bench.node).await;
        bench.others_are_served(&case.name).await;
    }
}
