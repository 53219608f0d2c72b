//! A Redis server of the test's own: a process on a free port, with its data in a directory of the test.
use redis::{Connection, FromRedisValue};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, copy};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Another process may take a port between its choice and its use.
const PORTS_TRIED: usize = 8;

/// A running server. Killed when dropped.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    args: Vec<String>,
    dir: PathBuf,
    /// Port on the loopback address.
    pub port: u16,
}

impl Redis {
    /// Starts a server on a free port, with its data under `dir` and these further settings, such as
    /// `["--appendonly", "yes"]`. By default nothing is persisted.
    pub fn start(dir: &Path, args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        std::fs::create_dir_all(dir).expect("a directory");
        for _ in 0..PORTS_TRIED {
            let port = free_port();
            if let Some(child) = spawn(dir, &args, port) {
                return Self { child, args, dir: dir.to_owned(), port };
            }
        }
        panic!("no Redis: {}", std::fs::read_to_string(dir.join("redis.log")).unwrap_or_default());
    }

    /// Returns the URL for nodes.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the id of the server's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `SIGKILL`; returns once the process is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it is gone");
    }

    /// Starts a new process on the same data and port, after [`Self::kill`].
    pub fn restart(&mut self) {
        self.child = spawn(&self.dir, &self.args, self.port).expect("its port is still free");
    }

    /// Sends a signal, by the name that `kill` uses.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success(), "it was running");
    }

    /// Opens a plain connection, with which a test inspects or damages data.
    pub fn connection(&self) -> Connection {
        let client = redis::Client::open(self.url()).expect("a URL");
        client.get_connection().expect("it answers")
    }

    /// Runs one command over a new connection.
    pub fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection()).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Sentinel that watches one primary with a quorum of one. Killed when dropped.
#[derive(Debug)]
pub struct Sentinel(Redis);

impl Sentinel {
    /// Starts a Sentinel; returns once it knows the primary's replicas.
    pub fn watch(dir: &Path, primary: &Redis, name: &str) -> Self {
        std::fs::create_dir_all(dir).expect("a directory");
        let port = free_port();
        let file = dir.join("sentinel.conf");
        let watched = format!(
            "sentinel monitor {name} 127.0.0.1 {} 1\nsentinel down-after-milliseconds {name} 500\n\
             sentinel failover-timeout {name} 2000\n",
            primary.port
        );
        std::fs::write(&file, watched).expect("a file");
        let args = [file.display().to_string(), "--sentinel".to_owned()];
        let child = launch(dir, Command::new("redis-check-rdb").args(&args), port, "Sentinel ID is");
        let sentinel = Redis { child: child.expect("a Sentinel"), args: Vec::new(), dir: dir.to_owned(), port };
        while sentinel.command::<Vec<redis::Value>>(&["SENTINEL", "REPLICAS", name]).is_empty() {}
        Self(sentinel)
    }

    /// Returns the URL by which nodes look up the primary of a name.
    pub fn url(&self, name: &str) -> String {
        format!("redis+sentinel://127.0.0.1:{}/{name}", self.0.port)
    }
}

/// Returns a loopback port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn spawn(dir: &Path, args: &[String], port: u16) -> Option<Child> {
    let mut command = Command::new("redis-check-rdb");
    command.args(["--save", "", "--enable-debug-command", "local"]).args(args);
    launch(dir, &mut command, port, "Ready to accept connections")
}

/// Starts the process; returns once it prints that it is ready, or `None` if it ended instead.
fn launch(dir: &Path, command: &mut Command, port: u16, ready: &str) -> Option<Child> {
    // Debian's redis-tools has the server's binary under this name and starts no service; the binary's function
    // depends on the name by which it is called.
    let mut child = command
        .arg0("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no", "--dir"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-check-rdb starts; Debian has it in redis-tools");
    let mut log = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    let mut text = String::new();
    while !line.contains(ready) {
        line.clear();
        if log.read_line(&mut line).unwrap_or(0) == 0 {
            let _ = std::fs::write(dir.join("redis.log"), text);
            child.wait().expect("it has ended");
            return None;
        }
        text.push_str(&line);
    }
    let file = File::options().create(true).append(true).open(dir.join("redis.log"));
    let mut file = file.expect("a log file");
    // Reads until the process ends, so that it never blocks on a full pipe.
    std::thread::spawn(move || copy(&mut text.as_bytes().chain(log), &mut file));
    Some(child)
}
