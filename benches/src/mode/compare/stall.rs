//! Row `stall`: memory that a node holds for subscribers that do not read, and messages that these lack
//! afterwards.
use super::ground::pass;
use super::listener::{Listener, Way};
use super::load::{Tally, pace, settle};
use super::mark::Mark;
use super::peer::{Fleet, Peer};
use super::rows::{Sizes, channels, listeners};
use crate::trouble::{Lost, Trouble};
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
const LOOK: Duration = Duration::from_millis(100);
/// Time without a message after which no more is expected.
const QUIET: Duration = Duration::from_secs(5);
/// Maximum time for reading the backlog; after that the row fails, because the loss is unknown.
const BACK: Duration = Duration::from_secs(4 * 60);

/// Measures the row: the node's growth while subscribers stall, subscribers that were closed, and messages they
/// lack.
pub async fn stalled(peer: &dyn Peer, fleet: &Fleet, sizes: &Sizes) -> Result<Vec<f64>, Trouble> {
    let (channels, node) = (channels(1), &fleet.nodes[0]);
    let mut mouth = peer.mouth(node, &channels).await?;
    let way = Way { will_stall: true, read_bytes: 16 * 1024, ..Way::default() };
    let crowd = listeners(peer, fleet, &channels, sizes.stalled, way).await?;
    settle(sizes.is_quick).await;
    let millis = u32::try_from(sizes.stalled_for.as_millis()).unwrap_or(u32::MAX);
    let (all, before, most) = (RATE / 100 * millis / 10, node.rss_kb(), Cell::new(0.0_f64));
    let watching = async {
        loop {
            most.set(most.get().max(node.rss_kb() - before));
            pass(LOOK).await;
        }
    };
    let said = tokio::select! {
        said = timeout(sizes.stalled_for * 2 + QUIET, pace(&mut *mouth, 1, RATE, 0, all)) => said,
        () = watching => return Err(Trouble::Failed("nobody watches".to_owned())),
    };
    match said {
        Ok(said) => said?,
        Err(_) => {
            let grown = most.get() / 1024.0;
            return Err(Trouble::Failed(format!("stalled subscribers block the publisher; memory grew by {grown:.0} MB")));
        }
    }
    let (closed, missed) = come_back(crowd, node.address, all).await?;
    Ok(vec![most.get() / 1024.0, closed, missed])
}

/// Reads on at all subscribers; those that were disconnected reconnect with their state. Returns how many were
/// disconnected, and how many messages all of them lack together.
async fn come_back(crowd: Vec<Listener>, at: SocketAddr, all: u32) -> Result<(f64, f64), Trouble> {
    let tally = Tally::new(false);
    let mut tasks = JoinSet::new();
    for listener in crowd {
        tasks.spawn_local(one_back(listener, at, all, Rc::clone(&tally)));
    }
    let (mut closed, mut missed) = (0.0, 0.0);
    while let Some(back) = tasks.join_next().await {
        let (times, lacks) = back.map_err(|error| Trouble::Failed(error.to_string()))??;
        closed += f64::from(u8::from(times > 0));
        missed += f64::from(lacks);
    }
    Ok((closed, missed))
}

/// Returns how often a subscriber was disconnected, and how many messages it lacks once no more arrive.
async fn one_back(
    mut listener: Listener,
    at: SocketAddr,
    all: u32,
    tally: Rc<Tally>,
) -> Result<(u32, u32), Trouble> {
    let (mut heard, mut closed, since) = (BTreeSet::new(), 0, Instant::now());
    while u32::try_from(heard.len()).unwrap_or(u32::MAX) < all {
        if since.elapsed() > BACK {
            let (heard, seconds) = (tally.heard(), BACK.as_secs());
            return Err(Trouble::Failed(format!("the backlog is not finished after {seconds} s and {heard} messages")));
        }
        let mut hear = |mark: Mark| {
            heard.insert(mark.n);
            tally.hear(mark);
        };
        match timeout(QUIET, listener.hear(&mut hear)).await {
            Ok(Ok(())) => tokio::task::yield_now().await,
            Ok(Err(_)) => {
                closed += 1;
                let again: Result<Listener, Lost> =
                    Listener::open(at, listener.hang_up(), Way::default(), &mut hear).await;
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
