//! Who is there: what each node says of itself in one hash, for people, and for the release that will
//! have to know which frames the others can read.
use crate::clock::Clock;
use crate::phase::{Life, Phase};
use crate::redis::{Line, Missed};
use ::redis::{Value, cmd, from_redis_value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use turnway_core::id::NodeId;
use turnway_core::protocol::codec::Kind;

/// The hash: a node's id, and its record as JSON.
const NODES: &str = "nodes";
/// Between two looks of a node at its own record.
const EVERY: Duration = Duration::from_secs(60);
/// A record that was not written for so long is of a node that died: it is shown for a while, and then
/// swept away by whoever looks.
const KEPT: Duration = Duration::from_secs(60 * 60);
/// Before the first record is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// For people.
    pub name: String,
    /// Where it serves clients.
    pub address: String,
    /// What it does.
    pub state: State,
    /// The version of the frames it reads and writes.
    pub frames: u8,
    /// Which build it is.
    pub release: String,
    /// When it last said so, by the store's clock.
    pub seen_ms: u64,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It takes on sessions.
    Serving,
    /// It leaves.
    Draining,
}

/// One node's line in it.
pub(super) struct Roll {
    pub(super) node: NodeId,
    pub(super) name: String,
    pub(super) address: String,
    pub(super) line: Line,
    pub(super) clock: Clock,
    pub(super) life: Life,
}

// === impl Roll ===

impl Roll {
    /// Keeps the record as it should be; tells once it is there.
    pub(super) async fn keep(self, entered: watch::Sender<bool>) {
        while self.write().await.is_err() {
            sleep(AGAIN).await;
        }
        entered.send_replace(true);
        let mut again = interval(EVERY);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut line = self.line.clone();
        let mut draining = false;
        loop {
            tokio::select! {
                _ = again.tick() => {}
                // Another connection may be to another server, or to one that has forgotten.
                _ = line.turned() => {}
                () = self.life.reached(Phase::Draining), if !draining => draining = true,
            }
            if let Err(error @ Missed::Refused { .. }) = self.look().await {
                tracing::warn!(%error, "Redis does not take this node's record");
            }
        }
    }

    async fn look(&self) -> Result<(), Missed> {
        self.write().await?;
        let old = clocked(&self.clock).saturating_sub(u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX));
        for (node, record) in read(&self.line).await? {
            if record.seen_ms < old {
                self.line.ask(cmd("HDEL").arg(NODES).arg(node.to_string())).await?;
            }
        }
        Ok(())
    }

    async fn write(&self) -> Result<(), Missed> {
        let leaving = self.life.phase() >= Phase::Draining;
        let record = Record {
            name: self.name.clone(),
            address: self.address.clone(),
            state: if leaving { State::Draining } else { State::Serving },
            frames: Kind::Frame.version(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            seen_ms: clocked(&self.clock),
        };
        // A struct of texts and numbers always serialises.
        let json = serde_json::to_string(&record).unwrap_or_default();
        self.line.ask(cmd("HSET").arg(NODES).arg(self.node.to_string()).arg(json)).await.map(drop)
    }
}

/// Takes a node's record out.
pub(super) async fn strike(line: &Line, node: NodeId) -> Result<(), Missed> {
    line.ask(cmd("HDEL").arg(NODES).arg(node.to_string())).await.map(drop)
}

/// Every record that this release can read.
pub(super) async fn read(line: &Line) -> Result<BTreeMap<NodeId, Record>, Missed> {
    let answer: Value = line.ask(cmd("HGETALL").arg(NODES)).await?;
    let texts: BTreeMap<String, String> = from_redis_value(answer).unwrap_or_default();
    let record = |(node, json): (String, String)| {
        let node = u128::from_str_radix(&node, 16).ok()?;
        Some((NodeId(node), serde_json::from_str(&json).ok()?))
    };
    Ok(texts.into_iter().filter_map(record).collect())
}

fn clocked(clock: &Clock) -> u64 {
    clock.now().store.0
}
