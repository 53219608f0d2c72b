//! Sockudo in the comparison: version 2 of Pusher's protocol, published to by signed HTTP requests.
use super::http_publish::Http2Publisher;
use super::system::{
    ChannelPublisher, ComparedSystem, Fleet, FleetSetup, FrameEffect, OutgoingMessage, SubscriberEndpoint,
    SubscriberProtocol,
};
use super::test_message::{TestMessage, TestMessageScanner};
use super::workspace::{Server, Workspace, free_port, version_of};
use crate::error::{BenchError, ConnectionFailure};
use aws_lc_rs::hmac;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use http::Request;
use http_body_util::Full;
use md5::{Digest, Md5};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use tokio_tungstenite::tungstenite::Message;

const APP: &str = "compare";
const SECRET: &str = "compare-secret";
/// Events of one request: the server's default limit.
const BATCH: usize = 10;
/// A limit that no load reaches.
const NO_LIMIT: &str = "1000000000";

/// The driver of Sockudo.
pub struct Sockudo;

/// A subscription.
struct SockudoSubscriber {
    channel: String,
    scanner: TestMessageScanner,
    /// Position of the last message that had one, for resuming.
    position: Option<Position>,
    /// Serials since the last resume: a message that arrives both live and as a repeat counts once.
    seen: BTreeSet<u64>,
}

#[derive(Deserialize)]
struct Position {
    serial: u64,
    stream_id: Option<String>,
    message_id: Option<String>,
}

struct SockudoPublisher {
    /// HTTP/2, because with HTTP/1.1 the server closes after each answer.
    streams: Http2Publisher,
    at: SocketAddr,
    channels: Vec<String>,
    key: hmac::Key,
}

fn program(ground: &Workspace) -> PathBuf {
    ground.installed.join("bin/sockudo")
}

// === impl Sockudo ===

impl ComparedSystem for Sockudo {
    fn name(&self) -> &'static str {
        "Sockudo"
    }

    fn version(&self, ground: &Workspace) -> Result<String, String> {
        version_of(Command::new(program(ground)).arg("--version"))
    }

    fn start<'a>(&'a self, ground: &'a Workspace, plan: FleetSetup) -> LocalBoxFuture<'a, Result<Fleet, BenchError>> {
        async move {
            let redis = if plan.is_pair { Some(ground.redis(&[]).await?) } else { None };
            let mut nodes = Vec::new();
            for n in 0..1 + u8::from(plan.is_pair) {
                let port = free_port()?;
                let mut command = Command::new(program(ground));
                command.current_dir(ground.new_dir("sockudo")?);
                command.envs([("HOST", "127.0.0.1"), ("METRICS_ENABLED", "false"), ("LOG_LEVEL", "warn")]);
                // The cache holds the requests that were seen, which several nodes must share.
                let cache = if redis.is_some() { "redis" } else { "memory" };
                command.envs([("CACHE_DRIVER", cache), ("QUEUE_DRIVER", "memory")]);
                command.envs([("APP_MANAGER_DRIVER", "memory"), ("RATE_LIMITER_ENABLED", "false")]);
                command.envs([("SOCKUDO_DEFAULT_APP_ID", APP), ("SOCKUDO_DEFAULT_APP_KEY", APP)]);
                command.env("SOCKUDO_DEFAULT_APP_SECRET", SECRET).env("PORT", port.to_string());
                for limit in ["CONNECTIONS", "BACKEND_EVENTS_PER_SECOND", "CLIENT_EVENTS_PER_SECOND"] {
                    command.env(format!("SOCKUDO_DEFAULT_APP_MAX_{limit}"), NO_LIMIT);
                }
                command.env("INSTANCE_PROCESS_ID", format!("n{n}"));
                command.env("ADAPTER_DRIVER", if redis.is_some() { "redis" } else { "local" });
                if let Some(redis) = &redis {
                    command.env("REDIS_URL", format!("redis://{}", redis.address));
                }
                command.env("CONNECTION_RECOVERY_ENABLED", plan.recovers.to_string());
                command.env("CONNECTION_RECOVERY_MAX_BUFFER_SIZE", "20000");
                nodes.push(ground.start("sockudo", &mut command, port).await?);
            }
            Ok(Fleet { nodes, redis })
        }
        .boxed_local()
    }

    fn subscriber(&self, channel: &str) -> Box<dyn SubscriberProtocol> {
        let channel = channel.to_owned();
        let scanner = TestMessageScanner::default();
        Box::new(SockudoSubscriber { channel, scanner, position: None, seen: BTreeSet::new() })
    }

    fn publisher<'a>(
        &'a self,
        node: &'a Server,
        channels: &'a [String],
    ) -> LocalBoxFuture<'a, Result<Box<dyn ChannelPublisher>, BenchError>> {
        async move {
            let streams = Http2Publisher::open(node.address).await?;
            let at = node.address;
            let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
            Ok(Box::new(SockudoPublisher { streams, at, channels: channels.to_vec(), key })
                as Box<dyn ChannelPublisher>)
        }
        .boxed_local()
    }
}

// === impl SockudoSubscriber ===

impl SockudoSubscriber {
    fn say(event: &str, data: &serde_json::Value) -> FrameEffect {
        FrameEffect::Send(Message::text(json!({ "event": format!("sockudo:{event}"), "data": data }).to_string()))
    }

    fn resume(&self, position: &Position) -> FrameEffect {
        let position = json!({
            "serial": position.serial, "stream_id": position.stream_id,
            "last_message_id": position.message_id,
        });
        Self::say("resume", &json!({ "channel_positions": { (&self.channel): position } }))
    }
}

impl SubscriberProtocol for SockudoSubscriber {
    fn endpoint(&self) -> SubscriberEndpoint {
        SubscriberEndpoint { path: format!("/app/{APP}?protocol=2&client=compare&version=1"), protocol: None }
    }

    fn first_message(&mut self) -> Option<Message> {
        self.scanner.reset();
        self.seen.clear();
        Some(Message::text(r#"{"event":"sockudo:ping","data":{}}"#))
    }

    fn handle_frame(&mut self, frame: &[u8], into: &mut dyn FnMut(TestMessage)) -> FrameEffect {
        let text = std::str::from_utf8(frame).unwrap_or_default();
        if text.contains('~') {
            // Messages have a position only if recovery is enabled.
            let position = if text.contains("\"serial\"") { serde_json::from_str(text).ok() } else { None };
            if let Some(position) = position {
                let position: Position = position;
                if !self.seen.insert(position.serial) {
                    return FrameEffect::Nothing;
                }
                if self.position.as_ref().is_none_or(|last| last.serial < position.serial) {
                    self.position = Some(position);
                }
            }
            self.scanner.scan(frame, into);
            FrameEffect::Nothing
        } else if text.contains("connection_established") {
            Self::say("subscribe", &json!({ "channel": self.channel }))
        } else if text.contains("subscription_succeeded") {
            self.position.as_ref().map_or(FrameEffect::Ready, |position| self.resume(position))
        } else if text.contains("resume_success") {
            FrameEffect::Ready
        } else if text.contains("sockudo:ping") {
            Self::say("pong", &json!({}))
        } else {
            FrameEffect::Nothing
        }
    }
}

// === impl SockudoPublisher ===

impl SockudoPublisher {
    /// Builds a request; path, time and a digest of the body are signed.
    fn request(&self, lines: &[OutgoingMessage]) -> Result<Request<Full<Bytes>>, ConnectionFailure> {
        let channel = lines.first().map_or("", |line| &self.channels[line.channel]);
        let events: Vec<_> =
            lines.iter().map(|line| json!({ "name": "m", "channel": channel, "data": line.text })).collect();
        let body = json!({ "batch": events }).to_string();
        let path = format!("/apps/{APP}/batch_events");
        let query = format!(
            "auth_key={APP}&auth_timestamp={}&auth_version=1.0&body_md5={}",
            jiff::Timestamp::now().as_second(),
            hex(&Md5::digest(body.as_bytes()))
        );
        let signature = hmac::sign(&self.key, format!("POST\n{path}\n{query}").as_bytes());
        let uri = format!("http://{}{path}?{query}&auth_signature={}", self.at, hex(signature.as_ref()));
        let request = Request::post(uri).header("content-type", "application/json");
        request.body(Full::from(body)).map_err(|error| ConnectionFailure::Broken(error.to_string()))
    }
}

impl ChannelPublisher for SockudoPublisher {
    fn publish<'a>(&'a mut self, lines: &'a [OutgoingMessage]) -> LocalBoxFuture<'a, Result<(), ConnectionFailure>> {
        async move {
            for run in lines.chunk_by(|one, next| one.channel == next.channel) {
                for batch in run.chunks(BATCH) {
                    let request = self.request(batch)?;
                    self.streams.send(request).await?;
                }
            }
            Ok(())
        }
        .boxed_local()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::super::test_message::test_message_text;
    use super::*;

    #[test]
    fn requests_are_signed_as_pushers_documentation_has_it() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"7ad3773142a6692b25b8");
        let body = r#"{"name":"foo","channels":["project-3"],"data":"{\"some\":\"data\"}"}"#;
        assert_eq!(hex(&Md5::digest(body)), "ec365a775a4cd0599faeb73354201b6f");
        let signed = "POST\n/apps/3/events\nauth_key=278d425bdf160c739803&auth_timestamp=1353088179&\
                      auth_version=1.0&body_md5=ec365a775a4cd0599faeb73354201b6f";
        assert_eq!(
            hex(hmac::sign(&key, signed.as_bytes()).as_ref()),
            "da454824c97ba181a32ccc17a72625ba02771f50b50e1e7430e47a1f3f457e6c"
        );
    }

    #[test]
    fn who_comes_back_subscribes_and_says_where_he_was() {
        let mut subscriber = Sockudo.subscriber("c");
        let mut heard = Vec::new();
        let mut hear = |frame: &str| subscriber.handle_frame(frame.as_bytes(), &mut |mark| heard.push(mark.n));
        assert!(matches!(hear(r#"{"event":"sockudo:connection_established"}"#), FrameEffect::Send(_)));
        let subscribed = r#"{"event":"sockudo_internal:subscription_succeeded","channel":"c"}"#;
        assert!(matches!(hear(subscribed), FrameEffect::Ready));
        let frame = format!(r#"{{"event":"m","data":"{}","serial":9,"stream_id":"s"}}"#, test_message_text(3));
        hear(&frame);
        hear(&frame);
        let FrameEffect::Send(resume) = hear(subscribed) else { panic!("it takes up where it was") };
        assert!(resume.to_text().is_ok_and(|text| text.contains(r#""serial":9"#)));
        assert!(matches!(hear(r#"{"event":"sockudo:resume_success"}"#), FrameEffect::Ready));
        assert_eq!(heard, [3]);
    }
}
