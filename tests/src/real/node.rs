//! One node: the real binary, its ready line, its signals, its log and its resource usage.
use super::{PATIENCE, stale};
use crate::failures::NODE_LOG;
use std::fs::{File, Permissions};
use std::io::{Read, Seek};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Returns the node's binary: the one of `TURNWAY_BIN`, else the one built beside this test.
///
/// Panics if a binary of this tree is older than its sources, because the test would then prove something about
/// other code.
pub fn binary() -> PathBuf {
    let binary = named_or_beside();
    if let Some(source) = stale::newer_source(&binary) {
        panic!(
            "{} is older than {}: build it with `cargo build --workspace --bins` in the profile of the tests",
            binary.display(),
            source.display()
        );
    }
    binary
}

fn named_or_beside() -> PathBuf {
    if let Some(named) = std::env::var_os("TURNWAY_BIN") {
        return named.into();
    }
    let test = std::env::current_exe().expect("a test has a path");
    // target/<profile>/deps/<test> → target/<profile>/turnway
    let beside = test.parent().and_then(Path::parent).expect("a test lies in target").join("turnway");
    assert!(beside.exists(), "no {}: build it with `cargo build --workspace --bins`", beside.display());
    beside
}

/// Path of the binary of an earlier build. Nodes refuse unknown variables `TURNWAY_…`, so they are started without it.
const EARLIER_BINARY: &str = "TURNWAY_EARLIER_BIN";

/// Returns the binary of an earlier build, which `TURNWAY_EARLIER_BIN` names.
///
/// Panics without it: a test of two builds proves nothing about one.
pub fn earlier_binary() -> PathBuf {
    let Some(named) = std::env::var_os(EARLIER_BINARY) else {
        panic!("{EARLIER_BINARY} is not set: `./test mixed` builds the program of an earlier commit and runs this test")
    };
    let binary = PathBuf::from(named);
    assert!(binary.is_file(), "{EARLIER_BINARY} names {}, which is no file", binary.display());
    binary
}

/// Returns the binary that contains the example's plugins.
pub fn plugged() -> PathBuf {
    binary().with_file_name("turnway-with-plugins")
}

/// A running node and its data directory. Killed when dropped.
#[derive(Debug)]
pub struct Node {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    program: PathBuf,
    args: Vec<String>,
    dir: PathBuf,
    /// Open log file, which stays readable when the directory is gone.
    log: File,
    /// Address for clients.
    pub http: SocketAddr,
    /// Address for clients over QUIC, if enabled.
    pub quic: Option<SocketAddr>,
    /// Address for operators.
    pub admin: SocketAddr,
    /// Node id, which changes with each start.
    pub id: String,
}

impl Node {
    /// Starts a node on free ports, with its data under `dir` and these further arguments to `serve`.
    pub async fn start(dir: &Path, args: &[&str]) -> Self {
        let store = format!("embedded:{}", dir.join("data").display());
        Self::start_on(&store, dir, args).await
    }

    /// The same on this store, with only the log under `dir`.
    pub async fn start_on(store: &str, dir: &Path, args: &[&str]) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::start_as(binary(), store, dir, args, any).await
    }

    /// The same with this program.
    pub async fn start_program_on(program: PathBuf, store: &str, dir: &Path, args: &[&str]) -> Self {
        Self::start_as(program, store, dir, args, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Starts the binary with plugins.
    pub async fn start_plugged(dir: &Path, args: &[&str]) -> Self {
        let store = format!("embedded:{}", dir.join("data").display());
        Self::start_as(plugged(), &store, dir, args, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Starts a node on this store with a limit of open files.
    pub async fn start_with_files(files: u32, store: &str, dir: &Path, args: &[&str]) -> Self {
        let script = dir.join("few-files");
        let text = format!("#!/bin/sh\nulimit -n {files}\nexec '{}' \"$@\"\n", binary().display());
        std::fs::write(&script, text).expect("a script");
        std::fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("it can be run");
        Self::start_as(script, store, dir, args, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Starts a node that listens on every address of this machine.
    pub async fn start_public(dir: &Path, args: &[&str]) -> Self {
        let store = format!("embedded:{}", dir.join("data").display());
        Self::start_public_on(&store, dir, args).await
    }

    /// The same on this store.
    pub async fn start_public_on(store: &str, dir: &Path, args: &[&str]) -> Self {
        Self::start_as(binary(), store, dir, args, SocketAddr::from(([0, 0, 0, 0], 0))).await
    }

    async fn start_as(program: PathBuf, store: &str, dir: &Path, args: &[&str], http: SocketAddr) -> Self {
        let args = ["--store", store].iter().chain(args).map(|&arg| arg.to_owned()).collect();
        Self::start_at(program, dir, args, (http, SocketAddr::from(([127, 0, 0, 1], 0)))).await
    }

    async fn start_at(
        program: PathBuf,
        dir: &Path,
        args: Vec<String>,
        (http, admin): (SocketAddr, SocketAddr),
    ) -> Self {
        let log = File::options().create(true).append(true).read(true).open(dir.join("stderr.log"));
        let log = log.expect("a log file");
        let mut child = Command::new(&program)
            .arg("serve")
            .args(["--listen", &http.to_string(), "--admin", &admin.to_string()])
            .args(if args.iter().any(|arg| arg == "--quic") { &[][..] } else { &["--quic", "off"] })
            .args(&args)
            .current_dir(dir)
            .env_remove(EARLIER_BINARY)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.try_clone().expect("the same file"))
            .kill_on_drop(true)
            .spawn()
            .expect("the node's binary starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = tokio::time::timeout(PATIENCE, stdout.next_line()).await;
        let Ok(Ok(Some(ready))) = ready else { panic!("no ready line: {ready:?}\n{}", tail(dir)) };
        let http = address(&ready, "http=");
        let admin = address(&ready, "admin=");
        let quic = field(&ready, "quic=").parse().ok();
        let id = field(&ready, "node=").to_owned();
        Self { child, stdout, program, args, dir: dir.to_owned(), log, http, quic, admin, id }
    }

    /// Kills the node and starts a new process on the same data and ports.
    pub async fn kill_and_restart(&mut self) {
        self.kill().await;
        self.restart().await;
    }

    /// Starts a new process on the same data and ports, after [`Self::kill`] or [`Self::exit`].
    pub async fn restart(&mut self) {
        let mut args = self.args.clone();
        if let (Some(at), Some(quic)) = (args.iter().position(|arg| arg == "--quic"), self.quic) {
            args[at + 1] = quic.to_string();
        }
        *self = Self::start_at(self.program.clone(), &self.dir.clone(), args, (self.http, self.admin)).await;
    }

    /// Sends `SIGKILL`; returns once the process is gone.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("the node was running");
    }

    /// Sends `SIGTERM`; returns the exit code.
    pub async fn terminate(&mut self) -> Option<i32> {
        self.signal("-TERM").await;
        self.exit().await
    }

    /// Sends a signal, by the name that `kill` uses.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("the node is running").to_string();
        let sent = Command::new("kill").args([name, &pid]).status().await.expect("kill runs");
        assert!(sent.success(), "the node was running");
    }

    /// Waits until the node has exited by itself; returns the exit code.
    pub async fn exit(&mut self) -> Option<i32> {
        let left = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it leaves in time");
        left.expect("its exit is known").code()
    }

    /// Panics unless the process still runs.
    pub fn must_run(&mut self) {
        let exit = self.child.try_wait().expect("its state is known");
        assert!(exit.is_none(), "the node has exited: {exit:?}\n{}", tail(&self.dir));
    }

    /// Returns the id of the node's process.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("the node is running")
    }

    /// Returns the resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        let pid = self.child.id().expect("the node is running");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a Linux process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Returns the CPU time used so far.
    pub fn cpu(&self) -> std::time::Duration {
        let pid = self.child.id().expect("the node is running");
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a Linux process");
        // Fields 14 and 15, in hundredths of a second, counted from behind the process name, which may contain any
        // character.
        let (_, behind) = stat.rsplit_once(')').expect("a name");
        let ticks = behind.split_whitespace().skip(11).take(2);
        ticks.map(|ticks| std::time::Duration::from_millis(10 * ticks.parse::<u64>().expect("a number"))).sum()
    }

    /// Returns everything that the node has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("stderr.log")).unwrap_or_default()
    }

    /// Returns the log even if its directory is gone, as it may be when a test fails.
    fn whole_log(&self) -> String {
        let mut log = &self.log;
        let mut text = Vec::new();
        // A read error only makes the log incomplete.
        let _ = log.rewind().and_then(|()| log.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Writes the log to a file in the folder of `TEST_LOGS`, if that is set.
    fn keep_log(&self) -> Option<PathBuf> {
        let folder = PathBuf::from(std::env::var_os("TEST_LOGS")?);
        std::fs::create_dir_all(&folder).ok()?;
        let path = folder.join(format!("{}-{}.log", std::process::id(), self.id));
        std::fs::write(&path, self.whole_log()).ok()?;
        Some(path)
    }

    /// Returns the next line of stdout after the ready line.
    pub async fn line(&mut self) -> Option<String> {
        self.stdout.next_line().await.ok().flatten()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            match self.keep_log() {
                Some(path) => eprintln!("{NODE_LOG}{}", path.display()),
                None => eprintln!("--- the node's last words ---\n{}", last_lines(&self.whole_log())),
            }
        }
    }
}

fn address(ready: &str, name: &str) -> SocketAddr {
    field(ready, name).parse().unwrap_or_else(|_| panic!("no address after {name} in: {ready}"))
}

fn field<'a>(ready: &'a str, name: &str) -> &'a str {
    assert!(ready.starts_with("turnway ready "), "not a ready line: {ready}");
    let text = ready.split(' ').find_map(|part| part.strip_prefix(name));
    text.unwrap_or_else(|| panic!("no {name} in: {ready}"))
}

fn tail(dir: &Path) -> String {
    last_lines(&std::fs::read_to_string(dir.join("stderr.log")).unwrap_or_default())
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
