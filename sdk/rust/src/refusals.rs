//! Handling of errors of one session: temporary refusals are repeated, all others are reported. Called by the message
//! handlers.
use crate::conversation::{SessionTracker, SubscriptionState};
use crate::event::{Event, Failure};
use crate::frame::IncomingMessage;
use crate::output::Outbound;
use crate::requests::is_temporary;

impl SessionTracker {
    /// Returns whether a request of this session has this id.
    pub(crate) fn has_request(&self, request_id: &str) -> bool {
        self.inputs.iter().any(|input| input.invoke.message_id == request_id)
            || self.requests.iter().any(|ask| ask.request_id == request_id)
            || self.subscription == SubscriptionState::Requested(request_id.to_owned())
    }

    /// Handles an `error` message.
    pub(crate) fn handle_error(&mut self, frame: &IncomingMessage, fx: &mut Outbound) {
        let mut failure = failure_of(frame);
        failure.session = Some(self.id.clone());
        // An error that answers no request belongs to the end of a run.
        if failure.run.is_some() && (frame.flag("terminal") || frame.text("request_id").is_none()) {
            return self.hold_failure(failure, fx);
        }
        let id = frame.text("request_id").unwrap_or_default();
        let pass = is_temporary(&failure.code);
        let after = frame.number("retry_after_ms");
        if self.subscription == SubscriptionState::Requested(id.to_owned())
            || (id.is_empty() && self.is_subscribe_error(&failure))
        {
            return self.handle_subscribe_refused(failure, after, fx);
        }
        if let Some(at) = self.inputs.iter().position(|input| input.invoke.message_id == id) {
            let Some(input) = self.inputs.get_mut(at) else { return };
            if pass && input.retry.schedule(fx.now, after) {
                input.sent = false;
                return;
            }
            self.inputs.remove(at);
            failure.request_type = "agent_invoke".to_owned();
            failure.message_id = Some(id.to_owned());
        } else if let Some(at) = self.requests.iter().position(|ask| ask.request_id == id) {
            let Some(ask) = self.requests.get_mut(at) else { return };
            if pass && ask.retry.schedule(fx.now, after) {
                ask.sent = false;
                return;
            }
            failure.request_type = ask.name().to_owned();
            self.requests.remove(at);
        }
        fx.emit(Event::Error(Box::new(failure)));
    }

    fn is_subscribe_error(&self, failure: &Failure) -> bool {
        matches!(self.subscription, SubscriptionState::Requested(_))
            && failure.run.is_none()
            && failure.code == "not_found"
    }

    /// Keeps the error of a failed run for its `done`, which follows. The error of a run that cannot be opened is
    /// reported at once.
    fn hold_failure(&mut self, failure: Failure, fx: &mut Outbound) {
        let Some(id) = failure.run.clone().filter(|id| !self.is_ended(id)) else { return };
        if self.subscription != SubscriptionState::Subscribed {
            return;
        }
        match self.open_run(&id) {
            Some(run) => run.failure = Some(failure),
            None => fx.emit(Event::Error(Box::new(failure))),
        }
    }

    fn handle_subscribe_refused(&mut self, mut failure: Failure, after: Option<u64>, fx: &mut Outbound) {
        if is_temporary(&failure.code) && self.schedule_subscribe(fx.now, after) {
            return;
        }
        if failure.code == "not_found" && self.cursor.is_some_and(|cursor| cursor.seq > 0) {
            // The seen part is gone with the session; unfinished inputs create it again.
            return self.reset("not_found".to_owned(), None, fx);
        }
        self.give_up_subscription();
        failure.request_type = "subscribe".to_owned();
        fx.emit(Event::Error(Box::new(failure)));
    }
}

/// Reads an `error` message.
pub(crate) fn failure_of(frame: &IncomingMessage) -> Failure {
    Failure {
        session: frame.string("session_id"),
        run: frame.string("run_id"),
        message_id: None,
        request_type: String::new(),
        code: frame.string("code").unwrap_or_default(),
        message: frame.string("message").unwrap_or_default(),
        retryable: frame.flag("retryable"),
        retry_after_ms: frame.number("retry_after_ms"),
    }
}
