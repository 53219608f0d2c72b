//! Rows `drop` and `kill`: messages that a subscriber lacks after it was disconnected in the middle of a
//! stream.
use super::listener::{ConnectOptions, Listener};
use super::load::{publish_paced, wait_for_setup};
use super::rows::{Sizes, channels};
use super::system::{ChannelPublisher, ComparedSystem, Fleet};
use super::test_message::TestMessage;
use super::workspace::pause;
use crate::error::{BenchError, ConnectionFailure};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Messages per second of the stream.
const RATE: u32 = 250;
/// Time until a subscriber whose node died connects to another one.
const FAILOVER_TIME: Duration = Duration::from_millis(100);
/// Time without a message after which no more is expected.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// The messages that one subscriber has received.
#[derive(Default)]
struct ReceivedMessages {
    messages: RefCell<BTreeSet<u32>>,
    duplicates: RefCell<u64>,
}

// === impl ReceivedMessages ===

impl ReceivedMessages {
    fn record(&self, mark: TestMessage) {
        if !self.messages.borrow_mut().insert(mark.n) {
            *self.duplicates.borrow_mut() += 1;
        }
    }

    fn count(&self) -> usize {
        self.messages.borrow().len()
    }

    /// Receives until `count` messages have arrived, or no more come.
    async fn receive_until(&self, listener: &mut Listener, count: usize) -> Result<(), ConnectionFailure> {
        while self.count() < count {
            match timeout(IDLE_TIMEOUT, listener.receive(&mut |mark| self.record(mark))).await {
                Ok(heard) => heard?,
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Returns the number of messages that were not received; fails if any was received twice.
    fn loss_figures(&self, said: u32) -> Result<Vec<f64>, BenchError> {
        let again = *self.duplicates.borrow();
        if again > 0 {
            return Err(BenchError::Failed(format!("{again} messages came twice")));
        }
        Ok(vec![f64::from(said.saturating_sub(u32::try_from(self.count()).unwrap_or(u32::MAX)))])
    }
}

/// Measures the row `drop`: the connection breaks, and after a while the subscriber reconnects to the same
/// node.
pub async fn measure_drop(peer: &dyn ComparedSystem, fleet: &Fleet, sizes: &Sizes) -> Result<Vec<f64>, BenchError> {
    let channels = channels(1);
    let heard = ReceivedMessages::default();
    let at = fleet.nodes[0].address;
    let mut publisher = peer.publisher(&fleet.nodes[0], &channels).await?;
    let listening = async {
        let mut listener = Listener::open(at, peer.subscriber(&channels[0]), ConnectOptions::default(), &mut |mark| {
            heard.record(mark)
        })
        .await?;
        heard.receive_until(&mut listener, sizes.stream as usize / 4).await?;
        let subscriber = listener.disconnect();
        pause(sizes.gone).await;
        let mut listener =
            Listener::open(at, subscriber, ConnectOptions::default(), &mut |mark| heard.record(mark)).await?;
        heard.receive_until(&mut listener, sizes.stream as usize).await
    };
    run_concurrently(&mut *publisher, sizes, listening).await?;
    heard.loss_figures(sizes.stream)
}

/// Measures the row `kill`: the subscriber's node dies, and the subscriber connects to the other node, which is
/// the one that is published to.
pub async fn measure_kill(peer: &dyn ComparedSystem, mut fleet: Fleet, sizes: &Sizes) -> Result<Vec<f64>, BenchError> {
    let channels = channels(1);
    let heard = ReceivedMessages::default();
    let Some(mut dying) = fleet.nodes.pop().filter(|_| !fleet.nodes.is_empty()) else {
        return Err(BenchError::Failed("a pair has two nodes".to_owned()));
    };
    let mut publisher = peer.publisher(&fleet.nodes[0], &channels).await?;
    let other: SocketAddr = fleet.nodes[0].address;
    let listening = async {
        let at = dying.address;
        let mut listener = Listener::open(at, peer.subscriber(&channels[0]), ConnectOptions::default(), &mut |mark| {
            heard.record(mark)
        })
        .await?;
        heard.receive_until(&mut listener, sizes.stream as usize / 4).await?;
        dying.kill();
        let died = Instant::now();
        // Reads what had arrived before the connection broke.
        while listener.receive(&mut |mark| heard.record(mark)).await.is_ok() {}
        let subscriber = listener.disconnect();
        pause(FAILOVER_TIME.saturating_sub(died.elapsed())).await;
        let mut listener =
            Listener::open(other, subscriber, ConnectOptions::default(), &mut |mark| heard.record(mark)).await?;
        heard.receive_until(&mut listener, sizes.stream as usize).await
    };
    run_concurrently(&mut *publisher, sizes, listening).await?;
    heard.loss_figures(sizes.stream)
}

/// Runs the stream and the subscriber concurrently.
async fn run_concurrently(
    publisher: &mut dyn ChannelPublisher,
    sizes: &Sizes,
    listening: impl Future<Output = Result<(), ConnectionFailure>>,
) -> Result<(), BenchError> {
    let speaking = async {
        wait_for_setup(sizes.is_quick).await;
        publish_paced(publisher, 1, RATE, 0, sizes.stream).await
    };
    tokio::try_join!(speaking, listening)?;
    Ok(())
}
