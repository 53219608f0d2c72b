//! Programs that the kit starts: the adapter under test and the platform that is built in. Both end with the value.
use crate::limits::{OUTPUT_LINE_BYTES_MAX, OUTPUT_LINES_MAX};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

/// A program with its arguments, environment and directory, which can be started again and again.
#[derive(Debug)]
pub(crate) struct AdapterProcess {
    words: Vec<OsString>,
    env: Vec<(&'static str, String)>,
    dir: PathBuf,
    running: Mutex<Option<RunningGroup>>,
    output: Arc<Mutex<VecDeque<String>>>,
    /// Number of lines of output so far.
    line_count: Arc<watch::Sender<usize>>,
}

/// A started program and everything that it starts: a process group. Killed when dropped.
#[derive(Debug)]
struct RunningGroup {
    child: Child,
    group: Option<Pid>,
    /// Kills the group once this process has ended, however it ended.
    guard: Option<Child>,
}

impl Drop for RunningGroup {
    fn drop(&mut self) {
        // First: the number of a group that has ended may belong to another one later.
        let _ = self.guard.as_mut().map(Child::start_kill);
        // A group whose processes have all ended is no error.
        let _ = self.group.map(|group| kill_process_group(group, Signal::KILL));
    }
}

// === impl AdapterProcess ===

impl AdapterProcess {
    /// Creates a program that is not started yet.
    pub(crate) fn new(words: Vec<OsString>, env: Vec<(&'static str, String)>, dir: &Path) -> Self {
        let line_count = Arc::new(watch::Sender::new(0));
        let output = Arc::default();
        Self { words, env, dir: dir.to_owned(), running: Mutex::new(None), output, line_count }
    }

    /// Starts the program, or kills the one that runs and starts it again.
    pub(crate) async fn start(&self) -> Result<(), String> {
        self.kill().await;
        let [program, args @ ..] = &self.words[..] else { return Err("no program is named".to_owned()) };
        let mut command = Command::new(program);
        command.args(args).envs(self.env.iter().map(|(key, value)| (key, value))).current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let started = command.spawn();
        let mut child = started.map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
        self.keep_output(child.stdout.take());
        self.keep_output(child.stderr.take());
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let guard = group.map(start_guard).transpose();
        let guard = guard.map_err(|error| format!("sh cannot be started: {error}"))?;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(RunningGroup { child, group, guard });
        Ok(())
    }

    /// Kills the program and everything that it has started, and waits for its end.
    pub(crate) async fn kill(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut running) = running {
            let _ = running.group.map(|group| kill_process_group(group, Signal::KILL));
            // The program is gone either way.
            let _ = running.child.wait().await;
        }
    }

    /// Returns how the program has ended, or `None` while it runs.
    pub(crate) fn ended(&self) -> Option<String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(group) = running.as_mut() else { return Some("not started".to_owned()) };
        match group.child.try_wait() {
            Ok(Some(status)) => Some(status.to_string()),
            Ok(None) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    /// Returns the last lines of output.
    pub(crate) fn last_output(&self) -> Vec<String> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Waits for the first line of output with this start; returns the rest of it.
    pub(crate) async fn line_after(&self, start: &str) -> String {
        let mut count = self.line_count.subscribe();
        loop {
            let lines = self.last_output();
            if let Some(rest) = lines.iter().find_map(|line| line.strip_prefix(start)) {
                return rest.to_owned();
            }
            // The sender lives as long as this value.
            let _ = count.changed().await;
        }
    }

    fn keep_output(&self, stream: Option<impl AsyncRead + Unpin + Send + 'static>) {
        let Some(stream) = stream else { return };
        let output = Arc::clone(&self.output);
        let line_count = Arc::clone(&self.line_count);
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while let Ok(byte) = stream.read_u8().await {
                if byte != b'\n' {
                    // The rest of a longer line is left out.
                    if line.len() < OUTPUT_LINE_BYTES_MAX {
                        line.push(byte);
                    }
                    continue;
                }
                let mut kept = output.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() == OUTPUT_LINES_MAX {
                    kept.pop_front();
                }
                kept.push_back(String::from_utf8_lossy(&line).into_owned());
                drop(kept);
                line.clear();
                line_count.send_modify(|count| *count += 1);
            }
        });
    }
}

/// Starts a shell that waits for the end of its input, which comes with the end of this process, and then kills a group.
fn start_guard(group: Pid) -> std::io::Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", "read -r _; kill -s KILL -- \"-$0\""]).arg(group.as_raw_nonzero().to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0).kill_on_drop(true).spawn()
}

/// Returns a command with the names of existing files made absolute, so that it works in another directory.
pub(crate) fn with_absolute_paths(words: &[OsString], from: &Path) -> Vec<OsString> {
    let absolute = |word: &OsString| {
        let path = from.join(word);
        let is_program_of_path = !word.to_string_lossy().contains('/') && !path.is_file();
        if is_program_of_path || !path.exists() { word.clone() } else { path.into_os_string() }
    };
    words.iter().map(absolute).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_name_files_become_absolute() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("adapter.py"), "").expect("a file");
        std::fs::create_dir(dir.path().join("main")).expect("a directory");
        let words = ["python3", "adapter.py", "--account", "main", "./main"].map(OsString::from);
        let found = with_absolute_paths(&words, dir.path());
        let file = dir.path().join("adapter.py").into_os_string();
        let folder = dir.path().join("./main").into_os_string();
        assert_eq!(found, ["python3".into(), file, "--account".into(), "main".into(), folder]);
    }

    #[tokio::test]
    async fn killed_program_takes_its_children_along() {
        let dir = tempfile::tempdir().expect("a directory");
        let script = "sleep 1000 & echo child $!; wait";
        let words = ["sh", "-c", script].map(OsString::from).to_vec();
        let program = AdapterProcess::new(words, Vec::new(), dir.path());
        program.start().await.expect("it starts");
        let child = program.line_after("child ").await;
        assert_eq!(program.ended(), None);
        program.kill().await;
        let mut looks = tokio::time::interval(std::time::Duration::from_millis(20));
        let gone = tokio::time::timeout(std::time::Duration::from_secs(10), async {
            loop {
                looks.tick().await;
                let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
                // An orphan that nobody has waited for yet is a zombie.
                if stat.is_empty() || stat.contains(") Z") || stat.contains(") X") {
                    break;
                }
            }
        });
        gone.await.expect("the child ends in time");
        assert!(program.ended().is_some());
    }
}
