//! Compares the conformance table with a test run.
use super::report::Ran;
use super::{Row, waiting};
use std::collections::BTreeSet;
use std::fmt;

/// Facts known about a test run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    pub tests: Vec<Ran>,
    /// Steps of `./test` that succeeded before the run.
    pub steps: Vec<String>,
    /// Tests that were left out on purpose.
    pub left_out: Vec<Ran>,
    /// True if an unknown set of tests was left out, so that a missing test is no failure.
    pub is_partial: bool,
}

/// Result of comparing a table with a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Requirements that are proved, wholly or as far as they are built.
    pub held: usize,
    /// Those of `held` of which a part waits.
    pub held_in_part: usize,
    /// Requirements that wait for another scope.
    pub later: usize,
    /// Requirements that the project has decided against.
    pub no_goals: usize,
    /// Named tests, each counted once.
    pub named: usize,
    /// Those of `named` that the run left out.
    pub left_out: usize,
    /// Statements of the table that are false.
    pub wrong: Vec<String>,
}

impl Verdict {
    /// Compares a document with a run.
    pub fn of(document: &str, run: &Run) -> Self {
        let mut verdict = Self::default();
        let scopes = waiting(document);
        let mut named = BTreeSet::new();
        let mut used = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for row in Row::all(document) {
            if !ids.insert(row.id.clone()) {
                verdict.wrong.push(format!("{} stands there twice", row.id));
            }
            verdict.count(&row);
            for name in &row.proof.tests {
                verdict.test(run, &row, name, named.insert(name.clone()));
            }
            if let Some(step) = row.proof.step.as_ref().filter(|step| !run.is_partial && !run.steps.contains(step)) {
                verdict.wrong.push(format!("{}: there was no step `{step}`", row.id));
            }
            for scope in &row.proof.later {
                used.insert(scope.clone());
                if !scopes.contains(scope) {
                    verdict.wrong.push(format!("{} waits for `{scope}`, which nothing waits for any more", row.id));
                }
            }
        }
        verdict.named = named.len();
        let idle = scopes.into_iter().filter(|scope| !used.contains(scope));
        verdict.wrong.extend(idle.map(|scope| format!("no requirement waits for `{scope}`")));
        verdict
    }

    fn count(&mut self, row: &Row) {
        let proof = &row.proof;
        let is_held = proof.step.is_some() || !proof.tests.is_empty();
        if is_held {
            self.held += 1;
            self.held_in_part += usize::from(!proof.later.is_empty());
        } else if !proof.later.is_empty() {
            self.later += 1;
        } else if proof.is_no_goal {
            self.no_goals += 1;
        } else {
            self.wrong.push(format!("{} is open: {}", row.id, row.text));
        }
    }

    fn test(&mut self, run: &Run, row: &Row, name: &str, is_new: bool) {
        let mut meant = run.tests.iter().filter(|ran| ran.is(name)).peekable();
        if meant.peek().is_none() {
            let is_left_out = run.is_partial || run.left_out.iter().any(|ran| ran.is(name));
            self.left_out += usize::from(is_new && is_left_out);
            if !is_left_out {
                self.wrong.push(format!("{}: `{name}` did not run", row.id));
            }
        } else if !meant.all(|ran| ran.has_passed) {
            self.wrong.push(format!("{}: `{name}` did not pass", row.id));
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for wrong in &self.wrong {
            writeln!(f, "  {wrong}")?;
        }
        let Self { held, held_in_part, later, no_goals, named, left_out, .. } = self;
        write!(f, "{} requirements: {held} held ({held_in_part} in part)", held + later + no_goals)?;
        write!(f, ", {later} wait for what is not there yet, {no_goals} are no goals; ")?;
        write!(f, "{named} tests named, {left_out} of them left out of this run")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::WAITING;

    fn ran(name: &str, has_passed: bool) -> Ran {
        Ran { has_passed, ..Ran::named("t", name) }
    }

    fn verdict(rows: &[&str], scopes: &[&str], is_partial: bool) -> Verdict {
        let scopes: Vec<String> = scopes.iter().map(|scope| format!("- `{scope}`: x")).collect();
        let document = format!("{}\n\n{WAITING}\n{}\n", rows.join("\n"), scopes.join("\n"));
        let tests = vec![ran("chaos::a", true), ran("chaos::b", true), ran("sim::c", false)];
        let left_out = vec![ran("loss::d", true)];
        Verdict::of(&document, &Run { tests, left_out, steps: vec!["lints".to_owned()], is_partial })
    }

    #[test]
    fn true_table_is_counted() {
        let rows = [
            "| G1 | x | `chaos::a`, `chaos` |",
            "| G2 | x | `chaos::b`; later: tools |",
            "| S-53 | x | step `lints` |",
            "| G3 | x | later: tools |",
            "| G4 | x | not a goal |",
        ];
        let verdict = verdict(&rows, &["tools"], false);
        assert_eq!(verdict.wrong, Vec::<String>::new());
        assert_eq!((verdict.held, verdict.held_in_part, verdict.later, verdict.no_goals), (3, 1, 1, 1));
        assert_eq!((verdict.named, verdict.left_out), (3, 0));
    }

    #[test]
    fn false_statements_are_reported() {
        for (row, told) in [
            ("| G1 | x | open |", "G1 is open: x"),
            ("| G1 | x | `sim::c` |", "G1: `sim::c` did not pass"),
            ("| G1 | x | `sim` |", "G1: `sim` did not pass"),
            ("| G1 | x | `chaos::c` |", "G1: `chaos::c` did not run"),
            ("| G1 | x | step `nothing` |", "G1: there was no step `nothing`"),
            ("| G1 | x | later: quic |", "G1 waits for `quic`, which nothing waits for any more"),
        ] {
            assert_eq!(verdict(&[row], &[], false).wrong, [told]);
        }
        let twice = ["| G1 | x | `chaos` |", "| G1 | y | `chaos` |"];
        assert_eq!(
            verdict(&twice, &["tools"], false).wrong,
            ["G1 stands there twice", "no requirement waits for `tools`"]
        );
    }

    #[test]
    fn missing_test_in_a_partial_run_is_no_failure() {
        let rows = ["| G1 | x | `chaos::gone` |", "| G2 | x | `chaos::gone` |", "| G3 | x | `sim::c` |"];
        let verdict = verdict(&rows, &[], true);
        assert_eq!((verdict.wrong, verdict.left_out), (vec!["G3: `sim::c` did not pass".to_owned()], 1));
    }

    #[test]
    fn test_left_out_on_purpose_is_no_failure() {
        let rows = ["| G1 | x | `loss::d`, `loss` |", "| G2 | x | `loss::e` |"];
        let verdict = verdict(&rows, &[], false);
        assert_eq!((verdict.wrong, verdict.left_out), (vec!["G2: `loss::e` did not run".to_owned()], 2));
    }
}
