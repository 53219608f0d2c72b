//! The Redis client library alone against a server: the baseline for measurements of the bus and store.
use super::redis::Redis;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushKind};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Messages in one pipeline.
const PIPELINE: usize = 64;
/// Pipelines in flight.
const ABREAST: usize = 8;
/// Bytes that are published and not yet received: less than a server buffers for a subscriber.
const AHEAD_BYTES: usize = 4 * 1024 * 1024;

/// A publishing connection and a subscribed one.
#[derive(Debug)]
pub struct RedisBaseline {
    says: MultiplexedConnection,
    /// Kept only to stay subscribed.
    _own: MultiplexedConnection,
    heard: UnboundedReceiver<PushKind>,
    channel: &'static str,
}

// === impl RedisBaseline ===

impl RedisBaseline {
    /// Connects and subscribes.
    pub async fn open(redis: &Redis) -> Self {
        let client = redis::Client::open(format!("{}/?protocol=resp3", redis.url())).expect("a URL");
        let (tells, mut heard) = unbounded_channel();
        // The receiver may be gone at the end.
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: redis::PushInfo| tells.send(push.kind));
        let own = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut own = own.expect("it answers");
        let channel = "bare";
        own.subscribe(channel).await.expect("subscribed");
        assert_eq!(heard.recv().await, Some(PushKind::Subscribe));
        let says = client.get_multiplexed_async_connection().await.expect("it answers");
        Self { says, _own: own, heard, channel }
    }

    /// Measures the time from a PUBLISH to the arrival of its message.
    pub async fn hop(&mut self, bytes: &[u8]) -> Duration {
        let said = Instant::now();
        let answer = redis::cmd("PUBLISH").arg(self.channel).arg(bytes).exec_async(&mut self.says).await;
        answer.expect("published");
        assert_eq!(self.heard.recv().await, Some(PushKind::Message));
        said.elapsed()
    }

    /// Measures a call of a function that does nothing. A node must have loaded the functions.
    pub async fn call(&mut self) -> Duration {
        let asked_at = Instant::now();
        let answer = redis::cmd("FCALL").arg("turnway1_version").arg(0).exec_async(&mut self.says).await;
        answer.expect("an answer");
        asked_at.elapsed()
    }

    /// Publishes `count` messages as fast as they are received; returns messages per second.
    pub async fn flood(&mut self, bytes: &[u8], count: usize) -> f64 {
        let ahead = (AHEAD_BYTES / bytes.len().max(1)).max(PIPELINE);
        let mut under_way = FuturesUnordered::new();
        let mut messages = Vec::new();
        let mut said = 0;
        let mut heard = 0;
        let began = Instant::now();
        while heard < count {
            while under_way.len() < ABREAST && said < count && said - heard < ahead {
                let part = PIPELINE.min(count - said);
                let mut says = self.says.clone();
                let mut pipeline = redis::pipe();
                for _ in 0..part {
                    pipeline.cmd("PUBLISH").arg(self.channel).arg(bytes).ignore();
                }
                said += part;
                under_way.push(async move { pipeline.exec_async(&mut says).await });
            }
            tokio::select! {
                Some(answer) = under_way.next() => answer.expect("published"),
                more = self.heard.recv_many(&mut messages, 4096) => heard += more,
            }
            messages.clear();
        }
        #[expect(clippy::cast_precision_loss, reason = "a test says fewer than 2^53 things")]
        let rate = count as f64 / began.elapsed().as_secs_f64();
        rate
    }
}
