//! Random scripts for the connection's state machine: the laws of every machine and the sums of this one.
use crate::script::{Fixture, config, input, silent_note, text_note};
use std::time::Duration;
use turnway_core::limits::LINK_REPORT_BYTES;
use turnway_core::machine::Machine;
use turnway_core::rng::Rng;
use turnway_node::link::{Input, Link, Output};
use turnway_simulator::laws::{Step, laws};

/// Maximum number of outputs of one input: `welcome`, a hello's 64 subscriptions, and twice the 16 messages
/// that waited for admission.
const OUTPUTS_MAX: usize = 1 + 64 + 2 * 16 + 2;

/// Returns a distinct text for each output.
fn show(output: &Output) -> String {
    match output {
        Output::Write(text) => text.clone(),
        Output::Refresh { .. } | Output::Ping | Output::Close { .. } | Output::Event(_) => format!("{output:?}"),
    }
}

fn random_script(rng: &mut Rng) -> Vec<Step<Input>> {
    const WORDS: [&str; 33] = [
        "hello",
        "admit",
        "hello-resuming 40",
        "ping",
        "invoke",
        "flush",
        "flush",
        "flush",
        "flush",
        "flush",
        "flush",
        "alive",
        "text 9000",
        "silent 16384",
        "flows 9000",
        "fills 9000",
        "creeps 9000",
        "stands",
        "flows",
        "refused",
        "say x",
        "type launch",
        "refresh",
        "refreshed-for 90000000000000",
        "nothing-to-refresh",
        "padded 5000",
        "hello",
        "deny",
        "refreshed-for 0",
        "not-refreshed",
        "go-away",
        "binary",
        "too-large",
    ];
    let mut steps = Vec::new();
    // Most scripts begin with an admission, so that more can happen.
    if rng.chance(80) {
        for word in ["hello-resuming 3", "admit"] {
            steps.push(Step { after: Duration::from_millis(rng.below(3000)), input: Some(input(word)) });
        }
    }
    for _ in 0..60 {
        let fatal = if rng.chance(3) { 33 } else { 27 };
        let word = WORDS[rng.below(fatal) as usize];
        let wait = if rng.chance(20) { rng.below(40_000) } else { rng.below(200) };
        let happens = rng.chance(90).then(|| input(word));
        steps.push(Step { after: Duration::from_millis(wait), input: happens });
    }
    steps
}

/// Covers: SR-I6, the five laws of every machine; S-13 (bounded work for any input).
#[test]
fn link_machine_obeys_the_machine_laws() {
    let mut closes = 0;
    for seed in 0..400 {
        let script = random_script(&mut Rng::from_number(seed));
        let lines = laws(|now| Link::new(now, config()), &script, OUTPUTS_MAX, show);
        let ends = lines.iter().filter(|line| line.contains("Close(")).count();
        let last = lines.last().is_some_and(|line| line.contains("Close("));
        assert!(ends <= 1 && (ends == 0 || last), "seed {seed}: nothing follows a close: {lines:?}");
        closes += ends;
    }
    assert!((40..400).contains(&closes), "both kinds of life were seen: {closes}");
}

/// Covers: G8: at any time, what is not yet reported is less than a report; nothing where that might be too much.
#[test]
fn written_bytes_are_reported_exactly_once() {
    for seed in 0..100 {
        let mut rng = Rng::from_number(seed);
        let mut stage = Fixture::new();
        stage.play("hello; admit; flush");
        stage.outputs.clear();
        let mut shown = 0;
        for _ in 0..100 {
            let note = if rng.chance(50) { text_note(rng.below(9000) as usize) } else { silent_note(7000) };
            let Input::Note(inner) = &note else { panic!("a note") };
            shown += inner.weight();
            stage.link.handle_input(stage.now, note);
            if rng.chance(30) {
                stage.link.handle_input(stage.now, Input::Flushed);
            }
            stage.drain();
        }
        stage.play("flush");
        let weight = |told: &String| told.strip_prefix("written ").and_then(|n| n.parse::<usize>().ok());
        let reported: usize = stage.outputs.iter().filter_map(weight).sum();
        assert!(reported <= shown && shown - reported < LINK_REPORT_BYTES, "seed {seed}: {reported} of {shown}");
        // With much text waiting in streams, all bytes are reported at once.
        stage.play("fills 10; text 100; flush");
        let reported: usize = stage.outputs.iter().filter_map(weight).sum();
        let Input::Note(last) = text_note(100) else { panic!("a note") };
        assert_eq!(reported, shown + 10 + last.weight(), "seed {seed}");
    }
}
