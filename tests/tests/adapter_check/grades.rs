//! The grades of the example adapters, and the options of the command.
use super::{LONGEST, check, checks_with, repository};
use serde_json::json;
use std::process::Stdio;
use std::time::Duration;
use tempfile::tempdir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{interval, timeout};
use turnway_tests::real::command::run;
use turnway_tests::real::node::binary;
use turnway_tests::real::python::python;
use turnway_tests::real::{PATIENCE, amount};

/// Covers: BR-26, BR-36, BR-38.
#[tokio::test]
async fn example_adapter_reaches_platinum() {
    let dir = tempdir().expect("a directory");
    let seconds = amount("ADAPTER_CHAOS_SECONDS", 5).to_string();
    let options = ["--platform", "rooms", "--grade", "platinum", "--chaos-seconds", &seconds];
    let ended = check(dir.path(), &options, &repository("examples/rooms/adapter.py")).await;
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", ended.out);
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(lines.len(), 21, "{}", ended.out);
    assert!(lines[0].starts_with("✓ hello "), "{}", ended.out);
    assert!(lines[15].starts_with("- attachments ") && lines[15].ends_with("not declared"), "{}", ended.out);
    assert_eq!(lines[20], "grade: platinum (wanted: platinum)");
}

/// Covers: BR-26, BR-36, BR-38, PR-24.
#[tokio::test]
async fn sdk_adapter_reaches_gold() {
    let dir = tempdir().expect("a directory");
    let adapter = repository("examples/rooms/adapter_sdk.py");
    let ended = check(dir.path(), &["--platform", "rooms", "--json"], &adapter).await;
    let report = ended.json();
    assert_eq!((ended.code, &report["grade"]), (Some(0), &json!("gold")), "{}", ended.out);
    assert_eq!(checks_with(&report, "passed").len(), 19, "{}", ended.out);
    assert_eq!(report["adapter"]["channel"], "rooms");
    assert!(!ended.out.contains("api_key"), "{}", ended.out);
}

/// Covers: BR-38.
#[tokio::test]
async fn adapter_without_a_platform_reaches_bronze() {
    let dir = tempdir().expect("a directory");
    let ended = check(dir.path(), &["--json"], &repository("examples/rooms/adapter.py")).await;
    let report = ended.json();
    assert_eq!((ended.code, &report["grade"], &report["wanted"]), (Some(0), &json!("bronze"), &json!("bronze")));
    assert_eq!(checks_with(&report, "not_run"), ["inbound"]);
}

/// Covers: BR-38.
#[tokio::test]
async fn exemption_is_reported_and_costs_the_grade() {
    let dir = tempdir().expect("a directory");
    let options = ["--platform", "rooms", "--grade", "bronze", "--exempt", "reconnect=runs under a supervisor"];
    let ended = check(dir.path(), &options, &repository("examples/rooms/adapter.py")).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains("- reconnect               exempt: runs under a supervisor\n"), "{}", ended.out);
    assert!(ended.out.ends_with("grade: none (wanted: bronze)\n"), "{}", ended.out);
}

#[tokio::test]
async fn adapter_that_ends_is_reported_with_its_output() {
    let dir = tempdir().expect("a directory");
    std::fs::write(dir.path().join("adapter.py"), "print('no such token')\nraise SystemExit(3)\n").expect("a file");
    let ended = check(dir.path(), &["--only", "hello"], "adapter.py").await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains("✗ hello") && ended.out.contains("exit status: 3"), "{}", ended.out);
    assert!(ended.out.contains("output: no such token"), "{}", ended.out);
}

#[tokio::test]
async fn wrong_usage_of_the_check_is_refused() {
    let dir = tempdir().expect("a directory");
    for args in [
        &["adapter-check"][..],
        &["adapter-check", "--only", "nothing", "--", "true"],
        &["adapter-check", "--exempt", "edits", "--", "true"],
        &["adapter-check", "--platform", "discord", "--", "true"],
        &["adapter-check", "--grade", "tin", "--", "true"],
        &["adapter-check", "--chaos-seconds", "0", "--", "true"],
        &["adapter-check", "--platform", "http://127.0.0.1", "--", "true"],
        &["adapter-check", "--", "no-such-program-here"],
    ] {
        let ended = run(dir.path(), args, &[]).await;
        assert_eq!((ended.code, ended.out.as_str()), (Some(64), ""), "{args:?} {ended:?}");
    }
}

/// Counts the processes whose environment has a variable.
fn processes_with(variable: &str) -> usize {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let environments = entries.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
    environments.filter(|all| all.split(|byte| *byte == 0).any(|each| each == variable.as_bytes())).count()
}

#[tokio::test]
async fn ended_check_leaves_no_process() {
    for (signal, code) in [("-TERM", Some(1)), ("-INT", Some(1)), ("-KILL", None)] {
        end_check(signal, code).await;
    }
}

/// Starts a check, ends it by a signal, and waits until its programs have ended, too.
async fn end_check(signal: &str, code: Option<i32>) {
    let dir = tempdir().expect("a directory");
    let mark = format!("ADAPTER_CHECK_TEST={}", dir.path().display());
    let (name, value) = mark.split_once('=').expect("a variable");
    let mut child = Command::new(binary())
        .args(["adapter-check", "--platform", "rooms", "--"])
        .arg(python())
        .arg(repository("examples/rooms/adapter.py"))
        .env(name, value)
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let first = timeout(LONGEST, lines.next_line()).await.expect("it is in time").expect("readable");
    assert!(first.as_deref().is_some_and(|line| line.starts_with("✓ hello")), "{first:?}");
    let pid = child.id().expect("it runs").to_string();
    let sent = Command::new("kill").args([signal, &pid]).status().await.expect("kill runs");
    assert!(sent.success(), "it was running");
    assert_eq!(timeout(PATIENCE, child.wait()).await.expect("in time").expect("its end").code(), code);
    let mut looks = interval(Duration::from_millis(50));
    let gone = timeout(PATIENCE, async {
        while processes_with(&mark) > 0 {
            looks.tick().await;
        }
    });
    assert!(gone.await.is_ok(), "{signal}: {} processes are left", processes_with(&mark));
}
