//! Many sessions with open turns whose owner dies.
use crate::Fleet;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::time::{interval, timeout};
use turnway_tests::real::wire::{Wire, invoke};
use turnway_tests::real::{PATIENCE, figure, size};

/// Sessions begun on one connection.
const OF_A_LINK: usize = 32;
/// Orders that a node has under way with agents; what is more waits.
const ORDERS_MAX: usize = 8192;
const TAKEOVERS: &str = "turnway_ownership_takeovers_total";

/// Begins a turn in each of these sessions, and leaves.
async fn begin(at: SocketAddr, sessions: &[String]) {
    let mut wire = Wire::hello(at, "ann", vec![]).await.expect("it connects");
    for session in sessions {
        let mut ask = invoke(session, "steady", "and then?");
        ask["request_id"] = session.as_str().into();
        wire.say(ask).await.expect("it is said");
    }
    for _ in sessions {
        let told = wire.until(|message| message["type"] == "turn_accepted").await;
        told.expect("it is accepted");
    }
}

impl Fleet {
    /// How often the agent was asked for a certain attempt.
    fn attempts(&self, attempt: u64) -> usize {
        self.agents.journal().iter().filter(|asked| asked.attempt == attempt).count()
    }
}

/// The agent says nothing at all, and nobody watches: only the sweep finds them.
///
/// Covers: G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_many_sessions_were_at_goes_on_elsewhere_when_their_owner_dies() {
    let count = size("FLEET_TAKEOVER_SESSIONS", 400);
    let mut fleet = Fleet::start(2).await;
    fleet.settle().await;
    let sessions: Vec<String> = (0..count).map(|n| format!("s{n}")).collect();
    for some in sessions.chunks(OF_A_LINK) {
        begin(fleet.nodes[1].http, some).await;
    }
    // Seldom enough to leave the cores to what is measured.
    let mut often = interval(Duration::from_millis(50));
    let at_once = count.min(ORDERS_MAX);
    let all_asked = async {
        while fleet.attempts(1) < at_once {
            often.tick().await;
        }
    };
    timeout(PATIENCE, all_asked)
        .await
        .unwrap_or_else(|_| panic!("asked for {} of {count}", fleet.attempts(1)));
    assert_eq!(fleet.owner("s0"), fleet.nodes[1].id);

    let before = fleet.counted(0, TAKEOVERS).await as usize;
    let dead = Instant::now();
    fleet.nodes[1].kill().await;
    let (mut began, mut taken, mut asked) = (None, None, None);
    let all_again = async {
        while asked.is_none() || taken.is_none() {
            often.tick().await;
            let now = fleet.counted(0, TAKEOVERS).await as usize - before;
            began = began.or_else(|| (now > 0).then(|| dead.elapsed()));
            taken = taken.or_else(|| (now >= count).then(|| dead.elapsed()));
            if taken.is_some() {
                asked = (fleet.attempts(2) >= at_once).then(|| dead.elapsed());
            }
        }
    };
    if timeout(4 * PATIENCE, all_again).await.is_err() {
        let now = fleet.counted(0, TAKEOVERS).await as usize;
        let survivors = sessions.iter().filter(|session| fleet.owner(session) == fleet.nodes[0].id).count();
        let asked = [0, 1, 2, 3].map(|attempt| fleet.attempts(attempt));
        panic!(
            "{before} takeovers before, {now} now; {survivors} are the survivor's; asked for by attempt: {asked:?}"
        );
    }
    let (began, taken, asked) =
        (began.expect("one was the first"), taken.expect("all were taken"), asked.expect("all were asked"));
    figure(
        &format!("kill -9 of the owner of {count} open turns: first taken, all taken, all asked again"),
        format!(
            "{began:?}, {taken:?}, {asked:?}: {:?} and {:?} after the first",
            taken - began,
            asked - began
        ),
    );
    assert!(began < Duration::from_secs(9), "{began:?} until the death was believed");
    // What waits too long for its turn to be asked has ended meanwhile, and its session is nobody's.
    let ended = sessions.iter().filter(|session| fleet.owner(session) != fleet.nodes[0].id).count();
    assert!(ended <= count - at_once, "{ended} of {count} are not the survivor's");
    let mut attempts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for asked in fleet.agents.journal() {
        attempts.entry(asked.session_id).or_default().push(asked.attempt);
    }
    attempts.retain(|session, _| sessions.contains(session));
    let twice = attempts.values().filter(|asked| **asked == [1, 2]).count();
    if count <= ORDERS_MAX {
        assert_eq!((attempts.len(), twice), (count, count), "each is asked for once by each owner");
    }
    assert!(attempts.values().all(|asked| asked.len() <= 2), "nothing is asked for again and again");
}
