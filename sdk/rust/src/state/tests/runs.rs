//! The bound of open runs, and the delays between repairs of their text.
use super::*;
use crate::event::RunMark;

/// Returns the id of the run with this number.
fn run_id(n: usize) -> String {
    format!("s.r{n}")
}

/// Returns a client that follows session `s` from its beginning.
fn following() -> Rig {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(0, json!({}));
    rig
}

/// Returns a client with as many open runs as may be, which are numbered from 0.
fn full() -> Rig {
    let mut rig = following();
    for n in 0..limits::RUNS_MAX {
        rig.s(json!({"type": "run_started", "run_id": run_id(n), "agent_id": "echo", "attempt": 1}));
    }
    assert_eq!(open_runs(&rig), limits::RUNS_MAX);
    rig
}

fn open_runs(rig: &Rig) -> usize {
    rig.state.sessions["s"].runs.len()
}

#[test]
fn open_runs_are_bounded_by_whatever_message_they_begin() {
    let messages = [
        json!({"type": "run_started", "agent_id": "echo", "attempt": 1}),
        json!({"type": "delta", "attempt": 1, "offset": 0, "text": "x"}),
        json!({"type": "delta", "kind": "reasoning", "attempt": 1, "offset": 0, "text": "x"}),
        json!({"type": "event", "name": "RUN_RESTARTED", "attempt": 2}),
        json!({"type": "error", "code": "agent_error", "terminal": true}),
    ];
    for message in messages {
        let mut rig = following();
        for n in 0..2 * limits::RUNS_MAX {
            let mut one = message.clone();
            one["run_id"] = run_id(n).into();
            rig.s(one);
        }
        assert_eq!(open_runs(&rig), limits::RUNS_MAX, "{message}");
    }
}

#[test]
fn runs_of_a_snapshot_or_a_bookmark_are_bounded() {
    let numbers = 0..2 * limits::RUNS_MAX;
    let mut rig = Rig::new();
    rig.subscribe(Start::Now);
    let open = |n| json!({"run_id": run_id(n), "state": "RUNNING", "attempt": 1, "text_bytes": 0});
    let runs: Vec<Value> = numbers.clone().map(open).collect();
    rig.subscribed(3, json!({"snapshot": {"session_id": "s", "state": "open", "runs": runs, "seq": 3, "epoch": 1}}));
    assert_eq!(open_runs(&rig), limits::RUNS_MAX);

    let mark = |n| RunMark { run_id: run_id(n), agent_id: None, attempt: 1, text: "x".to_owned() };
    let runs = numbers.map(mark).collect();
    let session_id = "s".to_owned();
    let cursor = Some(LogCursor { seq: 3, epoch: Some(1) });
    let mut later = Rig::offline();
    let mark = Bookmark { session_id, cursor, runs, inputs: Vec::new(), types: Vec::new() };
    later.state.resume(later.now, mark).expect("taken");
    assert_eq!(open_runs(&later), limits::RUNS_MAX);
}

/// There is no room for the text of the run, so the text is neither requested nor waited for.
#[test]
fn end_of_a_run_beyond_the_bound_is_delivered_at_once() {
    let mut rig = full();
    let mut end = done(1, 4);
    end["session_id"] = "s".into();
    assert!(!rig.state.lacks_text(&end.to_string()));
    let error = json!({"type": "error", "run_id": "s.r", "code": "agent_error", "terminal": true});
    assert_eq!(rig.s(error), ["error  agent_error"]);
    assert_eq!(rig.s(end), ["done completed  incomplete"]);
    let Some(Event::Done(last)) = rig.events.last() else { panic!("done") };
    assert_eq!((last.attempt, last.text_bytes), (1, 4));
    assert_eq!(open_runs(&rig), limits::RUNS_MAX);
}

#[test]
fn ended_run_makes_room_for_another() {
    let mut rig = full();
    let text = json!({"type": "delta", "run_id": "s.next", "attempt": 1, "offset": 0, "text": "x"});
    assert_eq!(rig.s(text.clone()), Vec::<String>::new());
    let mut end = done(1, 0);
    end["run_id"] = run_id(0).into();
    assert_eq!(rig.s(end), ["done completed "]);
    assert_eq!(rig.s(text), ["text x"]);
}

/// The first repair is made at once, the second after the base delay, the third after twice the delay.
#[test]
fn repairs_without_progress_are_delayed_from_the_base_delay() {
    let tick = Duration::from_millis(1);
    let mut rig = following();
    assert_eq!(rig.s(done(2, 4)).len(), 1, "it subscribes again");
    for delay in [limits::REPAIR_BASE, 2 * limits::REPAIR_BASE] {
        rig.subscribed(2, json!({}));
        assert_eq!(rig.s(done(2, 4)), Vec::<String>::new());
        assert_eq!(rig.wait(delay - tick), Vec::<String>::new(), "{delay:?}");
        assert_eq!(rig.wait(tick).len(), 1, "{delay:?}");
        assert_eq!(rig.sent.last().map(|message| &message["type"]), Some(&json!("subscribe")));
    }
}
