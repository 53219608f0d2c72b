//! A call from its beginning to its end: asks one upstream after the other until one answers, and counts the call once,
//! however it ends.
use super::answer::{AnswerMarks, AnswerOutcome, ModelAnswer};
use super::attempt::{UpstreamReply, attempt};
use super::bound::{self, CallBudgetRefusal};
use super::budget::keeper::BudgetReservation;
use super::budget::{BudgetRefusal, BudgetRefusalReason};
use super::candidates::candidates;
use super::journal::{CallEntry, CallUnrecorded};
use super::price::cost;
use super::upstream::{NotAsked, Upstream};
use super::{ModelCall, Models};
use crate::clock::Clock;
use crate::metrics::{Metrics, ModelCallOutcome};
use crate::outbound::retry_after::retry_after;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::EventId;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::model_call::{ModelCallEnd, ModelCallStart, RecordedCallOutcome, RecordedTokens};
use turnway_core::time::Mono;
use turnway_wire::model::TokenUsage;

/// A call whose answer has begun. Dropping it closes the connection to the upstream.
pub struct OpenCall {
    pub answer: Box<ModelAnswer>,
    record: CallRecord,
}

/// A reason why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// A budget admits no such call.
    Budget(Box<CallBudgetRefusal>),
    /// All upstreams have as many calls as they may have.
    Busy,
    /// The call of a run could not be recorded; no upstream has seen it.
    Unrecorded,
    /// No upstream could be reached.
    Unreachable,
    /// The provider's key was refused.
    Unauthorized,
    /// The connection broke before an answer; the call may have been served.
    Broken,
    /// There was no answer in time; the call may have been served.
    TimedOut,
}

/// Counts one call when it is dropped, and records its end if a run has made it.
struct CallRecord {
    metrics: Arc<Metrics>,
    began: Mono,
    outcome: ModelCallOutcome,
    clock: Clock,
    /// Number of requests to upstreams.
    attempts: u32,
    /// True if an upstream may have served the call without an answer.
    may_be_served: bool,
    /// The upstream that was asked last.
    upstream: Option<Arc<Upstream>>,
    answered: Option<AnswerFigures>,
    entry: Option<CallEntry>,
    /// The amount that the call may use.
    reservation: Option<BudgetReservation>,
}

/// The parts of a call that are decided before it is made.
struct CallPlan {
    call_id: EventId,
    /// In the order in which they are asked.
    upstreams: Vec<Arc<Upstream>>,
    /// Time after which the call has ended and its end was reported, or this node was lost.
    lost_after: Duration,
}

/// Known figures of an answer at its end.
struct AnswerFigures {
    status: u16,
    marks: AnswerMarks,
    usage: TokenUsage,
}

/// The requests of one call.
struct CallAttempts<'a> {
    models: &'a Models,
    request: &'a ModelCall,
    record: &'a mut CallRecord,
    /// The reason for the caller if nothing better is known.
    failure: CallFailure,
}

// === impl Models ===

impl Models {
    /// Sends a call to the upstreams of its model, until one answers. Dropping the future ends the call.
    pub async fn open(&self, request: &ModelCall) -> Result<OpenCall, CallFailure> {
        let began = self.clock.mono();
        let mut record = CallRecord::begin(Arc::clone(&self.metrics), began, self.clock.clone());
        let plan = CallPlan::new(self, request);
        if let Err(refusal) = self.reserve(request, &plan, &mut record).await {
            self.metrics.models.count_budget_refusal();
            record.outcome = ModelCallOutcome::Failed;
            return Err(CallFailure::Budget(Box::new(refusal)));
        }
        if let Err(CallUnrecorded) = self.record_start(request, &plan, &mut record).await {
            record.outcome = ModelCallOutcome::Failed;
            return Err(CallFailure::Unrecorded);
        }
        let failure = CallFailure::Unreachable;
        let attempts = CallAttempts { models: self, request, record: &mut record, failure };
        match attempts.run(plan.upstreams).await {
            Ok(answer) => Ok(OpenCall { answer, record }),
            Err(failure) => {
                record.outcome = failure.outcome();
                Err(failure)
            }
        }
    }
}

impl Models {
    /// Reserves the most that a call may use, in the budgets of its accounts.
    async fn reserve(
        &self,
        request: &ModelCall,
        plan: &CallPlan,
        record: &mut CallRecord,
    ) -> Result<(), CallBudgetRefusal> {
        if planted(Planted::BudgetUnreserved) {
            return Ok(());
        }
        let bound = bound::most(request, plan.upstreams.iter().map(|upstream| &upstream.spec));
        let deadline = self.clock.now().store.after(plan.lost_after);
        let amount = bound.unwrap_or(bound::UNKNOWN);
        let reserved = self.budgets.reserve(&request.accounts, plan.call_id, amount, deadline).await;
        match reserved {
            Ok(reservation) if bound.is_none() && !reservation.is_empty() => {
                reservation.release();
                Err(CallBudgetRefusal::NeedsOutputLimit)
            }
            Ok(reservation) => {
                record.reservation = Some(reservation).filter(|reservation| !reservation.is_empty());
                Ok(())
            }
            Err(BudgetRefusal { reason: BudgetRefusalReason::Exhausted(_), .. }) if bound.is_none() => {
                Err(CallBudgetRefusal::NeedsOutputLimit)
            }
            Err(refusal) => Err(CallBudgetRefusal::Account(refusal)),
        }
    }

    /// Records the beginning of a run's call.
    async fn record_start(
        &self,
        request: &ModelCall,
        plan: &CallPlan,
        record: &mut CallRecord,
    ) -> Result<(), CallUnrecorded> {
        let Some(run) = request.run.as_ref().filter(|_| !planted(Planted::RunCallsUnrecorded)) else { return Ok(()) };
        let start = ModelCallStart {
            call_id: plan.call_id,
            run_id: run.run_id.clone(),
            model: request.call.model().to_owned(),
            format: request.format.path().trim_start_matches('/').to_owned(),
            timeout_ms: millis(plan.lost_after),
        };
        record.entry = self.journal.begin(run, start).await?;
        Ok(())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn recorded_outcome(outcome: ModelCallOutcome) -> RecordedCallOutcome {
    match outcome {
        ModelCallOutcome::Complete => RecordedCallOutcome::Complete,
        ModelCallOutcome::Truncated => RecordedCallOutcome::Truncated,
        ModelCallOutcome::Error => RecordedCallOutcome::Error,
        ModelCallOutcome::Refused => RecordedCallOutcome::Refused,
        ModelCallOutcome::Cancelled => RecordedCallOutcome::Cancelled,
        ModelCallOutcome::Failed => RecordedCallOutcome::Failed,
        ModelCallOutcome::TimedOut => RecordedCallOutcome::Timeout,
    }
}

fn recorded_tokens(usage: TokenUsage) -> RecordedTokens {
    let TokenUsage { input, cached_input, cache_write: _, output, reasoning } = usage;
    RecordedTokens { input, cached_input, output, reasoning }
}

/// Returns a random number. The system always has randomness after its start.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness the first upstream of the configuration is asked first.
    _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

// === impl CallPlan ===

impl CallPlan {
    fn new(models: &Models, request: &ModelCall) -> Self {
        let upstreams = candidates(&models.upstreams, request.call.model(), random);
        let total = upstreams.iter().map(|upstream| upstream.spec.times.total).max().unwrap_or_default();
        Self {
            call_id: EventId::new(models.clock.now().store, u128::from(random()) << 64 | u128::from(random())),
            upstreams,
            lost_after: total + limits::MODEL_CALL_REPORT_WAIT,
        }
    }
}

// === impl CallAttempts ===

impl CallAttempts<'_> {
    async fn run(mut self, upstreams: Vec<Arc<Upstream>>) -> Result<Box<ModelAnswer>, CallFailure> {
        // The last upstream that did not serve the call, with its answer.
        let mut refused: Option<(Arc<Upstream>, Box<ModelAnswer>)> = None;
        for upstream in upstreams {
            if self.record.attempts >= limits::MODEL_ATTEMPTS_MAX {
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
        self.record.attempts += 1;
        self.record.upstream = Some(Arc::clone(upstream));
        let deadline = self.record.began + upstream.spec.times.total;
        let end = attempt(upstream, self.request, place, deadline, clock).await;
        self.models.metrics.models.count_attempt(end.outcome());
        match end {
            UpstreamReply::Answer(_) | UpstreamReply::NotServed(_) => {}
            UpstreamReply::Unreachable => self.failure = CallFailure::Unreachable,
            UpstreamReply::Unauthorized => return Err(CallFailure::Unauthorized),
            UpstreamReply::Broken => {
                self.record.may_be_served = true;
                return Err(CallFailure::Broken);
            }
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
        let is_in_time = clock.mono() + wait < self.record.began + upstream.spec.times.total;
        (wait <= most && is_in_time && self.record.attempts < limits::MODEL_ATTEMPTS_MAX).then_some(wait)
    }
}

// === impl CallFailure ===

impl CallFailure {
    fn outcome(&self) -> ModelCallOutcome {
        match self {
            Self::Budget(_) => ModelCallOutcome::Failed,
            Self::Busy | Self::Unrecorded | Self::Unreachable | Self::Unauthorized | Self::Broken => {
                ModelCallOutcome::Failed
            }
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
        let marks = self.answer.marks();
        let usage = self.answer.usage();
        self.record.metrics.models.record_answer(
            marks.first_byte.map(|at| at - self.record.began),
            marks.first_token.map(|at| at - self.record.began),
            &usage,
        );
        self.record.answered = Some(AnswerFigures { status: self.answer.status().as_u16(), marks, usage });
    }
}

// === impl CallRecord ===

impl CallRecord {
    fn begin(metrics: Arc<Metrics>, began: Mono, clock: Clock) -> Self {
        metrics.models.begin_call();
        Self {
            metrics,
            began,
            outcome: ModelCallOutcome::Cancelled,
            clock,
            attempts: 0,
            may_be_served: false,
            upstream: None,
            answered: None,
            entry: None,
            reservation: None,
        }
    }

    /// Settles the budgets of the call. A call that no upstream has served used nothing; of one that may have been served, and
    /// whose usage is not known, all counts that was reserved.
    fn settle(&self, reservation: BudgetReservation) {
        let is_unserved = match self.outcome {
            ModelCallOutcome::Refused => true,
            ModelCallOutcome::Failed => !self.may_be_served,
            ModelCallOutcome::Cancelled => self.attempts == 0,
            ModelCallOutcome::Complete
            | ModelCallOutcome::Truncated
            | ModelCallOutcome::Error
            | ModelCallOutcome::TimedOut => false,
        };
        if planted(Planted::BudgetUnsettled) {
            return drop(reservation);
        }
        if is_unserved {
            return reservation.release();
        }
        // Counts of an answer without its end are those of its beginning.
        let answered = self.answered.as_ref().filter(|_| self.outcome == ModelCallOutcome::Complete);
        let usage = answered.map(|answered| answered.usage).unwrap_or_default();
        let price = self.upstream.as_ref().map(|upstream| upstream.spec.price).unwrap_or_default();
        reservation.settle(bound::used(&usage, price));
    }

    /// Returns the end of the call, as it is recorded.
    fn end(&self, call_id: EventId, took: Duration) -> ModelCallEnd {
        let since = |at: Mono| millis(at - self.began);
        let answered = self.answered.as_ref();
        let usage = answered.map(|answered| answered.usage).unwrap_or_default();
        let price = self.upstream.as_ref().map(|upstream| upstream.spec.price).unwrap_or_default();
        ModelCallEnd {
            call_id,
            outcome: recorded_outcome(self.outcome),
            upstream: self.upstream.as_ref().map(|upstream| upstream.spec.id.clone()),
            attempts: self.attempts,
            status: answered.map(|answered| answered.status),
            latency_ms: millis(took),
            first_byte_ms: answered.and_then(|answered| answered.marks.first_byte).map(since),
            first_token_ms: answered.and_then(|answered| answered.marks.first_token).map(since),
            cost: cost(price, &usage),
            usage: recorded_tokens(usage),
        }
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        let took = self.clock.mono() - self.began;
        self.metrics.models.end_call(self.outcome, took);
        if let Some(reservation) = self.reservation.take() {
            self.settle(reservation);
        }
        if let Some(CallEntry { call_id, ended }) = self.entry.take() {
            // Without the writer's task the node stops; the owner finds the call lost.
            _ = ended.send(self.end(call_id, took));
        }
    }
}
