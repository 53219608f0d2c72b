//! Row `stall`: memory that a node holds for subscribers that do not read, and messages that these lack
//! afterwards.
use super::listener::{ConnectOptions, Listener};
use super::load::{DeliveryCounter, publish_paced, wait_for_setup};
use super::rows::{Sizes, channels, listeners};
use super::system::{ComparedSystem, Fleet};
use super::test_message::TestMessage;
use super::workspace::pause;
use crate::error::{BenchError, ConnectionFailure};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Messages per second, together 1 MB/s for each subscriber.
const RATE: u32 = 8000;
/// Interval of memory samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Time without a message after which no more is expected.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for reading the backlog; after that the row fails, because the loss is unknown.
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(4 * 60);

/// Measures the row: the node's growth while subscribers stall, subscribers that were closed, and messages they
/// lack.
pub async fn stalled(peer: &dyn ComparedSystem, fleet: &Fleet, sizes: &Sizes) -> Result<Vec<f64>, BenchError> {
    let channels = channels(1);
    let node = &fleet.nodes[0];
    let mut publisher = peer.publisher(node, &channels).await?;
    let way = ConnectOptions { will_stall: true, read_bytes: 16 * 1024, ..ConnectOptions::default() };
    let crowd = listeners(peer, fleet, &channels, sizes.stalled, way).await?;
    wait_for_setup(sizes.is_quick).await;
    let millis = u32::try_from(sizes.stalled_for.as_millis()).unwrap_or(u32::MAX);
    let all = RATE / 100 * millis / 10;
    let before = node.rss_kb();
    let most = Cell::new(0.0_f64);
    let watching = async {
        loop {
            most.set(most.get().max(node.rss_kb() - before));
            pause(SAMPLE_INTERVAL).await;
        }
    };
    let said = tokio::select! {
        said = timeout(sizes.stalled_for * 2 + IDLE_TIMEOUT, publish_paced(&mut *publisher, 1, RATE, 0, all)) => said,
        () = watching => return Err(BenchError::Failed("nobody watches".to_owned())),
    };
    match said {
        Ok(said) => said?,
        Err(_) => {
            let grown = most.get() / 1024.0;
            let why = format!("stalled subscribers block the publisher; memory grew by {grown:.0} MB");
            return Err(BenchError::Failed(why));
        }
    }
    let (closed, missed) = read_backlog(crowd, node.address, all).await?;
    Ok(vec![most.get() / 1024.0, closed, missed])
}

/// Reads on at all subscribers; those that were disconnected reconnect with their state. Returns how many were
/// disconnected, and how many messages all of them lack together.
async fn read_backlog(listeners: Vec<Listener>, at: SocketAddr, all: u32) -> Result<(f64, f64), BenchError> {
    let tally = DeliveryCounter::new(false);
    let mut tasks = JoinSet::new();
    for listener in listeners {
        tasks.spawn_local(read_backlog_of_one(listener, at, all, Rc::clone(&tally)));
    }
    let mut closed = 0.0;
    let mut missed = 0.0;
    while let Some(back) = tasks.join_next().await {
        let (times, lacks) = back.map_err(|error| BenchError::Failed(error.to_string()))??;
        closed += f64::from(u8::from(times > 0));
        missed += f64::from(lacks);
    }
    Ok((closed, missed))
}

/// Returns how often a subscriber was disconnected, and how many messages it lacks once no more arrive.
async fn read_backlog_of_one(
    mut listener: Listener,
    at: SocketAddr,
    all: u32,
    tally: Rc<DeliveryCounter>,
) -> Result<(u32, u32), BenchError> {
    let mut heard = BTreeSet::new();
    let mut closed = 0;
    let since = Instant::now();
    while u32::try_from(heard.len()).unwrap_or(u32::MAX) < all {
        if since.elapsed() > BACKLOG_TIMEOUT {
            let heard = tally.received_count();
            let seconds = BACKLOG_TIMEOUT.as_secs();
            let why = format!("the backlog is not finished after {seconds} s and {heard} messages");
            return Err(BenchError::Failed(why));
        }
        let mut hear = |mark: TestMessage| {
            heard.insert(mark.n);
            tally.count_message(mark);
        };
        match timeout(IDLE_TIMEOUT, listener.receive(&mut hear)).await {
            Ok(Ok(())) => tokio::task::yield_now().await,
            Ok(Err(_)) => {
                closed += 1;
                let again: Result<Listener, ConnectionFailure> =
                    Listener::open(at, listener.disconnect(), ConnectOptions::default(), &mut hear).await;
                match again {
                    Ok(again) => listener = again,
                    Err(_) => break,
                }
            }
            Err(_) => break,
        }
    }
    Ok((closed, all - u32::try_from(heard.len()).unwrap_or(0).min(all)))
}
