//! The script `./fleet`, which starts a fleet on one machine.
use serde_json::Value;
use std::fs::read_to_string;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;
use turnway_tests::real::node::binary;
use turnway_tests::real::wire::WebSocketClient;
use turnway_tests::real::{PATIENCE, haproxy, http};

/// Number of consecutive ports that the script uses.
const PORTS: u16 = 22;

struct FleetScript {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    dir: TempDir,
    port: u16,
}

fn command() -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fleet");
    let mut command = Command::new(script);
    command.env("TURNWAY_BIN", binary()).env("HAPROXY_BIN", haproxy::binary());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    command
}

/// Returns the first of so many consecutive ports that were free a moment ago.
fn free_ports() -> u16 {
    let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut firsts = (20_000..30_000).step_by(usize::from(PORTS)).skip((std::process::id() % 400) as usize);
    firsts.find(|first| (*first..first + PORTS).all(free)).expect("free ports")
}

impl FleetScript {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let port = free_ports();
        let mut command = command();
        command.env("FLEET_PORT", port.to_string()).env("FLEET_DIR", dir.path());
        let mut child = command.spawn().expect("bash is there");
        let said = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut tryout = Self { child, stdout: said, dir, port };
        tryout.until_said("The fleet is ready").await;
        tryout
    }

    fn at(&self, offset: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port + offset))
    }

    async fn until_said(&mut self, what: &str) {
        let said = async { while !self.stdout.next_line().await.expect("text").expect("it goes on").contains(what) {} };
        timeout(PATIENCE, said).await.unwrap_or_else(|_| panic!("it does not say {what}"));
    }

    fn pid(&self, name: &str) -> String {
        let file: PathBuf = self.dir.path().join(format!("{name}.pid"));
        read_to_string(&file).unwrap_or_else(|why| panic!("{}: {why}", file.display())).trim().to_owned()
    }

    fn is_there(pid: &str) -> bool {
        // A zombie, which has ended but was not waited for, does not count as running.
        let state = read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
    }

    /// Waits until the first node lists three serving nodes, and returns their names.
    async fn until_three_serve(&self) -> Vec<String> {
        let serve = async {
            loop {
                let told = http::get(self.at(11), "/v1/nodes").await;
                let told: Value = told.and_then(|(_, text)| serde_json::from_str(&text).ok()).unwrap_or_default();
                let nodes = told["nodes"].as_array().cloned().unwrap_or_default();
                let serving = nodes.iter().filter(|node| node["phase"] == "serving");
                let mut names: Vec<String> = serving.map(|node| node["name"].to_string()).collect();
                if names.len() == 3 {
                    names.sort_unstable();
                    return names;
                }
            }
        };
        timeout(PATIENCE, serve).await.expect("three nodes serve")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_script_starts_restarts_and_stops_all_processes() {
    let mut tryout = FleetScript::start().await;
    assert_eq!(tryout.until_three_serve().await, ["\"n1\"", "\"n2\"", "\"n3\""]);
    let mut wire = WebSocketClient::hello(tryout.at(0), "ann", vec![]).await.expect("HAProxy serves");
    let (_, done) = wire.turn("s1", "echo", "m1", "hello").await.expect("a turn");
    assert_eq!(done["status"], "completed");

    let killed = tryout.pid("n2");
    let kill = Command::new("kill").args(["-9", &killed]).status().await.expect("kill runs");
    assert!(kill.success());
    tryout.until_said("n2 has ended").await;
    tryout.until_said("n2 is started again").await;
    tryout.until_three_serve().await;
    assert_ne!(tryout.pid("n2"), killed);

    let names = ["redis", "n1", "n2", "n3", "haproxy"];
    let pids = names.map(|name| tryout.pid(name));
    assert!(pids.iter().all(|pid| FleetScript::is_there(pid)));
    let own = tryout.child.id().expect("it runs").to_string();
    // A second instance reports that the port is taken.
    let mut second = command();
    second.env("FLEET_PORT", tryout.port.to_string()).env("FLEET_DIR", tryout.dir.path());
    let second = second.output().await.expect("bash is there");
    let said = String::from_utf8_lossy(&second.stdout).into_owned();
    assert!(second.status.code() == Some(69) && said.contains("is taken"), "{said}");

    Command::new("kill").args(["-TERM", &own]).status().await.expect("kill runs");
    let ended = timeout(PATIENCE, tryout.child.wait()).await.expect("it ends").expect("its end is known");
    assert_eq!(ended.code(), Some(0));
    for (name, pid) in names.iter().zip(&pids) {
        assert!(!FleetScript::is_there(pid), "{name} is left behind");
    }
}

#[tokio::test]
async fn check_lists_missing_programs() {
    let mut command = command();
    command.args(["check"]).env("REDIS_BIN", "/nowhere/redis").env("HAPROXY_BIN", "/nowhere/haproxy");
    let said = command.env("TURNWAY_BIN", "/nowhere/turnway").output().await.expect("bash is there");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_ne!(said.status.code(), Some(0));
    for missing in ["missing: redis-server", "missing: /nowhere/turnway", "not here: haproxy"] {
        assert!(text.contains(missing), "{text}");
    }
    let said = self::command().arg("check").output().await.expect("bash is there");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "nothing is missing\n");
}
