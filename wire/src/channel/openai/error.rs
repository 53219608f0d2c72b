//! Errors of the chat completions API: OpenAI's error object and types with this gateway's codes.
use crate::channel::json::malformed::MalformedReason;
use serde::Serialize;
use std::borrow::Cow;
use std::time::Duration;
use turnway_core::protocol::refusal::{Code, Refusal};

/// An error object, and its HTTP status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatError {
    /// The HTTP status, used if the response has not started.
    pub status: u16,
    /// True if a client may repeat the same request automatically.
    pub retryable: bool,
    /// Time to wait before a repetition.
    pub retry_after: Option<Duration>,
    kind: &'static str,
    code: &'static str,
    message: Cow<'static, str>,
    param: Option<Box<str>>,
    agent_code: Option<Box<str>>,
}

/// The serialised response body.
#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_code: Option<&'a str>,
}

/// Returns a code's HTTP status and OpenAI's error type; `docs/openai.md` has the same table.
pub(super) fn status_and_type(code: Code) -> (u16, &'static str) {
    const INVALID: &str = "invalid_request_error";
    const LIMIT: &str = "rate_limit_error";
    const SERVER: &str = "server_error";
    match code {
        // OpenAI clients treat status 400 as "context too long" and know how to handle it.
        Code::InvalidMessage | Code::TooLarge => (400, INVALID),
        Code::Unauthorized => (401, "authentication_error"),
        Code::Forbidden | Code::Blocked | Code::ApprovalRejected => (403, "permission_error"),
        Code::NotFound => (404, INVALID),
        Code::Busy
        | Code::IdempotencyConflict
        | Code::NotApplied
        | Code::NoDestination
        | Code::PlacementUnsupported
        | Code::AdapterUnavailable
        | Code::SessionClosed
        | Code::AgentNotInSession
        | Code::BotIdInUse
        | Code::RunnerIdInUse => (409, INVALID),
        Code::RateLimited | Code::TooManyPending | Code::OverShare | Code::QuotaExceeded => (429, LIMIT),
        Code::InternalError
        | Code::PoisonTurn
        | Code::StoreDamaged
        | Code::AddAgentFailed
        | Code::RemoveAgentFailed
        | Code::SessionCloseFailed => (500, SERVER),
        Code::AgentError | Code::LlmError => (502, SERVER),
        Code::StoreUnavailable
        | Code::Draining
        | Code::FleetUpgrading
        | Code::AgentUnavailable
        | Code::ClientOffline
        | Code::OwnerLost
        | Code::SessionOpenFailed => (503, SERVER),
        Code::AgentTimeout | Code::RouteTimeout | Code::CancelTimeout | Code::ToolTimeout | Code::ApprovalTimeout => {
            (504, SERVER)
        }
    }
}

// === impl ChatError ===

impl ChatError {
    /// Returns the stable code.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// Returns the explanation for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Creates the error of a request that had no effect.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        let ((status, kind), retryable, message) = (status_and_type(code), code.retryable(), message.into());
        let code = code.as_str();
        let param = None;
        let agent_code = None;
        Self { status, retryable, retry_after: None, kind, code, message, param, agent_code }
    }

    /// Creates the error for an invalid field of the request.
    pub fn invalid_field(param: impl Into<Box<str>>, message: impl Into<Cow<'static, str>>) -> Self {
        Self { param: Some(param.into()), ..Self::new(Code::InvalidMessage, message) }
    }

    /// Creates the error for a field that asks for an unsupported kind of answer.
    pub(super) fn unsupported(param: &'static str) -> Self {
        let error = Self::invalid_field(param, format!("{param}: not supported by this gateway"));
        Self { code: "unsupported_parameter", ..error }
    }

    /// Creates the error for an unknown model name.
    pub fn model_not_found() -> Self {
        let why = "model not found: use agent/<agent_id>; GET /v1/models lists the available models";
        Self { code: "model_not_found", param: Some("model".into()), ..Self::new(Code::NotFound, why) }
    }

    /// Creates the error for a conversation that is too long.
    pub fn context_too_long(what: impl Into<Cow<'static, str>>) -> Self {
        let error = Self::new(Code::TooLarge, what);
        Self { code: "context_length_exceeded", param: Some("messages".into()), ..error }
    }

    /// Creates the error of a failed turn. It is not retryable automatically, because a repetition would be another
    /// turn.
    pub(super) fn turn_failed(
        code: Code,
        message: &str,
        agent_code: Option<&str>,
        retry_after_ms: Option<u64>,
    ) -> Self {
        let error = Self::new(code, message.to_owned()).not_retryable();
        let agent_code = agent_code.map(Box::from);
        let retry_after = retry_after_ms.map(Duration::from_millis);
        let error = Self { agent_code, retry_after, ..error };
        // The agent's answer was too large, not the client's request.
        if code == Code::TooLarge { Self { status: 502, kind: "server_error", ..error } } else { error }
    }

    /// Creates the error of a cancelled turn. OpenAI has no finish reason for a cancelled answer, and `stop` would
    /// report it as complete.
    pub(super) fn turn_cancelled(reason: &str) -> Self {
        let why = format!("the turn was cancelled ({reason}) and its answer is incomplete");
        let error = Self::new(Code::SessionClosed, why).not_retryable();
        Self { code: "cancelled", ..error }
    }

    /// Creates the error for a restart after text was sent, because sent text cannot be retracted.
    pub(super) fn turn_restarted() -> Self {
        let why = "the node that ran this turn was lost and the answer was restarted; repeat the request with the same \
                   Idempotency-Key to get the new answer";
        Self::new(Code::OwnerLost, why).not_retryable()
    }

    /// Names the field of the request that the error is about.
    #[must_use]
    pub fn with_param(self, param: impl Into<Box<str>>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    /// Marks the error as not retryable automatically, because the request had an effect.
    #[must_use]
    pub fn not_retryable(self) -> Self {
        Self { retryable: false, ..self }
    }

    /// Replaces the HTTP status.
    #[must_use]
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Returns the error object as JSON.
    pub fn to_json(&self) -> String {
        let message = &*self.message;
        let param = self.param.as_deref();
        let error =
            ErrorObject { message, kind: self.kind, param, code: self.code, agent_code: self.agent_code.as_deref() };
        serde_json::to_string(&ErrorBody { error }).unwrap_or_default()
    }
}

impl From<&Refusal> for ChatError {
    fn from(refusal: &Refusal) -> Self {
        if refusal.code == Code::TooLarge {
            return Self::context_too_long(refusal.message.clone());
        }
        let retry_after = refusal.retry_after_ms.map(Duration::from_millis);
        Self { retry_after, ..Self::new(refusal.code, refusal.message.clone()) }
    }
}

impl From<MalformedReason> for ChatError {
    fn from(flaw: MalformedReason) -> Self {
        let error = Self::new(Code::InvalidMessage, flaw.to_string());
        match flaw {
            MalformedReason::MissingField(field)
            | MalformedReason::InvalidField(field)
            | MalformedReason::TooManyItems(field) => Self { param: Some(field.into()), ..error },
            MalformedReason::EmptyContent => Self { param: Some("messages".into()), ..error },
            MalformedReason::TooLong
            | MalformedReason::NotJson
            | MalformedReason::NumberTooLong
            | MalformedReason::NotAnObject
            | MalformedReason::TooDeep
            | MalformedReason::TooManyValues
            | MalformedReason::RepeatedKey
            | MalformedReason::ReservedKey
            | MalformedReason::UnknownType
            | MalformedReason::RepeatedHello => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(error: &ChatError) -> Value {
        serde_json::from_str::<Value>(&error.to_json()).expect("JSON")["error"].clone()
    }

    /// Covers: ST-41, protocol.md §1.3.
    #[test]
    fn each_code_has_a_status_and_an_error_type() {
        for code in Code::ALL {
            let error = ChatError::new(*code, "why");
            let class = match error.status {
                401 => "authentication_error",
                403 => "permission_error",
                429 => "rate_limit_error",
                400..=499 => "invalid_request_error",
                _ => "server_error",
            };
            let shown = json!({ "message": "why", "type": class, "param": null, "code": code.as_str() });
            assert_eq!(object(&error), shown);
            assert_eq!(error.retryable, code.retryable());
            let failed = ChatError::turn_failed(*code, "why", None, None);
            assert!(!failed.retryable, "a turn that has failed is not asked for again by itself: {code:?}");
        }
    }

    /// Covers: ST-41.
    #[test]
    fn openai_codes_are_used_where_clients_check_them() {
        let all = [
            (ChatError::model_not_found(), 404, "model_not_found", json!("model")),
            (ChatError::context_too_long("x"), 400, "context_length_exceeded", json!("messages")),
            (ChatError::unsupported("tools"), 400, "unsupported_parameter", json!("tools")),
            (ChatError::turn_cancelled("user"), 409, "cancelled", json!(null)),
            (ChatError::turn_restarted(), 503, "owner_lost", json!(null)),
            (ChatError::turn_failed(Code::TooLarge, "x", None, None), 502, "too_large", json!(null)),
        ];
        for (error, status, code, param) in all {
            let object = object(&error);
            assert_eq!((error.status, &object["code"], &object["param"]), (status, &json!(code), &param));
            assert!(!error.retryable);
        }
        let agents_own = ChatError::turn_failed(Code::AgentError, "x", Some("quota"), Some(7_000));
        assert_eq!(agents_own.retry_after, Some(Duration::from_secs(7)));
        let agents_own = object(&agents_own);
        assert_eq!((&agents_own["code"], &agents_own["agent_code"]), (&json!("agent_error"), &json!("quota")));
        let long = ChatError::from(&Refusal::new(Code::TooLarge, "x"));
        assert_eq!(long, ChatError::context_too_long("x"));
        let later = Refusal::new(Code::Busy, "x").retry_after(Duration::from_secs(2));
        assert_eq!(ChatError::from(&later).retry_after, Some(Duration::from_secs(2)));
    }
}
