//! A call from its beginning to its end: asks one upstream after the other until one answers, and counts the call once,
//! however it ends.
use super::answer::{AnswerOutcome, ModelAnswer};
use super::attempt::{UpstreamReply, attempt};
use super::candidates::candidates;
use super::upstream::{NotAsked, Upstream};
use super::{ModelCall, Models};
use crate::clock::Clock;
use crate::metrics::{Metrics, ModelCallOutcome};
use crate::outbound::retry_after::retry_after;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Mono;

/// A call whose answer has begun. Dropping it closes the connection to the upstream.
pub struct OpenCall {
    pub answer: Box<ModelAnswer>,
    record: CallRecord,
}

/// A reason why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// All upstreams have as many calls as they may have.
    Busy,
    /// No upstream could be reached.
    Unreachable,
    /// The provider's key was refused.
    Unauthorized,
    /// The connection broke before an answer; the call may have been served.
    Broken,
    /// There was no answer in time; the call may have been served.
    TimedOut,
}

/// Counts one call when it is dropped.
struct CallRecord {
    metrics: Arc<Metrics>,
    began: Mono,
    outcome: ModelCallOutcome,
    clock: Clock,
}

/// The requests of one call.
struct CallAttempts<'a> {
    models: &'a Models,
    request: &'a ModelCall,
    began: Mono,
    count: usize,
    /// The reason for the caller if nothing better is known.
    failure: CallFailure,
}

// === impl Models ===

impl Models {
    /// Sends a call to the upstreams of its model, until one answers. Dropping the future ends the call.
    pub async fn open(&self, request: &ModelCall) -> Result<OpenCall, CallFailure> {
        let began = self.clock.mono();
        let mut record = CallRecord::begin(Arc::clone(&self.metrics), began, self.clock.clone());
        let attempts = CallAttempts { models: self, request, began, count: 0, failure: CallFailure::Unreachable };
        match attempts.run().await {
            Ok(answer) => Ok(OpenCall { answer, record }),
            Err(failure) => {
                record.outcome = failure.outcome();
                Err(failure)
            }
        }
    }
}

/// Returns a random number; the system always has some after its start.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness the first upstream of the configuration is asked first.
    _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

// === impl CallAttempts ===

impl CallAttempts<'_> {
    async fn run(mut self) -> Result<Box<ModelAnswer>, CallFailure> {
        // The last upstream that did not serve the call, with its answer.
        let mut refused: Option<(Arc<Upstream>, Box<ModelAnswer>)> = None;
        for upstream in candidates(&self.models.upstreams, self.request.call.model(), random) {
            if self.count >= limits::MODEL_ATTEMPTS_MAX {
                break;
            }
            match self.attempt(&upstream).await? {
                Some(UpstreamReply::Answer(answer)) => return Ok(answer),
                Some(UpstreamReply::NotServed(answer)) => refused = Some((upstream, answer)),
                Some(
                    UpstreamReply::Unreachable
                    | UpstreamReply::Unauthorized
                    | UpstreamReply::Broken
                    | UpstreamReply::TimedOut,
                )
                | None => {}
            }
        }
        let Some((upstream, answer)) = refused else { return Err(self.failure) };
        let Some(wait) = self.retry_wait(&answer, &upstream) else { return Ok(answer) };
        drop(answer);
        tokio::time::sleep(wait).await;
        match self.attempt(&upstream).await? {
            Some(UpstreamReply::Answer(answer) | UpstreamReply::NotServed(answer)) => Ok(answer),
            Some(
                UpstreamReply::Unreachable
                | UpstreamReply::Unauthorized
                | UpstreamReply::Broken
                | UpstreamReply::TimedOut,
            )
            | None => Err(self.failure),
        }
    }

    /// Asks one upstream, unless it is not to be asked now. An error ends the call.
    async fn attempt(&mut self, upstream: &Arc<Upstream>) -> Result<Option<UpstreamReply>, CallFailure> {
        let clock = &self.models.clock;
        let place = match upstream.enter(clock.mono()) {
            Ok(place) => place,
            Err(NotAsked::Busy) => {
                self.failure = CallFailure::Busy;
                return Ok(None);
            }
            Err(NotAsked::Failing) => return Ok(None),
        };
        self.count += 1;
        let deadline = self.began + upstream.spec.times.total;
        let end = attempt(upstream, self.request, place, deadline, clock).await;
        self.models.metrics.models.count_attempt(end.outcome());
        match end {
            UpstreamReply::Answer(_) | UpstreamReply::NotServed(_) => {}
            UpstreamReply::Unreachable => self.failure = CallFailure::Unreachable,
            UpstreamReply::Unauthorized => return Err(CallFailure::Unauthorized),
            UpstreamReply::Broken => return Err(CallFailure::Broken),
            UpstreamReply::TimedOut => return Err(CallFailure::TimedOut),
        }
        Ok(Some(end))
    }

    /// Returns how long to wait before an upstream that has not served the call is asked once more; none if its answer is
    /// passed on.
    fn retry_wait(&self, answer: &ModelAnswer, upstream: &Upstream) -> Option<Duration> {
        let clock = &self.models.clock;
        let wait = retry_after(answer.upstream_headers(), clock.now().store)?;
        let most =
            if planted(Planted::ModelRetryAfterUncapped) { Duration::MAX } else { limits::MODEL_RETRY_AFTER_MAX };
        let is_in_time = clock.mono() + wait < self.began + upstream.spec.times.total;
        (wait <= most && is_in_time && self.count < limits::MODEL_ATTEMPTS_MAX).then_some(wait)
    }
}

// === impl CallFailure ===

impl CallFailure {
    fn outcome(self) -> ModelCallOutcome {
        match self {
            Self::Busy | Self::Unreachable | Self::Unauthorized | Self::Broken => ModelCallOutcome::Failed,
            Self::TimedOut => ModelCallOutcome::TimedOut,
        }
    }
}

// === impl OpenCall ===

impl OpenCall {
    /// Records the end of the answer. Without it, the call counts as cancelled.
    pub fn record_end(&mut self, outcome: AnswerOutcome) {
        self.record.outcome = match outcome {
            AnswerOutcome::Complete => ModelCallOutcome::Complete,
            AnswerOutcome::Error => ModelCallOutcome::Error,
            AnswerOutcome::Refused => ModelCallOutcome::Refused,
            AnswerOutcome::Truncated => ModelCallOutcome::Truncated,
            AnswerOutcome::TimedOut => ModelCallOutcome::TimedOut,
        };
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let metrics = &self.record.metrics.models;
        let marks = self.answer.marks();
        metrics.record_answer(
            marks.first_byte.map(|at| at - self.record.began),
            marks.first_token.map(|at| at - self.record.began),
            &self.answer.usage(),
        );
    }
}

// === impl CallRecord ===

impl CallRecord {
    fn begin(metrics: Arc<Metrics>, began: Mono, clock: Clock) -> Self {
        metrics.models.begin_call();
        Self { metrics, began, outcome: ModelCallOutcome::Cancelled, clock }
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        self.metrics.models.end_call(self.outcome, self.clock.mono() - self.began);
    }
}
