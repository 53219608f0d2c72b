//! Turnway in the comparison: an agent (HTTP and server-sent events) sends pieces of an answer, and subscribers
//! of the session receive them. A channel is a session with an answer in progress.
pub mod agent;

use super::listener::{ConnectOptions, Socket, open};
use super::system::{
    ChannelPublisher, ComparedSystem, Fleet, FleetSetup, FrameEffect, OutgoingMessage, SubscriberEndpoint,
    SubscriberProtocol,
};
use super::test_message::{TestMessage, TestMessageScanner};
use super::workspace::{Server, Workspace, free_port, version_of};
use crate::error::{BenchError, ConnectionFailure};
use crate::wire::{self, ServerMessage, json_string};
use agent::{Agent, Answer};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::SplitSink;
use futures_util::{FutureExt, SinkExt, StreamExt};
use std::fmt::Write;
use std::process::Command;
use std::rc::Rc;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::task::AbortOnDropHandle;

const PATH: &str = "/v1/connect";
const PROTOCOL: Option<&str> = Some("turnway.v1");
/// The only user, because sessions belong to their user.
const USER: &str = "compare";
/// Size after which an answer is replaced by a new one: an answer of more than 4 MiB fails.
const ANSWER_BYTES: usize = 3 * 1024 * 1024;

/// The driver of Turnway.
#[derive(Default)]
pub struct Turnway {
    agent: Rc<Agent>,
}

/// A subscription.
struct Subscriber {
    session: String,
    scanner: TestMessageScanner,
    /// Sequence number and epoch of the last fact.
    last: Option<(u64, u64)>,
    /// Answer in progress: run id, attempt, and end offset of the received text.
    answer: Option<(String, u32, u64)>,
}

/// A connection that becomes idle after one whole turn.
struct IdleConnection {
    session: String,
}

/// The connection that sends turns, and the answers that the agent gives to them.
struct TurnwayPublisher {
    agent: Rc<Agent>,
    sink: SplitSink<Socket, Message>,
    /// Aborts the reading task on drop.
    _reader: AbortOnDropHandle<()>,
    sessions: Vec<String>,
    answers: Vec<Answer>,
    asked: u64,
}

// === impl Turnway ===

impl ComparedSystem for Turnway {
    fn name(&self) -> &'static str {
        "Turnway"
    }

    fn version(&self, workspace: &Workspace) -> Result<String, String> {
        version_of(Command::new(&workspace.turnway).arg("version"))
    }

    fn start<'a>(
        &'a self,
        workspace: &'a Workspace,
        plan: FleetSetup,
    ) -> LocalBoxFuture<'a, Result<Fleet, BenchError>> {
        async move {
            let agent = format!("lean=http://{},on_owner_loss=retry", self.agent.address_or_start().await?);
            let settings = ["--appendonly", "yes", "--appendfsync", "everysec"];
            let redis = if plan.is_pair { Some(workspace.redis(&settings).await?) } else { None };
            let mut nodes = Vec::new();
            for n in 0..1 + u8::from(plan.is_pair) {
                let port = free_port()?;
                let admin = free_port()?;
                let home = workspace.new_dir("turnway")?;
                let store = match &redis {
                    Some(redis) => format!("redis://{}", redis.address),
                    None => format!("embedded:{}", home.join("data").display()),
                };
                let mut command = Command::new(&workspace.turnway);
                command.args(["serve", "--demo", "--agent", &agent, "--store", &store]);
                command.args(["--listen", &format!("127.0.0.1:{port}"), "--node-name", &format!("n{n}")]);
                command.args(["--quic", "off", "--admin", &format!("127.0.0.1:{admin}")]).current_dir(&home);
                if plan.is_pair {
                    command.args(["--durability", "os"]);
                }
                nodes.push(workspace.start("turnway", &mut command, port).await?);
            }
            Ok(Fleet { nodes, redis })
        }
        .boxed_local()
    }

    fn subscriber(&self, channel: &str) -> Box<dyn SubscriberProtocol> {
        let session = channel.to_owned();
        let scanner = TestMessageScanner::default();
        Box::new(Subscriber { session, scanner, last: None, answer: None })
    }

    fn idle_subscriber(&self, channel: &str) -> Box<dyn SubscriberProtocol> {
        Box::new(IdleConnection { session: channel.to_owned() })
    }

    fn publisher<'a>(
        &'a self,
        node: &'a Server,
        channels: &'a [String],
    ) -> LocalBoxFuture<'a, Result<Box<dyn ChannelPublisher>, BenchError>> {
        async move {
            let socket = open(node.address, PATH, PROTOCOL, ConnectOptions::default()).await?;
            let (mut sink, mut stream) = socket.split();
            sink.send(Message::text(wire::hello(USER, None, ""))).await.map_err(ConnectionFailure::from)?;
            let reader = tokio::task::spawn_local(async move { while stream.next().await.is_some() {} });
            let mut speaker = TurnwayPublisher {
                agent: Rc::clone(&self.agent),
                sink,
                _reader: AbortOnDropHandle::new(reader),
                sessions: channels.to_vec(),
                answers: Vec::new(),
                asked: 0,
            };
            for n in 0..channels.len() {
                let answer = speaker.open_answer(n).await?;
                speaker.answers.push(answer);
            }
            Ok(Box::new(speaker) as Box<dyn ChannelPublisher>)
        }
        .boxed_local()
    }
}

// === impl Subscriber ===

impl Subscriber {
    /// Remembers the position for a later resume.
    fn remember_position(&mut self, message: &ServerMessage<'_>) {
        if let Some(seq) = message.seq.filter(|_| message.kind != "subscribed") {
            self.last = Some((seq, message.epoch.unwrap_or(self.last.map_or(0, |(_, epoch)| epoch))));
        }
        if message.is_text()
            && let Some(run) = message.run_id.as_deref()
        {
            let attempt = message.attempt.unwrap_or(1);
            let text = message.text.as_deref().unwrap_or_default();
            let end = message.offset.unwrap_or(0) + text.len() as u64;
            match &mut self.answer {
                Some((known, of, until)) if known == run => (*of, *until) = (attempt, end),
                Some(_) | None => self.answer = Some((run.to_owned(), attempt, end)),
            }
        } else if message.kind == "done" {
            self.answer = None;
        }
    }
}

impl SubscriberProtocol for Subscriber {
    fn endpoint(&self) -> SubscriberEndpoint {
        SubscriberEndpoint { path: PATH.to_owned(), protocol: PROTOCOL }
    }

    fn first_message(&mut self) -> Option<Message> {
        let mut body = format!("{{\"session_id\":{}", json_string(&self.session));
        // Writing to a string cannot fail.
        if let Some((seq, epoch)) = self.last {
            let _ = write!(body, ",\"after_seq\":{seq},\"after_epoch\":{epoch}");
        }
        if let Some((run, attempt, offset)) = &self.answer {
            let run = json_string(run);
            let _ = write!(body, ",\"runs\":{{{run}:{{\"attempt\":{attempt},\"offset\":{offset}}}}}");
        }
        body.push('}');
        Some(Message::text(wire::hello(USER, None, &body)))
    }

    fn handle_frame(&mut self, frame: &[u8], into: &mut dyn FnMut(TestMessage)) -> FrameEffect {
        let text = std::str::from_utf8(frame).unwrap_or_default();
        let Some(heard) = ServerMessage::parse(text) else { return FrameEffect::Nothing };
        self.remember_position(&heard);
        if heard.is_text() {
            self.scanner.scan(heard.text.as_deref().unwrap_or_default().as_bytes(), into);
        }
        if heard.kind == "subscribed" { FrameEffect::Ready } else { FrameEffect::Nothing }
    }
}

// === impl IdleConnection ===

impl SubscriberProtocol for IdleConnection {
    fn endpoint(&self) -> SubscriberEndpoint {
        SubscriberEndpoint { path: PATH.to_owned(), protocol: PROTOCOL }
    }

    fn first_message(&mut self) -> Option<Message> {
        Some(Message::text(wire::hello(USER, None, "")))
    }

    fn handle_frame(&mut self, frame: &[u8], _into: &mut dyn FnMut(TestMessage)) -> FrameEffect {
        let text = std::str::from_utf8(frame).unwrap_or_default();
        match wire::message_type(text) {
            "welcome" => {
                FrameEffect::Send(Message::text(wire::Invoke::new("idle", &self.session, "echo", "hello").render(0)))
            }
            "done" => FrameEffect::Ready,
            _ => FrameEffect::Nothing,
        }
    }
}

// === impl TurnwayPublisher ===

impl TurnwayPublisher {
    /// Sends a turn in this session, and waits until the agent is called. This connection does not subscribe to
    /// the answer.
    async fn open_answer(&mut self, n: usize) -> Result<Answer, ConnectionFailure> {
        let session = &self.sessions[n];
        let invoke = wire::Invoke::new("ask", session, "lean", session).render(self.asked);
        self.asked += 1;
        self.sink.feed(Message::text(invoke)).await?;
        let leave = format!("{{\"type\":\"unsubscribe\",\"session_id\":{}}}", json_string(session));
        self.sink.send(Message::text(leave)).await?;
        self.agent.take_answer(session).await
    }
}

impl ChannelPublisher for TurnwayPublisher {
    fn publish<'a>(&'a mut self, lines: &'a [OutgoingMessage]) -> LocalBoxFuture<'a, Result<(), ConnectionFailure>> {
        async move {
            for run in lines.chunk_by(|one, next| one.channel == next.channel) {
                let Some(n) = run.first().map(|line| line.channel) else { continue };
                if self.answers[n].sent_bytes() > ANSWER_BYTES {
                    self.answers[n].end().await?;
                    self.answers[n] = self.open_answer(n).await?;
                }
                self.answers[n].send_messages(run).await?;
            }
            Ok(())
        }
        .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_message::test_message_text;
    use super::*;

    #[test]
    fn who_comes_back_says_how_far_he_was() {
        let mut subscriber = Turnway::default().subscriber("s");
        let mut heard = Vec::new();
        let mut hear = |frame: String| {
            subscriber.handle_frame(frame.as_bytes(), &mut |mark| heard.push(mark.n));
        };
        hear(r#"{"type":"run_started","seq":3,"epoch":2,"run_id":"s.r"}"#.to_owned());
        let text = test_message_text(4);
        let delta = |offset: usize, text: &str| {
            format!(r#"{{"type":"delta","run_id":"s.r","attempt":1,"offset":{offset},"text":"{text}"}}"#)
        };
        hear(delta(0, &text[..10]));
        hear(delta(10, &text[10..]));
        let opening = subscriber.first_message().map(|message| message.into_text().expect("text").to_string());
        let opening: serde_json::Value = serde_json::from_str(&opening.expect("a hello")).expect("JSON");
        let cursor = &opening["resume"][0];
        assert_eq!((&cursor["after_seq"], &cursor["after_epoch"]), (&3.into(), &2.into()));
        assert_eq!(cursor["runs"]["s.r"]["offset"], 128);
        assert_eq!(heard, [4]);
    }
}
