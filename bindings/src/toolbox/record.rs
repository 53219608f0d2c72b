//! Records of a tool executor's journal, so that no action is performed twice after a crash.
use serde::{Deserialize, Serialize};
use turnway_core::id::{EventId, QualifiedSession};
use turnway_core::protocol::action::ToolError;
use turnway_core::protocol::json::Json;

/// One line of the journal. The last line about an action counts. Earlier releases wrote the plain session id of
/// every tenant; such an id is read as a session of the tenant `default`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case", try_from = "Line")]
pub enum Record {
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
        outcome: Outcome,
    },
}

/// A [`Record`] as written. Serde reads an internally tagged enum through an intermediate form that cannot hold
/// every number.
#[derive(Deserialize)]
struct Line {
    t: String,
    id: EventId,
    session: QualifiedSession,
    #[serde(default)]
    program: Option<String>,
    #[serde(default)]
    outcome: Option<Outcome>,
}

/// The result of an action, repeated whenever a gateway asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether the action succeeded.
    pub ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    /// The reason of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolError>,
}

// === impl Record ===

impl TryFrom<Line> for Record {
    type Error = &'static str;

    fn try_from(line: Line) -> Result<Self, Self::Error> {
        let Line { t, id, session, program, outcome } = line;
        match (t.as_str(), program, outcome) {
            ("begun", Some(program), None) => Ok(Self::Begun { id, session, program }),
            ("ended", program, Some(outcome)) => Ok(Self::Ended { id, session, program, outcome }),
            _ => Err("not a valid journal record of this release"),
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Creates a success.
    pub fn fine(result: serde_json::Value) -> Self {
        Self { ok: true, result: Some(Json(result)), error: None }
    }

    /// Creates a failure without a result.
    pub fn failed(code: &str, message: &str) -> Self {
        Self { ok: false, result: None, error: Some(ToolError::of(code, message)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn record_lines_round_trip() {
        let (id, session) = (EventId::default(), QualifiedSession::parse("acme~s1").expect("a name"));
        let begun = Record::Begun { id, session: session.clone(), program: "make".to_owned() };
        let fine = Record::Ended {
            id,
            session: session.clone(),
            program: None,
            outcome: Outcome::fine(json!({"n": 1})),
        };
        let bad = Outcome::failed("busy", "later");
        let failed = Record::Ended { id, session, program: Some("make".to_owned()), outcome: bad };
        for record in [begun, fine, failed] {
            let line = serde_json::to_string(&record).expect("it is written");
            assert_eq!(serde_json::from_str::<Record>(&line).ok(), Some(record), "{line}");
        }
    }
}
