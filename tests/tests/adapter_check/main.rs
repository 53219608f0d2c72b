//! `turnway adapter-check` on real adapters: the examples reach their grades, planted faults are found, and wrong usage is
//! refused.
mod faults;
mod file_faults;
mod grades;
mod scaffold;

use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use turnway_tests::real::command::{Ended, run_within};
use turnway_tests::real::python::python;

/// Longest time of one run. A run of gold takes half a minute on an idle machine.
const LONGEST: Duration = Duration::from_secs(480);

/// Returns the path of a file of this repository.
fn repository(path: &str) -> String {
    format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))
}

/// Checks an adapter in Python.
async fn check(dir: &Path, options: &[&str], adapter: &str) -> Ended {
    let python = python();
    let python = python.to_str().expect("UTF-8");
    let sdk = repository("sdk/python/src");
    let env = [("PYTHONPATH", sdk.as_str()), ("PYTHONDONTWRITEBYTECODE", "1"), ("NO_PROXY", "127.0.0.1")];
    let args = [&["adapter-check"], options, &["--", python, adapter]].concat();
    run_within(LONGEST, dir, &args, &env).await
}

/// Returns the names of the checks with an outcome.
fn checks_with(report: &Value, outcome: &str) -> Vec<String> {
    let rows = report["checks"].as_array().expect("checks").iter().filter(|row| row["outcome"] == outcome);
    rows.map(|row| row["name"].as_str().expect("a name").to_owned()).collect()
}
