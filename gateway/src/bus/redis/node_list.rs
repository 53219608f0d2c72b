//! The list of nodes: each node writes a record about itself into one Redis hash, for people, for a draining node that
//! looks for successors, and for all nodes: which facts every live node knows (`BusEvent::FactLevel`), and which frames
//! it can read. Runs as a task of `bus::redis`.
use super::heartbeat::Heartbeat;
use crate::bus::{BusEvent, BusEventSender};
use crate::clock::Clock;
use crate::metrics::{Metrics, NodeLoad};
use crate::phase::{Lifecycle, NodePhase};
use crate::redis::{RedisCommandError, RedisConnection};
use ::redis::{Value, cmd, from_redis_value, pipe};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use turnway_core::id::NodeId;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::codec::BlobKind;
use turnway_core::protocol::entry::{FACT_LEVEL, LOWEST_FACT_LEVEL};

/// The Redis hash: node id to record, as JSON.
const NODES_KEY: &str = "nodes";
/// The Redis hash of the store's leases: its keys are the id of a node, `:`, and the id of a lease, which may have ended.
const LIVES_KEY: &str = "lives";
/// Pause between two writes of a node's record: for people this is often enough, and it costs one small command.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);
/// After this many writes, and after a change, the node also removes the records of dead nodes.
const SWEEP_ROUNDS: u64 = 6;
/// A record not written for this long belongs to a dead node. Such a record is shown until some node removes it.
const RECORD_MAX_AGE: Duration = Duration::from_secs(60 * 60);
/// Pause before the first write is tried again, and before a draining node looks for successors again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Pause before a refused write is tried again: an operator has to act first.
const REFUSED_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The record of a node about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// A name for people.
    pub name: String,
    /// The address at which the node serves clients.
    pub address: String,
    pub state: NodeState,
    /// Version of the frames that the node reads and writes.
    pub frames: u8,
    /// Version of the build.
    pub release: String,
    /// Time of the write, in milliseconds by the store's clock.
    pub seen_ms: u64,
    /// The durability of the node's acknowledgements; absent from earlier builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<NodeDurability>,
    /// The level of facts that the node knows; absent from builds that know the lowest level only.
    #[serde(default = "lowest_fact_level")]
    pub facts: u32,
    /// The node's load at that time; absent from earlier builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<NodeLoad>,
}

fn lowest_fact_level() -> u32 {
    LOWEST_FACT_LEVEL
}

/// The part of a record that every release can read.
#[derive(Debug, Deserialize)]
struct AnnouncedLevel {
    #[serde(default = "lowest_fact_level")]
    facts: u32,
}

/// The durability of a node's acknowledgements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDurability {
    /// The level, as in `store.durability`.
    pub level: String,
    /// The level was not verified, and only the operator vouches for it (`store.attest`).
    #[serde(default)]
    pub attested: bool,
}

/// A node's record, and whether the node holds a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    pub record: NodeRecord,
    /// True if the node holds a lease. Without one it is dead, suspended, cut off from the store, or has just started.
    pub leased: bool,
}

/// The state of a node, as written to its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// The node accepts sessions.
    Serving,
    /// The node drains.
    Draining,
}

/// The task that keeps the record of one node.
pub(super) struct NodeListing {
    pub(super) node: NodeId,
    pub(super) name: String,
    pub(super) address: String,
    pub(super) connection: RedisConnection,
    pub(super) clock: Clock,
    pub(super) life: Lifecycle,
    pub(super) durability: NodeDurability,
    pub(super) metrics: Arc<Metrics>,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) events: BusEventSender,
}

// === impl NodeListing ===

impl NodeListing {
    /// Keeps the record up to date; sets `entered` once it is written.
    pub(super) async fn run(self, entered: watch::Sender<bool>) {
        let mut is_reported = false;
        loop {
            match self.write().await {
                Ok(()) => break,
                // A full server must not keep the node from serving: other nodes can do without its record.
                Err(error @ RedisCommandError::Refused { .. }) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        let what = "Redis refuses this node's record; the node is missing from the list of nodes";
                        tracing::warn!(%error, "{what}");
                    }
                    entered.send_replace(true);
                    sleep(REFUSED_RETRY_PAUSE).await;
                }
                Err(RedisCommandError::NotSent | RedisCommandError::Unanswered) => sleep(RETRY_PAUSE).await,
            }
        }
        // A driver begins with the lowest level.
        let mut fact_level = LOWEST_FACT_LEVEL;
        self.report_fact_level(&mut fact_level).await;
        entered.send_replace(true);
        let mut again = interval(WRITE_INTERVAL);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connection = self.connection.clone();
        let mut draining = false;
        let mut is_reported = false;
        for round in 0_u64.. {
            let looks = tokio::select! {
                _ = again.tick() => round.is_multiple_of(SWEEP_ROUNDS),
                // The new connection may be to another server, or to one that has lost its data.
                _ = connection.wait_generation() => true,
                () = self.life.wait_for_phase(NodePhase::Draining), if !draining => {
                    draining = true;
                    true
                }
            };
            let written = if looks { self.sweep().await } else { self.write().await };
            self.report_fact_level(&mut fact_level).await;
            if let Err(error @ RedisCommandError::Refused { .. }) = written {
                tracing::warn!(%error, "Redis refuses this node's record");
            }
            if draining && !is_reported {
                // After the node's own record says that it drains, so that two draining nodes do not choose each other.
                is_reported = self.report_successors().await.is_ok();
                again.reset_after(if is_reported { WRITE_INTERVAL } else { RETRY_PAUSE });
            }
        }
    }

    /// Tells the driver the level of facts that every live node knows, if it has changed. The driver keeps the earlier
    /// level if the records cannot be read.
    async fn report_fact_level(&self, level: &mut u32) {
        let Ok(lowest) = read_fact_level(&self.connection).await else { return };
        if std::mem::replace(level, lowest) != lowest {
            self.events.send(BusEvent::FactLevel(lowest)).await;
        }
    }

    /// Tells the driver of this draining node which nodes can take over.
    async fn report_successors(&self) -> Result<(), RedisCommandError> {
        let others = read_statuses(&self.connection).await?.into_iter().filter(|(node, _)| *node != self.node);
        let successors = others.filter(|(_, seen)| {
            (seen.leased || planted(Planted::HeirsMayBeDead)) && seen.record.state == NodeState::Serving
        });
        self.events.send(BusEvent::Successors(successors.map(|(node, _)| node).collect())).await;
        Ok(())
    }

    async fn sweep(&self) -> Result<(), RedisCommandError> {
        self.write().await?;
        let old =
            store_time_ms(&self.clock).saturating_sub(u64::try_from(RECORD_MAX_AGE.as_millis()).unwrap_or(u64::MAX));
        for (node, record) in read_records(&self.connection).await? {
            if record.seen_ms < old && !planted(Planted::RollKeepsTheGone) {
                self.connection.execute(cmd("HDEL").arg(NODES_KEY).arg(node.to_string())).await?;
            }
        }
        Ok(())
    }

    async fn write(&self) -> Result<(), RedisCommandError> {
        let leaving = self.life.phase() >= NodePhase::Draining;
        let record = NodeRecord {
            name: self.name.clone(),
            address: self.address.clone(),
            state: if leaving { NodeState::Draining } else { NodeState::Serving },
            frames: BlobKind::Frame.version(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            seen_ms: store_time_ms(&self.clock),
            durability: Some(self.durability.clone()),
            facts: FACT_LEVEL,
            load: Some(NodeLoad {
                bus_lag_us: self.heartbeat.lag().map(micros),
                ..NodeLoad::from_metrics(&self.metrics)
            }),
        };
        // A struct of strings and numbers always serialises.
        let json = serde_json::to_string(&record).unwrap_or_default();
        self.connection.execute(cmd("HSET").arg(NODES_KEY).arg(self.node.to_string()).arg(json)).await.map(drop)
    }
}

/// Removes a node's record.
pub(super) async fn remove_record(connection: &RedisConnection, node: NodeId) -> Result<(), RedisCommandError> {
    connection.execute(cmd("HDEL").arg(NODES_KEY).arg(node.to_string())).await.map(drop)
}

/// Reads every record that this release can parse.
pub(super) async fn read_records(
    connection: &RedisConnection,
) -> Result<BTreeMap<NodeId, NodeRecord>, RedisCommandError> {
    let record = |(node, json): (String, String)| {
        let node = u128::from_str_radix(&node, 16).ok()?;
        Some((NodeId(node), serde_json::from_str(&json).ok()?))
    };
    Ok(read_hash(connection, NODES_KEY).await?.into_iter().filter_map(record).collect())
}

async fn read_hash(connection: &RedisConnection, key: &str) -> Result<BTreeMap<String, String>, RedisCommandError> {
    let answer: Value = connection.execute(cmd("HGETALL").arg(key)).await?;
    Ok(from_redis_value(answer).unwrap_or_default())
}

/// Returns for each node whether it holds a lease. The lease is the store's: the key `node:{N}` exists as long as the
/// lease.
async fn read_leases(
    connection: &RedisConnection,
    nodes: impl Iterator<Item: Display>,
) -> Result<Vec<bool>, RedisCommandError> {
    let mut leases_of = pipe();
    for node in nodes {
        leases_of.cmd("HLEN").arg(format!("node:{{{node}}}"));
    }
    if leases_of.is_empty() {
        return Ok(Vec::new());
    }
    let leases = connection.execute_all(&leases_of).await?;
    leases.into_iter().map(|lease| Ok(lease? != Value::Int(0))).collect()
}

/// Returns the level of facts that this node and every node with a lease know. A node without a readable record counts
/// as one that knows the lowest level.
async fn read_fact_level(connection: &RedisConnection) -> Result<u32, RedisCommandError> {
    let records = read_hash(connection, NODES_KEY).await?;
    let lives = read_hash(connection, LIVES_KEY).await?;
    let leasing = lives.keys().filter_map(|life| Some(life.split_once(':')?.0));
    let nodes: BTreeSet<&str> = records.keys().map(String::as_str).chain(leasing).collect();
    let leases = read_leases(connection, nodes.iter()).await?;
    let mut level = FACT_LEVEL;
    for (node, leased) in nodes.into_iter().zip(leases) {
        if leased {
            let announced = records.get(node).and_then(|json| serde_json::from_str::<AnnouncedLevel>(json).ok());
            level = level.min(announced.map_or(LOWEST_FACT_LEVEL, |announced| announced.facts));
        }
    }
    Ok(level)
}

/// Reads every record, and whether its node holds a lease.
pub(super) async fn read_statuses(
    connection: &RedisConnection,
) -> Result<BTreeMap<NodeId, NodeStatus>, RedisCommandError> {
    let records = read_records(connection).await?;
    let leases = read_leases(connection, records.keys()).await?;
    let status = |((node, record), leased)| (node, NodeStatus { record, leased });
    Ok(records.into_iter().zip(leases).map(status).collect())
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn store_time_ms(clock: &Clock) -> u64 {
    clock.now().store.0
}
