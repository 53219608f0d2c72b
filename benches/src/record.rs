//! Measurements of a load: durations, counts, errors, and their course over time.
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Largest recorded duration; no load lasts longer.
const NANOS_MAX: u64 = 3_600_000_000_000;
/// Significant digits of a measured duration.
const DURATION_DIGITS: u8 = 3;
/// Significant digits of one second's durations: there may be 3,600 such histograms, and each is read twice.
const TICK_DIGITS: u8 = 2;
/// Shortest second that is recorded; see [`Record::end_second`].
const TICK_MIN: Duration = Duration::from_millis(250);
/// Maximum distinct error codes; further codes are counted as `other`.
const CODES_MAX: usize = 64;

/// A duration that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// From a turn's due time to `turn_accepted`.
    Accepted,
    /// From a turn's due time to its first text.
    FirstDelta,
    /// From a turn's due time to its end.
    Done,
    /// Between two pieces of one answer.
    BetweenDeltas,
    /// From an agent's token to its arrival at a listener.
    Relay,
    /// From the first listener's receipt of a piece of text to another listener's.
    BehindFirst,
    /// From the first listener's receipt of a piece of text to the last listener's.
    LastListener,
    /// Round trip of a bare message.
    RoundTrip,
    /// From a direct request's due time to its first text.
    Direct,
    /// From a call's due time to the first byte of its answer's body.
    FirstByte,
    /// From a call's due time to the end of its answer.
    WholeCall,
    /// From dropping every connection to `subscribed`.
    Resumed,
    /// From dropping every connection to having all missed facts.
    CaughtUp,
    /// A TCP connection, its WebSocket handshake and `welcome`.
    Connect,
    /// One durable commit.
    Commit,
    /// From an input to its turn's admission, in a session with a long history.
    AdmittedLong,
    /// From an input to its turn's admission, in a session that has had one turn.
    AdmittedShort,
    /// From an input to its turn's admission, in a new session.
    AdmittedNew,
    /// Delay between the due time and the generator's sending.
    Late,
}

/// An event that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Turns, messages or requests that became due.
    Asked,
    /// Accepted turns.
    Accepted,
    /// Requests that completed.
    Completed,
    /// Requests that completed before the end of the load; the throughput.
    InTime,
    /// Failed turns.
    Failed,
    /// Cancelled turns.
    Cancelled,
    /// Refused requests.
    Refused,
    /// Requests without an answer at the end of the grace period.
    Unanswered,
    /// Pieces of text.
    Deltas,
    /// Bytes of text.
    TextBytes,
    /// Messages received.
    MessagesIn,
    /// Messages sent.
    MessagesOut,
    /// Bytes received.
    BytesIn,
    /// Bytes sent.
    BytesOut,
    /// Resumed sessions.
    Resumed,
    /// Pieces of text or facts that were missing, repeated or out of order.
    Gaps,
    /// Answers that differ from the expected ones.
    Mismatches,
    /// Connections that the server ended.
    Lost,
}

/// Figures of one second of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// End of the second, in seconds from the start of the load.
    pub at: f64,
    /// Events per second.
    pub rate: f64,
    /// Median of the primary duration in microseconds; `None` if nothing happened.
    pub p50: Option<f64>,
    /// 99th percentile of the primary duration in microseconds.
    pub p99: Option<f64>,
    /// Resident memory of the server at the end of the second.
    pub rss: Option<u64>,
}

/// All measurements of one load.
#[derive(Debug)]
pub struct Record {
    primary: Measure,
    is_started: bool,
    histograms: [Option<Box<Histogram<u64>>>; Measure::ALL.len()],
    counts: [u64; Count::ALL.len()],
    /// The counts at the end of the load.
    in_load: Option<[u64; Count::ALL.len()]>,
    errors: BTreeMap<String, u64>,
    ticks: Vec<Tick>,
    second_start: Instant,
    second_histogram: Histogram<u64>,
    events: u64,
}

// === impl Measure ===

impl Measure {
    /// Every duration.
    pub const ALL: [Self; 19] = [
        Self::Accepted,
        Self::FirstDelta,
        Self::Done,
        Self::BetweenDeltas,
        Self::Relay,
        Self::BehindFirst,
        Self::LastListener,
        Self::RoundTrip,
        Self::Direct,
        Self::FirstByte,
        Self::WholeCall,
        Self::Resumed,
        Self::CaughtUp,
        Self::Connect,
        Self::Commit,
        Self::AdmittedLong,
        Self::AdmittedShort,
        Self::AdmittedNew,
        Self::Late,
    ];

    /// Returns the name in files.
    pub fn key(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::FirstDelta => "first_delta",
            Self::Done => "done",
            Self::BetweenDeltas => "between_deltas",
            Self::Relay => "relay",
            Self::BehindFirst => "behind_first",
            Self::LastListener => "last_listener",
            Self::RoundTrip => "round_trip",
            Self::Direct => "direct",
            Self::FirstByte => "first_byte",
            Self::WholeCall => "whole_call",
            Self::Resumed => "resumed",
            Self::CaughtUp => "caught_up",
            Self::Connect => "connect",
            Self::Commit => "commit",
            Self::AdmittedLong => "admitted_long",
            Self::AdmittedShort => "admitted_short",
            Self::AdmittedNew => "admitted_new",
            Self::Late => "late",
        }
    }
}

// === impl Count ===

impl Count {
    /// Every count.
    pub const ALL: [Self; 18] = [
        Self::Asked,
        Self::Accepted,
        Self::Completed,
        Self::InTime,
        Self::Failed,
        Self::Cancelled,
        Self::Refused,
        Self::Unanswered,
        Self::Deltas,
        Self::TextBytes,
        Self::MessagesIn,
        Self::MessagesOut,
        Self::BytesIn,
        Self::BytesOut,
        Self::Resumed,
        Self::Gaps,
        Self::Mismatches,
        Self::Lost,
    ];

    /// Returns the name in files.
    pub fn key(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Accepted => "accepted",
            Self::Completed => "completed",
            Self::InTime => "in_time",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Unanswered => "unanswered",
            Self::Deltas => "deltas",
            Self::TextBytes => "text_bytes",
            Self::MessagesIn => "messages_in",
            Self::MessagesOut => "messages_out",
            Self::BytesIn => "bytes_in",
            Self::BytesOut => "bytes_out",
            Self::Resumed => "resumed",
            Self::Gaps => "gaps",
            Self::Mismatches => "mismatches",
            Self::Lost => "lost",
        }
    }
}

// === impl Record ===

impl Record {
    /// Creates a record that ignores everything until [`Self::start`]; its timeline shows the primary duration.
    pub fn new(primary: Measure) -> Self {
        Self {
            primary,
            is_started: false,
            histograms: [const { None }; Measure::ALL.len()],
            counts: [0; Count::ALL.len()],
            in_load: None,
            errors: BTreeMap::new(),
            ticks: Vec::new(),
            second_start: Instant::now(),
            second_histogram: histogram(TICK_DIGITS),
            events: 0,
        }
    }

    /// Starts recording; everything before is discarded.
    pub fn start(&mut self, now: Instant) {
        *self = Self { is_started: true, second_start: now, ..Self::new(self.primary) };
    }

    /// Records a duration.
    pub fn record_duration(&mut self, what: Measure, time: Duration) {
        if !self.is_started {
            return;
        }
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let into = &mut self.histograms[what as usize];
        into.get_or_insert_with(|| Box::new(histogram(DURATION_DIGITS))).saturating_record(nanos);
        if what == self.primary {
            self.second_histogram.saturating_record(nanos);
            self.events += 1;
        }
    }

    /// Adds to a count.
    pub fn count(&mut self, what: Count, times: u64) {
        if self.is_started {
            self.counts[what as usize] += times;
        }
    }

    /// Counts an error by its code.
    pub fn count_error(&mut self, code: &str) {
        let known = self.errors.contains_key(code) || self.errors.len() < CODES_MAX;
        *self.errors.entry(if known { code } else { "other" }.to_owned()).or_default() += 1;
    }

    /// Ends a second of the timeline. A rest of less than 250 ms is dropped, because it is too short to be
    /// meaningful.
    pub fn end_second(&mut self, now: Instant, begun: Instant, rss: Option<u64>) {
        let lasted = now.saturating_duration_since(self.second_start);
        if lasted < TICK_MIN && !self.ticks.is_empty() {
            return;
        }
        let lasted = lasted.as_secs_f64().max(1e-6);
        let at =
            |rank| (!self.second_histogram.is_empty()).then(|| micros(self.second_histogram.value_at_quantile(rank)));
        #[expect(clippy::cast_precision_loss, reason = "a second has fewer than 2^53 events")]
        let rate = self.events as f64 / lasted;
        let at_end = now.saturating_duration_since(begun).as_secs_f64();
        let tick = Tick { at: at_end, rate, p50: at(0.5), p99: at(0.99), rss };
        self.ticks.push(tick);
        self.second_histogram.reset();
        (self.events, self.second_start) = (0, now);
    }

    /// Returns a count.
    pub fn counted(&self, what: Count) -> u64 {
        self.counts[what as usize]
    }

    /// Ends the load; what follows counts towards no rate.
    pub fn end_load(&mut self) {
        self.in_load = Some(self.counts);
    }

    /// Returns a count at the end of the load, from which rates are computed.
    pub fn counted_in_load(&self, what: Count) -> u64 {
        self.in_load.as_ref().unwrap_or(&self.counts)[what as usize]
    }

    /// Returns the distribution of a duration, if any was recorded.
    pub fn histogram(&self, what: Measure) -> Option<&Histogram<u64>> {
        self.histograms[what as usize].as_deref()
    }

    /// Returns the primary duration.
    pub fn primary(&self) -> Measure {
        self.primary
    }

    /// Returns the errors by code.
    pub fn errors(&self) -> &BTreeMap<String, u64> {
        &self.errors
    }

    /// Returns the timeline, second by second.
    pub fn ticks(&self) -> &[Tick] {
        &self.ticks
    }
}

fn histogram(digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(1, NANOS_MAX, digits).expect("bounds that are constants")
}

/// Converts nanoseconds to microseconds.
pub fn micros(nanos: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "an hour has fewer than 2^53 nanoseconds")]
    let nanos = nanos as f64;
    nanos / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_where_they_are_looked_up() {
        assert!(Measure::ALL.iter().enumerate().all(|(n, measure)| *measure as usize == n));
        assert!(Count::ALL.iter().enumerate().all(|(n, count)| *count as usize == n));
    }

    #[test]
    fn only_an_armed_record_takes() {
        let mut record = Record::new(Measure::Done);
        let now = Instant::now();
        record.record_duration(Measure::Done, Duration::from_millis(1));
        record.count(Count::Asked, 1);
        record.start(now);
        record.record_duration(Measure::Done, Duration::from_millis(2));
        record.record_duration(Measure::Late, Duration::from_millis(3));
        record.end_second(now + Duration::from_secs(2), now, Some(7));
        assert_eq!(record.counted(Count::Asked), 0);
        assert_eq!(record.histogram(Measure::Done).map(|done| done.len()), Some(1));
        let tick = &record.ticks()[0];
        assert_eq!((tick.at, tick.rate, tick.rss), (2.0, 0.5, Some(7)));
        assert!((1980.0..2020.0).contains(&tick.p50.expect("one")));
    }

    #[test]
    fn made_up_codes_have_a_bound() {
        let mut record = Record::new(Measure::Done);
        (0..1000).for_each(|n| record.count_error(&n.to_string()));
        assert_eq!((record.errors().len(), record.errors()["other"]), (CODES_MAX + 1, 936));
    }
}
