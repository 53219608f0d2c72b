//! Snapshots as bytes: the same in every release of one version. The files of `core/tests/snapshots` have the bytes.
use crate::script::Script;
use std::collections::BTreeSet;
use turnway_core::id::RequestId;
use turnway_core::protocol::agent::OnOwnerLoss;
use turnway_core::session::State;

/// The bytes of version 8, from the release that introduced this test.
const VERSION_8: &str = include_str!("../snapshots/version_8.txt");

/// The bytes of version 9, which a session with deliveries has.
const VERSION_9: &str = include_str!("../snapshots/version_9.txt");

/// The bytes of version 10, which a session with gathered inputs has.
const VERSION_10: &str = include_str!("../snapshots/version_10.txt");

/// The bytes of version 11, which a session with an open call of a model has.
const VERSION_11: &str = include_str!("../snapshots/version_11.txt");

/// A state of a session, described by the facts that lead to it.
struct Example {
    name: &'static str,
    policy: OnOwnerLoss,
    script: &'static str,
    /// Number of facts at the end of the log that the state does not include.
    left_out: usize,
}

/// States in which every field of deliveries has content, and every variant occurs.
const WITH_DELIVERIES: [Example; 4] = [
    Example {
        name: "open_origins",
        policy: OnOwnerLoss::Retry,
        script: "hears m1; ack; text hi; hears m2 attic",
        left_out: 0,
    },
    Example {
        name: "answered_origin",
        policy: OnOwnerLoss::Retry,
        script: "hears m1; ack; text hi; done",
        left_out: 1,
    },
    Example { name: "failed_origin", policy: OnOwnerLoss::Retry, script: "hears m1; gone", left_out: 1 },
    Example {
        name: "deliveries",
        policy: OnOwnerLoss::Retry,
        script: "hears m1; ack; text hi; done; delivery transient; wait 1000; hears m2 attic; ack; text wörds; done; \
                 delivery lost; hears m3 porch; ack; text ha; done; delivery invalid; hears m4 hall; ack; flood 150; done; \
                 delivery sent; hears m5 cellar; gone",
        left_out: 0,
    },
];

const MIRRORING: &str = r#"control {"ask":"record_binding","bound":{"binding_id":"7.lobby","target_kind":"session","bound_at":1,"conversation":{"channel":"rooms","account_id":"main","conversation_id":"lobby"},"mirror":true}}; say m1; ack; text hi; wait 3000"#;
const MIRRORED: &str = r#"control {"ask":"record_binding","bound":{"binding_id":"7.lobby","target_kind":"session","bound_at":1,"conversation":{"channel":"rooms","account_id":"main","conversation_id":"lobby"},"mirror":true}}; say m1; ack; text hi; done"#;

/// States in which every field that version 10 has added has content.
const WITH_GATHERED: [Example; 8] = [
    Example {
        name: "buttons",
        policy: OnOwnerLoss::Retry,
        script: "level 2 m1; ack; buttons y n; text hi; done; delivery sent; presses y p1; ack; buttons z; text hi; done; \
                 level 2 m2; ack; buttons w",
        left_out: 0,
    },
    Example {
        name: "changes",
        policy: OnOwnerLoss::Retry,
        script: "hears m1; ack; text hi; done; delivery sent; hears m2; ack; edits m1 ho; reacts ok",
        left_out: 0,
    },
    Example { name: "creating", policy: OnOwnerLoss::Retry, script: crate::creations::TWO_CREATIONS, left_out: 0 },
    Example {
        name: "gathered",
        policy: OnOwnerLoss::Retry,
        script: "writes m1; writes m2; writes m3; wait 1000; ack",
        left_out: 0,
    },
    Example {
        name: "routed",
        policy: OnOwnerLoss::Retry,
        script: "given m1; ack; text hi; done; route bound only_binding_on_account t1; given m2 both; ack; text ho",
        left_out: 0,
    },
    Example {
        name: "suppressed",
        policy: OnOwnerLoss::Retry,
        script: "hears m1; ack; text hi; done; delivery gone; hears m2 attic; ack; text ho; done; delivery permission",
        left_out: 0,
    },
    Example { name: "mirroring", policy: OnOwnerLoss::Retry, script: MIRRORING, left_out: 0 },
    Example { name: "mirrored", policy: OnOwnerLoss::Retry, script: MIRRORED, left_out: 1 },
];

/// States in which every field that version 11 has added has content.
const WITH_CALLS: [Example; 2] = [
    Example {
        name: "open_calls",
        policy: OnOwnerLoss::Retry,
        script: "say m1; ack; calls 1 m1 600000; wait 1000; calls 2 m1 500000",
        left_out: 0,
    },
    Example {
        name: "calls_of_an_ended_run",
        policy: OnOwnerLoss::Retry,
        script: "say m1; ack; calls 1 m1 600000; done",
        left_out: 0,
    },
];

/// States in which every field of a snapshot has content, and every variant occurs.
const EXAMPLES: [Example; 15] = [
    Example { name: "new_session", policy: OnOwnerLoss::Retry, script: "", left_out: 0 },
    Example {
        name: "handovers",
        policy: OnOwnerLoss::Retry,
        script: "open a b c; say m1; ack; text one; asks c; no; asks b; yes; wait 2100; done; say m2; ack; text zwölf; \
                 wait 2100; asks c; say m3",
        left_out: 0,
    },
    Example {
        name: "handover_with_a_long_answer",
        policy: OnOwnerLoss::Retry,
        script: "open a b; say m1; ack; flood 5000; wait 2100; asks b; done",
        left_out: 0,
    },
    Example {
        name: "handover_to_a_joining_agent",
        policy: OnOwnerLoss::Retry,
        script: "open a b; say m1; ack; asks b; done; wait 600000; say m2; ack; asks nobody; asks c; yes",
        left_out: 0,
    },
    Example {
        name: "handover_before_its_switch",
        policy: OnOwnerLoss::Retry,
        script: "open a b; say m1; ack; asks b; done; yes",
        left_out: 1,
    },
    Example {
        name: "changing_members",
        policy: OnOwnerLoss::Retry,
        script: "open a b c; say m1; ack; done; remove a; invite w active",
        left_out: 0,
    },
    Example {
        name: "waiting_turns_of_every_rank",
        policy: OnOwnerLoss::Retry,
        script: "say m1; ack; say m2; steer m3; refuses m3; interrupt m4; say m5",
        left_out: 0,
    },
    Example {
        name: "steered_inputs",
        policy: OnOwnerLoss::Retry,
        script: "say m1; ack; steer m2; takes m2; steer m3; ponders m3; steer m4; steer m5; refuses m5",
        left_out: 1,
    },
    Example {
        name: "resumed_attempt",
        policy: OnOwnerLoss::Resume,
        script: "say m1; ack; text he e1; flood 200; state busy e2; wait 2100; crash; text llo e3; wait 2100; say m2",
        left_out: 0,
    },
    Example {
        name: "suspended_attempt",
        policy: OnOwnerLoss::Retry,
        script: "say m1; ack; text hi; suspend; crash; crash",
        left_out: 0,
    },
    Example {
        name: "actions",
        policy: OnOwnerLoss::Retry,
        script: "say m1; ack; act process.spawn z; tool begun; act u; tool begun; done; tool ok; say m2; ack; act t x; \
                 tool begun; tool ok; act t y; tool bad; act process.kill; tool told 1; act v",
        left_out: 0,
    },
    Example {
        name: "orphaned_action",
        policy: OnOwnerLoss::Retry,
        script: "say m1; ack; act t; tool begun; cancel; cancel-ack",
        left_out: 1,
    },
    Example { name: "closing_session", policy: OnOwnerLoss::Retry, script: "say m1; ack; say m2; close", left_out: 0 },
    Example {
        name: "closed_session",
        policy: OnOwnerLoss::Retry,
        script: "open a b c; say m1; ack; asks b; close; cancel-ack",
        left_out: 0,
    },
    Example {
        name: "handover_of_a_leaving_agent",
        policy: OnOwnerLoss::Retry,
        script: "open a b; say m1; ack; asks b; done; remove a",
        left_out: 0,
    },
];

impl Example {
    fn state(&self) -> State {
        let mut world = Script::new(self.policy);
        for step in self.script.split(';').map(str::trim).filter(|step| !step.is_empty()) {
            world.step(step);
        }
        let facts = &world.log[..world.log.len() - self.left_out];
        let mut state = State::from_facts(facts.iter().map(|(epoch, entry)| (*epoch, &**entry)));
        if WITH_DELIVERIES.iter().any(|example| example.name == self.name) {
            // Version 9 does not know them.
            state.deliveries.recent.clear();
        }
        fill_in(&mut state);
        state
    }
}

/// Sets the fields that scripts leave out, and forgets a result, as after many more.
fn fill_in(state: &mut State) {
    let request = RequestId::parse("r1").ok();
    if let Some(run) = state.runs.values_mut().next() {
        run.request_id = request.clone();
    }
    if let Some(change) = state.changes.values_mut().next() {
        (change.request_id, change.reason) = (request.clone(), Some("wörds".to_owned()));
    }
    if let Some(origin) = state.deliveries.origins.values_mut().next() {
        origin.cut_bytes = 7;
    }
    if let Some(turn) = state.deliveries.mirrored.values_mut().next() {
        turn.cut_bytes = 7;
    }
    if let Some(joining) = state.handovers.open.as_mut().and_then(|open| open.joining.as_mut()) {
        joining.request_id = request;
    }
    if let [forgotten, _, ..] = state.actions.ended.as_mut_slice() {
        forgotten.outcome = None;
    }
}

/// Returns the bytes of a file by the name of their example.
fn kept(file: &'static str, name: &str) -> Vec<u8> {
    let lines = file.lines().filter(|line| !line.starts_with('#'));
    let hex = lines.filter_map(|line| line.split_once(' ')).find(|(of, _)| *of == name).map_or("", |(_, hex)| hex);
    let (pairs, _) = hex.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
    pairs.iter().map(byte).collect()
}

/// Keeps the bytes of a snapshot stable: an intended change needs a new version and a new file.
///
/// Covers: S-14, SR-H4.
#[test]
fn snapshot_bytes_match_the_golden_values() {
    let mut changed = Vec::new();
    let with_deliveries = WITH_DELIVERIES.iter().map(|example| (example, VERSION_9));
    let with_gathered = WITH_GATHERED.iter().map(|example| (example, VERSION_10));
    let with_calls = WITH_CALLS.iter().map(|example| (example, VERSION_11));
    let later = with_deliveries.chain(with_gathered).chain(with_calls);
    for (example, file) in EXAMPLES.iter().map(|example| (example, VERSION_8)).chain(later) {
        let state = example.state();
        let blob = state.to_snapshot().expect("a snapshot");
        if blob != kept(file, example.name) {
            let hex: String = blob.iter().map(|byte| format!("{byte:02x}")).collect();
            changed.push(format!("{} {hex}", example.name));
        }
        assert_eq!(State::from_snapshot(&blob), Ok(state), "{}", example.name);
    }
    assert!(changed.is_empty(), "these snapshots differ from the file:\n{}", changed.join("\n"));
}

/// Shows that the golden bytes have content in every field, by the words that the states print.
#[test]
fn golden_snapshots_have_every_field_and_variant() {
    let examples = EXAMPLES.iter().chain(&WITH_DELIVERIES).chain(&WITH_GATHERED).chain(&WITH_CALLS);
    let states: Vec<State> = examples.map(Example::state).collect();
    let shown = format!("{states:?}");
    let words: BTreeSet<&str> = shown.split(|letter: char| !letter.is_alphanumeric()).collect();
    let variants = "New Open Closing Closed Waiting Routing Running Cancelling Interrupts Returned Queued Accepted Pending \
                    Refused Expired Unavailable AgentLeft SessionClosed Adding Removing Answered Failed Held Made Final Notice";
    for variant in variants.split(' ') {
        assert!(words.contains(variant), "no state has a {variant}");
    }
    let contents = [
        "request_id: Some",
        "resumed: 1",
        "excused: 1",
        "spoke: true",
        "mark: Some",
        "states: 1",
        "steered: Some",
        "reason: Some",
        "activate: true",
        "active: true",
        "turns: 1",
        "joining: Some",
        "is_cut: true",
        "switched: true",
        "switched: false",
        "notified_run: Some",
        "why: Some",
        "why: None",
        "last_request: Some",
        "running_answer: Some",
        "name: Some",
        "runner: Some",
        "spawned: true",
        "is_ending: true",
        "progress_count: 1",
        "orphan: true",
        "ok: true",
        "ok: false",
        "outcome: Some",
        "outcome: None",
        "with: Some",
        "with: None",
        "cut_bytes: 7",
        "gathered: {RunId",
        "suppressed: [ConversationRef",
        "recent: [RecentDelivery",
        "external_ids: [MessageId",
        "decided_by: Some",
        "edited_by: Some",
        "change: Some(MessageChange",
        "reaction: Some(Reaction",
        "buttons: Some(ButtonSet",
        "end: Some",
        "reply_to: Some",
        "sent: 1",
        "attempts: 1",
        "calling_since: {RunId",
        "deadline: Millis",
    ];
    for content in contents {
        assert!(shown.contains(content), "no state has {content}");
    }
}
