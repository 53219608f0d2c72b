//! Mode `fanout`: one session with many listeners, each of which must receive everything.
mod hall;

use crate::bell::Bell;
use crate::cli::Fanout;
use crate::connection::Line;
use crate::mode::stream;
use crate::mode::talk::{Talk, hear_stamps};
use crate::record::{Count, Measure};
use crate::report::{self, Story};
use crate::run::Run;
use crate::trouble::{Lost, Trouble};
use crate::wire::{self, Heard};
use hall::{Hall, Seat};
use serde_json::json;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::watch;
use tokio::task::JoinSet;
use turnway::cli::Exit;

/// Description of the closed loop.
const CLOSED: &str = "closed loop, the next answer when the last listener has heard the end of one";

/// User of the speaker and of all listeners.
const USER: &str = "bench-0";

/// A subscriber of the session.
struct Listener {
    run: Rc<Run>,
    line: Line,
    hall: Rc<RefCell<Hall>>,
    /// The speaker's queue of due times: the last listener to receive the end of a turn makes the next one due.
    speaker: Rc<Bell>,
    seat: Seat,
    is_stamped: bool,
    /// Turns whose end this listener has received.
    ended: u64,
    /// Number of turns, once no more will follow.
    all: watch::Receiver<Option<u64>>,
}

/// Runs the mode.
pub async fn run(args: Fanout) -> Result<Exit, Trouble> {
    let run = Run::new("fanout", Measure::BehindFirst, &args.common)?;
    let job = Rc::new(stream::job(&args.streaming, false));
    let mut speaker = Talk::open(&run, &job, 0).await?;
    speaker.one_turn().await?;
    let bell = speaker.bell();
    let session = format!("b{}-0", run.tag());
    let subscribe = format!("{{\"session_id\":{}}}", wire::quoted(&session));
    let count = run.load().connections;
    let (spoken, all) = watch::channel(None);
    let hall = Rc::new(RefCell::new(Hall::new(count)));
    let listen = |n| {
        let (run, hall, speaker) = (Rc::clone(&run), Rc::clone(&hall), Rc::clone(&bell));
        let (resume, all) = (subscribe.clone(), all.clone());
        async move {
            let (mut line, _) = Line::hello(&run, n + 1, USER, &resume).await?;
            let answer = line.answer().await?;
            if wire::kind(&answer) != "subscribed" {
                return Err(Trouble::Failed(format!("a listener was answered {answer}")));
            }
            let seat = Seat::default();
            let is_stamped = args.streaming.stamped;
            Ok(Listener { run, line, hall, speaker, seat, is_stamped, ended: 0, all })
        }
    };
    let listeners = run.gather(count, listen).await?;
    let mut tasks = JoinSet::new();
    run.begin();
    for listener in listeners {
        tasks.spawn_local(listener.run());
    }
    tasks.spawn_local(speak(Rc::clone(&run), speaker, spoken));
    run.ring(vec![bell]).await?;
    run.drain(tasks).await;
    let (heard, text) = (hall.borrow().deltas, hall.borrow().bytes);
    let turns = run.record().borrow().counted(Count::Completed);
    let more = json!({
        "agent": args.streaming.agent, "tokens": args.streaming.tokens, "listeners": count,
        "deliveries": heard, "delivered_bytes": text, "turns": turns,
    });
    let lines = vec![("answers", format!("{turns}, each heard whole by all who listened to its end"))];
    report::finish(&run, &Story { unit: "deliveries", count: heard, closed: Some(CLOSED), more, lines })
}

/// Runs the speaker until the load is over, then tells the listeners how many turns there were.
async fn speak(run: Rc<Run>, speaker: Talk, spoken: watch::Sender<Option<u64>>) {
    speaker.run().await;
    let record = run.record().borrow();
    let ended = [Count::Completed, Count::Failed, Count::Cancelled];
    spoken.send_replace(Some(ended.iter().map(|count| record.counted(*count)).sum()));
}

// === impl Listener ===

impl Listener {
    async fn run(mut self) {
        match self.listen().await {
            Ok(()) => self.line.close().await,
            Err(lost) => {
                self.hall.borrow_mut().leave(&self.run);
                self.run.lost(&lost);
            }
        }
    }

    async fn listen(&mut self) -> Result<(), Lost> {
        let mut all = *self.all.borrow_and_update();
        while all.is_none_or(|all| self.ended < all) {
            tokio::select! {
                biased;
                text = self.line.next() => self.hear(&text?),
                told = self.all.changed(), if all.is_none() => {
                    // The speaker is gone, so nothing more will follow.
                    all = if told.is_ok() { *self.all.borrow_and_update() } else { Some(0) };
                }
            }
        }
        Ok(())
    }

    fn hear(&mut self, text: &str) {
        if !matches!(wire::kind(text), "delta" | "done" | "") {
            return;
        }
        let Some(heard) = Heard::parse(text) else { return self.run.error("unreadable") };
        let Some(key) = heard.run() else { return };
        let now = Instant::now();
        if heard.is_text() {
            let said = heard.text.as_deref().unwrap_or_default();
            self.hall.borrow_mut().hear(&self.run, &mut self.seat, key, &heard, now);
            if self.is_stamped {
                hear_stamps(&self.run, heard.offset.unwrap_or(0), said);
            }
        } else if heard.kind == "done" {
            self.ended += 1;
            if self.hall.borrow_mut().end(&self.run, &mut self.seat, key, &heard) {
                self.run.ask_again(&self.speaker, false);
            }
        }
    }
}
