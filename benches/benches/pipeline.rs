//! What the turn pipeline costs: `cargo bench -p turnway-benches --bench pipeline`.
//!
//! Turns through the built-in plugin alone, with a model that has its answer already, one after the other; and the same
//! as a stream to a way out that takes every piece. Nothing of it leaves the process.
use futures_util::future::ready;
use futures_util::{FutureExt, StreamExt, stream};
use std::hint::black_box;
use std::time::Instant;
use tokio::runtime::Builder;
use turnway_pipeline::builtin::Model;
use turnway_pipeline::{Builtin, Envelope, Hook, Piece, Pieces, Pipeline, Prompt, Router, Turn};

const TURNS: u32 = 200_000;
/// Rounds, of which the median counts.
const ROUNDS: usize = 5;

/// Has its answer already.
struct Ready;

impl Model for Ready {
    fn answer<'a>(&'a self, _: &'a Turn, _: &'a Prompt) -> Hook<'a, Pieces> {
        let words = ["an ", "answer ", "of ", "four words"].map(|word| Piece::Text(word.to_owned()));
        ready(Ok(stream::iter(words).boxed())).boxed()
    }
}

/// Takes whatever comes.
struct Out(bool);

impl Router for Out {
    fn streams(&self, _: &Envelope) -> bool {
        self.0
    }
    fn wrap(&self, _: &Turn, pieces: Pieces) -> Pieces {
        pieces
            .inspect(|piece| {
                black_box(piece);
            })
            .boxed()
    }
    fn deliver<'a>(&'a self, outbound: &'a Envelope) -> Hook<'a, bool> {
        black_box(outbound);
        ready(Ok(true)).boxed()
    }
}

async fn turns(pipeline: &Pipeline) -> f64 {
    let message = Envelope {
        channel: Some("cli".to_owned()),
        chat_id: Some("7".to_owned()),
        session_id: Some("s1".to_owned()),
        ..Envelope::text("a question of some words")
    };
    let began = Instant::now();
    for _ in 0..TURNS {
        let outcome = pipeline.process(message.clone().into()).await.expect("it is answered");
        assert_eq!(outcome.delivered, 1);
    }
    began.elapsed().as_secs_f64() * 1e6 / f64::from(TURNS)
}

fn main() {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    for streams in [false, true] {
        let pipeline = Pipeline::new("/").with(Builtin::new().asking(Ready)).through(Out(streams));
        let mut took: Vec<f64> = (0..ROUNDS).map(|_| runtime.block_on(turns(&pipeline))).collect();
        took.sort_by(f64::total_cmp);
        let form = if streams { "in pieces" } else { "as a whole" };
        #[expect(clippy::print_stdout, reason = "a bench's figures are its output")]
        {
            println!(
                "a turn {form}: {:.2} us (median of {ROUNDS}, {:.2} to {:.2})",
                took[ROUNDS / 2],
                took[0],
                took[ROUNDS - 1]
            );
        }
    }
}
