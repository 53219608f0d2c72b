//! Cost of the counters of one turn: `cargo bench -p turnway-benches --bench metrics`. The bench updates
//! every counter of one `echo` turn with eight words, without the turn itself; the numbers of updates were
//! observed on a node under load and rounded up.
use std::hint::black_box;
use std::time::{Duration, Instant};
use turnway::metrics::{Direction, InputSource, Metrics, PendingOps};
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, StopReason, TextKind};
use turnway_core::store::{Op, Reply};
use turnway_core::time::Mono;
use turnway_node::switchboard::DurationHistogram;

const TURNS: u32 = 1_000_000;
/// Store operations of one turn, each counted at its start and its end.
const OPS: usize = 5;
/// Driver rounds of one turn; fewer with more clients.
const ROUNDS: u64 = 6;
/// Messages between node and client.
const MESSAGES: usize = 10;

fn main() {
    let metrics = Metrics::register(&prometheus::Registry::new()).expect("each family once");
    let op = Op::Sweep { limit: 1 };
    let answer = Ok(Reply::Done);
    let delta = AgentEvent::Delta { kind: TextKind::Text, text: Private(String::new()), id: None };
    let done = AgentEvent::Done { stop: StopReason::EndTurn, usage: None };
    let mut unanswered = PendingOps::default();
    let mut spreads = [DurationHistogram::default(); 5];
    let began = Instant::now();
    for turn in 0..TURNS {
        let now = Mono(Duration::from_micros(u64::from(turn)));
        for _ in 0..OPS {
            metrics.store.record_request(&mut unanswered, black_box(&op), now);
            metrics.store.record_reply(&mut unanswered, black_box(&op), black_box(&answer), now);
        }
        for n in 0..ROUNDS {
            for source in [InputSource::Links, InputSource::Agents, InputSource::Store] {
                metrics.driver.count_inputs(black_box(source), 1);
            }
            metrics.driver.record_round(Duration::from_micros(n), 0);
        }
        for _ in 0..MESSAGES {
            metrics.links.record_message(black_box(Direction::Out), 100);
        }
        (0..8).for_each(|_| metrics.agents.record_event(black_box(&delta)));
        metrics.agents.record_event(black_box(&done));
        metrics.agents.record_first_token(Duration::from_millis(3));
        metrics.agents.record_call_end(Duration::from_millis(4));
        spreads.iter_mut().for_each(|spread| spread.record(black_box(Duration::from_micros(u64::from(turn)))));
        metrics.store.record_commit(4, Duration::from_millis(1));
    }
    let took = began.elapsed();
    assert_eq!(black_box(spreads)[0].count(), u64::from(TURNS));
    #[expect(clippy::print_stdout, reason = "a bench's figures are its output")]
    {
        println!("counting one turn: {:.0} ns", took.as_secs_f64() * 1e9 / f64::from(TURNS));
    }
}
