//! Mode `fanout`: one session with many listeners, each of which must receive everything.
mod tracker;

use crate::cli::Fanout;
use crate::connection::ServerConnection;
use crate::due_queue::DueQueue;
use crate::error::{BenchError, ConnectionFailure};
use crate::mode::session_client::{SessionClient, record_stamps};
use crate::mode::stream;
use crate::record::{Count, Measure};
use crate::report::{self, ModeFigures};
use crate::run::Run;
use crate::wire::{self, ServerMessage};
use serde_json::json;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracker::{FanoutTracker, ListenerProgress};
use turnway::cli::CliExit;

/// Description of the closed loop.
const CLOSED_LOOP: &str = "closed loop, the next answer when the last listener has heard the end of one";

/// User of the speaker and of all listeners.
const USER: &str = "bench-0";

/// A subscriber of the session.
struct Listener {
    run: Rc<Run>,
    line: ServerConnection,
    tracker: Rc<RefCell<FanoutTracker>>,
    /// The speaker's queue of due times: the last listener to receive the end of a turn makes the next one due.
    speaker_due: Rc<DueQueue>,
    progress: ListenerProgress,
    is_stamped: bool,
    /// Turns whose end this listener has received.
    ended: u64,
    /// Number of turns, once no more will follow.
    turn_count: watch::Receiver<Option<u64>>,
}

/// Runs the mode.
pub async fn run(args: Fanout) -> Result<CliExit, BenchError> {
    let run = Run::new("fanout", Measure::BehindFirst, &args.common)?;
    let job = Rc::new(stream::workload(&args.streaming, false));
    let mut speaker = SessionClient::open(&run, &job, 0).await?;
    speaker.one_turn().await?;
    let due_queue = speaker.due_queue();
    let session = format!("b{}-0", run.tag());
    let subscribe = format!("{{\"session_id\":{}}}", wire::json_string(&session));
    let count = run.load().connections;
    let (spoken, all) = watch::channel(None);
    let tracker = Rc::new(RefCell::new(FanoutTracker::new(count)));
    let listen = |n| {
        let run = Rc::clone(&run);
        let tracker = Rc::clone(&tracker);
        let speaker = Rc::clone(&due_queue);
        let resume = subscribe.clone();
        let all = all.clone();
        async move {
            let (mut line, _) = ServerConnection::connect_as(&run, n + 1, USER, &resume).await?;
            let answer = line.next_in_time().await?;
            if wire::message_type(&answer) != "subscribed" {
                return Err(BenchError::Failed(format!("a listener was answered {answer}")));
            }
            let progress = ListenerProgress::new(n);
            let is_stamped = args.streaming.stamped;
            Ok(Listener { run, line, tracker, speaker_due: speaker, progress, is_stamped, ended: 0, turn_count: all })
        }
    };
    let listeners = run.make_all(count, listen).await?;
    let mut tasks = JoinSet::new();
    run.begin();
    for listener in listeners {
        tasks.spawn_local(listener.run());
    }
    tasks.spawn_local(speak(Rc::clone(&run), speaker, spoken));
    run.dispatch(vec![due_queue]).await?;
    run.drain(tasks).await;
    let heard = tracker.borrow().deltas;
    let text = tracker.borrow().bytes;
    let turns = run.record().borrow().counted(Count::Completed);
    let more = json!({
        "agent": args.streaming.agent, "tokens": args.streaming.tokens, "listeners": count,
        "deliveries": heard, "delivered_bytes": text, "turns": turns,
    });
    let lines = vec![("answers", format!("{turns}, each heard whole by all who listened to its end"))];
    report::finish(
        &run,
        &ModeFigures {
            unit: "deliveries",
            count: heard,
            closed_loop: Some(CLOSED_LOOP),
            extra_json: more,
            extra_lines: lines,
        },
    )
}

/// Runs the speaker until the load is over, then tells the listeners how many turns there were.
async fn speak(run: Rc<Run>, speaker: SessionClient, spoken: watch::Sender<Option<u64>>) {
    speaker.run().await;
    let record = run.record().borrow();
    let ended = [Count::Completed, Count::Failed, Count::Cancelled];
    spoken.send_replace(Some(ended.iter().map(|count| record.counted(*count)).sum()));
}

/// Removes a lost listener. If the turn has waited only for that one, the next turn is due: no other listener will say
/// so, and the closed loop would stand still.
fn leave(run: &Rc<Run>, tracker: &RefCell<FanoutTracker>, progress: &ListenerProgress, speaker_due: &Rc<DueQueue>) {
    let was_last = tracker.borrow_mut().remove_listener(run, progress);
    if was_last {
        run.make_due_again(speaker_due, false);
    }
}

// === impl Listener ===

impl Listener {
    async fn run(mut self) {
        match self.listen().await {
            Ok(()) => self.line.close().await,
            Err(lost) => {
                leave(&self.run, &self.tracker, &self.progress, &self.speaker_due);
                self.run.count_lost(&lost);
            }
        }
    }

    async fn listen(&mut self) -> Result<(), ConnectionFailure> {
        let mut all = *self.turn_count.borrow_and_update();
        while all.is_none_or(|all| self.ended < all) {
            tokio::select! {
                biased;
                text = self.line.next() => self.handle_message(&text?),
                told = self.turn_count.changed(), if all.is_none() => {
                    // The speaker is gone, so nothing more will follow.
                    all = if told.is_ok() { *self.turn_count.borrow_and_update() } else { Some(0) };
                }
            }
        }
        Ok(())
    }

    fn handle_message(&mut self, text: &str) {
        if !matches!(wire::message_type(text), "delta" | "done" | "") {
            return;
        }
        let Some(heard) = ServerMessage::parse(text) else { return self.run.count_error("unreadable") };
        let Some(key) = heard.run() else { return };
        let now = Instant::now();
        if heard.is_text() {
            let said = heard.text.as_deref().unwrap_or_default();
            self.tracker.borrow_mut().record_text(&self.run, &mut self.progress, key, &heard, now);
            if self.is_stamped {
                record_stamps(&self.run, heard.offset.unwrap_or(0), said);
            }
        } else if heard.kind == "done" {
            self.ended += 1;
            if self.tracker.borrow_mut().record_end(&self.run, &mut self.progress, key, &heard) {
                self.run.make_due_again(&self.speaker_due, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::RunKey;
    use tokio::task::LocalSet;

    #[tokio::test]
    async fn the_next_turn_is_due_when_the_last_late_listener_is_lost() {
        let loop_goes_on = async {
            let run = Run::idle(Measure::BehindFirst);
            run.begin();
            let tracker = RefCell::new(FanoutTracker::new(2));
            let due = Rc::new(DueQueue::default());
            let mut first = ListenerProgress::new(0);
            let late = ListenerProgress::new(1);
            let key = RunKey::of("s.abcdefghijklmnopqrstuvwxyz").expect("a run");
            let end = ServerMessage::default();
            assert!(!tracker.borrow_mut().record_end(&run, &mut first, key, &end));
            leave(&run, &tracker, &late, &due);
            assert!(due.pop().is_some(), "the speaker waits for ever");
            leave(&run, &tracker, &first, &due);
            assert!(due.is_empty(), "nobody listens any more");
        };
        LocalSet::new().run_until(loop_goes_on).await;
    }
}
