//! Time to the first text of a turn that is requested at one node and run at another.
use crate::{TwoNodes, median};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use turnway_tests::real::bare::RedisBaseline;
use turnway_tests::real::wire::{WebSocketClient, invoke};
use turnway_tests::real::{figure, quantile, size};

/// As long as a frame with a short piece of an answer.
const FRAME: [u8; 280] = [b'x'; 280];
/// Input of each turn; the answer goes on after its first word.
const TEXT: &str = "count to 3 every 5ms";

/// An HTTP client that calls the agent directly, as a node would.
struct Direct(SendRequest<Full<Bytes>>, SocketAddr);

impl Direct {
    async fn open(at: SocketAddr) -> Self {
        let stream = TcpStream::connect(at).await.expect("the agent is there");
        stream.set_nodelay(true).expect("a socket");
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        Self(sender, at)
    }

    /// Returns the time to the agent's first text.
    async fn first(&mut self) -> Duration {
        let body = json!({"session_id": "direct", "input_message": {"role": "user", "content": TEXT}});
        let request = Request::post("/invoke").header("host", self.1.to_string());
        let request = request.body(Full::new(Bytes::from(body.to_string()))).expect("a request");
        // The last answer may be read to its end before the connection is ready again.
        self.0.ready().await.expect("the agent is there");
        let asked_at = Instant::now();
        let mut response = self.0.send_request(request).await.expect("an answer");
        let mut first = None;
        while let Some(frame) = response.body_mut().frame().await {
            let frame = frame.expect("the whole of it");
            let is_text = frame.data_ref().is_some_and(|data| data.starts_with(b"event: delta"));
            first = first.or(is_text.then(|| asked_at.elapsed()));
        }
        first.expect("it says something")
    }
}

/// Runs a turn to its end and returns the time to its first text.
async fn first_text(wire: &mut WebSocketClient, session: &str, id: &str) -> Duration {
    let mut ask = invoke(session, "lean", TEXT);
    ask["request_id"] = id.into();
    let asked_at = Instant::now();
    wire.say(ask).await.expect("it is said");
    let mut first = None;
    loop {
        let message = wire.next().await.expect("it goes on");
        match message["type"].as_str() {
            Some("delta") if first.is_none() => first = Some(asked_at.elapsed()),
            Some("done") => return first.expect("text before the end"),
            Some("error") => panic!("{message}"),
            Some(_) | None => {}
        }
    }
}

/// Measured times, taken alternately.
#[derive(Default)]
struct Samples {
    across: Vec<Duration>,
    at_home: Vec<Duration>,
    direct: Vec<Duration>,
    hop: Vec<Duration>,
    call: Vec<Duration>,
}

impl Samples {
    fn p50(of: &mut [Duration]) -> f64 {
        quantile(of, 0.5).as_secs_f64() * 1e6
    }

    /// Reports a round's figures, and returns the time added across nodes as a multiple of the bare Redis
    /// operations.
    fn tell(&mut self, round: usize) -> f64 {
        let direct = Self::p50(&mut self.direct);
        let bare = 3.0 * Self::p50(&mut self.hop) + 2.0 * Self::p50(&mut self.call);
        let [across, at_home] = [&mut self.across, &mut self.at_home].map(|of| Self::p50(of) - direct);
        let tell = |name: &str, of: &mut [Duration]| {
            let half = quantile(of, 0.5).as_micros();
            let most = quantile(of, 0.99).as_micros();
            figure(&format!("mem, round {round}: {name}, p50 / p99 µs"), format!("{half} / {most}"));
        };
        tell("first text of a turn that another node runs", &mut self.across);
        tell("first text of a turn that the client's node runs", &mut self.at_home);
        tell("first text of the agent itself", &mut self.direct);
        tell("one hop from PUBLISH to SUBSCRIBE", &mut self.hop);
        tell("one call of a function", &mut self.call);
        let name = format!("mem, round {round}: added to the first text across nodes, µs (at the client's node)");
        figure(&name, format!("{across:.0} ({at_home:.0})"));
        let ratio = across / bare;
        figure(&format!("mem, round {round}: the same in 3 hops and 2 calls"), format!("{ratio:.2}"));
        ratio
    }
}

/// Covers: G-09.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_text_across_nodes_is_measured() {
    let pair = TwoNodes::start("mem", &[]).await;
    let mut bare = RedisBaseline::open(&pair.redis).await;
    let mut direct = Direct::open(pair.agent.address).await;
    let mut owner = WebSocketClient::hello(pair.owner.http, "ann", vec![]).await.expect("it connects");
    let mut edge = WebSocketClient::hello(pair.edge.http, "ann", vec![]).await.expect("it connects");
    let mut ratios = Vec::new();
    for round in 1..=size("FLEET_PACE_ROUNDS", 1) {
        let session = format!("across-{round}");
        let own = format!("at-home-{round}");
        // This client does not stay subscribed to the session.
        let mut begins = WebSocketClient::hello(pair.owner.http, "ann", vec![]).await.expect("it connects");
        first_text(&mut begins, &session, "first").await;
        drop(begins);
        first_text(&mut edge, &session, "second").await;
        first_text(&mut owner, &own, "first").await;
        let mut samples = Samples::default();
        for n in 0..size("FLEET_PACE_TURNS", 100) {
            samples.across.push(first_text(&mut edge, &session, &format!("e{n}")).await);
            samples.hop.push(bare.hop(&FRAME).await);
            samples.direct.push(direct.first().await);
            samples.call.push(bare.call().await);
            samples.at_home.push(first_text(&mut owner, &own, &format!("o{n}")).await);
        }
        assert!(pair.is_owned(&session), "nobody pauses for the two seconds after which an owner gives it up");
        ratios.push(samples.tell(round));
    }
    let ratio = median(ratios);
    figure("mem: added to the first text across nodes, in 3 hops and 2 calls (goal: at most 1)", format!("{ratio:.2}"));
    assert!(ratio < 25.0, "{ratio}: something waits that need not");
}
