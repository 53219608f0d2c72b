//! `builtin:counter`: counts to N at a given pace, as an example of a long task that reports progress. Called by
//! `execution`.
use crate::agent::attempt::AttemptTask;
use crate::config::amount::parse_wait;
use serde_json::json;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior};
use turnway_core::protocol::agent::{AgentEvent, StopReason, TextKind};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::steer::SteerOutcome;

/// Default number to count to.
const COUNT: u64 = 10;
/// Maximum number to count to.
const COUNT_MAX: u64 = 10_000;
/// Default pause between two numbers.
const PACE: Duration = Duration::from_millis(500);
/// Maximum pause between two numbers, well below the silence that an agent is allowed.
const PACE_MAX: Duration = Duration::from_secs(60);
/// Maximum `state` events of one run: each becomes a fact in the log.
const STATES: u64 = 10;

/// The task that the user's text asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CountTask {
    count: u64,
    pace: Duration,
}

/// Counts, and returns how the attempt ended. A steering input is applied before the next number.
pub(super) async fn run(attempt: &mut AttemptTask) -> AgentEvent {
    attempt.report(AgentEvent::Acked).await;
    let mut task = CountTask::parse(&attempt.invoke.message.content.plain_text());
    let control = attempt.control();
    let mut ticks = paced(task.pace);
    let mut number = 0;
    while number < task.count {
        tokio::select! {
            biased;
            () = control.wait_cancelled() => return AgentEvent::CancelAcked,
            steer = control.recv_steer() => {
                let changed = task.with_steer(&steer.message.content.plain_text(), number);
                if changed.pace != task.pace {
                    ticks = paced(changed.pace);
                    // The first tick of an interval completes at once, and the next number is not due yet.
                    ticks.reset();
                }
                task = changed;
                let message_id = steer.message_id;
                let outcome = SteerOutcome::Accepted;
                attempt.report(AgentEvent::Steered { message_id, outcome }).await;
                attempt.report_text(TextKind::Text, format!("at {number} of {}\n", task.count), None).await;
            }
            _ = ticks.tick() => {
                number += 1;
                attempt.report_text(TextKind::Text, format!("{number}\n"), None).await;
                progress(attempt, task, number).await;
            }
        }
    }
    if attempt.is_cancelled() {
        return AgentEvent::CancelAcked;
    }
    AgentEvent::Done { stop: StopReason::EndTurn, usage: None }
}

fn paced(pace: Duration) -> Interval {
    let mut ticks = tokio::time::interval(pace);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn progress(attempt: &mut AttemptTask, task: CountTask, number: u64) {
    if task.is_milestone(number) {
        let detail = Some(Json(json!({ "at": number, "of": task.count })));
        attempt.report(AgentEvent::State { state: "counting".to_owned(), detail, id: None }).await;
    }
}

// === impl CountTask ===

impl CountTask {
    /// Parses a task: the first number is the count, the first duration the pace ("count to 10 every 200ms").
    fn parse(text: &str) -> Self {
        let words = text.split_whitespace().map(|word| word.trim_matches([',', '.', ';', '!']));
        let count = words.clone().find_map(|word| word.parse().ok()).unwrap_or(COUNT);
        let pace = words.filter_map(parse_wait).find(|pace| !pace.is_zero()).unwrap_or(PACE);
        Self { count: count.min(COUNT_MAX), pace: pace.min(PACE_MAX) }
    }

    /// Returns the task after a steering input that arrived at this number. "stop" ends the count, a number is the new
    /// count, a duration the new pace; any other text changes nothing.
    fn with_steer(self, text: &str, number: u64) -> Self {
        let words = || text.split_whitespace().map(|word| word.trim_matches([',', '.', ';', '!', '?']));
        if words().any(|word| word.eq_ignore_ascii_case("stop")) {
            return Self { count: number, ..self };
        }
        let count = words().find_map(|word| word.parse().ok()).unwrap_or(self.count);
        let pace = words().filter_map(parse_wait).find(|pace| !pace.is_zero()).unwrap_or(self.pace);
        Self { count: count.clamp(number, COUNT_MAX), pace: pace.min(PACE_MAX) }
    }

    fn is_milestone(self, number: u64) -> bool {
        number * STATES / self.count != (number - 1) * STATES / self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_task_is_parsed_from_text() {
        for (text, count, millis) in [
            ("count to 10 every 200ms", 10, 200),
            ("7", 7, 500),
            ("please", 10, 500),
            ("", 10, 500),
            ("Count to 3, every 2s.", 3, 2000),
            ("99999999", 10_000, 500),
            ("1 every 23h", 1, 60_000),
            ("0", 0, 500),
        ] {
            assert_eq!(CountTask::parse(text), CountTask { count, pace: Duration::from_millis(millis) }, "{text}");
        }
    }

    /// Covers: EV-T9, EV-T15.
    #[test]
    fn count_task_is_changed_by_a_steering_text() {
        let task = CountTask { count: 10, pace: PACE };
        for (text, count, millis) in [
            ("How far are you?", 10, 500),
            ("count to 20 every 50ms", 20, 50),
            ("only to 3", 4, 500),
            ("Stop!", 4, 500),
            ("faster: 10ms", 10, 10),
        ] {
            assert_eq!(task.with_steer(text, 4), CountTask { count, pace: Duration::from_millis(millis) }, "{text}");
        }
    }

    #[test]
    fn progress_is_reported_at_most_ten_times() {
        for count in [1, 3, 10, 99, 10_000] {
            let task = CountTask { count, pace: PACE };
            let milestones: Vec<u64> = (1..=count).filter(|number| task.is_milestone(*number)).collect();
            assert!(
                milestones.len() as u64 == count.min(STATES) && milestones.last() == Some(&count),
                "{count}: {milestones:?}"
            );
        }
    }
}
