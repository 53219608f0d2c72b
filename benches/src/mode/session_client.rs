//! A client with a session of its own: sends turns, and compares every answer with the expected one.
use crate::connection::ServerConnection;
use crate::due_queue::DueQueue;
use crate::error::{ANSWER_TIMEOUT, BenchError, ConnectionFailure};
use crate::record::{Count, Measure};
use crate::run::Run;
use crate::target::Target;
use crate::wire::{self, Invoke, RunKey, ServerMessage};
use rustix::time::{ClockId, clock_gettime};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Maximum open turns of one session: a node lets 20 wait. Further due turns wait here, and their latency
/// includes that wait.
const OPEN_TURNS_MAX: usize = 16;
/// Bytes of a stamp with its space: 16 hexadecimal digits of the monotonic clock, in nanoseconds.
pub const STAMP_BYTES: usize = 17;

/// Input of a session's first turn: agents that count understand it, and others answer something.
const FIRST_INPUT: &str = "count to 1 every 1ms";

/// The request that is sent repeatedly.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Agent id.
    pub agent: String,
    /// Input text.
    pub text: String,
    /// Expected answer, if it is known.
    pub answer: Option<String>,
    /// The answer's tokens are the times at which they were sent.
    pub is_stamped: bool,
    /// Without a rate, the end of one turn makes the next one due.
    pub is_closed_loop: bool,
}

/// A connection with its session and its open turns.
#[derive(Debug)]
pub struct SessionClient {
    run: Rc<Run>,
    workload: Rc<Workload>,
    number: usize,
    line: ServerConnection,
    due: Rc<DueQueue>,
    invoke: Invoke,
    sent_count: u64,
    open: Vec<OpenTurn>,
    was_full: bool,
}

/// A turn that has not ended.
#[derive(Debug)]
struct OpenTurn {
    number: u64,
    due: Instant,
    run: Option<RunKey>,
    answer: AnswerProgress,
    last_text_at: Option<Instant>,
}

/// The amount of an answer that has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerProgress {
    /// Attempt of the run.
    pub attempt: u32,
    /// Contiguous bytes.
    pub bytes: u64,
}

/// The error of text that does not continue the text before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap;

// === impl SessionClient ===

impl SessionClient {
    /// Opens the n-th connection, and waits for `welcome`.
    pub async fn open(run: &Rc<Run>, job: &Rc<Workload>, n: usize) -> Result<Self, BenchError> {
        Self::open_at(run, job, n, run.target()).await
    }

    /// Opens the n-th connection to this server.
    pub async fn open_at(run: &Rc<Run>, job: &Rc<Workload>, n: usize, at: &Target) -> Result<Self, BenchError> {
        let (line, limits) = ServerConnection::connect_as_at(run, at, n, &user(n), "").await?;
        let invoke = Invoke::new(run.tag(), &session(run, n), &job.agent, &job.text);
        let said = invoke.render(u64::MAX).len();
        if said > limits.max_message_bytes {
            let most = limits.max_message_bytes;
            let why = format!("an input becomes a message of {said} bytes, and the server takes {most}");
            return Err(BenchError::Usage(why));
        }
        let run = Rc::clone(run);
        let job = Rc::clone(job);
        let due_queue = Rc::new(DueQueue::default());
        let number = n;
        let open = Vec::new();
        Ok(Self { run, workload: job, number, line, due: due_queue, invoke, sent_count: 0, open, was_full: false })
    }

    /// Moves to another node with the same session. No turn may be open.
    pub async fn move_to(&mut self, at: &Target) -> Result<(), BenchError> {
        let (line, _) = ServerConnection::connect_as_at(&self.run, at, self.number, &user(self.number), "").await?;
        std::mem::replace(&mut self.line, line).close().await;
        Ok(())
    }

    /// Returns the queue of due times; adding to it makes the client send a turn.
    pub fn due_queue(&self) -> Rc<DueQueue> {
        Rc::clone(&self.due)
    }

    /// Returns the connection, when no further turn is to be sent.
    pub fn into_line(self) -> ServerConnection {
        self.line
    }

    /// Runs a short turn first, so that the session's first turn is not measured. Short, because a session that
    /// is to belong to another node must get its next turn before the owner gives it up.
    pub async fn first_turn(&mut self) -> Result<(), BenchError> {
        let first = Invoke::new(self.run.tag(), &session(&self.run, self.number), &self.workload.agent, FIRST_INPUT);
        let invoke = std::mem::replace(&mut self.invoke, first);
        let ended = self.one_turn().await;
        self.invoke = invoke;
        ended
    }

    /// Runs one turn to its end. An error here fails the whole load.
    pub async fn one_turn(&mut self) -> Result<(), BenchError> {
        self.send_turn(Instant::now()).await?;
        let turn = async {
            while !self.open.is_empty() {
                let text = self.line.next().await?;
                let message = ServerMessage::parse(&text).unwrap_or_default();
                if message.kind == "error" {
                    return Err(BenchError::Failed(format!("the first turn failed: {}", message.error_text())));
                }
                self.handle_message(&text);
            }
            Ok(())
        };
        timeout(ANSWER_TIMEOUT, turn).await.map_err(|_| ConnectionFailure::TimedOut)?
    }

    /// Sends turns when they are due, until the load is over and everything is answered.
    pub async fn run(mut self) {
        if let Err(lost) = self.run_load().await {
            self.run.count_lost(&lost);
        } else {
            self.line.close().await;
        }
    }

    async fn run_load(&mut self) -> Result<(), ConnectionFailure> {
        loop {
            self.send_due().await?;
            if self.run.is_over() && self.open.is_empty() && self.due.is_empty() {
                return Ok(());
            }
            tokio::select! {
                biased;
                text = self.line.next() => self.handle_message(&text?),
                () = self.due.notified() => {}
            }
            // Messages that arrived together are handled together, before the next look at the queue.
            while let Some(text) = self.line.next_now() {
                self.handle_message(&text?);
            }
        }
    }

    async fn send_due(&mut self) -> Result<(), ConnectionFailure> {
        let mut is_fed = false;
        while self.open.len() < OPEN_TURNS_MAX
            && let Some(due) = self.due.pop()
        {
            // A wait for the session's earlier turns is not the generator's delay.
            if self.run.is_open_loop() && !self.was_full {
                self.run.record_duration(Measure::Late, due.elapsed());
            }
            self.queue_turn(due).await?;
            is_fed = true;
        }
        self.was_full = self.open.len() >= OPEN_TURNS_MAX;
        if is_fed { self.line.flush().await } else { Ok(()) }
    }

    async fn send_turn(&mut self, due: Instant) -> Result<(), ConnectionFailure> {
        self.queue_turn(due).await?;
        self.line.flush().await
    }

    async fn queue_turn(&mut self, due: Instant) -> Result<(), ConnectionFailure> {
        let number = self.sent_count;
        self.sent_count += 1;
        self.open.push(OpenTurn { number, due, run: None, answer: AnswerProgress::default(), last_text_at: None });
        self.line.queue(self.invoke.render(number)).await
    }

    fn handle_message(&mut self, text: &str) {
        if !matches!(wire::message_type(text), "delta" | "turn_accepted" | "done" | "error" | "") {
            return;
        }
        let Some(heard) = ServerMessage::parse(text) else { return self.run.count_error("unreadable") };
        match &*heard.kind {
            "delta" if heard.is_text() => self.handle_text(&heard),
            "turn_accepted" => self.handle_accepted(&heard),
            "done" => self.handle_done(&heard),
            "error" => self.handle_error(&heard),
            _ => {}
        }
    }

    fn handle_accepted(&mut self, message: &ServerMessage<'_>) {
        let number = message.request_id.as_deref().and_then(Invoke::number);
        if let Some(turn) = self.open.iter_mut().find(|turn| Some(turn.number) == number) {
            turn.run = message.run();
            self.run.record_duration(Measure::Accepted, turn.due.elapsed());
            self.run.count(Count::Accepted, 1);
        }
    }

    fn handle_text(&mut self, message: &ServerMessage<'_>) {
        let key = message.run();
        let Some(turn) = self.open.iter_mut().find(|turn| turn.run.is_some() && turn.run == key) else {
            return;
        };
        let now = Instant::now();
        match turn.last_text_at.replace(now) {
            None => self.run.record_duration(Measure::FirstDelta, now - turn.due),
            Some(before) => self.run.record_duration(Measure::BetweenDeltas, now - before),
        }
        let text = message.text.as_deref().unwrap_or_default();
        let offset = message.offset.unwrap_or(0);
        self.run.count(Count::Deltas, 1);
        self.run.count(Count::TextBytes, text.len() as u64);
        if turn.answer.append(message).is_err() {
            self.run.count(Count::Gaps, 1);
        }
        if let Some(answer) = &self.workload.answer {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let must = from.checked_add(text.len()).and_then(|to| answer.as_bytes().get(from..to));
            if must != Some(text.as_bytes()) {
                self.run.count(Count::Mismatches, 1);
            }
        }
        if self.workload.is_stamped {
            record_stamps(&self.run, offset, text);
        }
    }

    fn handle_done(&mut self, message: &ServerMessage<'_>) {
        let key = message.run();
        let Some(at) = self.open.iter().position(|turn| turn.run.is_some() && turn.run == key) else {
            return;
        };
        let turn = self.open.remove(at);
        match message.status.as_deref() {
            Some("completed") => {
                self.run.record_duration(Measure::Done, turn.due.elapsed());
                self.run.count(Count::Completed, 1);
                self.run.count(Count::InTime, u64::from(self.run.is_running()));
                let bytes = message.text_bytes.unwrap_or(0);
                let must = self.workload.answer.as_ref().map_or(bytes, |answer| answer.len() as u64);
                self.run.count(Count::Gaps, u64::from(turn.answer.bytes != bytes));
                self.run.count(Count::Mismatches, u64::from(bytes != must));
            }
            Some("cancelled") => self.run.count(Count::Cancelled, 1),
            _ => self.run.count(Count::Failed, 1),
        }
        self.make_due_again(false);
    }

    /// A refusal names the request, a failed turn its run, whose end follows as a message of its own.
    fn handle_error(&mut self, message: &ServerMessage<'_>) {
        self.run.count_error(message.code.as_deref().unwrap_or("no_code"));
        let number = message.request_id.as_deref().and_then(Invoke::number);
        let refused = self.open.iter().position(|turn| turn.run.is_none() && Some(turn.number) == number);
        if let Some(at) = refused {
            self.open.remove(at);
            self.run.count(Count::Refused, 1);
            self.make_due_again(true);
        }
    }

    fn make_due_again(&self, was_refused: bool) {
        if self.workload.is_closed_loop {
            self.run.make_due_again(&self.due, was_refused);
        }
    }
}

// === impl AnswerProgress ===

impl AnswerProgress {
    /// Appends a piece of text, which must begin where the last one ended, or at 0 in a new attempt.
    pub fn append(&mut self, message: &ServerMessage<'_>) -> Result<(), Gap> {
        let attempt = message.attempt.unwrap_or(0);
        let offset = message.offset.unwrap_or(0);
        let must = if attempt == self.attempt { self.bytes } else { 0 };
        let text = message.text.as_deref().unwrap_or_default();
        *self = Self { attempt, bytes: offset + text.len() as u64 };
        if offset == must { Ok(()) } else { Err(Gap) }
    }
}

/// Returns the id of the n-th session.
fn session(run: &Run, n: usize) -> String {
    format!("b{}-{n}", run.tag())
}

/// Returns the user of the n-th session.
fn user(n: usize) -> String {
    format!("bench-{n}")
}

/// Returns nanoseconds of the monotonic clock, which all processes of a machine share.
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// Measures the delay of every whole stamp in a piece of text that begins at this offset.
pub fn record_stamps(run: &Run, offset: u64, text: &str) {
    let now = monotonic_nanos();
    let into = usize::try_from(offset % STAMP_BYTES as u64).unwrap_or(0);
    let skip = (STAMP_BYTES - into) % STAMP_BYTES;
    for token in text.as_bytes().get(skip..).unwrap_or_default().chunks_exact(STAMP_BYTES) {
        let digits = std::str::from_utf8(&token[..STAMP_BYTES - 1]).ok();
        match digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            Some(said) => run.record_duration(Measure::Relay, Duration::from_nanos(now.saturating_sub(said))),
            None => run.count(Count::Mismatches, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(attempt: u32, offset: u64, text: &str) -> ServerMessage<'_> {
        ServerMessage {
            attempt: Some(attempt),
            offset: Some(offset),
            text: Some(text.into()),
            ..ServerMessage::default()
        }
    }

    #[test]
    fn an_answer_grows_without_gaps_or_repeats() {
        let mut answer = AnswerProgress::default();
        assert_eq!(answer.append(&piece(1, 0, "äb")), Ok(()));
        assert_eq!(answer.append(&piece(1, 3, "c")), Ok(()));
        assert_eq!(answer.append(&piece(1, 3, "c")), Err(Gap), "a repeat");
        assert_eq!(answer.append(&piece(1, 9, "x")), Err(Gap), "a hole");
        assert_eq!(answer.append(&piece(2, 0, "x")), Ok(()), "a new attempt");
        assert_eq!(answer.append(&piece(3, 1, "x")), Err(Gap), "which begins at 0");
    }
}
