//! Measures the rows of the comparison; each run starts its own servers.
use super::listener::{ConnectOptions, Listener};
use super::load::{DeliveryCounter, ListenerTasks, publish_flood, publish_paced, wait_for_setup};
use super::system::{ComparedSystem, Fleet, FleetSetup};
use super::workspace::{Workspace, pause};
use super::{loss, stall};
use crate::cli::Row;
use crate::error::BenchError;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::time::Duration;

/// Channels of a paced load, each with a listener, which is the number of concurrent answers.
const CHANNELS: usize = 50;
/// Messages per second of a paced load.
const RATE: u32 = 1000;
/// Messages in flight in a flood to one listener.
const OUTSTANDING: u64 = 512;
/// Messages in flight in a flood to many listeners; a message counts once all have received it.
const OUTSTANDING_TO_MANY: u64 = 128;
/// Maximum connections that are opened at a time.
const CONCURRENT_OPENS_MAX: usize = 32;
/// Read buffer of each connection if there are very many.
const SMALL_READ_BYTES: usize = 1024;

/// The sizes of the measurements.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Memory of idle connections.
    pub idle: usize,
    /// Idle time before memory is measured.
    pub idle_for: Duration,
    /// Duration of a load.
    pub load: Duration,
    /// Subscribers of one channel.
    pub subscribers: usize,
    /// Messages of the stream from which a subscriber is disconnected.
    pub stream: u32,
    /// Time that the subscriber is disconnected.
    pub gone: Duration,
    /// Subscribers that do not read.
    pub stalled: usize,
    /// Time that they do not read.
    pub stalled_for: Duration,
    /// Only checks that everything works.
    pub is_quick: bool,
}

// === impl Sizes ===

impl Sizes {
    /// Returns the real sizes, or the small ones of a quick check.
    pub fn new(is_quick: bool) -> Self {
        let ms = Duration::from_millis;
        if is_quick {
            let idle_for = ms(200);
            let load = ms(500);
            let gone = ms(200);
            let stalled_for = ms(500);
            let idle = 50;
            let subscribers = 20;
            let stream = 200;
            let stalled = 5;
            return Self { idle, idle_for, load, subscribers, stream, gone, stalled, stalled_for, is_quick };
        }
        let idle_for = ms(10_000);
        let load = ms(5000);
        let gone = ms(1000);
        let stalled_for = ms(12_000);
        let idle = 15_000;
        let subscribers = 500;
        let stream = 1000;
        let stalled = 100;
        Self { idle, idle_for, load, subscribers, stream, gone, stalled, stalled_for, is_quick }
    }
}

/// Returns the units of a row's figures.
pub fn figure_units(row: Row) -> &'static [&'static str] {
    match row {
        Row::Idle => &["KB"],
        Row::Latency | Row::Across => &["p50 µs", "p99 µs"],
        Row::Max | Row::AcrossMax => &["messages/s"],
        Row::Fanout => &["deliveries/s"],
        Row::Drop | Row::Kill => &["lost"],
        Row::Stall => &["MB grown", "closed", "missed by those who came back"],
    }
}

/// Measures one row once.
pub async fn measure(
    peer: &dyn ComparedSystem,
    workspace: &Workspace,
    row: Row,
    sizes: &Sizes,
) -> Result<Vec<f64>, BenchError> {
    let is_pair = matches!(row, Row::Across | Row::AcrossMax | Row::Kill);
    let fleet = peer.start(workspace, FleetSetup { is_pair, recovers: matches!(row, Row::Drop) }).await?;
    match row {
        Row::Idle => measure_idle(peer, &fleet, sizes).await,
        Row::Latency | Row::Across => measure_latency(peer, &fleet, sizes).await,
        Row::Max | Row::AcrossMax => measure_max_rate(peer, &fleet, sizes, 1, OUTSTANDING).await,
        Row::Fanout => measure_max_rate(peer, &fleet, sizes, sizes.subscribers, OUTSTANDING_TO_MANY).await,
        Row::Drop => loss::measure_drop(peer, &fleet, sizes).await,
        Row::Kill => loss::measure_kill(peer, fleet, sizes).await,
        Row::Stall => stall::stalled(peer, &fleet, sizes).await,
    }
}

/// Returns channel names.
pub fn channels(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("channel-{n}")).collect()
}

/// Opens listeners at the last node: the n-th subscribes to the n-th channel, or all to the only one.
pub async fn listeners(
    peer: &dyn ComparedSystem,
    fleet: &Fleet,
    channels: &[String],
    count: usize,
    way: ConnectOptions,
) -> Result<Vec<Listener>, BenchError> {
    let Some(node) = fleet.nodes.last() else { return Err(BenchError::Failed("no nodes".to_owned())) };
    let open = |n: usize| async move {
        let subscriber = peer.subscriber(&channels[n % channels.len()]);
        // No message has been sent yet.
        Listener::open(node.address, subscriber, ConnectOptions { n, ..way }, &mut |_| {}).await
    };
    Ok(stream::iter(0..count).map(open).buffered(CONCURRENT_OPENS_MAX).try_collect().await?)
}

async fn measure_idle(peer: &dyn ComparedSystem, fleet: &Fleet, sizes: &Sizes) -> Result<Vec<f64>, BenchError> {
    let node = &fleet.nodes[0];
    let open = |n: usize| async move {
        let way = ConnectOptions { n, read_bytes: SMALL_READ_BYTES, ..ConnectOptions::default() };
        Listener::open(node.address, peer.idle_subscriber(&format!("idle-{n}")), way, &mut |_| {}).await
    };
    // The first connection is not measured, because it includes one-time costs.
    let first = open(0).await?;
    let before = node.rss_kb();
    let held: Vec<Listener> =
        stream::iter(1..=sizes.idle).map(open).buffer_unordered(CONCURRENT_OPENS_MAX).try_collect().await?;
    pause(sizes.idle_for).await;
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 connections")]
    let each = (node.rss_kb() - before) / held.len() as f64;
    drop((first, held));
    Ok(vec![each])
}

async fn measure_latency(peer: &dyn ComparedSystem, fleet: &Fleet, sizes: &Sizes) -> Result<Vec<f64>, BenchError> {
    let channels = channels(CHANNELS);
    let mut publisher = peer.publisher(&fleet.nodes[0], &channels).await?;
    let listeners = listeners(peer, fleet, &channels, CHANNELS, ConnectOptions::default()).await?;
    wait_for_setup(sizes.is_quick).await;
    let crowd = ListenerTasks::begin(listeners, DeliveryCounter::new(true));
    let seconds = u32::try_from(sizes.load.as_millis()).unwrap_or(u32::MAX);
    let all = RATE * seconds / 1000;
    publish_paced(&mut *publisher, CHANNELS, RATE, 0, all).await?;
    let heard = crowd.tally.wait_for(u64::from(all), Duration::from_secs(1)).await;
    if heard != u64::from(all) {
        return Err(BenchError::Failed(format!("{heard} of {all} arrived")));
    }
    Ok(vec![crowd.tally.latency_us(0.5), crowd.tally.latency_us(0.99)])
}

async fn measure_max_rate(
    peer: &dyn ComparedSystem,
    fleet: &Fleet,
    sizes: &Sizes,
    count: usize,
    outstanding: u64,
) -> Result<Vec<f64>, BenchError> {
    let channels = channels(1);
    let mut publisher = peer.publisher(&fleet.nodes[0], &channels).await?;
    let listeners = listeners(peer, fleet, &channels, count, ConnectOptions::default()).await?;
    wait_for_setup(sizes.is_quick).await;
    let mut crowd = ListenerTasks::begin(listeners, DeliveryCounter::new(false));
    Ok(vec![publish_flood(&mut *publisher, &mut crowd, count as u64, outstanding, sizes.load).await?])
}
