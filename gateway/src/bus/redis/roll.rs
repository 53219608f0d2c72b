//! Who is there: what each node says of itself in one hash, for people, for a node that leaves and looks for
//! others, and for the release that will have to know which frames the others can read.
use super::pulse::Pulse;
use crate::bus::{Heard, Mouth};
use crate::clock::Clock;
use crate::metrics::{Load, Metrics};
use crate::phase::{Life, Phase};
use crate::redis::{Line, Missed};
use ::redis::{Value, cmd, from_redis_value, pipe};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use turnway_core::id::NodeId;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::codec::Kind;

/// The hash: a node's id, and its record as JSON.
const NODES: &str = "nodes";
/// Between two writes of a node's record: people look at it, and it costs one small command.
const EVERY: Duration = Duration::from_secs(10);
/// Every so many of them, and where something changed, it also looks for records of nodes that died.
const LOOKS: u64 = 6;
/// A record that was not written for so long is of a node that died: it is shown for a while, and then
/// swept away by whoever looks.
const KEPT: Duration = Duration::from_secs(60 * 60);
/// Before the first record is tried again, and the look of a node that leaves.
const AGAIN: Duration = Duration::from_millis(200);

/// Before a record is tried again that was refused: somebody has to do something.
const REFUSED_AGAIN: Duration = Duration::from_secs(1);

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
    /// What its acknowledgements survive; earlier builds do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Kept>,
    /// What it had to do then; earlier builds do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

/// What a node's acknowledgements survive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The level, as in `store.durability`.
    pub level: String,
    /// Only the operator vouches for it (`store.attest`).
    #[serde(default)]
    pub attested: bool,
}

/// A node's record, and whether it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What it said of itself.
    pub record: Record,
    /// It holds a lease. None: it died, sleeps, is cut off from the store, or has just come.
    pub leased: bool,
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
    pub(super) durability: Kept,
    pub(super) metrics: Arc<Metrics>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) mouth: Mouth,
}

// === impl Roll ===

impl Roll {
    /// Keeps the record as it should be; tells once it is there.
    pub(super) async fn keep(self, entered: watch::Sender<bool>) {
        let mut told = false;
        loop {
            match self.write().await {
                Ok(()) => break,
                // Others need not see it in the list: a full server must not keep a node from what it can do.
                Err(error @ Missed::Refused { .. }) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(%error, "Redis does not take this node's record; it is not in the list of nodes");
                    }
                    entered.send_replace(true);
                    sleep(REFUSED_AGAIN).await;
                }
                Err(Missed::NotSent | Missed::Unanswered) => sleep(AGAIN).await,
            }
        }
        entered.send_replace(true);
        let mut again = interval(EVERY);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut line = self.line.clone();
        let (mut draining, mut told) = (false, false);
        for round in 0_u64.. {
            let looks = tokio::select! {
                _ = again.tick() => round.is_multiple_of(LOOKS),
                // Another connection may be to another server, or to one that has forgotten.
                _ = line.turned() => true,
                () = self.life.reached(Phase::Draining), if !draining => {
                    draining = true;
                    true
                }
            };
            let written = if looks { self.look().await } else { self.write().await };
            if let Err(error @ Missed::Refused { .. }) = written {
                tracing::warn!(%error, "Redis does not take this node's record");
            }
            if draining && !told {
                // After its own record, so that two that leave at a time do not choose each other.
                told = self.tell_heirs().await.is_ok();
                again.reset_after(if told { EVERY } else { AGAIN });
            }
        }
    }

    /// Tells this node, which leaves, who can take over.
    async fn tell_heirs(&self) -> Result<(), Missed> {
        let others = seen(&self.line).await?.into_iter().filter(|(node, _)| *node != self.node);
        let heirs = others.filter(|(_, seen)| {
            (seen.leased || planted(Planted::HeirsMayBeDead)) && seen.record.state == State::Serving
        });
        self.mouth.send(Heard::Heirs(heirs.map(|(node, _)| node).collect())).await;
        Ok(())
    }

    async fn look(&self) -> Result<(), Missed> {
        self.write().await?;
        let old = clocked(&self.clock).saturating_sub(u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX));
        for (node, record) in read(&self.line).await? {
            if record.seen_ms < old && !planted(Planted::RollKeepsTheGone) {
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
            durability: Some(self.durability.clone()),
            load: Some(Load { bus_lag_us: self.pulse.lag().map(micros), ..Load::of(&self.metrics) }),
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

/// The same with who of them lives. A lease is the store's: `node:{N}` is there while there is one.
pub(super) async fn seen(line: &Line) -> Result<BTreeMap<NodeId, Seen>, Missed> {
    let (mut asked, records) = (pipe(), read(line).await?);
    for node in records.keys() {
        asked.cmd("HLEN").arg(format!("node:{{{node}}}"));
    }
    let leases = if records.is_empty() { Vec::new() } else { line.ask_all(&asked).await? };
    let mut seen = BTreeMap::new();
    for ((node, record), lease) in records.into_iter().zip(leases) {
        let leased = lease? != Value::Int(0);
        seen.insert(node, Seen { record, leased });
    }
    Ok(seen)
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn clocked(clock: &Clock) -> u64 {
    clock.now().store.0
}
