//! nchan in the comparison: nginx with the module nchan, published to by HTTP, subscribed by WebSocket with
//! message ids.
use super::http_publish::PipelinedPublisher;
use super::system::{
    ChannelPublisher, ComparedSystem, Fleet, FleetSetup, FrameEffect, OutgoingMessage, SubscriberEndpoint,
    SubscriberProtocol,
};
use super::test_message::{TestMessage, TestMessageScanner};
use super::workspace::{Server, Workspace, free_port, pause, version_of};
use crate::error::{BenchError, ConnectionFailure};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

/// Messages that a channel keeps for reconnecting subscribers: more than any interrupted load has.
const KEPT: u32 = 20_000;

/// Time that nginx needs to initialise its Redis.
const REDIS_INIT_WAIT: Duration = Duration::from_secs(1);

/// The driver of nchan.
pub struct Nchan;

/// A subscription.
struct NchanSubscriber {
    channel: String,
    scanner: TestMessageScanner,
    /// Id of the last message.
    last: Option<String>,
}

struct NchanPublisher {
    pipeline: PipelinedPublisher,
    channels: Vec<String>,
}

fn program(ground: &Workspace) -> PathBuf {
    ground.installed.join("nginx/usr/sbin/nginx")
}

fn settings(ground: &Workspace, home: &str, port: u16, redis: Option<u16>) -> String {
    let module = ground.installed.join("nginx/usr/lib/nginx/modules/ngx_nchan_module.so");
    let upstream = redis
        .map_or(String::new(), |redis| format!("upstream store {{ nchan_redis_server redis://127.0.0.1:{redis}; }}"));
    let pass = if redis.is_some() { "nchan_redis_pass store;" } else { "" };
    let kept = format!("nchan_message_buffer_length {KEPT}; nchan_message_timeout 2m;");
    format!(
        "load_module {};\ndaemon off; worker_processes 1; worker_rlimit_nofile 20000; pid {home}/pid;\n\
         error_log stderr warn; events {{ worker_connections 18000; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;\n\
         client_body_temp_path {home}/a; proxy_temp_path {home}/b; fastcgi_temp_path {home}/c;\n\
         uwsgi_temp_path {home}/d; scgi_temp_path {home}/e;\n\
         nchan_shared_memory_size 1g; {upstream}\n\
         server {{ listen 127.0.0.1:{port};\n\
         location ~ /pub/(.+)$ {{ nchan_publisher; nchan_channel_id $1; {pass} {kept} }}\n\
         location ~ /sub/(.+)$ {{ nchan_subscriber websocket; nchan_channel_id $1; {pass} {kept}\n\
         nchan_subscriber_first_message newest; nchan_subscriber_last_message_id $arg_last; }} }} }}\n",
        module.display()
    )
}

// === impl Nchan ===

impl ComparedSystem for Nchan {
    fn name(&self) -> &'static str {
        "nchan"
    }

    fn version(&self, ground: &Workspace) -> Result<String, String> {
        let nginx = version_of(Command::new(program(ground)).arg("-v"))?;
        let module = ground.installed.join("nginx/usr/lib/nginx/modules/ngx_nchan_module.so");
        if !module.exists() {
            return Err(format!("no {}", module.display()));
        }
        let version = std::fs::read_to_string(ground.installed.join("nginx/nchan.version"));
        Ok(format!("{nginx}, nchan {}", version.as_deref().unwrap_or("of an unknown version").trim()))
    }

    fn start<'a>(&'a self, ground: &'a Workspace, plan: FleetSetup) -> LocalBoxFuture<'a, Result<Fleet, BenchError>> {
        async move {
            let redis = if plan.is_pair { Some(ground.redis(&[]).await?) } else { None };
            let mut nodes = Vec::new();
            for _ in 0..1 + u8::from(plan.is_pair) {
                let port = free_port()?;
                let home = ground.new_dir("nginx")?;
                let redis = redis.as_ref().map(|redis| redis.address.port());
                let text = settings(ground, &home.display().to_string(), port, redis);
                let file = ground.new_file("nginx.conf", &text)?;
                let mut command = Command::new(program(ground));
                command.arg("-p").arg(&home).arg("-c").arg(file).args(["-e", "stderr"]);
                nodes.push(ground.start("nginx", &mut command, port).await?);
            }
            if plan.is_pair {
                // nginx serves before its Redis is initialised, and answers 503 until then.
                pause(REDIS_INIT_WAIT).await;
            }
            Ok(Fleet { nodes, redis })
        }
        .boxed_local()
    }

    fn subscriber(&self, channel: &str) -> Box<dyn SubscriberProtocol> {
        let channel = channel.to_owned();
        Box::new(NchanSubscriber { channel, scanner: TestMessageScanner::default(), last: None })
    }

    fn publisher<'a>(
        &'a self,
        node: &'a Server,
        channels: &'a [String],
    ) -> LocalBoxFuture<'a, Result<Box<dyn ChannelPublisher>, BenchError>> {
        async move {
            let pipeline = PipelinedPublisher::open(node.address).await?;
            Ok(Box::new(NchanPublisher { pipeline, channels: channels.to_vec() }) as Box<dyn ChannelPublisher>)
        }
        .boxed_local()
    }
}

// === impl NchanSubscriber ===

impl SubscriberProtocol for NchanSubscriber {
    fn endpoint(&self) -> SubscriberEndpoint {
        let last = self.last.as_ref().map_or(String::new(), |last| format!("?last={last}"));
        SubscriberEndpoint { path: format!("/sub/{}{last}", self.channel), protocol: Some("ws+meta.nchan") }
    }

    fn first_message(&mut self) -> Option<Message> {
        self.scanner.reset();
        None
    }

    /// Parses `id: 1700000000:0`, other headers, an empty line, and the message.
    fn handle_frame(&mut self, frame: &[u8], into: &mut dyn FnMut(TestMessage)) -> FrameEffect {
        let id = frame.strip_prefix(b"id: ").and_then(|rest| rest.split(|byte| *byte == b'\n').next());
        if let Some(id) = id.and_then(|id| std::str::from_utf8(id).ok()) {
            self.last = Some(id.trim().to_owned());
        }
        self.scanner.scan(frame, into);
        FrameEffect::Nothing
    }
}

// === impl NchanPublisher ===

impl ChannelPublisher for NchanPublisher {
    fn publish<'a>(&'a mut self, lines: &'a [OutgoingMessage]) -> LocalBoxFuture<'a, Result<(), ConnectionFailure>> {
        async move {
            for run in lines.chunk_by(|one, next| one.channel == next.channel) {
                let Some(channel) = run.first().map(|line| line.channel) else { continue };
                let mut requests = String::new();
                for line in run {
                    // Writing to a string cannot fail.
                    let _ = write!(
                        requests,
                        "POST /pub/{} HTTP/1.1\r\nHost: compare\r\nContent-Length: {}\r\n\r\n{}",
                        self.channels[channel],
                        line.text.len(),
                        line.text
                    );
                }
                self.pipeline.send(channel, requests.as_bytes()).await?;
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
    fn who_comes_back_says_what_he_had_last() {
        let mut subscriber = Nchan.subscriber("c");
        assert_eq!(subscriber.endpoint().path, "/sub/c");
        let mut heard = Vec::new();
        let frame = format!("id: 1700000000:3\n\n{}", test_message_text(5));
        subscriber.handle_frame(frame.as_bytes(), &mut |mark| heard.push(mark.n));
        assert_eq!((heard, subscriber.endpoint().path.as_str()), (vec![5], "/sub/c?last=1700000000:3"));
    }
}
