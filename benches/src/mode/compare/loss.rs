//! Rows `drop` and `kill`: messages that a subscriber lacks after it was disconnected in the middle of a
//! stream.
use super::ground::pass;
use super::listener::{Listener, Way};
use super::load::{pace, settle};
use super::mark::Mark;
use super::peer::{Fleet, Mouth, Peer};
use super::rows::{Sizes, channels};
use crate::trouble::{Lost, Trouble};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Messages per second of the stream.
const RATE: u32 = 250;
/// Time until a subscriber whose node died connects to another one.
const ELSEWHERE: Duration = Duration::from_millis(100);
/// Time without a message after which no more is expected.
const QUIET: Duration = Duration::from_secs(3);

/// The messages that one subscriber has received.
#[derive(Default)]
struct Heard {
    messages: RefCell<BTreeSet<u32>>,
    again: RefCell<u64>,
}

// === impl Heard ===

impl Heard {
    fn hear(&self, mark: Mark) {
        if !self.messages.borrow_mut().insert(mark.n) {
            *self.again.borrow_mut() += 1;
        }
    }

    fn count(&self) -> usize {
        self.messages.borrow().len()
    }

    /// Receives until `count` messages have arrived, or no more come.
    async fn until(&self, listener: &mut Listener, count: usize) -> Result<(), Lost> {
        while self.count() < count {
            match timeout(QUIET, listener.hear(&mut |mark| self.hear(mark))).await {
                Ok(heard) => heard?,
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Returns the number of messages that were not received; fails if any was received twice.
    fn lost(&self, said: u32) -> Result<Vec<f64>, Trouble> {
        let again = *self.again.borrow();
        if again > 0 {
            return Err(Trouble::Failed(format!("{again} messages came twice")));
        }
        Ok(vec![f64::from(said.saturating_sub(u32::try_from(self.count()).unwrap_or(u32::MAX)))])
    }
}

/// Measures the row `drop`: the connection breaks, and after a while the subscriber reconnects to the same
/// node.
pub async fn dropped(peer: &dyn Peer, fleet: &Fleet, sizes: &Sizes) -> Result<Vec<f64>, Trouble> {
    let (channels, heard, at) = (channels(1), Heard::default(), fleet.nodes[0].address);
    let mut mouth = peer.mouth(&fleet.nodes[0], &channels).await?;
    let listening = async {
        let mut listener =
            Listener::open(at, peer.ear(&channels[0]), Way::default(), &mut |mark| heard.hear(mark)).await?;
        heard.until(&mut listener, sizes.stream as usize / 4).await?;
        let ear = listener.hang_up();
        pass(sizes.gone).await;
        let mut listener = Listener::open(at, ear, Way::default(), &mut |mark| heard.hear(mark)).await?;
        heard.until(&mut listener, sizes.stream as usize).await
    };
    beside(&mut *mouth, sizes, listening).await?;
    heard.lost(sizes.stream)
}

/// Measures the row `kill`: the subscriber's node dies, and the subscriber connects to the other node, which is
/// the one that is published to.
pub async fn killed(peer: &dyn Peer, mut fleet: Fleet, sizes: &Sizes) -> Result<Vec<f64>, Trouble> {
    let (channels, heard) = (channels(1), Heard::default());
    let Some(mut dying) = fleet.nodes.pop().filter(|_| !fleet.nodes.is_empty()) else {
        return Err(Trouble::Failed("a pair has two nodes".to_owned()));
    };
    let mut mouth = peer.mouth(&fleet.nodes[0], &channels).await?;
    let other: SocketAddr = fleet.nodes[0].address;
    let listening = async {
        let at = dying.address;
        let mut listener =
            Listener::open(at, peer.ear(&channels[0]), Way::default(), &mut |mark| heard.hear(mark)).await?;
        heard.until(&mut listener, sizes.stream as usize / 4).await?;
        dying.kill();
        let died = Instant::now();
        // Reads what had arrived before the connection broke.
        while listener.hear(&mut |mark| heard.hear(mark)).await.is_ok() {}
        let ear = listener.hang_up();
        pass(ELSEWHERE.saturating_sub(died.elapsed())).await;
        let mut listener = Listener::open(other, ear, Way::default(), &mut |mark| heard.hear(mark)).await?;
        heard.until(&mut listener, sizes.stream as usize).await
    };
    beside(&mut *mouth, sizes, listening).await?;
    heard.lost(sizes.stream)
}

/// Runs the stream and the subscriber concurrently.
async fn beside(
    mouth: &mut dyn Mouth,
    sizes: &Sizes,
    listening: impl Future<Output = Result<(), Lost>>,
) -> Result<(), Trouble> {
    let speaking = async {
        settle(sizes.is_quick).await;
        pace(mouth, 1, RATE, 0, sizes.stream).await
    };
    tokio::try_join!(speaking, listening)?;
    Ok(())
}
