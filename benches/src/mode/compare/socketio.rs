//! Socket.IO on Node.js in the comparison, with its Redis adapter between two nodes: its packets in WebSocket
//! frames.
use super::listener::{ConnectOptions, Socket, open};
use super::system::{
    ChannelPublisher, ComparedSystem, Fleet, FleetSetup, FrameEffect, OutgoingMessage, SubscriberEndpoint,
    SubscriberProtocol,
};
use super::test_message::{TestMessage, TestMessageScanner};
use super::workspace::{Server, Workspace, free_port, version_of};
use crate::error::{ANSWER_TIMEOUT, BenchError, ConnectionFailure};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::SplitSink;
use futures_util::{FutureExt, SinkExt, StreamExt};
use serde::Deserialize;
use std::process::Command;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::task::AbortOnDropHandle;

/// The whole server; its packages are installed separately.
const SERVER: &str = include_str!("../../../peers/socketio.cjs");
const PATH: &str = "/socket.io/?EIO=4&transport=websocket";

/// The driver of Socket.IO.
pub struct SocketIo;

/// A subscription.
struct SocketIoSubscriber {
    channel: String,
    scanner: TestMessageScanner,
    /// Private session id, if the server can recover the session.
    private_id: Option<String>,
    /// Offset of the last message.
    offset: Option<String>,
    is_ready: bool,
}

struct SocketIoPublisher {
    sink: SplitSink<Socket, Message>,
    channels: Vec<String>,
    /// Aborts the reading task on drop.
    _reader: AbortOnDropHandle<()>,
}

#[derive(Deserialize)]
struct Connected {
    pid: Option<String>,
}

// === impl SocketIo ===

impl ComparedSystem for SocketIo {
    fn name(&self) -> &'static str {
        "Socket.IO"
    }

    fn version(&self, ground: &Workspace) -> Result<String, String> {
        let node = version_of(Command::new("node").arg("--version"))?;
        let file = ground.installed.join("socketio/node_modules/socket.io/package.json");
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let package: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(format!("Socket.IO {} on Node {node}", package["version"].as_str().unwrap_or("unknown")))
    }

    fn start<'a>(&'a self, ground: &'a Workspace, plan: FleetSetup) -> LocalBoxFuture<'a, Result<Fleet, BenchError>> {
        async move {
            let redis = if plan.is_pair { Some(ground.redis(&[]).await?) } else { None };
            let script = ground.new_file("socketio.cjs", SERVER)?;
            let mut nodes = Vec::new();
            for _ in 0..1 + u8::from(plan.is_pair) {
                let port = free_port()?;
                let mut command = Command::new("node");
                command.arg(&script).env("NODE_PATH", ground.installed.join("socketio/node_modules"));
                command.env("PORT", port.to_string()).env("NODE_ENV", "production");
                if let Some(redis) = &redis {
                    command.env("REDIS", format!("redis://{}", redis.address));
                }
                if plan.recovers {
                    command.env("RECOVERS", "1");
                }
                nodes.push(ground.start("socket.io", &mut command, port).await?);
            }
            Ok(Fleet { nodes, redis })
        }
        .boxed_local()
    }

    fn subscriber(&self, channel: &str) -> Box<dyn SubscriberProtocol> {
        let channel = channel.to_owned();
        let scanner = TestMessageScanner::default();
        Box::new(SocketIoSubscriber { channel, scanner, private_id: None, offset: None, is_ready: false })
    }

    fn publisher<'a>(
        &'a self,
        node: &'a Server,
        channels: &'a [String],
    ) -> LocalBoxFuture<'a, Result<Box<dyn ChannelPublisher>, BenchError>> {
        async move {
            let socket = open(node.address, PATH, None, ConnectOptions::default()).await?;
            let (mut sink, mut stream) = socket.split();
            sink.send(Message::text("40")).await.map_err(ConnectionFailure::from)?;
            let is_connected = |message: Message| message.to_text().is_ok_and(|text| text.starts_with("40"));
            let connected = async {
                while let Some(Ok(message)) = stream.next().await {
                    if is_connected(message) {
                        return Ok(());
                    }
                }
                Err(ConnectionFailure::Broken("no connect packet".to_owned()))
            };
            timeout(ANSWER_TIMEOUT, connected).await.map_err(|_| ConnectionFailure::TimedOut)??;
            // A ping is due every 25 s and may be answered 20 s late, which no load of one publisher reaches.
            let reader = tokio::task::spawn_local(async move { while stream.next().await.is_some() {} });
            let publisher =
                SocketIoPublisher { sink, channels: channels.to_vec(), _reader: AbortOnDropHandle::new(reader) };
            Ok(Box::new(publisher) as Box<dyn ChannelPublisher>)
        }
        .boxed_local()
    }
}

// === impl SocketIoSubscriber ===

impl SocketIoSubscriber {
    /// Handles `40{"sid":…,"pid":…}`; with a pid the session can be recovered.
    fn connected(&mut self, text: &str) -> FrameEffect {
        let was = self.private_id.take();
        self.private_id = serde_json::from_str::<Connected>(text).ok().and_then(|connected| connected.pid);
        if was.is_some() && was == self.private_id {
            // The session is recovered with its rooms.
            self.is_ready = true;
            return FrameEffect::Ready;
        }
        FrameEffect::Send(Message::text(format!("420[\"join\",\"{}\"]", self.channel)))
    }
}

impl SubscriberProtocol for SocketIoSubscriber {
    fn endpoint(&self) -> SubscriberEndpoint {
        SubscriberEndpoint { path: PATH.to_owned(), protocol: None }
    }

    fn first_message(&mut self) -> Option<Message> {
        self.scanner.reset();
        self.is_ready = false;
        Some(Message::text(match (&self.private_id, &self.offset) {
            (Some(private), Some(offset)) => {
                format!("40{}", serde_json::json!({ "pid": private, "offset": offset }))
            }
            (_, _) => "40".to_owned(),
        }))
    }

    fn handle_frame(&mut self, frame: &[u8], into: &mut dyn FnMut(TestMessage)) -> FrameEffect {
        let text = std::str::from_utf8(frame).unwrap_or_default();
        if let Some(event) = text.strip_prefix("42") {
            self.scanner.scan(event.as_bytes(), into);
            if self.private_id.is_some() {
                // The offset is the last argument.
                let words: Vec<String> = serde_json::from_str(event).unwrap_or_default();
                self.offset = words.into_iter().nth(2).or(self.offset.take());
            }
            FrameEffect::Nothing
        } else if text == "2" {
            FrameEffect::Send(Message::text("3"))
        } else if let Some(connected) = text.strip_prefix("40") {
            self.connected(connected)
        } else if text.starts_with("430") && !self.is_ready {
            self.is_ready = true;
            FrameEffect::Ready
        } else {
            FrameEffect::Nothing
        }
    }
}

// === impl SocketIoPublisher ===

impl ChannelPublisher for SocketIoPublisher {
    fn publish<'a>(&'a mut self, lines: &'a [OutgoingMessage]) -> LocalBoxFuture<'a, Result<(), ConnectionFailure>> {
        async move {
            for line in lines {
                let text = format!("42[\"say\",\"{}\",\"{}\"]", self.channels[line.channel], line.text);
                self.sink.feed(Message::text(text)).await?;
            }
            Ok(self.sink.flush().await?)
        }
        .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_known_comes_back_with_his_offset_and_joins_nothing() {
        let mut subscriber = SocketIo.subscriber("c");
        let mut ignore = |_: TestMessage| {};
        assert_eq!(subscriber.first_message(), Some(Message::text("40")));
        assert!(matches!(subscriber.handle_frame(br#"40{"sid":"s","pid":"p"}"#, &mut ignore), FrameEffect::Send(_)));
        assert!(matches!(subscriber.handle_frame(b"430[]", &mut ignore), FrameEffect::Ready));
        subscriber.handle_frame(br#"42["m","x","o1"]"#, &mut ignore);
        assert_eq!(subscriber.first_message(), Some(Message::text(r#"40{"offset":"o1","pid":"p"}"#)));
        assert!(matches!(subscriber.handle_frame(br#"40{"sid":"t","pid":"p"}"#, &mut ignore), FrameEffect::Ready));
    }
}
