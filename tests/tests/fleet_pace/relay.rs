//! Deltas relayed from an agent through the session's owner to a client at the edge node.
use crate::TwoNodes;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use turnway_tests::real::bare::RedisBaseline;
use turnway_tests::real::{amount, figure, quantile};

/// Bytes of one piece of the agent: a stamp and a blank.
const TOKEN: f64 = 17.0;
/// As long as a frame with one short piece.
const FRAME: [u8; 280] = [b'x'; 280];
/// Answers at a steady pace, and the interval of their pieces, which is longer than the owner batches for.
/// Together 1,000 pieces a second.
const ANSWERS: usize = 50;
const PACE: Duration = Duration::from_millis(50);
/// A one-second answer begins every 21 ms; so many run at once, and each of their 1,000 pieces a second has a
/// millisecond of its own.
const PIECES: usize = 20;
const RATE: &str = "47.619";

/// The paced loads must come to at least this share of their nominal rate: the machine may be busy, and a piece that is
/// late goes out together with the next one.
const SHARE_MIN: f64 = 0.25;
/// Limit for the median age of a piece at 1,000 a second: above it a piece waits for something.
const HALF_WITHIN_US: f64 = 20_000.0;
/// Goals at full rate (docs/benchmarks.md, A fleet): the agent's pieces a second that reach clients of another node,
/// and their ratio to bare PUBLISHes of one such piece each.
const PIECES_MIN: f64 = 100_000.0;
const RATIO_MIN: f64 = 0.5;

/// Results of one load.
struct Load {
    told: Value,
    /// Counts of chunk messages and frames sent to the edge node, and bytes of the frames.
    pieces: f64,
    frames: f64,
    bytes: f64,
    processor: String,
}

impl TwoNodes {
    /// Runs this number of concurrent answers with this length and pace; with a rate, answers begin one after
    /// the other.
    async fn stream(&self, connections: usize, tokens: usize, pace: Duration, rate: Option<&str>) -> Load {
        let seconds = amount("FLEET_PACE_SECONDS", 1);
        let [connections, tokens, pace, duration] =
            [connections.to_string(), tokens.to_string(), format!("{}ms", pace.as_millis()), format!("{seconds}s")];
        let began = self.begin_at();
        let before = self.spent();
        let said = self.passed().await;
        let mut args = vec![
            "stream",
            "--agent",
            "lean",
            "--stamped",
            "--connections",
            &connections,
            "--tokens",
            &tokens,
            "--pace",
            &pace,
            "--duration",
            &duration,
            "--begin-at",
            &began,
        ];
        args.extend(rate.into_iter().flat_map(|rate| ["--rate", rate]));
        let figures = self.bench().figures(&args).await;
        let now = self.passed().await;
        let [pieces, frames, bytes] = [0, 1, 2].map(|n| now[n] - said[n]);
        let deltas = figures["counts"]["deltas"].as_f64().expect("a count");
        assert_complete(&figures);
        assert!(pieces >= deltas * 0.5, "they came from the other node: {pieces} pieces of {deltas}");
        let client = figures["generator"]["cpu_s"].as_f64().expect("seconds");
        Load { processor: self.spent().each(before, client, deltas), told: figures, pieces, frames, bytes }
    }

    async fn passed(&self) -> [f64; 3] {
        let (_, text) = turnway_tests::real::http::get(self.owner.admin, "/metrics").await.expect("it answers");
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        [
            "turnway_bus_words_total{direction=\"out\",kind=\"chunk\"}",
            "turnway_bus_frames_total{direction=\"out\"}",
            "turnway_bus_bytes_total{direction=\"out\"}",
        ]
        .map(|name| line(name).unwrap_or_default())
    }
}

/// Fails the test unless every answer that began has come whole and in order. A busy machine may refuse a few inputs.
fn assert_complete(told: &Value) {
    let count = |name: &str| told["counts"][name].as_u64().unwrap_or_else(|| panic!("no count of {name}: {told}"));
    let wrong = ["failed", "cancelled", "unanswered", "gaps", "mismatches", "lost"];
    assert!(wrong.iter().all(|name| count(name) == 0), "{told}");
    assert!(count("completed") > 0 && count("completed") * 100 >= count("asked") * 95, "{told}");
    assert!(count("deltas") >= count("completed") && count("text_bytes") > 0, "{told}");
}

fn p50_p99(of: &mut [Duration]) -> String {
    format!("{} / {}", quantile(of, 0.5).as_micros(), quantile(of, 0.99).as_micros())
}

/// Measures bare hops at 1,000 a second.
async fn hops(bare: &mut RedisBaseline, seconds: usize) -> Vec<Duration> {
    let mut due = interval(Duration::from_millis(1));
    due.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut hops = Vec::new();
    for _ in 0..seconds * 1000 {
        due.tick().await;
        hops.push(bare.hop(&FRAME).await);
    }
    hops
}

/// Covers: G-09.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_latency_at_1000_deltas_per_second_is_measured() {
    let pair = TwoNodes::start("mem", &[]).await;
    let mut bare = RedisBaseline::open(&pair.redis).await;
    let seconds = amount("FLEET_PACE_SECONDS", 1);
    for round in 1..=amount("FLEET_PACE_ROUNDS", 1) {
        let load = pair.stream(ANSWERS, PIECES, PACE, Some(RATE)).await;
        let relay = &load.told["latency_us"]["relay"];
        let name = format!("round {round}: a piece from the agent to a client elsewhere, 1,000/s, p50 / p99 µs");
        figure(&name, format!("{} / {}", relay["p50"], relay["p99"]));
        let mut bare = hops(&mut bare, seconds).await;
        figure(&format!("round {round}: bare hops, 1,000/s, p50 / p99 µs"), p50_p99(&mut bare));
        figure(&format!("round {round}: processor time of a piece, µs"), load.processor);
        let half = relay["p50"].as_f64().expect("a time");
        assert!(half < HALF_WITHIN_US, "a piece takes {half} µs: it waits for something");
        let stamped = relay["count"].as_f64().expect("a count");
        let least = 1000.0 * seconds as f64 * SHARE_MIN;
        assert!(stamped >= least, "{stamped} pieces in {seconds} s are not the load of 1,000 a second");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_throughput_of_single_deltas_is_measured() {
    let pair = TwoNodes::start("mem", &[]).await;
    let mut bare = RedisBaseline::open(&pair.redis).await;
    let streams = amount("FLEET_PACE_STREAMS", 64);
    let seconds = amount("FLEET_PACE_SECONDS", 1);
    for round in 1..=amount("FLEET_PACE_ROUNDS", 1) {
        // Many answers at a pace at which each piece is still sent by itself.
        let pace = Duration::from_millis(21);
        let load = pair.stream(streams, seconds * 48, pace, None).await;
        let rate = load.told["throughput"]["per_second"].as_f64().expect("a rate");
        let each = load.bytes / load.pieces;
        let raw = bare.flood(&vec![b'x'; whole(each)], amount("FLEET_PACE_FLOOD", 20_000)).await;
        let tell = |what: &str, value: String| figure(&format!("round {round}, {streams} answers: {what}"), value);
        tell("pieces a second to clients elsewhere", format!("{rate:.0}"));
        tell("pieces in a frame; bytes of each", format!("{:.1}; {each:.0}", load.pieces / load.frames));
        tell("bare PUBLISHes of as many bytes a second, pipelined", format!("{raw:.0}"));
        tell("pieces in bare PUBLISHes", format!("{:.2}", rate / raw));
        // The agent's pace sets the rate until the machine is full: the 64 answers of the smallest size do not fill it.
        let nominal = streams.min(64) as f64 / pace.as_secs_f64();
        assert!(rate >= nominal * SHARE_MIN, "{rate} pieces a second, and the agent sends {nominal}");
        tell("processor time of a piece, µs", load.processor);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_throughput_of_batched_text_is_measured() {
    let pair = TwoNodes::start("mem", &[]).await;
    let mut bare = RedisBaseline::open(&pair.redis).await;
    let flood = amount("FLEET_PACE_FLOOD", 20_000);
    for round in 1..=amount("FLEET_PACE_ROUNDS", 1) {
        let load = pair.stream(16, 20_000, Duration::ZERO, None).await;
        let rate = load.told["throughput"]["per_second"].as_f64().expect("a rate");
        let of = |count: &str| load.told["counts"][count].as_f64().expect("a count");
        let piece = of("text_bytes") / of("deltas");
        let each = load.bytes / load.pieces;
        let raw = bare.flood(&vec![b'x'; whole(each)], flood / 4).await;
        let tell = |what: &str, value: String| figure(&format!("round {round}, flat out: {what}"), value);
        // Throughput of a program that would publish each piece of the agent as it arrives.
        let said = rate * piece / TOKEN;
        let one = vec![b'x'; whole(TOKEN)];
        let bare_said = bare.flood(&one, flood * 5).await;
        tell("pieces of the agent's a second to clients elsewhere", format!("{said:.0}"));
        tell("bare PUBLISHes of one such piece each, pipelined, a second", format!("{bare_said:.0}"));
        tell("pieces of the agent's in these (goal: at least 0.5)", format!("{:.2}", said / bare_said));
        let text = rate * piece / 1e6;
        tell("their text, MB/s", format!("{text:.1}, in {rate:.0} pieces of {piece:.0} bytes"));
        tell("bare PUBLISHes of as many bytes, pipelined, MB/s", format!("{:.0}", raw * each / 1e6));
        tell("text in these", format!("{:.2}", rate / raw));
        tell("processor time of a piece, µs", load.processor);
        assert!(said >= PIECES_MIN, "{said} pieces a second reach clients elsewhere");
        assert!(said / bare_said >= RATIO_MIN, "{said} pieces a second, and {bare_said} bare PUBLISHes");
    }
}

fn whole(bytes: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of a frame")]
    let bytes = bytes.round().clamp(1.0, 1e6) as usize;
    bytes
}
