//! NATS in the comparison: nats-server over WebSocket, core publish and subscribe, its text protocol in frames.
use super::listener::{ConnectOptions, Socket, open};
use super::system::{
    ChannelPublisher, ComparedSystem, Fleet, FleetSetup, FrameEffect, OutgoingMessage, SubscriberEndpoint,
    SubscriberProtocol,
};
use super::test_message::{TestMessage, TestMessageScanner};
use super::workspace::{Server, Workspace, free_port, version_of};
use crate::error::{BenchError, ConnectionFailure};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::SplitSink;
use futures_util::{FutureExt, SinkExt, StreamExt};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::task::AbortOnDropHandle;

const HELLO: &str = "CONNECT {\"verbose\":false,\"pedantic\":false,\"protocol\":1}\r\n";
const PONG: &[u8] = b"PONG\r\n";
const PING: &[u8] = b"PING\r\n";

/// The driver of NATS.
pub struct Nats;

/// A subscription.
struct NatsSubscriber {
    channel: String,
    scanner: TestMessageScanner,
    is_ready: bool,
}

/// A publishing connection; a task reads and discards what the server sends.
struct NatsPublisher {
    sink: SplitSink<Socket, Message>,
    channels: Vec<String>,
    /// Aborts the reading task on drop.
    _reader: AbortOnDropHandle<()>,
}

fn program(ground: &Workspace) -> PathBuf {
    ground.installed.join("nats/bin/nats-server")
}

// === impl Nats ===

impl ComparedSystem for Nats {
    fn name(&self) -> &'static str {
        "NATS"
    }

    fn version(&self, ground: &Workspace) -> Result<String, String> {
        version_of(Command::new(program(ground)).arg("--version"))
    }

    fn start<'a>(&'a self, ground: &'a Workspace, plan: FleetSetup) -> LocalBoxFuture<'a, Result<Fleet, BenchError>> {
        async move {
            let mut nodes = Vec::new();
            let routes: Vec<u16> = (0..1 + u8::from(plan.is_pair)).map(|_| free_port()).collect::<Result<_, _>>()?;
            for route in &routes {
                let client = free_port()?;
                let web = free_port()?;
                let others = routes.iter().map(|port| format!("\"nats://127.0.0.1:{port}\""));
                let others = others.collect::<Vec<_>>().join(", ");
                let mut settings = format!(
                    "listen: \"127.0.0.1:{client}\"\nserver_name: \"n{route}\"\n\
                     websocket {{ listen: \"127.0.0.1:{web}\", no_tls: true }}\n"
                );
                if plan.is_pair {
                    // Writing to a string cannot fail.
                    let _ = writeln!(
                        settings,
                        "cluster {{ name: pair, listen: \"127.0.0.1:{route}\", routes: [{others}] }}"
                    );
                }
                let file = ground.new_file("nats.conf", &settings)?;
                let mut command = Command::new(program(ground));
                nodes.push(ground.start("nats-server", command.arg("-c").arg(file), web).await?);
            }
            Ok(Fleet { nodes, redis: None })
        }
        .boxed_local()
    }

    fn subscriber(&self, channel: &str) -> Box<dyn SubscriberProtocol> {
        let channel = channel.to_owned();
        Box::new(NatsSubscriber { channel, scanner: TestMessageScanner::default(), is_ready: false })
    }

    fn publisher<'a>(
        &'a self,
        node: &'a Server,
        channels: &'a [String],
    ) -> LocalBoxFuture<'a, Result<Box<dyn ChannelPublisher>, BenchError>> {
        async move {
            let socket = open(node.address, "/", None, ConnectOptions::default()).await?;
            let (mut sink, mut stream) = socket.split();
            sink.send(Message::binary(HELLO.as_bytes().to_vec())).await.map_err(ConnectionFailure::from)?;
            // A load ends before the server sends its first ping.
            let reader = tokio::task::spawn_local(async move { while stream.next().await.is_some() {} });
            let publisher =
                NatsPublisher { sink, channels: channels.to_vec(), _reader: AbortOnDropHandle::new(reader) };
            Ok(Box::new(publisher) as Box<dyn ChannelPublisher>)
        }
        .boxed_local()
    }
}

// === impl NatsSubscriber ===

impl SubscriberProtocol for NatsSubscriber {
    fn endpoint(&self) -> SubscriberEndpoint {
        SubscriberEndpoint { path: "/".to_owned(), protocol: None }
    }

    fn first_message(&mut self) -> Option<Message> {
        self.scanner.reset();
        self.is_ready = false;
        let text = format!("{HELLO}SUB {} 1\r\nPING\r\n", self.channel);
        Some(Message::binary(text.into_bytes()))
    }

    fn handle_frame(&mut self, frame: &[u8], into: &mut dyn FnMut(TestMessage)) -> FrameEffect {
        self.scanner.scan(frame, into);
        if !self.is_ready && frame.windows(PONG.len()).any(|words| words == PONG) {
            self.is_ready = true;
            return FrameEffect::Ready;
        }
        // The server sends a ping in a frame of its own if nothing else is to be sent.
        if frame == PING { FrameEffect::Send(Message::binary(PONG.to_vec())) } else { FrameEffect::Nothing }
    }
}

// === impl NatsPublisher ===

impl ChannelPublisher for NatsPublisher {
    fn publish<'a>(&'a mut self, lines: &'a [OutgoingMessage]) -> LocalBoxFuture<'a, Result<(), ConnectionFailure>> {
        async move {
            let mut text = String::new();
            for line in lines {
                let channel = &self.channels[line.channel];
                // Writing to a string cannot fail.
                let _ = write!(text, "PUB {channel} {}\r\n{}\r\n", line.text.len(), line.text);
            }
            Ok(self.sink.send(Message::binary(text.into_bytes())).await?)
        }
        .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_message::test_message_text;
    use super::*;

    #[test]
    fn a_subscription_is_ready_with_its_pong_and_hears_what_is_cut() {
        let mut subscriber = Nats.subscriber("c");
        let mut heard = Vec::new();
        let opening = subscriber.first_message().map(|message| message.into_data());
        assert!(opening.is_some_and(|data| data.ends_with(b"SUB c 1\r\nPING\r\n")));
        assert!(matches!(
            subscriber.handle_frame(b"INFO {}\r\n", &mut |mark| heard.push(mark.n)),
            FrameEffect::Nothing
        ));
        assert!(matches!(subscriber.handle_frame(PONG, &mut |mark| heard.push(mark.n)), FrameEffect::Ready));
        assert!(matches!(subscriber.handle_frame(PING, &mut |mark| heard.push(mark.n)), FrameEffect::Send(_)));
        let frame = format!("MSG c 1 128\r\n{}\r\n", test_message_text(5));
        subscriber.handle_frame(&frame.as_bytes()[..20], &mut |mark| heard.push(mark.n));
        subscriber.handle_frame(&frame.as_bytes()[20..], &mut |mark| heard.push(mark.n));
        assert_eq!(heard, [5]);
    }
}
