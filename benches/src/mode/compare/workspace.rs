//! Starts and kills the servers of a comparison, keeps their files, and reads their memory.
use crate::error::{ANSWER_TIMEOUT, BenchError};
use crate::process::Process;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

/// Interval of checks whether a server is up.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The directories and programs of a comparison.
#[derive(Debug)]
pub struct Workspace {
    /// Files of the servers, removed on drop.
    dir: tempfile::TempDir,
    /// Directory in which the other systems are installed.
    pub installed: PathBuf,
    /// Program of the Turnway node.
    pub turnway: PathBuf,
}

/// A server as a process group, killed on drop.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Address at which the server accepts connections.
    pub address: SocketAddr,
}

// === impl Workspace ===

impl Workspace {
    /// Uses the other systems in `installed`, and the node beside this binary or at `TURNWAY_BIN`.
    pub fn new(installed: &Path) -> Result<Self, BenchError> {
        let failed = |error: std::io::Error| BenchError::Failed(format!("no place for servers: {error}"));
        let beside = std::env::current_exe().map_err(failed)?.with_file_name("turnway");
        let turnway = std::env::var_os("TURNWAY_BIN").map_or(beside, PathBuf::from);
        let dir = tempfile::Builder::new().prefix("turnway-compare-").tempdir().map_err(failed)?;
        let installed = std::path::absolute(installed).map_err(failed)?;
        Ok(Self { dir, installed, turnway })
    }

    /// Creates a new directory.
    pub fn new_dir(&self, name: &str) -> Result<PathBuf, BenchError> {
        let made = tempfile::Builder::new().prefix(name).tempdir_in(self.dir.path());
        made.map(tempfile::TempDir::keep).map_err(|error| BenchError::Failed(format!("{name}: {error}")))
    }

    /// Creates a new directory with one file, and returns the file's path.
    pub fn new_file(&self, name: &str, text: &str) -> Result<PathBuf, BenchError> {
        let path = self.new_dir(name)?.join(name);
        fs::write(&path, text).map_err(|error| BenchError::Failed(format!("{name}: {error}")))?;
        Ok(path)
    }

    /// Starts a server, and returns once it accepts connections at this port.
    pub async fn start(&self, name: &str, command: &mut Command, port: u16) -> Result<Server, BenchError> {
        let failed = |error: std::io::Error| BenchError::Unavailable(format!("{name}: {error}"));
        let log = self.new_dir("log")?.join(name);
        let out = File::create(&log).map_err(failed)?;
        let said = out.try_clone().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(out).stderr(said).process_group(0);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = Server { child: command.spawn().map_err(failed)?, address };
        let since = Instant::now();
        while TcpStream::connect(address).await.is_err() {
            let is_gone = !matches!(server.child.try_wait(), Ok(None));
            if is_gone || since.elapsed() > ANSWER_TIMEOUT {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(BenchError::Unavailable(format!("{name} does not serve: {said}")));
            }
            pause(POLL_INTERVAL).await;
        }
        Ok(server)
    }

    /// Starts a Redis with these further settings. Debian's redis-tools has the server under another name.
    pub async fn redis(&self, settings: &[&str]) -> Result<Server, BenchError> {
        let port = free_port()?;
        let home = self.new_dir("redis")?;
        let mut command = Command::new("redis-check-rdb");
        command.arg0("redis-server").args(["--save", "", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(settings).arg("--dir").arg(home);
        self.start("redis-server", &mut command, port).await
    }
}

/// Waits for this duration.
pub async fn pause(time: Duration) {
    sleep_until(Instant::now() + time).await;
}

/// Returns a port that was free a moment ago.
pub fn free_port() -> Result<u16, BenchError> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|error| BenchError::Unavailable(format!("no port: {error}")))
}

/// Returns a program's version as one line, or what is missing.
pub fn version_of(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{program}: {error}"))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    let line = text.lines().next().unwrap_or_default().trim().to_owned();
    if output.status.success() { Ok(line) } else { Err(format!("{program}: {line}")) }
}

// === impl Server ===

impl Server {
    /// Returns the resident memory of all its processes in kilobytes.
    pub fn rss_kb(&self) -> f64 {
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let bytes: u64 = pids.filter(|pid| self.owns_process(*pid)).filter_map(|pid| Process::find(pid)?.rss()).sum();
        #[expect(clippy::cast_precision_loss, reason = "memory has fewer than 2^53 bytes")]
        let bytes = bytes as f64;
        bytes / 1024.0
    }

    /// Returns whether a process belongs to the group: the third field after the name in `/proc/PID/stat`.
    fn owns_process(&self, pid: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let group = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(2));
        group.and_then(|group| group.parse().ok()) == Some(self.child.id())
    }

    /// Kills the group with SIGKILL, and returns once the first process is gone.
    pub fn kill(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
            // Killing fails only if the group has just ended.
            group.map(|group| kill_process_group(group, Signal::KILL));
            let _ = self.child.wait();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_ends_at_once_is_told_of_with_its_words() {
        let workspace = Workspace::new(Path::new("nowhere")).expect("a place");
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such thing; exit 3"]);
        let port = free_port().expect("a port");
        let error = workspace.start("it", &mut command, port).await.expect_err("it has ended");
        assert!(error.to_string().contains("no such thing"), "{error}");
    }
}
