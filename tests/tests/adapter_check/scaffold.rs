//! `turnway adapter new`: each language's adapter reaches bronze as it is written.
use super::{LONGEST, check, repository};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tempfile::tempdir;
use tokio::process::Command;
use turnway_tests::real::command::{Ended, run, run_within};

const BRONZE: [&str; 4] = ["--platform", "rooms", "--grade", "bronze"];

/// Longest build of the adapter in Rust, whose dependencies are compiled once for all test runs.
const LONGEST_BUILD: Duration = Duration::from_secs(900);

/// The first release of Node.js that runs TypeScript by itself.
const NODE_WITH_TYPES: (u32, u32) = (22, 18);

/// Writes an adapter into `my-chat` below a directory.
async fn scaffold(dir: &Path, language: &str, files: &[&str]) {
    let ended = run(dir, &["adapter", "new", "my-chat", "--lang", language], &[]).await;
    let expected: Vec<String> = files.iter().map(|file| format!("my-chat/{file}\n")).collect();
    assert_eq!((ended.code, ended.out, ended.err.as_str()), (Some(0), expected.concat(), ""));
}

fn assert_bronze(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.ends_with("grade: bronze (wanted: bronze)\n"), "{}", ended.out);
}

/// Runs a program, which must succeed; returns its output.
async fn succeed(mut command: Command, longest: Duration) -> String {
    let output = tokio::time::timeout(longest, command.stdin(Stdio::null()).kill_on_drop(true).output());
    let output = output.await.expect("it ends in time").expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Covers: BR-38.
#[tokio::test]
async fn new_python_adapter_reaches_bronze() {
    let dir = tempdir().expect("a directory");
    scaffold(dir.path(), "python", &["README.md", "adapter.py"]).await;
    assert_bronze(&check(dir.path(), &BRONZE, "my-chat/adapter.py").await);
}

/// Covers: BR-38.
#[tokio::test]
async fn new_rust_adapter_reaches_bronze() {
    let dir = tempdir().expect("a directory");
    scaffold(dir.path(), "rust", &["README.md", "Cargo.toml", "src/main.rs", "src/platform.rs"]).await;
    let package = dir.path().join("my-chat");
    // The versions of this workspace are on this machine; without the file cargo would look for newer ones.
    std::fs::copy(repository("Cargo.lock"), package.join("Cargo.lock")).expect("a copy");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = std::env::current_exe().expect("a path");
    let target = target.ancestors().nth(3).expect("a test lies in target/PROFILE/deps").join("scaffold");
    let mut build = Command::new(cargo);
    build.args(["build", "--offline", "--quiet"]).current_dir(&package).env("CARGO_TARGET_DIR", &target);
    build.env("RUSTFLAGS", "-Dwarnings");
    succeed(build, LONGEST_BUILD).await;
    let program = target.join("debug/my-chat");
    let args = [&["adapter-check"][..], &BRONZE, &["--", program.to_str().expect("UTF-8")]].concat();
    assert_bronze(&run_within(LONGEST, dir.path(), &args, &[]).await);
}

/// Returns the version of Node.js.
async fn node_version() -> (u32, u32) {
    let mut node = Command::new("node");
    node.arg("--version");
    let text = succeed(node, Duration::from_secs(60)).await;
    let mut numbers = text.trim().trim_start_matches('v').split('.').map(|number| number.parse().expect("a number"));
    (numbers.next().expect("major"), numbers.next().expect("minor"))
}

/// Returns the words that run the adapter, for an older Node.js without its types, by the compiler of the web chat.
async fn words_for_node(dir: &Path) -> Vec<String> {
    if node_version().await >= NODE_WITH_TYPES {
        return ["node", "my-chat/adapter.ts"].map(str::to_owned).to_vec();
    }
    let plain: PathBuf = dir.join("my-chat/adapter.mjs");
    let mut compile = Command::new(repository("gateway/chat/node_modules/.bin/esbuild"));
    compile.arg(dir.join("my-chat/adapter.ts")).arg("--format=esm").arg(format!("--outfile={}", plain.display()));
    succeed(compile, Duration::from_secs(60)).await;
    let plain = plain.to_str().expect("UTF-8");
    ["node", "--no-warnings", "--experimental-websocket", plain].map(str::to_owned).to_vec()
}

/// Covers: BR-38.
#[tokio::test]
async fn new_typescript_adapter_reaches_bronze() {
    let dir = tempdir().expect("a directory");
    scaffold(dir.path(), "ts", &["README.md", "package.json", "adapter.ts"]).await;
    let words = words_for_node(dir.path()).await;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let args = [&["adapter-check"][..], &BRONZE, &["--"], &words[..]].concat();
    assert_bronze(&run_within(LONGEST, dir.path(), &args, &[]).await);
}

#[tokio::test]
async fn new_adapter_overwrites_nothing() {
    let dir = tempdir().expect("a directory");
    std::fs::write(dir.path().join("adapter.py"), "mine").expect("a file");
    let args = ["adapter", "new", "my-chat", "--lang", "python", "--dir", "."];
    let refused = run(dir.path(), &args, &[]).await;
    assert_eq!((refused.code, refused.out.as_str()), (Some(64), ""), "{refused:?}");
    assert!(refused.err.contains("adapter.py exists already"), "{}", refused.err);
    assert_eq!(std::fs::read_to_string(dir.path().join("adapter.py")).expect("a file"), "mine");
    assert!(!dir.path().join("README.md").exists());
    for args in [
        &["adapter", "new", "My_Chat", "--lang", "python"][..],
        &["adapter", "new", "my-chat", "--lang", "perl"],
        &["adapter", "new", "my-chat"],
    ] {
        assert_eq!(run(dir.path(), args, &[]).await.code, Some(64), "{args:?}");
    }
}
