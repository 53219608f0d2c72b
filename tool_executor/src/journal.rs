//! Records of a tool executor's journal, so that no action is performed twice after a crash.
use serde::{Deserialize, Serialize};
use turnway_core::id::{EventId, QualifiedSession};
use turnway_core::protocol::action::ToolError;
use turnway_core::protocol::json::Json;

/// One line of the journal. The last line about an action counts. Earlier releases wrote the plain session id of
/// every tenant; such an id is read as a session of the tenant `default`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case", try_from = "JournalLine")]
pub enum JournalRecord {
    /// A process is about to start; durable before the start.
    Begun {
        id: EventId,
        session: QualifiedSession,
        /// The program's name in the list of allowed programs.
        program: String,
    },
    /// An action has ended.
    Ended {
        id: EventId,
        session: QualifiedSession,
        /// The program, if the action was a process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        program: Option<String>,
        outcome: ToolOutcome,
    },
}

/// A [`JournalRecord`] as written. Serde reads an internally tagged enum through an intermediate form that cannot hold
/// every number.
#[derive(Deserialize)]
struct JournalLine {
    t: String,
    id: EventId,
    session: QualifiedSession,
    #[serde(default)]
    program: Option<String>,
    #[serde(default)]
    outcome: Option<ToolOutcome>,
}

/// The result of an action, repeated whenever a gateway asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// True if the action succeeded.
    pub ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    /// The reason of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolError>,
}

// === impl JournalRecord ===

impl TryFrom<JournalLine> for JournalRecord {
    type Error = &'static str;

    fn try_from(line: JournalLine) -> Result<Self, Self::Error> {
        let JournalLine { t, id, session, program, outcome } = line;
        match (t.as_str(), program, outcome) {
            ("begun", Some(program), None) => Ok(Self::Begun { id, session, program }),
            ("ended", program, Some(outcome)) => Ok(Self::Ended { id, session, program, outcome }),
            _ => Err("not a valid journal record of this release"),
        }
    }
}

// === impl ToolOutcome ===

impl ToolOutcome {
    /// Creates a success.
    pub fn success(result: serde_json::Value) -> Self {
        Self { ok: true, result: Some(Json(result)), error: None }
    }

    /// Creates a failure without a result.
    pub fn failure(code: &str, message: &str) -> Self {
        Self { ok: false, result: None, error: Some(ToolError::of(code, message)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn record_lines_round_trip() {
        let id = EventId::default();
        let session = QualifiedSession::parse("acme~s1").expect("a name");
        let begun = JournalRecord::Begun { id, session: session.clone(), program: "make".to_owned() };
        let fine = JournalRecord::Ended {
            id,
            session: session.clone(),
            program: None,
            outcome: ToolOutcome::success(json!({"n": 1})),
        };
        let bad = ToolOutcome::failure("busy", "later");
        let failed = JournalRecord::Ended { id, session, program: Some("make".to_owned()), outcome: bad };
        for record in [begun, fine, failed] {
            let line = serde_json::to_string(&record).expect("it is written");
            assert_eq!(serde_json::from_str::<JournalRecord>(&line).ok(), Some(record), "{line}");
        }
    }
}
