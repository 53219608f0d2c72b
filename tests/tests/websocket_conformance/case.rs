//! One case: what is sent, what must come, and what becomes of the connection; and how it is run.
use crate::raw::{Got, PING, Raw, TEXT, frame};
use serde_json::{Value, json};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::Wire;

/// A payload nobody else sends.
const STILL_THERE: &[u8] = b"still there?";

/// One case.
pub(crate) struct Case {
    /// Its number, which begins with its category, and what it is about.
    pub(crate) name: String,
    /// Whether it comes after `hello`.
    greeted: bool,
    steps: Vec<Step>,
    end: End,
}

enum Step {
    Send(Vec<u8>),
    Hear(Heard),
}

/// What must come.
#[derive(Clone, Debug)]
pub(crate) enum Heard {
    /// The answer to a ping with this payload.
    Pong(Vec<u8>),
    /// Pongs, and this one is the last: those before it may be left out (§5.5.3).
    PongsTo(Vec<u8>),
    /// `pong`, with this request id.
    Answer(String),
    /// `error`, with this code.
    Error(&'static str),
}

/// What becomes of the connection.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// It serves as before.
    Open,
    /// A close frame with this code, whatever the reason, and the end of the connection.
    Closed(u16),
    /// A close frame with just this code and reason, and the end.
    ClosedSaying(u16, String),
    /// A close frame without a body, and the end.
    ClosedBare,
}

/// A message that is answered `pong` with this id.
pub(crate) fn ask(id: &str) -> String {
    json!({"type": "ping", "request_id": id}).to_string()
}

/// The same, filled up to so many bytes.
pub(crate) fn ask_of(id: &str, bytes: usize) -> String {
    let asked = ask(id);
    assert!(asked.len() <= bytes, "{bytes} bytes are too few");
    asked.clone() + &" ".repeat(bytes - asked.len())
}

pub(crate) fn answer(id: &str) -> Heard {
    Heard::Answer(id.to_owned())
}

/// Bytes one by one, or so many at a time.
pub(crate) fn chopped(bytes: &[u8], step: usize) -> Vec<Vec<u8>> {
    bytes.chunks(step).map(<[u8]>::to_vec).collect()
}

// === impl Case ===

impl Case {
    /// After `hello`, these are written one after the other; nothing must come, and the connection stays.
    pub(crate) fn new(name: impl Into<String>, sent: Vec<Vec<u8>>) -> Self {
        let steps = sent.into_iter().map(Step::Send).collect();
        Self { name: name.into(), greeted: true, steps, end: End::Open }
    }

    /// Before `hello`.
    pub(crate) fn of_a_stranger(self) -> Self {
        Self { greeted: false, ..self }
    }

    pub(crate) fn hears(mut self, heard: impl IntoIterator<Item = Heard>) -> Self {
        self.steps.extend(heard.into_iter().map(Step::Hear));
        self
    }

    /// Sent once that has come.
    pub(crate) fn then(mut self, sent: Vec<u8>) -> Self {
        self.steps.push(Step::Send(sent));
        self
    }

    pub(crate) fn ends(self, end: End) -> Self {
        Self { end, ..self }
    }

    /// Closed by the node with this code.
    pub(crate) fn fails(self, code: u16) -> Self {
        self.ends(End::Closed(code))
    }

    /// Runs it.
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
                assert!(matches!(&got, Got::Close(Some(with), _) if with == code), "{}: {got:?}", self.name);
            }
            End::ClosedSaying(code, reason) => {
                let expected = Got::Close(Some(*code), reason.clone());
                assert_eq!(self.next(&mut raw).await, expected, "{}", self.name);
            }
            End::ClosedBare => {
                assert_eq!(self.next(&mut raw).await, Got::Close(None, String::new()), "{}", self.name);
            }
        }
        // §5.5.1: nothing follows a close frame; §7.1.1: TCP is closed in order, and by the server.
        if !matches!(self.end, End::Open) {
            assert_eq!(raw.next().await, Got::End, "{}: after the close frame", self.name);
        }
    }

    async fn hear(&self, raw: &mut Raw, heard: &Heard) {
        let name = &self.name;
        match heard {
            Heard::Pong(payload) => assert_eq!(self.next(raw).await, Got::Pong(payload.clone()), "{name}"),
            Heard::PongsTo(last) => loop {
                let got = self.next(raw).await;
                let Got::Pong(payload) = got else { panic!("{name}: {got:?} instead of a pong") };
                if payload == *last {
                    return;
                }
            },
            Heard::Answer(id) => {
                let said = self.message(raw).await;
                let is_it = said["type"] == "pong" && said["request_id"] == id.as_str();
                assert!(is_it, "{name}: {said} instead of a pong for {id}");
            }
            Heard::Error(code) => {
                let said = self.message(raw).await;
                assert!(said["type"] == "error" && said["code"] == *code, "{name}: {said}, not {code}");
            }
        }
    }

    /// Both kinds of ping are answered.
    async fn is_open(&self, raw: &mut Raw) {
        raw.write(&frame(PING, STILL_THERE)).await;
        raw.write(&frame(TEXT, ask("still-there"))).await;
        assert_eq!(self.next(raw).await, Got::Pong(STILL_THERE.to_vec()), "{}: not open any more", self.name);
        if self.greeted {
            self.hear(raw, &answer("still-there")).await;
        } else {
            self.hear(raw, &Heard::Error("unauthorized")).await;
        }
    }

    async fn message(&self, raw: &mut Raw) -> Value {
        let got = self.next(raw).await;
        let Got::Text(text) = got else { panic!("{}: {got:?} instead of a message", self.name) };
        serde_json::from_str(&text).expect("the node speaks JSON")
    }

    /// The next frame that is not a heartbeat.
    async fn next(&self, raw: &mut Raw) -> Got {
        loop {
            match raw.next().await {
                Got::Ping => {}
                got @ (Got::Text(_) | Got::Pong(_) | Got::Close(..) | Got::End | Got::Reset) => return got,
            }
        }
    }
}

/// A node, and a client beside the trouble.
pub(crate) struct Bench {
    pub(crate) node: Node,
    bystander: Wire,
    turns: u32,
    _dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) async fn set_up() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
        let bystander = Wire::hello(node.http, "bystander", vec![]).await.expect("it connects");
        Self { node, bystander, turns: 0, _dir: dir }
    }

    /// The node lives, and another client has its turn on the connection it always had.
    pub(crate) async fn others_are_served(&mut self, after: &str) {
        self.turns += 1;
        let id = format!("b{}", self.turns);
        let turn = self.bystander.turn("beside", "echo", &id, "hi").await;
        let (text, done) = turn.unwrap_or_else(|gone| panic!("after {after}: {gone:?}"));
        assert_eq!((text.as_str(), &done["status"]), ("hi", &json!("completed")), "after {after}");
        self.node.must_run();
    }
}

/// Runs a category: after each of its cases the node lives and serves others.
pub(crate) async fn hold(cases: Vec<Case>) {
    let mut bench = Bench::set_up().await;
    for case in cases {
        case.run(&bench.node).await;
        bench.others_are_served(&case.name).await;
    }
}
