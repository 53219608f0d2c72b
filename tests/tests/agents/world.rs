//! An HTTP agent on loopback that is scripted by the test, and the gateway's agents that call it.
use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use turnway::agent::access::GatewayAccess;
use turnway::agent::dialin::RemoteCalls;
use turnway::agent::directory::{AgentSpec, BadAgent, parse_agent};
use turnway::agent::plugins::Plugins;
use turnway::agent::{Agents, AttemptReport};
use turnway::auth::pepper::Pepper;
use turnway::clock::Clock;
use turnway::metrics::Metrics;
use turnway::run_token::{RunTokens, TokenRun};
use turnway_core::id::{AgentId, Epoch, MessageId, NodeId, RunId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::protocol::agent::{AgentEvent, Invoke, Order, TextKind};
use turnway_core::protocol::input::{Content, Message, Role};

/// Deadline of every wait in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

/// Waits for a future, and fails the test after `PATIENCE`.
pub(crate) async fn within_patience<T>(what: &str, happens: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, happens).await.unwrap_or_else(|_| panic!("in vain: {what}"))
}

/// One request that an agent received.
pub(crate) struct Call {
    pub(crate) head: http::request::Parts,
    pub(crate) body: Bytes,
    /// Address of the request's connection.
    pub(crate) peer: SocketAddr,
    answer: oneshot::Sender<Response<Body>>,
}

/// The body of an unfinished answer.
pub(crate) struct AnswerStream(mpsc::Sender<Bytes>);

impl Call {
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.head.headers.get(name).unwrap_or_else(|| panic!("no header {name}"));
        value.to_str().expect("text")
    }

    pub(crate) fn token(&self) -> String {
        self.header("authorization").strip_prefix("Bearer ").expect("a bearer token").to_owned()
    }

    /// Answers with a status and a complete body.
    pub(crate) fn reply(self, status: u16, kind: &str, body: &str) {
        let body = http_body_util::Full::from(body.to_owned()).boxed();
        let response = Response::builder().status(status).header("content-type", kind).body(body);
        assert!(self.answer.send(response.expect("a response")).is_ok(), "nobody waits for the answer");
    }

    /// Answers with a head; the body follows piece by piece.
    pub(crate) fn stream_with(self, response: http::response::Builder) -> AnswerStream {
        let (pieces, body) = mpsc::channel::<Bytes>(1);
        let body = futures_util::stream::unfold(body, |mut body| async move {
            let piece = body.recv().await?;
            Some((Ok::<_, Infallible>(Frame::data(piece)), body))
        });
        let response = response.body(BodyExt::boxed(StreamBody::new(body))).expect("a response");
        assert!(self.answer.send(response).is_ok(), "nobody waits for the answer");
        AnswerStream(pieces)
    }

    pub(crate) fn stream(self) -> AnswerStream {
        self.stream_with(Response::builder().header("content-type", "text/event-stream; charset=utf-8"))
    }

    /// Waits until the caller has closed the request without an answer.
    pub(crate) async fn closed(mut self) {
        within_patience("the request is closed", self.answer.closed()).await;
    }
}

impl AnswerStream {
    pub(crate) async fn send(&self, piece: impl Into<Bytes>) {
        within_patience("the piece is taken", self.0.send(piece.into())).await.expect("an open stream");
    }

    /// Sends a piece as soon as it is accepted. Returns false once the stream is closed.
    pub(crate) async fn try_send(&self, piece: Bytes) -> bool {
        within_patience("the piece is taken or the stream closed", self.0.send(piece)).await.is_ok()
    }

    /// Returns the sender of the body's pieces.
    pub(crate) fn sender(&self) -> mpsc::Sender<Bytes> {
        self.0.clone()
    }

    pub(crate) async fn delta(&self, text: &str) {
        self.send(delta(text)).await;
    }

    pub(crate) async fn done(self) {
        self.send("event: done\ndata: {}\n\n").await;
    }

    /// Waits until the caller has closed the request.
    pub(crate) async fn closed(&self) {
        within_patience("the stream is closed", self.0.closed()).await;
    }
}

pub(crate) fn delta(text: &str) -> String {
    format!("event: delta\ndata: {}\n\n", serde_json::json!({ "text": text }))
}

/// Serves until the test ends, and passes each request to the test.
pub(crate) fn serve(listener: TcpListener) -> mpsc::UnboundedReceiver<Call> {
    let (calls, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((socket, peer)) = listener.accept().await {
            let calls = calls.clone();
            let service = service_fn(move |request| answer(request, peer, calls.clone()));
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
            tokio::spawn(connection);
        }
    });
    received
}

async fn answer(
    request: Request<Incoming>,
    peer: SocketAddr,
    calls: mpsc::UnboundedSender<Call>,
) -> Result<Response<Body>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let (answer, answered) = oneshot::channel();
    // A send fails only after the test has ended, and then the connection is not needed.
    let _ = calls.send(Call { head, body, peer, answer });
    match answered.await {
        Ok(response) => Ok(response),
        // A call that the test has dropped is never answered.
        Err(_) => std::future::pending().await,
    }
}

/// Accepts one connection and reads its request; the test writes the response.
pub(crate) async fn accept(listener: &TcpListener) -> TcpStream {
    let (mut socket, _) = within_patience("a connection", listener.accept()).await.expect("a connection");
    let mut read = Vec::new();
    let mut byte = [0u8; 1];
    while !read.ends_with(b"\r\n\r\n") {
        within_patience("a request", socket.read_exact(&mut byte)).await.expect("a request");
        read.extend_from_slice(&byte);
    }
    socket
}

/// The gateway's agents, their reports, and the requests of the test's HTTP agent.
pub(crate) struct World {
    pub(crate) agents: Agents,
    pub(crate) reports: mpsc::Receiver<AttemptReport>,
    /// Requests that the HTTP agent `a` received.
    pub(crate) calls: mpsc::UnboundedReceiver<Call>,
}

impl World {
    /// Starts with an HTTP agent `a`, whose flag ends with `keys` (e.g. `,cancel=true`), and the built-in
    /// agents.
    pub(crate) async fn new(keys: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let calls = serve(listener);
        Self::with(&format!("a=http://{address}/base{keys}"), calls, 64)
    }

    /// Starts with an agent `a` whose endpoint is a bare listener.
    pub(crate) async fn raw() -> (Self, TcpListener) {
        Self::raw_with("").await
    }

    /// Starts with a bare listener as agent `a`, with these keys in its flag.
    pub(crate) async fn raw_with(keys: &str) -> (Self, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (_, calls) = mpsc::unbounded_channel();
        (Self::with(&format!("a=http://{address}{keys}"), calls, 64), listener)
    }

    /// Starts with an HTTP agent `a` behind plugins.
    pub(crate) async fn with_plugins(keys: &str, plugins: Plugins) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut specs = vec![parse_agent(&format!("a=http://{address}/base{keys}")).expect("a good agent")];
        specs.extend(AgentSpec::demo().expect("good agents"));
        let (sender, reports) = mpsc::channel(64);
        let agents = agents_behind(specs, None, plugins, sender).expect("agents");
        Self { agents, reports, calls: serve(listener) }
    }

    pub(crate) fn with(flag: &str, calls: mpsc::UnboundedReceiver<Call>, queue: usize) -> Self {
        let mut specs = vec![parse_agent(flag).expect("a good agent")];
        specs.extend(AgentSpec::demo().expect("good agents"));
        let (sender, reports) = mpsc::channel(queue);
        let agents = agents(specs, None, sender).expect("agents");
        Self { agents, reports, calls }
    }

    pub(crate) fn invoke(&self, order: Invoke) {
        self.agents.perform(Order::Invoke(order));
    }

    pub(crate) async fn call(&mut self) -> Call {
        within_patience("a request", self.calls.recv()).await.expect("a server")
    }

    /// Returns the next report other than a sign of life: the number of those depends on the machine's speed.
    pub(crate) async fn report(&mut self) -> AttemptReport {
        loop {
            let report = within_patience("a report", self.reports.recv()).await.expect("agents");
            if report.event != AgentEvent::Alive {
                return report;
            }
        }
    }

    /// Expects a sign of life as the next report.
    pub(crate) async fn alive(&mut self) {
        let report = within_patience("a sign of life", self.reports.recv()).await.expect("agents");
        assert_eq!(report.event, AgentEvent::Alive);
    }

    /// Returns the next event of an attempt.
    pub(crate) async fn event(&mut self, of: &Invoke) -> AgentEvent {
        let report = self.report().await;
        assert_eq!((&report.key, &report.run_id, report.attempt), (&of.key, &of.run_id, of.attempt));
        report.event
    }

    pub(crate) async fn expect(&mut self, of: &Invoke, event: AgentEvent) {
        assert_eq!(self.event(of).await, event);
    }

    /// Returns the concatenated text of an attempt, and its end.
    pub(crate) async fn text(&mut self, of: &Invoke) -> (String, AgentEvent) {
        let mut all = String::new();
        loop {
            match self.event(of).await {
                AgentEvent::Delta { kind: TextKind::Text, text, .. } => all.push_str(text.reveal()),
                end @ (AgentEvent::Done { .. } | AgentEvent::CancelAcked | AgentEvent::Failed(_)) => {
                    return (all, end);
                }
                other @ (AgentEvent::Acked
                | AgentEvent::Delta { .. }
                | AgentEvent::State { .. }
                | AgentEvent::Steered { .. }
                | AgentEvent::Handover { .. }
                | AgentEvent::Subscribed(_)
                | AgentEvent::Alive
                | AgentEvent::Action { .. }) => {
                    panic!("unexpected {other:?}")
                }
            }
        }
    }

    /// Invokes an attempt and waits for its acknowledgement. Returns the answer's stream and the attempt's
    /// token.
    pub(crate) async fn begin(&mut self, order: &Invoke) -> (AnswerStream, String) {
        self.invoke(order.clone());
        let call = self.call().await;
        let token = call.token();
        assert!(self.agents.tokens().verify(&token).is_some());
        let stream = call.stream();
        self.expect(order, AgentEvent::Acked).await;
        (stream, token)
    }

    /// Waits until no attempt runs.
    pub(crate) async fn until_idle(&self) {
        within_patience("nothing runs", async {
            while self.agents.running() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    pub(crate) fn cancel(&self, order: &Invoke) {
        self.agents.perform(Order::Cancel {
            tenant: order.key.tenant.clone(),
            run_id: order.run_id.clone(),
            attempt: order.attempt,
            epoch: order.epoch,
        });
    }

    pub(crate) fn drop_attempt(&self, order: &Invoke) {
        self.agents.perform(Order::Drop { run_id: order.run_id.clone(), attempt: order.attempt });
    }

    pub(crate) fn credit(&self, order: &Invoke, upto: u64) {
        self.agents.perform(Order::Credit { run_id: order.run_id.clone(), attempt: order.attempt, upto });
    }
}

/// Returns an order to answer `text`. Any string is accepted as `message`, so that test tables can name their
/// cases.
pub(crate) fn order(agent: &str, message: &str, text: &str) -> Invoke {
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
    let user = UserId::parse("ann").expect("a name");
    Invoke {
        run_id: RunId::derive(
            &key,
            &user,
            &MessageId::parse(&format!("m {}", message.escape_debug())).expect("a name"),
        ),
        key,
        attempt: 2,
        epoch: Epoch(7),
        agent_id: AgentId::parse(agent).expect("a name"),
        user,
        message: Message { role: Role::User, content: Content::Text(text.to_owned()) },
        history: None,
        origin: None,
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned()),
        handover: None,
        actions: None,
        system_prompt: None,
        run_token: None,
        messages_url: None,
        resume: None,
    }
}

/// Returns the run that the token of an attempt is for.
pub(crate) fn token_run(order: &Invoke) -> TokenRun {
    TokenRun { tenant: order.key.tenant.clone(), run_id: order.run_id.clone() }
}

pub(crate) fn done() -> AgentEvent {
    AgentEvent::Done { stop: turnway_core::protocol::agent::StopReason::EndTurn, usage: None }
}

/// Returns these agents with metrics of their own.
pub(crate) fn agents(
    specs: Vec<AgentSpec>,
    default: Option<AgentId>,
    reports: mpsc::Sender<AttemptReport>,
) -> Result<Agents, BadAgent> {
    agents_behind(specs, default, Plugins::default(), reports)
}

fn agents_behind(
    specs: Vec<AgentSpec>,
    default: Option<AgentId>,
    plugins: Plugins,
    reports: mpsc::Sender<AttemptReport>,
) -> Result<Agents, BadAgent> {
    let metrics = Metrics::register(&prometheus::Registry::new()).expect("each family once");
    let clock = Clock::start();
    let metrics = Arc::new(metrics);
    let tokens = RunTokens::of_key(Pepper::from_text(&"p".repeat(32)).expect("long enough").key_for("run tokens"));
    let lines = RemoteCalls::new(NodeId(1), &Handle::current(), clock.clone(), Arc::clone(&metrics));
    let access = GatewayAccess { tokens, url: "http://127.0.0.1:8080".into() };
    Agents::new(specs, default, plugins, reports, turnway_core::limits::ATTEMPTS_MAX, (&lines, access), clock, metrics)
}
