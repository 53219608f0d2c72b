//! nginx in front of nodes with QUIC, with the configuration that the project ships.
use super::PATIENCE;
use super::redis::free_port;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tokio::time::timeout;

/// Another process may take a port between its choice and its use.
const PORTS_TRIED: usize = 8;

/// A running nginx. Terminated when dropped.
#[derive(Debug)]
pub struct Nginx {
    child: Child,
    pub at: SocketAddr,
}

/// Returns the program and its modules: those of `NGINX_BIN`, else the installed ones, else those that `./test`
/// unpacks.
fn binary() -> (PathBuf, PathBuf) {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nginx");
    let named = std::env::var_os("NGINX_BIN").map(PathBuf::from);
    let places = named.into_iter().chain([PathBuf::from("/usr/sbin/nginx"), unpacked.join("nginx")]);
    let modules = [PathBuf::from("/usr/lib/nginx/modules"), unpacked.join("usr/lib/nginx/modules")];
    let program = places.into_iter().find(|file| file.is_file());
    let modules = modules.into_iter().find(|dir| dir.join("ngx_stream_module.so").is_file());
    program.zip(modules).expect("there is no nginx: `./test` unpacks Debian's into target/nginx")
}

/// Returns the shipped configuration with these addresses.
fn config(modules: &Path, at: SocketAddr, nodes: &[SocketAddr]) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/nginx-quic.conf");
    let given = fs::read_to_string(file).expect("it is there");
    let mut text = given.replace("load_module modules/", &format!("load_module {}/", modules.display()));
    text = text.replace("listen 127.0.0.1:8443 ", &format!("listen {at} "));
    let mut left = nodes.iter();
    for port in 8121..=8123 {
        let line = format!("server 127.0.0.1:{port} ");
        assert!(text.contains(&line), "the file has three nodes");
        // The file has three nodes; surplus entries are commented out.
        text = match left.next() {
            Some(node) => text.replace(&line, &format!("server {node} ")),
            None => text.replace(&line, &format!("#server 127.0.0.1:{port} ")),
        };
    }
    text
}

impl Nginx {
    /// Starts nginx in front of up to three nodes, with its files under `dir`.
    pub async fn start(dir: &Path, nodes: &[SocketAddr]) -> Self {
        let (program, modules) = binary();
        let file = dir.join("nginx.conf");
        let log = dir.join("nginx.log");
        for _ in 0..PORTS_TRIED {
            let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
            fs::write(&file, config(&modules, at, nodes)).expect("written");
            let pid = dir.join("nginx.pid");
            let globals = format!("daemon off; pid {}; error_log {};", pid.display(), log.display());
            let mut command = Command::new(&program);
            command.arg("-p").arg(dir).arg("-c").arg(&file).args(["-g", &globals]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut front = Self { child: command.spawn().expect("it starts"), at };
            // nginx writes its pid once each worker's socket is bound. The datagrams of a client that came between
            // two bindings would later be read by the other worker, and the node would see another client.
            let bound = async {
                while fs::read_to_string(&pid).unwrap_or_default().is_empty() {
                    if front.child.try_wait().expect("its state is known").is_some() {
                        return false;
                    }
                    tokio::task::yield_now().await;
                }
                true
            };
            if timeout(PATIENCE, bound).await.expect("it serves in time") {
                return front;
            }
        }
        panic!("no nginx: {}", fs::read_to_string(log).unwrap_or_default());
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Workers end with nginx on SIGTERM, but not on SIGKILL. The process may have ended already.
        let id = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        let _ = self.child.wait();
    }
}
