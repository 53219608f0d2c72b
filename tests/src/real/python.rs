//! Clients and agents in Python: scripts of `tests/python`, run as their own processes.
use super::PATIENCE;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

/// Returns the interpreter of `TURNWAY_PYTHON`, else that of the environment that `./test` makes.
pub fn python() -> PathBuf {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/venv/bin/python");
    let python = std::env::var_os("TURNWAY_PYTHON").map_or(made, PathBuf::from);
    assert!(python.exists(), "no {}: `./test` makes it, with what these clients need", python.display());
    python
}

/// Prepares a script: a file name, or `-c` and the text.
pub fn script(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(python());
    command.arg(name).args(args).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("python"));
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs a script, which must succeed; returns its output.
pub async fn run(name: &str, args: &[&str]) -> String {
    run_with(name, args, &[]).await
}

/// The same with these environment variables.
pub async fn run_with(name: &str, args: &[&str], env: &[(&str, &str)]) -> String {
    let child = script(name, args).envs(env.iter().copied()).stderr(Stdio::piped()).spawn().expect("Python starts");
    let output = tokio::time::timeout(4 * PATIENCE, child.wait_with_output()).await;
    let output = output.expect("it ends in time").expect("its output");
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// A script that runs beside the test. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a script.
    pub fn start(mut command: Command) -> Self {
        let mut child = command.spawn().expect("Python starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, stdout }
    }

    /// Starts a script that waits for [`Self::go_on`] between its steps.
    pub fn start_in_steps(mut command: Command) -> Self {
        command.stdin(Stdio::piped());
        Self::start(command)
    }

    /// Lets the script take its next step.
    pub async fn go_on(&mut self) {
        let stdin = self.child.stdin.as_mut().expect("started in steps");
        stdin.write_all(b"\n").await.expect("it runs");
    }

    /// Returns the script's next line of output.
    pub async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.stdout.read_line(&mut line)).await;
        assert!(read.expect("it speaks in time").expect("readable") > 0, "it has ended without a word");
        line.trim_end_matches('\n').to_owned()
    }

    /// Waits until the script has ended successfully; returns the rest of its output.
    pub async fn end(mut self) -> String {
        let mut text = String::new();
        let ended = tokio::time::timeout(4 * PATIENCE, async {
            self.stdout.read_to_string(&mut text).await.expect("readable");
            self.child.wait().await.expect("its end")
        });
        let status = ended.await.expect("it ends in time");
        assert!(status.success(), "{status}\n{text}");
        text
    }
}
