//! HAProxy in front of nodes, with the configuration that the project ships.
use super::PATIENCE;
use super::node::Node;
use super::redis::free_port;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Another process may take a port between its choice and its use.
const PORTS_TRIED: usize = 8;

/// A running HAProxy. Killed when dropped.
#[derive(Debug)]
pub struct Haproxy {
    child: Child,
    pub at: SocketAddr,
}

/// Returns the binary of `HAPROXY_BIN`, else the one on the path, else the one that `./test` unpacks.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("HAPROXY_BIN") {
        return named.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/haproxy");
    let mut places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), unpacked]);
    let found = places.find_map(|index| Some(index.join("haproxy")).filter(|file| file.is_file()));
    found.expect("there is no haproxy: `./test` unpacks Debian's into target/haproxy")
}

/// Returns the path of the shipped configuration.
pub fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/haproxy.cfg")
}

impl Haproxy {
    /// Starts HAProxy in front of three nodes, with its log under `dir`.
    pub async fn start(dir: &Path, nodes: &[Node]) -> Self {
        for _ in 0..PORTS_TRIED {
            let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
            let log = File::options().create(true).append(true).open(dir.join("haproxy.log"));
            let mut command = Command::new(binary());
            command.args(["-db", "-f"]).arg(config()).env("FLEET_FRONT", at.to_string());
            for (index, node) in nodes.iter().enumerate() {
                command.env(format!("FLEET_NODE{}", index + 1), node.http.to_string());
                command.env(format!("FLEET_ADMIN{}", index + 1), node.admin.to_string());
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("a log file"));
            let mut front = Self { child: command.spawn().expect("it starts"), at };
            let serves = async {
                while TcpStream::connect(at).await.is_err() {
                    if front.child.try_wait().expect("its state is known").is_some() {
                        return false;
                    }
                    tokio::task::yield_now().await;
                }
                true
            };
            if timeout(PATIENCE, serves).await.expect("it serves in time") {
                return front;
            }
        }
        panic!("no HAProxy: {}", std::fs::read_to_string(dir.join("haproxy.log")).unwrap_or_default());
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
