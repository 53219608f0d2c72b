//! The report on an adapter: the outcome of each check with its evidence, the grade, and both forms, text and JSON.
use crate::catalog::{AdapterCheck, AdapterGrade};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    Passed,
    Failed {
        /// The broken rule, in one sentence.
        reason: String,
        /// Messages, lines of the platform and output of the adapter, one on each line.
        evidence: Vec<String>,
    },
    /// The author has exempted the adapter, which costs the grade of the check.
    Exempt(String),
    /// The adapter does not declare the capability.
    NotDeclared,
    /// The check needs a platform that the kit can drive.
    NotRun,
}

/// One check with its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedRow {
    pub check: AdapterCheck,
    pub outcome: CheckOutcome,
    pub took: Duration,
}

/// The whole report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterReport {
    pub rows: Vec<CheckedRow>,
    /// The grade that the author wants.
    pub wanted: AdapterGrade,
    /// True if single checks were asked for: then there is no grade.
    pub is_partial: bool,
    /// The adapter's `hello` without its key.
    pub adapter: Value,
}

#[derive(Serialize)]
struct RowForm<'a> {
    name: &'a str,
    grade: AdapterGrade,
    proves: &'a str,
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    evidence: &'a [String],
    ms: u64,
}

// === impl CheckOutcome ===

impl CheckOutcome {
    /// Returns whether the outcome lets the adapter have the grade of the check.
    pub const fn permits_grade(&self) -> bool {
        match self {
            Self::Passed | Self::NotDeclared => true,
            Self::Failed { .. } | Self::Exempt(_) | Self::NotRun => false,
        }
    }

    const fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed { .. } => "failed",
            Self::Exempt(_) => "exempt",
            Self::NotDeclared => "not_declared",
            Self::NotRun => "not_run",
        }
    }
}

// === impl CheckedRow ===

impl CheckedRow {
    /// Renders the check as a line of text, with its evidence below it.
    pub fn line(&self) -> String {
        let name = self.check.entry().name;
        let seconds = self.took.as_secs_f64();
        match &self.outcome {
            CheckOutcome::Passed => format!("✓ {name:<14} {seconds:>5.1} s\n"),
            CheckOutcome::Failed { reason, evidence } => {
                let mut text = format!("✗ {name:<14} {seconds:>5.1} s  {reason}\n");
                for line in evidence {
                    // A text grows in memory.
                    let _ = writeln!(text, "    {line}");
                }
                text
            }
            CheckOutcome::Exempt(why) => format!("- {name:<14}          exempt: {why}\n"),
            CheckOutcome::NotDeclared => format!("- {name:<14}          not declared\n"),
            CheckOutcome::NotRun => format!("- {name:<14}          not run: the check needs --platform\n"),
        }
    }

    fn form(&self) -> RowForm<'_> {
        let entry = self.check.entry();
        let mut form = RowForm {
            name: entry.name,
            grade: entry.grade,
            proves: entry.proves,
            outcome: self.outcome.word(),
            reason: None,
            evidence: &[],
            ms: u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
        };
        match &self.outcome {
            CheckOutcome::Failed { reason, evidence } => {
                form.reason = Some(reason);
                form.evidence = evidence;
            }
            CheckOutcome::Exempt(reason) => form.reason = Some(reason),
            CheckOutcome::Passed | CheckOutcome::NotDeclared | CheckOutcome::NotRun => {}
        }
        form
    }
}

// === impl AdapterReport ===

impl AdapterReport {
    /// Returns the highest grade whose checks, and those of the grades below, all permit it.
    pub fn grade(&self) -> Option<AdapterGrade> {
        let is_reached = |grade: &AdapterGrade| {
            let mut rows = self.rows.iter().filter(|row| row.check.entry().grade == *grade).peekable();
            // Without a platform a row of bronze does not run; the others are enough for bronze.
            let permits = |row: &CheckedRow| {
                row.outcome.permits_grade() || (*grade == AdapterGrade::Bronze && row.outcome == CheckOutcome::NotRun)
            };
            rows.peek().is_some() && rows.all(permits)
        };
        if self.is_partial { None } else { AdapterGrade::ALL.into_iter().take_while(is_reached).last() }
    }

    /// Returns whether the wanted grade is reached; of single checks, whether none has failed.
    pub fn is_success(&self) -> bool {
        if self.is_partial {
            return !self
                .rows
                .iter()
                .any(|row| matches!(row.outcome, CheckOutcome::Failed { .. } | CheckOutcome::NotRun));
        }
        self.grade() >= Some(self.wanted)
    }

    /// Renders the last line of the text form.
    pub fn verdict(&self) -> String {
        if self.is_partial {
            return "no grade: only some checks ran\n".to_owned();
        }
        let grade = self.grade().map_or("none", AdapterGrade::name);
        format!("grade: {grade} (wanted: {})\n", self.wanted)
    }

    /// Renders the report as one JSON object.
    pub fn to_json(&self) -> Value {
        let rows: Vec<RowForm<'_>> = self.rows.iter().map(CheckedRow::form).collect();
        json!({ "grade": self.grade(), "wanted": self.wanted, "success": self.is_success(),
            "partial": self.is_partial, "adapter": self.adapter, "checks": rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::CATALOG;

    fn report(outcome_of: impl Fn(AdapterCheck) -> CheckOutcome) -> AdapterReport {
        let row = |check| CheckedRow { check, outcome: outcome_of(check), took: Duration::ZERO };
        let rows = CATALOG.iter().map(|entry| row(entry.check)).collect();
        AdapterReport { rows, wanted: AdapterGrade::Gold, is_partial: false, adapter: Value::Null }
    }

    fn grade_with(check: AdapterCheck, outcome: &CheckOutcome) -> Option<AdapterGrade> {
        report(|each| if each == check { outcome.clone() } else { CheckOutcome::Passed }).grade()
    }

    /// Covers: BR-38.
    #[test]
    fn failure_or_exemption_costs_the_grade_of_its_check() {
        let failed = CheckOutcome::Failed { reason: "lost".to_owned(), evidence: Vec::new() };
        for outcome in [failed, CheckOutcome::Exempt("no such call".to_owned())] {
            assert_eq!(grade_with(AdapterCheck::Chaos, &outcome), Some(AdapterGrade::Gold));
            assert_eq!(grade_with(AdapterCheck::Edits, &outcome), Some(AdapterGrade::Silver));
            assert_eq!(grade_with(AdapterCheck::Offsets, &outcome), Some(AdapterGrade::Bronze));
            assert_eq!(grade_with(AdapterCheck::Hello, &outcome), None);
        }
        assert_eq!(grade_with(AdapterCheck::Edits, &CheckOutcome::NotDeclared), Some(AdapterGrade::Platinum));
    }

    #[test]
    fn adapter_without_a_platform_reaches_bronze_at_most() {
        let of = |check: AdapterCheck| {
            if check.entry().needs_platform { CheckOutcome::NotRun } else { CheckOutcome::Passed }
        };
        assert_eq!(report(of).grade(), Some(AdapterGrade::Bronze));
        assert!(!report(of).is_success());
    }

    /// Covers: BR-38.
    #[test]
    fn text_and_json_tell_the_same_facts() {
        let failed = CheckOutcome::Failed { reason: "twice".to_owned(), evidence: vec!["→ deliver".to_owned()] };
        let report = report(|check| if check == AdapterCheck::Deliver { failed.clone() } else { CheckOutcome::Passed });
        assert_eq!(report.rows[2].line(), "✗ deliver          0.0 s  twice\n    → deliver\n");
        assert_eq!(report.verdict(), "grade: none (wanted: gold)\n");
        let document = report.to_json();
        assert_eq!((&document["grade"], &document["success"]), (&Value::Null, &Value::Bool(false)));
        let row = &document["checks"][2];
        assert_eq!(
            (&row["name"], &row["outcome"], &row["reason"]),
            (&json!("deliver"), &json!("failed"), &json!("twice"))
        );
        assert_eq!(row["evidence"], json!(["→ deliver"]));
    }
}
