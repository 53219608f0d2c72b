//! Socket.IO on Node.js in the comparison, with its Redis adapter between two nodes: its packets in WebSocket
//! frames.
use super::ground::{Ground, Server, free_port, version_of};
use super::listener::{Socket, Way, open};
use super::mark::{Mark, Scanner};
use super::peer::{Door, Ear, Fleet, Line, Mouth, Peer, Plan, Reply};
use crate::trouble::{Lost, PATIENCE, Trouble};
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
struct Subscriber {
    channel: String,
    scanner: Scanner,
    /// Private session id, if the server can recover the session.
    private: Option<String>,
    /// Offset of the last message.
    offset: Option<String>,
    is_ready: bool,
}

struct Publisher {
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

impl Peer for SocketIo {
    fn name(&self) -> &'static str {
        "Socket.IO"
    }

    fn version(&self, ground: &Ground) -> Result<String, String> {
        let node = version_of(Command::new("node").arg("--version"))?;
        let file = ground.installed.join("socketio/node_modules/socket.io/package.json");
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let package: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(format!("Socket.IO {} on Node {node}", package["version"].as_str().unwrap_or("unknown")))
    }

    fn start<'a>(&'a self, ground: &'a Ground, plan: Plan) -> LocalBoxFuture<'a, Result<Fleet, Trouble>> {
        async move {
            let redis = if plan.is_pair { Some(ground.redis(&[]).await?) } else { None };
            let script = ground.file("socketio.cjs", SERVER)?;
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

    fn ear(&self, channel: &str) -> Box<dyn Ear> {
        let (channel, scanner) = (channel.to_owned(), Scanner::default());
        Box::new(Subscriber { channel, scanner, private: None, offset: None, is_ready: false })
    }

    fn mouth<'a>(
        &'a self,
        node: &'a Server,
        channels: &'a [String],
    ) -> LocalBoxFuture<'a, Result<Box<dyn Mouth>, Trouble>> {
        async move {
            let socket = open(node.address, PATH, None, Way::default()).await?;
            let (mut sink, mut stream) = socket.split();
            sink.send(Message::text("40")).await.map_err(Lost::from)?;
            let is_connected = |message: Message| message.to_text().is_ok_and(|text| text.starts_with("40"));
            let connected = async {
                while let Some(Ok(message)) = stream.next().await {
                    if is_connected(message) {
                        return Ok(());
                    }
                }
                Err(Lost::Broken("no connect packet".to_owned()))
            };
            timeout(PATIENCE, connected).await.map_err(|_| Lost::Silent)??;
            // A ping is due every 25 s and may be answered 20 s late, which no load of one publisher reaches.
            let reader = tokio::task::spawn_local(async move { while stream.next().await.is_some() {} });
            let mouth =
                Publisher { sink, channels: channels.to_vec(), _reader: AbortOnDropHandle::new(reader) };
            Ok(Box::new(mouth) as Box<dyn Mouth>)
        }
        .boxed_local()
    }
}

// === impl Subscriber ===

impl Subscriber {
    /// Handles `40{"sid":…,"pid":…}`; with a pid the session can be recovered.
    fn connected(&mut self, text: &str) -> Reply {
        let was = self.private.take();
        self.private = serde_json::from_str::<Connected>(text).ok().and_then(|connected| connected.pid);
        if was.is_some() && was == self.private {
            // The session is recovered with its rooms.
            self.is_ready = true;
            return Reply::Ready;
        }
        Reply::Say(Message::text(format!("420[\"join\",\"{}\"]", self.channel)))
    }
}

impl Ear for Subscriber {
    fn door(&self) -> Door {
        Door { path: PATH.to_owned(), protocol: None }
    }

    fn opening(&mut self) -> Option<Message> {
        self.scanner.forget();
        self.is_ready = false;
        Some(Message::text(match (&self.private, &self.offset) {
            (Some(private), Some(offset)) => {
                format!("40{}", serde_json::json!({ "pid": private, "offset": offset }))
            }
            (_, _) => "40".to_owned(),
        }))
    }

    fn hear(&mut self, frame: &[u8], into: &mut dyn FnMut(Mark)) -> Reply {
        let text = std::str::from_utf8(frame).unwrap_or_default();
        if let Some(event) = text.strip_prefix("42") {
            self.scanner.scan(event.as_bytes(), into);
            if self.private.is_some() {
                // The offset is the last argument.
                let words: Vec<String> = serde_json::from_str(event).unwrap_or_default();
                self.offset = words.into_iter().nth(2).or(self.offset.take());
            }
            Reply::Nothing
        } else if text == "2" {
            Reply::Say(Message::text("3"))
        } else if let Some(connected) = text.strip_prefix("40") {
            self.connected(connected)
        } else if text.starts_with("430") && !self.is_ready {
            self.is_ready = true;
            Reply::Ready
        } else {
            Reply::Nothing
        }
    }
}

// === impl Publisher ===

impl Mouth for Publisher {
    fn say<'a>(&'a mut self, lines: &'a [Line]) -> LocalBoxFuture<'a, Result<(), Lost>> {
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
        let (mut ear, mut ignore) = (SocketIo.ear("c"), |_: Mark| {});
        assert_eq!(ear.opening(), Some(Message::text("40")));
        assert!(matches!(ear.hear(br#"40{"sid":"s","pid":"p"}"#, &mut ignore), Reply::Say(_)));
        assert!(matches!(ear.hear(b"430[]", &mut ignore), Reply::Ready));
        ear.hear(br#"42["m","x","o1"]"#, &mut ignore);
        assert_eq!(ear.opening(), Some(Message::text(r#"40{"offset":"o1","pid":"p"}"#)));
        assert!(matches!(ear.hear(br#"40{"sid":"t","pid":"p"}"#, &mut ignore), Reply::Ready));
    }
}
