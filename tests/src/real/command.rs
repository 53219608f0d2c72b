//! Runs the `turnway` binary from start to end.
use super::PATIENCE;
use super::node::binary;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// `None` if a signal ended the command.
    pub code: Option<i32>,
    /// Content of stdout.
    pub out: String,
    /// Content of stderr.
    pub err: String,
}

/// Runs the binary in a directory. A command that does not end in time fails the test.
pub async fn run(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Ended {
    run_within(PATIENCE, dir, args, env).await
}

/// The same with another longest time.
pub async fn run_within(longest: Duration, dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(binary());
    command.args(args).envs(env.iter().copied()).current_dir(dir).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(longest, command.output()).await.expect("it ends").expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

impl Ended {
    /// Parses stdout as one JSON value.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }

    /// Parses stdout as one JSON value per line.
    pub fn lines(&self) -> Vec<Value> {
        let line = |line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
        self.out.lines().map(line).collect()
    }

    /// Parses stderr as one JSON object; returns its `error`.
    pub fn error(&self) -> Value {
        let body: Value = serde_json::from_str(&self.err).unwrap_or_else(|why| panic!("{why}: {self:?}"));
        body["error"].clone()
    }
}
