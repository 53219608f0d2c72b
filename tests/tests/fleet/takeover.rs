//! Takeover of many sessions with open turns from a killed owner.
use crate::Fleet;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::time::{interval, timeout};
use turnway_tests::real::wire::{WebSocketClient, invoke};
use turnway_tests::real::{PATIENCE, figure, size};

/// Sessions opened over one connection.
const OF_A_LINK: usize = 32;
/// Interval of polling.
const OFTEN: Duration = Duration::from_millis(10);
/// Metric of the attempts that a node makes at a time, limited by its open files; further ones wait.
const CAPACITY: &str = "turnway_share_capacity{resource=\"attempts\"}";
const TAKEOVERS: &str = "turnway_ownership_takeovers_total";

/// Starts a turn in each of these sessions and disconnects.
async fn begin(at: SocketAddr, sessions: &[String]) {
    let mut wire = WebSocketClient::hello(at, "ann", vec![]).await.expect("it connects");
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
    /// Waits until the first of these sessions has another owner: sessions are taken over in order of their
    /// arrival.
    async fn until_begun(&self, sessions: &[String], owner: &str) {
        let mut often = interval(OFTEN);
        while self.owner(&sessions[0]) == owner && self.agents.invocations_of_attempt(2) == 0 {
            often.tick().await;
        }
    }

    /// Waits until the agent has this number of first and second attempts together: the order in which
    /// waiting turns get a slot is not specified.
    async fn until_all_asked(&self, times: usize) {
        let mut often = interval(OFTEN);
        while self.agents.invocations_of_attempt(1) + self.agents.invocations_of_attempt(2) < times {
            often.tick().await;
        }
    }

    /// Returns the owner of each session.
    fn owners(&self, sessions: &[String]) -> Vec<String> {
        let mut all = redis::pipe();
        for session in sessions {
            all.hget(format!("own:{{default/{session}}}"), "n");
        }
        let owners: Vec<Option<String>> = all.query(&mut self.redis.connection()).expect("it answers");
        owners.into_iter().map(Option::unwrap_or_default).collect()
    }

    /// Waits until this node owns none of the sessions, reading all of them only once the last one has
    /// another owner.
    async fn until_gone(&self, sessions: &[String], owner: &str) {
        let mut often = interval(OFTEN);
        let last = &sessions[sessions.len() - 1];
        while self.owner(last) == owner || self.owners(sessions).iter().any(|of| of == owner) {
            often.tick().await;
        }
    }
}

/// Takes over turns without any output or watcher, so that only the sweep finds them.
///
/// Covers: G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_open_turns_are_taken_over_after_an_owner_is_killed() {
    let count = size("FLEET_TAKEOVER_SESSIONS", 400);
    let mut fleet = Fleet::start(2).await;
    fleet.settle().await;
    let sessions: Vec<String> = (0..count).map(|n| format!("s{n}")).collect();
    for some in sessions.chunks(OF_A_LINK) {
        begin(fleet.nodes[1].http, some).await;
    }
    let at_once = count.min(fleet.counted(1, CAPACITY).await as usize);
    timeout(PATIENCE, fleet.until_all_asked(at_once))
        .await
        .unwrap_or_else(|_| panic!("asked for {} of {count}", fleet.agents.invocations_of_attempt(1)));
    let dead_id = fleet.nodes[1].id.clone();
    assert_eq!(fleet.owner("s0"), dead_id);

    let before = fleet.counted(0, TAKEOVERS).await as usize;
    let dead = Instant::now();
    fleet.nodes[1].kill().await;
    // Only Redis and the agent are polled meanwhile: a page of metrics would take the node milliseconds, and
    // is up to 250 ms old.
    let all_again = async {
        fleet.until_begun(&sessions, &dead_id).await;
        let began = dead.elapsed();
        fleet.until_all_asked(2 * at_once).await;
        let asked = dead.elapsed();
        fleet.until_gone(&sessions, &dead_id).await;
        (began, asked, dead.elapsed())
    };
    let Ok((began, asked, taken)) = timeout(4 * PATIENCE, all_again).await else {
        let now = fleet.counted(0, TAKEOVERS).await as usize;
        let survivors = fleet.owners(&sessions).iter().filter(|owner| **owner == fleet.nodes[0].id).count();
        let asked = [0, 1, 2, 3].map(|attempt| fleet.agents.invocations_of_attempt(attempt));
        panic!("{before} takeovers before, {now} now; {survivors} are the survivor's; asked for by attempt: {asked:?}");
    };
    figure(
        &format!("kill -9 of the owner of {count} open turns: first taken, all asked again, seen to be all taken"),
        format!("{began:?}, {asked:?}, {taken:?}: {:?} and {:?} after the first", asked - began, taken - began),
    );
    assert!(began < Duration::from_secs(9), "{began:?} until the death was believed");
    fleet.until_counted(0, TAKEOVERS, (before + count - 1) as f64).await;
    // A turn that waits too long for its attempt has ended meanwhile, and its session has no owner.
    let ended = fleet.owners(&sessions).iter().filter(|owner| **owner != fleet.nodes[0].id).count();
    assert!(ended <= count - at_once, "{ended} of {count} are not the survivor's");
    let mut attempts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for asked in fleet.agents.journal() {
        attempts.entry(asked.session_id).or_default().push(asked.attempt);
    }
    attempts.retain(|session, _| sessions.contains(session));
    let twice = attempts.values().filter(|asked| **asked == [1, 2]).count();
    if count == at_once {
        assert_eq!((attempts.len(), twice), (count, count), "each is asked for once by each owner");
    }
    assert!(attempts.values().all(|asked| asked.len() <= 2), "nothing is asked for again and again");
}
