//! What a tool runner keeps on a disk, so that nothing is done twice however it ends.
use serde::{Deserialize, Serialize};
use turnway_core::id::{EventId, QualifiedSession};
use turnway_core::protocol::action::ToolError;
use turnway_core::protocol::json::Json;

/// One line of a journal. The last one about an action counts. Earlier releases wrote the bare session id of every
/// tenant, which is read as a session of the tenant `default`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case", try_from = "Line")]
pub enum Record {
    /// A process is about to be started: durable before it is.
    Begun {
        /// Which action.
        id: EventId,
        /// Whose.
        session: QualifiedSession,
        /// What is run, by its name in the list of what is allowed.
        program: String,
    },
    /// An action has ended.
    Ended {
        /// Which.
        id: EventId,
        /// Whose.
        session: QualifiedSession,
        /// What was run, of a process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        program: Option<String>,
        /// How.
        outcome: Outcome,
    },
}

/// A [`Record`] as it is written: serde reads an enum whose tag stands beside its fields only by way of a form that has no
/// place for every number.
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

/// What came of an action; said of it whenever somebody asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether it worked.
    pub ok: bool,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    /// Why it did not work.
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
            _ => Err("no record of this release"),
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// It worked.
    pub fn fine(result: serde_json::Value) -> Self {
        Self { ok: true, result: Some(Json(result)), error: None }
    }

    /// It did not, and nothing came of it.
    pub fn failed(code: &str, message: &str) -> Self {
        Self { ok: false, result: None, error: Some(ToolError::of(code, message)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_are_read_as_they_were_written() {
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
