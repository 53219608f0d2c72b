//! An HTTP agent on loopback that does what the test says, and the gateway's side of it.
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
use turnway::agent::dialin::Lines;
use turnway::agent::directory::{AgentSpec, BadAgent, parse_agent};
use turnway::agent::plugins::Plugins;
use turnway::agent::{Agents, Report};
use turnway::clock::Clock;
use turnway::metrics::Metrics;
use turnway_core::id::{AgentId, Epoch, MessageId, NodeId, RunId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::protocol::agent::{AgentEvent, Invoke, Order, TextKind};
use turnway_core::protocol::input::{Content, Message, Role};

/// Nothing that must happen takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

/// What must happen, or the test fails.
pub(crate) async fn soon<T>(what: &str, happens: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, happens).await.unwrap_or_else(|_| panic!("in vain: {what}"))
}

/// One request an agent got.
pub(crate) struct Call {
    pub(crate) head: http::request::Parts,
    pub(crate) body: Bytes,
    /// The connection it came on.
    pub(crate) peer: SocketAddr,
    answer: oneshot::Sender<Response<Body>>,
}

/// The body of an answer under way.
pub(crate) struct Stream(mpsc::Sender<Bytes>);

impl Call {
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.head.headers.get(name).unwrap_or_else(|| panic!("no header {name}"));
        value.to_str().expect("text")
    }

    pub(crate) fn token(&self) -> String {
        self.header("authorization").strip_prefix("Bearer ").expect("a bearer token").to_owned()
    }

    /// Answers with a status and a whole body.
    pub(crate) fn reply(self, status: u16, kind: &str, body: &str) {
        let body = http_body_util::Full::from(body.to_owned()).boxed();
        let response = Response::builder().status(status).header("content-type", kind).body(body);
        assert!(self.answer.send(response.expect("a response")).is_ok(), "nobody waits for the answer");
    }

    /// Answers with a head; the body follows piece by piece.
    pub(crate) fn stream_with(self, response: http::response::Builder) -> Stream {
        let (pieces, body) = mpsc::channel::<Bytes>(1);
        let body = futures_util::stream::unfold(body, |mut body| async move {
            let piece = body.recv().await?;
            Some((Ok::<_, Infallible>(Frame::data(piece)), body))
        });
        let response = response.body(BodyExt::boxed(StreamBody::new(body))).expect("a response");
        assert!(self.answer.send(response).is_ok(), "nobody waits for the answer");
        Stream(pieces)
    }

    pub(crate) fn stream(self) -> Stream {
        self.stream_with(Response::builder().header("content-type", "text/event-stream; charset=utf-8"))
    }

    /// Until the caller has closed the request without an answer.
    pub(crate) async fn closed(mut self) {
        soon("the request is closed", self.answer.closed()).await;
    }
}

impl Stream {
    pub(crate) async fn send(&self, piece: impl Into<Bytes>) {
        soon("the piece is taken", self.0.send(piece.into())).await.expect("an open stream");
    }

    /// Sends while it is read; false once it is closed.
    pub(crate) async fn try_send(&self, piece: Bytes) -> bool {
        soon("the piece is taken or the stream closed", self.0.send(piece)).await.is_ok()
    }

    /// The sending side itself.
    pub(crate) fn sender(&self) -> mpsc::Sender<Bytes> {
        self.0.clone()
    }

    pub(crate) async fn delta(&self, text: &str) {
        self.send(delta(text)).await;
    }

    pub(crate) async fn done(self) {
        self.send("event: done\ndata: {}\n\n").await;
    }

    /// Until the caller has closed the request.
    pub(crate) async fn closed(&self) {
        soon("the stream is closed", self.0.closed()).await;
    }
}

pub(crate) fn delta(text: &str) -> String {
    format!("event: delta\ndata: {}\n\n", serde_json::json!({ "text": text }))
}

/// Serves until the test ends; each request goes to the test.
pub(crate) fn serve(listener: TcpListener) -> mpsc::UnboundedReceiver<Call> {
    let (calls, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((socket, peer)) = listener.accept().await {
            let calls = calls.clone();
            let service = service_fn(move |request| answer(request, peer, calls.clone()));
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
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
    // The test is over where nobody takes it; the connection is then of no interest.
    let _ = calls.send(Call { head, body, peer, answer });
    match answered.await {
        Ok(response) => Ok(response),
        // A call the test let go of is never answered.
        Err(_) => std::future::pending().await,
    }
}

/// Takes one connection and reads the request on it; what is written then is the test's.
pub(crate) async fn accept(listener: &TcpListener) -> TcpStream {
    let (mut socket, _) = soon("a connection", listener.accept()).await.expect("a connection");
    let mut read = Vec::new();
    let mut byte = [0u8; 1];
    while !read.ends_with(b"\r\n\r\n") {
        soon("a request", socket.read_exact(&mut byte)).await.expect("a request");
        read.extend_from_slice(&byte);
    }
    socket
}

/// The gateway's side: agents, and what they report.
pub(crate) struct World {
    pub(crate) agents: Agents,
    pub(crate) reports: mpsc::Receiver<Report>,
    /// What the HTTP agent `a` is asked.
    pub(crate) calls: mpsc::UnboundedReceiver<Call>,
}

impl World {
    /// With an agent `a` whose flag ends so, e.g. `,cancel=true`; and the built-in ones.
    pub(crate) async fn new(keys: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let calls = serve(listener);
        Self::with(&format!("a=http://{address}/base{keys}"), calls, 64)
    }

    /// With an agent `a` that is no HTTP server but a listener.
    pub(crate) async fn raw() -> (Self, TcpListener) {
        Self::raw_with("").await
    }

    /// The same with these keys.
    pub(crate) async fn raw_with(keys: &str) -> (Self, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (_, calls) = mpsc::unbounded_channel();
        (Self::with(&format!("a=http://{address}{keys}"), calls, 64), listener)
    }

    /// The same behind plugins.
    pub(crate) async fn behind(keys: &str, plugins: Plugins) -> Self {
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
        soon("a request", self.calls.recv()).await.expect("a server")
    }

    /// The next report that is more than a sign of life: those depend on how fast the machine is.
    pub(crate) async fn report(&mut self) -> Report {
        loop {
            let report = soon("a report", self.reports.recv()).await.expect("agents");
            if report.event != AgentEvent::Alive {
                return report;
            }
        }
    }

    /// Until the agent is reported to be alive, and nothing else.
    pub(crate) async fn alive(&mut self) {
        let report = soon("a sign of life", self.reports.recv()).await.expect("agents");
        assert_eq!(report.event, AgentEvent::Alive);
    }

    /// The next event of an attempt.
    pub(crate) async fn event(&mut self, of: &Invoke) -> AgentEvent {
        let report = self.report().await;
        assert_eq!((&report.key, &report.run_id, report.attempt), (&of.key, &of.run_id, of.attempt));
        report.event
    }

    pub(crate) async fn expect(&mut self, of: &Invoke, event: AgentEvent) {
        assert_eq!(self.event(of).await, event);
    }

    /// All text up to the end, the pieces put together; and the end.
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

    /// Asks, and hears that the agent has it.
    pub(crate) async fn begin(&mut self, order: &Invoke) -> (Stream, String) {
        self.invoke(order.clone());
        let call = self.call().await;
        let token = call.token();
        assert!(self.agents.tokens().verify(&token).is_some());
        let stream = call.stream();
        self.expect(order, AgentEvent::Acked).await;
        (stream, token)
    }

    /// Nothing runs any more, and no token is alive.
    pub(crate) async fn is_quiet(&self) {
        soon("nothing runs", async {
            while self.agents.running() > 0 || !self.agents.tokens().is_empty() {
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

    pub(crate) fn let_go(&self, order: &Invoke) {
        self.agents.perform(Order::Drop { run_id: order.run_id.clone(), attempt: order.attempt });
    }

    pub(crate) fn credit(&self, order: &Invoke, upto: u64) {
        self.agents.perform(Order::Credit { run_id: order.run_id.clone(), attempt: order.attempt, upto });
    }
}

/// An order to answer `text`. Any text names its message, so that tables of cases can name theirs.
pub(crate) fn order(agent: &str, message: &str, text: &str) -> Invoke {
    let key =
        SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
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
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned()),
        handover: None,
        actions: None,
        system_prompt: None,
        resume: None,
    }
}

pub(crate) fn done() -> AgentEvent {
    AgentEvent::Done { stop: turnway_core::protocol::agent::StopReason::EndTurn, usage: None }
}

/// These agents, counted by nobody else.
pub(crate) fn agents(
    specs: Vec<AgentSpec>,
    default: Option<AgentId>,
    reports: mpsc::Sender<Report>,
) -> Result<Agents, BadAgent> {
    agents_behind(specs, default, Plugins::default(), reports)
}

fn agents_behind(
    specs: Vec<AgentSpec>,
    default: Option<AgentId>,
    plugins: Plugins,
    reports: mpsc::Sender<Report>,
) -> Result<Agents, BadAgent> {
    let metrics = Metrics::register(&prometheus::Registry::new()).expect("each family once");
    let (clock, metrics) = (Clock::start(), Arc::new(metrics));
    let lines = Lines::new(NodeId(1), &Handle::current(), clock.clone(), Arc::clone(&metrics));
    Agents::new(specs, default, plugins, reports, turnway_core::limits::ATTEMPTS_MAX, &lines, clock, metrics)
}
