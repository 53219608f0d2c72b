//! One run of the binary from its start to its end.
use super::PATIENCE;
use super::node::binary;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;

/// What a command left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code; none: a signal.
    pub code: Option<i32>,
    /// Its stdout.
    pub out: String,
    /// Its stderr.
    pub err: String,
}

/// Runs it in a directory. One that does not end in time fails the test.
pub async fn run(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(binary());
    command.args(args).envs(env.iter().copied()).current_dir(dir).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

impl Ended {
    /// Its stdout as the one JSON value it must be.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }

    /// Its stdout as a JSON value a line.
    pub fn lines(&self) -> Vec<Value> {
        let line = |line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
        self.out.lines().map(line).collect()
    }

    /// `error` of the one JSON object its stderr must be.
    pub fn error(&self) -> Value {
        let told: Value = serde_json::from_str(&self.err).unwrap_or_else(|why| panic!("{why}: {self:?}"));
        told["error"].clone()
    }
}
