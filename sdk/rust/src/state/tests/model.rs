//! A randomised test against a small model of a gateway that loses connections at any point and continues from any
//! position that the protocol allows: the application always receives the same events.
use super::*;
use crate::backoff::SplitMix;

/// A gateway's log of facts with text between them.
struct GatewayModel {
    chance: SplitMix,
    /// Text of each run.
    texts: Vec<String>,
}

impl GatewayModel {
    fn new(seed: u64) -> Self {
        let mut chance = SplitMix::from_seed(seed);
        let mut texts = Vec::new();
        for _ in 0..3 {
            let length = pick(&mut chance, 30);
            texts.push((0..length).map(|_| ['a', 'é', '日', '🙂'][pick(&mut chance, 4)]).collect());
        }
        Self { chance, texts }
    }

    /// Returns the messages after a cursor: three facts a run, with its text in random pieces before the last one.
    fn after(&mut self, seq: u64, have: &Value) -> Vec<Value> {
        let mut messages = Vec::new();
        for (n, text) in self.texts.clone().iter().enumerate() {
            let first = 3 * n as u64 + 1;
            let id = format!("s.{n}");
            let message = json!({"type": "message", "content": "q", "message_id": format!("m{n}"), "run_id": id,
                "seq": first, "epoch": 1});
            let begun = json!({"type": "run_started", "run_id": id, "attempt": 1, "seq": first + 1, "epoch": 1});
            let end = json!({"type": "done", "run_id": id, "status": "completed", "attempt": 1,
                "text_bytes": text.len(), "seq": first + 2, "epoch": 1});
            let facts = [message, begun, end];
            for (at, fact) in (first..).zip(facts) {
                if at == first + 2 && seq < at {
                    let from = have[&id]["offset"].as_u64().and_then(|n| usize::try_from(n).ok());
                    self.stream(&id, text, from.unwrap_or(0), &mut messages);
                }
                if at > seq {
                    messages.push(fact);
                }
            }
        }
        messages
    }

    /// Adds pieces that overlap at random, as live and recorded text may.
    fn stream(&mut self, id: &str, text: &str, mut from: usize, to: &mut Vec<Value>) {
        let bounds: Vec<usize> = (0..=text.len()).filter(|n| text.is_char_boundary(*n)).collect();
        while from < text.len() {
            let back = bounds.iter().rev().filter(|n| **n <= from).nth(pick(&mut self.chance, 3));
            let end = bounds.iter().filter(|n| **n > from).nth(pick(&mut self.chance, 3));
            let start = back.copied().unwrap_or(0);
            let end = end.copied().unwrap_or(text.len());
            to.push(json!({"type": "delta", "run_id": id, "attempt": 1, "offset": start,
                "text": &text[start..end]}));
            from = end;
        }
    }
}

fn pick(chance: &mut SplitMix, below: u64) -> usize {
    usize::try_from(chance.duration_below(Duration::from_micros(below)).as_micros()).unwrap_or(0)
}

/// After any sequence of losses: facts once and in order, text once and complete, every input ended.
#[test]
fn events_are_complete_after_any_sequence_of_losses() {
    for seed in 0..300 {
        let mut model = GatewayModel::new(seed);
        let mut rig = Rig::new();
        rig.subscribe(Start::Beginning);
        for n in 0..3 {
            rig.invoke(&format!("m{n}"));
        }
        let mut cuts = 0;
        loop {
            let subscribe = rig.last_subscribe();
            rig.subscribed(9, json!({}));
            let script = model.after(subscribe["after_seq"].as_u64().unwrap_or(0), &subscribe["runs"]);
            let until = if cuts == 20 { script.len() } else { pick(&mut model.chance, script.len() as u64 + 1) };
            for message in script.iter().take(until) {
                rig.s(message.clone());
            }
            if until == script.len() {
                break;
            }
            cuts += 1;
            rig.reconnect();
        }
        let ends: Vec<String> = rig.events.iter().filter_map(end_of).collect();
        assert_eq!(ends, model.texts, "seed {seed}");
        for (n, text) in model.texts.iter().enumerate() {
            assert_eq!(rig.text(&format!("s.{n}")), *text, "seed {seed}");
        }
        let facts = |event: &Event| matches!(event, Event::Message(_) | Event::RunStarted { .. });
        assert_eq!(rig.events.iter().filter(|event| facts(event)).count(), 6, "seed {seed}");
        rig.reconnect();
        rig.subscribed(9, json!({}));
        let repeats = rig.sent.iter().rev().take_while(|message| message["type"] != "hello");
        assert_eq!(repeats.filter(|message| message["type"] == "agent_invoke").count(), 0, "seed {seed}");
    }
}

fn end_of(event: &Event) -> Option<String> {
    match event {
        Event::Done(done) if done.complete => Some(done.text.clone()),
        _ => None,
    }
}
