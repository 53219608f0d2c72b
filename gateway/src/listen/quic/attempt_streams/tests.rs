//! Tests text streams between a switchboard that sends as much as it may and readers that read as little as they like.
use super::*;
use turnway_core::rng::Rng;

/// A switchboard that sends text as fast as it may, and streams that accept a given amount at a time.
struct Stage {
    lanes: AttemptStreams,
    held: Vec<SessionId>,
    unwritten: usize,
    unreported: usize,
    fills: bool,
    is_full: bool,
    most: usize,
}

impl Stage {
    /// Sends one piece for each session that may have one; returns the number of pieces.
    fn show(&mut self, sessions: usize, bytes: usize) -> usize {
        let mut shown = 0;
        for n in 0..sessions {
            let session = SessionId::parse(&format!("s{n}")).expect("a name");
            if self.is_full || self.held.contains(&session) {
                continue;
            }
            let run_id = RunId::parse(&format!("s{n}.abcdefghijklmnopqrstuvwxyz")).expect("a run");
            let text = "x".repeat(bytes);
            let weight = bytes + 256;
            self.unwritten += weight;
            self.is_full |= self.unwritten >= limits::LINK_UNWRITTEN_BYTES_MAX;
            self.lanes.write(SideStreamText { session, run_id, attempt: 1, text, weight }, 0, b"").expect("bounded");
            self.learn();
            shown += 1;
        }
        shown
    }

    /// Applies the reports as a link and its switchboard do.
    fn learn(&mut self) {
        let waiting = self.lanes.streams.iter().map(|lane| lane.queued.len()).sum();
        self.most = self.most.max(waiting);
        while let Some((session, is_held)) = self.lanes.next_hold_change() {
            self.held.retain(|held| *held != session);
            self.held.extend(is_held.then_some(session));
        }
        if let Some(SideStreamProgress { written, pace }) = self.lanes.take_report() {
            self.unreported += written;
            self.fills = pace != SideStreamPace::Draining;
        }
        let least = if self.fills { 1 } else { limits::LINK_REPORT_BYTES };
        if self.unreported >= least {
            self.unwritten -= std::mem::take(&mut self.unreported);
            self.is_full &= self.unwritten > limits::LINK_UNWRITTEN_BYTES_MAX / 2;
        }
    }

    /// Lets a session's stream accept up to `bytes` bytes of its queue.
    fn take(&mut self, session: usize, bytes: usize) {
        let name = SessionId::parse(&format!("s{session}")).expect("a name");
        if let Some(lane) = self.lanes.streams.iter_mut().find(|lane| lane.session == name) {
            let taken = bytes.min(lane.queued.len());
            lane.queued.advance(taken);
            self.lanes.made_progress |= taken > 0;
            self.lanes.written += lane.take_written();
        }
        self.lanes.update_holds();
        self.learn();
    }
}

fn stage() -> Stage {
    let lanes = AttemptStreams::default();
    let held = Vec::new();
    Stage { lanes, held, unwritten: 0, unreported: 0, fills: false, is_full: false, most: 0 }
}

/// Covers: G8.
#[test]
fn unread_streams_stop_within_the_buffer_limit() {
    for (sessions, bytes) in [(1, 4096), (3, 60_000), (20, 300), (64, 4096), (64, 60_000)] {
        let mut stage = stage();
        while stage.show(sessions, bytes) > 0 {}
        let bound = limits::LANES_HELD_BYTES_MAX + limits::LINK_UNWRITTEN_BYTES_MAX + bytes;
        assert!(stage.most <= bound, "{sessions} sessions, pieces of {bytes}: {}", stage.most);
    }
}

/// Covers: G8, MP-A1: a client that reads one stream gets it to the end, whatever else is not read.
#[test]
fn read_stream_continues_beside_unread_ones() {
    for (sessions, bytes) in [(2, 4096), (5, 14_000), (16, 4096), (64, 300)] {
        let mut stage = stage();
        while stage.show(sessions, bytes) > 0 {}
        for n in 0..200 {
            stage.take(0, usize::MAX);
            assert!(stage.show(sessions, bytes) > 0, "{sessions} sessions, piece {n} of {bytes}");
        }
    }
}

/// Covers: G8.
#[test]
fn slowly_read_streams_all_continue() {
    let mut stage = stage();
    let mut shown = 0;
    for n in 0..20_000 {
        shown += stage.show(64, 4096);
        stage.take(n % 64, 1000);
    }
    assert!(shown * 4096 > 18_000 * 1000, "{shown} pieces");
    for session in 0..64 {
        stage.take(session, usize::MAX);
    }
    let left = stage.unwritten - stage.unreported - stage.lanes.written;
    assert_eq!(left, 0, "all of it counts as written in the end");
}

/// A session that is held resumes once half of its text is taken, and all open sessions together have half their room.
///
/// Covers: G8.
#[test]
fn held_session_resumes_when_others_leave_half_the_room() {
    let mut stage = stage();
    let bytes = limits::LANE_BYTES_MAX * 5 / 8;
    stage.show(2, bytes);
    let held: Vec<String> = stage.held.iter().map(ToString::to_string).collect();
    assert_eq!(held, ["s1"], "the later one of two that are equal");
    stage.take(1, bytes * 5 / 8);
    assert!(stage.held.len() == 1, "the other one fills more than half");
    stage.take(0, bytes * 7 / 8);
    assert!(stage.held.is_empty());
}

/// A client that stops reading at any time is either sent more in the end or reported as slow.
///
/// Covers: G8, S-15.
#[test]
fn stalled_client_is_sent_everything_or_reported_slow() {
    for world in 0..2_000 {
        let mut rng = Rng::from_number(world);
        let mut stage = stage();
        let below = |rng: &mut Rng, most: u64| usize::try_from(rng.below(most)).expect("small");
        let sessions = 1 + below(&mut rng, 20);
        let bytes = 300 + below(&mut rng, 20_000);
        for _ in 0..below(&mut rng, 60) {
            stage.show(sessions, bytes);
            stage.take(below(&mut rng, sessions as u64), below(&mut rng, 40_000));
        }
        while stage.show(sessions, bytes) > 0 {}
        let is_all_held = stage.held.len() == sessions;
        let is_slow = stage.lanes.reported == TextBacklog::Excessive;
        assert!(is_slow || is_all_held, "world {world}: {sessions} sessions, pieces of {bytes}");
    }
}
