//! The results of a platform's calls, and the outcomes that are reported to the gateway. An error that proves nothing
//! is `unknown`, never `not_sent`.
use crate::adapter::order::ReportedOrder;
use crate::adapter::place::{AccountPlace, is_conversation_id, is_platform_id};
use crate::planted::{Planted, planted};
use serde_json::{Map, Value, json};
use std::fmt;
use std::time::Duration;

/// A part that the platform has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentPart {
    /// Platform's id of the message.
    pub external_id: String,
    /// Conversation that the platform's answer names. Another one than ordered proves that the part went to a wrong
    /// place, and the gateway then stops the account; so give that of the order only if the answer has none.
    pub conversation_id: String,
}

/// The class of a platform's error. The gateway repeats a part after the first three, and gives it up otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    Transient,
    RateLimit,
    Auth,
    Permission,
    Gone,
    Invalid,
    Conflict,
}

/// The reason why a platform's call failed. Every other error becomes [`PlatformFailure::Unknown`] by `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlatformFailure {
    /// The platform certainly has nothing, for example because no connection could be opened.
    NotSent { proof: String },
    /// The platform has refused.
    Rejected {
        class: FailureClass,
        /// Time that the platform asks for.
        retry_after: Option<Duration>,
    },
    /// Nobody knows whether the platform has performed the call.
    Unknown { reason: String },
}

/// The outcome of an attempt at an order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AttemptOutcome {
    /// The platform has the part, or has made the change or the conversation: fields of the report.
    Receipt(Map<String, Value>),
    NotSent(String),
    Rejected(FailureClass, Option<Duration>),
    Unknown,
}

// === impl SentPart ===

impl SentPart {
    /// Creates the receipt of a part.
    pub fn new(external_id: impl Into<String>, conversation_id: impl Into<String>) -> Self {
        Self { external_id: external_id.into(), conversation_id: conversation_id.into() }
    }
}

// === impl FailureClass ===

impl FailureClass {
    /// Returns the class of an HTTP status.
    pub fn by_status(status: u16) -> Self {
        match status {
            401 => Self::Auth,
            403 => Self::Permission,
            404 | 410 => Self::Gone,
            408 | 425 | 500.. => Self::Transient,
            409 => Self::Conflict,
            429 => Self::RateLimit,
            _ => Self::Invalid,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::RateLimit => "rate_limit",
            Self::Auth => "auth",
            Self::Permission => "permission",
            Self::Gone => "gone",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
        }
    }
}

// === impl PlatformFailure ===

impl PlatformFailure {
    /// Creates a failure that proves that the platform has nothing.
    pub fn not_sent(proof: impl Into<String>) -> Self {
        Self::NotSent { proof: proof.into() }
    }

    /// Creates a refusal by the platform.
    pub fn rejected(class: FailureClass) -> Self {
        Self::Rejected { class, retry_after: None }
    }

    /// Creates a refusal by an HTTP status, with the value of the header `Retry-After` if it is in seconds.
    pub fn by_status(status: u16, retry_after: Option<&str>) -> Self {
        let seconds = retry_after.and_then(|value| value.trim().parse::<f64>().ok());
        let retry_after = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self::Rejected { class: FailureClass::by_status(status), retry_after }
    }

    /// Creates a failure of which nobody knows what it means.
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown { reason: reason.into() }
    }

    /// Returns the failure of a call that this platform does not have.
    pub(crate) fn not_supported() -> Self {
        Self::rejected(FailureClass::Invalid)
    }
}

impl<E: std::error::Error> From<E> for PlatformFailure {
    fn from(error: E) -> Self {
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            reason = format!("{reason}: {cause}");
            source = cause.source();
        }
        Self::Unknown { reason }
    }
}

impl fmt::Display for PlatformFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent { proof } => write!(f, "not sent: {proof}"),
            Self::Rejected { class, .. } => write!(f, "rejected: {}", class.as_str()),
            Self::Unknown { reason } => write!(f, "unknown: {reason}"),
        }
    }
}

// === impl AttemptOutcome ===

impl AttemptOutcome {
    /// Returns the outcome of sending a part.
    pub(crate) fn of_part(
        order: &ReportedOrder,
        account: &AccountPlace,
        sent: Result<SentPart, PlatformFailure>,
    ) -> Self {
        match sent {
            Ok(sent) if !is_platform_id(&sent.external_id) || !is_conversation_id(&sent.conversation_id) => {
                // A success without a usable id is no receipt (docs/protocol.md, §1.10).
                tracing::error!(?sent, "the platform's ids must be 1 to 256 bytes of printable text");
                Self::Unknown
            }
            Ok(sent) => {
                let ordered = order.body().get("conversation").cloned().unwrap_or_default();
                let is_there = ordered.get("conversation_id").and_then(Value::as_str) == Some(&sent.conversation_id);
                let place = if is_there { ordered } else { account.conversation(&sent.conversation_id, None) };
                Self::sent(&sent.external_id, place)
            }
            Err(failure) => Self::of_failure(failure),
        }
    }

    /// Returns the outcome of a change.
    pub(crate) fn of_change(order: &ReportedOrder, target_id: &str, changed: Result<(), PlatformFailure>) -> Self {
        match changed {
            Ok(()) => Self::sent(target_id, order.body().get("conversation").cloned().unwrap_or_default()),
            Err(failure) => Self::of_failure(failure),
        }
    }

    /// Returns the outcome of making a conversation.
    pub(crate) fn of_conversation(
        parent: &str,
        account: &AccountPlace,
        created: Result<String, PlatformFailure>,
    ) -> Self {
        match created {
            Ok(id) if is_conversation_id(&id) => {
                let conversation = account.conversation(&id, Some(parent));
                let fields = [("outcome", json!("created")), ("conversation", conversation)];
                Self::Receipt(fields.map(|(key, value)| (key.to_owned(), value)).into_iter().collect())
            }
            Ok(id) => {
                tracing::error!(id, "the platform's ids must be 1 to 256 bytes of printable text");
                Self::Unknown
            }
            Err(failure) => Self::of_failure(failure),
        }
    }

    fn sent(external_id: &str, place: Value) -> Self {
        let fields = [("outcome", json!("sent")), ("external_id", json!(external_id)), ("place", place)];
        Self::Receipt(fields.map(|(key, value)| (key.to_owned(), value)).into_iter().collect())
    }

    fn of_failure(failure: PlatformFailure) -> Self {
        match failure {
            PlatformFailure::NotSent { proof } => Self::NotSent(proof),
            PlatformFailure::Rejected { class, retry_after } => Self::Rejected(class, retry_after),
            PlatformFailure::Unknown { reason } => {
                tracing::warn!(reason, "the platform may have performed an order");
                if planted(Planted::SdkUnknownIsNotSent) { Self::NotSent(reason) } else { Self::Unknown }
            }
        }
    }

    pub(crate) fn is_receipt(&self) -> bool {
        matches!(self, Self::Receipt(_))
    }

    /// Returns the report about an order.
    pub(crate) fn report(&self, order: &ReportedOrder) -> Value {
        let body = order.body();
        let field = |key: &str| body.get(key).cloned().unwrap_or_default();
        let is_conversation = matches!(order, ReportedOrder::Conversation(_));
        let mut report = match order {
            ReportedOrder::Conversation(_) => {
                json!({ "type": "conversation_created", "delivery_id": field("delivery_id") })
            }
            ReportedOrder::Part(_) | ReportedOrder::Change(..) => {
                json!({ "type": "delivered", "delivery_id": field("delivery_id"), "part": field("part") })
            }
        };
        match self {
            Self::Receipt(fields) => {
                for (key, value) in fields {
                    report[key] = value.clone();
                }
            }
            Self::NotSent(_) if is_conversation => report["outcome"] = "not_created".into(),
            Self::NotSent(proof) => {
                report["outcome"] = "not_sent".into();
                report["proof"] = proof.clone().into();
            }
            Self::Rejected(class, retry_after) => {
                report["outcome"] = "rejected".into();
                report["code"] = class.as_str().into();
                if let Some(wait) = retry_after {
                    report["retry_after_ms"] = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into();
                }
            }
            Self::Unknown => report["outcome"] = "unknown".into(),
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: BR-17.
    #[test]
    fn status_of_a_platform_chooses_the_class_of_the_error() {
        let classes = [
            (400, "invalid"),
            (401, "auth"),
            (403, "permission"),
            (404, "gone"),
            (408, "transient"),
            (409, "conflict"),
            (410, "gone"),
            (429, "rate_limit"),
            (503, "transient"),
        ];
        for (status, class) in classes {
            assert_eq!(FailureClass::by_status(status).as_str(), class, "{status}");
        }
        let limited = PlatformFailure::by_status(429, Some("1.5"));
        let wait = Duration::from_millis(1500);
        let expected = PlatformFailure::Rejected { class: FailureClass::RateLimit, retry_after: Some(wait) };
        assert_eq!(limited, expected);
        for header in ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "inf", "NaN"] {
            assert_eq!(
                PlatformFailure::by_status(503, Some(header)),
                PlatformFailure::rejected(FailureClass::Transient),
                "{header}"
            );
        }
    }

    /// Covers: BR-08.
    #[test]
    fn error_without_a_proof_is_unknown() {
        fn fails() -> Result<(), PlatformFailure> {
            Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?;
            Ok(())
        }
        let failure = fails().expect_err("an error");
        assert!(failure.to_string().contains("connection refused"), "{failure}");
        assert!(matches!(failure, PlatformFailure::Unknown { .. }), "{failure:?}");
        assert_eq!(AttemptOutcome::of_failure(failure), AttemptOutcome::Unknown);
    }
}
