//! Tests of the feed: read only while active, in order, and no offset is saved before the answers to all events before
//! it.
use super::*;
use crate::backoff::SplitMix;

fn offset(offset: Option<&str>) -> WorkResult {
    WorkResult::Offset(Ok(offset.map(str::to_owned)))
}

fn saved() -> WorkResult {
    WorkResult::Saved(Ok(()))
}

fn failed_read() -> WorkResult {
    WorkResult::Updates(Err(PlatformFailure::unknown("a fault")))
}

/// Returns an active adapter that has read these updates behind offset 0.
fn reading(of: &[(u64, &str)]) -> Rig {
    let mut rig = Rig::with_feed();
    assert_eq!(rig.finish("read offset", offset(Some("0"))), ["read after 0"]);
    rig.finish("read after 0", updates(of));
    rig
}

/// Covers: BR-26.
#[test]
fn feed_begins_behind_the_saved_offset_once_active() {
    let mut rig = Rig::with(true);
    assert_eq!(rig.connect(), ["> hello", "standby"], "nothing is read on standby");
    assert_eq!(rig.lease(), ["active", "read offset"]);
    assert_eq!(rig.finish("read offset", offset(None)), ["read after nothing"]);
    let lines = rig.finish("read after nothing", updates(&[(1, "a"), (2, "b")]));
    assert_eq!(lines, ["read after 2", "> inbound m1", "> inbound m2"]);
}

/// Covers: BR-26.
#[test]
fn offset_is_saved_only_behind_answered_updates() {
    let mut rig = reading(&[(1, "a"), (2, "b"), (3, "c")]);
    assert_eq!(rig.accept("m3"), Vec::<String>::new(), "updates 1 and 2 have no answer");
    assert_eq!(rig.accept("m1"), ["save 1"]);
    assert_eq!(rig.finish("save 1", saved()), Vec::<String>::new());
    assert_eq!(rig.refuse("m2", true), Vec::<String>::new());
    assert_eq!(rig.wait(limits::INBOUND_RETRY_BASE), ["> inbound m2"]);
    assert_eq!(rig.accept("m2"), ["save 3"]);
}

/// Covers: BR-26.
#[test]
fn refused_and_skipped_updates_move_the_offset() {
    let mut rig = reading(&[(1, "a")]);
    assert_eq!(rig.refuse("m1", false), ["save 1"]);
    let skipped = WorkResult::Updates(Ok(vec![PlatformUpdate::skip(2), PlatformUpdate::new(3, event("", "m3"))]));
    assert_eq!(rig.finish("read after 1", skipped), ["read after 3"], "one offset is saved at a time");
    assert_eq!(rig.finish("save 1", saved()), ["save 3"], "an event with an invalid id would be refused again");
}

#[test]
fn only_the_newest_offset_is_saved_after_a_slow_write() {
    let mut rig = reading(&[(1, "a"), (2, "b"), (3, "c")]);
    assert_eq!(rig.accept("m1"), ["save 1"]);
    rig.accept("m2");
    rig.accept("m3");
    assert_eq!(rig.finish("save 1", saved()), ["save 3"]);
    assert_eq!(rig.finish("save 3", saved()), Vec::<String>::new());
}

/// Covers: BR-26.
#[test]
fn lost_lease_stops_reading_until_it_returns() {
    let mut rig = reading(&[(1, "a"), (2, "b")]);
    rig.accept("m1");
    rig.finish("save 1", saved());
    assert_eq!(rig.stand_by(), ["standby", "abandon read after 2"]);
    assert_eq!(rig.accept("m2"), Vec::<String>::new(), "update 2 will be read again");
    assert_eq!(rig.lease(), ["active", "read offset"]);
    assert_eq!(rig.finish("read offset", offset(Some("1"))), ["read after 1"]);
    assert_eq!(rig.finish("read after 1", updates(&[(2, "b")])), ["read after 2", "> inbound m2"]);
    assert_eq!(rig.accept("m2"), ["save 2"]);
}

/// A reading that began before a running write has ended would begin behind an old offset.
#[test]
fn feed_that_returns_waits_for_the_running_write() {
    let mut rig = reading(&[(1, "a")]);
    assert_eq!(rig.accept("m1"), ["save 1"]);
    let lines = rig.reconnect();
    assert!(!lines.contains(&"read offset".to_owned()), "{lines:?}");
    assert_eq!(rig.finish("save 1", saved()), ["read offset"]);
}

#[test]
fn failed_reading_begins_again_after_a_wait() {
    let mut rig = reading(&[(1, "a")]);
    assert_eq!(rig.finish("read after 1", failed_read()), Vec::<String>::new());
    assert_eq!(rig.accept("m1"), Vec::<String>::new(), "the update will be read again");
    assert_eq!(rig.wait(limits::FEED_RETRY_BASE), ["read offset"]);
    assert_eq!(rig.finish("read offset", WorkResult::Offset(Err("is empty".to_owned()))), Vec::<String>::new());
    assert_eq!(rig.wait(2 * limits::FEED_RETRY_BASE), ["read offset"]);
    assert_eq!(rig.finish("read offset", offset(Some("0"))), ["read after 0"]);
}

#[test]
fn failed_writing_begins_again_behind_the_saved_offset() {
    let mut rig = reading(&[(1, "a"), (2, "b")]);
    assert_eq!(rig.accept("m1"), ["save 1"]);
    let full = WorkResult::Saved(Err("no space left".to_owned()));
    assert_eq!(rig.finish("save 1", full), ["abandon read after 2"]);
    assert_eq!(rig.accept("m2"), Vec::<String>::new(), "both updates will be read again");
    assert_eq!(rig.wait(limits::FEED_RETRY_BASE), ["read offset"]);
}

#[test]
fn platform_without_updates_is_not_asked_in_a_loop() {
    let mut rig = reading(&[]);
    assert_eq!(rig.wait(limits::EMPTY_READ_INTERVAL / 2), Vec::<String>::new());
    assert_eq!(rig.wait(limits::EMPTY_READ_INTERVAL / 2), ["read after 0"]);
    rig.wait(limits::EMPTY_READ_INTERVAL);
    assert_eq!(rig.finish("read after 0", updates(&[])), ["read after 0"], "a long poll is repeated at once");
}

#[test]
fn updates_on_their_way_are_limited_and_room_comes_back() {
    let window = limits::FEED_WINDOW_MAX;
    let rooms: Vec<String> = (0..3 * window).map(|n| format!("room {n}")).collect();
    let batch: Vec<(u64, &str)> = (1..).zip(rooms.iter().map(String::as_str)).collect();
    let mut rig = reading(&batch);
    let last = format!("read after {}", rooms.len());
    assert_eq!(rig.sent.iter().filter(|message| message["type"] == "inbound").count(), window);
    for n in 1..=2 * window {
        assert!(!rig.tasks.contains_key(&last), "{n}: the batch is not worked off");
        let lines = rig.accept(&format!("m{n}"));
        assert!(lines.contains(&format!("> inbound m{}", n + window)), "{n}: {lines:?}");
    }
    rig.accept(&format!("m{}", 2 * window + 1));
    assert!(rig.tasks.contains_key(&last), "there is room for the next updates");
}

/// Covers: BR-26.
#[test]
fn no_update_is_lost_or_overtaken_under_random_faults() {
    for number in 0..50 {
        let mut world = World::new(number);
        for _ in 0..400 {
            world.step();
        }
        world.settle();
        for room in 0..ROOMS {
            let expected: Vec<u64> = (1..=UPDATES).filter(|n| n % ROOMS == room).collect();
            let found: Vec<u64> = world.accepted.iter().filter(|n| *n % ROOMS == room).copied().collect();
            assert_eq!(found, expected, "world {number}, room {room}");
        }
        assert_eq!(world.offset, UPDATES, "world {number}");
    }
}

const UPDATES: u64 = 40;
const ROOMS: u64 = 3;

/// A platform with numbered updates, a gateway that accepts each message once, and faults of both.
struct World {
    rig: Rig,
    chance: SplitMix,
    /// Offset in the file.
    offset: u64,
    /// Messages in the order of their first acceptance.
    accepted: Vec<u64>,
    /// Number of sent messages that the gateway has looked at.
    seen: usize,
}

impl World {
    fn new(number: u64) -> Self {
        let rig = Rig::with_feed();
        Self { rig, chance: SplitMix::from_seed(number), offset: 0, accepted: Vec::new(), seen: 0 }
    }

    fn pick(&mut self, below: u64) -> u64 {
        let picked = self.chance.duration_below(Duration::from_micros(below));
        u64::try_from(picked.as_micros()).expect("a small number")
    }

    /// Takes one random step, many of which are faults.
    fn step(&mut self) {
        match self.pick(16) {
            0 => {
                self.rig.reconnect();
                // Messages on their way are lost; the next connection has sent them again.
                let hello = self.rig.sent.iter().rposition(|message| message["type"] == "hello");
                self.seen = hello.expect("a connection");
            }
            1 => _ = self.rig.stand_by(),
            2 | 3 => _ = self.rig.lease(),
            4 => _ = self.rig.wait_alive(Duration::from_millis(700)),
            5..=9 => self.work(true),
            _ => self.hear_gateway(true),
        }
        for n in 1..=self.offset {
            assert!(self.accepted.contains(&n), "the offset is {} without message {n}", self.offset);
        }
    }

    /// Takes steps without faults until everything is done.
    fn settle(&mut self) {
        self.rig.lease();
        for _ in 0..2000 {
            self.work(false);
            self.hear_gateway(false);
            self.rig.wait_alive(Duration::from_millis(500));
            if self.offset == UPDATES {
                return;
            }
        }
    }

    /// Ends one piece of work.
    fn work(&mut self, may_fail: bool) {
        let count = self.rig.tasks.len() as u64;
        if count == 0 {
            return;
        }
        let at = usize::try_from(self.pick(count)).expect("a small number");
        let line = self.rig.tasks.keys().nth(at).expect("work").clone();
        let fails = may_fail && self.pick(6) == 0;
        let result = match line.split(' ').collect::<Vec<_>>()[..] {
            ["read", "offset"] if fails => WorkResult::Offset(Err("a fault".to_owned())),
            ["read", "offset"] => offset(Some(&self.offset.to_string())),
            ["save", _] if fails => WorkResult::Saved(Err("a fault".to_owned())),
            ["save", at] => {
                self.offset = at.parse().expect("a number");
                saved()
            }
            ["read", "after", _] if fails => failed_read(),
            ["read", "after", after] => {
                let after: u64 = after.parse().expect("a number");
                let last = UPDATES.min(after + self.pick(25));
                let of = |n: u64| PlatformUpdate::new(n, event(&format!("room {}", n % ROOMS), &format!("m{n}")));
                WorkResult::Updates(Ok((after + 1..=last).map(of).collect()))
            }
            _ => panic!("{line}"),
        };
        self.rig.finish(&line, result);
    }

    /// Lets the gateway accept, refuse or lose the next message.
    fn hear_gateway(&mut self, may_fail: bool) {
        while let Some(message) = self.rig.sent.get(self.seen).cloned() {
            self.seen += 1;
            let Some(id) = message["message"]["message_id"].as_str() else { continue };
            let number: u64 = id[1..].parse().expect("a number");
            let fault = if may_fail { self.pick(5) } else { 5 };
            if fault == 0 {
                self.rig.refuse(id, true);
                return;
            }
            if !self.accepted.contains(&number) {
                self.accepted.push(number);
            }
            // Else the answer is lost, and the message is sent again.
            if fault != 1 {
                self.rig.accept(id);
            }
            return;
        }
    }
}
