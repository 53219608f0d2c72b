//! Reports what this node took from shared rates to the other nodes through Redis ([`turnway_core::rate::shared`]). No
//! request waits for a report. Opened by `app::build`.
use crate::clock::Clock;
use crate::config::redis::RedisUrl;
use crate::metrics::{Metrics, RateExchange};
use crate::rates::{UsageReport, UsageSender};
use crate::redis::{RedisConnection, RedisConnectionOptions};
use crate::store::redis::answer::RedisAnswerReader;
use crate::store::redis::call::RedisCall;
use crate::store::redis::key;
use crate::supervise;
use ::redis::Pipeline;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use turnway_core::limits;

/// Timeout of an answer: as long as a usable store's round trip may be, or rates would never be shared with a distant
/// one. Amounts taken meanwhile are reported next.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The task that sends the reports until their channel closes.
struct RateReporter {
    line: RedisConnection,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// True if the last report was answered, so that only the first of consecutive failures is logged.
    was_answered: bool,
}

/// Starts reporting to this server over a separate connection.
pub fn open(url: RedisUrl, clock: Clock, metrics: Arc<Metrics>, runtime: &Handle) -> UsageSender {
    let (teller, dues) = mpsc::channel(limits::RATE_REPORTS_MAX);
    let settings = RedisConnectionOptions {
        name: "rates",
        command_timeout: ANSWER_TIMEOUT,
        channels: Vec::new(),
        push_handler: None,
    };
    let line = RedisConnection::open(url, settings, runtime);
    let tally = RateReporter { line, clock, metrics, was_answered: true };
    supervise::spawn_required(runtime, "shared rates", tally.run(dues));
    teller
}

// === impl RateReporter ===

impl RateReporter {
    async fn run(mut self, mut dues: mpsc::Receiver<UsageReport>) {
        let mut more = Vec::new();
        let mut again = Vec::new();
        loop {
            // Amounts taken while the last answer was in flight are reported now.
            more.append(&mut again);
            let free = limits::RATE_REPORTS_BATCH_MAX.saturating_sub(more.len());
            let waits = more.is_empty();
            tokio::select! {
                biased;
                had = dues.recv_many(&mut more, free), if free > 0 => if had == 0 && waits { return },
                () = std::future::ready(()), if !waits => {}
            }
            self.send_reports(&mut more, &mut again).await;
        }
    }

    async fn send_reports(&mut self, dues: &mut Vec<UsageReport>, again: &mut Vec<UsageReport>) {
        let now = self.clock.mono();
        let mut calls = Pipeline::with_capacity(dues.len());
        for due in &*dues {
            let (name, lane) = due.bucket();
            let (cost, most) = due.take_usage(now);
            let call = RedisCall::write("owe", [key::rate(name, lane)]).number(micros(cost)).number(micros(most));
            calls.add_command(call.into_command());
        }
        let answers = self.line.execute_all(&calls).await;
        let now = self.clock.mono();
        let mut answers = answers.as_ref().map(|answers| answers.iter()).unwrap_or_default();
        for due in dues.drain(..) {
            let answer = answers.next().and_then(|answer| answer.as_ref().ok().cloned());
            let ahead =
                answer.and_then(|value| RedisAnswerReader::from_value(value).and_then(|mut it| it.number()).ok());
            self.was_answered = self.record_result(ahead.is_some());
            match ahead {
                Some(ahead) => again.extend(due.handle_answer(Duration::from_micros(ahead), now)),
                None => due.handle_no_answer(now),
            }
        }
    }

    fn record_result(&self, is_well: bool) -> bool {
        self.metrics.auth.count_rate_exchange(if is_well { RateExchange::Answered } else { RateExchange::Unanswered });
        match (self.was_answered, is_well) {
            (true, false) => {
                tracing::warn!(
                    "Redis does not answer rate reports: this node applies its own rates alone (docs/operations.md)"
                );
            }
            (false, true) => tracing::info!("rates are shared with other nodes again"),
            (true, true) | (false, false) => {}
        }
        is_well
    }
}

/// Converts a duration to microseconds, rounded up.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}
