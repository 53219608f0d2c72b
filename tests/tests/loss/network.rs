//! Three network namespaces: clients, a router, and nodes. The router may drop packets, rewrites addresses,
//! and drops packets without a mapping.
use rcgen::{CertificateParams, KeyPair};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::{Builder, Runtime};
use turnway_tests::real::tls::Pair;

/// The router's address on the clients' side.
const FRONT: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
/// Address of the nodes.
const NODES: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 2);
/// Ports on the router's address.
const QUIC: u16 = 8443;
const HTTPS: u16 = 8080;

/// The router's rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Packets lost of a thousand, each way.
    pub(crate) lost: u32,
    /// Destinations of QUIC and HTTP packets.
    pub(crate) quic: SocketAddr,
    pub(crate) http: SocketAddr,
    /// Conntrack zone: with another number the router forgets its mappings and uses other ports.
    pub(crate) memory: u16,
}

/// The namespaces; removed when dropped.
pub(crate) struct Network {
    name: String,
}

/// Runs a program as root, or fails the test.
fn must(program: &str, args: &[&str], input: &str) -> String {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let needs = "this test makes network namespaces: it needs root, iproute2 and nftables (`./test` installs them)";
    let mut child = command.spawn().unwrap_or_else(|why| panic!("{program}: {why}; {needs}"));
    let written = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let done = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && written.is_ok(), "{program} {args:?}: {told}; {needs}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

// === impl Network ===

impl Network {
    pub(crate) fn make() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        sweep();
        let name = format!("turnway-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let way = Self { name };
        let [clients, router, nodes] = ["clients", "router", "nodes"].map(|side| way.side(side));
        for side in [&clients, &router, &nodes] {
            must("ip", &["netns", "add", side], "");
            must("ip", &["-n", side, "link", "set", "lo", "up"], "");
        }
        // One packet at a time: a segmentation-offload burst would be lost as a whole.
        let link = |router_end: &str, end: &str, at: &str, own: &str, other: &str| {
            let lines = format!(
                "link add {router_end} type veth peer name eth netns {end}\naddr add {own}/24 dev {router_end}\n\
                 link set {router_end} gso_max_segs 1 up\n"
            );
            must("ip", &["-n", &router, "-batch", "-"], &lines);
            let lines =
                format!("addr add {at}/24 dev eth\nlink set eth gso_max_segs 1 up\nroute add default via {other}\n");
            must("ip", &["-n", end, "-batch", "-"], &lines);
        };
        link("toc", &clients, "10.77.1.2", "10.77.1.1", "10.77.1.1");
        link("ton", &nodes, "10.77.2.2", "10.77.2.1", "10.77.2.1");
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        must("ip", &["netns", "exec", &router, "sh", "-c", forward], "");
        way
    }

    fn side(&self, side: &str) -> String {
        format!("{}-{side}", self.name)
    }

    /// Returns a runtime whose threads, sockets and processes are in one namespace.
    pub(crate) fn threads(&self, side: &str) -> Runtime {
        let path = Path::new("/run/netns").join(self.side(side));
        let inside = std::thread::spawn(move || {
            let space = File::open(path).expect("the namespace is there");
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
            // The runtime's threads are spawned by this thread and inherit its namespace.
            Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads")
        });
        inside.join().expect("it can be entered")
    }

    /// Replaces the router's rules.
    pub(crate) fn rule(&self, rules: Rules) {
        let Rules { lost, quic, http, memory } = rules;
        let first = 20_000 + 1000 * u32::from(memory);
        let last = first + 999;
        let text = format!(
            "flush ruleset
            table ip way {{
              counter lost {{ }}
              counter passed {{ }}
              counter from_quic {{ }}
              chain memory {{ type filter hook prerouting priority raw; ct zone set {memory}; }}
              chain in {{ type nat hook prerouting priority dstnat;
                iifname \"toc\" udp dport {QUIC} dnat to {quic}
                iifname \"toc\" tcp dport {HTTPS} dnat to {http}
              }}
              chain out {{ type nat hook postrouting priority srcnat;
                oifname \"ton\" ip protocol udp snat to 10.77.2.1:{first}-{last}
                oifname \"ton\" ip protocol tcp masquerade
              }}
              chain seen {{ type filter hook prerouting priority raw;
                iifname \"ton\" udp sport {port} counter name from_quic
              }}
              chain through {{ type filter hook forward priority filter;
                numgen random mod 1000 < {lost} counter name lost drop
                counter name passed
              }}
              chain own {{ type filter hook input priority filter; policy drop; }}
            }}",
            port = quic.port(),
        );
        must("ip", &["netns", "exec", &self.side("router"), "nft", "-f", "-"], &text);
    }

    /// Returns a packet counter since the last rules: `lost`, `passed`, or `from_quic` (packets from the node
    /// that gets QUIC).
    pub(crate) fn packets(&self, counter: &str) -> u64 {
        let told =
            must("ip", &["netns", "exec", &self.side("router"), "nft", "list", "counter", "ip", "way", counter], "");
        let words: Vec<&str> = told.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "packets").expect("nft tells packets");
        words[at + 1].parse().expect("a number")
    }

    /// Creates a certificate for the router's address and `localhost`.
    pub(crate) fn pair(dir: &Path) -> Pair {
        let key = KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned(), FRONT.to_string()];
        let cert = CertificateParams::new(names).expect("names").self_signed(&key).expect("a certificate");
        let pair = Pair { cert: dir.join("cert.pem"), key: dir.join("key.pem") };
        fs::write(&pair.cert, cert.pem()).expect("written");
        fs::write(&pair.key, key.serialize_pem()).expect("written");
        fs::set_permissions(&pair.key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
        pair
    }

    /// Returns the clients' address for QUIC.
    pub(crate) fn quic() -> SocketAddr {
        (FRONT, QUIC).into()
    }

    /// Returns the clients' address for WebSockets.
    pub(crate) fn http() -> SocketAddr {
        (FRONT, HTTPS).into()
    }

    /// Returns the address of a node that listens on all addresses, as the router sees it.
    pub(crate) fn node(at: SocketAddr) -> SocketAddr {
        (NODES, at.port()).into()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for side in ["clients", "router", "nodes"] {
            remove(&self.side(side));
        }
    }
}

/// Removes namespaces of tests that were killed.
fn sweep() {
    for name in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = name.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("turnway-").and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(&name);
        }
    }
}

fn remove(name: &str) {
    // A namespace that was not created yet does not exist.
    let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
}
