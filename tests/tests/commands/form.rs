//! Common behaviour of all commands: help, JSON output, exit codes, and closed outputs.
use serde_json::json;
use std::io::Read;
use std::process::{Command, Stdio};
use turnway_tests::real::command::run;
use turnway_tests::real::node::binary;

#[tokio::test]
async fn help_lists_commands_and_typos_get_suggestions() {
    let dir = tempfile::tempdir().expect("a directory");
    let help = run(dir.path(), &["help"], &[]).await;
    assert_eq!((help.code, help.err.as_str()), (Some(0), ""));
    for command in ["serve", "chat", "replay", "nodes", "check-config", "default-config", "config-doc", "version"] {
        assert!(help.out.contains(&format!("\n  {command}")), "{}", help.out);
        let of = run(dir.path(), &["help", command], &[]).await;
        assert!(of.code == Some(0) && of.out.contains(&format!("Usage: turnway {command}")), "{of:?}");
    }
    assert!(help.out.contains("Exit codes: "), "{}", help.out);
    assert!(!help.out.contains('\u{1b}'), "no colours where nobody looks");
    let slip = run(dir.path(), &["repaly", "s"], &[]).await;
    assert!(slip.code == Some(64) && slip.err.contains("'replay'"), "{slip:?}");
    let slip = run(dir.path(), &["serve", "--lisen", "x"], &[]).await;
    assert!(slip.code == Some(64) && slip.err.contains("'--listen'"), "{slip:?}");
    assert_eq!(run(dir.path(), &[], &[]).await.code, Some(64));
}

#[tokio::test]
async fn errors_are_one_json_object_with_json_flag() {
    let dir = tempfile::tempdir().expect("a directory");
    let usage = run(dir.path(), &["replay", "--json"], &[]).await;
    assert_eq!((usage.code, usage.out.as_str()), (Some(64), ""));
    assert_eq!(usage.error()["code"], "usage");
    // Port 1 has no listener.
    for (args, code, exit) in [
        (["replay", "s", "--url", "ws://127.0.0.1:1"], "unavailable", 69),
        (["replay", "s", "--url", "nonsense"], "usage", 64),
        (["replay", "s", "--url", "gopher://127.0.0.1:1"], "usage", 64),
        (["chat", "--json", "--url", "ws://127.0.0.1:1"], "unavailable", 69),
    ] {
        let ended =
            run(dir.path(), &[&args[..], &["--json"][..usize::from(!args.contains(&"--json"))]].concat(), &[]).await;
        assert_eq!((ended.code, ended.out.as_str()), (Some(exit), ""), "{args:?} {ended:?}");
        assert_eq!(ended.error()["code"], code, "{ended:?}");
        assert!(ended.error()["message"].is_string());
        let plain =
            run(dir.path(), &args[..].iter().copied().filter(|arg| *arg != "--json").collect::<Vec<_>>(), &[]).await;
        assert!(plain.code == Some(exit) && plain.err.starts_with("turnway: "), "{plain:?}");
    }
}

#[tokio::test]
async fn version_prints_name_version_and_protocol() {
    let dir = tempfile::tempdir().expect("a directory");
    let plain = run(dir.path(), &["version"], &[]).await;
    assert_eq!(plain.out, format!("turnway {}\n", env!("CARGO_PKG_VERSION")));
    let output = run(dir.path(), &["--json", "version"], &[]).await.json();
    assert_eq!(output, json!({"name": "turnway", "version": env!("CARGO_PKG_VERSION"), "protocol": "turnway.v1"}));
}

/// Exits without an error when the reader closes the pipe early, as in `turnway … | head -1`.
#[test]
fn closed_output_pipe_is_no_error() {
    let mut child = Command::new(binary())
        .arg("config-doc")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    // The pipe is closed before any write: its buffer would hold a text of this size whole.
    drop(child.stdout.take());
    let mut text = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut text).expect("UTF-8");
    let code = child.wait().expect("it ends").code();
    assert_eq!((code, text.as_str()), (Some(0), ""));
}

/// Fails with exit code 1 when the disk is full.
#[cfg(target_os = "linux")]
#[test]
fn unwritable_output_exits_with_code_1() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
    let ended = Command::new(binary()).arg("default-config").stdout(full).output().expect("it runs");
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).starts_with("turnway: cannot write"));
}
