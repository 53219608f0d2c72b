//! Tests that a runner's programs cannot read its API key or start environment, and as which user programs run.
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::tempdir;
use turnway_tests::real::scripted_gateway::{Runner, RunnerSession, ScriptedGateway};

const KEY: &str = "twk_aaaaaaaaaa_bbbbbbbbbbbbbbbbbbbbbbbbbb";

/// Programs that search for the key in every readable place, and print their user.
const LIST: &str = r#"
[programs.look]
run = ["/bin/sh", "-c", """
cd /proc/$PPID
echo environ; cat environ
echo cmdline; cat cmdline
echo fds; ls -l fd; cat fd/0
if ( : <mem ) 2>/dev/null; then echo memory open; else echo memory closed; fi
echo own; env
"""]

[programs.who]
run = ["/bin/sh", "-c", "id -u; id -g; id -G"]

[programs.seven]
run = ["/bin/sh", "-c", "test -e /proc/self/fd/7 && echo open || echo closed"]
"#;

/// Returns the user and group that run the tests, as an allow list names them.
fn own_user() -> String {
    format!("{}:{}", rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Returns the allow list with this text in front.
fn list(before: &str) -> String {
    format!("{before}\n{LIST}")
}

/// Returns the output of a program of the runner.
async fn printed(gateway: &mut RunnerSession, program: &str) -> String {
    let id = gateway.spawn(program, json!({})).await;
    let result = gateway.result(&id).await;
    result["result"]["stdout"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}

async fn check_hidden(runner: &Runner, gateway: &mut RunnerSession) {
    assert_eq!(gateway.hello["api_key"], KEY, "the gateway is shown it");
    let printed = printed(gateway, "look").await;
    assert!(printed.contains("own\n") && printed.contains("TURNWAY_ACTION_ID"), "{printed}");
    assert!(!printed.contains("bbbbb"), "{printed}");
    // The key is not visible in `/proc` to other users either.
    for file in ["environ", "cmdline"] {
        let seen = std::fs::read(format!("/proc/{}/{file}", runner.pid())).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&seen).contains("bbbbb"), "{file}");
    }
}

/// The runner and its programs run as the tests' own user.
#[tokio::test]
async fn key_of_the_environment_is_hidden_from_programs() {
    let asking = ScriptedGateway::listen().await;
    let dir = tempdir().expect("a directory");
    let list = list(&format!("run_as = \"{}\"", own_user()));
    let env = [("TURNWAY_API_KEY", KEY)];
    let mut runner = Runner::launch_by(&[], dir.path(), asking.address(), &list, &[], &env);
    let mut gateway = asking.accept().await;
    runner.ready().await;
    check_hidden(&runner, &mut gateway).await;
    // The runner's memory is closed to programs of the same user, root included.
    let look = printed(&mut gateway, "look").await;
    assert!(look.contains("memory closed"), "{look}");
}

#[tokio::test]
async fn key_of_the_command_line_is_hidden_from_programs() {
    let asking = ScriptedGateway::listen().await;
    let dir = tempdir().expect("a directory");
    let list = list(&format!("run_as = \"{}\"", own_user()));
    let mut runner = Runner::launch(dir.path(), asking.address(), &list, &["--api-key", KEY]);
    let mut gateway = asking.accept().await;
    runner.ready().await;
    check_hidden(&runner, &mut gateway).await;
}

fn key_file(dir: &Path, mode: u32) -> String {
    let path = dir.join("key");
    std::fs::write(&path, format!("{KEY}\n")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
    path.display().to_string()
}

#[tokio::test]
async fn key_file_that_others_may_read_is_refused() {
    let asking = ScriptedGateway::listen().await;
    let dir = tempdir().expect("a directory");
    let file = key_file(dir.path(), 0o644);
    let runner = Runner::launch(dir.path(), asking.address(), &list(""), &["--api-key-file", &file]);
    assert_eq!(runner.exit().await, Some(64));
    let file = key_file(dir.path(), 0o600);
    let mut runner = Runner::launch(dir.path(), asking.address(), &list(""), &["--api-key-file", &file]);
    let mut gateway = asking.accept().await;
    runner.ready().await;
    check_hidden(&runner, &mut gateway).await;
}

#[tokio::test]
async fn programs_inherit_no_descriptor() {
    let asking = ScriptedGateway::listen().await;
    let dir = tempdir().expect("a directory");
    let by = ["/bin/sh", "-c", "exec 7</etc/passwd; exec \"$0\" \"$@\""];
    let mut runner = Runner::launch_by(&by, dir.path(), asking.address(), &list(""), &[], &[]);
    let mut gateway = asking.accept().await;
    runner.ready().await;
    assert_eq!(printed(&mut gateway, "seven").await, "closed\n");
}

/// A root runner with a key runs its programs as `nobody` unless the list says otherwise; a runner of another user
/// runs them as itself and accepts no other user.
#[tokio::test]
async fn programs_of_a_root_runner_with_a_key_run_as_nobody() {
    let asking = ScriptedGateway::listen().await;
    let dir = tempdir().expect("a directory");
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    if uid != 0 {
        let list = list("run_as = \"0:0\"");
        let runner = Runner::launch(dir.path(), asking.address(), &list, &[]);
        assert_eq!(runner.exit().await, Some(64), "only root becomes another user");
        return;
    }
    let env = [("TURNWAY_API_KEY", KEY)];
    let mut runner = Runner::launch_by(&[], dir.path(), asking.address(), &list(""), &[], &env);
    let mut gateway = asking.accept().await;
    runner.ready().await;
    assert_eq!(printed(&mut gateway, "who").await, "65534\n65534\n65534\n");
    check_hidden(&runner, &mut gateway).await;
    let log = std::fs::read_to_string(dir.path().join("runner.log")).expect("a log");
    assert!(log.contains("run as nobody"), "{log}");
    runner.kill().await;
    // By number or by name, without supplementary groups; as root if the list says so.
    for (run_as, expected) in [("4000:4001", "4000\n4001\n4001\n".to_owned()), ("root", format!("0\n{gid}\n0\n"))] {
        let list = list(&format!("run_as = \"{run_as}\""));
        let mut runner = Runner::launch_by(&[], dir.path(), asking.address(), &list, &[], &env);
        let mut gateway = asking.accept().await;
        runner.ready().await;
        assert_eq!(printed(&mut gateway, "who").await, expected);
        check_hidden(&runner, &mut gateway).await;
        runner.kill().await;
    }
}
