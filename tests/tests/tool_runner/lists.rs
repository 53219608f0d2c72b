//! Tests invalid allow lists and flags of `turnway tool-runner`, and a state directory that is in use.
use super::{connected_runner, list};
use std::os::unix::fs::PermissionsExt;
use turnway_tests::real::command::run;
use turnway_tests::real::scripted_gateway::Runner;

async fn check(list: &str, code: i32, expected: &[&str]) {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("a.toml"), list).expect("a list");
    let ended = run(dir.path(), &["tool-runner", "--allow", "a.toml", "--check"], &[]).await;
    assert_eq!(ended.code, Some(code), "{ended:?}");
    for line in expected {
        assert!((ended.out.clone() + &ended.err).contains(line), "{line}\n{ended:?}");
    }
}

#[tokio::test]
async fn allow_list_is_checked_at_startup() {
    check("[programs.ls]\nrun = [\"/bin/ls\"]\n", 0, &["a.toml: ok: ls"]).await;
    let bad = "[programs.ls]\nrun = [\"ls\", \"{a}\"]\ntime = \"1s\"\n";
    let lines = [
        "turnway: a.toml:2:7: programs.ls.run: expected an absolute path of a program",
        "turnway: a.toml:2:7: programs.ls.run: {a} is not defined in args",
        "turnway: a.toml:3:1: programs.ls.time: unknown key",
    ];
    check(bad, 64, &lines).await;
    check("", 64, &["the list has no [programs.NAME]"]).await;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.toml");
    std::fs::write(&path, "[programs.ls]\nrun = [\"/bin/ls\"]\n").expect("a list");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).expect("set");
    let ended = run(dir.path(), &["--json", "tool-runner", "--allow", "a.toml"], &[]).await;
    assert_eq!((ended.code, &ended.error()["code"]), (Some(64), &"configuration".into()));
    let ended = run(dir.path(), &["tool-runner", "--allow", "none.toml"], &[]).await;
    assert!(ended.code == Some(64) && ended.err.contains("none.toml:1:1: cannot be read"), "{ended:?}");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
    let ended = run(dir.path(), &["tool-runner", "--allow", "a.toml", "--url", "ftp://x"], &[]).await;
    assert!(ended.code == Some(64) && ended.err.contains("must begin with ws://"), "{ended:?}");
}

#[tokio::test]
async fn second_runner_on_a_state_directory_is_refused() {
    let (asking, _gateway, _runner, dir) = connected_runner().await;
    let second = Runner::launch(dir.path(), asking.address(), &list(dir.path()), &[]);
    assert_eq!(second.exit().await, Some(69));
    let log = std::fs::read_to_string(dir.path().join("runner.log")).expect("a log");
    assert!(log.contains("another tool runner uses this directory"), "{log}");
}
