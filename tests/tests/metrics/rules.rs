//! The project's alerts: valid, about existing metrics, and correct in test cases.
use crate::prometheus::{promtool, run};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus/rules.yml")
}

#[tokio::test]
async fn alert_rules_are_valid() {
    let (good, said) = run(promtool().args(["check", "rules"]).arg(rules()), "").await;
    assert!(good && said.contains("SUCCESS"), "{said}");
}

#[tokio::test]
async fn alerts_fire_only_in_their_test_cases() {
    let cases = include_str!("rules_test.yml").replace("RULES", &rules().display().to_string());
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("cases.yml");
    // A case that expects another alert text must fail, or the other cases prove nothing.
    std::fs::write(&file, cases.replace("45m 0s", "46m 0s")).expect("a file");
    let (good, said) = run(promtool().args(["test", "rules"]).arg(&file), "").await;
    assert!(!good && said.contains("45m 0s"), "{said}");
    std::fs::write(&file, cases).expect("a file");
    let (good, said) = run(promtool().args(["test", "rules"]).arg(&file), "").await;
    assert!(good && said.contains("SUCCESS"), "{said}");
}

/// Checks that every rule uses exported metrics, because a rule on an unknown name never fires, and that each
/// alert has a test case.
#[test]
fn alerts_use_known_metrics_and_have_test_cases() {
    let rules = std::fs::read_to_string(rules()).expect("the rules");
    let document = turnway::metrics::document().expect("each family once");
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let ours = words.filter(|word| word.starts_with("turnway_") || word.starts_with("process_"));
        ours.map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
    };
    let known = words(&document);
    let unknown: Vec<String> = words(&rules).difference(&known).cloned().collect();
    assert_eq!(unknown, Vec::<String>::new());
    let named = |text: &str, key: &str| -> BTreeSet<String> {
        let after = text.split(key).skip(1);
        after.filter_map(|rest| rest.split([',', '\n']).next()).map(|name| name.trim().to_owned()).collect()
    };
    let alerts = named(&rules, "- alert:");
    assert!(alerts.len() >= 5);
    assert_eq!(alerts, named(include_str!("rules_test.yml"), "alertname:"));
}
